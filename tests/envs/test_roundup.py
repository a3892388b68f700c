"""examples/roundup: a third-party application whose tasks can be solved, and the whole loop on it from files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tarfile
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import roundup_solver as solver
from chat_families import FAMILIES
from conftest import Cli
from tasks import HELD_OUT, TEMPLATES, all_tasks
from tracker import ROUNDUP, Tracker

from dynaweb.data.demonstrations import as_tasks_of, read_demonstrations
from dynaweb.judges.reward import success_of
from dynaweb.runs import sidecar
from dynaweb.types import Action, Observation
from dynaweb.web.actions.grammar import resolve
from dynaweb_env_webarena.env import WebarenaSource

PYTHON = sidecar._python(sidecar.root() / ROUNDUP)
needs_roundup = pytest.mark.skipif(not PYTHON.exists(), reason=f"needs: dynaweb env install {ROUNDUP}")
TASKS = {split: json.loads((solver.EXAMPLE / "tasks" / f"{split}.json").read_text()) for split in all_tasks()}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    """The tracker on a free port."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracker.python_of", lambda name: PYTHON)
        running = Tracker(tmp_path_factory.mktemp("roundup"))
        running.start(0)
        yield running
        assert running.stop() and not running.address()


@pytest.fixture(autouse=True)
def _log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(solver.ACCOUNT, raising=False)
    solver.log_in()


@asynccontextmanager
async def playing(tracker: Tracker, **settings: Any) -> AsyncIterator[WebarenaSource]:
    source = solver.source_of(tracker.address(), solver.EXAMPLE / "tasks", **settings)
    try:
        yield source
    finally:
        await source.close()


def test_the_task_files_are_those_of_the_seed() -> None:
    assert all_tasks() == TASKS


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_the_halves_share_no_page_and_some_templates_are_only_in_the_test(seed: int) -> None:
    tasks = all_tasks(seed)
    assert len(tasks["train"]) >= 60 and len(tasks["test"]) >= 60
    intents = {split: {task["intent"] for task in tasks[split]} for split in tasks}
    assert sum(map(len, intents.values())) == len(set.union(*intents.values())) == sum(map(len, tasks.values()))
    issues = {split: _issues(tasks[split]) for split in tasks}
    assert not issues["test"] & (issues["train"] | issues["validation"]) and issues["train"]
    templates = {split: {task["intent_template"] for task in tasks[split]} for split in tasks}
    assert templates["train"] == set(TEMPLATES) and templates["test"] == {*TEMPLATES, *HELD_OUT}
    kinds = Counter(task["eval"]["eval_types"][0] for task in tasks["test"])
    assert set(kinds) == {"string_match", "url_match", "program_html"} and min(kinds.values()) >= 10


def _issues(tasks: list[dict[str, Any]]) -> set[str]:
    """The titles of issues that tasks name, those that they write left out."""
    words = [(task, task["intent"].split("'")) for task in tasks if task["intent_template"] != "report"]
    return {parts[3 if task["intent_template"] == "note" else 1] for task, parts in words if len(parts) > 1}


@needs_roundup
async def test_a_task_of_each_template_is_solved_by_its_route_and_by_nothing_else(tracker: Tracker) -> None:
    async with playing(tracker) as source:
        one_each = {task.template: task for task in source.catalogue("test")}
        assert set(one_each) == {*TEMPLATES, *HELD_OUT}
        tasks = list(one_each.values())
        for answer, wanted in ((None, 1.0), ("", 0.0), ("done", 0.0)):
            played = await solver.scores(source, tasks, answer)
            scored = {one.task.template: (success_of(one), one.facts.verdict) for one in played}
            assert {name: score for name, (score, _) in scored.items()} == dict.fromkeys(one_each, wanted), scored


@needs_roundup
async def test_what_an_episode_changes_is_seen_by_no_other(tracker: Tracker) -> None:
    async with playing(tracker) as source:
        task = next(task for task in source.catalogue("test") if task.template == "report")
        one, other = source.environment(), source.environment()
        page, _ = [await environment.reset(task, 0) for environment in (one, other)]
        player = solver.RoutePlayer(task, solver.ALL_ROUTES)
        while (decision := await player.act(task, page, (), seed=0)).action and decision.action.kind != "stop":
            page = (await one.step(decision.action)).observation
        new = f"{tracker.address()}/issue25"
        assert page.url.startswith(new)
        assert await _heading(one, new) == "Issue25 Editing" != await _heading(other, new)
        # The next episode of the same environment starts from the seed, too.
        await one.reset(task, 1)
        assert await _heading(one, new) == await _heading(other, new)
        await one.close()
        await other.close()


@needs_roundup
async def test_a_reset_drops_what_was_changed(tracker: Tracker) -> None:
    async with playing(tracker, reset_url=tracker.address()) as source:
        task = next(task for task in source.catalogue("test") if task.template == "set-status")
        environment = source.environment()
        page = first = await environment.reset(task, 0)
        player = solver.RoutePlayer(task, solver.ALL_ROUTES)
        while (decision := await player.act(task, page, (), seed=0)).action and decision.action.kind != "stop":
            page = (await environment.step(decision.action)).observation
        changed = await _goto(environment, task.start_url)
        assert changed.nodes != first.nodes
        await asyncio.to_thread(tracker.reset)
        assert (await _goto(environment, task.start_url)).nodes == first.nodes
        await environment.close()


