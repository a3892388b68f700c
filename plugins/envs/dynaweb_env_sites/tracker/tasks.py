"""The tracker's task templates: what is asked, the scripted plan, and how success is checked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dynaweb_env_sites.goals import (
    Do,
    Evaluation,
    Goal,
    all_of,
    answer_is,
    change_contact,
    choose,
    click,
    fill,
    goal,
    not_there,
    page_has,
    press,
    state_is,
    stop,
    switch_setting,
    templates_of,
    tick,
    url_is,
    via_search,
)
from dynaweb_env_sites.tracker.state import (
    LABELS,
    PAGE,
    PRIORITIES,
    REMARKS,
    REPORTS,
    Issue,
    Person,
    Project,
    TrackerState,
    title,
)

URL = "http://tracker.localhost"
FACTS = ("priority", "assignee", "milestone", "label", "due date")


def _issue_url(issue: Issue) -> str:
    return f"{URL}/issues/{issue.slug}"


def _project_url(project: Project) -> str:
    return f"{URL}/projects/{project.slug}"


def _listed(state: TrackerState, rng: random.Random, wanted: str = "All") -> Issue | None:
    """An issue on the first page of its project, in a given state."""
    project = rng.choice(state.content.projects)
    issues = [issue for issue in state.project_issues(project.name)[:PAGE] if wanted in ("All", issue.state)]
    return rng.choice(issues) if issues else None


def _any_issue(state: TrackerState, rng: random.Random) -> Issue:
    return rng.choice(list(state.issues.values()))


def _via_project(issue: Issue) -> tuple[Do, ...]:
    return click(issue.project), click(issue.title)


def _to_issue(state: TrackerState, issue: Issue) -> tuple[Do, ...]:
    """From the home page: click what is on it, search for anything else."""
    return (click(issue.title),) if issue in state.due_soon() else via_search(issue.title)


def _project_and_person(state: TrackerState, rng: random.Random) -> tuple[Project, Person]:
    project = rng.choice(state.content.projects)
    return project, rng.choice(state.team(project))


def _only(issue: Issue, **fields: Any) -> Evaluation:
    """These fields of the issue, and no other issue changed."""
    checks = ((f"issues.{issue.title}.{name}", value) for name, value in fields.items())
    return state_is(("changed", [issue.title]), *checks)


def open_project(state: TrackerState, rng: random.Random) -> Goal:
    """Open a project from the home page."""
    project = rng.choice(state.content.projects)
    phrases = ("Open the project '{project}'.", "Go to the project '{project}'.", "Show the issues of '{project}'.")
    return goal(rng, phrases, (click(project.name), stop()), url_is(_project_url(project)), project=project.name)


def open_issue(state: TrackerState, rng: random.Random) -> Goal:
    """Open an issue through its project, sometimes on the second page."""
    issue = _any_issue(state, rng)
    turn = (click("Next"),) if state.project_issues(issue.project).index(issue) >= PAGE else ()
    phrases = ("Open the issue '{issue}' of '{project}'.", "Go to the project '{project}' and open '{issue}'.")
    plan = (click(issue.project), *turn, click(issue.title), stop())
    return goal(rng, phrases, plan, url_is(_issue_url(issue)), issue=issue.title, project=issue.project)


def open_tab(state: TrackerState, rng: random.Random) -> Goal:
    """Open the milestones or the members of a project."""
    project, tab = rng.choice(state.content.projects), rng.choice(("Milestones", "Members"))
    phrases = ("Show the {tab} of the project '{project}'.", "Open the project '{project}' and go to its {tab}.")
    plan = (click(project.name), click(tab), stop())
    check = url_is(f"{_project_url(project)}/{tab.lower()}")
    return goal(rng, phrases, plan, check, tab=tab.lower(), project=project.name)


def search_issue(state: TrackerState, rng: random.Random) -> Goal:
    """Search for an issue and open it."""
    issue = _any_issue(state, rng)
    phrases = ("Search for '{issue}' and open it.", "Find the issue '{issue}' with the search and open it.")
    return goal(rng, phrases, (*via_search(issue.title), stop()), url_is(_issue_url(issue)), issue=issue.title)


def filter_issues(state: TrackerState, rng: random.Random) -> Goal:
    """Show only the open or only the closed issues of a project."""
    project, wanted = rng.choice(state.content.projects), rng.choice(("Open", "Closed"))
    phrases = (
        "Show only the {state} issues of '{project}'.",
        "In the project '{project}', list the {state} issues only.",
    )
    plan = (click(project.name), choose("State", wanted), press("Apply"), stop())
    check = url_is(f"{_project_url(project)}?state={wanted}")
    return goal(rng, phrases, plan, check, state=wanted.lower(), project=project.name)


def _fact(state: TrackerState, issue: Issue, fact: str) -> str:
    return state.locale.date(issue.due) if fact == "due date" else str(getattr(issue, fact))


def read_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Answer with a detail of an issue of a project."""
    issue, fact = _listed(state, rng), rng.choice(FACTS)
    if issue is None:
        return None
    answer = _fact(state, issue, fact)
    phrases = (
        "In the project '{project}', what is the {fact} of '{issue}'?",
        "Open '{issue}' in the project '{project}' and tell me its {fact}.",
    )
    plan = (*_via_project(issue), stop(answer))
    check = answer_is(answer)
    return goal(rng, phrases, plan, check, project=issue.project, fact=fact, issue=issue.title)


