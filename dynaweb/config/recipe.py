"""A resolved recipe: every setting of a run, checked, frozen, with the origin of each value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynaweb.config.keys import EVERY, PLUGINS, acting, decisive
from dynaweb.config.layers import flatten
from dynaweb.config.sections import (
    Agent,
    Audit,
    Backend,
    Cluster,
    Controls,
    Data,
    Dream,
    EngineChoice,
    Eval,
    Explore,
    JudgeFit,
    Model,
    ObservationSettings,
    Offline,
    Phases,
    Policy,
    Replay,
    Rl,
    Run,
    Section,
    Sft,
    Web,
    WmFit,
)
from dynaweb.errors import ConfigError, hint
from dynaweb.masking import MASK, masked_data

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dynaweb.config.keys import Activity
    from dynaweb.hookspecs import Kind

SECTIONS: Mapping[str, type[Section]] = {
    "run": Run,
    "model": Model,
    "policy": Policy,
    "backend": Backend,
    "web": Web,
    "observation": ObservationSettings,
    "data": Data,
    "sft": Sft,
    "explore": Explore,
    "wm_fit": WmFit,
    "dream": Dream,
    "rl": Rl,
    "offline": Offline,
    "replay": Replay,
    "phases": Phases,
    "judge_fit": JudgeFit,
    "audit": Audit,
    "agent": Agent,
    "eval": Eval,
    "controls": Controls,
    "cluster": Cluster,
}
ORDER = ("run", "model", "wm", "opt", "reward", "env", *(name for name in SECTIONS if name not in ("run", "model")))
"""Sections in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen plugin with its settings. `code` says which code it is (`dynaweb.config.keys`)."""

    kind: Kind
    name: str
    config: BaseModel
    code: str = ""
    engine: EngineChoice = field(default_factory=EngineChoice)
    """What answers for a world model or a judge on the run's own model; not part of the plugin's settings."""

    def data(self) -> dict[str, Any]:
        """The section as plain data: `name`, then the plugin's own settings."""
        engine = {} if self.engine == EngineChoice() else {"engine": self.engine.model_dump(mode="json")}
        return {"name": self.name, **engine, **self.config.model_dump(mode="json")}

    def decisive(self) -> dict[str, Any]:
        """The settings that results depend on (`dynaweb.config.keys`), and the code."""
        return {"name": self.name, **decisive(self.config), "package": self.code}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Every setting of a run. Made by `dynaweb.config.resolve`; attribute names are those of the TOML sections.

    `origins` maps a dotted path to where its value comes from: `default`, `dynaweb.toml:rl.updates`, `--set`, `--seed`.
    """

    name: str
    run: Run
    model: Model
    policy: Policy
    backend: Backend
    wm: Choice
    opt: Choice
    reward: Choice
    env: Choice
    web: Web
    observation: ObservationSettings
    data: Data
    sft: Sft
    explore: Explore
    wm_fit: WmFit
    dream: Dream
    rl: Rl
    offline: Offline
    replay: Replay
    phases: Phases
    judge_fit: JudgeFit
    audit: Audit
    agent: Agent
    eval: Eval
    controls: Controls
    cluster: Cluster
    description: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    secret: frozenset[str] = field(default=frozenset(), compare=False)
    """Dotted paths of the settings that are never written or shown."""
    needs: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Dotted paths of settings that only the user can know and nobody has set, each with an example."""

    def section(self, name: str) -> dict[str, Any]:
        """One section as plain data, with its secrets."""
        value: Section | Choice = getattr(self, name)
        return value.data() if isinstance(value, Choice) else value.model_dump(mode="json")

    def tree(self) -> dict[str, dict[str, Any]]:
        """All sections as plain data, in the order in which they are shown, with `***` for every secret."""
        tree: dict[str, dict[str, Any]] = {name: _hidden(self.section(name), name, self.secret) for name in ORDER}
        return tree

    def flat(self) -> dict[str, Any]:
        """Dotted path and value of every setting, with secrets."""
        return dict(flatten({name: self.section(name) for name in ORDER}))

    def choices(self) -> tuple[Choice, ...]:
        """The chosen plugins: world model, optimizer, judge, environment (engines are found by `engine_of`)."""
        return (self.wm, self.opt, self.reward, self.env)

    def engine_of(self, role: str) -> EngineChoice:
        """The engine of `policy`, `wm` or `reward`."""
        choice: EngineChoice = getattr(self, role).engine
        return choice

    def settings_for(self, *activities: Activity) -> dict[str, Any]:
        """By section, the settings that act on what a stage does, as plain data (`dynaweb.config.keys`).

        A plugin's section counts whole, with its package and version. Raises `ConfigError` for an unknown activity.
        """
        for activity in activities:
            if activity not in EVERY:
                raise ConfigError(f"no stage does {activity!r}; {hint(activity, EVERY)}")
        sections = {name: acting(getattr(self, name), activities) for name in SECTIONS}
        chosen = {name: getattr(self, name).decisive() for name, does in PLUGINS.items() if set(does) & set(activities)}
        return {name: settings for name, settings in (sections | chosen).items() if settings}

    def differences(self, other: Recipe) -> list[str]:
        """One line per setting that differs: `rl.lr: 0.0001 -> 0.001` (this recipe first)."""
        return differences(dict(flatten(self.tree())), dict(flatten(other.tree())))

    def to_toml(self, *, origins: bool = False) -> str:
        """The recipe as TOML; reading it gives the same settings, but for secrets. With `origins`, each line ends
        with its origin."""
        lines = []
        for name, section in self.tree().items():
            lines.append(f"[{name}]")
            for key, value in flatten(section):
                note = f"  # {self.origins.get(f'{name}.{key}', 'default')}" if origins else ""
                lines += [f"{key} = {_toml(value)}{note}"] if value is not None else []
            lines.append("")
        return "\n".join(lines)

    def __str__(self) -> str:
        plugins = " ".join(f"{choice.kind}={choice.name}" for choice in self.choices())
        origins = self.origins
        shown = dict(flatten(self.tree()))
        changed = [(path, value) for path, value in shown.items() if origins.get(path, "default") != "default"]
        lines = [f"  {path} = {_toml(value)}  ({origins[path]})" for path, value in changed]
        return "\n".join([f"Recipe {self.name}: {plugins} model={self.model.path} seed={self.run.seed}", *lines])

    __repr__ = __str__


def _hidden(value: Any, path: str, secret: Collection[str]) -> Any:
    if path in secret:
        return MASK
    if isinstance(value, Mapping):
        return {key: _hidden(inner, f"{path}.{key}", secret) for key, inner in value.items()}
    return masked_data(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per dotted path whose value differs between two flat recipes."""
    return [
        f"{path}: {_toml(old.get(path))} -> {_toml(new.get(path))}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def _toml(value: Any) -> str:
    if value is None:
        return "(unset)"
    if value == {}:
        return "{}"
    from tomli_w import dumps  # only when something is printed

    return dumps({"v": value}).partition("=")[2].strip()
