"use strict";
// Everything that comes from a page or a model is set as textContent, never as HTML.

const PER_PAGE = 50;
const MARKS = { success: "✓", failure: "✕", ungraded: "–" };
const WORDS = { success: "success", failure: "failure", ungraded: "not graded" };
const LINE = /^( *)([A-Za-z][\w-]*) ('(?:[^'\\]|\\.)*')( \[\d+\])?([^]*)$/;

function node(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = current() === "dark" ? "light" : "dark";
  });
}

class Viewer {
  constructor(root) {
    this.root = root;
    this.rows = JSON.parse(document.getElementById("trajectory-index").textContent);
    this.blockSize = Number(root.dataset.block);
    this.blocks = new Map();
    this.list = root.querySelector("ol");
    this.detail = root.querySelector(".detail");
    this.search = document.getElementById("search");
    this.filters = { arm: 1, source: 2, outcome: 3 };
    this.texts = this.rows.map((row) => [row[0], row[6], row[1]].join("\n").toLowerCase());
    this.listen();
    [this.selected, this.step] = this.wanted() || [0, 0];
    const linked = location.hash.startsWith("#trajectory-");
    this.filter();
    if (linked) root.scrollIntoView();
  }

  // Trajectory and step of the address, null when it names none of this report.
  wanted() {
    const match = /^#trajectory-(\d+)(?:-(\d+))?$/.exec(location.hash);
    return match && Number(match[1]) < this.rows.length ? [Number(match[1]), Number(match[2] || 1) - 1] : null;
  }

  // The address was changed by hand, by a link, or by going back.
  follow() {
    const wanted = this.wanted();
    if (wanted && !this.matches.includes(wanted[0])) {
      this.search.value = "";
      for (const name of Object.keys(this.filters)) document.getElementById("filter-" + name).value = "";
      [this.selected, this.step] = wanted;
      this.filter();
    }
    if (wanted) {
      this.select(...wanted);
      this.root.scrollIntoView();
    } else if (location.hash.startsWith("#trajectory-")) this.showDetail();
  }

  // Brings what was chosen by a key to where it can be seen.
  reveal() {
    const box = this.root.getBoundingClientRect();
    if (box.top > innerHeight / 2 || box.bottom < innerHeight / 4) this.root.scrollIntoView();
  }

