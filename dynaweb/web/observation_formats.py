"""Observation formats: how the agents of a benchmark are shown pages and write actions, by name.

A format is a class that a plugin registers with the hook `dynaweb_formats`. It has any of four parts, as attributes;
the capabilities of its spec name those that it has, so that nothing is imported to list them:

    dialect    a `Dialect`: an observation as text, and back                       `render(page, NAME)`
    grammar    a `Grammar`: an action as text, and back                            `parse_action(reply, page, NAME)`
    view       (raw tree, *, max_nodes) -> `Viewed`: the nodes that are shown      `BrowserPool(view=NAME)`
    prompt     (tokenizer, PromptSettings) -> a `PromptFormat`: the prompt layer     `model.format = NAME`

The core has `compact` (and the view `full` and the prompt layer `chat`); those of benchmarks are in the plugins of
their environments. All look-ups raise `MissingError` with the nearest names for a part that nobody offers, and
`PluginError` for one that is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from dynaweb.config.sections import Section
from dynaweb.errors import PluginError
from dynaweb.hookspecs import CORE_FORMATS, PluginSpec

if TYPE_CHECKING:
    from dynaweb.plugin.registry import Plugins
    from dynaweb.types import Action, Observation

Part = Literal["dialect", "grammar", "view", "prompt"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """An observation as text, and back."""

    lines: Callable[[Observation], Iterable[str]]
    """The lines of a page. No text of the page may begin one."""
    parse: Callable[[str, str], Observation]
    """Text and address (where the text holds none) to the page. Raises `ValueError` naming the line."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """An action as text, and back. Every action can be printed."""

    parse: Callable[[str, Observation], Action]
    """The action of a reply to a page. Raises `dynaweb.web.actions.rules.Refused` and nothing else."""
    format: Callable[[Action, bool], str]
    """The action as `parse` reads it; with False for histories: its target by role and name, without a number."""


def format_spec(name: str, target: str, parts: tuple[Part, ...], summary: str) -> PluginSpec:
    """What a plugin's hook returns for a format: where its class is, and which parts it has."""
    return PluginSpec(name, target, Section, summary, capabilities=frozenset(parts))


def dialect(name: str) -> Dialect:
    """The dialect of a format."""
    return cast("Dialect", part_of(name, "dialect"))


def grammar(name: str) -> Grammar:
    """The grammar of a format."""
    return cast("Grammar", part_of(name, "grammar"))


def names(part: Part) -> tuple[str, ...]:
    """What can be asked for: the names of the core, then those of plugins."""
    from dynaweb.plugin import registry

    return (*CORE_FORMATS[part], *registry.current().names("format", part))


_parts: tuple[Plugins | None, dict[tuple[Part, str], Any]] = (None, {})
"""What was asked for already, of the plugins that are in use: pages are written thousands of times."""


def part_of(name: str, part: Part) -> Any:
    """A part of the format of that name, as its class has it."""
    global _parts
    from dynaweb.plugin import registry

    current = registry.current()
    if _parts[0] is not current:
        _parts = (current, {})
    known = _parts[1]
    if (part, name) not in known:
        current.find("format", name, part=part)
        value = getattr(current.load_class("format", name), part, None)
        if value is None:
            raise PluginError(f"format {name!r} says that it has a {part}, and its class has no attribute of that name")
        known[part, name] = value
    return known[part, name]
