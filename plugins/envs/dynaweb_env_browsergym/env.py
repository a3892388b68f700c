"""The environment `browsergym`: observations and actions of ours on one side, BrowserGym's on the other."""

from __future__ import annotations

import asyncio
import fnmatch
import random
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynaweb.config.sections import Web
from dynaweb.data.images import png_size
from dynaweb.errors import ConfigError, ImageError, InfrastructureError, MissingError, hint, nearest
from dynaweb.runs import sidecar
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Judgement, Node, Observation, Screenshot, StepResult, Tab, Task, Trajectory
from dynaweb.web.actions.grammar import resolve
from dynaweb.web.boxes import Box
from dynaweb.web.chromium.install import find
from dynaweb.web.environment import FIRST_SEED, run_apart, started
from dynaweb.web.page.tree import read_page
from dynaweb.web.page.view import VIEWS
from dynaweb.web.pictures import marked, pictures_wanted
from dynaweb_env_browsergym.actions import call_of
from dynaweb_env_browsergym.formats import browsergym_view
from dynaweb_env_browsergym.process import Worker

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, EnvironmentContext, ExpertPolicy
    from dynaweb_env_browsergym import BrowsergymConfig

_VIEWS = {**VIEWS, "browsergym": browsergym_view}


class BrowsergymEnvironment:
    """Plays one episode at a time in a process of its own."""

    def __init__(self, source: BrowsergymSource) -> None:
        self._source = source
        self._worker = source.worker()
        self._view = _VIEWS[source.config.view]
        self._reply: dict[str, Any] = {}
        self._page: Observation | None = None
        self.task: Task | None = None
        """The task with the goal that BrowserGym told."""
        self.reward = 0.0
        """The highest reward of the episode so far."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task's own seed; `seed` changes nothing here. Raises `InfrastructureError`."""
        if "gym_id" not in task.meta:
            raise ConfigError(f"Task {task.id!r} is not of BrowserGym: draw it with BrowsergymSource.")
        self.reward = 0.0
        arguments = {"id": task.meta["gym_id"], "seed": task.meta["seed"], "module": self._source.module}
        pictures = self._source.pictures
        look = "" if pictures is None else "marks" if pictures.marks else "plain"
        page = await self._read(await self._worker.ask("reset", **arguments, look=look))
        self.task = replace(task, intent=str(self._reply["goal"]), start_url=page.url)
        return page

    async def step(self, action: Action) -> StepResult:
        """Act. An action on nothing is refused here; what BrowserGym refuses comes back as its own error text."""
        page = started(self._page)
        checked = resolve(action, page)
        if isinstance(checked, str):
            return StepResult(replace(page, notice=checked), error=checked)
        call = call_of(checked, self._bid(checked), focused=str(self._reply.get("focused") or ""))
        if not call:
            why = f"{action.kind}: BrowserGym knows no id for that element; act on another one"
            return StepResult(replace(page, notice=why), error=why)
        reply = await self._worker.ask("step", action=call)
        page = await self._read(reply)
        self.reward = max(self.reward, reply["reward"])
        done = reply["terminated"] or reply["truncated"]
        return StepResult(page, done=done, error=reply["error"], info={"reward": reply["reward"]})

    async def finish(self, answer: str) -> float:
        """Tell BrowserGym the answer of a `stop`; the highest reward of the episode."""
        reply = await self._worker.ask("step", action=call_of(Action("stop", text=answer), ""))
        self.reward = max(self.reward, reply["reward"])
        return self.reward

    async def close(self) -> None:
        """End the process; calling it twice is allowed."""
        self._page = None
        await self._worker.end()

    async def _read(self, reply: dict[str, Any]) -> Observation:
        self._reply = reply
        tree = read_page(reply["nodes"])
        viewed = self._view(tree.nodes)
        tabs = tuple(Tab(title, url, at == reply["current"]) for at, (title, url) in enumerate(reply["tabs"]))
        several = tabs if len(tabs) > 1 else ()
        title = tree.title if self._source.config.view != "compact" else ""
        notice = reply["error"] or ""
        try:
            picture = await asyncio.to_thread(self._picture, reply, viewed.nodes)
        except (ImageError, OSError, LookupError, TypeError, ValueError) as error:
            picture, notice = None, "; ".join(filter(None, (notice, f"there is no picture of this page: {error}")))
        self._page = Observation(reply["url"], viewed.nodes, title, several, notice, viewed.truncated, picture)
        return self._page

    def _picture(self, reply: dict[str, Any], nodes: Sequence[Node]) -> Screenshot | None:
        """The picture that BrowserGym took, in a window of the benchmark's own size; None where none is wanted."""
        pictures = self._source.pictures
        if pictures is None:
            return None
        if "picture" not in reply:
            raise LookupError(reply.get("no_picture", "BrowserGym gave none"))
        png = b64decode(reply["picture"])
        window = png_size(png)
        by_bid = {bid: Box(*box) for bid, box in reply.get("boxes", {}).items()}
        boxes = {node.id: box for node in nodes if (box := by_bid.get(self._bid_of(node))) is not None}
        own = replace(pictures, viewport=window, scale=min(1.0, pictures.scale))
        return own.keep(png, marked(nodes, boxes, window))

    def _bid(self, action: Action) -> str:
        node = self._page.node(action.target) if self._page is not None and action.target is not None else None
        return self._bid_of(node) if node is not None else ""

    def _bid_of(self, node: Node) -> str:
        return str(self._reply["bids"].get((node.ref or "").rpartition(":")[2], ""))


