"""Strings through all action grammars: what `benchmarks/web.py fuzz` runs."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from served import report

from dynaweb.types import Action, Node, Observation
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action

_WORDS = "click type stop do( exit( fill( goto [1] [ ] ' \" \\ ``` , ) = Action: Click Type ; 羊 ² 1 2 element= enter"
_ACTIONS = (
    *(
        Action("click", 1),
        Action("type", 2, "it's [1]", True),
        Action("select", 3, "Old"),
        Action("press", text="Enter"),
    ),
    *(Action("scroll", text="down"), Action("goto", text="a.b/c"), Action("tab_focus", index=1), Action("go_back")),
    Action("stop", text="羊 7"),
)


async def fuzz(options: argparse.Namespace) -> None:
    """Strings through all grammars, half of them random, half actions with letters changed: none may raise."""
    page = Observation("http://a/", (Node(1, "link", "Home"), Node(2, "textbox", "Find"), Node(3, "combobox", "Sort")))
    rng, grammars = random.Random(0), observation_formats.names("grammar")
    found: Counter[str] = Counter()
    start = time.perf_counter()
    for number in range(options.strings):
        grammar = grammars[number % len(grammars)]
        reply = (
            _random_reply(rng) if rng.random() < 0.5 else _changed(format_action(rng.choice(_ACTIONS), grammar), rng)
        )
        found[_outcome(reply, page, grammar)] += 1
    seconds = time.perf_counter() - start
    counts = {name: found[name] for name in ("actions", "errors", "silent", "crashes")}
    report("fuzz", strings=options.strings, **counts, per_second=options.strings / seconds)
    if found["crashes"] or found["silent"]:
        raise SystemExit(1)


def _outcome(reply: str, page: Observation, grammar: str) -> str:
    """What a parser makes of a reply: `silent` is an error without a word."""
    try:
        parsed = parse_action(reply, page, grammar)
    except Exception as error:
        sys.stderr.write(f"{grammar} crashed on {reply!r}: {error!r}\n")
        return "crashes"
    return "actions" if isinstance(parsed, Action) else "errors" if parsed else "silent"


def _random_reply(rng: random.Random) -> str:
    reply = "".join(rng.choices([*_WORDS.split(), " ", "\n"], k=rng.randint(0, 9)))
    return reply + "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 3)))


def _changed(text: str, rng: random.Random) -> str:
    """The text with up to three places cut out or written over."""
    for _ in range(rng.randint(0, 3)):
        at, size = rng.randrange(len(text) + 1), rng.randint(0, 2)
        text = text[:at] + rng.choice(["", *_WORDS.split(), chr(rng.randrange(0x110000))]) + text[at + size :]
    return text
