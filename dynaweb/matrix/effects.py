"""Marginal effects and interactions of the factors (axes) of a matrix.

The success of a level is taken over all combinations of the other factors, and only over those that every level has, so
that levels differ in nothing else: in a grid all of them, one at a time those with the other factors at their first
value. Episodes are paired by seed, combination and task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from dynaweb.compare.comparing import Versus, versus_of
from dynaweb.compare.records import Episodes
from dynaweb.matrix.results import MatrixResults, TableRow
from dynaweb.stats import Estimate, contrast, success_rate

Context = tuple[tuple[str, str], ...]
"""The values of the other factors."""


@dataclass(frozen=True, slots=True)
class Level:
    """One value of a factor: its success, and the difference to the first value (None for that one)."""

    value: str
    success: Estimate
    against_first: Versus | None


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor with its levels; `contexts` counts the combinations of the other factors that they are taken over."""

    axis: str
    levels: tuple[Level, ...]
    contexts: int


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two factors: success by level of both, and the difference of differences of their first two levels.

    `contrast` is (last, last) - (last, first) - (first, last) + (first, first) for factors of two levels, in fractions;
    None for others, and where these have no episodes in common.
    """

    first: str
    second: str
    cells: Mapping[tuple[str, str], Estimate]
    contrast: Estimate | None


def factors(results: MatrixResults, arm: str) -> list[Factor]:
    """The marginal effect of each axis with at least two levels that are done."""
    found = (_factor(results, axis, arm) for axis in results.plan.axes)
    return [factor for factor in found if len(factor.levels) > 1]


def _factor(results: MatrixResults, axis: str, arm: str) -> Factor:
    rows = _by_context(results, (axis,))
    levels = list(dict.fromkeys(value for of_context in rows.values() for (value,) in of_context))
    whole = {context: of_context for context, of_context in rows.items() if len(of_context) == len(levels)}
    played = [_played([of_context[(level,)] for of_context in whole.values()], arm) for level in levels]
    shared = set.intersection(*(set(one) for one in played)) if played else set()
    played = [{seed: one[seed] for seed in one if seed in shared} for one in played]
    if not shared:
        return Factor(axis, (), 0)
    first = played[0]
    made = [
        Level(level, _success(one), None if one is first else versus_of(first, one, len(levels) - 1))
        for level, one in zip(levels, played, strict=True)
    ]
    return Factor(axis, tuple(made), len(whole))


def interactions(results: MatrixResults, arm: str) -> list[Interaction]:
    """Every two axes that have at least two levels each, in all combinations."""
    many = [factor.axis for factor in factors(results, arm)]
    return [one for pair in combinations(many, 2) if (one := _interaction(results, pair, arm)) is not None]


def _interaction(results: MatrixResults, pair: tuple[str, str], arm: str) -> Interaction | None:
    rows = _by_context(results, pair)
    cells = list(dict.fromkeys(cell for of_context in rows.values() for cell in of_context))
    ones, others = (list(dict.fromkeys(cell[at] for cell in cells)) for at in (0, 1))
    whole = [of_context for of_context in rows.values() if len(of_context) == len(ones) * len(others)]
    if not whole or len(cells) < len(ones) * len(others):
        return None
    played = {cell: _played([of_context[cell] for of_context in whole], arm) for cell in cells}
    estimates = {(one, other): _success(played[one, other]) for one, other in cells}
    square = [(one, other) for one in (ones[0], ones[-1]) for other in (others[0], others[-1])]
    small = len(ones) == len(others) == 2
    return Interaction(*pair, estimates, _contrast([played[cell] for cell in square]) if small else None)


def _contrast(square: Sequence[Mapping[int, Episodes]]) -> Estimate | None:
    """(1, 1) - (1, 0) - (0, 1) + (0, 0) of the episodes that all four played."""
    by_seed = []
    for seed in square[0]:
        four = [played.get(seed, {}) for played in square]
        rows = ([one.get(name) for one in four] for name in four[0])
        by_seed.append([d - c - b + a for a, b, c, d in (row for row in rows if None not in row)])  # type: ignore[operator]
    return contrast(by_seed) if any(by_seed) else None


def _by_context(results: MatrixResults, axes: Sequence[str]) -> dict[Context, dict[tuple[str, ...], TableRow]]:
    """The rows with results by the values of the other axes, and then by those of these."""
    rows: dict[Context, dict[tuple[str, ...], TableRow]] = {}
    for row in results.rows:
        if row.group.runs:
            labels = dict(row.labels)
            cell = tuple(labels[axis] for axis in axes)
            context = tuple((axis, value) for axis, value in row.labels if axis not in axes)
            rows.setdefault(context, {})[cell] = row
    return rows


def _played(rows: Sequence[TableRow], arm: str) -> dict[int, Episodes]:
    """The episodes of several combinations together, by seed: of the seeds that all of them have."""
    each = [row.group.by_seed(arm) for row in rows]
    seeds = [seed for seed in (each[0] if each else ()) if all(seed in one for one in each)]
    return {
        seed: {f"{at} {name}": success for at, one in enumerate(each) for name, success in one[seed].items()}
        for seed in seeds
    }


def _success(played: Mapping[int, Episodes]) -> Estimate:
    return success_rate([list(episodes.values()) for episodes in played.values()])
