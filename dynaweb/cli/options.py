"""Options that several commands share, each once: as a type, and in groups that commands take as one parameter.

A command with a parameter of a group has all options of that group (`expanded`). From the command line to the recipe it
is one way: `--wm` is `WholeOptions.wm`, which `RecipeOptions.resolved` hands to `dynaweb.config.resolve`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dynaweb.cli.process import DEBUG

if TYPE_CHECKING:
    from dynaweb import config
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.registry import Plugins


def _debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta[DEBUG] = True
    return value


def named_plugins(kind: Kind) -> Callable[[str], list[str]]:
    """What completes the name of a plugin in a shell."""

    def complete(incomplete: str) -> list[str]:
        from dynaweb.plugin import registry

        return [name for name in registry.load(warn=False).names(kind) if name.startswith(incomplete)]

    return complete


def named_recipes(incomplete: str) -> list[str]:
    """What completes a recipe in a shell: those that are shipped, and files."""
    from dynaweb.config.layers import shipped_recipes

    files = (str(path) for path in Path().glob("*.toml"))
    return [name for name in (*shipped_recipes(), *files) if name.startswith(incomplete)]


Recipe = Annotated[
    str,
    typer.Argument(
        help="A shipped recipe, or the path of a TOML file.", show_default=True, autocompletion=named_recipes
    ),
]
Wm = Annotated[
    str | None, typer.Option("--wm", metavar="NAME", help="World model.", autocompletion=named_plugins("wm"))
]
Opt = Annotated[
    str | None, typer.Option("--opt", metavar="NAME", help="Policy optimizer.", autocompletion=named_plugins("opt"))
]
Reward = Annotated[
    str | None, typer.Option("--reward", metavar="NAME", help="Reward judge.", autocompletion=named_plugins("reward"))
]
Env = Annotated[
    str | None, typer.Option("--env", metavar="NAME", help="Environment.", autocompletion=named_plugins("env"))
]
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
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="WHO", help="Successes only: checked by the environment, or judged by a judge."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random choice.")]
Thorough = Annotated[bool, typer.Option("--thorough", help="360 held-out episodes at least, and all control arms.")]
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


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What nearly every command has."""

    block: Block = None
    as_json: Json = False
    debug: Debug = False

    def emit(self, result: object, text: str | None = None) -> None:
        """Print a result on stdout: as text (by default its own), or with --json as plain data."""
        from dynaweb.cli.output import emit

        emit(result, text, as_json=self.as_json)


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(CommonOptions):
    """A recipe with what the command line changes of it; a command that lacks an option leaves it at None."""

    recipe: Recipe = "dynaweb"
    env: Env = None
    model: Model = None
    seed: Seed = None
    sets: Set = None

    def resolved(
        self,
        base: config.Recipe | None = None,
        *,
        first: tuple[str, ...] = (),
        last: tuple[str, ...] = (),
        **flags: Any,
    ) -> config.Recipe:
        """The recipe that is asked for, or `base` changed likewise. Loads the plugins.

        `first` and `last` are settings before and after those of `--set`; `flags` are those of
        `dynaweb.config.resolving.FLAGS` that only some commands have.
        """
        from dynaweb.config import resolve

        load_plugins(self.block)
        return resolve(
            self.recipe if base is None else base,
            overrides=[*first, *(self.sets or ()), *last],
            env=self.env,
            model=self.model,
            seed=self.seed,
            **flags,
        )


@dataclass(frozen=True, kw_only=True)
class StageOptions(RecipeOptions):
    """A recipe and the folder that its results go to."""

    out: Out = None


@dataclass(frozen=True, kw_only=True)
class WholeOptions(RecipeOptions):
    """A recipe with all that a whole run may change of it."""

    wm: Wm = None
    opt: Opt = None
    reward: Reward = None
    eval_env: EvalEnv = None
    agent: Agent = None
    thorough: Thorough = False

    @property
    def changes(self) -> bool:
        """Whether the command line says which recipe, plugin, model or seed is meant."""
        flags = (self.wm, self.opt, self.reward, self.env, self.eval_env, self.model, self.agent, self.seed)
        return any(flag is not None for flag in flags) or self.thorough or self.recipe != "dynaweb"

    def resolved(self, base: config.Recipe | None = None, **flags: Any) -> config.Recipe:
        """As of every recipe, with these flags besides."""
        return super().resolved(
            base,
            wm=self.wm,
            opt=self.opt,
            reward=self.reward,
            eval_env=self.eval_env,
            agent=self.agent,
            thorough=self.thorough,
            **flags,
        )


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take a group of options as one parameter: the command line sees the group's fields instead."""
    hints = get_type_hints(command, include_extras=True)
    parameters, groups, own = list[inspect.Parameter](), dict[str, type[Any]](), set[str]()
    for name, parameter in inspect.signature(command).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            own.add(name)
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        groups[name] = hints[name]
        fields = get_type_hints(hints[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=fields[field.name],
            )
            for field in dataclasses.fields(hints[name])
        ]

    @wraps(command)
    def call(**values: Any) -> None:
        options = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**values, **options)

    # Help shows what is a command's own first, and last what every command has.
    common = [field.name for field in dataclasses.fields(CommonOptions)]
    parameters.sort(key=lambda one: (one.name in common) - (one.name in own))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def line_by_stderr(prompt: str) -> str:
    """A line of the terminal; the prompt goes to stderr, because stdout is for the result."""
    typer.echo(prompt, err=True, nl=False)
    return input()


def group(help: str) -> typer.Typer:
    """An empty group of commands; without a command it prints its help. Rich costs a third of the start-up time."""
    return typer.Typer(no_args_is_help=True, help=help, rich_markup_mode=None)


def load_plugins(block: list[str] | None, *, warn: bool = True) -> Plugins:
    """The plugins without the blocked ones."""
    from dynaweb.plugin import registry as plugins

    return plugins.load(block=plugins.parse_blocks(block or ()), warn=warn)
