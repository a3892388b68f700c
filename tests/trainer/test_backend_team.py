"""Ranks that do what rank 0 says, in real processes: the same results as one process, and failures with their words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import engine_kit as kit
import pytest
import team_kit
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from warm_kit import exit_codes, start

from dynaweb.cli import ranks
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.protocols import Completion, GenerateRequest
from dynaweb.trainer.distributed.team import split
from dynaweb.trainer.distributed.team_engine import TeamEngine
from dynaweb.types import Prompt

SIZE = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, port = tmp_path_factory.mktemp("team"), team_kit.free_port()
    ranks = [start(team_kit.rank, i, SIZE, str(folder), port) for i in range(SIZE)]
    assert exit_codes(ranks) == [0] * SIZE
    result: dict[str, Any] = torch.load(Path(folder) / "found.pt", weights_only=False)
    return result


def test_every_rank_has_the_objects_and_does_the_calls(found: dict[str, Any]) -> None:
    assert found["counted"] == [[1, 2], [3, 6]]


def test_orders_of_several_threads_meet_one_after_the_other(found: dict[str, Any]) -> None:
    """A trainer in a thread of its own, and a judge that asks meanwhile."""
    assert found["threads"] == [[3 + number, 6 + 2 * number] for number in range(1, 21)]


def test_generation_is_that_of_one_process(found: dict[str, Any]) -> None:
    engine = TransformersEngine(kit.llama(1), Lockstep())
    wanted = engine.generate_batch(team_kit.requests())
    same_completions(found["completions"], wanted)
    choices = engine.choice_batch([(Prompt((1, 2, 3)), (4, 5)), (Prompt((1, 2)), (4,)), (Prompt((1, 2, 3)), (4, 5))])
    for mine, theirs in zip(found["choices"], choices, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def same_completions(found: Sequence[Completion], wanted: Sequence[Completion], *, within: float = 1e-4) -> None:
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=within)


@pytest.mark.parametrize("way", ["adapted", "stopped_early"])
def test_generation_follows_adapters_and_weights_that_are_put_back(found: dict[str, Any], way: str) -> None:
    said = getattr(team_kit, way)(None)["said"]
    for mine, theirs in zip(found[way]["said"], said, strict=True):
        same_completions(mine, theirs, within=2e-3)  # training on other shares gives slightly other weights


class Recorder:
    """A team that notes the batches it is given, and says nothing."""

    def __init__(self) -> None:
        self.batches: list[list[GenerateRequest]] = []

    def make(self, *_: Any) -> None:
        """Nothing is made."""

    def call(self, _made: None, _method: str, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Note the requests."""
        self.batches.append(list(requests))
        return [Completion((), (), True) for _ in requests]


def test_the_order_of_a_batch_does_not_depend_on_who_came_first() -> None:
    recorder = Recorder()
    engine = TeamEngine(recorder, TransformersEngine(kit.llama(), Lockstep()), 0)  # type: ignore[arg-type]
    requests = [
        GenerateRequest(Prompt((1, 2)), 4, top_p=top_p / 8, stop_ids=(stop,), stop=said)
        for top_p in range(1, 5)
        for stop in range(4)
        for said in ((), ("a",), ("b",))
    ]
    engine.generate_batch(requests)
    engine.generate_batch(requests[::-1])
    assert recorder.batches[0] == recorder.batches[1]


@pytest.mark.parametrize(("way", "steps"), [("trained", 3), ("adapted", 2), ("phases", 2)])
def test_training_is_that_of_one_process(found: dict[str, Any], way: str, steps: int) -> None:
    wanted = getattr(team_kit, way)(None)
    assert found[way]["steps"] == wanted["steps"] == steps
    for mine, theirs in zip(found[way]["metrics"], wanted["metrics"], strict=True):
        for key in theirs.keys() - {"seconds"}:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key
    assert found[way]["tensors"].keys() == wanted["tensors"].keys()
    for key, tensor in wanted["tensors"].items():
        torch.testing.assert_close(found[way]["tensors"][key], tensor, rtol=1e-3, atol=2e-5, msg=key)


def test_an_error_on_all_ranks_is_the_error_itself_and_one_rank_is_named(found: dict[str, Any]) -> None:
    assert found["all"] == "too large"
    assert found["one"] == "rank 1 failed: only rank 1"
    assert found["after"] == [3, 6]


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (10, 3), (9, 3), (7, 8)])
def test_shares_are_neighbours_cover_everything_and_are_even(count: int, size: int) -> None:
    shares = [list(range(count))[part] for part in split(count, size)]
    assert [one for share in shares for one in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def _failure(rank: int, code: int, at: int, folder: Path) -> ProcessFailure:
    """What the launcher knows of a process that ended with a code, or by a signal (below 0)."""
    file = folder / f"{rank}.json"
    file.write_text(json.dumps({"message": {"extraInfo": {"timestamp": at}, "message": "it failed"}}))
    return ProcessFailure(local_rank=rank, pid=1000 + rank, exitcode=code, error_file=str(file))


@pytest.mark.parametrize(
    ("codes", "wanted", "said"),
    [
        ({0: 130, 1: -15}, 130, ""),
        ({0: 2}, 2, ""),
        ({0: -15, 1: 1}, 1, ""),
        ({0: -15, 1: -9}, 1, "rank 1 was ended by signal 9"),
        ({1: -9}, 1, "rank 1 was ended by signal 9"),
    ],
)
def test_the_exit_code_of_several_processes_is_that_of_the_run(
    codes: dict[int, int], wanted: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {rank: _failure(rank, code, 100 - rank, tmp_path) for rank, code in codes.items()}
    assert ranks._code(ChildFailedError("dynaweb", failures)) == wanted
    assert said in capsys.readouterr().err
