"""The optimizer probe: losses that teach nothing are refused before a run, whatever groups it would have had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynaweb.errors import PluginError
from dynaweb.plugin.registry import current
from dynaweb.protocols import Credit, CriticSpec, LossOutput, PluginContext, Wants
from dynaweb.trainer.probe import check_optimizer


class Simple:
    """REINFORCE with a group mean, or with another loss."""

    needs_trajectory_ratio = False

    def __init__(self, loss: Callable[[Any], torch.Tensor] | None = None) -> None:
        self._loss = loss

    def advantages(self, rewards: Any, groups: Any) -> list[float]:
        return [reward - 0.5 for reward in rewards]

    def loss(self, batch: Any) -> LossOutput:
        if self._loss is not None:
            return LossOutput(self._loss(batch))
        return LossOutput(-(batch.logp_RT * batch.advantage_N[batch.trajectory_R][:, None]).sum())


class Critical(Simple):
    """The same with a critic."""

    wants = Wants(critic=CriticSpec(lr=0.1, at="rows"))

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def credit(self, batch: Any) -> Credit:
        return Credit(self.advantages(batch.graded, batch.groups), targets=[[1.0]] * len(batch.rows))

    def critic_loss(self, batch: Any) -> LossOutput:
        return LossOutput(self.factor * ((batch.output_RTO[..., 0] - batch.target_RT) ** 2).sum())


WRONG: dict[str, tuple[Callable[[Any], torch.Tensor], str]] = {
    "nan": (lambda batch: batch.logp_RT.sum() * float("nan"), r"loss\(\) is nan for a batch of finite numbers"),
    "infinite": (lambda batch: batch.logp_RT.sum() * float("inf"), r"loss\(\) is -inf"),
    "a gradient that is not finite": (
        lambda batch: (batch.logp_RT - batch.old_logp_RT).abs().sqrt().sum(),
        r"loss\(\) has a gradient that is not finite",
    ),
    "a constant": (lambda batch: torch.ones((), requires_grad=True), r"loss\(\) has a gradient of 0"),
    "nothing of the batch": (lambda batch: (batch.logp_RT * 0).sum(), r"loss\(\) has a gradient of 0"),
    "detached": (
        lambda batch: (batch.logp_RT.detach() * batch.advantage_N.sum()).sum() + 0 * batch.logp_RT.sum(),
        r"loss\(\) has a gradient of 0",
    ),
    "no advantages": (lambda batch: -batch.logp_RT.mean(), r"loss\(\) has the same gradient for advantages .* and"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_loss_that_teaches_nothing_is_refused(case: str) -> None:
    loss, words = WRONG[case]
    with pytest.raises(PluginError, match=rf"^optimizer .*Simple: {words}"):
        check_optimizer(Simple(loss))


def test_sound_ones_pass() -> None:
    """Those that come with dynaweb, a plain one, and one that says that rewards do not matter to it."""
    check_optimizer(Simple())
    for name in current().names("opt"):
        check_optimizer(current().create("opt", name, {}, PluginContext()))
    imitates = Simple(lambda batch: -batch.logp_RT.mean())
    imitates.advantages = lambda rewards, groups: [1.0] * len(rewards)  # type: ignore[method-assign]
    check_optimizer(imitates)


def test_a_critic_is_probed_too() -> None:
    check_optimizer(Critical(1.0))
    with pytest.raises(PluginError, match=r"critic_loss\(\) has a gradient of 0"):
        check_optimizer(Critical(0.0))
    with pytest.raises(PluginError, match=r"critic_loss\(\) is nan"):
        check_optimizer(Critical(float("nan")))
    headless = Simple()
    headless.wants = Wants(critic=CriticSpec(lr=0.1))  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="has no critic_loss"):
        check_optimizer(headless)
