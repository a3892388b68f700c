"""What a policy is asked in words, and how its answer is read: the part of a prompt layer that knows no tokens.

`ChatFormat` makes tokens of it; a policy behind a server takes it as it is. Subclasses, and files that a recipe names
(`policy.prompt`), change the instructions, the grammar and the form of a reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, ImageError
from dynaweb.protocols import ParsedReply
from dynaweb.types import History
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action
from dynaweb.web.page.text import render

if TYPE_CHECKING:
    from dynaweb.policy.prompt_file import PromptFile
    from dynaweb.policy.settings import Modality
    from dynaweb.types import Action, Image, Observation, Task

_AGENT = """You operate a web browser to reach an objective. Each turn shows the page as an accessibility tree in which
elements carry numbers, and your earlier actions. Answer in two sections:
REASON: what you see and what to do next, in a sentence or two
ACTION: exactly one of
click [id] | hover [id] | type [id] [text] [1 to press Enter, else 0] | select [id] [option] | press [keys] |
scroll [down or up] | goto [url] | go_back | go_forward | new_tab | tab_focus [index] | close_tab | stop [answer]
Use stop when the objective is reached, with the answer if one is asked for, or with N/A if it cannot be reached."""
PICTURED = "(the picture shows it)"
"""What stands for the text of a page that is shown as a picture alone."""
CUT_REPLY = "the reply was cut before its action was whole; policy.max_new_tokens is how many tokens it may have"
"""Why a reply that did not end has no action."""
_FENCE_MARK = re.compile("```")
_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_NUMBERED = re.compile(r"^(\t*)\[\d+\] ", re.MULTILINE)
# Spaces only: with `\s`, which takes line breaks too, a reply of many empty lines takes the square of its length.
_SECTION = re.compile(r"^[ \t]*ACTION[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)


class PolicyPrompt:
    """The question to a policy, and its reply; `file` overrides what is here."""

    instructions: str = _AGENT
    """What the policy is told first."""
    grammar: str = "webarena"
    """The grammar of its actions."""
    history: str = "compact"
    """The grammar in which it is shown its earlier actions."""
    section: re.Pattern[str] = _SECTION
    """What stands before the action of a reply, where no fence is around it."""

    def __init__(self, file: PromptFile) -> None:
        self._file = file
        self.instructions = file.system or self.instructions
        self.grammar = file.grammar or self.grammar
        # Asked for before the first episode: a format that is blocked should not end a run in its middle.
        observation_formats.dialect("webarena"), observation_formats.grammar(self.grammar)

    def question(self, task: Task, page: Observation, history: Sequence[Action]) -> tuple[str, str, str]:
        """Instructions, and the user's text before and after the page (WebArena's text of it)."""
        past, pages = numbered(history, self.history, self._file.past_actions), self.earlier(history)
        goal = goal_text(task)
        if self._file.user:
            return self.instructions, *self._file.question(goal, past, page.url, pages or "none")
        head = f"OBJECTIVE: {goal}\n"
        if self._file.past_pages:
            head += f"EARLIER PAGES:\n{pages or 'none'}\n"
        return self.instructions, *with_page(f"{head}PREVIOUS ACTIONS:\n{past}", page)

    def earlier(self, history: Sequence[Action]) -> str:
        """The last `past_pages` pages before the present one, oldest first; '' where none is shown.

        A page has the number of the action that was done on it. Its elements have none, which would mean others on the
        present page.
        """
        pages = history.pages if isinstance(history, History) else []
        shown = list(enumerate(pages, 1))[max(0, len(pages) - self._file.past_pages) :]
        texts = [(number, page.url, _NUMBERED.sub(r"\1", render(page, "webarena"))) for number, page in shown]
        return "\n".join(f"PAGE {number}: {url}\n{text}" for number, url, text in texts)

    def reply(self, action: Action, reasoning: str = "") -> str:
        """A reply as it is trained on."""
        reason, text = reasoning or "This is the next step.", format_action(action, self.grammar)
        return self._file.answer(reason, text) if self._file.reply else self.reply_text(reason, text)

    def parse(self, text: str, page: Observation, thought: str = "", *, finished: bool = True) -> ParsedReply:
        """An answer without its thought: the last fenced block, else what stands behind the last `ACTION:`, else the
        last line.

        Of a reply that is not `finished`, only an action that is whole counts (`closed`).
        """
        answer = text if finished else self.closed(text)
        if not answer and text:
            return ParsedReply(text=text, reasoning=thought, error=CUT_REPLY)
        reason, command = self._file.parts(answer) or self.reply_parts(answer)
        reasoning = "\n".join(filter(None, (thought, reason)))
        action = parse_action(command, page, self.grammar)
        if isinstance(action, str):
            return ParsedReply(text=text, reasoning=reasoning, error=action)
        return ParsedReply(text=text, reasoning=reasoning, action=action)

    def closed(self, text: str) -> str:
        """The part of a reply without an end up to its action, if that is whole: its fence is closed, or the line after
        its mark has ended. '' for any other."""
        fences = [fence.end() for fence in _FENCE_MARK.finditer(text)]
        if fences:
            return text[: fences[-1]] if len(fences) % 2 == 0 else ""
        start = self._file.action_start(text)
        if start is None:
            start = max((mark.end() for mark in self.section.finditer(text)), default=None)
        if start is None:
            return ""
        line, ended, _ = text[start:].lstrip().partition("\n")
        return f"{text[:start]}{line}" if ended else ""

    def reply_text(self, reason: str, action: str) -> str:
        """A reply with that reasoning and that action."""
        return f"REASON: {reason}\nACTION: {action}"

    def reply_parts(self, text: str) -> tuple[str, str]:
        """Reasoning, and the part of a reply that holds its action."""
        return _split_reply(text)


def goal_text(task: Task) -> str:
    """The goal in words, which say what pictures belong to it."""
    if not task.images:
        return task.intent
    which = "picture belongs" if len(task.images) == 1 else f"{len(task.images)} pictures belong"
    return f"{task.intent} (the first {which} to this objective)"


def check_goal(task: Task, *, sees: bool) -> None:
    """Raise `ConfigError` for a goal with pictures, where the policy reads text alone."""
    if task.images and not sees:
        raise ConfigError(
            f"the goal of task {task.id!r} comes with {len(task.images)} images, and this policy reads text alone; set "
            "observation.modality = both with a model that sees, or leave the task out"
        )


def shown_images(task: Task, page: Observation, modality: Modality) -> tuple[Image, ...]:
    """The pictures that a policy is shown: those of the goal, then that of the page, which `modality` text leaves out.

    Raises `ImageError` for a page without a screenshot.
    """
    if modality == "text":
        return task.images
    if page.screenshot is None:
        raise ImageError(
            f"the page {page.url} has no screenshot, and the policy is to see one (observation.modality = {modality}); "
            "play the episode again in a browser that takes them, or set observation.modality = text"
        )
    return (*task.images, page.screenshot.image)


def with_page(text: str, page: Observation) -> tuple[str, str]:
    """A user's text that ends with the address and the page: what stands before and after the page."""
    return f"{text}\nURL: {page.url}\nPAGE:\n", ""


def numbered(actions: Sequence[Action], grammar: str = "compact", last: int | None = None) -> str:
    """One numbered line for each of the `last` actions (None = all)."""
    lines = [f"{i}: {format_action(action, grammar, with_id=False)}" for i, action in enumerate(actions, 1)]
    return "\n".join(lines if last is None else lines[max(0, len(lines) - last) :]) or "none"


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
