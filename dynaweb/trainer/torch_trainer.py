"""The trainer of one process: supervised and policy updates of a causal language model, on CPU or GPU.

What an update computes does not depend on the micro-batch split: losses are normalised by counts of the whole batch,
and ratios of whole trajectories come from a first pass without gradients when a trajectory is split. Prompts are never
targets. Dropout is off. An update whose loss or gradient is not finite is skipped and counted; three in a row are an
error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dynaweb.errors import CheckpointError, TrainingError
from dynaweb.plugin.contracts import loss_output
from dynaweb.protocols import Credit, CriticSpec, HasCritic, PolicyOptimizer, TokenRow, Vision
from dynaweb.trainer import batching, checkpoint
from dynaweb.trainer.batching import MicroBatch
from dynaweb.trainer.critic import Critic, CriticGradient
from dynaweb.trainer.logprobs import Scorer, micro_batches, scorer_for
from dynaweb.trainer.losses import Logps, OldLogps, PolicyBatch, PolicyTally
from dynaweb.trainer.models import frozen, trainable
from dynaweb.trainer.ranks import Ranks
from dynaweb.trainer.stepper import AdamSettings, AnyStepper, Gradient, Schedule, Stepper, move_together

CRITIC = "critic."
"""What the critic's tensors are called by in a checkpoint."""

__all__ = ["TorchTrainer"]


