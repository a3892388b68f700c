"""`dynaweb compare`: runs beside each other, or whole recipes, which it runs first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynaweb.cli import options as o
from dynaweb.cli.matrix import Against, FailFast, Font, Full, Jobs, Measures, Pairwise, Seeds, To, Width

if TYPE_CHECKING:
    from dynaweb.cli.matrix import Shown
    from dynaweb.compare import Comparison
    from dynaweb.matrix import Plan

Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="RUN...", help="Run folders, the first is the reference; or one file of raw results."),
]
Recipes = Annotated[
    str | None,
    typer.Option("--recipes", metavar="A,B", help="Run these recipes instead, on the same tasks and seeds."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[RECIPE:]PATH=VALUE",
        help="With --recipes: a setting of all, or of one; what a recipe itself sets to 0 stays 0. Repeatable.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="With --recipes: default runs/recipes.")]
FigureFolder = Annotated[
    Path | None, typer.Option("--figure", metavar="DIR", help="Draw figures into this folder: pdf, svg and png.")
]


def compare(
    runs: Runs = None,
    recipes: Recipes = None,
    seeds: Seeds = None,
    sets: Sets = None,
    out: Out = None,
    jobs: Jobs = 1,
    fail_fast: FailFast = False,
    measures: Measures = None,
    to: To = "text",
    against: Against = "",
    pairwise: Pairwise = False,
    full: Full = False,
    figure: FigureFolder = None,
    width: Width = "140mm",
    font: Font = "sans:8",
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare runs: what differs in their recipes, and paired statistics over the episodes that they share.

    Runs that differ in their seed only count as one group. A difference is marked only when its interval leaves out 0.
    With --recipes, every recipe is run with every seed (0,1,2) first, as a matrix: the same command goes on where it
    was interrupted, and the table has success, real steps, tokens and time, each with n and interval.
    """
    from dynaweb.cli.matrix import Shown, table_format
    from dynaweb.errors import ConfigError

    if bool(runs) == (recipes is not None):
        raise ConfigError("give run folders to compare, or --recipes A,B to run and compare; one of the two")
    to = table_format(to, as_json=as_json)
    if pairwise and against:
        raise ConfigError("--pairwise compares every two rows, --against all with one; give one of the two")
    if recipes is None:
        if seeds or sets or out or measures or fail_fast or jobs > 1:
            raise ConfigError("--seeds, --set, --out, --jobs, --fail-fast and --measure go with --recipes")
        comparison = _comparison(runs or [])
        if figure is not None:
            _draw(comparison, figure, against, width, font)
        _emit(comparison, Shown(to=to, against=against, pairwise=pairwise, full=full))
        return
    if figure is not None:
        raise ConfigError("--figure draws runs; of recipes, draw the folder of their matrix: dynaweb matrix figure DIR")
    from dynaweb.cli.matrix import run_plan
    from dynaweb.matrix import MatrixFolder
    from dynaweb.runs.folder import RUNS

    plan = _plan(recipes, sets, seeds, block)
    folder = MatrixFolder(out or RUNS / plan.matrix.name)
    show = Shown(measures=measures, to=to, against=against, pairwise=pairwise, full=full)
    run_plan(plan, folder, jobs=jobs, fail_fast=fail_fast, block=block, show=show)


def _comparison(runs: list[Path]) -> Comparison:
    from dynaweb import api
    from dynaweb.cli.matrix import raw_results
    from dynaweb.compare.comparing import compare_raw

    raw = raw_results(runs[0]) if len(runs) == 1 else None
    return api.compare_runs(runs) if raw is None else compare_raw(raw)


def _draw(comparison: Comparison, folder: Path, against: str, width: str, font: str) -> None:
    from dynaweb.compare.figures import Style
    from dynaweb.compare.learning import write_comparison_figures

    for path in write_comparison_figures(comparison, folder, against=against, style=Style(width, font)):
        typer.echo(f"figure: {path}", err=True)


def _emit(comparison: Comparison, show: Shown) -> None:
    from dynaweb.cli.output import print_json
    from dynaweb.compare.comparing import comparison_table, pairs_table

    if show.to == "json":
        print_json(comparison.plain() | _more(comparison, show))
    elif show.to == "text" and not show.against and not show.pairwise:
        typer.echo(comparison.text(full=show.full))
    elif show.pairwise:
        typer.echo(pairs_table(comparison, full=show.full).to(show.to))
    else:
        typer.echo(comparison_table(comparison, against=show.against, full=show.full).to(show.to))


def _more(comparison: Comparison, show: Shown) -> dict[str, Any]:
    """What JSON holds beside the comparison with the first group: every pair, or every row against a chosen one."""
    from dynaweb.stats import estimate_json

    if show.pairwise:
        return {
            "pairs": [
                {
                    "first": comparison.names(pair.first),
                    "second": comparison.names(pair.second),
                    "difference": pair.versus.plain(),
                }
                for pair in comparison.pairs()
            ]
        }
    reference = comparison.reference(show.against) if show.against else None
    if reference is None:
        return {}
    pairs = zip(comparison.table_rows(), comparison.differences_of_rows(show.against), strict=True)
    rows: list[dict[str, Any]] = [
        {"row": comparison.names(row), "success": estimate_json(row.success)}
        | ({} if one is None else {"against": one.plain()})
        for row, one in pairs
    ]
    return {"against": comparison.names(reference), "rows": rows}


def _plan(recipes: str, sets: list[str] | None, seeds: str | None, block: list[str] | None) -> Plan:
    from dynaweb.cli.matrix import seeds_of
    from dynaweb.matrix import plan_of
    from dynaweb.matrix.recipes import SEEDS, comparison

    o.load_plugins(block)
    names = [name.strip() for name in recipes.split(",")]
    matrix, unchanged = comparison(names, sets=sets or (), seeds=seeds_of(seeds) or SEEDS)
    for sentence in unchanged:
        typer.echo(sentence, err=True)
    return plan_of(matrix)
