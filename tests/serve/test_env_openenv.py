"""`dynaweb env serve`: a real server process, played by the clients of the package openenv-core."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("openenv")

from judge_kit import said
from openenv.core.generic_client import GenericEnvClient

from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.judges.scores import bent
from dynaweb.protocols import EnvironmentContext
from dynaweb.serve.environment import ServedEnvironment
from dynaweb.serve.openenv import WebAction, WebClient, check_port
from dynaweb.types import Action
from dynaweb.web.actions.grammar import format_action
from dynaweb.web.page.text import parse_compact
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.env import SitesSource

STATIC = ("--set", "env.driver=static")
DREAM = (
    *("--set", "env.tasks=sites", "--set", "env.task_settings.driver=static", "--set", "model.threads=1"),
    *("--set", "wm.max_new_tokens=24", "--set", "wm.retries=0"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("served"), "sites", "--tasks", "6", *STATIC) as address:
        yield address


@contextmanager
def serving(folder: Path, name: str, *options: str, **environment: str) -> Iterator[str]:
    """The address of a server process that offers an environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dynaweb", "env", "serve", name, "--port", str(port), *options]
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        _wait_for(port, server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no server after 60 s: {log.read_text()}")


def test_the_client_plays_a_task_to_its_reward(url: str) -> None:
    source = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    tasks = {task.id: task for task in source.tasks("train", count=6, seed=0)}
    with WebClient(base_url=url).sync() as client:
        result = client.reset(seed=3)
        assert result.observation.task in tasks and result.observation.goal == tasks[result.observation.task].intent
        expert = source.expert(tasks[result.observation.task])
        while not result.done:
            action: Action = expert.act(parse_compact(result.observation.page))
            result = client.step(WebAction(text=format_action(action)))
            assert result.observation.error == ""
        assert result.reward == 1.0 and not result.observation.truncated and result.observation.why
        state = client.state()
        assert state.done and state.task == result.observation.task and state.step_count > 0
        with pytest.raises(RuntimeError, match="no task is called 'shop/none'"):
            client.reset(task="shop/none")
        other = source.tasks("test", count=1, seed=9)[0]
        assert client.reset(task=other.id).observation.goal == other.intent


def test_a_seed_gives_the_same_episode_and_sessions_do_not_meet(url: str) -> None:
    with WebClient(base_url=url).sync() as one, WebClient(base_url=url).sync() as other:
        first, again = one.reset(seed=4).observation, other.reset(seed=4).observation
        assert first == again
        one.step(WebAction(text="stop 'x'"))
        assert one.state().done and not other.state().done
        assert "not an action" in other.step(WebAction(text="jump")).observation.error


def test_a_client_that_knows_nothing_of_us_plays_too(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as client:
        assert client.reset(seed=0).observation["page"]
        result = client.step({"text": "stop 'no idea'"})
        assert result.done and result.reward == 0.0


def answer(address: str, path: str, body: object, **headers: str) -> tuple[int, str]:
    """Status and text of a POST."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_bad_calls_are_the_caller_s_fault_and_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, "sites", "--tasks", "2", "--idle", "1", "--sessions", "1", *STATIC) as address:
        assert answer(address, "/reset", {"seed": 1})[0] == 200
        for path, body in [
            ("/reset", {"task": "shop/none"}),
            ("/reset", {"task": ["x"]}),
            ("/reset", {"seed": "x"}),
            ("/reset", b"{"),
            ("/reset", b"[" * 100_000),
            ("/reset", [1]),
            ("/step", {"action": {"text": "stop ''"}}),
            ("/step", {"action": {"text": 3}}),
            ("/step", {}),
            ("/mcp", {"method": "openenv/session/create"}),
            ("/none", {}),
        ]:
            status, text = answer(address, path, body)
            assert 400 <= status < 500 and "\n" not in text, (path, body, status, text)
        assert answer(address, "/reset", {}, Host="evil.example")[0] == 421
        assert answer(address, "/reset", {}, Origin="http://evil.example")[0] == 403
        with WebClient(base_url=address).sync() as silent:
            assert silent.reset(seed=0).observation.page
            time.sleep(2)
            with WebClient(base_url=address).sync() as other:
                assert other.reset(seed=0).observation.page
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_an_address_of_others_needs_a_token(tmp_path: Path) -> None:
    token = {"DYNAWEB_SERVE_TOKEN": "canary-token"}
    with serving(tmp_path, "sites", "--tasks", "2", "--host", "0.0.0.0", *STATIC, **token) as address:
        assert answer(address, "/reset", {})[0] == 401
        assert answer(address, "/reset", {}, Authorization="Bearer canary-token")[0] == 200
        with pytest.raises(ConnectionError):
            WebClient(base_url=address).sync().reset(seed=0)
        with WebClient(base_url=address.replace("//", "//any:canary-token@")).sync() as client:
            assert client.reset(seed=0).observation.page
    log = (tmp_path / "log").read_text()
    assert "canary-token" not in log and "Traceback" not in log


def test_dreams_are_served_and_judged(tmp_path: Path) -> None:
    """What others train on: a real first page, dreamed ones after it, the judge's score at the end."""
    with (
        serving(tmp_path, "dream", "--tasks", "2", "--steps", "4", *DREAM) as address,
        WebClient(base_url=address).sync() as client,
    ):
        first = client.reset(seed=0)
        again = client.reset(seed=0)
        assert first.observation.page and first.observation == again.observation and not first.done
        page = parse_compact(first.observation.page)
        link = next(node for node in page.nodes if node.role == "link")
        dreamed = client.step(WebAction(text=f"click '{link.name}' [{link.id}]"))
        assert dreamed.observation.page and dreamed.observation.error == "" and dreamed.reward == 0.0
        refused = client.step(WebAction(text="click 'Nothing' [999]"))
        assert "no element [999]" in refused.observation.error
        ended = client.step(WebAction(text="stop ''"))
        assert ended.done and ended.reward == pytest.approx(bent(said(ended.observation.why), 0.95), abs=0.01)
    # Also none for clients that are gone before their connection is closed.
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another --port"):
        check_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="there is no world model in"):
        ServedEnvironment(resolve(env="dream"), world_model=tmp_path / "none")
