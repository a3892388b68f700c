"""Registry of plugins: finding them by name, building them, and notifying observers.

`load()` reads the installed packages once. A plugin that cannot be used is a warning; it becomes an error (exit 3) when
somebody asks for it, or in strict mode. Environment variables:

- `DYNAWEB_PLUGINS`: comma-separated names of the entry points or packages to load; all others are ignored.
- `DYNAWEB_STRICT=1`: a broken plugin, or an observer that raises, ends the run.

First-party plugins come through the same entry points as everybody else's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError, DynawebError, MissingError, PluginError, StorageError, hint
from dynaweb.hookspecs import CORE_FORMATS
from dynaweb.plugin import discovery
from dynaweb.plugin.discovery import KIND_HOOKS, KIND_WORDS, Origin, Plugin, PluginStatus, explain, missing_requirements

if TYPE_CHECKING:
    from types import ModuleType

    import pluggy
    from pydantic import BaseModel

    from dynaweb.hookspecs import Kind
    from dynaweb.protocols import PluginContext

    Settings = BaseModel | Mapping[str, Any]
    """An instance of a plugin's config model, or a mapping that is validated as one."""

log = logging.getLogger("dynaweb")

ENV_ALLOW = "DYNAWEB_PLUGINS"
ENV_STRICT = "DYNAWEB_STRICT"

# By name, since listing plugins needs no event class.
EVENT_HOOKS = {
    "RunStart": "dynaweb_run_start",
    "RunEnd": "dynaweb_run_end",
    "Stage": "dynaweb_stage",
    "Progress": "dynaweb_progress",
    "Rollout": "dynaweb_rollout",
    "Update": "dynaweb_update",
    "Evaluation": "dynaweb_eval",
    "Failure": "dynaweb_error",
}


