"""Several vLLMs as one engine: servers over HTTP and processes, weights for all of them, and what dies.

The servers are stand-ins (`vllm_server_kit`); scripts/check_vllm.py does the same with real ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import engine_kit as kit
import pytest
import team_kit
import torch
from vllm_server_kit import StandIn, serving
from warm_kit import exit_codes, start

import dynaweb
from dynaweb.config.resolving import resolve
from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm import remote, shared
from dynaweb.engines.vllm.engine import VllmEngine, own_gpus
from dynaweb.engines.vllm.nccl import _both, own_address, update_of
from dynaweb.engines.vllm.probe import model_logprobs
from dynaweb.engines.vllm.replicas import Replicas
from dynaweb.engines.vllm.serve import command
from dynaweb.engines.vllm.shared import ROOM, Layout, SharedVllm
from dynaweb.errors import ConfigError, EngineError, TrainingError
from dynaweb.observers import read_metrics
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.protocols import EngineContext, EngineStats, GenerateRequest
from dynaweb.trainer.models import load_model
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb.types import Prompt

FAKE = Path(__file__).parents[1] / "kits" / "fake_vllm"
PROMPTS = [Prompt((5, 6, number)) for number in range(7, 15)]


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    """Two servers with weights of their own."""
    with serving(kit.llama(8), kit.llama(9)) as both:
        yield both


def engine(model: Any, services: Any = None, rank: int = 0, **settings: Any) -> VllmEngine:
    """An engine on a model."""
    weights = cast("Any", LoadedModel(model, cast("Any", None), cast("Any", None)))
    context = EngineContext(weights=weights, batching=Lockstep(), services=services, adapter_rank=rank)
    return VllmEngine(VllmConfig(**settings), context)


def on(servers: list[StandIn], model: Any, **more: Any) -> VllmEngine:
    """An engine on servers."""
    return engine(model, servers=tuple(one.address for one in servers), **more)


async def apart(one: VllmEngine) -> float:
    """See `engine_kit.apart`."""
    return await kit.apart(one, PROMPTS)


def learn(one: VllmEngine) -> None:
    """Other weights of those that are trained."""
    with torch.no_grad():
        for parameter in one.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    one.weights_changed()


async def test_servers_share_requests_and_all_get_new_weights(servers: list[StandIn]) -> None:
    policy = on(servers, kit.llama(1))
    for _ in range(2):
        assert await apart(policy) < 1e-4
        learn(policy)
    assert policy.mismatch["engine.probe_mean"] < 1e-4
    probes = 2 * len(policy._probe.prompts)  # type: ignore[union-attr]
    for server in servers:
        assert server.asked.count("/inference/v1/generate") - probes == len(PROMPTS), "each had half of both rounds"
        assert server.asked.count("/pause") == server.asked.count("/reset_prefix_cache") == 2 and not server.paused
    await policy.close()


@pytest.mark.parametrize("old", [True, False])
async def test_choices_and_ids_without_text_over_http_in_the_forms_of_both_versions(old: bool) -> None:
    with serving(kit.llama(8), old=old) as servers:
        policy = on(servers, kit.llama(1))
        policy._unwritten = list(range(8, kit.VOCABULARY))
        for choices in ((3,), (3, 4), (4, 90, 3), (5, 5)):
            own = [model_logprobs(policy.model, [(*PROMPTS[0].ids, token)])[0][-1] for token in choices]
            assert await policy.choice_logprobs(PROMPTS[0], choices) == pytest.approx(own, abs=1e-4)
        done = await policy.generate(GenerateRequest(PROMPTS[0], 20, 3.0, 1.0, 1))
        assert max(done.token_ids) < 8 and all(-50 < logprob <= 0 for logprob in done.logprobs)
        stop = done.token_ids[3]
        cut = await policy.generate(GenerateRequest(PROMPTS[0], 20, 3.0, 1.0, 1, (stop,)))
        assert cut.finished and cut.token_ids == done.token_ids[: done.token_ids.index(stop) + 1]
        await policy.close()


async def test_adapters_go_to_servers_by_their_lora_calls(servers: list[StandIn]) -> None:
    adapted = with_adapters(cast("Any", LoadedModel(kit.llama(1), cast("Any", None), cast("Any", None))), 4, seed=1)
    policy = on(servers, adapted.model, rank=4)
    for _ in range(2):
        learn(policy)
        assert await apart(policy) < 1e-4
    for server in servers:
        assert server.asked.count("/pause") == 1, "the base went over once"
        assert len(server.adapters) == 1 and server.asked.count("/v1/load_lora_adapter") == 2
    await policy.close()


async def test_a_server_that_dies_hands_its_requests_to_the_others(
    servers: list[StandIn], caplog: pytest.LogCaptureFixture
) -> None:
    policy = on(servers, kit.llama(1))
    await policy.ready()
    for server in servers:
        server.slow = 0.2
    asked = asyncio.ensure_future(apart(policy))
    await asyncio.sleep(0.1)
    servers[0].kill()
    assert await asked < 1e-4
    assert f"{servers[0].address} ended and is left out, 1 of 2 replicas go on" in caplog.text.replace("lost", "ended")
    learn(policy)
    assert await apart(policy) < 1e-4
    servers[1].kill()
    with pytest.raises(EngineError, match=rf"the last of 2 replicas of vLLM ended: .*{servers[1].address}"):
        await apart(policy)
    await policy.close()


async def test_the_probe_names_the_server_that_has_other_weights(servers: list[StandIn]) -> None:
    servers[1].stubborn = True
    policy = on(servers, kit.llama(1))
    with pytest.raises(EngineError, match=rf"{servers[1].address}: .*does not have the trainer's weights"):
        await policy.ready()
    servers[1].stubborn = False
    policy.weights_changed()
    assert await apart(policy) < 1e-4
    await policy.close()


@pytest.mark.parametrize("path", ["/collective_rpc", "/get_world_size", "/resume", "/v1/models", "/version"])
async def test_a_server_without_the_calls_of_rl_is_refused_with_how_to_start_it(path: str) -> None:
    with serving(kit.llama(8)) as servers:
        servers[0].without = {path}
        policy = on(servers, kit.llama(1))
        with pytest.raises(EngineError, match=rf"vLLM did not start.*has no {path}.*dynaweb.engines.vllm.serve MODEL"):
            await policy.ready()
        await policy.close()


async def test_a_server_that_is_not_there_or_takes_less_is_refused() -> None:
    with serving(kit.llama(8, positions=64)) as servers:
        policy = on(servers, kit.llama(1))
        with pytest.raises(EngineError, match=r"takes 64 tokens, and .* 256; .* max_model_len = 64"):
            await policy.ready()
        await policy.close()
        absent = engine(kit.llama(1, positions=64), servers=(servers[0].address, "http://127.0.0.1:1/v1/"))
        with pytest.raises(EngineError, match=r"the vLLM server http://127.0.0.1:1: .*cannot be reached"):
            await absent.ready()
        await absent.close()


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/version", "<!doctype html><title>A shop</title>"),
        ("/version", {"name": "a shop"}),
        ("/version", ["a shop"]),
        ("/v1/models", {"data": []}),
        ("/v1/models", {"data": [{"id": "m", "max_model_len": "long"}]}),
        ("/collective_rpc", ["a shop"]),
        ("/collective_rpc", {"results": []}),
    ],
)
async def test_an_address_that_is_no_vllm_is_refused_in_words(path: str, reply: Any) -> None:
    with serving(kit.llama(8)) as servers:
        answer = servers[0].answer
        servers[0].answer = lambda at, body: reply if at == path else answer(at, body)  # type: ignore[method-assign]
        policy = on(servers, kit.llama(1))
        with pytest.raises(EngineError, match=rf"{servers[0].address} is no vLLM server.*vllm.serve MODEL"):
            await policy.ready()
        await policy.close()


async def test_roles_share_servers_in_turn_and_leave_nothing_behind(
    servers: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "memory_folder", lambda: str(tmp_path))
    services: dict[str, Any] = {}
    settings: dict[str, Any] = {"servers": tuple(one.address for one in servers), "share": False}
    policy, world_model = engine(kit.llama(1), services, **settings), engine(kit.llama(2), services, **settings)
    assert policy.vllm is world_model.vllm
    assert max(await asyncio.gather(apart(policy), apart(world_model), apart(policy))) < 1e-4
    await policy.rest()  # they are not this process's to put to sleep
    assert await apart(policy) < 1e-4
    await policy.close()
    await world_model.close()
    await next(iter(services.values())).close()
    assert not list(tmp_path.glob("dynaweb-vllm-*"))


async def test_replicas_are_processes_with_gpus_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "starts"
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_LOG", str(log))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    policy = engine(kit.llama(1), replicas=2)
    assert await apart(policy) < 1e-4
    assert policy.vllm.transfer == "checkpoint"
    pids = [int(line.split()[0]) for line in log.read_text().splitlines()]
    seen = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in pids]
    assert sorted(word for words in seen for word in words if word.startswith("CUDA_VISIBLE_DEVICES")) == [
        "CUDA_VISIBLE_DEVICES=5",
        "CUDA_VISIBLE_DEVICES=6",
    ]
    os.kill(pids[0], signal.SIGKILL)
    learn(policy)
    assert await apart(policy) < 1e-4
    assert len(policy.vllm.live) == 1
    await policy.close()


@pytest.mark.parametrize(
    ("seen", "replicas", "each", "gpus"),
    [("0,1", 1, 1, ("1",)), ("2,3,5,7", 3, 1, ("3", "5", "7")), ("0,1,2,3,4", 2, 2, ("1,2", "3,4"))],
)
def test_replicas_take_the_last_gpus_and_leave_one_to_the_trainer(
    seen: str, replicas: int, each: int, gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert own_gpus(replicas, each) == gpus


@pytest.mark.parametrize(("seen", "trainers", "left"), [("0", "1", 0), ("0,1,2", "2", 1), ("0,1", "2", 0)])
def test_replicas_do_not_take_the_gpus_of_trainers(
    seen: str, trainers: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", trainers)
    with pytest.raises(
        ConfigError, match=f"{trainers} trainers need .* sees {len(seen.split(','))}; set replicas = {left}"
    ):
        own_gpus(left + 1, 1)


@pytest.mark.parametrize(
    ("gib", "share", "split"),
    [(139, "auto", 3), (80, "auto", 1), (139, False, 3), (139, True, 1), (24, True, 1)],
)
def test_roles_have_a_vllm_each_where_their_weights_fit(
    gib: int, share: bool | str, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one and a half billion weights, in 0.4 of the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=gib << 30))
    model = kit.llama(1)
    weights = SimpleNamespace(
        numel=lambda: 1_500_000_000, element_size=lambda: 2, dtype=torch.bfloat16, is_floating_point=lambda: True
    )
    monkeypatch.setattr(model, "parameters", lambda: iter([weights]))
    loaded = cast("Any", LoadedModel(model, cast("Any", None), cast("Any", None)))
    one = VllmEngine(VllmConfig(share=cast("Any", share)), EngineContext(weights=loaded, batching=Lockstep(), roles=3))
    arguments = one._arguments()
    assert arguments["gpu_memory_utilization"] == pytest.approx(0.4 / split)
    assert one._shares(one._layout()) is (split == 1)
    # Told how much its cache has, vLLM measures nothing, and starts beside those of the other roles.
    part, size = (gib << 30) * 0.4 / split, 3_000_000_000
    if split == 1:
        assert ROOM not in arguments
    else:
        assert size < arguments[ROOM] == int(part - size - (4 << 30))
    chosen = VllmConfig(share=cast("Any", share), extra={"gpu_memory_utilization": 0.1})
    own = VllmEngine(chosen, EngineContext(weights=loaded, batching=Lockstep(), roles=3))._arguments()
    assert own["gpu_memory_utilization"] == 0.1 and ROOM not in own
    # Many requests at once, where there is memory for them.
    assert ("max_num_seqs" in arguments) is ("max_num_batched_tokens" in arguments) is (gib >= 40)


def test_tables_reach_vllm_by_a_recipe() -> None:
    """Scalars do not say how vLLM shall capture graphs or guess tokens ahead."""
    recipe = resolve(
        "tiny",
        overrides=[
            "wm.engine.name=vllm",
            'wm.engine.extra.compilation_config.cudagraph_mode="PIECEWISE"',
            'wm.engine.extra.speculative_config={method = "ngram", num_speculative_tokens = 4}',
        ],
    )
    chosen = VllmConfig.model_validate(recipe.wm.engine.settings)
    loaded = cast("Any", LoadedModel(kit.llama(1), cast("Any", None), cast("Any", None)))
    asked = VllmEngine(chosen, EngineContext(weights=loaded, batching=Lockstep()))._arguments()
    assert asked["compilation_config"] == {"cudagraph_mode": "PIECEWISE"}
    assert asked["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4}


async def test_replicas_compile_into_folders_of_their_own() -> None:
    asked: list[str] = []

    class Member:
        async def call(self, call: str, *, place: str) -> None:
            asked.append(place)

    for count in (1, 2):
        await Replicas([cast("Any", Member()) for _ in range(count)]).start(place="model-wm")
    assert asked == ["model-wm", "model-wm-0", "model-wm-1"]


@pytest.mark.parametrize("told", [True, False])
async def test_vllms_start_side_by_side_where_none_measures_the_memory(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    go_on = asyncio.Event()

    class Slow:
        folder = Path()

        def __init__(self, members: object) -> None: ...

        async def start(self, *, config: dict[str, str], arguments: object) -> list[dict[str, str]]:
            begun.append(config["name"])
            await go_on.wait()
            return [{"version": "1"}]

        async def close(self) -> None: ...

    monkeypatch.setattr(shared, "Replicas", Slow)
    monkeypatch.setattr(Layout, "replicas", lambda self: [])
    stats = [EngineStats(), EngineStats()]
    vllms = [SharedVllm({"name": name}, {ROOM: 1 << 30} if told else {}) for name in "ab"]
    starting = [
        asyncio.create_task(vllm.start(cast("Any", SimpleNamespace(stats=one, version=1))))
        for vllm, one in zip(vllms, stats, strict=True)
    ]
    await asyncio.sleep(0.05)
    assert begun == (["a", "b"] if told else ["a"])
    go_on.set()
    await asyncio.gather(*starting)
    assert begun == ["a", "b"] and [one.starts for one in stats] == [vllm.starts for vllm in vllms] == [1, 1]
    await vllms[0].start(cast("Any", SimpleNamespace(stats=stats[0], version=1)))
    assert vllms[0].starts == stats[0].starts == 1, "it is there"


class _Replica:
    """A replica that refuses its part of a transfer, or never ends it."""

    name, dead, folder = "the replica", False, Path()

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def call(self, call: str, **arguments: Any) -> Any:
        await asyncio.sleep(self.seconds)
        raise EngineError("no")


async def test_a_transfer_ends_when_either_side_fails_and_leaves_no_one_waiting() -> None:
    replica, never = cast("Any", _Replica()), threading.Event()
    started = time.monotonic()
    with pytest.raises(EngineError, match="no"):
        await _both(never.wait, replica, "transfer")

    def fails() -> None:
        raise RuntimeError("NCCL error: unhandled")

    with pytest.raises(EngineError, match="weights did not reach the replica by nccl: RuntimeError: NCCL error"):
        await _both(fails, cast("Any", _Replica(60.0)), "transfer")
    assert time.monotonic() - started < 10
    never.set()


def test_what_a_transfer_tells_its_receiver() -> None:
    weights = [("a", torch.zeros(2, 3, dtype=torch.bfloat16)), ("b", torch.zeros(4))]
    assert update_of(weights) == {"names": ["a", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], [4]]}
    assert [own_address(one) for one in ("", "http://localhost:8000", "http://127.0.0.1:1")] == ["127.0.0.1"] * 3


def test_the_command_of_a_server() -> None:
    plain = command("model", ["--port", "1", "--host", "0.0.0.0"], gpu=False, scale_out=False)
    assert plain[:2] == ["serve", "model"] and plain[-4:] == ["--port", "1", "--host", "0.0.0.0"]
    full = command("model", [], gpu=True, scale_out=True)
    assert full[full.index("--weight-transfer-config") + 1] == '{"backend": "nccl"}' and "--enable-scale-out" in full


# Weights that change while the trainer works


def stir(model: Any) -> None:
    """Other weights, in the middle of a step of the trainer: nobody was told."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


