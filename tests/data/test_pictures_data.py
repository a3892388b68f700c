"""Pictures beside the records that are imported, exported, counted and collected."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image as Pillow
from test_data_import import CART, HOME, StepInfo, obs, write_step

from dynaweb import api
from dynaweb.commands.policy_rows import export_episodes, message_rows, sharegpt_rows
from dynaweb.data.exports import PictureFiles
from dynaweb.data.images import ImageStore, as_png, images_of, pictures_of, png_size
from dynaweb.data.store import TrajectoryStore, TransitionStore, open_store
from dynaweb.errors import ImageError
from dynaweb.types import Action, Image, Node, Observation, Screenshot, Step, Task, Trajectory, Transition
from dynaweb_env_webarena.images import readable


def picture(shade: int = 0, kind: str = "PNG", size: tuple[int, int] = (32, 24)) -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", size, (shade, 0, 0)).save(out, kind)
    return out.getvalue()


def experiment(folder: Path, *, inside: Any = None) -> None:
    """An experiment of two steps, whose pages have `inside` as their screenshot."""
    more = {} if inside is None else {"screenshot": inside}
    write_step(folder, StepInfo(0, obs(HOME, **more), action="click('23')"))
    write_step(folder, StepInfo(1, obs(CART, **more), action="send_msg_to_user('done')", terminated=True))


def imported(tmp_path: Path, *, episodes: bool = False) -> tuple[list[Any], Any, ImageStore]:
    store = tmp_path / "out" / "store.jsonl.gz"
    report = api.import_data("browsergym", tmp_path / "from", store, trajectories=episodes)
    return list(open_store(store)), report, images_of(store)


@pytest.mark.parametrize("kind", ["png", "jpg", "array", "array with alpha"])
def test_agentlabs_pictures_are_imported_beside_the_store(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "from"
    array = numpy.zeros((24, 32, 4 if "alpha" in kind else 3), numpy.uint8)
    array[..., 0], array[..., 3:] = 200, 255
    experiment(folder, inside=array if "array" in kind else None)
    if "array" not in kind:
        for step in range(2):
            file = folder / f"screenshot_step_{step}.{kind}"
            file.write_bytes(picture(200, "PNG" if kind == "png" else "JPEG"))
            (folder / f"screenshot_som_step_{step}.png").write_bytes(picture(9))
    (transition,), report, images = imported(tmp_path)
    (before, after) = pictures_of(transition)
    assert before == after and (before.width, before.height) == (32, 24)
    opened = Pillow.open(io.BytesIO(images.get(before))).convert("RGB")
    assert abs(opened.getpixel((5, 5))[0] - 200) < 4 and not report.noted
    assert transition.observation.screenshot == Screenshot(before, (32, 24))
    assert len(list(images.folder.rglob("*.png"))) == 1


BROKEN: dict[str, Any] = {
    "no picture": b"hello",
    "cut": picture()[:40],
    "empty": b"",
    "floats": numpy.zeros((4, 4, 3)),
    "one channel": numpy.zeros((4, 4), numpy.uint8),
    "by column": numpy.asfortranarray(numpy.ones((4, 5, 3), numpy.uint8)),
    "a text": "screenshot.png",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_picture_costs_no_step(tmp_path: Path, case: str) -> None:
    broken = BROKEN[case]
    folder = tmp_path / "from"
    experiment(folder, inside=None if isinstance(broken, bytes) else broken)
    if isinstance(broken, bytes):
        (folder / "screenshot_step_0.png").write_bytes(broken)
    (transition,), report, images = imported(tmp_path)
    assert not list(pictures_of(transition)) and not images.folder.exists()
    assert bool(report.noted) is isinstance(broken, bytes)
    assert all(text.startswith("without its picture: ") and "\n" not in text for text in report.noted)


def test_other_kinds_of_pictures_become_png(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_png(picture()) == picture()
    for kind in ("JPEG", "GIF", "WEBP", "BMP"):
        assert png_size(as_png(picture(3, kind))) == (32, 24)
    with pytest.raises(ImageError, match="no picture that can be read"):
        as_png(b"\xff\xd8\xff and nothing more")
    photo = picture(3, "JPEG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImageError, match=r"needs pillow: pip install 'dynaweb\[vision\]'"):
        as_png(photo)


PAGE = Observation("http://shop.test/", (Node(1, "link", "Cart"),), "Shop")
CLICK = Action("click", 1, target_role="link", target_name="Cart")


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[Image]]:
    """A run folder with one episode of two pages with pictures, and one without."""
    images = ImageStore(tmp_path / "run" / "images")
    shots = [images.put(picture(shade)) for shade in (10, 20)]
    pages = [replace(PAGE, screenshot=Screenshot(shot, (32, 24), marks=shot is shots[1])) for shot in shots]
    steps = (Step(pages[0], CLICK, "To see it."), Step(PAGE, CLICK), Step(pages[1], Action("stop", text="2")))
    path = tmp_path / "run" / "trajectories" / "eval.jsonl.gz"
    episode = Trajectory("e", Task("t", "Open the cart", PAGE.url), steps, pages[1], "real", "stop")
    TrajectoryStore(path).append([episode])
    return path, shots


def test_no_picture_has_a_program_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads PostScript by Ghostscript, which it finds on the path."""
    script, ran = tmp_path / "gs", tmp_path / "ran"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    page = io.BytesIO()
    Pillow.new("RGB", (32, 24)).save(page, "EPS")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    with suppress(Exception), Pillow.open(io.BytesIO(page.getvalue())) as opened:
        opened.load()
    assert ran.exists()
    ran.unlink()
    with pytest.raises(ImageError, match="no picture that can be read"):
        as_png(page.getvalue())
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "AVIF", "BMP", "ICO", "TIFF", "DDS", "SPIDER", "BLP"])
@pytest.mark.filterwarnings("ignore")
def test_a_picture_that_was_changed_anywhere_is_read_or_refused(kind: str) -> None:
    Pillow.init()
    if kind not in Pillow.SAVE:
        pytest.skip(f"this pillow writes no {kind}")
    file = io.BytesIO()
    Pillow.effect_noise((40, 30), 50).convert("P" if kind == "BLP" else "RGB").save(file, kind)
    rng, refused = random.Random(0), 0
    for _ in range(150):
        data = bytearray(file.getvalue())
        for _ in range(rng.choice((1, 2, 9))):
            data[rng.randrange(min(len(data), rng.choice((64, 200, len(data)))))] = rng.randrange(256)
        if kind == "PNG":  # a checksum that fits, so that its decoder sees the change
            data = bytearray(_summed(bytes(data)))
        try:
            readable(bytes(data))
        except ImageError:
            refused += 1
    assert refused > 5


