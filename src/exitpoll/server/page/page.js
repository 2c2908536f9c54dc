// The page of a server: asks it for predictions with votes, shows policies, and polls what it does.

import { curve, histogram } from "./charts.js";
import { Climbs } from "./climbs.js";
import { find, make, percent, times } from "./elements.js";

const EVERY = 1000; // milliseconds between polls
const RECENT = 5; // polls, over which texts a second are averaged
const state = { key: "", info: null, policies: [], chosen: null, climbs: null, polls: [] };

// ---- the server ----------------------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const headers = state.key ? { ...options.headers, Authorization: `Bearer ${state.key}` } : options.headers;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: null }));
  throw Object.assign(new Error(error ?? `the server answered ${response.status}`), { status: response.status });
}

async function load() {
  let status;
  try {
    status = await (await ask("v1/status")).json();
  } catch (error) {
    if (error.status !== 401) return say(`The server cannot be reached: ${error.message}`, true);
    find("login").hidden = false;
    find("about").textContent = state.key ? "The key is wrong." : "This server asks for a key.";
    return find("key").focus();
  }
  find("login").hidden = true;
  state.info = await (await ask("info")).json();
  state.climbs = new Climbs(state.info);
  describe(state.info);
  await showPolicies(status.default);
  find("run").disabled = false;
  show(status);
  setTimeout(poll, EVERY);
}

function describe(info) {
  document.title = `${info.model_id} · exitpoll`;
  find("title").textContent = info.model_id;
  const exits = info.exit_layers.length;
  find("about").textContent = `${info.layers} layers, ${exits} exit${exits === 1 ? "" : "s"}, ${info.runtime}, exitpoll ${info.version}`;
  if (info.pairs) find("texts-help").textContent = "One pair on a line, its two texts separated by |. Ctrl + Enter classifies them.";
}

function say(message, isBad = false) {
  find("note").textContent = message;
  find("note").className = isBad ? "bad" : "";
}

// ---- predictions ---------------------------------------------------------------------------------------------------

function texts() {
  const lines = find("texts").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!state.info.pairs) return lines;
  return lines.map((line) => {
    const [first, ...rest] = line.split("|");
    return [first.trim(), rest.join("|").trim()];
  });
}

async function classify() {
  const given = texts();
  if (!given.length || find("run").disabled) return;
  find("run").disabled = true;
  state.climbs.begin(given.map((text) => (Array.isArray(text) ? text.join(" | ") : text)));
  say(`Asking for ${given.length} text${given.length === 1 ? "" : "s"} …`);
  const shown = [];
  try {
    const body = JSON.stringify({ texts: given, policy: state.chosen, explain: true });
    const headers = { "Content-Type": "application/json", Accept: "application/x-ndjson" };
    const response = await ask("v1/predict/stream", { method: "POST", body, headers });
    for await (const row of rows(response.body)) {
      if ("index" in row) shown.push(state.climbs.show(row));
      else finish(row, given.length);
    }
  } catch (error) {
    say(error.message, true);
  }
  await Promise.all(shown);
  find("run").disabled = false;
}

function finish(row, count) {
  if (row.error) return say(row.error, true);
  const { layers_run: run, layers_full: full } = row.usage;
  say(`${count} text${count === 1 ? "" : "s"} by policy ${row.policy}: ${run} of ${full} layers run` +
    `${row.guarantee ? `. Guarantee: ${row.guarantee}.` : ", without a guarantee."}`);
}

async function* rows(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
  }
}

// ---- policies ------------------------------------------------------------------------------------------------------

async function showPolicies(byDefault) {
  state.policies = (await (await ask("v1/policies")).json()).policies;
  const isKnown = state.policies.some((policy) => policy.name === state.chosen);
  state.chosen = isKnown ? state.chosen : byDefault;
  find("policies").replaceChildren(...state.policies.map(choice));
  drawCurve();
}

function choice(policy) {
  const radio = make("input", { type: "radio", name: "policy", value: policy.name, checked: policy.name === state.chosen });
  radio.addEventListener("change", () => choose(policy.name));
  const about = policy.limit === null ? policy.guarantee ?? (policy.exits_early ? "no guarantee" : "never exits early")
    : `at most ${percent(policy.limit)} differ, guaranteed; ${percent(policy.measured)} at calibration`;
  return make("label", { class: "policy" }, radio, make("b", {}, policy.name),
    make("span", { class: "speed" }, times(policy.speedup)), make("span", { class: "soft" }, about));
}

