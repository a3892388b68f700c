"""Records demonstrations of training tasks as files of other projects: WebArena's render files, BrowserGym's steps.

    python record.py demos               # with a tracker that runs (tracker.py start); writes two archives

A script plays each task in the real application as a person would: it reads the page, decides, and says why. Only
episodes that the task's own check accepts are written. Nothing of this is used when a model is trained or evaluated:
that reads the archives, with `dynaweb data import`, as it would read files from anybody.

Tasks without a list to choose from are written as `render_<task>.html`, as the runner of WebArena does, whose actions
know no lists. The others are written as BrowserGym does, a folder an episode and a pickle a step.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import pickle
import re
import sys
import tarfile
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynaweb.config.sections import Web
from dynaweb.errors import InfrastructureError
from dynaweb.judges.reward import grading, success_of
from dynaweb.protocols import EnvironmentContext
from dynaweb.rollout.agents import Decision
from dynaweb.rollout.episode import play
from dynaweb.types import Action, Node, Observation, Task, Trajectory
from dynaweb.web.actions.grammar import format_action, resolve
from dynaweb.web.page.text import render
from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.env import WebarenaEnvironment, WebarenaSource

HERE = Path(__file__).parent
EACH = 4
"""Demonstrations of each template."""
LONGEST = 8
ACCOUNT = "TRACKER_ACCOUNT"
"""Environment variable with what follows `Basic ` in the header that logs in."""

Route = Generator[tuple[str, Action], Observation, None]
"""Says why, acts, and is sent the page that follows."""
Plan = Callable[[Observation, re.Match[str]], Route]
"""Begins on a page, for what the words of the task name."""


def find(page: Observation, role: str, name: str) -> int:
    """The number of the first element of a role and a name. Raises `LookupError`."""
    for node in page.nodes:
        if (node.role, node.name) == (role, name):
            return node.id
    raise LookupError(f"there is no {role} {name!r} on {page.url}")


def labelled(page: Observation, label: str) -> Node:
    """The field of a form behind a label of its table."""
    nodes = iter(page.nodes)
    for node in nodes:
        if (node.role, node.name) == ("rowheader", label):
            return next(one for one in nodes if one.role in ("textbox", "combobox"))
    raise LookupError(f"there is no field {label!r} on {page.url}")


def row(page: Observation, title: str) -> dict[str, str]:
    """The columns of an issue in a list, by their heads."""
    heads = [node.name for node in page.nodes if node.role == "columnheader"][:6]
    cells = [node for node in page.nodes if node.role == "cell"]
    at = [cell.name for cell in cells].index(title)
    return {head: cell.name for head, cell in zip(heads, cells[at - 2 : at + 4], strict=True)}


def _column(head: str) -> Plan:
    def plan(page: Observation, words: re.Match[str]) -> Route:
        text = row(page, words["title"])[head]
        yield f"The row of '{words['title']}' says {text} in the column {head}.", Action("stop", text=text)

    return plan


def _field(label: str) -> Plan:
    def plan(page: Observation, words: re.Match[str]) -> Route:
        page = yield _opening(page, words["title"])
        text = labelled(page, label).value or ""
        yield f"The field {label} of the issue says {text}.", Action("stop", text=text)

    return plan


def _opening(page: Observation, title: str) -> tuple[str, Action]:
    return f"I open the issue '{title}' in the list.", Action("click", find(page, "link", title))


def _open(page: Observation, words: re.Match[str]) -> Route:
    yield _opening(page, words["title"])
    yield "The issue is open.", Action("stop", text="done")


def _show(page: Observation, words: re.Match[str]) -> Route:
    button = find(page, "button", "Show issue:")
    number = words["number"]
    box = next(node.id for node in page.nodes if node.id > button and node.role == "textbox")
    page = yield f"I write the number {number} behind Show issue.", Action("type", box, number)
    yield "Now the button shows it.", Action("click", find(page, "button", "Show issue:"))
    yield f"The issue {number} is open.", Action("stop", text="done")


def changing(label: str, kind: str) -> Plan:
    """Open the issue, set one field of its form, and submit it. `kind` is the action: `select` or `type`."""

    def plan(page: Observation, words: re.Match[str]) -> Route:
        page = yield _opening(page, words["title"])
        target, value = labelled(page, label).id, words["value"]
        action = Action("select", target, value) if kind == "select" else Action("type", target, value)
        page = yield f"I set the field {label} to {value}.", action
        yield "Submit Changes saves the form.", Action("click", find(page, "button", "Submit Changes"))
        yield "The change is saved.", Action("stop", text="done")

    return plan


def _report(page: Observation, words: re.Match[str]) -> Route:
    page = yield "A new issue begins with Create New.", Action("click", find(page, "link", "Create New"))
    page = yield f"I write the title '{words['title']}'.", Action("type", labelled(page, "Title").id, words["title"])
    priority = Action("select", labelled(page, "Priority").id, words["value"])
    page = yield f"I choose the priority {words['value']}.", priority
    yield "Submit New Entry saves it.", Action("click", find(page, "button", "Submit New Entry"))
    yield "The issue is reported.", Action("stop", text="done")


_TITLE = r".*? '(?P<title>.*)'"
_SET = rf"{_TITLE} (?:to|for)(?: the user| the milestone)? (?P<value>.*)\."
ROUTES: dict[str, tuple[str, Plan]] = {
    "status": (rf"{_TITLE}.*", _column("Status")),
    "assignee": (rf"{_TITLE}.*", _column("Assigned To")),
    "milestone": (rf"{_TITLE}.*", _field("Milestone")),
    "keyword": (rf"{_TITLE}.*", _field("Keywords")),
    "open": (rf"{_TITLE}.*", _open),
    "show": (r".* (?P<number>\d+)\.", _show),
    "set-status": (_SET, changing("Status", "select")),
    "set-priority": (_SET, changing("Priority", "select")),
    "assign": (_SET, changing("Assigned To", "select")),
    "plan": (_SET, changing("Milestone", "select")),
    "note": (r"Add the note '(?P<value>.*)' to the issue '(?P<title>.*)'\.", changing("Change Note", "type")),
    "report": (rf"{_TITLE} and the priority (?P<value>.*)\.", _report),
}
"""How the words of each template are read, and its plan."""
WITH_LISTS = ("set-status", "set-priority", "assign", "plan", "report")
"""Templates whose plan chooses from a list."""


class RoutePlayer:
    """Follows the route of a task; one object for one episode."""

    deterministic = False

    def __init__(self, task: Task, routes: Mapping[str, tuple[str, Plan]] = ROUTES) -> None:
        pattern, self._plan = routes[task.template]
        words = re.fullmatch(pattern, task.intent)
        assert words is not None, task.intent
        self._words = words
        self._route: Route | None = None

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The next step of the route; a page that it does not fit gives a decision without an action."""
        try:
            if self._route is None:
                self._route = self._plan(observation, self._words)
                reasoning, action = next(self._route)
            else:
                reasoning, action = self._route.send(observation)
            resolved = resolve(action, observation)
        except (LookupError, ValueError, StopIteration) as error:
            return Decision(None, error=str(error) or "the route is at its end")
        if isinstance(resolved, str):
            return Decision(None, error=resolved)
        return Decision(resolved, reasoning)


