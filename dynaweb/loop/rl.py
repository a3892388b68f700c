"""Reinforcement learning: the Dyna loop, or the same loop on real pages.

Each update plays groups of rollouts (`groups`), lets the judge score them, and takes a gradient step on the policy's
own tokens, beside a behaviour-cloning term on the demonstrations. What the rollouts are worth is the optimizer's
business (`lessons`); groups whose rewards are all equal usually carry no gradient. Everything random derives from
(seed, update), so a run that goes on from the checkpoint of update u repeats what it would have done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import events, returned
from dynaweb.credit import Credit, CriticSpec, wants
from dynaweb.engines.asking import seen as seen_by
from dynaweb.errors import DivergedError, TrainingError
from dynaweb.loop import best
from dynaweb.loop.adapters import with_adapters
from dynaweb.loop.beside import Beside, critic_left
from dynaweb.loop.checks import check_seam, make_optimizer
from dynaweb.loop.curriculum import outcomes_of
from dynaweb.loop.evaluate import SUCCESS, judge_errors, play_greedily, successes, summary
from dynaweb.loop.experts import Experts, by_task, rows_of
from dynaweb.loop.explore import loosened
from dynaweb.loop.groups import Rollouts, measures
from dynaweb.loop.history import History
from dynaweb.loop.ingredients import Ingredients, Mode, rl_key
from dynaweb.loop.lessons import Lesson, Teacher, kept_groups, over_steps
from dynaweb.loop.made import DREAMS, ROLLOUTS
from dynaweb.loop.mismatch import checked_correction
from dynaweb.loop.offline import JUDGED, OfflineRollouts
from dynaweb.loop.places import dreamer_of, place_of, schedule_of
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.refresh import Refresher
from dynaweb.loop.rollout import refuse_total_failure
from dynaweb.loop.rows import dealt, light, step_rows, stored, weighted
from dynaweb.loop.training import count_skipped, new_trainer, resume, updates_kept
from dynaweb.loop.verdicts import judge_all, refuse_silent_judge
from dynaweb.loop.workspace import EPISODES
from dynaweb.protocols import TokenRow
from dynaweb.runs import write_json
from dynaweb.types import Trajectory

if TYPE_CHECKING:
    from dynaweb.backends.torch_backend import TorchTrainer
    from dynaweb.config.sections import Rl
    from dynaweb.loop.workspace import LoadedModel, Made, Workspace
    from dynaweb.runs import Stage

UPDATES = "updates.json"
"""How many updates a finished stage did, how many were planned, and how many optimizer steps were skipped."""


class OutOfTime(asyncio.CancelledError):
    """The time budget ended the updates. The stage stays unfinished, as after Ctrl-C, and a later run goes on."""

    def __init__(self, learner: _Learner, done: int) -> None:
        super().__init__(f"the time budget ended after {done} updates")
        self.learner, self.done = learner, done


async def reinforce(ws: Workspace, given: Ingredients, *, mode: Mode) -> Made:
    """Stage `rl`: the policy after all updates, and the rollouts that it learned from; `UPDATES` says how many.

    When the time budget ends it early, what there is becomes a stage under a key of its own, which holds the number of
    updates done; the full key stays free for a run that has the time.
    """
    check_seam(ws)

    async def body(stage: Stage) -> None:
        await _Learner(ws, stage, given, mode).run()

    told = ws.recipe.settings("run.seed", "rl", "dream", "opt", "reward", "env")
    try:
        made = await ws.stage("rl", rl_key(ws, given, mode), body, settings=told, resumable=True)
    except OutOfTime as stop:
        early, spent = stop, ws.meter.cost()

        async def cut(stage: Stage) -> None:
            ws.meter.earlier = spent
            early.learner.finish(stage, early.done)

        made = await ws.stage("rl", rl_key(ws, given, mode, done=early.done), cut, settings=told)
    main = mode == ws.recipe.rl.mode
    played = DREAMS if ws.dreams else ROLLOUTS
    ws.keep(made, "dynaweb" if main else mode, episodes_as=played if main else f"{played}-{mode}")
    best.show(ws, made, "dynaweb" if main else mode)
    return made


class _Learner:
    """One RL stage in progress."""

    def __init__(self, ws: Workspace, stage: Stage, given: Ingredients, mode: Mode) -> None:
        self.ws, self.stage, self.given, self.mode = ws, stage, given, mode
        self.rl: Rl = ws.recipe.rl
        self.model = with_adapters(ws.load(given.sft.model), self.rl.lora_rank, seed=ws.seed("lora", "rl"))
        self.engine = ws.engine(self.model)
        self.judge = ws.judge(self.engine, self.model.format)
        experts = by_task(given.experts.episodes())
        self.bc_rows = rows_of(
            [e for found in by_task(given.demos.episodes()).values() for e in found], self.model.format
        )
        dreamer = dreamer_of(ws, given)
        self.place = place_of(ws, given, dreamer)
        self.refresher = _refresher(ws, given, dreamer)
        self.optimizer = make_optimizer(ws)
        self.wants = wants(self.optimizer)
        shown = [found[0].task for found in experts.values()]
        self.schedule = schedule_of(ws, given, shown)
        self.rollouts = self._rollouts(experts)
        critic = self.wants.critic if mode == "policy" else None
        self.trainer = self._trainer(self.model, None if critic is None else (ws.load(given.sft.model).model, critic))
        left = critic_left(given.phase.before)
        if left is not None and critic is not None:
            self.trainer.load_critic(left)
        reference = self._trainer(ws.load(given.sft.model)) if self._needs_reference() else None
        self.teacher = Teacher(self.rl, self.optimizer, self.trainer, reference, self._cap())
        self.history = History()
        self.beside = Beside(ws, given.phase, self.judge, self.name, replays=mode == "policy")

    def _rollouts(self, experts: Experts) -> Rollouts | OfflineRollouts:
        ws, rl = self.ws, self.rl
        if self.given.recorded is not None:
            pool, seed = self.given.recorded.episodes(), ws.seed("offline", self.given.phase.number)
            return OfflineRollouts(pool, self.judge, rl.tasks * rl.n, seed, self.stage.scratch / JUDGED)
        return Rollouts(
            rl,
            ws.recipe.run.seed if self.given.phase.number == 1 else ws.seed("phase", self.given.phase.number),
            self._player(),
            self.judge,
            self.place,
            ws.lockstep,
            experts if rl.expert_share > 0 else {},
            ws.recipe.dream.one_world,
            ws.recipe.dream.lacking == "ungraded",
        )

    def _cap(self) -> float:
        """Of the importance weights between engine and trainer.

        None for recorded rollouts: an earlier policy drew them, so their probabilities say nothing of the engine.
        """
        return 0.0 if self.given.recorded is not None else checked_correction(self.engine, self.rl.temperature)

    def _player(self) -> ModelPolicy:
        rl = self.rl
        return ModelPolicy(self.engine, self.model.format, temperature=rl.temperature, max_new_tokens=rl.max_new_tokens)

    def _needs_reference(self) -> bool:
        """Whether the policy is kept as it starts, to pull towards it, to weigh experts with, or to measure from."""
        rl, want = self.rl, self.wants
        experts = rl.expert_share > 0 and rl.expert_ratio == "sft"
        asked = want.reference_in_loss or want.reference_in_credit or experts or rl.ref_kl_rows > 0
        return self.mode == "policy" and asked

    def _trainer(self, model: LoadedModel, critic: tuple[Any, CriticSpec] | None = None) -> TorchTrainer:
        return new_trainer(
            self.ws,
            model,
            name="rl",
            lr=self.rl.lr,
            total_steps=self.rl.updates * self._per_update,
            warmup=self.rl.warmup * self._per_update,
            max_grad_norm=self.rl.max_grad_norm,
            critic=critic,
        )

    @property
    def _per_update(self) -> int:
        """Optimizer steps of one update."""
        return self.rl.epochs * self.rl.minibatches

    async def run(self) -> None:
        """All updates that are left, with checkpoints; then the weights and the rollouts into the stage's folder."""
        resumed = resume(self.trainer, self.stage.scratch)
        first = done = self._steps_done()
        if resumed:
            self.history = History.load(self.stage.scratch, updates=first)
            self.beside.load(self.stage.scratch, first)
            if self.refresher is not None:
                self.refresher.load(self.stage.scratch, first)
            self.beside.refuse_alarm(lambda: None)  # the state that it would save was just read
        advance = self.ws.progress(self.name, self.rl.updates, "updates", done=first)
        try:
            for update in range(first, self.rl.updates):
                await self._guarded_update(update)
                if self.rl.validate_every > 0 and (update + 1) % self.rl.validate_every == 0:
                    await self._validate(update)
                await self.beside.after(update, partial(stored, self._file(update)), self.history.rewards)
                if self.refresher is not None:
                    await self.refresher.after(update + 1, loosened(self.ws, self.engine, self.model.format))
                done = update + 1
                advance(reward=self.history.rewards[-1])
                if done % self.rl.checkpoint_every == 0 and done < self.rl.updates:
                    self._checkpoint()
                self.beside.refuse_alarm(self._checkpoint)
                await self.ws.breathe()
                if self.ws.out_of_time and done < self.rl.updates:
                    raise OutOfTime(self, done)
        except asyncio.CancelledError:
            # A half-done update (a validation still missing) is not saved: it is repeated.
            if done > first and done == self._steps_done():
                self._checkpoint()
            raise
        self.finish(self.stage, done)

    def finish(self, stage: Stage, done: int) -> None:
        """Write weights, rollouts and the number of updates into the folder of a stage.

        Raises `TrainingError` when there was not one sound update.
        """
        skipped = count_skipped(self.ws, self.trainer, self.name)
        self.model.save(stage.folder)
        if self.refresher is not None:
            self.refresher.finish(stage.folder)
        self.beside.finish(stage.folder, self.trainer.critic, self.trainer.steps)
        best.finish(self.stage.scratch, self.history.marks, done, stage.folder)
        self._collect(stage, done)
        write_json(stage.folder / UPDATES, {"done": done, "planned": self.rl.updates, "skipped": skipped})

    @property
    def name(self) -> str:
        """The stage as its updates are called."""
        return "rl" if self.mode == "policy" else self.mode

    def _steps_done(self) -> int:
        """Whole updates that the trainer's state holds."""
        return self.trainer.steps // self._per_update

    def _checkpoint(self) -> None:
        # The trainer's file is the last to change: what stands beside it is at least as new, and cut back when read.
        self.history.save(self.stage.scratch)
        self.beside.save(self.stage.scratch, self._steps_done())
        if self.refresher is not None:
            self.refresher.save(self.stage.scratch, self._steps_done())
        self.trainer.save(self.stage.scratch, keep=self.rl.keep_checkpoints)
        kept = updates_kept(self.stage.scratch, self._per_update)
        if self.refresher is not None:
            self.refresher.tidy(self.stage.scratch, kept)
        self.beside.tidy(self.stage.scratch, kept)
        best.tidy(self.stage.scratch, self.history.marks, kept)
        self.ws.remember_cost(self.stage)

    async def _guarded_update(self, update: int) -> None:
        """An update; when training cannot go on, the sound weights before it stay behind as a checkpoint."""
        skipped = self.trainer.skipped
        try:
            await self._update(update)
        except DivergedError:
            raise  # the weights are what is not sound
        except TrainingError as error:
            # This update is done again by the next attempt, and so are those of its steps that were skipped.
            self.trainer.steps, self.trainer.skipped = update * self._per_update, skipped
            self.history.cut(update)
            self._checkpoint()
            saved = f", the first trajectory that gave it in {self._offending}" if self._offending.exists() else ""
            raise TrainingError(f"{error}. The last sound weights are in {self.stage.scratch}{saved}") from error

    async def _update(self, update: int) -> None:
        started = time.monotonic()
        rollouts = await self._play(update)
        own = [t for t in rollouts if t.source != "expert"]
        refuse_total_failure(own, f"update {update}")
        refuse_silent_judge(own, f"update {update}")
        played = time.monotonic()
        await self.ws.engines.rest()
        lesson = self._lesson(update, rollouts)
        metrics = {**self.teacher.ref_kl(lesson), **self._steps(lesson), **lesson.credit.metrics}
        metrics |= {**lesson.mismatch, **seen_by(self.engine)}
        self.engine.weights_changed()
        self._save(update, rollouts)
        for trajectory in rollouts:
            self.ws.tell(events.Rollout(self.name, trajectory, update))
        times = {"time.rollout": played - started, "time.update": time.monotonic() - played}
        seen = measures(rollouts, lesson.advantages)
        self.history.rewards.append(seen["reward"])
        self.history.outcomes.append(outcomes_of(rollouts))
        self.ws.tell(events.Update(self.name, update, {**seen, **metrics, **times}))

    async def _play(self, update: int) -> list[Trajectory]:
        """The rollouts of an update; where the optimizer drops groups, others are played for them, so many rounds."""
        plays = self.mode == "policy" and self.given.recorded is None
        size, rounds = self.rl.tasks, self.wants.refills if plays else 0
        tasks = self.schedule.of_update(update, self.history.outcomes)
        rollouts = await self.rollouts.of_update(update, tasks, self.ws.count_steps)
        for turn in range(rounds):
            missing = size - len(kept_groups(self.optimizer, rollouts))
            if missing <= 0:
                break
            more = self.schedule.others(update, turn, [t.task for t in rollouts], missing)
            if not more:
                break
            first = (turn + 1) * size
            rollouts += await self.rollouts.of_update(update, more, self.ws.count_steps, first=first)
        return rollouts

    def _lesson(self, update: int, rollouts: Sequence[Trajectory]) -> Lesson:
        if self.mode == "policy":
            return self.beside.lesson(self.teacher, update, rollouts)
        # Experts too: both ways of learning from the same rollouts see the same expert data.
        kept = [t for t in rollouts if t.reward is not None and t.reward >= SUCCESS]
        given = self.optimizer.advantages([t.reward for t in rollouts], [t.group for t in rollouts])
        advantages = returned.advantages(self.optimizer, given, len(rollouts))
        return Lesson(kept, step_rows(kept), Credit([1.0] * len(kept)), advantages=advantages)

    def _steps(self, lesson: Lesson) -> dict[str, float]:
        """All gradient steps of one update. No rows: the behaviour-cloning term alone."""
        done = []
        for _ in range(self.rl.epochs):
            for part in dealt(len(lesson.trajectories), self.rl.minibatches):
                done.append(self._step(lesson.part(part)))
                self.ws.meter.tokens_trained += int(done[-1]["tokens"])
        return over_steps(done)

    def _step(self, lesson: Lesson) -> dict[str, float]:
        anchor: list[TokenRow] = []
        if self.rl.bc_weight > 0 and self.rl.bc_batch > 0 and self.bc_rows:
            anchor = [self.bc_rows[i] for i in self.trainer.draw(len(self.bc_rows), self.rl.bc_batch)]
        if self.mode == "filtered-bc" and lesson.rows:
            return self.trainer.supervised_step([*lesson.rows, *weighted(lesson.rows, anchor, self.rl.bc_weight)])
        try:
            return self.trainer.policy_step(
                lesson.rows,
                self.optimizer,
                lesson.credit,
                lesson.old,
                supervised=anchor,
                supervised_weight=self.rl.bc_weight,
                ref_logps=lesson.reference,
                **({} if lesson.weights is None else {"token_weights": lesson.weights}),
            )
        finally:
            if self.trainer.offender is not None:
                self._keep_offender(lesson.trajectories[self.trainer.offender])

    @property
    def _offending(self) -> Path:
        """Where the first trajectory goes that gave a loss or gradient that is not finite, prompts and all."""
        folder = self.ws.folder.trajectories if self.ws.folder is not None else self.stage.scratch
        return folder / f"offending-{self.name}.jsonl.gz"

    def _keep_offender(self, trajectory: Trajectory) -> None:
        from dynaweb.data.store import TrajectoryStore

        if not self._offending.exists():
            TrajectoryStore(self._offending).append([trajectory])
            words = (
                f"trajectory {trajectory.id} gives a loss or gradient that is not finite; it is in {self._offending}"
            )
            self.ws.tell(events.Failure(where=self.name, error=words))

    def _save(self, update: int, rollouts: Sequence[Trajectory]) -> None:
        """Keep the rollouts, without their prompts, which follow from the pages. A repeated update replaces them."""
        from dynaweb.data.store import TrajectoryStore

        path = self._file(update)
        path.unlink(missing_ok=True)
        TrajectoryStore(path).append(light(t, update) for t in rollouts if t.source != "expert")

    def _collect(self, stage: Stage, updates: int) -> None:
        """The rollouts of all updates as a stage's episodes."""
        from dynaweb.data.store import TrajectoryStore

        path = stage.folder / EPISODES
        path.unlink(missing_ok=True)
        whole = TrajectoryStore(path)
        for update in range(updates):
            whole.append(TrajectoryStore(self._file(update)))

    def _file(self, update: int) -> Path:
        folder = self.stage.scratch / DREAMS
        folder.mkdir(exist_ok=True)
        return folder / f"{update:06d}.jsonl.gz"

    async def _validate(self, update: int) -> None:
        """Real success and the judge's errors on validation tasks; warn when dreams get better and reality worse."""
        tasks = self.ws.tasks("validation", self.ws.recipe.controls.sft_validation, self.ws.eval_source)
        played = await play_greedily(self.ws, self.engine, self.model.format, tasks, "validation")
        judged = await judge_all(self.judge, played)
        found = {**summary(judged), **judge_errors(judged), "update": float(update)}
        self.ws.tell(events.Evaluation(self.name, "validation", successes(judged), found))
        warning = self.history.validated(found["success"])
        best.keep_if_best(self.stage.scratch, self.history.marks, self.model)
        if warning:
            self.ws.tell(events.Failure(where=f"{self.name} update {update}", error=warning))


def _refresher(ws: Workspace, given: Ingredients, model: LoadedModel | None) -> Refresher | None:
    if not ws.recipe.wm_fit.refresh_every or model is None or given.explored is None:
        return None
    before = given.phase.before
    return Refresher(ws, model, given.explored.episodes(), before.folder if before is not None else None)
