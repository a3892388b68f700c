"""Golden cases of the policy optimizers: where they are, how they are compared, and cases as batches and optimizers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import TESTS

from dynaweb.protocols import Credit, CreditInput, CreditRow, LossInput, PolicyOptimizer
from dynaweb.trainer.advantages import compute_advantages
from dynaweb_opt_cispo import CispoConfig
from dynaweb_opt_cispo.cispo import Cispo
from dynaweb_opt_gigpo import GigpoConfig
from dynaweb_opt_gigpo.gigpo import Gigpo
from dynaweb_opt_grpo import GrpoConfig
from dynaweb_opt_grpo.grpo import Grpo
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo
from dynaweb_opt_ppo import PpoConfig
from dynaweb_opt_ppo.ppo import Ppo
from dynaweb_opt_reinforce_pp import ReinforcePpConfig
from dynaweb_opt_reinforce_pp.reinforce_pp import ReinforcePp
from dynaweb_opt_rloo import RlooConfig
from dynaweb_opt_rloo.rloo import Rloo
from dynaweb_opt_webrl import WebrlConfig
from dynaweb_opt_webrl.webrl import Webrl

COPY = TESTS / "golden"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
Tolerance = dict[str, float]


def shared() -> Path | None:
    """The folder of the originals, `shared/golden` beside this checkout or a folder above it, where there is one."""
    beside = (folder / "shared" / "golden" for folder in TESTS.resolve().parents[1:3])
    return next((folder for folder in beside if folder.is_dir()), None)


def family(name: str) -> dict[str, Any]:
    """One family: the original where it lies beside this checkout, else the copy that comes along."""
    return json.loads(((shared() or COPY) / f"{name}.json").read_text(encoding="utf-8"))


def families() -> list[str]:
    """Names of all families."""
    return sorted(path.stem for path in (shared() or COPY).glob("*.json"))


def cases(*names: str) -> list[Any]:
    """Parameters (case, dtype name, tolerance) for all cases of some families."""
    return list(_each(*names))


def _each(*names: str) -> Iterator[Any]:
    for name in names:
        data = family(name)
        for case in data["cases"]:
            case["family"] = name
            for dtype in case["dtypes"]:
                yield pytest.param(case, dtype, data["tolerances"][dtype], id=f"{name}-{case['name']}-{dtype}")


def floats(values: Sequence[Any]) -> list[float]:
    """Numbers, some of which are written as NaN or Infinity."""
    return [float(value) for value in values]


def rounded(values: Sequence[Any], dtype: torch.dtype) -> list[float]:
    """The numbers as the precision holds them."""
    out: list[float] = torch.tensor(floats(values), dtype=dtype).tolist()
    return out


def flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """All values of all rows."""
    return [value for row in rows for value in row]


def close(got: Sequence[float], want: Sequence[Any], tolerance: Tolerance) -> None:
    """|got - want| <= rtol |want| + atol max(1, max|want|)."""
    wanted = floats(want)
    scale = max([1.0, *map(abs, wanted)])
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert abs(a - b) <= tolerance["rtol"] * abs(b) + tolerance["atol"] * scale, (list(got), wanted)


def optimizer_of(case: dict[str, Any]) -> Any:
    """The optimizer with the hyper-parameters of a case."""
    return _MAKERS[case["family"]](case["hyper"])


def _adv(hyper: dict[str, Any]) -> dict[str, Any]:
    return {name: hyper["adv"][name] for name in ("scale", "eps", "ddof", "singleton", "zero_var_tol")}


def _clip(hyper: dict[str, Any]) -> dict[str, Any]:
    return {name: hyper[name] for name in ("clip_low", "clip_high")}


def _agg(hyper: dict[str, Any]) -> dict[str, Any]:
    constant = hyper["norm_const"] if hyper["agg"] == "constant" else None
    return {"agg": hyper["agg"], "norm_const": constant}


def _gspo(hyper: dict[str, Any]) -> Gspo:
    level = "trajectory" if hyper["ratio_level"] == "trajectory" else "token"
    kl = {"beta": hyper["beta"], "kl": hyper.get("kl", "k3")}
    return Gspo(GspoConfig(level=level, log_ratio_max=hyper["log_ratio_clip"][1], **kl, **_clip(hyper), **_adv(hyper)))


def _grpo(hyper: dict[str, Any]) -> Grpo:
    overlong = hyper.get("overlong") or {}
    more = {f"overlong_{name}": value for name, value in overlong.items()}
    more |= {"beta": hyper["beta"], "kl": hyper.get("kl", "k3"), "ratio_cap": hyper.get("ratio_cap")}
    more |= {"dynamic_sampling": "overlong" in hyper}
    return Grpo(GrpoConfig(**_clip(hyper), **_agg(hyper), **_adv(hyper), **more))


def _cispo(hyper: dict[str, Any]) -> Cispo:
    bounds = {name: hyper[name] for name in ("ratio_min", "ratio_max")}
    limit = hyper["log_ratio_clip"][1]
    return Cispo(CispoConfig(beta=hyper["beta"], log_ratio_limit=limit, **bounds, **_agg(hyper), **_adv(hyper)))


def _ppo(hyper: dict[str, Any]) -> Ppo:
    return Ppo(
        PpoConfig(value_clip=hyper["value_clip"], dual_clip=hyper.get("dual_clip"), **_clip(hyper), **_agg(hyper))
    )


def _rloo(hyper: dict[str, Any]) -> Rloo:
    more = _clip(hyper) if hyper["surrogate"] == "clip" else {}
    more |= {"level": "trajectory" if hyper["ratio_level"] == "trajectory_sum" else "token"}
    more |= {name: hyper["adv"][name] for name in ("singleton", "zero_var_tol")}
    return Rloo(RlooConfig(surrogate=hyper["surrogate"], kl_coef=hyper.get("kl_in_reward", 0.0), **_agg(hyper), **more))


def _reinforce_pp(hyper: dict[str, Any]) -> ReinforcePp:
    same = ("variant", "gamma", "kl_coef", "whiten_ddof", "whiten_eps")
    more = {name: hyper[name] for name in same} | {"step_rewards": hyper.get("step_rewards", False)}
    return ReinforcePp(ReinforcePpConfig(**_clip(hyper), **_agg(hyper), **more))


def _gigpo(hyper: dict[str, Any]) -> Gigpo:
    same = ("gamma", "step_weight", "mode", "eps")
    more = {name: hyper[name] for name in same} | {"similarity": hyper.get("similarity")}
    more |= {"singleton": hyper["episode_singleton"], "zero_var_tol": 0.0}
    return Gigpo(GigpoConfig(**_clip(hyper), **_agg(hyper), **more))


def _webrl(hyper: dict[str, Any]) -> Webrl:
    same = ("beta", "lam", "log_ratio", "perplexity", "step_cost", "negative_target", "beta_max")
    variant = "paper" if hyper["variant"] == "paper" else "released-code"
    return Webrl(WebrlConfig(variant=variant, **{name: hyper[name] for name in same if name in hyper}))


_MAKERS: dict[str, Any] = {
    "cispo": _cispo,
    "dapo": _grpo,
    "gigpo": _gigpo,
    "grpo": _grpo,
    "gspo": _gspo,
    "gspo_token": _gspo,
    "ppo": _ppo,
    "reinforce_pp": _reinforce_pp,
    "rloo": _rloo,
    "webrl_kl": _webrl,
}


def agent(row: dict[str, Any], key: str, dtype: torch.dtype) -> list[float]:
    """A row's numbers at its agent tokens, as the precision holds them; empty when the row has no such numbers."""
    return [value for value, m in zip(rounded(row.get(key, []), dtype), row["mask"], strict=False) if m]


