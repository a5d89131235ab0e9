"use strict";
// A plot on a canvas: zoom, hover and keyboard for whatever is drawn on it. Texts become nodes, never markup.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
function say(text) { document.getElementById("spoken").textContent = text; }
function short(text, most = 60) { const all = [...String(text)]; return all.length <= most ? all.join("") : all.slice(0, most - 1).join("") + "…"; }
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toPrecision(4));
}
function percent(value) { return value === null || value === undefined ? "–" : (100 * value).toFixed(1); }
function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

const COLOURS = 8, SHAPES = 5, DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2]];
const plots = new Set();
function palette() { return Array.from({ length: COLOURS }, (_, i) => ink("--c" + i)); }

// One mark: disc, square, triangle, diamond, cross; which one tells classes apart where colours come round again.
function trace(c, shape, x, y, r) {
  if (shape === 0) { c.moveTo(x + r, y); c.arc(x, y, r, 0, 2 * Math.PI); return; }
  if (shape === 1) { c.rect(x - r, y - r, 2 * r, 2 * r); return; }
  if (shape === 4) {
    const s = r * 1.15;
    c.moveTo(x - s, y - s); c.lineTo(x + s, y + s); c.moveTo(x + s, y - s); c.lineTo(x - s, y + s); return;
  }
  const corners = shape === 2 ? 3 : 4;
  for (let i = 0; i < corners; i++) {
    const a = -Math.PI / 2 + (2 * Math.PI * i) / corners, px = x + 1.3 * r * Math.cos(a), py = y + 1.3 * r * Math.sin(a);
    if (i) c.lineTo(px, py); else c.moveTo(px, py);
  }
  c.closePath();
}
function star(c, x, y, r) {
  for (let i = 0; i < 10; i++) {
    const a = -Math.PI / 2 + (Math.PI * i) / 5, s = i % 2 ? r * 0.45 : r;
    if (i) c.lineTo(x + s * Math.cos(a), y + s * Math.sin(a)); else c.moveTo(x + s * Math.cos(a), y + s * Math.sin(a));
  }
  c.closePath();
}
function sample(draw) {
  const canvas = el("canvas", { width: 56, height: 28, "aria-hidden": "true" }), paint = () => {
    const c = canvas.getContext("2d"); c.setTransform(2, 0, 0, 2, 0, 0); c.clearRect(0, 0, 28, 14); draw(c);
  };
  canvas.repaint = paint; paint(); return canvas;
}

