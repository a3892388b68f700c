"""What all action grammars share: the refusal, the check of an action against its page, and small arguments."""

from __future__ import annotations

from difflib import get_close_matches

from dynaweb.types import TARGETED, Action, ActionKind, Node, Observation
from dynaweb.web.near_options import no_option
from dynaweb.web.quoting import quote

TEXTBOXES = frozenset({"textbox", "searchbox", "spinbutton"})
"""Roles that take typed text and nothing else."""
EDITABLE = TEXTBOXES | {"combobox"}
"""Roles that take typed text; a combobox may offer options instead."""
SELECTABLE = frozenset({"combobox", "listbox"})
"""Roles whose options can be selected."""
BARE: frozenset[ActionKind] = frozenset({"go_back", "go_forward", "new_tab", "close_tab", "wait"})
"""Kinds of action without any argument."""
AIMED: frozenset[ActionKind] = frozenset({"press", "scroll"})
"""Kinds that may name an element: the one that gets the key, the one inside which the page scrolls."""


class Refused(Exception):
    """An action that cannot be taken as it was said; the message goes to the policy."""


def resolve(action: Action, observation: Observation, name: str | None = None) -> Action:
    """The action with its target's role and name, checked against its page. Raises `Refused`.

    `name` is what the reply calls the target; None when its grammar has no names.
    """
    if action.kind not in TARGETED and (action.kind not in AIMED or action.target is None):
        return action
    node = _target(action.target, observation, name)
    _check_role(action, node)
    return Action(
        action.kind, node.id, action.text, action.enter, action.index, target_role=node.role, target_name=node.name
    )


def misspelt(line: str, valid: tuple[str, ...]) -> str:
    """What to say about a word that no action starts with."""
    word = line.split("(")[0].split("[")[0].strip()
    near = get_close_matches(word.split(" ")[0], valid, n=1, cutoff=0.75) if len(word) < 40 else []
    hint = f"; did you mean {near[0]}?" if near else ""
    clipped = line[:60] + ("..." if len(line) > 60 else "")
    return f"not an action: {quote(clipped)}{hint} An action starts with one of {', '.join(valid)}"


def finish(action: Action, rest: str) -> Action:
    """The action, if nothing follows it. Raises `ValueError`."""
    if rest.strip():
        raise ValueError(f"unexpected {quote(rest.strip()[:40])} at the end")
    return action


def direction(text: str) -> str:
    """`up` or `down`. Raises `ValueError`."""
    if text not in ("up", "down"):
        raise ValueError(f"the direction is up or down, not {quote(text[:40])}")
    return text


def tab_index(text: str) -> int:
    """A tab number. Raises `ValueError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"the tab number is missing, got {quote(text[:40])}")
    return int(text)


def element(text: str) -> int:
    """An element number. Raises `ValueError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"the element is a number such as 12, not {quote(text[:40])}")
    return int(text)


def _target(number: int | None, observation: Observation, name: str | None) -> Node:
    node = None if number is None else observation.node(number)
    if node is None:
        raise Refused(f"there is no element [{number}] on this page; {_what_exists(observation)}")
    if name is not None and _squeeze(name) != _squeeze(node.name):
        raise Refused(f"element [{number}] is {node.role} {quote(node.name)}, not {quote(name)}")
    return node


def _check_role(action: Action, node: Node) -> None:
    if action.kind == "type" and node.role not in EDITABLE:
        raise Refused(f"{_describe(node)} takes no text; type needs a textbox")
    if action.kind != "select":
        return
    if node.role not in SELECTABLE:
        raise Refused(f"{_describe(node)} has no options; select needs a combobox")
    props = dict(node.props)
    options = props.get("options")
    # Of a long list the page tells a few; only the browser knows the others.
    if options is None or "total" in props:
        return
    if _squeeze(action.text) not in map(_squeeze, options.split("|")):
        raise Refused(no_option(_describe(node), action.text, options.split("|")))


def _what_exists(observation: Observation) -> str:
    if not observation.nodes:
        return "the page has no elements"
    first, last = observation.nodes[0].id, observation.nodes[-1].id
    return f"its elements are [{first}] to [{last}]"


def _describe(node: Node) -> str:
    return f"{node.role} {quote(node.name)} [{node.id}]"


def _squeeze(text: str) -> str:
    return " ".join(text.split())
