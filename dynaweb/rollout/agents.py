"""Who decides in an episode: a model, a scripted expert, chance, or a model with a share of chance."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from dynaweb.errors import DynawebError, InfrastructureError
from dynaweb.plugin.contracts import expert_action
from dynaweb.policy.policy_prompt import PICTURED, check_goal, shown_images
from dynaweb.protocols import GenerateRequest
from dynaweb.runs.seeding import derive
from dynaweb.types import NO_PROMPT, Action, Node, Observation, Prompt, Task
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.web.page.text import render
from dynaweb.worldmodels.dynamics import options, refusal

if TYPE_CHECKING:
    from dynaweb.engines.server import OpenAIEngine
    from dynaweb.policy.policy_prompt import PolicyPrompt
    from dynaweb.policy.settings import Modality
    from dynaweb.protocols import Engine, ExpertPolicy, Images, PromptFormat

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_CLICKABLE = frozenset({"link", "button", "checkbox", "radio", "tab", "menuitem", "switch", "option"})


@dataclass(frozen=True, slots=True)
class Decision:
    """What a player said on one page. `action` is None when the reply could not be parsed; `error` says why.

    Only model players fill `prompt`, `response_ids`, `logprobs` (natural log, one per response token) and
    `policy_version` (the engine's `weights_version`).
    """

    action: Action | None
    reasoning: str = ""
    reply: str = ""
    error: str = ""
    prompt: Prompt = NO_PROMPT
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    policy_version: int | None = None


POLICIES = ("sft", "base", "expert", "random")
"""Policies that have a name: the recipe's SFT policy, the model as it is, the scripted experts, chance."""
WITHOUT_MODEL = ("expert", "random")
"""Those that need no language model."""
SERVER = "server:"
"""What the name of a policy behind a server begins with; the name of the server's model follows."""


class Player(Protocol):
    """Decides, page by page."""

    deterministic: bool
    """True when the same page and history always give the same decision."""

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The decision on this page; `history` holds the actions so far, without unparseable replies."""
        ...


PlayerFor = Callable[[Task], Player]
"""Gives the player of a task: stateless players are shared, experts are made anew."""


class ModelPolicy:
    """A language model behind a prompt format. Tokens in, tokens out: what is sampled is what is recorded."""

    def __init__(
        self, engine: Engine, prompt_format: PromptFormat, *, temperature: float = 1.0, max_new_tokens: int = 48
    ) -> None:
        self.engine = engine
        self.format = prompt_format
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.deterministic = temperature == 0

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """Sample one reply and parse it."""
        prompt, version = self.format.policy_prompt(task, observation, history), self.engine.weights_version
        completion = await self.engine.generate(
            GenerateRequest(
                prompt=prompt,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                seed=seed,
                stop_ids=self.format.stop_ids,
            )
        )
        parsed = self.format.parse_reply(completion.token_ids, observation)
        return Decision(
            action=parsed.action,
            reasoning=parsed.reasoning,
            reply=parsed.text,
            error=parsed.error,
            prompt=prompt,
            response_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=version if completion.weights_version is None else completion.weights_version,
        )


class ServerPolicy:
    """A model behind an OpenAI-compatible server, to compare with: text in, text out, so nothing can learn from it."""

    def __init__(
        self,
        engine: OpenAIEngine,
        words: PolicyPrompt,
        *,
        temperature: float,
        max_new_tokens: int,
        modality: Modality = "text",
        images: Images | None = None,
    ) -> None:
        self.engine, self.words = engine, words
        self.modality, self.images = modality, images
        self.temperature, self.max_new_tokens = temperature, max_new_tokens
        self.deterministic = False

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """One answer; a reply that is none, or was cut before its action was whole, is a decision without an action."""
        from dynaweb.engines.server import ChatRequest, ReplyError

        check_goal(task, sees=self.images is not None)
        system, before, after = self.words.question(task, observation, history)
        page = PICTURED if self.modality == "screenshot" else render(observation, "webarena")
        shown = () if self.images is None else shown_images(task, observation, self.modality)
        request = ChatRequest(
            (("system", system), ("user", f"{before}{page}{after}")),
            self.max_new_tokens,
            temperature=self.temperature,
            seed=seed,
            images=tuple(self.images.get(image) for image in shown) if self.images is not None else (),
        )
        try:
            reply = await self.engine.chat(request)
        except ReplyError as error:
            return Decision(action=None, error=str(error))
        if not reply.finished and not reply.text:
            why = f"the reply did not end within {self.max_new_tokens} tokens"
            return Decision(action=None, reasoning=reply.reasoning, reply=reply.text, error=why)
        parsed = self.words.parse(reply.text, observation, thought=reply.reasoning, finished=reply.finished)
        return Decision(action=parsed.action, reasoning=parsed.reasoning, reply=parsed.text, error=parsed.error)


class ExpertPlayer:
    """Follows a scripted expert; one object for one episode, since it keeps its place in the plan."""

    deterministic = False

    def __init__(self, expert: ExpertPolicy) -> None:
        self.expert = expert

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The next action of the plan; a plan that does not fit the page is a reply without an action."""
        info = {"player": "expert"}
        try:
            action = self.expert.act(observation)
        except InfrastructureError:
            raise
        except DynawebError as error:
            return Decision(action=None, error=str(error), info=info)
        return Decision(action=expert_action(self.expert, action), info=info)


class RandomPolicy:
    """Draws a valid action on the page: any control with equal chance, `go_back` now and then; it never stops."""

    deterministic = False

    def __init__(self, *, back: float = 0.05, enter: float = 0.5) -> None:
        self.back = back
        self.enter = enter

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """A uniformly drawn valid action."""
        return Decision(action=self.draw(task, observation, history, seed=seed), info={"player": "random"})

    def draw(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Action:
        """The action itself; depends on the arguments alone."""
        rng = random.Random(seed)
        controls = [node for node in observation.nodes if self._usable(observation, node)]
        if not controls or (history and rng.random() < self.back):
            return Action("go_back") if history else Action("wait")
        return self._on(rng.choice(controls), task, observation, rng)

    def _usable(self, observation: Observation, node: Node) -> bool:
        if node.role not in _CLICKABLE and node.role not in TEXTBOXES and len(options(node)) < 2:
            return False
        return not refusal(observation, Action("click", target=node.id))

    def _on(self, node: Node, task: Task, observation: Observation, rng: random.Random) -> Action:
        click = Action("click", node.id, target_role=node.role, target_name=node.name)
        if options(node):
            return replace(click, kind="select", text=rng.choice(options(node)))
        if node.role in TEXTBOXES:
            text = rng.choice(words_to_type(task, observation))
            return replace(click, kind="type", text=text, enter=rng.random() < self.enter)
        return click


class MixedPolicy:
    """Another player whose actions are replaced by random ones with probability `share`."""

    deterministic = False

    def __init__(self, player: Player, share: float) -> None:
        self.player = player
        self.share = share
        self.random = RandomPolicy()

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The player's decision, or a random one; the draw is keyed by `seed`."""
        if random.Random(derive(seed, "mix")).random() < self.share:
            return await self.random.act(task, observation, history, seed=derive(seed, "random"))
        return await self.player.act(task, observation, history, seed=seed)


def words_to_type(task: Task, observation: Observation) -> list[str]:
    """Texts worth typing: what the goal quotes, else names on the page, else its words."""
    quoted = [a or b for a, b in _QUOTED.findall(task.intent)]
    names = [node.name for node in observation.nodes if node.name and len(node.name) <= 40]
    return quoted + names[:8] or task.intent.split() or ["x"]
