"""The prompt layer: how tasks, pages, actions and verdicts become tokens, and how replies become actions.

`CompactFormat` belongs to models that were trained with `dynaweb.policy.tokenizer` (the shipped tiny model): one mark
per job, the page as `compact` text, a reply that is one action. `dynaweb.policy.chat.ChatFormat` serves any model with
a chat template, `dynaweb.policy.webvoyager` does so in WebVoyager's words. All are token-in, token-out: what
`parse_reply` reads are the very tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dynaweb.policy import tokenizer as marks
from dynaweb.policy.encoding import Encoder, specials
from dynaweb.web.actions import format_action, parse_action
from dynaweb.web.dialects import TRUNCATED, render

if TYPE_CHECKING:
    from dynaweb.types import Action, Observation, Task, Trajectory


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply taken apart; `error` says why there is no action, in words that a model can read."""

    text: str
    reasoning: str = ""
    action: Action | None = None
    error: str = ""


class PromptFormat(Protocol):
    """What every prompt layer offers. All methods are pure; token ids are plain ints."""

    stop_ids: tuple[int, ...]
    """Tokens that end a reply."""
    pad_id: int
    yes_id: int
    no_id: int

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> tuple[int, ...]:
        """Instructions, goal, earlier actions and the page: everything before the policy's reply."""
        ...

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """The tokens of a reply that does `action`, stop token included: a supervised target."""
        ...

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """Read a sampled reply. Never raises."""
        ...

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The goal, the page and what is done on it, by name: everything before the change."""
        ...

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The same for a world model that writes the whole next page."""
        ...

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The same for a model that writes the whole next page from a change in words."""
        ...

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The tokens of a world model's answer, stop token included."""
        ...

    def judge_prompt(self, trajectory: Trajectory) -> tuple[int, ...]:
        """Goal, actions, answer and final page; the next token is YES or NO."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the stop token."""
        ...


class CompactFormat:
    """Prompts of the tiny model. Layout: `<job> goal, history, <page> page <do>`; see the module docstring.

    `max_prompt` bounds the prompt in tokens: the oldest actions go first, then whole lines from the end of the page,
    which is marked with `...`. Text never turns into control tokens (`dynaweb.policy.encoding`).
    """

    def __init__(self, tokenizer: Any, max_prompt: int = 760) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        found = specials(backend)
        missing = [name for name, value in found.items() if value is None]
        if missing:
            raise ValueError(f"the tokenizer lacks the marks {', '.join(missing)}: it is not one of the compact format")
        self._decode = backend.decode
        self._encoder = Encoder(backend)
        self._ids: dict[str, int] = {name: value for name, value in found.items() if value is not None}
        self.max_prompt = max_prompt
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

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> tuple[int, ...]:
        """`<act> goal, one line per earlier action, <page> page <do>`."""
        return self._prompt(marks.ACT, task.intent, history, observation)

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """Reasoning lines, if any, then the action."""
        text = format_action(action, "compact")
        return (*self.encode(f"{reasoning}\n{text}" if reasoning else text), *self.stop_ids)

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """The last line is the action, lines before it are reasoning. Control tokens in a reply are an error."""
        text = self.decode(token_ids)
        reasoning, _, last = text.rpartition("\n")
        control = set(self._ids.values()) - set(self.stop_ids)
        if control.intersection(token_ids):
            return ParsedReply(text=text, reasoning=reasoning, error="the reply contains a control token")
        action = parse_action(last, observation, "compact")
        if isinstance(action, str):
            return ParsedReply(text=text, reasoning=reasoning, error=action)
        return ParsedReply(text=text, reasoning=reasoning, action=action)

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """`<wm> goal <page> page <do> action`; earlier actions, when given, stand before the page."""
        return self._change(marks.WM, observation, action, history, goal)

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """`<next> goal <page> page <do> action`."""
        return self._change(marks.NEXT, observation, action, history, goal)

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """`<next> goal <page> page <do> action`, and the change on a line of its own."""
        return self._change(marks.NEXT, observation, action, history, goal, f"\n{change}")

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The answer behind a line break, so that its first line has the same tokens as the others."""
        return (*self.encode("\n" + text), *self.stop_ids)

    def judge_prompt(self, trajectory: Trajectory) -> tuple[int, ...]:
        """`<judge> goal, actions with the answer, <page> final page <do>`; of a long page, its beginning and its
        end."""
        actions = [step.action for step in trajectory.steps if step.action is not None]
        page = trajectory.final or trajectory.steps[-1].observation
        return self._prompt(marks.JUDGE, trajectory.task.intent, actions, page, ends=True)

    def _change(
        self, mark: str, observation: Observation, action: Action, history: Sequence[Action], goal: str, more: str = ""
    ) -> tuple[int, ...]:
        tail = self.encode(format_action(action, "compact") + more)
        return (*self._prompt(mark, goal, history, observation, room=len(tail)), *tail)

    def _prompt(
        self, mark: str, goal: str, history: Sequence[Action], page: Observation, room: int = 0, ends: bool = False
    ) -> tuple[int, ...]:
        spare = self.max_prompt - room - 3
        head = self._head(goal, history, spare // 2)
        cut = self._both_ends if ends else self._page
        body = cut(render(page, "compact"), spare - len(head))
        return (self._ids[mark], *head, self._ids[marks.PAGE], *body, self._ids[marks.DO])

    def _head(self, goal: str, history: Sequence[Action], room: int) -> list[int]:
        words = self._encoder.words(goal)[:room]
        lines = [self.encode(line) for line in history_lines(history)]
        while lines and len(words) + sum(map(len, lines)) > room:
            lines.pop(0)
        return [*words, *(token for line in lines for token in line)]

    def _page(self, text: str, room: int) -> list[int]:
        ids = self.encode(text)
        if len(ids) <= room:
            return ids
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
        ids = self.encode(text)
        if len(ids) <= room:
            return ids
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


def format_for(tokenizer: Any, name: str = "auto") -> PromptFormat:
    """The prompt layer for a tokenizer: `auto` is `compact` where its marks are there, else `chat`."""
    if name == "auto":
        name = "compact" if marks.ACT in tokenizer.get_vocab() else "chat"
    if name == "compact":
        return CompactFormat(tokenizer)
    from dynaweb.policy.chat import ChatFormat
    from dynaweb.policy.webvoyager import WebVoyagerFormat

    return WebVoyagerFormat(tokenizer) if name == "webvoyager" else ChatFormat(tokenizer)
