"""Stand-ins for what a plugin is given: an engine with prepared answers, a site without a browser, pages to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dynaweb.protocols import BaseEngine, Completion, GenerateRequest
from dynaweb.types import (
    Action,
    EpisodeFacts,
    Judgement,
    Node,
    Observation,
    Prompt,
    Step,
    StepResult,
    Task,
    Trajectory,
    Transition,
)

if TYPE_CHECKING:
    from dynaweb.protocols import PromptFormat

HOST = "http://shop.localhost"


def page(path: str, *body: tuple[str, str], title: str = "") -> Observation:
    """A page of (role, name) elements, numbered from 1."""
    nodes = tuple(Node(at, role, name) for at, (role, name) in enumerate(body, 1))
    return Observation(f"{HOST}{path}", nodes, title)


HOME = page("/", ("link", "Home"), ("heading", "Shop"), ("link", "Wool Scarf"), ("textbox", "Search"))
PRODUCT = page("/product/3", ("link", "Home"), ("heading", "Wool Scarf"), ("text", "Price: 12.50"), ("button", "Buy"))
CART = page("/cart", ("link", "Home"), ("heading", "Cart"), ("status", "Wool Scarf was added"))
OPEN = Action("click", 3, target_role="link", target_name="Wool Scarf")
BUY = Action("click", 4, target_role="button", target_name="Buy")
TASK = Task("scripted:0", "Buy the Wool Scarf", f"{HOST}/", ("shop",), "train", template="buy", best_steps=3)
TRANSITIONS = (Transition(HOME, OPEN, PRODUCT, TASK.id, "expert"), Transition(PRODUCT, BUY, CART, TASK.id, "expert"))

JUNK = ("", "\n\n", "what?", "[]][[ '", "url\n= [9]-[1]\nend", "YES NO", "\u2028\x00 'unclosed", "+ link", "= [0]" * 40)
"""Texts that no prompt asked for."""


@dataclass
class FakeEngine(BaseEngine):
    """Answers with `answers` in turn, for ever; `yes` is the probability that it gives to the first of two choices.

    What was asked is in `requests`. `prompts` turns answers into tokens.
    """

    prompts: PromptFormat
    answers: tuple[str, ...] = ("",)
    finished: bool = True
    yes: float = 0.5
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Completion:
        """The next prepared answer."""
        text = self.answers[len(self.requests) % len(self.answers)]
        self.requests.append(request)
        ids = self.prompts.world_model_target(text)[: request.max_new_tokens]
        return Completion(ids, tuple(-0.5 for _ in ids), self.finished)

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """`yes` for the first choice, the rest for the others in equal parts."""
        import math

        rest = (1 - self.yes) / max(1, len(choices) - 1)
        return tuple(math.log(max(1e-9, self.yes if at == 0 else rest)) for at in range(len(choices)))


@dataclass(frozen=True)
class PromptEngine(BaseEngine):
    """Answers by the prompt alone: the same prompt gets the same answer, whoever asks, whenever, with whatever seed.

    `answers` are tokens, stop token included; different prompts get different ones of them, and different odds.
    """

    answers: tuple[tuple[int, ...], ...]

    async def generate(self, request: GenerateRequest) -> Completion:
        """One of the answers, cut where the request ends."""
        answer = self.answers[_number(request.prompt) % len(self.answers)]
        ids = answer[: request.max_new_tokens]
        return Completion(ids, tuple(-0.5 for _ in ids), len(ids) == len(answer))

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """The first choice is likely for some prompts and unlikely for others; the rest share what is left."""
        import math

        first = (1 + _number(prompt) % 99) / 100
        rest = (1 - first) / max(1, len(choices) - 1)
        return tuple(math.log(first if at == 0 else rest) for at in range(len(choices)))


def _number(prompt: Prompt) -> int:
    return crc32(f"{prompt.ids}{prompt.images or ''}".encode())


@cache
def compact_format() -> PromptFormat:
    """The prompt layer of the shipped tiny model, without torch: its tokenizer alone is read."""
    from importlib import resources

    from tokenizers import Tokenizer

    from dynaweb.policy.prompt_formats import CompactFormat

    file = resources.files("dynaweb") / "assets" / "tiny" / "tokenizer.json"
    return CompactFormat(Tokenizer.from_file(str(file)))


class ScriptedSite:
    """An environment of three pages: a shop, a product, a cart. Everything else is refused with a message."""

    def __init__(self) -> None:
        self.page: Observation | None = None
        self.closed = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        """The home page."""
        self.page = HOME
        return HOME

    async def step(self, action: Action) -> StepResult:
        """Follow the script, or refuse."""
        assert self.page is not None, "reset comes first"
        if action.kind == "stop":
            return StepResult(self.page, done=True)
        for transition in TRANSITIONS:
            if transition.observation == self.page and transition.action == action:
                self.page = transition.next_observation
                return StepResult(self.page)
        return StepResult(self.page, error=f"{action.kind} does nothing here")

    async def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def trajectory(*actions: Action, source: Any = "real", score: float | None = 1.0, **changes: Any) -> Trajectory:
    """An episode on the scripted site that does `actions`; `score` is the environment's own verdict."""
    pages = [HOME, PRODUCT, CART]
    steps = tuple(Step(pages[min(at, 2)], action, reply=action.kind) for at, action in enumerate(actions))
    facts = EpisodeFacts(verdict=None if score is None else Judgement(score))
    done = Trajectory("t0", TASK, steps, pages[min(len(actions), 2)], source, "stop", facts=facts)
    return replace(done, **changes)


def good_episode(**changes: Any) -> Trajectory:
    """Bought, and stopped."""
    return trajectory(OPEN, BUY, Action("stop"), **changes)


__all__ = [
    "BUY",
    "CART",
    "HOME",
    "JUNK",
    "OPEN",
    "PRODUCT",
    "TASK",
    "TRANSITIONS",
    "FakeEngine",
    "PromptEngine",
    "ScriptedSite",
    "compact_format",
    "good_episode",
    "page",
    "trajectory",
]
