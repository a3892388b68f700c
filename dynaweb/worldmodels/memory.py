"""Memory of real transitions: a world model that recalls what exploration has seen, and retrieval of similar ones.

The same action on the same page of the same site leads where it led in the real environment; everything else is asked
of the world model beneath. Sites are told apart by their pages, which have to be equal to the last element (see
`question`): after the first imagined page nothing is recalled any more, unless an action leads back. What the pages do
not show (a cart that was filled in another episode) is not known to the memory either.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.plugin import contracts
from dynaweb.protocols import RemembersSites
from dynaweb.types import Action, Observation, Prediction, Task, Transition
from dynaweb.worldmodels.change import DONE

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModel

Question = tuple[Observation, Action]


LIMIT = 20_000
"""Transitions that are held in memory, the first ones."""
ACTION_WEIGHT = 8.0
_WORD = re.compile(r"\w+")


class Recalling:
    """A world model before which a memory of real transitions is asked. The first of several next pages counts."""

    def __init__(self, world_model: WorldModel, transitions: Iterable[Transition]) -> None:
        self.world_model = world_model
        self._recalled: dict[Question, Prediction] = {}
        for one in transitions:
            recalled = Prediction(one.next_observation, done=bool(one.info.get(DONE)), recalled=True)
            self._recalled.setdefault(question(one.observation, one.action), recalled)

    async def predict(
        self, observation: Observation, action: Action, *, seed: int, history: Sequence[Action] = (), goal: str = ""
    ) -> Prediction:
        """The recalled page, else the model's prediction."""
        recalled = self._recalled.get(question(observation, action))
        if recalled is not None:
            return recalled
        prediction = await self.world_model.predict(observation, action, seed=seed, history=history, goal=goal)
        return contracts.prediction(self.world_model, prediction)


def question(page: Observation, action: Action) -> Question:
    """What two steps share when what followed the one follows the other: an action on a page.

    What an earlier action said on the page is not part of it, nor are the words for the action's element, whose number
    says as much on the same page.
    """
    return replace(page, notice=""), replace(action, target_role="", target_name="")


# Which site and episode a transition belongs to, for models that remember sites.


def site_of_task(task: Task) -> str:
    """The generated site that a task plays on; '' where its environment names none, so that hosts tell sites apart."""
    return task.site_key if task.meta.get("site_seed") is not None else ""


def site_of_transition(transition: Transition) -> str:
    """`site_of_task` of the task that the transition was seen in."""
    site = str(transition.info.get("site", ""))
    return site if site != transition.task_id else ""


def episode_of(one: Transition) -> str:
    """The episode, told apart from others of the same name in other stages."""
    return f"{one.source}:{one.info.get('episode', '')}"


def without_episode(world_model: WorldModel, transition: Transition) -> WorldModel:
    """The world model to ask about an episode: one that remembers sites forgets what that very episode has seen."""
    if not isinstance(world_model, RemembersSites):
        return world_model
    return world_model.on_site(site_of_transition(transition), without=episode_of(transition))


class Retriever:
    """The real transitions most like a page and an action: TF-IDF over words of page, address and action.

    Features of the action weigh more than those of the page: what follows a click depends first of all on what was
    clicked. Everything is plain counting over an inverted index, so a few thousand transitions need no library and no
    model. Ties go to the earlier transition, so that results never depend on chance.
    """

    def __init__(self, transitions: Iterable[Transition]) -> None:
        self._items = [item for _, item in zip(range(LIMIT), transitions, strict=False)]
        counts = [features(item.observation, item.action) for item in self._items]
        occurrences = Counter(word for count in counts for word in count)
        self._idf = {word: math.log(1 + len(counts) / number) for word, number in occurrences.items()}
        self._index: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            vector = self._weighed(count)
            length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
            for word, value in vector.items():
                self._index[word].append((number, value / length))

    def __len__(self) -> int:
        return len(self._items)

    def first(self, count: int) -> list[Transition]:
        """The first `count` transitions."""
        return self._items[:count]

    def nearest(self, page: Observation, action: Action, count: int) -> list[Transition]:
        """The `count` transitions most like this page and action, the likest last, next to the question."""
        scores: dict[int, float] = defaultdict(float)
        for word, value in self._weighed(features(page, action)).items():
            for number, weight in self._index.get(word, ()):
                scores[number] += value * weight
        best = sorted(scores, key=lambda number: (-scores[number], number))[:count]
        return [self._items[number] for number in reversed(best)]

    def _weighed(self, count: Counter[str]) -> dict[str, float]:
        return {
            word: (1 + math.log(number)) * self._idf.get(word, 0.0) * (ACTION_WEIGHT if word[0] == "!" else 1.0)
            for word, number in count.items()
        }


def features(page: Observation, action: Action) -> Counter[str]:
    """Words of a transition's question; those of the action begin with `!`."""
    return Counter([*(f"!{word}" for word in _of_action(action)), *_of_page(page)])


def _of_action(action: Action) -> Iterator[str]:
    yield action.kind
    yield f"{action.kind} {action.target_role}"
    yield from _words(action.target_name)


def _of_page(page: Observation) -> Iterator[str]:
    yield from (f"url {word}" for word in _words(page.url))
    for node in page.nodes:
        yield f"role {node.role}"
        yield from _words(node.name)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
