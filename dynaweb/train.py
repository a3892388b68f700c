"""The Dyna loop of DynaWeb (arXiv 2601.22149), from the first stage of a run to its last gradient step.

Read it from top to bottom. First the stages of a run and their order (`STAGES`), then the RL stage (`reinforce`), and
in it the loop (`learn`):

    tasks -> rollouts (policy x dream or real pages) -> judge -> advantages -> loss and gradient steps
          -> weights to the engine -> replay buffer, audit, world-model refresh, validation -> checkpoint

Each line calls a module that holds one idea whole: `dynaweb.stages` has the stages, `dynaweb.rollout` plays
episodes, `dynaweb.rl` makes batches and keeps checkpoints, `dynaweb.trainer` computes losses and steps. Everything
random derives from (seed, update), so a run that goes on from the checkpoint of update u repeats what it would have
done, bit for bit on one machine.

Rollouts are those of the weights of the update before it or, with `rl.max_staleness`, of somewhat earlier ones: then
the first line of the loop runs ahead of the others (`dynaweb.rl.ahead`). Left out on purpose: more than one policy at a
time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.judges.parts import has_engine
from dynaweb.judges.reward import judge_all, refuse_silent_judge
from dynaweb.pipeline.artifacts import Artifact, Artifacts, Control, LoadedModel, Phase, critic_left
from dynaweb.pipeline.context import make_optimizer
from dynaweb.pipeline.fit import count_skipped, new_trainer, with_adapters
from dynaweb.pipeline.judge import refreshes_judge, to_fit
from dynaweb.protocols import wants
from dynaweb.rl.ahead import RunAhead
from dynaweb.rl.audit import Auditor
from dynaweb.rl.batch import Batch, BatchMaker, contributing_groups, imitated, replayed
from dynaweb.rl.checkpoints import BestWeights, Checkpointed, Checkpoints, History, RolloutLog, keep_best
from dynaweb.rl.importance import correction_of, refuse_stale, staleness
from dynaweb.rl.key import Mode, rl_key, stage_of
from dynaweb.rl.refresh import Refresher
from dynaweb.rl.refresh_judge import JudgeRefresher, judge_of
from dynaweb.rl.replay import ReplayBuffer
from dynaweb.rl.sources import JUDGED, OfflineRollouts, curriculum_of, dream_memory, dreaming_model, rollout_source
from dynaweb.rl.updater import Updater
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.rollout.curriculum import outcomes_of
from dynaweb.rollout.episode import refuse_total_failure
from dynaweb.rollout.group import GroupSampler, Sampler, by_task, measures, rows_of
from dynaweb.runs import write_json
from dynaweb.runs.names import DREAMS, ROLLOUTS, UPDATES
from dynaweb.stages.arms import ArmResult, arms, evaluated, has_filtered, n_arms
from dynaweb.stages.browser_sample import browser_sample, has_sample
from dynaweb.stages.curriculum import chosen_generator, evolve, phase_roles, tell_phase
from dynaweb.stages.demos import all_experts, demos, learns, no_demos, playable, plays_all_experts
from dynaweb.stages.drift import drift
from dynaweb.stages.evaluate import audits, judge_errors, play_greedily, successes, summary
from dynaweb.stages.explore import exploration_policy, explore
from dynaweb.stages.graded import graded, offline
from dynaweb.stages.judge_fit import judge_fit
from dynaweb.stages.preflight import check_seam
from dynaweb.stages.sft import longer_sft, sft
from dynaweb.stages.world_model import fit_world_model

if TYPE_CHECKING:
    from dynaweb.pipeline.context import RunContext
    from dynaweb.pipeline.models import Role
    from dynaweb.protocols import Engine, Judge, PolicyOptimizer
    from dynaweb.rl.ahead import Outcomes
    from dynaweb.rollout.curriculum import Curriculum
    from dynaweb.runs import Stage
    from dynaweb.types import Trajectory

# --- The stages of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: its name, the artifacts that it is made from, and how it is made.

    A stage has one name: that of its artifact, of the folder of its cache entries, in progress and in the docs; with
    `_` between words where it is an identifier, else with `-`.

    To add a stage: a function in a file of `dynaweb.stages` that returns an artifact (None where the recipe does
    without it), and an entry in `STAGES`. Its key is `stage_key(ctx, activity, **sources)` with a new `Activity` of
    `dynaweb.config.keys`; settings get a section whose `MATTERS_TO` names that activity. Whoever uses the artifact
    names it in `needs` (RL: `rl_start`); a stage is handed what it needs and nothing else.
    """

    name: str
    needs: Callable[[RunContext], Sequence[str]]
    make: Callable[[RunContext, Artifacts], Awaitable[Artifact | Control | None]]
    wanted: Callable[[RunContext], bool] = lambda ctx: True
    """Whether a whole run of the recipe has it."""
    cached: Callable[[RunContext], int] = lambda ctx: 1
    """How many entries of the stage cache it goes through, for progress."""


