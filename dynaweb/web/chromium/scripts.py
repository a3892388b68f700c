"""JavaScript that runs in the page: finding out whether an element can be acted on, and acting.

Each function is called with the element as `this` and returns plain data with `why` set when it refuses. On a page
without scripts a click is done by `click()` at once, which means the same there and saves a round trip; on other
pages it answers with a point, and the driver sends real mouse events.
"""

from __future__ import annotations

from dynaweb.web.chromium.watch import ASK, OWN
from dynaweb.web.page.view import NAME_LIMIT

_SCRIPTED = """(ask(0).includes('s') || document.scripts.length > 0 || window.length > 0 || document.evaluate(
  "boolean(//@*[starts-with(name(), 'on') or starts-with(normalize-space(.), 'javascript:')])",
  document, null, XPathResult.BOOLEAN_TYPE, null).booleanValue)"""
_HELPERS = (
    """
const el = this.nodeType === Node.ELEMENT_NODE ? this : this.parentElement;
if (!el || !el.isConnected || !el.ownerDocument.defaultView) return {why: 'stale'};
const mute = /*MUTE*/false;
const ask = ASK, own = OWN;
const squeeze = text => (text || '').replace(/\\s+/g, ' ').trim();
const scripted = () => SCRIPTED;
const disabled = () => el.matches(':disabled') || !!el.closest('[aria-disabled=true]');
const box = target => {
  const wide = innerWidth, high = innerHeight;
  for (const r of target.getClientRects()) {
    const left = Math.max(r.left, 0), right = Math.min(r.right, wide);
    const top = Math.max(r.top, 0), bottom = Math.min(r.bottom, high);
    if (right - left >= 1 && bottom - top >= 1) return {x: (left + right) / 2, y: (top + bottom) / 2};
  }
  return null;
};
const place = target => {
  const now = box(target);
  if (now) return now;
  target.scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'});
  return box(target);
};
// Slots show what stands outside of the shadow root: their nodes, or for a plain text its parent, the host.
const holds = (target, hit) => {
  if (target.contains(hit)) return true;
  const slots = target.matches('slot') ? [target] : [...target.querySelectorAll('slot')];
  return slots.some(slot => slot.assignedNodes({flatten: true}).some(
    node => node.contains(hit) || (hit && node.parentNode === hit)));
};
const cover = (target, at) => {
  const hit = target.getRootNode().elementFromPoint(at.x, at.y);
  if (!hit || holds(target, hit)) return null;
  const label = hit.closest('label');
  if (label && label.control === target) return null;
  if (hit.contains(target) && !hit.matches('dialog')) return null;
  return hit;
};
const reached = (target, at) => {
  const hit = target.getRootNode().elementFromPoint(at.x, at.y);
  return !!hit && holds(target, hit);
};
const gap = target => {
  for (const r of target.getClientRects())
    for (const fx of [0.5, 0.15, 0.85]) for (const fy of [0.5, 0.15, 0.85]) {
      const at = {x: r.left + r.width * fx, y: r.top + r.height * fy};
      if (reached(target, at)) return at;
    }
  return null;
};
const describe = hit => {
  const text = squeeze(hit.getAttribute('aria-label') || hit.innerText).slice(0, 40);
  return hit.tagName.toLowerCase() + (text ? " '" + text + "'" : '');
};
const moves = () => document.getAnimations().some(
  a => a.playState === 'running' && a.effect && a.effect.target && a.effect.target.contains(el));
const frame = () => new Promise(done => { requestAnimationFrame(done); setTimeout(own(done), 50); });
const steady = async target => {
  const start = performance.now();
  const needed = moves() ? 3 : 1;
  let before = box(target), still = 0;
  while (performance.now() - start < 300) {
    await frame();
    const after = box(target);
    const rests = before && after && Math.abs(before.x - after.x) < 0.5 && Math.abs(before.y - after.y) < 0.5;
    still = rests ? still + 1 : 0;
    if (still >= needed) return true;
    before = after;
  }
  return false;
};
const aim = async () => {
  if (disabled()) return {why: 'disabled'};
  let target = el;
  if (!place(el) && el.labels && el.labels.length) target = el.labels[0];
  let at = place(target);
  if (!at) return {why: 'invisible'};
  const live = scripted();
  if (!mute && (live || moves())) {
    if (!await steady(target)) return {why: 'moving'};
    at = box(target);
  }
  let over = cover(target, at);
  // An ancestor that is hit instead may have scrolled the target out of its own window.
  if (!reached(target, at) && target.getClientRects().length) {
    target.scrollIntoView({block: 'center', behavior: 'instant'});
    at = box(target) || at;
    over = cover(target, at);
  }
  const free = over && gap(target);
  if (free) { at = free; over = null; }
  return over ? {why: 'covered', by: describe(over)} : {...at, live, target};
};
const options = list => [...list.options].filter(option => getComputedStyle(option).display !== 'none');
const clip = (text, limit) => squeeze(text).slice(0, limit).trimEnd().replaceAll('|', '/');
const plain = option => clip(option.label || option.text, NAME_LIMIT);
const labels = list => {
  const shown = options(list), names = shown.map(plain), counts = new Map(), taken = new Set(), free = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return shown.map((option, at) => {
    const group = option.closest('optgroup'), name = names[at];
    const twice = group && counts.get(name) > 1 && clip(group.label, NAME_LIMIT);
    const first = twice ? `${twice}: ${name}`.slice(0, NAME_LIMIT).trimEnd() : name;
    let label = first;
    for (let digits = 1; taken.has(label); digits++) {
      // Below what is kept, by what stands before a number, none is free: each is tried once.
      const start = first.slice(0, NAME_LIMIT - digits - 3), key = `${digits} ${start}`;
      let number = free.get(key) || Math.max(2, 10 ** (digits - 1));
      for (label = first; taken.has(label) && number < 10 ** digits; number++) label = `${start} (${number})`.trim();
      free.set(key, taken.has(label) ? number : number - 1);
    }
    taken.add(label);
    return label;
  });
};
const pick = (list, option) => {
  const chosen = !(list.multiple && option.selected);
  const changed = option.selected !== chosen;
  list.focus();
  option.selected = chosen;
  if (changed) {
    list.dispatchEvent(new Event('input', {bubbles: true}));
    list.dispatchEvent(new Event('change', {bubbles: true}));
  }
  return {live: scripted()};
};
const leads = () => {
  const link = el.closest('a[href]');
  if (link) return !link.getAttribute('href').startsWith('#');
  return !!el.form && el.matches('button:not([type=button]):not([type=reset]), [type=submit], [type=image]');
};
""".replace("SCRIPTED", _SCRIPTED)
    .replace("NAME_LIMIT", str(NAME_LIMIT))
    .replace("ASK", ASK, 1)
    .replace("OWN", OWN, 1)
)


