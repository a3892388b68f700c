"""Fitting the world model on real transitions, measuring how true it is, and how far its dreams can be trusted.

Only transitions that need a model are learned from (`rules.needs_prediction`). Some sites are held out: nothing of them
is fitted on, whether it comes from exploration or from `wm_fit.data`, and fidelity is measured there, on the steps of
exploration and of the demonstrations, which tell what the expert did next. A question that the other sites hold too
(the very page and action) is left out, for fitted and frozen models alike: all of them answer the same questions.
Demonstrations on the other sites are measured apart, as `seen`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dynaweb import events
from dynaweb.config import agreement
from dynaweb.config.keys import file_key
from dynaweb.data.inspect import site_of as transition_site
from dynaweb.data.store import existing
from dynaweb.errors import ConfigError, MissingError, TrainingError
from dynaweb.pipeline.episodes import save_episodes
from dynaweb.pipeline.fit import MAX_ROWS, EarlyStop, fit
from dynaweb.pipeline.keys import stage_key
from dynaweb.plugin import contracts
from dynaweb.plugin.discovery import library
from dynaweb.protocols import TokenRow
from dynaweb.runs import write_json
from dynaweb.stats import count
from dynaweb.worldmodels.calibration import check_enough
from dynaweb.worldmodels.dynamics import ALL_RULES, PageRules
from dynaweb.worldmodels.fidelity import (
    SEEN,
    Probe,
    estimates,
    grade,
    measure,
    predictions,
    probe_episodes,
    probes_of,
    rules_hold,
    transitions_of,
)
from dynaweb.worldmodels.memory import question
from dynaweb.worldmodels.open_loop import follows
from dynaweb.worldmodels.site_memory import Remembering, SiteMemory

if TYPE_CHECKING:
    from dynaweb.config.keys import Activity
    from dynaweb.pipeline.artifacts import Artifact, LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import TrainableWorldModel, WorldModel
    from dynaweb.runs import Stage
    from dynaweb.stats import Estimate
    from dynaweb.types import Trajectory, Transition
    from dynaweb.worldmodels.calibration import Calibration, Fidelity

FIDELITY = "fidelity.json"
CALIBRATION = "calibration.json"

T = TypeVar("T")


async def fit_world_model(ctx: RunContext, explored: Artifact, demos: Artifact) -> Artifact:
    """Stage `world-model`: weights (unless frozen) and `fidelity.json`: probes, and how often the code's rules held.

    With an automatic horizon also `calibration.json`.
    """

    def material() -> Material:
        return Material.of_episodes(ctx, explored.episodes(), demos.episodes())

    return await _stage(ctx, material, explore=explored, demos=demos)


async def fit_on_store(ctx: RunContext, store: Path) -> Artifact:
    """Stage `world-model` from a transition store alone: no policy, no browser."""
    return await _stage(ctx, lambda: Material.of_store(ctx, store), store=file_key(existing(store).path))


def check_fit(ctx: RunContext) -> None:
    """Raise, before anything is played or trained, what would stop the fit later.

    `MissingError` for stores and packages that are not there, `ConfigError` for settings that contradict each other.
    """
    settings = ctx.recipe.wm_fit
    if settings.data:
        existing(Path(settings.data))
    for name in getattr(ctx.recipe.wm.config, "FILES", ()):
        path = str(getattr(ctx.recipe.wm.config, name))
        if path and not Path(path).is_file():
            raise MissingError(f"there is no file {path}, which wm.{name} names; give another path")
    if settings.lora_rank and trains(ctx):
        library("peft", "lora", what="wm_fit.lora_rank")
    agreement.check_validation(ctx.recipe, ctx.plugins)


async def _stage(ctx: RunContext, material: Callable[[], Material], **upstream: Any) -> Artifact:
    async def body(stage: Stage) -> None:
        data = material()
        if ctx.recipe.dream.horizon == "auto":
            check_enough(len(data.questions.unseen))
        model = ctx.models.load()
        if trains(ctx):
            await _fit(ctx, stage, model, data)
        await _measure(ctx, stage, model, data)

    check_fit(ctx)
    does: list[Activity] = ["world-model"]
    does += ["wm-training"] if trains(ctx) else []
    does += ["calibration"] if ctx.recipe.dream.horizon == "auto" else []
    artifact = await ctx.stage("world-model", stage_key(ctx, *does, **upstream), body, resumable=True)
    ctx.keep(artifact, "world-model")
    return artifact


def trains(ctx: RunContext) -> bool:
    """Whether the chosen world model is fitted: it can be, and the recipe gives it updates."""
    capabilities = ctx.plugins.find("wm", ctx.recipe.wm.name).spec.capabilities
    return "trainable" in capabilities and ctx.recipe.wm_fit.steps > 0


def calibration_of(artifact: Artifact) -> Calibration:
    """The calibration that a stage left. Raises `ConfigError` when it left none."""
    from dynaweb.worldmodels.calibration import Calibration

    if not (artifact.folder / CALIBRATION).exists():
        raise ConfigError('the world model was fitted without dream.horizon = "auto" and has no calibration')
    return Calibration.of_data(artifact.data(CALIBRATION))


def real_transitions(ctx: RunContext, explored: Sequence[Trajectory]) -> list[Transition]:
    """The transitions that a world model may know: exploration and `wm_fit.data`, both without the held-out sites."""
    fitted, held_out = holdout_split(ctx, explored)
    return [*transitions_of(fitted), *_extra(ctx, sites_of(held_out))]


def page_rules(ctx: RunContext, explored: Sequence[Trajectory]) -> PageRules:
    """What code decides in dreams: all rules, or those that exploration does not contradict (`dream.rules`)."""
    measured = ctx.recipe.dream.rules == "measured"
    return PageRules.measured(real_transitions(ctx, explored)) if measured else ALL_RULES


def remembering(ctx: RunContext, world_model: WorldModel, memory: Sequence[Transition] | SiteMemory) -> WorldModel:
    """The world model as dreams ask it: behind a memory of real transitions, where the recipe has one."""
    if ctx.recipe.dream.memory == "none":
        return world_model
    sites = memory if isinstance(memory, SiteMemory) else SiteMemory(memory)
    return Remembering(world_model, sites, deltas=ctx.recipe.dream.memory == "deltas")


def held_out_sites(ctx: RunContext, explored: Sequence[Trajectory]) -> set[str]:
    """The sites of exploration that nothing may be fitted on."""
    return sites_of(holdout_split(ctx, explored)[1])


def holdout_split(ctx: RunContext, explored: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes of exploration to fit on, and those of the sites that `wm_fit.holdout` keeps apart."""
    return split(explored, ctx.recipe.wm_fit.holdout, seed=ctx.seed("holdout"))


