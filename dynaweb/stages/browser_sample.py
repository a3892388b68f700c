"""A sample of an evaluation that was played without a browser, played again in Chromium: are the pages the same?

The static driver reads the pages of the embedded sites without a browser, twenty times as fast. What it shows and what
actions do there is Chromium's by test; this stage shows it in the very run whose numbers rest on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dynaweb.errors import BrowserError, InfrastructureError, MissingError
from dynaweb.judges.reward import grading, success_of
from dynaweb.pipeline.artifacts import Artifact
from dynaweb.pipeline.episodes import save_episodes
from dynaweb.pipeline.keys import stage_key
from dynaweb.rollout.episode import Episode, Rules, play_all, refuse_total_failure
from dynaweb.runs import write_json
from dynaweb.stages.evaluate import greedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynaweb.pipeline.context import RunContext
    from dynaweb.runs import Stage
    from dynaweb.stages.arms import ArmResult
    from dynaweb.types import Trajectory

log = logging.getLogger(__name__)

BROWSER_SAMPLE = "browser-sample"
"""The stage."""
COMPARED = "browser_sample.json"
"""Its result: see `compared`."""


def has_sample(ctx: RunContext) -> bool:
    """Whether a run plays a sample again: the recipe asks for one, and its evaluation is without a browser."""
    return n_again(ctx) > 0 and ctx.envs.browser_settings is not None


def n_again(ctx: RunContext) -> int:
    """How many episodes are played again."""
    return int(ctx.recipe.eval.browser_share * ctx.recipe.eval.episodes)


async def browser_sample(ctx: RunContext, result: ArmResult) -> dict[str, Any] | None:
    """Stage `browser-sample`: the share `eval.browser_share` of an arm, evenly spread, again in Chromium.

    Returns what `compared` makes of them; None where the recipe asks for none, or no browser starts (it is said why).
    """
    if not has_sample(ctx):
        return None
    spec, first = result.spec, result.evaluated.episodes()

    async def body(stage: Stage) -> None:
        before = spread(first, n_again(ctx))
        source = ctx.envs.browser_source
        if spec.player is not None:
            player = spec.player()
        else:
            model = ctx.models.load(spec.weights)
            player = greedy(ctx, ctx.models.engine(model), model.format)
        phase = f"sample of {spec.label} in Chromium"
        advance = ctx.progress(phase, len(before), "episodes")

        def finished(trajectory: Trajectory) -> None:
            ctx.meter.count(len(trajectory.steps), browser=True, evaluation=True)
            advance()

        again = await play_all(
            [Episode(one.id, one.task, one.seed) for one in before],
            source.environment,
            player,
            rules=Rules(ctx.recipe.eval.steps),
            slots=ctx.recipe.web.contexts,
            lockstep=ctx.models.lockstep,
            finish=grading(source),
            on_done=finished,
        )
        refuse_total_failure(again, phase)
        save_episodes(stage, again)
        write_json(stage.folder / COMPARED, compared(before, again))

    sample = [n_again(ctx), ctx.envs.browser_key]
    key = stage_key(ctx, "eval", evaluated=result.evaluated, arm=spec.name, policy=spec.key, sample=sample)
    try:
        artifact: Artifact = await ctx.stage(BROWSER_SAMPLE, key, body)
    except (MissingError, BrowserError, InfrastructureError) as error:
        log.warning("no episode was played again in Chromium: %s", error)
        return None
    ctx.keep(artifact, BROWSER_SAMPLE)
    facts: dict[str, Any] = artifact.data(COMPARED)
    if facts["same_outcome"] < facts["episodes"]:
        log.warning("%s Others: %s", sample_words(facts), ", ".join(facts["differ"]))
    return facts


def spread(episodes: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """`count` of them, evenly spread; all where there are fewer."""
    count = min(count, len(episodes))
    return [episodes[index * len(episodes) // count] for index in range(count)]


def compared(before: Sequence[Trajectory], again: Sequence[Trajectory]) -> dict[str, Any]:
    """How many episodes were graded in both, and in how many of these outcome and actions are the same.

    `differ` names those with another outcome; `broken` counts those that the infrastructure broke.
    """
    pairs = [
        (one, other)
        for one, other in zip(before, again, strict=True)
        if success_of(one) is not None and success_of(other) is not None
    ]
    differ = [one.id for one, other in pairs if success_of(one) != success_of(other)]
    same = sum([s.action for s in one.steps] == [s.action for s in other.steps] for one, other in pairs)
    return {
        "episodes": len(pairs),
        "same_outcome": len(pairs) - len(differ),
        "same_actions": same,
        "broken": sum(other.end == "infrastructure" for other in again),
        "differ": differ,
    }


def sample_words(facts: dict[str, Any]) -> str:
    """What `compared` counts, in words."""
    n, outcome, actions = (facts[name] for name in ("episodes", "same_outcome", "same_actions"))
    return f"{n} of these episodes were played again in Chromium: {outcome} end alike, {actions} with the same actions."
