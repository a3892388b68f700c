"""The whole loop by TRL's asynchronous trainer on the dreams that `dynaweb env serve` offers, to compare with ours.

    python benchmarks/rollout.py --engine vllm --model FOLDER --dtype bfloat16 --dreams 64 --keep RUN \\
        --set rl.max_staleness=1 policy.engine.sleep=false wm.engine.sleep=false reward.engine.sleep=false
    python benchmarks/async_trl.py --model RUN/checkpoints/sft --world-model RUN/checkpoints/world-model --dreams 64

Three processes share the card. A `vllm serve` plays the policy. `dynaweb env serve dream` is the OpenEnv server; its
world model and its judge have a vLLM each. This process trains, with `trl.experimental.async_grpo.AsyncGRPOTrainer`.
Prompts are ours, token by token. A training row is one step of a dream in both loops, so `rows_per_second` compares
them: rows that were trained on, by the clock, rollouts and new weights included. Medians over `--updates` updates after
two to warm up, tokens and rows by the time of all of them; each update has a line of its own when it is done.

What had to be other than TRL has it, each by a way that TRL offers:
- Rollouts: TRL's worker calls tools by a chat template, and its worker for OpenEnv does so too. Our policy writes one
  line on a page. So the worker's loop has another `_generate_one`, as TRL's own loop for OpenEnv (`openenv_harness`).
- New weights: TRL sends them by NCCL, which wants a second GPU. Here they go as handles (vLLM's transfer `ipc`), by
  TRL's interface `WeightTransferProtocol`.
- Attention: TRL fetches FlashAttention 3 from a model hub. Without a network torch's variable-length kernel is in its
  place, which is what our trainer has too.
- Settings: no recomputed activations, groups of 8, `max_staleness` 1, micro-batches of `--micro-rows` rows.

`--stand-in` tries it out on a CPU without vLLM: a server of tests plays the policy, the environment its own model.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)
from transformers import AttentionInterface, AutoTokenizer, PrinterCallback, TrainerCallback  # noqa: TID253
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, TrainingSequence, _AsyncRolloutLoop
from trl.experimental.async_grpo.packing import TREE_ATTENTION
from trl.experimental.async_grpo.vllm_client import VLLMClient

from dynaweb.config import resolve
from dynaweb.engines.vllm.weights import handles, write_weights
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.runs import StageCache
from dynaweb.runs.processes import free_port
from dynaweb.serve.openenv import WebAction, WebClient
from dynaweb.trainer.batching import varlen
from dynaweb.trainer.models import resolve as local_folder
from dynaweb.types import Action, Task
from dynaweb.web.page.text import parse_compact

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 400.0
"""A server that does not answer by then never will."""


def recipe_of(model: str) -> Any:
    """The settings that both loops share."""
    return resolve("dynaweb", overrides={"model.path": model, "env.task_settings.driver": "static"})


class DreamLoop(_AsyncRolloutLoop):
    """TRL's loop of rollouts, each a dream of the OpenEnv server at `environment`, whose verdict is the reward."""

    _provides_rollout_reward = True

    def __init__(self, *, environment: str, model: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._environment, self._path = environment, model
        self.reward_func_names.append("verdict")

    @cached_property
    def _format(self) -> Any:
        return RunContext(recipe_of(self._path), current(), StageCache()).models.format

    async def _generate_one(
        self, prompt: Any, tool_dict: Any, tools: Any, group_id: int = 0
    ) -> tuple[list[dict[str, str]], list[int], list[TrainingSequence], int, int, float | None]:
        name = uuid.uuid4().hex
        rows, said, history = list[TrainingSequence](), list[dict[str, str]](), list[Action]()
        reward: float | None = 0.0
        async with WebClient(base_url=self._environment, message_timeout_s=600.0) as client:
            seen = (await client.reset(seed=group_id)).observation
            while not seen.done:
                page = parse_compact(seen.page)
                asked = list(self._format.policy_prompt(Task(seen.task, seen.goal, page.url), page, history).ids)
                reply, logps = await self._generate_one_turn(asked)
                mask = [0] * len(asked) + [1] * len(reply)
                rows.append(TrainingSequence([*asked, *reply], mask, [0.0] * len(asked) + list(logps), name))
                parsed = self._format.parse_reply(tuple(reply), page)
                said.append({"role": "assistant", "content": parsed.text})
                self._counters["dream/rows_total"] += 1
                self._counters["dream/policy_tokens_total"] += len(reply)
                if parsed.action is None:  # an invalid reply ends a dream (`dream.invalid_ends`), and it failed
                    break
                seen = (await client.step(WebAction(text=parsed.text.rpartition("\n")[2]))).observation
                if seen.error:
                    break
                history.append(parsed.action)
                reward = seen.reward
        self._counters["dream/episodes_total"] += 1
        return said, [token for row in rows for token in row.input_ids], rows, 0, 0, reward


class DreamWorker(AsyncRolloutWorker):
    """Rollouts in a process of their own, as TRL has them."""

    _loop_cls = DreamLoop


class Transfer:
    """TRL's `WeightTransferProtocol`: handles of tensors on the card, else a checkpoint in memory."""

    def __init__(self, address: str, dtype: torch.dtype, folder: Path) -> None:
        self._client, self._dtype, self._folder = VLLMClient(address), dtype, folder

    def init_weight_transfer(self) -> None:
        """Meet the server."""
        self._client.wait_for_server_ready()
        if torch.cuda.is_available():
            self._client.init_weight_transfer_engine({})

    def pause(self) -> None:
        """As TRL does: requests stay, and go on with the new weights."""
        self._client.pause()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """All weights, in the precision of the server."""
        weights = [(name, tensor.to(self._dtype)) for name, tensor in iterator]
        if not torch.cuda.is_available():
            folder = self._folder / uuid.uuid4().hex
            write_weights(weights, folder)
            self._rpc("dynaweb_load", str(folder))
        else:
            self._client.start_weight_update()
            self._client.update_weights(handles(weights))  # valid as long as `weights` are here
            self._client.finish_weight_update()
        self._rpc("dynaweb_renew_head")

    def resume(self) -> None:
        """Requests go on."""
        self._client.resume()

    def destroy(self) -> None:
        """Nothing is held."""

    def _rpc(self, method: str, *arguments: str) -> None:
        body = json.dumps({"method": method, "args": arguments}).encode()
        asked = urllib.request.Request(
            f"{self._client.server_url}/collective_rpc", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300):
            pass


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    tree_max_seqlen_q: int,
    tree_max_seqlen_k: int,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """TRL's attention over rows that share prefixes, without a kernel from a hub; [1, heads, tokens, width] each."""
    query, key, value = (x.transpose(1, 2)[0] for x in (query, key, value))
    if torch.is_autocast_enabled(query.device.type):
        wanted = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(wanted) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = (x.index_select(0, tree_kv_index).repeat_interleave(groups, 1) for x in (key, value))
    kernel = varlen() if query.is_cuda else None
    if kernel is not None:
        limits = (tree_cu_seqlens_q, tree_cu_seqlens_k, tree_max_seqlen_q, tree_max_seqlen_k)
        return kernel(query, key, value, *limits, scale=scaling, window_size=(-1, 0)).unsqueeze(0), None
    mixed, q_ends, k_ends = [], tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for q0, q1, k0, k1 in zip(q_ends, q_ends[1:], k_ends, k_ends[1:], strict=False):
        asks, keys, values = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=query.device).tril(k1 - k0 - q1 + q0)
        part = torch.nn.functional.scaled_dot_product_attention(asks, keys, values, attn_mask=seen, scale=scaling)
        mixed.append(part.transpose(0, 1))
    return torch.cat(mixed).unsqueeze(0), None


