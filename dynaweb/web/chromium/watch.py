"""What a document is still waiting for: JavaScript that watches each one from its beginning, and asks what it knows.

`WATCH` runs in every document before the scripts of the page. It notes which timers and requests are pending, whether
the document ever had scripts, and whether somebody listens to keys. `ASK` gets this from any world of the document: it
sends an event that only `WATCH` knows, and the answer comes back in an element that is in no document. Where nobody
answers (a document that was written anew with `document.open`) the answer is empty.

What a page begins is waited for only so long: requests for the bound of the settle policy, timers for `TIMER_SECONDS`,
both counted from what the page or its user did first. What a timer or an answer begins counts from the same moment, so
a page that polls for ever is waited for once and not again.
"""

from __future__ import annotations

import secrets

TIMER_SECONDS = 0.6
"""Timers that are due later after what began them are not waited for; notes that vanish by themselves stay longer."""

_KEY = f"dynaweb-{secrets.token_hex(8)}"
"""Pages cannot know it."""

OWN = f"(work => Object.assign(work, {{'{_KEY}': true}}))"
"""JavaScript: marks a function, so that a timer which calls it is not one of the page."""

ASK = f"""(limit => {{
  const out = document.createElement('i');
  dispatchEvent(new MouseEvent('{_KEY}', {{relatedTarget: out, screenX: limit}}));
  return out.title || '';
}})"""
"""JavaScript: what the document's watch says, for requests that are younger than `limit` milliseconds.

A text of letters: `a` it answers, `s` the document has or had scripts, `b` something is pending, `k` somebody listens
to keys, `i` to what is about to be written, `w` to the mouse wheel.
"""

