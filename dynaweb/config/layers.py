"""Layers of values with their origins: recipe files, presets, flags and `--set`, merged in that order."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.files import expanded
from dynaweb.config.fitting import PATHS, settings_for
from dynaweb.errors import ConfigError, hint

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind

KINDS: tuple[Kind, ...] = ("wm", "opt", "reward", "env")
HEADER = ("extends", "description", "needs")
"""What a recipe file says of itself: the recipe that it changes, what it is, and the settings that only its user can
know, each with an example (`needs`)."""
THOROUGH: Mapping[str, Any] = {"eval.episodes": 360, "controls.filtered_bc": True, "controls.sft_steps": (60, 120)}
"""What `--thorough` changes: more held-out episodes, the second control arm, and a choice of the longer SFT's length
where the recipe does not say which to try."""

MODEL = "model.path"
TASKS, TASK_SETTINGS = "env.tasks", "env.task_settings"
"""Where an environment that dreams names the environment whose tasks it dreams of, and has that one's settings."""

_SHIPPED = Path(__file__).parent.parent / "recipes"

TasksOf = Callable[[str], str | None]
"""Whose tasks an environment plugin dreams of unless `env.tasks` says so; None for one that does not dream."""


def _no_dreams(name: str) -> str | None:
    return None


@dataclass(slots=True)
class Layers:
    """Values by dotted path, and the origin of each; later layers win."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    tasks_of: TasksOf = _no_dreams
    needs: dict[str, str] = field(default_factory=dict)
    """Dotted paths that only the user can know, each with an example; see `unmet`."""

    def unmet(self) -> dict[str, str]:
        """The settings that the recipe needs and nobody has set, each with its example."""

        def is_set(path: str) -> bool:
            return any(
                (key == path or key.startswith(f"{path}.")) and self.origins.get(key, "default") != "default"
                for key in self.values
            )

        return {path: example for path, example in self.needs.items() if not is_set(path)}

    def add(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Put a layer on top. Choosing another plugin drops what lower layers set for the former one.

        Settings of the tasks' environment stay, wherever they belong now: `env.task_settings.driver` of a dream of
        `sites` becomes `env.driver` of `sites`, and the other way round.
        """
        for kind in KINDS:
            name = values.get(f"{kind}.name")
            if name is not None and name != self.values.get(f"{kind}.name"):
                carried = self._carried(name, values.get(TASKS)) if kind == "env" else {}
                self._drop(kind)
                for path, (value, origin) in carried.items():
                    self.values[path], self.origins[path] = value, origin
            elif kind == "env" and TASKS in values and values[TASKS] != self._tasks():
                self._drop(TASK_SETTINGS)
        former = self.values.get(MODEL)
        for path, value in values.items():
            self._drop(path)
            self._drop_above(path)
            self.values[path] = value
            self.origins[path] = origins[path]
        if isinstance(model := self.values.get(MODEL), str) and model != former:
            self._fit(model, values)

    def _fit(self, model: str, layer: Mapping[str, Any]) -> None:
        """Settings that lower layers have for another model give way to those of this one's size."""
        fitting, origin = settings_for(model, str(self.values.get("wm.name")))
        for path in PATHS - layer.keys():
            self._drop(path)
            if path in fitting:
                self.values[path], self.origins[path] = fitting[path], origin

    def _carried(self, name: Any, tasks: Any) -> dict[str, tuple[Any, str]]:
        """What is set for the tasks' environment, by the path that it has in the environment `name`, with origins."""
        former = self.values.get("env.name")
        if not isinstance(name, str) or not isinstance(former, str):
            return {}
        dreamed, dreams = self.tasks_of(former), self.tasks_of(name)
        if self._tasks() != (name if dreams is None else tasks or dreams):
            return {}
        old, new = ("env" if one is None else TASK_SETTINGS for one in (dreamed, dreams))
        paths = [path for path in self.values if path.startswith(f"{old}.") and path != "env.name"]
        changed = [path for path in paths if self.origins[path] != "default"]
        return {f"{new}{path.removeprefix(old)}": (self.values[path], self.origins[path]) for path in changed}

    def _tasks(self) -> Any:
        """The environment that the tasks are of."""
        name = self.values.get("env.name")
        dreamed = self.tasks_of(name) if isinstance(name, str) else None
        return name if dreamed is None else self.values.get(TASKS, dreamed)

    def _drop(self, path: str) -> None:
        for known in [key for key in self.values if key == path or key.startswith(f"{path}.")]:
            del self.values[known], self.origins[known]

    def _drop_above(self, path: str) -> None:
        parts = path.split(".")
        for length in range(1, len(parts)):
            above = ".".join(parts[:length])
            if above in self.values:
                del self.values[above], self.origins[above]

    def tree(self) -> dict[str, Any]:
        """The values as nested tables."""
        return unflatten(self.values)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of every leaf; an empty table below the top level is a leaf."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and (value or prefix):
            yield from flatten(value, f"{path}.") if value else [(path, {})]
        elif not isinstance(value, Mapping):
            yield path, value


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables from dotted paths. A path that goes through a plain value replaces it."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, leaf = path.split(".")
        table = tree
        for parent in parents:
            if not isinstance(table.get(parent), dict):
                table[parent] = {}
            table = table[parent]
        table[leaf] = value
    return tree


