"""`dynaweb sft`, `dynaweb eval`: one stage of a run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o


def sft(
    recipe: o.Recipe = "dynaweb",
    env: o.Env = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Make demonstrations and fine-tune the policy on them."""
    run_stage("sft", recipe, locals())


def evaluate(
    recipe: o.Recipe = "dynaweb",
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="DIR|NAME", help="Folder of weights, or sft (default), base, expert, random."),
    ] = None,
    env: o.Env = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="How many held-out episodes.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Episodes that are open at once.")] = None,
    agent: o.Agent = None,
    wm: o.Wm = None,
    reward: o.Reward = None,
    world_model: Annotated[
        Path | None,
        typer.Option("--world-model", metavar="DIR", help="Weights to look ahead with; default: the recipe's own."),
    ] = None,
    model: o.Model = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    out: o.Out = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Evaluate a policy on held-out tasks: table by site, a label for each failure.

    Interrupted, it goes on with the tasks that are left when the same command is given again.
    """
    arguments = locals()
    given = {"eval.episodes": episodes, "web.contexts": workers, "web.workers": workers}
    flags = [f"{path}={value}" for path, value in given.items() if value is not None]
    told = {**arguments, "sets": [*flags, *(sets or ())]}
    run_stage("evaluate", recipe, told, policy=policy, world_model=world_model)


def run_stage(name: str, recipe: str, arguments: dict[str, Any], **extra: Any) -> None:
    """Call the function of `dynaweb.api` of that name with what a command's `locals()` say, and print the result."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    resolved = o.resolved(recipe, arguments)
    result = getattr(api, name)(resolved, out=arguments["out"], progress=True, **extra)
    emit(result, as_json=arguments["as_json"])
