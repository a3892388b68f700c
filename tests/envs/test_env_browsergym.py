"""BrowserGym's MiniWoB through the bridge, in its own environment (`dynaweb env install browsergym`)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.protocols import EnvironmentContext
from dynaweb.runs import sidecar
from dynaweb.types import Action, Node, Observation, Step, Task, Trajectory
from dynaweb.web.chromium.layout import offsets, within
from dynaweb_env_browsergym import BrowsergymConfig
from dynaweb_env_browsergym.actions import call_of
from dynaweb_env_browsergym.env import BrowsergymSource, _layout
from dynaweb_env_browsergym.process import Worker
from dynaweb_env_miniwob.plans import MiniwobExpert

# Before any test points the cache elsewhere.
PYTHON = sidecar._python(sidecar.root() / "browsergym")
WORKER = Path(__file__).parents[2] / "plugins" / "envs" / "dynaweb_env_browsergym" / "worker.py"
needs_browsergym = pytest.mark.skipif(not PYTHON.exists(), reason="needs: dynaweb env install browsergym")


@pytest.fixture
async def environments() -> AsyncIterator[Any]:
    """Makes (source, environment) and ends their processes."""
    sources: list[Any] = []

    def make(name: str, **settings: Any) -> Any:
        source = BrowsergymSource(BrowsergymConfig(id=name, python=str(PYTHON), **settings), EnvironmentContext())
        sources.append(source.environment())
        return source, sources[-1]

    yield make
    for one in sources:
        await one.close()
        await one.close()


@needs_browsergym
async def test_its_miniwob_is_played_to_its_reward(environments: Any) -> None:
    source, environment = environments("browsergym/miniwob.*")
    tasks = {task.template: task for task in source.catalogue("test")}
    assert [source.task(task.id) for task in tasks.values()] == list(tasks.values())
    assert source.task("miniwob.click-test") is source.task("miniwob.nope:test:30001") is None
    assert len(tasks) > 100 and all(task.intent == "" for task in tasks.values())
    for name in ("click-test-2", "enter-text", "choose-list"):
        trajectory = await _play(environment, tasks[f"miniwob.{name}"], name)
        assert trajectory.task.intent and (await source.evaluate(environment, trajectory)).score == 1.0
    # The same task again, played wrongly.
    page = await environment.reset(tasks["miniwob.click-test-2"], 0)
    wrong = next(node for node in page.nodes if node.name == "TWO")
    result = await environment.step(Action("click", wrong.id))
    assert result.done and environment.reward == 0.0


@needs_browsergym
async def test_refusals_come_back_as_errors_and_a_stop_is_told(environments: Any) -> None:
    source, environment = environments("browsergym/miniwob.click-button")
    (task,) = source.tasks("test", count=1, seed=0)
    page = await environment.reset(task, 0)
    again = await environment.reset(task, 0)
    assert page == again and environment.task.intent.startswith("Click on the")
    assert "no element [999]" in (await environment.step(Action("click", 999))).error
    button = next(node for node in page.nodes if node.role == "button")
    assert "takes no text" in (await environment.step(Action("type", button.id, "x"))).error
    result = await environment.step(Action("goto", text="http://127.0.0.1:9/"))
    assert result.error
    stopped = Trajectory("e", task, (Step(page, Action("stop", text="done")),), page, "real", "stop")
    assert (await source.evaluate(environment, stopped)).score == 0.0


@pytest.mark.parametrize(("failures", "fails"), [(0, False), (1, False), (2, True)])
def test_a_task_that_fails_to_read_a_page_which_is_being_left_reads_it_again(failures: int, fails: bool) -> None:
    """The worker is run as it is: it imports nothing of ours, and takes over the process's output."""
    code = (
        f"import sys; sys.path.insert(0, {str(WORKER.parent)!r}); import worker; left = [{failures}]\n"
        "def validate(page):\n"
        "    left[0] -= 1\n"
        "    if left[0] >= 0: raise RuntimeError('ReferenceError: WOB_REWARD_GLOBAL is not defined')\n"
        "    return page\n"
        "look = worker.patient(validate, 0.0); sys.exit(look(7) - 7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode != 0) is fails, done.stderr
    assert ("looks again" in done.stderr) is bool(failures)


@needs_browsergym
async def test_settings_say_what_of_a_page_is_shown(environments: Any) -> None:
    task_id = "browsergym/miniwob.choose-list"
    source, whole = environments(task_id, max_options=0)
    (task,) = source.tasks("test", count=1, seed=0)
    page = await whole.reset(task, 0)
    names = _options(page)
    assert len(names) > 3 and not page.truncated and not page.notice
    wanted = whole.task.intent.partition("Select ")[2].partition(" from")[0]

    _, few = environments(task_id, max_options=1)
    shown = await few.reset(task, 0)
    (select,) = [node for node in shown.nodes if node.role == "combobox"]
    assert _options(shown) == [name for name in names if name in (names[0], select.value)]
    assert len(_options(shown)) < len(names) and dict(select.props)["total"] == str(len(names))
    clicked = (await few.step(Action("click", select.id))).observation
    assert _options(clicked) == names
    # What is not shown can be chosen by its name.
    await few.reset(task, 0)
    after = await few.step(Action("select", select.id, wanted))
    assert not after.error
    submit = next(node for node in after.observation.nodes if node.role == "button")
    assert (await few.step(Action("click", submit.id))).done and few.reward == 1.0

    _, cut = environments(task_id, max_nodes=1)
    short = await cut.reset(task, 0)
    assert len(short.nodes) == 1 and short.truncated and "the page is long" in short.notice
    _, window = environments(task_id, region="viewport")
    seen = await window.reset(task, 0)
    assert {(node.role, node.name) for node in seen.nodes} <= {(node.role, node.name) for node in page.nodes}
    assert any(node.role == "combobox" for node in seen.nodes)


def _options(page: Observation) -> list[str]:
    (node,) = [node for node in page.nodes if node.role == "combobox"]
    return dict(node.props)["options"].split("|")


def test_boxes_are_of_the_window_that_browsergym_has() -> None:
    layout = _layout({"boxes": {"7": [0, 250, 10, 10], "8": [0, 800, 10, 10]}, "window": [332, 214]})
    nodes = [Node(1, "button", "near", depth=1, ref=":7"), Node(2, "button", "far", depth=1, ref=":8")]
    main = Node(0, "main", "", ref=":1")
    assert offsets(nodes, layout) == [36, 586] and within([main, *nodes], layout) == [main]
    assert offsets(nodes, _layout({"boxes": {"7": [0, 250, 10, 10]}, "window": []})) == [0, 0]


@needs_browsergym
async def test_what_cannot_be_played_is_named(environments: Any) -> None:
    with pytest.raises(ConfigError, match="click-button"):
        environments("browsergym/miniwob.click-buton")[0].catalogue("test")
    source, environment = environments("browsergym/nonesuch.x")
    with pytest.raises(MissingError, match=r"No module named 'browsergym\.nonesuch'.* pip install browsergym-nonesuch"):
        source.catalogue("test")
    with pytest.raises(ConfigError, match="not of BrowserGym"):
        await environment.reset(Task("x", "y", "z"), 0)


def test_settings_are_checked_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="dynaweb env install browsergym"):
        BrowsergymSource(BrowsergymConfig(), EnvironmentContext())
    with pytest.raises(ConfigError, match="is no id of BrowserGym"):
        BrowsergymSource(BrowsergymConfig(id="miniwob/click", python=__file__), EnvironmentContext())


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('no such benchmark')", "no such benchmark"),
        ("import time; time.sleep(60)", "did not answer 'list' within"),
        ("print('no json', flush=True); import time; time.sleep(60)", "broke off"),
    ],
)
async def test_a_process_that_fails_is_an_infrastructure_failure(
    tmp_path: Path, script: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dynaweb_env_browsergym.process as process

    path = tmp_path / "worker.py"
    path.write_text(script)
    monkeypatch.setattr(process, "WORKER", path)
    monkeypatch.setattr(process, "_END_SECONDS", 0.2)
    worker = Worker(Path(sys.executable), chromium="", variables={}, timeout=1.0)
    with pytest.raises(InfrastructureError, match=message):
        await worker.ask("list", module="x")
    await asyncio.wait_for(worker.end(), 5)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Action("click", 3), "click('a12')"),
        (Action("type", 3, "it's", enter=True), "fill('a12', \"it's\")\npress('a12', 'Enter')"),
        (Action("select", 3, "Blue"), "select_option('a12', 'Blue')"),
        (Action("press", text="Enter"), "press('7', 'Enter')"),
        (Action("scroll", text="up"), "scroll(0, -500)"),
        (Action("tab_focus", index=2), "tab_focus(2)"),
        (Action("stop", text="42"), "send_msg_to_user('42')"),
        (Action("go_back"), "go_back()"),
    ],
)
def test_actions_are_calls(action: Action, call: str) -> None:
    assert call_of(action, "a12", focused="7") == call
    assert call_of(Action("click", 3), "") == ""


async def _play(environment: Any, task: Task, name: str) -> Trajectory:
    """Play with the scripted expert of our own MiniWoB, which reads the same pages."""
    page: Observation = await environment.reset(task, 0)
    expert = MiniwobExpert(replace(environment.task, template=name))
    steps: list[Step] = []
    done = False
    while not done and len(steps) < 8:
        action = expert.act(page)
        result = await environment.step(action)
        assert not result.error
        steps.append(Step(page, action))
        page, done = result.observation, result.done
    return Trajectory("e", environment.task, tuple(steps), page, "expert", "terminal")
