"""GSPO against the golden values: advantages, loss, gradient and clip fractions of every case and split."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dynaweb.backends.advantages import group_advantages
from dynaweb.protocols import LossInput, LossOutput, PolicyOptimizer
from dynaweb_opt_gspo import GspoConfig, dynaweb_optimizers
from dynaweb_opt_gspo.gspo import WINDOW_SAMPLE, Gspo

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "golden"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
FAMILIES = ("gspo", "gspo_token", "group_advantage")


def _family(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def _cases(*families: str) -> list[Any]:
    return list(_each_case(*families))


def _each_case(*families: str) -> Iterator[Any]:
    for family in families:
        data = _family(family)
        for case in data["cases"]:
            for dtype in case["dtypes"]:
                yield pytest.param(case, dtype, data["tolerances"][dtype], id=f"{family}-{case['name']}-{dtype}")


def _floats(values: list[Any]) -> list[float]:
    return [float(value) for value in values]


def _close(got: list[float], want: list[Any], tolerance: dict[str, float]) -> None:
    wanted = _floats(want)
    scale = max([1.0, *map(abs, wanted)])
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert abs(a - b) <= tolerance["rtol"] * abs(b) + tolerance["atol"] * scale, (got, wanted)


def _optimizer(case: dict[str, Any]) -> Gspo:
    hyper = case["hyper"]
    adv = hyper["adv"]
    return Gspo(
        GspoConfig(
            clip_low=hyper["clip_low"],
            clip_high=hyper["clip_high"],
            level="trajectory" if hyper["ratio_level"] == "trajectory" else "token",
            log_ratio_max=hyper["log_ratio_clip"][1],
            beta=hyper["beta"],
            kl=hyper.get("kl", "k3"),
            scale=adv["scale"],
            eps=adv["eps"],
            ddof=adv["ddof"],
            singleton=adv["singleton"],
            zero_var_tol=adv["zero_var_tol"],
        )
    )


class _Batch:
    """A golden case as tensors; `part` makes the loss input of some rows."""

    def __init__(self, case: dict[str, Any], advantages: list[float], dtype: torch.dtype) -> None:
        self.rows = case["rows"]
        self.dtype = dtype
        index = {trajectory["id"]: i for i, trajectory in enumerate(case["trajectories"])}
        self.trajectory = [index[row["traj"]] for row in self.rows]
        self.logp = [self._tensor(row["logp_new"]).requires_grad_() for row in self.rows]
        self.advantage = torch.tensor(advantages, dtype=dtype)
        self.tokens = torch.zeros(len(index), dtype=torch.long)
        for i, row in zip(self.trajectory, self.rows, strict=True):
            self.tokens[i] += sum(row["mask"])

    def _tensor(self, values: list[Any]) -> torch.Tensor:
        return torch.tensor(_floats(values), dtype=self.dtype)

    def _pad(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def _key(self, rows: list[int], key: str) -> torch.Tensor | None:
        if key not in self.rows[rows[0]]:
            return None
        return self._pad([self._tensor(self.rows[i][key]) for i in rows])

    def log_ratio_sums(self) -> torch.Tensor:
        sums = torch.zeros(len(self.tokens), dtype=torch.float64)
        for i, row, logp in zip(self.trajectory, self.rows, self.logp, strict=True):
            mask = torch.tensor(row["mask"], dtype=torch.bool)
            sums[i] += (logp.detach() - self._tensor(row["logp_old"]))[mask].double().sum()
        return sums

    def part(self, rows: list[int], sums: torch.Tensor | None = None) -> LossInput:
        old = self._key(rows, "logp_old")
        assert old is not None
        return LossInput(
            logp_RT=self._pad([self.logp[i] for i in rows]),
            old_logp_RT=old,
            mask_RT=self._pad([torch.tensor(self.rows[i]["mask"], dtype=torch.bool) for i in rows]),
            trajectory_R=torch.tensor([self.trajectory[i] for i in rows]),
            advantage_N=self.advantage,
            tokens_N=self.tokens,
            log_ratio_sum_N=sums,
            advantage_RT=self._key(rows, "adv"),
            ref_logp_RT=self._key(rows, "logp_ref"),
        )

    def gradients(self) -> list[list[float]]:
        return [([0.0] * len(p) if p.grad is None else p.grad.tolist()) for p in self.logp]


def _advantages(optimizer: Gspo, case: dict[str, Any]) -> list[float]:
    rewards = [float(t["reward"]) if "reward" in t else None for t in case["trajectories"]]
    return optimizer.advantages(rewards, [t["group"] for t in case["trajectories"]])


def _run(case: dict[str, Any], dtype: torch.dtype, split: list[list[int]], *, two_passes: bool) -> Any:
    optimizer = _optimizer(case)
    batch = _Batch(case, _advantages(optimizer, case), dtype)
    sums = batch.log_ratio_sums() if two_passes else None
    loss, metrics = 0.0, dict[str, float]()
    for rows in split:
        out = optimizer.loss(batch.part(rows, sums))
        out.loss.backward()
        loss += out.loss.item()
        for name, value in out.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value
    return loss, batch.gradients(), metrics


def _check(case: dict[str, Any], found: Any, tolerance: dict[str, float]) -> None:
    loss, gradients, metrics = found
    want = case["expected"]
    _close([loss], [want["loss"]], tolerance)
    flat = [value for row in gradients for value in row]
    _close(flat, [value for row in want["grad"] for value in row], tolerance)
    for row, gradient in zip(case["rows"], gradients, strict=True):
        assert all(g == 0.0 for m, g in zip(row["mask"], gradient, strict=True) if not m)
    _close([metrics["clip_frac_low_sum"]], [want["clip_frac_low"]], tolerance)
    _close([metrics["clip_frac_high_sum"]], [want["clip_frac_high"]], tolerance)
    if "kl_mean" in want:
        _close([metrics["kl_sum"]], [want["kl_mean"]], tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _cases("gspo", "gspo_token"))
def test_golden_case(case: dict[str, Any], dtype: str, tolerance: dict[str, float]) -> None:
    if "advantages" in case["expected"]:
        _close(_advantages(_optimizer(case), case), case["expected"]["advantages"], tolerance)
    whole = [list(range(len(case["rows"])))]
    for split in [whole, *case.get("microbatch_splits", [])]:
        _check(case, _run(case, DTYPES[dtype], split, two_passes=False), tolerance)
        _check(case, _run(case, DTYPES[dtype], split, two_passes=True), tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _cases("gspo", "gspo_token"))
def test_golden_splits_that_break_trajectories(case: dict[str, Any], dtype: str, tolerance: dict[str, float]) -> None:
    for split in case.get("microbatch_splits_breaking_trajectories", []):
        _check(case, _run(case, DTYPES[dtype], split, two_passes=True), tolerance)
        with pytest.raises(ValueError, match="log_ratio_sum_N"):
            _run(case, DTYPES[dtype], split, two_passes=False)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _cases("group_advantage"))
def test_golden_group_advantages(case: dict[str, Any], dtype: str, tolerance: dict[str, float]) -> None:
    rewards: list[float | None] = torch.tensor(_floats(case["rewards"]), dtype=DTYPES[dtype]).tolist()
    hyper = dict(case["hyper"])
    _close(group_advantages(rewards, case["groups"], **hyper).advantages, case["expected"]["advantages"], tolerance)
    nones = [None if r is None or math.isnan(r) else r for r in rewards]
    _close(group_advantages(nones, case["groups"], **hyper).advantages, case["expected"]["advantages"], tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_copy_is_the_original(family: str) -> None:
    """`golden` is a copy of reference values that others keep; where they lie beside this checkout, the two agree."""
    original = SHARED / f"{family}.json"
    if not original.is_file():
        pytest.skip("the shared reference folder is not beside this checkout")
    assert original.read_bytes() == (GOLDEN / f"{family}.json").read_bytes()


def _tiny(dtype: torch.dtype = torch.float64, **changes: Any) -> LossInput:
    """Two trajectories; the first has two rows (1 and 2 agent tokens), the second one row with 1 agent token."""
    logp = torch.tensor([[-1.0, -0.5], [-0.2, -0.7], [-2.0, 9.0]], dtype=dtype, requires_grad=True)
    old = torch.tensor([[-1.3, 7.0], [-0.3, -0.5], [-1.5, 9.0]], dtype=dtype)
    given: dict[str, Any] = {
        "logp_RT": logp,
        "old_logp_RT": old,
        "mask_RT": torch.tensor([[True, False], [True, True], [True, False]]),
        "trajectory_R": torch.tensor([0, 0, 1]),
        "advantage_N": torch.tensor([2.0, -1.0], dtype=dtype),
        "tokens_N": torch.tensor([3, 1]),
    }
    return LossInput(**(given | changes))


def test_hand_computed() -> None:
    # Trajectory 0: mean log-ratio (0.3 + 0.1 - 0.2) / 3 = 0.2/3, A = 2. Trajectory 1: log-ratio -0.5, A = -1.
    batch = _tiny()
    out = Gspo(GspoConfig(clip_low=0.9, clip_high=0.5)).loss(batch)
    first, second = math.exp(0.2 / 3), math.exp(-0.5)
    assert out.loss.item() == pytest.approx(-(2 * first - second) / 2, rel=1e-12)
    out.loss.backward()
    each = -2 * first / (2 * 3)
    want = torch.tensor([[each, 0.0], [each, each], [second / 2, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(batch.logp_RT.grad, want, rtol=1e-12, atol=0)


def test_hand_computed_clipping() -> None:
    # Windows of 0.01: trajectory 0 is clipped from above (A > 0), trajectory 1 from below (A < 0): no gradient at all.
    batch = _tiny()
    out = Gspo(GspoConfig(clip_low=0.01, clip_high=0.01)).loss(batch)
    assert out.loss.item() == pytest.approx(-(2 * 1.01 - 0.99) / 2, rel=1e-12)
    out.loss.backward()
    assert not batch.logp_RT.grad.any()
    assert out.metrics == {"clip_frac_low_sum": 0.5, "clip_frac_high_sum": 0.5}


@pytest.mark.parametrize("level", ["trajectory", "token"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e4, 1e30])
def test_masked_slots_change_nothing(level: Any, poison: float) -> None:
    def run(value: float) -> tuple[LossOutput, torch.Tensor]:
        batch = _tiny(torch.float32)
        hidden = ~batch.mask_RT
        logp = batch.logp_RT.detach().masked_fill(hidden, value).requires_grad_()
        poisoned = _tiny(
            torch.float32,
            logp_RT=logp,
            old_logp_RT=batch.old_logp_RT.masked_fill(hidden, value),
            ref_logp_RT=torch.zeros_like(logp).masked_fill(hidden, value),
        )
        out = Gspo(GspoConfig(level=level, beta=0.1)).loss(poisoned)
        out.loss.backward()
        return out, logp.grad

    clean, poisoned = run(0.0), run(poison)
    assert clean[0].loss.item() == poisoned[0].loss.item()
    assert clean[0].metrics == poisoned[0].metrics
    assert torch.equal(clean[1], poisoned[1])


@pytest.mark.parametrize("level", ["trajectory", "token"])
def test_a_batch_without_agent_tokens_is_zero(level: Any) -> None:
    batch = _tiny(mask_RT=torch.zeros(3, 2, dtype=torch.bool), tokens_N=torch.tensor([0, 0]))
    out = Gspo(GspoConfig(level=level)).loss(batch)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert not batch.logp_RT.grad.any()


def test_both_levels_agree_for_constant_advantages() -> None:
    found = []
    for level in ("trajectory", "token"):
        batch = _tiny()
        out = Gspo(GspoConfig(clip_low=0.2, clip_high=0.27, level=level)).loss(batch)
        out.loss.backward()
        found.append((out.loss.detach(), batch.logp_RT.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-15)


def test_token_advantages_need_the_token_level() -> None:
    batch = _tiny(advantage_RT=torch.ones(3, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match='level = "token"'):
        Gspo(GspoConfig()).loss(batch)


def test_a_kl_term_needs_a_reference() -> None:
    with pytest.raises(ValueError, match="reference"):
        Gspo(GspoConfig(beta=0.1)).loss(_tiny())


def _many(shift: float) -> LossInput:
    count = WINDOW_SAMPLE
    return LossInput(
        logp_RT=torch.full((count, 1), -1.0 + shift, dtype=torch.float64),
        old_logp_RT=torch.full((count, 1), -1.0, dtype=torch.float64),
        mask_RT=torch.ones(count, 1, dtype=torch.bool),
        trajectory_R=torch.arange(count),
        advantage_N=torch.ones(count, dtype=torch.float64),
        tokens_N=torch.ones(count, dtype=torch.long),
    )


@pytest.mark.parametrize(
    ("shift", "clip", "words"),
    [(0.0, 3e-4, "exactly 1"), (1e-5, 0.2, "never clips"), (0.5, 3e-4, "nearly always clips"), (0.1, 0.2, "")],
)
def test_a_window_without_effect_is_told_once(
    shift: float, clip: float, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = Gspo(GspoConfig(clip_low=clip, clip_high=clip))
    with caplog.at_level(logging.INFO):
        optimizer.loss(_many(shift))
        optimizer.loss(_many(shift))
    assert len(caplog.messages) == bool(words)
    assert all(words in message for message in caplog.messages)
    # One step for each batch is a choice, so that it is no warning.
    assert [record.levelno for record in caplog.records] == [logging.WARNING if shift else logging.INFO] * bool(words)


def test_a_lower_bound_below_zero_is_told(caplog: pytest.LogCaptureFixture) -> None:
    Gspo(GspoConfig(clip_low=1.0))
    assert "can never clip" in caplog.text


def test_dead_groups_singletons_and_ungraded_are_counted() -> None:
    found = group_advantages([1, 1, 0.5, None, 0, 1, None], ["a", "a", "b", "b", "c", "c", "d"])
    assert found.advantages[:4] == [0.0] * 4
    assert found.advantages[4] == -found.advantages[5] < 0
    assert (found.groups, found.dead_groups, found.singletons, found.ungraded) == (4, 1, 1, 2)
    with pytest.raises(ValueError, match="2 rewards but 1 group"):
        group_advantages([1, 0], ["a"])


def test_the_plugin_offers_it() -> None:
    (spec,) = dynaweb_optimizers()
    assert spec.target == "dynaweb_opt_gspo.gspo:Gspo"
    assert isinstance(Gspo(spec.config()), PolicyOptimizer)
