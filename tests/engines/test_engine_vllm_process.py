"""vLLM's process: started once for all models of a run, ended with the run however that ends, stdout left alone.

vLLM itself is played by `tests/kits/fake_vllm`; scripts/check_vllm.py does the same with the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import engine_kit as kit
import pytest
import torch
from stage_kit import run

from dynaweb import resolve
from dynaweb.engines.local.sampling import unwritten
from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm import host, worker
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.engines.vllm.host import Host
from dynaweb.engines.vllm.probe import model_logprobs
from dynaweb.engines.vllm.process import memory_folder
from dynaweb.engines.vllm.shared import SharedVllm
from dynaweb.errors import EngineError
from dynaweb.observers import read_metrics
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.pipeline.models import Models
from dynaweb.protocols import EngineContext, GenerateRequest
from dynaweb.serve.environment import ServedEnvironment
from dynaweb.trainer.models import resolve as folder_of
from dynaweb.types import Prompt

FAKE = Path(__file__).parents[1] / "kits" / "fake_vllm"
PROMPTS = [Prompt((5, 6, number)) for number in range(7, 11)]


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each start of the stand-in, and the stand-in where processes find it."""
    log = tmp_path / "starts"
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_VLLM_LOG", str(log))
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    return log


def pids(log: Path) -> list[int]:
    """The processes of all starts."""
    return [int(word) for word in log.read_text().split()]