class Clock(TrainerCallback):
    """When each update was logged, and what was."""

    def __init__(self) -> None:
        self.updates: list[tuple[float, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """One update is done, its weights sent."""
        if logs and "batch/samples_per_step" in logs:
            self.updates.append((time.perf_counter(), dict(logs)))
            line = {"update": len(self.updates), "at": round(self.updates[-1][0], 3), **logs}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


@contextmanager
def started(command: Sequence[str], url: str, log: Path, **environment: str) -> Iterator[None]:
    """A server in a process group of its own, once it answers; its log where it does not."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            until = time.monotonic() + START_SECONDS
            while True:
                with suppress(OSError), urllib.request.urlopen(url, timeout=5):
                    break
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{' '.join(command)} does not answer; its log ends with:\n{tail(log)}")
                time.sleep(0.5)
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


def tail(log: Path) -> str:
    """The last lines of a log."""
    return log.read_bytes()[-3000:].decode(errors="replace")


@contextmanager
def policy_server(given: argparse.Namespace, logs: Path) -> Iterator[str]:
    """The address of what plays the policy."""
    if given.stand_in:
        sys.path.append(str(ROOT / "tests" / "kits"))
        from vllm_server_kit import serving

        from dynaweb.trainer.models import load_model

        with serving(load_model(given.model, "float32", "cpu")) as stand_ins:
            yield stand_ins[0].address
        return
    port = free_port("127.0.0.1")
    options = ["--no-skip-tokenizer-init", "--dtype", given.dtype, "--port", str(port), "--max-num-seqs", "512"]
    if torch.cuda.is_available():
        options += ["--weight-transfer-config", json.dumps({"backend": "ipc"})]
        options += ["--gpu-memory-utilization", str(given.memory), "--max-num-batched-tokens", "16384"]
        # Told, vLLM does not measure how much memory is free, while the others take theirs.
        room = torch.cuda.get_device_properties(0).total_memory * given.memory - (5 << 30)
        options += ["--kv-cache-memory-bytes", str(int(room))]
    else:
        options.append("--enforce-eager")
    command = [sys.executable, "-m", "dynaweb.engines.vllm.serve", given.model, *options]
    # The handles of tensors come pickled over HTTP, which vLLM takes from nobody else.
    with started(
        command, f"http://127.0.0.1:{port}/health", logs / "policy.log", VLLM_ALLOW_INSECURE_SERIALIZATION="1"
    ):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def dreams(given: argparse.Namespace, logs: Path) -> Iterator[str]:
    """The address of the OpenEnv server."""
    port, recipe = free_port("127.0.0.1"), recipe_of(given.model)
    sets: dict[str, Any] = {
        "model.path": given.model,
        "model.dtype": given.dtype,
        "env.tasks": "sites",
        "env.task_settings.driver": "static",
        "dream.recall": False,
    }
    for role in ("wm", "reward"):
        sets[f"{role}.engine.name"] = given.engine
        if given.engine == "vllm":
            sets |= {f"{role}.engine.share": False, f"{role}.engine.sleep": False}
            sets[f"{role}.engine.memory"] = 2 * given.memory
    command = [sys.executable, "-m", "dynaweb", "env", "serve", "dream", "--port", str(port)]
    command += ["--sessions", str(2 * given.dreams), "--steps", str(recipe.dream.horizon), "--split", "train"]
    command += ["--world-model", given.world_model] if given.world_model else []
    command += [word for name, value in sets.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    with started(command, f"http://127.0.0.1:{port}/health", logs / "dreams.log"):
        address = f"http://127.0.0.1:{port}"
        # World model and judge start with their first request.
        with WebClient(base_url=address, message_timeout_s=START_SECONDS).sync() as client:
            for text in ("scroll down", "go_back", "stop 'done'"):
                if not client.reset(seed=0).done:
                    client.step(WebAction(text=text))
        yield address


def trained(given: argparse.Namespace, policy: str, environment: str, folder: Path) -> Clock:
    """A training of TRL's."""
    recipe, clock = recipe_of(given.model), Clock()
    config = AsyncGRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=given.updates + 2,
        per_device_train_batch_size=given.micro_rows,
        gradient_accumulation_steps=max(1, given.rows // given.micro_rows),
        token_budget=-1,
        num_generations=8,
        max_completion_length=recipe.policy.max_new_tokens,
        max_inflight_tasks=given.dreams,
        max_staleness=1,
        learning_rate=1e-6,
        bf16=given.dtype == "bfloat16",
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        vllm_server_base_url=policy,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    tokenizer.response_template = {}  # nothing is parsed by a chat template here
    from datasets import Dataset

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 8})
    worker = DreamWorker(
        environment=environment,
        model=given.model,
        model_name=given.model if not given.stand_in else "model",
        dataset=data,
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=config.num_generations,
        max_inflight_tasks=config.max_inflight_tasks,
        queue_maxsize=config.queue_maxsize,
        vllm_server_url=policy,
        max_tokens=config.max_completion_length,
        temperature=config.temperature,
    )
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[given.dtype]
    if not torch.cuda.is_available():
        async_grpo_trainer.get_peak_flops_per_device = lambda *of: None  # it asks for the name of a card
    trainer = AsyncGRPOTrainer(
        given.model,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=Transfer(policy, dtype, folder),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    trainer.train()
    return clock


def measured(clock: Clock) -> dict[str, Any]:
    """Medians and rates of all updates after the second: the queue of the first two filled while the first compiled."""
    times = [at for at, _ in clock.updates[1:]]
    logs = [one for _, one in clock.updates[2:]]
    seconds = [after - before for before, after in pairwise(times)]

    def rate(name: str) -> float:
        return round(sum(one.get(name) or 0.0 for one in logs) / sum(seconds), 2)

    def median(name: str) -> float:
        return round(statistics.median(one.get(name) or 0.0 for one in logs), 4)

    return {
        "updates": len(seconds),
        "seconds_per_update": round(statistics.median(seconds), 4),
        "rows": median("batch/samples_per_step"),
        "rows_per_second": rate("batch/samples_per_step"),
        "played_rows_per_second": rate("dream/rows_total"),
        "policy_tokens_per_second": rate("dream/policy_tokens_total"),
        "trained_tokens_per_second": rate("batch/trained_tokens_per_step"),
        "waited": round(sum(one.get("perf/rollout_wait_s") or 0.0 for one in logs) / sum(seconds), 4),
        "weight_seconds": median("perf/weight_sync_s"),
        "reward": median("reward"),
    }


def main() -> None:
    """Start the servers, train, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name of the policy, with its tokenizer")
    parser.add_argument("--world-model", default="", help="folder of the world model (default: the policy's model)")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--dreams", type=int, default=64, help="at once")
    parser.add_argument("--rows", type=int, default=192, help="rows of an update; ours has those of its dreams")
    parser.add_argument("--micro-rows", type=int, default=32, help="rows of one forward pass")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--engine", default="vllm", choices=["vllm", "transformers"], help="of world model and judge")
    parser.add_argument("--memory", type=float, default=0.15, help="share of the card for each vLLM")
    parser.add_argument("--logs", type=Path, help="folder for the logs of the servers")
    parser.add_argument("--stand-in", action="store_true", help="without vLLM; see above")
    given = parser.parse_args()
    given.model = local_folder(given.model)
    with tempfile.TemporaryDirectory(prefix="dynaweb-trl-") as name, ExitStack() as stack:
        os.environ.setdefault("DYNAWEB_CACHE", f"{name}/cache")
        logs = given.logs or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        # All vLLMs start at the same time.
        with ThreadPoolExecutor() as both:
            stacks = [stack.enter_context(ExitStack()) for _ in range(2)]
            opening = [
                both.submit(one.enter_context, made(given, logs))
                for one, made in zip(stacks, (policy_server, dreams), strict=True)
            ]
        policy, environment = (one.result() for one in opening)
        try:
            clock = trained(given, policy, environment, Path(name))
        except Exception:
            for log in sorted(logs.glob("*.log")):
                sys.stderr.write(f"{log.name} ends with:\n{tail(log)}\n")
            raise
        line = {"way": "TRL AsyncGRPO", "model": given.model, "dreams": given.dreams, **measured(clock)}
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