def source_of(address: str, tasks: Path, **settings: Any) -> WebarenaSource:
    """The tracker at an address with the tasks of a folder, logged in as the recipe does."""
    config = WebarenaConfig(
        path=str(tasks / "test.json"),
        train=str(tasks / "train.json"),
        urls={"tracker": address},
        headers={"tracker": {"Authorization": f"Basic ${ACCOUNT}"}},
        **{"max_options": 0, **settings},
    )
    return WebarenaSource(config, EnvironmentContext(web=Web(action_timeout=15.0)))


def account(name: str) -> str:
    """What the header says for a user, whose password is the name."""
    return base64.b64encode(f"{name}:{name}".encode()).decode()


# --- Recording.


@dataclass
class StepInfo:
    """The attributes that `browsergym.experiments.loop.StepInfo` has and its readers use."""

    step: int
    obs: dict[str, Any] | None
    action: str | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    agent_info: dict[str, Any] = field(default_factory=dict)


class _Recorder:
    """A player that also reads the raw accessibility tree of every page, as BrowserGym does."""

    deterministic = False

    def __init__(self, player: RoutePlayer, environment: WebarenaEnvironment) -> None:
        self._player, self._environment = player, environment
        self.trees: list[list[dict[str, Any]]] = []

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        self.trees.append(await tree_of(self._environment))
        return await self._player.act(task, observation, history, seed=seed)


async def tree_of(environment: WebarenaEnvironment) -> list[dict[str, Any]]:
    """The nodes of the current page as the DevTools protocol gives them, each with the id that BrowserGym adds."""
    # A session has no front for the raw tree, since nothing but a recorder wants one.
    answer = await environment.session._context().current.send("Accessibility.getFullAXTree")
    return [{**node, "browsergym_id": str(node.get("backendDOMNodeId", ""))} for node in answer["nodes"]]


def render_file(trajectory: Trajectory) -> bytes:
    """An episode as `render_<task>.html`, as WebArena's `RenderHelper` writes it."""
    task = trajectory.task
    head = f"task_id: {task.id}\nintent: {task.intent}\nsites: {list(task.sites)}\nstart_url: {task.start_url}\n"
    parts = [f"<!DOCTYPE html>\n<head></head>\n<html>\n    <body>\n     <pre>{head}</pre>\n"]
    for step in trajectory.steps:
        page, action = step.observation, step.action
        assert action is not None
        text = format_action(action, "webarena")
        reply = f"{step.reasoning} In summary, the next action I will perform is ```{text}```"
        # What was understood does not say whether Enter was pressed.
        understood = re.sub(r" \[[01]\]\Z", "", text) if action.kind == "type" else text
        parts.append(
            f"<h2>New Page</h2>\n<h3 class='url'><a href={page.url}>URL: {page.url}</a></h3>\n"
            f"<div class='state_obv'><pre>{render(page, 'webarena')}</pre><div>\n"
            f"<div class='predict_action'><div class='raw_parsed_prediction'><pre>{reply}</pre></div>"
            f"<div class='parsed_action'><pre>{understood}</pre></div></div>\n"
        )
    return "".join([*parts, "\n    </body>\n</html>\n"]).encode()


