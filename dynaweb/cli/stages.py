"""`dynaweb sft|collect|eval`, `wm`, `orm` and `judge`: one stage of a run alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o

if TYPE_CHECKING:
    from dynaweb.stages.world_model_eval import GradedPrediction
    from dynaweb.types import Observation

wm_app = o.group("Work on a world model alone.")
orm_app = o.group("Work on an outcome reward model alone.")
judge_app = o.group("Judges against the environment.")

Data = Annotated[Path | None, typer.Option("--data", metavar="STORE", help="Transition store instead of exploration.")]
Weights = Annotated[Path | None, typer.Option("--weights", metavar="DIR", help="Weights of a fitted world model.")]
Horizon = Annotated[int, typer.Option("--horizon", min=1, help="Longest open-loop run in steps.")]
Graded = Annotated[
    Path | None,
    typer.Option("--data", metavar="STORE", help="Trajectory store of graded real episodes; default: play new ones."),
]


@o.expanded
def sft(options: o.StageOptions) -> None:
    """Make demonstrations and fine-tune the policy on them."""
    from dynaweb import api

    options.emit(api.sft(options.resolved(), out=options.out, progress=True))


@o.expanded
def collect(
    options: o.StageOptions,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="PLAYER", help="policy, expert or random; server:MODEL or human for whole episodes."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="STORE", help="Add to this store; default: one in the run folder.")
    ] = None,
    only: o.Only = None,
    reward: o.Reward = None,
) -> None:
    """Collect real transitions in parallel with the SFT policy, experts or random actions; or make demonstrations.

    A model behind a server (see `policy.server`) and a person leave whole episodes, which `data.demos` takes.
    """
    from dynaweb import api
    from dynaweb.errors import ConfigError

    if by is None or not (by == "human" or by.startswith("server:")):
        if only is not None:
            raise ConfigError("--only is for whole episodes; give --by server:MODEL or --by human")
        recipe = options.resolved(last=() if by is None else (f"explore.player={by}",), reward=reward)
        options.emit(api.collect(recipe, store=store, out=options.out, progress=True))
        return
    result = api.demonstrate(
        options.resolved(reward=reward),
        by=by,
        store=store,
        only=only or "",
        say=lambda text: typer.echo(text, err=options.as_json),
        ask=o.line_by_stderr if options.as_json else input,
        out=options.out,
        progress=by != "human",
    )
    options.emit(result)


@o.expanded
def evaluate(
    options: o.StageOptions,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="DIR|NAME",
            help="Folder of weights, or sft (default), base, expert, random, server:MODEL (see `policy.server`).",
        ),
    ] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="How many held-out episodes.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Episodes that are open at once.")] = None,
    agent: o.Agent = None,
    wm: o.Wm = None,
    reward: o.Reward = None,
    world_model: Annotated[
        Path | None,
        typer.Option("--world-model", metavar="DIR", help="Weights to look ahead with; default: the recipe's own."),
    ] = None,
) -> None:
    """Evaluate a policy on held-out tasks: table by site, a label for each failure.

    Interrupted, it goes on with the tasks that are left when the same command is given again. Given again after its
    end, it plays again what the infrastructure broke.
    """
    from dynaweb import api

    settings = {"eval.episodes": episodes, "web.contexts": workers, "web.workers": workers}
    first = tuple(f"{path}={value}" for path, value in settings.items() if value is not None)
    recipe = options.resolved(first=first, agent=agent, wm=wm, reward=reward)
    options.emit(api.evaluate(recipe, policy=policy, world_model=world_model, out=options.out, progress=True))


@wm_app.command("fit")
@o.expanded
def fit_world_model(options: o.StageOptions, wm: o.Wm = None, data: Data = None) -> None:
    """Fit a world model on real transitions and measure its fidelity."""
    from dynaweb import api

    options.emit(api.fit_world_model(options.resolved(wm=wm), data=data, out=options.out, progress=True))


@wm_app.command("eval")
@o.expanded
def evaluate_world_model(
    options: o.StageOptions, wm: o.Wm = None, weights: Weights = None, data: Data = None, horizon: Horizon = 8
) -> None:
    """Compare a world model with real pages: one step, open-loop, by environment and action, and its confidence."""
    from dynaweb import api

    recipe = options.resolved(wm=wm)
    result = api.evaluate_world_model(
        recipe, weights=weights, data=data, horizon=horizon, out=options.out, progress=True
    )
    options.emit(result)


@wm_app.command("show")
@o.expanded
def show_prediction(
    options: o.StageOptions,
    index: Annotated[int, typer.Option("--index", min=0, help="Which held-out transition.")] = 0,
    wm: o.Wm = None,
    weights: Weights = None,
    data: Data = None,
) -> None:
    """Print one prediction beside the truth: green is predicted and real, red real only, yellow predicted only."""
    from dynaweb import api
    from dynaweb.cli.output import print_json

    recipe = options.resolved(wm=wm)
    result = api.show_prediction(recipe, index=index, weights=weights, data=data, out=options.out, progress=True)
    if options.as_json:
        print_json(result)
    else:
        _print(result)


@orm_app.command("fit")
@o.expanded
def fit_judge(
    options: o.StageOptions,
    data: Graded = None,
    reward: Annotated[str, typer.Option("--reward", metavar="NAME", help="Judge that can be fitted.")] = "orm",
) -> None:
    """Fit a judge on graded real episodes: accuracy, AUC, Brier score and calibration on held-out sites.

    Use it with --reward orm --set reward.weights=OUT.
    """
    from dynaweb import api

    options.emit(api.fit_judge(options.resolved(reward=reward), data=data, out=options.out, progress=True))


@judge_app.command("audit")
@o.expanded
def audit_judges(
    options: o.StageOptions,
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
) -> None:
    """Compare judges with the environment's own verdicts: confusion, false positives with interval, by site and
    length."""
    from dynaweb import api

    recipe = options.resolved(reward=reward)
    audit = api.audit_judges(recipe, judges=judges or (), data=data, episodes=episodes, out=options.out, progress=True)
    as_json = options.as_json
    typer.echo(audit.file.read_text(encoding="utf-8") if as_json else str(audit), nl=not as_json)


def _print(result: GradedPrediction) -> None:
    from dynaweb.web.actions.grammar import format_action

    probe, prediction = result.probe, result.prediction
    typer.echo(f"page       {probe.transition.observation.url}")
    typer.echo(f"action     {format_action(probe.transition.action)}")
    typer.echo(f"reasoning  {prediction.reasoning or '-'}")
    if prediction.error:
        typer.secho(f"invalid    {prediction.error}", fg="red")
    for sign, line in differences(probe.transition.next_observation, prediction.next_observation):
        typer.secho(f"{sign} {line}", fg={"-": "red", "+": "yellow", " ": "green"}[sign])
    typer.echo("  ".join(f"{name}={value:.3g}" for name, value in result.measures.items() if value is not None))


def differences(real: Observation, predicted: Observation | None) -> list[tuple[str, str]]:
    """Lines of both pages: `-` real only, `+` predicted only, a space for both. Without a prediction all are `-`."""
    import difflib

    from dynaweb.worldmodels.pages import page_text

    lines = difflib.ndiff(page_text(real).split("\n"), page_text(predicted).split("\n") if predicted else [])
    return [(line[0], line[2:]) for line in lines if line[0] in "-+ "]