def after(*names: str) -> Callable[[RunContext], Sequence[str]]:
    """The same needs in every recipe."""
    return lambda ctx: names


def explorer(ctx: RunContext) -> Sequence[str]:
    """What exploration needs: the SFT policy, where it is what explores."""
    return ["sft"] if ctx.recipe.explore.player == "policy" else []


def rl_start(ctx: RunContext) -> Sequence[str]:
    """What RL starts from."""
    rollouts = ["explore", "world_model"] if ctx.envs.dreams else ["offline"] if ctx.recipe.offline.episodes else []
    judged = ["graded"] if refreshes_judge(ctx) else []
    return ["demos", "experts", "sft", *judged, "judge_fit", *rollouts]


STAGES = (
    StageSpec("demos", after(), lambda ctx, have: demos(ctx), wanted=learns),
    StageSpec(
        "experts",
        after("demos"),
        lambda ctx, have: all_experts(ctx, have.need("demos")),
        cached=lambda ctx: int(plays_all_experts(ctx)),
    ),
    StageSpec("sft", after("demos"), lambda ctx, have: sft(ctx, have.need("demos"))),
    StageSpec(
        "graded",
        after("sft"),
        lambda ctx, have: graded(ctx, have.need("sft")),
        wanted=lambda ctx: to_fit(ctx) is not None,
    ),
    StageSpec(
        "judge_fit",
        after("demos", "graded"),
        lambda ctx, have: judge_fit(ctx, have.graded, have.need("demos")),
        wanted=lambda ctx: to_fit(ctx) is not None,
    ),
    StageSpec(
        "offline",
        after("sft"),
        lambda ctx, have: offline(ctx, have.need("sft")),
        wanted=lambda ctx: not ctx.envs.dreams and ctx.recipe.offline.episodes > 0,
    ),
    StageSpec(
        "explore",
        explorer,
        lambda ctx, have: explore(ctx, have.need("sft") if explorer(ctx) else None),
        wanted=lambda ctx: ctx.envs.dreams,
    ),
    StageSpec(
        "world_model",
        after("demos", "explore"),
        lambda ctx, have: fit_world_model(ctx, have.need("explore"), have.need("demos")),
        wanted=lambda ctx: ctx.envs.dreams,
    ),
    StageSpec(
        "drift",
        after("demos", "explore", "world_model"),
        lambda ctx, have: drift(ctx, have.need("explore"), have.need("demos"), have.need("world_model")),
        wanted=lambda ctx: ctx.envs.dreams and ctx.recipe.wm_fit.open_loop > 0,
    ),
    StageSpec(
        "rl",
        rl_start,
        lambda ctx, have: in_phases(ctx, have, ctx.recipe.rl.mode),
        wanted=lambda ctx: ctx.recipe.rl.updates > 0,
        cached=lambda ctx: 2 * ctx.recipe.phases.count - 1,  # a curriculum between two phases
    ),
    StageSpec(
        "longer_sft",
        after("experts"),
        lambda ctx, have: longer_sft(ctx, have.need("experts")),
        wanted=lambda ctx: bool(ctx.recipe.controls.sft_steps),
        # One candidate needs no choice, and so no look at validation sites.
        cached=lambda ctx: (n := len(set(ctx.recipe.controls.sft_steps))) + (n if n > 1 else 0),
    ),
    StageSpec("filtered_bc", rl_start, lambda ctx, have: reinforce(ctx, have, mode="filtered-bc"), wanted=has_filtered),
)


