"""Instructions of one action each, made for any page: what the base model learns to do in one step.

Instructions of two or three actions name every one of them in order; none of the sites' tasks is among them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dynaweb.types import Action, Node, Observation
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.worldmodels.dynamics import flag, options

_PAIR = re.compile(r"^([^:]{2,24}): (.{1,40})$")
_AMOUNT = re.compile(r"\d+(?:[.,]\d+)?")
CLICKABLE = frozenset({"link", "button", "checkbox", "radio"})

_CLICK = ("Click '{}'.", "Open '{}'.", "Go to '{}'.", "Press '{}'.", "Follow '{}'.", "Use '{}'.")
_BELOW = ("Click '{}' below '{}'.", "Press '{}' under '{}'.", "Use '{}' of '{}'.", "Click '{}' for '{}'.")
_TYPE = ("Type '{1}' into '{0}'.", "Set '{0}' to '{1}'.", "Write '{1}' in '{0}'.", "Enter '{1}' as '{0}'.")
_ENTER = ("Type '{1}' into '{0}' and press Enter.", "Enter '{1}' in '{0}' and submit it.")
_SEARCH = ("Look for '{1}'.", "Search '{1}'.", "Search for '{1}'.", "Type '{1}' into '{0}' and press Enter.")
_SELECT = ("Select '{1}' in '{0}'.", "Set '{0}' to '{1}'.", "Choose '{1}' as '{0}'.")
_BESIDE = ("What stands below '{}'?", "Tell what follows '{}'.", "Answer with the text under '{}'.")
_READ = ("What is the {0}?", "Tell the {0}.", "Answer with the {0}.", "Give the value of {0}.")
_READ_OF = ("What is the {0} of '{1}'?", "Tell the {0} of '{1}'.", "Answer with the {0} of '{1}'.")
_LEAST = ("Which has the lowest {0}?", "Name the one with the smallest {0}.", "Answer with the least {0}.")
_MOST = ("Which has the highest {0}?", "Name the one with the largest {0}.", "Answer with the most {0}.")


@dataclass(frozen=True, slots=True)
class Instruction:
    """Words, and the one action that they ask for on a page; `actions` are the earlier ones, as history."""

    intent: str
    action: Action
    history: tuple[Action, ...] = ()


def single(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    """One instruction for this page, or None when it has nothing of the kind drawn; `word` gives new pseudo-words."""
    return rng.choice(_KINDS)(page, rng, word)


def sequence(pages: Sequence[Observation], actions: Sequence[Action], rng: random.Random) -> Instruction | None:
    """`Click 'A', then click 'B'.` for a walk of two or three actions, at a random point of it, its end included.

    `pages` has one page more than `actions`.
    """
    parts = [_phrase(action, rng) for action in actions]
    if None in parts:
        return None
    at = rng.randrange(len(actions) + 1)
    joined = rng.choice((", then ", " and then ", "; ")).join(part for part in parts if part)
    following = actions[at] if at < len(actions) else Action("stop")
    return Instruction(joined + ".", following, tuple(actions[:at]))


def on(node: Node, kind: str = "click", text: str = "", *, enter: bool = False) -> Action:
    """An action on an element."""
    return Action(kind, node.id, text, enter, target_role=node.role, target_name=node.name)  # type: ignore[arg-type]


def pairs(page: Observation) -> list[tuple[int, str, str]]:
    """(position, key, value) of every `Key: value` text of the page."""
    found = []
    for i, node in enumerate(page.nodes):
        match = _PAIR.match(node.name) if node.role in ("text", "status") else None
        if match:
            found.append((i, match[1], match[2]))
    return found


def listed(page: Observation) -> dict[str, list[tuple[str, str]]]:
    """For each key, the (name, value) entries of a list: a link with a text `Key: value` below it."""
    entries: dict[str, list[tuple[str, str]]] = {}
    owner: Node | None = None
    spoken: dict[int, str] = {i: key for i, key, _ in pairs(page)}
    values = {i: value for i, _, value in pairs(page)}
    for i, node in enumerate(page.nodes):
        if node.role == "link":
            owner = node
        elif node.role in ("heading", "button", "textbox"):
            owner = None
        elif i in spoken and owner is not None:
            entries.setdefault(spoken[i], []).append((owner.name, values[i]))
    return {key: found for key, found in entries.items() if len({name for name, _ in found}) == len(found) > 1}


def amount(text: str) -> float | None:
    """The number in a text, or None."""
    match = _AMOUNT.search(text)
    return float(match[0].replace(",", ".")) if match else None


def _unique(page: Observation, rng: random.Random, keep: Callable[[Node], bool]) -> Node | None:
    names = [node.name for node in page.nodes if node.role in CLICKABLE | TEXTBOXES | {"combobox"}]
    usable = [n for n in page.nodes if keep(n) and n.name and names.count(n.name) == 1 and not flag(n, "disabled")]
    return rng.choice(usable) if usable else None


def _click(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    node = _unique(page, rng, lambda n: n.role in CLICKABLE)
    return Instruction(rng.choice(_CLICK).format(node.name), on(node)) if node else None


def _below(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    """An element whose name occurs more than once, found by a name above it."""
    names = [node.name for node in page.nodes if node.role in CLICKABLE]
    at = [i for i, n in enumerate(page.nodes) if n.role in CLICKABLE and n.name and names.count(n.name) > 1]
    if not at:
        return None
    i = rng.choice(at)
    node = page.nodes[i]
    named = ("link", "heading", "text")
    above = next((n for n in page.nodes[:i][::-1] if n.role in named and n.name != node.name), None)
    return Instruction(rng.choice(_BELOW).format(node.name, above.name), on(node)) if above else None


def _text(page: Observation, rng: random.Random, word: Callable[[], str]) -> str:
    names = [node.name for node in page.nodes if 0 < len(node.name) <= 30 and ":" not in node.name]
    made = (word().capitalize(), f"{word().capitalize()} {word().capitalize()}", str(rng.randrange(2, 99)))
    mail = f"{word()}@{word()}.com"
    sentence = f"{word().capitalize()} {word()} {word()}"
    return rng.choice((*made, sentence, mail, rng.choice(names) if names else sentence))


def _type(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    node = _unique(page, rng, lambda n: n.role in TEXTBOXES)
    if node is None:
        return None
    text = _text(page, rng, word)
    search = node.name == "Search"
    enter = search or rng.random() < 0.2
    phrase = rng.choice(_SEARCH if search else _ENTER if enter else _TYPE).format(node.name, text)
    return Instruction(phrase, on(node, "type", text, enter=enter))


def _type_below(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    """A field without a label, found by the text above it."""
    names = [node.name for node in page.nodes]
    at = [i for i, n in enumerate(page.nodes) if i and n.role in TEXTBOXES and (not n.name or names.count(n.name) > 1)]
    if not at:
        return None
    i = rng.choice(at)
    text = _text(page, rng, word)
    phrase = rng.choice(_TYPE).format(page.nodes[i - 1].name, text)
    return Instruction(phrase, on(page.nodes[i], "type", text)) if page.nodes[i - 1].name else None


def _select(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    node = _unique(page, rng, lambda n: bool(options(n)))
    if node is None:
        return None
    option = rng.choice(options(node))
    return Instruction(rng.choice(_SELECT).format(node.name, option), on(node, "select", option))


def _read(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    found = pairs(page)
    keys = [key for _, key, _ in found]
    usable = [(key, value) for _, key, value in found if keys.count(key) == 1]
    if not usable:
        return None
    key, value = rng.choice(usable)
    return Instruction(rng.choice(_READ).format(_lower(key)), Action("stop", text=value))


def _read_of(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    lists = listed(page)
    if not lists:
        return None
    key = rng.choice(sorted(lists))
    name, value = rng.choice(lists[key])
    return Instruction(rng.choice(_READ_OF).format(_lower(key), name), Action("stop", text=value))


def _beside(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    """The text that follows a link or a heading."""
    names = [node.name for node in page.nodes]
    couples = zip(page.nodes, page.nodes[1:], strict=False)
    usable = [(a.name, b.name) for a, b in couples if a.role in ("link", "heading") and b.role == "text"]
    usable = [(name, text) for name, text in usable if name and names.count(name) == 1]
    if not usable:
        return None
    name, text = rng.choice(usable)
    return Instruction(rng.choice(_BESIDE).format(name), Action("stop", text=text))


def _extreme(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    lists = {key: [(name, amount(value)) for name, value in found] for key, found in listed(page).items()}
    lists = {key: found for key, found in lists.items() if all(value is not None for _, value in found)}
    if not lists:
        return None
    key = rng.choice(sorted(lists))
    values = sorted((value, name) for name, value in lists[key] if value is not None)
    least = rng.random() < 0.5
    if values[0][0] == values[1][0] or values[-1][0] == values[-2][0]:
        return None
    name = values[0][1] if least else values[-1][1]
    return Instruction(rng.choice(_LEAST if least else _MOST).format(_lower(key)), Action("stop", text=name))


def _say(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    text = _text(page, rng, word)
    phrase = rng.choice(("Answer '{}'.", "Say '{}'.", "Stop with '{}'."))
    return Instruction(phrase.format(text), Action("stop", text=text))


def _give_up(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    phrase = rng.choice(("Say that it is not possible.", "Give up.", "Answer that there is none."))
    return Instruction(phrase, Action("stop", text="N/A"))


def _done(page: Observation, rng: random.Random, word: Callable[[], str]) -> Instruction | None:
    """An instruction that the history shows to be done: nothing is left but to stop."""
    phrase = rng.choice(("Stop.", "Nothing is left to do.", "End here."))
    if rng.random() < 0.3:
        return Instruction(phrase, Action("stop"))
    text = f"{word().capitalize()} {word().capitalize()}"
    history = (Action("click", 1, target_role="link", target_name=text),)
    return Instruction(rng.choice(_CLICK).format(text), Action("stop"), history)


def _phrase(action: Action, rng: random.Random) -> str | None:
    if action.kind == "click" and action.target_name:
        return f"{rng.choice(('click', 'open', 'press'))} '{action.target_name}'"
    if action.kind == "type" and action.target_name:
        return f"type '{action.text}' into '{action.target_name}'" + (" and press Enter" if action.enter else "")
    if action.kind == "select" and action.target_name:
        return f"select '{action.text}' in '{action.target_name}'"
    return "go back" if action.kind == "go_back" else None


def _lower(key: str) -> str:
    return key[0].lower() + key[1:]


_KINDS = (
    *(_click, _click, _click, _click, _below, _type, _type, _type_below, _select),
    *(_read, _read, _read_of, _beside, _extreme, _say, _give_up, _done),
)
