"""The environment `miniwob`: one page, one goal, and the page's own raw reward as the verdict."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, InfrastructureError, MissingError, hint
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Judgement, Observation, StepResult, Task, Trajectory
from dynaweb.web.chromium.pool import BrowserPool, pool_of
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.environment import FIRST_SEED, SEEDS_APART, SessionEnvironment
from dynaweb.web.pictures import pictures_wanted
from dynaweb_env_miniwob import scripts
from dynaweb_env_miniwob.goals import Goals
from dynaweb_env_miniwob.pages import SITE, TIMING, Pages, PageServer, patience
from dynaweb_env_miniwob.plans import SCRIPTED, MiniwobExpert

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, EnvironmentContext
    from dynaweb.web.session import Session
    from dynaweb_env_miniwob import MiniwobConfig

SEEN, UNSEEN = "trained template", "held-out template"
"""The two kinds of tasks of a benchmark with templates that are kept out, as tables tell them apart."""
SUCCESS = 1.0
"""The raw reward of a solved task. Less is not success: `find-greatest` gives 0.1 for a wrong card (upstream 108)."""


class MiniwobEnvironment(SessionEnvironment):
    """Plays one episode at a time on a page of its own."""

    def __init__(self, session: Session, config: MiniwobConfig) -> None:
        super().__init__(session)
        self._limit = int(1000 * config.time_limit)
        self._hidden = json.dumps([*scripts.PANEL, *([] if config.show_goal else [scripts.GOAL])])
        self._mark = "true" if config.mark_clickable else "false"
        self.state: dict[str, Any] = {}
        """How the episode went so far: `done`, `raw` (the raw reward) and `reason`."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Open the task's page and start the episode of the task's own seed; `seed` changes nothing here.

        Raises `ConfigError` for tasks of other environments and `InfrastructureError` when the browser fails or the
        page has another goal than the task.
        """
        own = task.meta.get("seed")
        if not isinstance(own, int):
            raise ConfigError(
                f"Task {task.id!r} is not of MiniWoB: its meta has no `seed`. Draw it with MiniwobSource."
            )
        await self.session.reset()
        await self.session.goto(task.start_url)
        values = {"hidden": self._hidden, "seed": own, "limit": self._limit}
        try:
            goal = await self.session.evaluate("last", scripts.START % values)
        except ConfigError as error:
            raise InfrastructureError(f"{task.start_url} did not start: {error}") from None
        if goal != task.intent:
            raise InfrastructureError(f"{task.start_url} says {goal!r} for seed {own}, the task says {task.intent!r}")
        return await self._look()

    async def step(self, action: Action) -> StepResult:
        """Act and look. The page itself ends the episode; `stop` ends it too, mostly for nothing."""
        result = await super().step(action)
        return replace(result, done=result.done or bool(self.state["done"]), info=dict(self.state))

    async def _look(self) -> Observation:
        try:
            self.state = await self.session.evaluate("last", scripts.STATE % {"mark": self._mark})
        except ConfigError:
            # The agent left the page: whatever it showed is lost, and so is the episode.
            self.state = {"done": True, "raw": -1.0, "reason": "the page was left"}
        return await super()._look()


class MiniwobSource:
    """The plugin object: tasks, environments, experts and verdicts of MiniWoB++.

    Server and browser start with the first episode; `close` ends them. Drawing tasks opens a browser once for the goals
    that are not in the cache yet.
    """

    def __init__(self, config: MiniwobConfig, context: EnvironmentContext) -> None:
        """Raises `MissingError` without the pages, `ConfigError` for unknown names in `templates` and `held_out`."""
        self.config = config
        self._context = context
        self.web = context.web or Web()
        self.pages = Pages(config.path)
        self.names = _chosen(config, self.pages)
        self.held_out = _held_out(config, self.names)
        self._trained = [name for name in self.names if name not in self.held_out]
        self._goals = Goals(self.pages, self.web)
        self._server: PageServer | None = None
        self._pool: BrowserPool | None = None

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, the same for the same seed, each name once before any comes again.

        With `held_out`, the test split takes turns between templates that training knows and those that are kept out.
        Raises `ConfigError` for an unknown split, `MissingError` without a browser.
        """
        if split not in FIRST_SEED:
            raise ConfigError(f"no split is called {split!r}; {hint(split, FIRST_SEED)}")
        drawn = [self._drawn(split, index, seed) for index in range(count)]
        goals = self._goals.read(drawn)
        return [self._task(name, number, split, goals[name, number]) for name, number in drawn]

    def task(self, task_id: str) -> Task | None:
        """The task of an id such as `click-button:test:30004`."""
        name, split, number = ([*task_id.split(":"), "", ""])[:3]
        if name not in self.pages.names or split not in FIRST_SEED or not number.isdecimal():
            return None
        if split != "test" and name in self.held_out:
            return None
        wanted = name, int(number)
        if task_id.count(":") != 2 or not 0 <= wanted[1] - FIRST_SEED[split] < SEEDS_APART:
            return None
        return self._task(*wanted, split, self._goals.read([wanted])[wanted])

    def catalogue(self, split: str) -> list[Task]:
        """Every task of the split once."""
        drawn = [self._seeded(split, name, 0, 0) for name in self._names(split)]
        goals = self._goals.read(drawn)
        return [self._task(name, number, split, goals[name, number]) for name, number in drawn]

    def variants(self, task: Task, *, count: int, seed: int) -> list[Task]:
        """The same template with other seeds of its split."""
        own = int(task.meta["seed"])
        turns = range(min(count + 1, self.config.seeds))
        drawn = [self._seeded(task.split, task.template, turn, derive(seed, task.id)) for turn in turns]
        drawn = [one for one in drawn if one[1] != own][:count]
        goals = self._goals.read(drawn)
        return [self._task(name, number, task.split, goals[name, number]) for name, number in drawn]

    def skipped(self, split: str) -> dict[str, int]:
        """All that was asked for can be played."""
        return {}

    def environment(self) -> MiniwobEnvironment:
        """A new environment. Raises `InfrastructureError` when the configured port is taken."""
        return MiniwobEnvironment(ChromiumSession(self._browser()), self.config)

    def expert(self, task: Task) -> MiniwobExpert:
        """The scripted expert of a task, at its first step. Raises `MissingError` when there is none."""
        return MiniwobExpert(task)

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """1 when the page's raw reward is 1, else 0; None when the infrastructure failed."""
        if not isinstance(environment, MiniwobEnvironment):
            raise InfrastructureError(f"Only episodes of MiniWoB can be evaluated here, not of {type(environment)}.")
        if trajectory.end == "infrastructure":
            return Judgement(None, why="the browser or the server failed during the episode")
        state = environment.state
        if not state.get("done"):
            return Judgement(0.0, why=f"the page was not done when the episode ended ({trajectory.end})")
        why = f"raw reward {state['raw']:g}" + (f" ({state['reason']})" if state["reason"] else "")
        return Judgement(float(state["raw"] >= SUCCESS), why=why)

    async def close(self) -> None:
        """End browser and server; calling it twice is allowed."""
        if self._pool is not None:
            await self._pool.close()
        if self._server is not None:
            self._server.stop()
        self._pool = self._server = None

    def _names(self, split: str) -> Sequence[str]:
        """The templates of a split."""
        return self.names if split == "test" else self._trained

    def _drawn(self, split: str, index: int, seed: int) -> tuple[str, int]:
        """Name and page seed of the task at a place of the draw; no seed comes twice before all have come."""
        names = self._names(split)
        if split == "test" and self.held_out:
            names = (self._trained, self.held_out)[index % 2]
            index //= 2
        return self._seeded(split, names[index % len(names)], index // len(names), seed)

    def _seeded(self, split: str, name: str, turn: int, seed: int) -> tuple[str, int]:
        """A name, and its page seed when it comes for the `turn`-th time, from 0."""
        order = list(range(self.config.seeds))
        random.Random(derive(seed, "miniwob", split, name)).shuffle(order)
        return name, FIRST_SEED[split] + order[turn % len(order)]

    def _task(self, name: str, number: int, split: str, goal: str) -> Task:
        kind = "timing" if name in TIMING else "steady"
        if self.held_out:
            kind = UNSEEN if name in self.held_out else SEEN
        # What a page hides, such as the text of a closed section, depends on its seed: each is a site of its own.
        meta = {"seed": number, "site_seed": f"{name} {number}", "kind": kind, "scripted": name in SCRIPTED}
        return Task(
            id=f"{name}:{split}:{number}",
            intent=goal,
            start_url=self.pages.url(name),
            sites=(SITE,),
            split=split,  # type: ignore[arg-type]  # checked in `tasks`
            template=name,
            meta=meta,
        )

    def _browser(self) -> BrowserPool:
        if self._pool is None:
            self._server = PageServer(self.pages.folder, self.config.port)
            self._pool = pool_of(
                self.web,
                self._context.folder,
                urls=self._server.urls,
                view=self.config.view,
                **self.config.view_options,
                pictures=pictures_wanted(self._context),
                timeout=patience(self.web),
                settle=self.config.settle,
                # The pages never change while the server runs.
                keep_cache=True,
            )
        return self._pool


def _chosen(config: MiniwobConfig, pages: Pages) -> Sequence[str]:
    unknown = [name for name in config.templates if name not in pages.names]
    if unknown:
        raise ConfigError(f"MiniWoB has no task {unknown[0]!r}; {hint(unknown[0], pages.names)}")
    tests = {"all": lambda name: True, "steady": lambda name: name not in TIMING, "scripted": SCRIPTED.__contains__}
    names = [name for name in config.templates or pages.names if tests[config.pick](name)]
    if not names:
        raise MissingError(f"none of the chosen MiniWoB tasks is {config.pick}: {', '.join(config.templates)}")
    return names


def _held_out(config: MiniwobConfig, names: Sequence[str]) -> tuple[str, ...]:
    """The templates that only the test split has, in the order of their hashes where a number is wanted.

    A hash of the name mixes easy and hard ones, and is the same on every machine. Raises `ConfigError`.
    """
    wanted = config.held_out
    if isinstance(wanted, int):
        held_out = tuple(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:wanted])
    else:
        held_out = tuple(dict.fromkeys(wanted))
        unknown = [name for name in held_out if name not in names]
        if unknown:
            raise ConfigError(
                f"held_out names {unknown[0]!r}, which is none of the chosen MiniWoB tasks; {hint(unknown[0], names)}"
            )
    if held_out and len(held_out) >= len(names):
        raise ConfigError(
            f"held_out keeps {len(held_out)} of {len(names)} MiniWoB tasks out, which leaves none to train on; "
            "keep fewer out, or draw more (templates, pick)"
        )
    return held_out
