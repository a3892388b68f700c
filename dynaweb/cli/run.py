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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print plan and estimate; do nothing.")]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME", help="The same as the argument RECIPE.", show_default=False)
]
TimeBudget = Annotated[
    float | None, typer.Option("--time-budget", metavar="MINUTES", help="End the RL stage after so many minutes.")
]


def run(
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

    recipe = named if named is not None else recipe
    arguments = locals()
    if ranks.helper():
        raise typer.Exit(ranks.serve())
    if resume and out is None and not _said(arguments):
        out = arguments["out"] = _last_run()
    resolved = _saved(arguments) if _as_it_was(arguments) else o.resolved(recipe, arguments)
    if dry_run:
        _plan(resolved, as_json, nproc)
        return
    if nproc > 1 and not ranks.launched():
        raise typer.Exit(ranks.start(nproc, sys.argv[1:]))
    from dynaweb import api

    emit(api.run(resolved, out=out, resume=resume, progress=True), as_json=as_json)


def _said(arguments: dict[str, Any]) -> bool:
    """Whether the command line says anything about the recipe."""
    said = bool(o.flags(arguments)) or any(arguments[name] for name in ("sets", "thorough"))
    return said or arguments["recipe"] != "dynaweb"


def _as_it_was(arguments: dict[str, Any]) -> bool:
    """Whether a run is to be resumed with nothing said about its recipe: then its own is used."""
    return bool(arguments["resume"] and arguments["out"] and not _said(arguments))


def _last_run() -> Path:
    from dynaweb.runs import last_run

    return last_run()


def _saved(arguments: dict[str, Any]) -> Any:
    from dynaweb.runs import RunFolder

    o.load_plugins(arguments["block"])
    return RunFolder(arguments["out"]).recipe()


def _plan(recipe: Any, as_json: bool, nproc: int) -> None:
    from dynaweb.cli.output import emit
    from dynaweb.errors import MissingError
    from dynaweb.estimate import estimate
    from dynaweb.estimate.machine import look
    from dynaweb.plugins import current

    missing = []
    wanted = [*((choice.kind, choice.name) for choice in recipe.choices())]
    wanted += [("observer", name) for name in recipe.run.observers]
    for kind, name in wanted:
        try:
            current().check(kind, name)
        except MissingError as error:
            missing.append(str(error))
    found = estimate(recipe, look(recipe.model.device), ranks=nproc)
    plan = {"recipe": recipe.name, "settings": recipe.tree(), "origins": recipe.origins, "missing": missing}
    unknown = f"No estimate: the size of {recipe.model.path} is known once its config.json is here"
    text = "\n".join([str(recipe), "", unknown if found is None else str(found)])
    emit({**plan, "estimate": None if found is None else found.plain()}, text, as_json=as_json)
    for words in missing:
        typer.echo(f"warning: {words}", err=True)
    if found is not None:
        found.check()