def laid_out(row: dict[str, Any], values: Sequence[float]) -> list[float]:
    """Numbers of agent tokens back in the row's width, 0 elsewhere."""
    found = iter(values)
    return [next(found) if m else 0.0 for m in row["mask"]]


def credit_input(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> CreditInput:
    """The trajectories and rows of a case as credit assignment sees them.

    A row's reward of the families that give the last one the verdict too is put back to what the step itself earned.
    """
    trajectories = case["trajectories"]
    index = {trajectory["id"]: i for i, trajectory in enumerate(trajectories)}
    last = {row["traj"]: row["step"] for row in sorted(case["rows"], key=lambda row: row["step"])}
    verdict_inside = case["family"] in ("gigpo", "webrl_kl")

    def earned(row: dict[str, Any]) -> float:
        reward = float(row.get("reward", 0.0))
        if not (verdict_inside and row["step"] == last[row["traj"]]):
            return reward
        return reward - float(trajectories[index[row["traj"]]]["reward"])

    rows = [
        CreditRow(
            index[row["traj"]],
            row["step"],
            sum(row["mask"]),
            anchor=row.get("anchor", ""),
            reward=earned(row),
            old_logps=agent(row, "logp_old", dtype),
            ref_logps=agent(row, "logp_ref", dtype),
            values=_values(row, dtype),
        )
        for row in case["rows"]
    ]
    return CreditInput(
        rewards=[float(t["reward"]) for t in trajectories if "reward" in t],
        groups=[t["group"] for t in trajectories],
        rows=rows,
        correct=[bool(t["correct"]) for t in trajectories] if "correct" in trajectories[0] else None,
        lengths=[t["length"] for t in trajectories] if "length" in trajectories[0] else None,
    )


def _values(row: dict[str, Any], dtype: torch.dtype) -> list[list[float]]:
    """Critic outputs: per agent token, or WebRL's; where a case gives the value itself, outputs that stand for it."""
    if "value" in row:
        return [[0.0, math.log(row["value"] / (1 - row["value"]))]]
    if "v1" in row:
        return [[*row["v1"], *row["v2"]]]
    return [[value] for value in agent(row, "values", dtype)]


@dataclass
class GoldenBatch:
    """A golden case as tensors with some credit; `part` makes the loss input of some rows."""

    case: dict[str, Any]
    credit: Credit
    dtype: torch.dtype

    def __post_init__(self) -> None:
        row_mask = self.credit.row_mask or [True] * len(self.case["rows"])
        self.rows = [
            {**row, "mask": [m and use for m in row["mask"]]}
            for row, use in zip(self.case["rows"], row_mask, strict=True)
        ]
        index = {trajectory["id"]: i for i, trajectory in enumerate(self.case["trajectories"])}
        self.trajectory = [index[row["traj"]] for row in self.rows]
        self.logp = [self._tensor(row["logp_new"]).requires_grad_() for row in self.rows]
        self.advantage = torch.tensor(list(self.credit.advantages), dtype=self.dtype)
        self.lengths = torch.tensor([sum(row["mask"]) for row in self.rows])
        self.tokens = torch.zeros(len(index), dtype=torch.long)
        self.tokens.index_add_(0, torch.tensor(self.trajectory), self.lengths)

    def _tensor(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(floats(values), dtype=self.dtype)

    def _pad(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def _key(self, rows: list[int], key: str) -> torch.Tensor | None:
        if key not in self.rows[rows[0]]:
            return None
        return self._pad([self._tensor(self.rows[i][key]) for i in rows])

    def log_ratio_sums(self) -> torch.Tensor:
        """Sum of new - old over all agent tokens of each trajectory, float64: what a first pass finds."""
        sums = torch.zeros(len(self.tokens), dtype=torch.float64)
        for i, row, logp in zip(self.trajectory, self.rows, self.logp, strict=True):
            mask = torch.tensor(row["mask"], dtype=torch.bool)
            sums[i] += (logp.detach() - self._tensor(row["logp_old"]))[mask].double().sum()
        return sums

    def _token_advantages(self, rows: list[int]) -> torch.Tensor | None:
        if self.credit.tokens is None:
            return self._key(rows, "adv")
        laid = [laid_out(self.rows[i], self.credit.tokens[i]) for i in rows]
        return self._pad([self._tensor(values) for values in laid])

    def part(self, rows: list[int], sums: torch.Tensor | None = None) -> LossInput:
        """The loss input of some rows, with the denominators of the whole batch."""
        old = self._key(rows, "logp_old")
        by_row = self.credit.rows is not None
        logp = self._pad([self.logp[i] for i in rows])
        return LossInput(
            logp_RT=logp,
            old_logp_RT=logp.detach() if old is None else old,
            mask_RT=self._pad([torch.tensor(self.rows[i]["mask"], dtype=torch.bool) for i in rows]),
            trajectory_R=torch.tensor([self.trajectory[i] for i in rows]),
            advantage_N=self.advantage,
            tokens_N=self.tokens,
            log_ratio_sum_N=sums,
            advantage_RT=self._token_advantages(rows),
            ref_logp_RT=self._key(rows, "logp_ref"),
            row_R=torch.tensor(rows) if by_row else None,
            advantage_S=torch.tensor(list(self.credit.rows or ()), dtype=self.dtype) if by_row else None,
            tokens_S=self.lengths if by_row else None,
        )

    def gradients(self) -> list[list[float]]:
        """The gradient of each row's log-probabilities."""
        return [([0.0] * len(p) if p.grad is None else p.grad.tolist()) for p in self.logp]


@dataclass
class Result:
    """What a loss gave over all micro-batches of a split."""

    loss: float
    grad: list[list[float]]
    metrics: dict[str, float]


def run(
    optimizer: PolicyOptimizer,
    case: dict[str, Any],
    dtype: torch.dtype,
    split: Sequence[list[int]] | None = None,
    *,
    credit: Credit | None = None,
    two_passes: bool = False,
) -> Result:
    """Loss and gradients of a case, micro-batch after micro-batch."""
    given = compute_advantages(optimizer, credit_input(case, dtype)) if credit is None else credit
    batch = GoldenBatch(case, given, dtype)
    sums = batch.log_ratio_sums() if two_passes else None
    loss, metrics = 0.0, dict[str, float]()
    for rows in split or [list(range(len(case["rows"])))]:
        out = optimizer.loss(batch.part(rows, sums))
        out.loss.backward()
        loss += out.loss.item()
        for name, value in out.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value
    return Result(loss, batch.gradients(), metrics)


def check(case: dict[str, Any], found: Result, tolerance: Tolerance) -> None:
    """Loss, gradient (exactly 0 in masked slots), clip fractions and KL against the expected ones."""
    want = case["expected"]
    for mistake, value in case.get("wrong_values", {}).items():
        far = abs(want["loss"] - value) > 10 * (tolerance["rtol"] * abs(want["loss"]) + tolerance["atol"])
        wrong = abs(found.loss - value) <= tolerance["rtol"] * abs(value) + tolerance["atol"]
        assert not (far and wrong), f"this is the loss of a known mistake: {mistake}"
    close([found.loss], [want["loss"]], tolerance)
    close(flat(found.grad), flat(want["grad"]), tolerance)
    for row, gradient in zip(case["rows"], found.grad, strict=True):
        assert all(g == 0.0 for m, g in zip(row["mask"], gradient, strict=True) if not m)
    for name in ("clip_frac_low", "clip_frac_high", "clip_frac_dual"):
        if name in want:
            close([found.metrics[f"{name}_sum"]], [want[name]], tolerance)
    if "kl_mean" in want:
        close([found.metrics["kl_sum"]], [want["kl_mean"]], tolerance)