class TorchTrainer:
    """AdamW with a linear schedule and gradient clipping around the log-probabilities of response tokens.

    `micro_tokens` bounds the tokens of one forward pass, padding included where there is any; with `checkpointing`
    the activations of its layers are made again in the backward pass. `total_steps`, `warmup` and `final_fraction`
    are those of `Schedule`; `steps` counts updates, skipped ones included. `seed` is that of `draw`. The policy draws
    tokens at `temperature`: logits are divided by it in policy updates and `logprobs`, and not in supervised ones,
    which imitate. `critic` is a model of its own and what the optimizer says of the critic to make of it: it learns
    beside the policy, on the same schedule, and shares its checkpoints. With several `ranks` each is given the same
    rows and computes a part of them. `vision` makes inputs of prompts with images; without it such rows are refused.
    `offender` is the trajectory that made the last policy update unsound, where one alone does. `moves` counts the
    steps, since the trainer was made, that changed weights, the critic's included.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        total_steps: int,
        warmup: int = 0,
        final_fraction: float = 0.1,
        max_grad_norm: float = 1.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        micro_tokens: int = 4096,
        checkpointing: bool = False,
        seed: int = 0,
        temperature: float = 1.0,
        critic: tuple[nn.Module, CriticSpec] | None = None,
        ranks: Ranks | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.model = model
        self.vision = vision
        self.temperature = temperature
        self.ranks = ranks or Ranks()
        self.schedule = Schedule(lr, total_steps, warmup, final_fraction)
        self.max_grad_norm = max_grad_norm
        self.micro_tokens = micro_tokens
        self.seed = seed
        self.steps = 0
        self.moves = 0
        self.offender: int | None = None
        self._scorer, self._stepper = self._parts(AdamSettings(weight_decay, betas), checkpointing)
        self.critic: Critic | None = None
        if critic is not None:
            more: dict[str, Any] = {"micro_tokens": micro_tokens, "checkpointing": checkpointing, "ranks": self.ranks}
            self.critic = Critic(*critic, self.schedule, vision=vision, **more)

    def _parts(self, adam: AdamSettings, checkpointing: bool) -> tuple[Scorer, AnyStepper]:
        """What computes log-probabilities, and what takes steps."""
        scorer = scorer_for(self.model, checkpointing=checkpointing, vision=self.vision)
        return scorer, Stepper(trainable(self.model), self.schedule, adam, what="model")

    @property
    def skipped(self) -> int:
        """Updates without a step because loss or gradient were not finite."""
        return self._stepper.skipped

    @skipped.setter
    def skipped(self, value: int) -> None:
        self._stepper.skipped = value

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def draw(self, size: int, count: int) -> list[int]:
        """Indices of the next update's rows, every row once before any comes again; a function of seed and `steps`."""
        return batching.draw(size, count, seed=self.seed, step=self.steps)

    def supervised_step(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """One update on the mean cross-entropy: sum of row weight x (-log p) over all response tokens / their number.

        Returns `loss`, `grad_norm`, `lr`, `entropy`, `tokens`, `padded_tokens`, `seconds`, `updated` (0 = skipped), and
        `image_tokens`, those of prompts that stand for images, where the model sees.
        """
        start = time.perf_counter()
        if not any(row.response_ids for row in rows):
            raise TrainingError("a supervised batch without any response token")
        with self._update() as update:
            loss = update.supervised(rows, 1.0)
        return self._report(update, start, {"loss": loss})

    def policy_step(
        self,
        rows: Sequence[TokenRow],
        optimizer: PolicyOptimizer,
        advantages: Sequence[float] | Credit,
        old_logps: OldLogps | None = None,
        *,
        supervised: Sequence[TokenRow] = (),
        supervised_weight: float = 0.0,
        ref_logps: Logps | None = None,
        token_weights: Logps | None = None,
    ) -> dict[str, float]:
        """One policy update, plus `supervised_weight` x the cross-entropy of `supervised`.

        `advantages` holds one number per trajectory, or is finer credit; `old_logps` and `ref_logps` hold one number
        per response token of each row. `old_logps` None: the present model made the rows (first and only step), ratios
        are exactly 1; None for a row: its ratio counts as 1. Rows without an advantage are not computed (unless there
        is a reference term); they count in all denominators. `token_weights` multiply the gradients of tokens, for
        rollouts that an engine drew with probabilities that are not quite the trainer's. With a critic, credit has
        targets, and it takes a step too.

        Returns what `supervised_step` does and `policy_loss`, `supervised_loss`, `clip_frac_low/high` and other sums of
        the loss, `ratio_*` of `PolicyTally.metrics`, `approx_kl`, `ref_kl` (with a reference), `entropy`,
        `dead_share` (trajectories with advantage 0), `rows`, `rows_skipped`, and what `Critic.report` returns. Raises
        `TrainingError` after three unsound updates in a row, with policy and critic as they were.
        """
        start = time.perf_counter()
        self.offender = None
        credit = advantages if isinstance(advantages, Credit) else Credit(advantages)
        batch = PolicyBatch(rows, credit, old_logps, ref_logps, token_weights)
        batch.check()
        live = batch.live()
        with self._update() as update:
            policy_loss, tally = update.policy(batch, live, optimizer)
            bc_loss = update.supervised(supervised, supervised_weight) if supervised and supervised_weight else 0.0
        loss = policy_loss + supervised_weight * bc_loss
        critic = self._critic_gradient(rows, credit, optimizer)
        if update.computed and not Gradient(loss, update.grad_norm).sound:
            self.offender = self._find_offender(batch, live, optimizer)
        counts = [count for count in batch.tokens if count]
        dead = sum(count > 0 and a == 0.0 for count, a in zip(batch.tokens, credit.advantages, strict=True))
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "supervised_loss": bc_loss,
            **tally.metrics(),
            "dead_share": dead / len(counts) if counts else 0.0,
            "trajectories": float(len(counts)),
            "rows": float(len(rows)),
            "rows_skipped": float(len(rows) - len(live)),
        }
        return self._report(update, start, metrics, critic)

    def logprobs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Natural-log probabilities of each row's response tokens at `temperature`, float32, without gradients."""
        out = [np.zeros(len(row.response_ids), dtype=np.float32) for row in rows]
        own: dict[int, np.ndarray] = {}
        micros = self.micro_batches(rows, range(len(rows)))
        with frozen(self.model), torch.no_grad():
            for micro in self.ranks.mine(micros):
                values = self._scorer.logprobs(micro, self.temperature)[0].cpu().numpy()
                sizes = np.cumsum([len(rows[row].response_ids) for row in micro.rows])[:-1]
                own.update(zip(micro.rows, np.split(values, sizes), strict=True))
            self._even_out(len(micros))
        for part in self.ranks.gather(own):
            for row, logps in part.items():
                out[row] = logps
        return out

    def _even_out(self, count: int) -> None:
        """Called when this rank has computed its part of `count` micro-batches; see `UpdatePass`."""

    def micro_batches(self, rows: Sequence[TokenRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """The chosen rows as micro-batches, rows with the same prompt together where the model's scorer shares it."""
        return micro_batches(self._scorer, rows, chosen, self.micro_tokens, self.device)

    def state_dict(self) -> dict[str, Any]:
        """`tensors` (parameters and AdamW state by parameter name) and `meta` (counters), all of it plain data."""
        tensors, meta = self._stepper.tensors(), {"steps": self.steps, "skipped": self.skipped}
        if self.critic is not None:
            tensors |= {CRITIC + name: value for name, value in self.critic.stepper.tensors().items()}
            meta["critic_skipped"] = self.critic.stepper.skipped
        return {"tensors": tensors, "meta": meta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave. Raises `CheckpointError` when it belongs to another model or optimizer."""
        tensors, meta = state["tensors"], state["meta"]
        critic = {name.removeprefix(CRITIC): value for name, value in tensors.items() if name.startswith(CRITIC)}
        if bool(critic) != (self.critic is not None):
            raise CheckpointError(
                f"the checkpoint has {'a' if critic else 'no'} critic and the optimizer {'none' if critic else 'one'}:"
                " they belong to different optimizers"
            )
        policy = {name: value for name, value in tensors.items() if not name.startswith(CRITIC)}
        self._stepper.check(policy)
        if self.critic is not None:
            self.critic.stepper.load(critic, int(meta["critic_skipped"]))
        self._stepper.load(policy, int(meta["skipped"]))
        self.steps = int(meta["steps"])

    def save(self, folder: Path, *, keep: int = 1) -> None:
        """Write an atomic checkpoint (safetensors and JSON); the last `keep` stay."""
        state = self.state_dict()
        checkpoint.save(folder, state["tensors"], state["meta"], self.steps, keep=keep)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint of `save`. Raises `CheckpointError` when it is missing, truncated or foreign."""
        tensors, meta = checkpoint.load(folder)
        self.load_state_dict({"tensors": tensors, "meta": meta})

    def load_weights(self, folder: Path) -> None:
        """Give the model the weights in a folder of `checkpoint.save`, by parameter name, to be used and saved.

        The trainer itself stays as it is: an update after this one would go on from its own weights. Raises
        `CheckpointError` when the folder is damaged.
        """
        tensors, _ = checkpoint.load(folder)
        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                parameter.copy_(tensors[name])

    def load_critic(self, folder: Path) -> None:
        """Go on with the critic that `Critic.save` left in a folder; raises `CheckpointError` for a foreign one."""
        assert self.critic is not None, "a trainer without a critic has nothing to load it into"
        self.critic.load(folder)

    def _update(self) -> UpdatePass:
        return UpdatePass(self, self.ranks)

    def _critic_gradient(
        self, rows: Sequence[TokenRow], credit: Credit, optimizer: PolicyOptimizer
    ) -> CriticGradient | None:
        if self.critic is None or not rows:
            return None
        if not isinstance(optimizer, HasCritic):
            raise TrainingError(
                f"there is a critic, but {type(optimizer).__name__} has no critic_loss to train it with"
            )
        return self.critic.compute(rows, credit, optimizer)

    def _find_offender(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> int | None:
        """The first trajectory that alone gives a loss or gradient that is not finite, by computing each on its own."""
        for trajectory in range(len(batch.advantages)):
            mine = [i for i in live if batch.rows[i].trajectory == trajectory]
            with UpdatePass(self, Ranks()) as update:
                loss, _ = update.policy(batch, mine, optimizer)
            if update.computed and not Gradient(loss, update.grad_norm).sound:
                return trajectory
        return None

    def _report(
        self, update: UpdatePass, start: float, metrics: dict[str, float], critic: CriticGradient | None = None
    ) -> dict[str, float]:
        """Step the optimizers where the update is sound, and add what every update reports."""
        norm, index = update.grad_norm, self.steps
        gradients: list[tuple[AnyStepper, Gradient]] = [
            (self._stepper, Gradient(metrics["loss"], norm, update.computed))
        ]
        if critic is not None and self.critic is not None:
            gradients.append((self.critic.stepper, critic.gradient))
        moving = move_together(index, gradients)
        self.steps += 1
        self.moves += any(moving)
        return {
            **metrics,
            **(self.critic.report(critic, index) if critic is not None and self.critic is not None else {}),
            "entropy": metrics.get("entropy", update.entropy / max(1, update.tokens)),
            "grad_norm": norm,
            "lr": self.schedule.at(index),
            "tokens": float(update.tokens),
            "padded_tokens": float(update.padded_tokens),
            **({"image_tokens": float(update.image_tokens)} if self.vision is not None else {}),
            "updated": float(moving[0]),
            "skipped": float(self.skipped),
            "seconds": time.perf_counter() - start,
        }


# The forward and backward passes of one update: micro-batch after micro-batch, one gradient at the end.


class UpdatePass:
    """A context in which losses are computed and differentiated; on leaving, the masters' gradients are complete and
    clipped.

    `grad_norm` is the global norm before clipping, `computed` tells whether there was anything to differentiate,
    `tokens` counts response tokens, `padded_tokens` everything that went through the model, `image_tokens` what of it
    stood for images, `entropy` sums over tokens.
    """

    def __init__(self, trainer: TorchTrainer, ranks: Ranks) -> None:
        self._ranks = ranks
        self._masters = trainer._stepper.masters
        self._micro_batches = trainer.micro_batches
        self._scorer, self._temperature = trainer._scorer, trainer.temperature
        self._parameters = list(self._masters.leaves.values())
        self._max_grad_norm = trainer.max_grad_norm
        self._around = ExitStack()
        self._model = trainer.model
        self.tokens = 0
        self.padded_tokens = 0
        self.image_tokens = 0
        self.entropy = 0.0
        self.grad_norm = 0.0
        self.computed = False

    def __enter__(self) -> UpdatePass:
        self._masters.drop_gradients()
        for context in (frozen(self._model), self._masters.collecting(), self._scorer.step()):
            self._around.enter_context(context)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._around.__exit__(kind, error, trace)
        if kind is not None:
            return
        self._share()
        if self.computed:
            self.grad_norm = self._clip()

    def supervised(self, rows: Sequence[TokenRow], weight: float) -> float:
        """Backward of `weight` x the mean cross-entropy; returns the cross-entropy itself."""
        total = sum(len(row.response_ids) for row in rows)
        loss = 0.0
        micros = self._micro_batches(rows, range(len(rows)))
        for micro in self._ranks.mine(micros):
            logp_N, entropy_N = self._scorer.logprobs(micro)
            weights = [rows[row].weight for row in micro.rows]
            weight_N = torch.tensor(weights, dtype=torch.float32, device=logp_N.device)[micro.row_N]
            share = -(weight_N * logp_N).sum() / total
            self._backward(weight * share, micro, entropy_N)
            loss += float(share.detach())
        self._even_out(len(micros), gradient=True)
        return sum(self._ranks.gather(loss))

    def policy(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> tuple[float, PolicyTally]:
        """Backward of the optimizer's loss over the live rows; returns its value and what was seen."""
        micros = self._micro_batches(batch.rows, live)
        split = self._ranks.size > 1 or batch.splits_trajectories(micros)
        count, micros = len(micros), self._ranks.mine(micros)
        log_ratio_sum = None
        if batch.old is not None and optimizer.needs_trajectory_ratio and split:
            log_ratio_sum = self._log_ratio_sums(batch, micros)
            self._even_out(count, gradient=False)
            self._ranks.add(log_ratio_sum)
        tally, loss = PolicyTally(len(batch.advantages), batch.old is not None), 0.0
        for micro in micros:
            logp_N, entropy_N = self._scorer.logprobs(micro, self._temperature)
            inputs, _ = batch.loss_input(micro, logp_N, log_ratio_sum)
            out = loss_output(optimizer, optimizer.loss(inputs))
            self._backward(out.loss, micro, entropy_N)
            tally.add(inputs, entropy_N, out.metrics)
            loss += float(out.loss.detach())
        self._even_out(count, gradient=True)
        return self._together(batch, tally, loss)

    def _together(self, batch: PolicyBatch, tally: PolicyTally, loss: float) -> tuple[float, PolicyTally]:
        """Losses and tallies of all ranks as one."""
        if self._ranks.size == 1:
            return loss, tally
        whole = PolicyTally(len(batch.advantages), batch.old is not None)
        parts = self._ranks.gather((loss, tally))
        for _, part in parts:
            whole.merge(part)
        return sum(part for part, _ in parts), whole

    def _log_ratio_sums(self, batch: PolicyBatch, micros: Sequence[MicroBatch]) -> torch.Tensor:
        """First pass: this rank's sum of (logp - old) over agent tokens of each trajectory [N], float64."""
        device = next(iter(self._parameters)).device
        sums = torch.zeros(len(batch.advantages), dtype=torch.float64, device=device)
        with torch.no_grad():
            for micro in micros:
                logp_N = self._scorer.logprobs(micro, self._temperature)[0]
                inputs, old_N = batch.loss_input(micro, logp_N, None)
                sums.index_add_(0, inputs.trajectory_R[micro.row_N], (logp_N - old_N).double())
        return sums

    def _even_out(self, count: int, *, gradient: bool) -> None:
        """Called when this rank has computed its part of `count` micro-batches, before ranks exchange anything.

        Where every pass is itself an exchange (sharded weights), ranks with fewer of them have to make up for it.
        """

    def _share(self) -> None:
        """Add up gradients and counts of all ranks."""
        self._ranks.add_gradients(self._parameters)
        self._gather_counts()

    def _clip(self) -> float:
        """Clip the gradients; their global norm before."""
        return float(nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))

    def _gather_counts(self) -> None:
        """Counts of all ranks as one."""
        parts = self._ranks.gather((self.computed, self.tokens, self.padded_tokens, self.entropy, self.image_tokens))
        self.computed = any(part[0] for part in parts)
        self.tokens = sum(part[1] for part in parts)
        self.padded_tokens = sum(part[2] for part in parts)
        self.entropy = sum(part[3] for part in parts)
        self.image_tokens = sum(part[4] for part in parts)

    def _backward(self, loss: torch.Tensor, micro: MicroBatch, entropy_N: torch.Tensor) -> None:
        self._differentiate(loss)
        self.computed = True
        self.tokens += len(micro.target_N)
        self.padded_tokens += micro.tokens if self._scorer.packs else micro.padded_tokens
        if micro.seen is not None and self._scorer.vision is not None:
            self.image_tokens += micro.seen.ids.count(self._scorer.vision.image_id)
        self.entropy += float(entropy_N.sum())

    def _differentiate(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
