"""A person plays one task of any environment: the page is printed, the terminal gives the actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.rollout.human import HELP, expand, typed_line
from dynaweb.serve.episode import TextEpisode
from dynaweb.web.actions.grammar import parse_action

if TYPE_CHECKING:
    from dynaweb.serve.environment import ServedEnvironment
    from dynaweb.types import Task


@dataclass(frozen=True, slots=True)
class Played:
    """How a game ended: `score` None when it was given up or could not be graded; `dream`: pages were imagined."""

    task: str
    steps: int
    finished: bool
    score: float | None = None
    why: str = ""
    dream: bool = False


async def play(
    served: ServedEnvironment,
    task: Task,
    *,
    max_steps: int,
    seed: int,
    say: Callable[[str], None],
    ask: Callable[[str], str],
) -> Played:
    """Play one task to its end, or until `quit` or the end of the input (`EOFError` of `ask`).

    A line that is no action is asked for again and costs no step.
    """
    episode = TextEpisode(served, max_steps=max_steps)
    try:
        turn = await episode.start(task, seed)
        say(f"{served}\n\nGoal: {turn.task.intent}\n\n{turn.text}")
        while not turn.done:
            line = await typed_line(ask, f"{episode.steps + 1}/{max_steps}> ")
            if line is None or line in ("quit", "exit"):
                return Played(turn.task.id, episode.steps, False, dream=served.dreams)
            if line in ("", "help"):
                say(HELP)
                continue
            reply = expand(line, turn.page)
            action = parse_action(reply, turn.page)
            if isinstance(action, str):
                say(f"! {action}")
                continue
            turn = await episode.reply(reply)
            say(f"\n{'! ' + turn.error if turn.error else turn.text}")
    finally:
        await episode.close()
    verdict = turn.verdict
    why = verdict.why if verdict is not None else ""
    return Played(turn.task.id, episode.steps, True, turn.reward, why, served.dreams)
