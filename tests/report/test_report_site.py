"""A folder of runs in the browser: the list, comparisons, trajectories on demand; served, and as a static site."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli
from folders import ROOT
from playwright.sync_api import Browser, Page, sync_playwright
from report_fakes import HOSTILE, episode, hostile, served
from test_report_html import CONTRAST, CUT

from dynaweb.compare import compare
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.matrix import MatrixFolder, plan_of, read_matrix
from dynaweb.rl.checkpoints import RolloutLog
from dynaweb.runs.lock import is_locked, locked
from dynaweb.serve import site as site_module
from dynaweb.serve.export import export
from dynaweb.serve.runs import listed, runs_below
from dynaweb.serve.site import Site
from dynaweb.stats import difference_text
from dynaweb.types import EpisodeFacts, Trajectory

KINDS = {
    "gspo": ["success", "loop", "success", "success", "answer", "success"],
    "grpo": ["success", "success", "loop", "loop", "loop", "success"],
}


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def with_tokens(one: Trajectory, advantage: float | None = None) -> Trajectory:
    """An episode whose replies have tokens of the tiny model."""
    steps = tuple(replace(step, response_ids=(70, 71, 72), logprobs=(-0.01, -0.7, -4.0)) for step in one.steps)
    return replace(one, steps=steps, facts=replace(one.facts, update=2, advantage=advantage))


def make_run(
    folder: Path,
    opt: str,
    *,
    status: str = "done",
    bad: str = "",
    updates: int = 4,
    dreams: int = 4,
) -> Path:
    """A run as a run leaves it: demonstrations alone do worse than `KINDS` in some episodes."""
    (folder / "trajectories").mkdir(parents=True)
    settings = {"run": {"seed": 0}, "opt": {"name": opt}, "env": {"name": "dream"}, "eval": {"split": "test"}}
    write(folder / "recipe.json", {"name": bad or "trial", "description": bad, "settings": settings, "origins": {}})
    write(folder / "seeds.json", {"run": 0})
    write(folder / "status.json", {"status": status, **({"error": bad or "out of luck"} if status == "failed" else {})})
    rows: list[dict[str, Any]] = [{"event": "run_start", "time.at": f"2026-03-0{1 + len(opt) % 5}T10:00:00+00:00"}]
    for at in range(updates):
        rows.append({"event": "update", "stage": "rl", "index": at, "metrics": {"reward": at / 8 + len(opt) / 50}})
    arms = {"sft": ["success"] + ["loop"] * 5, "dynaweb": KINDS.get(opt, KINDS["gspo"])} if status == "done" else {}
    for arm, kinds in arms.items():
        played = [
            replace(with_tokens(episode(number, kind)), id=f"{arm}-{number}") for number, kind in enumerate(kinds)
        ]
        TrajectoryStore(folder / "trajectories" / f"eval-{arm}.jsonl.gz").append(played)
        rows += [{"event": "rollout", "phase": f"eval {arm}", "task": one.task.id} for one in played]
        successes = [float(kind == "success") for kind in kinds]
        rows.append({"event": "eval", "arm": arm, "split": "test", "successes": successes})
    cost = {"browser_steps": 12.0}
    rows.append(
        {"event": "stage", "name": "rl", "key": "k", "time.status": "done", "metrics": cost, "time.seconds": 90}
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    kinds = ("success", "loop")
    dreamed = [with_tokens(episode(number, kinds[number % 2], "dream"), 0.5) for number in range(dreams)]
    TrajectoryStore(folder / "trajectories" / "dreams.jsonl.gz").append(dreamed)
    tokenizer = folder / "checkpoints" / "sft" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True)
    shutil.copy(ROOT / "dynaweb" / "assets" / "tiny" / "tokenizer.json", tokenizer)
    return folder


def make_matrix(folder: Path) -> Path:
    """A matrix with one cell, which failed."""
    matrix = MatrixFolder(folder)
    plan = plan_of(read_matrix("smoke"))
    with matrix.lock():
        matrix.write_plan(plan)
    make_run(matrix.cell(plan.cells[0].id), "gspo", status="failed")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run of each status, and a matrix."""
    root = tmp_path_factory.mktemp("all") / "runs"
    make_run(root / "first", "gspo", dreams=105)
    make_run(root / "deep" / "second", "grpo")
    make_run(root / "unlucky", "gspo", status="failed")
    make_run(root / "killed", "rloo", status="running")
    make_run(root / "damaged", "ppo")
    (root / "damaged" / "recipe.json").write_text("{")
    make_run(root / "going", "ppo", status="running")
    make_matrix(root / "matrix")
    with locked(root / "going" / ".lock", what="going", wait=False):
        yield root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs) as where:
        yield where


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


