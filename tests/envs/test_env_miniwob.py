"""MiniWoB++ in the real browser: every task is there, seeds reproduce, the panel is hidden, experts work."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.judges.reward import grading, success_of
from dynaweb.protocols import EnvironmentContext
from dynaweb.rollout.agents import ExpertPlayer
from dynaweb.rollout.episode import Episode, Rules, play_all
from dynaweb.types import Action, Observation, Task
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb_env_miniwob import MiniwobConfig
from dynaweb_env_miniwob.env import MiniwobSource
from dynaweb_env_miniwob.goals import Goals
from dynaweb_env_miniwob.pages import TIMING, Pages
from dynaweb_env_miniwob.plans import PLANS, SCRIPTED


def _installed() -> bool:
    try:
        return bool(files("miniwob"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not _installed(), reason="needs the pages of the package miniwob")
in_one_loop = pytest.mark.asyncio(loop_scope="module")
"""For tests that share the browser."""
SKIPPED = {"flight"}
"""Folders of pages that the tests here do not open."""
MOVING = {"choose-date", "click-collapsible-2", "click-menu", "use-autocomplete"}
"""Tasks whose pages move while they are played."""

SOLVED = tuple(sorted(MOVING | set(sorted(SCRIPTED)[::3])))
"""Tasks whose experts play here. All of them on 20 seeds each: benchmarks/miniwob_experts.py."""
PLAYED = tuple({*SOLVED, "click-test-2", "find-greatest", "click-button", "email-inbox-delete", "login-user"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def make(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """Makes sources with settings; all share one browser and the goals that were read."""
    cache = tmp_path_factory.mktemp("goals")
    first = MiniwobSource(MiniwobConfig(templates=PLAYED), EnvironmentContext())
    first._goals = Goals(first.pages, first.web, cache=cache)
    # In one go, because every reading starts a browser of its own.
    first.tasks("test", count=len(PLAYED), seed=0)

    def source(**settings: Any) -> MiniwobSource:
        created = MiniwobSource(MiniwobConfig(**settings), EnvironmentContext())
        created._pool, created._server = first._browser(), first._server
        created._goals = Goals(created.pages, created.web, cache=cache)
        return created

    yield source
    await first.close()


def test_every_task_is_there_and_timing_is_marked() -> None:
    names = MiniwobSource(MiniwobConfig(), EnvironmentContext()).names
    assert len(names) == 130 and set(names) > TIMING
    steady = MiniwobSource(MiniwobConfig(pick="steady"), EnvironmentContext()).names
    assert set(names) - set(steady) == TIMING
    scripted = MiniwobSource(MiniwobConfig(pick="scripted"), EnvironmentContext()).names
    assert set(scripted) == SCRIPTED == set(PLANS) and len(scripted) >= 40


@in_one_loop
async def test_goals_pages_and_seeds_reproduce(make: Any) -> None:
    source = make(templates=("click-checkboxes", "read-table", "click-tab-2"))
    tasks = source.tasks("train", count=6, seed=3)
    assert [task.template for task in tasks] == ["click-checkboxes", "read-table", "click-tab-2"] * 2
    assert make(templates=("click-checkboxes", "read-table", "click-tab-2")).tasks("train", count=6, seed=3) == tasks
    assert len({task.intent for task in tasks}) > 4
    assert [source.task(task.id) for task in tasks] == tasks
    assert [source.task(text) for text in ("click-test:train:5", "click-test", "nope:train:10005", "27")] == [None] * 4
    environment = source.environment()
    for task in tasks[:3]:
        first, again = await environment.reset(task, 1), await environment.reset(task, 2)
        assert first == again and first.url == task.start_url
    assert await environment.reset(tasks[3], 0) != await environment.reset(tasks[0], 0)
    await environment.close()


def test_goals_are_read_with_the_browser_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []
    session = BrowserPool.session

    async def noted(pool: BrowserPool) -> ChromiumSession:
        patience.append(pool.timeout)
        return await session(pool)

    monkeypatch.setattr(BrowserPool, "session", noted)
    Goals(Pages(""), Web(action_timeout=77.5), cache=tmp_path).read([("click-test", 1)])
    assert patience == [77.5]


async def test_a_page_that_loads_slowly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine: with the general patience it would be read, and started, half loaded."""
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path))
    web = Web(action_timeout=0.001)
    source = MiniwobSource(MiniwobConfig(templates=("count-sides",)), EnvironmentContext(web=web))
    (task,) = source.tasks("test", count=1, seed=0)
    page = await source.environment().reset(task, 0)
    assert task.intent.startswith("Press the button that correctly denotes") and len(page.nodes) >= 5
    await source.close()