def muted(function: str) -> str:
    """The function for a frame in which scripts are off: it waits for nothing, because no timer runs there."""
    return function.replace("/*MUTE*/false", "true", 1)


def _function(arguments: str, body: str) -> str:
    return f"async function({arguments}) {{{_HELPERS}{body}}}"


POINT = _function(
    "",
    """
const aimed = await aim();
if (aimed.why) return aimed;
return {x: aimed.x, y: aimed.y, wide: innerWidth, high: innerHeight};
""",
)
"""Where the element is: {x, y} in a window of {wide, high}, or {why}."""

CLICK = _function(
    "framed",
    """
const list = el instanceof HTMLOptionElement && el.closest('select');
if (list) {
  const barred = el.matches(':disabled') || list.matches(':disabled, [aria-disabled=true]');
  return barred ? {why: 'disabled'} : {...pick(list, el), likely: false, done: true};
}
if (el instanceof HTMLInputElement && el.type === 'file') return {why: 'file'};
const aimed = await aim();
if (aimed.why) return aimed;
const likely = leads();
if (aimed.live || framed)
  return {x: aimed.x, y: aimed.y, wide: innerWidth, high: innerHeight, likely, live: true};
if (el.focus) el.focus({preventScroll: true});
if (aimed.target.click) aimed.target.click();
else aimed.target.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true, view: window}));
return {likely, done: true};
""",
)
"""Clicks on a page without scripts ({done, likely}); elsewhere {x, y, wide, high, likely, live} for real events.

{why} where it refuses. An option of a native list has no box: it is selected, or as one of several choices taken back.
`framed` asks for real events in any case.
"""

