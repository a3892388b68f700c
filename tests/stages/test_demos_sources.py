"""Demonstrations from stores: which are used, as which tasks, for what, and under which cache key."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL, plan_holds, run

import dynaweb
from dynaweb import api, train
from dynaweb.config import resolve
from dynaweb.data.demonstrations import (
    ELSEWHERE,
    RUN_STORES,
    SEVERAL,
    UNJUDGED,
    as_tasks_of,
    read_demonstrations,
    source_key,
    stores_of,
)
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.rollout.group import with_tokens
from dynaweb.runs import StageCache
from dynaweb.stages.demos import READ
from dynaweb.train import artifacts_for
from dynaweb.types import (
    Action,
    EpisodeFacts,
    Judgement,
    Node,
    Observation,
    Prompt,
    Step,
    StepFacts,
    Task,
    Trajectory,
    Transition,
)
from dynaweb_env_sites.env import SitesSource

PAGE = Observation("http://shop.test/", (Node(1, "link", "Cart"), Node(2, "button", "Buy")), "Shop")
NEXT = Observation("http://shop.test/cart", (Node(1, "heading", "Cart"),), "Cart")
CLICK = Action("click", 1, target_role="link", target_name="Cart")


def episode(name: str = "e", goal: str = "open the cart", task: str = "foreign/1", **more: Any) -> Trajectory:
    steps = (
        Step(PAGE, CLICK, "The cart is there.", "raw", prompt=Prompt((1, 2)), response_ids=(3,), logprobs=(-1.0,)),
        Step(NEXT, Action("stop", text="done")),
    )
    values = {"steps": steps, "final": NEXT, "source": "real", "end": "stop", **more}
    return Trajectory(name, Task(task, goal, PAGE.url), **values)


def judged(score: float | None) -> EpisodeFacts:
    return EpisodeFacts(verdict=Judgement(score, why="it says so"))


def store(path: Path, *episodes: Trajectory) -> str:
    TrajectoryStore.write(path, episodes)
    return str(path)


FAILED = "it failed (verdict or reward below 0.5)"
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "dream": ({"source": "dream"}, "its pages were dreamed"),
    "imagined": (
        {"steps": (Step(PAGE, CLICK, facts=StepFacts(imagined=True)), Step(NEXT, Action("stop")))},
        "its pages were dreamed",
    ),
    "broken": ({"end": "infrastructure"}, "the infrastructure broke it"),
    "invalid": ({"end": "invalid"}, "an invalid action ended it"),
    "verdict": ({"facts": judged(0.2)}, FAILED),
    "reward": ({"reward": 0.0}, FAILED),
    "judge": ({"judgement": Judgement(0.49)}, FAILED),
    "verdict over reward": ({"reward": 1.0, "facts": judged(0.0)}, FAILED),
    "no action": ({"steps": (Step(PAGE, None, error="?"),)}, "no step has an action that was done"),
    "refused": ({"steps": (Step(PAGE, CLICK, error="no"),)}, "no step has an action that was done"),
    "test": (
        {"task": Task("t", "g", "", split="test")},
        "its task is held out (split test)",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_episode_that_is_no_demonstration_is_refused_with_its_reason(tmp_path: Path, kind: str) -> None:
    changes, reason = UNUSABLE[kind]
    source = store(tmp_path / "a.jsonl.gz", replace(episode(), **changes))
    with pytest.raises(ConfigError) as refused:
        read_demonstrations(source)
    assert f"1 x {reason}" in str(refused.value) and "\n" not in str(refused.value)
    both = read_demonstrations(store(tmp_path / "b.jsonl.gz", replace(episode(), **changes), episode()))
    assert len(both.episodes) == 1 and both.dropped == {reason: 1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, UNJUDGED),
        ({"facts": judged(None)}, UNJUDGED),
        ({"facts": judged(1.0)}, "it says so"),
        ({"facts": judged(0.7)}, "it says so"),
        ({"reward": 0.5}, ""),
        ({"end": "max-steps"}, UNJUDGED),
        ({"source": "expert"}, UNJUDGED),
    ],
)
def test_a_success_is_an_experts_without_the_tokens_of_another_model(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    (result,) = read_demonstrations(store(tmp_path / "a.jsonl.gz", replace(episode(), **changes))).episodes
    assert result.source == "expert" and result.facts.verdict == Judgement(1.0, why=why)
    assert result.reward is None and result.judgement is None
    assert not any(step.prompt or step.response_ids or step.logprobs for step in result.steps)
    assert [step.action for step in result.steps] == [step.action for step in episode().steps]


def test_a_store_of_transitions_is_no_source(tmp_path: Path) -> None:
    from dynaweb.data.store import TransitionStore

    TransitionStore.write(tmp_path / "t.jsonl.gz", [Transition(PAGE, CLICK, NEXT)])
    with pytest.raises(ConfigError, match="holds transitions, and this is for whole episodes"):
        read_demonstrations(str(tmp_path / "t.jsonl.gz"))


def test_a_source_is_a_file_a_folder_or_a_run(tmp_path: Path) -> None:
    file = tmp_path / "data" / "deep" / "a.jsonl.gz"
    store(file, episode())
    assert stores_of(str(file)) == stores_of(str(tmp_path / "data")) == [file]
    ran = tmp_path / "run"
    store(ran / "trajectories" / "eval-sft.jsonl.gz", episode())
    with pytest.raises(MissingError, match=r"no demonstrations of its own .* \(eval-sft\.jsonl\.gz\)"):
        stores_of(str(ran))
    stores = [Path(store(ran / "trajectories" / f"{name}.jsonl.gz", episode(name))) for name in RUN_STORES]
    assert stores_of(str(ran)) == stores
    for missing in ("nowhere.jsonl.gz", "no/where.jsonl.gz", "./a/b"):
        with pytest.raises(MissingError, match="there is no file or folder"):
            stores_of(missing)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match="holds no trajectory store"):
        stores_of(str(tmp_path / "empty"))


def test_a_name_of_the_hub_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from dynaweb.data import demonstrations

    names = []

    def download(name: str, **options: Any) -> str:
        names.append((name, options))
        if name != "who/demos":
            raise OSError("401\nmore")
        return str(tmp_path)

    file = store(tmp_path / "data" / "a.jsonl.gz", episode())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    demonstrations._of_hub.cache_clear()
    assert stores_of("who/demos") == stores_of("who/demos") == [Path(file)]
    assert names == [("who/demos", {"repo_type": "dataset", "allow_patterns": ["*.jsonl.gz"]})]
    with pytest.raises(MissingError, match=r"no file or folder who/else, and no such data set of the hub \(401\)"):
        stores_of("who/else")
    demonstrations._of_hub.cache_clear()


def test_the_key_is_what_the_stores_hold_and_not_where_they_lie(tmp_path: Path) -> None:
    one = store(tmp_path / "a" / "one.jsonl.gz", episode())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = str(tmp_path / "b" / "one.jsonl.gz")
    assert source_key(one) == source_key(moved) == source_key(str(tmp_path / "b"))
    store(tmp_path / "b" / "one.jsonl.gz", episode(goal="another"))
    assert source_key(one) != source_key(moved)


SHOP = Task("7", "open  the cart", "http://shop.test/", sites=("shopping",), template="t")


@pytest.mark.parametrize(
    ("own", "same"),
    [
        (Task("7", "open the cart", "http://elsewhere.test/"), True),  # id and goal
        (Task("8", "open the cart", "http://shop.test/other"), True),  # host and goal
        (Task("8", "open the cart", "", sites=("shopping",)), True),  # site by name and goal
        (Task("8", "open the cart", ""), True),  # host of its first page
        (Task("8", "open the basket", "http://shop.test/"), False),
        (Task("7", "open the basket", "http://shop.test/"), False),
        (Task("7", "open the basket", "http://shop.test/", meta={"site_seed": 3}), False),
        (Task("8", "open the cart", "http://shop.test/", meta={"site_seed": 3}), False),
    ],
)
def test_a_demonstration_is_of_a_task_only_when_it_is_the_same(own: Task, same: bool) -> None:
    matching = as_tasks_of([replace(episode(), task=own)], [SHOP])
    (result,), matched = matching.episodes, matching.ids
    assert (result.task == SHOP, matched) == ((True, {"7"}) if same else (False, set()))
    if not same:
        assert result.task.id != "7" and result.task.intent == own.intent


def test_goals_that_share_an_id_are_different_tasks() -> None:
    episodes = [episode(goal=goal) for goal in ("one", "two", "one")]
    tasks = [result.task for result in as_tasks_of(episodes, []).episodes]
    assert tasks[0] == tasks[2] and tasks[0].id != tasks[1].id
    away = replace(SHOP, start_url="http://other.test/", sites=())
    assert as_tasks_of([episode()], [away]).ids == set()
    seeded = replace(SHOP, meta={"site_seed": 1})
    assert as_tasks_of([episode()], [seeded]).ids == set()


CART = Task("7", "open the cart", "http://localhost:8931/", sites=("shopping",), split="train")


@pytest.mark.parametrize("name", ["7", "webarena/7", "browsergym/webarena.7", "browsergym/7", "nnetnav/webarena/7"])
def test_a_task_is_the_same_by_id_and_goal_whatever_its_host_and_port_were(name: str) -> None:
    away = Task(name, "open the  cart", "http://127.0.0.1:8917/")
    tasks = [replace(CART, id="8", intent="open the basket"), replace(CART, id="17"), CART]
    matching = as_tasks_of([replace(episode(), task=away)], tasks)
    assert (matching.ids, dict(matching.unsure)) == ({"7"}, {})
    assert matching.episodes[0].task == CART
    other = as_tasks_of([replace(episode(), task=replace(away, intent="open the door"))], tasks)
    assert (other.ids, dict(other.unsure)) == (set(), {})
    nothing = as_tasks_of([replace(episode(), task=replace(away, id="x", intent=""))], [replace(CART, intent="")])
    assert (nothing.ids, dict(nothing.unsure)) == (set(), {}), "no goal is nobody's"


@pytest.mark.parametrize(
    ("own", "tasks", "same", "doubt"),
    [
        # Two tasks of one site with one goal: told apart by where they start, or not at all.
        (CART, [replace(CART, id="a", start_url="http://localhost:8931/x"), replace(CART, id="b")], "b", ""),
        (CART, [replace(CART, id="a"), replace(CART, id="b")], "", SEVERAL),
        # The goal of a task on another site, by another id.
        (Task("x", CART.intent, "http://other.test/"), [CART], "", ELSEWHERE),
        (Task("x", CART.intent, "http://other.test/"), [CART, replace(CART, id="b")], "", ELSEWHERE),
        # Nothing that may be of a held-out task is learned from.
        (CART, [replace(CART, id="a"), replace(CART, id="b", split="test")], "b", ""),
        (Task("x", CART.intent, "http://other.test/"), [CART, replace(CART, id="b", split="test")], "b", ""),
    ],
)
def test_what_may_be_of_several_tasks_is_of_none_and_counted(
    own: Task, tasks: list[Task], same: str, doubt: str
) -> None:
    matching = as_tasks_of([replace(episode(), task=replace(own, id="x"))], tasks)
    assert (matching.ids, dict(matching.unsure)) == ({same} if same else set(), {doubt: 1} if doubt else {})


def test_a_refused_action_is_not_imitated() -> None:
    class Format:
        def policy_prompt(self, *_: Any) -> Prompt:
            return Prompt((1,))

        def policy_reply(self, *_: Any) -> tuple[int, ...]:
            return (2,)

    steps = (Step(PAGE, CLICK, error="refused"), Step(PAGE, CLICK), Step(PAGE, None, error="?"))
    done = with_tokens(episode(steps=steps), Format())  # type: ignore[arg-type]
    assert [step.response_ids for step in done.steps] == [(), (2,), ()]


# --- Runs


def without_experts(patch: pytest.MonkeyPatch) -> None:
    def expert(self: SitesSource, task: Task) -> Any:
        raise AssertionError(f"a scripted expert of {task.id} was asked for")

    patch.setattr(SitesSource, "expert", expert)


def context(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    recipe = resolve("dynaweb", overrides=[*SMALL, *sets], **flags)
    return RunContext(recipe, current(), StageCache(tmp_path / "cache"))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the demonstrations of scripted experts."""
    folder = tmp_path_factory.mktemp("played")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNAWEB_CACHE", str(folder / "cache"))
        dynaweb.sft("dynaweb", overrides=[*SMALL, "sft.steps=1"], out=folder / "run")
    return folder / "run"


