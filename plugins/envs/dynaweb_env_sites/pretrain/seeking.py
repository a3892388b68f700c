"""Goals of several steps, found by exploring: go to a page that is known by its name, then do one thing there.

Walks show which link leads to a page with which heading; goals are then named in hindsight, as in NNetNav (arXiv
2410.02907): "Press 'Follow' on 'Tarnik'." A seeker plays them: it clicks the name where it stands, follows a known
path, or searches. The wordings are generic; the tasks of the sites are worded otherwise and are not among them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynaweb.loop.rules import EDITABLE, flag, options
from dynaweb.types import Action, Node, Observation
from dynaweb_env_sites.pretrain.instructions import on, pairs

if TYPE_CHECKING:
    from dynaweb.web.session import Session
    from dynaweb_env_sites.pretrain.walks import Walk

_OPEN = ("Go to '{0}'.", "Open '{0}'.", "Find '{0}'.", "Show '{0}'.", "Bring up '{0}'.")
_READ = ("What is the {1} of '{0}'?", "On '{0}', tell the {1}.", "Find the {1} on '{0}'.", "Give the {1} of '{0}'.")
_PRESS = ("Press '{1}' on '{0}'.", "{1} '{0}'.", "On '{0}', use '{1}'.", "Go to '{0}' and press '{1}'.")
_FILL = (
    "On '{0}', set '{1}' to '{2}' and press '{3}'.",
    "{3} '{2}' as {1} on '{0}'.",
    "Set the {1} on '{0}' to '{2}'.",
    "Enter '{2}' as {1} of '{0}', then press '{3}'.",
)
_MISSING = ("Go to '{0}'.", "Open '{0}'.", "Find '{0}'.", "What is the {1} of '{0}'?")
MAX_STEPS = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """One step of a goal: the page, the actions so far, and what to do."""

    intent: str
    page: Observation
    history: tuple[Action, ...]
    action: Action


@dataclass
class Atlas:
    """What walks have shown of one site: link names by the page they stand on, and where they lead."""

    edges: dict[str, dict[str, str]] = field(default_factory=dict)
    """url -> {name of a link: url behind it}."""
    places: dict[str, str] = field(default_factory=dict)
    """Name of a link that leads to a page with that heading -> its url."""

    def learn(self, walk: Walk) -> None:
        """Take in the links that a walk has followed."""
        for before, action, after in zip(walk.pages, walk.actions, walk.pages[1:], strict=False):
            if action.kind == "click" and action.target_role == "link" and action.target_name:
                self.edges.setdefault(before.url, {})[action.target_name] = after.url
                if headed(after, action.target_name):
                    self.places[action.target_name] = after.url

    def path(self, start: str, goal: str, limit: int = 3) -> list[str] | None:
        """Names of links from one url to another, at most `limit`; None when no such path is known."""
        queue: deque[tuple[str, list[str]]] = deque([(start, [])])
        seen = {start}
        while queue:
            url, names = queue.popleft()
            if url == goal:
                return names
            for name, following in self.edges.get(url, {}).items() if len(names) < limit else ():
                if following not in seen:
                    seen.add(following)
                    queue.append((following, [*names, name]))
        return None


class Seeker:
    """Plays goals in a session; `word` gives new pseudo-words of the pre-training split."""

    def __init__(self, session: Session, atlas: Atlas, rng: random.Random, word: Callable[[], str]) -> None:
        self.session = session
        self.atlas = atlas
        self.rng = rng
        self.word = word

    async def goal(self, start: str, place: str) -> list[Decision]:
        """All decisions of one goal on `place`, from `start`; nothing when the place is not reached."""
        await self.session.goto(start)
        page = await self.session.observe()
        by_search = self.rng.random() < 0.4
        steps: list[tuple[Observation, Action]] = []
        while not headed(page, place):
            action = self._towards(page, place, by_search)
            if action is None or len(steps) >= MAX_STEPS:
                return []
            steps.append((page, action))
            page = await self._do(action)
        intent, actions = self._local(page, place)
        for choose in actions:
            action = choose(page)
            if action is None:
                return []
            steps.append((page, action))
            page = await self._do(action) if action.kind != "stop" else page
        return list(_decisions(intent, steps))

    async def missing(self, start: str) -> list[Decision]:
        """A goal on a name that does not exist: search, then say so."""
        await self.session.goto(start)
        page = await self.session.observe()
        name = f"{self.word().capitalize()} {self.word().capitalize()}"
        search = _field(page, "Search")
        if search is None:
            return []
        look = on(search, "type", name, enter=True)
        found = await self._do(look)
        if not any(node.name.startswith("No ") for node in found.nodes):
            return []
        intent = self.rng.choice(_MISSING).format(name, self.rng.choice(("price", "author", "state", "role", "brand")))
        return list(_decisions(intent, [(page, look), (found, Action("stop", text="N/A"))]))

    async def _do(self, action: Action) -> Observation:
        await self.session.act(action)
        return await self.session.observe()

    def _towards(self, page: Observation, place: str, by_search: bool) -> Action | None:
        here = [node for node in page.nodes if node.role == "link" and node.name == place]
        if here:
            return on(here[0])
        path = self.atlas.path(page.url, self.atlas.places[place])
        if path and not (by_search and " " in place):
            link = next((node for node in page.nodes if node.role == "link" and node.name == path[0]), None)
            if link is not None:
                return on(link)
        search = _field(page, "Search")
        if search is None or search.value == place:
            return None
        return on(search, "type", place, enter=True)

    def _local(self, page: Observation, place: str) -> tuple[str, list[Callable[[Observation], Action | None]]]:
        """What to do on the page: words, and how to choose each action on the page as it then is."""
        makers = [self._open, self._read, self._read, self._press, self._fill, self._fill]
        made = self.rng.choice(makers)(page, place)
        return made or self._open(page, place) or ("", [])

    def _open(self, page: Observation, place: str) -> tuple[str, list[Callable[[Observation], Action | None]]] | None:
        return self.rng.choice(_OPEN).format(place), [lambda _: Action("stop")]

    def _read(self, page: Observation, place: str) -> tuple[str, list[Callable[[Observation], Action | None]]] | None:
        keys = [key for _, key, _ in pairs(page)]
        known = [(key, value) for _, key, value in pairs(page) if keys.count(key) == 1]
        if not known:
            return None
        key, value = self.rng.choice(known)
        return self.rng.choice(_READ).format(place, key.lower()), [lambda _: Action("stop", text=value)]

    def _press(self, page: Observation, place: str) -> tuple[str, list[Callable[[Observation], Action | None]]] | None:
        buttons = _buttons(page)
        if not buttons:
            return None
        name = self.rng.choice(buttons).name
        return self.rng.choice(_PRESS).format(place, name), [_button(name), lambda _: Action("stop")]

    def _fill(self, page: Observation, place: str) -> tuple[str, list[Callable[[Observation], Action | None]]] | None:
        """Change one control, then press the button that follows it."""
        controls = [node for node in page.nodes if node.role in EDITABLE or options(node) or node.role == "checkbox"]
        controls = [node for node in controls if node.name and node.name != "Search" and not flag(node, "disabled")]
        if not controls:
            return None
        control = self.rng.choice(controls)
        button = next((node for node in _buttons(page) if node.id > control.id), None)
        if button is None:
            return None
        text = self.rng.choice(options(control)) if options(control) else self._text(control)
        words = self.rng.choice(_FILL).format(place, control.name, text, button.name)
        if control.role == "checkbox":
            words = f"Tick '{control.name}' on '{place}' and press '{button.name}'."
        return words, [_change(control, text), _button(button.name), lambda _: Action("stop")]

    def _text(self, control: Node) -> str:
        if control.value and control.value.isdecimal():
            return str(self.rng.randrange(2, 20))
        made = (self.word().capitalize(), f"{self.word().capitalize()} {self.word()}", f"My {self.word()} works")
        return f"{self.word()}@{self.word()}.com" if "mail" in control.name.lower() else self.rng.choice(made)


def headed(page: Observation, name: str) -> bool:
    """Whether a page has this heading."""
    return any(node.role == "heading" and node.name == name for node in page.nodes)


def _decisions(intent: str, steps: Sequence[tuple[Observation, Action]]) -> Iterator[Decision]:
    history: tuple[Action, ...] = ()
    for page, action in steps:
        yield Decision(intent, page, history, action)
        history = (*history, action)


def _buttons(page: Observation) -> list[Node]:
    names = [node.name for node in page.nodes if node.role == "button"]
    return [
        node
        for node in page.nodes
        if node.role == "button" and len(node.name) > 1 and names.count(node.name) == 1 and not flag(node, "disabled")
    ]


def _field(page: Observation, name: str) -> Node | None:
    return next((node for node in page.nodes if node.role in EDITABLE and node.name == name), None)


def _button(name: str) -> Callable[[Observation], Action | None]:
    def choose(page: Observation) -> Action | None:
        node = next((node for node in _buttons(page) if node.name == name), None)
        return on(node) if node is not None else None

    return choose


def _change(control: Node, text: str) -> Callable[[Observation], Action | None]:
    kind = "select" if options(control) else "click" if control.role == "checkbox" else "type"
    return lambda page: on(control, kind, "" if kind == "click" else text)
