"""What the forum knows: generated boards, members and threads, and the changes that one episode makes to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.content import Locale, Words, matches, slug
from dynaweb_env_sites.state import AccountState, Contact

BOARDS = 4
THREADS_PER_BOARD = 7
MEMBERS = 10
PAGE = 5
"""Threads and members on one page."""
POSTS = 3
"""Replies on one page of a thread."""

SORTS = ("Newest", "Most votes", "Most replies")
MEMBER_SORTS = ("Name", "Most karma")

_TOPICS = ("recipe", "trip", "repair", "question", "photos", "review", "news", "tools", "garden", "music")
_ADJECTIVES = ("Old", "New", "Cheap", "Lost", "Quiet", "Broken")
REMARKS = ("Thanks for the {}", "I like {} more", "Try a {} first", "Never heard of {}", "Ask in {}", "My {} works")
OPENERS = ("Has anyone tried {}?", "Here is my {}", "Looking for a {}", "Some notes on {}")
_REASONS = ("replied to", "mentioned you in", "quoted you in", "voted for")


@dataclass(frozen=True, slots=True)
class Member:
    """A user of the forum; `joined` is a date in the locale's format."""

    name: str
    slug: str
    joined: str
    karma: int
    location: str
    bio: str


@dataclass(frozen=True, slots=True)
class Board:
    """A named group of threads."""

    name: str
    slug: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in a thread, by a member's name."""

    author: str
    text: str


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread with its opening text; `replies` stand newest first."""

    title: str
    slug: str
    board: str
    author: str
    posted: str
    text: str
    votes: int
    replies: tuple[Reply, ...] = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """Something that happened to the user: who did what (`replied to`) in which thread."""

    author: str
    reason: str
    thread: Thread


@dataclass(frozen=True, slots=True)
class Settings(Contact):
    """The user's own settings."""

    signature: str = ""
    digests: bool = False


@dataclass(frozen=True, slots=True)
class ForumContent:
    """Everything that is generated from the seed; threads newest first."""

    brand: str
    boards: tuple[Board, ...]
    members: tuple[Member, ...]
    threads: tuple[Thread, ...]
    active: tuple[Member, ...]
    notifications: tuple[Notification, ...]
    settings: Settings


