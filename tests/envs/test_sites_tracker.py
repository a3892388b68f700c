"""The tracker: every template's plan succeeds, wrong endings fail, pages keep their size, forms do what they say."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient
from sites_player import play, play_expert, state, visit, wander

from dynaweb.types import Action, Task
from dynaweb_env_sites.base import Template
from dynaweb_env_sites.content import locale_of, split_of
from dynaweb_env_sites.server import create_app
from dynaweb_env_sites.tasks import make_task, sites_tasks
from dynaweb_env_sites.tracker import SITE
from dynaweb_env_sites.tracker_state import PAGE, PRIORITIES, TrackerState, tracker_content

NAMES = [template.name for template in SITE.templates]
KINDS = {"navigate", "search", "read", "compare", "form", "state", "impossible"}
URL = "http://tracker.localhost"
STOP = Action("stop")


def _client() -> tuple[FlaskClient, TrackerState]:
    app = create_app()
    world = app.store.get("0")
    assert world is not None
    tracker = world.state("tracker")
    assert isinstance(tracker, TrackerState)
    return app.test_client(), tracker


def _task(template: str, seed: int = 4) -> Task:
    return sites_tasks("train", 1, seed, templates=[template])[0]


def _click(name: str, role: str = "link") -> Action:
    return Action("click", target_role=role, target_name=name)


def _select(name: str, option: str) -> Action:
    return Action("select", text=option, target_role="combobox", target_name=name)


def _issue(tracker: TrackerState) -> str:
    return next(key for key, issue in tracker.issues.items() if issue.state == "Open")


def test_all_kinds_of_templates() -> None:
    assert {template.kind for template in SITE.templates} == KINDS
    assert len(NAMES) == len(set(NAMES)) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_expert_succeeds_and_doing_nothing_fails(name: str) -> None:
    for split in ("pretrain", "validation"):
        for task in sites_tasks(split, 5, 3, templates=[name]):
            verdict, pages = play_expert(task)
            assert verdict.score == 1.0, f"{task.id} {task.intent}: {verdict.why}"
            assert len(pages) == task.best_steps and len(pages) <= 10
            assert play(task, [STOP]).score == 0.0, task.id


@pytest.mark.parametrize("template", [item for item in SITE.templates if item.kind in ("read", "compare")])
def test_wrong_answers_fail(template: Template) -> None:
    for task in sites_tasks("test", 4, 0, templates=[template.name]):
        right = task.meta["plan"][-1]["text"]
        for wrong in ("", "N/A", right + "1", task.intent):
            assert play_expert(task, answer=wrong)[0].score == 0.0, (task.id, wrong)


def test_random_clicks_fail() -> None:
    tasks = [task for task in sites_tasks("train", 60, 5, templates=NAMES) if (task.best_steps or 0) > 2]
    assert sum(wander(task, number, 4).score or 0 for number, task in enumerate(tasks)) <= 2


def test_most_plans_fit_into_short_dreams() -> None:
    lengths = [task.best_steps or 0 for task in sites_tasks("train", 200, 0, templates=NAMES)]
    assert sum(2 <= length <= 5 for length in lengths) / len(lengths) > 0.9
    assert max(lengths) == 10


def test_same_seed_same_tracker_and_other_seed_other_names() -> None:
    first, again, other = (SITE.build(seed, "train", locale_of(seed)) for seed in (10_001, 10_001, 10_002))
    assert first.content == again.content and first.issues is not again.issues
    tracker_content.cache_clear()
    assert SITE.build(10_001, "train", locale_of(10_001)).content == first.content
    names = [{person.name for person in tracker.content.people} for tracker in (first, other)]
    assert not names[0] & names[1]
    numbers = [make_task("tracker/comment-issue", "train", 10_001, number) for number in (7, 7, 8)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_words_belong_to_their_split() -> None:
    content = SITE.build(20_003, "validation", locale_of(20_003)).content
    names = [item.name for item in content.projects] + [item.name for item in content.people]
    assert {split_of(name) for name in names} == {"validation"}
    task = make_task("tracker/missing", "test", 30_002, 0)
    assert task is not None
    assert "test" in {split_of(word) for word in task.meta["slots"]["name"].split()}


def test_pages_have_a_moderate_size() -> None:
    for seed in (10_000, 10_001, 10_004):
        tracker = state("tracker", seed)
        paths = ["/", "/mine", "/settings", "/search?q=e"]
        paths += [f"/projects/{item.slug}{tab}" for item in tracker.content.projects for tab in ("", "/milestones")]
        paths += [f"/projects/{item.slug}{tab}" for item in tracker.content.projects for tab in ("/members", "/new")]
        paths += [f"/people/{person.slug}" for person in tracker.content.people]
        paths += [f"/issues/{key}{tab}" for key in tracker.issues for tab in ("", "/edit")]
        for page in visit("tracker", paths, seed):
            assert 9 <= len(page.nodes) <= 30, page.url
            assert all(len(node.name.split()) <= 8 for node in page.nodes), page.url


def test_controls_are_labelled_except_the_two_that_are_meant_to_be_bad() -> None:
    tracker = state("tracker")
    issue, project = next(iter(tracker.issues)), tracker.content.projects[0].slug
    pages = visit("tracker", ["/", "/settings", f"/projects/{project}", f"/projects/{project}/new", f"/issues/{issue}"])
    unnamed = [(page.url, node.role) for page in pages for node in page.nodes if not node.name]
    assert unnamed == [(f"{URL}/settings", "textbox")]
    assert all(any(node.name == "»" for node in page.nodes) for page in pages)


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
    client, tracker = _client()
    before, key = SITE.snapshot(tracker), _issue(tracker)
    title = tracker.issues[key].title
    page = client.post(f"/issues/{key}/toggle", base_url=URL, follow_redirects=True).text
    assert "Issue closed." in page and "Reopen issue" in page and "State: Closed" in page
    assert SITE.snapshot(tracker)["changed"] == [title]
    client.post(f"/issues/{key}/toggle", base_url=URL)
    assert SITE.snapshot(tracker) == before


def test_forms_refuse_what_is_wrong() -> None:
    client, tracker = _client()
    before, key, project = SITE.snapshot(tracker), _issue(tracker), tracker.content.projects[0].slug
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
        assert '<p role="status">' in client.post(path, base_url=URL, data=form, follow_redirects=True).text, path
    assert SITE.snapshot(tracker) == before
    assert client.post("/issues/nothing/toggle", base_url=URL).status_code == 404


def test_edit_form_changes_what_it_says_and_nothing_else() -> None:
    client, tracker = _client()
    key = _issue(tracker)
    issue = tracker.issues[key]
    form = {"title": issue.title, "priority": issue.priority, "milestone": issue.milestone, "confidential": "yes"}
    assert "Confidential" in client.post(f"/issues/{key}/edit", base_url=URL, data=form, follow_redirects=True).text
    assert [other for other in tracker.issues.values() if other.confidential] == [tracker.issues[key]]
    client.post(f"/issues/{key}/edit", base_url=URL, data={**form, "confidential": ""})
    assert tracker.issues[key] == issue


def test_typed_text_is_escaped() -> None:
    client, tracker = _client()
    path, form = f"/issues/{_issue(tracker)}/comment", {"text": "<i>'slanted'</i>"}
    text = client.post(path, base_url=URL, data=form, follow_redirects=True).text
    assert "<i>" not in text and "&lt;i&gt;" in text


def test_changing_a_second_issue_fails() -> None:
    task = _task("tracker/close-issue")
    slots = task.meta["slots"]
    issues = state("tracker", task.meta["site_seed"]).project_issues(slots["project"])[:PAGE]
    other = next(issue for issue in issues if issue.state == "Open" and issue.title != slots["issue"])
    way = [_click(slots["project"]), _click(slots["issue"]), _click("Close issue", "button")]
    more = [_click(slots["project"]), _click(other.title), _click("Close issue", "button")]
    assert play(task, [*way, STOP]).score == 1.0
    assert play(task, [*way, *more, STOP]).score == 0.0


def test_the_wrong_person_fails() -> None:
    task = _task("tracker/assign-issue")
    slots = task.meta["slots"]
    tracker = state("tracker", task.meta["site_seed"])
    issue = next(issue for issue in tracker.issues.values() if issue.title == slots["issue"])
    wrong = next(name for name in tracker.project(issue.project).team if name not in (slots["person"], issue.assignee))
    for person, score in ((slots["person"], 1.0), (wrong, 0.0)):
        way = [Action("goto", text=f"{URL}/issues/{issue.slug}"), _select("Assign to", person)]
        assert play(task, [*way, _click("Assign", "button"), STOP]).score == score
    assert play(task, [*way, STOP]).score == 0.0
