"""The issue tracker: projects, issues with buttons and forms, milestones, people and settings, without JavaScript."""

from __future__ import annotations

from dataclasses import replace

from flask import Blueprint, abort, request
from werkzeug.wrappers import Response

from dynaweb_env_sites.base import (
    LACKING,
    Site,
    View,
    at_address,
    current,
    listing,
    option,
    posted_contact,
    render,
    sent,
    show,
)
from dynaweb_env_sites.tracker.state import (
    COMMENTS,
    FILTERS,
    ISSUE_SORTS,
    LABELS,
    PAGE,
    PRIORITIES,
    PROJECT_SORTS,
    Issue,
    Person,
    Project,
    TrackerState,
)
from dynaweb_env_sites.tracker.tasks import TEMPLATES

pages = Blueprint("tracker", __name__)
SITE = Site("tracker", pages, TEMPLATES, TrackerState.fresh)


@pages.get("/")
def _home() -> str:
    state = current(TrackerState)
    sort = option("sort", PROJECT_SORTS)
    return render("tracker/home.html", projects=state.projects(sort), sort=sort, sorts=PROJECT_SORTS)


@pages.get("/mine")
def _mine() -> str:
    state = current(TrackerState)
    return render("tracker/mine.html", issues=listing(state.assigned(state.content.me.name), PAGE))


@pages.get("/search")
def _search() -> str:
    query = request.args.get("q", "").strip()
    issues, people = current(TrackerState).find(query)
    return render("tracker/search.html", query=query, issues=issues[:PAGE], people=people[:PAGE])


@pages.get("/projects/<name>")
def _project(name: str) -> str:
    state = current(TrackerState)
    project, state_filter, sort = _project_at(state, name), option("state", FILTERS), option("sort", ISSUE_SORTS)
    issues = listing(state.project_issues(project.name, state_filter, sort), PAGE)
    orders = {"state_filter": state_filter, "filters": FILTERS, "sort": sort, "sorts": ISSUE_SORTS}
    return render("tracker/project.html", project=project, issues=issues, **orders)


@pages.get("/projects/<name>/milestones")
def _milestones(name: str) -> str:
    return render("tracker/milestones.html", project=_project_at(current(TrackerState), name))


@pages.get("/projects/<name>/members")
def _team(name: str) -> str:
    state = current(TrackerState)
    project = _project_at(state, name)
    return render("tracker/members.html", project=project, people=state.team(project))


@pages.get("/people/<name>")
def _person(name: str) -> str:
    state = current(TrackerState)
    person = _person_at(state, name)
    return render("tracker/person.html", person=person, issues=state.assigned(person.name)[:3])


@pages.get("/projects/<name>/new")
def _new(name: str) -> str:
    return _new_form(_project_at(current(TrackerState), name))


@pages.post("/projects/<name>/new")
def _create(name: str) -> View:
    state = current(TrackerState)
    project, title = _project_at(state, name), sent("title")
    fields = {"priority": sent("priority"), "description": sent("description")}
    if not title or fields["priority"] not in PRIORITIES:
        state.notice = "Please give a title."
        return _new_form(project, title=title, **fields)
    issue = state.create(project, title, confidential=sent("confidential") == "yes", **fields)
    return show(state, f"/issues/{issue.slug}", "Issue created.")


def _new_form(project: Project, **values: str) -> str:
    return render("tracker/new.html", project=project, priorities=PRIORITIES, values=values)


@pages.get("/issues/<name>")
def _issue(name: str) -> str:
    state = current(TrackerState)
    issue = _issue_at(state, name)
    project = state.project(issue.project)
    return render("tracker/issue.html", issue=issue, project=project, labels=LABELS, n_comments=COMMENTS)


@pages.post("/issues/<name>/toggle")
def _toggle(name: str) -> Response:
    state = current(TrackerState)
    issue = _issue_at(state, name)
    closing = issue.state == "Open"
    state.change(issue, state="Closed" if closing else "Open")
    return show(state, f"/issues/{name}", "Issue closed." if closing else "Issue reopened.")


@pages.post("/issues/<name>/assign")
def _assign(name: str) -> Response:
    state = current(TrackerState)
    issue, assignee = _issue_at(state, name), sent("assignee")
    if assignee not in state.project(issue.project).team:
        return show(state, f"/issues/{name}", "Not a member.")
    state.change(issue, assignee=assignee)
    return show(state, f"/issues/{name}", "Assignee saved.")


@pages.post("/issues/<name>/label")
def _label(name: str) -> Response:
    state = current(TrackerState)
    issue, label = _issue_at(state, name), sent("label")
    if label not in LABELS:
        return show(state, f"/issues/{name}", "No such label.")
    state.change(issue, label=label)
    return show(state, f"/issues/{name}", "Label saved.")


@pages.post("/issues/<name>/comment")
def _comment(name: str) -> Response:
    state = current(TrackerState)
    issue, text = _issue_at(state, name), sent("text")
    if not text:
        return show(state, f"/issues/{name}", "Please write a comment.")
    state.comment(issue, text)
    return show(state, f"/issues/{name}", "Comment added.")


@pages.get("/issues/<name>/edit")
def _edit(name: str) -> str:
    state = current(TrackerState)
    issue = _issue_at(state, name)
    milestones = [milestone.name for milestone in state.project(issue.project).milestones]
    return render("tracker/edit.html", issue=issue, priorities=PRIORITIES, milestones=milestones)


@pages.post("/issues/<name>/edit")
def _save(name: str) -> Response:
    state = current(TrackerState)
    issue = _issue_at(state, name)
    milestones = {milestone.name for milestone in state.project(issue.project).milestones}
    title, priority, milestone = sent("title"), sent("priority"), sent("milestone")
    if not title or priority not in PRIORITIES or milestone not in milestones:
        return show(state, f"/issues/{name}/edit", "Please give a title.")
    confidential = sent("confidential") == "yes"
    state.change(issue, title=title, priority=priority, milestone=milestone, confidential=confidential)
    return show(state, f"/issues/{name}", "Changes saved.")


@pages.get("/settings")
def _settings() -> str:
    return render("tracker/settings.html")


@pages.post("/settings")
def _save_settings() -> Response:
    state = current(TrackerState)
    contact = posted_contact()
    if contact is None:
        return show(state, "/settings", LACKING)
    state.settings = replace(state.settings, **contact, timezone=sent("timezone"), watch=sent("watch") == "yes")
    return show(state, "/settings", "Settings saved.")


def _project_at(state: TrackerState, address: str) -> Project:
    return at_address(state.content.projects, address)


def _issue_at(state: TrackerState, address: str) -> Issue:
    return state.issues.get(address) or abort(404)


def _person_at(state: TrackerState, address: str) -> Person:
    return at_address(state.content.people, address)
