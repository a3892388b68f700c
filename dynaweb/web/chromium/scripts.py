"""JavaScript that runs in the page: finding out whether an element can be acted on, and acting.

Each function is called with the element as `this` and returns plain data with `why` set when it refuses. On a page
without scripts a click is done by `click()` at once, which means the same there and saves a round trip; on other
pages it answers with a point, and the driver sends real mouse events.
"""

from __future__ import annotations

_SCRIPTED = """(document.scripts.length > 0 || window.length > 0 || document.evaluate(
  "boolean(//@*[starts-with(name(), 'on') or starts-with(normalize-space(.), 'javascript:')])",
  document, null, XPathResult.BOOLEAN_TYPE, null).booleanValue)"""
_HELPERS = """
const el = this.nodeType === Node.ELEMENT_NODE ? this : this.parentElement;
if (!el || !el.isConnected || !el.ownerDocument.defaultView) return {why: 'stale'};
const mute = /*MUTE*/false;
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
const cover = (target, at) => {
  const hit = target.getRootNode().elementFromPoint(at.x, at.y);
  if (!hit || hit === target || target.contains(hit)) return null;
  const label = hit.closest('label');
  if (label && label.control === target) return null;
  if (hit.contains(target) && !hit.matches('dialog')) return null;
  return hit;
};
const reached = (target, at) => {
  const hit = target.getRootNode().elementFromPoint(at.x, at.y);
  return hit === target || target.contains(hit);
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
const frame = () => new Promise(done => { requestAnimationFrame(done); setTimeout(done, 50); });
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
const pick = (list, option) => {
  const changed = !option.selected;
  list.focus();
  option.selected = true;
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
return {x: aimed.x, y: aimed.y};
""",
)
"""Where the element is: {x, y} or {why}."""

CLICK = _function(
    "framed",
    """
const list = el instanceof HTMLOptionElement && el.closest('select');
if (list) return el.disabled || list.disabled ? {why: 'disabled'} : {...pick(list, el), likely: false, done: true};
if (el instanceof HTMLInputElement && el.type === 'file') return {why: 'file'};
const aimed = await aim();
if (aimed.why) return aimed;
const likely = leads();
if (aimed.live || framed) return {x: aimed.x, y: aimed.y, likely, live: true};
if (el.focus) el.focus({preventScroll: true});
if (aimed.target.click) aimed.target.click();
else aimed.target.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true, view: window}));
return {likely, done: true};
""",
)
"""Clicks on a page without scripts ({done, likely}); elsewhere {x, y, likely, live} for real events; or {why}.

An option of a native list has no box: it is selected. `framed` asks for real events in any case.
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
if (rich) {
  getSelection().selectAllChildren(el);
  return {rich, live: true};
}
el.select();
if (text === '') document.execCommand('delete');
else document.execCommand('insertText', false, text);
return {value: el.value, live};
""",
)
"""Replaces the content of a field and reads it back: {value, live} or {why}.

In a rich editor it only selects the content ({rich, live}): editors listen to the events of real input, which the
driver sends.
"""

RICH_VALUE = _function("", "return {value: el.innerText};")
"""What a rich editor holds: {value} or {why}."""

SELECT = _function(
    "label",
    """
if (disabled()) return {why: 'disabled'};
if (!(el instanceof HTMLSelectElement)) return {why: 'not-select'};
const options = [...el.options];
const shown = text => squeeze(text).slice(0, 120).trim().replaceAll('|', '/');
const wanted = shown(label);
const text = option => shown(option.label || option.text);
const option = options.find(o => text(o) === wanted) || options.find(o => o.value === label);
if (!option) return {why: 'no-option', options: options.map(text)};
return option.disabled ? {why: 'disabled'} : {value: text(option), ...pick(el, option)};
""",
)
"""Selects an option of a native select by its label: {value, live} or {why}."""

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

SCROLL_IN = _function(
    "by",
    """
const scrolls = part => {
  const may = /auto|scroll|overlay/.test(getComputedStyle(part).overflowY) || part.tagName === 'TEXTAREA';
  return may && part.scrollHeight > part.clientHeight;
};
let part = el;
while (part && !scrolls(part)) part = part.parentElement;
const target = part || document.scrollingElement;
if (!target) return {why: 'invisible'};
target.scrollBy({top: target.clientHeight * 0.9 * Number(by), behavior: 'instant'});
return {live: scripted()};
""",
)
"""Scrolls the nearest box around the element that scrolls, else its page: {live} or {why}."""

DESCRIBE = _function("", "return {by: describe(el)};")
"""What an element is called when it covers another one: {by}."""

SCROLL = "window.scrollBy({top: innerHeight * 0.9 * (%d), behavior: 'instant'})"

TICK = "new Promise(done => setTimeout(done, 0, true))"
"""Resolves at once, except in a frame in which scripts are off."""

MAX_ELEMENTS = 30_000
"""Elements of a page that is still read; Chromium needs about 0.3 milliseconds for each."""
MAX_TEXT = 2_000_000
"""Characters of text of a page that is still read; Chromium needs about 2.5 seconds for a million."""

QUIET = (
    """
(() => {
  const state = calm => {
    const size = part => part.textContent.length;
    const elements = document.getElementsByTagName('*').length;
    let text = document.documentElement ? size(document.documentElement) : 0;
    if (text > MAX_TEXT) for (const part of document.querySelectorAll('script, style')) text -= size(part);
    const large = elements > MAX_ELEMENTS || text > MAX_TEXT;
    return large ? `${elements} elements, ${text} characters` : `${calm} ${elements}`;
  };
  const loading = document.readyState === 'loading';
  if (!SCRIPTED && !loading) return state('static');
  const empty = () => !document.body || (!document.body.innerText.trim() && document.body.offsetHeight < 1);
  return new Promise(done => {
    const finish = () => { watch.disconnect(); done(state(window.length > 0 ? 'framed' : 'live')); };
    let timer = 0;
    const rest = () => {
      clearTimeout(timer);
      if (!empty() && document.readyState !== 'loading') timer = setTimeout(finish, %(window)d);
    };
    const watch = new MutationObserver(rest);
    watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    setTimeout(finish, %(cap)d);
    rest();
  });
})()
""".replace("SCRIPTED", _SCRIPTED)
    .replace("MAX_ELEMENTS", str(MAX_ELEMENTS))
    .replace("MAX_TEXT", str(MAX_TEXT))
)
"""Resolves when nothing changed for `window` milliseconds, or after `cap`; at once on a page without scripts.

An empty page is waited for: content that a script brings later is what the agent must see. The value is `static`,
`live` or `framed` (live, with frames) and the number of elements, or the size of a page that is too large to be read.
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
