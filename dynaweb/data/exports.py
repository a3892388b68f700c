"""A transition store for other tools: Parquet, a `datasets` folder, and supervised data for TRL and LLaMA-Factory.

Everything is streamed: memory does not grow with the store. A target is written under a temporary name and put in its
place when it is whole.

    parquet        one row a transition: pages as `compact` text (exact), action as JSON, delta as a script
    datasets       the same rows as a folder for `datasets.load_from_disk`
    trl            `{"prompt": [...], "completion": [...]}`, TRL's conversational form: loss on the completion only
    llamafactory   ShareGPT form (`conversations`, `system`) and a `dataset_info.json` beside it that names it

Of a store with pictures of pages, these lie in `<name of the target>.images/` beside it and rows have their relative
paths: `screenshot` and `next_screenshot` in columns. Questions to a world model stay text; rows of a policy have
`images` (`dynaweb.commands.policy_rows`).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from dynaweb.config.files import read_json
from dynaweb.data.codec import to_json
from dynaweb.data.images import ImageStore, images_of, pictures_of
from dynaweb.errors import ConfigError, hint
from dynaweb.plugin.discovery import library
from dynaweb.runs.atomic import write_json, write_with
from dynaweb.types import Image, Observation, Transition
from dynaweb.web.delta import diff, to_text
from dynaweb.web.page.text import render
from dynaweb.worldmodels.change import goal_of, history_of, words_of
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.prompts import FORMS, SYSTEM, Form, answer, question, recent

log = logging.getLogger("dynaweb")

Target = Literal["parquet", "datasets", "trl", "llamafactory"]
TARGETS: tuple[Target, ...] = get_args(Target)
BATCH = 512
"""Rows of one Parquet row group, and of one chunk of a data set."""
COLUMNS = (
    *("task", "source", "url", "observation", "action", "next_url", "next_observation"),
    *("delta", "sentence", "reasoning", "info"),
)
"""Columns of `parquet` and `datasets`, all of them text."""
INFO = "dataset_info.json"


def export(
    transitions: Iterable[Transition], to: str, out: Path, *, form: str = "delta", history: int = 0, goal: bool = True
) -> tuple[int, Path]:
    """Write transitions for another tool; returns how many, and the file or folder.

    `form`, `history` and `goal` are those of the supervised targets, whose questions are those that world models are
    asked with the same settings; what code decides is left out. Raises `ConfigError` for an unknown target or form and
    `MissingError` for a missing package.
    """
    check_target(to, transitions, out)
    if form not in FORMS:
        raise ConfigError(f"no form is called {form!r}; {hint(form, FORMS)}")
    if to in ("parquet", "datasets"):
        if (pictures := PictureFiles.of(transitions, out)) is None:
            return write_columns(map(plain_row, transitions), COLUMNS, to, out), out
        rows = (plain_row(one) | pictures.columns(one.observation, one.next_observation) for one in transitions)
        return write_columns(rows, (*COLUMNS, *PICTURE_COLUMNS), to, out), out
    row = partial(trl_row if to == "trl" else sharegpt_row, form=form, history=history, goal=goal)
    rows = (row(t) for t in transitions if needs_prediction(t.observation, t.action))
    return (write_lines if to == "trl" else write_sharegpt)(rows, out), out


PICTURE_COLUMNS = ("screenshot", "next_screenshot")
"""Columns of stores with pictures: their paths, relative to the folder of the target; '' where there is none."""


class PictureFiles:
    """The pictures of exported rows: files in a folder beside the target, which rows refer to by relative paths."""

    def __init__(self, images: ImageStore, out: Path) -> None:
        self._images, self._folder, self._root = images, out.with_name(f"{out.name}.images"), out.parent
        self.missing: set[Image] = set()
        """Pictures that are not where they should be, or are damaged: rows have no path of them."""

    @classmethod
    def of(cls, store: object, out: Path) -> PictureFiles | None:
        """Those of a store; None where none of its pages has one."""
        path = getattr(store, "path", None)
        if path is None or not isinstance(store, Iterable):
            return None
        images = images_of(Path(path))
        if not any(True for record in store for _ in pictures_of(record)):
            return None
        return cls(images, out)

    def path(self, page: Observation | None) -> str:
        """The path of the picture of a page, copied now; '' where it has none, or where that is missing or damaged."""
        return self.file(page.screenshot.image) if page is not None and page.screenshot is not None else ""

    def file(self, image: Image) -> str:
        """The path of a picture, copied now; '' where it is missing or damaged, which is said once."""
        if self._images.share([image], self._folder, link=False):
            if image not in self.missing:
                log.warning("the picture %s is missing or damaged, so rows are without it", self._images.path(image))
            self.missing.add(image)
            return ""
        return ImageStore(self._folder).path(image).relative_to(self._root).as_posix()

    def columns(self, page: Observation, after: Observation | None) -> dict[str, str]:
        """`PICTURE_COLUMNS`."""
        return dict(zip(PICTURE_COLUMNS, (self.path(page), self.path(after)), strict=True))


def check_target(to: str, store: object, out: Path) -> None:
    """Raise `ConfigError` for an unknown target, and for one that is the store itself; makes the target's folder."""
    if to not in TARGETS:
        raise ConfigError(f"no target is called {to!r}; {hint(to, TARGETS)}")
    source = getattr(store, "path", None)
    if source is not None and out.resolve() == Path(source).resolve():
        raise ConfigError(f"{out} is the store itself, which the export would replace; give another file")
    out.parent.mkdir(parents=True, exist_ok=True)


