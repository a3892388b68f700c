"""A `vllm serve` server as a replica: tokens in and tokens out over HTTP, and vLLM's own calls for RL.

It has the calls of `dynaweb.engines.vllm.host.Host`, for which vLLM's server offers: `/inference/v1/generate`, and with
`VLLM_SERVER_DEV_MODE=1` `/pause`, `/resume`, the transfer of weights and `/collective_rpc`. `python -m
dynaweb.engines.vllm.serve MODEL` starts a server that has all of them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dynaweb.config.files import MALFORMED
from dynaweb.engines.vllm.pictures import Seen, longer, parts, refuse_other_ids
from dynaweb.engines.vllm.process import memory_folder
from dynaweb.errors import EngineError, MissingError
from dynaweb.plugin.discovery import library

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the key of servers that ask for one."""
NEVER = -1e9
"""Added to the logit of a token that must not be drawn: JSON has no infinity."""
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 1800.0
"""A server that says nothing for so long is dead, such as one whose host was switched off."""
TRIES = 3
"""Attempts to reach a server before it counts as dead: a connection may be lost once."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


class VllmServer:
    """A server that somebody else started. `folder` is where it and this process see the same files."""

    def __init__(self, address: str, folder: str = "") -> None:
        self.address = address.rstrip("/").removesuffix("/v1")
        self.name = f"the vLLM server {self.address}"
        self._folder = Path(folder) if folder else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._end = ""
        self._adapters: dict[int, str] = {}
        self._model = ""
        self._sees = False
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def dead(self) -> bool:
        """Whether it could not be reached."""
        return bool(self._end)

    @property
    def folder(self) -> Path:
        """The folder that was named, else one in this machine's memory."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="dynaweb-vllm-", dir=memory_folder())
            self._folder = Path(self._temporary.name)
        return self._folder

    async def call(self, call: str, **arguments: Any) -> Any:
        """A call of `Host`. Raises `EngineError` when the server refuses it or cannot be reached."""
        work = getattr(self, f"_{call}")
        try:
            return await work(**arguments)
        except MALFORMED as error:
            raise EngineError(
                f"{self.address} is no vLLM server, or one of another version: what it answers to `{call}` cannot be "
                f"read ({type(error).__name__}: {error}). {self._advice}"
            ) from error

    def end(self) -> None:
        """Let go of the server, which runs on."""
        self._client = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None

    async def close(self) -> None:
        """Let go of the server, which runs on."""
        client, loop = self._client, self._loop
        if client is not None and loop is asyncio.get_running_loop():
            await client.aclose()
        self.end()

    def last_errors(self) -> list[str]:
        """Its log is elsewhere."""
        return []

    # The calls of `Host`

    async def _start(
        self, config: Mapping[str, Any], arguments: Mapping[str, Any], processor: str = ""
    ) -> dict[str, Any]:
        """See that it is there, has the calls of RL, and takes prompts that are long enough. Its processor is that of
        the model that it was started with."""
        self._sees = not arguments.get("skip_tokenizer_init", True)
        version = (await self._get("/version"))["version"]
        model = (await self._get("/v1/models"))["data"][0]
        self._model, longest = model["id"], int(model.get("max_model_len") or 0)
        if longest and longest < arguments["max_model_len"]:
            raise EngineError(
                f"{self.name} takes {longest} tokens, and the engine may ask for {arguments['max_model_len']}; start "
                f"it with a larger --max-model-len, or set max_model_len = {longest}"
            )
        await self._get("/get_world_size")
        await self._rpc("dynaweb_wrapped")
        await self._post("/resume")  # a run that was killed in a transfer left it paused
        return {"version": version}

    async def _generate(
        self,
        ids: Sequence[int],
        params: Mapping[str, Any],
        adapter: Sequence[Any] | None = None,
        unwritten: Sequence[int] = (),
        seen: Seen | None = None,
    ) -> dict[str, Any]:
        bias = {str(token): NEVER for token in unwritten} or None
        wanted = {"logprobs": 0, "logit_bias": bias, **params}
        choice = (await self._tokens(ids, wanted, adapter, seen))["choices"][0]
        return {
            "tokens": list(choice["token_ids"]),
            "logprobs": [float(step["logprob"]) for step in choice["logprobs"]["content"]],
        }

    async def _choices(
        self,
        ids: Sequence[int],
        tokens: Sequence[int],
        adapter: Sequence[Any] | None = None,
        seen: Seen | None = None,
    ) -> list[float]:
        # The server lists the token that it drew and then as many as were named, less one: so one more is named.
        named = [*tokens, tokens[0]]
        params = {"max_tokens": 1, "temperature": 1.0, "ignore_eos": True, "seed": 0}
        reply = await self._tokens(ids, {**params, "logprobs": len(named), "logprob_token_ids": named}, adapter, seen)
        listed = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        values = {_token(one): float(one["logprob"]) for one in listed}
        missing = [token for token in tokens if token not in values]
        if missing:
            scored = (self._score([*ids, token], adapter, longer(seen, token)) for token in missing)
            rows = await asyncio.gather(*scored)
            values |= {token: row[-1] for token, row in zip(missing, rows, strict=True)}
        return [values[token] for token in tokens]

    async def _score(
        self, ids: Sequence[int], adapter: Sequence[Any] | None = None, seen: Seen | None = None
    ) -> list[float]:
        reply = await self._tokens(ids, {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}, adapter, seen)
        steps = reply["prompt_logprobs"][1:]
        return [float(step[str(token)]["logprob"]) for step, token in zip(steps, ids[1:], strict=True)]

    async def _wrapped(self) -> list[str]:
        return list(await self._rpc("dynaweb_wrapped"))

    async def _nested(self) -> bool:
        return bool(await self._rpc("dynaweb_nested"))

    async def _load(self, folder: str) -> None:
        async with self._paused():
            await self._rpc("dynaweb_load", folder)
            await self._rpc("dynaweb_renew_head")

    async def _workers(self) -> int:
        """How many processes of it take weights."""
        return int((await self._get("/get_world_size"))["world_size"])

    async def _join(self, init: Mapping[str, Any]) -> None:
        await self._post("/init_weight_transfer_engine", {"init_info": dict(init)})

    async def _transfer(self, update: Mapping[str, Any]) -> None:
        async with self._paused():
            await self._post("/start_weight_update", {"is_checkpoint_format": True})
            await self._post("/update_weights", {"update_info": dict(update)})
            await self._post("/finish_weight_update", {})
            await self._rpc("dynaweb_renew_head")

    async def _add_adapter(self, adapter: Sequence[Any]) -> None:
        name, number, folder = adapter
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        self._adapters[number] = name

    async def _remove_adapter(self, number: int) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": self._adapters.pop(number)})

    async def _drop_prefixes(self) -> None:
        await self._post("/reset_prefix_cache")
        if self._sees:
            await self._post("/reset_encoder_cache")

    # HTTP

    def _paused(self) -> _Pause:
        return _Pause(self)

    async def _tokens(
        self,
        ids: Sequence[int],
        params: Mapping[str, Any],
        adapter: Sequence[Any] | None,
        seen: Seen | None,
    ) -> Any:
        wanted = {name: value for name, value in params.items() if value is not None}
        body = {
            "token_ids": list(ids),
            "sampling_params": {"detokenize": False, **wanted},
            "model": adapter[0] if adapter else self._model,
        }
        if seen is None:
            return await self._post("/inference/v1/generate", body)
        pictures = {"token_ids": list(seen["ids"]), "content_parts": parts(seen["images"]), "return_token_ids": True}
        reply = await self._post("/inference/v1/generate", body | pictures)
        refuse_other_ids(ids, reply.get("prompt_token_ids"))
        return reply

    async def _rpc(self, method: str, *arguments: str) -> Any:
        try:
            reply = await self._post("/collective_rpc", {"method": method, "args": list(arguments)})
        except EngineError as error:
            if self.dead:
                raise
            raise EngineError(f"{error}. {self._advice}") from error
        return (reply or {}).get("results", [None])[0]

    async def _get(self, path: str) -> Any:
        return await self._request("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._request("POST", path, body)

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import json

        if self._end:
            raise EngineError(self._end)
        client, base = self._connected()
        for attempt in range(TRIES):
            try:
                reply = await client.request(method, self.address + path, json=None if body is None else dict(body))
                break
            except base.TimeoutException as error:
                if not isinstance(error, base.ConnectTimeout):
                    self._end = f"{self.name} did not answer {path} in time"
                    raise EngineError(self._end) from error
                problem: Exception = error
            except base.TransportError as error:
                # Only what changes nothing may be sent twice.
                if "generate" not in path and not isinstance(error, base.ConnectError):
                    self._end = f"{self.name} was lost in {path} ({type(error).__name__}: {error})"
                    raise EngineError(self._end) from error
                problem = error
            if attempt + 1 < TRIES:
                await asyncio.sleep(0.2 * 2**attempt)
        else:
            self._end = f"{self.name} cannot be reached ({type(problem).__name__}: {problem})"
            raise EngineError(self._end) from problem
        if reply.status_code == 404:
            raise EngineError(f"{self.name} has no {path}. {self._advice}")
        if reply.status_code in (401, 403):
            raise MissingError(f"{self.name} refused the key; put a valid one into ${KEY_VARIABLE}")
        if reply.status_code >= 400:
            raise EngineError(f"{self.name} refused {path} ({reply.status_code}): {' '.join(reply.text.split())[:500]}")
        # Some calls answer in words.
        return json.loads(reply.content) if "json" in reply.headers.get("content-type", "") else None

    def _connected(self) -> tuple[Any, Any]:
        """A client of this event loop, and the HTTP library that the openai package was built on."""
        from importlib import import_module

        openai = library("openai", "server", what="a vLLM server")
        kind = next(one for one in openai.DefaultAsyncHttpxClient.__mro__ if one.__name__ == "AsyncClient")
        base = import_module(kind.__module__.partition(".")[0])
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            key = os.environ.get(KEY_VARIABLE, "").strip()
            # Idle connections would outlive the event loop of a stage.
            self._client, self._loop = (
                base.AsyncClient(
                    timeout=base.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None),
                    limits=base.Limits(max_keepalive_connections=0),
                    trust_env=urlsplit(self.address).hostname not in _LOCAL,
                    headers={"Authorization": f"Bearer {key}"} if key else {},
                ),
                loop,
            )
        return self._client, base

    @property
    def _advice(self) -> str:
        return (
            "Start servers with `python -m dynaweb.engines.vllm.serve MODEL`, which switches on what RL needs of vLLM"
        )


def _token(listed: Mapping[str, Any]) -> int:
    """The token of an entry: vLLM 0.24 gives it as text."""
    return int(listed["token_id"] if "token_id" in listed else listed["token"].removeprefix("token_id:"))


class _Pause:
    """`async with`: the server answers nobody while its weights change."""

    def __init__(self, server: VllmServer) -> None:
        self._server = server

    async def __aenter__(self) -> None:
        await self._server._post("/pause?mode=wait&clear_cache=true")

    async def __aexit__(self, *error: object) -> None:
        # After a transfer that failed its weights are nobody's: the next push mends them, and the probe says so.
        if not self._server.dead:
            await self._server._post("/resume")
