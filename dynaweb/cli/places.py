"""`dynaweb play` and `dynaweb env serve`: environments for people and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli import options as o
from dynaweb.cli.tasks import Split, checked_split, showing_progress

env_app = typer.Typer(no_args_is_help=True, help="Environments for other programs.", rich_markup_mode=None)

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
    from dynaweb.loop.running import run_async
    from dynaweb.serve import terminal
    from dynaweb.serve.place import Place

    resolved = _real(recipe, locals()) if env is None else o.resolved(recipe, locals())
    place = Place(resolved, world_model=world_model)
    chosen = _chosen(place, split, task)

    async def game() -> terminal.Played:
        try:
            return await terminal.play(
                place,
                chosen,
                max_steps=steps or resolved.eval.steps,
                seed=resolved.run.seed,
                say=lambda text: typer.echo(text, err=as_json),
                ask=_asked_aside if as_json else input,
            )
        finally:
            await place.close()

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
    world_model: WorldModel = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    block: o.Block = None,
    debug: o.Debug = False,
) -> None:
    """Offer an environment, dreams included, to clients of OpenEnv, such as TRL."""
    from importlib.util import find_spec

    from dynaweb.errors import MissingError

    if find_spec("openenv") is None:
        raise MissingError("serving needs the package openenv-core: pip install 'dynaweb[openenv]'")
    resolved = o.resolved(recipe, {**locals(), "env": name})
    if split is not None:
        checked_split(split, None)
    from dynaweb.serve import openenv

    openenv.check_port(host, port)
    with showing_progress():
        shared = openenv.Shared(resolved, split=split or "", tasks=tasks, max_steps=steps, world_model=world_model)
    typer.echo(f"{name} ({len(shared.tasks)} tasks) on http://{host}:{port}; Ctrl-C ends it", err=True)
    openenv.serve(shared, name=name, host=host, port=port, sessions=sessions)


@env_app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="browsergym, browsergym-webarenalite, libwebarena or webarena-verified.")],
    debug: o.Debug = False,
) -> None:
    """Install packages whose pins clash with everybody's into an environment of their own."""
    from dynaweb import sidecar
    from dynaweb.errors import ConfigError
    from dynaweb.suggest import hint

    if name not in sidecar.SIDECARS:
        raise ConfigError(f"no such environment: {name!r}; {hint(name, sidecar.SIDECARS)}")
    typer.echo(f"installing {sidecar.SIDECARS[name].summary}...", err=True)
    typer.echo(sidecar.install(name))


def _asked_aside(prompt: str) -> str:
    """A line of the terminal; the prompt goes to stderr, because stdout is for the result."""
    typer.echo(prompt, err=True, nl=False)
    return input()


def _real(recipe: str, arguments: dict[str, Any]) -> Any:
    """The recipe in the real environment that its tasks are of; settings may be meant for the one or the other."""
    from dynaweb.config import resolve
    from dynaweb.config.layers import TASK_SETTINGS
    from dynaweb.config.resolving import real_environment
    from dynaweb.errors import ConfigError

    try:
        given = o.resolved(recipe, arguments)
    except ConfigError:
        if any(str(text).startswith(f"{TASK_SETTINGS}.") for text in arguments["sets"] or ()):
            raise  # of the dream
        return o.resolved(recipe, {**arguments, "env": real_environment(recipe)})
    return resolve(given, env=real_environment(given))


def _chosen(place: Any, split: str | None, wanted: str | None) -> Any:
    """A task by id or number; the first of the split where none is named."""
    from dynaweb.loop.tasks import known, named

    with showing_progress():
        name = checked_split(split, place.source)
        if wanted is None:
            return place.tasks(name, 1)[0]
        count = min(int(wanted) + 1, MOST) if wanted.isdecimal() else DRAWN
        return known(place.source, wanted) or named(wanted, place.tasks(name, count))


DRAWN = 240
"""Tasks among which an id is looked up."""
MOST = 10_000
"""Tasks that are drawn for a number, at most."""