async def test_goals_that_were_read_are_kept_when_a_page_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "html"
    shutil.copytree(Pages("").folder, folder, ignore=lambda path, names: [n for n in names if n in SKIPPED])
    (folder / "miniwob" / "zz-broken.html").write_text("<title>nothing here</title>")
    goals = Goals(Pages(str(folder)), Web(), cache=tmp_path)
    with pytest.raises(InfrastructureError, match=r"'zz-broken' in .* did not start: .*core is not defined"):
        goals.read([("click-test", 1), ("zz-broken", 1)])
    monkeypatch.setattr("dynaweb_env_miniwob.goals.run_apart", None)
    again = Goals(Pages(str(folder)), Web(), cache=tmp_path)
    assert again.read([("click-test", 1)]) == {("click-test", 1): "Click the button."}


def test_splits_share_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Goals, "read", lambda self, wanted: dict.fromkeys(wanted, "Click the button."))
    source = MiniwobSource(MiniwobConfig(templates=("click-test",), seeds=20), EnvironmentContext())
    drawn = [{task.meta["seed"] for task in source.tasks(split, count=20, seed=0)} for split in ("train", "test")]
    assert len(drawn[0]) == len(drawn[1]) == 20 and not drawn[0] & drawn[1]


def test_held_out_templates_are_every_second_task_of_the_test_and_of_no_other_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Goals, "read", lambda self, wanted: dict.fromkeys(wanted, "Click the button."))
    source = MiniwobSource(MiniwobConfig(pick="scripted", held_out=20), EnvironmentContext())
    held_out = set(source.held_out)
    assert len(held_out) == 20 and held_out < SCRIPTED
    reversed_names = tuple(reversed(source.names))
    assert MiniwobSource(MiniwobConfig(templates=reversed_names, held_out=20), EnvironmentContext()).held_out == (
        source.held_out
    )
    for split in ("train", "validation"):
        names = {task.template for task in (*source.tasks(split, count=300, seed=0), *source.catalogue(split))}
        assert names == SCRIPTED - held_out
    test = source.tasks("test", count=306, seed=0)
    assert [task.template in held_out for task in test[:4]] == [False, True, False, True]
    assert {task.template for task in test} == SCRIPTED and len({task.id for task in test}) == 306
    kinds = {(task.kind, task.template in held_out) for task in test}
    assert kinds == {("trained template", False), ("held-out template", True)}
    assert sum(task.kind == "held-out template" for task in test) == 153
    assert {task.template for task in source.catalogue("test")} == SCRIPTED
    name = source.held_out[0]
    assert source.task(f"{name}:train:10004") is None and source.task(f"{name}:test:30004") is not None
    task = source.tasks("train", count=1, seed=0)[0]
    others = source.variants(task, count=5, seed=1)
    assert len({one.id for one in (task, *others)}) == 6 and source.variants(task, count=5, seed=1) == others
    assert {(one.template, one.split) for one in others} == {(task.template, "train")}
    plain = MiniwobSource(MiniwobConfig(pick="scripted"), EnvironmentContext())
    assert {one.kind for one in plain.tasks("test", count=71, seed=0)} == {"steady"}
    by_name = MiniwobSource(MiniwobConfig(pick="scripted", held_out=("click-test",)), EnvironmentContext())
    assert by_name.held_out == ("click-test",)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"held_out": ("click-tset",)}, "'click-tset', which is none of the chosen"),
        ({"held_out": ("click-test",), "templates": ("click-button",)}, "'click-test', which is none of the chosen"),
        ({"held_out": 2, "templates": ("click-button", "click-test")}, "leaves none to train on"),
        ({"held_out": 500}, "leaves none to train on"),
    ],
)
def test_templates_that_cannot_be_held_out_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        MiniwobSource(MiniwobConfig(**settings), EnvironmentContext())


@in_one_loop
async def test_panel_and_goal_are_hidden_and_a_click_ends_it(make: Any) -> None:
    source = make(templates=("click-test-2",))
    (task,) = source.tasks("test", count=1, seed=0)
    environment = source.environment()
    page = await environment.reset(task, 0)
    assert [node.name for node in page.nodes] == ["ONE", "TWO"]
    assert environment._limit == 1_800_000
    assert await environment.session.evaluate("last", "core.EPISODE_MAX_TIME") == 1_800_000
    result = await environment.step(_click(page, "ONE"))
    assert result.done and result.info["raw"] == 1
    page = await environment.reset(task, 0)
    wrong = await environment.step(_click(page, "TWO"))
    assert wrong.done and wrong.info["raw"] == -1
    await environment.close()
    with_goal = make(templates=("click-test-2",), show_goal=True)
    page = await with_goal.environment().reset(task, 0)
    assert task.intent in [node.name for node in page.nodes]


