"""What a policy says, parsed to an `Action`, and printed back, in five grammars.

`compact` (for small models; the last line of the reply is the action, lines before it are reasoning):

    click 'Name' [12]                    hover 'Name' [3]
    type 'Name' [2] 'text'               type 'Name' [2] 'text' enter
    select 'Name' [4] 'Option'           press 'Enter'
    scroll down | scroll up              goto 'shop.localhost/cart'
    go_back  go_forward  new_tab  close_tab  wait  tab_focus 1  stop 'answer'

`webarena` (the action stands in the last block of three backticks, or on the last line):

    click [12]   hover [3]   type [2] [text] [1]   select [4] [option]   press [Enter]   scroll [down]   goto [url]
    go_back  go_forward  new_tab  close_tab  wait  tab_focus [1]  stop [answer]

`webrl` (the last call counts):

    do(action="Click", element="7")   do(action="Search", argument="text", element="7")   go_backward()
    exit(message="answer")

`webvoyager` (after `Action:`, or on the last line):

    Click [7]   Type [7]; [text]   Scroll [WINDOW]; [down]   Wait   GoBack   Google   ANSWER; [answer]

`browsergym` (the last call counts):

    click('7')   fill('7', 'text')   select_option('7', 'option')   scroll(0, 500)   send_msg_to_user('answer')

Actions that a grammar does not have of itself are added in its own style (see the modules `grammar_*`), so that every
action can be printed in every grammar. `press` and `scroll` may name an element; `browsergym` drops that of `scroll`.

No string crashes a parser: it gives an action, or an error text that the policy can read. Texts of every alphabet,
with quotes, brackets and newlines, come back exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from dynaweb.types import Action, Observation
from dynaweb.web import (
    action_rules,
    grammar_browsergym,
    grammar_compact,
    grammar_webarena,
    grammar_webrl,
    grammar_webvoyager,
)
from dynaweb.web.action_rules import EDITABLE, SELECTABLE, Refused

__all__ = ["EDITABLE", "GRAMMARS", "SELECTABLE", "Grammar", "format_action", "parse_action", "resolve", "split_reply"]

Grammar = Literal["compact", "webarena", "webrl", "webvoyager", "browsergym"]
GRAMMARS: tuple[Grammar, ...] = get_args(Grammar)

_PARSERS: dict[Grammar, Callable[[str, Observation], Action]] = {
    "compact": grammar_compact.parse,
    "webarena": grammar_webarena.parse,
    "webrl": grammar_webrl.parse,
    "webvoyager": grammar_webvoyager.parse,
    "browsergym": grammar_browsergym.parse,
}
_PRINTERS: dict[Grammar, Callable[[Action, bool], str]] = {
    "compact": grammar_compact.print_action,
    "webarena": grammar_webarena.print_action,
    "webrl": grammar_webrl.print_action,
    "webvoyager": grammar_webvoyager.print_action,
    "browsergym": grammar_browsergym.print_action,
}


def parse_action(reply: str, observation: Observation, grammar: Grammar = "compact") -> Action | str:
    """The action of a reply, or an error text that says what is wrong and what is valid. Never raises.

    `target_role` and `target_name` of the action come from the observation. An element number that is not there, a name
    that does not belong to it, a role that cannot take the action and an unknown option are errors.
    """
    try:
        return _PARSERS[grammar](reply, observation)
    except Refused as refusal:
        return str(refusal)


def split_reply(reply: str) -> tuple[str, str]:
    """(reasoning, action line): the last line that is not blank, and everything before it."""
    lines = reply.strip().split("\n")
    return "\n".join(lines[:-1]).strip(), lines[-1].strip()


def format_action(action: Action, grammar: Grammar = "compact", *, with_id: bool = True) -> str:
    """The action in a grammar. Without `with_id` it is the form for histories: names, no numbers."""
    return _PRINTERS[grammar](action, with_id)


def resolve(action: Action, observation: Observation) -> Action | str:
    """Check an action against its page and record its target's role and name; an error text if it cannot be done."""
    try:
        return action_rules.resolve(action, observation)
    except Refused as refusal:
        return str(refusal)
