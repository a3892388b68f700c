"""Plans for machines by their names: public figures, what does not fit, and what would make it fit."""

from __future__ import annotations

import json
import re

import pytest
from core_kit import Cli

import dynaweb
from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.estimate import estimate
from dynaweb.estimate.machine import ACCELERATORS, GIB, named, published
from dynaweb.estimate.placement import generating_gpus
from dynaweb.estimate.remedies import fitting, remedies
from dynaweb.estimate.shapes import PUBLISHED, shape_of

ONE = ("Qwen/Qwen2.5-1.5B-Instruct", "one-gpu")


@pytest.mark.parametrize(
    ("name", "devices", "memory", "flops"),
    [
        ("8xh100", 8, 80, 989e12),
        ("1xa100", 1, 80, 312e12),
        ("2xh200", 2, 141, 989e12),
        ("h100", 1, 80, 989e12),
        ("2xA100-40GB", 2, 40, 312e12),
        ("4xa100_40gb", 4, 40, 312e12),
        (" L4 ", 1, 24, 121e12),
        ("2xrtx4090", 2, 24, 165e12),
    ],
)
def test_gpus_by_name_and_number(name: str, devices: int, memory: int, flops: float) -> None:
    machine = named(name)
    assert (machine.devices, machine.memory, machine.flops) == (devices, memory * GIB, flops)
    assert machine.bandwidth > 0 and machine.host_memory >= 48 * GIB and not machine.is_cpu


def test_every_figure_has_a_source_and_a_laptop_is_a_cpu() -> None:
    assert all(kind.source and kind.memory and kind.tflops and kind.bandwidth for kind in ACCELERATORS.values())
    assert named("laptop").is_cpu and named("Laptop").devices == 1


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 0),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 0),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0),
        ("Tesla T4", 0),
    ],
)
def test_a_gpu_has_the_speed_of_its_own_kind(name: str, tflops: float) -> None:
    assert published(name) == tflops * 1e12


def test_a_gpu_is_as_fast_by_its_name_here_as_by_the_name_of_a_plan() -> None:
    assert {kind.title: published(kind.title) for kind in ACCELERATORS.values()} == {
        kind.title: kind.tflops * 1e12 for kind in ACCELERATORS.values()
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h1000", "did you mean 'h100'"),
        ("8xfoo", "is no machine that is known here; valid: "),
        ("8x", "is no machine"),
        ("x8h100", "is no machine"),
        ("0xh100", "hosts have 1 to 8 of NVIDIA H100"),
        ("16xh100", "hosts have 1 to 8"),
        ("4xrtx4090", "hosts have 1 to 2"),
        ("2xlaptop", "is no machine"),
        ("", "is no machine"),
    ],
)
def test_other_names_are_refused_with_those_that_are_known(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named(name)


def test_time_grows_as_machines_get_slower_and_fewer() -> None:
    recipe = resolve("one-gpu")
    plans = [estimate(recipe, named(name), ranks=ranks) for name, ranks in (("8xh100", 8), ("h100", 1), ("a100", 1))]
    seconds = [plan.seconds for plan in plans if plan is not None and plan.seconds is not None]
    assert len(seconds) == 3 and seconds == sorted(seconds)
    wider = estimate(resolve("one-gpu", overrides={"web.contexts": 4}), named("h100"))
    assert wider is not None and wider.seconds is not None and wider.seconds > seconds[1], "fewer episodes a step"


@pytest.mark.parametrize("machine", ["1xa100", "8xa100-40gb", "2xl4", "laptop"])
@pytest.mark.parametrize("recipe", ["paper-8xh100", "one-gpu"])
def test_every_way_out_fits_as_it_says(recipe: str, machine: str) -> None:
    plan, place = resolve(recipe), named(machine)
    for settings, ranks in fitting(plan, place, place.devices):
        changed = estimate(resolve(plan, overrides=settings), place, ranks=ranks)
        assert changed is not None and changed.problems() == [], settings
    ways = remedies(plan, place, place.devices)
    assert ways and all("--set" in way or re.match(r"\dx", way) for way in ways)
    larger = ways[-1].split(" with ")[0]
    fits = estimate(plan, named(larger), ranks=named(larger).devices - generating_gpus(plan))
    assert fits is not None and fits.problems() == []


def test_models_by_name_have_the_published_numbers_of_weights() -> None:
    counts = {
        "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
        "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
        "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    }
    assert counts.keys() <= PUBLISHED.keys()
    assert {name: shape.parameters for name in counts if (shape := shape_of(name))} == counts


def test_the_command_line_plans_for_a_machine_that_is_not_here(cli: Cli) -> None:
    done = cli("run", "one-gpu", "--dry-run", "--on", "8xh100", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["estimate"]
    assert plan["ranks"] == 8 and plan["machine"]["device"] == "NVIDIA H100" and plan["seconds"] > 0
    # A package that is not installed here is said, and is no reason to refuse.
    theirs = ("env.task_settings.train=t.json", "data.demos=d.jsonl.gz", "wm.server.base_url=http://far:1/v1")
    mine = [word for name in theirs for word in ("--set", name)]
    done = cli("run", "paper-8xh100", "--dry-run", "--on", "8xh100", *mine)
    assert "Not installed here, and needed there:" in done.stdout
    assert re.search(r"time of model work, roughly, at most: \d+(\.\d)? (minutes|hours)", done.stdout)
    done = cli("run", "paper-8xh100", "--dry-run", "--on", "2xa100-40gb", *mine)
    assert done.returncode == 2
    assert re.search(r"does not fit 2 x NVIDIA A100, 40\.0 GiB each.* It would fit with: .*\dx\w+", done.stderr)
    done = cli("run", "--on", "h100")
    assert done.returncode == 2 and "give it with --dry-run" in done.stderr


def test_python_plans_likewise() -> None:
    plan = dynaweb.estimate_run(resolve("one-gpu"), on="h200")
    assert plan is not None and plan.machine == named("h200") and plan.ranks == 1
    with pytest.raises(ConfigError, match="It would fit with: "):
        dynaweb.estimate_run(resolve("one-gpu"), on="l4")
