"""Evaluation: every arm plays the same held-out tasks, greedily, in the real environment; the judge is audited on them.

An episode that the infrastructure broke is ungraded (None), never a failure. Arms are paired by episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.judges.making import judge_key
from dynaweb.loop.demos import save_episodes
from dynaweb.loop.made import EPISODES, Made
from dynaweb.loop.players import WITHOUT_MODEL, ModelPolicy
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.verdicts import SUCCESS as SUCCESS
from dynaweb.loop.verdicts import asked, grading, judge_all, success_of
from dynaweb.loop.waves import JOURNAL, play_in_waves
from dynaweb.report.stats import Estimate, proportion, wilson
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.loop.players import PlayerFor
    from dynaweb.loop.workspace import Workspace
    from dynaweb.policy.formats import PromptFormat
    from dynaweb.runs import Stage

EVAL = "eval"
"""The stage."""
CHECKER = "checker"
"""The reward that is the environment's own verdict."""


def greedy(ws: Workspace, engine: TransformersEngine, prompts: PromptFormat) -> PlayerFor:
    """A model that plays every task greedily."""
    policy = ModelPolicy(engine, prompts, temperature=0.0, max_new_tokens=ws.recipe.rl.max_new_tokens)
    return lambda task: policy


def _model(ws: Workspace, weights: Path | None) -> PlayerFor:
    model = ws.load(weights)
    return greedy(ws, ws.engine(model), model.format)


async def play_greedily(
    ws: Workspace, engine: TransformersEngine, prompts: PromptFormat, tasks: Sequence[Task], phase: str
) -> list[Trajectory]:
    """One graded greedy episode per task in the evaluation environment."""
    return await play_graded(ws, greedy(ws, engine, prompts), tasks, phase)


async def play_graded(
    ws: Workspace,
    player_for: PlayerFor,
    tasks: Sequence[Task],
    phase: str,
    stage: Stage | None = None,
    *,
    by_task: bool = False,
    job: str = "",
) -> list[Trajectory]:
    """One graded episode per task in the evaluation environment, in waves or `by_task`, which `stage`, if given, keeps.

    `job` is what progress is called (default: `phase`).

    Every player counts in the lockstep of model calls, so one that asks no model must not share it with one that does.
    """
    source = ws.eval_source
    episodes = [Episode(f"{phase}/{i}", task, ws.seed("eval", task.id)) for i, task in enumerate(tasks)]
    played = await play_in_waves(
        ws,
        stage,
        episodes,
        source.environment,
        player_for,
        rules=Rules(ws.recipe.eval.steps),
        phase=job or phase,
        lockstep=ws.lockstep,
        finish=grading(source),
        evaluation=True,
        by_task=by_task,
    )
    refuse_total_failure(played, f"evaluation {phase}")
    return played


async def evaluate_arm(
    ws: Workspace,
    arm: str,
    weights: Path | None,
    weights_key: str,
    *,
    split: str = "",
    count: int = 0,
    player: Callable[[], PlayerFor] | None = None,
    by_task: bool = False,
    label: str = "",
) -> Made:
    """Stage `eval`: one arm, which people know as `label`, on `count` tasks of a split (default: the recipe's).

    `weights` None is the base model; `player` makes another player than a model. `by_task`: see `play_in_waves`; a
    finished evaluation is then taken up again when the infrastructure broke some of its episodes.
    """
    split = split or ws.recipe.eval.split
    count = count or ws.recipe.eval.episodes

    async def body(stage: Stage) -> None:
        tasks = ws.tasks(split, count, ws.eval_source)
        chosen = player() if player is not None else _model(ws, weights)
        job = f"evaluation of {label or arm}"
        played = await play_graded(ws, chosen, tasks, f"eval {arm}", stage, by_task=by_task, job=job)
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout(f"eval {arm}", trajectory))
        ws.tell(events.Evaluation(arm, split, successes(played), summary(played), label))

    key = ws.key(
        "policy",
        "eval.steps",
        "rl.max_new_tokens",
        "web.contexts",
        "data.max_best_steps",
        tasks=ws.eval_key,
        model="" if arm in WITHOUT_MODEL else ws.model_key,
        split=[split, count],
        policy=weights_key,
        arm=arm,
    )
    if by_task and _broken(ws.cache.find(EVAL, key)):
        ws.take_up_again(EVAL, key, {EPISODES: JOURNAL})
    settings = {**ws.recipe.settings("run.seed", "eval"), "arm": arm}
    return await ws.stage(EVAL, key, body, settings=settings, resumable=True)


