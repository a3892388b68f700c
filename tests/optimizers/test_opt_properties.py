"""Laws that hold for every optimizer: what must not change a loss, and what must be exactly zero."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import golden_kit as golden
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynaweb.protocols import Credit, CreditInput, LossInput
from dynaweb.trainer.advantages import compute_advantages, gae
from dynaweb.trainer.kl import LOG_RATIO_LIMIT, Estimator, divergence, penalties
from dynaweb.trainer.losses import Tokens, Window, clipped_gain
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
from dynaweb_opt_webrl.webrl import Webrl, perplexity

OPTIMIZERS = {
    "gspo": Gspo(GspoConfig(clip_low=0.05, clip_high=0.08)),
    "gspo-token": Gspo(GspoConfig(level="token", clip_low=0.05, clip_high=0.08, beta=0.1, kl="k1+")),
    "grpo": Grpo(GrpoConfig(beta=0.05, dual_clip=3.0)),
    "dapo": Grpo(
        GrpoConfig(
            agg="token_mean",
            clip_high=0.28,
            dynamic_sampling=True,
            overlong_max_len=6,
            overlong_cache_len=4,
            beta=0.1,
            kl_in="reward",
        )
    ),
    "dr-grpo": Grpo(GrpoConfig(agg="constant", norm_const=8, scale="none", ratio_cap=1.5)),
    "ppo": Ppo(PpoConfig(gamma=0.95, kl_coef=0.1, dual_clip=3.0)),
    "rloo": Rloo(RlooConfig(kl_coef=0.05)),
    "rloo-clip": Rloo(RlooConfig(surrogate="clip", level="trajectory")),
    "reinforce-pp": ReinforcePp(ReinforcePpConfig(gamma=0.9, kl_coef=0.1, variant="baseline", step_rewards=True)),
    "cispo": Cispo(CispoConfig(ratio_min=0.8, ratio_max=1.2, beta=0.02)),
    "gigpo": Gigpo(GigpoConfig(mode="mean_std_norm", beta=0.01, kl="k2")),
    "webrl": Webrl(WebrlConfig()),
    "webrl-released": Webrl(WebrlConfig(variant="released-code")),
}
every_optimizer = pytest.mark.parametrize("name", sorted(OPTIMIZERS))
# WebRL regresses on the advantage: it has no ratio to the old policy, and a gradient at advantage 0 too.
every_policy_gradient = pytest.mark.parametrize("name", sorted(n for n in OPTIMIZERS if not n.startswith("webrl")))
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Case = dict[str, Any]


def _row(rng: random.Random, traj: str, step: int) -> Case:
    mask = [int(rng.random() < 0.6) for _ in range(rng.randint(1, 5))]
    old = [-2 * rng.random() for _ in mask]
    return {
        "traj": traj,
        "step": step,
        "mask": mask,
        "logp_old": old,
        "logp_new": [value + rng.gauss(0, 0.15) for value in old],
        "logp_ref": [value + rng.gauss(0, 0.15) for value in old],
        "values": [rng.random() for _ in mask],
        "v1": [rng.gauss(0, 1), rng.gauss(0, 1)],
        "v2": [rng.gauss(0, 1), rng.gauss(0, 1)],
        "anchor": rng.choice(["home", "cart", "item"]),
        "reward": rng.choice([0.0, 0.0, 0.2]),
    }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Some trajectories of one to three rows in one or two groups, a few of them without a reward."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    count = draw(st.integers(1, 5))
    rewards = [rng.choice([0.0, 1.0, 1.0, 0.5, "NaN"]) for _ in range(count)]
    trajectories = [
        {"id": f"t{i}", "group": rng.choice(["a", "b"]), "reward": reward} for i, reward in enumerate(rewards)
    ]
    rows = [_row(rng, f"t{i}", step) for i in range(count) for step in range(rng.randint(1, 3))]
    return {"family": "made", "trajectories": trajectories, "rows": rows}


def _of(name: str, case: Case) -> tuple[Any, Case]:
    """The optimizer and the case with the critic outputs that it looks at."""
    case = copy.deepcopy(case)
    for row in case["rows"]:
        if not name.startswith("webrl"):
            row.pop("v1")
    return OPTIMIZERS[name], case


def _result(name: str, case: Case, split: Any = None) -> golden.Result:
    optimizer, case = _of(name, case)
    return golden.run(optimizer, case, torch.float64, split, two_passes=True)


def _agent_gradients(case: Case, result: golden.Result) -> dict[tuple[str, int], list[float]]:
    """Gradients at agent tokens, by trajectory and step."""
    pairs = zip(case["rows"], result.grad, strict=True)
    return {(r["traj"], r["step"]): [g for g, m in zip(grad, r["mask"], strict=True) if m] for r, grad in pairs}


def _same(case: Case, want: golden.Result, other: Case, found: golden.Result) -> None:
    assert found.loss == pytest.approx(want.loss, rel=1e-9, abs=1e-12)
    assert found.metrics == pytest.approx(want.metrics, rel=1e-9, abs=1e-12)
    a, b = _agent_gradients(case, want), _agent_gradients(other, found)
    assert a.keys() == b.keys()
    for key, values in a.items():
        assert b[key] == pytest.approx(values, rel=1e-9, abs=1e-12)


@every_policy_gradient
def test_no_loss_grows_with_a_log_ratio_beyond_the_limit(name: str) -> None:
    """One token that the policy has left behind must not outweigh all others: all losses clamp alike."""
    losses = []
    for log_ratio in (LOG_RATIO_LIMIT, 25.0, 400.0):
        logp_RT = torch.zeros(1, 1, requires_grad=True)
        batch = LossInput(
            logp_RT=logp_RT,
            old_logp_RT=torch.tensor([[-log_ratio]]),
            mask_RT=torch.ones(1, 1, dtype=torch.bool),
            trajectory_R=torch.zeros(1, dtype=torch.long),
            advantage_N=torch.tensor([-0.5]),
            tokens_N=torch.tensor([1]),
            ref_logp_RT=torch.zeros(1, 1),
        )
        out = OPTIMIZERS[name].loss(batch)
        out.loss.backward()
        assert bool(torch.isfinite(logp_RT.grad).all())  # type: ignore[union-attr,arg-type]
        losses.append(float(out.loss.detach()))
    assert losses[0] == losses[1] == losses[2] <= 0.5 * math.exp(LOG_RATIO_LIMIT) * 1.001


@pytest.mark.parametrize("kind", ["k3", "k3+"])
@pytest.mark.parametrize("clip", [None, 1000.0])
def test_no_divergence_grows_with_a_log_ratio_beyond_the_limit(kind: Estimator, clip: float | None) -> None:
    """A reference that is far away, as at low temperatures, leaves loss, gradient and reward finite."""
    aways = torch.tensor([LOG_RATIO_LIMIT, 25.0, 100.0, 1e4, -LOG_RATIO_LIMIT, -1e4])
    logp = torch.zeros(len(aways), requires_grad=True)
    values = divergence(logp, aways, kind, log_diff_clip=clip)
    values.sum().backward()
    rewards = penalties([0.0] * len(aways), aways.tolist(), kind)
    assert bool(torch.isfinite(logp.grad).all())  # type: ignore[arg-type]
    assert rewards == pytest.approx(values.tolist(), rel=1e-5)
    assert len(set(values[:4].tolist())) == 1 and values[0] <= math.exp(LOG_RATIO_LIMIT)
    assert perplexity([-1e4]) < math.inf


@every_optimizer
@few
@given(case=cases(), seed=st.integers(0, 10**6))
def test_padding_and_observation_tokens_change_nothing(name: str, case: Case, seed: int) -> None:
    rng, padded = random.Random(seed), copy.deepcopy(case)
    for row in padded["rows"]:
        for _ in range(rng.randint(1, 6)):
            place = rng.randint(0, len(row["mask"]))
            row["mask"].insert(place, 0)
            for key in ("logp_old", "logp_new", "logp_ref", "values"):
                row[key].insert(place, rng.choice([0.0, 7.5, math.nan, math.inf, -math.inf, 1e4]))
    _same(case, _result(name, case), padded, _result(name, padded))


@every_optimizer
@few
@given(case=cases(), seed=st.integers(0, 10**6))
def test_the_order_of_rows_changes_nothing(name: str, case: Case, seed: int) -> None:
    shuffled = copy.deepcopy(case)
    random.Random(seed).shuffle(shuffled["rows"])
    _same(case, _result(name, case), shuffled, _result(name, shuffled))


@every_optimizer
@few
@given(case=cases(), seed=st.integers(0, 10**6))
def test_the_split_into_micro_batches_changes_nothing(name: str, case: Case, seed: int) -> None:
    rng, rows = random.Random(seed), list(range(len(case["rows"])))
    rng.shuffle(rows)
    cuts = sorted(rng.sample(range(1, len(rows)), k=rng.randint(0, len(rows) - 1)))
    split = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    _same(case, _result(name, case), case, _result(name, case, split))


@every_optimizer
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e4, 1e308])
@settings(max_examples=4, deadline=None)
@given(case=cases())
def test_masked_slots_change_not_one_bit(name: str, poison: float, case: Case) -> None:
    poisoned = copy.deepcopy(case)
    for row in poisoned["rows"]:
        for key in ("logp_old", "logp_new", "logp_ref", "values"):
            row[key] = [value if m else poison for value, m in zip(row[key], row["mask"], strict=True)]
    want, found = _result(name, case), _result(name, poisoned)
    assert (found.loss, found.metrics) == (want.loss, want.metrics)
    assert found.grad == want.grad
    for row, gradient in zip(case["rows"], found.grad, strict=True):
        assert all(g == 0.0 for m, g in zip(row["mask"], gradient, strict=True) if not m)


@every_policy_gradient
@few
@given(case=cases())
def test_zero_advantage_gives_zero_gradient(name: str, case: Case) -> None:
    optimizer, case = _of(name, case)
    if getattr(optimizer.config, "beta", 0.0):
        optimizer = type(optimizer)(optimizer.config.model_copy(update={"beta": 0.0}))
    zero = Credit([0.0] * len(case["trajectories"]))
    for row in case["rows"]:
        row["logp_new"] = [value * 400 for value in row["logp_new"]]  # ratios of 0 and infinity
    found = golden.run(optimizer, case, torch.float32, credit=zero, two_passes=True)
    assert found.loss == 0.0
    assert not any(golden.flat(found.grad))


@every_policy_gradient
@few
@given(case=cases())
def test_the_first_update_has_ratio_one(name: str, case: Case) -> None:
    """Nothing is clipped, and the gradient of every surrogate is that of the plain policy gradient."""
    optimizer, case = _of(name, case)
    if getattr(optimizer.config, "beta", 0.0):
        optimizer = type(optimizer)(optimizer.config.model_copy(update={"beta": 0.0}))
    for row in case["rows"]:
        row["logp_new"] = list(row["logp_old"])
    credit = compute_advantages(optimizer, golden.credit_input(case))
    found = golden.run(optimizer, case, torch.float64, credit=credit)
    assert all(value == 0.0 for key, value in found.metrics.items() if key.startswith("clip_frac"))
    batch = golden.GoldenBatch(case, credit, torch.float64)
    tokens = Tokens.of(batch.part(list(range(len(case["rows"])))))
    kind = {"gspo": "traj_mean_token_mean", "gspo-token": "traj_mean_token_mean"}.get(name)
    sums = name == "rloo-clip"
    config = optimizer.config
    agg = "traj_mean_token_sum" if sums else kind or config.agg
    weight = tokens.weight_RT(agg, getattr(config, "norm_const", None) or 1.0)
    plain = -(weight * tokens.advantage_RT * tokens.logp_RT).sum()
    plain.backward()
    assert golden.flat(found.grad) == pytest.approx(golden.flat(batch.gradients()), rel=1e-9, abs=1e-12)


@few
@given(case=cases())
def test_gspo_equals_gspo_token_for_constant_advantages(case: Case) -> None:
    found = []
    for level in ("trajectory", "token"):
        optimizer = Gspo(GspoConfig(level=level, clip_low=0.05, clip_high=0.08))
        found.append(golden.run(optimizer, case, torch.float64, two_passes=True))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-9, abs=1e-12)
    assert golden.flat(found[0].grad) == pytest.approx(golden.flat(found[1].grad), rel=1e-9, abs=1e-12)


@every_optimizer
@few
@given(case=cases())
def test_a_micro_batch_without_agent_tokens_runs_backward_and_adds_exactly_zero(name: str, case: Case) -> None:
    optimizer, case = _of(name, case)
    for row in case["rows"]:
        if row["step"] == 0:
            row["mask"] = [0] * len(row["mask"])
    credit = compute_advantages(optimizer, golden.credit_input(case))
    batch = golden.GoldenBatch(case, credit, torch.float64)
    silent = [i for i, row in enumerate(case["rows"]) if row["step"] == 0]
    out = optimizer.loss(batch.part(silent, batch.log_ratio_sums()))
    assert out.loss.requires_grad
    out.loss.backward()
    if name != "webrl-released":  # its mean over all steps counts those without tokens, as the published code does
        assert out.loss.item() == 0.0
    assert all(value == 0.0 for value in out.metrics.values())
    assert not any(golden.flat(batch.gradients()))


@every_optimizer
def test_no_trajectory_at_all_gives_no_credit(name: str) -> None:
    optimizer, _ = _of(name, {"rows": []})
    found = compute_advantages(optimizer, CreditInput([], []))
    assert list(found.advantages) == []


@few
@given(values=st.lists(st.floats(-3, 3), min_size=1, max_size=6), gamma=st.floats(0, 1))
def test_gae_telescopes_at_lambda_one(values: list[float], gamma: float) -> None:
    """At lambda 1 the advantage is the discounted return minus the value, whatever the critic says in between."""
    rewards = [0.0] * (len(values) - 1) + [1.0]
    found = gae(rewards, values, gamma=gamma, lam=1.0)
    want = [gamma ** (len(values) - 1 - t) - value for t, value in enumerate(values)]
    assert found == pytest.approx(want, abs=1e-9)


@few
@given(
    log_ratio=st.floats(-200, 200),
    advantage=st.floats(-2, 2),
    window=st.sampled_from([Window(0.2, 0.2), Window(0.2, 0.28, dual=3.0), Window(0.1, 0.2, cap=1.5)]),
)
def test_a_clipped_gain_has_a_finite_gradient_where_the_formula_says_zero(
    log_ratio: float, advantage: float, window: Window
) -> None:
    """Ratios overflow in float32; a clipped one still has gradient 0 and not 0 x inf."""
    x = torch.tensor(log_ratio, dtype=torch.float32, requires_grad=True)
    gain = clipped_gain(x, torch.tensor(advantage), window)
    gain.backward()
    ratio, (low, high) = math.exp(min(log_ratio, 700)), (1 - window.low, 1 + window.high)
    bound = min(window.dual or math.inf, window.cap or math.inf)
    if (advantage > 0 and ratio > high) or (advantage < 0 and (ratio < low or ratio > bound)) or advantage == 0:
        assert x.grad is not None and x.grad.item() == 0.0
        assert math.isfinite(gain.item())