def read_due_soon(state: TrackerState, rng: random.Random) -> Goal:
    """Answer with a detail of an issue that the home page lists, or that the search finds."""
    listed = rng.random() < 0.5
    issue, fact = rng.choice(state.due_soon()) if listed else _any_issue(state, rng), rng.choice(FACTS)
    answer = _fact(state, issue, fact)
    phrases = ("What is the {fact} of '{issue}'?", "Tell me the {fact} of the issue '{issue}'.")
    return goal(rng, phrases, (*_to_issue(state, issue), stop(answer)), answer_is(answer), fact=fact, issue=issue.title)


def read_person(state: TrackerState, rng: random.Random) -> Goal:
    """Answer with the role or the address of a project's member."""
    project, person = _project_and_person(state, rng)
    fact, answer = rng.choice((("role", person.role), ("e-mail", person.email)))
    phrases = (
        "What is the {fact} of '{person}', a member of '{project}'?",
        "Open the members of '{project}' and tell me the {fact} of '{person}'.",
    )
    plan = (click(project.name), click("Members"), click(person.name), stop(answer))
    return goal(rng, phrases, plan, answer_is(answer), fact=fact, person=person.name, project=project.name)


def read_milestone(state: TrackerState, rng: random.Random) -> Goal:
    """Answer when a milestone is due."""
    project = rng.choice(state.content.projects)
    milestone = rng.choice(project.milestones)
    answer = state.locale.date(milestone.due)
    phrases = (
        "When is the milestone '{milestone}' of the project '{project}' due?",
        "Open the milestones of '{project}' and tell me when '{milestone}' is due.",
    )
    plan = (click(project.name), click("Milestones"), stop(answer))
    check = answer_is(answer)
    return goal(rng, phrases, plan, check, milestone=milestone.name, project=project.name)


def busiest_project(state: TrackerState, rng: random.Random) -> Goal | None:
    """Name the project with most open issues."""
    best, second = state.projects("Most open issues")[:2]
    if state.open_count(best.name) == state.open_count(second.name):
        return None
    phrases = ("Which project has the most open issues?", "Name the project with the most open issues.")
    plan = (choose("Sort", "Most open issues"), press("Apply"), stop(best.name))
    return goal(rng, phrases, plan, answer_is(best.name))


def first_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Name the issue of a project that is due first, or has the highest priority."""
    project = rng.choice(state.content.projects)
    sort, words = rng.choice((("Due date", "is due first"), ("Priority", "has the highest priority")))
    best, second = state.project_issues(project.name, sort=sort)[:2]
    if (best.due if sort == "Due date" else best.priority) == (second.due if sort == "Due date" else second.priority):
        return None
    phrases = ("Which issue of the project '{project}' {what}?", "In the project '{project}', which issue {what}?")
    plan = (click(project.name), choose("Sort", sort), press("Apply"), stop(best.title))
    return goal(rng, phrases, plan, answer_is(best.title), project=project.name, what=words)


def create_issue(state: TrackerState, rng: random.Random) -> Goal:
    """Create an issue with a title."""
    project, name = rng.choice(state.content.projects), title(state.new_words(rng))
    phrases = (
        "Create an issue '{title}' in the project '{project}'.",
        "In '{project}', open a new issue titled '{title}'.",
    )
    plan = (click(project.name), click("New issue"), fill("Title", name), press("Create issue"), stop())
    checks = state_is(("created", [name]), (f"issues.{name}.project", project.name))
    return goal(rng, phrases, plan, all_of(checks, page_has("last", name)), title=name, project=project.name)


def change_settings(state: TrackerState, rng: random.Random) -> Goal:
    """Change the user's name or e-mail address."""
    return change_contact(state, rng, "full name", watch=state.settings.watch)


def set_watch(state: TrackerState, rng: random.Random) -> Goal:
    """Watch all projects, or stop watching them."""
    return switch_setting(state, rng, "watch", "Watch all projects")


def close_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Close an open issue of a project."""
    issue = _listed(state, rng, "Open")
    if issue is None:
        return None
    phrases = ("Close the issue '{issue}' in the project '{project}'.", "In the project '{project}', close '{issue}'.")
    checks = all_of(_only(issue, state="Closed"), page_has(_issue_url(issue), "State: Closed"))
    plan = (*_via_project(issue), press("Close issue"), stop())
    return goal(rng, phrases, plan, checks, issue=issue.title, project=issue.project)


def reopen_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Reopen a closed issue that the search finds."""
    issues = state.issues.values()
    closed = [issue for issue in issues if issue.state == "Closed"]
    if not closed:
        return None
    issue = rng.choice(closed)
    phrases = ("Reopen the issue '{issue}'.", "Search for the closed issue '{issue}' and reopen it.")
    checks = all_of(_only(issue, state="Open"), page_has(_issue_url(issue), "State: Open"))
    return goal(rng, phrases, (*via_search(issue.title), press("Reopen issue"), stop()), checks, issue=issue.title)


