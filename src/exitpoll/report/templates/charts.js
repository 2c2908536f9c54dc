// The figures. Colours, dashes and type sizes are in page.css; positions are in pixels of the page.
const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);
const canvas = (width, height, ...children) => svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...children);
const path = (pairs) => "M" + pairs.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

function yAxis(box, y, ticks, write) {
  return ticks.flatMap((tick) => [
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
    text(box.left - 6, y(tick) + 4, write(tick), { "text-anchor": "end" }),
  ]);
}

function xAxis(box, x, ticks, write, least = 30) {
  let last = -Infinity;
  return ticks.flatMap((tick) => {
    if (x(tick) - last < least) return [];
    last = x(tick);
    return [text(x(tick), box.bottom + 16, write(tick), { "text-anchor": "middle" })];
  });
}

// ---- score against speed-up: the policy's strategy at the slider's thresholds, the front, static exits ----
const curves = data.curves, slider = data.slider;
const chosen = { others: new Set(), point: slider?.own ?? 0 };
// Six colours and six dashes, shifted by one every six lines: no two of 36 lines look the same.
const markOf = (number) => `other${number % 6} dash${(number + Math.floor(number / 6)) % 6}`;

function curveScales(width) {
  const height = Math.round(clamp(width * 0.48, 290, 400));
  const box = { left: 42, right: width - 14, top: 26, bottom: height - 38 };
  const [least] = data.layers.filter((layer) => layer > 0), last = data.layers.at(-1);
  const most = data.layers[0] > 0 ? Infinity : 1.5 * last / least;  // exit 0 is far beyond, and shown at the edge
  const fastest = Math.min(Math.max(...curves.static.speedup, ...(slider?.speedup ?? []), 1.5), most);
  const scale = logarithmic(1, fastest, box.left, box.right);
  return { height, box, fastest, x: (speedup) => scale(Math.min(speedup, fastest)),
    y: linear(curves.range[0], curves.range[1], box.bottom, box.top) };
}

function steps({ speedup, score }, x, y) {
  const pairs = [[x(1), y(score[0])]];
  speedup.forEach((value, number) => {
    pairs.push([pairs.at(-1)[0], y(score[number])], [x(value), y(score[number])]);
  });
  return path(pairs);
}

