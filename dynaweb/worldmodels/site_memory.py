"""Memory of sites: a world model that looks up the real pages of the site that it dreams of.

A page is looked up by what leads to it, in this order of trust:

    question   the same action on the same page of the site
    address    the page at the address that a link leads to. A link on an imagined page, whose address nobody knows,
               counts as the link of that name on the site's real pages, where these all lead to one address
    text       the same text sent from the same field of any page of the site, where it led to another address

A site changes while somebody acts on it (a cart, a vote): of several pages the one is taken before which the most
similar forms were sent, on the same pages and with the same fields. How far a page is trusted is measured on the memory
itself: how often the rule is right, each transition looked up in the other episodes of its site, and, where other forms
were sent before, how often pages of this kind stay as they are at one address whatever was sent. What is right often
enough (`TRUSTED`) is the page that follows, and no model is asked. A page that the dream itself has shown at the
address stands before all that were seen with other forms sent.

Of a remembered page that is not trusted the world model writes the change (`deltas`): the remembered page stands in the
place of the page before, and the action, whose element is not on it, keeps its words. Nothing remembered: the world
model imagines the page as it would without a memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal, cast, get_args
from urllib.parse import urlsplit

from dynaweb.plugin import contracts
from dynaweb.types import Action, Observation, Prediction, Prompt, Transition
from dynaweb.web.session import with_scheme
from dynaweb.worldmodels.calibration import is_sound
from dynaweb.worldmodels.change import DONE, history_of
from dynaweb.worldmodels.dynamics import needs_prediction
from dynaweb.worldmodels.fidelity import Probe, grade, page_kind
from dynaweb.worldmodels.memory import episode_of, question, site_of_transition

if TYPE_CHECKING:
    from dynaweb.protocols import TrainableWorldModel, WorldModel

Rule = Literal["question", "address", "text"]
Key = tuple[str, str, Hashable]
"""Site, host of the page, and what is looked up there."""
Forms = Counter[Hashable]
"""The forms that an episode has sent, which may have changed the site; two equal ones are told apart from one."""

TRUSTED = 0.8
"""Share of right pages from which on a rule's page is taken as it is."""
MEASURED = 4000
"""Transitions that are looked up to measure how far rules can be trusted, at most: every second one and so on."""
ENOUGH = 5
"""Cases from which on a kind of page is judged by itself."""
COMPARED = 40
"""Pages of one address that are compared with each other, at most."""
_SPOKEN = frozenset({"status", "alert"})
"""Roles of what a page says once, about the last action."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A real page: the episode that saw it, the forms sent before it, whether one led to it, whether it was the end."""

    page: Observation
    episode: str
    forms: Forms
    submitted: bool
    done: bool = False


@dataclass(frozen=True, slots=True)
class Remembered:
    """A real page that may follow, the rule that gave it, how often its pages are right, and whether other forms were
    sent before it was seen."""

    seen: Seen
    rule: Rule
    trust: float
    changed: bool

    @property
    def trusted(self) -> bool:
        """Whether the page is taken as it is."""
        return self.trust >= TRUSTED


