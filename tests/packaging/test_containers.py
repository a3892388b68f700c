"""Containers: the image runs README's commands, and WebArena's sites come as a copy for each worker.

There is no Docker here: files are parsed, and processes stand in for the containers that `sites.py` starts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import ROOT

from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.copies import address_sets

FOLDER = ROOT / "containers" / "webarena"
SITES = str(FOLDER / "sites.py")
STAND_IN = ROOT / "tests" / "kits" / "docker_stand_in.py"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its text, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the build by its name, '' for the last one."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, text in instructions():
        if word == "FROM":
            current = found.setdefault(text.partition(" AS ")[2], [])
        elif found:
            current.append((word, text))
    return found


@pytest.mark.parametrize(("stage", "name"), [("run", "run"), ("test", "test")])
def test_the_image_runs_readmes_commands(stage: str, name: str) -> None:
    block = re.search(rf"<!-- command: {name} -->\n```bash\n(.*?)\n```", README, re.S)
    assert block is not None
    *parts, last = [part.strip() for part in block[1].split("&&")]
    ran = " && ".join(text for one in dict.fromkeys(["run", stage]) for word, text in stages()[one] if word == "RUN")
    for part in parts:
        assert part in ran, part
    (command,) = [json.loads(text) for word, text in stages()[stage] if word == "CMD"]
    assert " ".join(command) == last.removeprefix(".venv/bin/")


def test_the_image_runs_as_nobody_special_and_keeps_pips_files() -> None:
    built = stages()
    users = [text for word, text in built["run"] if word == "USER"]
    assert users[-1] == "dynaweb" and not [word for word, _ in built["test"] if word == "USER"]
    pips = [text for one in built.values() for word, text in one if word == "RUN" and "pip install" in text]
    assert pips and all("--mount=type=cache,target=/var/cache/pip" in text for text in pips)
    bases = [text.partition(" AS ")[0] for word, text in instructions() if word == "FROM"]
    assert bases == ["${BASE}", "run", "run"]
    arguments = dict(text.split("=", 1) for word, text in instructions() if word == "ARG")
    assert arguments["TORCH"].endswith("/cpu") and "cuda" not in arguments["BASE"]


def test_the_dev_container_is_a_stage_of_the_image() -> None:
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    build = settings["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert build["target"] in stages() and settings["remoteUser"] == "dynaweb"
    assert "-e '.[dev]'" in settings["postCreateCommand"]


def test_nothing_that_belongs_to_the_package_is_left_out_of_the_image() -> None:
    patterns = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
    ]

    def ignored(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[: at + 1]) for at in range(len(parts))]
        return any(
            fnmatch(one.rpartition("/")[2], pattern[3:]) if pattern.startswith("**/") else one == pattern
            for pattern in patterns
            for one in above
        )

    tops = ("dynaweb", "plugins", "tests", "docs", "containers")
    every = [str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*")]
    kept = [path for path in every if "__pycache__" not in path and ".ipynb_checkpoints" not in path]
    assert len(kept) > 500 and [path for path in kept if ignored(path)] == []
    assert ignored("runs/a/report.html") and ignored(".git/config") and ignored("dynaweb/runs/__pycache__/x.pyc")


# --- WebArena's sites


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))
    return loaded


def test_the_compose_file_has_the_published_images_with_ports_and_health_checks() -> None:
    plan = compose()
    published = {
        "shopping": ("shopping_final_0712", 7770),
        "shopping_admin": ("shopping_admin_final_0719", 7780),
        "reddit": ("postmill-populated-exposed-withimg", 9999),
        "gitlab": ("gitlab-populated-final-port8023", 8023),
        "wikipedia": ("ghcr.io/kiwix/kiwix-serve:3.3.0", 8888),
    }
    assert list(plan["services"]) == list(published)
    for site, (image, port) in published.items():
        service = plan["services"][site]
        assert service["image"] == f"${{{site.upper()}_IMAGE:-{image}}}"
        (address,) = service["ports"]
        assert address.startswith(f"${{BIND:-127.0.0.1}}:${{{site.upper()}_PORT:-{port}}}:")
        assert service["healthcheck"]["test"] and service["healthcheck"]["retries"] and service["networks"] == ["sites"]
        # What a worker changed is in its containers alone.
        assert all(volume.endswith(":ro") for volume in service.get("volumes", ()))
        assert "container_name" not in service
    assert plan["name"] == "webarena-${DYNAWEB_WORKER:-1}"
    assert plan["services"]["gitlab"]["command"] == ["/opt/gitlab/embedded/bin/runsvdir-start"]


def free_ports(count: int) -> int:
    """A port from which `count` steps of 100 are free; another one in each process, so that two do not meet."""
    begin = 21_000 + 300 * (os.getpid() % 30)
    for first in range(begin, begin + 97):
        try:
            for at in range(count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", first + 100 * at))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `sites.py` with processes in the place of containers, for the sites `shopping` and `reddit`."""
    first = free_ports(2)
    variables = {
        **os.environ,
        "STAND_IN": str(tmp_path / "daemon"),
        "WEBARENA_DOCKER": f"{sys.executable} {STAND_IN}",
        "SHOPPING_PORT": str(first),
        "REDDIT_PORT": str(first + 1),
        "WIKIPEDIA_PORT": str(first + 2),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SITES, *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)

    run.variables = variables  # type: ignore[attr-defined]
    try:
        yield run
    finally:
        for path in (tmp_path / "daemon").rglob("*.json"):
            with suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_workers_have_sites_of_their_own_that_are_reset_one_by_one(sites: Any, tmp_path: Path) -> None:
    done = sites("up", "--workers", "2", "--sites", "shopping,reddit", "--wait", "60")
    assert done.returncode == 0, done.stderr
    recipe = tomllib.loads(done.stdout)
    urls = recipe["env"]["urls"]
    first = int(sites.variables["SHOPPING_PORT"])
    assert urls == {
        "shopping": [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 100}"],
        "reddit": [f"http://127.0.0.1:{first + 1}", f"http://127.0.0.1:{first + 101}"],
    }
    # What is printed is what a recipe takes.
    settings = {key: value for key, value in recipe["env"].items() if key != "name"}
    assert len(address_sets(WebarenaConfig(**settings).urls)) == recipe["web"]["contexts"] == 2
    assert settings["reset_copy"].endswith("reset --host 127.0.0.1 {copy} {sites}")
    # Each was set up with its own address, by the commands of WebArena's README.
    for at, url in enumerate(urls["shopping"], 1):
        state = json.loads((tmp_path / "daemon" / f"webarena-{at}" / "shopping.json").read_text())
        assert state["base"] == url
        assert [command[0].rpartition("/")[2] for command in state["commands"]] == ["magento", "mysql", "magento"]
        assert f'value="{url}/"' in state["commands"][1][-1]
    for address in (urls["shopping"][0], urls["shopping"][0], urls["shopping"][1], urls["reddit"][0]):
        read(f"{address}/add")

    def baskets() -> list[str]:
        return [read(url) for site in ("shopping", "reddit") for url in urls[site]]

    assert baskets() == ["2 goods", "1 goods", "1 goods", "0 goods"]
    assert sites("reset", "1", "shopping", "--wait", "60").returncode == 0
    assert baskets() == ["0 goods", "1 goods", "1 goods", "0 goods"]
    done = sites("status", "--workers", "2", "--sites", "shopping,reddit")
    assert done.returncode == 0 and done.stdout.count(" answers") == 4
    assert sites("down", "--workers", "2").returncode == 0
    done = sites("status", "--workers", "1", "--sites", "shopping")
    assert done.returncode == 1 and "DOES NOT ANSWER" in done.stdout