function drawCurves(width) {
  const { height, box, fastest, x, y } = curveScales(width);
  const inside = (speedup, score) => [clamp(x(speedup), box.left, box.right), clamp(y(score), box.top, box.bottom)];
  const speedups = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48].filter((tick) => tick <= fastest);
  const scores = ticksBetween(100 * curves.range[0], 100 * curves.range[1], height / 60);
  const lines = svg("g", { "clip-path": "url(#curves-clip)" });
  curves.others.forEach((other, number) => lines.append(
    svg("path", { class: `line ${chosen.others.has(number) ? markOf(number) : "rest"}`, d: steps(other, x, y) },
      svg("title", {}, other.name))));
  lines.append(
    svg("line", { class: "line full", x1: box.left, x2: box.right, y1: y(curves.full), y2: y(curves.full) }),
    svg("path", { class: "line static", d: path(curves.static.speedup.map((value, number) => [x(value), y(curves.static.score[number])])) }),
    svg("path", { class: "line front", d: steps(curves.front, x, y) }));
  if (slider) lines.append(svg("path", { class: "line policy",
    d: path(slider.speedup.map((value, number) => [x(value), y(slider.score[number])])) }));
  const points = curves.static.speedup.map((value, number) => {
    const [cx, cy] = [x(value), y(curves.static.score[number])];
    return cy > box.bottom + 1 ? "" : svg("circle", { class: "dot static", cx, cy, r: 3.5 },
      svg("title", {}, `static exit after layer ${data.layers[number]}: ${percent(curves.static.score[number])} %`));
  });
  const [ownX, ownY] = inside(...curves.policy);
  points.push(svg("circle", { class: "ring", cx: ownX, cy: ownY, r: 8 }, svg("title", {}, "the policy")));
  if (slider) {
    const [cx, cy] = inside(slider.speedup[chosen.point], slider.score[chosen.point]);
    points.push(svg("circle", { class: "dot policy", cx, cy, r: 5.5 }));
  }
  return canvas(width, height,
    svg("clipPath", { id: "curves-clip" }, svg("rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 4 })),
    ...yAxis(box, (tick) => y(tick / 100), scores, (tick) => minus(String(+tick.toFixed(2)))),
    ...xAxis(box, x, speedups, (tick) => `${tick}×`), lines, ...points,
    text((box.left + box.right) / 2, height - 4, "speed-up in layers", { "text-anchor": "middle" }),
    text(2, 10, `${data.metric}, %`));
}

// ---- where texts exit ----
function drawDepths(width) {
  const height = 190, box = { left: 4, right: width - 4, top: 18, bottom: height - 22 };
  const share = (counts) => counts.map((count) => count / counts.reduce((sum, other) => sum + other, 0));
  const own = share(data.depths), now = slider ? share(slider.depths[chosen.point]) : own;
  const step = (box.right - box.left) / now.length, y = linear(0, Math.max(...own, ...now), box.bottom, box.top);
  const least = step < 24 ? Math.ceil(24 / step) : 1;  // layers between two ticks
  const bars = now.flatMap((value, number) => {
    const left = box.left + number * step + 0.12 * step, middle = box.left + (number + 0.5) * step, size = 0.76 * step;
    return [
      svg("rect", { class: "bar", x: left, y: y(value), width: size, height: box.bottom - y(value) },
        svg("title", {}, `layer ${data.layers[number]}: ${percent(value)} %`)),
      chosen.point === (slider?.own ?? 0) ? "" : svg("rect", { class: "ghost", x: left, y: y(own[number]), width: size, height: box.bottom - y(own[number]) }),
      step >= 24 && value >= 0.005 ? text(middle, y(value) - 4, percent(value, 0), { "text-anchor": "middle" }) : "",
      number % least ? "" : text(middle, box.bottom + 16, data.layers[number], { "text-anchor": "middle" }),
    ];
  });
  return canvas(width, height, svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }), ...bars);
}

// ---- every exit by itself ----
const exitMarks = ["policy", "front"];
function drawExits(width) {
  const height = Math.round(clamp(width * 0.7, 220, 340)), box = { left: 36, right: width - 10, top: 10, bottom: height - 24 };
  const values = Object.values(data.exits).flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)], margin = 0.06 * (high - low) + 0.005;
  const x = linear(data.layers[0], data.layers.at(-1), box.left + 8, box.right - 8);
  const y = linear(low - margin, high + margin, box.bottom, box.top);
  const lines = Object.entries(data.exits).flatMap(([name, scores], number) => {
    const known = scores.flatMap((score, exit) => (score === null ? [] : [[exit, score]]));
    const places = known.map(([exit, score]) => [x(data.layers[exit]), y(score)]);
    return [svg("path", { class: `line ${exitMarks[number]}`, d: path(places) }),
      ...known.map(([exit, score], place) => svg("circle", { class: `dot ${exitMarks[number]}`, cx: places[place][0], cy: places[place][1], r: 3 },
        svg("title", {}, `layer ${data.layers[exit]}: ${name} ${percent(score)} %`)))];
  });
  return canvas(width, height,
    ...yAxis(box, (tick) => y(tick / 100), ticksBetween(100 * (low - margin), 100 * (high + margin), 4), (tick) => minus(String(+tick.toFixed(2)))),
    ...xAxis(box, x, data.layers, String, 20), ...lines);
}