async def artifacts_for(ctx: RunContext, *names: str) -> Artifacts:
    """The artifacts of these names, with all that they are made from; nothing else is made."""
    wanted = set(names)
    for spec in reversed(STAGES):
        if spec.name in wanted:
            wanted.update(spec.needs(ctx))
    return await _make(ctx, [spec for spec in STAGES if spec.name in wanted])


async def _make(ctx: RunContext, specs: Sequence[StageSpec]) -> Artifacts:
    have = Artifacts()
    for spec in specs:
        # A stage is handed what it needs and nothing else, so that its key can hold all that it is made from.
        have = have.having(spec.name, await spec.make(ctx, have.only(spec.needs(ctx))))
    return have


NO_DEMOS = StageSpec("demos", after(), lambda ctx, have: no_demos(ctx))
"""The first stage of a run that learns from no demonstration: it needs no scripted expert. Who asks for the artifacts
of a single stage gets demonstrations all the same: world models and judges are fitted and measured on them too."""


def stages_of(ctx: RunContext) -> list[StageSpec]:
    """The stages that a whole run of the recipe has, in order."""
    wanted = [spec for spec in STAGES if spec.wanted(ctx)]
    return wanted if learns(ctx) else [NO_DEMOS, *wanted]


def n_stages(ctx: RunContext) -> int:
    """How many entries of the stage cache a run goes through, as far as its recipe tells."""
    return sum(spec.cached(ctx) for spec in stages_of(ctx)) + n_arms(ctx) * (1 + audits(ctx)) + has_sample(ctx)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run made: its artifacts, and its evaluated arms in the order of the closing table."""

    artifacts: Artifacts
    arms: tuple[ArmResult, ...]
    sample: dict[str, Any] | None = None
    """What a sample of the last arm's episodes gave in Chromium, where they were played without a browser."""


async def run(ctx: RunContext) -> Outcome:
    """All stages of a run up to the evaluations; the report is made from what they leave in the run folder.

    Every arm plays the same held-out episodes. Expert data are equal by default: the demonstrations that SFT saw are
    all that reinforcement learning and the controls get.
    """
    ctx.tell(events.Progress(events.STAGES, 0, n_stages(ctx), "stages"))
    ctx.models.expect(roles_of_learning(ctx))
    have = await _make(ctx, stages_of(ctx))
    results = tuple([await evaluated(ctx, arm) for arm in arms(ctx, have)])
    return Outcome(have, results, await browser_sample(ctx, results[-1]))


def roles_of_learning(ctx: RunContext) -> Iterator[Role]:
    """The roles beside the policy that have models of their own in reinforcement learning."""
    if ctx.recipe.rl.updates:
        if ctx.envs.dreams and ctx.recipe.wm_fit.steps:
            yield "wm"
        if has_engine(ctx.recipe, ctx.plugins):
            yield "reward"


# --- The RL stage ----------------------------------------------------------------------------------------------------


async def in_phases(ctx: RunContext, have: Artifacts, mode: Mode) -> Artifact:
    """RL in `phases.count` stages, each from the policy of the one before; the last one's result.

    From the second phase on, tasks are made of those that the phase before has failed (WebRL, arXiv 2411.02337). When
    the time budget is used up, no further phase begins.
    """
    count = ctx.recipe.phases.count
    if count == 1:
        return await reinforce(ctx, have, mode=mode)
    chosen_generator(ctx, ctx.recipe.phases)
    policy, roles = have.need("sft"), list[dict[str, Any]]()
    before: Artifact | None = None
    for number in range(1, count + 1):
        tasks = await evolve(ctx, have, before, number) if before is not None else None
        phase = Phase(number, before, tasks)
        roles.append(phase_roles(phase, policy))
        tell_phase(ctx, roles)
        before = policy = await reinforce(ctx, replace(have, sft=policy, phase=phase), mode=mode)
        ctx.keep(before, f"phase-{number}", episodes_as=f"phase-{number}")
        if ctx.out_of_time:
            break
    return policy


class OutOfTime(asyncio.CancelledError):
    """The time budget ended the updates. The stage stays unfinished, as after Ctrl-C, and a later run goes on."""

    def __init__(self, done: int, finish: Callable[[Stage, int], None]) -> None:
        super().__init__(f"the time budget ended after {done} updates")
        self.done, self.finish = done, finish