@in_one_loop
async def test_a_tenth_of_a_reward_is_no_success(make: Any) -> None:
    source = make(templates=("find-greatest",))
    (task,) = source.tasks("test", count=1, seed=0)

    class Worst:
        def act(self, observation: Observation) -> Action:
            cards = [node for node in observation.nodes if node.name.isdigit()]
            clicked = self.__dict__.setdefault("clicked", [])
            clicked.append(1)
            least = min(cards, key=lambda node: int(node.name)).name
            return _click(observation, least if len(clicked) == 1 else "Submit")

    (played,) = await _play(source, [task], lambda task: ExpertPlayer(Worst()))
    assert played.steps[-1].info["raw"] == 0.1 and success_of(played) == 0.0


@in_one_loop
async def test_the_policy_that_stops_and_the_page_that_is_left_have_failed(make: Any) -> None:
    source = make(templates=("click-button",))
    (task,) = source.tasks("test", count=1, seed=0)
    for action in (Action("stop", text="done"), Action("goto", text="http://miniwob.localhost/core/core.js")):
        (played,) = await _play(source, [task], lambda task, action=action: ExpertPlayer(_Says(action)))
        assert success_of(played) == 0.0 and len(played.steps) == 1


@in_one_loop
async def test_a_task_of_another_place_is_refused(make: Any) -> None:
    environment = make(templates=("click-test",)).environment()
    with pytest.raises(ConfigError, match="not of MiniWoB"):
        await environment.reset(Task("x", "y", "http://miniwob.localhost/"), 0)
    (task,) = make(templates=("click-button",)).tasks("test", count=1, seed=0)
    other = Task(task.id, "Do something else.", task.start_url, meta=task.meta)
    with pytest.raises(InfrastructureError, match="Do something else"):
        await environment.reset(other, 0)
    await environment.close()


def test_bad_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="click-button"):
        MiniwobSource(MiniwobConfig(templates=("click-buton",)), EnvironmentContext())
    with pytest.raises(ConfigError, match="no MiniWoB pages"):
        Pages(str(tmp_path))
    with pytest.raises(MissingError, match="none of the chosen"):
        MiniwobSource(MiniwobConfig(templates=("hot-cold",), pick="scripted"), EnvironmentContext())
    source = MiniwobSource(MiniwobConfig(), EnvironmentContext())
    with pytest.raises(ConfigError, match="train"):
        source.tasks("trian", count=1, seed=0)
    with pytest.raises(MissingError, match="no scripted expert"):
        source.expert(Task("hot-cold:test:1", "", "", template="hot-cold"))


@in_one_loop
async def test_an_expert_solves_one_task_of_each_kind_of_page(make: Any) -> None:
    source = make(templates=SOLVED)
    tasks = source.tasks("test", count=len(SOLVED), seed=0)
    played = await _play(source, tasks, lambda task: ExpertPlayer(source.expert(task)))
    failed = [(t.task.id, t.facts.verdict, t.steps[-1].error) for t in played if success_of(t) != 1.0]
    assert failed == []


@in_one_loop
async def test_what_a_script_makes_clickable_can_be_seen(make: Any) -> None:
    source = make(templates=("email-inbox-delete",))
    (task,) = source.tasks("test", count=1, seed=0)
    page = await source.environment().reset(task, 0)
    assert {node.role for node in page.nodes if node.name == "trash"} == {"button"}
    bare = make(templates=("email-inbox-delete",), mark_clickable=False)
    page = await bare.environment().reset(task, 0)
    assert {node.role for node in page.nodes if node.name == "trash"} == {"image"}


@in_one_loop
async def test_labels_that_name_no_control_are_read(make: Any) -> None:
    source = make(templates=("login-user",))
    (task,) = source.tasks("test", count=1, seed=0)
    page = await source.environment().reset(task, 0)
    assert [node.name for node in page.nodes if node.role == "text"] == ["Username", "Password"]


class _Says:
    def __init__(self, action: Action) -> None:
        self.action = action

    def act(self, observation: Observation) -> Action:
        return self.action


def _click(page: Observation, name: str) -> Action:
    node = next(node for node in page.nodes if node.name == name)
    return Action("click", node.id, target_role=node.role, target_name=node.name)


async def _play(source: MiniwobSource, tasks: list[Task], player: Any) -> Any:
    episodes = [Episode(task.id, task, 0) for task in tasks]
    rules = Rules(16, source="expert")
    return await play_all(episodes, source.environment, player, rules=rules, slots=2, finish=grading(source))
