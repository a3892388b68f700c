from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from report_fakes import HOSTILE, episode, fake_report, hostile

from dynaweb.report.data import Arm, Curve, ReportData, Sample, Setting, Stage
from dynaweb.report.html import render
from dynaweb.report.viewer import BLOCK
from dynaweb.types import StepFacts

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a report; the test fails if it writes to the console, opens a dialog, or asks for anything but itself."""
    contexts: list[BrowserContext] = []
    trouble: list[str] = []

    def open_report(html: str, *, width: int = 1280, scheme: str = "light", hash: str = "") -> Page:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.on("request", lambda request: trouble.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri() + hash)
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.fixture(scope="module")
def html() -> str:
    return render(fake_report())


def poisoned() -> ReportData:
    """Every text of the report tries to break out of where it stands."""
    bad = HOSTILE[0]
    arms = (Arm(bad, HOSTILE[1], "sft", ((1.0, 0.0),), HOSTILE[2]), Arm("x", bad, "main", ((1.0, 1.0),), bad))
    return ReportData(
        bad,
        HOSTILE[3],
        bad,
        arms=arms,
        prerequisites=HOSTILE,
        curves=tuple(Curve(text, text, ((0, 1.0), (1, 2.0)), text) for text in HOSTILE),
        stages=(Stage(bad, bad, bad, bad, {"seconds": 1}),),
        failures={bad: {bad: 1}},
        settings=(Setting(bad, bad, HOSTILE[1]),),
        plugins=({"kind": bad, "name": bad, "package": bad, "version": HOSTILE[2]},),
        versions={bad: bad, "dynaweb": bad},
        samples=(
            Sample(bad, hostile(), real=(replace(hostile().steps[0].observation, title=HOSTILE[3], notice=bad),)),
            Sample(HOSTILE[1], episode(1, "success")),
        ),
    )


@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "by escaping alone"])
def test_no_script_of_a_page_runs_and_no_request_leaves(show: Open, policy: bool) -> None:
    source = render(poisoned())
    if not policy:
        source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", source)
        assert "Content-Security-Policy" not in source
    page = show(source)
    assert page.locator(".page.compared").count() == 1
    page.locator("#viewer").scroll_into_view_if_needed()
    page.keyboard.press("ArrowRight")
    page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert page.locator("script:not([type])").count() == 1
    assert page.locator("img, iframe, textarea").count() == 0
    assert page.locator("h1").text_content() == HOSTILE[0]
    assert page.locator(".detail h3").text_content() == f"Open {HOSTILE[0]}"


def test_hostile_page_text_shows_as_it_is(show: Open) -> None:
    page = show(render(poisoned()))
    shown = page.locator(".detail").text_content() or ""
    for text in HOSTILE[:3]:
        assert text.replace("'", "\\'") in shown
    assert "\\ud800 &lt;b&gt; &amp; \\x00" in shown


def test_the_policy_forbids_what_escaping_would_have_to_catch(show: Open, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(ReportData("x")), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    add = """tag => { const made = document.createElement('script'); made.textContent = 'window.hacked = 1';
             document.body.append(made); return fetch('http://evil.test/').then(() => 'sent', () => 'refused'); }"""
    assert page.evaluate(add) == "refused"
    assert page.evaluate("window.hacked") is None
    context.close()


def test_the_file_names_no_other_file(html: str) -> None:
    # What starts with `#` is a part of the file itself.
    assert not re.search(r'(src|href|action|poster|data)="(?!#)', html)
    assert "@import" not in html
    assert "url(" not in html
    assert len(re.findall("<style", html)) == 1 and ' style="' not in html
    assert len(html) < 200_000


def test_nothing_sticks_out_and_everything_can_be_read(show: Open, html: str) -> None:
    page = show(html)
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    for width in (1280, 980, 700, 400, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT) == [], width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == [], scheme


CUT = """() => [...document.querySelectorAll('.card td, .card th')].filter(cell => {
  const edge = cell.closest('.scroll') ? Infinity : cell.closest('.card').getBoundingClientRect().right;
  const hidden = cell.tagName === 'TH' && getComputedStyle(cell.closest('thead')).position === 'absolute';
  return !hidden && cell.getClientRects().length && cell.getBoundingClientRect().right > edge + 1;
}).map(cell => cell.textContent)"""
"""Cells of tables that lie outside their card, which clips them."""
CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colour, under) => {
    canvas.fillStyle = `rgb(${under.join(' ')})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = v => v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const ground = node => { const above = node.parentElement ? ground(node.parentElement) : [255, 255, 255];
    return rgb(getComputedStyle(node).backgroundColor, above); };
  const weak = new Set();
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest('script, :disabled, option')) continue;
    const style = getComputedStyle(node), below = ground(node);
    const ink = rgb(node instanceof SVGElement ? style.fill : style.color, below);
    const [high, low] = [light(ink), light(below)].sort((a, b) => b - a);
    const faded = node.closest('.kept, .id') && style.opacity !== '1';
    if (faded || (high + .05) / (low + .05) < 4.5) weak.add(`${node.tagName}.${node.className} ${node.textContent}`);
  }
  return [...weak];
}"""


