"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dynaweb.cli.process import DEBUG


def _debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta[DEBUG] = True
    return value


Recipe = Annotated[str, typer.Argument(help="A shipped recipe, or the path of a TOML file.", show_default=True)]
Wm = Annotated[str | None, typer.Option("--wm", metavar="NAME", help="World model.")]
Opt = Annotated[str | None, typer.Option("--opt", metavar="NAME", help="Policy optimizer.")]
Reward = Annotated[str | None, typer.Option("--reward", metavar="NAME", help="Reward judge.")]
Env = Annotated[str | None, typer.Option("--env", metavar="NAME", help="Environment.")]
EvalEnv = Annotated[
    str | None, typer.Option("--eval-env", metavar="NAME", help="Environment of the evaluation, if it is another one.")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help="Language model: `tiny`, a folder, or a hub name.")
]
Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="KIND", help="At evaluation: direct, or lookahead in a world model."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random choice.")]
Thorough = Annotated[bool, typer.Option("--thorough", help="360 held-out episodes and all control arms.")]
Observe = Annotated[
    list[str] | None,
    typer.Option("--observe", metavar="NAME", help="Tell an observer, such as tensorboard or wandb. Repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change one setting, such as rl.updates=20. Repeatable."),
]
Block = Annotated[
    list[str] | None, typer.Option("-p", metavar="no:NAME", help="Leave a plugin or a package out. Repeatable.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the results.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_debug)]


def resolved(recipe: Any, arguments: dict[str, Any]) -> Any:
    """The recipe that a command's arguments (its `locals()`) ask for. Loads the plugins."""
    from dynaweb.config import resolve

    load_plugins(arguments.get("block"))
    thorough = arguments.get("thorough", False)
    return resolve(recipe, overrides=arguments["sets"] or (), thorough=thorough, **flags(arguments))


def flags(arguments: dict[str, Any]) -> dict[str, Any]:
    """The flags of recipes that were given, among a command's arguments."""
    # Not for `--help`: this brings the whole configuration along.
    from dynaweb.config.resolving import FLAGS

    return {name: arguments[name] for name in FLAGS if arguments.get(name) is not None}


def load_plugins(block: list[str] | None, *, warn: bool = True) -> Any:
    """The plugins without the blocked ones."""
    from dynaweb import plugins

    return plugins.load(block=plugins.parse_blocks(block or ()), warn=warn)
