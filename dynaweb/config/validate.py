"""From merged values to a checked `Recipe`: every problem is found and told at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from dynaweb.config.keys import code_of
from dynaweb.config.layers import KINDS, Layers, flatten
from dynaweb.config.recipe import ORDER, SECTIONS, Choice, Recipe
from dynaweb.config.sections import EngineChoice
from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError, hint
from dynaweb.hookspecs import CORE_FORMATS
from dynaweb.masking import is_masked, secret_paths

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    from dynaweb.config.sections import Eval, Run
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.discovery import Plugin
    from dynaweb.plugin.registry import Plugins


ENGINE_ROLES = ("wm", "reward")
"""Kinds of plugins that may have an `engine` table in their section."""


@dataclass(slots=True)
class Problems:
    """What is wrong with a recipe: texts of invalid settings, and errors about plugins (and models) that it names."""

    texts: list[str] = field(default_factory=list)
    plugins: list[DynawebError] = field(default_factory=list)

    def check(self) -> None:
        """Raise one error that lists them all: `ConfigError`, or that of the plugins when nothing else is wrong."""
        texts = [*map(str, self.plugins), *self.texts]
        if not texts:
            return
        if not self.texts:
            if len(self.plugins) == 1:
                raise self.plugins[0]
            broken = any(isinstance(error, PluginError) for error in self.plugins)
            raise (PluginError if broken else MissingError)(_listed(texts))
        raise ConfigError(_listed(texts))


def _listed(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return "\n".join([f"{len(texts)} problems:", *(f"  - {text}" for text in texts)])


def validate(
    name: str, description: str, layers: Layers, plugins: Plugins, problems: Problems, *, whole: bool = True
) -> Recipe:
    """Build the recipe. Raises through `Problems.check` with everything that is wrong, earlier problems included.

    With `whole`, secrets that a run folder left out are problems too.
    """
    check = _Check(layers, plugins, problems)
    if whole:
        problems.texts += [_left_out(path, value) for path, value in layers.values.items() if is_masked(value)]
    tree = layers.tree()
    for key in tree:
        if key not in ORDER:
            problems.texts.append(f"{_where(layers, key)}: no section is called {key!r}; {hint(key, ORDER)}")
    sections: dict[str, Any] = {
        section: check.parsed(model, tree.get(section, {}), section) for section, model in SECTIONS.items()
    }
    sections |= {kind: check.choice(kind, tree.get(kind, {})) for kind in KINDS}
    if sections["run"] is not None:
        check.observers(sections["run"])
    check.environments(sections["env"], sections["eval"])
    if sections["model"] is not None and sections["model"].format not in CORE_FORMATS["prompt"]:
        check.plugin("format", sections["model"].format, "model.format", part="prompt")
    if sections["policy"] is not None:
        check.engine(sections["policy"].engine.model_dump(), "policy.engine")
    problems.check()
    recipe = Recipe(
        name=name, description=description, secret=frozenset(check.secret), needs=layers.unmet(), **sections
    )
    origins = {path: _origin(layers, path) for path in recipe.flat()}
    object.__setattr__(recipe, "origins", origins)
    return recipe


@dataclass(frozen=True, slots=True)
class _Check:
    """A recipe while it is checked: its values with their origins, the plugins that there are, the problems so far."""

    layers: Layers
    plugins: Plugins
    problems: Problems
    secret: set[str] = field(default_factory=set)
    """Dotted paths of the settings that are secret."""

    def plugin(self, kind: Kind, name: str, path: str, *, part: str = "") -> Plugin | None:
        """The plugin that the setting `path` names; a problem and None where it cannot be used."""
        try:
            return self.plugins.find(kind, name, part=part)
        except (MissingError, PluginError) as error:
            self.problems.plugins.append(type(error)(f"{_where(self.layers, path)}: {error}"))
            return None

    def choice(self, kind: Kind, data: Any) -> Choice | None:
        """A section that chooses a plugin and has its settings."""
        if not isinstance(data, Mapping):
            self.problems.texts.append(_no_table(kind, data, self.layers))
            return None
        name, path = data.get("name"), f"{kind}.name"
        if not isinstance(name, str):
            what = "is missing" if name is None else f"must be a name, not {name!r}"
            names = hint("", self.plugins.names(kind))
            self.problems.texts.append(f"{_where(self.layers, path)}: {path} {what}; {names}")
            return None
        if (plugin := self.plugin(kind, name, path)) is None:
            return None
        apart = ("name", "engine") if kind in ENGINE_ROLES else ("name",)
        config = self.parsed(plugin.spec.config, {key: data[key] for key in data if key not in apart}, kind)
        engine = EngineChoice()
        if "engine" in data and "engine" in apart:
            engine = self.engine(data["engine"], f"{kind}.engine")
        return Choice(kind, name, config, code_of(plugin), engine) if config is not None else None

    def engine(self, data: Any, section: str) -> EngineChoice:
        """The engine of a role, its settings checked by the engine's own plugin."""
        choice = self.parsed(EngineChoice, data, section)
        if not isinstance(choice, EngineChoice):
            return EngineChoice()
        if (plugin := self.plugin("engine", choice.name, f"{section}.name")) is not None:
            self.parsed(plugin.spec.config, choice.settings, section)
        return choice

    def observers(self, run: Run) -> None:
        """The names of the observers, and the settings of each, also of those that are not switched on."""
        for name in dict.fromkeys([*run.observers, *run.observer_settings]):
            if (plugin := self.plugin("observer", name, "run.observers")) is not None:
                settings = run.observer_settings.get(name, {})
                self.parsed(plugin.spec.config, settings, f"run.observer_settings.{name}")

    def environments(self, env: Choice | None, evaluation: Eval | None) -> None:
        """The environments of the tasks that are dreamed of and of the evaluation, with their settings."""
        named: list[tuple[str, str, Any, str]] = []
        if env is not None and "dreams" in self.plugins.find("env", env.name).spec.capabilities:
            config = env.config.model_dump()
            if isinstance(tasks := config.get("tasks"), str):
                named.append((tasks, "env.tasks", config.get("task_settings", {}), "env.task_settings"))
        if evaluation is not None and evaluation.env:
            named.append((evaluation.env, "eval.env", evaluation.env_settings, "eval.env_settings"))
        for name, path, settings, section in named:
            if (plugin := self.plugin("env", name, path)) is not None:
                self.parsed(plugin.spec.config, settings, section)

    def parsed(self, model: type[BaseModel], data: Any, section: str) -> BaseModel | None:
        """The settings of a section; problems and None where they are not valid."""
        from pydantic import ValidationError

        texts, layers = self.problems.texts, self.layers
        if not isinstance(data, Mapping):
            texts.append(_no_table(section, data, layers))
            return None
        # First, so that what is wrong with a secret does not tell it.
        self.secret.update(secret_paths(model, data, section))
        odd = {f"{section}.{path}": text for path, text in misfits(model, data)}
        texts += [f"{_where(layers, path)}: {path} = {text}" for path, text in odd.items()]
        try:
            config = model.model_validate(data)
        except ValidationError as error:
            texts += _explain(model, data, error, section, layers, reported=odd)
            return None
        # A third-party config class may ignore unknown keys; a typo must not pass for a setting all the same.
        if model.model_config.get("extra") != "allow":
            texts += [_unknown(model, section, (key,), layers) for key in data if key not in _keys(model)]
        return config


