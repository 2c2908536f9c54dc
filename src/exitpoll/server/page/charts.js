// Two charts: policies by speed-up and disagreement, and how deep texts went.

import { draw, percent, times } from "./elements.js";

const WIDTH = 420, LEFT = 46, RIGHT = 14;

function svg(height, summary, ...children) {
  return draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": summary }, ...children);
}

// Draws policies: how fast they are against how often they differ from the full model, with bounds and limit.
export function curve(policies, chosen, choose) {
  const known = policies.filter((policy) => policy.speedup !== null && policy.measured !== null);
  const height = 190, bottom = height - 34, top = 12;
  const fastest = Math.max(1.2, ...known.map((policy) => policy.speedup));
  const limits = [...new Set(known.map((policy) => policy.limit).filter((limit) => limit !== null))];
  const highest = 1.15 * Math.max(0.002, ...limits, ...known.map((policy) => policy.bound ?? policy.measured));
  const x = (speedup) => LEFT + ((speedup - 1) / (fastest * 1.05 - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (risk) => bottom - (risk / highest) * (bottom - top);
  const parts = [
    draw("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: bottom, y2: bottom }),
    draw("text", { x: WIDTH - RIGHT, y: height - 4, "text-anchor": "end" }, "speed-up in layers →"),
    ...ticks(1, fastest).map((tick) => draw("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, `${tick} ×`)),
    draw("text", { x: LEFT - 6, y: bottom + 4, "text-anchor": "end" }, "0 %"),
  ];
  for (const limit of limits) {
    parts.push(draw("line", { class: "limit", x1: LEFT, x2: WIDTH - RIGHT, y1: y(limit), y2: y(limit) }));
    parts.push(draw("text", { x: LEFT - 6, y: y(limit) + 4, "text-anchor": "end" }, percent(limit)));
  }
  const rising = [...known].sort((one, other) => one.speedup - other.speedup);
  parts.push(draw("polyline", { class: "path", points: rising.map((one) => `${x(one.speedup)},${y(one.measured)}`).join(" ") }));
  for (const policy of rising) parts.push(...point(policy, x(policy.speedup), y, policy.name === chosen, choose));
  const summary = rising.map((one) => `${one.name}: ${times(one.speedup)}, differs on ${percent(one.measured)}`).join("; ");
  return svg(height, `Policies by speed-up and disagreement. ${summary}`, ...parts);
}

function point(policy, x, y, isChosen, choose) {
  const dot = draw("circle", { class: `dot${isChosen ? " chosen" : ""}`, cx: x, cy: y(policy.measured), r: isChosen ? 6 : 4.5 });
  dot.append(draw("title", {}, `${policy.name}: ${times(policy.speedup)}, differs on ${percent(policy.measured)}`));
  dot.addEventListener("click", () => choose(policy.name));
  const bound = policy.bound;
  const whisker = bound === null ? [] :
    [draw("line", { class: "whisker", x1: x, x2: x, y1: y(policy.measured), y2: y(bound) }),
      draw("line", { class: "whisker", x1: x - 4, x2: x + 4, y1: y(bound), y2: y(bound) })];
  const name = isChosen ? [label(policy.name, x, y(policy.measured))] : [];
  return [...whisker, dot, ...name];
}

function label(name, x, y) {
  const end = x > WIDTH / 2;
  return draw("text", { class: "strong", x: end ? x - 10 : x + 10, y: y - 8, "text-anchor": end ? "end" : "start" }, name);
}

function ticks(low, high) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5].find((size) => (high - low) / size <= 6) ?? 10;
  const count = Math.floor((high - low) / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, number) => +(low + number * step).toFixed(2));
}

// Draws how many texts left after each layer.
export function histogram(counts) {
  const layers = Object.keys(counts), values = Object.values(counts), total = values.reduce((sum, one) => sum + one, 0);
  const height = 120, bottom = height - 20, top = 18, highest = Math.max(1, ...values);
  const slot = (WIDTH - 2 * RIGHT) / layers.length, wide = Math.min(slot * 0.8, 46);
  const parts = [draw("line", { class: "axis", x1: RIGHT, x2: WIDTH - RIGHT, y1: bottom, y2: bottom })];
  values.forEach((value, number) => {
    const middle = RIGHT + (number + 0.5) * slot, size = (value / highest) * (bottom - top);
    parts.push(draw("rect", { class: "bar", x: middle - wide / 2, y: bottom - size, width: wide, height: size, rx: 2 }));
    parts.push(draw("text", { x: middle, y: height - 4, "text-anchor": "middle" }, layers[number]));
    if (value && slot > 26) {
      const share = total ? `${Math.round((100 * value) / total)} %` : "";
      parts.push(draw("text", { x: middle, y: bottom - size - 4, "text-anchor": "middle" }, share));
    }
  });
  const summary = layers.map((layer, number) => `layer ${layer}: ${values[number]}`).join(", ");
  return svg(height, `Texts by the layer after which they left. ${summary}`, ...parts);
}
