"""What all suites have in common: the plugin is found, light, configured, built, and can be pickled."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

from dynaweb.plugin import discovery
from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.discovery import Plugin
    from dynaweb.plugin.registry import Plugins

T = TypeVar("T")
SEED = 7
"""The seed of every context."""
HEAVY = discovery.HEAVY | {"rich"}
"""What no entry module may import."""
IMPORT_SECONDS = 0.05
"""What importing an entry module may take, beyond dynaweb and pydantic."""

_IMPORT = """
import sys, time
import dynaweb.hookspecs
from pydantic import BaseModel, ConfigDict, Field
class Warm(BaseModel):
    size: int = Field(default=1, ge=0)
start = time.process_time()
import {module}
print(time.process_time() - start, *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


class PluginSuite:
    """Subclass one of the suites, not this.

    `name` is the plugin's name, `settings` what it is configured with, `xfail` maps names of tests to reasons why they
    are expected to fail: strictly, so that one that passes is an error too.
    """

    kind: ClassVar[Kind]
    name: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    xfail: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for test, reason in cls.xfail.items():
            if not hasattr(cls, test):
                raise AttributeError(f"{cls.__name__}.xfail names {test}, which is no test of the suite")
            setattr(cls, test, pytest.mark.xfail(reason=reason, strict=True)(_copy(getattr(cls, test))))

    @pytest.fixture(autouse=True)
    def _loaded(self, dynaweb_plugins: Plugins) -> None:
        self.plugins = dynaweb_plugins

    @property
    def plugin(self) -> Plugin:
        """The plugin under test. Fails with the reason when it cannot be used."""
        return self.plugins.find(self.kind, self.name)

    def context(self, **changes: Any) -> PluginContext:
        """What the plugin is given; each suite makes the context of its kind."""
        return PluginContext(**{"seed": SEED, **changes})

    def build(self, context: PluginContext | None = None) -> Any:
        """A new object of the plugin."""
        return self.plugins.create(self.kind, self.name, self.settings, context or self.context())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return asyncio.run(work)

    def test_it_is_listed_with_a_summary(self) -> None:
        """`dynaweb plugins list` shows it as usable."""
        status = next(one for one in self.plugins.statuses() if (one.kind, one.name) == (self.kind, self.name))
        assert status.status == "ok", status.cause
        assert status.summary

    def test_the_entry_module_is_light(self) -> None:
        """It loads in under 50 ms of processor time and imports nothing heavy: `dynaweb --help` waits for it."""
        from importlib.metadata import entry_points

        name = self.plugin.origin.entry_point
        module = next(entry.module for entry in entry_points(group="dynaweb") if entry.name == name)
        times: list[float] = []
        while len(times) < 10 and min(times, default=1.0) >= IMPORT_SECONDS:
            command = [sys.executable, "-c", _IMPORT.format(module=module)]
            seconds, *loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            assert HEAVY.isdisjoint(loaded), f"importing {module} imports {sorted(HEAVY & set(loaded))}"
            times.append(float(seconds))
        assert min(times) < IMPORT_SECONDS, f"importing {module} takes {min(times):.3f} s"

    def test_the_config_survives_a_round_trip(self) -> None:
        """Defaults and settings are the same after JSON; a key that is not there is refused."""
        model = self.plugin.spec.config
        for config in (model(), model.model_validate(self.settings)):
            assert model.model_validate_json(config.model_dump_json()) == config
        resolved = self._resolve({f"{self.kind}.{key}": value for key, value in self.settings.items()})
        config, wanted = getattr(resolved, self.kind).config, model.model_validate(self.settings)
        # What is not set here may be set by the recipe that this starts from.
        assert type(config) is type(wanted)
        assert {key: getattr(config, key) for key in self.settings} == {
            key: getattr(wanted, key) for key in self.settings
        }

    def test_unknown_settings_are_refused(self) -> None:
        """A typo in a recipe is an error that names the key."""
        from dynaweb.errors import ConfigError

        with pytest.raises(ConfigError, match="no_such_setting"):
            self._resolve({f"{self.kind}.no_such_setting": 1})

    def test_the_config_pickles(self) -> None:
        """Settings can go to another process."""
        config = self.plugin.spec.config.model_validate(self.settings)
        assert pickle.loads(pickle.dumps(config)) == config

    def test_closing_twice_is_allowed(self) -> None:
        """Where there is something to close."""
        close = getattr(self.build(), "close", None)
        for _ in range(2):
            if close is not None and inspect.iscoroutine(closing := close()):
                self.run(closing)

    def _resolve(self, overrides: Mapping[str, Any]) -> Any:
        from dynaweb.config import resolve

        return resolve("smoke", overrides={f"{self.kind}.name": self.name, **overrides}, plugins=self.plugins)


def _copy(test: Any) -> Any:
    """A function of its own, so that a mark reaches one class only."""
    import functools

    @functools.wraps(test)
    def copied(*arguments: Any, **named: Any) -> Any:
        return test(*arguments, **named)

    return copied


def numbered(nodes: Any) -> bool:
    """Whether elements are numbered 1..N in their order."""
    return [node.id for node in nodes] == list(range(1, len(nodes) + 1))


__all__ = ["HEAVY", "SEED", "PluginSuite", "numbered"]
