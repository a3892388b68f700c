"""Evaluation: every arm plays the same held-out tasks greedily in the real environment; judge and outcomes by site.

An episode that the infrastructure broke is ungraded (None), never a failure. Arms are paired by episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dynaweb import events
from dynaweb.judges.reward import SUCCESS, grading, judge_all, scored_by_model, success_of
from dynaweb.pipeline.artifacts import EPISODES, Artifact
from dynaweb.pipeline.episodes import JOURNAL, play_in_batches, save_episodes
from dynaweb.pipeline.judge import make_judge
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.agents import SERVER, WITHOUT_MODEL, ExpertPlayer, ModelPolicy, RandomPolicy, ServerPolicy
from dynaweb.rollout.episode import Episode, Rules, refuse_total_failure, why_failed
from dynaweb.stats import Estimate, proportion, text_table, wilson
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from dynaweb.config import Recipe
    from dynaweb.config.keys import Activity
    from dynaweb.config.server import Server
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Engine, PromptFormat
    from dynaweb.rollout.agents import Player, PlayerFor
    from dynaweb.runs import Stage

EVAL = "eval"
"""The stage."""
CHECKER = "checker"
"""The reward that is the environment's own verdict."""


Label = Literal["success", "agent", "infrastructure", "ungraded"]


async def evaluate_arm(
    ctx: RunContext,
    arm: str,
    weights: Path | None,
    weights_key: str,
    *,
    split: str = "",
    count: int = 0,
    player: Callable[[], PlayerFor] | None = None,
    by_task: bool = False,
    label: str = "",
) -> Artifact:
    """Stage `eval`: one arm, which people know as `label`, on `count` tasks of a split (default: the recipe's).

    `weights` None is the base model; `player` makes another player than a model. `by_task`: see `play_in_batches`; a
    finished evaluation is then taken up again when the infrastructure broke some of its episodes.
    """
    split = split or ctx.recipe.eval.split
    count = count or ctx.recipe.eval.episodes

    async def body(stage: Stage) -> None:
        tasks = ctx.envs.tasks(split, count, ctx.envs.eval_source)
        chosen = player() if player is not None else _model(ctx, weights)
        job = f"evaluation of {label or arm}"
        played = await play_graded(ctx, chosen, tasks, f"eval {arm}", stage, by_task=by_task, job=job)
        save_episodes(stage, played)
        for trajectory in played:
            ctx.tell(events.Rollout(f"eval {arm}", trajectory))
        ctx.tell(events.Evaluation(arm, split, successes(played), summary(played), label))

    does: list[Activity] = ["eval"]
    if arm.startswith(SERVER):
        does.append("eval-server")
    elif arm not in WITHOUT_MODEL:
        does.append("eval-weights")
    key = stage_key(ctx, *does, split=[split, count], policy=weights_key, arm=arm)
    if by_task and _broken(ctx.cache.find(EVAL, key.text)):
        ctx.take_up_again(EVAL, key.text, {EPISODES: JOURNAL})
    return await ctx.stage(EVAL, key, body, resumable=True)


async def audit_judge(
    ctx: RunContext, arm: str, evaluated: Artifact, weights: Path | None, *, label: str = ""
) -> Artifact:
    """Stage `judge-audit`: what the judge says of an arm's real episodes, beside the environment's verdicts.

    The checker repeats those verdicts, so there is nothing to audit: the episodes are then kept as they are.
    """

    async def body(stage: Stage) -> None:
        played = evaluated.episodes()
        model = ctx.models.load(weights)
        judged = await judge_all(make_judge(ctx, ctx.models.engine(model), model.format), played)
        save_episodes(stage, judged)
        measures, errors = rewards(judged), judge_errors(judged)
        ctx.tell(events.Evaluation(f"{events.JUDGE_OF}{arm}", ctx.recipe.eval.split, measures, errors, label))

    artifact = evaluated
    if audits(ctx):
        # Episodes that the infrastructure broke are other episodes once they have been played again.
        key = stage_key(ctx, "judge-audit", evaluated=evaluated, broken=_broken(evaluated.folder) or None)
        artifact = await ctx.stage("judge-audit", key, body)
    ctx.keep(artifact, f"eval-{arm}")
    return artifact


def audits(ctx: RunContext) -> bool:
    """Whether the judge can differ from the environment's own check."""
    return ctx.recipe.reward.name != CHECKER


async def play_greedily(
    ctx: RunContext, engine: Engine, prompts: PromptFormat, tasks: Sequence[Task], phase: str
) -> list[Trajectory]:
    """One graded greedy episode per task in the evaluation environment."""
    return await play_graded(ctx, greedy(ctx, engine, prompts), tasks, phase)


async def play_graded(
    ctx: RunContext,
    player_for: PlayerFor,
    tasks: Sequence[Task],
    phase: str,
    stage: Stage | None = None,
    *,
    by_task: bool = False,
    job: str = "",
) -> list[Trajectory]:
    """One graded episode per task in the evaluation environment, in batches or `by_task`; a `stage` keeps them.

    `job` is what progress is called (default: `phase`).

    Every player counts in the lockstep of model calls, so one that asks no model must not share it with one that does.
    """
    source = ctx.envs.eval_source
    episodes = [Episode(f"{phase}/{i}", task, ctx.seed("eval", task.id)) for i, task in enumerate(tasks)]
    played = await play_in_batches(
        ctx,
        stage,
        episodes,
        source.environment,
        player_for,
        rules=Rules(ctx.recipe.eval.steps),
        phase=job or phase,
        lockstep=ctx.models.lockstep,
        finish=grading(source),
        evaluation=True,
        by_task=by_task,
    )
    refuse_total_failure(played, f"evaluation {phase}")
    return played


