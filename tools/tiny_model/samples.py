"""Pages and episodes become training sequences: one function for each job of the base model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dynaweb.policy import tokenizer as marks
from dynaweb.types import Action, Observation, Task, Trajectory
from dynaweb.web.delta import describe, diff, to_text
from dynaweb.web.quoting import quote
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.pages import page_text
from tools.tiny_model.corpus import Sample
from tools.tiny_model.instructions import Instruction, pairs, sequence, single

if TYPE_CHECKING:
    from dynaweb.policy.prompt_formats import CompactFormat
    from tools.tiny_model.judging import Verdict
    from tools.tiny_model.seeking import Decision
    from tools.tiny_model.walks import Walk

VERDICT_WEIGHT = 16
"""A verdict is one token: without a weight it would drown among the scripts and pages."""
DRILL = 8
"""Names listed by one pointing drill."""


class Maker:
    """Turns walks and verdicts into samples; `word` gives new pseudo-words of the pre-training split."""

    def __init__(self, prompts: CompactFormat, word: Callable[[], str], rng: random.Random) -> None:
        self.prompts = prompts
        self.word = word
        self.rng = rng

    def of_walk(self, walk: Walk, goals: Sequence[str] = ()) -> Iterator[Sample]:
        """All samples of a walk: instructions and drills for each page, changes for each step.

        `goals` are goals on the same site: beside a change that a random walk made, they say nothing.
        """
        past: list[Action] = []
        for i, page in enumerate(walk.pages):
            yield from self._of_page(page, past)
            if i < len(walk.actions):
                goal = self.rng.choice(goals) if goals and self.rng.random() < 0.3 else ""
                yield from self._of_step(page, walk.actions[i], walk.pages[i + 1], goal)
                past.append(walk.actions[i])
        yield from self._sequences(walk)

    def of_goals(self, decisions: Sequence[Decision]) -> Iterator[Sample]:
        """Every step of goals that were found by exploring, and the change that it made, with the goal in view."""
        for i, decision in enumerate(decisions):
            yield self.of_decision(decision)
            following = decisions[i + 1] if i + 1 < len(decisions) else None
            if following is not None and following.history == (*decision.history, decision.action):
                yield from self._of_step(decision.page, decision.action, following.page, decision.intent)

    def of_decision(self, decision: Decision) -> Sample:
        """One step of a goal that was found by exploring."""
        prompt = self.prompts.policy_prompt(Task("", decision.intent, ""), decision.page, decision.history)
        return Sample.of("goal", prompt, self.prompts.policy_reply(decision.page, decision.action))

    def of_episode(self, trajectory: Trajectory) -> Iterator[Sample]:
        """The changes of a played episode, with its goal in view."""
        pages = [*(step.observation for step in trajectory.steps[1:]), trajectory.final]
        for step, after in zip(trajectory.steps, pages, strict=True):
            if step.action is not None and after is not None:
                yield from self._of_step(step.observation, step.action, after, trajectory.task.intent)

    def of_verdict(self, verdict: Verdict) -> Sample:
        """One judged episode."""
        prompt = self.prompts.judge_prompt(verdict.trajectory)
        verdict_id = self.prompts.yes_id if verdict.success else self.prompts.no_id
        return Sample("judge", (*prompt.ids, verdict_id), (*([0] * len(prompt)), VERDICT_WEIGHT))

    def _of_page(self, page: Observation, past: list[Action]) -> Iterator[Sample]:
        for _ in range(2):
            instruction = single(page, self.rng, self.word)
            if instruction is not None:
                yield self._act(page, instruction, past)
        if self.rng.random() < 0.7:
            drill = self._drill(page)
            if drill is not None:
                yield drill

    def _act(self, page: Observation, instruction: Instruction, past: list[Action]) -> Sample:
        """The instruction with its own history, or now and then with one that has nothing to do with it."""
        history = list(instruction.history)
        if not history and past and self.rng.random() < 0.3:
            history = past[-self.rng.randrange(1, 4) :]
        prompt = self.prompts.policy_prompt(Task("", instruction.intent, ""), page, history)
        kind = "click" if instruction.action.kind == "click" else "act"
        return Sample.of(kind, prompt, self.prompts.policy_reply(page, instruction.action))

    def _of_step(self, page: Observation, action: Action, after: Observation, goal: str) -> Iterator[Sample]:
        if not needs_prediction(page, action):
            return
        text = f"{describe(page, action, after)}\n{to_text(diff(page, after))}"
        target = self.prompts.world_model_target(text)
        if len(target) <= 200:
            yield Sample.of("change", self.prompts.world_model_prompt(page, action, goal=goal), target)
        if self.rng.random() < 0.25:
            full = self.prompts.world_model_target(page_text(after))
            yield Sample.of("next", self.prompts.full_page_prompt(page, action, goal=goal), full)

    def _sequences(self, walk: Walk) -> Iterator[Sample]:
        for first in range(0, len(walk.actions) - 2, 2):
            count = self.rng.choice((2, 2, 3))
            actions = walk.actions[first : first + count]
            pages = walk.pages[first : first + count + 1]
            instruction = sequence(pages, actions, self.rng)
            if instruction is None or len(actions) < 2:
                continue
            page = pages[len(instruction.history)]
            yield self._act(page, instruction, [])

    def _drill(self, page: Observation) -> Sample | None:
        """Names with their numbers and keys with their values, in random order; only what can be known has weight."""
        names = [node.name for node in page.nodes]
        single_out = [node for node in page.nodes if node.name and names.count(node.name) == 1]
        asked = [(quote(node.name)[:-1], f"' [{node.id}]") for node in single_out]
        keys = [key for _, key, _ in pairs(page)]
        asked += [(f"{key}: ", value) for _, key, value in pairs(page) if keys.count(key) == 1]
        if not asked:
            return None
        ids: list[int] = list(self.prompts.policy_prompt(Task("", "", ""), page, ()).ids)
        ids[0] = self.prompts.mark(marks.POINT)
        weights = [0] * len(ids)
        for cue, answer in self.rng.sample(asked, min(DRILL, len(asked))):
            for text, weight in (("\n" + cue, 0), (answer, 1)):
                piece = self.prompts.encode(text)
                ids += piece
                weights += [weight] * len(piece)
        return Sample("point", tuple(ids), tuple(weights))
