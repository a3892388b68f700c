"""A person decides in an episode: the page is printed, the terminal gives the actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dynaweb.rollout.agents import Decision
from dynaweb.types import Action
from dynaweb.web.actions.grammar import parse_action
from dynaweb.web.page.text import render
from dynaweb.web.quoting import quote

if TYPE_CHECKING:
    from dynaweb.types import Observation, Task

HELP = """Actions: click 'Name' [4] | type 'Name' [2] 'text' | type 'Name' [2] 'text' enter | select 'Name' [3] 'Option'
  press 'Enter' | scroll down | goto 'url' | go_back | go_forward | new_tab | tab_focus 1 | close_tab | wait
  stop 'answer'. In short: click 4, type 2 some text, select 3 Option, stop an answer. Also: help, quit."""
NOTES = "Say why with a line that begins with #, before the action."
_SHORT = ("click", "hover", "type", "select")
_WORDS = ("stop", "goto", "press")
"""Actions whose only argument is a text."""


class GivenUp(Exception):
    """The person ends the session; the episode that it was in is not finished."""


class HumanPlayer:
    """A person at a terminal decides. Lines that begin with `#` are the reasoning of the next action."""

    deterministic = False

    def __init__(self, say: Callable[[str], None], ask: Callable[[str], str]) -> None:
        self.say, self.ask = say, ask

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        """The person's action. Lines that are none are asked for again; raises `GivenUp` for `quit`."""
        head = "" if history else f"Goal: {task.intent}\n{NOTES}\n\n"
        self.say(f"\n{head}{render(observation)}")
        thoughts: list[str] = []
        while True:
            line = await typed_line(self.ask, f"{len(history) + 1}> ")
            if line is None or line in ("quit", "exit"):
                raise GivenUp
            if line.startswith("#"):
                thoughts.append(line.lstrip("# "))
                continue
            if line in ("", "help"):
                self.say(f"{HELP}\n{NOTES}")
                continue
            action = parse_action(expand(line, observation), observation)
            if isinstance(action, Action):
                return Decision(action, "\n".join(filter(None, thoughts)), line, info={"player": "human"})
            self.say(f"! {action}")


def expand(line: str, page: Observation) -> str:
    """`click 4`, `type 2 some text` and `stop an answer` as the grammar has them; everything else as it is."""
    kind, _, rest = line.partition(" ")
    if kind in _WORDS and rest and rest[0] not in "'\"":
        return f"{kind} {quote(rest)}"
    number, _, text = rest.partition(" ")
    if kind not in _SHORT or not number.isdigit():
        return line
    node = page.node(int(number))
    named = f"{kind} {quote(node.name if node is not None else '')} [{number}]"
    return f"{named} {quote(text)}" if kind in ("type", "select") else named


async def typed_line(ask: Callable[[str], str], prompt: str) -> str | None:
    """A line of the terminal, None at the end of the input. Pages go on living while a person thinks."""
    try:
        return (await asyncio.to_thread(ask, prompt)).strip()
    except EOFError:
        return None