Open = Callable[..., Page]


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Opens a page in a context of its own; what it writes to the console, or asks of others, fails the test."""
    trouble: list[str] = []
    contexts = []

    def open_page(address: str, *, width: int = 1280, scheme: str = "light", base: str = "") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        allowed = base or address.partition("/runs")[0].partition("?")[0].rstrip("/")
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.on("request", lambda r: None if r.url.startswith(allowed) else trouble.append(r.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def names(page: Page) -> list[str]:
    return page.locator(".runs tbody .name").all_inner_texts()


def ask(address: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(
        address, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_run_and_matrix_is_listed_with_its_status_and_numbers(runs: Path, address: str, show: Open) -> None:
    page = show(address, base=address)
    page.locator("#summary", has_not_text="reading").wait_for()
    row = {one.locator(".name").inner_text().split()[0]: one for one in page.locator(".runs tbody tr").all()}
    states = {name: one.locator("td[data-label=Status] .chip").inner_text() for name, one in row.items()}
    assert states == {
        "first": "done",
        "deep/second": "done",
        "unlucky": "failed",
        "killed": "interrupted",
        "damaged": "damaged",
        "going": "running",
        "matrix": "failed",
    }
    first = row["first"].inner_text()
    assert "66.7 %" in first and "n = 6" in first and "trial" in first and "1 min 30 s" in first and "\t12\t" in first
    assert "+50.0 [" in first and "to SFT" in first
    assert "out of luck" in row["unlucky"].inner_text()
    assert "recipe.json is damaged" in row["damaged"].inner_text()
    assert row["damaged"].locator("a, input").count() == 0
    assert "0 of 1 cells done, 1 failed" in row["matrix"].inner_text()
    assert page.locator("#summary").inner_text().startswith("6 runs and 1 matrix: ")


def test_the_list_is_sorted_filtered_and_searched_and_an_address_keeps_that(address: str, show: Open) -> None:
    page = show(address, base=address)
    page.locator("#summary", has_not_text="reading").wait_for()
    page.click("th[data-key=success] button")
    assert names(page)[:2] == ["first", "deep/second"]
    page.click("th[data-key=success] button")
    # What has no number comes last, whichever way.
    assert names(page)[:2] == ["deep/second", "first"] and len(names(page)) == 7
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.select_option("#filter-status", "failed")
    assert sorted(names(page)) == ["matrix matrix", "unlucky"]
    page.check("#cells")
    assert len(names(page)) == 3 and sum("matrix / " in name for name in names(page)) == 1
    page.fill("#search", "LUCK unl")
    assert names(page) == ["unlucky"]
    page.reload()
    assert names(page) == ["unlucky"] and page.locator("#cells").is_checked()
    page.fill("#search", "no such run")
    assert page.locator("#list .empty").is_visible()


def test_the_list_follows_its_runs_without_losing_what_was_chosen(tmp_path: Path, show: Open) -> None:
    run = make_run(tmp_path / "runs" / "watched", "gspo", status="running", updates=2)
    make_run(tmp_path / "runs" / "other", "grpo")
    with locked(run / ".lock", what="watched", wait=False), served(tmp_path / "runs") as where:
        page = show(where, base=where)
        page.locator("td", has_text="after rl").wait_for()
        page.check("[aria-label='compare watched']")
        page.fill("#search", "watched")
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"event": "update", "stage": "rl", "index": 6, "metrics": {"reward": 1.0}}) + "\n")
        page.locator("td", has_text="rl, update 7").wait_for(timeout=10_000)
        assert names(page) == ["watched"] and page.locator("[aria-label='compare watched']").is_checked()
        make_run(tmp_path / "runs" / "watched too", "gspo")
        page.locator("a", has_text="watched too").wait_for(timeout=10_000)


def test_two_runs_are_compared_as_compare_does(runs: Path, address: str, show: Open) -> None:
    page = show(address, base=address)
    page.check("[aria-label='compare first']")
    page.check("[aria-label='compare deep/second']")
    page.click(".compare-bar .compare")
    page.wait_for_url("**/compare.html?*")
    (versus,) = compare([runs / "first", runs / "deep" / "second"]).against_first("dynaweb")[1:]
    assert versus is not None and versus.paired is not None
    text = difference_text(versus.paired.difference).replace("-", "\N{MINUS SIGN}")
    cells = page.locator(".arm:visible .difference")
    # Groups are in the order of their addresses, and either may be what the other is compared with.
    page.select_option("#reference", label=page.locator("#reference option", has_text="gspo").inner_text())
    assert cells.all_inner_texts().count("reference") == 1
    other = next(cell for cell in cells.all_inner_texts() if cell != "reference")
    assert other.startswith(text)
    page.select_option("#reference", label=page.locator("#reference option", has_text="grpo").inner_text())
    turned = next(cell for cell in cells.all_inner_texts() if cell != "reference")
    value = versus.paired.difference.value
    assert value is not None and turned.startswith(f"{-100 * value:+.1f}".replace("-", "\N{MINUS SIGN}"))
    figure = page.locator("figure.chart").first
    assert "opt=gspo" in figure.locator(".legend").inner_text() and figure.locator("svg g[data-line]").count() == 2
    assert page.locator("#settings-that-differ tbody tr").count() == 1


def test_charts_answer_to_pointer_and_keys_and_lines_can_be_hidden(address: str, show: Open) -> None:
    page = show(f"{address}/compare.html?run=first&run=deep%2Fsecond", base=address)
    figure = page.locator("figure.chart").first
    plot, tip = figure.locator("svg.plot"), figure.locator(".tip")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 20)
    assert tip.locator(".at").inner_text() == "update 4" and tip.locator("b").all_inner_texts() == ["0.455", "0.455"]
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] + 200)
    assert tip.is_hidden()
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tip.locator(".at").inner_text() == "update 2"
    figure.locator(".legend button").first.click()
    assert figure.locator("g[data-line='0']").is_hidden() and figure.locator("g[data-line='1']").is_visible()
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert tip.locator("b").count() == 1


def test_paired_episodes_stand_side_by_side_and_where_they_part_is_marked(address: str, show: Open) -> None:
    page = show(f"{address}/compare.html?run=first&run=deep%2Fsecond", base=address)
    page.locator("#pairs .two").wait_for()
    if "grpo" in page.locator("#run-a option:checked").inner_text():
        page.select_option("#run-a", index=1)
        page.select_option("#run-b", index=0)
    page.locator("#tally .share").first.wait_for()
    shares = page.locator("#tally .share").all_inner_texts()
    # gspo: s l s s a s, grpo: s s l l l s
    assert shares == ["2 both succeed", "2 only A", "1 only B", "1 neither"]
    page.locator("#tally .only-a").click()
    items = page.locator("#pairs li button")
    assert items.count() == 2
    assert items.first.locator(".mark").evaluate_all("all => all.map(one => one.ariaLabel)") == [
        "A: success",
        "B: failure",
    ]
    page.locator(".parts-here").first.wait_for()
    # Both open the product; then one answers and the other adds it to the cart.
    assert page.locator(".parting").inner_text() == "They part at step 2: the step before is the same."
    assert page.locator(".steps .parts").inner_text() == "2" and page.locator(".parts-here").count() == 2
    actions = page.locator(".side .action").all_inner_texts()
    assert actions[0].startswith("stop") and actions[1].startswith("click 'Add to cart'")
    page.locator("#pairs").scroll_into_view_if_needed()
    page.locator(".detail h3").click()
    page.keyboard.press("ArrowRight")
    page.locator(".side .empty").wait_for()
    assert page.locator(".side .empty").inner_text() == "The episode has ended after 2 steps."
    page.locator("#tally .both").click()
    page.locator(".parting", has_text="Both do the same").wait_for()
    assert page.locator(".parts-here").count() == 0


def test_arms_of_one_run_are_compared_from_its_report(address: str, show: Open) -> None:
    page = show(f"{address}/first/report.html", base=address)
    page.click("text=Two arms side by side")
    page.locator("#pairs .two").wait_for()
    assert [page.locator(f"#arm-{side} option:checked").inner_text() for side in "ab"] == ["SFT", "DynaWeb"]
    assert page.locator("#tally .share").all_inner_texts() == ["1 both succeed", "0 only A", "3 only B", "2 neither"]


def test_a_report_loads_a_block_only_when_it_is_opened(address: str, browser: Browser) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url.removeprefix(address)) if "/data/" in request.url else None
    )
    page.goto(f"{address}/first/report.html")
    page.locator(".detail .reply").wait_for()
    assert asked == ["/first/data/eval-sft/0.js"]
    assert page.locator(".range").inner_text() == "1\N{EN DASH}50 of 117"
    # The last dream is in the second block of its file.
    page.evaluate("location.hash = '#trajectory-104-1'")
    page.locator(".detail .chips", has_text="update 3").wait_for()
    assert asked[1:] == ["/first/data/dreams/1.js"] or asked[1:] == ["/first/data/dreams/0.js"]
    assert "advantage +0.5" in page.locator(".detail .chips").inner_text()
    page.locator(".reply summary", has_text="tokens of the reply").click()
    tokens = page.locator(".token")
    # A block says that it was opened in an event of its own, after the click.
    tokens.last.wait_for()
    assert tokens.count() == 3 and tokens.last.locator("small").inner_text() == "\N{MINUS SIGN}4.00"
    assert tokens.last.get_attribute("class") == "token unlikely"
    assert not tokens.first.locator("code").inner_text().isdigit()
    page.close()


def test_failure_kinds_lead_to_their_trajectories_and_sections_to_themselves(address: str, show: Open) -> None:
    page = show(f"{address}/first/report.html", base=address)
    link = page.locator("#failures-by-kind a[aria-label='5 episodes of SFT: did not stop in time']")
    assert link.inner_text() == "5"
    link.click()
    page.locator(".range", has_text="of 5").wait_for()
    assert page.locator("#filter-failure").input_value() == "did not stop in time"
    assert all("SFT" in text for text in page.locator("#viewer li button").all_inner_texts())
    page.click(".contents a:has-text('Stages and cost')")
    assert page.url.endswith("#stages-and-cost")
    page.reload()
    page.locator(".detail .reply").wait_for()
    # The viewer does not put its own address in the place of a link to a section.
    assert page.url.endswith("#stages-and-cost")


def test_the_search_reads_pages_replies_and_errors(address: str, show: Open) -> None:
    page = show(f"{address}/first/report.html", base=address)
    page.locator(".detail .reply").wait_for()
    page.fill("#search", "COLOUR moss")
    page.locator(".found", has_text=re.compile(r"^\d+ found")).wait_for()
    assert page.locator(".range").inner_text() == "1\N{EN DASH}50 of 117"
    assert page.locator("#viewer li mark").first.inner_text() == "Colour"
    assert page.locator("#viewer li .excerpt").first.inner_text().startswith("step 1: ")
    page.fill("#search", "where is it? sft")
    page.locator(".found", has_text=re.compile(r"^\d+ found")).wait_for()
    assert page.locator(".range").inner_text() == "1\N{EN DASH}5 of 5"
    # The step where it was found is what is shown.
    page.locator("#viewer li button").first.click()
    assert page.locator(".reply .reasoning").inner_text() == "Where is it?"
    page.fill("#search", "nothing of the kind")
    page.locator(".found", has_text=re.compile(r"^0 found")).wait_for()
    assert page.locator("#viewer li.empty").is_visible()


def test_a_report_in_one_file_has_the_search_too(runs: Path, tmp_path: Path, show: Open) -> None:
    from dynaweb.report import gather, render

    path = tmp_path / "alone.html"
    path.write_text(render(gather(runs / "first", each=4)), encoding="utf-8")
    page = show(path.as_uri(), base=path.as_uri())
    page.fill("#search", "where is it?")
    page.locator("#viewer li mark").first.wait_for()
    assert page.locator("figure.chart .tip").count() == 1 and "'self'" not in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def exported(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    assert export(runs, out) == out / "index.html"
    return out


def test_the_static_site_works_from_a_disk(exported: Path, show: Open) -> None:
    base = exported.as_uri()
    page = show(f"{base}/index.html", base=base)
    assert len(names(page)) == 7 and "data-stamp" not in (exported / "index.html").read_text(encoding="utf-8")
    page.check("[aria-label='compare first']")
    page.check("[aria-label='compare deep/second']")
    page.click(".compare-bar .compare")
    page.locator("#pairs .two").wait_for()
    assert page.locator("h1").inner_text() == "2 groups of runs side by side"
    assert page.locator(".arm:visible tbody tr:visible").count() == 2 < page.locator(".arm:visible tbody tr").count()
    assert page.locator("figure.chart .legend button:visible").count() == 2
    page.click(".groups a:visible >> nth=0")
    page.locator(".detail .reply").wait_for()
    page.fill("#search", "colour moss")
    page.locator(".found", has_text=re.compile(r"^\d+ found")).wait_for()
    page.click("text=All runs")
    page.locator("h1", has_text="runs").wait_for()
    page.click("a:has-text('matrix')")
    page.click("#cells a:not(.anchor) >> nth=0")
    page.locator(".up a", has_text="Matrix matrix").wait_for()
    assert page.locator(".up a").count() == 2


def test_an_export_replaces_its_own_pages_and_nothing_else(tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "site"
    make_run(root / "one", "gspo")
    make_run(root / "two", "grpo")
    export(root, out)
    (out / "notes.txt").write_text("mine")
    shutil.rmtree(root / "two")
    export(root, out)
    assert (out / "one" / "report.html").exists() and not (out / "two" / "report.html").exists()
    assert (out / "notes.txt").read_text() == "mine"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "paper.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"not empty.*another folder"):
        export(root, foreign)
    with pytest.raises(ConfigError, match="inside a run"):
        export(root, root / "one" / "site")
    with pytest.raises(CheckpointError, match=r"no folder of runs|holds none"):
        export(foreign, tmp_path / "never")
    assert not (tmp_path / "never").exists() and [path.name for path in foreign.iterdir()] == ["paper.tex"]


def test_an_export_of_one_run_has_its_report_and_its_arms(tmp_path: Path, show: Open) -> None:
    run = make_run(tmp_path / "one", "gspo")
    first = export(run, tmp_path / "site")
    page = show(first.as_uri(), base=(tmp_path / "site").as_uri())
    page.locator(".detail .reply").wait_for()
    page.click("text=Two arms side by side")
    page.locator("#pairs .two").wait_for()
    assert page.url.startswith((tmp_path / "site").as_uri())
    page.click("text=Back to the report")
    page.locator("#viewer").wait_for()
    assert page.url.partition("#")[0] == first.as_uri()


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "by escaping alone"])
def test_hostile_runs_stay_text_on_every_page(policy: bool, tmp_path: Path, show: Open) -> None:
    bad, root, out = HOSTILE[0], tmp_path / "runs", tmp_path / "site"
    folder = make_run(root / "<svg onload=window.hacked=5>", "gspo", bad=bad)
    TrajectoryStore(folder / "trajectories" / "eval-dynaweb.jsonl.gz").append([hostile()])
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["settings"]["opt"]["name"] = HOSTILE[1]
    recipe["settings"][HOSTILE[2]] = {HOSTILE[1]: bad, "__proto__": {"hacked": 6}}
    write(folder / "recipe.json", recipe)
    with (folder / "metrics.jsonl").open("a") as file:
        for at in range(3):
            row = {"event": "update", "stage": HOSTILE[1], "index": at, "metrics": {bad: at / 2, "__proto__": 1.0}}
            file.write(json.dumps(row) + "\n")
    make_run(root / "plain", "grpo")
    make_run(root / "sad", "gspo", status="failed", bad=HOSTILE[1])
    export(root, out)
    pages = [path for path in out.rglob("*.html")]
    for path in pages if not policy else ():
        source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
        path.write_text(source, encoding="utf-8")
    page = show((out / "index.html").as_uri(), base=out.as_uri())
    assert page.locator(".runs tbody tr").count() == 3 and HOSTILE[1] in page.locator(".runs").inner_text()
    for path in pages:
        page.goto(path.as_uri())
        page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
        if path.name != "index.html":
            page.locator("#pairs .two, .detail .reply").first.wait_for()
            page.fill("#search", "svg onload")
        plot = page.locator("svg.plot")
        if plot.count():
            plot.last.focus()
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(300)
        assert page.evaluate("[window.hacked, ({}).hacked]") == [None, None]
        assert page.locator("img, iframe, textarea").count() == 0
        assert page.locator("script:not([type])").count() == 1


VIEWS = {
    "list": "/",
    "comparison": "/compare.html?run=first&run=deep%2Fsecond&run=killed",
    "report": "/first/report.html",
    "matrix": "/matrix/report.html",
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_passes_the_checks_of_axe_and_fits_every_window(view: str, address: str, show: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = show(address + VIEWS[view], base=address)
    if view == "list":
        page.locator("#summary", has_not_text="reading").wait_for()
        page.check("#cells")
        page.check("[aria-label='compare first']")
    else:
        page.locator("#pairs .two, .detail .reply, #cells table").first.wait_for()
    page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
    for width, scheme in ((1280, "light"), (1280, "dark"), (400, "light"), (320, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT) == [], width
        if width == 1280 or width == 320:
            found = axe.run(page).response["violations"]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == [], (width, scheme)
        if width == 1280:
            assert page.evaluate(CONTRAST) == [], scheme


def test_only_pages_of_runs_are_served(runs: Path, address: str) -> None:
    for path in (
        *("/first/recipe.json", "/first/../first/recipe.json", "/first/trajectories/dreams.jsonl.gz", "/etc/passwd"),
        *(
            "/first/data/dreams/2.js",
            "/first/data/dreams/-1.js",
            "/first/data/nothing/0.js",
            "/first/data/dreams/0.json",
        ),
        *(
            "/first/data/..%2F..%2Fdeep%2Fsecond%2Ftrajectories%2Fdreams/0.js",
            "/compare.html?run=..%2F..",
            "/matrix/data/x/0.js",
        ),
        *("/compare.html?run=matrix", "/deep/report.html", "/nothing/", "//first/x", "/%00"),
    ):
        status, text = ask(address + path)
        assert (status, text) == (404, "there is no such page"), path
    status, text = ask(f"{address}/first/data/dreams/1.js")
    assert status == 200 and text.startswith('dynawebData("') and "<" not in text
    # A page elsewhere that names an address as its script gets nothing.
    for site, mode, wanted in (
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("same-origin", "no-cors", 200),
        ("cross-site", "navigate", 200),
    ):
        answer = ask(f"{address}/first/data/dreams/1.js", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)
        assert answer[0] == wanted, (site, mode)
    status, text = ask(f"{address}/damaged/report.html")
    assert status == 500 and "recipe.json is damaged" in text


def test_a_report_does_not_wait_for_its_trajectories(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, read = threading.Event(), site_module.ReadFile.read

    def slow(path: Path, each: int | None) -> site_module.ReadFile:
        assert gate.wait(20)
        return read(path, each)

    monkeypatch.setattr(site_module.ReadFile, "read", slow)
    monkeypatch.setattr(site_module, "PATIENCE", 0.05)
    site = Site(runs)
    first, before = site.answer("/first/report.html"), site.answer("/first/version")
    assert first is not None and "The trajectories are being read" in first.text and "Learning curves" in first.text
    gate.set()
    for _ in range(200):
        if (after := site.answer("/first/version")) != before:
            break
        threading.Event().wait(0.05)
    assert after != before
    whole = site.answer("/first/report.html")
    assert whole is not None and "All 117 trajectories" in whole.text


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_locked(path) and not path.exists()
    with locked(path, what="x", wait=False):
        assert is_locked(path) and path.read_text()
    assert not is_locked(path)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        # Another who looks is no one at work.
        assert not is_locked(path)


def test_runs_are_found_below_and_not_inside_runs(runs: Path, tmp_path: Path) -> None:
    found = runs_below(runs)
    cell = next(path for path in found if path.startswith("matrix/cells/"))
    assert set(found) == {"first", "deep/second", "unlucky", "killed", "damaged", "going", "matrix", cell}
    assert list(runs_below(runs / "first")) == [""]
    make_run(tmp_path / "a" / "b", "gspo")
    make_run(tmp_path / "a" / "b" / "inside", "gspo")
    make_run(tmp_path / ".hidden" / "c", "gspo")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(runs_below(tmp_path)) == ["a/b"]


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "recipe.json", "seeds.json", "command.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", '{"status": 7, "seed": {}}', "[" * 100_000])
def test_a_damaged_run_is_a_row_and_no_end_of_the_list(name: str, content: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "x", "gspo")
    (run / name).write_text(content)
    row = listed("x", run)
    assert row.status in ("damaged", "done", "interrupted") and json.dumps(row.plain())
    if row.status == "damaged":
        assert name in row.detail


@pytest.mark.parametrize("name", ["status.json", "checksums.json", "metrics.jsonl", "trajectories/dreams.jsonl.gz"])
def test_links_that_lead_nowhere_keep_no_other_run_from_the_list(name: str, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "whole", "gspo")
    run = make_run(tmp_path / "runs" / "x", "gspo")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(Path(name).name)
    first = export(tmp_path / "runs", tmp_path / "site")
    assert "whole" in first.read_text() and (tmp_path / "site" / "whole" / "report.html").exists()
    assert Site(tmp_path / "runs").answer("/")


def test_rollouts_keep_the_advantage_that_their_update_gave_them(tmp_path: Path) -> None:
    rollouts = [
        replace(episode(1, "success", "dream"), reward=1.0, facts=EpisodeFacts()),
        replace(episode(2, "loop", "dream"), reward=None, facts=EpisodeFacts()),
        replace(episode(3, "success", "expert"), reward=1.0),
    ]
    log = RolloutLog(tmp_path)
    log.save(4, rollouts, [0.75, 0.0, 0.25])
    kept = log.read(4)
    assert [(one.facts.update, one.facts.advantage) for one in kept] == [(4, 0.75), (4, None)]


def test_the_command_writes_a_site_and_says_what_is_not_there(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", "gspo")
    done = cli("view", "--export", "site")
    assert (done.returncode, done.stdout.strip()) == (0, "site/index.html"), done.stderr
    assert (tmp_path / "site" / "one" / "data" / "evaluations.js").exists() and "one/report.html" in done.stderr
    missing = cli("view", "nothing", "--export", "site")
    assert missing.returncode == 1 and "nothing is no folder of runs; give the folder" in missing.stderr
