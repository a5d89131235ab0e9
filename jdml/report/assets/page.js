// Curves, and what starts the page.

function lineChart(chart, legendOf, told = number) {
  const items = [];
  chart.lines.forEach((of, i) => of.points.forEach(([x, y]) => items.push({ x, y, line: i, text: () => `${chart.xs || "step"} ${number(x)}: ${told(y)} · ${of.run}` })));
  const plot = new Plot({
    label: `${chart.name}, ${chart.lines.length} line${chart.lines.length === 1 ? "" : "s"}: ${short(chart.lines.map((of) => `${of.run} ends at ${told(of.points.at(-1)[1])}`).join("; "), 900)}`,
    items, height: 260, xs: chart.xs || "step", lines: true,
    draw(c, p) {
      chart.lines.forEach((of, i) => {
        if (p.hidden.has(i)) return;
        lineStyle(c, of.row, p.colours); c.beginPath();
        of.points.forEach(([x, y], n) => { if (n) c.lineTo(p.px(x), p.py(y)); else c.moveTo(p.px(x), p.py(y)); });
        c.stroke(); c.setLineDash([]);
        if (of.points.length === 1) { c.beginPath(); trace(c, 0, p.px(of.points[0][0]), p.py(of.points[0][1]), 4); c.fillStyle = c.strokeStyle; c.fill(); }
      });
    },
  });
  plot.node.prepend(el("h3", { dir: "auto", text: chart.name }));
  plot.hide = (rows) => { plot.hidden = new Set(chart.lines.flatMap((of, i) => (rows.has(of.row) ? [i] : []))); plot.choose(null); plot.fit(); plot.reset(); };
  plot.hide(hiddenRows(legendOf));
  legendOf.charts.add(plot);
  return plot.node;
}
function lineStyle(c, row, colours) { c.strokeStyle = colours[row % COLOURS]; c.setLineDash(DASHES[Math.floor(row / COLOURS + row) % DASHES.length]); c.lineWidth = 2; }
function hiddenRows(legendOf) { return new Set(legendOf.rows.filter((row) => row.hidden).map((row) => row.row)); }
// One legend for several charts: a name for each row of the table of runs; pressed again it takes its lines away.
function lineLegend(names) {
  const legendOf = { charts: new Set(), rows: names.map((name, row) => ({ name, row, hidden: false })) };
  legendOf.node = el("ul", { class: "legend", "aria-label": "Lines" }, ...legendOf.rows.map((of) => {
    const mark = sample((c) => { lineStyle(c, of.row, palette()); line(c, 0, 7, 28, 7); });
    const button = el("button", { type: "button", "aria-pressed": "true", title: short(of.name, 500), onclick: () => {
      of.hidden = !of.hidden; button.setAttribute("aria-pressed", String(!of.hidden));
      for (const plot of legendOf.charts) plot.hide(hiddenRows(legendOf));
    } }, mark, el("span", { dir: "auto", text: short(of.name, 60) }));
    return el("li", {}, button);
  }));
  return legendOf;
}
function buildCurves() {
  const here = document.getElementById("curves-here"), holder = el("div", { class: "plots" }), FIRST = 6, legendOf = lineLegend(page.rows);
  const draw = (name) => {
    for (const plot of legendOf.charts) plots.delete(plot);
    legendOf.charts.clear();
    holder.replaceChildren(...page.curves.filter((chart, i) => (name ? chart.name === name : i < FIRST)).map((chart) => lineChart(chart, legendOf)));
  };
  if (page.curves.length > FIRST) {
    here.append(el("div", { class: "controls" }, chooser("Metric", [["", `the first ${FIRST}`], ...page.curves.map((chart) => [chart.name, chart.name])], draw).node));
  }
  here.append(legendOf.node, holder);
  draw("");
}
// One part after the other, each in a task of its own, so that the page answers while it is built.
function begin(parts) {
  const next = parts.shift();
  if (!next) { document.documentElement.dataset.ready = "yes"; return; }
  next();
  setTimeout(() => begin(parts), 0);
}
const parts = [() => document.querySelectorAll("main > section table.sortable").forEach(sortable)];
if (page.embeddings.length) parts.push(buildGallery);
if (page.curves.length) parts.push(buildCurves);
if (page.embeddings.length) {
  parts.push(() => perRun("confused-here", confusions), () => perRun("suspects-here", doubts), buildMap, buildStructure, () => perRun("classes-here", byClass));
  if (document.getElementById("method-here")) parts.push(buildMethod);
}
begin(parts);
