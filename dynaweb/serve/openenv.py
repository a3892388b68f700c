"""Every environment as an OpenEnv server, and the client that speaks to it.

    app = create_app(recipe, split="train")          # `dynaweb env serve sites` runs it
    with WebClient(base_url="http://127.0.0.1:8000").sync() as client:
        page = client.reset(seed=0).observation
        result = client.step(WebAction(text="click 'Cart' [4]"))

Each session has an environment of its own; all share one browser. The protocol is that of the package `openenv-core`.
"""

from __future__ import annotations

import logging
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server import http_server
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from dynaweb.errors import ConfigError
from dynaweb.rollout.tasks import known, named
from dynaweb.serve.environment import LoopThread, ServedEnvironment
from dynaweb.serve.episode import TextEpisode, Turn
from dynaweb.serve.gate import IDLE, LONGEST, Gate, is_local

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.types import Task


class WebAction(Action):
    """A reply of a policy; its last line is the action, in the grammar `compact`."""

    text: str = Field(description="such as: click 'Cart' [4]")


class WebObservation(Observation):
    """A page. `reward` is 0 until the end and then the verdict's score; None when the episode could not be graded.

    `why` is the reason of the verdict; the protocol's own `metadata` does not reach clients.
    """

    goal: str = ""
    url: str = ""
    page: str = ""
    error: str = ""
    task: str = ""
    truncated: bool = False
    why: str = ""


class WebState(State):
    """Where an episode is."""

    task: str = ""
    goal: str = ""
    done: bool = False


class Shared:
    """What the sessions of a server share: the environment with its browser, in one event loop, and the tasks."""

    def __init__(self, recipe: Recipe, *, split: str, tasks: int, max_steps: int, world_model: Path | None) -> None:
        self.served = ServedEnvironment(recipe, world_model=world_model)
        self.tasks: list[Task] = self.served.tasks(split, tasks)
        self.max_steps = max_steps or recipe.eval.steps
        self.thread = LoopThread()

    def task(self, wanted: str) -> Task:
        """The task of an id. Raises `ConfigError` for one that is not known."""
        return known(self.served.source, wanted) or named(wanted, self.tasks)

    def close(self) -> None:
        """End the browser; calling it twice is allowed."""
        if not self.thread.closed:
            self.thread.run(self.served.close())
            self.thread.close()


class WebEnvironment(Environment[WebAction, WebObservation, WebState]):
    """One session's environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared
        self._episode = TextEpisode(shared.served, max_steps=shared.max_steps)
        self._turn: Turn | None = None
        self._id = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> WebObservation:
        """Start a task: the one that the seed draws, or the one whose id is `task`."""
        rng = random.Random(seed)
        wanted = options.get("task")
        task = self._shared.task(str(wanted)) if wanted else rng.choice(self._shared.tasks)
        self._id = episode_id or f"{task.id}#{seed}"
        self._turn = self._shared.thread.run(self._episode.start(task, rng.randrange(2**31)))
        return _observation(self._turn)

    def step(self, action: WebAction, timeout_s: float | None = None, **_: Any) -> WebObservation:
        """Act. A refused reply costs a step and comes back with `error`.

        Raises `ConfigError` where no episode is running.
        """
        if self._turn is None or self._turn.done:
            raise ConfigError("no episode is running: reset first, in the same session of the WebSocket /ws")
        self._turn = self._shared.thread.run(self._episode.reply(action.text))
        return _observation(self._turn)

    @property
    def state(self) -> WebState:
        """Where the episode is."""
        turn = self._turn
        if turn is None:
            return WebState(episode_id=self._id, step_count=0)
        return WebState(
            episode_id=self._id,
            step_count=self._episode.steps,
            task=turn.task.id,
            goal=turn.task.intent,
            done=turn.done,
        )

    def close(self) -> None:
        """End the session; the shared browser stays."""
        if not self._shared.thread.closed:
            self._shared.thread.run(self._episode.close())


class WebClient(EnvClient[WebAction, WebObservation, WebState]):
    """The client of these servers."""

    def _step_payload(self, action: WebAction) -> dict[str, Any]:
        return dict(action.model_dump())

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[WebObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done"))
        page = WebObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=page, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> WebState:
        return WebState(**payload)


def create_app(shared: Shared, *, name: str, sessions: int, token: str = "", idle: float = IDLE) -> Any:
    """The ASGI application behind its gate; `sessions` clients may play at once.

    Without a `token` it answers to local host names only; a session that is silent for `idle` seconds ends.
    """
    app = http_server.create_app(
        lambda: WebEnvironment(shared), WebAction, WebObservation, env_name=name, max_concurrent_envs=sessions
    )
    # There are no tools here, and its sessions would have no end.
    return Gate(app, token=token, idle=idle, closed=("/mcp",))


def check_port(host: str, port: int) -> None:
    """Raises `ConfigError` when nothing can listen there, before anything is made ready."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be listened on ({error.strerror}); choose another --port") from None


def serve(
    shared: Shared, *, name: str, host: str, port: int, sessions: int, token: str = "", idle: float = IDLE
) -> None:
    """Run the server until it is interrupted. Raises `ConfigError` for an address of others without a token."""
    import uvicorn

    if not token and not is_local(host):
        raise ConfigError(f"whoever reaches {host} could drive the browser; give a token, or listen on 127.0.0.1")
    app = create_app(shared, name=name, sessions=sessions, token=token, idle=idle)
    logging.getLogger("uvicorn.error").addFilter(_not_a_leaver)
    try:
        uvicorn.run(app, host=host, port=port, log_level="warning", ws_max_size=LONGEST)
    finally:
        shared.close()


def _not_a_leaver(record: logging.LogRecord) -> bool:
    """False for a client that went away first: the package then closes a connection that is closed already."""
    from starlette.websockets import WebSocketDisconnect

    return not (record.exc_info and isinstance(record.exc_info[1], WebSocketDisconnect))


def _observation(turn: Turn) -> WebObservation:
    why = turn.verdict.why if turn.verdict is not None else ""
    return WebObservation(
        done=turn.done,
        reward=turn.reward,
        goal=turn.task.intent,
        url=turn.page.url,
        page=turn.text,
        error=turn.error,
        task=turn.task.id,
        truncated=turn.truncated,
        why=why,
    )
