// Run a model.onnx that exits by itself in any ONNX Runtime for JavaScript: onnxruntime-web or onnxruntime-node.

// Return the tensors of token ids, (texts, tokens), padded to the longest text.
function tensorsOf(ort, session, manifest, texts) {
  const tokens = Math.max(...texts.map((ids) => ids.length));
  const fill = (valueAt) => {
    const rows = texts.flatMap((ids) => Array.from({ length: tokens }, (_, place) => BigInt(valueAt(ids, place))));
    return new ort.Tensor("int64", BigInt64Array.from(rows), [texts.length, tokens]);
  };
  const columns = {
    input_ids: (ids, place) => ids[place] ?? manifest.padding.input_ids,
    attention_mask: (ids, place) => (place < ids.length ? 1 : 0),
    token_type_ids: (ids, place) => (place < ids.length ? 0 : manifest.padding.token_type_ids),
  };
  return Object.fromEntries(session.inputNames.map((name) => [name, fill(columns[name])]));
}

// Return label, probability and depth of every text; a value in place of the first two for regression.
export async function predict(ort, session, manifest, texts) {
  const wanted = ["label", "probability", "value", "depth"].filter((name) => session.outputNames.includes(name));
  const outputs = await session.run(tensorsOf(ort, session, manifest, texts), wanted);
  return Object.fromEntries(wanted.map((name) => [name, Array.from(outputs[name].data, Number)]));
}

// Return the depth of one text, its answer, and the logits of every exit: null if its head was not asked, undefined if
// the text left before. Both packages for JavaScript take no inputs with defaults, such as with_exit_logits, so these
// logits are read from what is noted at exits, first of all.
export async function runText(ort, session, manifest, policy, ids) {
  const { exit_layers: layers, label_names: names, problem_type: type } = manifest;
  const notesAt = (number) => `notes_${number}`; // of exits at which the graph may stop
  const notes = layers.map((_, number) => notesAt(number)).filter((name) => session.outputNames.includes(name));
  const answers = type === "regression" ? ["value"] : ["label", "probability"];
  const outputs = await session.run(tensorsOf(ort, session, manifest, [ids]), [...answers, "depth", "logits", ...notes]);
  const depth = Number(outputs.depth.data[0]), last = layers.indexOf(depth);
  const isAsked = (layer) => policy?.threshold != null && (policy.exit_layers ?? layers).includes(layer);
  const logits = layers.map((layer, number) => {
    if (number > last) return undefined;
    if (number === last) return Array.from(outputs.logits.data);
    return isAsked(layer) ? Array.from(outputs[notesAt(number)].data.slice(0, names.length)) : null;
  });
  return { depth, logits, answer: Object.fromEntries(answers.map((name) => [name, Array.from(outputs[name].data, Number)])) };
}

// Put logits into words: what the head of an exit answers, and its probability (none for regression).
export function answerOf(logits, { label_names: names, problem_type: type }) {
  if (type === "regression") return { text: logits[0].toFixed(3), probability: null };
  if (type === "multi_label_classification") {
    const chosen = logits.flatMap((logit, number) => (logit > 0 ? [number] : []));
    const surest = logits.map((logit) => 1 / (1 + Math.exp(-Math.abs(logit))));
    return { text: chosen.map((number) => names[number]).join(", ") || "no label", probability: Math.min(...surest) };
  }
  const highest = Math.max(...logits), total = logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
  return { text: names[logits.indexOf(highest)], probability: 1 / total };
}