@pytest.mark.timeout(300)
def test_a_run_learns_from_a_file_in_every_way_and_asks_no_expert(
    tmp_path: Path, played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFT, cloning, experts in groups, dream starts and controls, with an expert for every task asked for in vain."""
    without_experts(monkeypatch)
    plan_holds(monkeypatch)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    known = list(TrajectoryStore(played / "trajectories" / "demos.jsonl.gz"))
    other = replace(episode(task="nnetnav/1"), id="other")
    source = store(tmp_path / "mine.jsonl.gz", *known, other, replace(other, reward=0.0))
    sets = ("data.experts=all", "rl.expert_share=0.6", "rl.updates=3", "rl.tasks=4", "controls.sft_steps=[2]")
    rollouts: list[list[Trajectory]] = []
    measures = train.measures
    monkeypatch.setattr(train, "measures", lambda batch, *rest: rollouts.append(list(batch)) or measures(batch, *rest))
    result = run(tmp_path / "out", *sets, f"data.demos={source}")
    demos = list(TrajectoryStore(result.folder / "trajectories" / "demos.jsonl.gz"))
    assert [one.task.id for one in demos] == [*(one.task.id for one in known), "nnetnav/1"]
    (account,) = (tmp_path / "cache" / "demos").rglob(READ)
    assert '"unjudged": 1' in account.read_text() and FAILED in account.read_text()
    groups: dict[tuple[int, str], list[Trajectory]] = {}
    for update, batch in enumerate(rollouts):
        for one in batch:
            groups.setdefault((update, one.group), []).append(one)
    assert all(len({one.task.id for one in group}) == 1 for group in groups.values())
    mixed = {one.task.id for group in groups.values() for one in group if one.source == "expert"}
    assert len(mixed) > 1 and mixed <= {one.task.id for one in demos}
    dreamed = [one for group in groups.values() for one in group if one.source == "dream"]
    starts = [one.steps[0].observation for one in dreamed if one.task.id == "nnetnav/1"]
    assert starts and all(page == PAGE for page in starts)


@pytest.mark.timeout(300)
async def test_real_rollouts_are_only_of_tasks_that_the_environment_has(
    tmp_path: Path, played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dynaweb.rl.sources import curriculum_of
    from dynaweb.stages.demos import playable

    without_experts(monkeypatch)
    known = list(TrajectoryStore(played / "trajectories" / "demos.jsonl.gz"))
    source = store(tmp_path / "mine.jsonl.gz", *known, replace(episode(), id="other"))
    sets = [one for one in SMALL if not one.startswith(("env.", "wm."))]
    recipe = resolve(
        "dynaweb",
        overrides=[*sets, "env.driver=static", f"data.demos={source}", "rl.expert_share=1.0"],
        env="sites",
        reward="checker",
    )
    ctx = RunContext(recipe, current(), StageCache(tmp_path / "cache"))
    have = await artifacts_for(ctx, "experts")
    ids = playable(have.need("demos"))
    assert ids == {one.task.id for one in known}
    tasks = [one.task for one in have.need("demos").episodes()]
    curriculum = curriculum_of(ctx, have.only(["demos", "experts"]), tasks, ids)
    assert {task.id for task in curriculum.demonstrated} == ids
    await ctx.close()


async def test_the_stage_is_found_again_by_content(tmp_path: Path, played: Path) -> None:
    shutil.copytree(played / "trajectories", tmp_path / "there" / "trajectories")
    sources = (played, tmp_path / "there", tmp_path / "there" / "trajectories" / "demos.jsonl.gz")
    keys = [
        (await artifacts_for(context(tmp_path, f"data.demos={source}"), "demos")).need("demos").key
        for source in sources
    ]
    assert len(set(keys)) == 1
    number = (await artifacts_for(context(tmp_path, "data.demos=4"), "demos")).need("demos").key
    assert number != keys[0]


@pytest.mark.parametrize("wrong", ["-1", "''", "1.5"])
def test_what_is_neither_a_number_nor_a_source_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.demos"):
        resolve("dynaweb", overrides=[f"data.demos={wrong}"])


@pytest.mark.timeout(300)
def test_sft_learns_from_imported_episodes_where_the_environment_has_neither_experts_nor_training_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    step = "<h2>New Page</h2><h3 class='url'><a href={0}>URL: {0}</a></h3><div class='state_obv'><pre>{1}</pre><div>"
    step += "<div class='raw_parsed_prediction'><pre>{2}</pre></div><div class='parsed_action'><pre></pre></div>"
    tree = "Tab 0 (current): Shop\n\n[1000] RootWebArea 'Shop' focused: True\n\t[1582] link 'Cart'"
    pages = (
        step.format("http://x.test/", tree, "The link. ```click [1582]```"),
        step.format("http://x.test/cart", tree, "```stop [5]```"),
    )
    head = "<pre>task_id: 42\nintent: Open the cart\nsites: ['shopping']\n</pre>"
    (tmp_path / "render_42.html").write_text(head + "".join(pages), encoding="utf-8")
    source = tmp_path / "mine.jsonl.gz"
    report = api.import_data("webarena", tmp_path, source, trajectories=True)
    assert (report.trajectories, report.steps) == (1, 2)
    sets = [one for one in SMALL if one.startswith(("sft", "model"))]
    sets += [f"data.demos={source}", "env.urls.shopping=http://x.test"]
    result = api.sft("dynaweb", env="webarena", reward="checker", overrides=sets, out=tmp_path / "run")
    assert result.metrics["demonstrations"] == 1 and "no tasks of split 'train'" in caplog.text