WATCH = """
(() => {
  const KEY = 'THE_KEY', TIMER = THE_TIMER;
  const clock = performance.now.bind(performance), micro = queueMicrotask.bind(window);
  const wait = setTimeout.bind(window);
  const then = Promise.prototype.then;
  const KEYS = new Set(['keydown', 'keypress', 'keyup']), INPUT = new Set(['beforeinput', 'textInput']);
  const timers = new Map(), idle = new Map(), requests = new Set(), loads = new Map(), loaded = new WeakSet();
  let scripted = false, keys = false, input = false, wheel = false, onload = false, cause = null;

  const wrap = (owner, name, apply) => {
    const native = owner && owner[name];
    if (typeof native === 'function') owner[name] = new Proxy(native, {apply});
  };
  const begun = () => cause || {at: clock()};
  // Promises that a callback fulfils go on after it has returned, within the same task.
  const fade = (mine, left) => micro(() => {
    if (cause === mine && left) fade(mine, left - 1);
    else if (cause === mine) cause = null;
  });
  const go = mine => { cause = mine; fade(mine, 20); };

  const later = (name, cancels, pending, delayOf) => {
    wrap(window, name, (native, self, args) => {
      const work = args[0];
      if (work && work[KEY]) return Reflect.apply(native, self, args);
      const mine = begun();
      let id = 0;
      const call = function (...given) {
        pending.delete(id);
        go(mine);
        return Reflect.apply(work, this, given);
      };
      if (typeof work !== 'function') {
        // A text is run by the browser; a timer of its own says when.
        id = Reflect.apply(native, self, args);
        wait(() => pending.delete(id), args[1]);
      } else id = Reflect.apply(native, self, [call, ...Array.prototype.slice.call(args, 1)]);
      const due = clock() + delayOf(args);
      if (due - mine.at <= TIMER) pending.set(id, due);
      return id;
    });
    for (const cancel of cancels) wrap(window, cancel, (native, self, args) => {
      pending.delete(args[0]);
      return Reflect.apply(native, self, args);
    });
  };
  later('setTimeout', ['clearTimeout', 'clearInterval'], timers, args => Math.max(Number(args[1]) || 0, 0));
  later('requestIdleCallback', ['cancelIdleCallback'], idle, () => 0);
  wrap(window, 'setInterval', (native, self, args) => {
    const work = args[0];
    if (typeof work !== 'function') return Reflect.apply(native, self, args);
    const mine = begun();
    const call = function (...given) { go(mine); return Reflect.apply(work, this, given); };
    return Reflect.apply(native, self, [call, ...Array.prototype.slice.call(args, 1)]);
  });

  const follow = promise => {
    const mine = {...begun()};
    const done = () => { requests.delete(mine); go({at: mine.at}); };
    requests.add(mine);
    Reflect.apply(then, promise, [done, done]);
    return promise;
  };
  wrap(window, 'fetch', (native, self, args) => {
    const answer = Reflect.apply(native, self, args);
    return args[1] && args[1].keepalive ? answer : follow(answer);
  });
  for (const name of ['json', 'text', 'arrayBuffer', 'blob', 'formData'])
    wrap(window.Response && Response.prototype, name, (native, self, args) => {
      return follow(Reflect.apply(native, self, args));
    });
  const listen = EventTarget.prototype.addEventListener;
  const sent = new WeakMap();
  const answered = event => {
    const mine = sent.get(event.currentTarget);
    if (!mine || event.currentTarget.readyState !== 4) return;
    requests.delete(mine);
    // The listeners of the page follow in the same task.
    cause = mine;
    wait(() => { if (cause === mine) cause = null; }, 0);
  };
  wrap(XMLHttpRequest.prototype, 'open', (native, self, args) => {
    for (const kind of ['readystatechange', 'load', 'error', 'loadend']) Reflect.apply(listen, self, [kind, answered]);
    requests.delete(sent.get(self));
    return Reflect.apply(native, self, args);
  });
  wrap(XMLHttpRequest.prototype, 'send', (native, self, args) => {
    const mine = {...begun()};
    sent.set(self, mine);
    requests.add(mine);
    try { return Reflect.apply(native, self, args); } catch (error) { requests.delete(mine); throw error; }
  });

  const kinds = /^(|module|(text|application)\\/(x-)?(java|ecma)script)$/i;
  const runs = script => !script.noModule && kinds.test(script.type);
  const source = Object.getOwnPropertyDescriptor(HTMLScriptElement.prototype, 'src');
  Object.defineProperty(HTMLScriptElement.prototype, 'src', {...source, set: new Proxy(source.set, {
    apply: (native, self, args) => { loads.set(self, begun().at); return Reflect.apply(native, self, args); },
  })});
  for (const kind of ['load', 'error']) Reflect.apply(listen, document, [kind, event => {
    if (event.target instanceof HTMLScriptElement) { loaded.add(event.target); loads.delete(event.target); }
  }, true]);

  wrap(EventTarget.prototype, 'addEventListener', (native, self, args) => {
    if (KEYS.has(args[0])) keys = true;
    else if (INPUT.has(args[0])) input = true;
    else if (args[0] === 'wheel') wheel = true;
    else if (args[0] === 'load' && (self === window || self === undefined)) onload = true;
    return Reflect.apply(native, self, args);
  });

  // A script may remove its own element, and what it has set up stays.
  const holds = node => node.nodeName === 'SCRIPT' || (node.querySelector && node.querySelector('script'));
  const removes = record => record.removedNodes.length > 0 && [...record.removedNodes].some(holds);
  const look = records => {
    scripted = scripted || document.scripts.length > 0 || records.some(removes);
    if (scripted) watch.disconnect();
  };
  const watch = new MutationObserver(look);
  watch.observe(document, {childList: true, subtree: true});
  Reflect.apply(listen, document, ['DOMContentLoaded', () => {
    look(watch.takeRecords());
    watch.disconnect();
    for (const script of document.scripts)
      if (script.src && runs(script) && !loaded.has(script)) loads.set(script, clock());
  }, {capture: true, once: true}]);

  const busy = limit => {
    const now = clock();
    if (timers.size || idle.size) return true;
    for (const mine of requests) if (now - mine.at < limit) return true;
    for (const [script, at] of loads) if (now - at < limit && script.isConnected && runs(script)) return true;
    return document.readyState !== 'complete' && (onload || !!window.onload) && now < limit;
  };
  Reflect.apply(listen, window, [KEY, event => {
    event.stopImmediatePropagation();
    look(watch.takeRecords());
    const facts = {a: true, s: scripted, b: busy(event.screenX), k: keys, i: input, w: wheel};
    event.relatedTarget.title = Object.keys(facts).filter(letter => facts[letter]).join('');
  }, true]);
})()
""".replace("THE_KEY", _KEY).replace("THE_TIMER", str(int(1000 * TIMER_SECONDS)))
"""JavaScript: the watch of a document. It changes nothing that a page can notice, except how long calls take."""