def _other(rng: random.Random, options: Sequence[str], present: str) -> str:
    return rng.choice([option for option in options if option != present])


def assign_issue(state: TrackerState, rng: random.Random) -> Goal:
    """Assign an issue to another member of its project."""
    issue = rng.choice(state.due_soon()) if rng.random() < 0.5 else _listed(state, rng) or _any_issue(state, rng)
    person = _other(rng, state.project(issue.project).team, issue.assignee)
    phrases = ("Assign the issue '{issue}' to '{person}'.", "Make '{person}' the assignee of '{issue}'.")
    plan = (*_to_issue(state, issue), choose("Assign to", person), press("Assign"), stop())
    checks = all_of(_only(issue, assignee=person), page_has(_issue_url(issue), f"Assignee: {person}"))
    return goal(rng, phrases, plan, checks, issue=issue.title, person=person)


def label_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Give an issue of a project another label."""
    issue = _listed(state, rng)
    if issue is None:
        return None
    label = _other(rng, LABELS, issue.label)
    phrases = (
        "Set the label of '{issue}' in '{project}' to '{label}'.",
        "In '{project}', label '{issue}' as '{label}'.",
    )
    plan = (*_via_project(issue), choose("Label", label), press("Set label"), stop())
    return goal(rng, phrases, plan, _only(issue, label=label), issue=issue.title, project=issue.project, label=label)


def set_priority(state: TrackerState, rng: random.Random) -> Goal:
    """Change the priority of an issue that is due soon."""
    issue = rng.choice(state.due_soon())
    priority = _other(rng, PRIORITIES, issue.priority)
    phrases = ("Set the priority of '{issue}' to '{priority}'.", "Edit '{issue}': change its priority to '{priority}'.")
    plan = (click(issue.title), click("Edit"), choose("Priority", priority), press("Save changes"), stop())
    checks = _only(issue, priority=priority, milestone=issue.milestone, confidential=issue.confidential)
    return goal(rng, phrases, plan, checks, issue=issue.title, priority=priority)


def comment_issue(state: TrackerState, rng: random.Random) -> Goal | None:
    """Comment on an issue of a project."""
    issue, text = _listed(state, rng), state.new_words(rng).phrase(REMARKS)
    if issue is None:
        return None
    phrases = (
        "Comment '{text}' on '{issue}' in the project '{project}'.",
        "In '{project}', comment '{text}' on '{issue}'.",
    )
    plan = (*_via_project(issue), fill("Comment", text), press("Add comment"), stop())
    checks = state_is(("comments", {issue.title: [text]}), ("changed", [issue.title]))
    check = all_of(checks, page_has(_issue_url(issue), text))
    return goal(rng, phrases, plan, check, text=text, issue=issue.title, project=issue.project)


def file_report(state: TrackerState, rng: random.Random) -> Goal:
    """Long: create a confidential issue with all fields, then assign it."""
    words, (project, person) = state.new_words(rng), _project_and_person(state, rng)
    name, text, priority = title(words), words.phrase(REPORTS), rng.choice(PRIORITIES[1:])
    phrases = (
        "Create a confidential issue '{title}' in '{project}': priority '{priority}', text '{text}', for '{person}'.",
        "In '{project}', create a confidential issue '{title}', '{text}', priority '{priority}', for '{person}'.",
    )
    form = (fill("Title", name), choose("Priority", priority), fill("Description", text), tick("Confidential"))
    steps = (*form, press("Create issue"), choose("Assign to", person.name), press("Assign"))
    fields = {"priority": priority, "description": text, "confidential": True, "assignee": person.name}
    checks = [(f"issues.{name}.{field}", value) for field, value in fields.items()]
    plan = (click(project.name), click("New issue"), *steps, stop())
    check = state_is(("created", [name]), ("changed", [name]), *checks)
    return goal(
        rng, phrases, plan, check, project=project.name, title=name, priority=priority, text=text, person=person.name
    )


def missing(state: TrackerState, rng: random.Random) -> Goal | None:
    """Impossible: an issue or a person that does not exist."""
    words = state.new_words(rng)
    issue, person = title(words), words.name()
    name, phrases = rng.choice(
        (
            (issue, ("Open the issue '{name}'.", "Close the issue '{name}'.", "What is the priority of '{name}'?")),
            (person, ("What is the e-mail of the member '{name}'?", "Search for '{name}' and open the profile.")),
        )
    )
    return None if any(state.find(name)) else not_there(rng, phrases, name=name)


TEMPLATES = templates_of(
    "tracker",
    {
        "navigate": (open_project, open_issue, open_tab),
        "search": (search_issue, filter_issues),
        "read": (read_issue, read_due_soon, read_person, read_milestone),
        "compare": (busiest_project, first_issue),
        "form": (create_issue, change_settings, set_watch),
        "state": (close_issue, reopen_issue, assign_issue, label_issue, set_priority, comment_issue, file_report),
        "impossible": (missing,),
    },
)