def folders() -> set[Path]:
    """The folders in memory that belong to a vLLM."""
    return set(Path(memory_folder() or tempfile.gettempdir()).glob("dynaweb-vllm-*"))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what: Any, seconds: float) -> float:
    """Wait until something is so; how long that took."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, "it took too long"
        time.sleep(0.05)
    return time.monotonic() - started


def engine(model: Any, services: Any, rank: int = 0, roles: int = 1, **settings: Any) -> VllmEngine:
    """An engine on a model, of a run whose adapters have a rank."""
    weights = cast("Any", LoadedModel(model, cast("Any", None), cast("Any", None)))
    context = EngineContext(weights=weights, batching=Lockstep(), services=services, roles=roles, adapter_rank=rank)
    return VllmEngine(VllmConfig(**settings), context)


async def apart(one: VllmEngine) -> float:
    """See `engine_kit.apart`."""
    return await kit.apart(one, PROMPTS)


def test_one_vllm_serves_all_models_of_a_run(starts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    services: dict[str, Any] = {}

    async def first_stage() -> None:
        policy, world_model = engine(kit.llama(1), services), engine(kit.llama(2), services)
        assert max(await asyncio.gather(apart(policy), apart(world_model), apart(policy))) < 1e-4
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.1)
        policy.weights_changed()
        assert max(await asyncio.gather(apart(policy), apart(world_model))) < 1e-4
        assert await policy.choice_logprobs(PROMPTS[0], (3, 4)) == pytest.approx(
            [model_logprobs(policy.model, [(*PROMPTS[0].ids, token)])[0][-1] for token in (3, 4)], abs=1e-4
        )
        assert policy.mismatch["engine.starts"] == 1.0
        assert policy.stats.starts + world_model.stats.starts == 1
        await policy.close()
        await world_model.close()

    async def second_stage() -> None:
        judge = engine(kit.llama(3), services)
        assert await apart(judge) < 1e-4
        assert judge.stats.starts == 0
        await judge.close()
        await next(iter(services.values())).close()

    asyncio.run(first_stage())
    asyncio.run(second_stage())  # in another event loop
    assert len(services) == 1 and len(starts.read_text().splitlines()) == 1
    wait_for(lambda: not any(map(alive, pids(starts))), 5)
    out, err = capfd.readouterr()
    assert out == "" and "INFO of the stand-in on stdout" in err and "INFO of a library in C on stdout" in err


async def test_a_start_ahead_leaves_the_weights_to_the_first_request(
    starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    one = engine(kit.llama(1), None)
    await one.start()
    assert one.stats.starts == 1 == len(starts.read_text().splitlines()) and one.vllm.pushes == 0
    assert await apart(one) < 1e-4
    assert one.stats.starts == one.vllm.pushes == 1
    await one.close()


@pytest.mark.parametrize(
    ("named", "compiler", "used"),
    [
        ("", "", "home/.triton/cache"),
        ("mine", "compiler", "mine"),
        ("compiler/triton/0", "compiler", "home/.triton/cache"),
    ],
    ids=["nobody", "the user", "the trainer's compiler"],
)
async def test_kernels_go_where_the_user_says_or_to_tritons_own_folder(
    named: str, compiler: str, used: str, starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # of the trainer alone
    for name, value in (("TRITON_CACHE_DIR", named), ("TORCHINDUCTOR_CACHE_DIR", compiler)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, str(tmp_path / value))
    one = engine(kit.llama(1), None)
    await one.start()
    environment = Path(f"/proc/{pids(starts)[0]}/environ").read_bytes().decode().split("\0")
    assert f"TRITON_CACHE_DIR={tmp_path / used}" in environment
    assert not any(line.startswith("TORCH_COMPILE_DISABLE") for line in environment)
    await one.close()


@pytest.mark.parametrize("ever", [True, False])
async def test_cached_prefixes_are_forgotten_once_no_request_holds_them(
    ever: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, True] if ever else [False] * 1000)

    async def reset() -> bool:
        return next(answers)

    monkeypatch.setattr(host, "DROP_WAIT", 30.0 if ever else 0.05)
    called = Host(cast("Any", None), tmp_path)
    called._engine = SimpleNamespace(
        reset_prefix_cache=reset,
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=False)),
    )
    if ever:
        await called.drop_prefixes()
        assert next(answers, None) is None
    else:
        with pytest.raises(RuntimeError, match="does not forget cached prefixes"):
            await called.drop_prefixes()


async def test_a_model_lies_where_it_lay_before(starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM finds what it compiled for a model by the model's folder: one for each role and configuration."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "kept"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    vllm = [
        SharedVllm(config, {}, name=name) for name, config in (("wm", {"a": 1}), ("wm", {"a": 1}), ("policy", {"a": 1}))
    ]
    first, again, other = (one._model(tmp_path)["place"] for one in vllm)
    assert first == again != other and Path(first).parent == tmp_path / "kept" / "dynaweb"
    assert SharedVllm({"a": 2}, {}, name="wm")._model(tmp_path)["place"] not in (first, other)
    called = Host(cast("Any", None), tmp_path)
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda arguments: arguments)
    await called.start({"a": 1}, {"worker_extension_cls": "x"}, place=first)
    assert called._engine.model == first and json.loads((Path(first) / "config.json").read_text()) == {"a": 1}


def test_a_start_compiles_what_requests_of_a_run_ask_of_the_sampler(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own choice of settings is every setting there is, of which each costs a kernel."""
    from vllm import SamplingParams

    monkeypatch.setattr(SamplingParams, "for_sampler_warmup", SamplingParams.for_sampler_warmup)
    assert SamplingParams.for_sampler_warmup().top_p < 1
    worker._warm_what_is_asked()
    warmed = SamplingParams.for_sampler_warmup()
    assert warmed.top_p == 1 and warmed.seed == warmed.logprobs == warmed.prompt_logprobs == 0


@pytest.mark.parametrize("holes", [(), (5,), tuple(range(8, kit.VOCABULARY))])
async def test_ids_without_text_are_never_drawn(starts: Path, holes: tuple[int, ...]) -> None:
    """Those that the engine in this process does not draw either, greedy or not; the others as probable as they are."""
    written = {str(number): number for number in range(kit.VOCABULARY) if number not in holes}
    tokenizer = SimpleNamespace(get_vocab=lambda: written)
    assert unwritten(tokenizer, kit.VOCABULARY) == holes
    weights = cast("Any", LoadedModel(kit.llama(1), cast("Any", tokenizer), cast("Any", None)))
    one = VllmEngine(VllmConfig(), EngineContext(weights=weights, batching=Lockstep()))
    kinds = [(seed, temperature) for seed in range(3) for temperature in (0.0, 3.0)]
    requests = [GenerateRequest(PROMPTS[0], 12, temperature, 1.0, seed) for seed, temperature in kinds]
    done = await asyncio.gather(*map(one.generate, requests))
    assert not {token for completion in done for token in completion.token_ids} & {*holes}
    assert all(-50 < logprob <= 0 for completion in done for logprob in completion.logprobs)
    await one.close()


