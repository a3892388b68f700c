"""Plans for the mail box and for the posts: the icons beside a name."""

from __future__ import annotations

from collections.abc import Mapping

from dynaweb.types import Node
from dynaweb_env_miniwob.plan import Page, Plan, Planner, match, on, quoted


def mail(goal: str, page: Page) -> Plan:
    """`Find the email by Deva and click the star icon to mark it as important.`, or delete, forward or answer it."""
    (sender,) = match(r"email by (\S+?)\.? ", goal)
    who = page.get("text", sender)
    if "star icon" in goal or "trash icon" in goal:
        yield page.click("button", "star" if "star icon" in goal else "trash", after=who)
    elif "forward" in goal:
        yield from _forward(page, who, match(r"forward that email to (\S+)\.", goal)[0])
    else:
        page = yield on("click", who)
        page = yield page.click("button", "Reply")
        page = yield page.fill(quoted(goal))
        yield page.click("button", "send-reply")


def posts(goal: str, page: Page) -> Plan:
    """`Click the "Retweet" button on all posts by @enola and then click Submit.`, or on some of them."""
    how_many, user = match(r"on (all|\d+) posts? by (@\S+) and", goal)
    count = len(_posts(page, user)) if how_many == "all" else int(how_many)
    for index in range(count):
        page = yield page.click("button", ICONS[quoted(goal)], after=_posts(page, user)[index])
    yield page.submit()


ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}
"""Icons under a post by what they do."""


def _posts(page: Page, user: str) -> list[Node]:
    return [node for node in page.all("text") if user in node.name.split()]


def _forward(page: Page, sender: Node, to: str) -> Plan:
    page = yield on("click", sender)
    page = yield page.click("button", "Forward")
    page = yield page.fill(to)
    yield page.click("button", "send-forward")


PLANS: Mapping[str, Planner] = {
    "email-inbox": mail,
    "email-inbox-delete": mail,
    "email-inbox-forward": mail,
    "email-inbox-important": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-reply": mail,
    "email-inbox-star-reply": mail,
    "social-media-all": posts,
    "social-media-some": posts,
}
"""Tasks and their plans."""