def _left_out(path: str, value: str) -> str:
    variable = "" if "://" in value else f", or --set '{path}=$NAME' for one in an environment variable"
    return f"{path} = {value}: no file holds secrets; give it again by --set {path}=...{variable}"


def _explain(
    model: type[BaseModel], data: Any, error: ValidationError, section: str, layers: Layers, reported: Collection[str]
) -> list[str]:
    """What is wrong at each path, without those that were `reported` already. A value that fits none of several kinds
    has one text."""
    texts: list[str] = []
    wrong: dict[str, tuple[Any, list[str]]] = {}
    for problem in error.errors(include_url=False):
        loc = problem["loc"]
        if problem["type"] == "extra_forbidden":
            texts.append(_unknown(model, section, loc, layers))
            continue
        message = _plain(model, problem) or problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            texts.append(f"{'.'.join([section, *map(str, loc)])} has no value: {message}")
            continue
        path = ".".join([section, *placed(loc, data)])
        if not any(path == one or path.startswith(f"{one}.") for one in reported):
            wrong.setdefault(path, (problem["input"], []))[1].append(f"{message[0].lower()}{message[1:]}")
    for path, (value, messages) in wrong.items():
        texts.append(f"{_where(layers, path)}: {path} = {_short(value)}: {', or '.join(dict.fromkeys(messages))}")
    return texts


_PLAIN: Mapping[str, str] = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "must be a list such as {list}"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "must be a table such as {{ key = value }}"),
    "too_short": "must have at least {min_length} values, not {actual_length}",
    "too_long": "must have at most {max_length} values, not {actual_length}",
}
"""Problems whose words in pydantic are Python's, by their type, in those of a recipe."""