class BrowsergymSource:
    """The plugin object: ids that a benchmark registers, environments, and BrowserGym's own rewards as verdicts."""

    def __init__(self, config: BrowsergymConfig, context: EnvironmentContext) -> None:
        """Raises `MissingError` without BrowserGym's environment, `ConfigError` for an id without a benchmark."""
        self.config = config
        self.web = context.web or Web()
        self.pictures = pictures_wanted(context)
        self.python = sidecar.python_of("browsergym", config.python)
        self.module = config.module or _module(config.id)
        self._ids: list[str] | None = None

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, each id once before any comes again. Their goals are known after `reset` only."""
        if split not in FIRST_SEED:
            raise ConfigError(f"no split is called {split!r}; {hint(split, FIRST_SEED)}")
        ids = self._chosen()
        return [self._task(ids[index % len(ids)], split, index // len(ids), seed) for index in range(count)]

    def task(self, task_id: str) -> Task | None:
        """The task of an id such as `miniwob.click-test:test:30004`."""
        short, split, number = ([*task_id.split(":"), "", ""])[:3]
        if split not in FIRST_SEED or not number.isdecimal() or f"browsergym/{short}" not in self._chosen():
            return None
        return self._of_seed(f"browsergym/{short}", split, int(number))

    def catalogue(self, split: str) -> list[Task]:
        """Every id once."""
        return self.tasks(split, count=len(self._chosen()), seed=0)

    def skipped(self, split: str) -> dict[str, int]:
        """All that was asked for can be tried."""
        return {}

    def environment(self) -> BrowsergymEnvironment:
        """A new environment; its process starts with the first reset."""
        return BrowsergymEnvironment(self)

    def expert(self, task: Task) -> ExpertPolicy:
        """BrowserGym brings no experts: raises `MissingError`."""
        raise MissingError(f"there is no scripted expert for {task.id!r}: BrowserGym's tasks have none")

    async def evaluate(self, environment: Environment, trajectory: Trajectory) -> Judgement:
        """Success when BrowserGym's reward reached `success`; the answer of a `stop` is told it first."""
        if not isinstance(environment, BrowsergymEnvironment):
            raise InfrastructureError(f"Only episodes of BrowserGym can be evaluated here, not of {type(environment)}.")
        if trajectory.end == "infrastructure":
            return Judgement(None, why="BrowserGym failed during the episode")
        reward = environment.reward
        if trajectory.answer is not None:
            reward = await environment.finish(trajectory.answer)
        return Judgement(float(reward >= self.config.success), why=f"BrowserGym's reward {reward:g}")

    async def close(self) -> None:
        """Environments end their processes themselves."""

    def worker(self) -> Worker:
        """A process that is not started yet."""
        chromium = str(find(self.web.browser).path)
        config = self.config
        return Worker(self.python, chromium=chromium, variables=config.variables, timeout=config.step_seconds)

    def _chosen(self) -> list[str]:
        if self._ids is None:
            listed: list[str] = run_apart(self._listed())
            matching = [name for name in listed if fnmatch.fnmatchcase(name, self.config.id)]
            if not matching:
                near = " or ".join(nearest(self.config.id, listed)) or f"one of {len(listed)}, such as {listed[0]}"
                raise ConfigError(f"{self.module} registers no task {self.config.id!r}; did you mean {near}?")
            self._ids = matching
        return self._ids

    async def _listed(self) -> list[str]:
        worker = self.worker()
        try:
            prefix = self.config.id.partition(".")[0]
            answer = await worker.ask("list", module=self.module)
            if "missing" in answer:
                raise MissingError(
                    f"{self.python} cannot import {self.module} ({answer['missing']}); install the benchmark there, "
                    f"such as: {self.python} -m pip install {self.module.replace('.', '-')}"
                )
            listed = answer["ids"]
            return [name for name in listed if name.startswith(prefix)] or list(listed)
        finally:
            await worker.end()

    def _task(self, name: str, split: str, turn: int, seed: int) -> Task:
        order = list(range(self.config.seeds))
        random.Random(derive(seed, "browsergym", split, name)).shuffle(order)
        return self._of_seed(name, split, FIRST_SEED[split] + order[turn % len(order)])

    def _of_seed(self, name: str, split: str, number: int) -> Task:
        short = name.removeprefix("browsergym/")
        return Task(
            id=f"{short}:{split}:{number}",
            intent="",
            start_url="",
            sites=(short.partition(".")[0],),
            split=split,  # type: ignore[arg-type]  # checked in `tasks`
            template=short,
            meta={"gym_id": name, "seed": number},
        )


def _module(pattern: str) -> str:
    benchmark = pattern.removeprefix("browsergym/").partition(".")[0]
    if not pattern.startswith("browsergym/") or not benchmark.isidentifier():
        raise ConfigError(
            f"env.id = {pattern!r} is no id of BrowserGym; write one such as browsergym/miniwob.click-test or "
            "browsergym/miniwob.*"
        )
    return f"browsergym.{benchmark}"
