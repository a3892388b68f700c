"""What WebVoyager's text-only agents (arXiv 2401.13919) are told and what they write: the format `webvoyager`.

**Grammar** (after `Action:`, or on the last line):

    Click [7]   Type [7]; [text]   Scroll [WINDOW]; [down]   Wait   GoBack   Google   ANSWER; [answer]

`Type` presses Enter after the text, unless `; [0]` follows. Beyond WebVoyager: `Select`, `Hover`, `Press`, `Goto`,
`GoForward`, `NewTab`, `CloseTab` and `SwitchTab`. Brackets may be missing around arguments, as WebVoyager allows.

**Prompt**, in a chat template: the page is a numbered accessibility tree, only the present one is shown, and a reply is
a thought and one action. The instructions say what the original's say (section 3), in words of our own.
"""

from __future__ import annotations

import re

from dynaweb.policy.policy_prompt import PolicyPrompt
from dynaweb.policy.prompt_formats import ChatFormat
from dynaweb.types import Action, ActionKind, Observation
from dynaweb.web.actions.rules import Refused, direction, element, misspelt, resolve, tab_index
from dynaweb.web.observation_formats import Grammar
from dynaweb.web.quoting import quote

SEARCH_PAGE = "https://www.google.com/"
"""Where `Google` leads."""

