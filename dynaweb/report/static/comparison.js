
// Runs side by side: which groups are shown, their differences against a chosen one, and two arms episode by episode.

class Comparison {
  constructor(data) {
    this.data = data;
    this.choose();
    this.reference = document.getElementById("reference");
    this.arm = document.getElementById("arm");
    if (this.reference) {
      this.reference.value = String(this.shown[0]);
      for (const option of this.reference.options) option.hidden = option.disabled = !this.shown.includes(Number(option.value));
      this.reference.addEventListener("change", () => this.differences());
    }
    if (this.arm) this.arm.addEventListener("change", () => this.arms());
    this.arms();
    this.differences();
    if (document.getElementById("pairs")) new Pairs(document.getElementById("pairs"), this.runs());
  }

  // A page of a static site has all groups; those of the runs that its address names are shown.
  choose() {
    const paths = new URLSearchParams(location.hash.slice(1)).getAll("run");
    const all = this.data.groups.map((_, at) => at);
    const wanted = all.filter((at) => this.data.groups[at].runs.some(([path]) => paths.includes(path)));
    this.wanted = paths;
    this.shown = wanted.length ? wanted : all;
    if (this.shown.length === all.length) return;
    for (const part of document.querySelectorAll("[data-group]")) part.hidden = !this.shown.includes(Number(part.dataset.group));
    const title = this.shown.length > 1 ? `${this.shown.length} groups of runs side by side` : "The arms of a run side by side";
    document.querySelector("h1").textContent = title;
    const labels = new Set(this.shown.map((at) => this.data.groups[at].label));
    for (const figure of document.querySelectorAll("figure.chart")) {
      if (figure.chart) figure.chart.only(labels);
    }
    // Columns of settings are in the order of the groups, after their names.
    for (const row of document.querySelectorAll("#settings-that-differ tr")) {
      [...row.children].slice(1).forEach((cell, at) => { cell.hidden = !this.shown.includes(at); });
      const values = new Set([...row.children].slice(1).filter((cell) => !cell.hidden).map((cell) => cell.textContent));
      row.hidden = values.size < 2 && Boolean(row.closest("tbody"));
    }
  }

  runs() {
    return this.shown.flatMap((at) => {
      const group = this.data.groups[at];
      const several = group.runs.length > 1;
      return group.runs.filter(([, , has]) => has).map(([path, seed]) => ({ path, seed, at, label: several ? `${group.label}, seed ${seed}` : group.label }));
    });
  }

  arms() {
    const name = this.arm ? this.arm.value : null;
    for (const table of document.querySelectorAll(".arm")) table.hidden = name !== null && table.dataset.arm !== name;
  }

  differences() {
    if (!this.reference) return;
    const first = Number(this.reference.value);
    for (const table of document.querySelectorAll(".arm")) {
      const pairs = this.data.pairs[table.dataset.arm] || {};
      for (const row of table.querySelectorAll("tbody tr")) {
        const other = Number(row.dataset.group);
        const cell = row.querySelector(".difference");
        cell.replaceChildren(other === first ? node("span", { class: "muted" }, "reference") : this.difference(pairs, first, other));
      }
    }
  }

  // Pairs are kept once, the second against the first: the other way round the sign changes.
  difference(pairs, first, other) {
    const turned = other < first;
    const key = turned ? `${other}-${first}` : `${first}-${other}`;
    const pair = pairs[key];
    if (!pair) return node("span", { class: "muted" }, "no episode in common");
    const [value, low, high] = turned
      ? [pair.value, pair.high, pair.low].map((one) => (one === null ? null : -one))
      : [pair.value, pair.low, pair.high];
    const text = value === null ? "-" : `${points(value)} ${low === null ? "[-]" : `[${points(low)}, ${points(high)}]`}`;
    const [gained, lost] = turned ? [pair.lost, pair.gained] : [pair.gained, pair.lost];
    const about = `n = ${pair.n}: ${gained} gained, ${lost} lost`;
    return node("span", {}, pair.significant ? node("b", {}, text) : text, node("small", {}, about));
  }
}

