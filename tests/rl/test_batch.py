"""What an update learns from: experts' ratios, references, kept rows, pages, and metrics over several steps."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dynaweb.config.sections import Rl
from dynaweb.protocols import Credit, CreditInput, PluginContext, TokenRow, Wants, wants
from dynaweb.rl.batch import BatchMaker, contributing_groups, credit_input
from dynaweb.rl.importance import Correction, engine_logprobs
from dynaweb.rl.replay import GROUP
from dynaweb.rl.updater import over_steps
from dynaweb.trainer.kl import penalties
from dynaweb.types import Node, Observation, Prompt, Source, Step, StepFacts, Task, Trajectory
from dynaweb_opt_grpo import GrpoConfig
from dynaweb_opt_grpo.grpo import Grpo

PAGE = Observation("http://shop/", (Node(1, "link", "Cart"),))


def trajectory(reward: float | None, *, source: Source = "dream", steps: int = 2, group: str = "g") -> Trajectory:
    said = [Step(PAGE, None, prompt=Prompt((1, 2)), response_ids=(3, 4)) for _ in range(steps)]
    return Trajectory("t", Task("t", "", ""), tuple(said), None, source, "stop", reward, group=group)


class Policy:
    """Log-probabilities that name the policy; counts the rows that it was asked for."""

    critic: Any = None

    def __init__(self, logp: float) -> None:
        self.logp, self.asked = logp, 0

    def logprobs(self, rows: list[TokenRow]) -> list[np.ndarray]:
        self.asked += len(rows)
        return [np.full(len(row.response_ids), self.logp, dtype=np.float32) for row in rows]


def maker(optimizer: Any = None, **rl: Any) -> tuple[BatchMaker, Policy, Policy]:
    now, start = Policy(-1.0), Policy(-2.0)
    settings = Rl(**({"negative_scale": 1.0, "ref_kl_rows": 0} | rl))
    return BatchMaker(settings, optimizer or Grpo(GrpoConfig()), now, start), now, start  # type: ignore[arg-type]


MIXED = [trajectory(1.0, source="expert"), trajectory(0.0), trajectory(1.0)]


@pytest.mark.parametrize(
    ("ratio", "steps", "expert", "own"),
    [
        ("old-policy", 1, "nothing", "nothing"),
        ("one", 1, "nothing", "nothing"),
        ("sft", 1, [-2.0, -2.0], None),
        ("old-policy", 2, [-1.0, -1.0], [-1.0, -1.0]),
        ("one", 2, None, [-1.0, -1.0]),
        ("sft", 2, [-2.0, -2.0], [-1.0, -1.0]),
    ],
)
def test_what_the_ratio_of_expert_tokens_is_taken_against(ratio: Any, steps: int, expert: Any, own: Any) -> None:
    """In a first and only step every ratio is 1 unless experts are weighed against SFT; None is a ratio of 1."""
    batch = maker(expert_ratio=ratio, epochs=steps)[0].make(MIXED)
    if expert == "nothing":
        assert batch.old is None
    else:
        assert batch.old == [expert, expert, own, own, own, own]


def test_only_what_moves_is_computed() -> None:
    dead = [trajectory(0.5, group="dead"), trajectory(0.5, group="dead")]
    batches, now, start = maker(epochs=2)
    batch = batches.make([*MIXED, *dead])
    assert (now.asked, start.asked) == (6, 0)
    assert batch.old is not None and batch.old[6:] == [[0.0, 0.0]] * 4
    assert batch.reference is None


def drawn(reward: float | None, **settings: Any) -> Trajectory:
    """A rollout whose engine said -1.5 of each token."""
    one = trajectory(reward, **settings)
    return replace(one, steps=tuple(replace(step, logprobs=(-1.5, -1.5)) for step in one.steps))


def test_a_correction_and_several_steps_use_the_same_numbers_of_the_policy() -> None:
    batches, now, _ = maker(epochs=2)
    batch = replace(batches, correction=Correction(2.0)).make([drawn(0.0), drawn(1.0)])
    assert now.asked == 4, "each row once"
    assert batch.old == [[-1.0, -1.0]] * 4
    assert batch.weights is not None and np.asarray(batch.weights) == pytest.approx(math.exp(0.5))
    batches, now, _ = maker()
    batch = replace(batches, correction=Correction(2.0)).make([drawn(0.0), drawn(1.0)])
    assert now.asked == 4 and batch.old is None and batch.mismatch["engine.logprob_gap"] == pytest.approx(0.5)


def test_only_what_the_policy_of_the_moment_drew_is_corrected() -> None:
    rollouts = [drawn(1.0, steps=1), drawn(1.0, steps=1, group=f"{GROUP}t"), drawn(1.0, steps=1, source="expert")]
    assert engine_logprobs(rollouts) == [(-1.5, -1.5), (), ()]


SAMPLER = Correction(sampler_is_old=True)
"""Log-probabilities here: the sampler's -1.5, the trainer's -1, those of the policy after SFT -2."""


@pytest.mark.parametrize(
    ("ratio", "steps", "expert", "replayed"),
    [
        ("old-policy", 1, None, None),
        ("one", 1, None, None),
        ("sft", 1, [-2.0, -2.0], None),
        ("old-policy", 2, [-1.0, -1.0], [-1.0, -1.0]),
        ("one", 2, None, [-1.0, -1.0]),
        ("sft", 2, [-2.0, -2.0], [-1.0, -1.0]),
    ],
)
def test_stale_tokens_are_old_as_the_sampler_said_and_experts_and_replayed_ones_as_ever(
    ratio: Any, steps: int, expert: Any, replayed: Any
) -> None:
    """What the sampler said is not computed again, and no weight comes on top of the ratio."""
    batches, now, _ = maker(expert_ratio=ratio, epochs=steps, max_staleness=1)
    again = [drawn(reward, group=f"{GROUP}t", steps=1) for reward in (1.0, 0.0)]
    rollouts = [drawn(1.0, source="expert", steps=1), drawn(0.0, steps=2), *again]
    batch = replace(batches, correction=SAMPLER).make(rollouts)
    assert batch.old == [expert, (-1.5, -1.5), (-1.5, -1.5), replayed, replayed]
    assert batch.weights is None and batch.mismatch == {}
    assert now.asked == (3 if steps > 1 else 0)


def test_decoupled_ratios_are_to_the_policy_before_the_update_and_tokens_are_weighed() -> None:
    batches, now, _ = maker(max_staleness=1)
    batch = replace(batches, correction=Correction(1.2)).make([drawn(0.0), drawn(1.0)])
    assert batch.old is None, "a first and only step has ratio 1 to it"
    assert batch.weights is not None and np.asarray(batch.weights) == pytest.approx(1.2), "exp(0.5), cut"
    assert batch.mismatch["staleness.ess"] == 1.0 and batch.mismatch["staleness.capped"] == 1.0
    assert batch.mismatch["staleness.logprob_gap"] == 0.5 and now.asked == 4
    assert all(name.startswith("staleness.") for name in batch.mismatch), "the loss has measures of its own"
    several, now, _ = maker(max_staleness=1, minibatches=2)
    assert replace(several, correction=Correction(1.2)).make([drawn(0.0), drawn(1.0)]).old == [[-1.0, -1.0]] * 4


def test_a_kl_in_the_reward_is_of_the_policy_that_played() -> None:
    batches, now, start = maker(Grpo(GrpoConfig(beta=0.1, kl_in="reward", kl="k1", scale="none")), max_staleness=1)
    batch = replace(batches, correction=SAMPLER).make([drawn(1.0, steps=1), drawn(0.0, steps=3)])
    # 2 and 6 agent tokens at -1.5 - (-2) = 0.5 each: rewards 1 - 0.1 and 0 - 0.3.
    assert batch.advantages == pytest.approx([0.6, -0.6])
    assert (now.asked, start.asked) == (0, 4)


@pytest.mark.parametrize(
    ("name", "sets", "kind"),
    [
        ("gspo", {}, "ratio"),
        ("grpo", {}, "ratio"),
        ("ppo", {}, "ratio"),
        ("reinforce-pp", {}, "ratio"),
        ("cispo", {}, "ratio"),
        ("gigpo", {}, "ratio"),
        ("rloo", {"surrogate": "clip"}, "ratio"),
        ("rloo", {}, "weights"),
        ("webrl", {}, "any"),
        ("awr", {}, "any"),
        ("digirl", {}, "any"),
    ],
)
def test_what_an_optimizer_says_of_stale_rollouts_is_what_its_loss_does(
    name: str, sets: dict[str, Any], kind: str
) -> None:
    """A loss takes them by its ratio where, and only where, its gradient depends on old log-probabilities."""
    import torch

    from dynaweb.plugin.registry import current
    from dynaweb.testing.optimizers import batch

    plugin = current().find("opt", name)
    optimizer: Any = current().create("opt", name, plugin.spec.config.model_validate(sets), PluginContext())
    assert wants(optimizer).off_policy == kind
    gradients = []
    for shift in (0.0, 5e-5):
        sample = batch()
        if kind == "any":  # credit by row
            count_S = sample.mask_RT.sum(1)
            sample = replace(sample, row_R=torch.arange(8), advantage_S=torch.ones(8).double(), tokens_S=count_S)
        moved = replace(sample, old_logp_RT=sample.logp_RT.detach() - shift, log_ratio_sum_N=None)
        optimizer.loss(moved).loss.backward()
        gradients.append(moved.logp_RT.grad.clone())
    assert torch.equal(*gradients) != (kind == "ratio")


def test_a_reference_in_the_loss_is_computed_for_dead_groups_too() -> None:
    batches, _, start = maker(Grpo(GrpoConfig(beta=0.1)))
    batch = batches.make([trajectory(0.5), trajectory(0.5)])
    assert start.asked == 4
    assert batch.reference == [[-2.0, -2.0]] * 4


def test_a_reference_in_the_reward_changes_the_credit() -> None:
    batches, now, start = maker(Grpo(GrpoConfig(beta=0.1, kl_in="reward", kl="k1", scale="none")))
    batch = batches.make([trajectory(1.0, steps=1), trajectory(0.0, steps=3)])
    # 2 and 6 agent tokens at -1 - (-2) = 1 each: rewards 1 - 0.2 and 0 - 0.6.
    assert batch.advantages == pytest.approx([0.7, -0.7])
    assert (now.asked, start.asked, batch.reference) == (4, 4, None)


def test_ungraded_rollouts_and_rows_that_are_not_kept_leave_the_batch() -> None:
    rollouts = [
        *(trajectory(r, group="mixed") for r in (1.0, None, 0.0)),
        *(trajectory(1.0, group="solved") for _ in range(2)),
    ]
    optimizer = Grpo(GrpoConfig(dynamic_sampling=True))
    assert contributing_groups(optimizer, rollouts) == {"mixed"}
    batch = maker(optimizer)[0].make(rollouts)
    assert len(batch.trajectories) == 4 and len(batch.advantages) == 5
    assert [row.trajectory for row in batch.rows] == [0, 0, 1, 1]
    assert batch.advantages[1] == 0.0 and batch.advantages[0] > 0 > batch.advantages[2]
    assert batch.credit.metrics["dropped_groups"] == 1


def test_success_decides_which_groups_are_mixed_and_reward_does_not() -> None:
    """Soft rewards that differ on one side of one half: no success, so nothing to learn from."""
    optimizer = Grpo(GrpoConfig(dynamic_sampling=True))
    assert contributing_groups(optimizer, [trajectory(0.1), trajectory(0.4)]) == set()
    assert contributing_groups(optimizer, [trajectory(0.1), trajectory(0.6)]) == {"g"}


class FineCredit:
    """Credit of its own for each row and token."""

    wants = Wants()
    needs_trajectory_ratio = False

    def advantages(self, rewards: Any, groups: Any) -> list[float]:
        return [0.0] * len(rewards)

    def credit(self, batch: CreditInput) -> Credit:
        tokens = [[-1.0, 1.0] if row.step else [0.0, 0.0] for row in batch.rows]
        return Credit([1.0] * len(batch.rewards), tokens=tokens, rows=[-2.0] * len(batch.rows))

    def loss(self, batch: Any) -> Any:
        pytest.fail("a batch needs no loss")


def test_negative_advantages_are_scaled_at_every_level_and_parts_stay_aligned() -> None:
    batch = maker(FineCredit(), negative_scale=0.25)[0].make(MIXED)
    assert batch.credit.rows == [-0.5] * 6
    assert batch.credit.tokens == [[0.0, 0.0], [-0.25, 1.0]] * 3
    part = batch.part([2, 0])
    assert [row.trajectory for row in part.rows] == [1, 1, 0, 0]
    assert part.credit.tokens == [[0.0, 0.0], [-0.25, 1.0]] * 2
    assert [t.source for t in part.trajectories] == ["dream", "expert"]
    assert not part.credit.moves(0, 1) and part.credit.moves(1, 1)


def test_the_kl_to_the_start_is_measured_on_a_sample() -> None:
    batches, now, start = maker(ref_kl_rows=2)
    found = batches.ref_kl(batches.make(MIXED))
    assert found["ref_kl"] == pytest.approx(penalties([-1.0], [-2.0], "k3")[0])
    assert now.asked == start.asked == 2
    assert batches.ref_kl(batches.make([])) == {}
    off = maker(ref_kl_rows=0)[0]
    assert off.ref_kl(off.make(MIXED)) == {}


def test_the_kl_to_the_start_is_of_what_the_policy_sampled() -> None:
    """Experts' tokens were not: they are not even computed."""
    batches, now, start = maker(ref_kl_rows=100)
    batches.ref_kl(batches.make(MIXED))
    assert now.asked == start.asked == 4, "two rollouts of two steps; the expert's are left out"
    assert batches.ref_kl(batches.make([trajectory(1.0, source="expert")])) == {}


