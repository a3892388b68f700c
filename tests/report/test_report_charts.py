"""Charts as a reader sees them: which there are, and whether their words can be read, in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from report_fakes import drift_step, fake_report

from dynaweb.report.charts import palette
from dynaweb.report.data import Arm, Curve, JudgeAudit, Measure, ReportData
from dynaweb.report.html import render
from dynaweb.report.world_model import world_model_page
from dynaweb.stats import wilson
from dynaweb.worldmodels.calibration import Bin, Calibration

Show = Callable[..., None]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """One page for all; what it writes to the console is a failure."""
    trouble: list[str] = []
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        made = browser.new_page()
        made.on("console", lambda message: trouble.append(message.text))
        yield made
        browser.close()
    assert trouble == []


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Show:
    """Opens a report as a file, since each has a policy of its own."""

    def open_report(html: str, *, width: int = 1280) -> None:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path.as_uri())

    return open_report


LABELS = """() => [...document.querySelectorAll('svg.plot')].map(plot => {
  const card = plot.closest('.chart').getBoundingClientRect();
  const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return [...plot.querySelectorAll('text')].map(text => {
    const box = text.getBoundingClientRect(), size = parseFloat(getComputedStyle(text).fontSize) * scale;
    return { text: text.textContent, size, left: box.left - card.left, right: card.right - box.right,
             x: [box.left, box.right], y: [box.top, box.bottom] };
  });
})"""
"""For each chart: its numbers, their size in pixels as shown, and where they are."""


@pytest.mark.parametrize("width", [1280, 700, 400])
def test_numbers_of_charts_can_be_read(page: Page, show: Show, width: int) -> None:
    show(render(fake_report()), width=width)
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    charts = page.evaluate(LABELS)
    assert len(charts) == 8
    for labels in charts:
        assert len(labels) >= 5
        for one in labels:
            assert 11.5 <= one["size"] <= 16, (one, width)
            assert one["left"] >= 4 and one["right"] >= 4, one
        for at, one in enumerate(labels):
            for other in labels[at + 1 :]:
                beside = one["x"][1] <= other["x"][0] or other["x"][1] <= one["x"][0]
                # Boxes of text are higher than digits are.
                above = one["y"][1] <= other["y"][0] + 4 or other["y"][1] <= one["y"][0] + 4
                assert beside or above, (one, other)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_lines_have_the_colours_of_the_theme(page: Page, show: Show) -> None:
    show(render(ReportData("x", curves=(Curve("rl", "loss", ((0, 1.0), (1, 2.0))),))))
    line = page.locator("svg.plot path[stroke='var(--c0)']").first
    seen = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        seen.append(line.evaluate("line => getComputedStyle(line).stroke"))
    assert seen == ["rgb(36, 87, 197)", "rgb(130, 170, 255)"]
    dots = page.locator("svg.plot circle").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert len(dots) == 2 and all(4 < width < 9 for width in dots)


def test_a_legend_stands_beside_a_picture_that_has_room(page: Page, show: Show) -> None:
    source = world_model_page("delta", {}, [drift_step(1), drift_step(2)], None, {})
    for width, beside in ((1280, False), (640, True), (400, False)):
        show(source, width=width)
        plot, legend = (page.locator(name).bounding_box() for name in ("svg.plot", ".legend"))
        assert plot is not None and legend is not None
        assert (legend["x"] >= plot["x"] + plot["width"]) is beside
        assert (legend["y"] >= plot["y"] + plot["height"]) is not beside


def figures(html: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", html)


def test_what_makes_no_curve_is_a_table(page: Page, show: Show) -> None:
    curves = (
        Curve("rl", "loss", ((0, 2.0), (1, 1.0))),
        Curve("rl", "reward", ((0, 0.5), (1, 0.5), (2, 0.5))),
        Curve("rl", "skipped", ((0, 0.0), (1, 0.0), (2, 0.0))),
        Curve("rl", "steps", ((0, 4.0), (1, 12_345.0), (2, None))),
        Curve("rl", "tokens", ((0, 9.0), (1, 9.0))),
        Curve("sft", "tokens", ((0, 7.0), (1, 8.0), (2, 8.0))),
        Curve("fidelity", "exact", ((0, 0.125),), "World model"),
    )
    html = render(ReportData("x", curves=curves))
    # A flat reward is news, and so is a loss of two updates; one of the two lines of tokens is a curve.
    assert figures(html) == ["Reward (RL)", "Loss (RL)", "Tokens"]
    show(html)
    page.locator("summary", has_text="3 values without a curve").click()
    rows = page.locator("details[open] tbody tr")
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        ["Exact", "World model", "0.125", "0.125", "1"],
        ["Skipped", "RL", "0", "0", "3"],
        ["Steps", "RL", "4", "12345", "2"],
    ]


def colours(html: str) -> list[dict[str, str]]:
    """For each chart, the colour of each name, in its legend and, where there is none, in its title."""
    found = []
    for figure in re.findall(r"<figure.*?</figure>", html):
        named = dict((name, at) for at, name in re.findall(r'swatch (\w+)"></i>(.*?)</span>', figure))
        drawn = set(re.findall(r"var\(--(c\d)\)", figure))
        alone = re.search(r"<figcaption>.*\((.*)\)</figcaption>", figure)
        assert drawn == set(named.values()) - {"guide"} or (alone and not named and len(drawn) == 1)
        found.append(named or {alone[1]: drawn.pop()} if alone else named)
    return found


def test_one_name_has_one_colour_in_all_charts() -> None:
    rising = tuple((float(at), at / 4) for at in range(4))
    stages = {
        "loss": ("sft", "world-model", "rl", "sft-3"),
        "reward": ("rl",),
        "entropy": ("world-model", "sft"),
        "padded": ("sft-3", "rl"),
        "tokens": ("sft", "fidelity", "world-model", "rl", "orm", "sft-3"),
        "time": ("critic", "rl"),
        "lr": ("critic", "drift", "orm"),
    }
    labels = {"sft": "SFT, 2 updates", "sft-3": "SFT, 3 updates", "rl": "DynaWeb"}
    made = tuple(Curve(one, name, rising, labels.get(one, "")) for name, found in stages.items() for one in found)
    arms = (Arm("sft", labels["sft"], "sft", ((1.0,),)), Arm("dynaweb", "DynaWeb", "main", ((1.0,),)))
    charts = colours(render(ReportData("x", curves=made, arms=arms)))
    assert len(charts) == len(stages)
    first = {name: colour for chart in reversed(charts) for name, colour in chart.items()}
    for chart in charts:
        assert chart.items() <= first.items()
        # Beside each other no two have one.
        assert len(set(chart.values())) == len(chart)
    assert first["DynaWeb"] == "c0" and len(first) == 8


def test_a_colour_is_used_again_only_when_all_are() -> None:
    assert palette([["a", "b"], ["c"]], ["c", "x"]) == {"c": 0, "a": 1, "b": 2}
    assert palette([["a", "b"], ["c", "b"]], size=2) == {"a": 0, "b": 1, "c": 0}
    many = palette([[str(at) for at in range(13)]])
    assert sorted(many.values()) == sorted([*range(6), *range(6), 0])


def test_drift_and_judge_stand_side_by_side(page: Page, show: Show) -> None:
    audit = JudgeAudit("DynaWeb", wilson(1, 9), wilson(0, 1), failed=9, solved=1)
    both = ReportData("x", fidelity=(Measure("Exact", wilson(3, 9)),), drift=(drift_step(1),), audits=(audit,))
    for width, beside in ((1280, True), (400, False)):
        show(render(both), width=width)
        assert page.locator(".pair h2").all_inner_texts() == ["Drift of dreams", "Judge"]
        left, right = (page.locator(".pair > *").nth(at).bounding_box() for at in (0, 1))
        assert left is not None and right is not None
        assert (left["y"] == right["y"] and left["x"] < right["x"]) is beside
        assert (left["y"] < right["y"] and left["x"] == right["x"]) is not beside
    assert "9 failures in all" in page.locator(".pair").inner_text()
    assert "1 success in all" in page.locator(".pair").inner_text()


def test_the_page_of_a_world_model_has_every_measure_with_its_meaning(page: Page, show: Show) -> None:
    bins = tuple(Bin(expected=at / 5, sound=at / 6, n=20) for at in range(5))
    calibration = Calibration((0.0,), (0.0,), (1.0,), 100, 0.6, 0.15, 0.24, bins)
    steps = [drift_step(1), drift_step(2)]
    source = world_model_page("<delta>", {"all": steps[0]}, steps, calibration, {"element_f1": "right <elements>"})
    show(source, width=400)
    assert page.locator("h1").inner_text() == "World model <delta>"
    titles = page.locator("h2").all_inner_texts()
    assert titles == ["Open loop and confidence", "One step: all", "Open loop: step 1", "Open loop: step 2"]
    assert (
        page.locator("svg.plot").count() == 2
        and "Brier score 0.150, n = 100" in page.locator("figure").nth(1).inner_text()
    )
    assert page.locator("tbody tr").count() == 3 * 4
    assert page.locator("tbody tr", has_text="right <elements>").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    without = world_model_page("x", {"all": steps[0]}, (), None, {})
    assert "<figure" not in without and "Open loop" not in without