  listen() {
    this.search.addEventListener("input", () => this.filter());
    for (const name of Object.keys(this.filters)) {
      document.getElementById("filter-" + name).addEventListener("change", () => this.filter());
    }
    this.root.querySelector(".back").addEventListener("click", () => this.turn(-1));
    this.root.querySelector(".on").addEventListener("click", () => this.turn(1));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow());
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = Object.entries(this.filters)
      .map(([name, at]) => [at, document.getElementById("filter-" + name).value])
      .filter(([, value]) => value);
    this.matches = [];
    this.rows.forEach((row, number) => {
      const fits = wanted.every(([at, value]) => row[at] === value);
      if (fits && words.every((word) => this.texts[number].includes(word))) this.matches.push(number);
    });
    if (!this.matches.includes(this.selected)) {
      this.selected = this.matches.length ? this.matches[0] : -1;
      this.step = 0;
    }
    this.page = Math.max(0, Math.floor(this.matches.indexOf(this.selected) / PER_PAGE));
    this.showList();
    this.showDetail();
  }

  turn(by) {
    this.page += by;
    this.showList();
    this.list.scrollTop = 0;
  }

  showList() {
    const start = this.page * PER_PAGE;
    const part = this.matches.slice(start, start + PER_PAGE);
    this.list.replaceChildren(...part.map((number) => this.item(number)));
    if (!part.length) this.list.append(node("li", { class: "empty" }, "No trajectory fits these filters."));
    const range = part.length ? `${start + 1}–${start + part.length} of ${this.matches.length}` : "0";
    this.root.querySelector(".range").textContent = range;
    this.root.querySelector(".back").disabled = this.page === 0;
    this.root.querySelector(".on").disabled = start + PER_PAGE >= this.matches.length;
  }

  item(number) {
    const [intent, arm, source, outcome, steps, update] = this.rows[number];
    const about = [arm, arm === source ? null : source, steps === 1 ? "1 step" : `${steps} steps`];
    if (update >= 0) about.push(`update ${update}`);
    const mark = node("span", { class: `mark ${outcome}`, title: WORDS[outcome] }, MARKS[outcome]);
    const choose = () => this.select(number, 0);
    const current = number === this.selected ? "true" : null;
    const small = node("small", {}, about.filter(Boolean).join(" · "));
    return node("li", {}, node("button", { "aria-current": current, onclick: choose }, mark, node("span", {}, intent), small));
  }

  select(number, step) {
    this.selected = number;
    this.step = step;
    const page = Math.floor(this.matches.indexOf(number) / PER_PAGE);
    if (page !== this.page) this.page = page;
    this.showList();
    this.showDetail();
    const current = this.list.querySelector("[aria-current]");
    if (current) current.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const box = this.root.getBoundingClientRect();
    const seen = box.top <= innerHeight && box.bottom >= 0;
    // Out of sight, arrows move the page.
    if ((!seen && event.key.startsWith("Arrow")) || (!this.matches.length && event.key !== "/")) return;
    const at = this.matches.indexOf(this.selected);
    const moves = {
      j: () => this.select(this.matches[Math.min(at + 1, this.matches.length - 1)], 0),
      k: () => this.select(this.matches[Math.max(at - 1, 0)], 0),
      ArrowRight: () => this.go(this.step + 1),
      ArrowLeft: () => this.go(this.step - 1),
      "/": () => this.search.focus(),
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    moves[event.key]();
    if (event.key !== "/") this.reveal();
  }

  go(step) {
    const count = this.rows[this.selected][4];
    this.step = Math.max(0, Math.min(step, count - 1));
    this.showDetail();
  }

  block(number) {
    const at = Math.floor(number / this.blockSize);
    if (!this.blocks.has(at)) {
      // A few blocks are kept: a long report must not fill the memory with everything that was ever looked at.
      if (this.blocks.size > 3) this.blocks.delete(this.blocks.keys().next().value);
      this.blocks.set(at, JSON.parse(document.getElementById("trajectories-" + at).textContent));
    }
    return this.blocks.get(at);
  }

  showDetail() {
    this.detail.replaceChildren();
    if (this.selected < 0) return;
    const block = this.block(this.selected);
    const item = block.items[this.selected % this.blockSize];
    this.step = Math.max(0, Math.min(this.step, item.steps.length - 1));
    this.detail.append(...heading(this.rows[this.selected], item), this.stepBar(item));
    if (item.steps.length) this.detail.append(reply(item.steps[this.step]), pages(block.pages, item.steps[this.step]));
    else this.detail.append(node("p", { class: "empty" }, "This episode has no steps."));
    try {
      history.replaceState(null, "", `#trajectory-${this.selected}-${this.step + 1}`);
    } catch {
      // Some viewers show the file where addresses cannot be changed.
    }
  }

  stepBar(item) {
    const buttons = item.steps.map((step, at) => node("button", {
      "aria-current": at === this.step ? "true" : null,
      class: step.error || !step.action ? "failed" : "",
      "aria-label": `step ${at + 1}`,
      title: step.action || "no action",
      onclick: () => this.go(at),
    }, String(at + 1)));
    return node("nav", { class: "steps", "aria-label": "steps" }, ...buttons);
  }
}

// With the minus sign of the other numbers of the report.
function number(value) {
  return String(value).replaceAll("-", "−");
}

function chip(text, kind) {
  return node("span", { class: kind ? `chip ${kind}` : "chip" }, text);
}

function heading(row, item) {
  const [intent, arm, source, outcome, , update, task] = row;
  const kinds = { success: "good", failure: "bad", ungraded: "" };
  const chips = [chip(WORDS[outcome], kinds[outcome]), chip(arm), chip(source), chip(`ended: ${item.end}`)];
  if (update >= 0) chips.push(chip(`update ${update}`));
  if (item.reward !== null) chips.push(chip(`reward ${number(item.reward)}`));
  const header = [node("h3", { title: task }, intent), node("div", { class: "chips" }, ...chips)];
  if (item.judge) {
    const score = item.judge.score === null ? "could not grade" : `score ${number(item.judge.score)}`;
    const p = item.judge.p === null ? "" : `, P = ${number(item.judge.p)}`;
    header.push(why("Judge", `${score}${p}${item.judge.why ? ": " + item.judge.why : ""}`));
  }
  if (item.verdict !== null || item.checked) {
    const score = item.verdict === null ? "could not check" : `score ${number(item.verdict)}`;
    header.push(why("Environment", `${score}${item.checked ? ": " + item.checked : ""}`));
  }
  if (item.failure) header.push(why("Failure", item.failure));
  return header;
}

function why(who, text) {
  return node("p", { class: "why" }, node("b", {}, who + " "), text);
}

function reply(step) {
  const element = node("div", { class: "reply" });
  if (step.reasoning) element.append(node("p", { class: "reasoning" }, step.reasoning));
  const nothing = step.reply ? "no action could be read from the reply" : "no action";
  const action = node("div", { class: "action" }, step.action || nothing);
  if (step.refused) element.append(node("p", { class: "refused" }, "This action was refused:"));
  element.append(action);
  if (step.error) element.append(node("p", { class: "error" }, step.error));
  if (step.reply && step.reply.trim() !== step.action) {
    element.append(node("details", {}, node("summary", {}, "reply as it was written"), node("pre", {}, step.reply)));
  }
  return element;
}