TYPE = _function(
    "text",
    """
const aimed = await aim();
if (aimed.why) return aimed;
const live = aimed.live;
if (el.readOnly) return {why: 'readonly'};
const rich = el.isContentEditable;
if (!rich && !(el instanceof HTMLInputElement || el instanceof HTMLTextAreaElement)) return {why: 'no-text'};
if (el.type === 'file') return {why: 'file'};
const fixed = ['checkbox', 'radio', 'submit', 'button', 'image', 'reset', 'hidden'];
if (fixed.includes(el.type)) return {why: 'no-text'};
el.focus();
const picked = ['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range'];
if (picked.includes(el.type)) {
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(el, text);
  el.dispatchEvent(new Event('input', {bubbles: true}));
  el.dispatchEvent(new Event('change', {bubbles: true}));
  return {value: el.value, live};
}
// What an editor is about to write may come in one piece, as from a paste; a field is guarded letter by letter.
const events = ['onkeydown', 'onkeypress', 'onkeyup', ...(rich ? [] : ['onbeforeinput'])];
const hears = node => events.some(name => node[name]);
const listens = () => {
  const knows = ask(0);
  if (mute) return false;
  if (knows.includes('k') || (!rich && knows.includes('i')) || hears(window) || (live && !knows)) return true;
  for (let node = el; node; node = node.parentNode || node.host) if (hears(node)) return true;
  return false;
};
const keyed = listens();
if (rich || keyed) {
  if (rich) getSelection().selectAllChildren(el);
  else el.select();
  return {keyed, rich, lines: rich || el instanceof HTMLTextAreaElement, live: true};
}
el.select();
if (text === '') document.execCommand('delete');
else document.execCommand('insertText', false, text);
return {value: el.value, live};
""",
)
"""Replaces the content of a field and reads it back: {value, live} or {why}.

In a rich editor, and where somebody listens to keys, it only selects the content ({keyed, rich, lines, live}): editors
listen to the events of real input, which the driver sends. `lines`: the field takes several.
"""

HELD_TEXT = _function(
    "",
    """
let active = document.activeElement;
while (active && active.shadowRoot && active.shadowRoot.activeElement) active = active.shadowRoot.activeElement;
const focused = el.getRootNode().activeElement === el || el.contains(active);
return {value: el.isContentEditable ? el.innerText : el.value, focused};
""",
)
"""What a field or an editor holds after it was typed into, and whether it still has the focus.

{value, focused} or {why}.
"""

SELECT = _function(
    "label",
    """
if (disabled()) return {why: 'disabled'};
if (!(el instanceof HTMLSelectElement)) return {why: 'not-select'};
const all = options(el), names = labels(el);
const ways = [names.indexOf(squeeze(label)), all.findIndex(option => plain(option) === clip(label, NAME_LIMIT)),
  all.findIndex(option => option.value === label)];
const at = ways.find(way => way >= 0);
if (at === undefined) return {why: 'no-option', options: names};
if (all[at].matches(':disabled')) return {why: 'disabled-option', option: names[at]};
return {value: names[at], ...pick(el, all[at])};
""".replace("NAME_LIMIT", str(NAME_LIMIT)),
)
"""Selects an option of a native select by its label: {value, live} or {why}.

A choice of several that was there already is taken back. The labels are those of `dynaweb.web.page.options`.
"""

