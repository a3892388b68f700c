
// One episode: its heading, its steps, its pages; and blocks of episodes, read when they are opened.

const MARKS = { success: "✓", failure: "✕", ungraded: "–" };
const WORDS = { success: "success", failure: "failure", ungraded: "not graded" };
const LINE = /^( *)([A-Za-z][\w-]*) ('(?:[^'\\]|\\.)*')( \[\d+\])?([^]*)$/;

// Blocks by address. What is embedded in the page comes at once, what is beside it as a promise.
class Blocks {
  constructor(size) {
    this.size = size;
    this.kept = new Map();
  }

  get(address) {
    if (!this.kept.has(address)) {
      // A few blocks are kept: a long report must not fill the memory with everything that was ever looked at.
      if (this.kept.size > 3) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(address, this.read(address));
    }
    return this.kept.get(address);
  }

  read(address) {
    if (!address.includes("/")) return embedded(address);
    const block = load(address).then((data) => {
      // Pictures lie in the folder of the run: a block is `<run>/data/<store>/<number>.js`.
      const base = address.split("/").slice(0, -3).map((part) => `${part}/`).join("");
      for (const page of data.pages) page.base = base;
      return data;
    });
    block.then((data) => { if (this.kept.has(address)) this.kept.set(address, data); }, () => this.kept.delete(address));
    return block;
  }
}

// Calls `use` with a value, now or when it comes.
function whenThere(value, use, failed) {
  if (value instanceof Promise) value.then(use, failed);
  else use(value);
}

// Of the index, the row of an episode.
function rowsOf(index) {
  const { texts } = index;
  return index.rows.map(([intent, arm, source, outcome, task, failure, steps, update]) => ({
    intent: texts[intent], arm: texts[arm], source: texts[source], outcome: texts[outcome],
    task: texts[task], failure: texts[failure], steps, update,
  }));
}

