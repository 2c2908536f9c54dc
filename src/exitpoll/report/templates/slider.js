// The slider over the threshold: numbers and figures follow it.
function showPoint() {
  const point = chosen.point, loss = curves.full - slider.score[point];
  byId("slider-threshold").textContent = slider.thresholds[point];
  byId("read-score").textContent = `${percent(slider.score[point])} %`;
  byId("read-loss").textContent = `${percent(loss)} points`;
  byId("read-speedup").textContent = `${slider.speedup[point].toFixed(2)} ×`;
  if (slider.differs.length) {
    const [share, low, high] = slider.differs[point].map((value) => percent(value));
    byId("read-differs").replaceChildren(`${share} % `, html("small", {}, `(${low} to ${high})`));
  }
  byId("slider").setAttribute("aria-valuetext", `${slider.unit} ${slider.thresholds[point]}: ${data.metric} ` +
    `${percent(slider.score[point])} %, speed-up ${slider.speedup[point].toFixed(2)} × in layers`);
  byId("slider-reset").disabled = point === slider.own;
}

let redrawCurves = () => {}, redrawDepths = () => {};
function moveTo(point) {
  if (point === chosen.point) return;
  chosen.point = point;
  byId("slider").value = String(point);
  showPoint();
  redrawCurves();
  redrawDepths();
}

function startSlider() {
  const input = byId("slider"), start = slider.own ?? 0;
  input.max = String(slider.speedup.length - 1);
  input.value = String(start);
  byId("slider-name").textContent = `${slider.name}, ${slider.unit}`;
  byId("slider-reset").textContent = slider.own === null ? "back to the start" : "back to the policy";
  input.addEventListener("input", () => moveTo(Number(input.value)));
  byId("slider-reset").addEventListener("click", () => { moveTo(start); input.focus(); });
  followPointer(byId("curves"));
  showPoint();
}

// A press in the figure, or a drag, moves the slider; the figure is drawn again, so that its frame keeps the pointer.
function followPointer(host) {
  const follow = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    if (event.type === "pointerdown" && event.isTrusted) host.setPointerCapture(event.pointerId);
    const { x } = curveScales(host.clientWidth), place = event.clientX - host.getBoundingClientRect().left;
    const distances = slider.speedup.map((value) => Math.abs(x(value) - place));
    moveTo(distances.indexOf(Math.min(...distances)));
  };
  host.classList.add("draggable");
  host.addEventListener("pointerdown", follow);
  host.addEventListener("pointermove", follow);
}

// Grey lines can be picked out one by one.
function showCurvesLegend() {
  const marks = [["ring", "policy"], ["front", curves.front.name], ["static", "static exits"], ["full", "full model"]];
  if (slider) marks.splice(1, 0, ["policy", `${slider.name}, all thresholds`]);
  legend("curves-legend", marks);
  const buttons = curves.others.map((other, number) => {
    const button = html("button", { type: "button", class: "chip", "aria-pressed": "false" }, swatch("rest"), other.name);
    button.addEventListener("click", () => {
      const shown = !chosen.others.delete(number);
      if (shown) chosen.others.add(number);
      button.setAttribute("aria-pressed", String(shown));
      button.replaceChildren(swatch(shown ? markOf(number) : "rest"), other.name);
      redrawCurves();
    });
    return button;
  });
  if (buttons.length) byId("curves-legend").append(html("div", { class: "chips" }, "pick out: ", ...buttons));
}
