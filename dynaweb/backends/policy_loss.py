"""One policy update as numbers: which rows are live, what the optimizer's loss sees of a micro-batch, what is reported.

Shapes: N trajectories of the whole batch, R rows and T response tokens of one micro-batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dynaweb.backends.batch import MicroBatch
from dynaweb.backends.kl import exp_excess
from dynaweb.credit import Credit
from dynaweb.errors import TrainingError
from dynaweb.protocols import LossInput, TokenRow

Logps = Sequence[Sequence[float]]
OldLogps = Sequence[Sequence[float] | None]
"""Like `Logps`; None for rows whose ratio is 1 by decision, whatever the policy has become."""


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """The rows of one update with their credit and reference log-probabilities (one float per response token).

    `old` None means that the present model made all rows: every ratio is exactly 1.
    """

    rows: Sequence[TokenRow]
    credit: Credit
    old: OldLogps | None = None
    ref: Logps | None = None
    weights: Logps | None = None
    """Factor of each token's gradient, for tokens that another distribution drew; None = 1."""

    @property
    def advantages(self) -> Sequence[float]:
        """One advantage per trajectory."""
        return self.credit.advantages

    def check(self) -> None:
        """Raise `TrainingError` for indices, lengths or advantages that cannot be."""
        wrong = [i for i, row in enumerate(self.rows) if not 0 <= row.trajectory < len(self.advantages)]
        if wrong:
            raise TrainingError(
                f"row {wrong[0]} belongs to trajectory {self.rows[wrong[0]].trajectory}, but there are"
                f" {len(self.advantages)} advantages"
            )
        odd = [i for i, advantage in enumerate(self.advantages) if not math.isfinite(advantage)]
        if odd:
            raise TrainingError(f"the advantage of trajectory {odd[0]} is {self.advantages[odd[0]]}; it must be finite")
        finer = [a for row in self.credit.tokens or () for a in row] + list(self.credit.rows or ())
        if not all(map(math.isfinite, finer)):
            raise TrainingError("an advantage of a row or token is not finite; all of them must be")
        for name, given in (
            ("old_logps", self.old),
            ("ref_logps", self.ref),
            ("token_weights", self.weights),
            ("token advantages", self.credit.tokens),
        ):
            if given is not None:
                self._check_lengths(name, given)

    def _check_lengths(self, name: str, given: OldLogps) -> None:
        pairs = zip(given, self.rows, strict=True) if len(given) == len(self.rows) else ()
        right = [values is None or len(values) == len(row.response_ids) for values, row in pairs]
        if len(given) != len(self.rows) or not all(right):
            raise TrainingError(f"{name} must hold one number for each response token of each row")

    @property
    def tokens(self) -> list[int]:
        """Agent tokens of each trajectory over all its rows."""
        counts = Counter[int]()
        for row in self.rows:
            counts[row.trajectory] += len(row.response_ids)
        return [counts[i] for i in range(len(self.advantages))]

    def live(self) -> list[int]:
        """Rows that can move the policy. Without a reference term those without an advantage cannot."""
        return [
            i
            for i, row in enumerate(self.rows)
            if row.response_ids and (self.ref is not None or self.credit.moves(i, row.trajectory))
        ]

    def loss_input(
        self, batch: MicroBatch, logp_N: torch.Tensor, log_ratio_sum: torch.Tensor | None
    ) -> tuple[LossInput, torch.Tensor]:
        """What the loss sees of a micro-batch, and the old log-probabilities of its tokens in the order of `logp_N`."""
        device = logp_N.device
        if self.weights is not None:
            logp_N = weighted(logp_N, _pick(self.weights, batch, device))
        old_N = self._old(batch, logp_N.detach())
        if self.old is None:
            log_ratio_sum = torch.zeros(len(self.advantages), device=device)
        given = LossInput(
            logp_RT=batch.spread(logp_N),
            old_logp_RT=batch.spread(old_N),
            mask_RT=batch.mask(),
            trajectory_R=torch.tensor([self.rows[i].trajectory for i in batch.rows], device=device),
            advantage_N=torch.tensor(list(self.advantages), dtype=torch.float32, device=device),
            tokens_N=torch.tensor(self.tokens, device=device),
            log_ratio_sum_N=log_ratio_sum,
            ref_logp_RT=None if self.ref is None else batch.spread(_pick(self.ref, batch, device)),
            **self._finer(batch, device),
        )
        return given, old_N

    def _finer(self, batch: MicroBatch, device: torch.device) -> dict[str, torch.Tensor]:
        """What the loss sees of credit that is finer than trajectories."""
        out = {}
        if self.credit.tokens is not None:
            out["advantage_RT"] = batch.spread(_pick(self.credit.tokens, batch, device))
        if self.credit.rows is not None:
            out["row_R"] = torch.tensor(batch.rows, device=device)
            out["advantage_S"] = torch.tensor(list(self.credit.rows), dtype=torch.float32, device=device)
            out["tokens_S"] = torch.tensor([len(row.response_ids) for row in self.rows], device=device)
        return out

    def _old(self, batch: MicroBatch, now_N: torch.Tensor) -> torch.Tensor:
        if self.old is None:
            return now_N
        rows = [(self.old[row], len(self.rows[row].response_ids)) for row in batch.rows]
        given = [value for values, count in rows for value in (values or [0.0] * count)]
        known = [values is not None for values, count in rows for _ in range(count)]
        old_N = torch.tensor(given, dtype=torch.float32, device=now_N.device)
        return torch.where(torch.tensor(known, dtype=torch.bool, device=now_N.device), old_N, now_N)

    def splits_trajectories(self, batches: Sequence[MicroBatch]) -> bool:
        """Whether any trajectory has rows in more than one micro-batch."""
        homes: dict[int, int] = {}
        return any(
            homes.setdefault(self.rows[row].trajectory, place) != place
            for place, batch in enumerate(batches)
            for row in batch.rows
        )