// In percentage points, with a sign.
function points(value) {
  const text = (100 * value).toFixed(1);
  return number(value >= 0 && !text.startsWith("-") ? `+${text}` : text);
}

const PAIRINGS = {
  "": "all pairs",
  differ: "outcomes differ",
  "only-a": "only A succeeds",
  "only-b": "only B succeeds",
  both: "both succeed",
  neither: "neither succeeds",
};
const PAIRS_SHOWN = 200;

class Pairs {
  constructor(root, runs) {
    this.root = root;
    this.list = root.querySelector("ol");
    this.detail = root.querySelector(".detail");
    this.blocks = new Blocks();
    this.runs = runs;
    this.played = new Map();
    this.search = document.getElementById("search");
    this.pairing = document.getElementById("pairing");
    for (const [value, label] of Object.entries(PAIRINGS)) this.pairing.append(node("option", { value }, label));
    this.sides = ["a", "b"].map((name) => ({ run: document.getElementById(`run-${name}`), arm: document.getElementById(`arm-${name}`) }));
    // At first a run of another group, of the same seed, since it has played the same episodes.
    const others = runs.map((_, at) => at).filter((at) => runs[at].at !== runs[0].at);
    const second = others.find((at) => runs[at].seed === runs[0].seed) ?? others[0] ?? Math.min(1, runs.length - 1);
    for (const [at, side] of this.sides.entries()) {
      runs.forEach(({ label }, run) => side.run.append(node("option", { value: run }, label)));
      side.run.value = String(at ? second : 0);
      side.run.addEventListener("change", () => this.choose());
      side.arm.addEventListener("change", () => this.pair());
    }
    this.search.addEventListener("input", () => this.filter());
    this.pairing.addEventListener("change", () => this.filter());
    document.addEventListener("keydown", (event) => this.key(event));
    if (runs.length) this.choose(true);
  }

  address(path, name) {
    const base = path ? path.split("/").map(encodeURIComponent).join("/") + "/" : "";
    return `${base}data/${name}`;
  }

  async evaluations(run) {
    if (!this.played.has(run)) this.played.set(run, await load(this.address(this.runs[run].path, "evaluations.js")));
    return this.played.get(run);
  }

  // A run was chosen: its arms are offered. At first two different things are side by side.
  async choose(first) {
    this.detail.replaceChildren(node("p", { class: "empty" }, "Loading…"));
    try {
      for (const [at, side] of this.sides.entries()) {
        const played = await this.evaluations(Number(side.run.value));
        const value = side.arm.value;
        side.arm.replaceChildren(...played.arms.map(({ name, label }) => node("option", { value: name }, label)));
        const names = played.arms.map(({ name }) => name);
        const alone = this.sides[0].run.value === this.sides[1].run.value;
        const main = names.includes(played.main) ? played.main : names[names.length - 1];
        side.arm.value = !first && names.includes(value) ? value : alone && first && at === 0 ? names[0] : main;
      }
    } catch (error) {
      this.detail.replaceChildren(node("p", { class: "empty" }, `These episodes are not there: ${error.message}.`));
      return;
    }
    this.pair();
  }

  // Episodes of both arms by task; a task that was played several times is numbered.
  pair() {
    const rows = this.sides.map((side) => {
      const played = this.played.get(Number(side.run.value));
      const arm = played.arms.find(({ name }) => name === side.arm.value);
      const seen = new Map();
      const named = new Map();
      (arm ? arm.rows : []).forEach(([task, intent, outcome, steps, failure], at) => {
        const times = (seen.get(task) || 0) + 1;
        seen.set(task, times);
        const block = this.address(this.runs[Number(side.run.value)].path, `${encodeURIComponent(arm.stem)}/${Math.floor(at / played.block)}.js`);
        named.set(`${task} #${times}`, { task, intent, outcome, steps, failure, block, at: at % played.block, arm: arm.label });
      });
      return named;
    });
    this.pairs = [...rows[0]].filter(([key]) => rows[1].has(key)).map(([key, a]) => ({ key, a, b: rows[1].get(key) }));
    this.alone = [rows[0].size - this.pairs.length, rows[1].size - this.pairs.length];
    this.tally();
    this.filter();
  }

