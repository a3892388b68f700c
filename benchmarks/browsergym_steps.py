"""Seconds of BrowserGym's reset and click on MiniWoB++ `click-button`. Runs in BrowserGym's environment.

    MINIWOB_URL=http://127.0.0.1:PORT/miniwob/ python browsergym_steps.py BROWSER EPISODES

Prints one JSON object: `reset` and `step` (a real click) in seconds, one number an episode.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import browsergym.miniwob  # noqa: F401
import gymnasium
from playwright.sync_api import BrowserType  # noqa: TID253  (BrowserGym's environment, not ours)


def main() -> None:
    """Play the episodes."""
    browser, episodes = sys.argv[1], int(sys.argv[2])
    launch = BrowserType.launch

    def launched(self: BrowserType, **options: Any) -> Any:
        # Its chat window is a second browser that takes no settings.
        return launch(self, **{**options, "executable_path": browser})

    BrowserType.launch = launched  # type: ignore[method-assign]
    environment = gymnasium.make("browsergym/miniwob.click-button", headless=True)
    resets, steps = [], []
    for seed in range(episodes):
        start = time.perf_counter()
        observation, _ = environment.reset(seed=seed)
        resets.append(time.perf_counter() - start)
        nodes = observation["axtree_object"]["nodes"]
        goal = re.search(r'"(.*)"', observation["goal"])
        wanted = goal[1] if goal else ""
        bid = next(
            node["browsergym_id"]
            for node in nodes
            if node["role"]["value"] == "button" and node["name"]["value"] == wanted and "browsergym_id" in node
        )
        start = time.perf_counter()
        _, reward, *_ = environment.step(f"click('{bid}')")
        steps.append(time.perf_counter() - start)
        assert reward > 0, "the click did not count"
    environment.close()
    sys.stdout.write(json.dumps({"reset": resets, "step": steps}) + "\n")


if __name__ == "__main__":
    main()
