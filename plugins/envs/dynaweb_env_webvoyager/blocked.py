"""Pages that keep agents out: they say nothing about the agent, so they are told apart from failures."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from dynaweb.types import Observation

Wall = Literal["captcha", "login", "consent", ""]

_CAPTCHA = re.compile(
    r"captcha|are you (a |not a )?(robot|human)|not a robot|unusual traffic|verify(ing)? (that )?you are (a )?human|"
    r"checking your browser|press (&|and) hold|access denied|attention required|security check|"
    r"automated (access|queries)",
    re.IGNORECASE,
)
_LOGIN_PATH = re.compile(
    r"(?:^|[/._-])(?:log[-_]?in|sign[-_]?in|signup|auth(?:enticate|wall)?)(?:[/._-]|$)", re.IGNORECASE
)
_LOGIN = re.compile(
    r"(?:sign|log) in to (?:continue|view|see)|(?:please|you must|need to) (?:sign|log) in", re.IGNORECASE
)
_CONSENT = re.compile(
    r"before you continue|we value your privacy|cookie (?:consent|preferences)|consent to (?:the use of )?cookies|"
    r"we and our (?:\d+ )?partners",
    re.IGNORECASE,
)
_AGREE = re.compile(r"^(?:accept|agree|allow|i agree|got it|reject)\b", re.IGNORECASE)
FEW = 25
"""A page with no more elements than this has little but the wall on it."""


def wall(page: Observation) -> Wall:
    """What keeps an agent out of this page, or ''.

    A captcha must be most of the page, so that a news item about robots is none. A login is a wall where a password
    is asked for on a page for logging in, or where the page says so. Consent is one while its buttons are there.
    """
    text = " ".join([page.title, *(node.name for node in page.nodes)])
    if len(page.nodes) <= FEW and _CAPTCHA.search(text):
        return "captcha"
    asks = any("password" in node.name.lower() for node in page.nodes if node.role in ("textbox", "searchbox"))
    if (asks and _LOGIN_PATH.search(urlsplit(page.url).path)) or (len(page.nodes) <= FEW and _LOGIN.search(text)):
        return "login"
    if _CONSENT.search(text) and any(node.role == "button" and _AGREE.match(node.name) for node in page.nodes):
        return "consent"
    return ""