def _broken(folder: Path | None) -> str:
    """Ids of the episodes that the infrastructure broke in a finished evaluation; '' where there is none."""
    if folder is None:
        return ""
    return " ".join(t.id for t in Made("", folder).episodes() if t.end == "infrastructure")


async def audit_judge(ws: Workspace, arm: str, evaluated: Made, weights: Path | None, *, label: str = "") -> Made:
    """Stage `judge`: what the judge says of an arm's real episodes, beside the environment's verdicts.

    The checker repeats those verdicts, so there is nothing to audit: the episodes are then kept as they are.
    """

    async def body(stage: Stage) -> None:
        played = evaluated.episodes()
        model = ws.load(weights)
        judged = await judge_all(ws.judge(ws.engine(model), model.format), played)
        save_episodes(stage, judged)
        found, errors = rewards(judged), judge_errors(judged)
        ws.tell(events.Evaluation(f"{events.JUDGE_OF}{arm}", ws.recipe.eval.split, found, errors, label))

    made = evaluated
    if audits(ws):
        extra: dict[str, Any] = {"judge": judge_key(ws)} if judge_key(ws) else {}
        if broken := _broken(evaluated.folder):
            # They are other episodes once these have been played again.
            extra["broken"] = broken
        key = ws.key("reward", evaluated=evaluated.key, model=ws.model_key, **extra)
        made = await ws.stage("judge", key, body, settings=ws.recipe.settings("reward") | {"arm": arm})
    ws.keep(made, f"eval-{arm}")
    return made


def audits(ws: Workspace) -> bool:
    """Whether the judge can differ from the environment's own check."""
    return ws.recipe.reward.name != CHECKER


def successes(episodes: Sequence[Trajectory]) -> tuple[float | None, ...]:
    """Success by the environment's verdict, in task order."""
    return tuple(success_of(trajectory) for trajectory in episodes)


def rewards(episodes: Sequence[Trajectory]) -> tuple[float | None, ...]:
    """The judge's scores, in task order."""
    return tuple(trajectory.reward for trajectory in episodes)


def summary(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Success rate over graded episodes, mean length, and how episodes ended (shares of all)."""
    graded = [value for value in successes(episodes) if value is not None]
    ends = Counter(trajectory.end for trajectory in episodes)
    count = max(1, len(episodes))
    return {
        "success": sum(graded) / len(graded) if graded else float("nan"),
        "graded": float(len(graded)),
        "steps": sum(len(trajectory.steps) for trajectory in episodes) / count,
        "stop_rate": ends["stop"] / count,
        "invalid_rate": ends["invalid"] / count,
        "infrastructure": float(ends["infrastructure"]),
    }


def judge_errors(judged: Sequence[Trajectory]) -> dict[str, float]:
    """How often the judge accepts real failures and rejects real successes, with the counts behind the shares.

    Only episodes that the judge was asked about count (`judge_failed_n`, `judge_solved_n`): those that did not end by
    themselves are scored 0 by code and would make the judge look better than it is. `judge_failed_all` and
    `judge_solved_all` count all graded episodes.
    """
    graded = [(real, trajectory) for trajectory in judged if (real := success_of(trajectory)) is not None]
    failed = [trajectory for real, trajectory in graded if real < SUCCESS]
    solved = [trajectory for real, trajectory in graded if real >= SUCCESS]
    accepted = [(t.reward or 0.0) >= SUCCESS for t in failed if asked(t)]
    rejected = [(t.reward or 0.0) < SUCCESS for t in solved if asked(t)]
    return {
        "judge_false_positive": sum(accepted) / len(accepted) if accepted else float("nan"),
        "judge_failed_n": float(len(accepted)),
        "judge_failed_all": float(len(failed)),
        "judge_false_negative": sum(rejected) / len(rejected) if rejected else float("nan"),
        "judge_solved_n": float(len(rejected)),
        "judge_solved_all": float(len(solved)),
    }


def estimates(judged: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Success and the judge's errors with their 95 % intervals and n."""
    errors = judge_errors(judged)
    found = {"success": proportion(successes(judged))}
    for name, count in (("judge_false_positive", "judge_failed_n"), ("judge_false_negative", "judge_solved_n")):
        n = int(errors[count])
        if n:
            found[name] = wilson(round(errors[name] * n), n)
    return found
