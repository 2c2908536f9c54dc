"use strict";
// Texts, with answers as numbers into `names`; see exitpoll/report/texts.py.
const { rows, names, symbols, layers, regression } = JSON.parse(document.getElementById("data").textContent);
const last = layers.length - 1;
const right = (row) => row.answer === row.gold;
const early = (row) => row.exit < last;
const changes = (row) => row.heads.filter((head, exit) => exit && head !== row.heads[exit - 1]).length;
const general = {
  all: ["all texts", () => true],
  early: ["early exit", early],
  late: ["exit in the last third of the layers", (row) => layers[row.exit] > (2 * layers[last]) / 3],
};
const forClasses = {
  early_wrong: ["early exit, wrong", (row) => early(row) && !right(row)],
  early_right: ["early exit, right", (row) => early(row) && right(row)],
  lost: ["wrong where the full model is right", (row) => !right(row) && row.full === row.gold],
  won: ["right where the full model is wrong", (row) => right(row) && row.full !== row.gold],
  wrong: ["wrong", (row) => !right(row)],
  changing: ["answer changes twice or more between exits", (row) => changes(row) > 1],
};
const filters = regression ? general : { ...general, ...forClasses };
const pageSize = 50;
const filter = document.getElementById("filter"), search = document.getElementById("search");
const body = document.querySelector("#texts tbody"), more = document.getElementById("more");
let matches = [], shown = 0;

function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function symbolOf(head, answer) {
  if (regression) return names[head];
  if (symbols.length) return symbols[head];
  return head === answer ? "●" : "○";
}

function exitStrip(row) {
  const label = `exit after layer ${layers[row.exit]}; answers of the exits: ${row.heads.map((head) => names[head]).join(", ")}`;
  const strip = element("span", "", { class: "strip", role: "img", "aria-label": label });
  row.heads.forEach((head, exit) => {
    const classes = [!regression && head !== row.gold && "wrong", exit === row.exit && "exit", exit > row.exit && "skipped"];
    strip.append(element("span", symbolOf(head, row.answer), { class: classes.filter(Boolean).join(" "),
      title: `after layer ${layers[exit]}: ${names[head]}` }));
  });
  return strip;
}

function tableRow(row) {
  const node = document.createElement("tr");
  const text = regression ? names[row.answer] : `${right(row) ? "✓" : "✗"} ${names[row.answer]}`;
  const answer = element("td", text, { class: regression ? "" : right(row) ? "ok" : "no", "data-name": "answer" });
  const exits = document.createElement("td");
  exits.append(exitStrip(row));
  node.append(element("td", row.text, { class: "text" }), element("td", names[row.gold], { "data-name": "label" }), answer, exits);
  return node;
}

function showMore() {
  body.append(...matches.slice(shown, shown + pageSize).map(tableRow));
  shown = Math.min(shown + pageSize, matches.length);
  more.hidden = shown >= matches.length;
}

function show() {
  const wanted = search.value.toLowerCase();
  matches = rows.filter((row) => filters[filter.value][1](row) && row.text.toLowerCase().includes(wanted));
  document.getElementById("matches").textContent = `${matches.length} of ${rows.length} texts`;
  body.replaceChildren();
  shown = 0;
  showMore();
}

function legend() {
  if (symbols.length) return symbols.map((symbol, number) => `${symbol} ${names[number]}`).join(" · ");
  return regression ? "" : "● the answer of the policy, ○ another answer";
}

for (const [name, [title, keeps]] of Object.entries(filters))
  filter.append(element("option", `${title} (${rows.filter(keeps).length})`, { value: name }));
const asked = new URLSearchParams(location.hash.slice(1)).get("show");
if (asked !== null && Object.hasOwn(filters, asked)) filter.value = asked;
filter.addEventListener("change", () => { history.replaceState(null, "", `#show=${filter.value}`); show(); });
search.addEventListener("input", show);
more.addEventListener("click", showMore);
document.getElementById("legend").textContent = legend();
show();
