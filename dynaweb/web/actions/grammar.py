"""What a policy says, parsed to an `Action`, and printed back, in any grammar.

`compact` (for small models; the last line of the reply is the action, lines before it are reasoning):

    click 'Name' [12]                    hover 'Name' [3]
    type 'Name' [2] 'text'               type 'Name' [2] 'text' enter
    select 'Name' [4] 'Option'           press 'Enter'
    scroll down | scroll up              goto 'shop.localhost/cart'
    go_back  go_forward  new_tab  close_tab  wait  tab_focus 1  stop 'answer'

Other grammars are parts of formats, which plugins bring (`dynaweb.web.observation_formats`). Actions that a grammar
does not have of itself are added in its own style, so that every action can be printed in every grammar. `press` and
`scroll` may name an element.

No string crashes a parser: it gives an action, or an error text that the policy can read. Texts of every alphabet,
with quotes, brackets and newlines, come back exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from dynaweb.types import Action, Observation
from dynaweb.web import observation_formats
from dynaweb.web.actions import compact, rules
from dynaweb.web.actions.rules import EDITABLE, SELECTABLE, Refused

__all__ = ["EDITABLE", "SELECTABLE", "format_action", "parse_action", "resolve", "split_reply"]

_WRAPPER = re.compile(
    r"</?(?:answer|action|output|response|tool_call|command|code)>|```(?:[a-z]+(?=\n))?", re.IGNORECASE
)
_TICKED = re.compile(r"^([^`]*:[ \t]*|[ \t]*)`([^`]+)`[ \t.]*$")
_LABEL = re.compile(r"^[ \t*]*(?:next )?action[ \t*]*:[ \t*]*", re.IGNORECASE | re.MULTILINE)

_COMPACT = observation_formats.Grammar(compact.parse, compact.print_action)


def parse_action(reply: str, observation: Observation, grammar: str = "compact") -> Action | str:
    """The action of a reply, or an error text that says what is wrong and what is valid.

    `target_role` and `target_name` of the action come from the observation. An element number that is not there, a name
    that does not belong to it, a role that cannot take the action and an unknown option are errors. Never raises, but
    `MissingError` for a grammar that nobody offers.
    """
    parse = _grammar(grammar).parse
    try:
        return parse(reply, observation)
    except Refused as refusal:
        for bare in _unwrapped(reply):
            with suppress(Refused):
                return parse(bare, observation)
        return str(refusal)


def split_reply(reply: str) -> tuple[str, str]:
    """(reasoning, action line): the last line that is not blank, and everything before it."""
    lines = reply.strip().split("\n")
    return "\n".join(lines[:-1]).strip(), lines[-1].strip()


def format_action(action: Action, grammar: str = "compact", *, with_id: bool = True) -> str:
    """The action in a grammar. Without `with_id` it is the form for histories: names, no numbers."""
    return _grammar(grammar).format(action, with_id)


def resolve(action: Action, observation: Observation) -> Action | str:
    """Check an action against its page and record its target's role and name; an error text if it cannot be done."""
    try:
        return rules.resolve(action, observation)
    except Refused as refusal:
        return str(refusal)


def _grammar(name: str) -> observation_formats.Grammar:
    return _COMPACT if name == "compact" else observation_formats.grammar(name)


def _unwrapped(reply: str) -> Iterator[str]:
    """The reply without what models put around an action: tags, fences with a language, backticks, a label."""
    bare = _WRAPPER.sub("\n", reply)
    bare = "\n".join(_TICKED.sub(r"\1\2", line) for line in bare.split("\n")).strip()
    if bare != reply.strip():
        yield bare
    if (unlabelled := _LABEL.sub("", bare)) != bare:
        yield unlabelled