FOCUS = _function(
    "",
    """
if (disabled()) return {why: 'disabled'};
place(el);
el.focus({preventScroll: true});
return {focused: el.getRootNode().activeElement === el};
""",
)
"""Gives the element the focus: {focused} or {why}."""

_SCROLLING = """
const page = document.scrollingElement || document.documentElement;
// Otherwise the window takes what the body says.
const wraps = getComputedStyle(document.documentElement).overflowY !== 'visible';
const scrolls = part => {
  if (part.scrollHeight <= part.clientHeight || !part.clientHeight) return false;
  const hidden = node => /hidden|clip/.test(getComputedStyle(node).overflowY);
  if (part === page) return !hidden(wraps || !document.body ? document.documentElement : document.body);
  return part.tagName === 'TEXTAREA' || /auto|scroll|overlay/.test(getComputedStyle(part).overflowY);
};
const move = (part, by) => {
  const before = part.scrollTop;
  part.scrollBy({top: part.clientHeight * 0.9 * by, behavior: 'instant'});
  return Math.abs(part.scrollTop - before) >= 1;
};
const can = (part, by) => scrolls(part)
  && (by < 0 ? part.scrollTop > 0 : part.scrollTop + part.clientHeight < part.scrollHeight - 1);
const above = node => node.assignedSlot || node.parentElement || (node.getRootNode() || {}).host;
"""
SCROLL_IN = _function(
    "by",
    _SCROLLING
    + """
const wanted = Number(by);
for (let part = el; part; part = above(part)) {
  const own = wraps || part !== document.body;
  if (own && can(part, wanted) && move(part, wanted)) return {live: scripted(), moved: true};
}
const moved = can(page, wanted) && move(page, wanted);
return {live: scripted(), moved};
""",
)
"""Scrolls the nearest box around the element that has something left, else its page: {live, moved} or {why}."""

SCROLL = (
    """(() => {
  const wanted = %(by)d;
  const shown = part => {
    const box = part.getBoundingClientRect();
    const wide = Math.min(box.right, innerWidth) - Math.max(box.left, 0);
    const high = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    return wide > 0 && high > 0 && getComputedStyle(part).visibility === 'visible' ? wide * high : 0;
  };
"""
    + _SCROLLING
    + """
  const parts = [], whole = innerWidth * innerHeight;
  const collect = root => {
    for (const part of root.querySelectorAll('*')) {
      if (part !== page && (wraps || part !== document.body) && can(part, wanted) && shown(part)) parts.push(part);
      if (part.shadowRoot) collect(part.shadowRoot);
    }
  };
  collect(document);
  parts.sort((one, other) => shown(other) - shown(one));
  const dialogs = [...document.querySelectorAll('dialog:modal, [aria-modal=true]')].filter(shown);
  const dialog = dialogs[dialogs.length - 1];
  const around = part => dialog.contains(part) || part.contains(dialog);
  const order = dialog ? parts.filter(around)
    : parts.length && shown(parts[0]) > whole / 2 ? [parts[0], page, ...parts] : [page, ...parts];
  const target = order.find(part => can(part, wanted));
  if (!target) return 0;
  if (%(move)d) move(target, wanted);
  return target === page ? whole : shown(target);
})()"""
)
"""Scrolls what a person would scroll and gives its size in square pixels, 0 where nothing is left to scroll.

That is the topmost dialog, a box that fills most of the window, the page, or the largest box. `move=0` only looks.
"""

DESCRIBE = _function("", "return {by: describe(el)};")
"""What an element is called when it covers another one: {by}."""

TICK = f"new Promise(done => setTimeout({OWN}(() => done(true)), 0))"
"""Resolves at once, except in a frame in which scripts are off."""

MAX_ELEMENTS = 100_000
"""Elements of a page that is still read; to lay out and list so many takes Chromium several seconds."""
MAX_TEXT = 10_000_000
"""Characters of text of a page that is still read."""
_LITTLE_TEXT = 100_000
"""Characters of a document below which it does not matter how many of them belong to scripts."""

