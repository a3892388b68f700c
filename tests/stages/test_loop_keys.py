"""What a stage is cached by, what its weights belong to, and what it is said to cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dynaweb.config.resolving import resolve as resolved
from dynaweb.config.sections import Rl
from dynaweb.config.server import Server
from dynaweb.data.store import TransitionStore
from dynaweb.errors import CheckpointError
from dynaweb.pipeline import costs
from dynaweb.pipeline.artifacts import Artifact, Artifacts, Control
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.costs import Meter, memory_mib
from dynaweb.plugin.registry import current
from dynaweb.report.summary import StageResult, episodes_are
from dynaweb.rl.batch import BatchMaker, imitated
from dynaweb.rl.key import rl_key
from dynaweb.runs import StageCache
from dynaweb.stages.arms import arms, prerequisites
from dynaweb.stages.curriculum import curriculum_key
from dynaweb.stages.drift import drift
from dynaweb.stages.evaluate import audit_judge, evaluate_arm
from dynaweb.stages.explore import explore
from dynaweb.stages.sft import sft
from dynaweb.stages.world_model import fit_world_model
from dynaweb.stats import wilson
from dynaweb.trainer.models import load_model, resolve
from dynaweb.types import Action, Node, Observation, Step, Task, Trajectory, Transition
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo

WEIGHTS = Path("weights")
ANY = Artifact("any", WEIGHTS)
REAL = Artifacts(demos=ANY, experts=ANY, sft=ANY)
DREAMS = replace(REAL, explore=ANY, world_model=ANY)


def context(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    return RunContext(resolved("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path))


def keys(tmp_path: Path, *sets: str, **flags: Any) -> dict[str, str]:
    """The cache keys of the stages of a recipe, without running any."""
    ctx = context(tmp_path, *sets, **flags)

    async def stage(name: str, key: str, body: Any, **more: Any) -> Artifact:
        return Artifact(key, WEIGHTS)

    ctx.stage = stage  # type: ignore[method-assign]
    have = DREAMS if ctx.envs.dreams else REAL
    return {
        "sft": asyncio.run(sft(ctx, ANY)).key,
        "explore": asyncio.run(explore(ctx, ANY)).key,
        "eval": asyncio.run(evaluate_arm(ctx, "a", WEIGHTS, "w")).key,
        "judge-audit": asyncio.run(audit_judge(ctx, "a", ANY, WEIGHTS)).key,
        "world-model": asyncio.run(fit_world_model(ctx, ANY, ANY)).key,
        "drift": cast("Artifact", asyncio.run(drift(ctx, ANY, ANY, ANY))).key,
        "rl": rl_key(ctx, have, "policy"),
        "filtered-bc": rl_key(ctx, have, "filtered-bc"),
    }


def changed(tmp_path: Path, *sets: str, **flags: Any) -> set[str]:
    before, after = keys(tmp_path, **flags), keys(tmp_path, *sets, **flags)
    return {name for name in before if before[name] != after[name]}


ALL = {"sft", "explore", "eval", "judge-audit", "world-model", "drift", "rl", "filtered-bc"}
MODELLED = ALL - {"explore"}  # exploration depends on the model through the policy that explores
DREAMED = {"world-model", "drift", "rl", "filtered-bc"}
PLAYED = {"explore", "eval", "rl", "filtered-bc"}
TRAINED = {"sft", "world-model", "rl", "filtered-bc"}
ON_TASKS = {"explore", "drift", "eval", "rl", "filtered-bc"}


@pytest.mark.parametrize(
    ("setting", "stages"),
    [
        ("model.threads=2", set()),
        ("model.micro_tokens=64", set()),
        ("model.checkpointing=true", set()),
        ("rl.ref_kl_rows=9", set()),
        ("rl.max_staleness=1", {"rl", "filtered-bc"}),
        ("rl.stale_ratio=decoupled", set()),
        ("rl.stale_cap=9", set()),
        ("sft.lora_rank=4", {"sft"}),
        ("rl.lora_rank=4", {"rl", "filtered-bc"}),
        ("model.device=cpu", MODELLED),
        ("rl.checkpoint_every=9", set()),
        ("rl.keep_checkpoints=9", set()),
        ("run.time_budget=3", set()),
        ("controls.sft_validation=7", set()),
        ("web.workers=3", set()),
        ("model.format=chat", MODELLED),
        ("model.dtype=bfloat16", MODELLED),
        ("env.task_settings.test_sites=3", ON_TASKS),
        ("data.max_best_steps=4", ON_TASKS - {"drift"}),
        ("eval.env=dream", {"eval"}),
        ("reward.threshold=0.5", {"judge-audit", "rl", "filtered-bc"}),
        ("rl.validate_every=5", {"rl", "filtered-bc"}),
        ("opt.clip_low=0.2", {"rl"}),
        ("rl.negative_scale=1", {"rl"}),
        ("replay.capacity=9", {"rl"}),
        ("rl.lr=1", {"rl", "filtered-bc"}),
        ("sft.lr=1", {"sft"}),
        ("eval.steps=3", {"eval"}),
        ("wm_fit.lr=1", {"world-model"}),
        ("wm_fit.open_loop=4", {"drift"}),
        ("dream.horizon=3", {"rl", "filtered-bc"}),
        ("dream.temperature=0.5", {"drift", "rl", "filtered-bc"}),
        ("wm.history=1", DREAMED),
        ("wm_fit.refresh_every=1", {"rl", "filtered-bc"}),
        ("policy.max_new_tokens=9", PLAYED | {"sft"}),
        ("policy.max_prompt_tokens=900", PLAYED | {"sft"}),
        ("policy.server.model=other", set()),
        ("policy.engine.name=vllm", PLAYED),
        ("policy.engine.max_batch_tokens=64", set()),
        ("wm.engine.name=vllm", DREAMED),
        ("reward.engine.name=vllm", {"judge-audit", "rl", "filtered-bc"}),
        ("backend.name=deepspeed", TRAINED),
        ("backend.name=fsdp", TRAINED),
        ("backend.stage=3", set()),  # of another backend
        ("observation.marks=true", set()),  # of pictures, of which there are none
        ("observation.width=900", set()),
        ("observation.modality=both", ALL),  # the template of a model that sees may be another
    ],
)
def test_a_key_holds_what_matters_and_nothing_else(tmp_path: Path, setting: str, stages: set[str]) -> None:
    # `env.task_settings` also counts for the dream environment's own section.
    assert changed(tmp_path, setting) == stages


@pytest.mark.parametrize(
    ("setting", "matters"),
    [
        *((f"wm.server.{name}", False) for name in ("price_in=2", "price_out=2", "concurrency=2", "timeout=9")),
        *((f"wm.server.{name}", False) for name in ("retries=1", 'key_variable="OTHER"')),
        *((f"wm.server.{name}", True) for name in ("model=other", "base_url=http://x/v1", "logprobs=false")),
        *((f"wm.{name}", True) for name in ("shots=1", "form=page", "retries=4")),
    ],
)
def test_how_a_server_is_asked_is_in_no_key(tmp_path: Path, setting: str, matters: bool) -> None:
    assert changed(tmp_path, setting, wm="frozen-llm") == (DREAMED if matters else set())
    named = setting.partition("=")[0].removeprefix("wm.server.")
    # Every setting of a server is in one of the two groups: a new one has to be thought about.
    answers = {"model", "base_url", "logprobs", "token_limit"}
    answers |= {"reasoning_effort", "reasoning_tokens", "headers", "extra_body"}
    known = Server.WITHOUT_EFFECT | answers
    assert known == set(Server.model_fields) and (named in Server.WITHOUT_EFFECT) <= (not matters)


@pytest.mark.parametrize(
    ("setting", "matters"),
    [
        *((f"phases.server.{name}", False) for name in ("price_in=2", "concurrency=2", "timeout=9", "retries=1")),
        *((f"phases.server.{name}", True) for name in ("model=other", "base_url=http://x/v1")),
        ("phases.count=3", False),
        *((f"phases.{name}", True) for name in ("generator=server", "tasks=7", "proposals=2", "value=[0.1,0.5]")),
        *((name, True) for name in ("opt.clip_low=0.2", "rl.tasks=3", "run.seed=1")),
    ],
)
def test_new_tasks_depend_on_who_makes_and_chooses_them(tmp_path: Path, setting: str, matters: bool) -> None:
    base = ("phases.count=2", "phases.server.model=one")
    before, after = (curriculum_key(context(tmp_path, *base, *more), ANY, 2) for more in ((), (setting,)))
    assert (before != after) == matters
    assert before != curriculum_key(context(tmp_path, *base), ANY, 3)


def test_a_section_counts_without_what_no_result_depends_on(tmp_path: Path) -> None:
    plain, priced, other = (
        context(tmp_path, *more).recipe.settings_for("curriculum")
        for more in ((), ("phases.server.price_in=2",), ("phases.server.model=other",))
    )
    assert plain == priced != other


@pytest.mark.parametrize(
    ("setting", "stages"),
    [
        *((f"policy.engine.{name}", set()) for name in ("memory=0.5", "tensor_parallel=2", "eager=true")),
        *((f"policy.engine.{name}", set()) for name in ("sleep=false", "probe_tolerance=0.1")),
        *((f"policy.engine.{name}", PLAYED) for name in ("correction=0", "dtype=float32", "max_model_len=64")),
        ("policy.engine.extra.max_num_seqs=8", PLAYED),
        ("backend.offload=true", set()),
        ("backend.stage=3", TRAINED),
    ],
)
def test_where_an_engine_or_a_backend_computes_is_in_no_key(tmp_path: Path, setting: str, stages: set[str]) -> None:
    base = ("policy.engine.name=vllm", "backend.name=deepspeed")
    before, after = keys(tmp_path, *base), keys(tmp_path, *base, setting)
    assert {name for name in before if before[name] != after[name]} == stages


@pytest.mark.parametrize(("cuda", "most"), [(True, 1), (True, 0), (False, 1)])
def test_whether_rollouts_are_played_at_once_is_in_the_key_where_they_run_ahead(
    tmp_path: Path, cuda: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides how old they are. Beside a trainer on a GPU vLLM sleeps meanwhile, by default."""

    def key(*sets: str) -> str:
        base = ("policy.engine.name=vllm", f"rl.max_staleness={most}")
        return rl_key(context(tmp_path, *base, *sets), DREAMS, "policy")

    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    awake = ("sleep=false", "replicas=1", 'servers=["http://a:1"]')
    keys = [key(), key("policy.engine.memory=0.5"), *(key(f"policy.engine.{one}") for one in awake)]
    differ = [one != keys[0] for one in keys]
    assert differ == [False, False, *[cuda and most > 0] * 3]
    for name in ("deepspeed", "fsdp"):
        spread = [key(f"backend.name={name}", f"policy.engine.{one}") for one in ("sleep=true", *awake)]
        assert len(set(spread)) == (2 if differ[-1] else 1), "however the trainer is spread"


