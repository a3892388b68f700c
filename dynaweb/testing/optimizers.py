"""The suite for policy optimizers without a critic: advantages, masks, splits of a batch."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest
import torch

from dynaweb.hookspecs import Kind
from dynaweb.protocols import LossInput, PolicyOptimizer
from dynaweb.testing.suite import PluginSuite

REWARDS = (1.0, 0.0, 0.0, 1.0, 1.0, None)
GROUPS = ("a", "a", "a", "b", "b", "b")
MIXED_REWARDS = (1.0, 0.5, 0.0, 0.0, 1.0, 1.0, None, 0.25, 0.75)
MIXED_GROUPS = ("b", "b", "b", "a", "a", "a", "c", "c", "c")
ORDERS = ((0, 3, 6, 1, 4, 7, 2, 5, 8), (8, 3, 2, 5, 6, 0, 7, 1, 4))
"""Orders in which the groups above lie apart."""


def batch(
    seed: int = 0,
    *,
    advantages: tuple[float, ...] = (1.0, -0.5, -0.5, 0.25),
    junk: float = 0.0,
    silent: int | None = None,
) -> LossInput:
    """Four trajectories of two rows each, padded to five tokens; `junk` fills the masked places of every tensor.

    The trajectory `silent` has no agent tokens at all.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, width = 2 * len(advantages), 5
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask_RT = torch.arange(width)[None, :] < lengths[:, None]
    logp_RT = (-torch.rand((rows, width), generator=generator)).double()
    old_RT = logp_RT + 0.01 * torch.randn((rows, width), generator=generator).double()
    trajectory_R = torch.arange(rows) // 2
    if silent is not None:
        mask_RT = mask_RT & (trajectory_R != silent)[:, None]
    count = len(advantages)
    tokens_N = torch.zeros(count, dtype=torch.float64).index_add(0, trajectory_R, mask_RT.sum(1).double())
    ratio_R = torch.where(mask_RT, logp_RT - old_RT, torch.zeros_like(logp_RT)).sum(1)
    ratio_N = torch.zeros(count, dtype=torch.float64).index_add(0, trajectory_R, ratio_R)
    fill = torch.full_like(logp_RT, junk)
    return LossInput(
        logp_RT=torch.where(mask_RT, logp_RT, fill).requires_grad_(),
        old_logp_RT=torch.where(mask_RT, old_RT, fill),
        mask_RT=mask_RT,
        trajectory_R=trajectory_R,
        advantage_N=torch.tensor(advantages, dtype=torch.float64),
        tokens_N=tokens_N,
        log_ratio_sum_N=ratio_N,
        ref_logp_RT=torch.where(mask_RT, old_RT, fill),
    )


def rows_of(whole: LossInput, rows: slice) -> LossInput:
    """Some rows of a batch, as a micro-batch: what is by trajectory stays that of the whole batch."""
    assert whole.ref_logp_RT is not None
    return replace(
        whole,
        logp_RT=whole.logp_RT.detach()[rows].requires_grad_(),
        old_logp_RT=whole.old_logp_RT[rows],
        mask_RT=whole.mask_RT[rows],
        trajectory_R=whole.trajectory_R[rows],
        ref_logp_RT=whole.ref_logp_RT[rows],
    )


