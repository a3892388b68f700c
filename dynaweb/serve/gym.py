"""Every environment as a `gymnasium.Env`: text in, text out.

    import gymnasium
    import dynaweb.serve.gym  # registers the ids
    env = gymnasium.make("dynaweb/sites-v0", split="train", overrides=["env.driver=static"])
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("click 'Cart' [4]")

The ids are `dynaweb/NAME-v0` for every environment plugin that is installed, dreams included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space

from dynaweb.config import resolve
from dynaweb.plugin.registry import current
from dynaweb.rollout.tasks import known, named
from dynaweb.serve.environment import LoopThread, ServedEnvironment
from dynaweb.serve.episode import TextEpisode, Turn
from dynaweb.types import Task

SAMPLES = ("wait", "scroll down", "go_back", "press 'Tab'", "stop ''")
"""Replies that are valid on every page; what a sample of the action space is."""


class AnyText(Space[str]):
    """Any text, of any length and alphabet. Samples are drawn from `samples`."""

    def __init__(self, samples: Sequence[str], seed: int | np.random.Generator | None = None) -> None:
        self.samples = tuple(samples)
        super().__init__(shape=None, dtype=str, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """One of the samples."""
        return self.samples[int(self.np_random.integers(len(self.samples)))]

    def contains(self, x: Any) -> bool:
        """Whether it is a text."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts are no arrays."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.samples == self.samples

    def __repr__(self) -> str:
        return "AnyText()"


class WebEnv(gymnasium.Env[dict[str, str], str]):
    """Tasks of an environment as episodes.

    An observation has `goal`, `url`, `page` (the tree in the dialect `compact`) and `error` (why the last reply was
    refused). The reward is 0 until the end and then the verdict's score: the environment's own in the real thing, the
    recipe's judge in dreams. An episode that could not be graded gives 0 and `info["graded"]` False.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - declared so by gymnasium.Env

    def __init__(
        self,
        env: str = "sites",
        *,
        recipe: str = "dynaweb",
        split: str = "",
        tasks: int = 64,
        max_steps: int = 0,
        world_model: str | Path | None = None,
        overrides: Sequence[str] | Mapping[str, Any] = (),
        render_mode: str | None = None,
    ) -> None:
        """`tasks` is how many are drawn of a split (default: train, or test of a benchmark); a seed chooses among them.

        `max_steps` 0 = `eval.steps` of the recipe.
        """
        resolved = resolve(recipe, env=env, overrides=overrides)
        self.render_mode = render_mode
        self.action_space = AnyText(SAMPLES)
        texts: dict[str, Space[Any]] = {name: AnyText(("",)) for name in ("goal", "url", "page", "error")}
        self.observation_space = cast("Space[dict[str, str]]", Dict(texts))
        self._served = ServedEnvironment(resolved, world_model=None if world_model is None else Path(world_model))
        self._episode = TextEpisode(self._served, max_steps=max_steps or resolved.eval.steps)
        self._split, self._count = split, tasks
        self._drawn: list[Task] = []
        self._thread = LoopThread()
        self._turn: Turn | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Start a task: the one that the seed draws, or `options["task"]` (its id or its number)."""
        super().reset(seed=seed)
        if not self._drawn:
            self._drawn = self._served.tasks(self._split, self._count)
        task = self._chosen((options or {}).get("task"))
        self._turn = self._thread.run(self._episode.start(task, int(self.np_random.integers(2**31))))
        return _observation(self._turn), self._info(self._turn)

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        """One reply of a policy; its last line is the action, in the grammar `compact`."""
        self._turn = turn = self._thread.run(self._episode.reply(action))
        ended = turn.done and not turn.truncated
        return _observation(turn), float(turn.reward or 0.0), ended, turn.truncated, self._info(turn)

    def render(self) -> str | None:  # type: ignore[override]
        """The page as text."""
        return self._turn.text if self.render_mode == "ansi" and self._turn is not None else None

    def close(self) -> None:
        """End the browser; calling it twice is allowed."""
        if self._thread.closed:
            return
        self._thread.run(self._episode.close())
        self._thread.run(self._served.close())
        self._thread.close()

    def _chosen(self, wanted: Any) -> Task:
        if wanted is None:
            return self._drawn[int(self.np_random.integers(len(self._drawn)))]
        if isinstance(wanted, int) and 0 <= wanted < len(self._drawn):
            return self._drawn[wanted]
        return known(self._served.source, str(wanted)) or named(str(wanted), self._drawn)

    def _info(self, turn: Turn) -> dict[str, Any]:
        why = turn.verdict.why if turn.verdict is not None else ""
        return {"task": turn.task.id, "steps": self._episode.steps, "graded": turn.reward is not None, "why": why}


def _observation(turn: Turn) -> dict[str, str]:
    return {"goal": turn.task.intent, "url": turn.page.url, "page": turn.text, "error": turn.error}


def register() -> None:
    """Tell Gymnasium the ids of all environment plugins."""
    for kind, name in current().offers:
        if kind == "env":
            gymnasium.register(f"dynaweb/{name}-v0", "dynaweb.serve.gym:WebEnv", kwargs={"env": name})


register()