def test_a_configuration_of_deepspeed_counts_by_what_it_holds(tmp_path: Path) -> None:
    def found(name: str, text: str) -> dict[str, str]:
        (tmp_path / name).write_text(text)
        return keys(tmp_path, "backend.name=deepspeed", f"backend.config={tmp_path / name}")

    first, same, other = found("a.json", "{}"), found("b.json", "{}"), found("c.json", '{"bf16": {}}')
    assert first == same
    assert {name for name in first if first[name] != other[name]} == TRAINED


@pytest.mark.parametrize(("setting", "wm"), [("wm.store", "frozen-llm"), ("wm_fit.data", "delta")])
def test_a_store_counts_by_what_it_holds_not_by_where_it_is(tmp_path: Path, setting: str, wm: str) -> None:
    page = Observation("http://x.localhost/", (Node(1, "link", "On"),))

    def found(name: str, steps: int) -> dict[str, str]:
        (tmp_path / name).unlink(missing_ok=True)
        TransitionStore(tmp_path / name).append([Transition(page, Action("click", 1), page)] * steps)
        return keys(tmp_path, f"{setting}={tmp_path / name}", wm=wm)

    first, same, other = found("a", 1), found("b", 1), found("a", 2)
    assert first == same
    changes = {name for name in first if first[name] != other[name]}
    # What is fitted on comes into the RL stage by the key of the fit; examples are shown there too.
    assert changes == (DREAMED if setting == "wm.store" else {"world-model"})
    assert first != keys(tmp_path, wm=wm)