class OptimizerSuite(PluginSuite):
    """The laws that every loss obeys."""

    kind: ClassVar[Kind] = "opt"

    def test_it_is_an_optimizer(self) -> None:
        """It has the methods of the protocol."""
        optimizer = self.build()
        assert isinstance(optimizer, PolicyOptimizer)
        assert isinstance(optimizer.needs_trajectory_ratio, bool)

    def test_the_object_pickles(self) -> None:
        """A copy of it can go to another rank, and does the same there."""
        optimizer = self.build()
        copy = pickle.loads(pickle.dumps(optimizer))
        assert torch.equal(self._loss(copy, batch()), self._loss(optimizer, batch()))

    def test_one_advantage_for_each_trajectory(self) -> None:
        """Finite, 0 where there is no reward, and the same every time."""
        optimizer = self.build()
        advantages = optimizer.advantages(REWARDS, GROUPS)
        assert len(advantages) == len(REWARDS)
        assert all(abs(value) < 1e6 for value in advantages)
        assert advantages[REWARDS.index(None)] == 0.0
        assert advantages == self.build().advantages(REWARDS, GROUPS)

    def test_more_reward_is_more_advantage(self) -> None:
        """Within a group."""
        advantages = self.build().advantages((1.0, 0.0), ("a", "a"))
        assert advantages[0] > advantages[1]

    def test_groups_need_not_lie_together(self) -> None:
        """Trajectories of one group are one group wherever they stand in the batch."""
        together = self.build().advantages(MIXED_REWARDS, MIXED_GROUPS)
        for order in ORDERS:
            rewards, groups = [MIXED_REWARDS[at] for at in order], [MIXED_GROUPS[at] for at in order]
            apart = self.build().advantages(rewards, groups)
            assert list(apart) == pytest.approx([together[at] for at in order], abs=1e-6), (
                f"groups {' '.join(groups)} get other advantages than the same trajectories sorted by group: do only "
                "neighbours form a group?"
            )

    def test_what_is_given_is_not_changed(self) -> None:
        """The lists and tensors belong to the caller, who goes on using them."""
        optimizer = self.build()
        rewards, groups = list(MIXED_REWARDS), list(MIXED_GROUPS)
        optimizer.advantages(rewards, groups)
        assert rewards == list(MIXED_REWARDS), f"`advantages` changes the rewards that it is given: now {rewards}"
        assert groups == list(MIXED_GROUPS), f"`advantages` changes the groups that it is given: now {groups}"
        for junk in (0.0, 123.0):
            sample = batch(junk=junk)
            before = {name: value.detach().clone() for name, value in _tensors(sample).items()}
            optimizer.loss(sample).loss.detach()
            changed = [name for name, value in _tensors(sample).items() if not torch.equal(value, before[name])]
            assert not changed, f"`loss` changes what it is given in place: {', '.join(changed)}"

    def test_a_trajectory_without_agent_tokens_does_no_harm(self) -> None:
        """All that it said may have been cut off; loss, gradient and metrics stay finite."""
        optimizer = self.build()
        for silent in (0, 3):
            sample = batch(silent=silent)
            output = optimizer.loss(sample)
            what = f"with 0 agent tokens in trajectory {silent}"
            hint = "is `tokens_N` clamped before it divides?"
            assert torch.isfinite(output.loss), f"the loss is {output.loss.item()} {what}: {hint}"
            gradient = self._gradient(optimizer, batch(silent=silent))
            assert torch.isfinite(gradient).all(), f"the gradient is not finite {what}: {hint}"
            broken = [name for name, value in output.metrics.items() if not math.isfinite(value)]
            assert not broken, f"{', '.join(broken)} not finite {what}: {hint}"

    def test_equal_rewards_carry_no_gradient(self) -> None:
        """A group that was always right, or always wrong, teaches nothing."""
        optimizer = self.build()
        for reward in (0.0, 1.0):
            advantages = optimizer.advantages((reward,) * 4, ("a",) * 4)
            assert self._gradient(optimizer, batch(advantages=tuple(advantages))).abs().max() < 1e-9

    def test_masked_tokens_get_no_gradient_and_change_nothing(self) -> None:
        """Not even when NaN or infinity stands there."""
        optimizer = self.build()
        clean = batch()
        expected, gradient = self._loss(optimizer, clean), self._gradient(optimizer, batch())
        for junk in (123.0, float("nan"), float("inf"), float("-inf")):
            assert torch.equal(self._loss(optimizer, batch(junk=junk)), expected)
            with_junk = self._gradient(optimizer, batch(junk=junk))
            assert torch.equal(torch.nan_to_num(with_junk) * clean.mask_RT, gradient * clean.mask_RT)
            assert (with_junk[~clean.mask_RT] == 0).all(), f"a masked place with {junk} gets a gradient"

    def test_the_gradient_goes_the_right_way(self) -> None:
        """Descending raises the probability of what had a good advantage, and lowers that of what had a bad one."""
        sample = batch(advantages=(1.0, 1.0, -1.0, -1.0))
        sample = replace(sample, old_logp_RT=sample.logp_RT.detach().clone(), log_ratio_sum_N=torch.zeros(4).double())
        gradient = self._gradient(self.build(), sample)
        by_trajectory = torch.zeros(4).double().index_add(0, sample.trajectory_R, gradient.sum(1))
        assert (by_trajectory[:2] < 0).all() and (by_trajectory[2:] > 0).all()

    def test_shares_of_micro_batches_add_up(self) -> None:
        """However the rows are split, a trajectory across two micro-batches included."""
        optimizer = self.build()
        whole = batch()
        expected, gradient = self._loss(optimizer, whole), self._gradient(optimizer, batch())
        for cuts in ((0, 4, 8), (0, 1, 8), (0, 3, 5, 8)):
            parts = [rows_of(whole, slice(a, b)) for a, b in itertools.pairwise(cuts)]
            total = torch.stack([self._loss(optimizer, part) for part in parts]).sum()
            torch.testing.assert_close(total, expected)
            torch.testing.assert_close(torch.cat([self._gradient(optimizer, part) for part in parts]), gradient)

    def test_padding_changes_nothing(self) -> None:
        """Wider rows give the same loss."""
        optimizer, narrow = self.build(), batch()
        wide = replace(narrow, **{name: _padded(getattr(narrow, name)) for name in _TOKENS})
        torch.testing.assert_close(self._loss(optimizer, wide), self._loss(optimizer, narrow))

    def test_metrics_are_plain_numbers(self) -> None:
        """Detached, finite, by name."""
        metrics = self.build().loss(batch()).metrics
        assert all(isinstance(value, float) and value == value for value in metrics.values()), metrics

    def _loss(self, optimizer: Any, sample: LossInput) -> torch.Tensor:
        loss: torch.Tensor = optimizer.loss(sample).loss
        assert torch.isfinite(loss), f"the loss is {loss.item()}"
        return loss.detach()

    def _gradient(self, optimizer: Any, sample: LossInput) -> torch.Tensor:
        loss = optimizer.loss(sample).loss
        if not loss.requires_grad:
            return torch.zeros_like(sample.logp_RT)
        (gradient,) = torch.autograd.grad(loss, sample.logp_RT, allow_unused=True)
        return gradient if gradient is not None else torch.zeros_like(sample.logp_RT)


_TOKENS = ("logp_RT", "old_logp_RT", "mask_RT", "ref_logp_RT")


def _tensors(sample: LossInput) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(sample, field.name) for field in fields(sample)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _padded(value: torch.Tensor) -> torch.Tensor:
    more = torch.zeros((value.shape[0], 3), dtype=value.dtype)
    return torch.cat([value.detach(), more], dim=1)
