"""What an update learns from: experts' ratios, references, kept rows, pages, and metrics over several steps."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dynaweb.backends.kl import penalties
from dynaweb.config.sections import Rl
from dynaweb.credit import STEP_REWARD, Credit, CreditInput, Wants, wants
from dynaweb.loop.lessons import Teacher, credit_input, kept_groups, over_steps
from dynaweb.loop.mismatch import engine_logprobs
from dynaweb.loop.replay import GROUP
from dynaweb.protocols import TokenRow
from dynaweb.types import Node, Observation, Source, Step, Task, Trajectory
from dynaweb_opt_grpo import GrpoConfig
from dynaweb_opt_grpo.grpo import Grpo

PAGE = Observation("http://shop/", (Node(1, "link", "Cart"),))


def trajectory(reward: float | None, *, source: Source = "dream", steps: int = 2, group: str = "g") -> Trajectory:
    said = [Step(PAGE, None, prompt_ids=(1, 2), response_ids=(3, 4)) for _ in range(steps)]
    return Trajectory("t", Task("t", "", ""), tuple(said), None, source, "stop", reward, group=group)


class Policy:
    """Log-probabilities that name the policy; counts the rows that it was asked for."""

    critic: Any = None

    def __init__(self, logp: float) -> None:
        self.logp, self.asked = logp, 0

    def logprobs(self, rows: list[TokenRow]) -> list[np.ndarray]:
        self.asked += len(rows)
        return [np.full(len(row.response_ids), self.logp, dtype=np.float32) for row in rows]


def teacher(optimizer: Any = None, **rl: Any) -> tuple[Teacher, Policy, Policy]:
    now, start = Policy(-1.0), Policy(-2.0)
    given = Rl(**({"negative_scale": 1.0, "ref_kl_rows": 0} | rl))
    return Teacher(given, optimizer or Grpo(GrpoConfig()), now, start), now, start  # type: ignore[arg-type]


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
    lesson = teacher(expert_ratio=ratio, epochs=steps)[0].lesson(MIXED)
    if expert == "nothing":
        assert lesson.old is None
    else:
        assert lesson.old == [expert, expert, own, own, own, own]


def test_only_what_moves_is_computed() -> None:
    dead = [trajectory(0.5, group="dead"), trajectory(0.5, group="dead")]
    made, now, start = teacher(epochs=2)
    lesson = made.lesson([*MIXED, *dead])
    assert (now.asked, start.asked) == (6, 0)
    assert lesson.old is not None and lesson.old[6:] == [[0.0, 0.0]] * 4
    assert lesson.reference is None


def drawn(reward: float | None, **settings: Any) -> Trajectory:
    """A rollout whose engine said -1.5 of each token."""
    one = trajectory(reward, **settings)
    return replace(one, steps=tuple(replace(step, logprobs=(-1.5, -1.5)) for step in one.steps))


def test_a_correction_and_several_steps_use_the_same_numbers_of_the_policy() -> None:
    made, now, _ = teacher(epochs=2)
    lesson = replace(made, cap=2.0).lesson([drawn(0.0), drawn(1.0)])
    assert now.asked == 4, "each row once"
    assert lesson.old == [[-1.0, -1.0]] * 4
    assert lesson.weights is not None and np.asarray(lesson.weights) == pytest.approx(math.exp(0.5))
    made, now, _ = teacher()
    lesson = replace(made, cap=2.0).lesson([drawn(0.0), drawn(1.0)])
    assert now.asked == 4 and lesson.old is None and lesson.mismatch["engine.logprob_gap"] == pytest.approx(0.5)


def test_only_what_the_policy_of_the_moment_drew_is_corrected() -> None:
    rollouts = [drawn(1.0, steps=1), drawn(1.0, steps=1, group=f"{GROUP}t"), drawn(1.0, steps=1, source="expert")]
    assert engine_logprobs(rollouts) == [(-1.5, -1.5), (), ()]


def test_a_reference_in_the_loss_is_computed_for_dead_groups_too() -> None:
    made, _, start = teacher(Grpo(GrpoConfig(beta=0.1)))
    lesson = made.lesson([trajectory(0.5), trajectory(0.5)])
    assert start.asked == 4
    assert lesson.reference == [[-2.0, -2.0]] * 4


def test_a_reference_in_the_reward_changes_the_credit() -> None:
    made, now, start = teacher(Grpo(GrpoConfig(beta=0.1, kl_in="reward", kl="k1", scale="none")))
    lesson = made.lesson([trajectory(1.0, steps=1), trajectory(0.0, steps=3)])
    # 2 and 6 agent tokens at -1 - (-2) = 1 each: rewards 1 - 0.2 and 0 - 0.6.
    assert lesson.advantages == pytest.approx([0.7, -0.7])
    assert (now.asked, start.asked, lesson.reference) == (4, 4, None)


def test_ungraded_rollouts_and_rows_that_are_not_kept_leave_the_batch() -> None:
    rollouts = [
        *(trajectory(r, group="mixed") for r in (1.0, None, 0.0)),
        *(trajectory(1.0, group="solved") for _ in range(2)),
    ]
    optimizer = Grpo(GrpoConfig(dynamic_sampling=True))
    assert kept_groups(optimizer, rollouts) == {"mixed"}
    lesson = teacher(optimizer)[0].lesson(rollouts)
    assert len(lesson.trajectories) == 4 and len(lesson.advantages) == 5
    assert [row.trajectory for row in lesson.rows] == [0, 0, 1, 1]
    assert lesson.advantages[1] == 0.0 and lesson.advantages[0] > 0 > lesson.advantages[2]
    assert lesson.credit.metrics["dropped_groups"] == 1


def test_success_decides_which_groups_are_mixed_and_reward_does_not() -> None:
    """Soft rewards that differ on one side of one half: no success, so nothing to learn from."""
    optimizer = Grpo(GrpoConfig(dynamic_sampling=True))
    assert kept_groups(optimizer, [trajectory(0.1), trajectory(0.4)]) == set()
    assert kept_groups(optimizer, [trajectory(0.1), trajectory(0.6)]) == {"g"}


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
        pytest.fail("a lesson needs no loss")


def test_negative_advantages_are_scaled_at_every_level_and_parts_stay_aligned() -> None:
    lesson = teacher(FineCredit(), negative_scale=0.25)[0].lesson(MIXED)
    assert lesson.credit.rows == [-0.5] * 6
    assert lesson.credit.tokens == [[0.0, 0.0], [-0.25, 1.0]] * 3
    part = lesson.part([2, 0])
    assert [row.trajectory for row in part.rows] == [1, 1, 0, 0]
    assert part.credit.tokens == [[0.0, 0.0], [-0.25, 1.0]] * 2
    assert [t.source for t in part.trajectories] == ["dream", "expert"]
    assert not part.credit.moves(0, 1) and part.credit.moves(1, 1)


def test_the_kl_to_the_start_is_measured_on_a_sample() -> None:
    made, now, start = teacher(ref_kl_rows=2)
    found = made.ref_kl(made.lesson(MIXED))
    assert found["ref_kl"] == pytest.approx(penalties([-1.0], [-2.0], "k3")[0])
    assert now.asked == start.asked == 2
    assert made.ref_kl(made.lesson([])) == {}
    off = teacher(ref_kl_rows=0)[0]
    assert off.ref_kl(off.lesson(MIXED)) == {}


def test_the_kl_to_the_start_is_of_what_the_policy_sampled() -> None:
    """Experts' tokens were not: they are not even computed."""
    made, now, start = teacher(ref_kl_rows=100)
    made.ref_kl(made.lesson(MIXED))
    assert now.asked == start.asked == 4, "two rollouts of two steps; the expert's are left out"
    assert made.ref_kl(made.lesson([trajectory(1.0, source="expert")])) == {}


