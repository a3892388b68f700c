"""The forum: boards, threads with votes and replies, members, notifications and settings, without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from flask import Blueprint, abort, request
from werkzeug.wrappers import Response

from dynaweb.types import Split
from dynaweb_env_sites.base import Template, current, render
from dynaweb_env_sites.content import Locale
from dynaweb_env_sites.forum_state import (
    MEMBER_SORTS,
    PAGE,
    POSTS,
    SORTS,
    Board,
    ForumState,
    Member,
    Thread,
    forum_content,
)
from dynaweb_env_sites.forum_tasks import TEMPLATES
from dynaweb_env_sites.sitekit import LACKING, View, blueprint, found_at, listing, named, option, sent, show


class Forum:
    """The forum as a `Site`."""

    name = "forum"
    host = "forum.localhost"
    templates: tuple[Template, ...] = TEMPLATES

    def build(self, seed: int, split: Split, locale: Locale) -> ForumState:
        """Fresh state on cached content."""
        content = forum_content(seed, split, locale)
        threads = {thread.slug: thread for thread in content.threads}
        return ForumState(seed, split, locale, content, threads, content.settings)

    def blueprint(self) -> Blueprint:
        """The views; every address is as the user sees it."""
        return blueprint("forum", _READ, _WRITE)

    def snapshot(self, state: ForumState) -> dict[str, Any]:
        """What the user changed, by titles and names, and the present settings."""
        threads = {thread.title: thread for thread in state.threads.values()}
        return {
            "upvoted": sorted(state.upvoted),
            "subscribed": sorted(state.subscribed),
            "followed": sorted(state.followed),
            "replies": {title: list(texts) for title, texts in state.written.items()},
            "started": list(state.started),
            "threads": {title: {"board": threads[title].board, "text": threads[title].text} for title in state.started},
            "settings": asdict(state.settings),
            "unread": state.unread,
        }


SITE = Forum()


def _home() -> str:
    state = current(ForumState)
    return render("forum/home.html", latest=list(state.threads.values())[:4])


def _board(name: str) -> str:
    state = current(ForumState)
    board, sort = _board_at(state, name), option("sort", SORTS)
    threads = listing(state.board_threads(board.name, sort), PAGE)
    return render("forum/board.html", board=board, threads=threads, sort=sort, sorts=SORTS)


def _thread(name: str) -> str:
    state = current(ForumState)
    thread = _thread_at(state, name)
    board = next(board for board in state.content.boards if board.name == thread.board)
    people = {member.name: member for member in state.content.members}
    return render("forum/thread.html", thread=thread, board=board, people=people, posts=listing(thread.replies, POSTS))


def _upvote(name: str) -> Response:
    state = current(ForumState)
    thread = _thread_at(state, name)
    return show(state, f"/threads/{name}", "Upvoted." if state.toggle_upvote(thread) else "Upvote removed.")


def _subscribe(name: str) -> Response:
    state = current(ForumState)
    thread = _thread_at(state, name)
    return show(state, f"/threads/{name}", "Subscribed." if state.toggle_subscription(thread) else "Unsubscribed.")


def _reply(name: str) -> Response:
    state = current(ForumState)
    thread, text = _thread_at(state, name), sent("text")
    if not text:
        return show(state, f"/threads/{name}", "Please write a reply.")
    state.reply(thread, text)
    return show(state, f"/threads/{name}", "Reply posted.")


def _new() -> str:
    return _new_form(current(ForumState))


def _create() -> View:
    state = current(ForumState)
    title, board, text = sent("title"), sent("board"), sent("text")
    if not title or board not in {board.name for board in state.content.boards}:
        state.notice = "Please give a title."
        return _new_form(state, title=title, board=board, text=text)
    return show(state, f"/threads/{state.start(board, title, text).slug}", "Thread started.")


def _new_form(state: ForumState, **values: str) -> str:
    return render("forum/new.html", boards=[board.name for board in state.content.boards], values=values)


def _search() -> str:
    state = current(ForumState)
    query = request.args.get("q", "").strip()
    threads, members = state.find(query)
    return render("forum/search.html", query=query, threads=threads[:PAGE], members=members[:PAGE])


def _members() -> str:
    state = current(ForumState)
    sort = option("sort", MEMBER_SORTS)
    return render("forum/members.html", members=listing(state.members(sort), PAGE), sort=sort, sorts=MEMBER_SORTS)


def _user(name: str) -> str:
    state = current(ForumState)
    member = _member_at(state, name)
    threads = [thread for thread in state.threads.values() if thread.author == member.name]
    return render("forum/user.html", member=member, threads=threads[:3])


def _follow(name: str) -> Response:
    state = current(ForumState)
    followed = state.toggle_follow(_member_at(state, name))
    return show(state, f"/users/{name}", "Following." if followed else "No longer following.")


def _settings() -> str:
    return render("forum/settings.html")


def _save_settings() -> View:
    state = current(ForumState)
    contact = named()
    if contact is None:
        state.notice = LACKING
        return render("forum/settings.html")
    state.settings = replace(state.settings, **contact, signature=sent("signature"), digests=sent("digests") == "yes")
    return show(state, "/settings", "Settings saved.")


def _notifications() -> str:
    return render("forum/notifications.html")


def _read_notifications() -> Response:
    state = current(ForumState)
    state.unread = False
    return show(state, "/notifications", "All marked as read.")


def _board_at(state: ForumState, address: str) -> Board:
    return found_at(state.content.boards, address)


def _thread_at(state: ForumState, address: str) -> Thread:
    return state.threads.get(address) or abort(404)


def _member_at(state: ForumState, address: str) -> Member:
    return found_at(state.content.members, address)


_READ: dict[str, Callable[..., str]] = {
    "/": _home,
    "/boards/<name>": _board,
    "/threads/<name>": _thread,
    "/new": _new,
    "/search": _search,
    "/members": _members,
    "/users/<name>": _user,
    "/settings": _settings,
    "/notifications": _notifications,
}
_WRITE: dict[str, Callable[..., View]] = {
    "/threads/<name>/upvote": _upvote,
    "/threads/<name>/subscribe": _subscribe,
    "/threads/<name>/reply": _reply,
    "/new": _create,
    "/users/<name>/follow": _follow,
    "/settings": _save_settings,
    "/notifications": _read_notifications,
}
