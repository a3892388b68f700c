"""BrowserGym and AgentLab experiments: a folder an episode, `step_<n>.pkl.gz` a step.

Steps are pickles of those projects' own classes. A pickle can run any code when it is loaded, so these are read without
importing anything: containers, numbers and text are let through, and every other class becomes an inert record of its
attributes. Neither project has to be installed, and a file from a stranger can do no harm.
"""

from __future__ import annotations

import gzip
import json
import pickle
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynaweb.data.importers import ImportReport, files_of
from dynaweb.data.importers.pages import ForeignPage, from_axtree_text
from dynaweb.data.importers.steps import NO_PAGE, ForeignStep, gym_action, transitions
from dynaweb.types import Transition

SOURCE = "browsergym"
_STEP = re.compile(r"step_(\d+)\.pkl\.gz")
_SAFE = {
    ("builtins", name): value
    for name, value in (
        ("set", set),
        ("frozenset", frozenset),
        ("bytearray", bytearray),
        ("complex", complex),
        ("slice", slice),
        ("range", range),
    )
} | {("collections", "OrderedDict"): dict}


class Record:
    """Stands in for any class of a pickle: keeps what it is given, does nothing."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.args = args
        self.__dict__.update(named)

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.__dict__.update({str(key): value for key, value in part.items()})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Dict-like classes fill themselves this way."""

    def append(self, value: Any) -> None:
        """List-like classes fill themselves this way."""

    def extend(self, values: Any) -> None:
        """The same for many values."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Never imports anything."""
        return _SAFE.get((module, name), Record)

    def persistent_load(self, pid: Any) -> Any:
        """References outside of the file lead nowhere."""
        return None


def read(source: str, report: ImportReport) -> Iterator[Transition]:
    """The transitions of experiment folders; see `dynaweb.data.importers.read_foreign`."""
    folders: dict[Path, dict[int, Path]] = defaultdict(dict)
    for file in files_of(source, "step_*.pkl.gz"):
        match = _STEP.fullmatch(file.name)
        if match is not None:
            folders[file.parent][int(match[1])] = file
    for folder, files in folders.items():
        yield from _episode(folder, files, report)


def _episode(folder: Path, files: dict[int, Path], report: ImportReport) -> Iterator[Transition]:
    report.read += len(files)
    records = [(order, _load(files[order])) for order in sorted(files)]
    steps = [_step(order, record) for order, record in records]
    goal = next((str(obs["goal"]) for _, record in records if (obs := _obs(record)) and obs.get("goal")), "")
    done = any(bool(getattr(record, "terminated", False)) for _, record in records)
    yield from transitions(steps, report, task=f"{SOURCE}/{_name(folder)}", source=SOURCE, done=done, goal=goal)


def _name(folder: Path) -> str:
    """The task of an experiment, as its summary says, else the folder's name."""
    try:
        summary = json.loads((folder / "summary_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return folder.name
    return str(summary.get("task_name") or folder.name) if isinstance(summary, dict) else folder.name


def _load(file: Path) -> Any:
    try:
        with gzip.open(file) as opened:
            return _Reader(opened).load()
    except (OSError, EOFError, zlib.error, pickle.UnpicklingError, ValueError, TypeError, AttributeError, IndexError):
        return None


def _obs(record: Any) -> dict[str, Any]:
    obs = getattr(record, "obs", None)
    return obs if isinstance(obs, dict) else {}


def _step(order: int, record: Any) -> ForeignStep:
    obs = _obs(record)
    page = _page(obs)
    if page is None:
        return ForeignStep(None, NO_PAGE, order)
    action = getattr(record, "action", None)
    return ForeignStep(page, gym_action(action, page) if isinstance(action, str) else "it has no action", order)


def _page(obs: dict[str, Any]) -> ForeignPage | None:
    """The page from its text, or from the tree as the DevTools protocol gives it."""
    text = obs.get("axtree_txt")
    url = str(obs.get("url") or "")
    try:
        return from_axtree_text(text, url) if isinstance(text, str) else _from_tree(obs, url)
    except (KeyError, TypeError, ValueError):
        return None


def _from_tree(obs: dict[str, Any], url: str) -> ForeignPage:
    from dataclasses import replace

    from dynaweb.types import Observation
    from dynaweb.web.page.tree import read_page
    from dynaweb.web.page.view import full_view

    payload = obs["axtree_object"]["nodes"]
    names = {
        f":{node.get('backendDOMNodeId')}": str(node["browsergym_id"]) for node in payload if node.get("browsergym_id")
    }
    page = read_page(payload)
    viewed = full_view(page.nodes)
    ids = {names[node.ref]: node.id for node in viewed.nodes if node.ref in names}
    if not viewed.nodes:
        raise ValueError("the tree shows no element")
    nodes = tuple(replace(node, ref=None) for node in viewed.nodes)
    return ForeignPage(Observation(url or page.url, nodes, page.title, truncated=viewed.truncated), ids)
