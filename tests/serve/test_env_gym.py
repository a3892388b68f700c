"""Environments as `gymnasium.Env`: the checker passes, real episodes and dreams are played and rewarded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from judge_kit import said

from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.judges.scores import bent
from dynaweb.web.actions.grammar import format_action
from dynaweb_env_sites.expert import SitesExpert

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import dynaweb.serve.gym as served  # noqa: E402

STATIC = ("env.driver=static",)
DREAM = ("env.tasks=sites", "env.task_settings.driver=static", "model.threads=1")


@pytest.fixture
def sites() -> Iterator[Any]:
    env = gymnasium.make("dynaweb/sites-v0", overrides=STATIC, tasks=6, max_steps=6)
    yield env
    env.close()
    env.close()


def play(env: Any, **options: Any) -> tuple[float, bool, bool, dict[str, Any]]:
    """Play the scripted expert of a task to its end."""
    _, info = env.reset(seed=1, options=options or None)
    inner = env.unwrapped
    expert = SitesExpert(inner._turn.task)
    while True:
        action = expert.act(inner._turn.page)
        observation, reward, terminated, truncated, info = env.step(format_action(action))
        assert observation["error"] == ""
        if terminated or truncated:
            return reward, terminated, truncated, info


def test_the_checker_is_content(sites: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(sites.unwrapped)
    said = [str(one.message) for one in caught if "gymnasium" in one.filename or "Gym" in str(one.message)]
    assert said == []


def test_every_environment_plugin_has_an_id() -> None:
    ids = {spec for spec in gymnasium.registry if spec.startswith("dynaweb/")}
    assert ids >= {"dynaweb/sites-v0", "dynaweb/dream-v0", "dynaweb/miniwob-v0"}


def test_a_solved_task_is_rewarded_and_a_stop_is_not(sites: Any) -> None:
    reward, terminated, truncated, info = play(sites)
    assert (reward, terminated, truncated, info["graded"]) == (1.0, True, False, True)
    sites.reset(seed=1)
    _, reward, terminated, _, info = sites.step("stop 'no idea'")
    assert (reward, terminated) == (0.0, True) and info["why"]
    with pytest.raises(InfrastructureError, match="not running"):
        sites.unwrapped.step("wait")


def test_a_seed_gives_the_same_task_and_a_refusal_costs_a_step(sites: Any) -> None:
    first, info = sites.reset(seed=5)
    again, other = sites.reset(seed=5)
    assert first == again and info["task"] == other["task"]
    observation, reward, terminated, truncated, info = sites.step("dance 'x'")
    assert "not an action" in observation["error"] and not terminated and info["steps"] == 1
    for _ in range(5):
        assert not truncated
        _, reward, terminated, truncated, info = sites.step("wait")
    assert truncated and not terminated and reward == 0.0


def test_a_task_can_be_chosen(sites: Any) -> None:
    _, info = sites.reset(options={"task": 3})
    _, by_id = sites.reset(options={"task": info["task"]})
    assert by_id["task"] == info["task"]
    with pytest.raises(ConfigError, match="no task is called"):
        sites.reset(options={"task": "shop/nothing"})


def test_a_dream_is_an_environment_too() -> None:
    env = gymnasium.make("dynaweb/dream-v0", overrides=DREAM, tasks=2, max_steps=3)
    real = gymnasium.make("dynaweb/sites-v0", overrides=STATIC, tasks=2)
    try:
        observation, info = env.reset(seed=0, options={"task": 0})
        page, _ = real.reset(seed=0, options={"task": 0})
        assert observation == page and info["graded"]
        link = next(node for node in env.unwrapped._turn.page.nodes if node.role == "link")
        dreamed, _, _, _, _ = env.step(f"click '{link.name}' [{link.id}]")
        assert dreamed["page"]
        _, reward, terminated, _, info = env.step("stop ''")
        assert terminated and reward == pytest.approx(bent(said(info["why"]), 0.95), abs=0.01)
    finally:
        env.close()
        real.close()


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="drivr"):
        served.WebEnv("sites", overrides=["env.drivr=static"])
