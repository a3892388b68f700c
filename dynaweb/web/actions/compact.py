"""The grammar `compact`: for small models, with the name before the number. See `dynaweb.web.actions.grammar`."""

from __future__ import annotations

import re

from dynaweb.types import ACTION_KINDS, TARGETED, Action, ActionKind, Observation
from dynaweb.web.actions.rules import AIMED, BARE, Refused, direction, finish, misspelt, resolve, tab_index
from dynaweb.web.quoting import quote, scan

_FORMS: dict[ActionKind, str] = {
    "click": "click 'Name' [12]",
    "hover": "hover 'Name' [12]",
    "type": "type 'Name' [12] 'text' or type 'Name' [12] 'text' enter",
    "select": "select 'Name' [12] 'Option'",
    "press": "press 'Enter' or press 'Name' [12] 'Enter'",
    "scroll": "scroll down, scroll up or scroll 'Name' [12] down",
    "goto": "goto 'url'",
    "tab_focus": "tab_focus 1",
    "stop": "stop 'answer'",
}
_NUMBER = re.compile(r" ?\[([0-9]{1,9})\]")
_WORD = re.compile(r"[A-Za-z_]+")


def parse(reply: str, observation: Observation) -> Action:
    """The action on the last line of a reply. Raises `Refused`."""
    line = reply.strip().rpartition("\n")[2].strip()
    if not line:
        raise Refused("the reply is empty; its last line must be an action such as click 'Name' [12]")
    kind = kind_of(line)
    try:
        action, name = _arguments(kind, line[len(kind) :])
    except ValueError as error:
        raise Refused(f"{kind}: {error}; write {_FORMS.get(kind, kind)}") from None
    return resolve(action, observation, name)


def kind_of(line: str) -> ActionKind:
    """The kind that a line's first word names. Raises `Refused`."""
    match = _WORD.match(line)
    word = match[0] if match else ""
    for kind in ACTION_KINDS:
        if word == kind:
            return kind
    raise Refused(misspelt(line, ACTION_KINDS))


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse` reads it; without its number when `with_id` is false."""
    kind = action.kind
    number = f" [{action.target}]" if with_id else ""
    target = f" {quote(action.target_name)}{number}" if action.target is not None else ""
    if kind in TARGETED:
        text = f" {quote(action.text)}" if kind in ("type", "select") else ""
        return f"{kind} {quote(action.target_name)}{number}{text}{' enter' if action.enter else ''}"
    if kind == "scroll":
        return f"scroll{target} {action.text}"
    if kind == "press":
        return f"press{target} {quote(action.text)}"
    if kind == "tab_focus":
        return f"tab_focus {action.index}"
    return kind if kind in BARE else f"{kind} {quote(action.text)}"


def _arguments(kind: ActionKind, rest: str) -> tuple[Action, str]:
    """The action and the name it gives its target ('' for kinds without one)."""
    if kind in BARE or (kind == "stop" and not rest):
        return finish(Action(kind), rest), ""
    if kind == "scroll" and "'" not in rest:
        return Action(kind, text=direction(rest.removeprefix(" "))), ""
    if kind == "tab_focus":
        return Action(kind, index=tab_index(rest.removeprefix(" "))), ""
    text, end = scan(rest, 1) if rest.startswith(" ") else scan(rest, 0)
    number = _NUMBER.match(rest, end)
    if kind in ("goto", "stop") or (kind == "press" and number is None):
        return finish(Action(kind, text=text), rest[end:]), ""
    if number is None:
        raise ValueError("the element number is missing after the name")
    return _on_target(kind, int(number[1]), rest[number.end() :]), text


def _on_target(kind: ActionKind, target: int, tail: str) -> Action:
    if kind in ("click", "hover"):
        return finish(Action(kind, target), tail)
    if kind == "scroll":
        return Action(kind, target, direction(tail.removeprefix(" ")))
    text, end = scan(tail, 1) if tail.startswith(" ") else scan(tail, 0)
    if kind in AIMED:
        return finish(Action(kind, target, text), tail[end:])
    enter = kind == "type" and tail[end:] == " enter"
    return finish(Action(kind, target, text, enter), "" if enter else tail[end:])