@contextmanager
def serving_resets(sites: Any, *arguments: str) -> Iterator[str]:
    """The address of `sites.py serve`."""
    command = [sys.executable, SITES, "serve", "--port", "0", "--wait", "60", *arguments]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=sites.variables, stdout=pipe, stderr=nowhere, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.kill()


def test_resets_over_http_as_the_recipe_and_as_webarenas_reset_server_ask_for_them(sites: Any, tmp_path: Path) -> None:
    assert sites("up", "--workers", "2", "--sites", "shopping", "--wait", "60").returncode == 0
    first = int(sites.variables["SHOPPING_PORT"])
    with serving_resets(sites, "--workers", "2", "--sites", "shopping") as address:
        for port in (first, first + 100):
            read(f"http://127.0.0.1:{port}/add")
        assert read(f"{address}/reset?copy=2&sites=shopping,wikipedia") == "done"
        assert [read(f"http://127.0.0.1:{port}/") for port in (first, first + 100)] == ["1 goods", "0 goods"]
        for query, code in (("copy=3", 404), ("copy=x", 500), ("copy=1&sites=shop", 500)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                read(f"{address}/reset?{query}")
            assert caught.value.code == code
            caught.value.close()
        assert read(f"{address}/reset") == "begun"
        while (words := read(f"{address}/status")) == "resetting":
            pass
        assert words == "Ready for duty!" and read(f"http://127.0.0.1:{first}/") == "0 goods"


def test_a_worker_is_reset_by_one_at_a_time_whoever_asks(sites: Any) -> None:
    assert sites("up", "--sites", "reddit", "--wait", "60").returncode == 0
    with serving_resets(sites, "--sites", "reddit") as address, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(read, f"{address}/reset?copy=1&sites=reddit")
        command = pool.submit(sites, "reset", "1", "reddit", "--wait", "60")
        assert read(f"{address}/reset") == "begun"
        assert asked.result() == "done"
        assert (command.result().returncode, command.result().stderr) == (0, "")
        while (words := read(f"{address}/status")) == "resetting":
            time.sleep(0.05)
        assert words == "Ready for duty!"


def test_a_reset_of_all_that_fails_says_so(sites: Any) -> None:
    sites.variables["WEBARENA_DOCKER"] = "no-such-docker-here"
    with serving_resets(sites, "--sites", "shopping") as address:
        for _ in range(2):  # after one that failed comes another
            assert read(f"{address}/reset") == "begun"
            while (words := read(f"{address}/status")) == "resetting":
                time.sleep(0.05)
            assert words.startswith("failed: no-such-docker-here cannot be run")


def test_workers_start_and_stop_the_sites_that_are_named_and_no_others(sites: Any, tmp_path: Path) -> None:
    def running() -> set[str]:
        return {f"{path.parent.name[-1]} {path.stem}" for path in (tmp_path / "daemon").rglob("*.json")}

    # The encyclopedia is worker 1's alone.
    done = sites("up", "--workers", "2", "--sites", "wikipedia", "--wait", "60")
    assert (done.returncode, done.stderr, running()) == (0, "", {"1 wikipedia"})
    assert sites("up", "--workers", "2", "--sites", "reddit", "--wait", "60").returncode == 0
    assert sites("down", "--workers", "2", "--sites", "wikipedia").returncode == 0
    assert running() == {"1 reddit", "2 reddit"}
    assert sites("down", "--workers", "2").returncode == 0 and not running()
    for arguments, why in ((("up", "--sites", ","), "--sites names none"), (("reset", "0"), "there is no worker 0")):
        done = sites(*arguments)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {why}"), done.stderr


@pytest.mark.parametrize("folder", ["plain", "my repo", "it's", 'a "b" c', "back\\slash", "ünïcode 🙂", "$HOME"])
def test_the_recipe_resets_by_the_script_wherever_it_is(folder: str, tmp_path: Path) -> None:
    script = tmp_path / folder / "sites.py"
    script.parent.mkdir()
    script.write_bytes(Path(SITES).read_bytes())
    done = subprocess.run(
        [sys.executable, str(script), "recipe", "--workers", "2"], capture_output=True, text=True, check=True
    )
    config = WebarenaConfig(**{key: value for key, value in tomllib.loads(done.stdout)["env"].items() if key != "name"})
    expected = ["python3", str(script), "reset", "--host", "127.0.0.1", "{copy}", "{sites}"]
    assert shlex.split(config.reset_copy) == expected


def test_what_docker_says_stands_in_the_error(sites: Any, tmp_path: Path) -> None:
    done = sites("reset", "1", "shop")
    assert done.returncode == 1 and "there is no site 'shop'; sites are shopping, " in done.stderr
    sites.variables["WEBARENA_DOCKER"] = "no-such-docker-here"
    done = sites("up", "--sites", "shopping")
    assert done.returncode == 1 and done.stderr.startswith("error: no-such-docker-here cannot be run")
    broken = tmp_path / "docker"
    broken.write_text("#!/bin/sh\necho 'no such image: shopping_final_0712' >&2\nexit 18\n")
    broken.chmod(0o755)
    sites.variables["WEBARENA_DOCKER"] = str(broken)
    done = sites("up", "--sites", "shopping")
    assert done.returncode == 1 and "failed (exit 18): no such image: shopping_final_0712" in done.stderr
