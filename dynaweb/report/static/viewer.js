
const PER_PAGE = 50;
const FILTERS = ["arm", "source", "outcome", "failure"];
const AROUND = 36;

class Viewer {
  constructor(root) {
    this.root = root;
    const index = embedded("trajectory-index");
    this.rows = rowsOf(index);
    this.blockSize = Number(root.dataset.block);
    this.blocks = new Blocks();
    // Where the episodes of each file begin.
    let start = 0;
    this.files = index.files.map(([stem, length]) => ({ stem, start, end: (start += length) }));
    this.list = root.querySelector("ol");
    this.detail = root.querySelector(".detail");
    this.search = document.getElementById("search");
    this.found = document.querySelector(".found");
    this.filters = FILTERS.map((name) => [name, document.getElementById("filter-" + name)]).filter(([, element]) => element);
    this.texts = this.rows.map((row) => [row.intent, row.task, row.arm].join("\n").toLowerCase());
    this.looked = new Map();
    this.hits = new Map();
    this.listen();
    this.readChoice();
    [this.selected, this.step] = this.wanted() || [0, 0];
    const linked = location.hash.startsWith("#trajectory-") || location.hash.startsWith("#episodes");
    // A link to another part of the page stays.
    this.quiet = Boolean(location.hash) && !linked;
    this.filter();
    if (linked) root.scrollIntoView();
  }

  // Trajectory and step of the address, null when it names none of this report.
  wanted() {
    const match = /^#trajectory-(\d+)(?:-(\d+))?$/.exec(location.hash);
    return match && Number(match[1]) < this.rows.length ? [Number(match[1]), Number(match[2] || 1) - 1] : null;
  }

  // Filters of an address such as `#episodes?arm=SFT&failure=wrong+answer`; whether it has any.
  readChoice() {
    if (!location.hash.startsWith("#episodes?")) return false;
    const choice = new URLSearchParams(location.hash.slice("#episodes?".length));
    this.search.value = choice.get("search") || "";
    for (const [name, element] of this.filters) {
      const value = choice.get(name) || "";
      // Phases are no arms to choose from, but links lead to them.
      if (value && ![...element.options].some((option) => option.value === value)) element.append(node("option", { value }, value));
      element.value = value;
    }
    return true;
  }

  // The address was changed by hand, by a link, or by going back.
  follow() {
    this.quiet = false;
    if (this.readChoice()) {
      this.selected = -1;
      this.filter();
      this.root.scrollIntoView();
      return;
    }
    const wanted = this.wanted();
    if (wanted && !this.matches.includes(wanted[0])) {
      this.search.value = "";
      for (const [, element] of this.filters) element.value = "";
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
    this.search.addEventListener("input", () => this.changed());
    for (const [, element] of this.filters) element.addEventListener("change", () => this.changed());
    this.root.querySelector(".back").addEventListener("click", () => this.turn(-1));
    this.root.querySelector(".on").addEventListener("click", () => this.turn(1));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow());
  }

  changed() {
    this.quiet = false;
    this.filter();
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = this.filters.map(([name, element]) => [name, element.value]).filter(([, value]) => value);
    this.matches = [];
    const others = [];
    this.rows.forEach((row, at) => {
      if (!wanted.every(([name, value]) => row[name] === value)) return;
      if (words.every((word) => this.texts[at].includes(word))) this.matches.push(at);
      else others.push(at);
    });
    this.hits = new Map();
    this.show();
    this.lookInside(words, others);
  }

  // The lists after a change of what matches.
  show() {
    if (!this.matches.includes(this.selected)) {
      this.selected = this.matches.length ? this.matches[0] : -1;
      this.step = this.hits.has(this.selected) ? this.hits.get(this.selected).step : 0;
    }
    this.page = Math.max(0, Math.floor(this.matches.indexOf(this.selected) / PER_PAGE));
    this.showList();
    this.showDetail();
  }

