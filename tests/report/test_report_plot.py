from __future__ import annotations

import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from dynaweb.report.charts import HEIGHT, WIDTH, Series, line_chart, short
from dynaweb.report.markup import Html

RISING = Series("a", [(at, at / 10) for at in range(11)])


def parts(chart: Html, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(chart).iter(tag))


def lines(chart: Html, colour: int = 0) -> list[list[tuple[float, float]]]:
    """The lines of a series: their points, in pixels."""
    found = [part for part in parts(chart, "path") if part.get("stroke") == f"var(--c{colour})" and not part.get("id")]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", part.get("d", ""))]
        for part in found
    ]


def numbers(chart: Html, anchor: str) -> list[str]:
    """What is written at an axis: `end` for the left one, `middle` for the lower one."""
    return [part.text or "" for part in parts(chart, "text") if part.get("text-anchor") == anchor]


def test_every_series_has_its_points_in_its_colour() -> None:
    other = Series("b", [(at, 1 - at / 10) for at in range(0, 11, 2)])
    chart = line_chart("Share", [RISING, other], rate=True)
    dots = [part.get("fill") for part in parts(chart, "circle")]
    assert dots.count("var(--c0)") == 11 and dots.count("var(--c1)") == 6 and len(dots) == 17
    (rises,), (falls,) = lines(chart, 0), lines(chart, 1)
    assert rises[0][1] > rises[-1][1] and falls[0][1] < falls[-1][1]
    assert rises[0][0] == falls[0][0] and rises[-1][0] == falls[-1][0]
    assert (rises[0][1], rises[-1][1]) == (falls[-1][1], falls[0][1])


def test_axes_have_numbers_and_a_name() -> None:
    chart = line_chart("Loss", [Series("a", [(0, 3.0), (9, 1.2)])], x_label="step")
    assert numbers(chart, "middle") == ["0", "2", "4", "6", "8"]
    assert numbers(chart, "end") == ["1.5", "2.0", "2.5", "3.0"]
    assert [part.text for part in parts(chart, "div") if part.get("class") == "axis"] == ["step"]
    assert numbers(line_chart("Rate", [RISING], rate=True), "end") == ["0.00", "0.25", "0.50", "0.75", "1.00"]
    small = line_chart("Rate", [Series("a", [(0, 0.01), (1, 0.02)])], rate=True)
    assert numbers(small, "end")[-1] == "1.00"
    beyond = line_chart("Rate", [Series("a", [(0, 0.5), (1, 2.0)])], rate=True)
    assert float(numbers(beyond, "end")[-1]) >= 1.5


def test_whole_places_get_whole_numbers() -> None:
    assert numbers(line_chart("x", [Series("a", [(0.94, 0.5), (1.06, 0.7)])]), "middle") == ["1"]
    assert numbers(line_chart("x", [Series("a", [(5, 0.5)])]), "middle") == ["4", "5", "6"]
    shares = line_chart("x", [Series("a", [(0, 0.5), (1, 0.7)])], whole=False)
    assert numbers(shares, "middle") == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


@pytest.mark.parametrize("factor", [1e-7, 1e-4, 0.02, 1.0, 1234.0, 1e8, -1e-3, -2e6])
def test_nothing_lies_outside_the_picture(factor: float) -> None:
    chart = line_chart("x", [Series("a", [(at, factor * at * at) for at in range(12)], [(3, -factor, factor * 90)])])
    for line in [line for line in lines(chart) if line]:
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)
    for label in parts(chart, "text"):
        # The widest usual font has digits of 0.64 of its size.
        width, x, y = 0.64 * 12 * len(label.text or ""), float(label.get("x", "")), float(label.get("y", ""))
        left = {"end": x - width, "middle": x - width / 2}.get(label.get("text-anchor", ""), x)
        assert left >= 0 and left + width <= WIDTH + 1 and 9 <= y <= HEIGHT, label.text


def test_gaps_stay_gaps_and_lonely_points_are_seen() -> None:
    gap = line_chart("x", [Series("a", [(0, 2.0), (1, None), (2, 2.0), (3, 2.5)])])
    assert len(parts(gap, "circle")) == 3
    long = [(at, float(at) if at % 2 else None) for at in range(60)]
    assert len(parts(line_chart("x", [Series("a", long)]), "circle")) == 30
    assert not parts(line_chart("x", [Series("a", [(at, float(at)) for at in range(60)])]), "circle")
    nothing = line_chart("x", [Series("a", [(0, None)])])
    assert "nan" not in nothing and 'aria-label="x: no data"' in nothing


