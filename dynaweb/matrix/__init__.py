"""Ablation matrices: many runs that differ in named settings, and one table of them.

    plan = plan_of(read_matrix("world-model"))          every cell composed and validated, nothing run
    folder = MatrixFolder(Path("runs/matrix-world-model"))
    runner.Runner(plan, folder, jobs=2).run()           done cells are skipped, interrupted ones go on
    print(table.matrix_text(results.results(plan, folder)))     n, mean and 95 % interval of every combination

A cell is a run of `dynaweb run` in a process and a folder of its own. Its id is a hash of its resolved recipe, seed
included, so that a cell which is done is never run again, whatever is added to the matrix. Cells share demonstrations,
SFT and world models through the stage cache.

Modules: `plan` (from the TOML file to resolved recipes), `folder` (what is on disk), `runner` (processes and their live
table), `results` and `table` (numbers), `page` (the HTML report), `recipes` (whole recipes side by side). This package
file offers what needs no statistics, so that `dynaweb matrix show` answers at once.
"""

from __future__ import annotations

from dynaweb.matrix.folder import MatrixFolder
from dynaweb.matrix.plan import Cell, Matrix, Plan, plan_of, read_matrix, shipped_matrices

__all__ = ["Cell", "Matrix", "MatrixFolder", "Plan", "plan_of", "read_matrix", "shipped_matrices"]