OVERFULL = """() => [...document.querySelectorAll('main, header, .card, .chart, .page, .reply, td, th, td *, th *')]
  .filter(part => {
    const hidden = part.closest('thead') && getComputedStyle(part.closest('thead')).position === 'absolute';
    return !hidden && !part.closest('.scroll, svg') && part.clientWidth && part.scrollWidth > part.clientWidth + 1;
  }).map(part => `${part.tagName}.${part.className} ${part.scrollWidth} > ${part.clientWidth}: ${part.textContent}`)"""
"""What is wider inside than its box, and cannot be scrolled."""
BROKEN = """() => [...document.querySelectorAll('td.n')].flatMap(cell => {
  const found = [], walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    const note = walk.currentNode.parentElement.closest('small:not(.whole)');
    if (lines.size > 1 && !note) found.push(walk.currentNode.data);
  }
  return found;
})"""
"""Numbers of tables that go on in another line."""


@pytest.mark.parametrize("label", ["SFT, 120 updates on all demonstrations", "sft_" + "of_very_many_updates" * 3])
@pytest.mark.parametrize("width", [400, 320])
def test_no_number_is_cut_in_a_narrow_window(show: Open, label: str, width: int) -> None:
    data = fake_report()
    first, *others = data.arms
    long = replace(data, arms=(replace(first, label=label), *others), failures={"sft": {label: 1}, **data.failures})
    alone = replace(long, arms=(long.arms[0], replace(others[-1], note=label)))
    for one in (long, alone):
        page = show(render(one), width=width)
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert page.evaluate(OVERFULL) == []
        assert page.evaluate(BROKEN) == []
        assert page.evaluate(CUT) == [] and page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("td[data-label^='Against the']").count() >= 2


def test_the_theme_button_goes_against_the_system(show: Open, html: str) -> None:
    page = show(html, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    light = page.evaluate(ground)
    page.click("#theme")
    assert light != dark
    assert page.evaluate(ground) == dark


def test_headline_table_has_every_arm_with_count_and_interval(show: Open, html: str) -> None:
    data = fake_report()
    page = show(html)
    rows = page.locator("section").first.locator("tbody tr")
    assert rows.count() == 4
    for at, arm in enumerate(data.arms):
        text = rows.nth(at).inner_text()
        assert arm.label in text
        assert f"{100 * (arm.success.value or 0):.1f} %" in text
        assert str(arm.success.n) in text
        assert rows.nth(at).locator("svg.interval").count() == 1
    assert "reference" in rows.nth(1).inner_text()
    # The count does not break across lines.
    assert "against SFT 300 steps (paired, n\xa0=\xa0108)." in page.locator(".verdict").inner_text()


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["grad_norm", "policy_loss", "loss", "entropy", "reward"], ["reward", "loss", "entropy"]),
        (["success_real", "loss", "x"], ["success_real", "loss"]),
        (["b", "a"], ["b", "a"]),
        ([f"loss_{at}" for at in range(9)], [f"loss_{at}" for at in range(6)]),
    ],
)
def test_the_first_charts_are_whole_rows_of_what_matters(names: list[str], shown: list[str]) -> None:
    curves = tuple(Curve("rl", name, ((0, 0.5), (1, 0.6))) for name in names)
    html = render(ReportData(title="x", curves=curves))
    at_once = html.split("<details>")[0]
    assert re.findall(r"<figcaption>(.*?) \(", at_once) == [name.replace("_", " ").capitalize() for name in shown]