function choose(name) {
  state.chosen = name;
  for (const radio of document.querySelectorAll("#policies input")) radio.checked = radio.value === name;
  drawCurve();
}

function drawCurve() {
  const known = state.policies.filter((policy) => policy.measured !== null && policy.speedup > 1);
  find("curve").replaceChildren(...(known.length ? [curve(state.policies, state.chosen, choose)] : []));
  find("curve-caption").textContent = known.length
    ? "Disagreement with the full model on the calibration texts, with its upper bound; dashed: the limit that is guaranteed."
    : "No policy was calibrated for a guarantee: there is nothing to draw.";
}

// ---- live ----------------------------------------------------------------------------------------------------------

async function poll() {
  if (!document.hidden) {
    try {
      show(await (await ask("v1/status")).json());
    } catch (error) {
      find("rate").textContent = "–";
      find("queue").textContent = "no answer";
    }
  }
  setTimeout(poll, EVERY);
}

function show(status) {
  const answered = status.texts.answered ?? 0, depths = Object.entries(status.depths);
  state.polls = [...state.polls.slice(-RECENT), { seconds: status.seconds, answered }];
  const [first] = state.polls, passed = status.seconds - first.seconds;
  find("rate").textContent = passed > 0 ? ((answered - first.answered) / passed).toFixed(1) : "–";
  find("answered").textContent = answered.toLocaleString("en");
  const run = depths.reduce((sum, [layer, count]) => sum + Number(layer) * count, 0);
  const counted = depths.reduce((sum, [, count]) => sum + count, 0), full = counted * state.info.layers;
  find("saved").textContent = full ? percent(1 - run / full, 0) : "–";
  find("queue").textContent = `${status.queue.texts}`;
  find("depths").replaceChildren(histogram(status.depths));
  find("depths-caption").textContent = counted
    ? `Texts by the layer after which they left; ${(run / counted).toFixed(1)} layers on average.`
    : "Texts by the layer after which they left; none yet.";
  showGuarantees(status);
}

function showGuarantees(status) {
  const watched = Object.entries(status.guarantees).filter(([name, found]) => found.texts || name === status.default);
  const shifts = Object.entries(status.shifts).filter(([, found]) => found.windows).map(shift);
  find("guarantee").replaceChildren(...(watched.length ? watched.map(gauge) : [unwatched(status)]), ...shifts);
}

function shift([name, found]) {
  const means = Object.entries(found.means).map(([statistic, { live, calibration }]) =>
    `${statistic} ${live.toPrecision(3)} against ${calibration.toPrecision(3)}`).join(", ");
  const verdict = found.shift ? make("span", { class: "bad" }, "differ") : make("span", { class: "good" }, "look alike");
  return make("p", { class: "watch" }, "Texts and calibration texts of ", make("b", {}, name), " ", verdict,
    make("span", { class: "soft" }, ` (means of the last window: ${means})`));
}

function unwatched(status) {
  const why = status.audit ? "No policy guarantees what can be watched without labels." : "Not watched: start the server with --audit 0.02.";
  return make("p", { class: "soft" }, why);
}

function gauge([name, found]) {
  const scale = Math.max(2 * found.limit, found.bound * 1.1);
  const fill = make("i", { class: found.broken ? "over" : null }), limit = make("s");
  fill.style.width = `${(100 * found.bound) / scale}%`;
  limit.style.left = `${(100 * found.limit) / scale}%`;
  const words = `${found.differing} of ${found.texts} audited texts differ: a risk of at least ${percent(found.bound)}; limit ${percent(found.limit)}`;
  const verdict = found.broken ? make("span", { class: "bad" }, "broken") : make("span", { class: "good" }, found.texts ? "holds" : "no texts yet");
  return make("div", { class: "watch" }, make("b", {}, name), " ", verdict,
    make("div", { class: "gauge", "aria-hidden": "true" }, fill, limit), make("span", { class: "soft" }, words));
}

// ---- events --------------------------------------------------------------------------------------------------------

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
find("texts").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("ask").requestSubmit();
});
find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = find("key").value.trim();
  load();
});
load();