async def _goto(environment: Any, url: str) -> Observation:
    page = (await environment.step(Action("goto", text=url))).observation
    return replace(page, nodes=tuple(replace(node, ref=None) for node in page.nodes))


async def _heading(environment: Any, url: str) -> str:
    page = await _goto(environment, url)
    return next((node.name for node in page.nodes if node.role == "heading"), "")


@needs_roundup
def test_starting_twice_gives_the_same_tracker_and_a_taken_port_is_said(tracker: Tracker, tmp_path: Path) -> None:
    assert tracker.start(0) == tracker.address()
    port = int(tracker.address().rpartition(":")[2])
    other = Tracker(tmp_path)
    shutil.copytree(tracker.seeded, other.seeded)
    with pytest.raises(Exception, match=f"port {port} is taken"):
        other.start(port)
    assert not other.address() and not other.stop()
    with pytest.raises(Exception, match="no tracker of"):
        other.reset()
    with urllib.request.urlopen(f"{tracker.address()}/status") as answer:
        assert b"Ready" in answer.read()


# --- Demonstrations, and the whole loop.


def unpacked(folder: Path) -> Path:
    for kind in ("webarena", "browsergym"):
        with tarfile.open(solver.EXAMPLE / "demos" / f"{kind}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


@needs_roundup
async def test_imported_demonstrations_are_those_of_the_tasks_and_of_the_pages(
    tracker: Tracker, cli: Cli, tmp_path: Path
) -> None:
    unpacked(tmp_path)
    for kind, count in (("webarena", 28), ("browsergym", 20)):
        done = cli("data", "import", kind, kind, f"imported/{kind}.jsonl.gz", "--trajectories")
        assert done.returncode == 0 and f"{count} trajectories" in done.stdout + done.stderr, done.stderr
    batch = read_demonstrations(str(tmp_path / "imported"))
    assert not batch.dropped
    source = solver.source_of("http://localhost:8917", solver.EXAMPLE / "tasks")
    train = source.catalogue("train")
    matching = as_tasks_of(batch.episodes, train)
    episodes, same = matching.episodes, matching.ids
    assert len(episodes) == len(same) == 48 and same <= {task.id for task in train}
    assert all(step.reasoning for episode in episodes for step in episode.steps)
    for episode in episodes:
        for step in episode.steps:
            assert resolve(step.action, step.observation) == step.action
    async with playing(tracker) as live:
        environment = live.environment()
        page = await environment.reset(live.catalogue("train")[0], 0)
        await environment.close()
    shown = [(node.role, node.name, node.value, node.props, node.depth) for node in page.nodes]
    for first in {episode.id.partition("/")[0]: episode.steps[0] for episode in episodes}.values():
        nodes = first.observation.nodes
        assert [(node.role, node.name, node.value, node.props, node.depth) for node in nodes] == shown


SMALL = (
    "model.dtype=float32",
    "model.device=cpu",
    "model.threads=1",
    "model.max_prompt_tokens=1000",
    "policy.max_prompt_tokens=1000",
    "policy.max_new_tokens=12",
    "wm.max_new_tokens=12",
    "wm.retries=0",
    "sft.steps=1",
    "sft.batch=2",
    "explore.episodes=3",
    "explore.random=1.0",
    "explore.steps=2",
    "wm_fit.steps=1",
    "wm_fit.batch=2",
    "wm_fit.open_loop=1",
    "dream.horizon=2",
    "rl.updates=1",
    "rl.tasks=2",
    "rl.n=2",
    "rl.bc_batch=2",
    "eval.episodes=2",
    "eval.steps=2",
    "controls.sft_steps=[2]",
    "data.demos=imported",
    "web.contexts=2",
)


@needs_roundup
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_loop_runs_from_the_command_line_on_a_model_of_another_family(
    tracker: Tracker, cli: Cli, tmp_path: Path
) -> None:
    unpacked(tmp_path)
    _random_model(tmp_path / "model")
    shutil.copytree(solver.EXAMPLE / "tasks", tmp_path / "tasks")
    for kind in ("webarena", "browsergym"):
        assert cli("data", "import", kind, kind, f"imported/{kind}.jsonl.gz", "--trajectories").returncode == 0
    recipe = str(solver.EXAMPLE / "roundup.toml")
    address = tracker.address()
    sets = [f"env.task_settings.urls.tracker={address}", f"env.task_settings.reset_url={address}", *SMALL]
    done = cli(
        "run",
        recipe,
        "--model",
        "model",
        "--out",
        "run",
        *[part for one in sets for part in ("--set", one)],
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DynaWeb" in done.stdout and "SFT, 2 updates" in done.stdout
    stages = [line.split(": ")[1].split()[0] for line in done.stderr.splitlines() if line.startswith("stage ")]
    assert {"demos", "sft", "explore", "world-model", "rl", "eval"} <= set(stages)
    demos = json.loads(next(Path(os.environ["DYNAWEB_CACHE"]).rglob("demos.json")).read_text())
    assert demos["episodes"] == 48 and not demos["dropped"]


def _random_model(folder: Path) -> None:
    """A random model in the way of Qwen 3, with its thinking template."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    family = next(one for one in FAMILIES if one.name == "qwen-3")
    tokenizer = family.tokenizer()
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=4096,
        )
    )
    model.generation_config.eos_token_id = list(family.end_ids(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
