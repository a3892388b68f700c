"""Classes that do not fit their kind: every usual mistake, for every method of every kind, is told with the plugin."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from core_kit import PackageMaker, toy_source
from pydantic import BaseModel
from typer.testing import CliRunner

from dynaweb import protocols
from dynaweb.cli.app import tree
from dynaweb.errors import PluginError
from dynaweb.hookspecs import Kind, PluginSpec, hookimpl
from dynaweb.plugin import contracts, interface
from dynaweb.plugin import registry as plugins
from dynaweb.plugin.discovery import KIND_HOOKS, Origin, Plugin

PROTOCOLS: dict[str, tuple[Kind, tuple[type, ...], frozenset[str]]] = {
    "wm": ("wm", (protocols.TrainableWorldModel,), frozenset({"trainable"})),
    "opt": ("opt", (protocols.PolicyOptimizer, protocols.AssignsCredit, protocols.HasCritic), frozenset()),
    "reward": ("reward", (protocols.TrainableJudge,), frozenset({"trainable"})),
    "env": (
        "env",
        (protocols.TaskSource, protocols.Catalogue, protocols.TaskFinder, protocols.MakesVariants),
        frozenset({"tasks"}),
    ),
    "engine": ("engine", (protocols.Engine,), frozenset()),
}


def methods(*sources: type) -> dict[str, Callable[..., Any]]:
    """The methods of protocols that are compared."""
    compared = {
        name
        for table in (interface.NEEDED, interface.OPTIONAL)
        for rows in table.values()
        for _, names in rows
        for name in names
    }
    named = {name: getattr(source, name) for source in sources for name in dir(source) if name in compared}
    return {name: method for name, method in named.items() if inspect.isfunction(method)}


CASES = [(kind, name) for kind, (_, sources, _) in PROTOCOLS.items() for name in methods(*sources)]
NEEDED = {
    **{kind: {name for _, names in rows for name in names} for kind, rows in interface.NEEDED.items()},
}
NEEDED |= {kind: NEEDED[kind] | set(names) for kind, (_, names) in interface.TRAINABLE.items()}


def fitting(kind: str) -> dict[str, Any]:
    """The attributes of a class that fits: the protocol's own methods."""
    return {
        **methods(*PROTOCOLS[kind][1]),
        "needs_trajectory_ratio": False,
        "__init__": lambda self, config, context: None,
    }


def problems(kind: str, attributes: dict[str, Any]) -> list[str]:
    own, _, capabilities = PROTOCOLS[kind]
    spec = PluginSpec("toy", "toys:Toy", BaseModel, "a toy", capabilities=capabilities)
    return interface.problems(Plugin(own, spec, Origin("toy", "toy", "1")), type("Toy", (), attributes))


