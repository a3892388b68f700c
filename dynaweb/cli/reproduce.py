"""`dynaweb reproduce`: tables and figures of published results, from raw results or from runs that are done anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o
from dynaweb.cli.matrix import FailFast, Font, Jobs, Width

if TYPE_CHECKING:
    from dynaweb.compare.raw import RawResults

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Which results; default: all there are.")]
Folder = Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the raw results.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables and figures are written.")]
Anew = Annotated[bool, typer.Option("--run", help="Do the runs again, and make them of these (hours).")]
Write = Annotated[
    list[Path] | None,
    typer.Option("--write", metavar="FILE", help="Renew the tables between the marks of a Markdown page. Repeatable."),
]
NoFigures = Annotated[bool, typer.Option("--no-figures", help="Make tables only, which need no matplotlib.")]


def reproduce(
    names: Names = None,
    folder: Folder = Path("results"),
    out: Out = Path("reproduced"),
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
    pages = {path: path.read_text(encoding="utf-8") for path in write or ()}
    wanted = names or list(files(folder))
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
