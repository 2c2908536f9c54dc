// Start everything once, and draw again when the page gets wider or narrower.
redrawCurves = figure("curves", drawCurves);
redrawDepths = figure("depths", drawDepths);
figure("exit-scores", drawExits);
figure("agreement", drawAgreement);
figure("parts", drawParts);
showCurvesLegend();
if (slider) startSlider();
legend("exits-legend", Object.keys(data.exits).map((name, number) => [exitMarks[number], name]));
legend("parts-legend", parts.map((part, number) => [`part${number % 8}`, part]));
showReliability();
startTexts();
let drawnAt = 0;
new ResizeObserver(() => {
  const width = document.documentElement.clientWidth;
  if (width === drawnAt) return;
  drawnAt = width;
  figures.forEach((redraw) => redraw());
}).observe(document.body);
