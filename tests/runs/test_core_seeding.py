"""Sub-seeds are stable, wide and free of collisions between neighbouring labels."""

from __future__ import annotations

import itertools

from dynaweb.errors import hint, nearest
from dynaweb.runs.seeding import derive


def test_values_never_change() -> None:
    # These numbers are part of every cached result: a change here changes every run.
    assert derive(0) == 3456079177858693020
    assert derive(0, "rollout", 3, "task") == derive(0, "rollout", 3, "task")
    assert derive(0, "a", "b") == 4488189943281643216


def test_labels_keep_their_borders_and_types() -> None:
    seeds = [
        derive(0),
        derive(1),
        derive(0, "a", "b"),
        derive(0, "ab"),
        derive(0, "b", "a"),
        derive(0, 1),
        derive(0, "1"),
    ]
    seeds += [derive(0, "a\x1fsb"), derive(0, "a'\x1fs'b"), derive(-1)]
    assert len(set(seeds)) == len(seeds)


def test_range_and_spread() -> None:
    seeds = [derive(seed, "x", index) for seed, index in itertools.product(range(20), range(50))]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 0.45 < sum(seed >> 62 for seed in seeds) / 1000 < 0.55


def test_nearest_names() -> None:
    assert nearest("detla", ["delta", "full-state"]) == ["delta"]
    assert nearest("GSPO", ["gspo"]) == ["gspo"]
    assert "did you mean 'gspo'?" in hint("gsop", ["gspo", "ppo"])
    assert hint("zzz", ["b", "a"]) == "valid: a, b"
    assert hint("zzz", []) == "there is none"
    many = [f"n{number:03}" for number in range(130)]
    assert hint("n007x", many).startswith("did you mean 'n007'") and hint("zzz", many).endswith("n039 and 90 more")
