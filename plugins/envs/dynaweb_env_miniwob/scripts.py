"""JavaScript that starts an episode on a MiniWoB page, reads its goal, and reads how it went."""

from __future__ import annotations

PANEL = ("#reward-display", "#sync-task-cover", "#click-canvas")
"""The page's own panel of rewards and time, its start button, its drawing of clicks: not for the agent's eyes."""
GOAL = "#query"

_BEGIN = """
const begin = async (seed, limit) => {
  core.EPISODE_MAX_TIME = limit;
  Math.seedrandom(String(seed));
  core.startEpisodeReal();
  for (let i = 0; i < 200 && !WOB_TASK_READY; i++) await new Promise(done => setTimeout(done, 25));
  // Its clock is not shown, and a page that changes every second never comes to rest.
  clearInterval(core.CD_TIMER);
  const goal = core.getUtterance();
  return typeof goal === 'string' ? goal : goal.utterance;
};
"""

_PICTURES = """
// Icons that change under the mouse have no size until they are loaded, and a click at once then hits what moves there.
const urls = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])
  .flatMap(rule => [...rule.cssText.matchAll(/url\\("([^"]+)"\\)/g)].map(match => match[1]));
window.pictures = urls.map(url => Object.assign(new Image(), {src: url}));
await Promise.allSettled(window.pictures.map(picture => picture.decode()));
"""

START = f"""
(async () => {{
  {_BEGIN}
  {_PICTURES}
  document.head.appendChild(document.createElement('style')).textContent =
    %(hidden)s.join(', ') + ' {{ display: none !important; }}';
  return await begin(%(seed)d, %(limit)d);
}})()
"""
"""Hides the elements of `hidden` (JSON), starts the episode of a seed, gives its goal; `limit` is in milliseconds."""

GOALS = f"""
(async () => {{
  {_BEGIN}
  const goals = {{}};
  for (const seed of %(seeds)s) goals[seed] = await begin(seed, 2000000000);
  return goals;
}})()
"""
"""The goals of many seeds of one page, by seed."""

_MARK = """
(() => {
  const handled = el => el.onclick || el.__onclick || (window.$ && $._data && ($._data(el, 'events') || {}).click);
  const area = document.getElementById('area') || document.body;
  const own = 'a[href], button, input, select, textarea, option, label, [role]';
  for (const el of area.querySelectorAll('*:not([role])')) {
    if (el.matches(own) || !handled(el) || el.closest('svg')) continue;
    const inner = [...el.querySelectorAll('*')];
    if (inner.some(one => one.matches(own) || handled(one))) continue;
    el.setAttribute('role', el.matches('a, .alink') ? 'link' : 'button');
    if (!el.innerText.trim()) el.setAttribute('aria-label', el.className.trim() || el.id);
  }
})();
"""

STATE = f"""
(() => {{
  if (%(mark)s) {_MARK}
  return {{done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON || '')}};
}})()
"""
"""How the episode went: {done, raw reward, reason}.

With `mark` (true or false), elements that have a click handler and nothing else that says so get the role button (or
link), and the name of their CSS class where they show an icon only. Without it most icons are not in the accessibility
tree at all, and no agent that reads it could click on them.
"""