  // Full text: pages, replies and errors of the trajectories that their tasks do not give, a block after the other.
  async lookInside(words, others) {
    clearTimeout(this.soon);
    const turn = this.turnOfSearch = (this.turnOfSearch || 0) + 1;
    this.found.textContent = "";
    if (!words.length || !others.length) return;
    await new Promise((resolve) => { this.soon = setTimeout(resolve, 200); });
    const byBlock = new Map();
    for (const at of others) {
      const { address } = this.blockOf(at);
      if (!byBlock.has(address)) byBlock.set(address, []);
      byBlock.get(address).push(at);
    }
    let done = 0;
    for (const [address, numbers] of byBlock) {
      let texts;
      try {
        texts = await this.textsOf(address);
      } catch (error) {
        this.found.textContent = `The search has stopped: ${error.message}.`;
        return;
      }
      if (turn !== this.turnOfSearch) return;
      const hits = numbers.map((at) => [at, hitIn(texts.items[this.blockOf(at).at], texts.pages, words, this.texts[at])]).filter(([, hit]) => hit);
      if (hits.length) {
        for (const [at, hit] of hits) this.hits.set(at, hit);
        this.matches = [...this.matches, ...hits.map(([at]) => at)].sort((a, b) => a - b);
        const none = this.selected < 0;
        if (none) this.show();
        else {
          this.page = Math.min(this.page, Math.floor((this.matches.length - 1) / PER_PAGE));
          this.showList();
        }
      }
      done++;
      const so = done < byBlock.size ? `Looked through ${Math.round(100 * done / byBlock.size)} %: ` : "";
      this.found.textContent = `${so}${this.hits.size.toLocaleString("en")} found by pages, replies and errors.`;
    }
  }

  // What the search reads of a block; a long run's is not kept whole.
  async textsOf(address) {
    if (!this.looked.has(address)) {
      if (this.looked.size > 60) this.looked.delete(this.looked.keys().next().value);
      this.looked.set(address, searchable(await (address.includes("/") ? load(address) : Promise.resolve(embedded(address)))));
    }
    return this.looked.get(address);
  }

  turn(by) {
    this.page += by;
    this.showList();
    this.list.scrollTop = 0;
  }

  showList() {
    const start = this.page * PER_PAGE;
    const part = this.matches.slice(start, start + PER_PAGE);
    this.list.replaceChildren(...part.map((at) => this.item(at)));
    if (!part.length) this.list.append(node("li", { class: "empty" }, "No trajectory fits these filters."));
    const range = part.length ? `${start + 1}–${start + part.length} of ${this.matches.length}` : "0";
    this.root.querySelector(".range").textContent = range;
    this.root.querySelector(".back").disabled = this.page === 0;
    this.root.querySelector(".on").disabled = start + PER_PAGE >= this.matches.length;
  }

  item(at) {
    const row = this.rows[at];
    const about = [row.arm, row.arm === row.source ? null : row.source, row.steps === 1 ? "1 step" : `${row.steps} steps`];
    if (row.update >= 0) about.push(`update ${row.update}`);
    const mark = node("span", { class: `mark ${row.outcome}`, role: "img", "aria-label": WORDS[row.outcome], title: WORDS[row.outcome] }, MARKS[row.outcome]);
    const hit = this.hits.get(at);
    const choose = () => { this.quiet = false; this.select(at, hit ? hit.step : 0); };
    const current = at === this.selected ? "true" : null;
    const small = node("small", {}, about.filter(Boolean).join(" · "));
    const excerpt = hit ? node("small", { class: "excerpt" }, `step ${hit.step + 1}: `, hit.before, node("mark", {}, hit.word), hit.after) : null;
    return node("li", {}, node("button", { type: "button", "aria-current": current, onclick: choose }, mark, node("span", {}, row.intent), small, excerpt));
  }

  select(at, step) {
    this.selected = at;
    this.step = step;
    const page = Math.floor(this.matches.indexOf(at) / PER_PAGE);
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
    this.quiet = false;
    moves[event.key]();
    if (event.key !== "/") this.reveal();
  }

  go(step) {
    const { steps } = this.rows[this.selected];
    this.step = Math.max(0, Math.min(step, steps - 1));
    this.quiet = false;
    this.showDetail();
  }

