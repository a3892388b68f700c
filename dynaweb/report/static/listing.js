
// The list of runs: rows from data, sorted, filtered and searched here; a live page asks for them anew.

const COLUMNS = [
  { key: "name", label: "Run", value: (run) => run.path.toLowerCase() },
  { key: "status", label: "Status", value: (run) => run.status },
  { key: "recipe", label: "Recipe", value: (run) => run.recipe },
  { key: "success", label: "Success [95 %]", number: true, value: (run) => run.success && run.success[0] },
  { key: "gain", label: "Gain over control", number: true, value: (run) => run.gain && run.gain[0] },
  { key: "steps", label: "Real steps", number: true, value: (run) => run.steps && run.steps[0] },
  { key: "seconds", label: "Time", number: true, value: (run) => run.seconds && run.seconds[0] },
  { key: "started", label: "Started", value: (run) => run.started || null },
];

class Listing {
  constructor(root) {
    this.root = root;
    this.runs = embedded("runs");
    this.body = root.querySelector("tbody");
    this.chosen = new Set();
    this.bar = document.querySelector(".compare-bar");
    this.controls = ["search", "filter-status", "filter-recipe", "order", "cells"].map((id) => document.getElementById(id));
    [this.search, this.status, this.recipe, this.order, this.cells] = this.controls;
    this.sorted = { key: "started", down: true };
    this.setUpOrder();
    this.heads();
    for (const control of this.controls) control.addEventListener(control === this.search ? "input" : "change", () => this.show());
    this.bar.querySelector(".clear").addEventListener("click", () => { this.chosen.clear(); this.show(); });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
      event.preventDefault();
      this.search.focus();
    });
    this.readAddress();
    this.show();
    this.stamp = document.documentElement.dataset.stamp;
    if (this.stamp) setInterval(() => this.refresh(), 2000);
  }

  async refresh() {
    const answer = await fetch(`runs.json?${this.stamp}`).then((reply) => (reply.ok ? reply.json() : null)).catch(() => null);
    if (!answer || answer.stamp === this.stamp) return;
    [this.stamp, this.runs] = [answer.stamp, answer.runs];
    this.show();
  }

  setUpOrder() {
    for (const { key, label } of COLUMNS) {
      this.order.append(node("option", { value: `${key} up` }, `${label}, lowest first`), node("option", { value: `${key} down` }, `${label}, highest first`));
    }
    this.order.value = "started down";
    this.order.addEventListener("change", () => {
      const [key, way] = this.order.value.split(" ");
      this.sorted = { key, down: way === "down" };
    });
  }

  heads() {
    const heads = COLUMNS.map(({ key, label, number: isNumber }) => {
      const button = node("button", { type: "button", onclick: () => this.sortBy(key) }, label);
      return node("th", { scope: "col", class: isNumber ? "n" : "", "data-key": key }, button);
    });
    const choose = node("th", { scope: "col", class: "choose" }, node("span", { class: "unseen" }, "Compare"));
    this.root.querySelector("thead tr").replaceChildren(choose, ...heads);
  }

  sortBy(key) {
    const column = COLUMNS.find((one) => one.key === key);
    const again = this.sorted.key === key;
    // Of numbers the highest is wanted first, of words the first.
    this.sorted = { key, down: again ? !this.sorted.down : Boolean(column.number) || key === "started" };
    this.order.value = `${key} ${this.sorted.down ? "down" : "up"}`;
    this.show();
  }

  readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    this.search.value = wanted.get("search") || "";
    this.cells.checked = wanted.get("cells") === "yes";
    for (const path of (wanted.get("chosen") || "").split(",").filter(Boolean)) this.chosen.add(decodeURIComponent(path));
    const [key, way] = (wanted.get("order") || "").split(" ");
    if (COLUMNS.some((one) => one.key === key)) this.sorted = { key, down: way === "down" };
    this.order.value = `${this.sorted.key} ${this.sorted.down ? "down" : "up"}`;
    this.wanted = { status: wanted.get("status") || "", recipe: wanted.get("recipe") || "" };
  }

  // What is chosen stands in the address, so that going back from a run shows the same list.
  writeAddress() {
    const choice = new URLSearchParams();
    if (this.search.value) choice.set("search", this.search.value);
    if (this.status.value) choice.set("status", this.status.value);
    if (this.recipe.value) choice.set("recipe", this.recipe.value);
    if (this.order.value !== "started down") choice.set("order", this.order.value);
    if (this.cells.checked) choice.set("cells", "yes");
    if (this.chosen.size) choice.set("chosen", [...this.chosen].map(encodeURIComponent).join(","));
    const text = choice.toString();
    try {
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    } catch {
      // Some viewers show the file where addresses cannot be changed.
    }
  }

  options() {
    for (const [element, key] of [[this.status, "status"], [this.recipe, "recipe"]]) {
      const values = [...new Set(this.runs.map((run) => run[key]).filter(Boolean))].sort();
      const known = [...element.options].slice(1).map((option) => option.value);
      if (values.join("\n") === known.join("\n")) continue;
      const value = element.value || (this.wanted[key] || "");
      element.replaceChildren(element.options[0], ...values.map((one) => node("option", { value: one }, one)));
      element.value = values.includes(value) ? value : "";
    }
  }

  show() {
    this.options();
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.runs.filter((run) => {
      if (this.status.value && run.status !== this.status.value) return false;
      if (this.recipe.value && run.recipe !== this.recipe.value) return false;
      // A cell stands with its matrix, unless cells are wanted.
      if (run.matrix && !this.cells.checked) return false;
      const text = [run.path, run.kind, run.status, run.recipe, run.made, run.detail, `seed ${run.seed}`].join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    this.sort(shown);
    const focused = document.activeElement && document.activeElement.closest("tbody") ? document.activeElement.dataset.focus : null;
    this.body.replaceChildren(...shown.map((run) => this.row(run)));
    if (focused) this.body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    this.root.querySelector(".empty").hidden = shown.length > 0;
    this.root.querySelector("table").hidden = shown.length === 0;
    for (const head of this.root.querySelectorAll("th[data-key]")) {
      const on = head.dataset.key === this.sorted.key;
      if (on) head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.summary(shown);
    this.showBar();
    this.writeAddress();
  }

  sort(runs) {
    const { value } = COLUMNS.find(({ key }) => key === this.sorted.key);
    const sign = this.sorted.down ? -1 : 1;
    const missing = (one) => one === null || one === undefined || one === "";
    runs.sort((a, b) => {
      const [first, second] = [value(a), value(b)];
      // What is not known comes last, whichever way.
      if (missing(first) || missing(second)) return missing(first) - missing(second) || (a.path < b.path ? -1 : 1);
      return sign * (first < second ? -1 : first > second ? 1 : 0) || (a.path < b.path ? -1 : 1);
    });
  }

  summary(shown) {
    const counts = new Map();
    for (const run of this.runs) if (!run.matrix && (run.whole || run.kind !== "matrix")) counts.set(run.status, (counts.get(run.status) || 0) + 1);
    const matrices = this.runs.filter((run) => run.kind === "matrix").length;
    const runs = this.runs.filter((run) => run.kind !== "matrix" && !run.matrix).length;
    const parts = [count(runs, "run")];
    if (matrices) parts.push(matrices === 1 ? "1 matrix" : `${matrices} matrices`);
    const states = [...counts].map(([status, n]) => `${n} ${status}`);
    const reading = this.runs.filter((run) => !run.whole).length;
    const words = [parts.join(" and ") + (states.length ? `: ${states.join(", ")}` : "")];
    if (reading) words.push(`reading ${reading}…`);
    if (shown.length !== runs + matrices) words.push(`${shown.length} shown`);
    const element = document.getElementById("summary");
    const text = words.join("; ");
    if (element.textContent !== text) element.textContent = text;
  }

  row(run) {
    const able = run.kind !== "matrix" && run.status !== "damaged";
    const box = able ? node("input", {
      type: "checkbox", "aria-label": `compare ${run.path}`, "data-focus": `choose ${run.path}`,
      onchange: (event) => { this.chosen[event.target.checked ? "add" : "delete"](run.path); this.showBar(); this.writeAddress(); },
    }) : null;
    if (box) box.checked = this.chosen.has(run.path);
    const address = run.path.split("/").map(encodeURIComponent).join("/") + "/report.html";
    const title = run.matrix ? [node("span", { class: "muted" }, `${run.matrix} / `), run.name] : [run.path];
    const name = run.status === "damaged" ? node("b", {}, ...title) : node("a", { href: address, "data-focus": run.path }, ...title);
    const kind = run.kind === "run" ? null : chip(run.kind);
    const about = [run.made, run.seed === null || run.kind === "matrix" ? "" : `seed ${run.seed}`].filter(Boolean).join(" · ");
    // How the cells of a matrix stand is known when they have been read.
    const state = run.whole || run.kind !== "matrix" ? chip(run.status, run.tone) : node("span", { class: "muted" }, "…");
    const cells = [
      node("td", { class: "choose" }, box),
      node("td", {}, node("span", { class: "name" }, name, kind ? " " : null, kind), about ? node("small", {}, about) : null),
      this.cell("Status", node("span", {}, state, run.detail ? node("small", { class: run.status === "running" ? "" : "detail", title: run.detail }, run.detail) : null)),
      this.cell("Recipe", run.recipe ? node("span", {}, run.recipe) : null),
      this.numbers(run, "Success [95 %]", run.success, (text, interval, n, arm) => [node("b", {}, text), node("small", { class: "whole" }, `${interval}, n = ${n}`), node("small", {}, arm)]),
      this.numbers(run, "Gain over control", run.gain, (text, about, sure, control) => [sure ? node("b", {}, text) : text, node("small", {}, about), node("small", {}, `to ${control}`)]),
      this.numbers(run, "Real steps", run.steps, (text) => [text]),
      this.numbers(run, "Time", run.seconds, (text) => [text]),
      this.cell("Started", run.started ? node("time", { datetime: run.started, title: run.started }, when(run.started)) : null),
    ];
    return node("tr", { class: this.chosen.has(run.path) ? "main" : null }, ...cells);
  }

  cell(label, content, kind) {
    return content ? node("td", { "data-label": label, class: kind || null }, content) : node("td", { class: kind || null });
  }

  numbers(run, label, value, write) {
    if (!value) return this.cell(label, run.whole ? null : node("span", { class: "muted" }, "…"), "n");
    return this.cell(label, node("span", {}, ...write(...value.slice(1))), "n");
  }

  showBar() {
    const there = new Set(this.runs.map((run) => run.path));
    const chosen = [...this.chosen].filter((path) => there.has(path));
    this.bar.hidden = !chosen.length;
    this.bar.querySelector(".chosen").textContent = `${count(chosen.length, "run")} chosen`;
    const link = this.bar.querySelector(".compare");
    link.textContent = chosen.length === 1 ? "Compare its arms" : "Compare";
    const query = chosen.map((path) => `run=${encodeURIComponent(path)}`).join("&");
    link.setAttribute("href", this.stamp || document.documentElement.dataset.stamp ? `compare.html?${query}` : `compare.html#${query}`);
    for (const box of this.body.querySelectorAll(".choose input")) box.closest("tr").classList.toggle("main", box.checked);
  }
}

// A moment as people tell it; the whole of it stands in its title.
function when(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return text;
  const today = new Date();
  const day = time.toDateString() === today.toDateString() ? "today" : time.toLocaleDateString("en-GB", {
    day: "numeric", month: "short", year: time.getFullYear() === today.getFullYear() ? undefined : "numeric",
  });
  return `${day} ${time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

function setUp() {
  new Listing(document.getElementById("list"));
}