@dataclass(slots=True)
class Plugins:
    """The plugins of this process. Made by `load`."""

    manager: pluggy.PluginManager
    offers: dict[tuple[Kind, str], Plugin]
    others: tuple[PluginStatus, ...]
    strict: bool = False
    _reported: set[str] = field(default_factory=set)

    def names(self, kind: Kind, part: str = "") -> list[str]:
        """Names of one kind (and with one capability) that can be asked for."""
        having = (name for (offered, name), one in self.offers.items() if offered == kind and _has(one, part))
        return sorted(having)

    def find(self, kind: Kind, name: str, *, part: str = "") -> Plugin:
        """The plugin of that kind and name; with `part` it must have that capability.

        Raises `PluginError` when it is there but broken, `MissingError` when it is not there or blocked; the error
        names what there is, the core's own formats included.
        """
        if (plugin := self.offers.get((kind, name))) and _has(plugin, part):
            return plugin
        for status in self.others:
            if status.name == name and status.kind in (kind, "") and status.status != "ok":
                raise _unusable(kind, status)
        # What names a package would have offered, nobody knows when it cannot be loaded.
        unread = [
            f"or it is one of {one.origin}, which cannot be loaded ({one.cause}): install a version that works here"
            for one in self.others
            if one.status == "broken" and not one.kind
        ]
        called = f"no {part or KIND_WORDS[kind]} is called {name!r}"
        known = f"{called}; {hint(name, [*CORE_FORMATS.get(part, ()), *self.names(kind, part)])}"
        raise MissingError("; ".join([known, *unread]))

    def check(self, kind: Kind, name: str, settings: Settings | None = None) -> None:
        """Raise `MissingError` unless everything that the plugin needs with these settings is installed.

        Imports nothing. None = what it needs unless settings say otherwise.
        """
        plugin = self.find(kind, name)
        extra = _extra(plugin, settings)
        missing = missing_requirements(plugin.origin.package, extra) if extra else []
        if missing:
            raise MissingError(_needs(plugin, ", ".join(missing), extra))

    def load_class(self, kind: Kind, name: str, settings: Settings | None = None) -> type:
        """Import the class of a plugin: the first moment at which its heavy code is needed."""
        target = self._class(kind, name, settings, import_module)
        assert target is not None  # `import_module` never gives up
        return target

    def check_class(self, kind: Kind, name: str, settings: Settings | None = None) -> type:
        """`load_class`, and a `PluginError` for a class that lacks what its kind needs, or has it otherwise."""
        from dynaweb.plugin.interface import problems

        cls, plugin = self.load_class(kind, name, settings), self.find(kind, name)
        if wrong := problems(plugin, cls):
            raise _broken(plugin, f"its class {plugin.spec.target} cannot be used: {'; '.join(wrong)}")
        return cls

    def try_class(self, kind: Kind, name: str, settings: Settings | None = None) -> None:
        """Raise what `load_class` would, as far as that can be known without loading a heavy library."""
        self._class(kind, name, settings, discovery.import_light)

    def _class(
        self, kind: Kind, name: str, settings: Settings | None, importing: Callable[[str], ModuleType | None]
    ) -> type | None:
        plugin = self.find(kind, name)
        self.check(kind, name, settings)
        module_name, _, attribute = plugin.spec.target.partition(":")
        try:
            with discovery.prints_to_stderr():
                module = importing(module_name)
        except BaseException as error:
            if discovery.is_user_interrupt(error):
                raise
            lacking = error.name if isinstance(error, ModuleNotFoundError) and plugin.spec.extra else None
            if lacking and lacking.split(".")[0] != module_name.split(".")[0]:
                raise MissingError(_needs(plugin, lacking, _extra(plugin, settings))) from error
            raise _broken(plugin, f"its module {module_name} cannot be imported", error) from error
        if module is None:
            return None
        target = getattr(module, attribute, None)
        if not isinstance(target, type):
            raise _broken(plugin, f"{module_name} has no class {attribute!r}")
        return target

    def create(self, kind: Kind, name: str, settings: Settings, context: PluginContext) -> Any:
        """Build a plugin object: `Class(config, context)`.

        `settings` is an instance of the plugin's config model, or a mapping that is validated as one.
        Errors of dynaweb pass; any other error of the plugin's code becomes a `PluginError` that names its package.
        """
        plugin = self.find(kind, name)
        config = _validated(plugin, settings)
        target = self.load_class(kind, name, config)
        try:
            return target(config, context)
        except DynawebError:
            raise
        except Exception as error:
            raise _broken(plugin, "it could not be built", error) from error

    def notify(self, event: object) -> None:
        """Tell every observer about an event.

        An observer that raises is reported once by name and the run goes on; in strict mode it is a `PluginError`.
        """
        caller = getattr(self.manager.hook, EVENT_HOOKS[type(event).__name__])
        for impl in caller.get_hookimpls():
            try:
                impl.function(event) if impl.argnames else impl.function()
            except StorageError:
                # Rows that the metrics of a stage lack would be lacking in every run that shares the stage.
                raise
            except Exception as error:
                self._observer_failed(impl.plugin_name, error)

    @contextmanager
    def observing(self, *observers: object) -> Iterator[None]:
        """Register objects with hook implementations as observers for the time of a `with` block."""
        for observer in observers:
            self.add_observer(observer)
        try:
            yield
        finally:
            for observer in observers:
                self.manager.unregister(observer)

    def add_observer(self, observer: object, name: str = "") -> None:
        """Register one object with hook implementations. Raises `PluginError` when its hooks do not fit."""
        label = name or f"{type(observer).__name__} at {id(observer):x}"
        try:
            discovery.register(self.manager, observer, label)
        except discovery.SpecError as error:
            raise PluginError(f"observer {label} cannot be used: {error}") from error

    def _observer_failed(self, name: str, error: Exception) -> None:
        message = f"observer {name} failed: {explain(error)}"
        if self.strict:
            raise PluginError(message) from error
        if name in self._reported:
            return
        self._reported.add(name)
        log.warning("%s; the run goes on, and this is said once", message)
        from dynaweb import events

        self.notify(events.Failure(where=f"observer {name}", error=explain(error)))

    def statuses(self) -> list[PluginStatus]:
        """Every plugin with its state, by kind and name, broken and blocked ones last."""
        # A package may offer dozens of plugins, and its metadata is a file to parse.
        lines = lru_cache(discovery.requirements_of)
        rows = []
        for _, plugin in sorted(self.offers.items(), key=lambda item: item[0]):
            package, extra = plugin.origin.package, plugin.spec.extra
            missing = missing_requirements(package, extra, lines(package)) if extra else []
            needs = _needs(plugin, ", ".join(missing), extra) if missing else ""
            rows.append(plugin.status("missing" if missing else "ok", needs))
        return rows + sorted(self.others, key=lambda status: (status.kind, status.name, status.package))

    def manifest(self, used: Iterable[tuple[Kind, str]] = ()) -> tuple[dict[str, str], ...]:
        """Kind, name, package and version of every usable plugin, for the run folder; `used` ones are marked."""
        marked = set(used)
        return tuple(
            {
                "kind": kind,
                "name": name,
                "package": plugin.origin.package,
                "version": plugin.origin.version,
                "used": "yes" if (kind, name) in marked else "no",
            }
            for (kind, name), plugin in sorted(self.offers.items(), key=lambda item: item[0])
        )