def sites_of(episodes: Sequence[Trajectory]) -> set[str]:
    """The sites of episodes."""
    return {episode.task.site_key for episode in episodes}


def split(episodes: Sequence[Trajectory], holdout: float, *, seed: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes to fit on, and those of held-out sites: `holdout` of all sites, one at least; one at least is fitted.

    Sites are whole: no page of a held-out one is in the first part. With a single site nothing can be held out.
    """
    return split_by(episodes, lambda episode: episode.task.site_key, holdout, seed=seed)


def split_by(items: Sequence[T], site: Callable[[T], str], holdout: float, *, seed: int) -> tuple[list[T], list[T]]:
    """`split` for anything that belongs to a site."""
    sites = sorted({site(item) for item in items})
    random.Random(seed).shuffle(sites)
    count = min(max(1, round(holdout * len(sites))), len(sites) - 1) if holdout > 0 else 0
    chosen = set(sites[: max(0, count)])
    return [item for item in items if site(item) not in chosen], [item for item in items if site(item) in chosen]


@dataclass(frozen=True, slots=True)
class Questions:
    """What fidelity is measured on: probes of `unseen` and of `seen` sites, none of which could be fitted on.

    `transitions` are all real steps on unseen sites, for the rules of the code.
    """

    unseen: list[Probe]
    seen: list[Probe]
    transitions: list[Transition]

    @classmethod
    def of(
        cls,
        known: Sequence[Transition],
        fitted: Sequence[Trajectory],
        held_out: Sequence[Trajectory],
        demos: Sequence[Trajectory],
        most: int,
        rules: PageRules = ALL_RULES,
    ) -> Questions:
        """`known` is what may be fitted on: of the episodes `fitted`, and of other data, whose sites are seen too.

        At most `most` questions about `held_out`, about demonstrations on other sites, and about those on seen sites.
        """
        sites = sites_of(fitted) | {transition_site(transition) for transition in known}
        here = [demo for demo in demos if demo.task.site_key in sites]
        away = [demo for demo in demos if demo.task.site_key not in sites]
        asked = probes(modelled(held_out, rules))
        unseen = [*not_fitted(asked, known, most), *not_fitted(probes_of(away, rules), known, most)]
        return cls(unseen, not_fitted(probes_of(here, rules), known, most), transitions_of(held_out))


@dataclass(frozen=True, slots=True)
class Material:
    """What a world model is made from and measured on. `known` is fitted (nothing, for a model that is not), `real` are
    all transitions of those sites, `away` those of the held-out sites that need a model (for early stopping), `walks`
    the whole real episodes there. `memory` is what dreams remember: every real transition of all sites, of which a
    question forgets those of its own episode."""

    known: list[Transition]
    real: list[Transition]
    away: list[Transition]
    questions: Questions
    walks: list[Transition]
    memory: Sequence[Transition] = ()
    rules: PageRules = ALL_RULES
    """What code decides, so that no world model is asked."""

    @property
    def held_out(self) -> set[str]:
        """The sites that questions are about: a model is shown nothing of them."""
        probes = [probe.transition for probe in self.questions.unseen]
        return {transition_site(one) for one in (*self.away, *self.walks, *probes)}

    def world_model(self, ctx: RunContext, model: LoadedModel, *, temperature: float) -> WorldModel:
        """The chosen world model on these weights, with no example of a held-out site, as dreams ask it."""
        world_model = ctx.models.world_model(
            model, temperature=temperature, transitions=lambda: self.real, held_out=self.held_out
        )
        return remembering(ctx, world_model, self.memory)

    @classmethod
    def of_episodes(cls, ctx: RunContext, explored: Sequence[Trajectory], demos: Sequence[Trajectory]) -> Material:
        """Exploration and demonstrations of a run, and the store of `wm_fit.data`."""
        fitted, held_out = holdout_split(ctx, explored)
        real = real_transitions(ctx, explored)
        rules, most = page_rules(ctx, explored), ctx.recipe.wm_fit.fidelity_steps
        known = to_predict(real, rules)
        questions = Questions.of(known, fitted, held_out, demos, most, rules)
        here = {transition_site(transition) for transition in real}
        demonstrated = transitions_of(demo for demo in demos if demo.task.site_key not in here)
        walks = [*demonstrated, *transitions_of(held_out)]
        memory = [*real, *transitions_of(held_out), *transitions_of(demos)]
        away = modelled(held_out, rules)
        return cls(known if trains(ctx) else [], real, away, questions, walks, memory, rules)

    @classmethod
    def of_store(cls, ctx: RunContext, path: Path) -> Material:
        """A transition store alone; its sites are what the data call so, else hosts."""
        holdout = ctx.recipe.wm_fit.holdout
        real, away = split_by(list(existing(path)), transition_site, holdout, seed=ctx.seed("holdout"))
        real = [*real, *_extra(ctx, {transition_site(transition) for transition in away})]
        unseen = not_fitted(probes_in(away), to_predict(real), ctx.recipe.wm_fit.fidelity_steps)
        questions = Questions(unseen, [], away)
        known = to_predict(real) if trains(ctx) else []
        return cls(known, real, to_predict(away), questions, away, [*real, *away])

    @classmethod
    def for_evaluation(cls, ctx: RunContext, path: Path) -> Material:
        """A transition store of which nothing was fitted: all of it may be asked about."""
        items = list(existing(path))
        questions = Questions(probes_in(items)[: ctx.recipe.wm_fit.fidelity_steps], [], items)
        return cls([], [], to_predict(items), questions, items, items)


def probes(transitions: Sequence[Transition]) -> list[Probe]:
    """Questions without an expert's next action."""
    return [Probe(transition) for transition in transitions]


def probes_in(transitions: Sequence[Transition]) -> list[Probe]:
    """Questions among transitions in their order; the next action of the same episode is the one to be possible."""
    following = [*transitions[1:], None]
    return [
        Probe(one, after.action if after is not None and follows(one, after) else None)
        for one, after in zip(transitions, following, strict=False)
        if ALL_RULES.needs_prediction(one.observation, one.action)
    ]


def not_fitted(probes: Sequence[Probe], known: Sequence[Transition], most: int) -> list[Probe]:
    """The questions that were not fitted on, the first `most` of them."""
    fitted = {question(t.observation, t.action) for t in known}
    pairs = [(probe, question(probe.transition.observation, probe.transition.action)) for probe in probes]
    return [probe for probe, key in pairs if key not in fitted][:most]


def modelled(episodes: Sequence[Trajectory], rules: PageRules = ALL_RULES) -> list[Transition]:
    """The transitions of episodes that only a world model can predict."""
    return to_predict(transitions_of(episodes), rules)


def to_predict(transitions: Sequence[Transition], rules: PageRules = ALL_RULES) -> list[Transition]:
    """The transitions that only a world model can predict."""
    return [t for t in transitions if rules.needs_prediction(t.observation, t.action)]


def rows_for(world_model: object, transitions: Sequence[Transition]) -> list[TokenRow]:
    """Supervised rows of a trainable world model."""
    able = cast("TrainableWorldModel", world_model)
    pairs = contracts.pairs("wm", world_model, able.examples(transitions))
    return [TokenRow(prompt=prompt, response_ids=target) for prompt, target in pairs]


def _extra(ctx: RunContext, held_out: Set[str]) -> list[Transition]:
    """The transitions of `wm_fit.data` that are not of held-out sites."""
    data = ctx.recipe.wm_fit.data
    return [item for item in existing(Path(data)) if transition_site(item) not in held_out] if data else []


async def _fit(ctx: RunContext, stage: Stage, model: LoadedModel, material: Material) -> None:
    from dynaweb.pipeline.fit import with_adapters

    settings = ctx.recipe.wm_fit
    plain = ctx.models.world_model(model, temperature=0.0, held_out=material.held_out)
    world_model = remembering(ctx, plain, material.real)
    rows = rows_for(world_model, material.known)
    if not rows:
        raise TrainingError(
            f"the world model has nothing to learn from: none of {count(len(material.real), 'real step')} led anywhere "
            "that code does not know already; explore more (explore.episodes, explore.steps), more at random "
            "(explore.random), or give transitions (wm_fit.data)"
        )
    watch = None
    if settings.validate_every and material.away:
        validation = rows_for(world_model, material.away)[:MAX_ROWS]
        watch = EarlyStop(validation, settings.validate_every, settings.patience, stage.scratch)
    trained = with_adapters(model, settings.lora_rank, seed=ctx.seed("lora"))
    options: dict[str, Any] = {"steps": settings.steps, "batch": settings.batch, "lr": settings.lr}
    await fit(ctx, stage, trained, rows, name="world-model", watch=watch, **options)


async def _measure(ctx: RunContext, stage: Stage, model: LoadedModel, material: Material) -> None:
    questions = material.questions
    world_model = material.world_model(ctx, model, temperature=0.0)
    answers = await predictions(world_model, questions.unseen, seed=ctx.seed("fidelity"))
    unseen = [grade(probe, answer) for probe, answer in zip(questions.unseen, answers, strict=True)]
    save_episodes(stage, probe_episodes(questions.unseen, answers))
    seen = await measure(world_model, questions.seen, seed=ctx.seed("fidelity", "seen"))
    rules = rules_hold(questions.transitions, material.rules)
    write_json(stage.folder / FIDELITY, {"probes": unseen, "seen": seen, "rules": rules})
    apart = {f"{SEEN}{name}": value for name, value in means(seen).items()}
    measures = means(unseen, rules) | apart
    if ctx.recipe.dream.horizon == "auto":
        measures |= await _calibrate(ctx, stage, model, material)
    ctx.tell(events.Update("fidelity", 0, measures))


async def _calibrate(ctx: RunContext, stage: Stage, model: LoadedModel, material: Material) -> dict[str, float]:
    """Calibrate confidence at the temperature of dreams; writes it, and returns its score."""
    calibration = await calibrate_on(
        material.world_model(ctx, model, temperature=ctx.recipe.dream.temperature),
        material.questions.unseen,
        seed=ctx.seed("calibration"),
        fidelity=ctx.recipe.dream.fidelity,
    )
    write_json(stage.folder / CALIBRATION, calibration.data())
    return {"calibration.brier": calibration.brier, "calibration.brier_of_base_rate": calibration.brier_of_base_rate}


async def calibrate_on(
    world_model: Any, questions: Sequence[Probe], *, seed: int, fidelity: Fidelity = "structure"
) -> Calibration:
    """The calibration of a world model on questions that it was not fitted on."""
    from dynaweb.worldmodels.calibration import Case, calibrate, is_sound, last_tokens

    answers = await predictions(world_model, questions, seed=seed)
    cases = [
        Case(
            answer.logprob,
            last_tokens(answer),
            is_sound(grade(probe, answer), fidelity),
            transition_site(probe.transition),
        )
        for probe, answer in zip(questions, answers, strict=True)
        if answer.next_observation is not None and not answer.recalled
    ]
    return calibrate(cases)


def means(probes: Sequence[Mapping[str, float | None]], rules: Sequence[float] = ()) -> dict[str, float]:
    """Mean of each measure over the probes it applies to, `n`, and the share of code-decided steps that came true."""
    values = {name: one.value for name, one in estimates(probes, rules).items() if one.value is not None}
    return {**values, "n": float(len(probes))}


def fidelity_estimates(data: Mapping[str, Any]) -> dict[str, Estimate]:
    """The measures of a `fidelity.json` with their 95 % intervals and n; those of seen sites as `seen_...`."""
    seen = {f"{SEEN}{name}": value for name, value in estimates(data.get("seen", ())).items()}
    return estimates(data["probes"], data.get("rules", ())) | seen
