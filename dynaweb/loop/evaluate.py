"""Evaluation: every arm plays the same held-out tasks, greedily, in the real environment; the judge is audited on them.

An episode that the infrastructure broke is ungraded (None), never a failure. Arms are paired by episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.loop.demos import save_episodes
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.rollout import Episode, Rules, play_all, refuse_total_failure
from dynaweb.loop.verdicts import grading, judge_all, success_of
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.loop.workspace import Made, Workspace
    from dynaweb.runs import Stage

SUCCESS = 0.5
"""A score from here on counts as success."""


async def play_greedily(
    ws: Workspace, engine: TransformersEngine, tasks: Sequence[Task], phase: str
) -> list[Trajectory]:
    """One graded greedy episode per task in the evaluation environment."""
    recipe, source = ws.recipe, ws.eval_source
    policy = ModelPolicy(engine, ws.format, temperature=0.0, max_new_tokens=recipe.rl.max_new_tokens)
    episodes = [Episode(f"{phase}/{i}", task, ws.seed("eval", task.id)) for i, task in enumerate(tasks)]
    played = await play_all(
        episodes,
        source.environment,
        lambda task: policy,
        rules=Rules(recipe.eval.steps),
        slots=recipe.web.contexts,
        lockstep=ws.lockstep,
        finish=grading(source),
        on_done=ws.on_episode(phase, len(episodes)),
    )
    refuse_total_failure(played, f"evaluation {phase}")
    return played


async def evaluate_arm(
    ws: Workspace, arm: str, weights: Path, weights_key: str, *, split: str = "", count: int = 0
) -> Made:
    """Stage `eval`: one arm on `count` tasks of a split (default: those of the recipe)."""
    split = split or ws.recipe.eval.split
    count = count or ws.recipe.eval.episodes

    async def body(stage: Stage) -> None:
        tasks = ws.tasks(split, count, ws.eval_source)
        engine = ws.engine(ws.load(weights))
        played = await play_greedily(ws, engine, tasks, f"eval {arm}")
        save_episodes(stage, played)
        for trajectory in played:
            ws.tell(events.Rollout(f"eval {arm}", trajectory))
        ws.tell(events.Evaluation(arm, split, successes(played), summary(played)))

    key = ws.key(
        "eval.steps",
        "rl.max_new_tokens",
        "web.contexts",
        "data.max_best_steps",
        tasks=ws.task_key,
        env=ws.recipe.eval.env,
        split=[split, count],
        policy=weights_key,
        arm=arm,
    )
    return await ws.stage("eval", key, body, settings={**ws.recipe.settings("run.seed", "eval"), "arm": arm})


async def audit_judge(ws: Workspace, arm: str, evaluated: Made, weights: Path) -> Made:
    """Stage `judge`: what the judge says of an arm's real episodes, beside the environment's verdicts."""

    async def body(stage: Stage) -> None:
        played = evaluated.episodes()
        judged = await judge_all(ws.judge(ws.engine(ws.load(weights))), played)
        save_episodes(stage, judged)
        ws.tell(events.Evaluation(f"judge of {arm}", ws.recipe.eval.split, rewards(judged), judge_errors(judged)))

    key = ws.key("reward", evaluated=evaluated.key, base=ws.base_key)
    made = await ws.stage("judge", key, body, settings=ws.recipe.settings("reward") | {"arm": arm})
    ws.keep(made, f"eval-{arm}")
    return made


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
    """How often the judge accepts real failures and rejects real successes, with the counts behind the shares."""
    pairs = [(success_of(t), t.reward) for t in judged]
    failed = [said >= SUCCESS for real, said in pairs if real is not None and said is not None and real < SUCCESS]
    solved = [said < SUCCESS for real, said in pairs if real is not None and said is not None and real >= SUCCESS]
    return {
        "judge_false_positive": sum(failed) / len(failed) if failed else float("nan"),
        "judge_failed_n": float(len(failed)),
        "judge_false_negative": sum(solved) / len(solved) if solved else float("nan"),
        "judge_solved_n": float(len(solved)),
    }
