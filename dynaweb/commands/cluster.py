"""One run over a Ray cluster: trainer ranks, vLLM servers and browser pools, each a process on a node with room for it.

    dynaweb run my-recipe --cluster auto --set cluster.trainers=4 --set cluster.servers=4 --set cluster.browsers=2

Ray finds nodes with room, starts the processes, says when a node is lost, and keeps their logs. What they say to each
other does not go through Ray: ranks meet by `torch.distributed`, vLLM and browsers are asked over HTTP. So each part is
the very process that a person would start by hand (docs/scale.md), and a run on one machine needs no Ray.

A rank that dies takes the others with it; then all of them are placed anew and go on from the last checkpoint, at most
`cluster.restarts` times. A server that dies is started again by its `Child`. The run folder and the cache must be on a
file system that all nodes see.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dynaweb.config.agreement import placed_roles
from dynaweb.engines.plugin import UNCOMPILED, VllmConfig
from dynaweb.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, InfrastructureError, MissingError
from dynaweb.runs.child import END_SECONDS, Child, News
from dynaweb.runs.processes import INSIDE, python_options

if TYPE_CHECKING:
    from dynaweb.config import Recipe

TOKEN, KEY = "DYNAWEB_SERVE_TOKEN", "VLLM_API_KEY"
"""What browser pools and vLLM servers ask for; made for each run where the environment has none."""
NODES_OWN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that Ray sets for each process: those of this one mean nothing there."""
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
GRACE = 30.0
"""Seconds that ranks have to end after one of them has failed."""
SILENCE = 60.0
"""Seconds without an answer of the node after which a rank counts as lost."""
LOOK_SECONDS = 5.0
"""Seconds after which servers are looked at while ranks are at work."""
READY_SECONDS = 900.0
"""Seconds that a server may take to answer: vLLM loads and compiles its model."""
LOSSES = 3
"""How often servers are placed anew before they have answered."""
REACH_SECONDS = 10.0
STORE_BYTES = 100 * 2**20
"""Memory for Ray's objects where Ray is started here: nothing large goes through it."""
POLL = 0.2
BROWSERS = "browser pool"


@dataclass(frozen=True, slots=True)
class Part:
    """Processes of one kind: how many, and what each takes of a node."""

    name: str
    count: int
    cpus: float
    gpus: float
    """On a cluster with GPUs; on one without, no part asks for any."""
    work: str


def layout(recipe: Recipe) -> list[Part]:
    """What a run asks a cluster for, trainers first. With GPUs, where `model.device` allows them."""
    cluster = recipe.cluster
    gpu = 0.0 if recipe.model.device == "cpu" else 1.0
    roles = placed_roles(recipe)
    tensor_parallel = _engine(recipe).tensor_parallel if roles else 1
    parts = [
        Part("trainer", cluster.trainers, cluster.trainer_cpus, gpu, f"{recipe.backend.name}, rank 0 runs the program"),
        Part("vLLM server", cluster.servers, cluster.server_cpus, gpu * tensor_parallel, f"answers {', '.join(roles)}"),
        Part(BROWSERS, cluster.browsers, cluster.browser_cpus, 0.0, f"{cluster.sessions} browsers"),
    ]
    return [part for part in parts if part.count]