function heading(row, item) {
  const kinds = { success: "good", failure: "bad", ungraded: "" };
  const chips = [chip(WORDS[row.outcome], kinds[row.outcome]), chip(row.arm)];
  if (row.source !== row.arm) chips.push(chip(row.source));
  chips.push(chip(`ended: ${item.end}`));
  if (row.failure && row.failure !== item.end) chips.push(chip(row.failure));
  if (row.update >= 0) chips.push(chip(`update ${row.update}`));
  if (item.reward !== null) chips.push(chip(`reward ${number(item.reward)}`));
  if (item.advantage !== undefined) chips.push(chip(`advantage ${signed(item.advantage)}`));
  const header = [node("h3", { title: row.task }, row.intent), node("div", { class: "chips" }, ...chips)];
  if (item.goal) {
    const pictures = item.goal.map((one) => picture({ url: "the goal", picture: { ...one, about: "it belongs to the goal" } }));
    header.push(node("div", { class: "goal" }, ...pictures));
  }
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

function signed(value) {
  return value > 0 ? `+${value}` : number(value);
}

function why(who, text) {
  return node("p", { class: "why" }, node("b", {}, who + " "), text);
}

function reply(step, item) {
  const element = node("div", { class: "reply" });
  if (step.reasoning) element.append(node("p", { class: "reasoning" }, step.reasoning));
  const nothing = step.reply ? "no action could be read from the reply" : "no action";
  const action = node("div", { class: "action" }, step.action || nothing);
  if (step.refused) element.append(node("p", { class: "refused" }, "This action was refused:"));
  element.append(action);
  if (step.error) element.append(node("p", { class: "error" }, step.error));
  if (step.dream_end && step.dream_end !== step.error) element.append(node("p", { class: "error" }, step.dream_end));
  const facts = [];
  if (step.confidence !== undefined) facts.push(`expected fidelity of the next page ${number(step.confidence)}`);
  if (step.reward !== undefined) facts.push(`reward of this step ${number(step.reward)}`);
  if (step.cut) facts.push(`${count(step.cut, "token")} of the page and of what went before left out of the prompt`);
  if (facts.length) element.append(node("p", { class: "facts" }, facts.join(" · ")));
  if (step.reply && step.reply.trim() !== step.action) {
    element.append(fold("reply as it was written", () => node("pre", {}, step.reply)));
  }
  if (step.tokens) element.append(tokens(step, item));
  if (step.prompt) element.append(fold(`prompt, ${count(step.prompt_tokens, "token")}`, () => node("pre", { tabindex: "0" }, step.prompt)));
  return element;
}

// What is filled when it is opened.
function fold(summary, fill) {
  const element = node("details", {}, node("summary", {}, summary));
  element.addEventListener("toggle", () => { if (element.open && element.children.length === 1) element.append(fill()); });
  return element;
}

// The tokens as they were sampled, each with its log-probability; unlikely ones stand out.
function tokens(step, item) {
  const known = step.logprobs.filter((value) => value !== null);
  const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  const words = mean === null ? "" : `, mean log-probability ${number(mean.toFixed(3))}`;
  return fold(`${count(step.tokens.length, "token")} of the reply${words}`, () => {
    const parts = step.tokens.map((text, at) => {
      const value = step.logprobs[at];
      const level = value === null || value === undefined ? "" : value > -0.1 ? "sure" : value > -1 ? "likely" : value > -3 ? "unsure" : "unlikely";
      const shown = text.replaceAll("\n", "↵").replaceAll(" ", "␣") || "∅";
      return node("span", { class: `token ${level}` }, node("code", {}, shown), node("small", {}, value === undefined || value === null ? "–" : number(value.toFixed(2))));
    });
    const notes = ["Under each token its natural-log probability when it was sampled."];
    if (mean !== null) notes.push(`Surprise per token ${number((-mean).toFixed(3))} nats: an estimate of the policy's entropy on this page.`);
    if (item.advantage !== undefined) notes.push(`All tokens of this rollout share its advantage, ${signed(item.advantage)}.`);
    return node("div", {}, node("div", { class: "tokens" }, ...parts), node("p", { class: "facts" }, notes.join(" ")));
  });
}

function pages(all, step) {
  const before = all[step.page];
  const lines = before.lines.map((text, at) => line(text, at === step.target ? "target" : "", at === step.target ? "▸" : ""));
  const element = node("div", { class: "pages" }, panel("Page", before, lines));
  if (step.next === undefined) return element;
  const title = step.dreamed ? "Next page, dreamed" : step.recalled ? "Next page, recalled" : "Next page";
  const next = step.next === step.page ? unchanged(title, all[step.next]) : changes(title, before, all[step.next], step.from, null, step.origins);
  if (step.origins) next.append(originCounts(step.origins));
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

// Where the elements of a dreamed page come from, in words; the colours are those of the right edges of its lines.
function originCounts(letters) {
  const counts = Object.entries(ORIGINS).map(([letter, word]) => [letters.split(letter).length - 1, word]);
  const parts = counts.filter(([n]) => n).map(([n, word], at) => node("span", { class: word }, `${at ? ", " : ""}${n} ${word}`));
  return node("p", { class: "origins" }, "Elements: ", ...parts);
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
  return node("div", { class: "page" }, head, picture(page), body);
}

// What the window showed, small; a click opens it in its full size.
function picture(page) {
  if (!page.picture) return null;
  const { src, width, height, about } = page.picture;
  const address = (page.base || "") + src;
  const image = node("img", { src: address, width, height, loading: "lazy", alt: `Picture of ${page.url}: ${about}` });
  const link = node("a", { class: "picture", href: address, target: "_blank", rel: "noopener", title: `${width} x ${height} pixels, ${about}; a click opens it` }, image);
  image.addEventListener("error", () => link.replaceWith(node("p", { class: "missing" }, `The picture ${src} is missing or damaged.`)));
  return link;
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