_KINDS: dict[str, ActionKind] = {
    "Click": "click",
    "Type": "type",
    "Scroll": "scroll",
    "Wait": "wait",
    "GoBack": "go_back",
    "Google": "goto",
    "ANSWER": "stop",
    "Select": "select",
    "Hover": "hover",
    "Press": "press",
    "Goto": "goto",
    "GoForward": "go_forward",
    "NewTab": "new_tab",
    "CloseTab": "close_tab",
    "SwitchTab": "tab_focus",
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_BY_LOWER = {name.lower(): name for name in _KINDS}
_BARE = frozenset({"Wait", "GoBack", "Google", "GoForward", "NewTab", "CloseTab"})
_FORMS = {
    "Click": "Click [12]",
    "Type": "Type [12]; [text]",
    "Scroll": "Scroll [12 or WINDOW]; [up or down]",
    "ANSWER": "ANSWER; [answer]",
    "Select": "Select [12]; [option]",
    "Hover": "Hover [12]",
    "Press": "Press [Enter]",
    "Goto": "Goto [url]",
    "SwitchTab": "SwitchTab [1]",
}
_SECTION = re.compile(r"^[ \t*]*Action[ \t*]*:[ \t*]*", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"[A-Za-z]+")
_ONE = re.compile(r"[ ;]*+(?:\[(.*)\]|([^\[\]\n]*+))\s*+", re.DOTALL)
# The last part is a text that begins with a bracket and does not end with one.
_TWO = re.compile(
    r"[ ;]*+(?:\[([^\[\]\n]{1,12})\]|([A-Za-z0-9]{1,12}))[ ;]++"
    r"(?:\[(.*)\]|([^\[\n][^\n]*+)|(?<=[ ;][ ;])(\[[^\n]*+|))\s*+",
    re.DOTALL,
)
_FLAG = re.compile(r"\] ?; ?\[([01])\Z")
_AGENT = """You browse the web like a person to complete a task. In each turn you get an observation: the accessibility
tree of what the window shows, in which every element has a number. Decide on exactly one action:
Click [number] - click an element
Type [number]; [text] - replace what a field holds by the text and press Enter
Select [number]; [option] - choose an option of a list
Scroll [number or WINDOW]; [up or down] - see more; WINDOW is the whole page, a number the part around that element
Wait - give the page time to load
GoBack - return to the page before
Google - start over with a search
ANSWER; [text] - end the task, with the answer to every question that it asks
Choose only elements whose number is in this observation. Do not repeat an action that changed nothing. Prefer the
site's own search. Answer only when the page shows what the task asks for, in the details that it asks for.
Reply in two lines:
Thought: what you see, and what to do next, in a sentence or two
Action: the action"""

_THOUGHT = re.compile(r"^[ \t*]*Thought[ \t*]*:[ \t*]*", re.IGNORECASE)
_ACTION = re.compile(r"^[ \t*]*Action[ \t*]*:", re.IGNORECASE | re.MULTILINE)


def parse_action(reply: str, observation: Observation) -> Action:
    """The whole reply if it is one action, else its section `Action:`, else its last line. Raises `Refused`."""
    text = reply.strip()
    marks = list(_SECTION.finditer(text))
    starts = [mark.end() for mark in (*marks[-1:], *marks[:1])]
    candidates = [text, *(text[start:].strip() for start in starts)]
    candidates += [] if marks else [text.rpartition("\n")[2].strip()]
    refusal = Refused("the reply is empty; it must hold an action such as Click [12]")
    for candidate in filter(None, candidates):
        try:
            return resolve(_parse_line(candidate), observation)
        except Refused as error:
            refusal = error
    raise refusal


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse_action` reads it; without `with_id` the target's role and name stand for its number."""
    name = "Google" if action.kind == "goto" and action.text == SEARCH_PAGE else _NAMES[action.kind]
    target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
    if name in _BARE:
        return name
    if name in ("Click", "Hover"):
        return f"{name} [{target}]"
    if name == "Scroll":
        return f"Scroll [{'WINDOW' if action.target is None else target}]; [{action.text}]"
    if name == "Type":
        flag = f"; [{int(action.enter)}]" if not action.enter or _FLAG.search(action.text) else ""
        return f"Type [{target}]; [{action.text}]{flag}"
    if name == "Select" or (name == "Press" and action.target is not None):
        return f"{name} [{target}]; [{action.text}]"
    text = str(action.index) if name == "SwitchTab" else action.text
    return f"ANSWER; [{text}]" if name == "ANSWER" else f"{name} [{text}]"


def _parse_line(line: str) -> Action:
    match = _WORD.match(line)
    name = _BY_LOWER.get(match[0].lower()) if match else None
    if match is None or name is None:
        raise Refused(misspelt(line, tuple(_KINDS)))
    try:
        return _action(name, line[match.end() :])
    except ValueError as error:
        raise Refused(f"{name}: {error}; write {_FORMS.get(name, name)}") from None


def _action(name: str, rest: str) -> Action:
    kind = _KINDS[name]
    if name in _BARE:
        if rest.strip(" .\n[]"):
            raise ValueError(f"unexpected {quote(rest.strip()[:40])} at the end")
        return Action(kind, text=SEARCH_PAGE if name == "Google" else "")
    if name in ("Type", "Select", "Scroll"):
        return _on_element(name, *_two(rest))
    if name == "Press" and (pair := _TWO.fullmatch(rest)) is not None and (pair[1] or "").isdigit():
        return Action(kind, element(pair[1]), pair[3] or pair[4] or pair[5] or "")
    text = _one(rest)
    if name in ("Click", "Hover"):
        return Action(kind, element(text))
    return Action(kind, index=tab_index(text)) if name == "SwitchTab" else Action(kind, text=text)


def _on_element(name: str, first: str, second: str) -> Action:
    if name == "Scroll":
        target = None if first.lower() == "window" else element(first)
        return Action("scroll", target, direction(second.strip().lower()))
    if name == "Select":
        return Action("select", element(first), second)
    flag = _FLAG.search(second)
    return Action("type", element(first), second[: flag.start()] if flag else second, flag is None or flag[1] == "1")


def _one(rest: str) -> str:
    match = _ONE.fullmatch(rest)
    if match is None:
        raise ValueError("its argument stands in [ ]")
    return match[1] if match[1] is not None else match[2].strip()


def _two(rest: str) -> tuple[str, str]:
    match = _TWO.fullmatch(rest)
    if match is None:
        raise ValueError("it takes two arguments in [ ], with a semicolon between them")
    return match[1] or match[2], match[3] if match[3] is not None else (match[4] or match[5]).strip()


class WebvoyagerWords(PolicyPrompt):
    """What WebVoyager's text-only agents are asked and answer."""

    instructions = _AGENT
    grammar = "webvoyager"
    history = "webvoyager"
    section = _ACTION

    def reply_text(self, reason: str, action: str) -> str:
        """`Thought: ...` and `Action: ...`."""
        return f"Thought: {reason}\nAction: {action}"

    def reply_parts(self, text: str) -> tuple[str, str]:
        """The thought without its head; the grammar itself finds the action in the whole reply."""
        mark = _ACTION.search(text)
        thought = text[: mark.start()] if mark else text.strip().rpartition("\n")[0]
        return _THOUGHT.sub("", thought.strip()).strip(), text


class WebvoyagerPrompt(ChatFormat):
    """Policies are asked and answer as WebVoyager's; world models and judges as in `ChatFormat`."""

    words = WebvoyagerWords


class Webvoyager:
    """The format `webvoyager`."""

    grammar = Grammar(parse_action, print_action)
    prompt = WebvoyagerPrompt