def test_steps_without_a_browser_have_a_column_where_there_are_any() -> None:
    stages = (Stage("demos", "done", cost={"browser_steps": 0, "static_steps": 0}),)
    assert "Without a browser" not in render(ReportData(title="x", stages=stages))
    html = render(ReportData(title="x", stages=(*stages, Stage("explore", "done", cost={"static_steps": 4321}))))
    # The stage, and the sum over all.
    assert html.count(">4,321<") == 2 and "Without a browser" in html


def test_the_target_is_marked_and_the_change_is_coloured(show: Open, html: str) -> None:
    page = show(html)
    before, after = page.locator(".page").nth(0), page.locator(".page").nth(1)
    target = before.locator(".target")
    assert target.count() == 1
    assert target.inner_text() in page.locator(".reply .action").inner_text().replace("click", "link")
    assert after.locator(".added").count() == 7  # six elements and the address
    assert after.locator(".removed").count() == 13
    assert after.locator(".kept").count() == 7
    shown = after.locator(".lines > div:not(.removed):not(.url)")
    assert shown.count() == 13
    page.locator("#viewer").scroll_into_view_if_needed()
    page.keyboard.press("ArrowRight")
    assert page.locator(".reply .action").inner_text().startswith("stop")
    assert page.locator(".page").count() == 1


def test_errors_and_unread_replies_are_shown(show: Open) -> None:
    samples = (Sample("a", episode(3, "invalid")), Sample("a", episode(4, "unread")))
    page = show(render(ReportData("x", samples=samples)), hash="#trajectory-0-2")
    assert "not 'Cart'" in page.locator(".reply .error").inner_text()
    assert page.locator(".steps .failed").count() == 1
    page.keyboard.press("j")
    assert page.locator(".reply .action").inner_text() == "no action could be read from the reply"
    page.locator(".reply summary").click()
    assert page.locator(".reply pre").inner_text() == "I think the price is"


@pytest.mark.parametrize("way", ["dreamed", "recalled"])
def test_a_dream_says_that_it_is_one(show: Open, way: str) -> None:
    dream = episode(3, "success", "dream")
    dream = replace(dream, steps=tuple(replace(step, facts=StepFacts(**{way: True})) for step in dream.steps))
    page = show(render(ReportData("x", samples=(Sample("dreams", dream, 7),))))
    assert page.locator(".page h4").nth(1).inner_text().startswith(f"Next page, {way}")
    assert "update 7" in page.locator(".detail .chips").inner_text()


def test_elements_of_a_dreamed_page_are_coloured_by_where_they_come_from(show: Open) -> None:
    dream = episode(3, "success", "dream")
    letters = "rci" + "c" * (len(dream.steps[1].observation.nodes) - 3)
    facts = replace(dream.steps[0].facts, imagined=True, origins=letters)
    dream = replace(dream, steps=(replace(dream.steps[0], facts=facts), *dream.steps[1:]))
    page = show(render(ReportData("x", samples=(Sample("dreams", dream, 7),))))
    after = page.locator(".page").nth(1)
    counts = {"r": ("remembered", 1), "c": ("copied", len(letters) - 2), "i": ("invented", 1)}
    for word, count in counts.values():
        assert after.locator(f".lines .{word}").count() == count
    words = ", ".join(f"{count} {word}" for word, count in counts.values())
    assert after.locator(".origins").inner_text() == f"Elements: {words}"


