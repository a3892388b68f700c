"""Interface check: the class of a plugin against the protocol of its kind, before anything is built or spent.

What is compared: every method that the protocol asks for is there, can be called as dynaweb calls it, and is a
coroutine function where, and only where, it is awaited. What methods return is seen when they are called (`contracts`).
A class with `__getattr__`, or that sets a method in `__init__`, is trusted for what cannot be seen here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynaweb import hookspecs, protocols
from dynaweb.errors import nearest
from dynaweb.hookspecs import PROJECT

if TYPE_CHECKING:
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.discovery import Plugin

NEEDED: dict[Kind, tuple[tuple[type, tuple[str, ...]], ...]] = {
    "wm": ((protocols.WorldModel, ("predict",)),),
    "opt": ((protocols.PolicyOptimizer, ("advantages", "loss")),),
    "reward": ((protocols.Judge, ("score",)),),
    "env": ((protocols.TaskSource, ("tasks", "environment", "evaluate", "expert")),),
    "engine": ((protocols.Engine, ("generate", "choice_logprobs")),),
}
"""What a class of each kind must have, by protocol."""
TRAINABLE: dict[Kind, tuple[type, tuple[str, ...]]] = {
    "wm": (protocols.TrainableWorldModel, ("examples",)),
    "reward": (protocols.TrainableJudge, ("log_odds", "examples")),
}
"""What one with the capability `trainable` must have besides."""
OPTIONAL: dict[Kind, tuple[tuple[type, tuple[str, ...]], ...]] = {
    "wm": ((protocols.TrainableWorldModel, ("examples",)),),
    "opt": ((protocols.AssignsCredit, ("credit",)), (protocols.HasCritic, ("critic_loss",))),
    "reward": ((protocols.TrainableJudge, ("log_odds", "examples")),),
    "env": (
        (protocols.Catalogue, ("catalogue", "skipped")),
        (protocols.TaskFinder, ("task",)),
        (protocols.MakesVariants, ("variants",)),
    ),
    "engine": ((protocols.Engine, ("weights_changed",)),),
}
"""What one may have: it is compared where it is there."""
ENVIRONMENT = (protocols.Environment, ("reset", "step", "close"))
_PLAIN = frozenset({"None", "str", "bytes", "int", "float", "bool", "dict", "set", "complex"})
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Method:
    """A method as a class has it: the function below its decorators, and whether a call passes the object itself."""

    function: Callable[..., Any]
    bound: bool


def problems(plugin: Plugin, cls: type) -> list[str]:
    """What is wrong with the class of a plugin, in words; nothing for one that fits."""
    if plugin.kind == "format":
        parts = sorted(plugin.spec.capabilities)
        return [_missing(cls, part, part) for part in parts if inspect.getattr_static(cls, part, _ABSENT) is _ABSENT]
    return [
        *_constructor(cls),
        *(_hooks(cls) if plugin.kind == "observer" else _methods(plugin, cls)),
    ]


def environment_problems(cls: type) -> list[str]:
    """What is wrong with the class of an environment that a task source makes."""
    return list(_compared(cls, *ENVIRONMENT, required=True))


def _methods(plugin: Plugin, cls: type) -> Iterator[str]:
    for protocol, names in NEEDED[plugin.kind]:
        yield from _compared(cls, protocol, names, required=True)
    trainable = "trainable" in plugin.spec.capabilities and plugin.kind in TRAINABLE
    if trainable:
        yield from _compared(cls, *TRAINABLE[plugin.kind], required=True)
    for protocol, names in OPTIONAL[plugin.kind]:
        if not (trainable and (protocol, names) == TRAINABLE[plugin.kind]):
            yield from _compared(cls, protocol, names, required=False)
    if plugin.kind == "opt" and not _trusted(cls, "needs_trajectory_ratio"):
        value = inspect.getattr_static(cls, "needs_trajectory_ratio", _ABSENT)
        if value is _ABSENT:
            yield _missing(cls, "needs_trajectory_ratio", "needs_trajectory_ratio = False, or True")


def _compared(cls: type, protocol: type, names: tuple[str, ...], *, required: bool) -> Iterator[str]:
    for name in names:
        wanted = getattr(protocol, name)
        value = inspect.getattr_static(cls, name, _ABSENT)
        if value is _ABSENT:
            if required and not _trusted(cls, name):
                yield _missing(cls, name, _call(wanted, name))
            continue
        if isinstance(value, property) or (hasattr(type(value), "__get__") and not _is_method(value)):
            continue  # what it gives is known when it is built
        if not callable(value) and not isinstance(value, staticmethod | classmethod):
            yield f"{name} is {type(value).__name__} {value!r:.40}, not a method; expected {_call(wanted, name)}"
            continue
        method = _method(value)
        if wrong := [*_manner(name, method, wanted), *_arguments(name, method, wanted), *_answer(name, method, wanted)]:
            yield from wrong


def _is_method(value: object) -> bool:
    return inspect.isroutine(value) or isinstance(value, staticmethod | classmethod)


def _method(value: Any) -> _Method:
    bound = not isinstance(value, staticmethod) and (inspect.isroutine(value) or isinstance(value, classmethod))
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not inspect.isroutine(inner) and not isinstance(inner, type):
        # An object with `__call__`: its own is what runs.
        called = inspect.getattr_static(type(inner), "__call__", None)
        return _Method(called, True) if inspect.isfunction(called) else _Method(inner, bound)
    return _Method(inner, bound)


def _manner(name: str, method: _Method, wanted: Callable[..., Any]) -> Iterator[str]:
    """Coroutine, plain function or generator."""
    function = inspect.unwrap(method.function)
    # A decorator may make a coroutine function of a generator, and has the last word.
    is_async = any(inspect.iscoroutinefunction(one) for one in (method.function, function))
    awaited = inspect.iscoroutinefunction(wanted)
    if awaited and not is_async:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            if not getattr(getattr(function, "__code__", None), "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE:
                yield f"{name}() is a generator (it has `yield`), and is awaited: write `async def {name}` and `return`"
        elif inspect.isfunction(function) and not _awaitable(function):
            yield f"{name}() is not async, and is awaited: write `async def {name}`, or annotate `-> Awaitable[...]`"
    elif not awaited and (is_async or inspect.isasyncgenfunction(function)):
        yield f"{name}() is async, and nobody awaits it: write `def {name}`"
    elif not awaited and inspect.isgeneratorfunction(function) and function is method.function:
        yield f"{name}() is a generator (it has `yield`): collect the values and `return` them"


def _awaitable(function: Callable[..., Any]) -> bool:
    """Whether a plain function says that it returns something to await."""
    annotation = str(getattr(function, "__annotations__", {}).get("return", ""))
    return any(word in annotation for word in ("Awaitable", "Coroutine", "Future", "Task["))


def _arguments(name: str, method: _Method, wanted: Callable[..., Any]) -> Iterator[str]:
    """Whether it takes the arguments that dynaweb gives."""
    try:
        signature = inspect.signature(method.function)
    except (TypeError, ValueError):
        return  # a builtin
    kinds = list(inspect.signature(wanted).parameters.values())[1:]
    positional = [one.name for one in kinds if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {one.name: None for one in kinds if one.kind is inspect.Parameter.KEYWORD_ONLY}
    try:
        signature.bind(*([None] if method.bound else []), *positional, **named)
    except TypeError as error:
        has = f"{name}{signature}"
        yield f"{has} cannot be called as {_call(wanted, name)}: {error}"


def _answer(name: str, method: _Method, wanted: Callable[..., Any]) -> Iterator[str]:
    """Whether a plain type is announced where the protocol has another."""
    annotation, expected = _annotated(inspect.unwrap(method.function)), _annotated(wanted)
    if annotation in _PLAIN and expected and annotation != expected:
        yield f"{name}() is annotated to return {annotation}; expected {expected}"


def _annotated(function: Callable[..., Any]) -> str:
    value = getattr(function, "__annotations__", {}).get("return", "")
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def _constructor(cls: type) -> Iterator[str]:
    """Whether `Class(config, context)` can be called."""
    if inspect.isabstract(cls):
        yield f"{cls.__name__} is abstract: {', '.join(sorted(getattr(cls, '__abstractmethods__', ())))} is not written"
        return
    try:
        inspect.signature(cls).bind(None, None)
    except ValueError:
        return  # a builtin
    except TypeError as error:
        yield f"{cls.__name__} cannot be called as {cls.__name__}(config, context): {error}"


def _hooks(cls: type) -> Iterator[str]:
    """Hook implementations of an observer."""
    valid = sorted(name for name in vars(hookspecs) if name.startswith("dynaweb_"))
    marked = 0
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        options = getattr(function, f"{PROJECT}_impl", None)
        if options is None:
            if name in valid:
                yield f"{name}() is not marked as a hook; put `@hookimpl` of dynaweb.hookspecs above it"
            continue
        marked += 1
        if name not in valid and not options.get("optionalhook"):
            near = nearest(name, valid)
            meant = f"; did you mean {near[0]}?" if near else f"; valid: {', '.join(valid)}"
            yield f"{name} is no hook of dynaweb{meant}"
        elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            yield f"{name}() is async, and nobody awaits it: write `def {name}`"
        elif inspect.isgeneratorfunction(function):
            yield f"{name}() is a generator (it has `yield`): hooks are plain functions"
        else:
            skip = 0 if isinstance(value, staticmethod) else 1
            odd = [one for one in list(inspect.signature(function).parameters)[skip:] if one != "event"]
            if odd:
                yield f"{name}({', '.join(odd)}): a hook has one argument, `event`"
    if not marked and not _trusted(cls, ""):
        yield "it implements no hook; mark methods with `@hookimpl` of dynaweb.hookspecs"


def _trusted(cls: type, name: str) -> bool:
    """Whether an attribute may come about when the object is built, or asked for."""
    if inspect.getattr_static(cls, "__getattr__", None) is not None:
        return True
    if name in getattr(cls, "__annotations__", {}) and name in getattr(cls, "__dataclass_fields__", {}):
        return True
    for one in cls.__mro__:
        code = getattr(vars(one).get("__init__"), "__code__", None)
        if code is not None and (name in code.co_names or "setattr" in code.co_names or "__dict__" in code.co_names):
            return True
    return False


def _missing(cls: type, name: str, call: str) -> str:
    own = {one for base in cls.__mro__[:-1] for one in vars(base) if not one.startswith("__")}
    # What has a meaning of its own is no slip for another name.
    own -= {one for table in (NEEDED, OPTIONAL) for rows in table.values() for _, names in rows for one in names}
    near = nearest(name, own)
    return f"{cls.__name__} has no {call}" + (f", but {near[0]}: rename it" if near else "")


def _call(wanted: Callable[..., Any], name: str) -> str:
    """How dynaweb calls a method, as it would be written in a class."""
    kinds = list(inspect.signature(wanted).parameters.values())[1:]
    positional = [one.name for one in kinds if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = [one.name for one in kinds if one.kind is inspect.Parameter.KEYWORD_ONLY]
    arguments = ", ".join([*positional, *(["*"] if named else []), *named])
    return f"{'async ' if inspect.iscoroutinefunction(wanted) else ''}{name}({arguments})"


__all__ = ["environment_problems", "problems"]
