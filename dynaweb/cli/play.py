"""`dynaweb play` and `dynaweb env serve`: environments for people and for other programs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynaweb.cli import options as o
from dynaweb.cli.tasks import Split, checked_split

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.serve.environment import ServedEnvironment
    from dynaweb.types import Task

env_app = o.group("Environments for other programs.")

Steps = Annotated[int, typer.Option("--steps", min=0, help="Longest episode; 0 = eval.steps of the recipe.")]
WorldModel = Annotated[
    Path | None,
    typer.Option("--world-model", metavar="DIR", help="Weights that dream, with --env dream; default: the base model."),
]
PlayEnv = Annotated[
    str | None,
    typer.Option("--env", metavar="NAME", help="Environment; default: the real one that the recipe's tasks are of."),
]


def play(
    task: Annotated[str | None, typer.Argument(help="Id or number of a task; default: the first.")] = None,
    recipe: Annotated[str, typer.Option("--recipe", help="A shipped recipe, or the path of a TOML file.")] = "dynaweb",
    env: PlayEnv = None,
    split: Split = None,
    steps: Steps = 0,
    world_model: WorldModel = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    block: o.Block = None,
    as_json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Play a task yourself: the page is printed, your lines are the actions. With --env dream, in a dream."""
    from dynaweb.cli.output import print_json
    from dynaweb.pipeline.session import run_async
    from dynaweb.serve import terminal
    from dynaweb.serve.environment import ServedEnvironment

    options = o.RecipeOptions(recipe=recipe, env=env, seed=seed, sets=sets, block=block)
    resolved = _in_the_real_environment(options) if env is None else options.resolved()
    served = ServedEnvironment(resolved, world_model=world_model)
    chosen = _chosen(served, split, task)

    async def game() -> terminal.Played:
        try:
            return await terminal.play(
                served,
                chosen,
                max_steps=steps or resolved.eval.steps,
                seed=resolved.run.seed,
                say=lambda text: typer.echo(text, err=as_json),
                ask=o.line_by_stderr if as_json else input,
            )
        finally:
            await served.close()

    played = run_async(game())
    if as_json:
        print_json(played)
    elif played.finished:
        score = "not graded" if played.score is None else f"{played.score:g}"
        typer.echo(f"\nscore {score} after {played.steps} steps{f' ({played.why})' if played.why else ''}")
    else:
        typer.echo(f"\ngiven up after {played.steps} steps")


@env_app.command("serve")
def serve(
    name: Annotated[str, typer.Argument(help="Environment, such as sites, miniwob or dream.")],
    recipe: Annotated[str, typer.Option("--recipe", help="A shipped recipe, or the path of a TOML file.")] = "dynaweb",
    split: Split = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="How many tasks are drawn; a seed chooses one.")] = 64,
    steps: Steps = 0,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Clients that may play at once.")] = 8,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000,
    idle: Annotated[
        float, typer.Option("--idle", min=0, metavar="SECONDS", help="Silence that ends a session; 0 = none does.")
    ] = 900.0,
    world_model: WorldModel = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    block: o.Block = None,
    debug: o.Debug = False,
) -> None:
    """Offer an environment, dreams included, to clients of OpenEnv, such as TRL.

    On another --host than this machine's own, each call needs a token: that in DYNAWEB_SERVE_TOKEN, or a new one.
    """
    from importlib.util import find_spec

    from dynaweb.errors import MissingError

    if find_spec("openenv") is None:
        raise MissingError("serving needs the package openenv-core: pip install 'dynaweb[openenv]'")
    resolved = o.RecipeOptions(recipe=recipe, env=name, seed=seed, sets=sets, block=block).resolved()
    if split is not None:
        checked_split(split, None)
    from dynaweb.observers.progress import showing_progress
    from dynaweb.plugin.registry import current
    from dynaweb.serve import openenv
    from dynaweb.serve.gate import is_local

    openenv.check_port(host, port)
    with showing_progress(current()):
        shared = openenv.Shared(resolved, split=split or "", tasks=tasks, max_steps=steps, world_model=world_model)
    token = "" if is_local(host) else serving_token()
    typer.echo(f"{name} ({len(shared.tasks)} tasks) on http://{host}:{port}; Ctrl-C ends it", err=True)
    openenv.serve(shared, name=name, host=host, port=port, sessions=sessions, token=token, idle=idle)


@env_app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="browsergym, browsergym-webarenalite, libwebarena or webarena-verified.")],
    debug: o.Debug = False,
) -> None:
    """Install packages whose pins clash with everybody's into an environment of their own."""
    from dynaweb import api
    from dynaweb.runs import sidecar

    if name in sidecar.SIDECARS:
        typer.echo(f"installing {sidecar.SIDECARS[name].summary}...", err=True)
    typer.echo(str(api.install_environment(name)))


def serving_token() -> str:
    """What clients must send: from the environment, else a new one, which is said once."""
    import secrets

    from dynaweb.masking import remember

    if token := os.environ.get("DYNAWEB_SERVE_TOKEN", "").strip():
        remember(token)
        return token
    token = secrets.token_urlsafe(24)
    typer.echo(f"clients send `Authorization: Bearer {token}`, or have it as the password of the address", err=True)
    return token


def _in_the_real_environment(options: o.RecipeOptions) -> Recipe:
    """The recipe in the real environment that its tasks are of; settings may be meant for the one or the other."""
    from dynaweb.config import resolve
    from dynaweb.config.layers import TASK_SETTINGS
    from dynaweb.config.resolving import real_environment
    from dynaweb.errors import ConfigError

    try:
        recipe = options.resolved()
    except ConfigError:
        if any(str(text).startswith(f"{TASK_SETTINGS}.") for text in options.sets or ()):
            raise  # of the dream
        return replace(options, env=real_environment(options.recipe)).resolved()
    return resolve(recipe, env=real_environment(recipe))


def _chosen(served: ServedEnvironment, split: str | None, wanted: str | None) -> Task:
    """A task by id or number; the first of the split where none is named."""
    from dynaweb.observers.progress import showing_progress
    from dynaweb.plugin.registry import current
    from dynaweb.rollout.tasks import known, named

    with showing_progress(current()):
        name = checked_split(split, served.source)
        if wanted is None:
            return served.tasks(name, 1)[0]
        count = min(int(wanted) + 1, MOST) if wanted.isdecimal() else DRAWN
        return known(served.source, wanted) or named(wanted, served.tasks(name, count))


DRAWN = 240
"""Tasks among which an id is looked up."""
MOST = 10_000
"""Tasks that are drawn for a number, at most."""
