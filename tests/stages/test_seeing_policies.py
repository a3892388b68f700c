"""Recipes of policies that see: what is refused before a run, what dreams show, and a whole run in Chromium."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("PIL")
from vision_families import FAMILIES, Album

from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.pipeline.artifacts import CRITIC, Artifact
from dynaweb.pipeline.context import RunContext, make_optimizer
from dynaweb.plugin.registry import current
from dynaweb.protocols import wants
from dynaweb.runs import StageCache
from dynaweb.stages.arms import lookahead
from dynaweb.stages.curriculum import valuer_of
from dynaweb.stages.preflight import check_judge, check_model
from dynaweb.trainer.critic import Critic
from dynaweb.trainer.models import load_model
from dynaweb.trainer.stepper import Schedule
from dynaweb.types import Image, Node, Observation, Screenshot, Task

SEES = "observation.modality=both"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["idefics3"].write(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine vllm as another package's that takes text alone."""
    find = type(current()).find

    def found(plugins: Any, kind: Any, name: str, **more: Any) -> Any:
        plugin = find(plugins, kind, name, **more)
        if (kind, name) != ("engine", "vllm"):
            return plugin
        return replace(plugin, spec=replace(plugin.spec, capabilities=frozenset()))

    monkeypatch.setattr(type(current()), "find", found)


def context(tmp_path: Path, *sets: str, **names: Any) -> RunContext:
    recipe = resolve("smoke", overrides=(SEES, *sets), plugins=current(), **names)
    return RunContext(recipe, current(), StageCache(tmp_path))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((), "reads text alone, and observation.modality asks it to see"),
        (("model.path=MODEL", "policy.engine.name=vllm"), "the engine 'vllm' takes text alone"),
        (("model.path=MODEL", "observation.width=4000", "observation.height=3000"), ""),
    ],
)
def test_what_cannot_see_is_refused_in_one_line_before_the_run(
    blind: None, model: Path, tmp_path: Path, sets: tuple[str, ...], words: str
) -> None:
    ctx = context(tmp_path, *(one.replace("MODEL", str(model)) for one in sets))
    if not words:
        return check_model(ctx)
    with pytest.raises(ConfigError, match=words) as error:
        check_model(ctx)
    assert "\n" not in str(error.value)
    return None


@pytest.mark.parametrize(
    ("reward", "sets", "refused"),
    [
        ("self-assess", ("reward.pictures=1", "reward.engine.name=vllm"), True),
        ("orm", ("reward.pictures=1", "reward.engine.name=vllm"), True),
        (
            "weighted",
            ("reward.judges.self-assess={weight = 1, settings = {pictures = 1}}", "reward.engine.name=vllm"),
            True,
        ),
        ("self-assess", ("reward.engine.name=vllm",), False),
        ("self-assess", ("reward.pictures=1",), False),
        ("self-assess", ("reward.pictures=1", "reward.engine.name=vllm", "reward.model=policy"), False),
        ("self-assess", ("reward.pictures=1", "reward.engine.name=vllm", "observation.modality=text"), False),
    ],
)
def test_a_judge_whose_engine_shows_it_no_pictures_is_refused_in_one_line_before_the_run(
    blind: None, tmp_path: Path, reward: str, sets: tuple[str, ...], refused: bool
) -> None:
    ctx = context(tmp_path, *sets, reward=reward)
    if not refused:
        return check_judge(ctx)
    words = r"pictures = 1 shows the judge '[a-z-]+' pages as pictures, and the engine 'vllm' takes text alone"
    with pytest.raises(ConfigError, match=words) as error:
        check_judge(ctx)
    assert "\n" not in str(error.value) and "set reward.engine.name = transformers" in str(error.value)
    return None


def test_both_engines_of_the_package_see(model: Path, tmp_path: Path) -> None:
    for name in ("transformers", "vllm"):
        ctx = context(tmp_path, f"model.path={model}", f"policy.engine.name={name}", "reward.pictures=1")
        check_model(ctx)
        check_judge(ctx)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU they see as in the trainer")
def test_a_kind_of_model_that_sees_otherwise_in_vllm_is_refused_in_one_line_before_the_run(tmp_path: Path) -> None:
    model = FAMILIES["gemma3"].write(tmp_path / "gemma")
    on = "engine.name=vllm"
    for sets, check in ((("policy.",), check_model), (("reward.", "reward.pictures=1"), check_judge)):
        ctx = context(tmp_path, f"model.path={model}", sets[0] + on, *sets[1:], reward="self-assess")
        with pytest.raises(ConfigError, match="kind gemma3 the tokens of a picture see each other") as error:
            check(ctx)
        assert "\n" not in str(error.value)
    elsewhere = 'policy.engine.servers=["http://a:1"]'
    check_model(context(tmp_path, f"model.path={model}", "policy." + on, elsewhere))


