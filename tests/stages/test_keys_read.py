"""Every setting that a stage really reads is in its cache key, or its section says why it need not be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL

import dynaweb
from dynaweb import train
from dynaweb.config import Recipe, keys
from dynaweb.config.keys import Activity
from dynaweb.config.recipe import SECTIONS, Choice
from dynaweb.config.sections import Section
from dynaweb.pipeline import models
from dynaweb.pipeline.artifacts import Artifact, StageKey
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.keys import stage_key
from dynaweb.pipeline.models import answered_elsewhere, roles_of

pytestmark = pytest.mark.timeout(900)  # three small runs in one go

EVERYTHING = (
    *(one for one in SMALL if not one.startswith("wm.")),
    *(
        "explore.episodes=30",
        "dream.horizon=auto",
        "dream.recall=true",
        "wm_fit.validate_every=1",
        "wm_fit.open_loop=2",
    ),
    *("wm_fit.holdout=0.4", "wm_fit.refresh_every=1", "wm_fit.refresh_episodes=1", "wm_fit.refresh_steps=1"),
    *("rl.updates=2", "rl.epochs=2", "rl.validate_every=1", "rl.expert_share=0.5", "rl.sampling=adaptive"),
    *(
        "dream.memory=none",
        "rl.max_staleness=1",
        "rl.stale_ratio=decoupled",
        "rl.ref_kl_rows=2",
        "data.experts=all",
        "audit.every=1",
        "audit.episodes=1",
    ),
    *("controls.sft_steps=[4,5]", "controls.sft_validation=2", "controls.filtered_bc=true"),
    *("agent.kind=lookahead", "agent.candidates=1", "agent.depth=1", "eval.episodes=2", "eval.steps=2"),
)
PHASES = (
    *("env.driver=static", "data.demos=4", "sft.steps=4", "sft.batch=8", "phases.count=2", "rl.updates=1"),
    *("rl.tasks=2", "rl.n=2", "rl.bc_batch=4", "eval.episodes=2", "eval.steps=3", "controls.sft_steps=[]"),
    *("judge_fit.episodes=16", "judge_fit.steps=2", "model.threads=1"),
)
JUDGE = (
    *(one for one in SMALL if not one.startswith("wm.")),
    *("reward.name=orm", "judge_fit.episodes=40", "judge_fit.steps=2", "judge_fit.batch=8", "judge_fit.contrast=true"),
    *("judge_fit.refresh_every=1", "judge_fit.refresh_episodes=8", "judge_fit.refresh_steps=1", "data.practice=new"),
    *("rl.updates=2", "rl.validate_every=1", "rl.results_of=best", "controls.sft_steps=[]", "eval.episodes=2"),
)
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "judge": ("dynaweb", JUDGE),
    "smoke": ("smoke", ("env.task_settings.driver=static", "dream.memory=deltas")),
    "everything": ("dynaweb", EVERYTHING),
    "phases": ("webrl", PHASES),
}

LOADS = "weights are loaded for any judge: one that does not know their tokens is refused, and nothing else"
SCRIPTED = "scripted experts ask no model: episodes do not meet in its batches"
ANYWAY: Mapping[tuple[str, str], str] = {
    **{(stage, "reward"): LOADS for stage in ("sft", "longer-sft", "explore", "graded", "judge-fit", "world-model")},
    **{(stage, "reward"): LOADS for stage in ("drift", "eval")},
    ("demos", "web.contexts"): SCRIPTED,
    ("experts", "web.contexts"): SCRIPTED,
    ("eval", "controls.sft_validation"): "the stage holds its number of episodes",
    ("rl", "phases.generator"): "whoever makes the tasks of later phases is asked for before the first",
    ("world-model", "dream.horizon"): "`auto` is what the activity `calibration` stands for",
}
"""What a stage reads and its result cannot depend on, with the reason."""
SWITCHES: Mapping[str, Activity] = {
    "audit.every": "audit",
    "judge_fit.refresh_every": "judge-refresh",
    "replay.capacity": "replay",
    "rl.max_staleness": "run-ahead",
    "rl.validate_every": "validation",
    "wm_fit.refresh_every": "refresh",
    "opt": "policy-gradient",
}
"""What is read to see whether, or what would be if, a stage did something: where it does not, the key says so."""


@dataclass
class Reads:
    """What the stages of runs have read, and of what their keys were made."""

    recipe: Recipe | None = None
    stage: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    """By key: the stage, and the settings that it read."""
    made: dict[str, tuple[Recipe, tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    """By key: the recipe, what the stage does, and what it is made from."""
    pending: set[str] = field(default_factory=set)
    """What was read since the last stage ended: on the way to the next one."""
    muted: int = 0

    def note(self, setting: str) -> None:
        if not self.muted:
            self.pending.add(setting)

    def covered(self, key: str) -> set[str]:
        """The settings in a key, and in the keys of what the stage is made from."""
        recipe, does, made_from = self.made[key]
        found = set()
        for section, settings in recipe.settings_for(*does).items():
            found |= {section} if section in keys.PLUGINS else {f"{section}.{name}" for name in settings}
        found |= {"env"} if set(does) & set(keys.TASKS) else set()
        sources = [value.key if isinstance(value, Artifact) else str(value) for value in made_from.values()]
        for source in {known for known in self.made for text in sources if known in text}:
            found |= self.covered(source)
        return found

    def forgotten(self) -> set[tuple[str, str]]:
        """Stage and setting, where one was read and is in no key."""
        return {
            (stage, setting)
            for key, (stage, settings) in self.stage.items()
            for setting in settings - self.covered(key)
            if (stage, setting) not in ANYWAY and not _explained(setting)
            if setting not in SWITCHES or SWITCHES[setting] in self.made[key][1]
        }


def _explained(setting: str) -> bool:
    """Whether the section itself says why no key holds the setting."""
    section, _, name = setting.partition(".")
    return section in SECTIONS and any(
        isinstance(said, keys.NotKeyed) for said in SECTIONS[section].model_fields[name].metadata
    )


class Recorded:
    """A section whose settings are noted when they are read."""

    def __init__(self, name: str, section: Section, reads: Reads) -> None:
        self._name, self._section, self._reads = name, section, reads

    def __getattr__(self, name: str) -> Any:
        fields = type(self._section).model_fields
        derived = getattr(type(self._section), name, None)
        if isinstance(derived, property) and derived.fget is not None:
            return derived.fget(self)
        for one in [name] if name in fields else fields:
            self._reads.note(f"{self._name}.{one}")
        return getattr(self._section, name)


class RecordedChoice:
    """A chosen plugin; its section counts whole."""

    def __init__(self, name: str, choice: Choice, reads: Reads) -> None:
        self._name, self._choice, self._reads = name, choice, reads

    def __getattr__(self, name: str) -> Any:
        self._reads.note(self._name)
        return getattr(self._choice, name)


class RecordedRecipe:
    """A recipe that hands out recorded sections."""

    def __init__(self, recipe: Recipe, reads: Reads) -> None:
        self.real, self._reads = recipe, reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if isinstance(value, Section):
            return Recorded(name, value, self._reads)
        return RecordedChoice(name, value, self._reads) if isinstance(value, Choice) else value

    def engine_of(self, role: str) -> Any:
        self._reads.note("policy.engine" if role == "policy" else role)
        return self.real.engine_of(role)


def recording(reads: Reads, patch: pytest.MonkeyPatch) -> None:
    """From now on runs note what their stages read."""
    init, stage = RunContext.__init__, RunContext.stage

    def begin(self: RunContext, recipe: Recipe, *rest: Any, **more: Any) -> None:
        reads.recipe = recipe
        init(self, RecordedRecipe(recipe, reads), *rest, **more)  # type: ignore[arg-type]

    async def staged(self: RunContext, name: str, key: StageKey, *rest: Any, **more: Any) -> Artifact:
        made = await stage(self, name, key, *rest, **more)
        reads.stage.setdefault(key.text, (name, set()))[1].update(reads.pending)
        reads.pending.clear()
        return made

    def keyed(ctx: RunContext, *does: Any, **made_from: Any) -> StageKey:
        reads.muted += 1
        try:
            key = stage_key(ctx, *does, **made_from)
        finally:
            reads.muted -= 1
        assert reads.recipe is not None
        reads.made[key.text] = (reads.recipe, does, made_from)
        return key

    def afresh(make: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            reads.pending.clear()
            return make(*arguments)

        return called

    # They say in which order calls are made and how much of a GPU engines take, not what these answer.
    patch.setattr(models, "answered_elsewhere", lambda recipe, plugins: answered_elsewhere(recipe.real, plugins))
    patch.setattr(models, "roles_of", lambda recipe, choice: roles_of(recipe.real, choice))
    patch.setattr(RunContext, "__init__", begin)
    patch.setattr(RunContext, "stage", staged)
    for module in [one for name, one in sys.modules.items() if name.startswith("dynaweb.")]:
        if getattr(module, "stage_key", None) is stage_key:
            patch.setattr(module, "stage_key", keyed)
    patch.setattr(train, "STAGES", tuple(replace(spec, make=afresh(spec.make)) for spec in train.STAGES))
    patch.setattr(train, "evaluated", afresh(train.evaluated))


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reads]:
    """What the stages of all runs read."""
    found = Reads()
    folder: Path = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(folder / "cache"))
        recording(found, patch)
        for name, (recipe, overrides) in RUNS.items():
            dynaweb.run(recipe, overrides=overrides, out=folder / name)
    yield found


def test_a_stage_reads_no_setting_that_is_in_no_key(reads: Reads) -> None:
    assert not sorted(reads.forgotten())


def test_every_kind_of_stage_was_recorded(reads: Reads) -> None:
    """With everything that stages do only where a recipe asks for it."""
    # A run evaluates no policy behind a server; `test_evaluate_server` does.
    assert {activity for _, does, _ in reads.made.values() for activity in does} == set(keys.EVERY) - {"eval-server"}
    assert {name for name, _ in reads.stage.values()} >= {
        *("demos", "experts", "sft", "longer-sft", "graded", "judge-fit", "explore", "world-model", "drift"),
        *("rl", "filtered-bc", "curriculum", "eval", "judge-audit"),
    }


def test_a_declaration_that_is_taken_away_is_missed(reads: Reads) -> None:
    """Each of those whose setting some stage read, by its name."""
    activities_of = keys.activities_of
    fields = [(section, name) for section, model in SECTIONS.items() for name in model.model_fields]
    declared = [(section, name) for section, name in fields if activities_of(SECTIONS[section], name)]
    read = {setting for _, names in reads.stage.values() for setting in names}
    missed = set()
    for section, name in declared:
        gone = (SECTIONS[section], name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keys, "activities_of", lambda *at, gone=gone: () if at == gone else activities_of(*at))
            missed |= {setting for _, setting in reads.forgotten() if setting == f"{section}.{name}"}
    assert missed == {f"{section}.{name}" for section, name in declared} & read
    assert {"rl.lr", "sft.lr", "wm_fit.lr", "dream.temperature", "explore.steps", "eval.steps"} <= missed
    for section in ("wm", "opt", "reward"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(keys.PLUGINS, section, ())
            assert section in {setting for _, setting in reads.forgotten()}
