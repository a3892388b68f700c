"""Whole episodes on the embedded sites: experts succeed, doing nothing and chance do not, pages keep their size."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

import pytest

from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.protocols import Environment, EnvironmentContext, TaskSource
from dynaweb.types import Action, Judgement, Observation, Step, Task, Trajectory
from dynaweb.web.chromium.install import find
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource, look_up, server_state
from dynaweb_env_sites.tasks import registry

EPISODES = 10
"""Expert episodes of one template."""


def _has_browser() -> bool:
    try:
        return bool(find())
    except MissingError:
        return False


@pytest.fixture
async def source() -> AsyncIterator[SitesSource]:
    created = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    yield created
    await created.close()


def _trajectory(task: Task, steps: Sequence[Step], final: Observation, *, stopped: bool = True) -> Trajectory:
    return Trajectory("t", task, tuple(steps), final, "real", "stop" if stopped else "max-steps")


async def _play_expert(source: SitesSource, task: Task) -> tuple[Judgement, list[Observation]]:
    environment, expert = source.environment(), source.expert(task)
    page = await environment.reset(task, 0)
    pages, steps, done = [page], [], False
    while not done:
        action = expert.act(page)
        result = await environment.step(action)
        assert result.error == "", (task.id, action, result.error)
        steps.append(Step(page, action))
        page, done = result.observation, result.done
        pages.append(page)
    assert len(steps) == task.best_steps
    verdict = await source.evaluate(environment, _trajectory(task, steps, page))
    await environment.close()
    return verdict, pages


async def _play(source: SitesSource, task: Task, actions: Sequence[Action | None], rng: random.Random) -> Judgement:
    """Plays given actions; None stands for a random click or entry, as most policies make when they know nothing."""
    environment = source.environment()
    page = await environment.reset(task, 0)
    steps = []
    for wanted_action in actions:
        action = wanted_action or _random_action(page, rng)
        steps.append(Step(page, action))
        page = (await environment.step(action)).observation
    verdict = await source.evaluate(environment, _trajectory(task, steps, page))
    await environment.close()
    return verdict


def _random_action(page: Observation, rng: random.Random) -> Action:
    node = rng.choice(
        [node for node in page.nodes if node.role in {"link", "button", "textbox", "checkbox", "combobox"}]
    )
    target = {"target": node.id, "target_role": node.role, "target_name": node.name}
    if node.role == "textbox":
        return Action("type", text=rng.choice(page.nodes).name, enter=rng.random() < 0.5, **target)
    options = dict(node.props).get("options", "").split("|")
    return (
        Action("select", text=rng.choice(options), **target) if node.role == "combobox" else Action("click", **target)
    )


async def test_experts_succeed_on_every_instance_and_pages_keep_their_size(source: SitesSource) -> None:
    tasks = [
        task
        for split in ("pretrain", "train", "validation", "test")
        for task in source.tasks(split, count=EPISODES * len(registry()) // 4, seed=11)
    ]
    sizes: dict[str, list[int]] = defaultdict(list)
    for task in tasks:
        verdict, pages = await _play_expert(source, task)
        assert verdict.score == 1.0, (task.id, task.intent, verdict.why)
        for page in pages:
            parts = urlsplit(page.url)
            sizes[f"{parts.hostname}/{parts.path.split('/')[1]}"].append(len(page.nodes))
    assert len(tasks) >= 500 and {task.template for task in tasks} == set(registry())
    seen = [size for counts in sizes.values() for size in counts]
    mean = sum(seen) / len(seen)
    print(f"{len(seen)} pages, {mean:.1f} lines on average")
    assert 18 <= mean <= 30
    for kind, counts in sizes.items():
        # Searches for one name give the shortest pages.
        assert (8 if kind.endswith(("/search", "/people")) else 12) <= min(counts) and max(counts) <= 34, (
            kind,
            min(counts),
            max(counts),
        )


async def test_doing_nothing_never_succeeds(source: SitesSource) -> None:
    rng = random.Random(0)
    for task in source.tasks("test", count=4 * len(registry()), seed=3):
        verdict = await _play(source, task, [Action("stop")], rng)
        assert verdict.score == 0.0, (task.id, task.intent)


async def test_chance_hardly_ever_succeeds(source: SitesSource) -> None:
    rng = random.Random(1)
    scores = []
    for task in source.tasks("test", count=3 * len(registry()), seed=4):
        actions = [*([None] * rng.randrange(1, 6)), Action("stop", text=rng.choice(("", "N/A", "Red")))]
        scores.append((await _play(source, task, actions, rng)).score)
    assert sum(score or 0 for score in scores) / len(scores) < 0.08


async def test_an_episode_that_was_not_stopped_fails_and_a_broken_one_has_no_score(source: SitesSource) -> None:
    task = source.tasks("train", count=1, seed=0)[0]
    environment = source.environment()
    page = await environment.reset(task, 0)
    unstopped = _trajectory(task, [Step(page, Action("wait"))], page, stopped=False)
    assert (await source.evaluate(environment, unstopped)).score == 0.0
    assert (await source.evaluate(environment, replace(unstopped, end="infrastructure"))).score is None
    await environment.close()


async def test_refused_actions_leave_the_page_and_say_why(source: SitesSource) -> None:
    task = source.tasks("train", count=1, seed=0)[0]
    environment = source.environment()
    page = await environment.reset(task, 0)
    result = await environment.step(Action("click", 999))
    assert "999" in result.error and not result.done
    assert replace(result.observation, notice="") == page
    assert (await environment.step(Action("stop", text="x"))).done
    await environment.close()


async def test_worlds_of_two_environments_are_apart_and_reset_is_clean(source: SitesSource) -> None:
    task = next(t for t in source.tasks("train", count=99, seed=0) if t.template == "shop/add-to-cart")
    first, second = source.environment(), source.environment()
    before = [await env.reset(task, 0) for env in (first, second)]
    untouched = second.snapshot("shop")
    page, expert = before[0], source.expert(task)
    for _ in range(2):
        page = (await first.step(expert.act(page))).observation
    assert first.snapshot("shop") != untouched
    assert second.snapshot("shop") == untouched
    assert await first.reset(task, 1) == before[0] == before[1]
    assert first.snapshot("shop") == untouched
    for env in (first, second, first):
        await env.close()
    with pytest.raises(InfrastructureError, match="closed"):
        first.snapshot("shop")


async def test_use_before_reset_and_foreign_tasks_are_errors(source: SitesSource) -> None:
    environment = source.environment()
    with pytest.raises(InfrastructureError, match="reset"):
        await environment.step(Action("wait"))
    with pytest.raises(ConfigError, match="site_seed"):
        await environment.reset(Task("foreign", "Go.", "http://shop.localhost/"), 0)
    with pytest.raises(InfrastructureError, match="not of"):
        await source.evaluate(cast(Environment, object()), _trajectory(Task("x", "", ""), [], Observation("", ())))


def test_protocols_and_settings() -> None:
    config = SitesConfig(driver="static", train_sites=2, templates=("shop/add-to-cart",), max_best_steps=3)
    source = SitesSource(config, EnvironmentContext())
    tasks = source.tasks("train", count=12, seed=0)
    assert {task.template for task in tasks} == {"shop/add-to-cart"}
    assert {task.meta["site_seed"] for task in tasks} == {10_000, 10_001}
    assert isinstance(source, TaskSource) and isinstance(source.environment(), Environment)
    with pytest.raises(ValueError, match="static"):
        SitesConfig(driver="static", view="full")


def test_server_state_check_names_the_difference() -> None:
    snapshot = {"cart": {"items": {"Wool Scarf": 2}}, "tags": ["a"]}
    assert look_up(snapshot, "cart.items.Wool Scarf") == 2
    assert look_up(snapshot, "cart.items.Mug.size") is None
    assert server_state({"server_state": [{"path": "tags", "equals": ("a",)}]}, snapshot).score == 1.0
    missing = server_state({"server_state": [{"path": "cart.items.Mug", "equals": 1}]}, snapshot)
    assert (missing.score, missing.why) == (0.0, "cart.items.Mug is None, not 1")
    assert server_state({"eval_types": ["server_state"]}, snapshot).score is None


@pytest.mark.skipif(not _has_browser(), reason="needs a Chromium")
@pytest.mark.timeout(240)
async def test_experts_in_a_real_browser_see_what_the_static_session_shows(source: SitesSource) -> None:
    real = SitesSource(SitesConfig(), EnvironmentContext())
    tasks = real.tasks("validation", count=len(registry()), seed=2)[::4]
    assert {task.sites for task in tasks} == {("shop",), ("forum",), ("tracker",)}
    try:
        for batch in (tasks[start : start + 8] for start in range(0, len(tasks), 8)):
            played = await asyncio.gather(*(_play_expert(real, task) for task in batch))
            for task, (verdict, pages) in zip(batch, played, strict=True):
                assert verdict.score == 1.0, (task.id, verdict.why)
                assert pages == (await _play_expert(source, task))[1], task.id
    finally:
        await real.close()
