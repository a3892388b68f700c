"""The version of the policy: stamped on steps, stored with them, and on-policy where nothing else is allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dynaweb.data.codec import read, to_json
from dynaweb.errors import TrainingError
from dynaweb.rl.importance import refuse_stale
from dynaweb.rl.replay import GROUP
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.testing.stand_ins import HOME, TASK, FakeEngine, compact_format, good_episode
from dynaweb.types import Step, Trajectory


async def test_a_model_stamps_the_version_that_it_played_with() -> None:
    engine = FakeEngine(compact_format(), ("stop ''",))
    policy = ModelPolicy(engine, compact_format())
    versions = [(await policy.act(TASK, HOME, (), seed=1)).policy_version]
    engine.weights_version = 3
    versions.append((await policy.act(TASK, HOME, (), seed=1)).policy_version)
    engine.weights_changed()
    versions.append((await policy.act(TASK, HOME, (), seed=1)).policy_version)
    assert versions == [None, 3, 4]


@pytest.mark.parametrize("version", [None, 0, 12])
def test_it_is_stored(version: int | None) -> None:
    step = Step(HOME, None, policy_version=version)
    assert read(to_json(step), Step) == step
    assert read({"$": "Step", "observation": to_json(step)["observation"], "action": None}, Step).policy_version is None


def played(*versions: int | None, **changes: Any) -> Trajectory:
    episode = good_episode(source="dream", group="task/1")
    steps = [replace(step, response_ids=(1,)) for step in episode.steps]
    return replace(
        episode, steps=tuple(replace(s, policy_version=v) for s, v in zip(steps, versions, strict=True)), **changes
    )


def test_only_the_version_in_training_is_on_policy() -> None:
    fine = [played(2, 2, 2), played(1, 1, 1, source="expert"), played(0, 0, 0, group=f"{GROUP}1"), good_episode()]
    refuse_stale(fine, 2)
    for versions, said in (((2, 1, 2), "step 1 was played by version 1"), ((2, 2, None), "step 2 .* version None")):
        with pytest.raises(TrainingError, match=rf"is not on-policy: {said} .* in training is version 2"):
            refuse_stale([*fine, played(*versions)], 2)
