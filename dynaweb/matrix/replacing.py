"""A plan in the place of another: results that are done do not leave the table unnoticed.

The written plan is read as plain data, so that a plugin that is gone, or a damaged file, hinders no new plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError

if TYPE_CHECKING:
    from dynaweb.matrix.cells import Cell, Plan
    from dynaweb.matrix.folder import MatrixFolder

SHOWN = 3
"""Cells, and settings, that a message names; it counts the others."""


def check_keeps_done(folder: MatrixFolder, plan: Plan) -> None:
    """Raise `ConfigError` when the plan lacks cells of the folder's plan that are done; call it under the lock."""
    wanted = {cell.id for cell in plan.cells}
    lost = [one for id, one in folder.planned().items() if id not in wanted and folder.is_done(id)]
    if not lost:
        return
    names = _some([_name(one) for one in lost], "; ")
    cells = "1 done cell" if len(lost) == 1 else f"{len(lost)} done cells"
    raise ConfigError(
        f"{folder.path} has {cells} that this matrix lacks: {names}{_why(lost, plan)}\n"
        f"Give another --out, or remove {quote(str(folder.plan_file))} to give up their place in the table "
        "(their runs stay in cells/)."
    )


def why_not_reported(folder: MatrixFolder, plan: Plan) -> str:
    """Why the folder's report.html is not to show this plan; empty when it may."""
    if not folder.is_free:
        return f"{folder.path} holds something else than a matrix; name the folder of the matrix with --out"
    if not folder.plan_file.exists():
        return ""
    there, asked = folder.planned().keys(), {cell.id for cell in plan.cells}
    if there == asked:
        return ""
    if not there:
        return f"{folder.plan_file} is damaged; `dynaweb matrix run` writes it anew"
    return (
        f"this table has other cells than {folder.plan_file} ({len(asked - there)} more, {len(there - asked)} of its "
        f"{len(there)} missing); leave out the options that change the matrix, or run this one with an --out of its own"
    )


def _name(one: Mapping[str, Any]) -> str:
    """The settings and the seed of a cell, as `Cell` has them; its id where the record is damaged."""
    try:
        return ", ".join([*(f"{axis}={label}" for axis, label in one["labels"]), f"seed {one['seed']}"])
    except (LookupError, TypeError, ValueError):
        return str(one["id"])


def _why(lost: list[dict[str, Any]], plan: Plan) -> str:
    """What differs where the plan has cells of the same names."""
    same: dict[str, Cell] = {str(cell): cell for cell in plan.cells}
    for one in lost:
        if (cell := same.get(_name(one))) is not None and (changed := _changed(one, cell)):
            return f"\nCells of the same names differ (there -> here): {_some(changed, '; ')}"
    return ""


def _changed(one: Mapping[str, Any], cell: Cell) -> list[str]:
    from dynaweb.config.recipe import differences
    from dynaweb.runs.folder import NO_RESULT, recipe_flat, saved

    try:
        both = recipe_flat(one["recipe"]), recipe_flat(saved(cell.recipe))
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
    # An empty table on one side: what the other has in it is told by itself.
    old, new = ({path: value for path, value in flat.items() if value != {}} for flat in both)
    return [line for line in differences(old, new) if not line.startswith(NO_RESULT)]


def _some(texts: list[str], between: str) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return between.join(texts[:SHOWN]) + more
