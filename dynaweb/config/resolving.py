"""The way in: from a recipe's name and overrides to a checked `Recipe`, and back from a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.layers import KINDS, THOROUGH, Layers, flatten, parse_set, recipe_layers
from dynaweb.config.recipe import ORDER, SECTIONS, Recipe
from dynaweb.config.validate import ENGINE_ROLES, Problems, validate
from dynaweb.errors import ConfigError, hint

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.registry import Plugins

FLAGS: Mapping[str, str] = {
    "wm": "wm.name",
    "opt": "opt.name",
    "reward": "reward.name",
    "env": "env.name",
    "eval_env": "eval.env",
    "model": "model.path",
    "agent": "agent.kind",
    "seed": "run.seed",
    "time_budget": "run.time_budget",
    "observe": "run.observers",
    "backend": "backend.name",
    "cluster": "cluster.address",
}
"""What each flag of the command line sets."""

DEFAULT = "dynaweb"

Overrides = Mapping[str, Any] | Iterable[str]


def resolve(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    overrides: Overrides = (),
    thorough: bool = False,
    plugins: Plugins | None = None,
    **flags: Any,
) -> Recipe:
    """A checked recipe.

    `recipe` is a shipped name, the path of a TOML file, or a recipe to change. `overrides` maps dotted paths (or nested
    tables) to values, or holds `path=value` texts as `--set` takes them. `flags` are those of `FLAGS`; None counts as
    not given.

    Raises `ConfigError` with every problem found, or `MissingError`/`PluginError` when only plugins are at fault.
    """
    from dynaweb.plugin.registry import current

    plugins = plugins if plugins is not None else current()
    check_flags(flags, others=("recipe", "overrides"))
    problems = Problems()
    layers, name, description = _base(recipe, plugins)
    if thorough:
        chosen = layers.origins.get("controls.sft_steps", "default") != "default"
        wider = {path: value for path, value in THOROUGH.items() if path != "controls.sft_steps" or not chosen}
        layers.add(wider, dict.fromkeys(wider, "--thorough"))
    by_flag = {FLAGS[flag]: value for flag, value in flags.items() if value is not None}
    layers.add(by_flag, {FLAGS[flag]: f"--{flag.replace('_', '-')}" for flag in flags})
    values, origin = _overrides(overrides, problems)
    layers.add(values, dict.fromkeys(values, origin))
    return validate(name, description, layers, plugins, problems)


def check_flags(flags: Iterable[str], caller: str = "resolve", others: Iterable[str] = ()) -> None:
    """Raise `ConfigError` for a keyword that is none of `FLAGS` or of the caller's `others`, with the nearest one."""
    known = [*others, *FLAGS, "thorough", "plugins"]
    for flag in flags:
        if flag not in known:
            names = ", ".join(dict.fromkeys(known))
            raise ConfigError(f"{caller}() has no argument {flag!r}; {hint(flag, known)}. Its keywords are: {names}")


def _base(recipe: str | Path | Recipe, plugins: Plugins) -> tuple[Layers, str, str]:
    def tasks_of(env: str) -> str | None:
        return dreamed_tasks(plugins, env)

    if not isinstance(recipe, Recipe):
        layers, description = recipe_layers(recipe, tasks_of)
        return layers, Path(recipe).stem, description
    values = recipe.flat()
    origins = {path: recipe.origins.get(path, "default") for path in values}
    return Layers(values, origins, tasks_of, dict(recipe.needs)), recipe.name, recipe.description


def real_environment(recipe: str | Path | Recipe = DEFAULT, *, plugins: Plugins | None = None) -> str:
    """The environment that a recipe's tasks are of: its own, or the one that it dreams of."""
    from dynaweb.plugin.registry import current

    plugins = plugins if plugins is not None else current()
    env = resolve(recipe, plugins=plugins).env
    dreams = dreamed_tasks(plugins, env.name)
    return env.name if dreams is None else str(getattr(env.config, "tasks", dreams))


def dreamed_tasks(plugins: Plugins, env: str) -> str | None:
    """Whose tasks an environment dreams of by default; None for one that does not dream, or is not there."""
    plugin = plugins.offers.get(("env", env))
    if plugin is None or "dreams" not in plugin.spec.capabilities:
        return None
    tasks = plugin.spec.config.model_fields.get("tasks")
    return str(tasks.default) if tasks is not None else None


def _overrides(overrides: Overrides, problems: Problems) -> tuple[dict[str, Any], str]:
    if isinstance(overrides, Mapping):
        return dict(flatten(overrides)), "overrides"
    values, texts = parse_set([overrides] if isinstance(overrides, str) else overrides)
    problems.texts += texts
    return values, "--set"


def restore(saved: Mapping[str, Any], *, plugins: Plugins | None = None) -> Recipe:
    """The recipe that `RunFolder` saved: `{"name", "description", "settings", "origins"}`.

    Secrets are not in it; `resolve` refuses a recipe that still lacks one. Raises `ConfigError` when a setting is no
    longer valid in this version of dynaweb.
    """
    from dynaweb.plugin.registry import current

    values = dict(flatten(saved["settings"]))
    origins = {path: str(saved.get("origins", {}).get(path, "run folder")) for path in values}
    plugins = plugins if plugins is not None else current()
    name, description = str(saved["name"]), str(saved.get("description", ""))
    return validate(name, description, Layers(values, origins), plugins, Problems(), whole=False)


def schema(plugins: Plugins, *, chosen: Mapping[Kind, str] | None = None) -> dict[str, Any]:
    """JSON schema of a recipe file, with every plugin's settings, or those of the `chosen` plugins only."""
    properties: dict[str, Any] = {name: model.model_json_schema() for name, model in SECTIONS.items()}
    for kind in KINDS:
        names = plugins.names(kind)
        wanted = [name for name in names if not chosen or chosen.get(kind, name) == name]
        properties[kind] = {"oneOf": [_plugin_schema(plugins, kind, name) for name in wanted]}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    header: dict[str, Any] = {"extends": {"type": "string"}, "description": {"type": "string"}, "needs": texts}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dynaweb recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": header | {name: properties[name] for name in ORDER},
    }


def _plugin_schema(plugins: Plugins, kind: Kind, name: str) -> dict[str, Any]:
    spec = plugins.find(kind, name).spec
    body = spec.config.model_json_schema()
    body["description"] = spec.summary
    engine = {"engine": {"type": "object"}} if kind in ENGINE_ROLES else {}
    body["properties"] = {"name": {"const": name}, **engine, **body.get("properties", {})}
    body["required"] = ["name", *body.get("required", [])]
    return body
