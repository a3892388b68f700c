"""Where a dry run says that the parts of a run are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_kit import Cli

from dynaweb.config import resolve
from dynaweb.estimate import estimate
from dynaweb.estimate.machine import GIB, Machine, named
from dynaweb.estimate.placement import placement

CPU = Machine("CPU of 2 cores", 1, 16 * GIB, 16 * GIB, 1e11)
VLLM = ("policy.engine.name=vllm", "wm.engine.name=vllm", "reward.engine.name=vllm")


def where(*sets: str, recipe: str = "one-gpu", on: str = "", ranks: int = 1) -> dict[str, tuple[str, str]]:
    machine = named(on) if on else CPU
    return {part.name: (part.where, part.how) for part in placement(resolve(recipe, overrides=sets), machine, ranks)}


def test_one_machine_without_a_gpu_does_everything() -> None:
    parts = where(recipe="dynaweb")
    assert {name for name, (place, _) in parts.items() if place == "this machine's CPU"} == parts.keys()
    assert parts["trainer"][1] == "torch, 1 process"


def test_colocated_one_gpu_trains_and_generates_in_turn() -> None:
    parts = where(*VLLM, on="h100")
    assert {name: place for name, (place, _) in parts.items()} == {
        **dict.fromkeys(("trainer", "policy", "world model", "judge"), "GPU 0"),
        "browsers": "this machine's CPU",
    }
    assert "asleep while the trainer works" in parts["policy"][1]
    assert "never asleep" in where(*VLLM, "policy.engine.sleep=false", on="h100")["policy"][1]


def test_split_the_first_gpus_train_and_the_last_generate() -> None:
    sets = (*VLLM, "policy.engine.replicas=2", "policy.engine.tensor_parallel=2")
    parts = where(*sets, on="8xh100", ranks=3)
    assert parts["trainer"][0] == "GPUs 0-2" and parts["policy"][0] == "GPUs 4-7"
    assert parts["nothing"] == ("GPU 3", "idle: raise --nproc, or replicas")
    assert parts["world model"][0] == "GPU 0" and "beside rank 0" in parts["world model"][1]
    assert "nothing" not in where(*sets, on="8xh100", ranks=4)


def test_elsewhere_parts_are_at_their_addresses_and_no_key_is_told() -> None:
    server = ("wm.name=frozen-llm", "wm.server.model=m", "wm.server.base_url=http://user:hunter22@far:1/v1")
    parts = where(*VLLM, *server, 'policy.engine.servers=["http://a:1","http://b:2"]', "web.endpoint=http://c:3")
    assert parts["policy"][0] == "http://a:1, http://b:2"
    assert "far:1" in parts["world model"][0] and "hunter22" not in parts["world model"][0]
    assert parts["browsers"][0] == "http://c:3"


@pytest.mark.parametrize(
    ("sets", "name", "words"),
    [
        (("reward.name=checker", "env.name=sites"), "judge", "checker, without a model"),
        (("reward.name=orm",), "judge", "trainer's own weights"),
        (("reward.model=policy",), "judge (the policy)", "trainer's own weights"),
        (("reward.name=llm-judge", "reward.server.model=m"), "judge", "m behind a server"),
        (
            ("reward.name=weighted", "reward.judges.self-assess.weight=1", "reward.judges.orm.weight=1"),
            "judge",
            "weighted: ",
        ),
    ],
)
def test_judges_are_where_their_models_are(sets: tuple[str, ...], name: str, words: str) -> None:
    assert words in where(*sets)[name][1]


def test_replicas_and_trainers_do_not_share_gpus() -> None:
    recipe = resolve("one-gpu", overrides=(*VLLM, "policy.engine.replicas=2"))
    plan = estimate(recipe, named("2xh100"), ranks=1)
    assert plan is not None
    assert any("1 processes want a GPU each and replicas of vLLM 2 more, and there are 2" in x for x in plan.problems())
    fits = estimate(recipe, named("4xh100"), ranks=2)
    assert fits is not None and not fits.problems()


def test_servers_of_a_cluster_take_nothing_of_the_trainers_devices() -> None:
    sets = (*VLLM, "cluster.address=auto")
    beside, apart = (
        estimate(resolve("one-gpu", overrides=(*sets, f"cluster.servers={n}")), named("h100")) for n in (0, 2)
    )
    assert beside is not None and "vLLM" in beside.memory["rl"]
    assert apart is not None and "vLLM" not in apart.memory["rl"]


def test_the_papers_run_keeps_all_eight_gpus_busy(cli: Cli) -> None:
    parts: dict[str, Any] = where(recipe="paper-8xh100", on="8xh100", ranks=4)
    assert parts["trainer"][0] == "GPUs 0-3" and parts["policy"][0] == "GPUs 4-7" and "nothing" not in parts
    done = cli("run", "paper-8xh100", "--dry-run", "--on", "8xh100", "--json")
    assert done.returncode == 2, "it leaves tasks, demonstrations and an address to its user"
    plan = json.loads(done.stdout)
    assert plan["estimate"]["ranks"] == 4 and plan["asynchronous"]
    assert [part["where"] for part in plan["estimate"]["layout"]][:2] == ["GPUs 0-3", "GPUs 4-7"]
    assert "wm.server.base_url" in done.stderr and "does not fit" not in done.stderr
    assert "Layout:" in cli("run", "--dry-run").stdout
