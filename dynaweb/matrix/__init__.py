"""Ablation matrices: many runs that differ in named settings, and one table of them.

    plan = plan_of(read_matrix("world-model"))          every cell composed and validated, nothing run
    folder = MatrixFolder(Path("runs/matrix-world-model"))
    Runner(plan, folder, jobs=2).run()                  done cells are skipped, interrupted ones go on
    print(matrix_text(results(plan, folder)))           n, mean and 95 % interval of every combination

A cell is a run of `dynaweb run` in a process and a folder of its own. Its id is a hash of its resolved recipe, seed
included, so that a cell which is done is never run again, whatever is added to the matrix. Cells share demonstrations,
SFT and world models through the stage cache.

Modules: `plan` (from the TOML file to resolved recipes), `folder` (what is on disk), `runner` (processes and their live
table), `results` and `table` (numbers), `page` (the HTML report), `recipes` (whole recipes side by side).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynaweb.matrix.folder import MatrixFolder
from dynaweb.matrix.plan import Cell, Matrix, Plan, plan_of, read_matrix, shipped_matrices

if TYPE_CHECKING:
    from dynaweb.matrix.results import results
    from dynaweb.matrix.runner import Runner
    from dynaweb.matrix.table import matrix_text

_HOMES = {"Runner": "runner", "matrix_text": "table", "results": "results"}


def __getattr__(name: str) -> Any:
    # `dynaweb matrix show` needs no statistics.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"dynaweb.matrix.{_HOMES[name]}"), name)


__all__ = [
    "Cell",
    "Matrix",
    "MatrixFolder",
    "Plan",
    "Runner",
    "matrix_text",
    "plan_of",
    "read_matrix",
    "results",
    "shipped_matrices",
]
