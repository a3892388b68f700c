"""What the tracker knows: generated projects, people and issues, and the changes that one episode makes to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import lru_cache
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.content import Locale, Words, matches, slug
from dynaweb_env_sites.state import AccountState, Contact

PROJECTS = 4
ISSUES_PER_PROJECT = 7
PEOPLE = 9
TEAM = 4
"""Members of one project."""
PAGE = 5
"""Issues on one page."""
COMMENTS = 2
"""Comments shown on an issue page, newest first."""

STATES = ("Open", "Closed")
FILTERS = ("All", *STATES)
PRIORITIES = ("Low", "Medium", "High", "Critical")
LABELS = ("bug", "feature", "docs", "design")
ROLES = ("Owner", "Maintainer", "Developer", "Reporter", "Guest")
ISSUE_SORTS = ("Newest", "Priority", "Due date")
PROJECT_SORTS = ("Name", "Most open issues")

_PARTS = ("login", "export", "menu", "upload", "report", "button", "filter", "backup", "chart", "import")
_ADJECTIVES = ("Broken", "Slow", "Missing", "Wrong", "Empty")
REMARKS = ("Fixed in {}", "Same with {}", "Please test {}", "Waiting for {}", "Caused by {}", "See also {}")
REPORTS = ("Fails after {}", "Happens with {}", "Needed for {}", "Seen in {}")


@dataclass(frozen=True, slots=True)
class Person:
    """Someone who works on projects."""

    name: str
    slug: str
    role: str
    email: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """A named date of a project; `progress` is in percent."""

    name: str
    due: date
    progress: int


@dataclass(frozen=True, slots=True)
class Project:
    """A project with its team (names) and milestones."""

    name: str
    slug: str
    team: tuple[str, ...]
    milestones: tuple[Milestone, ...]


@dataclass(frozen=True, slots=True)
class Comment:
    """A remark on an issue, by a person's name."""

    author: str
    text: str


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue with its details; `comments` stand newest first."""

    title: str
    slug: str
    project: str
    state: str
    priority: str
    assignee: str
    milestone: str
    due: date
    label: str
    description: str = ""
    confidential: bool = False
    comments: tuple[Comment, ...] = ()


_SNAPSHOT_FIELDS = (
    "project", "state", "priority", "assignee", "milestone", "label", "description", "confidential",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings(Contact):
    """The user's own settings."""

    timezone: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class TrackerContent:
    """Everything that is generated from the seed; issues newest first."""

    brand: str
    people: tuple[Person, ...]
    projects: tuple[Project, ...]
    issues: tuple[Issue, ...]
    me: Person
    settings: Settings