@dataclass
class ForumState(AccountState):
    """The forum of one episode. `threads` maps addresses to threads, newest first; the sets hold titles or names."""

    settings: Settings
    content: ForumContent
    threads: dict[str, Thread]
    upvoted: set[str] = field(default_factory=set)
    subscribed: set[str] = field(default_factory=set)
    followed: set[str] = field(default_factory=set)
    written: dict[str, list[str]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    unread: bool = True

    @classmethod
    def fresh(cls, seed: int, split: Split, locale: Locale) -> ForumState:
        """The forum as it is at the start of every episode."""
        content = forum_content(seed, split, locale)
        return cls(seed, split, locale, content.settings, content, {thread.slug: thread for thread in content.threads})

    def snapshot(self) -> dict[str, Any]:
        """What the user changed, by titles and names, and the present settings."""
        threads = {thread.title: thread for thread in self.threads.values()}
        return {
            "upvoted": sorted(self.upvoted),
            "subscribed": sorted(self.subscribed),
            "followed": sorted(self.followed),
            "replies": {title: list(texts) for title, texts in self.written.items()},
            "started": list(self.started),
            "threads": {title: {"board": threads[title].board, "text": threads[title].text} for title in self.started},
            "settings": asdict(self.settings),
            "unread": self.unread,
        }

    def board_threads(self, board: str, sort: str = SORTS[0]) -> list[Thread]:
        """The threads of a board in one of the orders `SORTS`."""
        threads = [thread for thread in self.threads.values() if thread.board == board]
        if sort == "Most votes":
            threads.sort(key=lambda thread: -thread.votes)
        elif sort == "Most replies":
            threads.sort(key=lambda thread: -len(thread.replies))
        return threads

    def members(self, sort: str = MEMBER_SORTS[0]) -> list[Member]:
        """All members in one of the orders `MEMBER_SORTS`."""
        if sort == "Most karma":
            return sorted(self.content.members, key=lambda member: -member.karma)
        return sorted(self.content.members, key=lambda member: member.slug)

    def find(self, query: str) -> tuple[list[Thread], list[Member]]:
        """Threads by title and members by name that contain every word of the query."""
        threads = [thread for thread in self.threads.values() if matches(query, thread.title)]
        return threads, [member for member in self.members() if matches(query, member.name)]

    def toggle_upvote(self, thread: Thread) -> bool:
        """Give or take back the user's vote; returns whether the thread has it now."""
        voted = _toggle(self.upvoted, thread.title)
        self.threads[thread.slug] = replace(thread, votes=thread.votes + (1 if voted else -1))
        return voted

    def toggle_subscription(self, thread: Thread) -> bool:
        """Subscribe or unsubscribe; returns whether the user is subscribed now."""
        return _toggle(self.subscribed, thread.title)

    def toggle_follow(self, member: Member) -> bool:
        """Follow or unfollow; returns whether the user follows the member now."""
        return _toggle(self.followed, member.name)

    def reply(self, thread: Thread, text: str) -> None:
        """Add the user's reply as the newest one."""
        reply = Reply(self.settings.name, text)
        self.threads[thread.slug] = replace(thread, replies=(reply, *thread.replies))
        self.written.setdefault(thread.title, []).append(text)

    def start(self, board: str, title: str, text: str) -> Thread:
        """Open a new thread, which becomes the newest one."""
        thread = Thread(title, slug(title, self.threads), board, self.settings.name, "today", text, votes=0)
        self.threads = {thread.slug: thread, **self.threads}
        self.started.append(title)
        return thread


def _toggle(group: set[str], item: str) -> bool:
    if item in group:
        group.remove(item)
        return False
    group.add(item)
    return True


def title(words: Words) -> str:
    """A new thread title of two or three words, such as `Velmor recipe`."""
    base = words.titled(_TOPICS)
    return base if words.rng.random() < 0.7 else f"{words.rng.choice(_ADJECTIVES)} {base}"


@lru_cache(maxsize=256)
def forum_content(seed: int, split: Split, locale: Locale) -> ForumContent:
    """The generated part of a forum; the same arguments give the same content."""
    words = Words(seed, split, locale, "forum")
    brand = words.name()
    boards = tuple(Board(name, slug(name)) for name in words.names(BOARDS))
    members = _members(words)
    threads = _threads(words, boards, members)
    active = tuple(words.rng.sample(members, 3))
    settings = Settings(words.name(), words.email(), digests=words.rng.random() < 0.5)
    return ForumContent(brand, boards, members, threads, active, _notifications(words.rng, members, threads), settings)


def _members(words: Words) -> tuple[Member, ...]:
    karmas = words.rng.sample(range(10, 990), MEMBERS)
    members: dict[str, Member] = {}
    for karma in karmas:
        name = words.name()
        joined, bio = words.locale.date(words.day()), f"Fan of {words.word()}"
        address = slug(name, members)
        members[address] = Member(name, address, joined, karma, words.name(), bio)
    return tuple(members.values())


def _threads(words: Words, boards: Sequence[Board], members: Sequence[Member]) -> tuple[Thread, ...]:
    threads: dict[str, Thread] = {}
    rounds = [board for _ in range(THREADS_PER_BOARD) for board in boards]
    votes = words.rng.sample(range(2, 99), len(rounds))
    for board, vote in zip(rounds, votes, strict=True):
        name = title(words)
        address = slug(name, threads)
        author, posted = words.rng.choice(members).name, words.locale.date(words.day())
        replies = _replies(words, members)
        threads[address] = Thread(name, address, board.name, author, posted, words.phrase(OPENERS), vote, replies)
    return tuple(threads.values())


def _replies(words: Words, members: Sequence[Member]) -> tuple[Reply, ...]:
    count = words.rng.choice((0, 1, 2, 2, 3, 3, 4, 5, 6))
    return tuple(Reply(words.rng.choice(members).name, words.phrase(REMARKS)) for _ in range(count))


def _notifications(
    rng: random.Random, members: Sequence[Member], threads: Sequence[Thread]
) -> tuple[Notification, ...]:
    count = len(_REASONS)
    authors, chosen = rng.sample(members, count), rng.sample(threads, count)
    reasons = rng.sample(_REASONS, count)
    return tuple(
        Notification(author.name, reason, thread)
        for author, reason, thread in zip(authors, reasons, chosen, strict=True)
    )