def _has(plugin: Plugin, part: str) -> bool:
    return not part or part in plugin.spec.capabilities


def load(
    *,
    block: Iterable[str] = (),
    allow: Iterable[str] | None = None,
    strict: bool | None = None,
    warn: bool = True,
) -> Plugins:
    """Find and load all plugins, and make them the ones that `current()` returns.

    `block` and `allow` hold names of entry points or packages; `allow` and `strict` default to the environment
    variables above. Raises `PluginError` in strict mode when any plugin is broken.
    """
    strict = os.environ.get(ENV_STRICT, "") not in ("", "0") if strict is None else strict
    if allow is None and (listed := os.environ.get(ENV_ALLOW)) is not None:
        allow = (name.strip() for name in listed.split(",") if name.strip())
    blocked, allowed = set(block), None if allow is None else set(allow)

    def refuse(origin: Origin) -> str:
        names = {origin.entry_point, origin.package}
        if names & blocked:
            return f"blocked by -p no:{min(names & blocked)}"
        return f"not listed in {ENV_ALLOW}" if allowed is not None and not names & allowed else ""

    manager = discovery.new_manager()
    usable, others = discovery.load_all(manager, refuse)
    plugins = Plugins(manager, {(one.kind, one.name): one for one in usable}, tuple(others), strict)
    broken = [status for status in others if status.status == "broken"]
    if strict and broken:
        raise PluginError("\n".join(_sentence(status) for status in broken))
    if warn:
        for status in broken:
            log.warning(_sentence(status))
    use(plugins)
    return plugins


_current: Plugins | None = None


def use(plugins: Plugins) -> None:
    """Make these the plugins that `current()` returns."""
    global _current
    _current = plugins


def current() -> Plugins:
    """The plugins of the last `load()`; loads them when there was none."""
    return _current if _current is not None else load()


def notify(event: object) -> None:
    """`current().notify(...)`."""
    current().notify(event)


def parse_blocks(options: Iterable[str]) -> list[str]:
    """Names out of `-p no:NAME` options. Raises `ConfigError` for any other form."""
    names = []
    for option in options:
        prefix, _, name = option.partition(":")
        if prefix != "no" or not name:
            raise ConfigError(f"-p {option}: only `-p no:NAME` is known, NAME being a plugin or a package to leave out")
        names.append(name)
    return names


def _sentence(status: PluginStatus) -> str:
    return f"plugin {status.name!r} of {status.origin} cannot be used: {status.cause}"


def _unusable(kind: Kind, status: PluginStatus) -> DynawebError:
    message = f"{KIND_WORDS[kind]} {status.name!r} ({status.origin}) cannot be used: {status.cause}"
    return MissingError(message) if status.status == "blocked" else PluginError(message)


def _needs(plugin: Plugin, what: str, extra: str) -> str:
    package = plugin.origin.package
    return f"{plugin.title} needs {what}, which is not installed; run: pip install '{package}[{extra}]'"


def _extra(plugin: Plugin, settings: Settings | None) -> str:
    """The optional dependency group that a plugin needs with these settings."""
    needed = None if settings is None else getattr(_validated(plugin, settings), "needed_extra", None)
    return plugin.spec.extra if needed is None else str(needed)


def _broken(plugin: Plugin, what: str, error: BaseException | None = None) -> PluginError:
    cause = f": {explain(error)}" if error is not None else ""
    return PluginError(f"{plugin.title} ({plugin.origin}): {what}{cause}")


def _validated(plugin: Plugin, settings: Settings) -> BaseModel:
    if isinstance(settings, plugin.spec.config):
        return settings
    from pydantic import ValidationError

    try:
        return plugin.spec.config.model_validate(settings)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise ConfigError(f"settings of {plugin.title}: {'; '.join(problems)}") from error


__all__ = [
    "KIND_HOOKS",
    "KIND_WORDS",
    "Plugin",
    "PluginStatus",
    "Plugins",
    "current",
    "load",
    "missing_requirements",
    "notify",
    "use",
]