async def test_other_layouts_and_roles_that_do_not_share_have_a_vllm_of_their_own(starts: Path) -> None:
    services: dict[str, Any] = {}
    engines = [
        engine(kit.llama(1), services),
        engine(kit.llama(1, layers=2), services),
        engine(kit.llama(1), services, eager=True),
        engine(kit.llama(1), services, share=False, roles=3),
        engine(kit.llama(2), services, share=False, roles=3),
    ]
    assert len({id(one.vllm) for one in engines}) == 4 == len(services)
    assert engines[3].vllm is engines[4].vllm, "of one role"
    alone = engine(kit.llama(1), None)
    assert await apart(alone) < 1e-4
    await alone.close()
    wait_for(lambda: not any(map(alive, pids(starts))), 5)


async def test_adapters_go_alone_while_their_base_is_there(starts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bases: list[VllmEngine] = []
    push_base = VllmEngine._push_base

    async def counted(self: VllmEngine, vllm: Any) -> None:
        bases.append(self)
        await push_base(self, vllm)

    monkeypatch.setattr(VllmEngine, "_push_base", counted)
    services: dict[str, Any] = {}
    adapted = with_adapters(cast("Any", LoadedModel(kit.llama(1), cast("Any", None), cast("Any", None))), 4, seed=1)
    policy = engine(adapted.model, services, rank=4)
    world_model = engine(kit.llama(2), services, rank=4)

    def learn() -> None:
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if ".lora_" in name:
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
        policy.weights_changed()

    for _ in range(2):
        learn()
        assert await apart(policy) < 1e-4
    assert bases == [policy]
    assert await apart(world_model) < 1e-4
    learn()
    assert max(await asyncio.gather(apart(policy), apart(world_model))) < 1e-4
    assert bases == [policy, world_model, policy, world_model]
    assert len(starts.read_text().splitlines()) == 1
    await policy.vllm.close()


@pytest.mark.parametrize("level", [1, 2])
async def test_weights_are_there_again_after_sleep(level: int, starts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmEngine, "_sleep_level", lambda self: level)
    services: dict[str, Any] = {}
    policy, world_model = engine(kit.llama(1), services), engine(kit.llama(2), services)
    await policy.rest()  # before there is anything to rest
    for _ in range(2):
        assert max(await asyncio.gather(apart(policy), apart(world_model))) < 1e-4
        await policy.rest()
        await world_model.rest()
        with torch.no_grad():
            policy.model.model.norm.weight.mul_(1.1)
        policy.weights_changed()
    for one in (policy, world_model):
        await one.close()
    judge = engine(kit.llama(3), services)
    assert await apart(judge) < 1e-4
    assert len(starts.read_text().splitlines()) == 1
    await judge.vllm.close()


async def test_a_wrong_transfer_is_caught_whoever_asks(starts: Path) -> None:
    one = engine(kit.llama(1), None)
    await one.ready()
    with torch.no_grad():
        one.model.model.layers[1].mlp.up_proj.weight.mul_(1.3)  # and nobody says so
    for _ in range(2):
        with pytest.raises(EngineError, match="does not have the trainer's weights"):
            await one.recheck()
    one.weights_changed()
    assert await apart(one) < 1e-4
    os.kill(pids(starts)[0], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"vLLM's process ended \(exit code -9\)"):
        await apart(one)
    await one.close()
    wait_for(lambda: not any(map(alive, pids(starts))), 5)


async def test_a_start_that_fails_says_why_and_is_not_tried_by_everybody(
    starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM_START", "fail")
    one = engine(kit.llama(1), None)
    requests = [one.generate(GenerateRequest(prompt, 5)) for prompt in PROMPTS]
    for error in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(error, EngineError)
        assert "vLLM did not start" in str(error) and "the stand-in was told to fail" in str(error)
    assert len(starts.read_text().splitlines()) == 1
    wrong = engine(kit.llama(1), None, extra={"max_nun_seqs": 3})
    with pytest.raises(EngineError, match="no engine argument 'max_nun_seqs'"):
        await wrong.ready()
    monkeypatch.setenv("FAKE_VLLM_OLD", "1")
    old = engine(kit.llama(1), None)
    with pytest.raises(EngineError) as refused:
        await old.ready()
    assert str(refused.value).splitlines() == [
        "vLLM did not start: RuntimeError: vLLM 0.0 has no weight transfer for RL; install vllm>=0.24"
    ]
    await asyncio.gather(one.close(), wrong.close(), old.close())


RUN = """
import asyncio
from dynaweb.cli.process import prepare
from dynaweb.engines.vllm.shared import SharedVllm
from dynaweb.pipeline.session import run_async

class Tenant:
    version = 1
    class stats: starts = 0
    async def push(self, vllm, *, base): print("running", flush=True)
    async def check(self, vllm): pass

async def work():
    vllm = SharedVllm({}, {"worker_extension_cls": "x"})
    try:
        async with vllm.turn(Tenant()):
            await asyncio.sleep(600)
    finally:
        await vllm.close()

prepare()
run_async(work())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("start", ["600", "0"])
def test_a_run_that_ends_leaves_no_process(number: signal.Signals, start: str, starts: Path) -> None:
    """While vLLM starts, and afterwards; in order, and by force."""
    environment = {**os.environ, "FAKE_VLLM_START": start}
    before = folders()
    process = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    wait_for(starts.exists, 60)
    if start == "0":
        assert process.stdout.readline() == "running\n"
    wait_for(lambda: len(pids(starts)) == 2, 5)
    own = folders() - before  # others may come and go: those of a vLLM of somebody else
    assert own
    process.send_signal(number)
    assert process.wait(15) != 0
    wait_for(lambda: not any(map(alive, pids(starts))), 10)
    assert "INFO" not in process.stdout.read()
    process.stdout.close()
    wait_for(lambda: not own & folders(), 5)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "vllms"), [("auto", 1), ("false", 3)])
def test_a_whole_run_starts_vllm_once(
    share: str, vllms: int, starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[tuple[int, int]] = []
    start = Models.start

    async def counted(self: Models, **more: Any) -> None:
        before = len(starts.read_text().splitlines()) if starts.exists() else 0
        await start(self, **more)
        ahead.append((before, len(starts.read_text().splitlines())))

    monkeypatch.setattr(Models, "start", counted)
    roles = ("policy", "wm", "reward")
    sets = [f"{role}.engine.{each}" for role in roles for each in ("name=vllm", f"share={share}")]
    small = ["explore.episodes=4", "rl.updates=2", "rl.n=2", "rl.tasks=1", "dream.horizon=2", "eval.episodes=2"]
    short = ["policy.max_new_tokens=24", "wm.max_new_tokens=8", "eval.steps=1", "explore.steps=2", "data.demos=2"]
    run(tmp_path / "run", *sets, *small, *short, "controls.sft_steps=[]")
    assert len(starts.read_text().splitlines()) == vllms
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sum(row["metrics"].get("engine_starts", 0) for row in rows if row["event"] == "stage") == vllms
    updates = [row["metrics"] for row in rows if row["event"] == "update" and row["stage"] == "rl"]
    assert [update["engine.starts"] for update in updates] == [1.0] * 2
    assert ahead == [(0, vllms), (vllms, vllms)], "all of them before exploration, and they were kept"
    assert not any(map(alive, pids(starts)))


async def test_a_served_dream_starts_world_model_and_judge_at_once(starts: Path, tmp_path: Path) -> None:
    sets = [f"{role}.engine.{each}" for role in ("wm", "reward") for each in ("name=vllm", "share=false")]
    recipe = resolve("smoke", env="dream", overrides=["env.task_settings.driver=static", *sets])
    served = ServedEnvironment(recipe, world_model=Path(folder_of("tiny")))
    (task,) = served.tasks("", 1)
    for seed in range(2):
        there = served.environment()
        await there.reset(task, seed)
        await there.close()
    assert len(starts.read_text().splitlines()) == 2, "before anything was asked, and once"
    await served.close()
    assert not any(map(alive, pids(starts)))


@pytest.mark.parametrize("settings", [{}, {"compile": False}, {"eager": True}])
async def test_every_way_to_record_graphs_starts(settings: dict[str, Any], starts: Path) -> None:
    one = engine(kit.llama(1), None, **settings)
    await one.start()
    assert len(starts.read_text().splitlines()) == 1
    await one.close()
