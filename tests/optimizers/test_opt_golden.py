"""Every golden case of every family: advantages, loss, gradient and clip fractions, for every micro-batch split."""

from __future__ import annotations

import math
from typing import Any

import golden_kit as golden
import pytest
import torch
from golden_kit import DTYPES, Tolerance, agent, close, flat, laid_out

from dynaweb.protocols import Credit, ValueInput
from dynaweb.trainer.advantages import chains, compute_advantages, gae, group_advantages, unchain, whiten
from dynaweb.trainer.kl import divergence, penalties
from dynaweb_opt_webrl.webrl import perplexity

WITH_LOSS = ("cispo", "dapo", "gigpo", "grpo", "gspo", "gspo_token", "ppo", "reinforce_pp", "rloo")
FAMILIES = {*WITH_LOSS, "gae_multiturn", "group_advantage", "kl_estimators", "webrl_kl"}


def test_every_family_is_tested() -> None:
    assert set(golden.families()) == FAMILIES
    assert sum(golden.family(name)["count"] for name in FAMILIES) == 196


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_copy_is_the_original(family: str) -> None:
    """`golden` is a copy of reference values that others keep; where they lie beside this checkout, the two agree."""
    originals = golden.shared()
    if originals is None:
        pytest.skip("the shared reference folder is not beside this checkout")
    assert (originals / f"{family}.json").read_bytes() == (golden.COPY / f"{family}.json").read_bytes()


