// The table of texts: filters, sorting, pages, download. Columns are arrays with one entry per text; see texts.py.
const table = data.texts, layers = data.layers, pageSize = 50;
const reference = table.gold ?? table.full;  // what answers are compared with
const referenceName = table.gold ? "label" : "full model";
const all = table.text.map((_, row) => row), lowered = table.text.map((content) => content.toLowerCase());
const nameOf = (answer) => table.names[answer];
const right = (row) => table.answer[row] === reference[row];
const differs = (row) => table.answer[row] !== table.full[row];
const changes = (row) => table.heads[row].filter((head, exit) => exit && head !== table.heads[row][exit - 1]).length;

const kinds = { all: ["all texts", () => true] };
if (table.gold && !table.regression) Object.assign(kinds, {
  right: ["right", right],
  wrong: ["wrong", (row) => !right(row)],
  lost: ["wrong where the full model is right", (row) => !right(row) && table.full[row] === table.gold[row]],
  won: ["right where the full model is wrong", (row) => right(row) && table.full[row] !== table.gold[row]],
});
if (!table.regression) Object.assign(kinds, {
  differs: ["differs from the full model", differs],
  changing: ["changes twice or more between exits", (row) => changes(row) > 1],
});

const columns = [
  { name: "#", key: "number", value: (row) => table.number[row] },
  { name: "text", key: "text", value: (row) => table.text[row] },
  table.gold && { name: "label", key: "label", value: (row) => nameOf(table.gold[row]) },
  { name: "answer", key: "answer", value: (row) => nameOf(table.answer[row]) },
  table.probability && { name: "probability", key: "probability", value: (row) => table.probability[row] },
  { name: "layer", key: "layer", value: (row) => layers[table.exit[row]] },
  { name: "full model", key: "full_model", value: (row) => nameOf(table.full[row]) },  // shown where it differs
  !table.regression && { name: "exits", key: "exits", value: changes },
].filter(Boolean);

const state = { sort: "number", falling: false, page: 0, rows: all };
const controls = byId("controls");
const collator = new Intl.Collator(undefined, { numeric: true });

// ---- filters ----
function option(value, name, count) {
  return html("option", { value }, count === null ? name : `${name} (${count})`);
}

function fillControls() {
  const { show, layer, label, answer } = controls.elements;
  show.append(...Object.entries(kinds).map(([key, [name, keeps]]) => option(key, name, all.filter(keeps).length)));
  layer.append(option("", "any", null), ...layers.map((depth, exit) => option(depth, depth, table.exit.filter((own) => own === exit).length)));
  if (label) for (const [select, column] of [[label, reference], [answer, table.answer]])
    select.append(option("", "any", null), ...table.labels.map((name, number) =>
      option(number, name, column.filter((own) => table.classes[own].includes(number)).length)));
}

function wanted() {
  return Object.fromEntries([...new FormData(controls)].filter(([name, value]) => value !== "" && !(name === "show" && value === "all")));
}

function matching() {
  const { show = "all", layer, label, answer, search = "" } = wanted();
  const sought = search.toLowerCase(), has = (column, number) => (row) => table.classes[column[row]].includes(Number(number));
  const tests = [kinds[show][1], (row) => lowered[row].includes(sought)];
  if (layer) tests.push((row) => layers[table.exit[row]] === Number(layer));
  if (label) tests.push(has(reference, label));
  if (answer) tests.push(has(table.answer, answer));
  return all.filter((row) => tests.every((test) => test(row)));
}

function sorted(rows) {
  const { value } = columns.find(({ key }) => key === state.sort), sign = state.falling ? -1 : 1;
  const compare = (first, second) => (typeof first === "number" ? first - second : collator.compare(first, second));
  const keyed = rows.map((row) => [value(row), row]);
  keyed.sort((first, second) => sign * compare(first[0], second[0]) || first[1] - second[1]);
  return keyed.map(([, row]) => row);
}

// ---- rows ----
function strip(row) {
  const said = table.heads[row].map((head, exit) => `${layers[exit]}: ${nameOf(head)}`).join(", ");
  const boxes = table.heads[row].map((head, exit) => html("i", { class: [head === reference[row] && "same",
    exit === table.exit[row] && "exit", exit > table.exit[row] && "skipped"].filter(Boolean).join(" ") }));
  return html("span", { class: "strip", role: "img", "aria-label": `answers of the exits by layer: ${said}` }, ...boxes);
}

function cell(row, { key, value }) {
  const attributes = { class: `col-${key}`, role: "cell" };
  if (key === "exits") return html("td", attributes, strip(row));
  if (key === "text") {
    const button = html("button", { type: "button", "aria-expanded": "false" }, html("bdi", {}, value(row)));
    button.addEventListener("click", () => toggle(row, button));
    return html("td", attributes, button);
  }
  if (key === "probability") return html("td", attributes, value(row).toFixed(3));
  const mark = key === "answer" && !table.regression ? (right(row) ? "✓ " : "✗ ") : "";
  if (mark) attributes.class += right(row) ? " right" : " wrong";
  if (key === "full_model" && !table.regression && !differs(row)) return html("td", { ...attributes, class: `${attributes.class} same` }, "same");
  return html("td", attributes, mark, html("bdi", {}, String(value(row))));
}