QUIET = (
    """
(() => {
  const ask = ASK, own = OWN;
  const state = calm => {
    const size = part => part.textContent.length;
    const elements = document.getElementsByTagName('*').length;
    let text = document.documentElement ? size(document.documentElement) : 0;
    if (text > LITTLE_TEXT) for (const part of document.querySelectorAll('script, style')) text -= size(part);
    const large = elements > MAX_ELEMENTS || text > MAX_TEXT;
    return large ? `${elements} elements, ${text} characters` : `${calm} ${elements} ${text}`;
  };
  const loading = document.readyState === 'loading';
  if (!SCRIPTED && !loading) {
    if (document.readyState === 'complete') return state('static');
    // Only then is it known whether the page leads on by itself.
    const refreshes = document.querySelector('meta[http-equiv=refresh i]');
    return new Promise(done => {
      const loaded = own(() => done(state('static')));
      addEventListener('load', () => setTimeout(loaded), {once: true});
      setTimeout(loaded, refreshes ? %(cap)d : %(window)d);
    });
  }
  const empty = () => !document.body || (!document.body.innerText.trim() && document.body.offsetHeight < 1);
  return new Promise(done => {
    const finish = own(() => {
      watch.disconnect();
      removeEventListener('scroll', rest, {capture: true});
      done(state(window.length > 0 ? 'framed' : 'live'));
    });
    let timer = 0, worked = false;
    const check = own(() => {
      const works = ask(%(cap)d).includes('b');
      // What has just ended may change the page in a moment.
      const again = works || worked;
      worked = works;
      if (again) rest(); else finish();
    });
    const rest = () => {
      clearTimeout(timer);
      if (!empty() && document.readyState !== 'loading') timer = setTimeout(check, %(window)d);
    };
    const watch = new MutationObserver(rest);
    addEventListener('scroll', rest, {capture: true, passive: true});
    watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    setTimeout(finish, %(cap)d);
    rest();
  });
})()
""".replace("SCRIPTED", _SCRIPTED)
    .replace("ASK", ASK)
    .replace("OWN", OWN)
    .replace("MAX_ELEMENTS", str(MAX_ELEMENTS))
    .replace("MAX_TEXT", str(MAX_TEXT))
    .replace("LITTLE_TEXT", str(_LITTLE_TEXT))
)
"""Resolves when nothing changed for `window` milliseconds and nothing is pending, or after `cap`; at once on a page
without scripts that has loaded.

An empty page is waited for: content that a script brings later is what the agent must see. The value is `static`,
`live` or `framed` (live, with frames), the numbers of elements and of characters, or the size of a page that is too
large to be read.
"""

STATUS = "(performance.getEntriesByType('navigation')[0] || {}).responseStatus || 0"
"""The status of the answer that the document came with; 0 where there was none."""

NO_SERVICE_WORKERS = """
if (navigator.serviceWorker) {
  const none = Promise.resolve.bind(Promise);
  const registration = Object.assign(new EventTarget(), {
    installing: null, waiting: null, active: null, scope: new URL('/', location.href).href, updateViaCache: 'imports',
    onupdatefound: null, update: () => none(registration), unregister: () => none(true),
    getNotifications: () => none([]),
  });
  navigator.serviceWorker.register = () => none(registration);
}
"""
"""Service workers are blocked; pages that register one get a registration whose worker never comes.

Playwright's own blocking gives them nothing instead, and what they do with it next then throws.
"""

TEXT_CURSOR = """(() => {
  const focused = document.activeElement;
  if (!focused || focused === document.body) return '';
  if (focused.matches('iframe, frame')) return 'frame';
  const edits = focused.matches('input, textarea') || focused.isContentEditable || focused.shadowRoot;
  return edits || focused.localName.includes('-') ? 'edit' : '';
})()"""
"""Where a text cursor may blink: `edit` in the page itself, `frame` in one of its frames, or ''."""
