"""What a policy says, parsed to an `Action`, and printed back: the grammars `compact` and `webarena`.

`compact` (for small models; the last line of the reply is the action, lines before it are reasoning):

    click 'Name' [12]                    hover 'Name' [3]
    type 'Name' [2] 'text'               type 'Name' [2] 'text' enter
    select 'Name' [4] 'Option'           press 'Enter'
    scroll down | scroll up              goto 'shop.localhost/cart'
    go_back  go_forward  new_tab  close_tab  wait  tab_focus 1  stop 'answer'

`webarena` (the action stands in the last block of three backticks, or on the last line):

    click [12]   hover [3]   type [2] [text] [1]   select [4] [option]   press [Enter]   scroll [down]   goto [url]
    go_back  go_forward  new_tab  close_tab  wait  tab_focus [1]  stop [answer]

No string crashes the parser: it gives an action, or an error text that the policy can read. Texts of every alphabet,
with quotes, brackets and newlines, come back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Literal

from dynaweb.types import ACTION_KINDS, TARGETED, Action, ActionKind, Node, Observation
from dynaweb.web.quoting import quote, scan

Grammar = Literal["compact", "webarena"]

EDITABLE = frozenset({"textbox", "searchbox", "spinbutton", "combobox"})
"""Roles that take typed text."""
SELECTABLE = frozenset({"combobox", "listbox"})
"""Roles whose options can be selected."""

_BARE: frozenset[ActionKind] = frozenset({"go_back", "go_forward", "new_tab", "close_tab", "wait"})
_FORMS: dict[Grammar, dict[ActionKind, str]] = {
    "compact": {
        "click": "click 'Name' [12]",
        "hover": "hover 'Name' [12]",
        "type": "type 'Name' [12] 'text' or type 'Name' [12] 'text' enter",
        "select": "select 'Name' [12] 'Option'",
        "press": "press 'Enter'",
        "scroll": "scroll down or scroll up",
        "goto": "goto 'url'",
        "tab_focus": "tab_focus 1",
        "stop": "stop 'answer'",
    },
    "webarena": {
        "click": "click [12]",
        "hover": "hover [12]",
        "type": "type [12] [text] [1] (0 = without Enter)",
        "select": "select [12] [option]",
        "press": "press [Enter]",
        "scroll": "scroll [down] or scroll [up]",
        "goto": "goto [url]",
        "tab_focus": "tab_focus [1]",
        "stop": "stop [answer]",
    },
}
_NUMBER = re.compile(r" ?\[([0-9]{1,9})\]")
_WORD = re.compile(r"[A-Za-z_]+")
_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_BRACKETED = re.compile(r"\s*\[(.*)\]", re.DOTALL)
_TARGETED_ARGUMENT = re.compile(r"\s*\[([0-9]{1,9})\](?:\s*\[(.*)\])?", re.DOTALL)
_ENTER_FLAG = re.compile(r"\]\s*\[(?:press_enter_after=)?([01])\Z")


class _Refused(Exception):
    """An action that cannot be taken as it was said; the message goes to the policy."""


def parse_action(reply: str, observation: Observation, grammar: Grammar = "compact") -> Action | str:
    """The action of a reply, or an error text that says what is wrong and what is valid. Never raises.

    `target_role` and `target_name` of the action come from the observation. An element number that is not there, a name
    that does not belong to it, a role that cannot take the action and an unknown option are errors.
    """
    parser = _parse_compact if grammar == "compact" else _parse_webarena
    try:
        return parser(reply, observation)
    except _Refused as refusal:
        return str(refusal)


def split_reply(reply: str) -> tuple[str, str]:
    """(reasoning, action line): the last line that is not blank, and everything before it."""
    lines = reply.strip().split("\n")
    return "\n".join(lines[:-1]).strip(), lines[-1].strip()


def format_action(action: Action, grammar: Grammar = "compact", *, with_id: bool = True) -> str:
    """The action in a grammar. Without `with_id` it is the form for histories: names, no numbers."""
    if grammar == "compact":
        return _format_compact(action, with_id)
    return _format_webarena(action, with_id)


def resolve(action: Action, observation: Observation) -> Action | str:
    """Check an action against its page and record its target's role and name; an error text if it cannot be done."""
    try:
        return _resolve(action, observation)
    except _Refused as refusal:
        return str(refusal)


