"""Walks through the pre-training sites without a browser, and scripted episodes of their tasks with their verdicts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.rollout.agents import RandomPolicy
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Observation, Task

if TYPE_CHECKING:
    from dynaweb.web.session import Session


@dataclass(frozen=True, slots=True)
class Walk:
    """`pages` has one page more than `actions`."""

    pages: tuple[Observation, ...]
    actions: tuple[Action, ...]


class Wanderer:
    """Random walks that prefer unseen links a little less than forms, so that all kinds of pages are met."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.seed = seed
        self.policy = RandomPolicy(back=0.04, enter=0.8)

    async def walk(self, start: str, words: list[str], steps: int, index: int) -> Walk:
        """Up to `steps` random actions from `start`; `words` are texts worth typing. The session keeps its world."""
        await self.session.goto(start)
        pages, actions = [await self.session.observe()], []
        for step in range(steps):
            seed = derive(self.seed, "walk", index, step)
            quoted = " ".join(f"'{word}'" for word in random.Random(seed).sample(words, min(2, len(words))))
            task = Task(id="", intent=quoted or "'x'", start_url=start)
            action = self.policy.draw(task, pages[-1], actions, seed=seed)
            error = await self.session.act(action)
            after = await self.session.observe()
            if error:
                continue
            actions.append(action)
            pages.append(after)
        return Walk(tuple(pages), tuple(actions))
