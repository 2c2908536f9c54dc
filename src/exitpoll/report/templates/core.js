"use strict";
// What the other scripts share: elements, numbers, and figures that are drawn again when their width changes.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const minus = (text) => (/^-0(\.0+)?$/.test(text) ? text.slice(1) : text.replace("-", "−"));
const percent = (share, digits = 1) => minus((100 * share).toFixed(digits));
const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from || 1)) * (end - start);
const logarithmic = (from, to, start, end) => {
  const scale = linear(Math.log(from), Math.log(to), start, end);
  return (value) => scale(Math.log(value));
};

function ticksBetween(low, high, count) {
  const rough = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, number) => (first + number) * step);
}

const figures = [];
function figure(id, draw) {
  const host = byId(id);
  if (host === null) return () => {};
  const redraw = () => {
    const [width, picture] = [host.clientWidth, []];
    if (width) picture.push(draw(width));
    picture.forEach((drawn) => fill(drawn, { role: "img", "aria-label": host.dataset.label }, []));
    host.replaceChildren(...picture);
  };
  figures.push(redraw);
  return redraw;
}

function legend(id, entries) {
  byId(id)?.replaceChildren(...entries.map(([mark, name]) => html("span", {}, swatch(mark), name)));
}

function swatch(mark) {
  const shape = mark === "ring" ? svg("circle", { class: mark, cx: 13, cy: 7, r: 5.5 })
    : mark.startsWith("part") ? svg("rect", { class: mark, x: 4, y: 2, width: 18, height: 10 })
      : svg("line", { class: `line ${mark}`, x1: 1, x2: 25, y1: 7, y2: 7 });
  return svg("svg", { width: 26, height: 14, "aria-hidden": "true" }, shape);
}
