"""The conformance suites on the plugins that come with the package, and on broken ones, which they must catch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from core_kit import PackageMaker

from dynaweb.testing import EnvironmentSuite, OptimizerSuite, RewardSuite, WorldModelSuite
from dynaweb.types import Task

pytest_plugins = ["dynaweb.testing.fixtures"]


class TestDelta(WorldModelSuite):
    name = "delta"
    settings = {"max_new_tokens": 40, "retries": 0}


class TestFullState(WorldModelSuite):
    name = "full-state"
    settings = {"max_new_tokens": 40, "retries": 0}


class TestFrozen(WorldModelSuite):
    name = "frozen-llm"
    settings = {"max_new_tokens": 40}


class TestGspo(OptimizerSuite):
    name = "gspo"


class TestGrpo(OptimizerSuite):
    name = "grpo"


class TestRloo(OptimizerSuite):
    name = "rloo"


class TestCispo(OptimizerSuite):
    name = "cispo"


class TestSelfAssess(RewardSuite):
    name = "self-assess"


class TestChecker(RewardSuite):
    name = "checker"


class TestSites(EnvironmentSuite):
    name = "sites"
    settings = {"driver": "static"}


BAD = """
import numpy  # heavy at import
from pydantic import BaseModel
from dynaweb.hookspecs import PluginSpec, hookimpl


class Config(BaseModel):
    size: int = 3


@hookimpl
def dynaweb_world_models():
    return [PluginSpec("bad", "bad_parts:Dreamer", Config, "predicts badly")]


@hookimpl
def dynaweb_optimizers():
    return [PluginSpec("bad", "bad_parts:Optimizer", Config, "")]


@hookimpl
def dynaweb_rewards():
    return [PluginSpec("bad", "bad_parts:Judge", Config, "judges badly")]
"""
PARTS = """
import itertools
import torch
from dynaweb.protocols import GenerateRequest, LossOutput
from dynaweb.types import Judgement, Prediction

COUNT = itertools.count()


class Dreamer:
    def __init__(self, config, context):
        self.engine = context.engine
        self.format = context.format

    async def predict(self, observation, action, *, seed, history=(), goal=""):
        request = GenerateRequest(self.format.world_model_prompt(observation, action), 20)
        text = self.format.decode((await self.engine.generate(request)).token_ids).strip()
        url, name = text.split("\\\\n")[0], text[0]  # raises for empty text
        return Prediction(observation if next(COUNT) % 2 else None, error="luck")


class Optimizer:
    needs_trajectory_ratio = False

    def __init__(self, config, context):
        self.call = lambda: None

    def advantages(self, rewards, groups):
        return [reward or 0.0 for reward in rewards]

    def loss(self, batch):
        ratio = torch.exp(batch.logp_RT - batch.old_logp_RT) * batch.mask_RT  # the mask comes too late
        return LossOutput(-(ratio * batch.advantage_N[batch.trajectory_R][:, None]).mean())


class Judge:
    def __init__(self, config, context):
        pass

    async def score(self, trajectory):
        return Judgement(None if trajectory.answer else 2.0)
"""
SUITE = """
from dynaweb.testing import OptimizerSuite, RewardSuite, WorldModelSuite
pytest_plugins = ["dynaweb.testing.fixtures"]


class TestDreamer(WorldModelSuite):
    name = "bad"


class TestOptimizer(OptimizerSuite):
    name = "bad"
    xfail = {"test_the_object_pickles": "has a lambda", "test_more_reward_is_more_advantage": "wrongly expected"}


class TestJudge(RewardSuite):
    name = "bad"
"""


def test_the_suites_catch_what_is_wrong(package: PackageMaker, tmp_path: Path) -> None:
    package("bad", BAD, modules={"bad_parts": PARTS})
    (tmp_path / "test_bad.py").write_text(textwrap.dedent(SUITE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(package.folder)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "XFAIL"))]
    failed = {line.split("::", 1)[1].split(" ")[0].split("[")[0] for line in lines}
    assert failed == {
        *(f"{suite}::test_the_entry_module_is_light" for suite in ("TestDreamer", "TestOptimizer", "TestJudge")),
        "TestDreamer::test_malformed_output_is_an_error_text_not_an_exception",
        "TestDreamer::test_history_and_goal_may_be_given",
        "TestDreamer::test_the_same_seed_dreams_the_same",
        "TestDreamer::test_a_batch_equals_singles",
        "TestDreamer::test_no_action_is_an_exception",
        "TestDreamer::test_a_prediction_depends_on_its_own_question_alone",
        "TestDreamer::test_other_processes_dream_the_same",
        "TestOptimizer::test_it_is_listed_with_a_summary",
        "TestOptimizer::test_equal_rewards_carry_no_gradient",
        "TestOptimizer::test_masked_tokens_get_no_gradient_and_change_nothing",
        "TestOptimizer::test_shares_of_micro_batches_add_up",
        "TestOptimizer::test_padding_changes_nothing",
        "TestOptimizer::test_more_reward_is_more_advantage",
        "TestJudge::test_odd_episodes_are_judged",
        "TestJudge::test_malformed_output_is_no_exception",
        "TestJudge::test_scores_are_in_range_or_none_with_a_reason",
    }
    assert "1 xfailed" in done.stdout


def test_tasks_that_share_an_id_are_caught() -> None:
    task = Task("same", "buy a kettle", "http://shop.test/")
    suite = TestSites()
    suite.build = lambda *given, **more: SimpleNamespace(tasks=lambda *given, **more: [task, task])  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="share an id"):
        suite.test_tasks_depend_on_the_seed_alone()


def test_an_expected_failure_of_no_test_is_refused() -> None:
    with pytest.raises(AttributeError, match="test_nothing, which is no test"):
        type("TestX", (OptimizerSuite,), {"name": "gspo", "xfail": {"test_nothing": "?"}})