async def test_a_detached_engine_answers_from_its_copy_until_it_takes_the_weights(servers: list[StandIn]) -> None:
    model = kit.llama(1)
    policy = on(servers, model)
    policy.weights_version = 4
    assert policy.detach() and policy.detach() and policy.model is not model
    assert await apart(policy) < 1e-4
    stir(model)
    policy.vllm.leave(policy)  # as after another role's turn: the weights are pushed again, in mid-step
    assert await apart(policy) < 1e-4
    before = [parameter.clone() for parameter in policy.model.parameters()]
    await policy.take_weights()
    assert await apart(policy) < 1e-4 and policy.weights_version == 5
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), policy.model.parameters(), strict=True))
    await policy.close()


async def test_a_request_on_its_way_ends_with_the_weights_that_it_began_with(servers: list[StandIn]) -> None:
    """And says which; later ones wait for it, and get the new ones. The stand-in refuses requests while paused."""
    model = kit.llama(1)
    policy = on(servers[:1], model)
    policy.weights_version = 0
    policy.detach()
    request = GenerateRequest(PROMPTS[0], 12, 1.0, 1.0, 3)
    old = await policy.generate(request)
    servers[0].slow = 0.3
    on_its_way = asyncio.ensure_future(policy.generate(request))
    await asyncio.sleep(0.1)
    pauses = servers[0].asked.count("/pause")
    stir(model)
    await policy.take_weights()
    later = asyncio.ensure_future(policy.generate(request))
    await asyncio.sleep(0.05)
    assert servers[0].asked.count("/pause") == pauses, "no push while it is answered"
    first, second = await asyncio.gather(on_its_way, later)
    assert (first.token_ids, first.logprobs, first.weights_version) == (old.token_ids, old.logprobs, 0)
    assert second.weights_version == 1 and second.logprobs != first.logprobs
    assert servers[0].asked.count("/pause") == pauses + 1
    servers[0].slow = 0.0
    assert await apart(policy) < 1e-4
    await policy.close()