def _resolve(action: Action, observation: Observation, name: str | None = None) -> Action:
    if action.kind not in TARGETED:
        return action
    node = _target(action.target, observation, name)
    _check_role(action, node)
    return Action(
        action.kind, node.id, action.text, action.enter, action.index, target_role=node.role, target_name=node.name
    )


def _target(number: int | None, observation: Observation, name: str | None) -> Node:
    node = None if number is None else observation.node(number)
    if node is None:
        raise _Refused(f"there is no element [{number}] on this page; {_what_exists(observation)}")
    if name is not None and _squeeze(name) != _squeeze(node.name):
        raise _Refused(f"element [{number}] is {node.role} {quote(node.name)}, not {quote(name)}")
    return node


def _check_role(action: Action, node: Node) -> None:
    if action.kind == "type" and node.role not in EDITABLE:
        raise _Refused(f"{_describe(node)} takes no text; type needs a textbox")
    if action.kind != "select":
        return
    if node.role not in SELECTABLE:
        raise _Refused(f"{_describe(node)} has no options; select needs a combobox")
    options = dict(node.props).get("options")
    if options is not None and _squeeze(action.text) not in map(_squeeze, options.split("|")):
        valid = " ".join(quote(option) for option in options.split("|"))
        raise _Refused(f"{_describe(node)} has no option {quote(action.text)}; it has {valid}")


def _what_exists(observation: Observation) -> str:
    if not observation.nodes:
        return "the page has no elements"
    first, last = observation.nodes[0].id, observation.nodes[-1].id
    return f"its elements are [{first}] to [{last}]"


def _describe(node: Node) -> str:
    return f"{node.role} {quote(node.name)} [{node.id}]"


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _kind(line: str, grammar: Grammar) -> ActionKind:
    match = _WORD.match(line)
    word = match[0] if match else ""
    for kind in ACTION_KINDS:
        if word == kind:
            return kind
    near = get_close_matches(word, ACTION_KINDS, n=1, cutoff=0.75) if len(word) < 40 else []
    hint = f"; did you mean {near[0]}?" if near else ""
    said = line[:60] + ("..." if len(line) > 60 else "")
    raise _Refused(f"not an action: {quote(said)}{hint} An action starts with one of {', '.join(ACTION_KINDS)}")


def _malformed(kind: ActionKind, grammar: Grammar, why: str) -> _Refused:
    return _Refused(f"{kind}: {why}; write {_FORMS[grammar].get(kind, kind)}")


# --- compact ---------------------------------------------------------------------------------------------------------


def _parse_compact(reply: str, observation: Observation) -> Action:
    _, line = split_reply(reply)
    if not line:
        raise _Refused("the reply is empty; its last line must be an action such as click 'Name' [12]")
    kind = _kind(line, "compact")
    rest = line[len(kind) :]
    try:
        action, name = _compact_arguments(kind, rest)
    except ValueError as error:
        raise _malformed(kind, "compact", str(error)) from None
    return _resolve(action, observation, name)


def _compact_arguments(kind: ActionKind, rest: str) -> tuple[Action, str]:
    """The action and the name it gives its target ('' for kinds without one)."""
    if kind in _BARE or (kind == "stop" and not rest):
        return _finish(Action(kind), rest), ""
    if kind == "scroll":
        return Action(kind, text=_direction(rest.removeprefix(" "))), ""
    if kind == "tab_focus":
        return Action(kind, index=_index(rest.removeprefix(" "))), ""
    text, end = scan(rest, 1) if rest.startswith(" ") else scan(rest, 0)
    if kind in ("press", "goto", "stop"):
        return _finish(Action(kind, text=text), rest[end:]), ""
    number = _NUMBER.match(rest, end)
    if number is None:
        raise ValueError("the element number is missing after the name")
    return _compact_target(kind, int(number[1]), rest[number.end() :]), text


