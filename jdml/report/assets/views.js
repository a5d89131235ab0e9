// The parts that show one run's embeddings: neighbours, hubs, confusions, map, structure, classes, the method's picture.

const page = JSON.parse(document.getElementById("data").textContent);
const FIRST_ROWS = 8, MORE_ROWS = 16;

function setOf(look) { return page.sets[look.set]; }
function className(look, view, row) { const of = setOf(look).views[view]; return of ? of.names[of.labels[row]] : ""; }
function fileName(look, row) { const files = setOf(look).files; return files ? files[row] : `image ${row}`; }
function image(look, row, alt) {
  const address = setOf(look).pictures[row];
  if (!address) return null;
  const picture = el("img", { src: address, alt, loading: "lazy", decoding: "async" });
  picture.addEventListener("load", () => { if (picture.naturalWidth < 33) picture.classList.add("small"); });
  return picture;
}
function chooser(label, options, act, value) {
  const select = el("select", { onchange: () => act(select.value) },
    ...options.map(([key, text]) => el("option", { value: key, text: short(text, 80), selected: key === value ? "" : null })));
  return { node: el("label", {}, label, select), select };
}
function runChooser(act) {
  return chooser("Run", page.embeddings.map((look, i) => [String(i), look.name]), (value) => act(page.embeddings[+value]));
}
function viewChooser(look, act, value) {
  return chooser("Classes by", Object.keys(setOf(look).views).map((view) => [view, view]), act, value);
}
function views(look) { return Object.keys(setOf(look).views); }

function card(look, view, row, kind, below) {
  const name = className(look, view, row), file = fileName(look, row), verdict = { right: "✓ right", wrong: "✗ wrong", query: "query" }[kind];
  const label = [verdict, name].filter(Boolean).join(", ");
  return el("figure", { class: kind, title: short(`${name}\n${file}`, 700) },
    el("div", { class: "frame" }, image(look, row, label) || el("span", { "aria-hidden": "true", text: "·" })),
    el("figcaption", {}, el("span", { class: "verdict", text: verdict || "" }), el("span", { class: "name", dir: "auto", text: short(name || file, 200) }),
      below ? el("span", { class: "quiet", text: below }) : null));
}

