"""`dynaweb run --cluster`: what is asked of a cluster, what is said where it is not to be had, lives of real processes.

Nodes and room are a stand-in's (`ray_kit`); `scripts/check_ray.py` does the same with Ray itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from core_kit import Cli
from ray_kit import LocalRay

from dynaweb import api
from dynaweb.commands import cluster
from dynaweb.commands.cluster import ClusterRun, connected, layout, vllm_arguments
from dynaweb.config import Recipe, resolve
from dynaweb.config.agreement import check_agreement, used_extras
from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.plugin.registry import current
from dynaweb.runs.child import Child, News
from dynaweb.runs.folder import open_run
from dynaweb.runs.processes import free_port

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()
        self.wfile.write(b"%d" % __import__("os").getpid())
    def log_message(self, *words): pass
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
rank, lives = os.environ.get("RANK", "0"), out.parent / "lives.jsonl"
if rank == "0":
    out.mkdir(exist_ok=True)
    (out / "recipe.json").write_text("{}")
    with lives.open("a") as file:
        file.write(json.dumps({"argv": sys.argv[1:], **{k: v for k, v in os.environ.items() if k in KEYS}}) + "\\n")
life = len(lives.read_text().splitlines()) if lives.exists() else 1
def die(number): os.kill(os.getpid(), number); time.sleep(60)
WHAT
"""


def recipe_of(*sets: str, recipe: str = "smoke") -> Recipe:
    return resolve(recipe, overrides=["cluster.address=auto", *sets])


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    limit = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return value


# --- what is asked for ---


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ((), [("trainer", 1, 1, 1)]),
        (("cluster.trainers=4", "model.device=cpu", "cluster.trainer_cpus=2.5"), [("trainer", 4, 2.5, 0)]),
        (("cluster.browsers=3",), [("trainer", 1, 1, 1), ("browser pool", 3, 1, 0)]),
        (
            ("cluster.servers=2", "wm.engine.name=vllm", "wm.engine.tensor_parallel=4"),
            [("trainer", 1, 1, 1), ("vLLM server", 2, 1, 4)],
        ),
    ],
)
def test_the_layout_of_a_recipe(sets: tuple[str, ...], expected: list[tuple[str, int, float, float]]) -> None:
    assert [(part.name, part.count, part.cpus, part.gpus) for part in layout(recipe_of(*sets))] == expected