def weighted(logp_N: torch.Tensor, weight_N: torch.Tensor) -> torch.Tensor:
    """The same values to the last bit, whose gradients are multiplied by `weight_N`: so any loss is weighted by token.

    For weights min(c, exp(log p of the trainer - log p of the sampler)) this is truncated importance sampling.
    """
    return logp_N.detach() + weight_N * (logp_N - logp_N.detach())


def _pick(logps: Logps, batch: MicroBatch, device: torch.device) -> torch.Tensor:
    return torch.tensor([value for row in batch.rows for value in logps[row]], dtype=torch.float32, device=device)


@dataclass(slots=True)
class PolicyTally:
    """Collects what is reported of one update, in float64 on the CPU."""

    trajectories: int
    log_ratio: list[float] = field(init=False)
    tokens: list[int] = field(init=False)
    kl: float = 0.0
    ref_kl: float = 0.0
    referred: bool = False
    entropy: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log_ratio = [0.0] * self.trajectories
        self.tokens = [0] * self.trajectories

    def add(self, given: LossInput, entropy_N: torch.Tensor, metrics: Mapping[str, float]) -> None:
        """Take in one micro-batch. KL estimates are k3, r - 1 - log r, which is never negative."""
        log_ratio_RT = torch.where(given.mask_RT, given.logp_RT.detach() - given.old_logp_RT, 0.0).double()
        self.kl += float(exp_excess(log_ratio_RT).sum())
        if given.ref_logp_RT is not None:
            away_RT = torch.where(given.mask_RT, given.ref_logp_RT - given.logp_RT.detach(), 0.0).double()
            self.ref_kl += float(exp_excess(away_RT).sum())
            self.referred = True
        self.entropy += float(entropy_N.double().sum())
        sums, counts = log_ratio_RT.sum(1).tolist(), given.mask_RT.sum(1).tolist()
        for trajectory, total, count in zip(given.trajectory_R.tolist(), sums, counts, strict=True):
            self.log_ratio[trajectory] += total
            self.tokens[trajectory] += count
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def metrics(self) -> dict[str, float]:
        """Ratio quantiles over trajectories (of exp(mean log-ratio)), KL and entropy per token, the loss's own sums."""
        out = {name.removesuffix("_sum"): value for name, value in self.sums.items()}
        tokens = sum(self.tokens)
        if not tokens:
            return out
        pairs = zip(self.log_ratio, self.tokens, strict=True)
        ratio = torch.tensor([total / count for total, count in pairs if count], dtype=torch.float64).exp()
        for name, share in (("min", 0.0), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            out[f"ratio_{name}"] = float(ratio.quantile(share))
        out["approx_kl"] = self.kl / tokens
        out["entropy"] = self.entropy / tokens
        if self.referred:
            out["ref_kl"] = self.ref_kl / tokens
        return out

    def merge(self, other: PolicyTally) -> None:
        """Add what another rank has seen."""
        self.kl += other.kl
        self.ref_kl += other.ref_kl
        self.referred = self.referred or other.referred
        self.entropy += other.entropy
        self.log_ratio = [a + b for a, b in zip(self.log_ratio, other.log_ratio, strict=True)]
        self.tokens = [a + b for a, b in zip(self.tokens, other.tokens, strict=True)]
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