def _plain(model: type[BaseModel], problem: ErrorDetails) -> str:
    """The problem in words of a recipe; '' where pydantic's own are plain."""
    form, value, loc = _PLAIN.get(problem["type"], ""), problem["input"], problem["loc"]
    info = model.model_fields.get(str(loc[0])) if len(loc) == 1 else None
    example: Any = ["a", "b"]
    if info is not None and isinstance(info.default, tuple) and info.default:
        example = [round(one, 2) if isinstance(one, float) else one for one in info.default]
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        example = [value]
    return form.format(list=_short(example).replace("'", '"'), **problem.get("ctx", {}))


def _unknown(model: type[BaseModel], section: str, loc: tuple[int | str, ...], layers: Layers) -> str:
    path = ".".join([section, *(str(part) for part in loc)])
    return f"{_where(layers, path)}: no setting is called {path!r}; {hint(str(loc[-1]), _valid_at(model, loc[:-1]))}"


def _valid_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    from pydantic import BaseModel

    for part in loc:
        info = model.model_fields.get(str(part))
        inner = info.annotation if info is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return set()
        model = inner
    return _keys(model)


def _keys(model: type[BaseModel]) -> set[str]:
    aliases = {info.alias for info in model.model_fields.values() if info.alias}
    return set(model.model_fields) | aliases


def _no_table(section: str, data: Any, layers: Layers) -> str:
    return f"{_where(layers, section)}: {section} must be a table such as [{section}], not {_short(data)}"


def _where(layers: Layers, path: str) -> str:
    """The origin of a path, of the value that it lies in, or of the first value below it."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        if origin := layers.origins.get(".".join(parts[:length])):
            return origin
    return next((origin for known, origin in layers.origins.items() if known.startswith(f"{path}.")), "recipe")


def _origin(layers: Layers, path: str) -> str:
    parts = path.split(".")
    known = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((layers.origins[one] for one in known if one in layers.origins), "default")


# --- Values that a settings class would take and that nobody means, and where in a table an error lies.

_NOTHING = object()


def misfits(model: type[BaseModel], data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Dotted path, and value with what is wrong: `true` where a number is meant (it would count as 1), nan, and whole
    numbers that are longer than those of TOML.

    Infinity is up to the class: sections of dynaweb refuse it, another package may mean "no limit" by it.
    """
    from pydantic import BaseModel

    for name, info in model.model_fields.items():
        key = name if name in data or info.alias is None else info.alias
        value, kind = data.get(key), info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            yield from ((f"{key}.{path}", text) for path, text in misfits(kind, value))
        elif any(isinstance(leaf, bool) for leaf in _leaves(value)) and _is_number(kind):
            yield key, f"{_toml(value)}: must be a number, not true or false"
        elif any(isinstance(leaf, float) and math.isnan(leaf) for leaf in _leaves(value)):
            yield key, f"{_toml(value)}: must be a finite number"
        elif any(_is_long(leaf, kind) for leaf in _leaves(value)):
            yield key, f"{_short(value)}: must have {SETTING_DIGITS} digits at most"


SETTING_DIGITS = 18
"""Of a whole number: those of TOML have 64 bits, and arithmetic with longer ones ends in errors far from here."""


def _is_long(value: Any, kind: Any) -> bool:
    """Whether a value is a whole number, or the text of one for a field that wants a number, of too many digits."""
    if isinstance(value, str):
        digits = value.strip().lstrip("+-").replace("_", "")
        return len(digits) > SETTING_DIGITS and digits.isdecimal() and _is_number(kind) and str not in set(_kinds(kind))
    return isinstance(value, int) and abs(value) >= 10**SETTING_DIGITS


def _short(value: Any) -> str:
    """A value in so many characters as one reads, also where a whole number has too many digits to be written."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__} with thousands of digits"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}... ({len(text)} characters)"


LONGEST = 120


def placed(loc: Sequence[int | str], data: Any) -> list[str]:
    """The path of an error without the marks that pydantic puts in for the kinds of a union."""
    path = []
    for part in loc:
        inner = _inside(data, part)
        if inner is not _NOTHING:
            path.append(str(part))
            data = inner
    return path


def _inside(data: Any, part: int | str) -> Any:
    if isinstance(data, Mapping):
        return data.get(part, _NOTHING)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return _NOTHING


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        yield value
        return
    for inner in value:
        yield from _leaves(inner)


def _is_number(kind: Any) -> bool:
    """Whether a field holds numbers, and nothing that may be true or false or have a field that is."""
    kinds = set(_kinds(kind))
    return bool(kinds & {int, float}) and kinds <= {int, float, str, NoneType}


def _kinds(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield from map(type, get_args(kind))
        return
    if kind is Any or (isinstance(kind, type) and not get_args(kind)):
        yield kind
    for inner in get_args(kind):
        yield from _kinds(inner)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | float) else _short(value)


__all__ = ["Problems", "flatten", "misfits", "placed", "validate"]