def _summed(data: bytes) -> bytes:
    """A PNG whose parts have the checksums of what is in them now."""
    at, parts = 8, [data[:8]]
    while at + 12 <= len(data):
        end = min(at + 8 + int.from_bytes(data[at : at + 4]), len(data) - 4)
        parts.append(data[at:end] + zlib.crc32(data[at + 4 : end]).to_bytes(4))
        at = end + 4
    return b"".join(parts)


def test_a_runs_pictures_come_along_and_missing_ones_are_noted(run: tuple[Path, list[Image]], tmp_path: Path) -> None:
    path, shots = run
    store = tmp_path / "elsewhere" / "mine.jsonl.gz"
    report = api.import_data("run", path.parent.parent, store, trajectories=True)
    assert not report.noted and images_of(store).get(shots[1]) == picture(20)
    images_of(path).path(shots[0]).unlink()
    report = api.import_data("run", path.parent.parent, tmp_path / "other" / "mine.jsonl.gz", trajectories=True)
    assert report.trajectories == 1 and report.noted == {"a picture of it is missing or damaged": 1}


def test_pictures_are_counted(run: tuple[Path, list[Image]], tmp_path: Path) -> None:
    path, shots = run
    counts = api.data_stats(path).data()
    assert (counts["pages with a picture"], counts["distinct pictures"], counts["with marks"]) == (3, 2, 2)
    assert counts["pictures that are missing"] == 0 and counts["sizes of pictures"] == {"32 x 24": 2}
    images_of(path).path(shots[0]).unlink()
    assert api.data_stats(path).data()["pictures that are missing"] == 1
    plain = tmp_path / "plain.jsonl.gz"
    TransitionStore(plain).append([Transition(PAGE, CLICK, PAGE)])
    assert not [name for name in api.data_stats(plain).data() if "picture" in name]


