"""The environment `webvoyager`: one context for an episode, a limit of steps, and pages that keep agents out."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, InfrastructureError, MissingError, hint
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Judgement, Observation, Split, StepFacts, StepResult, Task, Trajectory
from dynaweb.web.chromium.logins import opened
from dynaweb.web.chromium.network import hosts_in
from dynaweb.web.chromium.pool import BrowserPool, pool_of
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.environment import SessionEnvironment
from dynaweb.web.pictures import pictures_wanted
from dynaweb_env_webvoyager import files
from dynaweb_env_webvoyager.blocked import Wall, wall
from dynaweb_rm_webvoyager_judge.judge import WebvoyagerJudge

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, EnvironmentContext, ExpertPolicy, Images
    from dynaweb_env_webvoyager import WebvoyagerConfig

KEEPS_OUT: frozenset[Wall] = frozenset({"captcha", "login"})
"""Walls that no agent without an account can pass; consent can be clicked away."""


class WebvoyagerEnvironment(SessionEnvironment):
    """Plays one episode at a time in a clean context."""

    def __init__(self, session: ChromiumSession, config: WebvoyagerConfig, images: Images | None = None) -> None:
        self.session: ChromiumSession
        super().__init__(session)
        self._limit = config.max_steps
        self._folder = Path(config.screenshots) if config.screenshots else None
        self._images = images
        self.pictures: list[str] = []
        """Pictures of all pages of the episode."""
        self._name = ""
        self._steps = 0
        self.walls: Counter[Wall] = Counter()
        """Walls that the episode met."""
        self.blocked_by: Wall = ""
        """The wall that the episode stands before, if no agent could pass it."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """A clean context on the task's site. `seed` only names pictures.

        Raises `InfrastructureError`, also when the site cannot be loaded: that says nothing about the agent.
        """
        await self.session.reset()
        await opened(self.session, task.start_url)
        self._steps, self._name = 0, f"{task.id}-{seed}"
        self.walls.clear()
        self.pictures = []
        return await self._look()

    async def step(self, action: Action) -> StepResult:
        """Act and look. `stop` and the last step end the episode."""
        self._steps += action.kind != "stop"
        result = await super().step(action)
        if result.done:
            return result
        facts = StepFacts(blocked=wall(result.observation), screenshot=self.pictures[-1] if self.pictures else "")
        return replace(result, done=self._steps >= self._limit, facts=facts)

    async def _look(self) -> Observation:
        page = await super()._look()
        met = wall(page)
        if met:
            self.walls[met] += 1
        self.blocked_by = met if met in KEEPS_OUT else ""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{_file_name(self._name)}-{self._steps:02d}.png"
            known = page.screenshot if self._images is not None else None
            path.write_bytes(await self.session.screenshot() if known is None else self._images.get(known.image))
            self.pictures.append(str(path))
        return page


class WebvoyagerSource:
    """The plugin object: tasks out of the files, environments, and the judge's verdicts."""

    def __init__(self, config: WebvoyagerConfig, context: EnvironmentContext) -> None:
        self.config = config
        self._context = context
        self.web = context.web or Web()
        self._judge = WebvoyagerJudge(config.judge, context) if config.judge.server.model else None
        self._pool: BrowserPool | None = None

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks in an order drawn from the seed, or all there are. Raises `ConfigError` or `MissingError`."""
        drawn = self.catalogue(split)
        random.Random(derive(seed, "webvoyager", split)).shuffle(drawn)
        return drawn[:count]

    def catalogue(self, split: str) -> list[Task]:
        """Every task of a split, in the order of the file."""
        if split not in get_args(Split):
            raise ConfigError(f"no split is called {split!r}; {hint(split, get_args(Split))}")
        path = files.task_file(self.config, split)
        raw, references = files.read(path), files.answers(path)
        names = {str(one["web_name"]) for one in raw}
        unknown = [name for name in self.config.sites if name not in names]
        if unknown:
            raise ConfigError(f"{path} has no site {unknown[0]!r}; {hint(unknown[0], names)}")
        chosen = [one for one in raw if not self.config.sites or one["web_name"] in self.config.sites]
        return [self._task(one, split, references.get(str(one["id"]), [])) for one in chosen]

    @property
    def default_split(self) -> str:
        """What people mean who name no split: a benchmark is for evaluation."""
        return "train" if self.config.train else "test"

    def task(self, task_id: str) -> Task | None:
        """The task of an id, from the file for evaluation or from that for training."""
        splits = ("test", "train") if self.config.train else ("test",)
        return next((task for split in splits for task in self.catalogue(split) if task.id == task_id), None)

    def skipped(self, split: str) -> dict[str, int]:
        """All tasks of the file can be tried."""
        return {}

    def environment(self) -> WebvoyagerEnvironment:
        """A new environment."""
        return WebvoyagerEnvironment(ChromiumSession(self._browser()), self.config, self._context.images)

    def expert(self, task: Task) -> ExpertPolicy:
        """WebVoyager's tasks have no scripted experts: raises `MissingError`."""
        raise MissingError(f"there is no scripted expert for {task.id!r}: WebVoyager's tasks have none")

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """The judge's verdict; None for an episode that ended before a wall without an answer, or without a judge."""
        if not isinstance(environment, WebvoyagerEnvironment):
            raise InfrastructureError(f"Only episodes of WebVoyager can be evaluated here, not of {type(environment)}.")
        if trajectory.end == "infrastructure":
            return Judgement(None, why="the browser failed during the episode")
        if not trajectory.answer:
            if environment.blocked_by:
                return Judgement(None, why=f"blocked: {environment.blocked_by}")
            return Judgement(0.0, why=f"there is no answer ({trajectory.end})")
        if self._judge is None:
            return Judgement(None, why="there is no judge: set env.judge.server.model and env.judge.server.base_url")
        facts = replace(trajectory.facts, screenshots=tuple(environment.pictures))
        return await self._judge.score(replace(trajectory, facts=facts))

    async def close(self) -> None:
        """End browser and connections; calling it twice is allowed."""
        if self._judge is not None:
            await self._judge.close()
        if self._pool is not None:
            await self._pool.close()
        self._pool = None

    def _task(self, raw: Any, split: str, references: Any) -> Task:
        return Task(
            id=str(raw["id"]),
            intent=str(raw["ques"]),
            start_url=str(raw["web"]),
            sites=(str(raw["web_name"]),),
            split=split,  # type: ignore[arg-type]  # checked in `catalogue`
            evaluation={"eval_types": ["webvoyager"], "reference": list(references)},
            template=str(raw["web_name"]),
            meta={"kind": str(references[0].get("type", "-")) if references else "-"},
        )

    def _hosts_of_tasks(self) -> tuple[str, ...]:
        """The hosts of the start pages of all tasks, and what is below them: `arxiv.org`, `*.arxiv.org`."""
        starts: list[str] = []
        for split in ("test", "train") if self.config.train else ("test",):
            with suppress(MissingError):  # whoever asks for its tasks is told
                starts += [task.start_url for task in self.catalogue(split)]
        names = sorted({host.removeprefix("www.") for host in hosts_in(starts)})
        return tuple(host for name in names for host in ((name, f"*.{name}") if name[-1].isalpha() else (name,)))

    def _browser(self) -> BrowserPool:
        if self._pool is None:
            self._pool = pool_of(
                self.web,
                self._context.folder,
                hosts=self.config.hosts or self._hosts_of_tasks(),
                view=self.config.view,
                **self.config.view_options,
                pictures=pictures_wanted(self._context),
                settle=self.config.settle,
            )
        return self._pool


def _file_name(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in text)[:120]