def test_the_kl_to_the_start_is_measured_once() -> None:
    """A loss with a reference reports it itself, from all rows."""
    batches, now, start = maker(Grpo(GrpoConfig(beta=0.1)), ref_kl_rows=100)
    batch = batches.make(MIXED)
    assert (now.asked, start.asked) == (0, 6)
    assert batches.ref_kl(batch) == {}
    assert (now.asked, start.asked) == (0, 6)


def test_no_second_model_is_kept_unless_something_needs_it() -> None:
    assert Rl().ref_kl_rows == 0


class WantsOnly:
    """An optimizer that says what it wants but leaves credit to its advantages."""

    wants = Wants(reference_in_loss=True, refills=2)
    needs_trajectory_ratio = False

    def advantages(self, rewards: Any, groups: Any) -> list[float]:
        return [reward - 0.5 for reward in rewards]

    def loss(self, batch: Any) -> Any:
        pytest.fail("a batch needs no loss")


def test_what_an_optimizer_wants_does_not_hang_on_credit_of_its_own() -> None:
    batches, _, start = maker(WantsOnly())
    batch = batches.make(MIXED)
    assert wants(WantsOnly()).refills == 2  # type: ignore[arg-type]
    assert batch.reference == [[-2.0, -2.0]] * 6 and start.asked == 6
    assert batch.advantages == [0.5, -0.5, 0.5]
    assert wants(SimpleNamespace()) == Wants()  # type: ignore[arg-type]


