"""A sample of an evaluation without a browser, played again in Chromium."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

import dynaweb
from dynaweb.report.gather import gather
from dynaweb.report.html import render
from dynaweb.report.table import closing_short, closing_text
from dynaweb.stages.browser_sample import compared, sample_words, spread
from dynaweb.types import Action, EpisodeFacts, Judgement, Observation, Step, Task, Trajectory

PROMPTED = (
    "controls.sft_steps=[]",
    "sft.steps=2",
    "sft.batch=2",
    "data.demos=2",
    "eval.episodes=5",
    "eval.steps=3",
    "model.threads=1",
)


def episode(name: str, score: float | None, *actions: str) -> Trajectory:
    steps = tuple(Step(Observation("u", ()), Action("goto", text=text)) for text in actions)
    facts = EpisodeFacts(verdict=Judgement(score))
    end = "infrastructure" if score is None else "stop"
    return Trajectory(name, Task(name, "shop", "do it"), steps, None, "real", end, facts=facts)


def test_outcomes_and_actions_are_compared_where_both_were_graded() -> None:
    before = [episode("a", 1.0, "x"), episode("b", 1.0, "x"), episode("c", 0.0, "x"), episode("d", 1.0, "x")]
    again = [before[0], episode("b", 0.0, "x"), episode("c", 0.0, "y"), episode("d", None)]
    facts = compared(before, again)
    assert facts == {"episodes": 3, "same_outcome": 2, "same_actions": 2, "broken": 1, "differ": ["b"]}
    assert sample_words(facts).startswith("3 of these episodes were played again in Chromium: 2 end alike, 2 with")
    assert compared([], []) == {"episodes": 0, "same_outcome": 0, "same_actions": 0, "broken": 0, "differ": []}


@pytest.mark.parametrize(("count", "names"), [(1, "a"), (2, "ac"), (3, "abd"), (5, "abcde"), (9, "abcde")])
def test_a_sample_is_spread_over_all(count: int, names: str) -> None:
    episodes = [replace(episode("a", 1.0), id=name) for name in "abcde"]
    assert "".join(one.id for one in spread(episodes, count)) == names


def test_a_run_says_what_its_sample_gave(tmp_path: Path) -> None:
    sets = [*PROMPTED, "eval.browser_share=0.7"]
    dynaweb.run("sft", overrides=sets, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["browser_sample"] == (
        "3 of these episodes were played again in Chromium: 3 end alike, 3 with the same actions."
    )
    data = gather(tmp_path / "run")
    assert data.browser_sample == summary["browser_sample"]
    for text in (closing_text(data, width=200), closing_short(data, width=200), render(data)):
        assert text.count(data.browser_sample) == 1
    assert [arm.name for arm in data.arms] == ["sft"]  # the sample is no arm


@pytest.mark.parametrize("broken", [False, True], ids=["there is none", "it does not start"])
def test_a_run_without_a_browser_ends_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: bool
) -> None:
    browser = tmp_path / "chromium"
    if broken:
        browser.write_text("#!/bin/sh\nexit 1\n")
        browser.chmod(0o755)
    sets = [*PROMPTED, "eval.browser_share=0.7", f"web.browser={browser}"]
    with caplog.at_level(logging.WARNING, "dynaweb"):
        dynaweb.run("sft", overrides=sets, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["browser_sample"] == ""
    assert any("no episode was played again in Chromium" in message for message in caplog.messages)
