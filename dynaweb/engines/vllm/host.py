"""The process that runs vLLM for a run: calls arrive as lines of JSON on a socket, and answers go back the same way.

vLLM has a process of its own, since it blocks whoever starts it for a minute, writes to stdout, and leaves its workers
behind when their parent is killed. This one leads a process group and ends the whole group as soon as the run has gone,
however that came about. `dynaweb.engines.vllm.process` is the other end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynaweb.engines.vllm.pictures import Seen, longer, opened, refuse_other_ids
from dynaweb.errors import DynawebError
from dynaweb.runs.atomic import write_json

GRACE = 3.0
"""Seconds that vLLM's workers have to end by themselves when the run has gone."""
BY_THE_PROCESSOR = {"mm_device_do_normalize": False}
"""Arguments of some versions: whether vLLM's model has numbers of its own to normalise pictures with, which it would
draw at random, as it does weights that come later."""
DROP_WAIT, DROP_EVERY = 30.0, 0.01
"""Seconds within which vLLM has to let go of cached prefixes, and between two tries."""
LOOK_EVERY = 1.0
"""Seconds between two looks at whether the run is still there."""


class Host:
    """Answers calls; each public coroutine is one, with the arguments that the call carries."""

    def __init__(self, link: socket.socket, folder: Path) -> None:
        self._link, self._folder = link, folder
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count()
        self._engine: Any = None
        self._transfers = False

    # Calls

    async def start(
        self, config: Mapping[str, Any], arguments: Mapping[str, Any], processor: str = "", place: str = ""
    ) -> dict[str, Any]:
        """Start vLLM on random weights of a model's configuration, with the processor in a folder where it sees.

        `place` is where the configuration is written, else a folder of this process: vLLM finds what it compiled for
        an earlier start only if the model is where it was.
        """
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        if not hasattr(AsyncLLM, "start_weight_update"):
            raise RuntimeError(f"vLLM {vllm.__version__} has no weight transfer for RL; install vllm>=0.24")
        known = getattr(AsyncEngineArgs, "__dataclass_fields__", arguments)
        if processor:
            shutil.copytree(processor, self._folder, dirs_exist_ok=True)
            arguments = {name: value for name, value in BY_THE_PROCESSOR.items() if name in known} | {**arguments}
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise ValueError(f"this version of vLLM has no engine argument {unknown[0]!r}; see `extra` of the engine")
        model = Path(place) if place else self._folder
        model.mkdir(parents=True, exist_ok=True)
        write_json(model / "config.json", config, verbatim=True)
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), **arguments))
        return {"version": vllm.__version__}

    async def generate(
        self,
        ids: Sequence[int],
        params: Mapping[str, Any],
        adapter: Sequence[Any] | None = None,
        unwritten: Sequence[int] = (),
        seen: Seen | None = None,
    ) -> dict[str, Any]:
        """Sample: the new tokens, none of `unwritten`, and their log-probabilities.

        `seen` has the pictures of a prompt; see `dynaweb.engines.vllm.pictures`.
        """
        # Not `allowed_token_ids`: that list is as long as the vocabulary, and on GPUs vLLM takes 1,024 at most.
        bias = dict.fromkeys(unwritten, float("-inf")) or None
        done = await self._finished(ids, {"logprobs": 0, "logit_bias": bias, **params}, adapter, seen)
        output = done.outputs[0]
        tokens = list(output.token_ids)
        return {
            "tokens": tokens,
            "logprobs": [step[token].logprob for step, token in zip(output.logprobs, tokens, strict=True)],
        }

    async def choices(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        adapter: Sequence[Any] | None = None,
        seen: Seen | None = None,
    ) -> list[float]:
        """Log-probability of each of some tokens as the next one."""
        from vllm import SamplingParams

        if hasattr(SamplingParams(), "logprob_token_ids"):
            params = {"max_tokens": 1, "temperature": 1.0, "ignore_eos": True, "seed": 0}
            done = await self._finished(ids, {**params, "logprob_token_ids": list(tokens)}, adapter, seen)
            logprobs = done.outputs[0].logprobs[0]
            return [logprobs[token].logprob for token in tokens]
        rows = await asyncio.gather(*(self.score([*ids, token], adapter, longer(seen, token)) for token in tokens))
        return [row[-1] for row in rows]

    async def score(
        self, ids: Sequence[int], adapter: Sequence[Any] | None = None, seen: Seen | None = None
    ) -> list[float]:
        """Log-probability of every token but the first, after those before it."""
        done = await self._finished(ids, {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}, adapter, seen)
        return [step[token].logprob for step, token in zip(done.prompt_logprobs[1:], ids[1:], strict=True)]

    async def wrapped(self) -> list[str]:
        """The layers whose weights have the names that adapters gave them."""
        return list((await self._engine.collective_rpc("dynaweb_wrapped"))[0])

    async def nested(self) -> bool:
        """Whether the tower that sees has a level more than the trainer's."""
        return bool((await self._engine.collective_rpc("dynaweb_nested"))[0])

    async def load(self, folder: str) -> None:
        """Load the checkpoint in a folder."""
        # vLLM was started without a checkpoint.
        await self._engine.collective_rpc("update_config", args=({"load_config": {"load_format": "safetensors"}},))
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        await self._engine.collective_rpc("dynaweb_renew_head")

    async def workers(self) -> int:
        """How many processes of it take weights."""
        return int(self._engine.vllm_config.parallel_config.world_size_across_dp)

    async def join(self, init: Mapping[str, Any]) -> None:
        """Meet the trainer, as vLLM's transfer `nccl` does."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(init)))
        self._transfers = True

    async def transfer(self, update: Mapping[str, Any]) -> None:
        """Take weights by vLLM's transfer for RL."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        if not self._transfers:
            await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
            self._transfers = True
        await self._engine.start_weight_update()
        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=dict(update)))
        await self._engine.finish_weight_update()
        await self._engine.collective_rpc("dynaweb_renew_head")

    async def add_adapter(self, adapter: Sequence[Any]) -> None:
        """Load low-rank adapters: name, number and folder."""
        await self._engine.add_lora(_lora(adapter))

    async def remove_adapter(self, number: int) -> None:
        """Forget adapters."""
        await self._engine.remove_lora(number)

    async def drop_prefixes(self) -> None:
        """Forget cached prefixes and what pictures look like, which other weights computed."""
        until = time.monotonic() + DROP_WAIT
        # Not while a request holds some, such as one that was given up and not yet ended.
        while await self._engine.reset_prefix_cache() is False:
            if time.monotonic() > until:
                raise RuntimeError("vLLM does not forget cached prefixes: requests hold them that nobody waits for")
            await asyncio.sleep(DROP_EVERY)
        if self._engine.vllm_config.model_config.is_multimodal_model:
            await self._engine.reset_encoder_cache()

    async def sleep(self, level: int) -> None:
        """Give GPU memory back; level 1 keeps the weights in the host's memory."""
        await self._engine.sleep(level=level)

    async def wake(self, tags: Sequence[str]) -> None:
        """Take GPU memory again, for `weights` or the `kv_cache`."""
        await self._engine.wake_up(tags=list(tags))

    async def close(self) -> None:
        """End vLLM's workers; this process ends with its socket."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    # Inside

    async def serve(self) -> None:
        """Answer until the run has gone."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="calls", daemon=True).start()
        threading.Thread(target=self._watch, args=(os.getppid(),), name="run", daemon=True).start()
        await asyncio.get_running_loop().create_future()

    async def _finished(
        self, ids: Sequence[int], params: Mapping[str, Any], adapter: Sequence[Any] | None, seen: Seen | None
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        wanted = {"detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY, **params}
        prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
        if seen:
            pictures = {"image": opened(seen["images"])}
            prompt = {"prompt_token_ids": list(seen["ids"]), "multi_modal_data": pictures}
        last = None
        async for output in self._engine.generate(
            prompt,
            SamplingParams(**wanted),
            f"dynaweb-{next(self._numbers)}",
            lora_request=None if adapter is None else _lora(adapter),
        ):
            last = output
        assert last is not None
        if seen:
            refuse_other_ids(ids, last.prompt_token_ids)
        return last

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        # In a thread: the end of the run has to be seen while vLLM starts, which blocks the loop.
        with self._link.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                loop.call_soon_threadsafe(self._take, json.loads(line))
        self._end_group()

    def _watch(self, run: int) -> None:
        # A process that the run forked holds the socket open too.
        while os.getppid() == run:
            time.sleep(LOOK_EVERY)
        self._end_group()

    def _end_group(self) -> None:
        os.killpg(0, signal.SIGTERM)
        time.sleep(GRACE)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    def _take(self, message: dict[str, Any]) -> None:
        number = message.pop("id")
        if message.get("cancel"):
            if (task := self._tasks.get(number)) is not None:
                task.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._answer(number, **message))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer(self, number: int, call: str, arguments: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            answer = {"result": await getattr(self, call)(**arguments)}
        except asyncio.CancelledError:
            answer = {"error": "cancelled"}
        except DynawebError as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        line = json.dumps({"id": number, **answer}) + "\n"
        with self._sending:
            self._link.sendall(line.encode())


def _lora(adapter: Sequence[Any]) -> Any:
    from vllm.lora.request import LoRARequest

    name, number, folder = adapter
    return LoRARequest(name, number, folder)


async def _serve(link: socket.socket, folder: Path) -> None:
    await Host(link, folder).serve()


def main() -> None:
    """Serve the socket whose number is the first argument; the second is a folder for vLLM's files."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    os.dup2(2, 1)  # stdout belongs to the run's results, whatever vLLM's libraries write there
    # A handler, not SIG_IGN, which the workers would inherit: the group's SIGTERM is for them.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    asyncio.run(_serve(link, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
