"""The doctor: what this machine has, and what it lacks: packages, plugins, browser, model, cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dynaweb.errors import DynawebError, MissingError, PluginError

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.config.sections import Web


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor: what was looked at, how it is, and what to do."""

    name: str
    status: Literal["ok", "missing", "note"]
    detail: str


def examine(recipe: str, sets: Iterable[str] = ()) -> list[Check]:
    """Every line of the doctor; the browser that a recipe names is started once."""
    from dynaweb.config import resolve
    from dynaweb.config.sections import Web
    from dynaweb.runs.folder import versions

    try:
        resolved = resolve(recipe, overrides=sets)
    except (MissingError, PluginError):  # of plugins, of which their own lines tell
        resolved = None
    web = Web() if resolved is None else resolved.web
    packages = Check("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions().items()))
    looks = (("browser", partial(_browser, web)), ("tiny model", _model), ("stage cache", _cache))
    return [packages, *_plugins(resolved), *(_checked(name, look) for name, look in looks)]


def _plugins(recipe: Recipe | None) -> Iterator[Check]:
    """What the recipe does not use may lack its optional packages: that is a note."""
    from dynaweb.config.agreement import used_plugins
    from dynaweb.plugin.registry import current

    plugins = current()
    used: set[tuple[str, str]] = set() if recipe is None else set(used_plugins(recipe, plugins))
    for status in plugins.statuses():
        name = f"plugin {status.kind} {status.name}".replace("  ", " ")
        if status.status == "blocked" or (status.status == "missing" and (status.kind, status.name) not in used):
            yield Check(name, "note", status.cause)
        else:
            yield Check(name, "ok" if status.status == "ok" else "missing", status.cause or status.summary)


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except DynawebError as error:
        return Check(name, "missing", str(error))


def _browser(web: Web) -> str:
    from dynaweb.web.chromium.install import find, try_out

    if web.endpoint:
        from dynaweb.web.chromium.pool import check_endpoints

        return ", ".join(f"Chromium {version} at {address}" for address, version in check_endpoints(web).items())
    chromium = find(web.browser)
    return f"Chromium {try_out(chromium)}: {chromium.path} (from {chromium.origin})"


def _model() -> str:
    from importlib import resources

    assets = Path(str(resources.files("dynaweb") / "assets"))
    weights = sorted(assets.rglob("*.safetensors"))
    if not weights:
        raise MissingError(f"no weights under {assets}; install the package again, or use --model NAME")
    return ", ".join(f"{path.relative_to(assets)} {path.stat().st_size / 2**20:.1f} MiB" for path in weights)


def _cache() -> str:
    from dynaweb.runs.atomic import write_text
    from dynaweb.runs.cache import ENV_CACHE, default_root

    root = default_root()
    probe = root / ".doctor"
    try:
        write_text(probe, "writable")
        probe.unlink()
    except OSError as error:
        raise MissingError(f"{root} cannot be written ({error.strerror}); set {ENV_CACHE} to another folder") from error
    return str(root)
