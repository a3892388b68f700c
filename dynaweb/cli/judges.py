"""`dynaweb orm fit` and `dynaweb judge audit`: judges made, and judges judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynaweb.cli import options as o
from dynaweb.cli.stages import run_stage

orm_app = typer.Typer(no_args_is_help=True, help="Work on an outcome reward model alone.", rich_markup_mode=None)
judge_app = typer.Typer(no_args_is_help=True, help="Judges against the environment.", rich_markup_mode=None)

Graded = Annotated[
    Path | None,
    typer.Option("--data", metavar="STORE", help="Trajectory store of graded real episodes; default: play new ones."),
]


@orm_app.command("fit")
def fit(
    recipe: o.Recipe = "dynaweb",
    data: Graded = None,
    reward: Annotated[str, typer.Option("--reward", metavar="NAME", help="Judge that can be fitted.")] = "orm",
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fit a judge on graded real episodes: accuracy, AUC, Brier score and calibration on held-out sites.

    Use it with --reward orm --set reward.weights=OUT.
    """
    run_stage("fit_judge", recipe, locals(), data=data)


@judge_app.command("audit")
def audit(
    recipe: o.Recipe = "dynaweb",
    judges: Annotated[
        list[str] | None,
        typer.Option("--judge", metavar="NAME", help="A judge to audit. Repeatable; default: the recipe's."),
    ] = None,
    data: Graded = None,
    episodes: Annotated[
        int,
        typer.Option("--episodes", min=0, help="New episodes on validation sites; 0 = eval.episodes of the recipe."),
    ] = 0,
    reward: o.Reward = None,
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare judges with the environment's own verdicts: confusion, false positives with interval, by site and
    length."""
    from dynaweb import api

    resolved = o.resolved(recipe, locals())
    found = api.audit_judges(resolved, judges=tuple(judges or ()), data=data, episodes=episodes, out=out, progress=True)
    typer.echo(found.file.read_text(encoding="utf-8") if as_json else str(found), nl=not as_json)
