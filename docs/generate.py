"""Writes `recipes.md` (settings), `cli.md` (commands), `hooks.md` (hooks) and `api.md` (Python) from the code.

    python docs/generate.py

A test compares the files with what this script would write.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dynaweb.hookspecs import Kind

DOCS = Path(__file__).resolve().parent
WIDTH = 110
KINDS: dict[Kind, str] = {
    "wm": "World model",
    "opt": "Policy optimizer",
    "reward": "Reward judge",
    "env": "Environment",
    "observer": "Observer",
    "engine": "Engine",
}
TABLES: dict[Kind, str] = {"engine": "policy.engine"}
"""Where a plugin of a kind is chosen, when that is no section of its own."""
NOTE = "<!-- Written by docs/generate.py from the code; change the docstrings there and run it again. -->"


def main() -> None:
    """Write the files."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name to content."""
    return {"recipes.md": recipes(), "cli.md": command_line(), "hooks.md": hooks(), "api.md": api()}


def recipes() -> str:
    """Every section and setting of a recipe, and those of the plugins that come with the package."""
    from dynaweb.config.recipe import SECTIONS

    parts = [NOTE, _RECIPES_INTRO, "## Shipped recipes", _shipped(), "## Sections"]
    for name, section in SECTIONS.items():
        parts += [f"### `[{name}]`", _own(section), _table(section)]
    parts += ["## Plugins", _PLUGINS_INTRO]
    for kind, spec in _first_party():
        config = spec.config or BaseModel
        parts += [
            f'### `[{TABLES.get(kind, kind)}]` with `name = "{spec.name}"`',
            f"{KINDS[kind]}: {spec.summary}.",
            _table(config),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command_line() -> str:
    """The help of every command."""
    from dynaweb.cli.app import tree

    parts = [NOTE, _CLI_INTRO]
    for path, text in _helps(typer.main.get_command(tree()), "dynaweb", None):
        parts += [f"## `{path}`", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """Every call of `import dynaweb` with its signature, and the keywords that stand for flags."""
    import dynaweb
    from dynaweb.config.resolving import FLAGS

    rows = [f"| `{flag}` | `{path}` |" for flag, path in FLAGS.items()]
    flags = "\n".join(["| keyword | setting |", "| --- | --- |", *rows])
    parts = [NOTE, _API_INTRO, flags, _API_MORE]
    calls = {name: getattr(dynaweb, name) for name in dynaweb.__all__ if name != "__version__"}
    training = {name: call for name, call in calls.items() if "progress" in inspect.signature(call).parameters}
    tools = {name: call for name, call in calls.items() if name not in (*training, "resolve")}
    chapters = {"Recipes": {"resolve": calls["resolve"]}, "Training and evaluation": training, "Tools": tools}
    for title, chapter in chapters.items():
        parts += [f"## {title}", *_calls(chapter)]
    return "\n\n".join(parts) + "\n"


def _calls(chapter: dict[str, Any]) -> Iterator[str]:
    for name, call in chapter.items():
        yield f"### `dynaweb.{name}`"
        yield f"```text\n{_signature(name, call)}\n```"
        yield inspect.cleandoc(call.__doc__ or "")


def _signature(name: str, call: Any) -> str:
    """On one line where that is short, else an argument a line; annotations as they are written."""
    given, starred = list[str](), False
    for one in inspect.signature(call).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            given.append("*")
            starred = True
        stars = "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {one.default!r}"
        given.append(f"{stars}{one.name}: {one.annotation}{default}")
    result = inspect.signature(call).return_annotation
    line = f"{name}({', '.join(given)}) -> {result}"
    return line if len(line) <= WIDTH else "\n".join([f"{name}(", *(f"    {one}," for one in given), f") -> {result}"])


def hooks() -> str:
    """Every hook with its argument, and every event with its fields."""
    from dynaweb import events, hookspecs
    from dynaweb.plugin.discovery import hook_names

    parts = [NOTE, _HOOKS_INTRO, "## Registration", *_hooks(hookspecs, hook_names(), observers=False)]
    parts += ["## Observers", _OBSERVERS_INTRO, *_hooks(hookspecs, hook_names(), observers=True)]
    parts += ["## Events"]
    for name, event in vars(events).items():
        if inspect.isclass(event) and event.__module__ == events.__name__:
            rows = [f"| `{field.name}` | `{_bar(str(field.type))}` |" for field in dataclasses.fields(event)]
            table = "\n".join(["| field | type |", "| --- | --- |", *rows])
            parts += [f"### `{name}`", inspect.cleandoc(event.__doc__ or ""), table]
    parts += ["## `PluginSpec`", inspect.cleandoc(hookspecs.PluginSpec.__doc__ or "")]
    rows = [f"| `{field.name}` | `{_bar(str(field.type))}` |" for field in dataclasses.fields(hookspecs.PluginSpec)]
    return "\n\n".join([*parts, "\n".join(["| field | type |", "| --- | --- |", *rows])]) + "\n"


def _hooks(module: Any, names: list[str], *, observers: bool) -> Iterator[str]:
    for name in names:
        hook = getattr(module, name)
        signature = str(inspect.signature(hook)).replace("'", "")
        if ("event" in signature) == observers:
            yield f"### `{name}{signature}`"
            yield inspect.cleandoc(hook.__doc__ or "")


def _shipped() -> str:
    from dynaweb.config.layers import recipe_layers, shipped_recipes

    rows = [f"| `{name}` | {recipe_layers(name)[1]} |" for name in shipped_recipes()]
    return "\n".join(["| recipe | what it is |", "| --- | --- |", *rows])


def _first_party() -> Iterator[tuple[Kind, Any]]:
    from dynaweb.plugin import registry as plugins

    loaded = plugins.load(warn=False)
    for kind in KINDS:
        own = (one.name for one in loaded.statuses() if (one.package, one.kind) == ("dynaweb", kind))
        for name in sorted(own):
            yield kind, loaded.find(kind, name).spec


def _plugin_title(kind: Kind, name: str) -> str:
    if kind == "observer":
        return f"### `[run.observer_settings.{name}]`"
    return f'### `[{kind}]` with `name = "{name}"`'


def _table(model: type[BaseModel]) -> str:
    if not model.model_fields:
        return "No settings."
    return "\n".join(["| setting | type | default | meaning |", "| --- | --- | --- | --- |", *_rows(model)])


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    meanings = _docstrings(model)
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _rows(inner, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {_type(field)} | {_default(field)} | {_cell(meanings[name])} |"


def _own(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "")


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string that stands below each field, inherited ones too. Raises `KeyError` later for a field without one."""
    bases = [base for base in reversed(model.__mro__) if issubclass(base, BaseModel) and base is not BaseModel]
    return {name: text for base in bases for name, text in _own_docstrings(base).items()}


def _own_docstrings(model: type[BaseModel]) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def _type(field: FieldInfo) -> str:
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_alternative(part) for part in get_args(kind))
    kind = _bare(kind)
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    if text.startswith("typing.Literal"):
        text = text.removeprefix("typing.Literal").strip("[]").replace("'", '"')
    limits = [f"{sign} {value}" for sign, value in _limits(field)]
    return f"`{_bar(text.replace('typing.', ''))}`" + (f", {' and '.join(limits)}" if limits else "")


def _bare(kind: Any) -> Any:
    """A type without the notes of its parts: `tuple[str, ...]` of `tuple[Annotated[str, ...], ...]`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if isinstance(kind, GenericAlias):
        return GenericAlias(get_origin(kind), tuple(map(_bare, get_args(kind))))
    return kind


def _alternative(kind: Any) -> str:
    """One type of a union: a plain type, a literal, or a type with limits."""
    if kind is NoneType:
        return "none"
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        limits = [f"{sign} {value}" for note in notes for sign, value in _limits(note)]
        return f"`{inner.__name__}`" + (f", {' and '.join(limits)}," if limits else "")
    return f"`{_bar(', '.join(map(json.dumps, get_args(kind))) if get_origin(kind) is Literal else kind.__name__)}`"


def _limits(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        for limit in field.metadata:
            if getattr(limit, name, None) is not None:
                yield sign, getattr(limit, name)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "needed"
    return "none" if value is None else f"`{_bar(json.dumps(value))}`"


def _cell(text: str) -> str:
    return _bar(text)


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _helps(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield path, command.get_help(context)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _helps(command.get_command(context, name), f"{path} {name}", context)


_RECIPES_INTRO = """# Recipes

A recipe is a TOML file. It names a plugin of each kind (`[wm]`, `[opt]`, `[reward]`, `[env]`) with its settings, and
sets whatever else differs from the defaults. `extends` names the recipe that it starts from, `description` says what it
is. Later wins: defaults, the recipes that it extends, the file itself, `--set`, flags. `dynaweb config show RECIPE`
prints every value and where it comes from; `dynaweb config schema` prints all of this as a JSON schema."""
_PLUGINS_INTRO = """Settings of the plugins that come with the package. Other packages bring their own; `dynaweb config
schema` knows them."""
_HOOKS_INTRO = """# Hooks

A plugin's module implements hooks by functions with these names, marked with `dynaweb.hookspecs.hookimpl`.
[plugins.md](plugins.md) shows how to write one."""
_OBSERVERS_INTRO = """Each takes one frozen event. An observer that raises is reported once with its name, and the run
goes on, unless `DYNAWEB_STRICT=1`."""
_API_INTRO = """# The Python API

What `import dynaweb` offers. Nothing heavy is imported before a call needs it. Calls that take a `recipe` take a
shipped name, the path of a TOML file, or a resolved `Recipe`; `overrides` maps dotted paths to values, or holds texts
as `--set` takes them; `out` is the run folder; `progress=True` draws progress on stderr. Results print well, and hold
their numbers as attributes. Errors are those of `dynaweb.errors`, each with the exit code of the command line as
`exit_code`. `**flags` are:"""
_API_MORE = """Besides: `thorough=True` for 360 held-out episodes and all control arms, and `plugins`, those to use
instead of `dynaweb.plugin.registry.current()`. Any other keyword is a `ConfigError` that names the nearest."""
_CLI_INTRO = """# The command line

stdout is data, stderr is progress. Exit codes: 0 done, 1 the run failed, 2 usage or configuration, 3 a plugin or
dependency is missing, 130 interrupted with state saved."""


if __name__ == "__main__":
    main()