def test_the_kl_to_the_start_is_measured_once() -> None:
    """A loss with a reference reports it itself, from all rows."""
    made, now, start = teacher(Grpo(GrpoConfig(beta=0.1)), ref_kl_rows=100)
    lesson = made.lesson(MIXED)
    assert (now.asked, start.asked) == (0, 6)
    assert made.ref_kl(lesson) == {}
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
        pytest.fail("a lesson needs no loss")


def test_what_an_optimizer_wants_does_not_hang_on_credit_of_its_own() -> None:
    made, _, start = teacher(WantsOnly())
    lesson = made.lesson(MIXED)
    assert wants(WantsOnly()).refills == 2  # type: ignore[arg-type]
    assert lesson.reference == [[-2.0, -2.0]] * 6 and start.asked == 6
    assert lesson.advantages == [0.5, -0.5, 0.5]
    assert wants(SimpleNamespace()) == Wants()  # type: ignore[arg-type]


def test_an_environments_own_score_does_not_double_the_verdict() -> None:
    """Only what a step earned beside the verdict counts as its reward; any other number in `info` does not."""

    def rewards(*infos: dict[str, Any]) -> list[float]:
        steps = tuple(Step(PAGE, None, prompt_ids=(1,), response_ids=(2,), info=info) for info in infos)
        return [row.reward for row in credit_input([replace(trajectory(1.0), steps=steps)]).rows]

    assert rewards({"reward": 0.0}, {"reward": 1.0}, {"score": 1.0}) == [0.0, 0.0, 0.0]
    assert rewards({STEP_REWARD: 0.25}, {}, {STEP_REWARD: -1, "reward": 1.0}) == [0.25, 0.0, -1.0]


def test_what_the_critic_said_goes_with_the_credit() -> None:
    """The optimizer reads values and need not hand them back; rows that are left out lose theirs."""
    made, now, _ = teacher(FineCredit())
    now.critic = SimpleNamespace(values=lambda rows: [[[float(i)]] for i in range(len(rows))])
    lesson = made.lesson(MIXED)
    assert lesson.credit.values == [[[float(i)]] for i in range(6)]
    assert lesson.part([1]).credit.values == [[[2.0]], [[3.0]]]


def test_pages_are_the_same_when_their_text_is() -> None:
    def anchor(page: Observation) -> str:
        step = Step(page, None, prompt_ids=(1,), response_ids=(2,))
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
    assert teacher(plain)[0].lesson(MIXED).advantages == [0.5, -0.5, 0.5]
