"""A transition store for other tools: Parquet, a `datasets` folder, and supervised data for TRL and LLaMA-Factory.

Everything is streamed: memory does not grow with the store. A target is written under a temporary name and put in its
place when it is whole.

    parquet        one row a transition: pages as `compact` text (exact), action as JSON, delta as a script
    datasets       the same rows as a folder for `datasets.load_from_disk`
    trl            `{"prompt": [...], "completion": [...]}`, TRL's conversational form: loss on the completion only
    llamafactory   ShareGPT form (`conversations`, `system`) and a `dataset_info.json` beside it that names it
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from dynaweb.config.files import read_json
from dynaweb.data.codec import to_json
from dynaweb.errors import ConfigError, hint
from dynaweb.plugin.discovery import library
from dynaweb.runs.atomic import write_json, write_with
from dynaweb.types import Transition
from dynaweb.web.delta import diff, to_text
from dynaweb.web.page.text import render
from dynaweb.worldmodels.change import goal_of, history_of, words_of
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.prompts import FORMS, SYSTEM, Form, answer, question, recent

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
        return write_columns(map(plain_row, transitions), COLUMNS, to, out), out
    row = partial(trl_row if to == "trl" else sharegpt_row, form=form, history=history, goal=goal)
    rows = (row(t) for t in transitions if needs_prediction(t.observation, t.action))
    return (write_lines if to == "trl" else write_sharegpt)(rows, out), out


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


def dataset_entry(file: str) -> dict[str, Any]:
    """The entry of a file of `sharegpt_row`s in LLaMA-Factory's `dataset_info.json`."""
    columns = {"messages": "conversations", "system": "system"}
    return {"file_name": file, "formatting": "sharegpt", "columns": columns}


def _user(transition: Transition, history: int, goal: bool) -> str:
    past = recent(history_of(transition), history)
    return question(transition.observation, transition.action, past, goal=goal_of(transition) if goal else "")


def write_sharegpt(rows: Iterable[dict[str, Any]], out: Path) -> int:
    """Write rows of the ShareGPT form, and name the file in the `dataset_info.json` next to it; returns how many."""
    count = write_lines(rows, out)
    index = out.parent / INFO
    known = read_json(index, dict, advice="mend it, or move it away") if index.exists() else {}
    write_json(index, {**known, out.name.split(".")[0]: dataset_entry(out.name)})
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