@pytest.mark.parametrize("episodes", [True, False])
def test_columns_have_relative_paths_of_pictures(run: tuple[Path, list[Image]], tmp_path: Path, episodes: bool) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path, shots = run
    if not episodes:
        path = tmp_path / "run" / "transitions.jsonl.gz"
        pages = [replace(PAGE, screenshot=Screenshot(shot, (32, 24))) for shot in shots]
        TransitionStore(path).append([Transition(pages[0], CLICK, pages[1]), Transition(PAGE, CLICK, pages[0])])
    out = tmp_path / "rows" / "pages.parquet"
    api.export_data(path, out)
    rows = parquet.read_table(out).to_pylist()
    expected = [shots[0], None, shots[1]] if episodes else [shots[0], None]
    assert [bool(row["screenshot"]) for row in rows] == [one is not None for one in expected]
    for row, shot in zip(rows, expected, strict=True):
        assert shot is None or (out.parent / row["screenshot"]).read_bytes() == images_of(path).get(shot)
    if not episodes:
        assert (out.parent / rows[0]["next_screenshot"]).read_bytes() == picture(20)


class Chat:
    """A prompt format whose messages are told here; what `ChatFormat` makes of pages is tested elsewhere."""

    class template:
        arguments: dict[str, Any] = {}

    def __init__(self, *, sees: bool = True) -> None:
        self.sees = sees

    def policy_images(self, task: Task, page: Observation) -> tuple[Image, ...]:
        return (*task.images, *(() if page.screenshot is None else (page.screenshot.image,)))

    def policy_messages(
        self, task: Task, page: Observation, *question: Any
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        content: Any = "the page"
        if self.sees and page.screenshot is not None:
            content = [*({"type": "image"} for _ in self.policy_images(task, page)), {"type": "text", "text": content}]
        return (
            [{"role": "system", "content": "S"}, {"role": "user", "content": content}],
            [{"role": "assistant", "content": "ACTION"}],
        )


def test_rows_of_a_policy_have_images_and_their_places(
    run: tuple[Path, list[Image]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, shots = run
    store, chat = TrajectoryStore(path), Chat()
    out = tmp_path / "rows" / "train.json"
    pictures = PictureFiles.of(store, out)
    rows = list(message_rows(store[0], chat, pictures))  # type: ignore[arg-type]
    assert [len(row.get("images", ())) for row in rows] == [1, 0, 1]
    assert [part["type"] for part in rows[0]["prompt"][1]["content"]] == ["image", "text"]
    assert (out.parent / rows[2]["images"][0]).read_bytes() == picture(20)
    shared = list(sharegpt_rows(store[0], chat, pictures))  # type: ignore[arg-type]
    assert [row["conversations"][0]["value"] for row in shared] == ["<image>the page", "the page", "<image>the page"]
    # The images of a goal stand before that of the page.
    goal = replace(store[0], task=replace(store[0].task, images=(shots[1],)))
    first = next(message_rows(goal, chat, pictures))  # type: ignore[arg-type]
    assert [(out.parent / name).read_bytes() for name in first["images"]] == [picture(20), picture(10)]
    # A recipe that shows text alone has rows of text, whatever the store has.
    for row in message_rows(store[0], Chat(sees=False), pictures):  # type: ignore[arg-type]
        assert "images" not in row and row["prompt"][1]["content"] == "the page"
    # They are the reader's own: what is done to them does not reach the store.
    (out.parent / rows[2]["images"][0]).write_bytes(b"cut to size")
    assert images_of(path).get(shots[1]) == picture(20)
    # A missing picture is said once, and rows that need it are left out.
    images_of(path).path(shots[1]).unlink()
    lost = PictureFiles.of(store, tmp_path / "again" / "train.json")
    assert len(list(sharegpt_rows(store[0], chat, lost))) == 2  # type: ignore[arg-type]
    assert caplog.text.count("is missing or damaged, so rows are without it") == 1


def test_llamafactorys_entry_names_the_images(run: tuple[Path, list[Image]], tmp_path: Path) -> None:
    from dynaweb.data.exports import write_sharegpt

    out = tmp_path / "rows" / "train.json"
    write_sharegpt([{"conversations": [], "system": "", "images": []}], out, images=True)
    entry = json.loads((out.parent / "dataset_info.json").read_text())["train"]
    assert entry["columns"]["images"] == "images"
    assert export_episodes(TrajectoryStore(run[0]), "parquet", tmp_path / "x.parquet", None).rows == 3