async def reinforce(ctx: RunContext, have: Artifacts, *, mode: Mode) -> Artifact:
    """Stage `rl` or `filtered-bc`, by `mode`: the policy after all updates, and the rollouts that it learned from.

    `UPDATES` says how many updates. When the time budget ends it early, what there is becomes a stage under a key of
    its own, which holds the number of updates done; the full key stays free for a run that has the time.
    """
    check_seam(ctx)

    async def body(stage: Stage) -> None:
        await learn(ctx, stage, have, mode)

    try:
        artifact = await ctx.stage(stage_of(mode), rl_key(ctx, have, mode), body, resumable=True)
    except OutOfTime as stop:
        early, spent = stop, ctx.meter.cost()

        async def cut(stage: Stage) -> None:
            ctx.meter.earlier = spent
            early.finish(stage, early.done)

        artifact = await ctx.stage(stage_of(mode), rl_key(ctx, have, mode, done=early.done), cut)
    main = mode == ctx.recipe.rl.mode
    episodes = DREAMS if ctx.envs.dreams else ROLLOUTS
    ctx.keep(artifact, "dynaweb" if main else mode, episodes_as=episodes if main else f"{episodes}-{mode}")
    keep_best(ctx.folder, artifact, "dynaweb" if main else mode)
    return artifact


