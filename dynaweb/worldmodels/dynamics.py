"""Dynamics that code knows: what follows from an action by rule, so that no world model is asked to dream it.

A refused action (no such element, nothing to type into), an action without effect, and changes inside the page
(a typed value, a chosen option, a toggled box) follow from the page itself. Dreams apply these rules; fitting a world
model leaves such transitions out.

Scripts can make changes inside a page otherwise: a click into a field opens a calendar, typing lists suggestions. Real
steps show where (`PageRules.measured`); there the world model is asked after all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dynaweb.types import Action, Node, Observation, Transition
from dynaweb.web.actions.grammar import resolve
from dynaweb.web.actions.keys import browser_keys
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.worldmodels.change import DONE

INERT = frozenset({"text", "StaticText", "heading", "status", "alert", "LabelText", "image", "img", "paragraph"})
"""Roles whose click changes nothing on a page without scripts."""
WITHOUT_EFFECT = frozenset({"wait", "scroll", "hover"})
HOLDS = 0.8
"""Share of real steps of a kind that must come out as a rule says, for the rule to decide about that kind."""
TABS_AND_HISTORY = frozenset({"go_back", "go_forward", "new_tab", "tab_focus", "close_tab", "stop"})


def flag(node: Node, name: str) -> bool:
    """Whether a boolean property such as `checked` is true."""
    return (name, "true") in node.props


def options(node: Node) -> tuple[str, ...]:
    """The labels that a native select offers, or nothing."""
    labels = next((value for key, value in node.props if key == "options"), "")
    return tuple(label for label in labels.split("|") if label)


def refusal(observation: Observation, action: Action) -> str:
    """Why the action cannot be done on this page, in words for an agent; '' when it can."""
    resolved = resolve(action, observation)
    if isinstance(resolved, str):
        return resolved
    node = observation.node(action.target) if action.target is not None else None
    if node is None:
        return ""
    if action.target_name and action.target_name != node.name:
        return f"element [{node.id}] is {node.role} '{node.name}', not '{action.target_name}'"
    if flag(node, "disabled") and action.kind != "hover":
        return f"{node.role} '{node.name}' [{node.id}] is disabled"
    return ""


def in_page(observation: Observation, action: Action) -> Observation | None:
    """The page after an action whose effect follows from the page alone, or None when a world model is needed.

    Assumes that `refusal` is empty. The notice of the page before is shown once only, so it is dropped.
    """
    page = replace(observation, notice="") if observation.notice else observation
    if action.kind in WITHOUT_EFFECT:
        return page
    if action.kind == "press":
        return None if browser_keys(action.text) == "Enter" else page
    node = observation.node(action.target) if action.target is not None else None
    return _on_element(page, node, action) if node is not None else None


def _on_element(page: Observation, node: Node, action: Action) -> Observation | None:
    if action.kind == "type":
        return None if action.enter else _with(page, replace(node, value=action.text or None))
    if action.kind == "select":
        return _with(page, _with_option(node, action.text))
    if node.role == "checkbox":
        return _with(page, _checked(node, not flag(node, "checked")))
    if node.role == "radio":
        return _choose(page, node)
    if node.role in INERT or node.role in TEXTBOXES or options(node):
        return page
    return None


StepKind = tuple[str, str, str]
"""Host and path of a page without numbers, the kind of an action on it, and the role of the action's element."""


@dataclass(frozen=True, slots=True)
class PageRules:
    """The rules for changes inside a page, without the kinds of steps for which scripts break them (`exceptions`)."""

    exceptions: frozenset[StepKind] = frozenset()

    @classmethod
    def measured(cls, transitions: Iterable[Transition]) -> PageRules:
        """The rules without those that real steps contradict: fewer than `HOLDS` of a kind came out as a rule says.

        A step that ended the episode came out otherwise, whatever its page is: no rule ends an episode.
        """
        outcomes: dict[StepKind, list[bool]] = defaultdict(list)
        for one in transitions:
            before, action = one.observation, one.action
            ruled = None if refusal(before, action) else in_page(before, action)
            if ruled is not None:
                right = ruled.nodes == one.next_observation.nodes and not one.info.get(DONE)
                outcomes[_kind_of(before, action)].append(right)
        return cls(frozenset(kind for kind, right in outcomes.items() if sum(right) < HOLDS * len(right)))

    def in_page(self, observation: Observation, action: Action) -> Observation | None:
        """`in_page`, and None also where scripts break its rule."""
        decided = in_page(observation, action)
        return None if decided is not None and _kind_of(observation, action) in self.exceptions else decided

    def needs_prediction(self, observation: Observation, action: Action) -> bool:
        """Whether only a world model can say what follows: the transitions that it is fitted on."""
        if action.kind in TABS_AND_HISTORY or refusal(observation, action):
            return False
        return self.in_page(observation, action) is None


ALL_RULES = PageRules()
"""All rules, as on pages without scripts."""


def needs_prediction(observation: Observation, action: Action) -> bool:
    """`PageRules.needs_prediction` by all rules."""
    return ALL_RULES.needs_prediction(observation, action)


def _kind_of(page: Observation, action: Action) -> StepKind:
    node = page.node(action.target) if action.target is not None else None
    place = re.split(r"[?#]", page.url, maxsplit=1)[0]
    return re.sub(r"\d+", "", place), action.kind, node.role if node is not None else ""


def _with(page: Observation, *changed: Node) -> Observation:
    """The page with other elements; a picture of it shows the old ones, so it has none."""
    nodes = {node.id: node for node in changed}
    return replace(page, nodes=tuple(nodes.get(node.id, node) for node in page.nodes), screenshot=None)


def _with_option(node: Node, label: str) -> Node:
    """A list with another choice; of a long one the page tells the chosen option beside the first ones."""
    told = options(node)
    props = node.props
    if label not in told and ("total" in dict(props)):
        props = tuple((key, "|".join((*told, label)) if key == "options" else text) for key, text in props)
    return replace(node, value=label, props=props)


def _checked(node: Node, value: bool) -> Node:
    props = tuple(prop for prop in node.props if prop[0] != "checked")
    return replace(node, props=(("checked", "true"), *props) if value else props)


def _choose(page: Observation, node: Node) -> Observation:
    at = page.nodes.index(node)
    before, after = page.nodes[:at][::-1], page.nodes[at + 1 :]
    others = [*_radios(before, node.depth), *_radios(after, node.depth)]
    return _with(page, _checked(node, True), *(_checked(other, False) for other in others))


def _radios(nodes: tuple[Node, ...], depth: int) -> Iterator[Node]:
    """The radio buttons that follow without anything but labels between: one group, as far as a flat page tells."""
    for node in nodes:
        if node.role == "radio":
            yield node
        elif node.role != "LabelText" and node.depth <= depth:
            return
