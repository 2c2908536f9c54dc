// The page: load a model, run it on the text that is typed, and light up the exits that the text passed.
import { answerOf, runText } from "./exits.mjs";
import { makeTokenizer } from "./wordpiece.mjs";

// Where onnxruntime-web is: beside this page, or else on a CDN.
const RUNTIMES = ["runtime/", "https://cdn.jsdelivr.net/npm/onnxruntime-web@1.30.0/dist/"];

const folder = new URL(`${new URLSearchParams(location.search).get("model") ?? "model"}/`.replace(/\/+$/, "/"), location.href);
const element = (id) => document.getElementById(id);
const percent = (probability) => `${(100 * probability).toFixed(1)} %`;

async function fetchFile(name, { optional = false } = {}) {
  const response = await fetch(new URL(name, folder));
  if (optional && response.status === 404) return null;
  if (!response.ok) throw new Error(`${folder.pathname}${name} cannot be read (${response.status})`);
  return response;
}

async function importRuntime() {
  const [beside, elsewhere] = RUNTIMES.map((path) => new URL("ort.wasm.bundle.min.mjs", new URL(path, import.meta.url)));
  return import((await fetch(beside, { method: "HEAD" })).ok ? beside : elsewhere);
}

async function load() {
  const manifest = await (await fetchFile("exported.json")).json();
  if (!manifest.graph) throw new Error("the model is not one file; export it with --single-file");
  const policy = (await (await fetchFile("policy.json", { optional: true }))?.json()) ?? null;
  const tokenize = makeTokenizer(await (await fetchFile("tokenizer.json")).json(), manifest.max_length);
  const ort = await importRuntime();
  ort.env.wasm.numThreads = 1;
  const graph = new Uint8Array(await (await fetchFile(manifest.graph)).arrayBuffer());
  const session = await ort.InferenceSession.create(graph, { logSeverityLevel: 3 });
  const run = (text) => runText(ort, session, manifest, policy, tokenize(text));
  await run("warm up"); // the first call is slower
  return { manifest, policy, run };
}

// Build an element with a class and a text.
function make(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

function rowOf(number, { manifest, policy }, result) {
  const layer = manifest.exit_layers[number], logits = result?.logits[number];
  const row = make("li", "exit"), bar = make("span", "bar");
  row.style.setProperty("--place", number);
  row.append(make("span", "layer", layer ? `layer ${layer}` : "before layer 1"));
  if (!logits) {
    row.append(make("span", "label", result ? (logits === null ? "not asked" : "not run") : ""), bar, make("span", "number"));
    return row;
  }
  const { text, probability } = answerOf(logits, manifest);
  row.classList.add("passed");
  row.classList.toggle("left", layer === result.depth);
  bar.style.setProperty("--part", probability ?? 1);
  if (policy?.strategy === "max_prob" && typeof policy.threshold === "number") {
    bar.append(make("i", "threshold"));
    bar.style.setProperty("--threshold", policy.threshold);
  }
  row.append(make("span", "label", text), bar, make("span", "number", probability === null ? "" : percent(probability)));
  return row;
}

function show(model, result = null) {
  element("exits").replaceChildren(...model.manifest.exit_layers.map((_, number) => rowOf(number, model, result)));
}

// Return what the model answers, in words.
function answerText({ label, value, probability }, { label_names: names, problem_type: type }) {
  if (type === "regression") return value[0].toFixed(3);
  if (type === "multi_label_classification") return names.filter((_, number) => label[number]).join(", ") || "no label";
  return `${names[label[0]]}, ${percent(probability[0])}`;
}

async function classify(model) {
  const start = performance.now();
  const result = await model.run(element("text").value);
  const milliseconds = performance.now() - start, layers = model.manifest.exit_layers.at(-1);
  show(model, result);
  const answer = make("strong", "", answerText(result.answer, model.manifest));
  element("status").replaceChildren(answer, ` · ${result.depth} of ${layers} layers run · ${milliseconds.toFixed(1)} ms`);
}

function describe({ policy }) {
  if (policy?.threshold == null) return "This model has no policy by which texts leave early.";
  const threshold = typeof policy.threshold === "number" ? ` and threshold ${policy.threshold}` : "";
  return `The policy: strategy ${policy.strategy}${threshold}. Exits light up slower than they run.`;
}

try {
  const model = await load();
  show(model);
  element("policy").textContent = describe(model);
  element("status").textContent = "Ready.";
  element("run").disabled = false;
  element("form").addEventListener("submit", (event) => {
    event.preventDefault();
    classify(model).catch((error) => (element("status").textContent = `The model failed: ${error.message}.`));
  });
} catch (error) {
  element("status").textContent = `There is no model to run: ${error.message}.`;
  element("help").hidden = false;
}
