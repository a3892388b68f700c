"""Prompts for chat models: DynaWeb's sections (arXiv 2601.22149, appendix A.1 and A.2) in a chat template.

The page is WebArena's text, an action is WebArena's grammar in a fence, the world model answers with a sentence of
reasoning, the rebuild script and a sentence of change, the judge with YES or NO as its first word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaweb.policy.formats import ParsedReply
from dynaweb.web.actions import Grammar, format_action, parse_action
from dynaweb.web.dialects import render
from dynaweb.worldmodels.prompts import REWRITE, SYSTEM, doing

if TYPE_CHECKING:
    from dynaweb.types import Action, Observation, Task, Trajectory

_AGENT = """You operate a web browser to reach an objective. Each turn shows the page as an accessibility tree in which
elements carry numbers, and your earlier actions. Answer in two sections:
REASON: what you see and what to do next, in a sentence or two
ACTION: exactly one of
click [id] | hover [id] | type [id] [text] [1 to press Enter, else 0] | select [id] [option] | press [keys] |
scroll [down or up] | goto [url] | go_back | go_forward | new_tab | tab_focus [index] | close_tab | stop [answer]
Use stop when the objective is reached, with the answer if one is asked for, or with N/A if it cannot be reached."""

_JUDGE = """You check the work of a web agent. You get its objective, its actions, its answer and the page it ended on.
Answer YES if the objective is reached and the answer, if one was asked for, is right and complete; otherwise NO."""

_SLOTS = ("DYNAWEB-SYSTEM-SLOT", "DYNAWEB-USER-SLOT")
_SLOT = re.compile(f"({'|'.join(_SLOTS)})")
_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_SECTION = re.compile(r"^\s*ACTION\s*:\s*", re.IGNORECASE | re.MULTILINE)


class ChatFormat:
    """Prompts of chat models; `tokenizer` is a Hugging Face tokenizer, with or without a chat template."""

    instructions: str = _AGENT
    """What the policy is told first."""
    grammar: Grammar = "webarena"
    """The grammar of its actions."""
    history: Grammar = "compact"
    """The grammar in which it is shown its earlier actions."""

    def __init__(self, tokenizer: Any, max_prompt: int = 8192) -> None:
        self.tokenizer = tokenizer
        self.max_prompt = max_prompt
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-sequence token, so a reply could not end")
        self.stop_ids = tuple(sorted({tokenizer.eos_token_id, *self._turn_ends()}))
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.yes_id, self.no_id = self._first("YES"), self._first("NO")

    def policy_prompt(self, task: Task, observation: Observation, history: Sequence[Action]) -> tuple[int, ...]:
        """System instructions, then objective, earlier actions and the page."""
        done = _lines(history, self.history)
        return self._chat(self.instructions, f"OBJECTIVE: {task.intent}\nPREVIOUS ACTIONS:\n{done}", observation)

    def policy_reply(self, observation: Observation, action: Action, reasoning: str = "") -> tuple[int, ...]:
        """`REASON: ... ACTION: ...` and the end of the turn."""
        return self._target(self.said(reasoning or "This is the next step.", format_action(action, self.grammar)))

    def parse_reply(self, token_ids: Sequence[int], observation: Observation) -> ParsedReply:
        """The last fenced block, else what follows the last `ACTION:`, else the last line."""
        text = self.decode(token_ids)
        reasoning, command = self.taken_apart(text)
        action = parse_action(command, observation, self.grammar)
        if isinstance(action, str):
            return ParsedReply(text=text, reasoning=reasoning, error=action)
        return ParsedReply(text=text, reasoning=reasoning, action=action)

    def said(self, reason: str, action: str) -> str:
        """A reply as it is trained on."""
        return f"REASON: {reason}\nACTION: {action}"

    def taken_apart(self, text: str) -> tuple[str, str]:
        """Reasoning, and the part of a reply that holds its action."""
        return _split_reply(text)

    def world_model_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The page, earlier actions, and the action with the role and name of its element."""
        return self._chat(SYSTEM["delta"], doing(action, history, goal), observation)

    def full_page_prompt(
        self, observation: Observation, action: Action, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The same question for the whole next page."""
        return self._chat(SYSTEM["page"], doing(action, history, goal), observation)

    def rewrite_prompt(
        self, observation: Observation, action: Action, change: str, history: Sequence[Action] = (), goal: str = ""
    ) -> tuple[int, ...]:
        """The question for the whole next page, with the change in words."""
        return self._chat(REWRITE, f"{doing(action, history, goal)}\nCHANGE: {change}", observation)

    def turns(self, system: str, user: str) -> tuple[int, ...]:
        """A system and a user turn of plain text: everything before an answer. Nothing is cut."""
        return tuple(self._encode_chat(system, user))

    def world_model_target(self, text: str) -> tuple[int, ...]:
        """The answer and the end of the turn."""
        return self._target(text)

    def judge_prompt(self, trajectory: Trajectory) -> tuple[int, ...]:
        """Objective, actions, answer and final page; of a long page, its beginning and its end."""
        actions = [step.action for step in trajectory.steps if step.action is not None]
        page = trajectory.final or trajectory.steps[-1].observation
        answer = trajectory.answer if trajectory.answer is not None else "(it did not stop)"
        head = f"OBJECTIVE: {trajectory.task.intent}\nACTIONS:\n{_lines(actions)}\nANSWER: {answer}"
        return self._chat(_JUDGE, head, page, ends=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the stop token."""
        kept = [i for i in token_ids if i not in self.stop_ids]
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True)
        return text.strip()

    def _chat(self, system: str, user: str, page: Observation, *, ends: bool = False) -> tuple[int, ...]:
        text = render(page, "webarena")
        ids = self._encode_chat(system, f"{user}\nURL: {page.url}\nPAGE:\n{text}")
        if len(ids) > self.max_prompt:
            # Shorten the page, never the instructions: proportionally first, then until it fits.
            keep = int(len(text) * (1 - (len(ids) - self.max_prompt) / max(1, len(ids)))) - 64
            while len(ids) > self.max_prompt and keep > 0:
                kept = _both_ends(text, keep) if ends else f"{text[:keep]}\n[page cut]"
                ids = self._encode_chat(system, f"{user}\nURL: {page.url}\nPAGE:\n{kept}")
                keep = keep * 9 // 10
        return tuple(ids)

    def _encode_chat(self, system: str, user: str) -> list[int]:
        """Only the template's own marks become control tokens; instructions, goals and pages are plain text."""
        if self.tokenizer.chat_template is None:
            return self._plain(f"{system}\n\n{user}\n\n")
        messages = [{"role": "system", "content": _SLOTS[0]}, {"role": "user", "content": _SLOTS[1]}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = []
        for piece in _SLOT.split(text):
            content = {_SLOTS[0]: system, _SLOTS[1]: user}.get(piece)
            ids += self._plain(content) if content is not None else self._marked(piece)
        return ids

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    def _marked(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _target(self, text: str) -> tuple[int, ...]:
        return (*self._plain(text), self.tokenizer.eos_token_id)

    def _first(self, word: str) -> int:
        first: int = self.tokenizer(word, add_special_tokens=False).input_ids[0]
        return first

    def _turn_ends(self) -> list[int]:
        names = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
        vocabulary = self.tokenizer.get_vocab()
        return [vocabulary[name] for name in names if name in vocabulary]


def _both_ends(text: str, keep: int) -> str:
    """`keep` characters of a page: half from its beginning, half from its end."""
    end = keep // 2
    return f"{text[: keep - end]}\n[page cut]\n{text[len(text) - end :]}"


def _lines(actions: Sequence[Action], grammar: Grammar = "compact") -> str:
    lines = [f"{i}: {format_action(action, grammar, with_id=False)}" for i, action in enumerate(actions, 1)]
    return "\n".join(lines) or "none"


def _split_reply(text: str) -> tuple[str, str]:
    fences = list(_FENCE.finditer(text))
    if fences:
        return text[: fences[-1].start()].strip(), fences[-1].group(1).strip()
    sections = list(_SECTION.finditer(text))
    if sections:
        reasoning = re.sub(r"^\s*REASON\s*:\s*", "", text[: sections[-1].start()]).strip()
        return reasoning, text[sections[-1].end() :].strip()
    reasoning, _, last = text.strip().rpartition("\n")
    return reasoning, last