def gym_steps(trajectory: Trajectory, trees: Sequence[Sequence[Mapping[str, Any]]], last: Any) -> dict[str, bytes]:
    """An episode as the files of BrowserGym's experiment folder; `last` is the tree of the final page."""
    records = []
    for number, step in enumerate(trajectory.steps):
        assert step.action is not None
        records.append(
            StepInfo(
                number,
                _obs(trajectory, step.observation.url, trees[number]),
                _gym_call(step.action, step.observation),
                agent_info={"think": step.reasoning},
            )
        )
    final = trajectory.final
    assert final is not None
    records.append(StepInfo(len(records), _obs(trajectory, final.url, last), None, reward=1.0, terminated=True))
    files = {f"step_{record.step}.pkl.gz": _pickled(record) for record in records}
    summary = {"task_name": trajectory.task.id, "n_steps": len(trajectory.steps), "cum_reward": 1.0}
    return {"summary_info.json": json.dumps(summary).encode(), **files}


def _obs(trajectory: Trajectory, url: str, tree: Any) -> dict[str, Any]:
    return {"goal": trajectory.task.intent, "url": url, "axtree_object": {"nodes": list(tree)}, "last_action_error": ""}


def _gym_call(action: Action, page: Observation) -> str:
    node = page.node(action.target) if action.target is not None else None
    bid = (node.ref or "").rpartition(":")[2] if node is not None else ""
    calls = {
        "click": f"click({bid!r})",
        "type": f"fill({bid!r}, {action.text!r})",
        "select": f"select_option({bid!r}, {action.text!r})",
        "stop": f"send_msg_to_user({action.text!r})",
    }
    return calls[action.kind]


def _pickled(record: StepInfo) -> bytes:
    """A step under the name of BrowserGym's class, in gzip without compression: the archive around it does better."""
    module = types.ModuleType("browsergym.experiments.loop")
    module.StepInfo = StepInfo  # type: ignore[attr-defined]
    own, StepInfo.__module__ = StepInfo.__module__, module.__name__
    names = ("browsergym", "browsergym.experiments", module.__name__)
    sys.modules.update(dict.fromkeys(names, module))
    try:
        return gzip.compress(pickle.dumps(record), 0, mtime=0)
    finally:
        StepInfo.__module__ = own
        for name in names:
            del sys.modules[name]


async def recorded(source: WebarenaSource, task: Task) -> dict[str, bytes]:
    """Play one task, and give the files of its episode by path. Raises `InfrastructureError` for one that failed."""
    environment = source.environment()
    try:
        recorder = _Recorder(RoutePlayer(task), environment)
        trajectory = await play(task, environment, recorder, seed=0, max_steps=LONGEST, invalid_ends=True)
        last = await tree_of(environment)
        trajectory = await grading(source)(environment, trajectory)
    finally:
        await environment.close()
    if success_of(trajectory) != 1.0:
        errors = [step.error for step in trajectory.steps if step.error]
        raise InfrastructureError(f"the route of {task.id} failed ({trajectory.end}, {errors}): {trajectory.facts}")
    if task.template not in WITH_LISTS:
        return {f"webarena/render_{task.id}.html": render_file(trajectory)}
    files = gym_steps(trajectory, recorder.trees, last)
    return {f"browsergym/{task.id}/{name}": content for name, content in files.items()}


def write_archives(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """One `.tar.xz` for each of the first parts of the paths; the same files give the same archive."""
    folder.mkdir(parents=True, exist_ok=True)
    archives = []
    for kind in sorted({name.partition("/")[0] for name in files}):
        archives.append(folder / f"{kind}.tar.xz")
        with tarfile.open(archives[-1], "w:xz", preset=9) as archive:
            for name in sorted(name for name in files if name.startswith(f"{kind}/")):
                entry = tarfile.TarInfo(name)
                entry.size = len(files[name])
                archive.addfile(entry, io.BytesIO(files[name]))
    return archives


async def record(folder: Path, address: str, each: int = EACH) -> list[Path]:
    """Record `each` tasks of every template; the archives."""
    source = source_of(address, HERE / "tasks")
    files: dict[str, bytes] = {}
    try:
        tasks = source.catalogue("train")
        for name in ROUTES:
            for task in [task for task in tasks if task.template == name][:each]:
                files |= await recorded(source, task)
    finally:
        await source.close()
    return write_archives(folder, files)


if __name__ == "__main__":
    from content import content

    os.environ.setdefault(ACCOUNT, account(content().users[0].name))
    where = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "demos")
    for path in asyncio.run(record(Path(where), sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8917")):
        print(path, path.stat().st_size)
