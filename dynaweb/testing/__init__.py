"""For authors of plugins: fixtures, stand-ins, and a suite of conformance tests for each kind.

    # tests/conftest.py
    pytest_plugins = ["dynaweb.testing.fixtures"]

    # tests/test_conformance.py
    from dynaweb.testing import WorldModelSuite

    class TestMine(WorldModelSuite):
        name = "mine"
        settings = {"size": 3}
        # Strict: a test that passes all the same is an error.
        xfail = {"test_a_batch_equals_singles": "asks a server"}

Suites: `WorldModelSuite`, `OptimizerSuite`, `RewardSuite`, `EnvironmentSuite`. Stand-ins (`stand_ins`): `FakeEngine`
answers with prepared texts, `ScriptedSite` is a site of three pages without a browser. Needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynaweb.testing.environments import EnvironmentSuite
    from dynaweb.testing.optimizers import OptimizerSuite
    from dynaweb.testing.rewards import RewardSuite
    from dynaweb.testing.stand_ins import FakeEngine, ScriptedSite
    from dynaweb.testing.world_models import WorldModelSuite

_HOMES = {
    "EnvironmentSuite": "environments",
    "FakeEngine": "stand_ins",
    "OptimizerSuite": "optimizers",
    "RewardSuite": "rewards",
    "ScriptedSite": "stand_ins",
    "WorldModelSuite": "world_models",
}


def __getattr__(name: str) -> Any:
    # An optimizer's tests need no browser, a judge's no torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"dynaweb.testing.{_HOMES[name]}"), name)


__all__ = ["EnvironmentSuite", "FakeEngine", "OptimizerSuite", "RewardSuite", "ScriptedSite", "WorldModelSuite"]
