"""What commands print on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer


def emit(result: object, text: str | None = None, *, as_json: bool) -> None:
    """Print a result: as text (by default its own), or its plain data as JSON."""
    if as_json:
        print_json(result)
    else:
        typer.echo(str(result) if text is None else text)


def print_json(result: object, *, indent: int = 2) -> None:
    """Print the plain data of a result as JSON."""
    typer.echo(json.dumps(plain(result), indent=indent, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Plain data of any result: dataclasses become tables, paths text, and numbers that JSON lacks (nan, inf) null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces; the last one runs free."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)