def test_an_environments_own_score_does_not_double_the_verdict() -> None:
    """Only what a step earned beside the verdict counts as its reward; any other number in `info` does not."""

    def rewards(*earned: float, **info: float) -> list[float]:
        plain = Step(PAGE, None, prompt=Prompt((1,)), response_ids=(2,), info=info)
        steps = tuple(replace(plain, facts=StepFacts(reward=reward)) for reward in earned)
        return [row.reward for row in credit_input([replace(trajectory(1.0), steps=steps)]).rows]

    assert rewards(0.0, 0.0, reward=1.0, score=1.0) == [0.0, 0.0]
    assert rewards(0.25, 0.0, -1, reward=1.0) == [0.25, 0.0, -1.0]


def test_what_the_critic_said_goes_with_the_credit() -> None:
    """The optimizer reads values and need not hand them back; rows that are left out lose theirs."""
    batches, now, _ = maker(FineCredit())
    now.critic = SimpleNamespace(values=lambda rows: [[[float(i)]] for i in range(len(rows))])
    batch = batches.make(MIXED)
    assert batch.credit.values == [[[float(i)]] for i in range(6)]
    assert batch.part([1]).credit.values == [[[2.0]], [[3.0]]]


def test_pages_are_the_same_when_their_text_is() -> None:
    def anchor(page: Observation) -> str:
        step = Step(page, None, prompt=Prompt((1,)), response_ids=(2,))
        return credit_input([Trajectory("t", Task("t", "", ""), (step,), None, "dream", "stop", 1.0)]).rows[0].anchor

    renumbered = Observation("http://shop/", (Node(9, "link", "Cart", ref="x"),))
    assert anchor(PAGE) == anchor(renumbered)
    for other in (
        Observation("http://shop/2", PAGE.nodes),
        Observation("http://shop/", (Node(1, "link", "Carts"),)),
        Observation("http://shop/", (Node(1, "textbox", "Cart", value="x"),)),
        Observation("http://shop/", (Node(1, "link", "Cart", props=(("disabled", ""),)),)),
        Observation("http://shop/", (Node(1, "link", "Cart", depth=1),)),
        Observation("http://shop/", PAGE.nodes, notice="refused"),
    ):
        assert anchor(other) != anchor(PAGE)


def test_metrics_over_steps() -> None:
    steps = [{"loss": 1.0, "tokens": 10.0, "lr": 2.0, "only": 5.0}, {"loss": 3.0, "tokens": 20.0, "lr": 1.0}]
    assert over_steps(steps) == {"loss": 2.0, "tokens": 30.0, "lr": 1.0, "only": 5.0}
    assert over_steps([]) == {}


def test_a_policy_without_credit_of_its_own_is_asked_for_advantages() -> None:
    plain = SimpleNamespace(
        needs_trajectory_ratio=False, advantages=lambda rewards, groups: [r - 0.5 for r in rewards], loss=None
    )
    assert maker(plain)[0].make(MIXED).advantages == [0.5, -0.5, 0.5]
