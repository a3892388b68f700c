"""`dynaweb results write|list`: raw results of runs and matrices, in files that a repository can keep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o

results_app = o.group("Raw results: one row an episode, in compressed files that a repository can keep.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="How the results are called.")]
Sources = Annotated[
    list[Path], typer.Argument(metavar="FOLDER...", help="The folder of a matrix, or run folders of one experiment.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: results/NAME.jsonl.gz.")]
Title = Annotated[str, typer.Option("--title", metavar="TEXT", help="What the results show, in words.")]
Command = Annotated[str, typer.Option("--command", metavar="TEXT", help="The command that made the runs.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files are.")]


@results_app.command("write")
def write(
    name: Name,
    sources: Sources,
    out: Out = None,
    title: Title = "",
    command: Command = "",
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Write the raw results of a matrix or of runs: seed, settings, arm, task, success, steps and tokens of an episode.

    `dynaweb reproduce NAME` makes the tables and figures of them, and `matrix table` and `compare` read the file too.
    """
    from dynaweb import api
    from dynaweb.cli.output import emit

    path, results = api.write_results(name, sources, out=out, title=title, command=command)
    episodes = sum(len(played) for run in results.runs for played in run.episodes.values())
    plain = {"file": path, "runs": len(results.runs), "episodes": episodes, "bytes": path.stat().st_size}
    emit(plain, f"{path}: {len(results.runs)} runs, {episodes:,} episodes", as_json=as_json)


@results_app.command("list")
def list_results(folder: Folder = Path("results"), as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the files of raw results in a folder."""
    from dynaweb.cli.output import emit, table
    from dynaweb.compare.raw import files, read_results

    read = [read_results(path) for path in files(folder).values()]
    rows = [(one.name, str(len(one.runs)), " ".join(one.axes), one.title) for one in read]
    plain = {one.name: {"runs": len(one.runs), "axes": one.axes, "title": one.title} for one in read}
    emit(plain, table(("results", "runs", "varied", "what they show"), rows), as_json=as_json)