def _credit(case: dict[str, Any], dtype: torch.dtype) -> Credit:
    """The optimizer's own credit; PPO's cases give advantages of tokens and nothing that they come from."""
    if case["family"] == "ppo":
        return Credit([1.0] * len(case["trajectories"]))
    return compute_advantages(golden.optimizer_of(case), golden.credit_input(case, dtype))


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases(*(name for name in WITH_LOSS if name != "ppo")))
def test_credit(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    want, rows = case["expected"], case["rows"]
    found = _credit(case, DTYPES[dtype])
    given = golden.credit_input(case, DTYPES[dtype])
    if "advantages" in want:
        close(found.advantages, want["advantages"], tolerance)
    if "row_advantages" in want:
        optimizer = golden.optimizer_of(case)
        close(found.rows or [], want["row_advantages"], tolerance)
        close(optimizer.step_returns(given), want["step_returns"], tolerance)
        close(optimizer.step_advantages(given, optimizer.anchors(given)), want["step_advantages"], tolerance)
        close(optimizer.advantages(given.graded, given.groups), want["episode_advantages"], tolerance)
        assert sorted(optimizer.anchors(given)) == sorted(want["anchor_partition"])
    if "token_advantages" in want:
        returns = golden.optimizer_of(case).returns(given)
        close(
            flat([laid_out(*pair) for pair in zip(rows, returns, strict=True)]), flat(want["token_returns"]), tolerance
        )
        assert found.tokens is not None
        laid = [laid_out(*pair) for pair in zip(rows, found.tokens, strict=True)]
        close(flat(laid), flat(want["token_advantages"]), tolerance)
    if "penalties" in want:
        close(golden.optimizer_of(case).overlong(given), want["penalties"], tolerance)
        kept = {given.groups[row.trajectory] for row, use in zip(given.rows, found.row_mask or [], strict=True) if use}
        assert sorted(kept) == sorted(want["kept_groups"])


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases(*WITH_LOSS))
def test_loss_gradient_and_clip_fractions(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    credit = _credit(case, DTYPES[dtype])
    for split in [None, *case.get("microbatch_splits", [])]:
        for two_passes in (False, True):
            optimizer = golden.optimizer_of(case)
            found = golden.run(optimizer, case, DTYPES[dtype], split, credit=credit, two_passes=two_passes)
            golden.check(case, found, tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases(*WITH_LOSS))
def test_splits_that_break_trajectories(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    credit = _credit(case, DTYPES[dtype])
    for split in case.get("microbatch_splits_breaking_trajectories", []):
        optimizer = golden.optimizer_of(case)
        found = golden.run(optimizer, case, DTYPES[dtype], split, credit=credit, two_passes=True)
        golden.check(case, found, tolerance)
        if optimizer.needs_trajectory_ratio:
            with pytest.raises(ValueError, match="log_ratio_sum_N"):
                golden.run(optimizer, case, DTYPES[dtype], split, credit=credit)
        else:
            golden.check(case, golden.run(optimizer, case, DTYPES[dtype], split, credit=credit), tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases("group_advantage"))
def test_group_advantages(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    rewards: list[float | None] = [*golden.rounded(case["rewards"], DTYPES[dtype])]
    hyper = dict(case["hyper"])
    close(group_advantages(rewards, case["groups"], **hyper).advantages, case["expected"]["advantages"], tolerance)
    nones = [None if r is None or math.isnan(r) else r for r in rewards]
    close(group_advantages(nones, case["groups"], **hyper).advantages, case["expected"]["advantages"], tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases("gae_multiturn"))
def test_gae(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    batch, hyper, rows = golden.credit_input(case), case["hyper"], case["rows"]
    values = chains(batch, [agent(row, "values", DTYPES[dtype]) for row in rows])
    rewards = chains(batch, [agent(row, "rewards", DTYPES[dtype]) for row in rows])
    ends = [float(trajectory.get("bootstrap_value", 0.0)) for trajectory in case["trajectories"]]
    found = [
        gae(reward, value, gamma=hyper["gamma"], lam=hyper["lam"], bootstrap=end)
        for reward, value, end in zip(rewards, values, ends, strict=True)
    ]
    returns = [[a + v for a, v in zip(*pair, strict=True)] for pair in zip(found, values, strict=True)]
    white = whiten(found, ddof=hyper["whiten_ddof"], eps=hyper["whiten_eps"])
    for name, joined in (("advantages", found), ("returns", returns), ("whitened", white)):
        laid = [laid_out(*pair) for pair in zip(rows, unchain(batch, joined), strict=True)]
        close(flat(laid), flat(case["expected"][name]), tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), golden.cases("ppo"))
def test_value_loss(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    rows, kind = case["rows"], DTYPES[dtype]
    states = sum(sum(row["mask"]) for row in rows)
    values = [torch.tensor(golden.floats(row["value_new"]), dtype=kind).requires_grad_() for row in rows]
    for split in [[list(range(len(rows)))], *case.get("microbatch_splits_breaking_trajectories", [])]:
        loss = clipped = 0.0
        for value in values:
            value.grad = None
        for part in split:
            out = golden.optimizer_of(case).critic_loss(
                _value_input([rows[i] for i in part], values, part, states, kind)
            )
            out.loss.backward()
            loss, clipped = loss + out.loss.item(), clipped + out.metrics["value_clip_frac_sum"]
        close([loss], [case["expected"]["value_loss"]], tolerance)
        close(flat([value.grad.tolist() for value in values]), flat(case["expected"]["value_grad"]), tolerance)
        close([clipped], [case["expected"]["value_clip_frac"]], tolerance)


def _value_input(rows: Any, values: Any, part: Any, states: int, dtype: torch.dtype) -> ValueInput:
    def pad(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    def key(name: str) -> torch.Tensor:
        return pad([torch.tensor(golden.floats(row[name]), dtype=dtype) for row in rows])

    mask = pad([torch.tensor(row["mask"], dtype=torch.bool) for row in rows])
    output = pad([values[i] for i in part])[..., None]
    return ValueInput(output, key("value_old")[..., None], key("return"), mask, states)


def _kl_cases(exact: bool) -> list[Any]:
    return [case for case in golden.cases("kl_estimators") if ("logits_new" in case.values[0]) is exact]


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _kl_cases(False))
def test_kl_estimators(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    kind = DTYPES[dtype]
    mask = torch.tensor(case["mask"], dtype=torch.bool)
    limits = {name: case["hyper"].get(name) for name in ("log_diff_clip", "value_clip")}
    for estimator in case["hyper"]["estimators"]:
        logp = torch.tensor(golden.floats(case["logp_new"]), dtype=kind, requires_grad=True)
        ref = torch.tensor(golden.floats(case["logp_ref"]), dtype=kind)
        clean = torch.where(mask, logp, torch.zeros_like(logp)), torch.where(mask, ref, torch.zeros_like(ref))
        values = divergence(*clean, estimator, **limits)
        mean = values.sum() / max(1, int(mask.sum()))
        mean.backward()
        want = case["expected"][estimator]
        assert logp.grad is not None
        close(values.tolist(), want["values"], tolerance)
        close([mean.item()], [want["mean"]], tolerance)
        close(logp.grad.tolist(), want["grad_of_mean"], tolerance)
        if not any(limits.values()):
            pairs = (agent(case, "logp_new", kind), agent(case, "logp_ref", kind))
            close(
                penalties(*pairs, estimator),
                [v for v, m in zip(want["values"], case["mask"], strict=True) if m],
                tolerance,
            )


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _kl_cases(True))
def test_kl_estimators_in_expectation(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    """Over all tokens of a small policy: k1 and k3 have the exact KL as their mean, k2 has its gradient."""
    want, kind = case["expected"], DTYPES[dtype]
    logits = torch.tensor(case["logits_new"], dtype=kind, requires_grad=True)
    logp = logits.log_softmax(0)
    ref = torch.tensor(case["logits_ref"], dtype=kind).log_softmax(0)
    exact = (logp.exp() * (logp - ref)).sum()
    close([exact.item()], [want["kl_exact"]], tolerance)
    close(torch.autograd.grad(exact, logits, retain_graph=True)[0].tolist(), want["grad_logits"], tolerance)
    for name in ("k1", "k2", "k3"):
        mean = (logp.detach().exp() * divergence(logp, ref, name)).sum()
        close([mean.item()], [want[f"mean_{name}"]], tolerance)
        found = torch.autograd.grad(mean, logits, retain_graph=True)[0]
        close(found.tolist(), want[f"mean_grad_{name}"], tolerance)


def _webrl_cases(variant: str) -> list[Any]:
    return [case for case in golden.cases("webrl_kl") if case.values[0]["hyper"]["variant"] == variant]


def _each_row_and_all(count: int) -> list[list[list[int]]]:
    return [[list(range(count))], [[i] for i in range(count)]]


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _webrl_cases("paper"))
def test_webrl_of_the_paper(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    optimizer, given, want = golden.optimizer_of(case), golden.credit_input(case, DTYPES[dtype]), case["expected"]
    credit = optimizer.credit(given)
    close(credit.rows, want["advantages"], tolerance)
    if "kept" in want:
        assert optimizer.fitting(given) == want["kept"]
        close([perplexity(row.old_logps) for row in given.rows], want["perplexity"], tolerance)
    for split in _each_row_and_all(len(case["rows"])):
        found = golden.run(optimizer, case, DTYPES[dtype], split, credit=credit)
        golden.check(case, found, tolerance)


@pytest.mark.parametrize(
    ("case", "dtype", "tolerance"),
    [case for case in _webrl_cases("paper") if "critic_loss" in case.values[0]["expected"]],
)
def test_webrl_critic(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    optimizer = golden.optimizer_of(case)
    targets = optimizer.credit(golden.credit_input(case)).targets
    logits = torch.tensor([row["critic_logits"] for row in case["rows"]], dtype=DTYPES[dtype], requires_grad=True)
    given = ValueInput(
        output_RTO=logits[:, None],
        old_RTO=logits.detach()[:, None],
        target_RT=torch.tensor(targets, dtype=DTYPES[dtype]),
        mask_RT=torch.ones(len(logits), 1, dtype=torch.bool),
        states=len(logits),
    )
    out = optimizer.critic_loss(given)
    out.loss.backward()
    assert logits.grad is not None
    close([out.loss.item()], [case["expected"]["critic_loss"]], tolerance)
    close(flat(logits.grad.tolist()), flat(case["expected"]["critic_grad"]), tolerance)


@pytest.mark.parametrize(("case", "dtype", "tolerance"), _webrl_cases("release"))
def test_webrl_of_the_released_code(case: dict[str, Any], dtype: str, tolerance: Tolerance) -> None:
    optimizer, rows, want = golden.optimizer_of(case), case["rows"], case["expected"]
    values = [optimizer.value([*row["v1"], *row["v2"]]) for row in rows]
    after = [optimizer.value([*row["nv1"], *row["nv2"]]) for row in rows]
    returns = [row["mc_return"] for row in rows]
    found = optimizer.released_advantages([row["reward"] for row in rows], returns, values, after)
    close(found, want["advantages"], tolerance)
    target = optimizer.targets(torch.tensor(found, dtype=DTYPES[dtype]))
    close(target.tolist(), want["targets"], tolerance)
    credit = Credit([1.0] * len(case["trajectories"]), rows=found)
    for split in _each_row_and_all(len(rows)):
        golden.check(case, golden.run(optimizer, case, DTYPES[dtype], split, credit=credit), tolerance)
    _check_betas(optimizer, case, target, tolerance)


def _check_betas(optimizer: Any, case: dict[str, Any], target: torch.Tensor, tolerance: Tolerance) -> None:
    dtype = target.dtype
    sums = [[sum(agent(row, key, dtype)) for key in ("logp_new", "logp_ref")] for row in case["rows"]]
    counts = [sum(row["mask"]) for row in case["rows"]]
    trained = max(1, sum(n for n, y in zip(counts, target.tolist(), strict=True) if y > 0))
    x = torch.tensor([(new - ref) / trained for new, ref in sums], dtype=dtype)
    sure = torch.tensor([math.exp(ref / n) for (_, ref), n in zip(sums, counts, strict=True)], dtype=dtype)
    close(optimizer.betas(x, target, sure).tolist(), case["expected"]["betas"], tolerance)
