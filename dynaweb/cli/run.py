"""`dynaweb run`: the main job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynaweb.cli import options as o

if TYPE_CHECKING:
    from dynaweb.commands.cluster import Part
    from dynaweb.config import Recipe

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, or with the last one.")]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="What computes updates: torch, deepspeed, or fsdp.")
]
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        metavar="N",
        min=1,
        help="Processes that share the work, one for each GPU of this machine; default: 1.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check recipe and packages, print plan and estimate.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="MACHINE", help="With --dry-run: plan for another machine, such as 8xh100, a100 or laptop."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Place the run's processes over a Ray cluster, as [cluster] says: auto, HOST:PORT, or local.",
    ),
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME", help="The same as the argument RECIPE.", show_default=False)
]
Full = Annotated[bool, typer.Option("--full", help="End with all numbers, not only the sentence and the arms.")]
TimeBudget = Annotated[
    float | None, typer.Option("--time-budget", metavar="MINUTES", help="End the RL stage after so many minutes.")
]


@o.expanded
def run(
    ctx: typer.Context,
    options: o.WholeOptions,
    named: RecipeOption = None,
    out: o.Out = None,
    resume: Resume = False,
    time_budget: TimeBudget = None,
    observe: o.Observe = None,
    backend: Backend = None,
    nproc: Nproc = None,
    cluster: ClusterOption = None,
    dry_run: DryRun = False,
    on: On = None,
    full: Full = False,
) -> None:
    """Run a recipe: demonstrations, SFT, world model, reinforcement learning in dreams, evaluation, report."""
    from dynaweb.cli import ranks
    from dynaweb.runs.processes import placed

    if on and not dry_run:
        raise typer.BadParameter(f"--on {on} plans for another machine and runs nothing; give it with --dry-run")
    options = replace(options, recipe=_one_recipe(ctx, options.recipe, named))
    if ranks.helper():
        raise typer.Exit(ranks.serve())
    changed = options.changes or any(flag is not None for flag in (time_budget, observe, backend, cluster))
    picked = resume and out is None
    if picked and not changed:
        out = _last_run()
    # A run that is resumed without naming a recipe goes on by its own, with what else is said on top.
    saved = _saved(out, options.block) if resume and out and options.recipe == "dynaweb" else None
    recipe = options.resolved(saved, time_budget=time_budget, observe=observe, backend=backend, cluster=cluster)
    if picked:
        out = _picked(recipe, out)
    if dry_run:
        _plan(recipe, options, nproc or 0, on or "")
        return
    if recipe.cluster.address and not placed():
        if nproc is not None or ranks.launched():
            raise typer.BadParameter(
                f"cluster.address = {recipe.cluster.address} places the processes of the run by Ray; say how many by "
                "--set cluster.trainers=N, or leave the cluster out with --set cluster.address="
            )
        raise typer.Exit(_on_cluster(recipe, out, resume))
    if nproc is not None and nproc > 1 and not ranks.launched():
        raise typer.Exit(ranks.start(nproc, sys.argv[1:]))
    from dynaweb import api

    result = api.run(recipe, out=out, resume=resume, progress=True)
    options.emit(result, result.full if full else result.text)


def _one_recipe(ctx: typer.Context, recipe: str, named: str | None) -> str:
    """The recipe, which may be said as an argument or as an option, but not twice in two ways."""
    if named is None or named == recipe:
        return recipe
    source = ctx.get_parameter_source("recipe")
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(f"RECIPE {recipe} and --recipe {named} are two recipes; give one of the two")
    return named


def _on_cluster(recipe: Recipe, out: Path | None, resume: bool) -> int:
    """The same command as processes of a cluster, with the run folder that it has here; its exit code."""
    from dynaweb.commands.cluster import run_on_cluster
    from dynaweb.config.agreement import check_agreement
    from dynaweb.plugin.registry import current
    from dynaweb.runs.folder import choose_folder

    check_agreement(recipe, current())
    folder, begun = choose_folder(recipe, out=out, resume=resume)
    return run_on_cluster(recipe, sys.argv[1:], folder, resume=begun)


def _last_run() -> Path:
    from dynaweb.runs import last_run

    return last_run()


def _picked(recipe: Recipe, out: Path | None) -> Path:
    """The run that `--resume` goes on with where none was named; said before anything is done in it."""
    from dynaweb.runs.folder import RunFolder, choose_folder

    path, _ = choose_folder(recipe, out=out, resume=True)
    folder = RunFolder(path)
    status = folder.status if (path / "status.json").exists() else "not begun"
    how = "the run of this recipe and seed that was begun last" if out is None else "the run that was at work last"
    typer.echo(f"--resume goes on with {path}, {how} ({status}); name another with --out", err=True)
    return path


def _saved(out: Path, block: list[str] | None) -> Recipe:
    from dynaweb.runs import RunFolder

    o.load_plugins(block)
    return RunFolder(out).recipe()


def _plan(recipe: Recipe, options: o.WholeOptions, nproc: int, on: str) -> None:
    from dynaweb.commands.cluster import layout
    from dynaweb.estimate.refusals import examined
    from dynaweb.rl.ahead import order_of_work

    parts = layout(recipe) if recipe.cluster.address else []
    result = examined(recipe, nproc or (recipe.cluster.trainers if parts else 0), on, spread=bool(parts))
    estimate = result.estimate
    lacking = [str(error) for error in [*result.missing, *result.problems.plugins]]
    missing = list(dict.fromkeys(lacking))
    plan: dict[str, Any] = {
        "recipe": recipe.name,
        "settings": recipe.tree(),
        "origins": recipe.origins,
        "missing": missing,
    }
    plan |= {"sources": result.sources.plain(), "estimate": None if estimate is None else estimate.plain()}
    plan |= {"asynchronous": asynchronous} if (asynchronous := order_of_work(recipe)) else {}
    plan |= {"cluster": parts} if parts else {}
    unknown = f"No estimate: the size of {recipe.model.path} is known once its config.json is here"
    estimated = unknown if estimate is None else str(estimate)
    texts = [str(recipe), estimated, _layout_table(recipe, parts), asynchronous, str(result.sources)]
    if on and result.missing:
        texts.append("\n".join(["Not installed here, and needed there:", *(f"  {error}" for error in result.missing)]))
    options.emit(plan, "\n\n".join(text for text in texts if text))
    result.problems.check()


def _layout_table(recipe: Recipe, parts: list[Part]) -> str:
    """What is placed over a cluster; '' without one."""
    from dynaweb.cli.output import table

    if not parts:
        return ""
    rows = [(part.name, str(part.count), f"{part.cpus:g}", f"{part.gpus:g}", part.work) for part in parts]
    cpus, gpus = (sum(getattr(part, kind) * part.count for part in parts) for kind in ("cpus", "gpus"))
    rows.append(("in all", str(sum(part.count for part in parts)), f"{cpus:g}", f"{gpus:g}", ""))
    lines = table(("part", "processes", "CPUs of each", "GPUs of each", "work"), rows).splitlines()
    head = f"Layout over the Ray cluster {recipe.cluster.address} (one without GPUs gives none):"
    return "\n".join([head, *(f"  {line}" for line in lines)])
