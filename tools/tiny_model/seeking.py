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

from dynaweb.types import Action, Node, Observation
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.worldmodels.dynamics import flag, options
from tools.tiny_model.instructions import listed, on, pairs

if TYPE_CHECKING:
    from dynaweb.web.session import Session
    from tools.tiny_model.walks import Walk

_OPEN = ("Go to '{0}'.", "Open '{0}'.", "Find '{0}'.", "Show '{0}'.", "Bring up '{0}'.")
_READ = ("What is the {1} of '{0}'?", "On '{0}', tell the {1}.", "Find the {1} on '{0}'.", "Give the {1} of '{0}'.")
_PRESS = ("Press '{1}' on '{0}'.", "{1} '{0}'.", "On '{0}', use '{1}'.", "Go to '{0}' and press '{1}'.")
_FILL = (
    "On '{0}', set '{1}' to '{2}' and press '{3}'.",
    "{3} '{2}' as {1} on '{0}'.",
    "Set the {1} on '{0}' to '{2}'.",
    "Enter '{2}' as {1} of '{0}', then press '{3}'.",
)
_FILL_TWO = (
    "On '{0}', set '{1}' to '{2}' and '{3}' to '{4}', then press '{5}'.",
    "{5} on '{0}' with '{2}' as {1} and '{4}' as {3}.",
    "Fill in '{0}': {1} '{2}', {3} '{4}'.",
)
_READ_ROW = (
    "On '{0}', what is the {1} of '{2}'?",
    "Tell the {1} of '{2}', as listed on '{0}'.",
    "'{0}': {1} of '{2}'?",
)
_FIRST = ("What comes first on '{0}' with '{1}' set to '{2}'?", "Set '{1}' of '{0}' to '{2}' and name the first entry.")
_FIRST_OPEN = (
    "Open the first entry of '{0}' with '{1}' set to '{2}'.",
    "Set '{1}' of '{0}' to '{2}'; open the first.",
)
_MISSING = (
    *("Go to '{0}'.", "Open '{0}'.", "Find '{0}'.", "What is the {1} of '{0}'?", "Tell the {1} of '{0}'."),
    *("Press '{2}' on '{0}'.", "{2} '{0}'.", "Go to '{0}' and press '{2}'."),
)
_VIA = ("Under '{0}': {1}", "Open '{0}'. {1}", "Go to '{0}' first. {1}", "{1} It is in '{0}'.", "In '{0}': {1}")
_VIA_PLAIN = ("In the {0}: {1}", "Open the {0}. {1}", "Go to the {0}. {1}", "{1} It is in the {0}.")
_FIELDS = ("price", "author", "state", "role", "brand", "rating", "location")
_BUTTONS = ("Follow", "Save", "Add", "Close", "Upvote", "Update")
MAX_STEPS = 8
Chooser = Callable[[Observation], Action | None]


@dataclass(frozen=True, slots=True)
class Decision:
    """One step of a goal: the page, the actions so far, and what to do."""

    intent: str
    page: Observation
    history: tuple[Action, ...]
    action: Action


@dataclass
class Atlas:
    """What exploring has shown of one site: the links of each page, and where each name leads."""

    links: dict[str, frozenset[str]] = field(default_factory=dict)
    """url -> names of the links on it."""
    targets: dict[str, str] = field(default_factory=dict)
    """Name of a link -> url behind it, for names that always lead to the same url."""
    places: dict[str, str] = field(default_factory=dict)
    """Name of a link that leads to a page with that heading -> its url."""
    _unsteady: set[str] = field(default_factory=set)

    def learn(self, walk: Walk) -> None:
        """Take in the links that a walk has followed."""
        for page in walk.pages:
            self.see(page)
        for action, after in zip(walk.actions, walk.pages[1:], strict=True):
            if action.kind == "click" and action.target_role == "link" and action.target_name:
                self.follow(action.target_name, after)

    def see(self, page: Observation) -> None:
        """Remember the links of a page as it is now."""
        self.links[page.url] = frozenset(node.name for node in page.nodes if node.role == "link" and node.name)

    def follow(self, name: str, after: Observation) -> None:
        """Remember where a link led."""
        if name in self._unsteady or self.targets.setdefault(name, after.url) != after.url:
            self._unsteady.add(name)
            self.targets.pop(name, None)
            self.places.pop(name, None)
        elif headed(after, name):
            self.places[name] = after.url

    def path(self, start: str, goal: str, limit: int = 3) -> list[str] | None:
        """Names of links from one url to another, at most `limit`; None when no such path is known."""
        queue: deque[tuple[str, list[str]]] = deque([(start, [])])
        seen = {start}
        while queue:
            url, names = queue.popleft()
            if url == goal:
                return names
            for name in sorted(self.links.get(url, ())) if len(names) < limit else ():
                following = self.targets.get(name, url)
                if following not in seen:
                    seen.add(following)
                    queue.append((following, [*names, name]))
        return None

    def within(self, place: str, home: str) -> list[str]:
        """Places with a link on the page of `place`, but none on the home page."""
        known = self.links.get(self.places[place], frozenset()) - self.links.get(home, frozenset())
        return sorted(name for name in known if name in self.places and name != place)


