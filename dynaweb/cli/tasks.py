"""`dynaweb tasks list|show`: the tasks of an environment."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o

tasks_app = typer.Typer(no_args_is_help=True, help="Tasks of an environment.", rich_markup_mode=None)

Split = Annotated[str, typer.Option("--split", help="pretrain, train, validation or test.")]
Count = Annotated[int, typer.Option("--count", min=1, help="How many tasks to draw.")]


@tasks_app.command("list")
def list_tasks(
    env: Annotated[str, typer.Option("--env", metavar="NAME", help="Environment that brings tasks.")] = "sites",
    split: Split = "train",
    count: Count = 24,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List tasks of a split."""
    from dynaweb.cli.output import plain, table

    tasks = _source(env, seed, block).tasks(_split(split), count=count, seed=seed)
    if as_json:
        typer.echo(json.dumps([plain(task) for task in tasks], indent=2, ensure_ascii=False))
        return
    rows = [(task.id, str(task.best_steps or "-"), task.start_url, task.intent) for task in tasks]
    typer.echo(table(("task", "best", "start", "goal"), rows))


@tasks_app.command("show")
def show(
    task_id: Annotated[str, typer.Argument(help="Id of a task, as `dynaweb tasks list` prints it.")],
    env: Annotated[str, typer.Option("--env", metavar="NAME", help="Environment that brings tasks.")] = "sites",
    split: Split = "train",
    count: Count = 240,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    block: o.Block = None,
    debug: o.Debug = False,
) -> None:
    """Print one task of a draw with its evaluation, as JSON."""
    from dynaweb.cli.output import plain
    from dynaweb.errors import ConfigError
    from dynaweb.suggest import hint

    tasks = {task.id: task for task in _source(env, seed, block).tasks(_split(split), count=count, seed=seed)}
    if task_id not in tasks:
        raise ConfigError(
            f"no task is called {task_id!r} among {count} of split {split!r} with seed {seed}; {hint(task_id, tasks)}"
        )
    typer.echo(json.dumps(plain(tasks[task_id]), indent=2, ensure_ascii=False))


def _split(name: str) -> str:
    from typing import get_args

    from dynaweb.errors import ConfigError
    from dynaweb.suggest import hint
    from dynaweb.types import Split as Known

    if name not in get_args(Known):
        raise ConfigError(f"no split is called {name!r}; {hint(name, get_args(Known))}")
    return name


def _source(env: str, seed: int, block: list[str] | None) -> Any:
    from dynaweb.errors import ConfigError
    from dynaweb.protocols import PluginContext, TaskSource

    source = o.load_plugins(block).create("env", env, {}, PluginContext(seed=seed))
    if not isinstance(source, TaskSource):
        raise ConfigError(f"environment {env!r} brings no tasks; try --env sites")
    return source
