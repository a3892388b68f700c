"""Rows of a data set, one at a time: JSON Lines, JSON arrays, Parquet files, or a data set of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynaweb.data.importers import ImportReport, files_of
from dynaweb.errors import MissingError
from dynaweb.plugin.discovery import library

Row = dict[str, Any]
PATTERNS = ("*.jsonl", "*.json", "*.parquet")


def rows_of(source: str, report: ImportReport) -> Iterator[Row]:
    """All rows. Broken ones are counted in `report`. A source that is no path is a name for `datasets.load_dataset`."""
    if not Path(source).exists() and _is_name(source):
        yield from _hub(source)
        return
    for file in files_of(source, *PATTERNS):
        yield from _parquet(file) if file.suffix == ".parquet" else _json(file, report)


def _is_name(source: str) -> bool:
    """Whether a source that is no path here can be a data set of the hub: `owner/name`, and no name of a file."""
    is_file = any(Path(source).match(pattern) for pattern in PATTERNS)
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and not is_file


def _json(file: Path, report: ImportReport) -> Iterator[Row]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        if file.suffix == ".json" and lines.read(1) == "[":
            lines.seek(0)
            yield from _array(lines.read(), report)
            return
        lines.seek(0)
        for line in lines:
            if line.strip():
                yield from _row(line, report)


def _array(text: str, report: ImportReport) -> Iterator[Row]:
    """The files of Mind2Web are arrays of about a hundred tasks each."""
    try:
        rows = json.loads(text)
    except ValueError:
        report.read += 1
        report.drop("its file is no valid JSON")
        return
    yield from (item for item in rows if isinstance(item, dict))


def _row(line: str, report: ImportReport) -> Iterator[Row]:
    try:
        rows = json.loads(line)
    except ValueError:
        rows = None
    if isinstance(rows, dict):
        yield rows
    else:
        report.read += 1
        report.drop("its row is no JSON object")


def _parquet(file: Path) -> Iterator[Row]:
    parquet = library("pyarrow.parquet", "data")
    with parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=64):
            yield from batch.to_pylist()


def _hub(name: str) -> Iterator[Row]:
    try:
        rows = library("datasets", "data").load_dataset(name, split="train", streaming=True)
    except MissingError as error:
        raise MissingError(f"there is no file or folder {name}; as the name of a data set, {error}") from error
    yield from (dict(row) for row in rows)
