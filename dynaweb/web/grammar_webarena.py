"""The grammar `webarena`: the actions of the WebArena benchmark (arXiv 2307.13854). See `dynaweb.web.actions`.

Beyond the benchmark: `select [12] [option]`, `press [12] [Enter]` and `scroll [12] [down]` for one element, `wait`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dynaweb.types import TARGETED, Action, ActionKind, Observation
from dynaweb.web.action_rules import AIMED, BARE, Refused, direction, finish, resolve, tab_index
from dynaweb.web.grammar_compact import kind_of
from dynaweb.web.quoting import quote

_FORMS: dict[ActionKind, str] = {
    "click": "click [12]",
    "hover": "hover [12]",
    "type": "type [12] [text] [1] (0 = without Enter)",
    "select": "select [12] [option]",
    "press": "press [Enter]",
    "scroll": "scroll [down] or scroll [up]",
    "goto": "goto [url]",
    "tab_focus": "tab_focus [1]",
    "stop": "stop [answer]",
}
_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_BRACKETED = re.compile(r"\s*\[(.*)\]", re.DOTALL)
_TARGETED_ARGUMENT = re.compile(r"\s*\[([0-9]{1,9})\](?:\s*\[(.*)\])?", re.DOTALL)
_ENTER_FLAG = re.compile(r"\]\s*\[(?:press_enter_after=)?([01])\Z")


def parse(reply: str, observation: Observation) -> Action:
    """The whole reply if it is one action, else its last block of backticks, else its last line. Raises `Refused`."""
    whole = reply.strip()
    last = whole.rpartition("\n")[2].strip()
    fenced = [block.strip() for block in _FENCE.findall(reply)[-1:]]
    refusals: list[Refused] = []
    for candidate in dict.fromkeys([whole, *fenced, last]):
        try:
            return _parse_line(candidate, observation)
        except Refused as error:
            refusals.append(error)
    raise refusals[min(1, len(refusals) - 1)]


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse` reads it; its target by role and name when `with_id` is false."""
    kind = action.kind
    if kind in BARE:
        return kind
    if action.target is None and kind not in TARGETED:
        return f"{kind} [{action.index if kind == 'tab_focus' else action.text}]"
    target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
    tails: dict[ActionKind, Callable[[], str]] = {
        "click": str,
        "hover": str,
        "type": lambda: f" [{action.text}] [{int(action.enter)}]",
    }
    return f"{kind} [{target}]{tails.get(kind, lambda: f' [{action.text}]')()}"


def _parse_line(line: str, observation: Observation) -> Action:
    if not line:
        raise Refused("the reply is empty; it must hold an action such as click [12]")
    kind = kind_of(line)
    try:
        action = _arguments(kind, line[len(kind) :])
    except ValueError as error:
        raise Refused(f"{kind}: {error}; write {_FORMS.get(kind, kind)}") from None
    return resolve(action, observation)


def _arguments(kind: ActionKind, rest: str) -> Action:
    if kind in BARE or (kind == "stop" and not rest):
        return finish(Action(kind), rest)
    if kind in TARGETED or (kind in AIMED and (aimed := _TARGETED_ARGUMENT.fullmatch(rest)) and aimed[2] is not None):
        return _on_target(kind, rest)
    match = _BRACKETED.fullmatch(rest)
    if match is None:
        raise ValueError("its argument stands in [ ]")
    if kind == "scroll":
        return Action(kind, text=_direction(match[1]))
    if kind == "tab_focus":
        return Action(kind, index=tab_index(match[1].strip()))
    return Action(kind, text=match[1])


def _on_target(kind: ActionKind, rest: str) -> Action:
    match = _TARGETED_ARGUMENT.fullmatch(rest)
    if match is None:
        raise ValueError("the element number stands in [ ]")
    target, text = int(match[1]), match[2]
    takes_text = kind not in ("click", "hover")
    if takes_text != (text is not None):
        raise ValueError("the text stands in a second [ ]" if takes_text else "one element number is all it takes")
    if kind == "scroll":
        return Action(kind, target, _direction(text))
    if kind != "type":
        return Action(kind, target, text or "")
    flag = _ENTER_FLAG.search(text)
    return Action(kind, target, text[: flag.start()] if flag else text, enter=flag is None or flag[1] == "1")


def _direction(text: str) -> str:
    return direction(text.strip().removeprefix("direction=").strip())
