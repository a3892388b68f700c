"""Policy losses: the batch of one update, what a loss sees of a micro-batch, and the parts that losses are made of.

Shapes: N trajectories of the whole batch, R rows and T response tokens of one micro-batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dynaweb.config.optim import Aggregation
from dynaweb.errors import TrainingError
from dynaweb.protocols import Credit, LossInput, TokenRow
from dynaweb.trainer.batching import MicroBatch
from dynaweb.trainer.kl import LOG_RATIO_LIMIT, Estimator, divergence, exp_excess

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
        for name, values in (
            ("old_logps", self.old),
            ("ref_logps", self.ref),
            ("token_weights", self.weights),
            ("token advantages", self.credit.tokens),
        ):
            if values is not None:
                self._check_lengths(name, values)

    def _check_lengths(self, name: str, logps: OldLogps) -> None:
        pairs = zip(logps, self.rows, strict=True) if len(logps) == len(self.rows) else ()
        right = [values is None or len(values) == len(row.response_ids) for values, row in pairs]
        if len(logps) != len(self.rows) or not all(right):
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
        inputs = LossInput(
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
        return inputs, old_N

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
        flat = [value for values, count in rows for value in (values or [0.0] * count)]
        known = [values is not None for values, count in rows for _ in range(count)]
        old_N = torch.tensor(flat, dtype=torch.float32, device=now_N.device)
        return torch.where(torch.tensor(known, dtype=torch.bool, device=now_N.device), old_N, now_N)

    def splits_trajectories(self, batches: Sequence[MicroBatch]) -> bool:
        """Whether any trajectory has rows in more than one micro-batch."""
        homes: dict[int, int] = {}
        return any(
            homes.setdefault(self.rows[row].trajectory, index) != index
            for index, batch in enumerate(batches)
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
    ratios: bool = False
    """Whether ratios are taken against log-probabilities that are not the present model's own."""
    log_ratio: list[float] = field(init=False)
    tokens: list[int] = field(init=False)
    kl: float = 0.0
    ratio: float = 0.0
    squared_ratio: float = 0.0
    ref_kl: float = 0.0
    referred: bool = False
    entropy: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log_ratio = [0.0] * self.trajectories
        self.tokens = [0] * self.trajectories

    def add(self, inputs: LossInput, entropy_N: torch.Tensor, metrics: Mapping[str, float]) -> None:
        """Take in one micro-batch. KL estimates are k3, r - 1 - log r, which is never negative."""
        log_ratio_RT = torch.where(inputs.mask_RT, inputs.logp_RT.detach() - inputs.old_logp_RT, 0.0).double()
        self.kl += float(exp_excess(log_ratio_RT).sum())
        ratio_RT = torch.where(inputs.mask_RT, clamped(log_ratio_RT).exp(), 0.0)
        self.ratio += float(ratio_RT.sum())
        self.squared_ratio += float(ratio_RT.square().sum())
        if inputs.ref_logp_RT is not None:
            away_RT = torch.where(inputs.mask_RT, inputs.ref_logp_RT - inputs.logp_RT.detach(), 0.0).double()
            self.ref_kl += float(exp_excess(away_RT).sum())
            self.referred = True
        self.entropy += float(entropy_N.double().sum())
        sums, counts = log_ratio_RT.sum(1).tolist(), inputs.mask_RT.sum(1).tolist()
        for trajectory, total, count in zip(inputs.trajectory_R.tolist(), sums, counts, strict=True):
            self.log_ratio[trajectory] += total
            self.tokens[trajectory] += count
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def metrics(self) -> dict[str, float]:
        """Ratio quantiles over trajectories (of exp(mean log-ratio)), KL and entropy per token, the loss's own sums;
        where ratios are not 1 by themselves, `ratio_ess`, the effective sample size of those of tokens as a share."""
        out = {name.removesuffix("_sum"): value for name, value in self.sums.items()}
        tokens = sum(self.tokens)
        if not tokens:
            return out
        pairs = zip(self.log_ratio, self.tokens, strict=True)
        ratio = torch.tensor([total / count for total, count in pairs if count], dtype=torch.float64).exp()
        for name, share in (("min", 0.0), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            out[f"ratio_{name}"] = float(ratio.quantile(share))
        if self.ratios:
            out["ratio_ess"] = self.ratio**2 / (tokens * self.squared_ratio)
        out["approx_kl"] = self.kl / tokens
        out["entropy"] = self.entropy / tokens
        if self.referred:
            out["ref_kl"] = self.ref_kl / tokens
        return out

    def merge(self, other: PolicyTally) -> None:
        """Add what another rank has seen."""
        self.kl += other.kl
        self.ratio += other.ratio
        self.squared_ratio += other.squared_ratio
        self.ref_kl += other.ref_kl
        self.referred = self.referred or other.referred
        self.entropy += other.entropy
        self.log_ratio = [a + b for a, b in zip(self.log_ratio, other.log_ratio, strict=True)]
        self.tokens = [a + b for a, b in zip(self.tokens, other.tokens, strict=True)]
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value


# The parts that policy losses are made of: clean log-ratios, clipped gains, weights of tokens, whole trajectories.
# Every tensor that leaves this module is 0 in masked slots, replaced *before* any arithmetic, so that nan or inf there
# changes neither value nor gradient. Losses are shares: the micro-batches of a batch, on all ranks, add up to the loss.
#
# Shapes: R rows padded to T tokens, N trajectories, S rows of the whole batch (see `dynaweb.protocols.LossInput`).


@dataclass(frozen=True, slots=True)
class Window:
    """Where a ratio r counts: from 1 - `low` to 1 + `high`, on the side towards which the advantage A pulls.

    `dual` c (arXiv 1912.09729): for A < 0 the loss of a token is at most -cA. `cap`: the unclipped branch uses
    min(r, cap) (two-sided clipping). None = off.
    """

    low: float
    high: float
    dual: float | None = None
    cap: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """A micro-batch without its masked slots: log-probabilities, l - o with gradient, and advantages per token."""

    batch: LossInput
    logp_RT: torch.Tensor
    log_ratio_RT: torch.Tensor
    advantage_RT: torch.Tensor

    @classmethod
    def of(cls, batch: LossInput) -> Tokens:
        """The micro-batch, cleaned."""
        logp_RT = clean(batch.logp_RT, batch.mask_RT)
        old_RT = clean(batch.old_logp_RT, batch.mask_RT)
        return cls(batch, logp_RT, logp_RT - old_RT, clean(_advantages(batch), batch.mask_RT).to(logp_RT.dtype))

    @property
    def mask_RT(self) -> torch.Tensor:
        """True on agent tokens."""
        return self.batch.mask_RT

    @property
    def trajectories(self) -> int:
        """Trajectories of the whole batch that have agent tokens (at least 1, to divide by)."""
        return max(1, int((self.batch.tokens_N > 0).sum()))

    @property
    def total(self) -> int:
        """Agent tokens of the whole batch (at least 1, to divide by)."""
        return max(1, int(self.batch.tokens_N.sum()))

    @property
    def share_RT(self) -> torch.Tensor:
        """1 / (agent tokens of the batch) on agent tokens: what a mean over tokens is made of."""
        return self.mask_RT.to(self.logp_RT.dtype) / self.total

    def weight_RT(self, agg: Aggregation, constant: float = 1.0) -> torch.Tensor:
        """Weights of the agent tokens under an aggregation."""
        mask_RT = self.mask_RT.to(self.logp_RT.dtype)
        if agg == "token_mean":
            return mask_RT / self.total
        if agg == "traj_mean_token_sum":
            return mask_RT / self.trajectories
        if agg == "constant":
            return mask_RT / (self.trajectories * constant)
        length_R = self.batch.tokens_N.clamp_min(1)[self.batch.trajectory_R].to(self.logp_RT.dtype)
        return mask_RT / (self.trajectories * length_R)[:, None]

    def kl(
        self, weight_RT: torch.Tensor, estimator: Estimator, log_diff_clip: float | None, value_clip: float | None
    ) -> tuple[torch.Tensor, float]:
        """The weighted sum of KL(policy || reference), and the share of its mean over tokens."""
        if self.batch.ref_logp_RT is None:
            raise ValueError("a KL term (beta above 0) needs reference log-probabilities, but there are none")
        ref_RT = clean(self.batch.ref_logp_RT, self.mask_RT)
        kl_RT = divergence(self.logp_RT, ref_RT, estimator, log_diff_clip=log_diff_clip, value_clip=value_clip)
        return (weight_RT * kl_RT).sum(), float((self.share_RT * kl_RT.detach()).sum())


def clean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The values, 0 in masked slots whatever stood there."""
    return torch.where(mask, values, torch.zeros_like(values))


def _advantages(batch: LossInput) -> torch.Tensor:
    """Advantages [R, T]: the finest that the batch has."""
    if batch.advantage_RT is not None:
        return batch.advantage_RT
    if batch.advantage_S is not None and batch.row_R is not None:
        return batch.advantage_S[batch.row_R][:, None].expand(batch.mask_RT.shape)
    return batch.advantage_N[batch.trajectory_R][:, None].expand(batch.mask_RT.shape)


def clamped(log_ratio: torch.Tensor, low: float | None = None, high: float | None = None) -> torch.Tensor:
    """The log-ratio within bounds, those of `LOG_RATIO_LIMIT` at the widest, without gradient beyond them."""
    low = -LOG_RATIO_LIMIT if low is None else max(low, -LOG_RATIO_LIMIT)
    return log_ratio.clamp(low, LOG_RATIO_LIMIT if high is None else min(high, LOG_RATIO_LIMIT))


def clipped_gain(log_ratio: torch.Tensor, advantage: torch.Tensor, window: Window) -> torch.Tensor:
    """min(r A, clip(r) A) with r = exp(log_ratio): what PPO, GRPO and GSPO maximise (arXiv 1707.06347, eq. 7).

    A clipped element has no gradient at all; nor has one with A = 0, or with a log-ratio beyond `LOG_RATIO_LIMIT`.
    """
    log_ratio = clamped(log_ratio)
    with torch.no_grad():
        ratio = log_ratio.exp()
        used = _used_ratio(ratio, advantage, window)
        free = (used == ratio) & (advantage != 0)
        fixed = torch.where(advantage == 0, torch.zeros_like(used), used * advantage)
    moving = torch.where(free, log_ratio, torch.zeros_like(log_ratio)).exp() * advantage
    return torch.where(free, moving, torch.where(advantage == 0, torch.zeros_like(fixed), fixed))


def _used_ratio(ratio: torch.Tensor, advantage: torch.Tensor, window: Window) -> torch.Tensor:
    """The ratio after clipping: the smaller of both branches for A > 0, the larger for A < 0."""
    inside = ratio.clamp(1 - window.low, 1 + window.high)
    plain = ratio if window.cap is None else ratio.clamp(max=window.cap)
    upper = torch.maximum(plain, inside)
    if window.dual is not None:
        upper = upper.clamp(max=window.dual)
    return torch.where(advantage < 0, upper, torch.minimum(plain, inside))


def clip_shares(
    log_ratio: torch.Tensor, advantage: torch.Tensor, share: torch.Tensor, window: Window
) -> dict[str, float]:
    """Shares of clipped elements by side: r < 1 - low with A < 0, r > 1 + high with A > 0, and r > dual with A < 0."""
    ratio = log_ratio.detach().exp()
    out = {
        "clip_frac_low_sum": (ratio < 1 - window.low) & (advantage < 0),
        "clip_frac_high_sum": (ratio > 1 + window.high) & (advantage > 0),
    }
    if window.dual is not None:
        out["clip_frac_dual_sum"] = (ratio > window.dual) & (advantage < 0)
    return {name: float((share * hit).sum()) for name, hit in out.items()}


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whole trajectories as seen from one micro-batch.

    `log_ratio_N`: value from all agent tokens of the trajectory, wherever they are; gradient through those that are
    here. `share_N`: the part of the mean over trajectories that falls on the tokens that are here.
    """

    log_ratio_N: torch.Tensor
    share_N: torch.Tensor
    trajectories: int

    @property
    def here_N(self) -> torch.Tensor:
        """Trajectories with agent tokens in this micro-batch."""
        return self.share_N > 0

    @classmethod
    def of(cls, tokens: Tokens, *, mean: bool) -> Sequences:
        """Mean or sum of the log-ratios of each trajectory.

        Raises `ValueError` when a trajectory lies in several micro-batches and `log_ratio_sum_N` is not given.
        """
        batch, logp_RT = tokens.batch, tokens.logp_RT
        zero_N = torch.zeros(len(batch.tokens_N), dtype=logp_RT.dtype, device=logp_RT.device)
        own_N = zero_N.index_add(0, batch.trajectory_R, tokens.log_ratio_RT.sum(1))
        count_N = zero_N.index_add(0, batch.trajectory_R, batch.mask_RT.sum(1).to(logp_RT.dtype))
        if batch.log_ratio_sum_N is None:
            _refuse_split(batch, count_N)
        whole_N = own_N.detach() if batch.log_ratio_sum_N is None else batch.log_ratio_sum_N
        length_N = batch.tokens_N.clamp_min(1).to(logp_RT.dtype)
        divisor_N = length_N if mean else torch.ones_like(length_N)
        value_N = (whole_N / divisor_N.to(whole_N.dtype)).to(logp_RT.dtype)
        log_ratio_N = (own_N - own_N.detach()) / divisor_N + value_N
        share_N = count_N / length_N / tokens.trajectories
        return cls(torch.where(count_N > 0, log_ratio_N, zero_N), share_N, tokens.trajectories)

    def mean(self, gain_N: torch.Tensor) -> torch.Tensor:
        """This micro-batch's share of the mean over trajectories: values by share of tokens, gradients wholly."""
        value_N = self.share_N * gain_N.detach() + (gain_N - gain_N.detach()) / self.trajectories
        return torch.where(self.here_N, value_N, torch.zeros_like(value_N)).sum()


def _refuse_split(batch: LossInput, count_N: torch.Tensor) -> None:
    split_N = (count_N > 0) & (count_N != batch.tokens_N)
    if bool(split_N.any()):
        raise ValueError(
            f"trajectory {int(split_N.nonzero()[0])} has agent tokens outside this micro-batch; the ratio of a whole"
            " trajectory needs log_ratio_sum_N, the sum over all of them"
        )
