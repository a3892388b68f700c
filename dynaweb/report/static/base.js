"use strict";
// Everything that comes from a page or a model is set as textContent, never as HTML.

function node(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// An element of a picture, as the picture's own are.
function shape(picture, tag, attributes) {
  const element = document.createElementNS(picture.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function embedded(id) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
}

// With the minus sign of the other numbers of the report.
function number(value) {
  return String(value).replaceAll("-", "\u2212");
}

function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

function chip(text, kind) {
  return node("span", { class: kind ? `chip ${kind}` : "chip" }, text);
}

// Data in a file of its own beside the page: a script that hands over text, which works from a disk too, where pages
// may not read files.
const waiting = new Map();
window.dynawebData = (text) => { waiting.set(document.currentScript, JSON.parse(text)); };

function load(address) {
  return new Promise((resolve, reject) => {
    const script = node("script", { src: address });
    script.addEventListener("load", () => {
      const data = waiting.get(script);
      waiting.delete(script);
      script.remove();
      if (data === undefined) reject(new Error(`${address} holds no data`));
      else resolve(data);
    });
    script.addEventListener("error", () => {
      script.remove();
      reject(new Error(`${address} cannot be loaded`));
    });
    document.head.append(script);
  });
}

function setUpTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  // One choice for all pages of a site; a page from a disk may not remember.
  try {
    if (localStorage.dynawebTheme) root.dataset.theme = localStorage.dynawebTheme;
  } catch { /* without memory */ }
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try {
      localStorage.dynawebTheme = root.dataset.theme;
    } catch { /* without memory */ }
  });
}

// A page that `dynaweb view` serves asks now and then whether there is more to see; a file never does.
function setUpLive(stamp) {
  const button = document.getElementById("news");
  if (!button) return;
  let touched = false;
  for (const name of ["keydown", "pointerdown"]) document.addEventListener(name, () => { touched = true; });
  button.addEventListener("click", () => location.reload());
  const look = async () => {
    const answer = await fetch("version").then((reply) => reply.ok ? reply.text() : stamp).catch(() => stamp);
    if (answer !== stamp && !touched) location.reload();
    else button.hidden = answer === stamp;
  };
  setInterval(look, 2000);
}

// Charts answer to the pointer, and to arrow keys: the values of all lines at the nearest place, and a legend whose
// entries hide and show lines.
class Chart {
  constructor(figure, data) {
    this.data = data;
    this.figure = figure;
    this.svg = figure.querySelector("svg.plot");
    this.hidden = new Set();
    figure.chart = this;
    this.places = [...new Set(data.series.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
    if (!this.places.length) return;
    this.tip = node("div", { class: "tip", hidden: true, role: "status" });
    figure.querySelector(".plotted > div").append(this.tip);
    this.mark = shape(this.svg, "g", { class: "marks" });
    this.svg.append(this.mark);
    this.svg.setAttribute("tabindex", "0");
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    const keys = figure.querySelectorAll(".legend > span");
    keys.forEach((key, at) => this.toggle(key, at));
  }

  // Shows the lines of these labels, and no others; nothing is left of a chart without any.
  only(labels) {
    const buttons = [...this.figure.querySelectorAll(".legend > button")];
    const kept = this.data.series.filter(({ label }, at) => {
      const keep = labels.has(label);
      if (!keep) this.hide(at, true);
      if (!keep && buttons[at]) buttons[at].hidden = true;
      return keep;
    });
    this.figure.hidden = !kept.length;
  }

  hide(at, hide) {
    this.hidden[hide ? "add" : "delete"](at);
    this.svg.querySelectorAll(`[data-line="${at}"]`).forEach((part) => part.toggleAttribute("hidden", hide));
    this.leave();
  }

  toggle(key, at) {
    const button = node("button", { type: "button", "aria-pressed": "true", title: "hide or show this line" }, ...key.childNodes);
    button.addEventListener("click", () => {
      const hide = !this.hidden.has(at);
      button.setAttribute("aria-pressed", String(!hide));
      this.hide(at, hide);
    });
    key.replaceWith(button);
  }

  at([low, high, from, to], value) {
    return from + (value - low) / (high - low) * (to - from);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * this.svg.viewBox.baseVal.width;
    const near = (place) => Math.abs(this.at(this.data.x, place) - x);
    this.show(this.places.reduce((best, place) => (near(place) < near(best) ? place : best)));
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.leave();
    if (!by) return;
    // The arrows of the viewer of trajectories are for its own part of the page.
    event.preventDefault();
    event.stopPropagation();
    const at = this.place === undefined ? (by > 0 ? -1 : this.places.length) : this.places.indexOf(this.place);
    this.show(this.places[Math.max(0, Math.min(at + by, this.places.length - 1))]);
  }

  leave() {
    if (!this.tip) return;
    this.place = undefined;
    this.tip.hidden = true;
    this.mark.replaceChildren();
  }

  show(place) {
    this.place = place;
    const x = this.at(this.data.x, place);
    const marks = [shape(this.svg, "path", { d: `M ${x} ${this.data.y[3]} V ${this.data.y[2]}`, stroke: "var(--muted)", "stroke-dasharray": "2 2" })];
    const rows = [];
    this.data.series.forEach((line, at) => {
      const point = line.points.find(([where]) => where === place);
      if (!point || this.hidden.has(at)) return;
      marks.push(shape(this.svg, "circle", { cx: x, cy: this.at(this.data.y, point[1]), r: 3.5, fill: `var(--${line.colour})`, stroke: "var(--surface)" }));
      const bar = (line.bars || []).find(([where]) => where === place);
      const range = bar ? ` [${short(bar[1])}, ${short(bar[2])}]` : "";
      const label = this.data.series.length > 1 ? line.label : "";
      rows.push(node("div", {}, node("i", { class: `swatch ${line.colour}` }), node("span", {}, label), node("b", {}, short(point[1]) + range)));
    });
    this.mark.replaceChildren(...marks);
    // Places of lines that are moved apart, so that no interval hides another, are those of whole numbers.
    const name = this.data.whole ? Math.round(place) : short(place);
    this.tip.replaceChildren(node("div", { class: "at" }, `${this.data.label} ${name}`), ...rows);
    this.tip.hidden = false;
    const share = x / this.svg.viewBox.baseVal.width;
    this.tip.classList.toggle("left", share > 0.5);
    const box = this.svg.getBoundingClientRect();
    const offset = share * box.width;
    this.tip.style.left = share > 0.5 ? "auto" : `${offset + 10}px`;
    this.tip.style.right = share > 0.5 ? `${this.tip.parentElement.clientWidth - offset + 10}px` : "auto";
  }
}

// As numbers at axes are written.
function short(value) {
  if (value && (Math.abs(value) >= 100000 || Math.abs(value) < 0.001)) return number(Number(value.toPrecision(3)).toExponential());
  return number(Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4))));
}

function setUpCharts(root) {
  for (const figure of root.querySelectorAll("figure.chart")) {
    const data = figure.querySelector("script.points");
    if (data) new Chart(figure, JSON.parse(data.textContent));
  }
}