const gallery = { pair: null };
function buildGallery() {
  let look = page.embeddings[0], view = views(look)[0] || "", order = "worst", only = "", more = FIRST_ROWS;
  const list = el("ul", { class: "found", "aria-label": "Queries and their nearest neighbours" }), status = el("p", { class: "quiet", role: "status" });
  const classes = el("span"), byView = el("span");
  const button = el("button", { type: "button", class: "plain", text: "Show more", onclick: () => { more += MORE_ROWS; draw(); } });
  const classed = (row) => { const of = setOf(look).views[view]; return !!of && of.labels[row] !== of.none; };
  const right = (row) => (other) => { const of = setOf(look).views[view]; return classed(row) && of.labels[row] === of.labels[other]; };
  const goodness = (i) => look.views[view]?.quality[i];
  function sorted() {
    let places = look.queries.map((_, i) => i);
    const labels = setOf(look).views[view]?.labels;
    if (labels && gallery.pair) places = places.filter((i) => gallery.pair.includes(labels[look.queries[i]]));
    else if (labels && only !== "") places = places.filter((i) => labels[look.queries[i]] === +only);
    if (order === "worst") places.sort((a, b) => (goodness(a) ?? 2) - (goodness(b) ?? 2));
    else if (order === "best") places.sort((a, b) => (goodness(b) ?? -1) - (goodness(a) ?? -1));
    else if (order === "class" && labels) places.sort((a, b) => labels[look.queries[a]] - labels[look.queries[b]]);
    return places;
  }
  function draw() {
    const places = sorted();
    list.replaceChildren(...places.slice(0, more).map((i) => {
      const row = look.queries[i], of = right(row), score = look.views[view]?.quality[i];
      const cards = look.near[i].map((other, n) => card(look, view, other, classed(row) ? (of(other) ? "right" : "wrong") : "plain", number(look.distances[i][n])));
      return el("li", { tabindex: 0 }, card(look, view, row, "query", score === null || score === undefined ? "" : `MAP@R ${percent(score)} %`), ...cards);
    }));
    const what = gallery.pair ? ` of ${gallery.pair.map((label) => short(setOf(look).views[view].names[label], 40)).join(" and ")}` : "";
    status.textContent = `${Math.min(more, places.length)} of ${places.length} queries${what} are shown; ${look.queries.length} of the ${setOf(look).count} images are queries here.`;
    button.hidden = more >= places.length;
    clear.hidden = !gallery.pair;
  }
  function fill() {
    const of = setOf(look).views[view], names = of ? of.names : [];
    const there = new Set(look.queries.map((row) => of?.labels[row]));
    const options = names.map((name, i) => [String(i), name]).filter(([i]) => there.has(+i));
    if (only !== "" && !there.has(+only)) only = "";
    const choose = chooser("Only class", [["", "all classes"], ...options], (value) => { only = value; gallery.pair = null; more = FIRST_ROWS; draw(); }, only);
    classes.replaceChildren(of ? choose.node : "");
    byView.replaceChildren(views(look).length > 1 ? viewChooser(look, (value) => { view = value; only = ""; gallery.pair = null; fill(); }, view).node : "");
    draw();
  }
  const clear = el("button", { type: "button", class: "plain", text: "All classes again", hidden: "", onclick: () => { gallery.pair = null; draw(); } });
  const run = runChooser((value) => { look = value; view = views(look).includes(view) ? view : views(look)[0] || ""; gallery.pair = null; more = FIRST_ROWS; fill(); hubs(); });
  const orders = chooser("Order", [["worst", "worst first"], ["best", "best first"], ["class", "by class"], ["mixed", "as drawn"]], (value) => { order = value; more = FIRST_ROWS; draw(); });
  document.getElementById("gallery-here").append(el("div", { class: "controls" }, run.node, byView, orders.node, classes, clear), status, list, button);
  function hubs() {
    const here = document.getElementById("hubs-here");
    const label = look.hubs.length ? "" : "No image is a neighbour of more than its share.";
    here.replaceChildren(el("p", { class: "quiet", text: `${short(look.name, 80)}: skewness ${number(look.skew)}. ${label}` }),
      el("div", { class: "row", tabindex: 0, role: "region", "aria-label": "Hubs" },
        ...look.hubs.map(([row, count]) => card(look, view, row, "plain", `neighbour of ${count}`))));
  }
  gallery.show = (of, by, pair) => {
    look = of; view = by; gallery.pair = pair; only = ""; more = FIRST_ROWS; run.select.value = String(page.embeddings.indexOf(of)); fill(); hubs();
    document.getElementById("gallery").scrollIntoView(); say("The queries of these two classes are shown above.");
  };
  fill(); hubs();
}

function table(columns, rows, label, caption) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col", dir: "auto", text: name })));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => {
    const content = cell instanceof Node ? cell : short(cell, 600);
    const whole = cell instanceof Node || content.length < 30 ? "short" : "";
    return i ? el("td", { dir: "auto", class: whole }, content) : el("th", { scope: "row", dir: "auto" }, content);
  })));
  const node = el("table", { class: "sortable" }, caption ? el("caption", { class: "unseen", text: caption }) : null, el("thead", {}, head), el("tbody", {}, ...body));
  sortable(node);
  return el("div", { class: "wide tall", tabindex: 0, role: "region", "aria-label": label }, node);
}
function sortable(node) {
  const value = (row, i) => { const text = row.cells[i].textContent.trim(), first = parseFloat(text.replace("−", "-")); return Number.isNaN(first) ? text : first; };
  [...node.tHead.rows[0].cells].forEach((cell, i) => {
    const text = cell.textContent, button = el("button", { type: "button", text });
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") !== "descending", rows = [...node.tBodies[0].rows];
      for (const other of node.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => {
        const x = value(a, i), y = value(b, i);
        const order = typeof x === typeof y ? (typeof x === "number" ? x - y : x.localeCompare(y)) : typeof x === "number" ? 1 : -1;
        return down ? -order : order;
      });
      node.tBodies[0].append(...rows);
    });
  });
}