function pages(all, step) {
  const before = all[step.page];
  const lines = before.lines.map((text, at) => line(text, at === step.target ? "target" : "", at === step.target ? "▸" : ""));
  const element = node("div", { class: "pages" }, panel("Page", before, lines));
  if (step.next === undefined) return element;
  const title = step.dreamed ? "Next page, dreamed" : step.recalled ? "Next page, recalled" : "Next page";
  const next = step.next === step.page ? unchanged(title, all[step.next]) : changes(title, before, all[step.next], step.from, null, step.origins);
  if (step.origins) next.append(node("p", { class: "origins" }, originCounts(step.origins)));
  element.append(next);
  if (step.real !== undefined) element.append(compared(all[step.next], all[step.real], step));
  return element;
}

function unchanged(title, page) {
  return panel(title, page, [node("div", { class: "meta" }, "nothing changed")], "same page", true);
}

function compared(dream, real, step) {
  const title = "What really followed, against the dream";
  if (step.real === step.next) return panel(title, real, [node("div", { class: "meta" }, "the dream was exact")], "equal", true);
  const element = changes(title, dream, real, step.matched, ["real only", "dreamed only", "both"]);
  element.classList.add("compared");
  return element;
}

const ORIGINS = { r: "remembered", c: "copied", i: "invented" };

// Where the elements of a dreamed page come from, in words.
function originCounts(letters) {
  const counts = Object.entries(ORIGINS).map(([letter, word]) => [letters.split(letter).length - 1, word]);
  return "Elements: " + counts.filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(", ");
}

// Lines of `page`, coloured by what became of those of `before`; `words` name the three counts. `origins` has a letter
// for each line of a dreamed page, which colours its right edge.
function changes(title, before, page, from, words, origins) {
  const colour = (kind, at) => (origins && ORIGINS[origins[at]] ? `${kind} ${ORIGINS[origins[at]]}` : kind);
  const survivors = new Set(from.filter((code) => code >= 0).map((code) => code >> 1));
  const lines = [];
  let fresh = [];
  let seen = 0;
  const removeUpTo = (end) => {
    for (; seen < end; seen++) if (!survivors.has(seen)) lines.push(line(before.lines[seen], "removed", "−"));
  };
  from.forEach((code, at) => {
    if (code < 0) {
      fresh.push(line(page.lines[at], colour("added", at), "+"));
      return;
    }
    // What went stands before what came in its place.
    removeUpTo(code >> 1);
    lines.push(...fresh, code & 1 ? line(page.lines[at], colour("changed", at), "~") : line(page.lines[at], colour("kept", at), ""));
    fresh = [];
  });
  removeUpTo(before.lines.length);
  lines.push(...fresh);
  const added = from.filter((code) => code < 0).length;
  const removed = before.lines.length - survivors.size;
  const counts = words
    ? `+${added} ${words[0]}, −${removed} ${words[1]}, ${survivors.size} ${words[2]}`
    : `+${added} −${removed} =${survivors.size}`;
  return panel(title, page, lines, counts, before.url === page.url);
}

function panel(title, page, lines, note, sameUrl) {
  const url = node("div", { class: sameUrl === false ? "url added" : "url", "data-mark": sameUrl === false ? "+" : "" }, page.url);
  const body = node("div", { class: "lines" }, url);
  if (page.title) body.append(node("div", { class: "meta" }, "title " + page.title));
  for (const tab of page.tabs || []) body.append(node("div", { class: "meta" }, "tab " + tab));
  body.append(...lines);
  if (page.truncated) body.append(node("div", { class: "meta" }, "... (the page goes on)"));
  if (page.notice) body.append(node("div", { class: "changed", "data-mark": "!" }, "notice " + page.notice));
  const head = node("h4", {}, title, note ? node("span", {}, note) : null);
  return node("div", { class: "page" }, head, body);
}

function line(text, kind, mark) {
  const element = node("div", { class: kind, "data-mark": mark });
  const parts = LINE.exec(text);
  if (!parts) element.append(text);
  else {
    element.append(parts[1], node("span", { class: "role" }, parts[2]), " " + parts[3]);
    if (parts[4]) element.append(node("span", { class: "id" }, parts[4]));
    element.append(parts[5]);
  }
  return element;
}

// A report that `dynaweb view` serves asks now and then whether there is more to see; a file never does.
function setUpLive(stamp) {
  const button = document.getElementById("news");
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

setUpTheme();
if (document.documentElement.dataset.stamp) setUpLive(document.documentElement.dataset.stamp);
const viewer = document.getElementById("viewer");
if (viewer) new Viewer(viewer);