def greedy(ctx: RunContext, engine: Engine, prompts: PromptFormat) -> PlayerFor:
    """A model that plays every task greedily."""
    policy = ModelPolicy(engine, prompts, temperature=0.0, max_new_tokens=ctx.recipe.policy.max_new_tokens)
    return lambda task: policy


def without_weights(name: str, ctx: RunContext) -> Callable[[], PlayerFor]:
    """What makes the players of `expert`, `random` or `server:NAME` in the evaluation environment of a run."""
    if name.startswith(SERVER):
        player = server_policy(ctx, name, temperature=0.0)
        return lambda: lambda task: player

    def experts(task: Task) -> Player:
        return ExpertPlayer(ctx.envs.eval_source.expert(task))

    chance = RandomPolicy()
    return lambda: experts if name == "expert" else lambda task: chance


def server_policy(ctx: RunContext, name: str, *, temperature: float) -> ServerPolicy:
    """The policy `server:NAME` with the prompt of the recipe."""
    from dynaweb.engines.server import OpenAIEngine
    from dynaweb.policy.prompt_formats import policy_prompt_for

    recipe = ctx.recipe
    engine = OpenAIEngine(server_of(recipe, name))
    ctx.models.count(engine)
    words = policy_prompt_for(recipe.model.format, ctx.models.prompt_file)
    return ServerPolicy(
        engine,
        words,
        temperature=temperature,
        max_new_tokens=recipe.policy.max_new_tokens,
        modality=recipe.observation.modality,
        images=ctx.images,
    )


def server_of(recipe: Recipe, policy: str) -> Server:
    """The server of the policy `server:NAME`: `policy.server` with that model."""
    return recipe.policy.server.model_copy(update={"model": policy.removeprefix(SERVER)})


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
    accepted = [(t.reward or 0.0) >= SUCCESS for t in failed if scored_by_model(t)]
    rejected = [(t.reward or 0.0) < SUCCESS for t in solved if scored_by_model(t)]
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
    result = {"success": proportion(successes(judged))}
    for name, count in (("judge_false_positive", "judge_failed_n"), ("judge_false_negative", "judge_solved_n")):
        n = int(errors[count])
        if n:
            result[name] = wilson(round(errors[name] * n), n)
    return result


def label_of(trajectory: Trajectory) -> Label:
    """Who is to blame: the agent, the infrastructure, or nobody because the episode could not be graded."""
    if trajectory.end == "infrastructure":
        return "infrastructure"
    score = success_of(trajectory)
    if score is None:
        return "ungraded"
    return "success" if score >= SUCCESS else "agent"


def blocked(trajectory: Trajectory) -> str:
    """What kept the agent out on its last page (a captcha, a login), where the environment says so."""
    # A `stop` leads nowhere, so its page is the one that the action before it led to.
    steps = trajectory.steps[:-1] if trajectory.end == "stop" else trajectory.steps
    return steps[-1].facts.blocked if steps else ""


def site_name(task: Task) -> str:
    """The site of a task; several are joined."""
    return task.site


def kind_name(task: Task) -> str:
    """What kind of task it is: what its environment says, else its template."""
    return task.kind


@dataclass(frozen=True, slots=True)
class Row:
    """The episodes of one site or kind: graded successes with their interval, and failures by label."""

    name: str
    success: Estimate
    episodes: int
    agent: int
    infrastructure: int
    ungraded: int


def rows_by(episodes: Sequence[Trajectory], key: Callable[[Task], str]) -> list[Row]:
    """One row per name that `key` gives, by name, and a last one `all` where there are several."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in episodes:
        groups.setdefault(key(trajectory.task), []).append(trajectory)
    rows = [_row(name, group) for name, group in sorted(groups.items())]
    return rows if len(rows) < 2 else [*rows, _row("all", episodes)]


def table(rows: Sequence[Row], head: str) -> str:
    """Rows as text: success with its 95 % interval and n, and failures by label."""
    cells = [
        (
            row.name,
            row.success.text(1, scale=100),
            str(row.agent),
            str(row.infrastructure),
            str(row.ungraded),
        )
        for row in rows
    ]
    return text_table((head, "success %  [95 %]", "agent", "infrastructure", "ungraded"), cells)


def failures(episodes: Sequence[Trajectory]) -> list[Mapping[str, Any]]:
    """Every episode that did not succeed, as plain data: task, site, kind, label, how it ended, and why."""
    return [
        {
            "episode": trajectory.id,
            "task": trajectory.task.id,
            "site": site_name(trajectory.task),
            "kind": kind_name(trajectory.task),
            "label": label_of(trajectory),
            "end": trajectory.end,
            "steps": len(trajectory.steps),
            "why": why_failed(trajectory),
            "blocked": blocked(trajectory),
        }
        for trajectory in episodes
        if label_of(trajectory) != "success"
    ]


def _model(ctx: RunContext, weights: Path | None) -> PlayerFor:
    model = ctx.models.load(weights)
    return greedy(ctx, ctx.models.engine(model), model.format)


def _broken(folder: Path | None) -> str:
    """Ids of the episodes that the infrastructure broke in a finished evaluation; '' where there is none."""
    if folder is None:
        return ""
    return " ".join(t.id for t in Artifact("", folder).episodes() if t.end == "infrastructure")


def _row(name: str, episodes: Sequence[Trajectory]) -> Row:
    counts = Counter(map(label_of, episodes))
    scores = [None if label_of(trajectory) == "infrastructure" else success_of(trajectory) for trajectory in episodes]
    return Row(name, proportion(scores), len(episodes), counts["agent"], counts["infrastructure"], counts["ungraded"])