  // Where an episode stands: the address of its block, and its number there.
  blockOf(at) {
    const file = this.files.find(({ end }) => at < end);
    const within = at - file.start;
    const block = Math.floor(within / this.blockSize);
    return { address: file.stem ? `data/${encodeURIComponent(file.stem)}/${block}.js` : `trajectories-${block}`, at: within % this.blockSize };
  }

  showDetail() {
    this.detail.replaceChildren();
    if (this.selected < 0) return;
    const selected = this.selected;
    const place = this.blockOf(selected);
    const block = this.blocks.get(place.address);
    if (block instanceof Promise) this.detail.append(node("p", { class: "empty" }, "Loading\u2026"));
    whenThere(block, (data) => {
      if (this.selected === selected) this.showEpisode(data, data.items[place.at]);
    }, (error) => {
      if (this.selected === selected) this.detail.replaceChildren(node("p", { class: "empty" }, `This trajectory is not there: ${error.message}.`));
    });
  }

  showEpisode(block, item) {
    this.step = Math.max(0, Math.min(this.step, item.steps.length - 1));
    this.detail.replaceChildren(...heading(this.rows[this.selected], item), this.stepBar(item));
    const step = item.steps[this.step];
    if (step) this.detail.append(reply(step, item), pages(block.pages, step));
    else this.detail.append(node("p", { class: "empty" }, "This episode has no steps."));
    if (this.quiet) return;
    try {
      history.replaceState(null, "", `#trajectory-${this.selected}-${this.step + 1}`);
    } catch {
      // Some viewers show the file where addresses cannot be changed.
    }
  }

  stepBar(item) {
    const buttons = item.steps.map((step, at) => node("button", {
      type: "button",
      "aria-current": at === this.step ? "true" : null,
      class: step.error || !step.action ? "failed" : "",
      "aria-label": `step ${at + 1}`,
      title: step.action || "no action",
      onclick: () => this.go(at),
    }, String(at + 1)));
    return node("nav", { class: "steps", "aria-label": "steps" }, ...buttons);
  }
}

// The texts of a block: of its pages, and of what each episode has besides them, step by step.
function searchable(block) {
  const pages = block.pages.map((page) => [page.url, page.title, ...(page.tabs || []), ...page.lines, page.notice].filter(Boolean).join("\n"));
  const items = block.items.map((item) => {
    const about = [item.judge && item.judge.why, item.checked, item.failure, item.end].filter(Boolean).join("\n");
    const steps = item.steps.map((step) => ({
      text: [step.action, step.reasoning, step.reply, step.error, step.dream_end].filter(Boolean).join("\n"),
      pages: [step.page, step.next, step.real].filter((page) => page !== undefined),
    }));
    return { about, steps };
  });
  return { pages, items };
}

// Where an episode has the words that its row lacks: the step, and the text around the first of them; null if not all.
function hitIn(item, pages, words, row) {
  let best = null;
  for (const word of words) {
    if (row.includes(word)) continue;
    const place = placeOf(item, pages, word);
    if (!place) return null;
    best = best || place;
  }
  return best;
}

function placeOf(item, pages, word) {
  for (const [step, { text, pages: seen }] of item.steps.entries()) {
    for (const part of [text, ...seen.map((page) => pages[page])]) {
      const at = part.toLowerCase().indexOf(word);
      if (at >= 0) return excerpt(part, at, word.length, step);
    }
  }
  const at = item.about.toLowerCase().indexOf(word);
  return at < 0 ? null : excerpt(item.about, at, word.length, 0);
}

function excerpt(text, at, length, step) {
  const flat = (part) => part.replaceAll("\n", " ");
  const start = Math.max(0, at - AROUND);
  const end = at + length + AROUND;
  return {
    step,
    before: (start ? "…" : "") + flat(text.slice(start, at)),
    word: flat(text.slice(at, at + length)),
    after: flat(text.slice(at + length, end)) + (end < text.length ? "…" : ""),
  };
}

function setUp() {
  const viewer = document.getElementById("viewer");
  if (viewer) new Viewer(viewer);
}
