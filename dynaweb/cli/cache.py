"""`dynaweb cache list|prune`: the stages that runs share, and room on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o

if TYPE_CHECKING:
    from dynaweb.runs.pruning import CachedStage

cache_app = o.group("Finished stages, which runs share.")


@cache_app.command("list")
def list_stages(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List every stage in the cache with its size, and when a run last used it."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    stages = api.list_cache()
    emit(stages, _table(stages, "in"), as_json=as_json)


@cache_app.command("prune")
def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Not used for so long, such as 12h or 7d.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="The oldest, until the rest takes no more, such as 500M or 2G."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")] = False,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Delete stages from the cache, never one that a running run uses. Run folders keep what is in them.

    A later run makes anew what it needs and does not find.
    """
    from dynaweb import api
    from dynaweb.cli.output import emit

    gone = api.prune_cache(older_than=older_than, max_size=max_size, every=every, dry_run=dry_run)
    emit(gone, _table(gone, "would go from" if dry_run else "gone from"), as_json=as_json)


def _table(stages: Iterable[CachedStage], where: str) -> str:
    from dynaweb.cli.output import table
    from dynaweb.runs.cache import default_root

    stages = list(stages)
    rows = [(s.name, s.key, f"{s.size / 2**20:,.1f}", _age(s.age), s.state) for s in stages]
    total, freed = (sum(sizes) / 2**20 for sizes in ([s.size for s in stages], [s.freed for s in stages]))
    shared = f", {total - freed:,.1f} of them in run folders too" if total - freed > 0.05 else ""
    last = f"{len(stages)} stages, {total:,.1f} MiB{shared}, {where} {default_root()}"
    return f"{table(('stage', 'key', 'MiB', 'last used', 'state'), rows)}\n\n{last}" if stages else last


def _age(seconds: float) -> str:
    """An age in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