function perRun(place, content, withView = true) {
  let look = page.embeddings[0], view = views(look)[0] || "";
  const here = document.getElementById(place), body = el("div"), byView = el("span");
  const draw = () => {
    byView.replaceChildren(withView && views(look).length > 1 ? viewChooser(look, (value) => { view = value; draw(); }, view).node : "");
    body.replaceChildren(content(look, view));
  };
  const run = runChooser((value) => { look = value; if (!views(look).includes(view)) view = views(look)[0] || ""; draw(); });
  here.append(el("div", { class: "controls" }, run.node, byView), body);
  draw();
}
function confusions(look, view) {
  const found = look.views[view];
  if (!found || !found.confused.length) return el("p", { text: found ? "No neighbour is of another class." : "There are no labels." });
  const names = setOf(look).views[view].names;
  return table(["classes", "wrong neighbours", "share of all, %", "see"], found.confused.map(([a, b, count, share]) =>
    [el("span", { dir: "auto", text: `${short(names[a], 120)} ↔ ${short(names[b], 120)}` }), String(count), percent(share),
      el("button", { type: "button", class: "plain", text: "queries", "aria-label": `See queries of ${short(names[a], 60)} and ${short(names[b], 60)}`, onclick: () => gallery.show(look, view, [a, b]) })]),
  "Pairs of classes that are confused");
}
function doubts(look, view) {
  const found = look.views[view]?.suspects, of = setOf(look).views[view];
  if (!found || !found.count) return el("p", { text: found ? "There is no such image." : "There are no labels." });
  const items = found.rows.map((row, i) => el("li", { tabindex: 0 }, card(look, view, row, "query", short(fileName(look, row).split("/").pop(), 40)),
    ...found.near[i].map((other, n) => card(look, view, other, of.labels[other] === of.labels[row] ? "right" : "wrong", number(found.distances[i][n])))));
  return el("div", {}, el("p", { class: "quiet", text: `${items.length} of ${found.count} such images among ${setOf(look).count} are shown; the one whose nearest is nearest comes first.` }),
    el("ul", { class: "found", "aria-label": "Images whose neighbours all say another class" }, ...items));
}
function byClass(look, view) {
  const found = look.views[view];
  if (!found) return el("p", { text: "There are no labels." });
  const names = setOf(look).views[view].names, rows = [...found.classes].sort((a, b) => a[2] - b[2]);
  return table(["class", "images", "R@1, %", "MAP@R, %"], rows.map(([label, count, first, quality]) => [names[label], String(count), percent(first), percent(quality)]), "Scores by class");
}