def mistakes(name: str, right: Callable[..., Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """What to have in the place of a method, and what is then said of it."""
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "misnamed": ({f"{name}s_": right}, rf"Toy has no (async )?{name}\(.*, but {name}s_: rename it"),
        "missing": ({}, rf"Toy has no (async )?{name}\("),
        "not a method": ({name: 3}, rf"{name} is int 3, not a method"),
        "too few arguments": ({name: _with("self", right)}, rf"{name}.*cannot be called as"),
        "too many arguments": (
            {name: _with("self, a, b, c, d, e, f", right)},
            rf"{name}.*missing a required",
        ),
        "plain answer": ({name: _annotated(right)}, rf"{name}\(\) is annotated to return int; expected"),
    }
    if inspect.iscoroutinefunction(right):
        wrong["not async"] = ({name: _plain}, rf"{name}\(\) is not async, and is awaited: write `async def {name}`")
        wrong["async generator"] = ({name: _async_generator}, rf"{name}\(\) is a generator")
        wrong["generator"] = ({name: _generator}, rf"{name}\(\) is a generator")
    else:
        wrong["async"] = ({name: _async}, rf"{name}\(\) is async, and nobody awaits it: write `def {name}`")
        wrong["generator"] = ({name: _generator}, rf"{name}\(\) is a generator")
        wrong["async generator"] = ({name: _async_generator}, rf"{name}\(\) is async")
    return wrong


def _plain(self: Any, *args: Any, **named: Any) -> Any:
    return None


async def _async(self: Any, *args: Any, **named: Any) -> Any:
    return None


def _generator(self: Any, *args: Any, **named: Any) -> Any:
    yield None


async def _async_generator(self: Any, *args: Any, **named: Any) -> Any:
    yield None


def _with(arguments: str, right: Callable[..., Any]) -> Any:
    """A function of other arguments, a coroutine function where the right one is."""
    scope: dict[str, Any] = {}
    exec(f"{'async ' if inspect.iscoroutinefunction(right) else ''}def other({arguments}): return None", scope)
    return scope["other"]


def _annotated(right: Callable[..., Any]) -> Any:
    async def awaited(self: Any, *args: Any, **named: Any) -> int:
        return 0

    def plain(self: Any, *args: Any, **named: Any) -> int:
        return 0

    return awaited if inspect.iscoroutinefunction(right) else plain


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_mistake_in_each_method_is_told(kind: str, name: str) -> None:
    right = fitting(kind)
    assert problems(kind, right) == []
    rest = {key: value for key, value in right.items() if key != name}
    for mistake, (replacement, words) in mistakes(name, right[name]).items():
        told = problems(kind, {**rest, **replacement})
        if mistake in ("missing", "misnamed") and name not in NEEDED[kind]:
            assert told == [], "what is optional may be missing"
            continue
        if mistake == "too few arguments" and len(inspect.signature(right[name]).parameters) == 1:
            continue
        if mistake == "plain answer" and "return" not in right[name].__annotations__:
            continue
        assert len(told) == 1, (mistake, told)
        assert re.search(words, told[0]), (mistake, told)


async def _predict(self: Any, observation: Any, action: Any, *, seed: int, history: Any = (), goal: str = "") -> Any:
    return None


def _delegates(self: Any, observation: Any, action: Any, *, seed: int, **more: Any) -> Awaitable[Any]:
    return cast("Awaitable[Any]", self.inner.predict(observation, action, seed=seed, **more))


def _sets(self: Any, config: Any, context: Any) -> None:
    self.predict = context.inner.predict


class _Callable:
    async def __call__(self, *args: Any, **named: Any) -> Any:
        return None


SOUND: dict[str, dict[str, Any]] = {
    "as documented": {"predict": _predict},
    "says that it returns something to await": {"predict": _delegates},
    "a static method": {"predict": staticmethod(_async)},
    "set when it is built": {"__init__": _sets},
    "asked of another object": {"__getattr__": lambda self, name: None},
    "a property": {"predict": property(lambda self: self.inner.predict)},
    "an object that is called": {"predict": _Callable()},
    "further arguments with defaults": {"__init__": lambda self, config, context, more=1: None, "predict": _predict},
}


@pytest.mark.parametrize("case", SOUND)
def test_what_works_is_not_refused(case: str) -> None:
    rest = {key: value for key, value in fitting("wm").items() if key != "predict"}
    assert problems("wm", {**rest, **SOUND[case]}) == []


def test_a_constructor_that_cannot_be_called_is_told() -> None:
    for init in (lambda self: None, lambda self, config: None, lambda self, config, context, more: None):
        (told,) = problems("wm", {**fitting("wm"), "__init__": init})
        assert told.startswith("Toy cannot be called as Toy(config, context): ")


class _Watcher:
    """An observer, whose one hook is changed."""

    def __init__(self, config: Any, context: Any) -> None:
        pass


async def _awaits(self: Any, event: Any) -> None:
    pass


HOOKS: dict[str, tuple[dict[str, Any], str]] = {
    "unmarked": ({"dynaweb_update": lambda self, event: None}, "not marked as a hook"),
    "misnamed": ({"dynaweb_updates": hookimpl(lambda self, event: None)}, "did you mean dynaweb_update?"),
    "async": ({"dynaweb_update": hookimpl(_awaits)}, "is async, and nobody awaits it"),
    "generator": ({"dynaweb_update": hookimpl(_generator)}, "is a generator"),
    "other arguments": ({"dynaweb_update": hookimpl(lambda self, update: None)}, "one argument, `event`"),
    "none": ({}, "implements no hook"),
}


@pytest.mark.parametrize("case", HOOKS)
def test_mistakes_of_observers_are_told(case: str) -> None:
    plugin = Plugin("observer", PluginSpec("toy", "toys:Toy", BaseModel, "a toy"), Origin("toy", "toy", "1"))
    attributes, words = HOOKS[case]
    told = interface.problems(plugin, type("Toy", (_Watcher,), attributes))
    assert words in told[0], told
    right = {"dynaweb_update": hookimpl(lambda self, event: None), "dynaweb_run_end": hookimpl(lambda self: None)}
    assert interface.problems(plugin, type("Toy", (_Watcher,), right)) == []


def test_a_format_without_a_part_that_it_claims_is_told() -> None:
    spec = PluginSpec("toy", "toys:Toy", BaseModel, "a toy", capabilities=frozenset({"view", "grammar"}))
    plugin = Plugin("format", spec, Origin("toy", "toy", "1"))
    assert interface.problems(plugin, type("Toy", (), {"view": 1, "gramar": 2})) == [
        "Toy has no grammar, but gramar: rename it"
    ]


def test_all_plugins_that_come_with_dynaweb_fit() -> None:
    loaded = plugins.load()
    ready = [one for one in loaded.statuses() if one.status == "ok" and one.kind]
    assert len(ready) > 25
    for one in ready:
        assert one.kind
        loaded.check_class(one.kind, one.name)


BAD = "class Toy:\n    def __init__(self, config, context): pass\n    def {method}: return None\n"


def test_the_command_names_plugin_package_and_what_is_valid(package: PackageMaker) -> None:
    """In the run that asks for it too, before anything is made."""
    package("bad-package", toy_source(), modules={"toys": BAD.format(method="predct(self, observation, action, seed)")})
    for command in (["plugins", "check", "toy", "--json"], ["run", "smoke", "--wm", "toy", "--out", "never"]):
        done = CliRunner().invoke(tree(), command)
        assert done.exit_code != 0
        text = str(done.exception) + done.output
        cause = "Toy has no async predict(observation, action, *, seed, history, goal), but predct: rename it"
        assert cause in (json.loads(done.stdout)[0]["cause"] if command[0] == "plugins" else text)
        if command[0] == "run":
            assert "world model 'toy' (package bad-package 1.2)" in text


@pytest.mark.parametrize("kind", sorted({*KIND_HOOKS} - {"format"}))
def test_a_module_that_raises_is_told_for_every_kind(kind: Kind, package: PackageMaker) -> None:
    package("bad-package", toy_source(hook=KIND_HOOKS[kind]), modules={"toys": "raise ValueError('bad day')"})
    with pytest.raises(PluginError, match=r"'toy' \(package bad-package 1.2\).*ValueError: bad day"):
        plugins.load(warn=False).check_class(kind, "toy")


class _Half:
    """An environment whose `step` is not async, and that cannot be closed."""

    async def reset(self, task: Any, seed: int) -> Any:
        return None

    def step(self, action: Any) -> Any:
        return None


def test_an_environment_that_cannot_be_played_is_told_when_it_is_made() -> None:
    with pytest.raises(PluginError, match=r"environment\(\) returned .*step\(\) is not async.*has no async close\(\)"):
        contracts.environment(object(), _Half())
    with pytest.raises(PluginError, match=r"environment\(\) returned None; expected an Environment"):
        contracts.environment(object(), None)


def test_what_an_engine_returns_is_checked() -> None:
    right = protocols.Completion((1, 2), (-0.5, -0.5), True)
    assert contracts.completion(object(), right) is right
    for value in (None, "text", (1, 2), replace(right, logprobs=(-0.5,)), replace(right, token_ids=cast("Any", None))):
        with pytest.raises(PluginError, match=r"generate\(\) returned .*; expected"):
            contracts.completion(object(), value)
    assert contracts.choice_logprobs(object(), [-0.5, -1.0], 2) == (-0.5, -1.0)
    for odd in (None, (-0.5,), ("a", "b"), 3):
        with pytest.raises(PluginError, match=r"choice_logprobs\(\) returned .*; expected one number for each of 2"):
            contracts.choice_logprobs(object(), odd, 2)


NAN_OPTIMIZER = """
class Toy:
    needs_trajectory_ratio = False
    def __init__(self, config, context): pass
    def advantages(self, rewards, groups): return [0.0 if r is None else r - 0.5 for r in rewards]
    def loss(self, batch):
        from dynaweb.protocols import LossOutput
        return LossOutput(batch.logp_RT.sum() * {factor})
"""


@pytest.mark.parametrize(("factor", "why"), [("float('nan')", "is nan"), ("0", "has a gradient of 0")])
def test_a_run_with_an_optimizer_that_teaches_nothing_fails_at_once(
    factor: str, why: str, package: PackageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = toy_source(hook=KIND_HOOKS["opt"])
    package("bad-package", source, modules={"toys": NAN_OPTIMIZER.format(factor=factor)})
    done = CliRunner().invoke(tree(), ["run", "smoke", "--opt", "toy", "--out", "never"])
    assert done.exit_code == 3
    assert f"optimizer 'toy' (package bad-package 1.2): loss() {why}" in done.output