def test_other_base_weights_make_evaluation_and_judge_anew(tmp_path: Path, model: Path) -> None:
    other = model / "other"
    load_model("tiny").save_pretrained(other)
    assert changed(tmp_path, f"model.path={other}") == MODELLED


def test_the_number_of_updates_done_is_in_the_key_of_a_cut_stage(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    found = {rl_key(ctx, DREAMS, "policy"), *(rl_key(ctx, DREAMS, "policy", done=done) for done in (1, 2))}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("env.task_settings.driver=chromium",), "in the real browser"),
        ((), "in env sites without a browser (driver static)"),
        # The evaluation environment says where episodes were, not the one that tasks come from.
        (("env.task_settings.driver=static", "eval.env=dream"), "in env dream"),
        (("eval.env=dream",), "in env dream"),
    ],
)
def test_where_episodes_were_is_said_of_the_evaluation(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    assert episodes_are(context(tmp_path, *sets)).endswith(f"sites, {words}")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """A folder for models."""
    folder = tmp_path / "models"
    folder.mkdir()
    yield folder


def foreign(folder: Path, *, grow: bool) -> Path:
    """The tiny model under a tokenizer with one more token."""
    from transformers import AutoTokenizer

    weights, tokenizer = load_model("tiny"), AutoTokenizer.from_pretrained(resolve("tiny"))
    tokenizer.add_tokens([f"<new{i}>" for i in range(weights.get_input_embeddings().num_embeddings)])
    if grow:
        weights.resize_token_embeddings(len(tokenizer))
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_weights_bring_their_tokenizer_and_the_base_that_judges_refuses_another(tmp_path: Path, model: Path) -> None:
    folder = foreign(model / "grown", grow=True)
    with pytest.raises(
        CheckpointError, match=r"another tokenizer .* than the base model that judges.*--reward checker"
    ):
        context(tmp_path).models.load(folder)
    with pytest.raises(CheckpointError, match="than the base model that judges"):
        context(tmp_path, "reward.judges.self-assess.weight=1", reward="weighted").models.load(folder)
    checked = context(tmp_path, env="sites", reward="checker")
    loaded = checked.models.load(folder)
    assert len(loaded.tokenizer) > len(checked.models.tokenizer)
    assert loaded.format is not checked.models.format
    # A world model of such weights asks in their tokens, not in those of the base model.
    asking: Any = checked.models.world_model(loaded, temperature=0.0, held_out=frozenset())
    assert asking.format is loaded.format
    with pytest.raises(CheckpointError, match=r"know \d+ tokens, but the tokenizer has"):
        checked.models.load(foreign(model / "small", grow=False))


def test_weights_of_the_same_tokenizer_share_it(tmp_path: Path, model: Path) -> None:
    ctx = context(tmp_path)
    ctx.models.load().save(model)
    assert ctx.models.load(model / "model").tokenizer is ctx.models.tokenizer


def rollout(reward: float | None, source: str = "dream") -> Trajectory:
    return Trajectory("r", Task("t", "", ""), (Step(None, None, response_ids=(1,)),), None, source, "stop", reward)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "learned"), [("filtered-bc", [(1.0, 1.0), (1.0, 1.0)]), ("policy", [(0.0, -1.0)] * 2)]
)
def test_what_an_update_learns_from(mode: str, learned: list[tuple[float | None, float]]) -> None:
    """Successes alone; or all that have a reward."""
    optimizer = Gspo(GspoConfig(scale="none"))
    batches = BatchMaker(Rl(negative_scale=2.0), optimizer, SimpleNamespace(critic=None), None)  # type: ignore[arg-type]
    played = [rollout(0.0), rollout(0.0), rollout(None), rollout(1.0), rollout(1.0, "expert")]
    batch = imitated(optimizer, played) if mode == "filtered-bc" else batches.make(played)
    pairs = [(t.reward, a) for t, a in zip(batch.trajectories, batch.credit.advantages, strict=True)]
    assert pairs == (learned if mode == "filtered-bc" else [*learned, (1.0, 0.5), (1.0, 0.5)])
    assert {row.trajectory for row in batch.rows} == set(range(len(pairs)))
    assert len(batch.advantages) == len(played)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ("dream.memory=none",),
            "7 unrewarded real episodes of the SFT policy, for the world model, and recalled in dreams.",
        ),
        (("rl.updates=0",), "7 unrewarded real episodes of the SFT policy, for the world model."),
        (
            ("dream.memory=none", "dream.recall=false"),
            "7 unrewarded real episodes of the SFT policy, for the world model.",
        ),
        (
            (),
            "7 unrewarded real episodes of the SFT policy, for the world model, and remembered in dreams.",
        ),
        (("explore.episodes=0", "explore.player=random"), None),
    ],
)
def test_the_prerequisites_of_a_result_are_what_was_played(
    tmp_path: Path, sets: tuple[str, ...], said: str | None
) -> None:
    found = prerequisites(context(tmp_path, "explore.episodes=7", *sets), [])
    assert [line for line in found if "episodes" in line] == ([said] if said else [])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((), True),
        (("reward.name=orm",), False),
        (("reward.name=weighted", "reward.judges.self-assess.weight=1"), True),
        (("reward.name=weighted", "reward.judges.orm.weight=1"), False),
    ],
)
def test_a_judge_that_is_the_model_is_named_also_where_it_is_one_of_several(
    tmp_path: Path, sets: tuple[str, ...], said: bool
) -> None:
    found = prerequisites(context(tmp_path, *sets), cast("Any", [None]))
    assert any("the language model itself" in line for line in found) is said


