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
        Path | None, typer.Option("--policy", metavar="DIR", help="Weights of a policy; default: the SFT policy.")
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
    """Evaluate a policy on held-out tasks in the real browser."""
    run_stage("evaluate", recipe, locals(), policy=policy)


def run_stage(name: str, recipe: str, arguments: dict[str, Any], **extra: Any) -> None:
    """Call the function of `dynaweb.api` of that name with what a command's `locals()` say, and print the result."""
    from dynaweb import api
    from dynaweb.cli.output import emit

    resolved = o.resolved(recipe, arguments)
    result = getattr(api, name)(resolved, out=arguments["out"], progress=True, **extra)
    emit(result, as_json=arguments["as_json"])