function buildMap() {
  let look = page.embeddings[0], kind = Object.keys(look.maps)[0], by = views(look)[0] || "", only = "";
  const holder = el("div"), words = el("p", { class: "quiet" }), legend = el("ul", { class: "legend" }), choosers = el("span", { class: "controls" });
  function colouring() {
    const of = setOf(look).views[by];
    if (by === "?") {
      const nearest = look.views[views(look)[0]].nearest, names = ["✓ nearest is right", "✗ nearest is wrong", "nothing to find"];
      return { of: (row) => +nearest[row], names: names.slice(0, nearest.includes("2") ? 3 : 2), mark: (i) => [[2, 0], [6, 4], [7, 1]][i] };
    }
    return { of: (row) => (of ? of.labels[row] : 0), names: of ? of.names : ["image"], mark: (i) => [i % COLOURS, Math.floor(i / COLOURS) % SHAPES] };
  }
  function draw() {
    const map = look.maps[kind], colour = colouring(), groups = new Map();
    const items = map.x.map((x, row) => ({ x, y: map.y[row], line: colour.of(row), row, text: () => [className(look, views(look)[0], row), by && by !== "?" && by !== views(look)[0] ? `${by}: ${className(look, by, row)}` : "", look.views[views(look)[0]] ? ["✓ nearest neighbour is right", "✗ nearest neighbour is wrong", "nothing to find: no other image of its class"][+look.views[views(look)[0]].nearest[row]] : "", short(fileName(look, row), 500)].filter(Boolean).join(" · ") }));
    for (const item of items) { if (!groups.has(item.line)) groups.set(item.line, []); groups.get(item.line).push(item); }
    const stars = map.proxies.map(([x, y, name]) => ({ x, y, line: -1, text: () => `proxy of ${name}` }));
    const size = items.length > 4000 ? 2 : items.length > 800 ? 3 : 4.5;
    const shown = (group) => only === "" || +only === group;
    for (const old of plots) if (holder.contains(old.node)) plots.delete(old);
    const plot = new Plot({
      label: `Map of ${items.length} embeddings of ${short(look.name, 60)}`, items: [...items, ...stars], square: true, axes: false,
      preview: (item) => (item.row === undefined ? null : image(look, item.row, "")),
      hint: "Point at a mark to see its image. Drag to move; click, then turn the wheel to zoom; on a phone use two fingers.",
      draw(c, p) {
        for (const far of [true, false]) for (const [group, of] of groups) {
          if (shown(group) === far) continue;
          const [hue, shape] = colour.mark(group);
          c.globalAlpha = far ? 0.12 : 0.8; c.beginPath();
          for (const item of of) trace(c, shape, p.px(item.x), p.py(item.y), size);
          if (shape === 4) { c.strokeStyle = p.colours[hue]; c.lineWidth = Math.max(1.4, size / 2); c.stroke(); } else { c.fillStyle = p.colours[hue]; c.fill(); }
        }
        c.globalAlpha = 1; c.beginPath();
        for (const s of stars) star(c, p.px(s.x), p.py(s.y), 9);
        c.fillStyle = ink("--ink"); c.strokeStyle = ink("--plot"); c.lineWidth = 1.5; c.fill(); c.stroke();
      },
    });
    holder.replaceChildren(plot.node);
    words.textContent = [map.words, ...look.notes].join("; ") + ".";
    legend.replaceChildren(...(colour.names.length > 40 ? [] : colour.names.map((name, i) => {
      const [hue, shape] = colour.mark(i);
      const mark = sample((c) => { c.beginPath(); trace(c, shape, 14, 7, 5); const ofClass = palette()[hue]; if (shape === 4) { c.strokeStyle = ofClass; c.lineWidth = 2; c.stroke(); } else { c.fillStyle = ofClass; c.fill(); } });
      const pressed = only === "" || +only === i;
      return el("li", {}, el("button", { type: "button", "aria-pressed": String(pressed), title: short(name, 500), onclick: () => { only = +only === i && only !== "" ? "" : String(i); fill(); } }, mark, el("span", { dir: "auto", text: short(name, 60) })));
    })));
  }
  function fill() {
    const names = colouring().names;
    const colours = [...views(look).map((view) => [view, view]), ...(views(look).length ? [["?", "whether the nearest is right"]] : [])];
    choosers.replaceChildren(...[
      Object.keys(look.maps).length > 1 ? chooser("Projection", Object.keys(look.maps).map((k) => [k, { pca: "PCA", tsne: "t-SNE" }[k]]), (value) => { kind = value; draw(); }, kind).node : null,
      colours.length ? chooser("Colour by", colours, (value) => { by = value; only = ""; fill(); }, by).node : null,
      names.length > 1 ? chooser("Highlight", [["", "everything"], ...names.map((name, i) => [String(i), name])], (value) => { only = value; draw(); }, only).node : null,
    ].filter(Boolean));
    draw();
  }
  const run = runChooser((value) => { look = value; if (!look.maps[kind]) kind = Object.keys(look.maps)[0]; if (by !== "?" && !views(look).includes(by)) by = views(look)[0] || ""; only = ""; fill(); });
  document.getElementById("map-here").append(el("div", { class: "controls" }, run.node, choosers), legend, holder, words);
  fill();
}

