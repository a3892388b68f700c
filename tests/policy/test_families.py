"""docs/models.md: a row for each family of benchmarks/families.py, none of them wrong, and checks that see what is.

The script itself takes every family through a whole run: part of them in .ci/run, all in scripts/nightly_engines.sh.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chat_families import FAMILIES
from folders import ROOT

from dynaweb.types import Action, Observation, Prompt, Step, Task, Trajectory


def _script() -> ModuleType:
    spec = spec_from_file_location("benchmark_families", ROOT / "benchmarks" / "families.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = _script()
QWEN = next(one for one in script.VARIANTS if one.name == "qwen-3 qwen3")


def test_the_page_has_every_family_and_none_is_wrong() -> None:
    rows = {verdict.name: verdict for verdict in script.documented(ROOT / "docs" / "models.md")}
    assert list(rows) == [variant.name for variant in script.VARIANTS]
    assert {variant.family for variant in script.VARIANTS} == {family.name for family in FAMILIES}
    assert {name: verdict.wrong for name, verdict in rows.items() if verdict.wrong} == {}
    assert all(verdict.all_weights == "passes" for verdict in rows.values())
    assert all(verdict.lora == "passes" or verdict.lora.startswith("refused: ") for verdict in rows.values())


GO_BACK = Action("go_back")


def episode(*replies: tuple[int, ...], action: Action | None = GO_BACK) -> Trajectory:
    page = Observation("http://shop.localhost/", ())
    steps = [
        Step(page, action, prompt=Prompt((1,)), response_ids=ids, logprobs=(-1.0,) * len(ids), policy_version=0)
        for ids in replies
    ]
    return Trajectory("t", Task("t", "Go back.", "http://shop.localhost/"), tuple(steps), page, "dream", "max-steps")


def test_ends_of_replies_are_checked() -> None:
    tokenizer = script.family_of(QWEN).tokenizer()
    end, other = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])

    def wrong(*played: Trajectory) -> list[str]:
        return list(script.ended(QWEN, played))

    assert wrong(episode((7, 8, end), (7, 8))) == []
    assert wrong(episode((7, end, 8), (7, end))) == ["a reply went on behind its end"]
    assert wrong(episode((7, end), (len(tokenizer), 7))) == ["an id without text was sampled"]
    assert wrong(episode((7, other))) == ["none of 1 replies ended with '<|im_end|>'"]
    assert wrong(episode((7, end), action=None)) == ["none of 1 replies holds an action"]
    assert wrong() == ["the policy sampled nothing"]


SOUND = {"loss": 0.5, "grad_norm": 1.0, "updated": 1.0}
STAGES: dict[str, dict[str, Any]] = {"sft": SOUND, "world-model": SOUND, "rl": {**SOUND, "dead_groups": 0.5}}


@pytest.mark.parametrize(
    ("stage", "change", "problem"),
    [
        ("sft", {"loss": None}, "the loss of sft is not finite"),
        ("rl", {"updated": 0.0}, "an update of rl was skipped"),
        ("world-model", {"grad_norm": 0.0}, "no gradient in world-model"),
        ("rl", {"dead_groups": 1.0}, "no live group"),
        ("sft", None, "the loss of sft is not finite"),
    ],
)
def test_updates_of_a_run_are_checked(
    stage: str, change: dict[str, Any] | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ended", lambda *seen: iter(()))
    costs = {"event": "stage", "name": "sft", "metrics": {"prompts_cut": 3.0}}

    def wrong(stages: dict[str, dict[str, Any]]) -> list[str]:
        rows = [{"event": "update", "stage": name, "metrics": metrics} for name, metrics in stages.items()]
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, costs]))
        return list(script.faults(QWEN, tmp_path))

    assert wrong(STAGES) == []
    others = {name: metrics for name, metrics in STAGES.items() if name != stage}
    assert problem in wrong(others if change is None else {**others, stage: {**STAGES[stage], **change}})


def test_a_page_keeps_what_was_not_measured_again(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    other = "<!-- measured: others.py -->\nkept\n<!-- end -->\nafter\n"
    page.write_text(f"before\n<!-- measured: benchmarks/families.py -->\n<!-- end -->\n{other}")
    first, second = (replace(script.described(one), all_weights="passes") for one in script.VARIANTS[:2])
    script.write(page, [first])
    script.write(page, [second])
    rows = script.documented(page)
    assert [row.name for row in rows] == [variant.name for variant in script.VARIANTS]
    assert rows[:2] == [first, second] and rows[2] == script.described(script.VARIANTS[2])
    assert page.read_text().startswith("before\n") and page.read_text().endswith(f"-->\n{other}")


@pytest.mark.parametrize(
    ("silent", "count", "value", "fine"),
    [(0, 4, 0.25, True), (1, 3, 0.25, False), (0, 4, 0.0, False), (0, 4, 1.0, False), (0, 0, None, False)],
)
def test_scores_of_the_judge_are_checked(
    silent: int, count: int, value: float | None, fine: bool, tmp_path: Path
) -> None:
    judge = {"all": {"silent": silent}, "quality": {"brier": {"n": count, "value": value}}}
    (tmp_path / "judges.json").write_text(json.dumps({"episodes": 4, "judges": [judge]}))
    assert (list(script.judged(tmp_path)) == []) == fine


def test_what_went_wrong_is_no_refusal() -> None:
    verdict = script.Verdict("x", "dense", "yes", "-", "tied", "passes", "refused: no")
    assert verdict.wrong == []
    assert replace(verdict, lora="wrong: no live group").wrong == ["lora"]
    assert replace(verdict, all_weights="fails (1): x").wrong == ["all_weights"]