def test_servers_are_started_as_the_engine_of_their_roles_says() -> None:
    engine = ("reward.engine.name=vllm", "reward.engine.eager=true", "reward.engine.max_model_len=512")
    recipe = recipe_of("cluster.servers=1", *engine, "rl.lora_rank=8", "cluster.server_options=--max-num-seqs,16")
    words = vllm_arguments(recipe)
    assert (Path(words[0]) / "config.json").is_file()
    text = " ".join(words[1:])
    assert text == (
        "--host {host} --port {port} --dtype float32 --enforce-eager --max-model-len 512 "
        "--enable-lora --max-loras 1 --max-lora-rank 8 --max-num-seqs 16"
    )
    uncompiled = recipe_of("cluster.servers=1", "reward.engine.name=vllm", "reward.engine.compile=false")
    assert " ".join(vllm_arguments(uncompiled)[1:]) == (
        "--host {host} --port {port} --dtype float32 "
        "--compilation-config.mode 0 --compilation-config.cudagraph_mode FULL_DECODE_ONLY"
    )


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("cluster.servers=1",), "no role would ask them"),
        (("cluster.servers=1", "policy.engine.name=vllm", "policy.engine.replicas=1"), "no role would ask them"),
        (("cluster.browsers=1", "web.endpoint=http://a:1"), "web.endpoint names others"),
    ],
)
def test_parts_that_nobody_would_use_are_refused(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_agreement(recipe_of(*sets), current())


def test_a_dry_run_prints_the_layout(cli: Cli) -> None:
    arguments = ("run", "smoke", "--dry-run", "--on", "8xh100", "--cluster", "head:6379")
    arguments += ("--set", "cluster.trainers=16", "--set", "cluster.browsers=2")
    done = cli(*arguments)
    assert "Layout over the Ray cluster head:6379" in done.stdout
    assert "in all        18         18            16" in done.stdout
    # Sixteen ranks are on two such machines.
    assert "16 x NVIDIA H100" in done.stdout and done.returncode == 0
    plan = json.loads(cli(*arguments, "--json").stdout)
    assert [(part["name"], part["count"]) for part in plan["cluster"]] == [("trainer", 16), ("browser pool", 2)]
    assert "Layout over" not in cli("run", "smoke", "--dry-run").stdout


# --- what is said ---


def test_ray_is_an_extra() -> None:
    assert list(used_extras(recipe_of())) == [("ray", "cluster.address = auto")]
    assert not [extra for extra, _ in used_extras(resolve("smoke")) if extra == "ray"]


def test_without_ray_one_line_says_so(cli: Cli, tmp_path: Path) -> None:
    if "ray" in sys.modules or __import__("importlib.util").util.find_spec("ray"):
        pytest.skip("Ray is installed")
    done = cli("run", "smoke", "--cluster", "auto", "--out", str(tmp_path / "run"))
    assert done.returncode == 3 and not (tmp_path / "run").exists()
    assert done.stderr == "error: --cluster needs Ray, which is not installed; run: pip install 'dynaweb[ray]'\n"


@pytest.mark.parametrize("more", [("--nproc", "2"), ("--nproc", "1")])
def test_a_cluster_and_processes_of_this_machine_are_two_things(cli: Cli, more: tuple[str, ...]) -> None:
    done = cli("run", "smoke", "--cluster", "auto", *more)
    assert done.returncode == 2 and "--set cluster.trainers=N" in done.stderr


def test_python_is_told_that_the_command_places_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for the command `dynaweb run`"):
        api.run(recipe_of(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "is none of auto, local and HOST:PORT"),
        ("127.0.0.1:many", "has no valid port"),
        ("127.0.0.1:{free}", "no Ray cluster answers at 127.0.0.1"),
    ],
)
def test_an_address_where_nobody_is(address: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", LocalRay())
    with pytest.raises(ConfigError, match=words), connected(address.format(free=free_port())):
        pytest.fail("nobody is there")


def test_ray_address_counts_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", LocalRay())
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match="start one with `ray start --head`"), connected("auto"):
        pytest.fail("nobody is there")


@pytest.mark.parametrize(
    ("ray", "sets", "words"),
    [
        (LocalRay([1.0]), ("cluster.trainers=2",), r"wanted are 2 CPUs \(1 of 1 are free\)"),
        # Enough in all, and no node for one of them.
        (LocalRay([1.0, 1.0]), ("cluster.trainer_cpus=2",), r"2 node\(s\) had no room for 1 x trainer"),
        (LocalRay([8.0], gpus=1.0), ("cluster.trainers=2",), r"2 GPUs \(1 of 1 are free\)"),
    ],
)
def test_no_room(ray: LocalRay, sets: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ClusterRun(recipe_of(*sets, "cluster.wait=0.1"), ["run"], tmp_path / "run", ray).to_its_end(resume=False)
    assert "\n" not in str(caught.value) and not ray.actors


# --- one process ---


@pytest.fixture
def children() -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def make(code: str, *arguments: str, **named: Any) -> Child:
        made.append(Child(["-c", code, *arguments], {}, os.getcwd(), **named))
        return made[-1]

    yield make
    for child in made:
        child.stop()


def ended(child: Child) -> News:
    lines: list[tuple[str, str]] = []

    def news() -> News | None:
        latest = child.news()
        lines.extend(latest.lines)
        return latest if latest.code is not None else None

    last: News = wait_for(news)
    return News(tuple(lines), last.code, last.address, last.ends, last.reason)


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        ("import sys; print('out'); sys.exit('error: no memory')", 1, "error: no memory"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("pass", 0, ""),
    ],
)
def test_output_and_end_of_a_process(children: Callable[..., Child], code: str, exit_code: int, reason: str) -> None:
    child = children(code)
    child.start({})
    news = ended(child)
    assert (news.code, news.ends) == (exit_code, 1) and news.reason.startswith(reason)
    assert ("stdout", "out\n") in news.lines or "out" not in code


