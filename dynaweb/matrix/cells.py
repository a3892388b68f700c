"""From a matrix to its cells: every combination of values and seeds as a resolved, validated recipe."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from dynaweb.config.recipe import digest
from dynaweb.config.resolving import resolve
from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError
from dynaweb.matrix.grammar import RECIPE, Matrix, by_path, settings_of, value_label
from dynaweb.runs.folder import NO_RESULT

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugins import Plugins

log = logging.getLogger("dynaweb")

SEED = "run.seed"
Labels = tuple[tuple[str, str], ...]
"""The values of a combination: axis and label, in the order of the axes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: its id (12 hex digits), its place in the matrix, its seed, and its recipe."""

    id: str
    labels: Labels
    seed: int
    made: Recipe | Callable[[], Recipe] = field(compare=False, repr=False)
    """The recipe, or what makes it: to look at results, nobody needs the plugins that a recipe names."""

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe. Of a plan that was written: raises what `dynaweb.config.restore` does."""
        return self.made() if callable(self.made) else self.made

    def __str__(self) -> str:
        return ", ".join([*(f"{axis}={label}" for axis, label in self.labels), f"seed {self.seed}"])


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
    from dynaweb.plugins import current

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


Values = dict[str, Any]


def _allowed(matrix: Matrix) -> list[Values]:
    """The combinations that are not excluded. Raises `ConfigError` when there are none, or too many."""
    sizes = [len(axis) for axis in _axes(matrix)]
    whole = math.prod(sizes) if matrix.mode == "grid" else 1 + sum(size - 1 for size in sizes)
    most = matrix.max_cells // len(matrix.seeds)
    if whole > most and not matrix.exclude:  # known without a list of them, for which there may be no room
        raise _too_many(matrix, str(whole * len(matrix.seeds)))
    every = (values for values in _combinations(matrix) if not _excluded(matrix, values))
    found = list(islice(every, most + 1))
    if not found:
        raise ConfigError(f"matrix {matrix.name} has no cell: everything is excluded")
    if len(found) > most:
        count = len(found) + sum(1 for _ in islice(every, 10_000))
        more = "" if next(every, None) is None else " or more"
        raise _too_many(matrix, f"{count * len(matrix.seeds)}{more}")
    _tell_idle(matrix)
    return found


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
        plugins.check(choice.kind, choice.name)
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
    return ", ".join(f"{name}={value_label(value)}" for name, value in values.items()) or "the only cell"


def _raise(matrix: Matrix, problems: Mapping[str, tuple[DynawebError, Iterable[str]]], combinations: int) -> None:
    """Each problem once, with the cells that have it."""
    if not problems:
        return
    text = f"matrix {matrix.name} has cells that cannot be run; none was started:"
    for problem, (_, found) in problems.items():
        cells = list(found)
        more = [f"and {len(cells) - 3} more"] if len(cells) > 3 else []
        where = "every cell" if 1 < len(cells) == combinations else "; ".join([*cells[:3], *more])
        text += f"\n  - {where}: {problem}"
    kinds = {type(error) for error, _ in problems.values()}
    if ConfigError in kinds:
        raise ConfigError(text)
    raise (PluginError if PluginError in kinds else MissingError)(text)