def test_long_runs_are_small_and_smoothed() -> None:
    long = line_chart("x", [Series("a", [(at, at % 7) for at in range(100_000)])])
    assert len(long) < 25_000
    faint, strong = (part for part in parts(long, "path") if part.get("stroke") == "var(--c0)")
    assert faint.get("stroke-opacity") == "0.35" and strong.get("stroke-opacity") is None
    assert len(Series("a", [(at, 1.0) for at in range(100_000)]).thin().points) <= 300


def test_intervals_are_thin_lines_through_their_points() -> None:
    bars = [(0, 0.2, 0.8), (1, 0.4, 0.6)]
    chart = line_chart("x", [Series("a", [(0, 0.5), (1, 0.5)], bars)], rate=True)
    first, second, line = lines(chart)
    assert first[0][0] == first[1][0] == line[0][0] and second[0][0] == line[1][0]
    heights = [abs(low - high) for (_, low), (_, high) in (first, second)]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.1)


def test_a_guide_is_grey_and_has_no_points() -> None:
    chart = line_chart("x", [Series("a", [(0, 0.1), (1, 0.5)]), Series("b", [(0, 0), (1, 1)], guide=True)], rate=True)
    assert {part.get("fill") for part in parts(chart, "circle")} == {"var(--c0)"} and not lines(chart, 1)
    (dashed,) = (part for part in parts(chart, "path") if part.get("stroke-dasharray"))
    assert dashed.get("stroke") == "var(--muted)"
    assert 'class="swatch guide"' in chart and "swatch c1" not in chart


def test_a_picture_keeps_to_the_policy_and_the_style_sheet() -> None:
    chart = line_chart("x", [RISING, Series("b", [(at, at % 3) for at in range(50)], [(1, 0.0, 1.0)])])
    names = {name for part in ElementTree.fromstring(chart).iter() for name in part.keys()}  # noqa: SIM118
    assert "style" not in names and "<style" not in chart and not [name for name in names if name.startswith("on")]
    # Colours are those of the page, and nothing is referred to.
    assert not re.findall(r"#[0-9a-f]{6}\b(?!\w)|url\(|href=", chart) and "id" not in names


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "$\\frac{1}{$", '" onload="x', "#010100", "名前 \ud800 \x00"]
)
def test_any_name_is_safe(text: str) -> None:
    chart = line_chart(text, [Series(text, [(0, 1.0), (1, 2.0)]), RISING], x_label=text)
    shown = text.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
    root = ElementTree.fromstring(chart)
    assert [part.text for part in root.iter("figcaption")] == [shown]
    assert [part.text for part in root.iter("div") if part.get("class") == "axis"] == [shown]
    legend = next(part for part in root.iter("div") if part.get("class") == "legend")
    assert ["".join(part.itertext()) for part in legend] == [shown, "a"]
    assert {part.tag for part in root.iter()} == {
        *("figure", "figcaption", "div", "span", "i", "svg", "g", "path", "text", "circle", "script"),
    }


def test_equal_data_give_equal_source_whatever_was_drawn_before() -> None:
    one = line_chart("x", [RISING], rate=True)
    for other in (Series("b", [(0, -1e6), (1, 5e5)]), Series("c", [(at, 1e-9 * at) for at in range(40)], [(7, 0, 1)])):
        line_chart("y", [other, RISING], whole=False)
    assert line_chart("x", [RISING], rate=True) == one
    code = f"""
from dynaweb.report.charts import Series, line_chart
print(line_chart("x", [Series("a", {list(RISING.points)})], rate=True))
"""
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == one


@pytest.mark.parametrize("series", [Series("b", [(0, math.inf)]), Series("b", [(0, 1.0)], [(0, math.nan, 1.0)])])
def test_values_that_are_not_finite_are_refused(series: Series) -> None:
    with pytest.raises(ValueError, match="NaN or Inf"):
        line_chart("y", [series])


def test_numbers_are_short() -> None:
    found = [short(value) for value in (0, 0.25, 1 / 3, 1200, 12_345, 1.5e-4, 2e-9, 123_456, -3e7)]
    assert found == ["0", "0.25", "0.3333", "1200", "12345", "1.5e−4", "2e−9", "1.23e5", "−3e7"]
