"""Pictures from stage to stage: what an artifact refers to, where a run finds it, and those of demonstrations."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from PIL import Image as Pillow

from dynaweb.config import resolve
from dynaweb.data.images import images_of
from dynaweb.data.store import TrajectoryStore
from dynaweb.pipeline.artifacts import EPISODES, StageKey
from dynaweb.pipeline.context import RunContext, listed_pictures
from dynaweb.plugin.registry import current
from dynaweb.runs import Stage, StageCache
from dynaweb.runs.folder import open_run
from dynaweb.stages.demos import bring_pictures
from dynaweb.types import Image, Node, Observation, Screenshot, Task, Trajectory


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Pillow.new("L", (8, 6), shade).save(out, "PNG")
    return out.getvalue()


def episode(*shots: Image) -> Trajectory:
    final = Observation("http://a/", (Node(1, "link", "x"),), screenshot=Screenshot(shots[-1], (8, 6)))
    return Trajectory("e", Task("t", "go", "http://a/"), (), final, "real", "stop")


def context(tmp_path: Path, *sets: str) -> RunContext:
    recipe = resolve("dynaweb", overrides=sets)
    folder = open_run(recipe, out=tmp_path / f"run {len(sets)}")
    return RunContext(recipe, current(), StageCache(tmp_path / "cache"), folder)


@pytest.mark.parametrize("sets", [("observation.modality=both",), ()])
async def test_a_run_folder_has_the_pictures_of_its_episodes(tmp_path: Path, sets: tuple[str, ...]) -> None:
    ctx = context(tmp_path, *sets)
    shot, other = ctx.images.put(png(1)), ctx.images.put(png(2))

    async def body(stage: Stage) -> None:
        TrajectoryStore(stage.folder / EPISODES).append([episode(shot)])

    artifact = await ctx.stage("eval", StageKey.of({"of": "this test"}), body)
    ctx.keep(artifact, "eval-x")
    assert ctx.folder is not None
    images = images_of(ctx.folder.trajectories / "eval-x.jsonl.gz")
    if not sets:
        assert not listed_pictures(artifact.folder) and not (ctx.folder.path / "images").exists()
        return
    assert listed_pictures(artifact.folder) == [shot]
    assert images.get(shot) == png(1) and other not in images
    assert images.path(shot).stat().st_ino == ctx.images.path(shot).stat().st_ino
    # Of the stage itself they are found in the cache, also by a second run that takes it from there.
    assert images_of(artifact.folder / EPISODES).get(shot) == png(1)
    again = context(tmp_path / "second", *sets)
    again.cache, again.images = ctx.cache, ctx.images
    again.keep(await again.stage("eval", StageKey.of({"of": "this test"}), body), "eval-x")
    assert again.folder is not None and images_of(again.folder.path).get(shot) == png(1)
    await ctx.close()


def test_demonstrations_bring_their_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ctx = context(tmp_path, "observation.modality=both")
    source = tmp_path / "demos.jsonl.gz"
    store = images_of(source)
    shots = [store.put(png(shade)) for shade in (3, 4)]
    with caplog.at_level(logging.WARNING):
        bring_pictures(ctx, str(source.parent), [episode(shots[0])])
        assert ctx.images.get(shots[0]) == png(3) and not caplog.records
        store.path(shots[1]).unlink()
        bring_pictures(ctx, str(source.parent), [episode(shot) for shot in shots])
    assert "1 of 2 pictures" in caplog.text and "which lie in images/ beside the store" in caplog.text