def test_variables_of_a_process(children: Callable[..., Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_TEST", "node")
    child = children("import os; print(os.environ['CLUSTER_TEST'], os.environ.get('RANK'))")
    child.start({"CLUSTER_TEST": "command", "RANK": "1"})
    assert ended(child).lines == (("stdout", "command 1\n"),)


def test_a_process_hears_of_an_interrupt_where_its_holder_does_not(children: Callable[..., Child]) -> None:
    child = children("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in Ray's processes
    try:
        child.start({})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended(child).lines == (("stdout", "set()\n"),)


def test_a_program_that_is_not_there(children: Callable[..., Child]) -> None:
    child = children("pass", python="/no/such/python")
    child.start({})
    assert ended(child).code == 127 and "/no/such/python cannot be started" in ended(child).reason


def test_a_folder_that_a_node_does_not_see(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="all nodes must see the same file system"):
        Child(["-c", "pass"], {}, str(tmp_path / "none"))


@pytest.mark.parametrize("same_port", [True, False])
def test_a_server_that_dies_is_started_again(children: Callable[..., Child], same_port: bool) -> None:
    child = children(SERVER, "{host}", "{port}", path="/ready", same_port=same_port)
    first = wait_for(lambda: child.news().address)
    child.signal(signal.SIGKILL)
    wait_for(lambda: child.news().ends == 1)
    again = wait_for(lambda: child.news().address)
    assert (again == first) is same_port and child.news().code is None


def test_a_server_that_never_answers_is_not_started_again(children: Callable[..., Child]) -> None:
    child = children("import sys; sys.exit('error: no such model')", path="/ready")
    news = ended(child)
    assert (news.code, news.ends, news.reason) == (1, 1, "error: no such model")


def test_what_a_process_has_started_ends_with_it(children: Callable[..., Child]) -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    child = children(code)
    child.start({})
    (line,) = ended(child).lines
    wait_for(lambda: not psutil.pid_exists(int(line[1])))


def test_processes_end_with_a_holder_that_is_killed() -> None:
    code = (
        "import os, time; from dynaweb.runs.child import Child\n"
        "child = Child(['-c', 'import os, time; print(os.getpid()); time.sleep(600)'], {}, os.getcwd(), log=True)\n"
        "child.start({})\n"
        "while not (lines := child.news().lines): time.sleep(0.02)\n"
        "time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        number = int(holder.stdout.readline())
        assert psutil.pid_exists(number)
        holder.kill()
        holder.wait()
        wait_for(lambda: not psutil.pid_exists(number))


# --- lives of a run ---


class Run:
    """`ClusterRun` with a program in the place of dynaweb."""

    def __init__(self, folder: Path, what: str, *sets: str, ray: Any = None) -> None:
        self.folder, self.ray = folder, ray or LocalRay()
        package = folder / "program" / "dynaweb"
        package.mkdir(parents=True)
        keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", cluster.TOKEN, cluster.KEY, cluster.INSIDE)
        program = PROGRAM.replace("KEYS", repr(keys)).replace("WHAT", what)
        (package / "__main__.py").write_text(program)
        (package / "__init__.py").write_text("")
        self.run = ClusterRun(recipe_of(*sets), ["run", "smoke"], folder / "run", self.ray)
        self.run._environment["PYTHONPATH"] = str(folder / "program")

    def to_its_end(self, *, resume: bool = False) -> int:
        code = self.run.to_its_end(resume=resume)
        wait_for(lambda: not any(self.alive(actor) for actor in getattr(self.ray, "actors", [])))
        return code

    @staticmethod
    def alive(actor: Any) -> bool:
        process = actor.child._process if actor.child is not None else None
        return process is not None and process.poll() is None

    @property
    def lives(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "lives.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Python looks for modules in its working directory first.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "GRACE", 2.0)
    monkeypatch.setattr(cluster, "POLL", 0.05)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.2)


def test_ranks_know_each_other_and_rank_0_tells_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, "print('rank', rank); sys.stderr.write(f'progress {rank}\\n')", "cluster.trainers=2")
    assert run.to_its_end() == 0
    out, err = capsys.readouterr()
    assert out == "rank 0\n" and "progress 0" in err
    (life,) = run.lives
    assert life["argv"] == ["run", "smoke", "--out", str(tmp_path / "run")]
    assert (life["RANK"], life["WORLD_SIZE"], life["LOCAL_RANK"], life[cluster.INSIDE]) == ("0", "2", "0", "1")
    assert not run.ray.bundles


def test_a_rank_that_dies_has_all_placed_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = "if life == 1 and rank == '1': time.sleep(0.5); die(9)\nif life == 1: time.sleep(60)\nprint('done')"
    run = Run(tmp_path, what, "cluster.trainers=2")
    assert run.to_its_end() == 0
    out, err = capsys.readouterr()
    assert out == "done\n" and "rank 1 was ended by signal 9; the ranks are placed anew" in err
    first, second = run.lives
    assert "--resume" not in first["argv"] and second["argv"][-1] == "--resume"
    assert first["MASTER_PORT"] != second["MASTER_PORT"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Ray and of what it uses
def test_with_ray_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    what = "if life == 1 and rank == '1': time.sleep(2); die(9)\nif life == 1: time.sleep(60)\nprint('done')"
    with connected("local") as ray:
        assert Run(tmp_path, what, "cluster.trainers=2", "cluster.trainer_cpus=0.5", ray=ray).to_its_end() == 0
        wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    out, err = capfd.readouterr()
    assert out == "done\n" and "rank 1 was ended by signal 9; the ranks are placed anew" in err


@pytest.mark.parametrize(
    ("what", "code", "lives", "words"),
    [
        ("die(9)", 1, 3, "error: rank 0 was ended by signal 9, and cluster.restarts are used up"),
        ("sys.exit(1)", 1, 1, ""),
        ("sys.exit(3)", 3, 1, ""),
        # A node that is taken away ends its processes in order.
        ("sys.exit(130 if life == 1 else 0)", 0, 2, "rank 0 was interrupted"),
    ],
)
def test_which_ends_are_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, code: int, lives: int, words: str
) -> None:
    run = Run(tmp_path, what, "cluster.restarts=2")
    assert (run.to_its_end(), len(run.lives)) == (code, lives)
    assert words in capsys.readouterr().err


def test_an_error_of_another_rank_is_shown_and_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, "if rank == '1': sys.exit('rank 1 failed: a bug')\ntime.sleep(60)", "cluster.trainers=2")
    assert run.to_its_end() == 1 and len(run.lives) == 1
    assert "rank 1 failed: a bug" in capsys.readouterr().err


def test_a_node_that_goes_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, "if life == 1: time.sleep(60)", "cluster.trainers=2")

    def lose() -> None:
        wait_for(lambda: (tmp_path / "lives.jsonl").exists())
        run.ray.actors[1].lose()

    thread = threading.Thread(target=lose)
    thread.start()
    assert run.to_its_end() == 0 and len(run.lives) == 2
    thread.join()
    assert "rank 1 was lost (its node has died); the ranks are placed anew" in capsys.readouterr().err


def test_a_folder_that_a_node_does_not_see_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, "pass")
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "here")
    with pytest.raises(
        InfrastructureError, match=r"a rank cannot be started: FileNotFoundError: .* all nodes must see"
    ):
        run.to_its_end()


