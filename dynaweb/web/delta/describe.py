"""What a change means: one sentence for it, from fixed templates."""

from __future__ import annotations

from dynaweb.types import Action, Node, Observation
from dynaweb.web.delta.diff import match
from dynaweb.web.quoting import quote

NOTHING = "Nothing changes."
NAME_LIMIT = 60
"""Characters of a name that a sentence repeats."""

MESSAGES = frozenset({"status", "alert", "dialog"})
"""Roles of elements that tell the user something."""

_FIELDS = {"textbox": "field", "combobox": "list"}


def describe(before: Observation, action: Action | None, after: Observation) -> str:
    """One sentence of what `action` changed, from fixed templates; the same input gives the same sentence."""
    pairs = match(before.nodes, after.nodes)
    matched = {index for index in pairs if index >= 0}
    added = [node for node, index in zip(after.nodes, pairs, strict=True) if index < 0]
    removed = [node for index, node in enumerate(before.nodes) if index not in matched]
    changed = [
        (before.nodes[index], node)
        for node, index in zip(after.nodes, pairs, strict=True)
        if index >= 0 and (before.nodes[index].value, before.nodes[index].props) != (node.value, node.props)
    ]
    message = _message(after, added)
    added = [node for node in added if node.role not in MESSAGES or _short(node.name) != message]
    sentence = _opened(before, action, after) or _content(changed, added, removed) or _moved(pairs)
    return _with_message(message, sentence)


def _opened(before: Observation, action: Action | None, after: Observation) -> str:
    """The sentence for another page, '' when the page is still the same."""
    name = _short(_heading(after, before) or after.title or after.url)
    if action is not None and action.kind in ("go_back", "go_forward") and before.url != after.url:
        return f"Goes {action.kind[3:]} to {name}."
    if _path(before.url) != _path(after.url) or _headings(before)[:1] != _headings(after)[:1]:
        return f"Opens {name}."
    return f"Shows another part of {name}." if before.url != after.url else ""


def _content(changed: list[tuple[Node, Node]], added: list[Node], removed: list[Node]) -> str:
    """The sentence for changes within a page, '' when no element came, went or changed."""
    if len(changed) == 1 and not added and not removed:
        return _new_state(*changed[0])
    parts = [
        f"adds {_some(added)}" if added else "",
        f"removes {_some(removed)}" if removed else "",
        f"changes {_some([new for _, new in changed])}" if changed else "",
    ]
    words = [part for part in parts if part]
    if not words:
        return ""
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"The page {text}."


def _new_state(old: Node, new: Node) -> str:
    name = _short(new.name)
    if old.value != new.value:
        word = _FIELDS.get(new.role, new.role)
        if not new.value:
            return f"The {word} {name} is now empty."
        return f"The {word} {name} now {'shows' if word == 'list' else 'holds'} {_short(new.value)}."
    came = next((key for key, value in new.props if value == "true" and (key, value) not in old.props), None)
    went = next((key for key, value in old.props if value == "true" and (key, value) not in new.props), None)
    state = f"is now {came}" if came else f"is no longer {went}" if went else "changes"
    return f"The {new.role} {name} {state}."


def _moved(pairs: list[int]) -> str:
    matched = [index for index in pairs if index >= 0]
    return NOTHING if matched == sorted(matched) else "The elements of the page change their order."


def _message(after: Observation, added: list[Node]) -> str:
    """What the environment or a new status line says, quoted; '' for nothing."""
    status = next((node.name for node in added if node.role in MESSAGES and node.name), "")
    return _short(after.notice or status) if after.notice or status else ""


def _with_message(message: str, sentence: str) -> str:
    if not message:
        return sentence
    return f"The page says {message}." if sentence == NOTHING else f"{sentence[:-1]}; the page says {message}."


def _some(nodes: list[Node]) -> str:
    first = next((node for node in nodes if node.name), nodes[0])
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"the {first.role} {_short(first.name)}{more}"


def _short(name: str) -> str:
    text = " ".join(name.split())
    return quote(text if len(text) <= NAME_LIMIT else f"{text[: NAME_LIMIT - 1]}…")


def _headings(page: Observation) -> list[str]:
    return [node.name for node in page.nodes if node.role == "heading"]


def _heading(page: Observation, before: Observation) -> str:
    """What the page is about: its first heading that the page before did not have, else its first one."""
    known = set(_headings(before))
    headings = _headings(page)
    return next((name for name in headings if name not in known), next(iter(headings), ""))


def _path(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]
