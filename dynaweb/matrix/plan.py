"""From the file of a matrix to its cells: every combination of values and seeds as a resolved, validated recipe.

The file says what varies, what depends on it, what is left out:

[matrix]
base = "dynaweb"                 # a recipe
mode = "grid"                    # or "one-at-a-time": one axis leaves its first value at a time
seeds = [0, 1, 2]
max_cells = 64
set = {"eval.episodes" = 60}     # for every cell

[matrix.axes]
wm = ["delta", "full-state"]     # a flag of `dynaweb run`, the path of a setting, or `recipe`: whole recipes
"dream.horizon" = [1, 2, 4, 8]
anchor = [{label = "none", "rl.bc_weight" = 0.0}, {label = "both", "rl.bc_weight" = 0.2, "rl.expert_share" = 0.25}]

[[matrix.zip]]                   # these vary together: one axis
"rl.tasks" = [4, 8]
"rl.n" = [16, 8]

[[matrix.when]]
if = {wm = "full-state"}
set = {"wm_fit.steps" = 120}

[[matrix.exclude]]               # cells that fit all of it; a list means any of its values
wm = "full-state"
"dream.horizon" = [8]
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from dynaweb.config.files import expanded
from dynaweb.config.keys import digest
from dynaweb.config.labels import Labels, labels_text
from dynaweb.config.layers import flatten, read_toml, shipped_recipes, toml_value
from dynaweb.config.resolving import FLAGS, resolve
from dynaweb.config.sections import Section
from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError, hint
from dynaweb.runs.folder import NO_RESULT, RUNS

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugin.registry import Plugins

log = logging.getLogger("dynaweb")

_SHIPPED = Path(__file__).parent / "shipped"
PLAN = "matrix.json"
"""The file of a plan in the folder of a matrix."""
LABEL = "label"
SEED = "run.seed"
RECIPE = "recipe"
"""The axis whose values are recipes, each in the place of the base."""


class When(Section):
    """Settings of the cells that fit a condition."""

    condition: dict[str, Any] = Field(alias="if")
    """Axis names with the value (or a list of values) that a cell must have."""
    set: dict[str, Any]
    """Settings, as for every cell."""


class Matrix(Section):
    """A matrix as its file says; `name` is the file's stem."""

    name: str = "matrix"
    """How the matrix is called."""
    base: str = "dynaweb"
    """A shipped recipe or the path of one, relative to the file."""
    description: str = ""
    """What it is for."""
    mode: Literal["grid", "one-at-a-time"] = "grid"
    """`grid`: all combinations. `one-at-a-time`: the first values, and every other value with all others first."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Seeds of each combination."""
    max_cells: int = Field(default=100, ge=1)
    """More cells than this are refused."""
    measures: tuple[str, ...] = ("main",)
    """Columns of the table: `main`, the name of an arm, or a measure of the world model such as `element_f1`."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    """Name to values."""
    zip: list[dict[str, list[Any]]] = Field(default_factory=list)
    """Groups of axes whose values are taken together."""
    when: list[When] = Field(default_factory=list)
    """Settings that depend on the cell."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Cells that are left out."""


