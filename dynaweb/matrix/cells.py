"""From a matrix to its cells: every combination of values and seeds as a resolved, validated recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from dynaweb.config.recipe import digest
from dynaweb.config.resolving import resolve
from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError
from dynaweb.matrix.grammar import RECIPE, Matrix, by_path, settings_of, value_label
from dynaweb.runs.folder import NO_RESULT

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.plugins import Plugins

Labels = tuple[tuple[str, str], ...]
"""The values of a combination: axis and label, in the order of the axes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: its id (12 hex digits), its place in the matrix, its seed, and its recipe."""

    id: str
    labels: Labels
    seed: int
    recipe: Recipe

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
    combinations = [values for values in _combinations(matrix) if not _excluded(matrix, values)]
    _check_size(matrix, len(combinations) * len(matrix.seeds))
    cells: dict[str, Cell] = {}
    problems: dict[str, tuple[DynawebError, dict[str, None]]] = {}
    for seed, values in product(matrix.seeds, combinations):
        try:
            cell = _cell(matrix, values, seed, plugins)
        except (ConfigError, MissingError, PluginError) as error:
            problems.setdefault(str(error), (error, {}))[1][_text(values)] = None
        else:
            cells.setdefault(cell.id, cell)
    _raise(matrix, problems)
    axes = tuple(name for group in _axes(matrix) for name in group[0])
    return Plan(matrix, axes, tuple(cells.values()), len(combinations) * len(matrix.seeds) - len(cells))


Values = dict[str, Any]


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
    overrides = dict(matrix.set)
    for name, value in values.items():
        overrides |= settings_of(name, value)
    for when in matrix.when:
        if _fits(when.condition, values):
            overrides |= by_path(when.set)
    recipe = resolve(values.get(RECIPE, matrix.base), overrides=overrides, seed=seed, plugins=plugins)
    for choice in recipe.choices():
        plugins.check(choice.kind, choice.name)
    labels = tuple((name, value_label(value)) for name, value in values.items())
    return Cell(cell_id(recipe), labels, seed, recipe)


def cell_id(recipe: Recipe) -> str:
    """12 hex digits of the resolved recipe, seed included, without what changes no result."""
    return digest({path: value for path, value in recipe.flat().items() if not path.startswith(NO_RESULT)})[:12]


def _check_size(matrix: Matrix, count: int) -> None:
    if count == 0:
        raise ConfigError(f"matrix {matrix.name} has no cell: everything is excluded")
    if count > matrix.max_cells:
        raise ConfigError(
            f"matrix {matrix.name} has {count} cells ({len(matrix.seeds)} seeds), more than max_cells = "
            f"{matrix.max_cells}; raise it (--max-cells), or take values away"
        )


def _text(values: Values) -> str:
    return ", ".join(f"{name}={value_label(value)}" for name, value in values.items()) or "the only cell"


NAMED = 3
"""Combinations that an error names; the others with the same error are counted."""


def _raise(matrix: Matrix, problems: Mapping[str, tuple[DynawebError, Mapping[str, None]]]) -> None:
    """Every error once, with the combinations that have it."""
    if not problems:
        return
    lines = [f"{_which(list(combinations))}: {text}" for text, (_, combinations) in problems.items()]
    text = "\n  - ".join([f"matrix {matrix.name} has cells that cannot be run; none was started:", *lines])
    kinds = {type(error) for error, _ in problems.values()}
    if ConfigError in kinds:
        raise ConfigError(text)
    raise (PluginError if PluginError in kinds else MissingError)(text)


def _which(combinations: Sequence[str]) -> str:
    named = "; ".join(combinations[:NAMED])
    rest = len(combinations) - NAMED
    return f"{named} and {rest} more" if rest > 0 else named