def _compact_target(kind: ActionKind, target: int, tail: str) -> Action:
    if kind in ("click", "hover"):
        return _finish(Action(kind, target), tail)
    text, end = scan(tail, 1) if tail.startswith(" ") else scan(tail, 0)
    enter = kind == "type" and tail[end:] == " enter"
    return _finish(Action(kind, target, text, enter), "" if enter else tail[end:])


def _finish(action: Action, rest: str) -> Action:
    if rest.strip():
        raise ValueError(f"unexpected {quote(rest.strip()[:40])} at the end")
    return action


def _direction(text: str) -> str:
    if text not in ("up", "down"):
        raise ValueError(f"the direction is up or down, not {quote(text[:40])}")
    return text


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"the tab number is missing, got {quote(text[:40])}")
    return int(text)


def _format_compact(action: Action, with_id: bool) -> str:
    kind = action.kind
    if kind in TARGETED:
        number = f" [{action.target}]" if with_id else ""
        text = f" {quote(action.text)}" if kind in ("type", "select") else ""
        return f"{kind} {quote(action.target_name)}{number}{text}{' enter' if action.enter else ''}"
    if kind == "scroll":
        return f"scroll {action.text}"
    if kind == "tab_focus":
        return f"tab_focus {action.index}"
    return kind if kind in _BARE else f"{kind} {quote(action.text)}"


# --- webarena --------------------------------------------------------------------------------------------------------


def _parse_webarena(reply: str, observation: Observation) -> Action:
    """The whole reply if it is one action, else its last block of backticks, else its last line."""
    candidates = [reply.strip()]
    candidates += [block.strip() for block in _FENCE.findall(reply)[-1:]] or [split_reply(reply)[1]]
    refusal = _Refused("the reply is empty")
    for candidate in candidates:
        try:
            return _webarena_action(candidate, observation)
        except _Refused as error:
            refusal = error
    raise refusal


def _webarena_action(line: str, observation: Observation) -> Action:
    if not line:
        raise _Refused("the reply is empty; it must hold an action such as click [12]")
    kind = _kind(line, "webarena")
    try:
        action = _webarena_arguments(kind, line[len(kind) :])
    except ValueError as error:
        raise _malformed(kind, "webarena", str(error)) from None
    return _resolve(action, observation)


def _webarena_arguments(kind: ActionKind, rest: str) -> Action:
    if kind in _BARE or (kind == "stop" and not rest):
        return _finish(Action(kind), rest)
    if kind in TARGETED:
        return _webarena_target(kind, rest)
    match = _BRACKETED.fullmatch(rest)
    if match is None:
        raise ValueError("its argument stands in [ ]")
    if kind == "scroll":
        return Action(kind, text=_direction(match[1].removeprefix("direction=").strip()))
    if kind == "tab_focus":
        return Action(kind, index=_index(match[1].strip()))
    return Action(kind, text=match[1])


def _webarena_target(kind: ActionKind, rest: str) -> Action:
    match = _TARGETED_ARGUMENT.fullmatch(rest)
    if match is None:
        raise ValueError("the element number stands in [ ]")
    target, text = int(match[1]), match[2]
    takes_text = kind in ("type", "select")
    if takes_text != (text is not None):
        raise ValueError("the text stands in a second [ ]" if takes_text else "one element number is all it takes")
    if kind != "type":
        return Action(kind, target, text or "")
    flag = _ENTER_FLAG.search(text)
    return Action(kind, target, text[: flag.start()] if flag else text, enter=flag is None or flag[1] == "1")


def _format_webarena(action: Action, with_id: bool) -> str:
    kind = action.kind
    if kind not in TARGETED:
        if kind in _BARE:
            return kind
        return f"{kind} [{action.index if kind == 'tab_focus' else action.text}]"
    target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
    flags: dict[ActionKind, Callable[[], str]] = {
        "type": lambda: f" [{action.text}] [{int(action.enter)}]",
        "select": lambda: f" [{action.text}]",
    }
    return f"{kind} [{target}]" + flags.get(kind, str)()