function buildStructure() {
  const here = document.getElementById("structure-here"), names = new Set();
  for (const look of page.embeddings) for (const name of Object.keys({ ...look.structure, ...look.proxies })) names.add(name);
  if (names.size) here.append(table(["run", "dimensions", ...names, "hubs' skewness"], page.embeddings.map((look) =>
    [look.name, String(look.dim), ...[...names].map((name) => number({ ...look.structure, ...look.proxies }[name])), number(look.skew)]), "Structure of the embeddings"));
  const spectra = { name: "Share of each singular value, in powers of ten", xs: "singular value", lines: page.embeddings.map((look, i) => ({ run: look.name, row: i, points: look.spectrum.map((s, n) => [n + 1, Math.log10(Math.max(s, 1e-9))]) })) };
  const legendOf = lineLegend(page.embeddings.map((look) => look.name));
  const grid = el("div", { class: "plots" }, lineChart(spectra, legendOf, (value) => number(10 ** value)));
  for (const [kind, words] of [["within", "Distances within classes"], ["between", "Distances between classes"]]) {
    const lines = page.embeddings.map((look, i) => look.histogram && { run: look.name, row: i, points: look.histogram[kind].map((share, n) => [(look.histogram.edges[n] + look.histogram.edges[n + 1]) / 2, share]) }).filter(Boolean);
    if (lines.length) grid.append(lineChart({ name: `${words}, share of pairs`, xs: "distance", lines }, legendOf));
  }
  here.append(legendOf.node, grid);
}

function buildMethod() {
  const here = document.getElementById("method-here");
  for (const look of page.embeddings) {
    if (!look.panels.length) continue;
    here.append(el("h3", { dir: "auto", text: look.name }), el("p", { text: look.panels[0].words }), el("div", { class: "plots" }, ...look.panels.map(panel)));
  }
}
function panel(of) {
  const marks = (list, kind) => list.map(([x, y, own]) => ({ x, y, own, line: kind, text: () => `${kind === "points" ? "sample" : "proxy"} of ${own ? "this class" : "another class"}` }));
  const dots = marks(of.points, "points"), stars = marks(of.stars, "stars");
  const values = Uint8Array.from(atob(of.heat), (c) => c.charCodeAt(0));
  const plot = new Plot({
    label: `${short(of.title, 120)}. ${of.words}`, items: [...dots, ...stars], extent: of.extent, square: true, axes: false, tallest: 420,
    draw(c, p) {
      c.imageSmoothingEnabled = true;
      c.drawImage(heat(values, of.side), p.px(of.extent[0]), p.py(of.extent[3]), p.sx * (of.extent[1] - of.extent[0]), p.sy * (of.extent[3] - of.extent[2]));
      c.lineWidth = 1.2;
      for (const own of [0, 1]) {
        c.beginPath(); for (const d of dots) if (d.own === own) trace(c, 0, p.px(d.x), p.py(d.y), own ? 3.2 : 2.4);
        if (own) { c.fillStyle = ink("--ink"); c.strokeStyle = ink("--plot"); c.fill(); } else c.strokeStyle = ink("--quiet");
        c.stroke();
        c.beginPath(); for (const s of stars) if (s.own === own) star(c, p.px(s.x), p.py(s.y), own ? 10 : 7);
        c.fillStyle = own ? ink("--ink") : ink("--plot"); c.strokeStyle = own ? ink("--plot") : ink("--quiet"); c.fill(); c.stroke();
      }
    },
  });
  plot.node.prepend(el("h4", { dir: "auto", text: of.title }));
  return plot.node;
}
function heat(values, side) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const c = canvas.getContext("2d"), pixels = c.createImageData(side, side), mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);
  const middle = dark ? [25, 29, 35] : [255, 255, 255], cold = dark ? [70, 140, 220] : [70, 130, 200], warm = dark ? [214, 96, 86] : [205, 92, 80];
  values.forEach((value, i) => {
    const t = value / 255, colour = t < 0.5 ? mix(middle, cold, 1 - 2 * t) : mix(middle, warm, 2 * t - 1);
    pixels.data.set([...colour, 255], 4 * i);
  });
  c.putImageData(pixels, 0, 0);
  return canvas;
}
