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

START = f"""
(async () => {{
  {_BEGIN}
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

STATE = "({done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON || '')})"
"""How the episode went: {done, raw reward, reason}."""