def shipped_matrices() -> dict[str, Path]:
    """Name and file of every matrix that comes with the package."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def read_matrix(
    source: str | Path,
    *,
    axes: Iterable[str] = (),
    sets: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] | None = None,
    mode: str | None = None,
    max_cells: int | None = None,
) -> Matrix:
    """A matrix from a shipped name, a TOML file, or a recipe (which then is the base), with what a command line adds.

    `axes` are `NAME=VALUE,VALUE` texts; an axis of the same name is replaced. Raises `ConfigError`.
    """
    data = _source(str(source))
    data["axes"] = {**data.get("axes", {}), **parse_axes(axes)}
    data["set"] = {**by_path(data.get("set", {})), **(sets or {})}
    chosen = {"seeds": seeds, "mode": mode, "max_cells": max_cells}
    data |= {key: value for key, value in chosen.items() if value is not None}
    try:
        matrix = Matrix.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"matrix {source}: {_problems(error)}") from error
    check_axes(matrix)
    return matrix


def _source(source: str) -> dict[str, Any]:
    """The `[matrix]` table with its name; of a recipe, a matrix without axes."""
    path = shipped_matrices().get(source, expanded(source))
    if path.is_file():
        whole = read_toml(path)
        table = whole.pop("matrix", None)
        if table is None:
            return {"name": path.stem, "base": str(path)}
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: matrix must be a table [matrix]")
        if whole:
            odd = ", ".join(f"[{name}]" for name in whole)
            raise ConfigError(f"{path}: {odd} is beside [matrix]; all of a matrix is below it, such as [matrix.axes]")
        if "name" in table:
            raise ConfigError(f"{path}: matrix.name is no setting; a matrix is called like its file")
        if isinstance(axes := table.get("axes"), dict) and isinstance(recipes := axes.get(RECIPE), list):
            axes[RECIPE] = [str(path.parent / one) if (path.parent / str(one)).is_file() else one for one in recipes]
        return {**table, "name": path.stem, "base": _base(str(table.get("base", "dynaweb")), path)}
    if source in shipped_recipes():
        return {"name": source, "base": source}
    raise ConfigError(_unknown(source))


def _unknown(source: str) -> str:
    """What is said of a source that is nothing."""
    folders = [RUNS / name for name in (source, f"matrix-{source}") if (RUNS / name / PLAN).is_file()]
    if folders:
        return f"no matrix or recipe is called {source!r}; there is the folder of a matrix: give {folders[0]}"
    known = hint(source, {**shipped_matrices(), **shipped_recipes()})
    return (
        f"no matrix or recipe is called {source!r}; {known}; a file ends in .toml, and a matrix that was run is named "
        f"by its folder, such as {RUNS / 'matrix-smoke'}"
    )


def _base(base: str, path: Path) -> str:
    return base if base in shipped_recipes() else str(path.parent / base)


def parse_axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by name of all `--axis` texts. Raises `ConfigError`, also for an axis that is given twice."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, values = parse_axis(text)
        if name in axes:
            raise ConfigError(f"--axis {text}: axis {name!r} is given twice; list all its values in one --axis")
        axes[name] = values
    return axes


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Name and values of `--axis NAME=VALUE,VALUE`. Commas within quotes or brackets do not separate."""
    name, equals, rest = text.partition("=")
    values = [part.strip() for part in _split(rest)]
    if not equals or not name.strip() or not all(values):
        raise ConfigError(f"--axis {text}: write it as NAME=VALUE,VALUE, such as --axis wm=delta,full-state")
    return name.strip(), [toml_value(value) for value in values]


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (not quote) * ((char in "[{") - (char in "]}"))
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def check_axes(matrix: Matrix) -> None:
    """Raise `ConfigError` with everything that is wrong with the axes, seeds and conditions of a matrix."""
    names = [*matrix.axes, *(name for group in matrix.zip for name in group)]
    problems = [f"axis {name!r} is there twice" for name in {name for name in names if names.count(name) > 1}]
    for name, values in [*matrix.axes.items(), *(item for group in matrix.zip for item in group.items())]:
        problems += _axis_problems(matrix, name, values)
    for group in matrix.zip:
        lengths = {name: len(values) for name, values in group.items()}
        if len(set(lengths.values())) > 1:
            problems.append(f"a [[matrix.zip]] has axes of different lengths: {lengths}")
    conditions = [*(when.condition for when in matrix.when), *matrix.exclude]
    for name in dict.fromkeys(name for condition in conditions for name in condition):
        if name not in names:
            problems.append(f"a condition names {name!r}, which is no axis; {hint(name, names)}")
    problems += [
        f"seeds {', '.join(map(str, matrix.seeds))} (matrix.seeds, --seeds) have {seed} more than once, which would be "
        "the same run; give each seed once"
        for seed in dict.fromkeys(matrix.seeds)
        if matrix.seeds.count(seed) > 1
    ]
    if problems:
        raise ConfigError("\n  - ".join([f"matrix {matrix.name}:", *problems]))


def _axis_problems(matrix: Matrix, name: str, values: list[Any]) -> Iterable[str]:
    if FLAGS.get(name, name) == SEED:
        yield "seeds are no axis: list them in matrix.seeds, or give --seeds"
    if not values:
        yield f"axis {name!r} has no values"
    if name == RECIPE and not all(isinstance(value, str) for value in values):
        yield f"axis {name!r} has recipes as its values: shipped names or TOML files"
    texts = [value_label(value) for value in values]
    if len(set(texts)) < len(texts):
        yield f"axis {name!r} has a value twice: {', '.join(texts)}"
    for value in values:
        if isinstance(value, Mapping) and not (isinstance(value.get(LABEL), str) and len(value) > 1):
            yield f"axis {name!r}: a value that is a table needs a label and settings, not {value!r}"
    paths = {path for value in values for path in settings_of(name, value)}
    if taken := paths & set(matrix.set):
        yield f"{', '.join(sorted(taken))}: set for every cell and by axis {name!r} too; keep one of them"


def settings_of(axis: str, value: Any) -> dict[str, Any]:
    """The settings, by path, that one value of an axis stands for; none for a recipe."""
    if axis == RECIPE:
        return {}
    if isinstance(value, Mapping):
        return by_path({key: inner for key, inner in value.items() if key != LABEL})
    return by_path({axis: value})


