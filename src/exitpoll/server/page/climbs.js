// Texts that climb their exits: columns that fill one after another, up to the exit at which the text leaves.

import { find, make, words } from "./elements.js";

const PACE = 170; // milliseconds for an exit
const COLORS = 8;
const MANY = 8; // exits, from which on a phone has no room for words
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Climbs {
  constructor(info) {
    this.info = info;
    this.labels = Object.values(info.model_type.classifier.id2label);
    this.seen = new Set();
  }

  // Shows texts without answers yet.
  begin(texts) {
    this.seen.clear();
    find("legend").replaceChildren();
    this.rows = texts.map((text) => this.row(text));
    find("climbs").replaceChildren(...this.rows.map((row) => row.node));
    find("answers").hidden = false;
  }

  row(text) {
    const many = this.info.exit_layers.length > MANY ? " many" : "";
    const answer = make("p", { class: "answer soft" }, "on its way …");
    const exits = this.info.exit_layers.map((layer) => this.exit(layer));
    const track = make("div", { class: `exits${many}`, "aria-hidden": "true" }, ...exits.map((exit) => exit.node));
    const node = make("li", { class: "climb" }, make("p", { class: "text" }, words(text)), answer, track);
    return { node, answer, exits };
  }

  exit(layer) {
    const bar = make("i"), said = make("span", { class: "said" }), column = make("div", { class: "column" }, bar);
    const node = make("div", { class: "exit" }, said, column, make("span", { class: "layer" }, String(layer)));
    return { layer, bar, said, column, node };
  }

  // Plays the votes of a text that has left, and then says what it was answered.
  async show(prediction) {
    const row = this.rows[prediction.index], votes = prediction.votes ?? [];
    for (const vote of votes) {
      const exit = row.exits.find((one) => one.layer === vote.layer);
      this.vote(exit, vote);
      if (!still.matches) await new Promise((done) => setTimeout(done, PACE));
    }
    for (const exit of row.exits) {
      exit.node.classList.toggle("left", exit.layer === prediction.depth);
      exit.node.classList.toggle("skipped", exit.layer > prediction.depth);
    }
    this.answer(row, prediction);
    if (votes.length) row.node.append(table(votes));
  }

  vote(exit, vote) {
    const color = this.color(vote.label);
    exit.column.classList.add(`label${color}`);
    exit.bar.style.height = `${100 * (vote.probability ?? 1)}%`;
    exit.said.textContent = words(vote.label);
    exit.node.title = `layer ${vote.layer}: ${words(vote.label)}`;
    exit.node.classList.add("shown");
  }

  answer(row, prediction) {
    row.answer.className = "answer";
    if (prediction.error) {
      return row.answer.replaceChildren(make("span", { class: "bad" }, prediction.error));
    }
    const sure = typeof prediction.probability === "number" ? ` ${(100 * prediction.probability).toFixed(1)} %` : "";
    const skipped = prediction.layers - prediction.depth;
    const depth = ` · left after layer ${prediction.depth} of ${prediction.layers}` +
      `${skipped ? `, ${skipped} skipped` : ""} · ${prediction.model_ms.toFixed(1)} ms`;
    row.answer.replaceChildren(make("b", {}, words(prediction.label)), sure, make("span", { class: "soft" }, depth));
  }

  // Gives a label its color, and puts it into the legend.
  color(label) {
    if (typeof label !== "string") return 0;
    const number = Math.max(this.labels.indexOf(label), 0) % COLORS;
    if (!this.seen.has(label)) {
      this.seen.add(label);
      find("legend").append(make("li", { class: `label${number}` }, make("i"), make("span", {}, label)));
    }
    return number;
  }
}

function table(votes) {
  const number = (value) => (value === null || value === undefined ? "–" : `${+value.toPrecision(3)}`);
  const head = ["after layer", "said", "probability", "score", "leaves at"];
  const rows = votes.map((vote) => {
    const cells = [vote.layer, words(vote.label), number(vote.probability), number(vote.score), number(vote.threshold)];
    return make("tr", { class: vote.exits ? "left" : null }, ...cells.map((cell) => make("td", {}, String(cell))));
  });
  const body = make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((cell) => make("th", { scope: "col" }, cell)))), make("tbody", {}, ...rows));
  return make("details", {}, make("summary", {}, "What every exit said"),
    make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Exits" }, body));
}
