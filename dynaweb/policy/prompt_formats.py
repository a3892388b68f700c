"""The prompt layer: how tasks, pages, actions and verdicts become tokens, and how replies become actions.

`CompactFormat` belongs to models that were trained with `dynaweb.policy.tokenizer` (the shipped tiny model): one mark
per job, the page as `compact` text, a reply that is one action. `ChatFormat` serves any model with
a chat template; further layers are parts of formats, which plugins bring (`dynaweb.web.observation_formats`). All are
token-in, token-out: what `parse_reply` reads are the very tokens that were sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError
from dynaweb.policy import tokenizer as marks
from dynaweb.policy.policy_prompt import (
    CUT_REPLY,
    PICTURED,
    PolicyPrompt,
    check_goal,
    numbered,
    shown_images,
    with_page,
)
from dynaweb.policy.settings import AS_IT_IS, PLAIN, PromptSettings, uncounted
from dynaweb.policy.shortening import shortened
from dynaweb.policy.template import ChatTemplate
from dynaweb.protocols import ParsedReply, PromptFormat
from dynaweb.types import Prompt
from dynaweb.web.actions.grammar import format_action, parse_action
from dynaweb.web.observation_formats import part_of
from dynaweb.web.page.text import TRUNCATED, render
from dynaweb.worldmodels.prompts import REWRITE, SYSTEM, doing

if TYPE_CHECKING:
    from dynaweb.policy.prompt_file import PromptFile
    from dynaweb.policy.settings import Modality
    from dynaweb.protocols import Vision
    from dynaweb.types import Action, Image, Observation, Task, Trajectory


MOST = 8192
"""Longest prompt of a chat model, in tokens, where nobody says otherwise."""
LEAST = 128
"""Tokens for a goal and a page, below which a prompt is of no use."""
CACHED = 65_536
"""Pieces of text whose tokens are remembered."""
_SPLIT = re.compile(r"'((?:[^'\\\n]|\\.)*+)('?)")
_INNER = (": ", ".localhost/")
_INNER_SPLIT = re.compile("(" + "|".join(re.escape(mark) for mark in _INNER) + ")")


_JUDGE = """You check the work of a web agent. You get its objective, its actions, its answer and the page it ended on.
Answer YES if the objective is reached and the answer, if one was asked for, is right and complete; otherwise NO."""


class Encoder:
    """Encodes compact text with a backend tokenizer (`tokenizers.Tokenizer`), such that no text can become a mark.

    A page, an answer or a goal is data: a link named `<yes>` or `x' [3]` must not turn into the tokens that say YES or
    that number an element. So the special marks are never read from text, and what stands in quotes is encoded without
    any mark but the two that names contain by themselves (`: ` and `.localhost/`). Pieces are cached: pages repeat
    themselves. The backend is not changed.
    """

    def __init__(self, backend: Any) -> None:
        from tokenizers import Tokenizer

        text = backend.to_str()
        self._whole = Tokenizer.from_str(text)
        self._whole.encode_special_tokens = True
        plain = json.loads(text)
        plain["added_tokens"] = [token for token in plain["added_tokens"] if token["special"]]
        self._plain = Tokenizer.from_str(json.dumps(plain))
        self._plain.encode_special_tokens = True
        self._inner = {mark: backend.token_to_id(mark) for mark in _INNER}
        self._outside = lru_cache(CACHED)(self._encode_outside)
        self._inside = lru_cache(CACHED)(self._encode_inside)

    def words(self, text: str) -> list[int]:
        """Tokens of free text, such as a goal: structure marks are read, special marks are not."""
        return list(self._outside(text))

    def lines(self, text: str) -> list[int]:
        """Tokens of `compact` text: marks outside of quotes, plain text inside of them."""
        ids: list[int] = []
        end = 0
        for quoted in _SPLIT.finditer(text):
            if not quoted[2]:
                continue  # not closed on its line
            ids += self._outside(text[end : quoted.start() + 1])
            ids += self._inside(quoted[1])
            end = quoted.end() - 1
        return [*ids, *self._outside(text[end:])]

    def _encode_outside(self, text: str) -> tuple[int, ...]:
        return tuple(self._whole.encode(text, add_special_tokens=False).ids)

    def _encode_inside(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in _INNER_SPLIT.split(text):
            mark = self._inner.get(piece)
            ids += [mark] if mark is not None else self._plain.encode(piece, add_special_tokens=False).ids
        return tuple(ids)


class CompactFormat:
    """Prompts of the tiny model. Layout: `<job> goal, history, <page> page <do>`; see the module docstring.

    `max_prompt` bounds the prompt in tokens: the oldest actions go first, then whole lines from the end of the page,
    which is marked with `...`. Text never turns into control tokens (see `Encoder`).
    """

    def __init__(self, tokenizer: Any, max_prompt: int = 760, on_prompt: Callable[[Prompt], None] = uncounted) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        ids = {name: backend.token_to_id(name) for name in marks.SPECIAL}
        missing = [name for name, value in ids.items() if value is None]
        if missing:
            raise ValueError(f"the tokenizer lacks the marks {', '.join(missing)}: it is not one of the compact format")
        self._decode = backend.decode
        self._encoder = Encoder(backend)
        self._ids: dict[str, int] = ids
        self.max_prompt, self._on_prompt = max_prompt, on_prompt
        self.pad_id = self._ids[marks.PAD]
        self.stop_ids: tuple[int, ...] = (self._ids[marks.EOS],)
        self.yes_id, self.no_id = self._ids[marks.YES], self._ids[marks.NO]

    def encode(self, text: str) -> list[int]:
        """Token ids of `compact` text (pages, actions, scripts)."""
        return self._encoder.lines(text)

    def mark(self, name: str) -> int:
        """The id of a special mark such as `<act>`."""
        return self._ids[name]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the stop token."""
        kept = [i for i in token_ids if i != self.stop_ids[0]]
        text: str = self._decode(kept, skip_special_tokens=False)
        return text

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> Prompt:
        """`<act> goal, one line per earlier action, <page> page <do>`.

        Raises `ConfigError` for a goal with pictures.
        """
        check_goal(task, sees=False)
        return self._prompt(marks.ACT, task.intent, history, observation)

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """Reasoning lines, if any, then the action."""
        text = format_action(action, "compact")
        return (*self.encode(f"{reasoning}\n{text}" if reasoning else text), *self.stop_ids)

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """The last line is the action, lines before it are reasoning. Control tokens in a reply are an error, and so is
        a reply that the stop token does not end: its action is its end."""
        text = self.decode(token_ids)
        reasoning, _, last = text.rpartition("\n")
        control = set(self._ids.values()) - set(self.stop_ids)
        if control.intersection(token_ids):
            return ParsedReply(text=text, reasoning=reasoning, error="the reply contains a control token")
        if token_ids and token_ids[-1] not in self.stop_ids:
            return ParsedReply(text=text, reasoning=reasoning, error=CUT_REPLY)
        action = parse_action(last, observation, "compact")
        if isinstance(action, str):
            return ParsedReply(text=text, reasoning=reasoning, error=action)
        return ParsedReply(text=text, reasoning=reasoning, action=action)

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """`<wm> goal <page> page <do> action`; earlier actions, when given, stand before the page."""
        return self._change(marks.WM, observation, action, history, goal)

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """`<next> goal <page> page <do> action`."""
        return self._change(marks.NEXT, observation, action, history, goal)

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """`<next> goal <page> page <do> action`, and the change on a line of its own."""
        return self._change(marks.NEXT, observation, action, history, goal, f"\n{change}")

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The answer behind a line break, so that its first line has the same tokens as the others."""
        return (*self.encode("\n" + text), *self.stop_ids)

    def judge_prompt(self, trajectory: Trajectory) -> Prompt:
        """`<judge> goal, actions with the answer, <page> final page <do>`; of a long page, its beginning and its
        end."""
        actions = [step.action for step in trajectory.steps if step.action is not None]
        page = trajectory.final or trajectory.steps[-1].observation
        return self._prompt(marks.JUDGE, trajectory.task.intent, actions, page, ends=True)

    def _change(
        self, mark: str, observation: Observation, action: Action, history: Sequence[Action], goal: str, more: str = ""
    ) -> Prompt:
        return self._prompt(mark, goal, history, observation, self.encode(format_action(action, "compact") + more))

    def _prompt(
        self,
        mark: str,
        goal: str,
        history: Sequence[Action],
        page: Observation,
        tail: Sequence[int] = (),
        ends: bool = False,
    ) -> Prompt:
        spare = self.max_prompt - len(tail) - 3
        words, text = self._encoder.words(goal), self.encode(render(page, "compact"))
        lines = [self.encode(line) for line in history_lines(history)]
        whole = len(words) + sum(map(len, lines)) + len(text)
        head = self._head(words, lines, spare // 2)
        shorten = self._both_ends if ends else self._page
        room = spare - len(head)
        body = text if len(text) <= room else shorten(render(page, "compact"), room)
        prompt = Prompt(
            (self._ids[mark], *head, self._ids[marks.PAGE], *body, self._ids[marks.DO], *tail),
            cut=whole - len(head) - len(body),
        )
        self._on_prompt(prompt)
        return prompt

    def _head(self, words: Sequence[int], lines: Sequence[Sequence[int]], room: int) -> list[int]:
        words, lines = words[:room], list(lines)
        while lines and len(words) + sum(map(len, lines)) > room:
            lines.pop(0)
        return [*words, *(token for line in lines for token in line)]

    def _page(self, text: str, room: int) -> list[int]:
        cut = self.encode(f"\n{TRUNCATED}")
        kept: list[int] = []
        for i, line in enumerate(text.split("\n")):
            piece = self.encode(f"\n{line}" if i else line)
            if len(kept) + len(piece) + len(cut) > room:
                break
            kept += piece
        return kept + cut

    def _both_ends(self, text: str, room: int) -> list[int]:
        """Whole lines from the beginning and from the end of a page, half of the room each, what is between left
        out."""
        start = self._page(text, room - room // 2)
        end: list[int] = []
        for line in reversed(text.split("\n")):
            piece = self.encode(f"\n{line}")
            if len(start) + len(piece) + len(end) > room:
                break
            end = piece + end
        return start + end


def history_lines(actions: Sequence[Action]) -> list[str]:
    """One line per earlier action, by name and without numbers, which mean nothing on a later page."""
    return [f"\n- {format_action(action, 'compact', with_id=False)}" for action in actions]


def format_for(tokenizer: Any, name: str = "auto", settings: PromptSettings = PLAIN) -> PromptFormat:
    """The prompt layer for a tokenizer: `auto` is `compact` where its marks are there, else `chat`.

    Other names are those of plugins (`dynaweb.web.observation_formats`). Raises `MissingError` for one that nobody
    offers, and `ConfigError` for a tokenizer or a template that cannot be used.
    """
    if name == "auto":
        name = "compact" if marks.ACT in tokenizer.get_vocab() else "chat"
    if name == "compact":
        return CompactFormat(tokenizer, settings.prompt or settings.policy_prompt or 760, settings.on_prompt)
    if name == "chat":
        return ChatFormat(tokenizer, settings)
    layer: Callable[[Any, PromptSettings], PromptFormat] = part_of(name, "prompt")
    return layer(tokenizer, settings)


def policy_prompt_for(name: str, file: PromptFile = AS_IT_IS) -> PolicyPrompt:
    """What a policy that takes text is asked in the prompt layer of that name; `auto` is `chat`.

    Raises `MissingError` for a name that nobody offers, and `ConfigError` for a layer of models of its own.
    """
    layer = ChatFormat if name in ("auto", "chat") else part_of(name, "prompt") if name != "compact" else None
    words = getattr(layer, "words", None)
    if words is None:
        raise ConfigError(f"model.format {name!r} is for models with tokens of its own; servers are asked as by `chat`")
    made: PolicyPrompt = words(file)
    return made


# Prompts for chat models: DynaWeb's sections (arXiv 2601.22149, appendix A.1 and A.2) in a chat template. The page is
# WebArena's text, an action is WebArena's grammar in a fence, the world model answers with a sentence of reasoning, the
# rebuild script and a sentence of change, the judge with YES or NO as its first word.


class ChatFormat:
    """Prompts of chat models; `tokenizer` is a Hugging Face tokenizer, with or without a chat template.

    Raises `ConfigError` where the template cannot be used (`ChatTemplate`), and where YES and NO begin alike.
    """

    words: type[PolicyPrompt] = PolicyPrompt
    """What policies are asked, and how they answer."""

    def __init__(self, tokenizer: Any, settings: PromptSettings = PLAIN) -> None:
        self.policy = self.words(settings.file)
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, ends=settings.ends, arguments=settings.template, vision=settings.vision)
        self.stop_ids = self.template.stop_ids
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.stop_ids[0]
        self.yes_id, self.no_id = self.template.first_id("YES"), self.template.first_id("NO")
        if self.yes_id == self.no_id:
            raise ConfigError(
                f"YES and NO begin with the same token ({self.yes_id}) of this model's tokenizer, so that no judge "
                "could tell them apart; choose another model"
            )
        self._settings = settings
        self._rooms: dict[bool, int] = {}

    def check(self) -> None:
        """Raise `ConfigError` when a prompt of some role has no room for a page."""
        self._room(policy=True)
        self._room(policy=False)

    def _room(self, *, policy: bool) -> int:
        """Longest prompt in tokens: of the policy, or of world model and judge."""
        if (room := self._rooms.get(policy)) is not None:
            return room
        room = self._settings.room(MOST, policy=policy)
        instructions = self.template.size(self.policy.instructions if policy else SYSTEM["delta"])
        if room < instructions + LEAST:
            raise ConfigError(
                f"a prompt of {room} tokens holds no page: the instructions alone take {instructions} of this model's "
                f"tokens; set {'policy' if policy else 'model'}.max_prompt_tokens to {instructions + LEAST} at least, "
                "give answers fewer tokens, or choose a model with a longer context"
            )
        self._rooms[policy] = room
        return room

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> Prompt:
        """System instructions, then objective, earlier actions and the page."""
        system, *around = self.policy.question(task, observation, history)
        last, earlier = history[-1] if history else None, self.policy.earlier(history)
        images = self.policy_images(task, observation)
        return self._chat(
            system, (around[0], around[1]), observation, last, policy=True, earlier=earlier, images=images
        )

    def policy_images(self, task: Task, observation: Observation) -> tuple[Image, ...]:
        """The pictures of a policy's prompt, in their order.

        Raises `ImageError` for a page without a screenshot, `ConfigError` for a goal with pictures where the model
        reads text alone.
        """
        check_goal(task, sees=self._settings.vision is not None)
        return shown_images(task, observation, self._settings.modality)

    def with_modality(self, modality: Modality) -> ChatFormat:
        """The same prompt layer for pages that are shown otherwise."""
        other = copy(self)
        other._settings = replace(self._settings, modality=modality)
        return other

    def policy_messages(
        self, task: Task, observation: Observation, history: Sequence[Action], action: Action, reasoning: str = ""
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """`policy_prompt` and `policy_reply` as turns of a chat, for trainers that apply the template themselves."""
        system, *around = self.policy.question(task, observation, history)
        last, earlier = history[-1] if history else None, self.policy.earlier(history)
        images = self.policy_images(task, observation)
        more: dict[str, Any] = {"policy": True, "earlier": earlier, "images": images}
        user, _ = self._fitted(system, (around[0], around[1]), observation, last, **more)
        return self.template.messages(system, user, self.policy.reply(action, reasoning), images=len(images))

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """`REASON: ... ACTION: ...` and the end of the turn."""
        return self._target(self.policy.reply(action, reasoning))

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """What follows the thought, as `PolicyPrompt.parse` reads it; a reply that no stop token ends was cut."""
        reply = self.template.read(token_ids)
        if reply.error:
            return ParsedReply(text=reply.thought, reasoning=reply.thought, error=reply.error)
        finished = bool(token_ids) and token_ids[-1] in self.stop_ids
        return self.policy.parse(reply.text, observation, thought=reply.thought, finished=finished)

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The page, earlier actions, and the action with the role and name of its element."""
        return self._chat(SYSTEM["delta"], with_page(doing(action, history, goal), observation), observation, action)

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The same question for the whole next page."""
        return self._chat(SYSTEM["page"], with_page(doing(action, history, goal), observation), observation, action)

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> Prompt:
        """The question for the whole next page, with the change in words."""
        user = f"{doing(action, history, goal)}\nCHANGE: {change}"
        return self._chat(REWRITE, with_page(user, observation), observation, action)

    def turns(self, system: str, user: str) -> Prompt:
        """A system and a user turn of plain text: everything before an answer. Nothing is cut."""
        return Prompt(self.template.prompt(system, user))

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The answer and the end of the turn."""
        return self._target(text)

    def judge_prompt(self, trajectory: Trajectory) -> Prompt:
        """Objective, actions, answer and final page; of a long page, its beginning and its end.

        The next token begins the answer: a thought that the template begins is ended, an answer's channel is open.
        """
        return self.judge_prompt_with(trajectory, ())

    def judge_prompt_with(self, trajectory: Trajectory, images: tuple[Image, ...]) -> Prompt:
        """The same with pictures of its last pages, oldest first."""
        actions = [step.action for step in trajectory.steps if step.action is not None]
        page = trajectory.final or trajectory.steps[-1].observation
        answer = trajectory.answer if trajectory.answer is not None else "(it did not stop)"
        head = f"OBJECTIVE: {trajectory.task.intent}\nACTIONS:\n{numbered(actions)}\nANSWER: {answer}"
        return self._chat(_JUDGE, with_page(head, page), page, ends=True, answer=True, images=images)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The answer in sampled tokens: without stop tokens and thoughts; '' where a thought does not end."""
        return self.template.read(token_ids).text

    def _target(self, text: str) -> tuple[int, ...]:
        return self.template.reply(text)

    def _chat(
        self,
        system: str,
        around: tuple[str, str],
        page: Observation,
        action: Action | None = None,
        *,
        policy: bool = False,
        ends: bool = False,
        answer: bool = False,
        earlier: str = "",
        images: tuple[Image, ...] = (),
    ) -> Prompt:
        """A system turn, and the user's with the page in what is `around` it; of a long page, what matters most."""
        more: dict[str, Any] = {"policy": policy, "ends": ends, "answer": answer, "earlier": earlier, "images": images}
        _, prompt = self._fitted(system, around, page, action, **more)
        self._settings.on_prompt(prompt)
        return prompt

    def _fitted(
        self,
        system: str,
        around: tuple[str, str],
        page: Observation,
        action: Action | None = None,
        *,
        policy: bool = False,
        ends: bool = False,
        answer: bool = False,
        earlier: str = "",
        images: tuple[Image, ...] = (),
    ) -> tuple[str, Prompt]:
        """The user's text as far as there is room for it, and the prompt that it makes; images are never cut.

        Raises `ConfigError` where the images alone leave no room for a text.
        """
        room = self._room(policy=policy)
        pictured = policy and images and self._settings.modality == "screenshot"
        shown = PICTURED if pictured else render(page, "webarena")
        parts = around[0], shown, around[1]
        pictures = [self._vision.expansion(image) for image in images]

        def write(text: str) -> tuple[int, ...]:
            return self.template.prompt(system, text, answer=answer, images=pictures)

        text = "".join(parts)
        ids = write(text)
        if len(ids) <= room:
            return text, Prompt(ids, images)
        whole, size = len(ids), self.template.size
        spare = room - len(write(""))
        if images and spare < LEAST:
            sizes = ", ".join(f"{image.width}x{image.height}" for image in images)
            raise ConfigError(
                f"a prompt of {room} tokens has no room for a goal beside images of {sizes} pixels: with the "
                f"instructions they take {room - spare}; lower observation.max_pixels, or raise "
                f"{'policy' if policy else 'model'}.max_prompt_tokens"
            )
        while len(ids) > room and spare > 0:
            text = shortened(parts, page, action, spare, size, ends=ends, earlier=earlier)
            ids = write(text)
            spare -= max(1, len(ids) - room)
        return text, Prompt(ids, images, cut=whole - len(ids))

    @property
    def _vision(self) -> Vision:
        if self._settings.vision is None:
            raise ConfigError(
                "observation.modality asks the policy to see pages, and nobody knows how its model sees; set "
                "observation.modality = text, or choose a model with a processor"
            )
        return self._settings.vision
