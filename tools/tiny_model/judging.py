"""Labelled episodes for the judge: expert runs, and every way in which a policy can miss.

A label is the environment's own verdict, with one rule on top: an answer that cannot be read on the final page counts
as NO, so that the judge learns to ask for evidence. Near misses change one name, one syllable or one digit.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynaweb.errors import DynawebError
from dynaweb.rollout.agents import RandomPolicy
from dynaweb.types import Action, Observation, Step, Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import Environment, TaskSource

_QUOTED = re.compile(r"'([^']+)'")
_SCRIPTS = ("plan", "plan", "plan", "plan", "cut", "drop", "detour", "loop", "wander", "random")
MAX_STEPS = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """An episode (perhaps with another intent or answer than it was played for) and whether it reaches its goal."""

    trajectory: Trajectory
    success: bool


class Episodes:
    """Plays tasks in all manners; `word` gives new pseudo-words of the same split."""

    def __init__(self, source: TaskSource, environment: Environment, word: Callable[[], str]) -> None:
        self.source = source
        self.environment = environment
        self.word = word
        self.random = RandomPolicy()

    async def verdicts(self, task: Task, sibling: Task, rng: random.Random) -> list[Verdict]:
        """Play `task` once; its verdict, and for a success one or two near misses of it."""
        trajectory = await self._play(task, rng.choice(_SCRIPTS), rng)
        judgement = await self.source.evaluate(self.environment, trajectory)
        success = judgement.score == 1.0 and _evident(trajectory)
        verdicts = [Verdict(trajectory, success)]
        if success:
            verdicts += [Verdict(missed, False) for missed in self._misses(trajectory, sibling, rng)]
        return verdicts

    def _misses(self, trajectory: Trajectory, sibling: Task, rng: random.Random) -> list[Trajectory]:
        makers = [self._other_words, self._other_words]
        if trajectory.answer and trajectory.answer != "N/A":
            makers += [self._other_answer, self._other_answer]
        if _slots(sibling) != _slots(trajectory.task):
            makers.append(lambda one, _: replace(one, task=replace(one.task, intent=sibling.intent)))
        misses = [maker(trajectory, rng) for maker in rng.sample(makers, 2)]
        return [one for one in misses if one is not None][: rng.choice((1, 1, 2))]

    async def _play(self, task: Task, script: str, rng: random.Random) -> Trajectory:
        page = await self.environment.reset(task, rng.randrange(1 << 30))
        expert = self.source.expert(task)
        steps: list[Step] = []
        skipped = rng.randrange(max(1, (task.best_steps or 2) - 1))
        while len(steps) < MAX_STEPS:
            try:
                action = expert.act(page)
            except DynawebError:
                action = Action("stop", text=self._guess(page, rng))
            for done in self._scripted(script, action, page, len(steps), skipped, rng):
                result = await self.environment.step(done)
                steps.append(Step(page, done))
                page = result.observation
                if done.kind == "stop":
                    return _trajectory(task, steps, page, "stop")
        return _trajectory(task, steps, page, "max-steps")

    def _scripted(
        self, script: str, action: Action, page: Observation, at: int, skipped: int, rng: random.Random
    ) -> list[Action]:
        """What is really done where the plan says `action`."""
        chance = self.random.draw(Task("", "'x'", ""), page, [], seed=rng.randrange(1 << 30))
        if script == "cut" and at >= skipped:
            return [Action("stop", text=action.text if rng.random() < 0.5 else self._guess(page, rng))]
        if script == "drop" and at == skipped and action.kind != "stop":
            return []
        if script == "detour" and at == skipped and chance.kind == "click":
            return [chance, Action("go_back")] if rng.random() < 0.6 else [chance]
        if script == "loop" and action.kind != "stop" and rng.random() < 0.5:
            return [action, *([action] * rng.randrange(1, 3) if action.kind != "click" else [])]
        if script == "wander" and action.kind == "stop":
            return [chance, Action("stop", text=action.text)]
        if script == "random":
            return [chance] if at < 1 + skipped else [Action("stop", text=self._guess(page, rng))]
        return [action]

    def _guess(self, page: Observation, rng: random.Random) -> str:
        names = [node.name for node in page.nodes if 0 < len(node.name) < 40]
        values = [name.partition(": ")[2] or name for name in names]
        return rng.choice((rng.choice(values) if values else "", "", "N/A"))

    def _other_words(self, trajectory: Trajectory, rng: random.Random) -> Trajectory | None:
        quoted = _QUOTED.findall(trajectory.task.intent)
        if not quoted:
            return None
        old = rng.choice(quoted)
        new = self._near(old, trajectory.final, rng)
        if new == old:
            return None
        return replace(trajectory, task=replace(trajectory.task, intent=trajectory.task.intent.replace(old, new)))

    def _other_answer(self, trajectory: Trajectory, rng: random.Random) -> Trajectory | None:
        last = trajectory.steps[-1]
        if last.action is None:
            return None
        answer = rng.choice((self._near(last.action.text, trajectory.final, rng), self._guess(last.observation, rng)))
        if answer.strip().lower() == last.action.text.strip().lower():
            return None
        wrong = replace(last, action=replace(last.action, text=answer))
        return replace(trajectory, steps=(*trajectory.steps[:-1], wrong))

    def _near(self, text: str, page: Observation | None, rng: random.Random) -> str:
        """Another text that is easily taken for this one."""
        digits = [i for i, letter in enumerate(text) if letter.isdigit()]
        if digits and rng.random() < 0.7:
            i = rng.choice(digits)
            return text[:i] + rng.choice("0123456789".replace(text[i], "")) + text[i + 1 :]
        others = [node.name for node in page.nodes if node.name and node.role in ("link", "heading")] if page else []
        if others and rng.random() < 0.35:
            return rng.choice(others)
        words = text.split(" ")
        i = rng.randrange(len(words))
        words[i] = self._near_word(words[i], rng)
        return " ".join(words)

    def _near_word(self, word: str, rng: random.Random) -> str:
        new = self.word()
        if len(word) > 3 and rng.random() < 0.6:
            cut = rng.randrange(2, len(word))
            return word[:cut] + new[:2] if rng.random() < 0.5 else new[:2].capitalize() + word[cut:]
        return new.capitalize() if word[:1].isupper() else new


def _slots(task: Task) -> object:
    return task.meta.get("slots", task.intent)


def _evident(trajectory: Trajectory) -> bool:
    """Whether the answer, if there is one, can be read on the final page; `N/A` needs a page that says `No ...`."""
    answer = trajectory.answer
    if not answer or trajectory.final is None:
        return True
    if answer == "N/A":
        return any(node.name.startswith("No ") for node in trajectory.final.nodes)
    return any(answer in node.name or answer == node.value for node in trajectory.final.nodes)


def _trajectory(task: Task, steps: list[Step], final: Observation, end: str) -> Trajectory:
    return Trajectory("", task, tuple(steps), final, "expert", end)  # type: ignore[arg-type]
