"""`dynaweb compare`: runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; the first is the reference.")]


def compare(runs: Runs, as_json: o.Json = False, debug: o.Debug = False) -> None:
    """Compare runs: what differs in their recipes, and paired statistics over the episodes that they share.

    Runs that differ in their seed only count as one group. A difference is marked only when its interval leaves out 0.
    """
    from dynaweb.cli.output import emit
    from dynaweb.compare import compare as compared

    found = compared(runs)
    emit(found.plain() if as_json else found, as_json=as_json)
