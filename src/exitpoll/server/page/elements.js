// Elements and words that the parts of the page share.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

// Makes an element: attributes, and children that are nodes or texts. Texts are never parsed as HTML.
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function percent(share, digits = 2) {
  return share === null || share === undefined ? "–" : `${+(100 * share).toFixed(digits)}\u00a0%`;
}

export function times(factor) {
  return factor === null || factor === undefined ? "" : `${factor.toFixed(2)}\u00a0×`;
}

// Writes what a head or the policy said: a label, several, or a value.
export function words(label) {
  if (label === null || label === undefined) return "–";
  if (Array.isArray(label)) return label.length ? label.join(", ") : "none";
  return typeof label === "number" ? `${+label.toPrecision(4)}` : label;
}
