"""Ablation matrices: many runs that differ in named settings, and one table of them.

    plan = plan_of(read_matrix("world-model"))          every cell composed and validated, nothing run
    run_matrix(plan, MatrixFolder(path), jobs=2)        done cells are skipped, interrupted ones go on
    rows = table_rows(plan, MatrixFolder(path))         n, mean and 95 % interval of every combination

A cell is a run of `dynaweb run` in a process and a folder of its own. Its id is a hash of its resolved recipe, seed
included, so that a cell which is done is never run again, whatever is added to the matrix. Cells share demonstrations,
SFT and world models through the stage cache.

Modules: `grammar` (the TOML file), `cells` (from the file to resolved recipes), `folder` (what is on disk), `runner`
(processes), `display` (the live table), `results` and `table` (numbers), `page` (the HTML report).
"""

from __future__ import annotations

from dynaweb.matrix.cells import Cell, Plan, plan_of
from dynaweb.matrix.folder import MatrixFolder
from dynaweb.matrix.grammar import Matrix, read_matrix, shipped_matrices

__all__ = ["Cell", "Matrix", "MatrixFolder", "Plan", "plan_of", "read_matrix", "shipped_matrices"]