class SiteMemory:
    """Real transitions of many sites, each looked up on its own site only. It can grow."""

    def __init__(self, transitions: Iterable[Transition] = ()) -> None:
        self._transitions: list[tuple[Transition, Forms]] = []
        self._sent: dict[str, list[Forms]] = {}
        self._seen: dict[Rule, dict[Key, list[Seen]]] = {rule: defaultdict(list) for rule in get_args(Rule)}
        self._links: dict[Key, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._right: dict[Hashable, list[bool]] = {}
        self._stays: dict[str, list[bool]] = {}
        self.add(transitions)

    def __len__(self) -> int:
        return len(self._transitions)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Take more transitions, and measure again how far pages can be trusted."""
        fresh = list(transitions)
        if not fresh:
            return
        self._transitions += [(one, self._index(one)) for one in fresh]
        outcomes: dict[Hashable, list[bool]] = defaultdict(list)
        for one, sent in self._transitions[:: 1 + len(self._transitions) // MEASURED]:
            if needs_prediction(one.observation, one.action):
                site, episode = site_of_transition(one), episode_of(one)
                for value in self._matches(site, one.observation, one.action, sent, episode):
                    right = is_sound(grade(Probe(one), Prediction(value.seen.page)), "content")
                    for of in value.rule, (value.rule, page_kind(value.seen.page.url)):
                        outcomes[of].append(right)
        self._right, self._stays = outcomes, self._staying()

    def _staying(self) -> dict[str, list[bool]]:
        """By kind of page, '' for all: whether pages of one address are equal before which other forms were sent."""
        stays: dict[str, list[bool]] = defaultdict(list)
        for seen in self._seen["address"].values():
            for one, other in combinations(seen[:COMPARED], 2):
                if one.forms != other.forms and one.episode != other.episode:
                    for kind in page_kind(one.page.url), "":
                        stays[kind].append(one.page.nodes == other.page.nodes)
        return stays

    def look_up(
        self, site: str, page: Observation, action: Action, sent: Forms, *, without: str = ""
    ) -> Remembered | None:
        """The real page that most likely follows: of the first rule that is trusted, else of the first that has one.

        None where nothing is remembered. `sent` are the forms that were sent before. Nothing that the episode `without`
        has seen is used.
        """
        matches = [
            replace(value, trust=self._trust(value)) for value in self._matches(site, page, action, sent, without)
        ]
        return next((value for value in matches if value.trusted), matches[0] if matches else None)

    def sent_before(self, episode: str, steps: int) -> Forms:
        """The forms that an episode had sent after so many of its steps; none where it is not known."""
        known = self._sent.get(episode, [])
        return known[min(steps, len(known)) - 1] if known and steps else Counter()

    def _trust(self, value: Remembered) -> float:
        """How often pages found so are right; the same action on the same page counts as right, as in `Recalling`."""
        if value.rule == "question" and not value.changed:
            return 1.0
        kind = page_kind(value.seen.page.url)
        right = _share(self._right.get((value.rule, kind), []), self._right.get(value.rule, []))
        return min(right, _share(self._stays.get(kind, []), self._stays.get("", []))) if value.changed else right

    def address_of(self, site: str, page: Observation, action: Action, without: str = "") -> str:
        """Where an action leads, as far as a link or the action itself says; '' where neither does."""
        if action.kind == "goto":
            return with_scheme(action.text)
        node = page.node(action.target) if action.kind == "click" and action.target is not None else None
        if node is None or node.role != "link" or node.address:
            return node.address if node is not None and not _within(page.url, node.address) else ""
        known = self._links.get(_key(site, page.url, node.name), {})
        addresses = [address for address, episodes in known.items() if episodes - {without}]
        return addresses[0] if len(addresses) == 1 else ""

    def _matches(self, site: str, page: Observation, action: Action, sent: Forms, without: str) -> list[Remembered]:
        """The likest page of each rule that has any, in the order of the rules, their trust still to be filled in."""
        address = self.address_of(site, page, action, without)
        keys: dict[Rule, Hashable] = {"question": question(page, action)}
        if address:
            keys["address"] = address
        if action.enter and action.text:
            keys["text"] = _words(action)
        matches = []
        for rule, what in keys.items():
            seen = [
                one
                for one in self._seen[rule].get(_key(site, address if rule == "address" else page.url, what), ())
                if one.episode != without
            ]
            if seen:
                best = _likest(seen, sent)
                matches.append(Remembered(best, rule, 0.0, best.forms != sent))
        return matches

    def _index(self, one: Transition) -> Forms:
        """Take one transition; the forms that its episode had sent before it."""
        site, before, after, action = site_of_transition(one), one.observation, one.next_observation, one.action
        episode, earlier = episode_of(one), history_of(one)
        known = self._sent.setdefault(episode, [])
        if not earlier:
            known.clear()
        sent = known[-1] if known else Counter()
        known.append(with_form(sent, before, action, after))
        seen = Seen(after, episode, sent, _submits(action), done=bool(one.info.get(DONE)))
        self._seen["question"][_key(site, before.url, question(before, action))].append(seen)
        if not earlier:
            self._seen["address"][_key(site, before.url, before.url)].append(Seen(before, episode, Counter(), False))
        clicked = self.address_of(site, before, action)
        visited = replace(seen, page=_without_notices(after), forms=known[-1], done=False)
        for address in sorted({after.url, clicked} - {""}):
            self._seen["address"][_key(site, address, address)].append(visited)
        if action.enter and action.text and after.url != before.url:
            self._seen["text"][_key(site, before.url, _words(action))].append(seen)
        for page in (before, after):
            for node in page.nodes:
                if node.address and not _within(page.url, node.address):
                    self._links[_key(site, page.url, node.name)][node.address].add(episode)
        return sent


class Remembering:
    """A world model before which a memory of the site is asked. `deltas`: it writes the change of an untrusted page.

    A dream asks `on_site` first; without it a page belongs to no generated site.
    """

    def __init__(self, world_model: WorldModel, memory: SiteMemory, *, deltas: bool = False) -> None:
        self.world_model, self.memory, self.deltas = world_model, memory, deltas

    def on_site(self, site: str, *, without: str = "") -> WorldModel:
        """The world model of one dream on a site (`site_of_task`); the episode `without` is not remembered."""
        return _OnSite(self, site, without)

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The remembered page, else the model's prediction."""
        return await self.on_site("").predict(observation, action, seed=seed, history=history, goal=goal)

    def examples(self, transitions: Sequence[Transition]) -> list[tuple[Prompt, tuple[int, ...]]]:
        """Supervised pairs of the world model, made as it is asked: each transition is looked up in other episodes."""
        rest = [self._as_asked(one) for one in transitions] if self.deltas else transitions
        return cast("TrainableWorldModel", self.world_model).examples(rest)

    def _as_asked(self, one: Transition) -> Transition:
        episode = episode_of(one)
        sent = self.memory.sent_before(episode, len(history_of(one)))
        value = self.memory.look_up(site_of_transition(one), one.observation, one.action, sent, without=episode)
        if value is None or value.trusted:
            return one
        return replace(one, observation=value.seen.page, action=_elsewhere(one.action))


class _OnSite:
    """One dream on one site: it also remembers the pages that it has shown itself, by address."""

    def __init__(self, whole: Remembering, site: str, without: str) -> None:
        self._whole, self._site, self._without = whole, site, without
        self._own: dict[str, tuple[Observation, Forms, bool]] = {}
        self._sent: Forms | None = None

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The page that the memory trusts, one that this dream has shown, or what the world model makes of it."""
        memory = self._whole.memory
        sent = memory.sent_before(self._without, len(history)) if self._sent is None else self._sent
        value = memory.look_up(self._site, observation, action, sent, without=self._without)
        if value is None or value.changed or not value.trusted:
            own = self._own.get(memory.address_of(self._site, observation, action, self._without))
            if own is not None and own[1] == sent:
                self._sent = sent
                return Prediction(own[0], recalled=own[2])
        if value is not None and value.trusted:
            trust = None if value.trust == 1.0 else value.trust
            prediction = Prediction(value.seen.page, done=value.seen.done, recalled=True, confidence=trust)
        else:
            base, asked = (value.seen.page, _elsewhere(action)) if value and self._whole.deltas else (None, action)
            model = self._whole.world_model
            answer = await model.predict(base or observation, asked, seed=seed, history=history, goal=goal)
            prediction = replace(contracts.prediction(model, answer), base=base)
        page = prediction.next_observation
        self._sent = with_form(sent, observation, action, page)
        if page is not None:
            self._own[page.url] = _without_notices(page), self._sent, prediction.recalled
        return prediction


def with_form(sent: Forms, page: Observation, action: Action, after: Observation | None) -> Forms:
    """`sent` with the form that an action on a page sends, where it may change the site: its fields, and its page.

    A form whose fields stand in the address that it leads to asks only, as a search does.
    """
    asks = after is not None and after.url != page.url and "?" in after.url
    if asks or not _submits(action):
        return sent
    fields = tuple((n.role, n.name, n.value, n.props) for n in page.nodes if n.value is not None or n.props)
    return sent + Counter([(page.url, _words(action), fields)])


def _submits(action: Action) -> bool:
    return action.enter or action.kind == "press" or (action.kind == "click" and action.target_role == "button")


def _words(action: Action) -> Hashable:
    return action.kind, action.target_role, action.target_name, action.text, action.enter


def _likest(seen: Sequence[Seen], sent: Counter[Hashable]) -> Seen:
    """The page that a link led to, before which the most similar forms were sent, and that was seen most often."""
    often = Counter(one.page.nodes for one in seen)

    def unlike(one: Seen) -> tuple[bool, int, int]:
        differ = (one.forms - sent).total() + (sent - one.forms).total()
        return one.submitted, differ, -often[one.page.nodes]

    return min(seen, key=unlike)


def _elsewhere(action: Action) -> Action:
    """The action for a page that its element is not on: the words stay, the number is none of the page's."""
    return action if action.target is None else replace(action, target=0)


def _without_notices(page: Observation) -> Observation:
    """The page as a second visit shows it: what was said about the last action is gone.

    A picture of the page shows it still, with the numbers that elements had, and is left out.
    """
    kept = [node for node in page.nodes if node.role not in _SPOKEN]
    nodes = tuple(replace(node, id=at) for at, node in enumerate(kept, start=1))
    return replace(page, notice="", nodes=nodes, screenshot=page.screenshot if nodes == page.nodes else None)


def _within(url: str, address: str) -> bool:
    """Whether an address is a place within the page at `url`, to which nobody navigates: links with `#` run scripts.

    A fragment that begins with `/` or `!` names another page of a site that draws its pages itself.
    """
    whole, mark, fragment = address.partition("#")
    return bool(mark) and whole == url.partition("#")[0] and not fragment.startswith(("/", "!"))


def _share(own: Sequence[bool], pooled: Sequence[bool]) -> float:
    """The share of true ones after Laplace, of a kind of page by itself where there are enough, else of all kinds."""
    values = own if len(own) >= ENOUGH else pooled
    return (sum(values) + 1) / (len(values) + 2)


def _key(site: str, url: str, what: Hashable) -> Key:
    return site, urlsplit(url).hostname or "", what