def plain_row(transition: Transition) -> dict[str, str]:
    """One row of `COLUMNS`."""
    words = words_of(transition)
    values = (
        transition.task_id,
        transition.source,
        transition.observation.url,
        render(transition.observation, "compact"),
        as_text(transition.action),
        transition.next_observation.url,
        render(transition.next_observation, "compact"),
        to_text(diff(transition.observation, transition.next_observation)),
        words.change,
        words.reasoning,
        as_text(dict(transition.info)),
    )
    return dict(zip(COLUMNS, values, strict=True))


def trl_row(transition: Transition, form: Form, history: int = 0, goal: bool = True) -> dict[str, Any]:
    """TRL's conversational prompt and completion."""
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM[form]},
            {"role": "user", "content": _user(transition, history, goal)},
        ],
        "completion": [{"role": "assistant", "content": answer(transition, form)}],
    }


def sharegpt_row(transition: Transition, form: Form, history: int = 0, goal: bool = True) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT form."""
    return {
        "conversations": [
            {"from": "human", "value": _user(transition, history, goal)},
            {"from": "gpt", "value": answer(transition, form)},
        ],
        "system": SYSTEM[form],
    }


def dataset_entry(file: str, *, images: bool = False) -> dict[str, Any]:
    """The entry of a file of `sharegpt_row`s in LLaMA-Factory's `dataset_info.json`; `images`: its rows have some."""
    columns = {"messages": "conversations", "system": "system", **({"images": "images"} if images else {})}
    return {"file_name": file, "formatting": "sharegpt", "columns": columns}


def _user(transition: Transition, history: int, goal: bool) -> str:
    past = recent(history_of(transition), history)
    return question(transition.observation, transition.action, past, goal=goal_of(transition) if goal else "")


def write_sharegpt(rows: Iterable[dict[str, Any]], out: Path, *, images: bool = False) -> int:
    """Write rows of the ShareGPT form, and name the file in the `dataset_info.json` next to it; returns how many.

    `images`: rows have them.
    """
    count = write_lines(rows, out)
    index = out.parent / INFO
    known = read_json(index, dict, advice="mend it, or move it away") if index.exists() else {}
    write_json(index, {**known, out.name.split(".")[0]: dataset_entry(out.name, images=images)})
    return count


def write_lines(rows: Iterable[dict[str, Any]], out: Path) -> int:
    """Write rows as JSON Lines; returns how many."""
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        with temporary.open("w", encoding="utf-8", errors="replace") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1

    write_with(out, write)
    return count


def write_columns(rows: Iterable[dict[str, str]], columns: Sequence[str], to: str, out: Path) -> int:
    """Write rows of text as a Parquet file or as a folder of `datasets`; returns how many."""
    return _parquet(rows, columns, out) if to == "parquet" else _datasets(rows, columns, out)


def _batches(rows: Iterable[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    batch: list[dict[str, str]] = []
    for row in rows:
        batch.append({key: _whole(value) for key, value in row.items()})
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _whole(text: str) -> str:
    """Pages may hold halves of surrogate pairs, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _parquet(rows: Iterable[dict[str, str]], columns: Sequence[str], out: Path) -> int:
    arrow, parquet = library("pyarrow", "data"), library("pyarrow.parquet", "data")
    schema = arrow.schema([(name, arrow.string()) for name in columns])
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for batch in _batches(rows):
                writer.write_table(arrow.Table.from_pylist(batch, schema))
                count += len(batch)

    write_with(out, write)
    return count


def _datasets(rows: Iterable[dict[str, str]], columns: Sequence[str], out: Path) -> int:
    """By way of a Parquet file, which `datasets` reads in constant memory."""
    sets = library("datasets", "data")
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        count = _parquet(rows, columns, part / "rows.parquet")
        table = sets.Dataset.from_parquet(str(part / "rows.parquet"), cache_dir=str(part / "cache"))
        table.save_to_disk(str(part / "done"))
        del table
        shutil.rmtree(out, ignore_errors=True)
        (part / "done").replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return count


def as_text(value: object) -> str:
    """A value as the JSON that the stores write."""
    return json.dumps(to_json(value), ensure_ascii=False)
