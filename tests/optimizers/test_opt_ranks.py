"""The same update in 1, 2 and 4 real processes: the same loss, metrics and weights, on every rank; 1 is this
process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rank_kit
import torch
from warm_kit import exit_codes, start

NOT_COMPARED = {"seconds"}


pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def _alone() -> dict[str, dict[str, Any]]:
    return {name: rank_kit.result_of(optimizer) for name, optimizer in rank_kit.optimizers().items()}


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_change_nothing(size: int, tmp_path: Path) -> None:
    processes = [start(rank_kit.worker, rank, size, str(tmp_path)) for rank in range(size)]
    assert exit_codes(processes, timeout=200) == [0] * size
    for rank in range(size):
        found = torch.load(tmp_path / f"rank-{rank}.pt")
        for name, want in _alone().items():
            _same(found[name], want, name)


def _same(found: dict[str, Any], want: dict[str, Any], name: str) -> None:
    for step, (metrics, wanted) in enumerate(zip(found["metrics"], want["metrics"], strict=True)):
        assert metrics.keys() == wanted.keys()
        for key in wanted.keys() - NOT_COMPARED:
            assert metrics[key] == pytest.approx(wanted[key], rel=1e-3, abs=1e-5), (name, step, key)
    for key, tensor in want["tensors"].items():
        torch.testing.assert_close(found["tensors"][key], tensor, rtol=1e-3, atol=2e-5, msg=f"{name} {key}")
    assert len(want["tensors"]) > 10