def run_on_cluster(recipe: Recipe, arguments: Sequence[str], out: Path, *, resume: bool) -> int:
    """Run `dynaweb ARGUMENTS` over the cluster of `recipe.cluster`; returns the exit code of rank 0.

    `out` is the run folder; `resume` says that it was begun before. Raises `MissingError` without Ray, `ConfigError`
    where there is no such cluster or no room in it, `InfrastructureError` where servers do not start.
    """
    with connected(recipe.cluster.address) as ray:
        return ClusterRun(recipe, list(arguments), out.resolve(), ray).to_its_end(resume=resume)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster; with `local` it is one that ends with the context."""
    try:
        import ray
    except ImportError:
        raise MissingError("--cluster needs Ray, which is not installed; run: pip install 'dynaweb[ray]'") from None

    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    _reach(address)
    # Ray puts a handler of its own there, which ends the process at once.
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace=f"dynaweb-{secrets.token_hex(4)}", **settings)
    except ConnectionError:
        raise ConfigError(_nobody(address)) from None
    except Exception as error:
        # Ray has no class of its own for what keeps it from starting.
        raise InfrastructureError(f"Ray cannot be used ({_line(error)})") from error
    finally:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise `ConfigError` where nobody listens at an address: Ray itself would try for minutes, and abort."""
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    parts = urlsplit(named if "://" in named else f"//{named}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"cluster.address = {address!r} has no valid port; write HOST:PORT") from None
    if named in ("", "auto", "local"):
        return
    if not host or not port:
        raise ConfigError(f"cluster.address = {address!r} is none of auto, local and HOST:PORT")
    try:
        socket.create_connection((host, port), timeout=REACH_SECONDS).close()
    except OSError:
        raise ConfigError(_nobody(named)) from None


def _nobody(address: str) -> str:
    what = "this machine belongs to no Ray cluster" if address == "auto" else f"no Ray cluster answers at {address}"
    return f"{what}; start one with `ray start --head`, or run on this machine alone with --cluster local"


@dataclass
class ClusterRun:
    """The processes of one run, from their placement to their end."""

    recipe: Recipe
    arguments: list[str]
    out: Path
    ray: Any
    _group: Any = None
    _parts: list[Part] = field(default_factory=list)
    _servers: dict[str, list[Any]] = field(default_factory=dict)
    """Actors of what serves, by the name of the part."""
    _placed_anew: dict[tuple[str, int], int] = field(default_factory=dict)
    """Servers that were lost while ranks are at work, and how often."""
    _ranks: list[Any] = field(default_factory=list)
    _weights: str = ""
    """Folder for weights of a trainer on a CPU, and for adapters."""
    _environment: dict[str, str] = field(default_factory=lambda: _environment())

    def to_its_end(self, *, resume: bool) -> int:
        """Place everything, and the ranks anew when one of them dies. Returns the exit code of rank 0."""
        try:
            self._reserve()
            left = self.recipe.cluster.restarts
            while True:
                settings, ends = self._serving()
                code, why = self._life(settings, resume=resume)
                if code == EXIT_FAILED:
                    why = why or self._lost_server(ends)
                if not why:
                    return code
                if not left:
                    _say(f"error: {why}, and cluster.restarts are used up; go on with --resume")
                    return EXIT_FAILED
                left -= 1
                resume = resume or (self.out / "recipe.json").exists()
                _say(f"{why}; the ranks are placed anew, and go on from the last checkpoint ({left} restarts left)")
        except KeyboardInterrupt:
            return self._interrupted()
        finally:
            self._end()

    def _reserve(self) -> None:
        """Room for all parts at once. Raises `ConfigError` where there is none in time."""
        total = self.ray.cluster_resources()
        self._parts = layout(self.recipe)
        if not total.get("GPU"):
            self._parts = [replace(part, gpus=0.0) for part in self._parts]
        bundles = [
            {"CPU": part.cpus, **({"GPU": part.gpus} if part.gpus else {})}
            for part in self._parts
            for _ in range(part.count)
        ]
        self._group = self.ray.util.placement_group(bundles, strategy="PACK")
        limit = time.monotonic() + self.recipe.cluster.wait
        while not self._group.wait(timeout_seconds=1):
            if time.monotonic() > limit:
                raise ConfigError(self._no_room())
        parts = ", ".join(f"{part.count} x {part.name}" for part in self._parts)
        _say(f"cluster: {parts} on {self._count_nodes()} node(s)")

    def _count_nodes(self) -> int:
        table = self.ray.util.placement_group_table(self._group)
        return len(set(table["bundles_to_node_id"].values()))

    def _no_room(self) -> str:
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        wanted = {
            "CPU": sum(part.count * part.cpus for part in self._parts),
            "GPU": sum(part.count * part.gpus for part in self._parts),
        }
        sums = ", ".join(
            f"{number:g} {what}s ({free.get(what, 0.0):g} of {total.get(what, 0.0):g} are free)"
            for what, number in wanted.items()
            if number
        )
        parts = ", ".join(f"{part.count} x {part.name}" for part in self._parts)
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        return (
            f"{nodes} node(s) had no room for {parts} within {self.recipe.cluster.wait:g} s: wanted are {sums}; lower "
            "the counts of [cluster], add nodes, or raise cluster.wait"
        )

    # --- what serves ---

    def _serving(self) -> tuple[list[str], dict[str, int]]:
        """Settings that name all servers, once each of them answers, and how often each has ended so far.

        Those that were lost are placed anew.
        """
        sets, ends = [], dict[str, int]()
        for part in self._parts[1:]:
            if part.name not in self._servers:
                _say(f"cluster: starting {part.count} x {part.name}")
                self._servers[part.name] = [self._start_server(part, at) for at in range(part.count)]
        for part in self._parts[1:]:
            news = self._answering(part)
            self._placed_anew.clear()
            ends |= {one.address: one.ends for one in news}
            addresses = [one.address for one in news]
            sets += self._browser_settings(addresses) if part.name == BROWSERS else self._vllm_settings(addresses)
        return [word for one in sets for word in ("--set", one)], ends

    def _browser_settings(self, addresses: list[str]) -> list[str]:
        named = [address.replace("http://", f"http://any:${TOKEN}@") for address in addresses]
        return [f"web.endpoint={json.dumps(named)}"]

    def _vllm_settings(self, addresses: list[str]) -> list[str]:
        if not self._weights:
            # In a file system that all nodes see.
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._weights = tempfile.mkdtemp(prefix=f".{self.out.name}-weights-", dir=self.out.parent)
        return [
            setting
            for role in placed_roles(self.recipe)
            for setting in (
                f"{role}.engine.servers={json.dumps(addresses)}",
                f"{role}.engine.folder={json.dumps(self._weights)}",
            )
        ]

    def _answering(self, part: Part) -> list[News]:
        """News of all servers of a part, once all of them answer. Raises `InfrastructureError` where one does not."""
        serving = self._servers[part.name]
        started = heard = time.monotonic()
        lost = 0
        while True:
            news = []
            for at in range(part.count):
                try:
                    news.append(self._ask(serving[at].news, seconds=1.0))
                except self.ray.exceptions.ActorDiedError as error:
                    if error.actor_init_failed:
                        raise InfrastructureError(f"a {part.name} cannot be started: {_line(error)}") from None
                    lost += 1
                    if lost > LOSSES:
                        raise InfrastructureError(f"a {part.name} is lost again and again: {_line(error)}") from None
                    _say(f"cluster: a {part.name} was lost ({_line(error)}), and is placed anew")
                    serving[at] = self._start_server(part, at)
                except self.ray.exceptions.RayError:
                    # It waits for room, or starts.
                    if time.monotonic() - heard > self.recipe.cluster.wait:
                        raise ConfigError(self._no_room()) from None
            if ended := [one for one in news if one.code is not None]:
                why = ended[0].reason or f"exit code {ended[0].code}"
                raise InfrastructureError(f"a {part.name} ended before it answered: {why}")
            if len(news) == part.count:
                heard = time.monotonic()
                if all(one.address for one in news):
                    return news
            if time.monotonic() - started > READY_SECONDS:
                raise InfrastructureError(f"a {part.name} does not answer after {READY_SECONDS:g} s; see `ray logs`")
            time.sleep(POLL)

    def _start_server(self, part: Part, at: int) -> Any:
        if part.name == BROWSERS:
            words = ["-m", "dynaweb", "web", "serve", "--sessions", str(self.recipe.cluster.sessions)]
            return self._actor(part, at, [*words, "--host", "{host}", "--port", "{port}"], path="/json/version")
        words = ["-m", "dynaweb.engines.vllm.serve", *vllm_arguments(self.recipe)]
        python = self.recipe.cluster.server_python
        # One that has died has lost the run's weights. It must not answer those who take it for the old one.
        return self._actor(part, at, words, path="/health", same_port=False, python=python)

    def _moved_server(self) -> str:
        """Which server was lost with its node and answers on another one by now; '' for none. Places lost ones anew."""
        for part in self._parts[1:]:
            for at, one in enumerate(self._servers[part.name]):
                times = self._placed_anew.get((part.name, at), 0)
                try:
                    news = self._ask(one.news, seconds=1.0)
                except self.ray.exceptions.ActorDiedError as error:
                    if times < LOSSES:
                        _say(f"cluster: a {part.name} was lost ({_line(error)}), and is placed anew")
                        self._servers[part.name][at] = self._start_server(part, at)
                        self._placed_anew[part.name, at] = times + 1
                except self.ray.exceptions.RayError:
                    continue  # it waits for room, or starts
                else:
                    if times and news.address:
                        return f"a {part.name} is on another node"
        return ""

    def _lost_server(self, ends: Mapping[str, int]) -> str:
        """Which server has died since; '' where all live."""
        for name, serving in self._servers.items():
            for one in serving:
                try:
                    news = self._ask(one.news)
                except self.ray.exceptions.RayError:
                    return f"a {name} was lost with its node"
                if ends.get(news.address) != news.ends:
                    return f"a {name} has died"
        return ""

    # --- the ranks ---

    def _life(self, settings: Sequence[str], *, resume: bool) -> tuple[int, str]:
        """One life of all ranks: the exit code of rank 0, and why there should be another one ('' for none)."""
        part = self._parts[0]
        words = ["-m", "dynaweb", *self.arguments, *settings, "--out", str(self.out), *(["--resume"] if resume else [])]
        ranks = [self._actor(part, at, words) for at in range(part.count)]
        wait = self.recipe.cluster.wait
        try:
            host, port = self._ask(ranks[0].place, seconds=wait)
            for rank, one in enumerate(ranks):
                where = {"RANK": rank, "WORLD_SIZE": part.count, "LOCAL_RANK": 0, "MASTER_ADDR": host}
                variables = {**where, "MASTER_PORT": port} if part.count > 1 else {}
                named = {name: str(value) for name, value in variables.items()}
                self._ask(one.start, named, seconds=wait)
        except self.ray.exceptions.GetTimeoutError:
            # A node went away, and what is left is too small.
            raise ConfigError(self._no_room()) from None
        except self.ray.exceptions.ActorDiedError as error:
            if error.actor_init_failed:
                raise InfrastructureError(f"a rank cannot be started: {_line(error)}") from None
            self._kill(ranks)
            return EXIT_FAILED, f"a rank was lost ({_line(error)})"
        self._ranks = ranks
        ended = self._watched(LOOK_SECONDS)
        self._end_ranks()
        return ended

    def _watched(self, look: float) -> tuple[int, str]:
        """Show what ranks say until all of them have ended; what `_life` returns.

        Every `look` seconds servers are looked at. Where one has another address, ranks save and end, to be told of it.
        """
        codes: list[int | None] = [None] * len(self._ranks)
        heard = [time.monotonic()] * len(self._ranks)
        lost: dict[int, str] = {}
        limit, next_look, moved = 0.0, time.monotonic() + look, ""
        while None in codes and codes[0] != 0 and (not limit or time.monotonic() < limit):
            for rank, one in enumerate(self._ranks):
                if codes[rank] is not None:
                    continue
                try:
                    news = self._ask(one.news)
                except self.ray.exceptions.RayError as error:
                    gone = isinstance(error, self.ray.exceptions.ActorDiedError)
                    if gone or time.monotonic() - heard[rank] > SILENCE:
                        codes[rank], lost[rank] = -signal.SIGKILL, f"rank {rank} was lost ({_line(error)})"
                    continue
                heard[rank], codes[rank] = time.monotonic(), news.code
                _forward(news, stdout=rank == 0)
            if not limit and any(codes):
                limit = time.monotonic() + GRACE
            if not moved and not limit and time.monotonic() > next_look:
                next_look = time.monotonic() + look
                if moved := self._moved_server():
                    self._ask(self._ranks[0].signal, int(signal.SIGTERM))
            time.sleep(POLL)
        if codes[0] == 0:
            return 0, ""
        for rank, code in enumerate(codes):
            if code is not None and code < 0:
                lost.setdefault(rank, f"rank {rank} was ended by signal {-code}")
        if codes[0] == EXIT_INTERRUPTED:
            lost.setdefault(0, moved or "rank 0 was interrupted")
        own = codes[0]
        return own if own is not None and own > 0 else EXIT_FAILED, next(iter(lost.values()), "")

    def _interrupted(self) -> int:
        """Rank 0 saves what is done and ends the others. A second interrupt ends everything."""
        if not self._ranks:
            raise KeyboardInterrupt
        with suppress(self.ray.exceptions.RayError):
            # The same as SIGINT, which is ignored below what was started in the background, as Ray may have been.
            self._ask(self._ranks[0].signal, int(signal.SIGTERM))
            self._watched(math.inf)
        return EXIT_INTERRUPTED

    def _end_ranks(self) -> None:
        self._kill(self._ranks)
        self._ranks = []

    def _end(self) -> None:
        """End all processes that are left, and give the room back."""
        serving = [one for actors in self._servers.values() for one in actors]
        with suppress(self.ray.exceptions.RayError):
            self.ray.get([one.stop.remote() for one in serving], timeout=2 * END_SECONDS)
        self._kill([*self._ranks, *serving])
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
        if self._weights:
            shutil.rmtree(self._weights, ignore_errors=True)

    # --- Ray ---

    def _actor(self, part: Part, at: int, words: Sequence[str], **named: Any) -> Any:
        """An actor in a place of a part, for a Python with these arguments."""
        first = sum(one.count for one in self._parts[: self._parts.index(part)])
        place = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        strategy = place(self._group, placement_group_bundle_index=first + at)
        actor = self.ray.remote(NodeChild).options(
            num_cpus=part.cpus, num_gpus=part.gpus, max_concurrency=4, scheduling_strategy=strategy
        )
        # A node's process has a path of its own to import from.
        return actor.remote([*python_options(), *words], self._environment, str(Path.cwd()), **named)

    def _ask(self, method: Any, *arguments: Any, seconds: float = 10.0) -> Any:
        """What a method of an actor returns. Raises Ray's errors, `GetTimeoutError` after so many seconds."""
        return self.ray.get(method.remote(*arguments), timeout=seconds)

    def _kill(self, actors: Sequence[Any]) -> None:
        for one in actors:
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(one)


class NodeChild(Child):
    """`Child` as an actor of Ray, which knows the address of its node."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, **named: Any) -> None:
        import ray

        super().__init__(arguments, environment, folder, host=ray.util.get_node_ip_address(), log=True, **named)


def _environment() -> dict[str, str]:
    """Variables for all processes: those that the command was typed with, and what servers ask for."""
    own = {name: value for name, value in os.environ.items() if name not in (*NODES_OWN, *LAUNCHERS)}
    return {TOKEN: secrets.token_urlsafe(24), KEY: secrets.token_urlsafe(24), **own, INSIDE: "1"}


def _engine(recipe: Recipe) -> VllmConfig:
    """How the servers of a run are started: as the first of their roles says."""
    return VllmConfig.model_validate(recipe.engine_of(placed_roles(recipe)[0]).settings)


def _options(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Options of vLLM for the settings in one of its sections."""
    return [word for key, value in settings.items() for word in (f"--{name}.{key}", str(value))]


def vllm_arguments(recipe: Recipe) -> list[str]:
    """Model and options of `dynaweb.engines.vllm.serve`, as the recipe's engine says; `cluster.server_options` last."""
    from dynaweb.trainer.models import resolve  # imports torch

    engine = _engine(recipe)
    adapters, seen = max(getattr(recipe, name).lora_rank for name in ("sft", "wm_fit", "rl")), recipe.observation
    return [
        resolve(recipe.model.path),
        *("--host", "{host}", "--port", "{port}"),
        *("--dtype", recipe.model.dtype if engine.dtype == "model" else engine.dtype),
        *(("--enforce-eager",) if engine.eager else ()),
        *(() if engine.compile or engine.eager else _options("compilation-config", UNCOMPILED)),
        *(("--max-model-len", str(engine.max_model_len)) if engine.max_model_len else ()),
        *(("--gpu-memory-utilization", str(engine.memory)) if engine.memory else ()),
        *(("--tensor-parallel-size", str(engine.tensor_parallel)) if engine.tensor_parallel > 1 else ()),
        *(("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(adapters)) if adapters else ()),
        *(("--enable-tower-connector-lora",) if adapters and seen.pictures and seen.train_vision else ()),
        *recipe.cluster.server_options,
    ]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _forward(news: News, *, stdout: bool) -> None:
    """What a rank has said: its errors and progress, and the results of rank 0."""
    for name, line in news.lines:
        if name == "stderr":
            sys.stderr.write(line)
        elif stdout:
            sys.stdout.write(line)
    sys.stdout.flush()
    sys.stderr.flush()


def _line(error: BaseException) -> str:
    """The last line of an error: of Ray's long accounts it is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