async def survey(session: Session, atlas: Atlas, start: str, clicks: int) -> None:
    """Follow up to `clicks` unknown links, breadth first from `start`; random walks alone show too little."""
    waiting, seen = deque([start]), {start}
    while waiting and clicks > 0:
        url = waiting.popleft()
        await session.goto(url)
        page = await session.observe()
        atlas.see(page)
        names = [node.name for node in page.nodes if node.role == "link"]
        fresh = [n for n in page.nodes if n.role == "link" and names.count(n.name) == 1 and n.name not in atlas.targets]
        for node in fresh[:clicks]:
            await session.goto(url)
            if await session.act(on(node)):
                continue
            clicks -= 1
            after = await session.observe()
            atlas.see(after)
            atlas.follow(node.name, after)
            if after.url not in seen:
                seen.add(after.url)
                waiting.append(after.url)


class Seeker:
    """Plays goals in a session; `word` gives new pseudo-words of the pre-training split."""

    def __init__(self, session: Session, atlas: Atlas, home: str, rng: random.Random, word: Callable[[], str]) -> None:
        self.session = session
        self.atlas = atlas
        self.home = home
        self.rng = rng
        self.word = word

    async def goal(self, start: str, place: str) -> list[Decision]:
        """All decisions of one goal on `place`, from `start`; nothing when the place is not reached.

        Some goals name a second place that is listed on the first one.
        """
        through, route = "", [place]
        within = self.atlas.within(place, self.home)
        if within and self.rng.random() < 0.6:
            through, route = place, [place, self.rng.choice(within)]
        by_search = self.rng.random() < 0.75
        steps = await self._reach(start, route, by_search=by_search) or await self._reach(start, route, by_search=False)
        if steps is None:
            return []
        page = await self.session.observe()
        intent, actions = self._local(page, route[-1])
        for choose in actions:
            action = choose(page)
            if action is None:
                return []
            steps.append((page, action))
            page = await self._do(action) if action.kind != "stop" else page
        return list(_decisions(self._through(through, intent), steps))

    async def _reach(
        self, start: str, route: Sequence[str], *, by_search: bool
    ) -> list[tuple[Observation, Action]] | None:
        """Go from `start` through the pages headed by the names of `route`; None when a page is not found."""
        await self.session.goto(start)
        page = await self.session.observe()
        steps: list[tuple[Observation, Action]] = []
        for name in route:
            while not headed(page, name):
                action = self._towards(page, name, by_search)
                if action is None or len(steps) >= MAX_STEPS:
                    return None
                steps.append((page, action))
                page = await self._do(action)
        return steps

    def _through(self, place: str, intent: str) -> str:
        """The intent with the place that it goes through; a name of one plain word may go without quotes."""
        if not place:
            return intent
        plain = place in self.atlas.links.get(self.home, ()) and place.isascii() and self.rng.random() < 0.4
        return self.rng.choice(_VIA_PLAIN if plain else _VIA).format(place.lower() if plain else place, intent)

    async def missing(self, start: str) -> list[Decision]:
        """A goal on a name that does not exist: search, then say so."""
        await self.session.goto(start)
        page = await self.session.observe()
        name = self._absent(self.rng.choice(sorted(self.atlas.places) or ["Thing"]))
        search = _field(page, "Search")
        if search is None:
            return []
        look = on(search, "type", name, enter=True)
        result = await self._do(look)
        if not any(node.name.startswith("No ") for node in result.nodes):
            return []
        intent = self.rng.choice(_MISSING).format(name, self.rng.choice(_FIELDS), self.rng.choice(_BUTTONS))
        return list(_decisions(intent, [(page, look), (result, Action("stop", text="N/A"))]))

    def _absent(self, name: str) -> str:
        """A name of the same make as one of the site, with another pseudo-word in it."""
        words = name.split(" ")
        replaced = max(range(len(words)), key=lambda i: (not words[i].isascii(), words[i][0].isupper() and i > 0))
        words[replaced] = self.word().capitalize()
        return " ".join(words)

    async def _do(self, action: Action) -> Observation:
        await self.session.act(action)
        return await self.session.observe()

    def _towards(self, page: Observation, place: str, by_search: bool) -> Action | None:
        """Click the name where it stands; else search for it, or go by the menu or another known path."""
        here = [node for node in page.nodes if node.role == "link" and node.name == place]
        if here:
            return on(here[0])
        search = _field(page, "Search")
        if by_search and search is not None and self.atlas.places[place] not in self._menu():
            return on(search, "type", place, enter=True) if search.value != place else None
        for name in self.atlas.path(page.url, self.atlas.places[place]) or ():
            link = next((node for node in page.nodes if node.role == "link" and node.name == name), None)
            return on(link) if link is not None else None
        return None

    def _menu(self) -> set[str]:
        """Urls behind the links that nearly every page has."""
        pages = list(self.atlas.links.values())
        often = {name for name in self.atlas.targets if sum(name in page for page in pages) > 0.8 * len(pages)}
        return {self.atlas.targets[name] for name in often}

    def _local(self, page: Observation, place: str) -> tuple[str, list[Chooser]]:
        """What to do on the page: words, and how to choose each action on the page as it then is."""
        plain = [self._open, self._read, self._read, self._press, self._fill, self._fill]
        makers = [*plain, self._read_row, self._read_row, self._first, self._first, self._fill_two, self._fill_two]
        goals = (maker(page, place) for maker in self.rng.sample(makers, len(makers)))
        return next((one for one in goals if one is not None), ("", []))

    def _open(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        return self.rng.choice(_OPEN).format(place), [lambda _: Action("stop")]

    def _read(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        keys = [key for _, key, _ in pairs(page)]
        known = [(key, value) for _, key, value in pairs(page) if keys.count(key) == 1]
        if not known:
            return None
        key, value = self.rng.choice(known)
        return self.rng.choice(_READ).format(place, key.lower()), [lambda _: Action("stop", text=value)]

    def _press(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        buttons = _buttons(page)
        if not buttons:
            return None
        name = self.rng.choice(buttons).name
        return self.rng.choice(_PRESS).format(place, name), [_button(name), lambda _: Action("stop")]

    def _fill(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        """Change one control, then press the button that follows it."""
        controls = [node for node in page.nodes if node.role in TEXTBOXES or options(node) or node.role == "checkbox"]
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

    def _fill_two(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        """Change two controls, then press the button that follows them."""
        controls = [n for n in page.nodes if (n.role in TEXTBOXES or options(n)) and n.name and n.name != "Search"]
        controls = [node for node in controls if not flag(node, "disabled")]
        if len(controls) < 2:
            return None
        i = self.rng.randrange(len(controls) - 1)
        one, two = controls[i], controls[i + 1]
        button = next((node for node in _buttons(page) if node.id > two.id), None)
        if button is None or one.name == two.name:
            return None
        texts = [self.rng.choice(options(node)) if options(node) else self._text(node) for node in (one, two)]
        words = self.rng.choice(_FILL_TWO).format(place, one.name, texts[0], two.name, texts[1], button.name)
        pressed: list[Chooser] = [_button(button.name), lambda _: Action("stop")]
        return words, [_change(one, texts[0]), _change_named(two, texts[1]), *pressed]

    def _read_row(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        """The value that stands below one of several links."""
        lists = listed(page)
        if not lists:
            return None
        key = self.rng.choice(sorted(lists))
        name, value = self.rng.choice(lists[key])
        return self.rng.choice(_READ_ROW).format(place, key.lower(), name), [lambda _: Action("stop", text=value)]

    def _first(self, page: Observation, place: str) -> tuple[str, list[Chooser]] | None:
        """Sort or filter a list, then name or open its first entry."""
        controls = [node for node in page.nodes if options(node) and node.name]
        if not controls:
            return None
        control = self.rng.choice(controls)
        button = next((node for node in _buttons(page) if node.id > control.id), None)
        if button is None:
            return None
        option = self.rng.choice(options(control))
        change = [_change(control, option), _button(button.name)]
        if self.rng.random() < 0.5:
            words = self.rng.choice(_FIRST).format(place, control.name, option)
            return words, [*change, _say_first]
        words = self.rng.choice(_FIRST_OPEN).format(place, control.name, option)
        return words, [*change, _open_first, lambda _: Action("stop")]

    def _text(self, control: Node) -> str:
        if control.value and control.value.isdecimal():
            return str(self.rng.randrange(2, 20))
        texts = (self.word().capitalize(), f"{self.word().capitalize()} {self.word()}", f"My {self.word()} works")
        return f"{self.word()}@{self.word()}.com" if "mail" in control.name.lower() else self.rng.choice(texts)


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
    return next((node for node in page.nodes if node.role in TEXTBOXES and node.name == name), None)


def _button(name: str) -> Chooser:
    def choose(page: Observation) -> Action | None:
        node = next((node for node in _buttons(page) if node.name == name), None)
        return on(node) if node is not None else None

    return choose


def _change_named(control: Node, text: str) -> Chooser:
    """Change a control that has another number by then."""

    def choose(page: Observation) -> Action | None:
        node = next((n for n in page.nodes if n.role == control.role and n.name == control.name), None)
        return _change(node, text)(page) if node is not None else None

    return choose


def _entry(page: Observation) -> str | None:
    """Name of the first entry of the first list of the page."""
    return next((entries[0][0] for entries in listed(page).values()), None)


def _say_first(page: Observation) -> Action | None:
    name = _entry(page)
    return Action("stop", text=name) if name else None


def _open_first(page: Observation) -> Action | None:
    name = _entry(page)
    node = next((node for node in page.nodes if node.role == "link" and node.name == name), None)
    return on(node) if node is not None else None


def _change(control: Node, text: str) -> Chooser:
    kind = "select" if options(control) else "click" if control.role == "checkbox" else "type"
    return lambda page: on(control, kind, "" if kind == "click" else text)
