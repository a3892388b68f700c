"""Plans of matrices for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynaweb import plugins
from dynaweb.matrix import Plan, plan_of, read_matrix


def plan(source: str | Path = "smoke", **more: Any) -> Plan:
    return plan_of(read_matrix(source, **more), plugins=plugins.load(warn=False))