def serving(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain servers in the place of browser pools and vLLM."""

    def start(part: Any, at: int) -> Any:
        moves = part.name != cluster.BROWSERS
        return run.run._actor(part, at, ["-c", SERVER, "{host}", "{port}"], path="/ready", same_port=not moves)

    monkeypatch.setattr(run.run, "_start_server", start)


VLLM = ("cluster.servers=2", "policy.engine.name=vllm", "reward.engine.name=vllm")


def test_ranks_are_told_of_servers_that_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, "pass", *VLLM, "cluster.browsers=1")
    serving(run, monkeypatch)
    assert run.to_its_end() == 0
    (life,) = run.lives
    sets = dict(word.split("=", 1) for word in life["argv"] if ".engine." in word or "web." in word)
    roles = [f"{role}.engine.{name}" for role in ("policy", "reward") for name in ("folder", "servers")]
    assert sorted(sets) == [*roles, "web.endpoint"]
    servers = json.loads(sets["policy.engine.servers"])
    assert len(set(servers)) == 2 and sets["reward.engine.servers"] == sets["policy.engine.servers"]
    (pool,) = json.loads(sets["web.endpoint"])
    # The token itself is in no command line.
    assert pool.startswith(f"http://any:${cluster.TOKEN}@127.0.0.1:") and len(life[cluster.TOKEN]) > 20
    assert not Path(json.loads(sets["policy.engine.folder"])).exists(), "weights stay behind"
    words = [*VLLM[1:], *(f"{name}={value}" for name, value in sets.items())]
    recipe = resolve("smoke", overrides=words)
    assert recipe.web.endpoint == (pool,) and list(recipe.policy.engine.settings["servers"]) == servers


def test_a_run_that_its_last_server_ends_goes_on_with_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, "if life == 1: time.sleep(1); sys.exit(1)", *VLLM)
    serving(run, monkeypatch)

    def kill() -> None:
        wait_for(lambda: (tmp_path / "lives.jsonl").exists())
        run.ray.actors[0].child.signal(signal.SIGKILL)  # type: ignore[union-attr]

    thread = threading.Thread(target=kill)
    thread.start()
    assert run.to_its_end() == 0
    thread.join()
    assert "a vLLM server has died; the ranks are placed anew" in capsys.readouterr().err
    first, second = (
        next(word for word in life["argv"] if word.startswith("policy.engine.servers")) for life in run.lives
    )
    # It has lost the run's weights: nobody may take it for the old one.
    assert first != second


def test_a_server_that_is_lost_with_its_node_is_placed_anew_and_ranks_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = "def stop(*_): sys.exit(130)\nsignal.signal(signal.SIGTERM, stop)\nif life == 1: time.sleep(60)"
    run = Run(tmp_path, what, "cluster.browsers=1")
    serving(run, monkeypatch)

    def lose() -> None:
        wait_for(lambda: (tmp_path / "lives.jsonl").exists())
        time.sleep(0.5)
        run.ray.actors[0].lose()

    thread = threading.Thread(target=lose)
    thread.start()
    assert run.to_its_end() == 0
    thread.join()
    assert "a browser pool is on another node; the ranks are placed anew" in capsys.readouterr().err
    first, second = (next(word for word in life["argv"] if word.startswith("web.endpoint")) for life in run.lives)
    assert first != second and run.lives[1]["argv"][-1] == "--resume"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["-c", "import sys; sys.exit('ValueError: no such model')"], "ended before it answered: ValueError: no such"),
        (["-c", "pass"], "ended before it answered: exit code 0"),
    ],
)
def test_a_server_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: list[str], words: str
) -> None:
    run = Run(tmp_path, "pass", "cluster.browsers=1")
    monkeypatch.setattr(run.run, "_start_server", lambda part, at: run.run._actor(part, at, program, path="/ready"))
    with pytest.raises(InfrastructureError, match=f"a browser pool {words}"):
        run.to_its_end()
    assert not (tmp_path / "lives.jsonl").exists()


def test_a_server_that_is_lost_before_it_answers_is_placed_anew_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, "pass", "cluster.browsers=1")
    starts = []

    def start(part: Any, at: int) -> Any:
        starts.append(run.run._actor(part, at, ["-c", "import time; time.sleep(60)"], path="/ready"))
        starts[-1].lose()
        return starts[-1]

    monkeypatch.setattr(run.run, "_start_server", start)
    with pytest.raises(InfrastructureError, match="is lost again and again: its node has died"):
        run.to_its_end()
    assert len(starts) == cluster.LOSSES + 1


def test_an_interrupt_reaches_rank_0_alone_and_waits_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = (
        "def stop(*_): raise KeyboardInterrupt\nsignal.signal(signal.SIGTERM, stop)\n"
        "if rank == '0':\n    try: time.sleep(60)\n"
        "    except KeyboardInterrupt: time.sleep(1); sys.stderr.write('saved\\n'); sys.exit(130)\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: sys.stderr.write('not for me\\n')"
    )
    run = Run(tmp_path, what, "cluster.trainers=2")

    def interrupt() -> None:
        wait_for(lambda: (tmp_path / "lives.jsonl").exists())
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run.to_its_end() == 130
    thread.join()
    err = capsys.readouterr().err
    assert "saved" in err and "not for me" not in err and len(run.lives) == 1


def test_a_run_goes_on_whatever_cluster_it_was_on(tmp_path: Path) -> None:
    servers = "policy.engine.servers=['http://{}:1']"
    before = recipe_of("policy.engine.name=vllm", servers.format("a"), "cluster.servers=1")
    open_run(before, out=tmp_path / "run")
    after = resolve("smoke", overrides=["policy.engine.name=vllm", servers.format("b"), "policy.engine.folder=/tmp"])
    assert open_run(after, out=tmp_path / "run", resume=True).resumed
    with pytest.raises(ConfigError, match=r"policy\.engine\.name"):
        open_run(resolve("smoke"), out=tmp_path / "run", resume=True)
