"""Plays tasks of the embedded sites in the static session, for the tests of single sites."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flask.testing import FlaskClient

from dynaweb.protocols import EnvironmentContext
from dynaweb.types import Action, Judgement, Observation, Step, Task, Trajectory
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesEnvironment, SitesSource
from dynaweb_env_sites.expert import SitesExpert
from dynaweb_env_sites.server import create_app

SOURCE = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
STOP = Action("stop")


def click(name: str, role: str = "link") -> Action:
    """A click on an element by its words; `play` looks up its number."""
    return Action("click", target_role=role, target_name=name)


def fill(name: str, text: str) -> Action:
    """A text for a textbox."""
    return Action("type", text=text, target_role="textbox", target_name=name)


def select(name: str, option: str) -> Action:
    """An option of a combobox."""
    return Action("select", text=option, target_role="combobox", target_name=name)


def client(site: str) -> tuple[FlaskClient, Any]:
    """A client of a new application, and the state of one of its sites that its requests change."""
    app = create_app()
    world = app.store.get("0")
    assert world is not None
    return app.test_client(), world.state(site)


def play_expert(task: Task, *, answer: str | None = None) -> tuple[Judgement, list[Observation]]:
    """The verdict on the scripted plan, with another closing answer if given, and the pages that were seen."""
    return asyncio.run(_play_expert(task, answer))


def play(task: Task, actions: Sequence[Action]) -> Judgement:
    """The verdict on actions that name their targets (`target_name`, `target_role`), which end with `stop`."""
    return asyncio.run(_play(task, actions))


def wander(task: Task, seed: int, steps: int) -> Judgement:
    """The verdict on random clicks, then a `stop` without answer."""
    return asyncio.run(_wander(task, random.Random(seed), steps))


def visit(site: str, paths: Sequence[str], site_seed: int = 10_000) -> list[Observation]:
    """The pages at some paths of a fresh train site."""
    return asyncio.run(_visit(site, paths, site_seed))


def state(site: str, site_seed: int = 10_000) -> Any:
    """The state of a fresh train site."""
    return SOURCE._app.store.world(site_seed, "train").state(site)


async def _play_expert(task: Task, answer: str | None) -> tuple[Judgement, list[Observation]]:
    environment, expert = SOURCE.environment(), SitesExpert(task)
    page = await environment.reset(task, 0)
    steps: list[Step] = []
    while not steps or steps[-1].action.kind != "stop":  # type: ignore[union-attr]
        action = expert.act(page)
        if action.kind == "stop" and answer is not None:
            action = replace(action, text=answer)
        result = await environment.step(action)
        assert not result.error, f"{task.id} step {len(steps) + 1}: {result.error}"
        steps.append(Step(page, action))
        page = result.observation
    return await _verdict(environment, task, steps, page), [step.observation for step in steps]


async def _play(task: Task, actions: Sequence[Action]) -> Judgement:
    environment = SOURCE.environment()
    page = await environment.reset(task, 0)
    steps: list[Step] = []
    for action in actions:
        result = await environment.step(_targeted(action, page) if action.target_role else action)
        assert not result.error
        steps.append(Step(page, action))
        page = result.observation
    return await _verdict(environment, task, steps, page)


async def _wander(task: Task, rng: random.Random, count: int) -> Judgement:
    environment = SOURCE.environment()
    page = await environment.reset(task, 0)
    steps: list[Step] = []
    for _ in range(count):
        node = rng.choice([node for node in page.nodes if node.role in ("link", "button", "checkbox")])
        action = Action("click", node.id, target_role=node.role, target_name=node.name)
        steps.append(Step(page, action))
        page = (await environment.step(action)).observation
    return await _verdict(environment, task, [*steps, Step(page, Action("stop"))], page)


async def _verdict(environment: SitesEnvironment, task: Task, steps: list[Step], page: Observation) -> Judgement:
    trajectory = Trajectory(task.id, task, tuple(steps), page, "expert", "stop")
    verdict = await SOURCE.evaluate(environment, trajectory)
    await environment.close()
    return verdict


async def _visit(site: str, paths: Sequence[str], site_seed: int) -> list[Observation]:
    environment = SOURCE.environment()
    task = Task("visit", "", f"http://{site}.localhost/", (site,), meta={"site_seed": site_seed})
    await environment.reset(task, 0)
    pages = []
    for path in paths:
        await environment.session.goto(f"http://{site}.localhost{path}")
        pages.append(await environment.session.observe())
    await environment.close()
    return pages


def _targeted(action: Action, page: Observation) -> Action:
    wanted = (action.target_role, action.target_name)
    return replace(action, target=next(node.id for node in page.nodes if (node.role, node.name) == wanted))