async def learn(ctx: RunContext, stage: Stage, have: Artifacts, mode: Mode) -> None:
    """All updates that are left of an RL stage, with checkpoints; then weights and rollouts into the stage's folder.

    `mode` "policy" takes the optimizer's loss; "filtered-bc" imitates the successful ones of the same rollouts.
    """
    rl, phase = ctx.recipe.rl, have.phase
    name = stage_of(mode)

    # The policy, the judge of its rollouts, and the optimizer with what it wants to know besides rewards.
    policy = with_adapters(ctx.models.load(have.need("sft").model), rl.lora_rank, seed=ctx.seed("lora", "rl"))
    engine = ctx.models.engine(policy)
    judge = judge_of(ctx, have, engine, policy.format)
    optimizer = make_optimizer(ctx)
    want = wants(optimizer)

    # Where rollouts come from: dreams of a world model or real pages, the tasks of each update, experts to mix in.
    experts = by_task(have.need("experts").episodes())
    demonstrations = [episode for few in by_task(have.need("demos").episodes()).values() for episode in few]
    world_model = dreaming_model(ctx, have)
    memory = dream_memory(ctx, have)
    source = rollout_source(ctx, have, world_model, memory)
    refresher = Refresher.of(ctx, have, world_model, memory)
    judge_refresher = JudgeRefresher.of(ctx, have, judge)
    curriculum = curriculum_of(ctx, have, [few[0].task for few in experts.values()], playable(have.need("demos")))
    sampler: Sampler
    if have.offline is None:
        prompts = ctx.models.dream_prompts(policy.format) if ctx.envs.dreams else policy.format
        actor = ModelPolicy(
            engine, prompts, temperature=rl.temperature, max_new_tokens=ctx.recipe.policy.max_new_tokens
        )
        seed = ctx.recipe.run.seed if phase.number == 1 else ctx.seed("phase", phase.number)
        sampler = GroupSampler.of(ctx.recipe, seed, actor, judge, source, ctx.models.lockstep, experts, policy.format)
    else:
        seed = ctx.seed("offline", phase.number)
        sampler = OfflineRollouts(have.offline.episodes(), judge, rl.tasks * rl.n, seed, stage.scratch / JUDGED)

    # The trainer, with a critic if the optimizer wants one, and the policy as it starts to measure or weigh against.
    steps = rl.epochs * rl.minibatches
    trainer_on = partial(
        new_trainer,
        ctx,
        name="rl",
        lr=rl.lr,
        total_steps=rl.updates * steps,
        warmup=rl.warmup * steps,
        max_grad_norm=rl.max_grad_norm,
        temperature=rl.temperature,
    )
    critic = want.critic if mode == "policy" else None
    start = have.need("sft").model
    trainer = trainer_on(policy, critic=None if critic is None else (ctx.models.load(start).model, critic))
    inherited = critic_left(phase.before.folder) if phase.before is not None else None
    if inherited is not None and critic is not None:
        trainer.load_critic(inherited)
    weighs_experts = rl.expert_share > 0 and rl.expert_ratio == "sft"
    referenced = want.reference_in_loss or want.reference_in_credit or weighs_experts or rl.ref_kl_rows > 0
    reference = trainer_on(ctx.models.load(start)) if mode == "policy" and referenced else None
    correction = correction_of(rl, engine, want, on_policy=sampler.on_policy)
    batches = BatchMaker(rl, optimizer, trainer, reference, correction)
    updater = Updater(
        rl,
        trainer,
        optimizer,
        ctx.meter,
        rows_of(demonstrations, policy.format),
        imitates=mode == "filtered-bc",
        offending=(ctx.folder.trajectories if ctx.folder is not None else stage.scratch) / f"offending-{name}.jsonl.gz",
        on_offender=lambda words: ctx.tell(events.Failure(where=name, error=words)),
    )

    # Rollouts, which may run ahead of training.
    history = History()

    async def played(update: int, outcomes: Outcomes) -> list[Trajectory]:
        tasks = curriculum.of_update(update, outcomes)
        rollouts = await sampler.of_update(update, tasks, ctx.count_steps)
        if mode == "policy":
            rollouts += await refills(update, rollouts, curriculum, sampler, optimizer, ctx.count_steps)
        own = [t for t in rollouts if t.source != "expert"]
        refuse_total_failure(own, f"update {update}")
        refuse_silent_judge(own, f"update {update}")
        return rollouts

    most = rl.max_staleness if sampler.on_policy else 0
    ahead = RunAhead(played, most=most, last=rl.updates, outcomes=history.outcomes)

    # What is saved with the policy. A run that was killed goes on from the last whole checkpoint.
    log = RolloutLog(stage.scratch)
    replay = ReplayBuffer.of(ctx, phase) if mode == "policy" else None
    audit = Auditor(ctx, judge, name) if ctx.recipe.audit.every else None
    best = BestWeights(stage.scratch, history.marks, decides=rl.validate_every > 0 and rl.results_of == "best")
    partners: list[Checkpointed] = [
        one for one in (history, replay, audit, refresher, judge_refresher, best) if one is not None
    ]
    partners += [ahead] if most else []
    checkpoints = Checkpoints(
        stage.scratch,
        trainer,
        policy,
        partners,
        per_update=steps,
        keep=rl.keep_checkpoints,
        on_save=lambda: ctx.remember_cost(stage),
    )
    first = done = checkpoints.resume()
    if first:
        ctx.meter.resumed()
    if audit is not None:
        audit.refuse_alarm(lambda: None)  # the state that it would save was just read
    engine.weights_version = phase.updates_before + first
    if most:
        ahead.at_once = engine.detach()  # from now on, since the weights were just read
    advance = ctx.progress(name, rl.updates, "updates", done=first)

    def finish(target: Stage, updates: int) -> None:
        history.refuse_unmoved(name)
        skipped = count_skipped(ctx, trainer, name)
        checkpoints.finish(target.folder, updates)
        log.collect(target.folder, updates)
        progress = {"done": updates, "planned": rl.updates, "skipped": skipped}
        write_json(target.folder / UPDATES, {**progress, "phase": phase.number, "before": phase.updates_before})

    def learned(update: int, rollouts: Sequence[Trajectory]) -> tuple[Batch, dict[str, float]]:
        """Advantages -> loss -> gradient steps."""
        if mode == "filtered-bc":
            batch = imitated(optimizer, rollouts)
        elif replay is not None:
            batch = replayed(batches, replay, update, rollouts)
        else:
            batch = batches.make(rollouts)
        return batch, {**batches.ref_kl(batch), **updater.steps(batch), **batch.credit.metrics}

    try:
        if sampler.on_policy and first < rl.updates:
            await ctx.models.start()
        for update in range(first, rl.updates):
            with checkpoints.guard(update, updater.offending):
                # Tasks -> rollouts -> rewards.
                started = time.monotonic()
                rollouts = await ahead.of_update(update)
                if sampler.on_policy:
                    refuse_stale(rollouts, engine.weights_version, most)
                trained_from = time.monotonic()
                if not ahead.at_once:
                    await ctx.models.rest()

                # Rewards -> advantages -> loss -> gradient steps -> weights to the engine.
                batch, metrics = await ahead.compute(partial(learned, update, rollouts))
                history.stepped(metrics)
                metrics |= {**batch.mismatch, **engine.mismatch}
                if most:
                    metrics |= staleness(rollouts, engine.weights_version)
                if ahead.at_once:
                    await engine.take_weights()
                else:
                    engine.weights_changed()
                ahead.advance()

                # What observers and later updates see of it.
                log.save(update, rollouts, batch.advantages)
                for trajectory in rollouts:
                    ctx.tell(events.Rollout(name, trajectory, update))
                times = {"time.rollout": trained_from - started, "time.update": time.monotonic() - trained_from}
                measured = measures(rollouts, batch.advantages)
                history.outcomes.append(outcomes_of(rollouts))
                ctx.tell(events.Update(name, update, {**measured, **metrics, **times}))
                warning = history.played(measured, metrics.get("entropy", math.nan))
                if warning and mode == "policy":
                    ctx.tell(events.Failure(where=f"{name} update {update}", error=warning))
                if replay is not None:
                    replay.add(rollouts)

            # Reality: validation, audit, fresh transitions for the world model.
            if rl.validate_every > 0 and (update + 1) % rl.validate_every == 0:
                warning = history.validated(await validated(ctx, name, update, engine, policy, judge))
                best.keep_if_best(policy)
                if warning:
                    ctx.tell(events.Failure(where=f"{name} update {update}", error=warning))
            if audit is not None and audit.due(update):
                await audit.after(update, log.read(update), history.rewards)
            if refresher is not None and refresher.due(update + 1):
                async with ahead.paused():  # no dream shall see a world model that is just being fitted
                    await refresher.after(update + 1, exploration_policy(ctx, engine, policy.format))
            if judge_refresher is not None and judge_refresher.due(update + 1):
                async with ahead.paused():
                    await judge_refresher.after(update + 1, engine, policy.format)

            done = update + 1
            advance(reward=history.rewards[-1])
            if done % rl.checkpoint_every == 0 and done < rl.updates:
                checkpoints.save()
            if audit is not None:
                audit.refuse_alarm(checkpoints.save)
            await ctx.breathe()
            if ctx.out_of_time and done < rl.updates:
                raise OutOfTime(done, finish)
    except asyncio.CancelledError:
        # A half-done update (a validation still missing) is not saved: it is repeated.
        if done > first and done == checkpoints.updates:
            checkpoints.save()
        raise
    finally:
        await ahead.close()
        ctx.models.learning_judge = None  # what comes later asks the judge as it was fitted
    finish(stage, done)