function toggle(row, button) {
  const line = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) return line.nextSibling.remove();
  line.after(html("tr", { class: "detail", role: "row" }, html("td", { colspan: columns.length, role: "cell" }, html("p", { dir: "auto" }, table.text[row]), exitTable(row))));
}

function exitTable(row) {
  const lines = table.heads[row].map((head, exit) => html("tr", { class: exit === table.exit[row] ? "exit" : exit > table.exit[row] ? "skipped" : "" },
    html("th", { scope: "row" }, `layer ${layers[exit]}`), html("td", {}, html("bdi", {}, nameOf(head))),
    table.confidence ? html("td", { class: "number" }, table.confidence[row][exit].toFixed(3)) : "",
    html("td", {}, exit === table.exit[row] ? "exit" : "")));
  return html("table", {}, html("caption", {}, `What the exits answer${table.confidence ? ", with the probability they give it" : ""}`), html("tbody", {}, ...lines));
}

function showTable() {
  const first = state.page * pageSize, rows = state.rows.slice(first, first + pageSize);
  const titles = columns.map(({ name, key }) => {
    const active = key === state.sort, arrow = active ? (state.falling ? " ▼" : " ▲") : "";
    const button = html("button", { type: "button" }, name, html("span", { "aria-hidden": "true" }, arrow));
    button.addEventListener("click", () => sortBy(key));
    const title = html("th", { scope: "col", role: "columnheader", class: `col-${key}`, "aria-sort": active ? (state.falling ? "descending" : "ascending") : "none" }, button);
    if (key === "exits") title.style.width = `${9 * layers.length + 24}px`;
    return title;
  });
  // On a phone rows are laid out as blocks, which would hide from screen readers that this is a table.
  const [group, line] = [{ role: "rowgroup" }, { role: "row" }];
  byId("table").replaceChildren(html("table", { class: "texts", role: "table" }, html("thead", group, html("tr", line, ...titles)),
    html("tbody", group, ...rows.map((row) => html("tr", line, ...columns.map((column) => cell(row, column)))))));
  byId("matches").textContent = `${state.rows.length} of ${all.length} texts`;
  byId("pages").textContent = rows.length ? `${first + 1} to ${first + rows.length}` : "no texts";
  byId("previous").disabled = state.page === 0;
  byId("next").disabled = first + pageSize >= state.rows.length;
}

function sortBy(key) {
  Object.assign(state, { falling: key === state.sort && !state.falling, sort: key, page: 0 });
  state.rows = sorted(state.rows);
  showTable();
  byId("table").querySelector(`th.col-${key} button`).focus();
}

function turn(pages) {
  state.page += pages;
  showTable();
  byId("table").scrollIntoView({ block: "nearest" });
}

function applyFilters() {
  state.rows = sorted(matching());
  state.page = 0;
  const hash = new URLSearchParams(wanted()).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  byId("clear").hidden = !hash;
  showTable();
}

// ---- addresses that lead to some of the texts: #label=0&answer=1 ----
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const known = [...controls.elements].filter((control) => asked.has(control.name));
  if (!known.length) return false;
  controls.reset();
  for (const control of known) {
    control.value = asked.get(control.name);
    if (control.selectedIndex === -1) control.selectedIndex = 0;
  }
  return true;
}

// ---- download ----
function csvOf(rows) {
  const quote = (value) => `"${String(value).replaceAll('"', '""')}"`;
  const shown = columns.filter(({ key }) => key !== "exits");
  const heads = layers.flatMap((layer) => [`answer_${layer}`, ...(table.confidence ? [`probability_${layer}`] : [])]);
  const lines = rows.map((row) => [...shown.map(({ value }) => value(row)),
    ...table.heads[row].flatMap((head, exit) => [nameOf(head), ...(table.confidence ? [table.confidence[row][exit]] : [])])]);
  return [[...shown.map(({ key }) => key), ...heads], ...lines].map((line) => line.map(quote).join(",")).join("\r\n") + "\r\n";
}

function download() {
  const address = URL.createObjectURL(new Blob(["\ufeff", csvOf(state.rows)], { type: "text/csv" }));
  const link = html("a", { href: address, download: "texts.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function startTexts() {
  fillControls();
  readAddress();
  controls.addEventListener("input", applyFilters);
  controls.addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => { controls.reset(); applyFilters(); });
  byId("download").addEventListener("click", download);
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  window.addEventListener("hashchange", () => {
    if (!readAddress()) return;
    applyFilters();
    byId("texts").scrollIntoView();
  });
  state.rows = sorted(matching());
  byId("clear").hidden = !Object.keys(wanted()).length;
  showTable();
}