def shipped_recipes() -> dict[str, Path]:
    """Name and file of every recipe that comes with the package."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def find_recipe(recipe: str | Path, *, folder: Path | None = None) -> Path:
    """The file of a recipe: a shipped name, or a path (relative to `folder` for `extends`).

    Raises `ConfigError` when there is none.
    """
    text = str(recipe)
    shipped = shipped_recipes()
    if text in shipped:
        return shipped[text]
    path = (folder or Path()) / expanded(text)
    if path.is_file():
        return path
    if path.suffix == ".toml" or len(Path(text).parts) > 1:
        names = ", ".join(shipped)
        raise ConfigError(f"recipe file {path} does not exist; give a TOML file or a shipped name: {names}")
    raise ConfigError(f"no recipe is called {text!r}; {hint(text, shipped)}; a path ends in .toml")


def recipe_layers(recipe: str | Path, tasks_of: TasksOf = _no_dreams) -> tuple[Layers, str]:
    """The merged values of a recipe file and of those it extends, and the recipe's description.

    Raises `ConfigError` for a file that is missing, unreadable, not TOML, or part of a circle.
    """
    chain: list[tuple[Path, dict[str, Any]]] = []
    path: Path | None = find_recipe(recipe)
    while path is not None:
        if path.resolve() in [seen.resolve() for seen, _ in chain]:
            names = " -> ".join(str(seen) for seen, _ in chain)
            raise ConfigError(f"recipes extend each other in a circle: {names} -> {path}")
        data = read_toml(path)
        chain.append((path, data))
        path = _parent(path, data)
    layers = Layers(tasks_of=tasks_of)
    for path, data in reversed(chain):
        label = path.name if path.parent == _SHIPPED else str(path)
        body = dict(flatten({key: value for key, value in data.items() if key not in HEADER}))
        layers.add(body, {key: f"{label}:{key}" for key in body})
        layers.needs |= _needs(path, data)
    return layers, str(chain[0][1].get("description", ""))


def _needs(path: Path, data: Mapping[str, Any]) -> dict[str, str]:
    needs = data.get("needs", {})
    if not isinstance(needs, dict) or not all(isinstance(example, str) for example in needs.values()):
        raise ConfigError(f"{path}: needs is a table of settings, each with an example as text, not {needs!r:.60}")
    return dict(needs)


def _parent(path: Path, data: Mapping[str, Any]) -> Path | None:
    extends = data.get("extends")
    if extends is None:
        return None
    if not isinstance(extends, str):
        raise ConfigError(f"{path}: extends must be the name or path of one recipe, not {extends!r}")
    return find_recipe(extends, folder=path.parent)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises `ConfigError` that names the file, and the line where TOML breaks."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"recipe {path} nests its values too deep; no setting needs that") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe {path} is not UTF-8 text: {error}") from error
    except ValueError as error:  # of a number with thousands of digits
        raise ConfigError(f"recipe {path} cannot be read: {error}") from error
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from error


def parse_set(options: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by dotted path out of `path=value` texts, and the problems found.

    A value that reads as TOML is that value (`3`, `true`, `[1, 2]`, `"text"`); anything else is a string.
    """
    values: dict[str, Any] = {}
    problems = []
    for option in options:
        path, equals, text = option.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            problems.append(f"--set {option}: write it as path=value, such as --set rl.updates=20")
        else:
            values[path] = toml_value(text.strip())
    return values, problems


def toml_value(text: str) -> Any:
    """The TOML value that a text stands for, or the text itself. Dates and times stay text: no setting is one."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    # The text itself then: no setting nests so deep or has thousands of digits, and the one that is meant says so.
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    return text if len(parsed) > 1 or isinstance(value, date | time) else value
