"""The losses against TRL's own code on single-row sequences: value and gradient, float32, relative 1e-5.

TRL is a dependency of this comparison alone (`pip install 'dynaweb[trl]'`).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynaweb.protocols import LossInput
from dynaweb_opt_cispo import CispoConfig
from dynaweb_opt_cispo.cispo import Cispo
from dynaweb_opt_grpo import GrpoConfig
from dynaweb_opt_grpo.grpo import Grpo
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo

LONGEST = 9
"""TRL's `max_completion_length`: the constant of Dr. GRPO."""
ROWS = 8


@pytest.fixture(scope="module")
def trainer_class() -> Any:
    """TRL's GRPOTrainer, whose loss is called as it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from trl import GRPOTrainer
    except ImportError as error:
        pytest.skip(f"trl is not installed ({error}); pip install 'dynaweb[trl]'")
    return GRPOTrainer


OURS: dict[str, Any] = {
    "grpo": Grpo(GrpoConfig(clip_high=0.28)),
    "grpo-kl": Grpo(GrpoConfig(clip_high=0.28, beta=0.1)),
    "grpo-delta": Grpo(GrpoConfig(clip_high=0.28, ratio_cap=1.5)),
    "dr_grpo": Grpo(GrpoConfig(clip_high=0.28, agg="constant", norm_const=LONGEST)),
    "dapo": Grpo(GrpoConfig(clip_high=0.28, agg="token_mean")),
    "cispo": Cispo(CispoConfig(ratio_max=1.28, log_ratio_limit=None)),
    "sequence": Gspo(GspoConfig(clip_low=0.2, clip_high=0.28)),
    "sequence-narrow": Gspo(GspoConfig()),
    "sequence-kl": Gspo(GspoConfig(clip_low=0.2, clip_high=0.28, beta=0.1)),
}


class _Batch:
    """Completions of different lengths, right-padded, with log-probabilities under three policies."""

    def __init__(self, seed: int, spread: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, LONGEST + 1, (ROWS,), generator=generator)
        lengths[0] = LONGEST
        self.mask = torch.arange(LONGEST) < lengths[:, None]
        self.old = -3 * torch.rand(ROWS, LONGEST, generator=generator)
        self.new = self.old + spread * torch.randn(ROWS, LONGEST, generator=generator)
        self.ref = self.old + 0.3 * torch.randn(ROWS, LONGEST, generator=generator)
        # With its padding at 0, as TRL has it: its loss multiplies by the mask afterwards.
        self.old, self.new, self.ref = (torch.where(self.mask, x, 0.0) for x in (self.old, self.new, self.ref))
        rewards = torch.rand(ROWS, generator=generator).view(-1, 4)
        centred = rewards - rewards.mean(1, keepdim=True)
        self.rewards = rewards.flatten().tolist()
        self.advantages = (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten()


def _theirs(trainer_class: Any, name: str, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Loss, gradient and metrics of TRL's `_compute_loss`, given our log-probabilities."""
    config = OURS[name].config
    logp = batch.new.clone().requires_grad_()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
        ),
        args=SimpleNamespace(
            delta=getattr(config, "ratio_cap", None), use_bias_correction_kl=False, steps_per_generation=1
        ),
        aux_loss_enabled=False,
        beta=config.beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=getattr(config, "clip_low", 0.0),
        epsilon_high=config.ratio_max if name == "cispo" else config.clip_high,
        importance_sampling_level="sequence" if name.startswith("sequence") else "token",
        loss_type="grpo" if name.startswith("sequence") else name.split("-")[0],
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": torch.zeros(ROWS, LONGEST, dtype=torch.long),
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = trainer_class._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logp.grad is not None
    return loss.detach(), logp.grad, trainer._metrics["train"]


def _ours(name: str, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor, Any]:
    logp = batch.new.clone().requires_grad_()
    groups = [str(row // 4) for row in range(ROWS)]
    out = OURS[name].loss(
        LossInput(
            logp_RT=logp,
            old_logp_RT=batch.old,
            mask_RT=batch.mask,
            trajectory_R=torch.arange(ROWS),
            advantage_N=torch.tensor(OURS[name].advantages(batch.rewards, groups)),
            tokens_N=batch.mask.sum(1),
            ref_logp_RT=batch.ref,
        )
    )
    out.loss.backward()
    assert logp.grad is not None
    return out.loss.detach(), logp.grad, out.metrics


@pytest.mark.parametrize("name", sorted(OURS))
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.4])
def test_loss_and_gradient_are_those_of_trl(trainer_class: Any, name: str, seed: int, spread: float) -> None:
    batch = _Batch(seed, spread)
    loss, gradient, metrics = _theirs(trainer_class, name, batch)
    found, ours, fractions = _ours(name, batch)
    largest = float(gradient.abs().max())
    # Losses are sums of terms of both signs; what is lost in adding them is relative to the terms.
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-5 * largest)
    if OURS[name].config.beta:
        assert fractions["kl_sum"] == pytest.approx(metrics["kl"][0], rel=1e-4, abs=1e-6)
    if name != "cispo":
        for side in ("low", "high"):
            theirs = metrics[f"clip_ratio/{side}_mean"][0]
            assert fractions[f"clip_frac_{side}_sum"] == pytest.approx(theirs, rel=1e-5, abs=1e-7)
