"""Rows of a data set, one at a time: JSON Lines, JSON arrays, Parquet files, or a data set of the Hugging Face hub."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dynaweb.config.files import FLOAT_DIGITS
from dynaweb.data.demonstrations import is_hub_name
from dynaweb.data.importers.report import ImportReport, files_of
from dynaweb.errors import InfrastructureError, MissingError
from dynaweb.plugin.discovery import library

Row = dict[str, Any]
LARGEST, BLOCK = 2**26, 2**16
"""Characters or bytes of a row; characters that are read at once."""
MOST_UNPACKED = 2**30
"""Bytes that rows of a file which are too long may unpack to, together."""
TOO_LONG, NO_OBJECT = f"its row is longer than {LARGEST >> 20} MiB", "its row is no JSON object"
UNPACKS = f"its file unpacks to more than {MOST_UNPACKED >> 30} GiB of rows that are too long"
TOO_LARGE = f"its file is larger than {LARGEST >> 20} MiB"
PATTERNS = ("*.jsonl", "*.json", "*.parquet")


def rows_of(source: str, report: ImportReport) -> Iterator[Row]:
    """All rows. Broken ones are counted in `report`. A source that is no path is a name for `datasets.load_dataset`."""
    if not Path(source).exists() and is_hub_name(source, *PATTERNS):
        yield from _hub(source)
        return
    for file in files_of(source, *PATTERNS):
        yield from _parquet(file, report) if file.suffix == ".parquet" else _json(file, report)


def _json(file: Path, report: ImportReport) -> Iterator[Row]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        if file.suffix == ".json" and opened.read(1) == "[":
            yield from _array(opened, report)
            return
        opened.seek(0)
        while line := opened.readline(LARGEST):
            if not line.endswith("\n") and len(line) == LARGEST:
                while (rest := opened.readline(LARGEST)) and not rest.endswith("\n"):
                    continue
                _drop(report, TOO_LONG)
            elif line.strip():
                yield from _row(line, report)


def _array(opened: IO[str], report: ImportReport) -> Iterator[Row]:
    """The rows of an array whose bracket has been read, one at a time: Mind2Web's files have hundreds of MB."""
    text, size, is_whole = "", BLOCK, False
    while True:
        text = text.lstrip(" \t\r\n,")
        try:
            if text.startswith("]"):
                return
            row, end = _DECODER.raw_decode(text)
            if end == len(text) and not is_whole and not isinstance(row, dict):
                end = 0  # a number may go on in the next block
        except (ValueError, RecursionError):
            row, end = None, 0
        if end:
            text, size = text[end:], BLOCK
            if isinstance(row, dict):
                yield row
            else:
                _drop(report, NO_OBJECT)
        elif is_whole or len(text) > LARGEST:
            _drop(report, TOO_LONG if len(text) > LARGEST else "its file is no valid JSON")
            return
        else:
            # Twice as much each time, so that a row of any size is parsed a few times only.
            block = opened.read(size)
            is_whole, size = not block, 2 * size
            text += block


def _row(line: str, report: ImportReport) -> Iterator[Row]:
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict):
        yield row
    else:
        _drop(report, NO_OBJECT)


def _integer(digits: str) -> int | float:
    """A whole number; nan for one that is longer than any float, with which nothing can be computed."""
    return int(digits) if len(digits) <= FLOAT_DIGITS else math.nan


_DECODER = json.JSONDecoder(parse_int=_integer)


def finite(value: Any) -> float | None:
    """A number of a row; None for what is none, or is not finite."""
    is_number = isinstance(value, int | float) and abs(value) < sys.float_info.max
    return float(value) if is_number else None


def _drop(report: ImportReport, reason: str) -> None:
    report.read += 1
    report.drop(reason)


def _parquet(file: Path, report: ImportReport) -> Iterator[Row]:
    """Rows one at a time: what a file says of its sizes need not be so, and one value may stand in all rows.

    After rows that are too long, of `MOST_UNPACKED` bytes together, the others of the file are left out.
    """
    parquet = library("pyarrow.parquet", "data")
    try:
        with parquet.ParquetFile(file) as opened:
            counted, count_of, unpacked = 0, opened.metadata.num_rows, 0
            for batch in opened.iter_batches(batch_size=1):
                counted += batch.num_rows
                if batch.nbytes <= LARGEST:
                    yield from batch.to_pylist()
                    continue
                _drop(report, TOO_LONG)
                unpacked += batch.nbytes
                if unpacked > MOST_UNPACKED:
                    report.read += count_of - counted
                    report.drop(UNPACKS, count_of - counted)
                    return
            if counted != count_of:
                _drop(report, f"its file says that it has {count_of} rows, and has {counted}: it is damaged")
    except (OSError, ValueError, MemoryError) as error:  # what pyarrow raises is one of these
        _drop(report, f"its file is no whole Parquet file ({type(error).__name__})")


def _hub(name: str) -> Iterator[Row]:
    """Rows of a data set of the hub. Raises `MissingError` where there is none, `InfrastructureError` where it ends."""
    try:
        load = library("datasets", "data").load_dataset
    except MissingError as error:
        raise MissingError(f"there is no file or folder {name}; as the name of a data set, {error}") from error
    try:
        rows = load(name, split="train", streaming=True)
    # What is wrong with a stranger's data set comes in any form.
    except Exception as error:
        raise MissingError(
            f"there is no file or folder {name}, and the hub gives no data set of that name ({_line(error)})"
        ) from error
    try:
        for row in rows:
            yield dict(row)
    except Exception as error:
        raise InfrastructureError(
            f"the hub's data set {name} cannot be read on ({_line(error)}); download it and give its folder"
        ) from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