@dataclass
class TrackerState(AccountState):
    """The tracker of one episode. `issues` maps addresses to issues, newest first."""

    settings: Settings
    content: TrackerContent
    issues: dict[str, Issue]
    written: dict[str, list[str]] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)

    @classmethod
    def fresh(cls, seed: int, split: Split, locale: Locale) -> TrackerState:
        """The tracker as it is at the start of every episode."""
        content = tracker_content(seed, split, locale)
        return cls(seed, split, locale, content.settings, content, {issue.slug: issue for issue in content.issues})

    def snapshot(self) -> dict[str, Any]:
        """Every issue by its title, what was changed, created and written, and the present settings."""
        return {
            "issues": {
                issue.title: {key: getattr(issue, key) for key in _SNAPSHOT_FIELDS} for issue in self.issues.values()
            },
            "changed": sorted(self.changed()),
            "created": list(self.created),
            "comments": {title: list(texts) for title, texts in self.written.items()},
            "settings": asdict(self.settings),
        }

    def project_issues(self, project: str, state: str = FILTERS[0], sort: str = ISSUE_SORTS[0]) -> list[Issue]:
        """The issues of a project in a state of `FILTERS` and an order of `ISSUE_SORTS`."""
        issues = [issue for issue in self.issues.values() if issue.project == project and state in ("All", issue.state)]
        if sort == "Priority":
            issues.sort(key=lambda issue: -PRIORITIES.index(issue.priority))
        elif sort == "Due date":
            issues.sort(key=lambda issue: issue.due)
        return issues

    def open_count(self, project: str) -> int:
        """How many issues of the project are open."""
        return len(self.project_issues(project, "Open"))

    def projects(self, sort: str = PROJECT_SORTS[0]) -> list[Project]:
        """All projects in one of the orders `PROJECT_SORTS`."""
        if sort == "Most open issues":
            return sorted(self.content.projects, key=lambda project: -self.open_count(project.name))
        return sorted(self.content.projects, key=lambda project: project.slug)

    def due_soon(self) -> list[Issue]:
        """The three open issues that are due first."""
        issues = [issue for issue in self.issues.values() if issue.state == "Open"]
        return sorted(issues, key=lambda issue: issue.due)[:3]

    def assigned(self, name: str) -> list[Issue]:
        """The issues of one assignee, newest first."""
        return [issue for issue in self.issues.values() if issue.assignee == name]

    def project(self, name: str) -> Project:
        """A project by name."""
        return next(project for project in self.content.projects if project.name == name)

    def team(self, project: Project) -> list[Person]:
        """The people of a project."""
        return [person for person in self.content.people if person.name in project.team]

    def find(self, query: str) -> tuple[list[Issue], list[Person]]:
        """Issues by title and people by name that contain every word of the query."""
        issues = [issue for issue in self.issues.values() if matches(query, issue.title)]
        return issues, [person for person in self.content.people if matches(query, person.name)]

    def change(self, issue: Issue, **changes: Any) -> Issue:
        """Replace fields of an issue."""
        changed = replace(issue, **changes)
        self.issues[issue.slug] = changed
        return changed

    def comment(self, issue: Issue, text: str) -> None:
        """Add the user's comment as the newest one."""
        self.change(issue, comments=(Comment(self.settings.name, text), *issue.comments))
        self.written.setdefault(issue.title, []).append(text)

    def create(self, project: Project, title: str, **fields: Any) -> Issue:
        """Open a new issue without assignee, which becomes the newest one."""
        first = project.milestones[0]
        address = slug(title, self.issues)
        issue = Issue(title, address, project.name, "Open", PRIORITIES[0], "nobody", first.name, first.due, "none")
        issue = replace(issue, **fields)
        self.issues = {issue.slug: issue, **self.issues}
        self.created.append(title)
        return issue

    def changed(self) -> list[str]:
        """Titles of the issues that are not as generated, new ones included."""
        before = {issue.slug: issue for issue in self.content.issues}
        return [issue.title for issue in self.issues.values() if before.get(issue.slug) != issue]


def title(words: Words) -> str:
    """A new issue title of two or three words, such as `Broken Velmor login`."""
    base = words.titled(_PARTS)
    return base if words.rng.random() < 0.6 else f"{words.rng.choice(_ADJECTIVES)} {base}"


@lru_cache(maxsize=256)
def tracker_content(seed: int, split: Split, locale: Locale) -> TrackerContent:
    """The generated part of a tracker; the same arguments give the same content."""
    words = Words(seed, split, locale, "tracker")
    brand = words.name()
    people = _people(words)
    projects = tuple(_project(words, people) for _ in range(PROJECTS))
    me = people[0]
    settings = Settings(me.name, me.email, words.name(), watch=words.rng.random() < 0.5)
    return TrackerContent(brand, people, projects, _issues(words, projects), me, settings)


def _people(words: Words) -> tuple[Person, ...]:
    people: dict[str, Person] = {}
    for number in range(PEOPLE):
        name = words.name()
        address = slug(name, people)
        people[address] = Person(name, address, ROLES[number % len(ROLES)], words.email())
    return tuple(people.values())


def _project(words: Words, people: Sequence[Person]) -> Project:
    name = words.name()
    team = tuple(person.name for person in words.rng.sample(people, TEAM))
    milestones = tuple(Milestone(words.name(), words.day(), words.rng.randrange(5, 96)) for _ in range(3))
    return Project(name, slug(name), team, milestones)


def _issues(words: Words, projects: Sequence[Project]) -> tuple[Issue, ...]:
    issues: dict[str, Issue] = {}
    for project in [project for _ in range(ISSUES_PER_PROJECT) for project in projects]:
        name = title(words)
        address = slug(name, issues)
        issues[address] = _issue(words, project, name, address)
    return tuple(issues.values())


def _issue(words: Words, project: Project, name: str, address: str) -> Issue:
    rng: random.Random = words.rng
    return Issue(
        title=name,
        slug=address,
        project=project.name,
        state=rng.choice(("Open", "Open", "Open", "Closed")),
        priority=rng.choice(PRIORITIES),
        assignee=rng.choice(project.team),
        milestone=rng.choice(project.milestones).name,
        due=words.day(),
        label=rng.choice(LABELS),
        description=words.phrase(REPORTS),
        comments=tuple(
            Comment(rng.choice(project.team), words.phrase(REMARKS)) for _ in range(rng.choice((0, 1, 1, 2, 3)))
        ),
    )
