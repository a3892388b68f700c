"""The tracker's own pages: filters, orders, forms, and what counts as another state."""

from __future__ import annotations

from sites_player import STOP, click, client, play, select, state, visit

from dynaweb.types import Action, Task
from dynaweb_env_sites.tasks import sites_tasks
from dynaweb_env_sites.tracker.state import PAGE, PRIORITIES, TrackerState

URL = "http://tracker.localhost"


def _task(template: str, seed: int = 4) -> Task:
    return sites_tasks("train", 1, seed, templates=[template])[0]


def _issue(tracker: TrackerState) -> str:
    return next(key for key, issue in tracker.issues.items() if issue.state == "Open")


def test_filter_sort_and_pages() -> None:
    tracker = state("tracker")
    project = tracker.content.projects[0]
    here = f"/projects/{project.slug}"
    issues = {issue.title: issue for issue in tracker.issues.values()}
    paths = [f"{here}?state=Closed", f"{here}?sort=Priority", f"{here}?sort=Due+date", here, f"{here}?page=2"]
    pages = visit("tracker", paths)
    closed, urgent, due, first, second = ([issues[n.name] for n in page.nodes if n.name in issues] for page in pages)
    assert all(issue.state == "Closed" for issue in closed)
    assert len(closed) == sum(issue.project == project.name and issue.state == "Closed" for issue in issues.values())
    ranks = [PRIORITIES.index(issue.priority) for issue in urgent]
    assert ranks == sorted(ranks, reverse=True)
    assert [issue.due for issue in due] == sorted(issue.due for issue in first + second)[:PAGE]
    assert len(first) == PAGE and not {issue.title for issue in first} & {issue.title for issue in second}


def test_closing_and_reopening_leaves_no_trace() -> None:
    http, tracker = client("tracker")
    before, key = tracker.snapshot(), _issue(tracker)
    title = tracker.issues[key].title
    page = http.post(f"/issues/{key}/toggle", base_url=URL, follow_redirects=True).text
    assert "Issue closed." in page and "Reopen issue" in page and "State: Closed" in page
    assert tracker.snapshot()["changed"] == [title]
    http.post(f"/issues/{key}/toggle", base_url=URL)
    assert tracker.snapshot() == before


def test_forms_refuse_what_is_wrong() -> None:
    http, tracker = client("tracker")
    before, key, project = tracker.snapshot(), _issue(tracker), tracker.content.projects[0].slug
    outsider = next(
        person.name
        for person in tracker.content.people
        if person.name not in tracker.project(tracker.issues[key].project).team
    )
    posts = {
        f"/issues/{key}/assign": {"assignee": outsider},
        f"/issues/{key}/label": {"label": "huge"},
        f"/issues/{key}/comment": {"text": "  "},
        f"/issues/{key}/edit": {"title": "", "priority": "High", "milestone": "x"},
        f"/projects/{project}/new": {"title": "", "priority": "High"},
        "/settings": {"name": "x", "email": "nowhere"},
    }
    for path, form in posts.items():
        assert '<p role="status">' in http.post(path, base_url=URL, data=form, follow_redirects=True).text, path
    assert tracker.snapshot() == before
    assert http.post("/issues/nothing/toggle", base_url=URL).status_code == 404


def test_edit_form_changes_what_it_says_and_nothing_else() -> None:
    http, tracker = client("tracker")
    key = _issue(tracker)
    issue = tracker.issues[key]
    form = {"title": issue.title, "priority": issue.priority, "milestone": issue.milestone, "confidential": "yes"}
    assert "Confidential" in http.post(f"/issues/{key}/edit", base_url=URL, data=form, follow_redirects=True).text
    assert [other for other in tracker.issues.values() if other.confidential] == [tracker.issues[key]]
    http.post(f"/issues/{key}/edit", base_url=URL, data={**form, "confidential": ""})
    assert tracker.issues[key] == issue


def test_changing_a_second_issue_fails() -> None:
    task = _task("tracker/close-issue")
    slots = task.meta["slots"]
    issues = state("tracker", task.meta["site_seed"]).project_issues(slots["project"])[:PAGE]
    other = next(issue for issue in issues if issue.state == "Open" and issue.title != slots["issue"])
    way = [click(slots["project"]), click(slots["issue"]), click("Close issue", "button")]
    more = [click(slots["project"]), click(other.title), click("Close issue", "button")]
    assert play(task, [*way, STOP]).score == 1.0
    assert play(task, [*way, *more, STOP]).score == 0.0


def test_the_wrong_person_fails() -> None:
    task = _task("tracker/assign-issue")
    slots = task.meta["slots"]
    tracker = state("tracker", task.meta["site_seed"])
    issue = next(issue for issue in tracker.issues.values() if issue.title == slots["issue"])
    wrong = next(name for name in tracker.project(issue.project).team if name not in (slots["person"], issue.assignee))
    for person, score in ((slots["person"], 1.0), (wrong, 0.0)):
        way = [Action("goto", text=f"{URL}/issues/{issue.slug}"), select("Assign to", person)]
        assert play(task, [*way, click("Assign", "button"), STOP]).score == score
    assert play(task, [*way, STOP]).score == 0.0
