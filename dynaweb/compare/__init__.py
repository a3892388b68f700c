"""Runs beside each other: what differs in their recipes, and what differs in their results beyond chance.

    comparison = compare([Path("runs/a"), Path("runs/b"), Path("runs/c")])
    print(comparison)

Runs with the same settings but for the seed are one group. Groups are compared on the episodes that both played, paired
by seed and episode: a bootstrap interval over seeds and episodes, and McNemar's exact test.
"""

from __future__ import annotations

from dynaweb.compare.comparing import Comparison, Versus, compare, versus
from dynaweb.compare.groups import Group, grouped
from dynaweb.compare.records import RunRecord, read_run

__all__ = ["Comparison", "Group", "RunRecord", "Versus", "compare", "grouped", "read_run", "versus"]
