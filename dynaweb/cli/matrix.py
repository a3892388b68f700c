"""`dynaweb matrix list|show|run|status|table`: many runs that differ in named settings, and one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o

if TYPE_CHECKING:
    from dynaweb.matrix import MatrixFolder, Plan

matrix_app = o.group("Ablations: many runs, one table.")

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A TOML file, a shipped matrix, a recipe to vary, or the folder of a matrix, such as runs/matrix-NAME.",
    ),
]
Axis = Annotated[
    list[str] | None,
    typer.Option("--axis", metavar="NAME=A,B", help="Add or replace an axis, such as wm=delta,full-state. Repeatable."),
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="N,N", help="Seeds of every combination, such as 0,1,2.")]
Mode = Annotated[str | None, typer.Option("--mode", help="grid or one-at-a-time.")]
MaxCells = Annotated[int | None, typer.Option("--max-cells", min=1, help="Refuse a matrix with more cells.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the matrix; default: runs/matrix-NAME.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Cells that run at once.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first cell that fails.")]
Measures = Annotated[
    list[str] | None,
    typer.Option(
        "--measure",
        metavar="A,B",
        help="Columns: main, an arm such as sft, element_f1 and its like, real_steps, tokens_generated or seconds. "
        "Repeatable.",
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")]


@dataclass(frozen=True, kw_only=True)
class MatrixOptions(o.CommonOptions):
    """A matrix with what the command line changes of it."""

    source: Source
    axis: Axis = None
    seeds: Seeds = None
    mode: Mode = None
    max_cells: MaxCells = None
    sets: o.Set = None

    def plan(self, out: Path | None, *, as_run: bool = False) -> tuple[Plan, MatrixFolder]:
        """The plan and the folder that are asked for. Loads the plugins.

        With `as_run`, and no option that changes the plan, it is the one in the folder where there is one.
        """
        from dynaweb.config.layers import parse_set
        from dynaweb.errors import ConfigError
        from dynaweb.matrix import MatrixFolder, plan_of, read_matrix
        from dynaweb.runs.folder import RUNS

        o.load_plugins(self.block)
        values, problems = parse_set(self.sets or ())
        if problems:
            raise ConfigError("\n".join(problems))
        seeds = seeds_of(self.seeds)
        is_changed = bool(values or seeds or self.axis or self.mode or self.max_cells)
        if Path(self.source).is_dir():
            if is_changed or out:
                raise ConfigError(
                    f"{self.source} is the folder of a matrix, which is taken as it is; name its file to change it"
                )
            folder = MatrixFolder(Path(self.source))
            return folder.read_plan(), folder
        matrix = read_matrix(
            self.source, axes=self.axis or (), sets=values, seeds=seeds, mode=self.mode, max_cells=self.max_cells
        )
        folder = MatrixFolder(out or RUNS / f"matrix-{matrix.name}")
        if as_run and not is_changed and folder.plan_file.exists():
            typer.echo(f"plan: {folder.plan_file}", err=True)
            return folder.read_plan(), folder
        return plan_of(matrix), folder


@matrix_app.command("list")
def list_matrices(as_json: o.Json = False, debug: o.Debug = False) -> None:
    """List the matrices that come with the package."""
    from dynaweb.cli.output import emit, table
    from dynaweb.matrix import read_matrix, shipped_matrices

    matrices = {name: read_matrix(name) for name in shipped_matrices()}
    rows = [(name, " ".join(one.axes), one.description) for name, one in matrices.items()]
    text = table(("matrix", "axes", "what it shows"), rows)
    emit({name: one.description for name, one in matrices.items()}, text, as_json=as_json)


@matrix_app.command("show")
@o.expanded
def show(options: MatrixOptions) -> None:
    """Compose and validate every cell, and list them; nothing is run."""
    from dynaweb.cli.output import print_json, table

    plan, _ = options.plan(None)
    if options.as_json:
        cells = [
            {"id": c.id, "seed": c.seed, "settings": dict(c.labels), "recipe": c.recipe.tree()} for c in plan.cells
        ]
        print_json({"name": plan.matrix.name, "axes": plan.axes, "cells": cells})
        return
    rows = [(cell.id, str(cell.seed), *(value for _, value in cell.labels)) for cell in plan.cells]
    typer.echo(table(("cell", "seed", *plan.axes), rows))
    merged = f", {plan.merged} combinations came out as one of these" if plan.merged else ""
    typer.echo(f"\n{len(plan.cells)} cells on {plan.matrix.base}{merged}")


@matrix_app.command("run")
@o.expanded
def run(
    options: MatrixOptions, out: Out = None, jobs: Jobs = 1, fail_fast: FailFast = False, measures: Measures = None
) -> None:
    """Run every cell that is not done, then print the table. Exit code 1 when a cell failed.

    Cells share finished stages. Interrupted or killed, the same command goes on; failed cells are tried again. A matrix
    may grow; one that lacks cells which are done in its folder is refused: give it another --out.
    """
    plan, folder = options.plan(out)
    run_plan(
        plan, folder, jobs=jobs, fail_fast=fail_fast, measures=measures, block=options.block, as_json=options.as_json
    )


def run_plan(
    plan: Plan,
    folder: MatrixFolder,
    *,
    jobs: int,
    fail_fast: bool,
    measures: list[str] | None,
    block: list[str] | None,
    as_json: bool,
) -> None:
    """Run every cell that is not done, with a live display, then print the table."""
    from dynaweb.matrix.folder import check_keeps_done
    from dynaweb.matrix.results import measures_of
    from dynaweb.matrix.runner import Progress, Runner, display_of

    measures_of(plan, names_of(measures))  # a mistake is said now, not after all the work
    check_keeps_done(folder, plan)  # and this before a table is drawn; the runner looks again under its lock
    cells: list[Progress] = []
    runner = Runner(plan, folder, jobs=jobs, fail_fast=fail_fast, block=tuple(block or ()), progress=cells)
    display = display_of(cells)
    runner.changed = display.changed
    try:
        runner.run()
    finally:
        display.close()
    print_table(plan, folder, measures, as_json=as_json)
    failed = [str(cell.cell) for cell in cells if cell.state == "failed"]
    unfinished = sum(cell.state not in ("done", "failed") for cell in cells)
    if failed or unfinished:
        from dynaweb.errors import TrainingError

        if not failed:
            raise TrainingError(
                f"{unfinished} of {len(cells)} cells did not end; go on with: dynaweb matrix run {folder.path}"
            )
        listed = "\n".join(f"  {name}" for name in failed)
        raise TrainingError(
            f"{len(failed)} of {len(cells)} cells failed; what they said is in {folder.path / 'logs'}:\n{listed}"
        )


@matrix_app.command("status")
@o.expanded
def status(options: MatrixOptions, out: Out = None) -> None:
    """Say how every cell stands: waiting, running, done, failed or interrupted.

    Without options that change the matrix, of the matrix as it was run, where its folder is there.
    """
    from dynaweb.cli.output import plain, table
    from dynaweb.matrix.table import STATUS_HEAD, status_rows

    plan, folder = options.plan(out, as_run=True)
    statuses = [folder.status(cell) for cell in plan.cells]
    rows = [{**plain(one), "labels": dict(one.labels)} for one in statuses]
    options.emit(rows, table(STATUS_HEAD, status_rows(statuses)))


@matrix_app.command("table")
@o.expanded
def show_table(options: MatrixOptions, out: Out = None, measures: Measures = None, markdown: Markdown = False) -> None:
    """Print the table of what is done so far: n, mean and 95 % interval of every combination; writes report.html.

    Without options that change the matrix, of the matrix as it was run, where its folder is there. With them,
    report.html is written only when the cells are those that were run.
    """
    plan, folder = options.plan(out, as_run=True)
    print_table(plan, folder, measures, as_json=options.as_json, markdown=markdown)


@matrix_app.command("cell", hidden=True)
def cell(
    folder: Annotated[Path, typer.Argument()],
    id: Annotated[str, typer.Argument()],
    block: o.Block = None,
    debug: o.Debug = False,
) -> None:
    """Run one cell of a matrix in this process."""
    from dynaweb import api
    from dynaweb.matrix import MatrixFolder

    o.load_plugins(block)
    matrix = MatrixFolder(folder)
    recipe = matrix.recipe(id)
    with matrix.prepared(id) as resumed:
        typer.echo(api.run(recipe, out=matrix.cell(id), resume=resumed, progress=True))


def seeds_of(text: str | None) -> tuple[int, ...] | None:
    """The seeds that `--seeds` names; None where it is not given. Raises `ConfigError`."""
    from dynaweb.errors import ConfigError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--seeds {text}: write whole numbers with commas between them, such as 0,1,2") from None


def names_of(measures: list[str] | None) -> list[str]:
    """The measures that `--measure` names, which may be repeated and may have commas."""
    return [name.strip() for text in measures or () for name in text.split(",")]


def print_table(
    plan: Plan,
    folder: MatrixFolder,
    measures: list[str] | None = None,
    *,
    as_json: bool = False,
    markdown: bool = False,
) -> None:
    """Print the table of what is done, and write report.html where it is to show these cells."""
    from shutil import get_terminal_size

    from dynaweb.cli.output import emit
    from dynaweb.matrix.folder import why_not_reported
    from dynaweb.matrix.page import write_page
    from dynaweb.matrix.results import results
    from dynaweb.matrix.table import matrix_markdown, matrix_text
    from dynaweb.stats import WIDTH

    outcome = results(plan, folder, names_of(measures))
    width = get_terminal_size((WIDTH, 24)).columns
    emit(outcome.plain(), matrix_markdown(outcome) if markdown else matrix_text(outcome, width=width), as_json=as_json)
    if why := why_not_reported(folder, plan):
        typer.echo(f"report: not written, since {why}", err=True)
    elif folder.path.is_dir():
        typer.echo(f"report: {write_page(outcome, folder)}", err=True)