class Plot {
  // parts: label (what a screen reader says), items [{x, y, line, text}], draw(c, plot), square, height, xs, ys (titles of the axes), preview(item)
  constructor(parts) {
    Object.assign(this, { height: 300, square: false, items: [], axes: true, hidden: new Set() }, parts);
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": `${this.label}. Arrow keys go from mark to mark, plus and minus zoom, 0 shows all.` });
    this.tip = el("div", { class: "tip", hidden: "" });
    this.frame = el("div", { class: "canvas" }, this.canvas, this.tip);
    const button = (text, label, act) => el("button", { type: "button", class: "plain", "aria-label": label, text, onclick: act });
    this.tools = el("div", { class: "tools" }, button("+", "Zoom in", () => this.zoom(0.6)), button("−", "Zoom out", () => this.zoom(1 / 0.6)),
      button("All", "Show all", () => this.reset()), el("span", { text: this.hint || "" }));
    this.node = el("div", { class: "plot" }, this.frame, this.tools);
    this.pointers = new Map();
    this.listen(); this.fit(); this.reset();
    new ResizeObserver(() => this.later()).observe(this.frame);
    plots.add(this);
  }
  fit() {
    let [x0, x1, y0, y1] = this.extent || [Infinity, -Infinity, Infinity, -Infinity];
    if (!this.extent) for (const item of this.items) {
      if (this.hidden.has(item.line)) continue;
      x0 = Math.min(x0, item.x); x1 = Math.max(x1, item.x); y0 = Math.min(y0, item.y); y1 = Math.max(y1, item.y);
    }
    if (!(x1 >= x0)) [x0, x1, y0, y1] = [0, 1, 0, 1];
    if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
    if (y1 === y0) { y0 -= 0.5; y1 += 0.5; }
    const mx = this.extent ? 0 : 0.04 * (x1 - x0), my = this.extent ? 0 : 0.06 * (y1 - y0);
    this.all = [x0 - mx, x1 + mx, y0 - my, y1 + my];
  }
  reset() { this.view = [...this.all]; this.later(); }
  later() { if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.paint(); }); } }
  inner() {
    const left = this.axes ? 52 : 4, bottom = this.axes ? 34 : 4;
    return [left, 6, this.width - left - 8, this.size - bottom - 6];
  }
  // From the plot's numbers to pixels, with one scale for both axes where the plot is square.
  scales() {
    const [left, top, w, h] = this.inner(), [x0, x1, y0, y1] = this.view;
    let sx = w / (x1 - x0), sy = h / (y1 - y0);
    if (this.square) sx = sy = Math.min(sx, sy);
    const ox = left + w / 2 - (sx * (x0 + x1)) / 2, oy = top + h / 2 + (sy * (y0 + y1)) / 2;
    this.sx = sx; this.sy = sy; this.ox = ox; this.oy = oy;
  }
  px(x) { return this.ox + this.sx * x; }
  py(y) { return this.oy - this.sy * y; }
  paint() {
    this.width = this.frame.clientWidth;
    if (!this.width) return;
    this.size = this.square ? Math.min(this.width, this.tallest || 560) : this.height;
    const ratio = window.devicePixelRatio || 1, canvas = this.canvas;
    const w = Math.round(this.width * ratio), h = Math.round(this.size * ratio);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = this.size + "px"; }
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.size);
    this.scales(); this.colours = palette();
    if (this.axes) this.grid(c);
    c.save();
    const [left, top, iw, ih] = this.inner();
    c.beginPath(); c.rect(left, top, iw, ih); c.clip();
    this.draw(c, this);
    if (this.chosen) {
      c.strokeStyle = ink("--ink"); c.lineWidth = 2; c.beginPath();
      c.arc(this.px(this.chosen.x), this.py(this.chosen.y), 8, 0, 2 * Math.PI); c.stroke();
    }
    c.restore();
  }
  grid(c) {
    const [left, top, w, h] = this.inner();
    c.font = "12px system-ui, sans-serif"; c.fillStyle = ink("--quiet"); c.strokeStyle = ink("--grid"); c.lineWidth = 1;
    const [x0, x1, y0, y1] = this.view;
    c.textAlign = "center"; c.textBaseline = "top";
    for (const x of steps(x0, x1, w / 90)) { const p = this.px(x); line(c, p, top, p, top + h); c.fillText(number(x), p, top + h + 4); }
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const y of steps(y0, y1, h / 50)) { const p = this.py(y); line(c, left, p, left + w, p); c.fillText(number(y), left - 5, p); }
    if (this.xs) { c.textAlign = "right"; c.textBaseline = "bottom"; c.fillText(this.xs, left + w, this.size); }
  }
  zoom(factor, at) {
    const [left, top, w, h] = this.inner(), [x0, x1, y0, y1] = this.view;
    const [cx, cy] = at || (this.chosen ? [this.chosen.x, this.chosen.y] : [(x0 + x1) / 2, (y0 + y1) / 2]);
    this.view = [cx + (x0 - cx) * factor, cx + (x1 - cx) * factor, cy + (y0 - cy) * factor, cy + (y1 - cy) * factor];
    void left; void top; void w; void h; this.later();
  }
  at(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return [x, y, (x - this.ox) / this.sx, (this.oy - y) / this.sy];
  }
  nearest(x, y, reach = 30) {
    let best = null, least = reach * reach;
    for (const item of this.items) {
      if (this.hidden.has(item.line)) continue;
      const dx = this.px(item.x) - x, dy = this.py(item.y) - y, d = dx * dx + dy * dy;
      if (d < least) { least = d; best = item; }
    }
    return best;
  }
  choose(item, loud) {
    if (item === this.chosen) return;
    this.chosen = item; this.later();
    this.tip.hidden = !item;
    if (!item) return;
    const text = item.text ? item.text() : "";
    this.tip.replaceChildren(...(this.preview ? [this.preview(item)].filter(Boolean) : []), el("div", { class: "name", dir: "auto", text }));
    const x = this.px(item.x), y = this.py(item.y), right = x > this.width / 2;
    this.tip.style.left = right ? "auto" : Math.max(0, x + 12) + "px";
    this.tip.style.right = right ? Math.max(0, this.width - x + 12) + "px" : "auto";
    this.tip.style.top = Math.max(0, Math.min(y - 20, this.size - 130)) + "px";
    if (loud) say(short(text, 300));
  }
  // The item in the direction of an arrow that is nearest, counting what lies aside twice; on lines, the next one along the line.
  step(dx, dy) {
    if (!this.chosen) { this.choose(this.nearest(this.width / 2, this.size / 2, 1e6), true); return; }
    const from = this.chosen, x = this.px(from.x), y = this.py(from.y);
    let best = null, least = Infinity;
    for (const item of this.items) {
      if (item === from || this.hidden.has(item.line) || (this.lines && (dx ? item.line !== from.line : item.line === from.line))) continue;
      const ax = this.px(item.x) - x, ay = this.py(item.y) - y, ahead = ax * dx + ay * dy, aside = Math.abs(ax * dy) + Math.abs(ay * dx);
      if (ahead <= 0 && !(this.lines && dy && aside < 1 && ahead >= 0)) continue;
      const cost = this.lines ? (dx ? ahead : ahead + 8 * aside) : ahead + 2 * aside;
      if (cost < least) { least = cost; best = item; }
    }
    if (best) {
      const [left, top, w, h] = this.inner(), px = this.px(best.x), py = this.py(best.y);
      if (px < left || px > left + w || py < top || py > top + h) {
        const [x0, x1, y0, y1] = this.view, mx = best.x - (x0 + x1) / 2, my = best.y - (y0 + y1) / 2;
        this.view = [x0 + mx, x1 + mx, y0 + my, y1 + my]; this.scales();
      }
      this.choose(best, true);
    }
  }
  listen() {
    const canvas = this.canvas, pointers = this.pointers;
    canvas.addEventListener("keydown", (event) => {
      const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (arrows[event.key]) this.step(...arrows[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(0.6);
      else if (event.key === "-") this.zoom(1 / 0.6);
      else if (event.key === "0") this.reset();
      else if (event.key === "Escape") this.choose(null);
      else if (event.key === "Enter" && this.chosen && this.act) this.act(this.chosen);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, this.at(event)); this.from = [...this.view]; this.moved = false;
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = this.at(event), before = pointers.get(event.pointerId);
      if (!before) { if (event.pointerType === "mouse") this.choose(this.nearest(now[0], now[1])); return; }
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(now[0] - other[0], now[1] - other[1]);
        if (was > 10 && is > 10) this.zoom(was / is, [(now[2] + other[2]) / 2, (now[3] + other[3]) / 2]);
        pointers.set(event.pointerId, now);
      } else if (event.pointerType === "mouse") {
        const dx = (now[0] - before[0]) / this.sx, dy = (now[1] - before[1]) / this.sy, [x0, x1, y0, y1] = this.from;
        if (Math.hypot(now[0] - before[0], now[1] - before[1]) > 3) this.moved = true;
        if (this.moved) { this.view = [x0 - dx, x1 - dx, y0 + dy, y1 + dy]; this.choose(null); this.later(); }
      }
    });
    const up = (event) => {
      if (pointers.has(event.pointerId) && !this.moved && event.type === "pointerup") {
        const now = this.at(event), item = this.nearest(now[0], now[1]);
        this.choose(item, true);
        if (item && this.act) this.act(item);
      }
      pointers.delete(event.pointerId);
    };
    for (const type of ["pointerup", "pointercancel"]) canvas.addEventListener(type, up);
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.choose(null); });
    canvas.addEventListener("blur", () => this.choose(null));
    canvas.addEventListener("dblclick", (event) => { const now = this.at(event); this.zoom(0.5, [now[2], now[3]]); });
    // A wheel scrolls the page; it zooms with Ctrl, or where the plot was clicked.
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const now = this.at(event);
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), [now[2], now[3]]);
    }, { passive: false });
  }
}
function line(c, x0, y0, x1, y1) { c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke(); }
function steps(low, high, count) {
  const rough = (high - low) / Math.max(2, count), power = 10 ** Math.floor(Math.log10(rough));
  const width = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough), found = [];
  for (let i = Math.ceil(low / width); i * width <= high && found.length < 50; i++) found.push(+(i * width).toPrecision(12));
  return found;
}
function repaintAll() { for (const plot of plots) plot.later(); for (const canvas of document.querySelectorAll(".legend canvas")) canvas.repaint?.(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaintAll);
