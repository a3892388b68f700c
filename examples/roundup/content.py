"""What the tracker holds: users, milestones, keywords and issues, all drawn from a seed. Standard library only.

The same seed gives the same content on every machine, so that tasks, which name issues and people, fit the pages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SEED = 7
ISSUES = 24
OPEN = ("unread", "deferred", "chatting", "need-eg", "in-progress", "testing")
RESOLVED = "resolved"
STATUSES = (*OPEN, RESOLVED)
PRIORITIES = ("critical", "urgent", "bug", "feature", "wish")
"""Statuses and priorities are those that Roundup's classic template brings."""

_FIRST = ("Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leo")
_LAST = ("Aalto", "Berg", "Castro", "Dogan", "Eriksen", "Farkas", "Gruber", "Haddad", "Ivanov", "Jensen", "Kovacs")
_PARTS = (
    *("export dialog", "search box", "login form", "import wizard", "calendar view", "mail gateway", "report page"),
    *("tag editor", "print preview", "backup job", "user menu", "file upload", "sync client", "start page", "chart"),
)
_FAULTS = (
    *("crashes on empty input", "ignores the time zone", "is slow with large files", "loses focus after saving"),
    *("shows the wrong icon", "cannot be closed by keyboard", "forgets the last folder", "writes no log entry"),
    *("needs a progress bar", "breaks long words", "sends every notice twice", "rejects valid dates"),
)
_NOTES = (
    *("Seen on the test server this morning.", "Happens in every browser.", "Only with the new build."),
    *("A customer reported this by phone.", "Worked in the last release.", "Steps are in the attached mail."),
)
_KEYWORDS = ("backend", "documentation", "interface", "mail", "performance", "security")


@dataclass(frozen=True)
class User:
    """A person who may log in; the password is the same as the name."""

    name: str
    real_name: str
    phone: str


@dataclass(frozen=True)
class Milestone:
    """A release that issues are planned for; `due` is a date as YYYY-MM-DD."""

    name: str
    due: str


@dataclass(frozen=True)
class Issue:
    """One issue. Its number is its place in the list, counted from 1; `assignee` '' means nobody."""

    title: str
    priority: str
    status: str
    creator: str
    assignee: str
    keyword: str
    milestone: str
    note: str


@dataclass(frozen=True)
class Content:
    """All of it. The first user is the one that agents are logged in as."""

    users: tuple[User, ...]
    milestones: tuple[Milestone, ...]
    keywords: tuple[str, ...]
    issues: tuple[Issue, ...]

    def number(self, issue: Issue) -> int:
        """The number that the tracker gives an issue."""
        return self.issues.index(issue) + 1


def content(seed: int = SEED) -> Content:
    """The content of a seed. Titles, users and milestones are unique, so that a task's words mean one thing."""
    rng = random.Random(f"roundup {seed}")
    names = list(zip(rng.sample(_FIRST, 8), rng.sample(_LAST, 8), strict=True))
    users = tuple(User(first.lower(), f"{first} {last}", f"555-{rng.randrange(1000, 10000)}") for first, last in names)
    major = rng.randrange(2, 6)
    milestones = tuple(
        Milestone(f"{major}.{minor}", f"2025-{month:02}-{rng.randrange(1, 29):02}")
        for minor, month in enumerate(sorted(rng.sample(range(1, 13), 4)))
    )
    parts, faults = rng.sample(_PARTS, len(_PARTS)), rng.sample(_FAULTS, len(_FAULTS))
    issues = []
    for number in range(ISSUES):
        # Each part of the product has two issues, with other faults.
        fault = faults[(number + number // len(parts) * 5) % len(faults)]
        is_open = number % 5 != 4
        issues.append(
            Issue(
                title=f"The {parts[number % len(parts)]} {fault}",
                priority=rng.choice(PRIORITIES),
                status=rng.choice(OPEN) if is_open else RESOLVED,
                creator=rng.choice(users).name,
                assignee=rng.choice(users).name if rng.random() < 0.7 else "",
                keyword=rng.choice(_KEYWORDS),
                milestone=rng.choice(milestones).name,
                note=rng.choice(_NOTES),
            )
        )
    return Content(users, milestones, _KEYWORDS, tuple(issues))