def by_path(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by path out of a table, which may be nested and may name flags of `dynaweb run`."""
    return {FLAGS.get(key, key): value for key, value in flatten(table)}


def value_label(value: Any) -> str:
    """How a value of an axis is shown and matched."""
    if isinstance(value, Mapping):
        return str(value.get(LABEL, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(["matrix", *(str(part) for part in problem["loc"])])
        if problem["type"] == "extra_forbidden":
            lines.append(f"no setting is called {path!r}; {hint(str(problem['loc'][-1]), Matrix.model_fields)}")
        else:
            lines.append(f"{path} = {problem['input']!r}: {problem['msg']}")
    return "\n  - ".join(["", *lines]) if len(lines) > 1 else lines[0]


Values = dict[str, Any]
"""The values of a combination by axis."""


def cell_name(labels: Iterable[Sequence[str]], seed: object) -> str:
    """How messages call a cell."""
    return ", ".join(filter(None, (labels_text(labels), f"seed {seed}")))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: its id (12 hex digits), its place in the matrix, its seed, and its recipe."""

    id: str
    labels: Labels
    seed: int
    source: Recipe | Callable[[], Recipe] = field(compare=False, repr=False)
    """The recipe, or what makes it: to look at results, nobody needs the plugins that a recipe names."""

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe. Of a plan that was written: raises what `dynaweb.config.restore` does."""
        return self.source() if callable(self.source) else self.source

    def __str__(self) -> str:
        return cell_name(self.labels, self.seed)


@dataclass(frozen=True, slots=True)
class Plan:
    """All cells of a matrix, seed after seed, so that an interrupted matrix has whole columns.

    `merged` counts combinations that came out as the same run as an earlier one and are not run twice.
    """

    matrix: Matrix
    axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    merged: int = 0

    def combinations(self) -> list[Labels]:
        """The combinations in their order, whatever the seed."""
        return list(dict.fromkeys(cell.labels for cell in self.cells))


def plan_of(matrix: Matrix, *, plugins: Plugins | None = None) -> Plan:
    """Every cell, composed and validated.

    Raises `ConfigError` with all problems of all cells, or `MissingError`/`PluginError` when only plugins are at fault.
    """
    from dynaweb.plugin.registry import current

    plugins = plugins if plugins is not None else current()
    combinations = _allowed(matrix)
    cells: dict[str, Cell] = {}
    problems: dict[str, tuple[DynawebError, dict[str, None]]] = {}
    for seed, values in product(matrix.seeds, combinations):
        try:
            cell = _cell(matrix, values, seed, plugins)
        except (ConfigError, MissingError, PluginError) as error:
            problems.setdefault(str(error), (error, {}))[1][_text(values)] = None
        else:
            cells.setdefault(cell.id, cell)
    _raise(matrix, problems, len(combinations))
    axes = tuple(name for group in _axes(matrix) for name in group[0])
    return Plan(matrix, axes, tuple(cells.values()), len(combinations) * len(matrix.seeds) - len(cells))


def _allowed(matrix: Matrix) -> list[Values]:
    """The combinations that are not excluded. Raises `ConfigError` when there are none, or too many."""
    sizes = [len(axis) for axis in _axes(matrix)]
    whole = math.prod(sizes) if matrix.mode == "grid" else 1 + sum(size - 1 for size in sizes)
    most = matrix.max_cells // len(matrix.seeds)
    if whole > most and not matrix.exclude:  # known without a list of them, for which there may be no room
        raise _too_many(matrix, str(whole * len(matrix.seeds)))
    every = (values for values in _combinations(matrix) if not _excluded(matrix, values))
    allowed = list(islice(every, most + 1))
    if not allowed:
        raise ConfigError(f"matrix {matrix.name} has no cell: everything is excluded")
    if len(allowed) > most:
        count = len(allowed) + sum(1 for _ in islice(every, 10_000))
        more = "" if next(every, None) is None else " or more"
        raise _too_many(matrix, f"{count * len(matrix.seeds)}{more}")
    _tell_idle(matrix)
    return allowed


def _too_many(matrix: Matrix, count: str) -> ConfigError:
    return ConfigError(
        f"matrix {matrix.name} has {count} cells ({len(matrix.seeds)} seeds), more than max_cells = "
        f"{matrix.max_cells}; raise it (--max-cells), or take values away"
    )


def _tell_idle(matrix: Matrix) -> None:
    """Warn of conditions that fit no combination: a value that is mistyped, or one that was taken away."""
    conditions = [("[[matrix.exclude]]", one) for one in matrix.exclude]
    conditions += [("[[matrix.when]]", when.condition) for when in matrix.when]
    for table, condition in conditions:
        for name, wanted in condition.items():
            values = [value[name] for axis in _axes(matrix) if name in axis[0] for value in axis]
            if not any(_is(value, wanted) for value in values):
                there = ", ".join(map(value_label, values))
                log.warning(
                    "matrix %s: a %s fits nothing: axis %r has no value %s, but %s",
                    *(matrix.name, table, name, value_label(wanted), there),
                )


def _axes(matrix: Matrix) -> list[list[Values]]:
    """Each axis as a list of its values by name; a zip is one axis of several names."""
    plain = [[{name: value} for value in values] for name, values in matrix.axes.items()]
    zipped = [
        [dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)] for group in matrix.zip
    ]
    return [*plain, *(axis for axis in zipped if axis)]


def _combinations(matrix: Matrix) -> Iterator[Values]:
    axes = _axes(matrix)
    if matrix.mode == "grid":
        for parts in product(*axes):
            yield _joined(parts)
        return
    first = [axis[0] for axis in axes]
    yield _joined(first)
    for at, axis in enumerate(axes):
        for value in axis[1:]:
            yield _joined([*first[:at], value, *first[at + 1 :]])


def _joined(parts: Sequence[Values]) -> Values:
    return {name: value for part in parts for name, value in part.items()}


def _excluded(matrix: Matrix, values: Values) -> bool:
    return any(_fits(condition, values) for condition in matrix.exclude)


def _fits(condition: Mapping[str, Any], values: Values) -> bool:
    return all(_is(values[name], wanted) for name, wanted in condition.items())


def _is(value: Any, wanted: Any) -> bool:
    options = wanted if isinstance(wanted, list) and not isinstance(value, list) else [wanted]
    return value_label(value) in {value_label(option) for option in options}


def _cell(matrix: Matrix, values: Values, seed: int, plugins: Plugins) -> Cell:
    recipe = resolve(values.get(RECIPE, matrix.base), overrides=_settings(matrix, values), seed=seed, plugins=plugins)
    for choice in recipe.choices():
        plugins.check(choice.kind, choice.name, choice.config)
    labels = tuple((name, value_label(value)) for name, value in values.items())
    return Cell(cell_id(recipe), labels, seed, recipe)


def _settings(matrix: Matrix, values: Values) -> dict[str, Any]:
    """What a cell sets, by path.

    Raises `ConfigError` where its labels would not be true: when something else sets what a value of an axis sets.
    """
    overrides = dict(matrix.set)
    owners: dict[str, str] = {}
    parts = [(f"axis {name!r}", settings_of(name, value)) for name, value in values.items()]
    parts += [("a [[matrix.when]]", by_path(when.set)) for when in matrix.when if _fits(when.condition, values)]
    for owner, settings in parts:
        for path, value in settings.items():
            for other, by in owners.items():
                if _overlap(path, other) and by != owner and not (path == other and overrides[other] == value):
                    raise ConfigError(
                        f"{path} is set twice, by {by} ({other} = {overrides[other]}) and by {owner} ({path} = "
                        f"{value}): one label would not be true; take one away"
                    )
        overrides |= settings
        if owner.startswith("axis"):
            owners |= dict.fromkeys(settings, owner)
    if SEED in overrides:
        raise ConfigError(
            f"{SEED} is set ({overrides[SEED]}), but every cell has a seed of its own: list them in seeds"
        )
    return overrides


def _overlap(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def cell_id(recipe: Recipe) -> str:
    """12 hex digits of the resolved recipe, seed included, without what changes no result."""
    return digest({path: value for path, value in recipe.flat().items() if not path.startswith(NO_RESULT)})[:12]


def _text(values: Values) -> str:
    return labels_text((name, value_label(value)) for name, value in values.items()) or "the only cell"


def _raise(matrix: Matrix, problems: Mapping[str, tuple[DynawebError, Iterable[str]]], combinations: int) -> None:
    """Each problem once, with the cells that have it."""
    if not problems:
        return
    text = f"matrix {matrix.name} has cells that cannot be run; none was started:"
    for problem, (_, labels) in problems.items():
        cells = list(labels)
        more = [f"and {len(cells) - 3} more"] if len(cells) > 3 else []
        where = "every cell" if 1 < len(cells) == combinations else "; ".join([*cells[:3], *more])
        text += f"\n  - {where}: {problem}"
    kinds = {type(error) for error, _ in problems.values()}
    if ConfigError in kinds:
        raise ConfigError(text)
    raise (PluginError if PluginError in kinds else MissingError)(text)