async def test_requests_of_two_roles_go_on_while_the_trainer_works(servers: list[StandIn]) -> None:
    """They use the servers in turn, so that the policy's weights go over again and again, whole."""
    model, other = kit.llama(1), kit.llama(2)
    services: dict[str, Any] = {}
    policy, world = (on(servers, one, services=services) for one in (model, other))
    policy.weights_version = 0
    policy.detach()
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            stir(model)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        jobs = [one.generate(GenerateRequest(p, 6, 1.0, 1.0, 1)) for p in PROMPTS[:4] for one in (policy, world)]
        done = await asyncio.gather(*jobs)
    finally:
        stop.set()
        trainer.join()
    assert {one.weights_version for one in done[::2]} == {0} and {one.weights_version for one in done[1::2]} == {None}
    for service in services.values():
        await service.close()


@pytest.mark.parametrize(("level", "detaches"), [(0, True), (2, False)])
def test_an_engine_that_sleeps_while_the_trainer_works_does_not_go_on(
    level: int, detaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kit.llama(1)
    one = engine(model)
    monkeypatch.setattr(one, "_sleep_level", lambda: level)
    assert one.detach() is detaches and (one.model is model) is not detaches


@pytest.mark.parametrize("cuda", [True, False])
@pytest.mark.parametrize("settings", [{}, {"sleep": False}, {"replicas": 1}, {"servers": ("http://a:1",)}])
def test_settings_tell_beforehand_whether_an_engine_goes_on(
    cuda: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cache keys ask them: there is no engine yet."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    one = engine(kit.llama(1), **settings)
    assert one.detach() is VllmConfig(**settings).detaches is bool(settings or not cuda)


def test_an_asynchronous_run_with_a_server_plays_on_while_it_trains_and_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps carry the version that drew them; some rollouts are one update old, none is older. What plays after a
    restart are the weights that were read."""
    threads: set[str] = set()
    copies: list[torch.Tensor] = []
    step, detach = TorchTrainer.policy_step, VllmEngine.detach

    def policy_step(self: Any, *given: Any, **named: Any) -> Any:
        threads.add(threading.current_thread().name)
        if self.steps == 2 and len(copies) == 1:
            raise TrainingError("lost")
        return step(self, *given, **named)

    def detached(self: Any) -> bool:
        done = detach(self)
        copies.append(torch.cat([parameter.flatten() for parameter in self.model.parameters()]))
        return done

    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(TorchTrainer, "policy_step", policy_step)
    monkeypatch.setattr(VllmEngine, "detach", detached)
    sets = ["env.driver=static", "model.threads=1", "data.demos=4", "sft.steps=4", "sft.batch=8", "rl.updates=3"]
    sets += ["rl.tasks=2", "rl.n=2", "rl.bc_batch=4", "dream.horizon=2", "policy.max_new_tokens=6", "eval.episodes=2"]
    sets += ["eval.steps=1", "controls.sft_steps=[]", "rl.max_staleness=1", "policy.engine.name=vllm"]
    more: dict[str, Any] = {"out": tmp_path / "run", "env": "sites", "reward": "checker", "opt": "grpo"}
    with serving(load_model("tiny", "float32", "cpu")) as servers:
        sets.append(f'policy.engine.servers=["{servers[0].address}"]')
        with pytest.raises(TrainingError, match="lost"):
            dynaweb.run("dynaweb", overrides=sets, **more)
        dynaweb.run("dynaweb", overrides=sets, resume=True, **more)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl", times=False) if row["event"] == "update"]
    ages = [row["metrics"]["staleness.max"] for row in rows if row["stage"] == "rl"]
    assert ages[0] == 0 and set(ages) <= {0, 1} and len(ages) == 3
    assert threads and all(name.startswith("trainer") for name in threads)
    assert len(copies) == 2 and not torch.equal(*copies), "two updates had been made"


def test_several_ranks_train_while_servers_play_and_a_judge_asks_them_meanwhile(tmp_path: Path) -> None:
    """The judge's engine is cut into shares of all ranks, whose trainer works in a thread of its own."""
    sets = ["env.driver=static", "model.threads=1", "data.demos=4", "sft.steps=2", "sft.batch=8", "rl.updates=3"]
    sets += ["rl.tasks=2", "rl.n=2", "rl.bc_batch=4", "policy.max_new_tokens=6", "eval.episodes=2", "eval.steps=1"]
    sets += ["controls.sft_steps=[]", "rl.max_staleness=1", "policy.engine.name=vllm", "reward.evidence=false"]
    more = {"env": "sites", "reward": "self-assess", "opt": "grpo"}
    with serving(load_model("tiny", "float32", "cpu")) as servers:
        sets.append(f'policy.engine.servers=["{servers[0].address}"]')
        servers[0].slow = 0.05
        arguments = (2, team_kit.free_port(), str(tmp_path), tuple(sets), more)
        assert exit_codes([start(team_kit.run_of_ranks, rank, *arguments) for rank in range(2)]) == [0, 0]
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl", times=False) if row["event"] == "update"]
    ages = [row["metrics"]["staleness.max"] for row in rows if row["stage"] == "rl"]
    assert ages[0] == 0 and set(ages) <= {0, 1} and len(ages) == 3
