"""The change of a page as a world model writes it, as a label and read back.

    Opens 'Wool Scarf'.             reasoning, one line
    url shop.localhost/product/3    the edits: a rebuild script (`dynaweb.web.delta`)
    = [1]-[5]
    + heading 'Wool Scarf'
    # The page shows a scarf.       the change in a sentence, when it says more than the first line
    end                             the episode is over on the new page

The edits of a label come from the real pair of pages, without any language model. Reasoning and sentence are those of a
labeller (`Transition.info["reasoning"]` and `["sentence"]`), else one sentence from fixed templates serves as both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynaweb.types import Action, Observation, Prediction, Transition
from dynaweb.web.delta import DeltaError, apply, describe, diff, parse, to_text

REASONING, SENTENCE, DONE, HISTORY, GOAL = "reasoning", "sentence", "done", "history", "goal"
"""Keys of `Transition.info`: the labeller's words, whether the episode ended there, the actions before, and the
goal in words."""

END = "end"
_MARK = "# "


@dataclass(frozen=True, slots=True)
class Words:
    """What is said about a change: why it comes (`reasoning`) and what it is (`sentence`, '' = the reasoning)."""

    reasoning: str
    sentence: str = ""

    @property
    def change(self) -> str:
        """The change in words."""
        return self.sentence or self.reasoning


def words_of(transition: Transition) -> Words:
    """The labeller's words of a transition, one line each; templates where it has none."""
    reasoning, sentence = (_line(transition.info.get(key, "")) for key in (REASONING, SENTENCE))
    if not reasoning and not sentence:
        return Words(describe(transition.observation, transition.action, transition.next_observation))
    return Words(reasoning or sentence, sentence if reasoning else "")


def history_of(transition: Transition) -> tuple[Action, ...]:
    """The actions that came before, oldest first; () where nobody noted them."""
    return tuple(transition.info.get(HISTORY, ()))


def goal_of(transition: Transition) -> str:
    """The goal that was pursued, in words; '' where nobody noted it."""
    return str(transition.info.get(GOAL, ""))


def change_text(transition: Transition, *, edits: bool = True) -> str:
    """The true change as a model should write it; without `edits` only in words."""
    words = words_of(transition)
    lines = [words.reasoning]
    if edits:
        lines.append(to_text(diff(transition.observation, transition.next_observation)))
    if words.sentence:
        lines.append(f"{_MARK}{words.sentence}")
    if transition.info.get(DONE):
        lines.append(END)
    return "\n".join(lines)


def read_change(text: str, before: Observation) -> Prediction:
    """The prediction in an answer with edits. Raises `DeltaError` when they cannot be read or do not fit the page."""
    words, script, done = split_change(text)
    delta = replace(parse("\n".join(script), before), sentence=words.change)
    return Prediction(apply(before, delta), delta, words.reasoning, done, text=text)


def split_change(text: str) -> tuple[Words, list[str], bool]:
    """Words, lines of edits, and whether the episode ends. Raises `DeltaError` for an empty answer."""
    lines = text.strip("\n").split("\n")
    if not lines[0].strip():
        raise DeltaError("nothing was written; expected a sentence, then the edits")
    reasoning, rest = lines[0].strip().removeprefix(_MARK), lines[1:]
    done = _last(rest) == END
    if done:
        rest = rest[: _index(rest)]
    sentence = ""
    if _last(rest).startswith(_MARK):
        sentence = _last(rest).removeprefix(_MARK)
        rest = rest[: _index(rest)]
    return Words(reasoning, sentence), rest, done


def _last(lines: Sequence[str]) -> str:
    """The last line that says something, '' for none."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _index(lines: Sequence[str]) -> int:
    return max(at for at, line in enumerate(lines) if line.strip())


def _line(text: object) -> str:
    return " ".join(str(text).split())
