"""Judges and policies behind servers that see: which pictures they are shown, and what is refused."""

from __future__ import annotations

import base64
from base64 import b64decode
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from judge_server import judge_server

from dynaweb.config.server import Server
from dynaweb.data.images import ImageStore
from dynaweb.engines.server import ChatRequest, OpenAIEngine
from dynaweb.errors import ConfigError, EngineError, ImageError
from dynaweb.judges.pictures import last_pictures, picture_bytes, seeing_prompt
from dynaweb.policy.policy_prompt import PICTURED, PolicyPrompt
from dynaweb.policy.prompt_file import PromptFile
from dynaweb.protocols import JudgeContext
from dynaweb.rollout.agents import ServerPolicy
from dynaweb.types import Action, EpisodeFacts, Node, Observation, Prompt, Screenshot, Step, Task, Trajectory
from dynaweb_rm_llm_judge import LlmJudgeConfig
from dynaweb_rm_llm_judge.judge import LlmJudge
from dynaweb_rm_webvoyager_judge import WebvoyagerJudgeConfig
from dynaweb_rm_webvoyager_judge.judge import WebvoyagerJudge

pytest.importorskip("PIL")
from vision_families import Album

TASK = Task("Site--1", "How many?", "http://x/")


def picture(seed: int) -> bytes:
    album = Album()
    return album.read(album.add(40, 30, seed=seed))


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def episode(store: ImageStore, seen: str = "abc", **changes: Any) -> Trajectory:
    """An episode over pages, of which each letter is a picture and `.` is none; the last one is also the final page."""
    album = Album()
    images = {letter: album.add(64, 48, seed=ord(letter)) for letter in sorted(set(seen) - {"."})}
    for image in images.values():
        assert store.put(album.read(image)) == image
    pages = [
        Observation(
            f"http://x/{i}",
            (Node(1, "heading", f"Page {i}"),),
            screenshot=None if letter == "." else Screenshot(images[letter], (64, 48)),
        )
        for i, letter in enumerate(seen)
    ]
    steps = [Step(page, Action("click", 1)) for page in pages[:-1]]
    whole = (*steps, Step(pages[-1], Action("stop", text="42")))
    return replace(Trajectory("e", TASK, whole, pages[-1], "real", "stop"), **changes)


@pytest.mark.parametrize(
    ("seen", "count", "wanted"),
    [
        ("abc", 2, "bc"),
        ("abc", 9, "abc"),
        ("abc", 0, ""),
        ("a.c", 2, "c"),
        ("ab.", 2, ""),
        (".bc", 3, "bc"),
        ("abb", 2, "ab"),
        ("...", 3, ""),
        ("aab", 3, "ab"),
        ("aba", 3, "aba"),
    ],
)
def test_the_last_pages_are_shown_once_each_up_to_one_without_a_picture(
    store: ImageStore, seen: str, count: int, wanted: str
) -> None:
    trajectory = episode(store, seen)
    by_letter = {letter: step.observation.screenshot for letter, step in zip(seen, trajectory.steps, strict=True)}
    shown = last_pictures(trajectory, count)
    assert list(shown) == [by_letter[letter].image for letter in wanted]
    assert picture_bytes(trajectory, count, store) == tuple(map(store.get, shown))


@pytest.mark.parametrize(
    ("seen", "shown", "wanted"),
    [
        ("a.", True, ""),  # from a real page to an imagined one
        ("a.c", True, ""),  # and on to one that is remembered
        ("abc", False, ""),  # all of them are remembered, and the policy read their text
        ("a", False, ""),
        ("abc", True, "bc"),  # a world model that draws
        ("abc", None, "bc"),  # nobody knows what the policy was shown
    ],
)
def test_a_dream_as_text_is_judged_as_text(store: ImageStore, seen: str, shown: bool | None, wanted: str) -> None:
    dream = episode(store, seen, source="dream")
    pictures = [step.observation.screenshot for step in dream.steps]
    prompts = [Prompt((1,), (shot.image,) if shown and shot is not None else ()) for shot in pictures]
    prompts = [Prompt()] * len(prompts) if shown is None else prompts
    steps = tuple(replace(step, prompt=prompt) for step, prompt in zip(dream.steps, prompts, strict=True))
    images = {letter: shot.image for letter, shot in zip(seen, pictures, strict=True) if shot is not None}
    dream = replace(dream, steps=steps)
    assert last_pictures(dream, 2) == tuple(images[letter] for letter in wanted)
    assert len(picture_bytes(dream, 2, store)) == len(wanted)


def test_pictures_that_an_environment_took_for_judges_serve_where_pages_have_none(
    store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "p.png").write_bytes(b"picture")
    trajectory = episode(store, "..", facts=EpisodeFacts(screenshots=(str(tmp_path / "p.png"),)))
    assert picture_bytes(trajectory, 2, store) == (b"picture",)
    assert picture_bytes(trajectory, 0, store) == ()
    assert picture_bytes(episode(store, ".a", facts=trajectory.facts), 2, store) != (b"picture",)


