"""`dynaweb tasks list|show`: the tasks of an environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o

tasks_app = o.group("Tasks of an environment.")

Split = Annotated[
    str | None,
    typer.Option("--split", help="pretrain, train, validation or test; default: train, or test of a benchmark."),
]
Env = Annotated[str, typer.Option("--env", metavar="NAME", help="Environment that brings tasks.")]
DrawSeed = Annotated[int, typer.Option("--seed", help="Seed of the draw.")]
DRAWN = 24
"""Tasks that are drawn from environments that could make any number of them."""


@tasks_app.command("list")
def list_tasks(
    env: Env = "sites",
    split: Split = None,
    count: Annotated[
        int, typer.Option("--count", min=0, help="How many tasks to draw; 0 = all, or 24 where there is no end.")
    ] = 0,
    seed: DrawSeed = 0,
    sets: o.Set = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List tasks of a split, with counts by site and by kind."""
    from dynaweb.cli.output import print_json, table
    from dynaweb.observers.progress import showing_progress
    from dynaweb.plugin.registry import current
    from dynaweb.protocols import Catalogue

    with showing_progress(current()):
        source = _source(env, sets, block)
        split = checked_split(split, source)
        tasks = source.tasks(split, count=count, seed=seed) if count else _all(source, split, DRAWN, seed)
    if as_json:
        print_json(list(tasks))
        return
    rows = [(task.id, str(task.best_steps or "-"), task.start_url, task.intent) for task in tasks]
    typer.echo(table(("task", "best", "start", "goal"), rows))
    skipped = source.skipped(split) if isinstance(source, Catalogue) else {}
    typer.echo("\n" + "\n".join(_counts(tasks, skipped)))


@tasks_app.command("show")
def show(
    task_id: Annotated[str, typer.Argument(help="Id of a task, as `dynaweb tasks list` prints it.")],
    env: Env = "sites",
    split: Split = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many tasks to draw.")] = 240,
    seed: DrawSeed = 0,
    sets: o.Set = None,
    block: o.Block = None,
    debug: o.Debug = False,
) -> None:
    """Print one task with its evaluation, as JSON: of a draw, or any whose id says all of it."""
    from dynaweb.cli.output import print_json
    from dynaweb.observers.progress import showing_progress
    from dynaweb.plugin.registry import current
    from dynaweb.rollout.tasks import known, named

    with showing_progress(current()):
        source = _source(env, sets, block)
        split = checked_split(split, source)
        task = known(source, task_id) or named(task_id, _all(source, split, count, seed))
    print_json(task)


def checked_split(name: str | None, source: object) -> str:
    """The name of a split, by default what a source means. Raises `ConfigError` for any other."""
    from typing import get_args

    from dynaweb.errors import ConfigError, hint
    from dynaweb.rollout.tasks import default_split
    from dynaweb.types import Split as Known

    name = name or default_split(source)
    if name not in get_args(Known):
        raise ConfigError(f"no split is called {name!r}; {hint(name, get_args(Known))}")
    return name


def _all(source: Any, split: str, count: int, seed: int) -> Any:
    """Every task of a split, or `count` of them where there is no end."""
    from dynaweb.protocols import Catalogue

    return source.catalogue(split) if isinstance(source, Catalogue) else source.tasks(split, count=count, seed=seed)


def _counts(tasks: Any, skipped: Any) -> Iterable[str]:
    from dynaweb.stages.evaluate import kind_name, site_name

    yield f"{len(tasks)} tasks"
    for head, name in (("by site", site_name), ("by kind", kind_name)):
        counts = Counter(map(name, tasks))
        yield f"{head}: " + ", ".join(f"{key} {number}" for key, number in sorted(counts.items()))
    for why, number in skipped.items():
        yield f"skipped: {number} ({why})"


def _source(env: str, sets: list[str] | None, block: list[str] | None) -> Any:
    from dynaweb.config import resolve
    from dynaweb.errors import ConfigError
    from dynaweb.protocols import EnvironmentContext, TaskSource

    plugins = o.load_plugins(block)
    recipe = resolve(env=env, overrides=sets or ())
    if "tasks" not in plugins.find("env", env).spec.capabilities:
        raise ConfigError(f"environment {env!r} brings no tasks of its own; try --env sites")
    source = plugins.create("env", env, recipe.env.config, EnvironmentContext(web=recipe.web))
    if not isinstance(source, TaskSource):
        raise ConfigError(f"environment {env!r} brings no tasks; try --env sites")
    return source
