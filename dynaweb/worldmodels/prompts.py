"""The question to a world model in words, for chat models: local ones, servers, and the data of other trainers.

A question is a system and a user text: what to write, then the action with the role and name of its element, the
address, and the page as WebArena's text. Between the page and the action stand, where asked for, earlier actions and
examples: real transitions with their true answers. After DynaWeb (arXiv 2601.22149, appendix A.2), whose two sections
(change, next page) are the two forms here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from dynaweb.types import Action, Observation, Transition
from dynaweb.web.actions.grammar import format_action
from dynaweb.web.page.text import render
from dynaweb.worldmodels.change import change_text, goal_of, history_of
from dynaweb.worldmodels.pages import page_answer

Form = Literal["delta", "page", "words"]
"""What a world model writes: reasoning and edits, the whole next page, or reasoning and change in words only."""
FORMS: tuple[Form, ...] = get_args(Form)

_TASK = """You predict how a web page changes. You get the accessibility tree of a page, in which elements carry
numbers, and the action that is done on it."""

SYSTEM: dict[Form, str] = {
    "delta": f"""{_TASK}
First write one sentence of reasoning. Then the new page as a script, one line for each part of the new page in order:
url PATH (only if it changes) | = [a]-[b] (elements a to b of the old page stay) | + role 'name' (a new element) |
~ [id] = 'value' (an element stays with a new value) | same (nothing changes at all). What is not kept is gone.
Then, if it says more than the reasoning, one line that begins with # and says in a sentence what changed. A last line
`end` means that the task is over.""",
    "page": f"""{_TASK}
Write the whole next page: its url on the first line, then one line `role 'name'` for each element, without numbers;
a value follows as ` = 'value'`. A last line `end` means that the task is over.""",
    "words": f"""{_TASK}
First write one sentence of reasoning, then one line that begins with # and says in a sentence what changes.""",
}
"""What to write, for each form."""

REWRITE = """You get the accessibility tree of a web page, the action that is done on it, and what changes, in words.
Write the whole next page: its url on the first line, then one line `role 'name'` for each element, without numbers;
a value follows as ` = 'value'`. What the change does not speak of stays as it is."""
"""The second half of DynaWeb's factorisation: the page is written from the change in words."""


def doing(action: Action, history: Sequence[Action] = (), goal: str = "") -> str:
    """The goal, earlier actions, and the action with the role and name of its element."""
    target = f" on the {action.target_role} {action.target_name!r}" if action.target is not None else ""
    lines = [f"{i}: {format_action(past, 'compact', with_id=False)}" for i, past in enumerate(history, 1)]
    earlier = "\n".join(lines) or "none"
    objective = f"OBJECTIVE: {goal}\n" if goal else ""
    return f"{objective}EARLIER ACTIONS:\n{earlier}\nACTION: {format_action(action, 'webarena')}{target}"


def question(
    page: Observation, action: Action, history: Sequence[Action] = (), *, change: str = "", goal: str = ""
) -> str:
    """The user text: what is done, address and page; with `change`, what changes."""
    changes = f"\nCHANGE: {change}" if change else ""
    return f"{doing(action, history, goal)}{changes}\nURL: {page.url}\nPAGE:\n{render(page, 'webarena')}"


def answer(transition: Transition, form: Form) -> str:
    """The true answer of a transition in that form."""
    return page_answer(transition) if form == "page" else change_text(transition, edits=form == "delta")


def with_examples(
    text: str, examples: Sequence[Transition], form: Form, *, history: int = 0, goal: bool = False
) -> str:
    """A user text behind real transitions with their true answers."""

    def asks(t: Transition) -> str:
        return question(t.observation, t.action, recent(history_of(t), history), goal=goal_of(t) if goal else "")

    solved = [f"EXAMPLE {number}\n{asks(t)}\nANSWER:\n{answer(t, form)}\n" for number, t in enumerate(examples, 1)]
    return "\n".join([*solved, f"NOW\n{text}"]) if solved else text


def recent(history: Sequence[Action], count: int) -> tuple[Action, ...]:
    """The last `count` actions."""
    return tuple(history[len(history) - count :]) if 0 < count < len(history) else tuple(history) if count else ()


def label_question(transition: Transition) -> tuple[str, str]:
    """System and user text that ask for the words of a transition, with its true next page in view (DynaWeb)."""
    page = render(transition.next_observation, "webarena")
    text = question(transition.observation, transition.action, history_of(transition), goal=goal_of(transition))
    return LABEL, f"{text}\nNEXT URL: {transition.next_observation.url}\nNEXT PAGE:\n{page}"


LABEL = """You explain how a web page changed. You get the accessibility tree of a page, the action that was done on it,
and the page that followed. Answer with two lines:
REASONING: one sentence: why this action leads to that page, as if you had not seen it yet
CHANGE: one sentence: what changed"""
"""What a labeller is asked for."""

__all__ = [
    "FORMS",
    "LABEL",
    "REWRITE",
    "SYSTEM",
    "Form",
    "answer",
    "doing",
    "label_question",
    "question",
    "recent",
    "with_examples",
]