@pytest.mark.parametrize("stream", [None, False, True])
async def test_judges_behind_servers_are_shown_them(store: ImageStore, stream: bool | None) -> None:
    trajectory = episode(store)
    context = JudgeContext(images=store)
    with judge_server("Fine.\nSUCCESS\nVERDICT: YES" if stream is None else "SUCCESS") as server:
        settings: dict[str, Any] = {"server": {"model": "m", "base_url": server.url}, "pictures": 2}
        judge: Any
        if stream is None:
            judge = LlmJudge(LlmJudgeConfig(**settings), context)
        else:
            judge = WebvoyagerJudge(WebvoyagerJudgeConfig(**settings, stream=stream), context)
        assert (await judge.score(trajectory)).score == 1.0
        await judge.close()
        (request,) = server.requests
    text, *pictures = request["messages"][1]["content"]
    assert text["type"] == "text" and "How many?" in text["text"]
    wanted = [base64.b64encode(store.get(image)).decode() for image in last_pictures(trajectory, 2)]
    assert [one["image_url"]["url"] for one in pictures] == [f"data:image/png;base64,{data}" for data in wanted]


async def test_a_picture_that_is_gone_ends_the_job_and_is_no_verdict(store: ImageStore) -> None:
    trajectory = episode(store)
    store.path(last_pictures(trajectory, 1)[0]).unlink()
    with judge_server("SUCCESS") as server:
        settings: dict[str, Any] = {"server": {"model": "m", "base_url": server.url}, "pictures": 1}
        for judge in (
            LlmJudge(LlmJudgeConfig(**settings), JudgeContext(images=store)),
            WebvoyagerJudge(WebvoyagerJudgeConfig(**settings), JudgeContext(images=store)),
        ):
            with pytest.raises(ImageError, match="cannot be read") as error:
                await judge.score(trajectory)
            assert "\n" not in str(error.value)
            await judge.close()
        assert server.requests == []


async def test_a_server_that_reads_text_alone_refuses_pictures_in_one_line(store: ImageStore) -> None:
    with judge_server(400) as server:
        engine = OpenAIEngine(Server(model="m", base_url=server.url, retries=0))
        with pytest.raises(EngineError, match="refused a request with 1 pictures") as error:
            await engine.chat(ChatRequest((("user", "?"),), 5, images=(b"x",)))
        await engine.close()
    assert "\n" not in str(error.value) and "observation.modality = text" in str(error.value)


@pytest.mark.parametrize("modality", ["text", "screenshot", "both"])
async def test_a_policy_behind_a_server_is_shown_pages_as_the_recipe_says(store: ImageStore, modality: Any) -> None:
    page = episode(store).steps[0].observation
    with judge_server("REASON: go\nACTION: stop [1]") as server:
        engine = OpenAIEngine(Server(model="m", base_url=server.url))
        policy = ServerPolicy(
            engine, PolicyPrompt(PromptFile()), temperature=0, max_new_tokens=9, modality=modality, images=store
        )
        decision = await policy.act(TASK, page, (), seed=0)
        assert decision.action is not None and decision.action.kind == "stop"
        (request,) = server.requests
        if modality != "text":
            with pytest.raises(ImageError, match="has no screenshot"):
                await policy.act(TASK, replace(page, screenshot=None), (), seed=0)
        await engine.close()
    content = request["messages"][1]["content"]
    text = content if modality == "text" else content[0]["text"]
    assert ("Page 0" in text) is (modality != "screenshot") and (PICTURED in text) is (modality == "screenshot")
    assert modality == "text" or len(content) == 2


async def test_a_policy_behind_a_server_is_shown_the_images_of_a_goal_first(store: ImageStore) -> None:
    page = episode(store).steps[0].observation
    goal = tuple(store.put(picture(seed)) for seed in (1, 2))
    with judge_server("REASON: go\nACTION: stop [1]") as server:
        engine = OpenAIEngine(Server(model="m", base_url=server.url))
        ask: Any = partial(ServerPolicy, engine, PolicyPrompt(PromptFile()), temperature=0, max_new_tokens=9)
        for modality, shown in (("both", (*goal, page.screenshot.image)), ("text", goal)):  # type: ignore[union-attr]
            await ask(modality=modality, images=store).act(replace(TASK, images=goal), page, (), seed=0)
            text, *pictures = server.requests[-1]["messages"][1]["content"]
            assert "How many? (the first 2 pictures belong to this objective)\n" in text["text"]
            sent = [b64decode(one["image_url"]["url"].partition(",")[2]) for one in pictures]
            assert sent == [store.get(image) for image in shown]
        with pytest.raises(ConfigError, match="comes with 2 images, and this policy reads text alone"):
            await ask().act(replace(TASK, images=goal), page, (), seed=0)
        await engine.close()


class Words:
    """A prompt layer that writes text alone."""

    def judge_prompt(self, trajectory: Trajectory) -> str:
        return trajectory.id


def test_a_judge_here_without_a_seeing_prompt_layer_is_told_so(store: ImageStore) -> None:
    words: Any = Words()
    assert seeing_prompt(words, episode(store), 0) == "e" == seeing_prompt(words, episode(store, ".."), 2)
    with pytest.raises(ConfigError, match=r"reward\.pictures = 2 shows a judge pictures") as error:
        seeing_prompt(words, episode(store), 2)
    assert "\n" not in str(error.value)