async def refills(
    update: int,
    rollouts: Sequence[Trajectory],
    curriculum: Curriculum,
    sampler: Sampler,
    optimizer: PolicyOptimizer,
    on_done: Callable[[Trajectory], None],
) -> list[Trajectory]:
    """Groups of further tasks, played in rounds for those that the optimizer drops, where it asks for that (DAPO)."""
    more: list[Trajectory] = []
    for turn in range(wants(optimizer).refills if sampler.on_policy else 0):
        so_far, size = [*rollouts, *more], curriculum.rl.tasks
        missing = size - len(contributing_groups(optimizer, so_far))
        tasks = curriculum.others(update, turn, [t.task for t in so_far], missing) if missing > 0 else []
        if not tasks:
            break
        more += await sampler.of_update(update, tasks, on_done, first=(turn + 1) * size)
    return more


async def validated(
    ctx: RunContext, name: str, update: int, engine: Engine, policy: LoadedModel, judge: Judge
) -> float:
    """Real success of the policy on validation tasks; observers are told of the judge's errors there too."""
    tasks = ctx.envs.tasks("validation", ctx.recipe.controls.sft_validation, ctx.envs.eval_source)
    judged = await judge_all(judge, await play_greedily(ctx, engine, policy.format, tasks, "validation"))
    metrics = {**summary(judged), **judge_errors(judged), "update": float(update)}
    ctx.tell(events.Evaluation(name, "validation", successes(judged), metrics))
    return metrics["success"]
