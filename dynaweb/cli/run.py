"""`dynaweb run`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or with the last one.")]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="What computes updates: torch, or deepspeed.")
]
Nproc = Annotated[
    int,
    typer.Option(
        "--nproc", metavar="N", min=1, help="Processes on this machine that share the work, one for each GPU."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check recipe and packages, print plan and estimate.")]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME", help="The same as the argument RECIPE.", show_default=False)
]
TimeBudget = Annotated[
    float | None, typer.Option("--time-budget", metavar="MINUTES", help="End the RL stage after so many minutes.")
]


def run(
    ctx: typer.Context,
    recipe: o.Recipe = "dynaweb",
    named: RecipeOption = None,
    wm: o.Wm = None,
    opt: o.Opt = None,
    reward: o.Reward = None,
    env: o.Env = None,
    eval_env: o.EvalEnv = None,
    model: o.Model = None,
    agent: o.Agent = None,
    seed: o.Seed = None,
    thorough: o.Thorough = False,
    sets: o.Set = None,
    out: o.Out = None,
    resume: Resume = False,
    time_budget: TimeBudget = None,
    observe: o.Observe = None,
    backend: Backend = None,
    nproc: Nproc = 1,
    dry_run: DryRun = False,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Run a recipe: demonstrations, SFT, world model, reinforcement learning in dreams, evaluation, report."""
    from dynaweb.cli import ranks
    from dynaweb.cli.output import emit

    recipe = _one_recipe(ctx, recipe, named)
    arguments = locals()
    if ranks.helper():
        raise typer.Exit(ranks.serve())
    if resume and out is None and not _said(arguments):
        out = arguments["out"] = _last_run()
    resolved = _saved(arguments) if _its_own(arguments) else o.resolved(recipe, arguments)
    if dry_run:
        _plan(resolved, as_json, nproc)
        return
    if nproc > 1 and not ranks.launched():
        raise typer.Exit(ranks.start(nproc, sys.argv[1:]))
    from dynaweb import api

    emit(api.run(resolved, out=out, resume=resume, progress=True), as_json=as_json)


def _one_recipe(ctx: typer.Context, recipe: str, named: str | None) -> str:
    """The recipe, which may be said as an argument or as an option, but not twice in two ways."""
    if named is None or named == recipe:
        return recipe
    given = ctx.get_parameter_source("recipe")
    if given is not None and given.name == "COMMANDLINE":
        raise typer.BadParameter(f"RECIPE {recipe} and --recipe {named} are two recipes; give one of the two")
    return named


def _said(arguments: dict[str, Any]) -> bool:
    """Whether the command line says which recipe or which of its runs is meant."""
    return bool(o.flags(arguments)) or arguments["thorough"] or arguments["recipe"] != "dynaweb"


def _its_own(arguments: dict[str, Any]) -> bool:
    """Whether a run is to be resumed and no recipe is named: then its own is meant, with what else is said on top."""
    return bool(arguments["resume"] and arguments["out"] and arguments["recipe"] == "dynaweb")


def _last_run() -> Path:
    from dynaweb.runs import last_run

    return last_run()


def _saved(arguments: dict[str, Any]) -> Any:
    from dynaweb.runs import RunFolder

    o.load_plugins(arguments["block"])
    return o.resolved(RunFolder(arguments["out"]).recipe(), arguments)


def _plan(recipe: Any, as_json: bool, nproc: int) -> None:
    from dynaweb.cli.output import emit
    from dynaweb.estimate.refusals import examined

    found, problems = examined(recipe, nproc)
    missing = [str(error) for error in problems.plugins]
    plan = {"recipe": recipe.name, "settings": recipe.tree(), "origins": recipe.origins, "missing": missing}
    unknown = f"No estimate: the size of {recipe.model.path} is known once its config.json is here"
    text = "\n".join([str(recipe), "", unknown if found is None else str(found)])
    emit({**plan, "estimate": None if found is None else found.plain()}, text, as_json=as_json)
    problems.check()
