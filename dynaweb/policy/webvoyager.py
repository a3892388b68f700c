"""The prompt of WebVoyager's text-only agents (arXiv 2401.13919, section 3) in a chat template.

The page is a numbered accessibility tree, only the present one is shown, and a reply is a thought and one action in
WebVoyager's grammar. The instructions say what the original's say, in words of our own.
"""

from __future__ import annotations

import re

from dynaweb.policy.chat import ChatFormat
from dynaweb.web.actions import Grammar

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


class WebVoyagerFormat(ChatFormat):
    """Policies are asked and answer as WebVoyager's; world models and judges as in `ChatFormat`."""

    instructions = _AGENT
    grammar: Grammar = "webvoyager"
    history: Grammar = "webvoyager"

    def said(self, reason: str, action: str) -> str:
        """`Thought: ...` and `Action: ...`."""
        return f"Thought: {reason}\nAction: {action}"

    def taken_apart(self, text: str) -> tuple[str, str]:
        """The thought without its head; the grammar itself finds the action in the whole reply."""
        mark = _ACTION.search(text)
        thought = text[: mark.start()] if mark else text.strip().rpartition("\n")[0]
        return _THOUGHT.sub("", thought.strip()).strip(), text