  tally() {
    const is = (kind) => this.pairs.filter((pair) => pairedAs(pair) === kind).length;
    const graded = this.pairs.filter((pair) => pairedAs(pair) !== "ungraded").length;
    const parts = [["both", is("both"), "both succeed"], ["only-a", is("only-a"), "only A"], ["only-b", is("only-b"), "only B"], ["neither", is("neither"), "neither"]];
    const buttons = parts.map(([kind, n, words]) => node("button", {
      type: "button", class: `share ${kind}`, onclick: () => { this.pairing.value = kind; this.filter(); },
    }, node("b", {}, String(n)), ` ${words}`));
    const notes = [`n = ${graded} graded in both`];
    if (this.alone.some(Boolean)) notes.push(`${this.alone[0]} only played by A, ${this.alone[1]} only by B`);
    document.getElementById("tally").replaceChildren(...buttons, node("span", { class: "muted" }, notes.join("; ")));
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = this.pairing.value;
    this.matches = this.pairs.filter((pair) => {
      const kind = pairedAs(pair);
      if (wanted === "differ" ? !kind.startsWith("only") : wanted && kind !== wanted) return false;
      const text = [pair.a.intent, pair.key, pair.a.failure, pair.b.failure].join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    // What differs comes first: that is what one looks for.
    const rank = { "only-b": 0, "only-a": 1, neither: 2, both: 3, ungraded: 4 };
    this.matches.sort((one, other) => rank[pairedAs(one)] - rank[pairedAs(other)]);
    if (!this.matches.includes(this.selected)) [this.selected, this.step] = [this.matches[0], null];
    this.showList();
    this.showDetail();
  }

  showList() {
    const items = this.matches.slice(0, PAIRS_SHOWN).map((pair) => {
      const mark = (side, name) => node("span", { class: `mark ${side.outcome}`, role: "img", "aria-label": `${name}: ${WORDS[side.outcome]}` }, MARKS[side.outcome]);
      const marks = node("span", { class: "both" }, mark(pair.a, "A"), mark(pair.b, "B"));
      const about = [`${pair.a.steps} and ${count(pair.b.steps, "step")}`, pair.b.failure || pair.a.failure].filter(Boolean).join(" · ");
      const choose = () => { [this.selected, this.step] = [pair, null]; this.showList(); this.showDetail(); };
      const current = pair === this.selected ? "true" : null;
      return node("li", {}, node("button", { type: "button", "aria-current": current, onclick: choose }, marks, node("span", {}, pair.a.intent), node("small", {}, about)));
    });
    if (!items.length) items.push(node("li", { class: "empty" }, this.pairs.length ? "No pair fits these filters." : "These two have played no task in common."));
    this.list.replaceChildren(...items);
    const n = this.matches.length;
    this.root.querySelector(".range").textContent = n > PAIRS_SHOWN ? `the first ${PAIRS_SHOWN} of ${n}` : count(n, "pair");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, svg")) return;
    const box = this.root.getBoundingClientRect();
    if (box.top > innerHeight || box.bottom < 0 || !this.selected) return;
    const at = this.matches.indexOf(this.selected);
    const move = { j: 1, k: -1 }[event.key];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move && !step) return;
    event.preventDefault();
    if (move) {
      [this.selected, this.step] = [this.matches[Math.max(0, Math.min(at + move, this.matches.length - 1))], null];
      this.showList();
      this.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    } else this.step = Math.max(0, (this.step || 0) + step);
    this.showDetail();
  }

  showDetail() {
    const pair = this.selected;
    if (!pair) {
      this.detail.replaceChildren();
      return;
    }
    const sides = [pair.a, pair.b];
    const there = sides.map(({ block }) => this.blocks.get(block));
    if (there.some((block) => block instanceof Promise)) this.detail.replaceChildren(node("p", { class: "empty" }, "Loading…"));
    Promise.all(there).then((blocks) => {
      if (this.selected !== pair) return;
      this.showPair(pair, blocks.map((block, at) => ({ pages: block.pages, item: block.items[sides[at].at], row: sides[at] })));
    }, (error) => {
      if (this.selected === pair) this.detail.replaceChildren(node("p", { class: "empty" }, `These episodes are not there: ${error.message}.`));
    });
  }

  showPair(pair, sides) {
    const part = parting(sides);
    const steps = Math.max(...sides.map(({ item }) => item.steps.length));
    if (this.step === null || this.step === undefined) this.step = part === null ? 0 : part;
    this.step = Math.max(0, Math.min(this.step, steps - 1));
    const words = part === null ? "Both do the same, step by step." : `They part at step ${part + 1}${part ? `: the ${part === 1 ? "step" : `${part} steps`} before ${part === 1 ? "is" : "are"} the same.` : "."}`;
    const head = [node("h3", { title: pair.a.task }, pair.a.intent), node("p", { class: "parting" }, words), this.stepBar(sides, part, steps)];
    const columns = sides.map((side, at) => this.column(side, "AB"[at], part));
    this.detail.replaceChildren(...head, node("div", { class: "two" }, ...columns));
  }

  stepBar(sides, part, steps) {
    const buttons = Array.from({ length: steps }, (_, at) => {
      const kind = at === part ? "parts" : part === null || at < part ? "same" : "";
      const label = `step ${at + 1}${at === part ? ", where they part" : ""}`;
      return node("button", {
        type: "button", class: kind, "aria-label": label, title: label, "aria-current": at === this.step ? "true" : null,
        onclick: () => { this.step = at; this.showPair(this.selected, sides); },
      }, String(at + 1));
    });
    return node("nav", { class: "steps", "aria-label": "steps" }, ...buttons);
  }

  column({ pages: all, item, row }, name, part) {
    const kinds = { success: "good", failure: "bad", ungraded: "" };
    const chips = [chip(WORDS[row.outcome], kinds[row.outcome]), chip(row.failure && row.failure !== item.end ? row.failure : `ended: ${item.end}`)];
    const element = node("div", { class: "side" }, node("h4", {}, `${name}: ${row.arm}`), node("div", { class: "chips" }, ...chips));
    if (item.judge && item.judge.why) element.append(why("Judge", item.judge.why));
    if (item.checked) element.append(why("Environment", item.checked));
    const step = item.steps[this.step];
    if (!step) {
      element.append(node("p", { class: "empty" }, `The episode has ended after ${count(item.steps.length, "step")}.`));
      return element;
    }
    if (this.step === part) element.append(node("p", { class: "parts-here" }, `Step ${this.step + 1}: they part here`));
    element.append(reply(step, item), pages(all, step));
    return element;
  }
}

// Which of the two succeeds.
function pairedAs({ a, b }) {
  if (a.outcome === "ungraded" || b.outcome === "ungraded") return "ungraded";
  const [first, second] = [a.outcome === "success", b.outcome === "success"];
  return first && second ? "both" : first ? "only-a" : second ? "only-b" : "neither";
}

// The first step at which pages or actions differ, null where there is none.
function parting([a, b]) {
  const steps = Math.max(a.item.steps.length, b.item.steps.length);
  for (let at = 0; at < steps; at++) {
    const [one, other] = [a.item.steps[at], b.item.steps[at]];
    if (!one || !other || one.action !== other.action || !samePage(a.pages[one.page], b.pages[other.page])) return at;
  }
  return null;
}

function samePage(one, other) {
  return one.url === other.url && one.lines.length === other.lines.length && one.lines.every((text, at) => text === other.lines[at]);
}

function setUp() {
  new Comparison(embedded("compared"));
}
