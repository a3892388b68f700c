"""`dynaweb results write|list` and `dynaweb reproduce`: raw results in files, and the tables and figures of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o
from dynaweb.cli.matrix import FailFast, Font, Jobs, Width

if TYPE_CHECKING:
    from dynaweb.compare.raw import RawResults

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


ReproduceNames = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="Which results; default: all there are.")
]
ReproduceFolder = Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the raw results.")]
ReproduceOut = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables and figures are written.")]
Anew = Annotated[bool, typer.Option("--run", help="Do the runs again, and make them of these (hours).")]
Write = Annotated[
    list[Path] | None,
    typer.Option("--write", metavar="FILE", help="Renew the tables between the marks of a Markdown page. Repeatable."),
]
NoFigures = Annotated[bool, typer.Option("--no-figures", help="Make tables only, which need no matplotlib.")]


def reproduce(
    names: ReproduceNames = None,
    folder: ReproduceFolder = Path("results"),
    out: ReproduceOut = Path("reproduced"),
    anew: Anew = False,
    jobs: Jobs = 1,
    fail_fast: FailFast = False,
    write: Write = None,
    no_figures: NoFigures = False,
    width: Width = "140mm",
    font: Font = "sans:8",
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make every table and figure of published results from raw results that are in the repository.

    Each NAME is a file results/NAME.jsonl.gz with one row an episode. Tables are written as Markdown, LaTeX and CSV,
    figures as PDF, SVG and PNG. With --run the runs are done again first, in runs/reproduce-NAME: the same command goes
    on where it was interrupted, and says which episodes ended otherwise.
    """
    from dynaweb.cli.output import print_json
    from dynaweb.compare.figures import FORMATS, Style, check
    from dynaweb.compare.raw import files
    from dynaweb.errors import ConfigError
    from dynaweb.matrix import reproduce as make
    from dynaweb.runs.atomic import write_text

    style = Style(width, font)
    if not no_figures:
        check(style, FORMATS)
    wanted = names or list(files(folder))
    pages = {path: _page(path, wanted, folder) for path in write or ()}
    if not wanted:
        make.find("", folder)
    if anew and len(wanted) > 1:
        raise ConfigError(f"--run does one result at a time, of {', '.join(wanted)}; name it")
    written: dict[str, list[Path]] = {}
    for name in wanted:
        raw = make.find(name, folder)
        if anew:
            raw = _done_again(raw, jobs, fail_fast, block)
        written[name] = make.write(raw, out / name, style=style, figures=not no_figures)
        if not as_json:
            typer.echo("\n\n".join([f"## {name}", *(table.to("markdown") for table in make.tables(raw)), ""]))
        for path in written[name]:
            typer.echo(f"written: {path}", err=True)
    for path, text in pages.items():
        new = make.filled(text, folder)
        if new != text:
            write_text(path, new)
        typer.echo(f"{'renewed' if new != text else 'as it was'}: {path}", err=True)
    if as_json:
        print_json(written)


def _page(path: Path, names: list[str], folder: Path) -> str:
    """The page at a path, or a new one where the results named like its file are a replication."""
    from dynaweb.matrix import replication
    from dynaweb.matrix.reproduce import find

    if not path.exists() and path.stem in names and replication.is_replication(raw := find(path.stem, folder)):
        return replication.page(raw)
    return path.read_text(encoding="utf-8")


def _done_again(raw: RawResults, jobs: int, fail_fast: bool, block: list[str] | None) -> RawResults:
    from dynaweb.cli.matrix import Shown, run_plan
    from dynaweb.compare.raw import SUFFIX, write_results
    from dynaweb.matrix import MatrixFolder
    from dynaweb.matrix import reproduce as make
    from dynaweb.matrix.raw import collect
    from dynaweb.runs.folder import RUNS

    o.load_plugins(block)
    folder = MatrixFolder(RUNS / f"reproduce-{raw.name}")
    run_plan(make.plan_anew(raw), folder, jobs=jobs, fail_fast=fail_fast, block=block, show=Shown())
    anew = collect([folder.path], raw.name, title=raw.title, command=raw.command)
    write_results(folder.path / f"{raw.name}{SUFFIX}", anew)
    for line in make.changes(raw, anew) or ["every episode ended as in the stored results"]:
        typer.echo(line, err=True)
    return anew
