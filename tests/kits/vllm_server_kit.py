"""A stand-in for `vllm serve` with the calls that RL makes, on a small model, in threads of the test."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from fake_vllm.fake_pictures import Remembered, read
from safetensors.torch import load_file


class StandIn(ThreadingHTTPServer):
    """One server; `asked` has the paths of all requests, `slow` are the seconds that one takes to generate.

    `processor` is that of a model that sees; `silent` servers do not say which ids they read.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, model: Any, *, old: bool = False, processor: Any = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.old, self.processor = model, old, processor
        self.silent = False
        self._remembered = Remembered()
        self.asked: list[str] = []
        self.slow = 0.0
        self.paused = self.broken = self.stubborn = False
        self.without: set[str] = set()
        self.adapters: dict[str, tuple[float, dict[str, torch.Tensor]]] = {}
        self.working = threading.Lock()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def kill(self) -> None:
        """Answer nobody from now on, not even those who wait."""
        self.broken = True
        threading.Thread(target=self.shutdown).start()
        self.socket.close()

    def answer(self, path: str, body: Any) -> Any:
        """The reply of a path."""
        if path == "/pause":
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/version":
            return {"version": "0.24.0" if self.old else "0.32.0"}
        elif path == "/v1/models":
            longest = self.model.config.get_text_config().max_position_embeddings
            return {"data": [{"id": "model", "max_model_len": longest}]}
        elif path == "/reset_encoder_cache":
            self._remembered.forget()
        elif path == "/get_world_size":
            return {"world_size": 1}
        elif path == "/collective_rpc":
            return {"results": [self._rpc(body["method"], *body["args"])]}
        elif path == "/v1/load_lora_adapter":
            folder = Path(body["lora_path"])
            config = json.loads((folder / "adapter_config.json").read_text())
            weights = load_file(folder / "adapter_model.safetensors")
            self.adapters[body["lora_name"]] = config["lora_alpha"] / config["r"], weights
            return "Success"
        elif path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        elif path == "/inference/v1/generate":
            assert not self.paused, "a request while its weights change"
            time.sleep(self.slow)
            with self.working:
                return self._generate(body)
        elif path == "/v1/completions":
            with self.working:
                return self._completion(body)
        return None

    def _rpc(self, method: str, *arguments: str) -> Any:
        if method == "dynaweb_wrapped":
            return []
        if method == "dynaweb_nested":
            return False
        if method == "dynaweb_load" and not self.stubborn:
            assert self.paused, "weights change while it answers"
            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, value in load_file(Path(arguments[0]) / "model.safetensors").items():
                    own[name].copy_(value)
        return None

    def _generate(self, body: Any) -> Any:
        ids, params, tokens, steps = body["token_ids"], body["sampling_params"], list[int](), list[Any]()
        adapter = self.adapters.get(body["model"])
        reply: dict[str, Any] = {"prompt_logprobs": None}
        images, seen = [_opened(part["url"]) for part in body.get("content_parts", ())], dict[str, Any]()
        if images:
            ids, seen = read(self.processor, ids, images)
            reply |= {} if self.silent or not body.get("return_token_ids") else {"prompt_token_ids": ids}
        if params.get("prompt_logprobs") is not None:
            table = torch.log_softmax(self._logits(ids, adapter, images, seen), -1)
            scored = [{str(token): {"logprob": float(table[i, token])}} for i, token in enumerate(ids[1:])]
            reply["prompt_logprobs"] = [None, *scored]
        random = torch.Generator().manual_seed(params.get("seed") or 0)
        while len(tokens) < params["max_tokens"]:
            logits = self._logits([*ids, *tokens], adapter, images, seen)[-1]
            for number, bias in (params.get("logit_bias") or {}).items():
                logits[int(number)] += bias
            logp = torch.log_softmax(logits / (params["temperature"] or 1.0), -1)
            drawn = torch.multinomial(logp.exp(), 1, generator=random) if params["temperature"] else logp.argmax()
            tokens.append(int(drawn))
            named = dict.fromkeys([int(drawn), *params.get("logprob_token_ids", ())])
            listed = [self._entry(token, float(logp[token])) for token in named][: max(1, params.get("logprobs") or 0)]
            steps.append({**self._entry(int(drawn), float(logp[drawn])), "top_logprobs": listed})
            if int(drawn) in params.get("stop_token_ids", ()):
                break
        return {**reply, "choices": [{"token_ids": tokens, "logprobs": {"content": steps}}]}

    def _completion(self, body: Any) -> Any:
        params = {"max_tokens": body["max_tokens"], "temperature": body["temperature"], "seed": body["seed"]}
        params["stop_token_ids"] = [self.model.config.eos_token_id]
        choice = self._generate({"token_ids": body["prompt"], "sampling_params": params, "model": "model"})["choices"][
            0
        ]
        logprobs = [step["logprob"] for step in choice["logprobs"]["content"]]
        return {"choices": [{"token_ids": choice["token_ids"], "logprobs": {"token_logprobs": logprobs}}]}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return (
            {"token": f"token_id:{token}", "logprob": logprob} if self.old else {"token_id": token, "logprob": logprob}
        )

    def _logits(self, ids: list[int], adapter: Any, images: list[Any], seen: dict[str, Any]) -> torch.Tensor:
        weights = dict(self.model.named_parameters())
        if images:
            weights = self._remembered.weights(images, weights)
        if adapter is not None:
            scaling, matrices = adapter
            for name in [name for name in matrices if ".lora_A." in name]:
                own = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
                weights[own] = weights[own] + scaling * matrices[name.replace("lora_A", "lora_B")] @ matrices[name]
        inputs = {"input_ids": torch.tensor([ids]), "use_cache": False, **seen}
        with torch.no_grad():
            logits: torch.Tensor = torch.func.functional_call(self.model, weights, (), inputs).logits[0].float()
            return logits


def _opened(url: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))).convert("RGB")


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, format: str, *arguments: object) -> None:
        return

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self._reply(json.loads(self.rfile.read(size)) if size else None)

    def _reply(self, body: Any) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if path in self.server.without:
            self.send_error(404)
            return
        reply = self.server.answer(path, body)
        if self.server.broken:
            self.close_connection = True
            return
        data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if isinstance(reply, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(*models: Any, old: bool = False, processor: Any = None) -> Iterator[list[StandIn]]:
    """A server for each model."""
    servers = [StandIn(model, old=old, processor=processor) for model in models]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield servers
    finally:
        for server in servers:
            if not server.broken:
                server.shutdown()
            server.server_close()