// ---- agreement between exits ----
function drawAgreement(width) {
  const count = data.agreement.length, left = 24, size = Math.min(width - left - 2, 360) / count;
  const low = Math.min(...data.agreement.flat()), scale = linear(low, 1, 0.06, 1);
  const cells = data.agreement.flatMap((row, first) => row.flatMap((share, second) => {
    const [x, y, strong] = [left + second * size, first * size, scale(share)];
    return [
      svg("rect", { class: "cell", x, y, width: size - 1, height: size - 1, "fill-opacity": strong.toFixed(3) },
        svg("title", {}, `layers ${data.layers[first]} and ${data.layers[second]}: ${percent(share)} %`)),
      size >= 22 ? text(x + size / 2 - 0.5, y + size / 2 + 3.5, percent(share, 0), { class: strong > 0.55 ? "on" : "off", "text-anchor": "middle" }) : "",
    ];
  }));
  const every = Math.ceil(20 / size);
  const names = data.layers.flatMap((layer, number) => (number % every ? [] : [
    text(left - 6, number * size + size / 2 + 4, layer, { "text-anchor": "end" }),
    text(left + number * size + size / 2, count * size + 15, layer, { "text-anchor": "middle" }),
  ]));
  return canvas(left + count * size, count * size + 20, ...cells, ...names);
}

// ---- reliability: one small diagram for the policy and for every exit ----
function drawReliability({ name, error, texts, confidence, right }) {
  const side = 118, at = linear(0, 1, 4, side - 4), up = linear(0, 1, side - 4, 4);
  const total = texts.reduce((sum, count) => sum + count, 0);
  const places = confidence.map((value, number) => [at(value), up(right[number])]);
  const dots = places.map(([cx, cy], number) => svg("circle",
    { class: "dot policy", cx, cy, r: (1.5 + 6 * Math.sqrt(texts[number] / total)).toFixed(2) },
    svg("title", {}, `${texts[number]} texts: probability ${percent(confidence[number])} %, right ${percent(right[number])} %`)));
  const drawn = canvas(side, side, svg("rect", { class: "frame", x: 4, y: 4, width: side - 8, height: side - 8 }),
    svg("line", { class: "diagonal", x1: at(0), y1: up(0), x2: at(1), y2: up(1) }),
    svg("path", { class: "line policy fine", d: path(places) }), ...dots);
  return fill(drawn, { role: "img", "aria-label": `${name}: expected calibration error ${percent(error)} %` }, []);
}

function showReliability() {
  byId("reliability")?.replaceChildren(...data.reliability.map((diagram) => {
    const lean = Math.abs(diagram.gap) < 0.01 ? "" : diagram.gap > 0 ? ", overconfident" : ", underconfident";
    return html("figure", {}, drawReliability(diagram),
      html("figcaption", {}, html("b", {}, diagram.name), html("br"), `ECE ${percent(diagram.error)} %${lean}`));
  }));
}

// ---- where the time goes ----
const parts = Object.keys(data.parts[0]?.milliseconds ?? {});
function drawParts(width) {
  const row = 44, height = data.parts.length * row + 26, box = { left: 12, right: width - 54, top: 0, bottom: height - 24 };
  const totals = data.parts.map(({ milliseconds, plain }) => Object.values(milliseconds).reduce((sum, value) => sum + value, 0) / plain);
  const x = linear(0, Math.max(...totals, 1), box.left, box.right);
  const bars = data.parts.flatMap(({ runtime, batch_size: size, milliseconds, plain }, number) => {
    const top = number * row + 18;
    let done = 0;
    const pieces = parts.map((part, kind) => {
      const start = x(done);
      done += milliseconds[part] / plain;
      return svg("rect", { class: `part${kind % 8}`, x: start, y: top, width: Math.max(0, x(done) - start), height: 18 },
        svg("title", {}, `${part}: ${milliseconds[part].toFixed(2)} ms`));
    });
    return [text(box.left, top - 5, `${runtime}, batch size ${size}`), ...pieces,
      text(x(done) + 6, top + 13, `${percent(done, 0)} %`)];
  });
  const ticks = ticksBetween(0, Math.max(...totals, 1) * 100, width / 110);
  return canvas(width, height,
    ...ticks.map((tick) => svg("line", { class: "grid", x1: x(tick / 100), x2: x(tick / 100), y1: box.top, y2: box.bottom })),
    ...xAxis(box, (tick) => x(tick / 100), ticks, (tick) => `${tick} %`, 40), ...bars);
}
