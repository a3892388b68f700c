"""BrowserGym and AgentLab experiments: a folder an episode, `step_<n>.pkl.gz` a step.

Steps are pickles of those projects' own classes. A pickle can run any code when it is loaded, so these are read without
importing anything (`dynaweb.data.importers.pickles`): containers, numbers and text are let through, and every other
class becomes an inert record of its attributes. Neither project has to be installed, and a file from a stranger can do
no harm.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynaweb.config.files import MALFORMED, read_json
from dynaweb.data.images import ImageStore, as_png
from dynaweb.data.importers.episodes import NO_NUMBER, ForeignEpisode
from dynaweb.data.importers.pages import ForeignPage, from_axtree_text
from dynaweb.data.importers.pickles import Record, read_steps
from dynaweb.data.importers.report import ImportReport, files_of
from dynaweb.data.importers.steps import NO_GIVEN_ACTION, NO_PAGE, ForeignStep, gym_action
from dynaweb.errors import CheckpointError, ImageError
from dynaweb.types import Screenshot

SOURCE = "browsergym"
_BEGAN = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_")
"""The folder of an experiment of BrowserGym: when it began, the agent, `_on_`, the task, and one or two numbers."""
_STEP = re.compile(r"step_(\d+)\.pkl\.gz")


def episodes(source: str, report: ImportReport, images: ImageStore | None = None) -> Iterator[ForeignEpisode]:
    """The episodes of experiment folders; see `dynaweb.data.importers`. Their pictures go to `images`."""
    folders: dict[Path, dict[int, Path]] = defaultdict(dict)
    for file in files_of(source, "step_*.pkl.gz"):
        match = _STEP.fullmatch(file.name)
        if match is not None:
            folders[file.parent][int(match[1])] = file
    for folder, files in folders.items():
        yield _episode(folder, files, report, images)


def _episode(folder: Path, files: dict[int, Path], report: ImportReport, images: ImageStore | None) -> ForeignEpisode:
    report.read += len(files)
    orders = sorted(files)
    records = dict(zip(orders, read_steps([files[order] for order in orders]), strict=True))
    steps = [_step(order, record) for order, record in records.items()]
    if images is not None:
        steps = [_with_picture(step, records[step.order], folder, images, report) for step in steps]
    tables = [record for record in records.values() if isinstance(record, dict)]
    goal = next((record["goal"] for record in tables if record.get("goal")), "")
    done = any(record["terminated"] for record in tables)
    ended = done or any(record["truncated"] for record in tables)
    rewards = [record["reward"] for record in tables]
    lacks = NO_NUMBER if None in rewards else ""
    score = sum(rewards) if ended and not lacks and len(tables) == len(records) else None
    why = "the sum of its rewards"
    return ForeignEpisode(_name(folder), SOURCE, steps, goal=goal, done=done, score=score, why=why, lacks=lacks)


def _name(folder: Path) -> str:
    """The task of an experiment, as its summary says, else its folder's name."""
    try:
        name = read_json(folder / "summary_info.json", dict).get("task_name")
    except CheckpointError:
        name = None
    if isinstance(name, str) and name:
        return name
    _, is_named, task = folder.name.rpartition("_on_")
    parts = task.split("_")
    numbers = 2 if len(parts) > 2 and parts[-2].isdigit() else 1
    if _BEGAN.match(folder.name) and is_named and len(parts) > numbers and parts[-1].isdigit():
        return "_".join(parts[:-numbers])
    return folder.name


def _step(order: int, record: Record) -> ForeignStep:
    if isinstance(record, str):
        return ForeignStep(None, record, order)
    try:
        page = _page(record)
    except MALFORMED:
        return ForeignStep(None, NO_PAGE, order)
    action = record["action"]
    if action is None:
        return ForeignStep(page, NO_GIVEN_ACTION, order)
    return ForeignStep(page, gym_action(action, page), order, record["think"], action)


def _with_picture(
    step: ForeignStep, record: Record, folder: Path, images: ImageStore, report: ImportReport
) -> ForeignStep:
    """The step with the picture of its page, from a file beside its own or out of it, where there is one.

    The pictures with marks that AgentLab stores beside them have other numbers than our pages.
    """
    page = step.page
    files = (folder / f"screenshot_step_{step.order}.{kind}" for kind in ("png", "jpg"))
    file = next((file for file in files if file.is_file()), None)
    inside = record.get("picture") if isinstance(record, dict) else None
    if page is None or (file is None and not inside):
        return step
    try:
        if file is not None and file.stat().st_size > images.max_bytes:
            raise ImageError("a picture is too large")
        image = images.put(as_png(file.read_bytes() if file is not None else b64decode(str(inside))))
    except ImageError as error:
        report.note(f"without its picture: {error}")
        return step
    except OSError as error:
        report.note(f"without its picture, which cannot be read or kept ({error.strerror})")
        return step
    shot = Screenshot(image, (image.width, image.height))
    return replace(step, page=replace(page, page=replace(page.page, screenshot=shot)))


def _page(record: dict[str, Any]) -> ForeignPage:
    """The page from its text, or from the tree as the DevTools protocol gives it. Raises what `MALFORMED` lists."""
    text, url = record.get("axtree_txt"), record.get("url", "")
    return from_axtree_text(text, url) if text is not None else _from_tree(record["nodes"], url)


def _from_tree(payload: list[Any], url: str) -> ForeignPage:
    from dataclasses import replace

    from dynaweb.types import Observation
    from dynaweb.web.page.tree import read_page
    from dynaweb.web.page.view import full_view

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