def test_filters_search_and_keys(show: Open, html: str) -> None:
    page = show(html)
    total = len(fake_report().samples)
    items = page.locator("#viewer li button")
    current = page.locator("#viewer li button[aria-current=true]")
    assert items.count() == total
    page.locator("#viewer").scroll_into_view_if_needed()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert items.nth(1).get_attribute("aria-current") == "true"
    page.select_option("#filter-source", "dream")
    page.select_option("#filter-outcome", "failure")
    assert 0 < items.count() < 9
    assert current.count() == 1
    assert all("dream" in text for text in items.all_inner_texts())
    page.select_option("#filter-source", "")
    page.select_option("#filter-outcome", "ungraded")
    assert items.count() == 1
    assert "BrowserError: the renderer crashed" in page.locator(".detail").inner_text()
    page.keyboard.press("Escape")
    page.locator("h2").first.click()
    page.locator("#viewer").scroll_into_view_if_needed()
    page.keyboard.press("/")
    page.keyboard.type("no such task")
    assert page.locator("#viewer .empty").inner_text() == "No trajectory fits these filters."
    assert page.locator(".detail").inner_text() == ""


def test_an_address_leads_to_a_step(show: Open, html: str) -> None:
    page = show(html, hash="#trajectory-5-2")
    assert page.locator("#viewer li button").nth(5).get_attribute("aria-current") == "true"
    assert page.locator(".steps button").nth(1).get_attribute("aria-current") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.url.endswith("#trajectory-5-1")
    page = show(html, hash="#trajectory-99999-1")
    assert page.locator("#viewer li button").first.get_attribute("aria-current") == "true"


def test_ten_thousand_trajectories_stay_quick(show: Open) -> None:
    few = [episode(number, ("success", "answer")[number % 2]) for number in range(40)]
    samples = tuple(
        Sample(f"arm {number % 7}", replace(few[number % 40], id=str(number)), number) for number in range(10_000)
    )
    page = show(render(ReportData("x", samples=samples, total=10_000)))
    assert page.locator("#viewer li").count() == 50
    assert page.evaluate("document.getElementsByTagName('*').length") < 1500
    assert page.locator("script[type='application/json']").count() == 1 + 10_000 // BLOCK
    assert page.evaluate("performance.timing.domComplete - performance.timing.responseEnd") < 5000
    page.locator("#viewer").scroll_into_view_if_needed()
    page.click(".pager .on")
    assert page.locator(".range").inner_text() == "51\N{EN DASH}100 of 10000"
    page.select_option("#filter-arm", "arm 3")
    page.fill("#search", "PRICE arm")
    assert page.locator(".range").inner_text() == "1\N{EN DASH}50 of 1429"
    took = page.evaluate("""() => { const start = performance.now();
        const press = () => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}));
        for (let i = 0; i < 20; i++) press();
        return performance.now() - start; }""")
    assert took < 3000


def test_a_run_that_was_stopped_early_has_a_report(show: Open) -> None:
    page = show(render(ReportData("x", status="interrupted", curves=(Curve("sft", "loss", ((0, 1.5),)),))))
    assert page.locator("section h2").all_inner_texts() == ["Learning curves"]
    assert page.locator("header .chip.warn").inner_text() == "interrupted"


def test_several_seeds_are_said(show: Open) -> None:
    page = show(render(fake_report(seeds=3, each=0)))
    assert page.locator("section").first.locator("tbody tr").first.inner_text().count("3 seeds") == 1
    assert "of 324 held-out episodes" in page.locator(".verdict").inner_text()


def test_how_old_rollouts_were_is_told_where_they_ran_ahead() -> None:
    report = fake_report()
    assert "Asynchronous training" not in render(report)
    ages = {"staleness.mean": (0.0, 1.0, 2.0), "staleness.share": (0.0, 1.0, 1.0)}
    ages |= {"ratio_ess": (0.9, 0.7), "staleness.ess": (0.5, 0.3)}
    stale = [Curve("rl", name, tuple(enumerate(values, 1))) for name, values in ages.items()]
    html = render(replace(report, curves=(*report.curves, *stale)))
    text = re.sub(r"<[^>]+>", " ", html[html.index("<h2>Asynchronous training") :])
    assert re.search(r"updates that tokens were behind .*? 1\.000 .*? 3 ", text, re.DOTALL)
    assert re.search(r"share of stale tokens .*? 0\.667 ", text, re.DOTALL)
    assert re.search(r"effective sample size of ratios .*? 0\.800 .*? 2 ", text, re.DOTALL)
    assert re.search(r"effective sample size of weights .*? 0\.400 .*? 2 ", text, re.DOTALL)
