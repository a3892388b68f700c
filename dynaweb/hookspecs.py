"""Every hook of dynaweb, one docstring line each. Registration hooks return specs; observer hooks take one event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pluggy

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dynaweb import events

PROJECT = "dynaweb"
Kind = Literal["wm", "opt", "reward", "env", "observer", "engine", "format"]

CORE_FORMATS: dict[str, tuple[str, ...]] = {
    "dialect": ("compact",),
    "grammar": ("compact",),
    "view": ("compact", "full"),
    "prompt": ("auto", "compact", "chat"),
}
"""Names of each part of an observation format that need no plugin."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """What a plugin offers: a name, where its class is (`"module:Class"`, imported only when used), and its settings.

    `extra` names the optional dependency group that the target needs. Where that depends on settings, their class has a
    property `needed_extra`, which goes first. `capabilities` are free words that the core asks for, such as
    `"trainable"`.
    """

    name: str
    target: str
    config: type[BaseModel]
    summary: str
    extra: str = ""
    capabilities: frozenset[str] = frozenset()


@hookspec
def dynaweb_world_models() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the world models of this plugin (`--wm NAME`)."""


@hookspec
def dynaweb_optimizers() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the policy optimizers of this plugin (`--opt NAME`)."""


@hookspec
def dynaweb_rewards() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the reward judges of this plugin (`--reward NAME`)."""


@hookspec
def dynaweb_environments() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the environments of this plugin (`--env NAME`)."""


@hookspec
def dynaweb_observers() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the observers of this plugin (`--observe NAME`): their objects implement the hooks below."""


@hookspec
def dynaweb_engines() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the engines of this plugin (`policy.engine.name`, `wm.engine.name`, `reward.engine.name`)."""


@hookspec
def dynaweb_formats() -> Sequence[PluginSpec]:  # type: ignore[empty-body]
    """Return the observation formats of this plugin: dialects, grammars, views and prompt layers by name.

    `capabilities` hold the parts that a format has: `dialect`, `grammar`, `view`, `prompt` (`model.format`). They are
    attributes of its class, which is never built, so `config` is a model without fields. `format_spec` of
    `dynaweb.web.observation_formats` makes such a spec.
    """


@hookspec
def dynaweb_run_start(event: events.RunStart) -> None:
    """A run begins: its folder, recipe and plugin list are known."""


@hookspec
def dynaweb_run_end(event: events.RunEnd) -> None:
    """A run is over: done, failed or interrupted."""


@hookspec
def dynaweb_stage(event: events.Stage) -> None:
    """A stage starts, is taken from the cache, or ends with its cost."""


@hookspec
def dynaweb_progress(event: events.Progress) -> None:
    """A long job moved on: so many of so many units."""


@hookspec
def dynaweb_rollout(event: events.Rollout) -> None:
    """A trajectory is finished and judged."""


@hookspec
def dynaweb_update(event: events.Update) -> None:
    """One optimizer update is done; carries its metrics."""


@hookspec
def dynaweb_eval(event: events.Evaluation) -> None:
    """An evaluation is done; carries successes per episode."""


@hookspec
def dynaweb_error(event: events.Failure) -> None:
    """Something failed: an episode, an update, a plugin, or the run."""
