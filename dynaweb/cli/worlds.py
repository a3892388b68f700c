"""`dynaweb collect` and `dynaweb wm fit|eval|show`: real transitions, and world models made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o
from dynaweb.cli.stages import run_stage

wm_app = typer.Typer(no_args_is_help=True, help="Work on a world model alone.", rich_markup_mode=None)

Data = Annotated[Path | None, typer.Option("--data", metavar="STORE", help="Transition store instead of exploration.")]
Weights = Annotated[Path | None, typer.Option("--weights", metavar="DIR", help="Weights of a fitted world model.")]
Horizon = Annotated[int, typer.Option("--horizon", min=1, help="Longest open-loop run in steps.")]


def collect(
    recipe: o.Recipe = "dynaweb",
    by: Annotated[str | None, typer.Option("--by", metavar="PLAYER", help="policy, expert or random.")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="STORE", help="Add to this transition store; default: run folder.")
    ] = None,
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Collect real transitions in parallel: with the SFT policy, experts, or random actions."""
    arguments = locals()
    if by is not None:
        arguments["sets"] = [*(sets or ()), f"explore.player={by}"]
    run_stage("collect", recipe, arguments, store=store)


@wm_app.command("fit")
def fit(
    recipe: o.Recipe = "dynaweb",
    wm: o.Wm = None,
    data: Data = None,
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Fit a world model on real transitions and measure its fidelity."""
    run_stage("fit_world_model", recipe, locals(), data=data)


@wm_app.command("eval")
def evaluate(
    recipe: o.Recipe = "dynaweb",
    wm: o.Wm = None,
    weights: Weights = None,
    data: Data = None,
    horizon: Horizon = 8,
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Compare a world model with real pages: one step, open-loop, by environment and action, and its confidence."""
    run_stage("evaluate_world_model", recipe, locals(), weights=weights, data=data, horizon=horizon)


@wm_app.command("show")
def show(
    recipe: o.Recipe = "dynaweb",
    index: Annotated[int, typer.Option("--index", min=0, help="Which held-out transition.")] = 0,
    wm: o.Wm = None,
    weights: Weights = None,
    data: Data = None,
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Print one prediction beside the truth: green is predicted and real, red real only, yellow predicted only."""
    from dynaweb import api

    resolved = o.resolved(recipe, locals())
    shown = api.show_prediction(resolved, index=index, weights=weights, data=data, out=out, progress=True)
    if as_json:
        from dynaweb.cli.output import print_json

        print_json(shown)
    else:
        _print(shown)


def _print(shown: Any) -> None:
    from dynaweb.web.actions import format_action

    probe, prediction = shown.probe, shown.prediction
    typer.echo(f"page       {probe.transition.observation.url}")
    typer.echo(f"action     {format_action(probe.transition.action)}")
    typer.echo(f"reasoning  {prediction.reasoning or '-'}")
    if prediction.error:
        typer.secho(f"invalid    {prediction.error}", fg="red")
    for sign, line in differences(probe.transition.next_observation, prediction.next_observation):
        typer.secho(f"{sign} {line}", fg={"-": "red", "+": "yellow", " ": "green"}[sign])
    typer.echo("  ".join(f"{name}={value:.3g}" for name, value in shown.measures.items() if value is not None))


def differences(real: Any, predicted: Any) -> list[tuple[str, str]]:
    """Lines of both pages: `-` real only, `+` predicted only, a space for both. Without a prediction all are `-`."""
    import difflib

    from dynaweb.worldmodels.pages import page_text

    found = difflib.ndiff(page_text(real).split("\n"), page_text(predicted).split("\n") if predicted else [])
    return [(line[0], line[2:]) for line in found if line[0] in "-+ "]