def test_without_psutil_memory_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_psutil", lambda: None)
    assert memory_mib() == 0.0
    assert Meter().cost()["peak_memory_mib"] > 10


def test_steps_are_counted_by_kind_and_added_to_those_of_a_killed_attempt() -> None:
    counted = Meter(earlier={"browser_steps": 5.0, "seconds": 1.0, "static_steps": 1.0})
    counted.count(3, browser=True, evaluation=False)
    counted.count(4, browser=True, evaluation=True)
    counted.count(9, browser=False, evaluation=True)
    cost = counted.cost()
    assert (cost["browser_steps"], cost["browser_steps_evaluation"], cost["static_steps"]) == (12, 4, 10)
    only = Meter(earlier={"browser_steps_evaluation": 2.0}).cost()
    assert (only["browser_steps"], only["browser_steps_evaluation"]) == (0, 2)


def test_no_mean_comes_alone(tmp_path: Path) -> None:
    result = StageResult("eval", tmp_path, metrics={"success": 0.5, "steps": 3.0}, estimates={"success": wilson(2, 4)})
    assert "success  50.0 % [15.0, 85.0] n=4" in str(result) and "steps    3" in str(result)
    control = Control(300, ANY, {100: wilson(30, 48), 300: wilson(36, 48)})
    _, arm = arms(context(tmp_path), Artifacts(sft=ANY, longer_sft=control))
    assert "100: 0.625 [" in arm.note and arm.note.count("n=48") == 2
