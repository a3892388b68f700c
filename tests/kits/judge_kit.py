"""What tests of judges share: the prompt layer of a small tokenizer, a fixed engine, and episodes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dynaweb.policy.prompt_formats import CompactFormat
from dynaweb.policy.tokenizer import build_tokenizer
from dynaweb.protocols import Completion, GenerateRequest
from dynaweb.types import (
    Action,
    EndReason,
    EpisodeFacts,
    Judgement,
    Node,
    Observation,
    Prompt,
    Source,
    Step,
    Task,
    Trajectory,
)

PAGE = Observation("http://shop.localhost/", (Node(1, "link", "Home"),))
PROMPTS = CompactFormat(build_tokenizer(["Home"], vocab_size=900))


class FixedEngine:
    """Says YES and NO with given log-probabilities; `replies` are what it generates, in turn."""

    def __init__(self, yes: float, no: float, replies: Sequence[tuple[int, ...]] = ()) -> None:
        self.values = {PROMPTS.yes_id: yes, PROMPTS.no_id: no}
        self.replies = list(replies)
        self.seeds: list[int] = []
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.seeds.append(request.seed)
        reply = self.replies[(len(self.seeds) - 1) % len(self.replies)]
        return Completion(reply, (0.0,) * len(reply), True)

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        self.prompts.append(prompt)
        return tuple(self.values[choice] for choice in choices)


def episode(
    name: str = "e",
    *,
    success: float | None = None,
    end: EndReason = "stop",
    source: Source = "real",
    site: int = 0,
    steps: int = 1,
    final: Observation | None = PAGE,
) -> Trajectory:
    """An episode of `steps` steps; `success` is the environment's verdict, None for none."""
    closing = Step(PAGE, Action("stop", text="42") if end == "stop" else Action("go_back"))
    walk = (Step(PAGE, Action("click", 1, target_role="link", target_name="Home")),) * (steps - 1)
    facts = EpisodeFacts(None if success is None else Judgement(success))
    task = Task(f"t{name}", "Open 'Home'.", "http://shop.localhost/", ("shop",), meta={"site_seed": site})
    return Trajectory(name, task, (*walk, closing), final, source, end, facts=facts)


def said(why: str) -> float:
    """The probability that a judgement tells in its reason."""
    found = re.search(r"P\(YES\) = ([0-9.]+)", why)
    assert found is not None, why
    return float(found[1])