def test_dreams_show_text_unless_the_world_model_draws(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path, f"model.path={model}")
    page = Observation("http://a.localhost/", (Node(1, "link", "cart"),))
    album = Album()
    image = album.add(64, 48)
    seen = Observation(page.url, page.nodes, screenshot=Screenshot(image, (64, 48)))
    task = Task("t", "Open the cart", page.url)
    real, dreamed = ctx.models.format, ctx.models.dream_prompts(ctx.models.format)
    assert real.policy_prompt(task, seen, ()).images == (image,)
    assert dreamed.policy_prompt(task, seen, ()).images == ()
    assert dreamed.policy_prompt(task, page, ()).images == ()
    draws = SimpleNamespace(spec=SimpleNamespace(capabilities={"draws"}))
    monkeypatch.setattr(ctx.models, "_plugins", SimpleNamespace(find=lambda kind, name: draws))
    assert ctx.models.dream_prompts(real) is real
    text = context(tmp_path, "observation.modality=text")
    assert text.models.dream_prompts(text.models.format) is text.models.format and text.models.vision is None


@pytest.mark.parametrize("draws", [False, True])
async def test_imagined_futures_as_text_have_no_picture_of_the_page_that_they_begin_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: bool
) -> None:
    ctx = context(tmp_path, f"model.path={model}", "agent.kind=lookahead")
    if draws:
        monkeypatch.setattr(ctx.models, "dream_prompts", lambda prompts: prompts)
    task = Task("t", "Open the cart", "http://a.localhost/")
    shot = Screenshot(Image("0" * 64, 64, 48), (64, 48))
    player: Any = lookahead(ctx, None, None, None)()(task)
    page = await player.dreams(Observation(task.start_url, (), screenshot=shot)).reset(task, 0)
    assert page.screenshot == (shot if draws else None)


def test_the_critic_of_a_curriculum_reads_first_pages_as_it_was_trained_to(model: Path, tmp_path: Path) -> None:
    """Tasks are valued on real first pages, and a critic of dreams was trained on their text alone."""
    task = Task("t", "Open the cart", "http://a.localhost/")
    album = Album()
    image = album.add(64, 48)
    page = Observation(task.start_url, (Node(1, "link", "cart"),), screenshot=Screenshot(image, (64, 48)))
    before = Artifact("k", tmp_path / "before")
    shutil.copytree(model, before.model)
    images: dict[str, tuple[Image, ...]] = {}
    for env in ("dream", "sites"):
        ctx = context(tmp_path, f"model.path={model}", env=env, opt="webrl")
        spec = wants(make_optimizer(ctx)).critic
        assert spec is not None
        Critic(ctx.models.load().model, spec, Schedule(0.0, 1)).save(before.folder / CRITIC, 0)
        ctx.images.put(album.read(image))
        ctx.models.on_prompt = lambda prompt, env=env: images.update({env: prompt.images})  # type: ignore[misc]
        valuer = valuer_of(ctx, before)
        assert valuer is not None and len(valuer.of([task], lambda task: page)) == 1
    assert images == {"dream": (), "sites": (image,)}


@pytest.mark.parametrize("modality", ["text", "both"])
def test_models_of_a_run_have_their_vision_where_pages_are_pictures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modality: str
) -> None:
    asked = []

    def load(*given: Any, vision: bool = False) -> Any:
        asked.append(vision)
        return load_model(*given, vision=vision)

    monkeypatch.setattr("dynaweb.trainer.models.load_model", load)
    context(tmp_path, f"model.path={model}", f"observation.modality={modality}").models.load()
    assert asked == [modality == "both"]


def test_the_pictures_of_a_run_are_those_of_its_stage_cache(model: Path, tmp_path: Path) -> None:
    ctx = context(tmp_path, f"model.path={model}")
    album = Album()
    image = album.add(64, 48)
    ctx.images.put(album.read(image))
    vision: Any = ctx.models.vision
    loaded = ctx.models.load()
    assert loaded.vision is vision
    page = Observation("http://a.localhost/", (), screenshot=Screenshot(image, (64, 48)))
    prompt = loaded.format.policy_prompt(Task("t", "Open the cart", page.url), page, ())
    assert vision.inputs([prompt])["pixel_values"].shape[0] == 1
    frozen = [name for name, parameter in loaded.model.named_parameters() if not parameter.requires_grad]
    assert frozen and all("vision" in name or "connector" in name for name in frozen)
