"""Pictures beside records: what is kept, what is refused in one line, and what is found again."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from dynaweb.data.codec import read, to_json
from dynaweb.data.images import ImageStore, images_of, pictures_of, png_size
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ImageError
from dynaweb.types import Action, Image, Node, Observation, Screenshot, Step, Task, Trajectory, Transition


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int = 3, height: int = 2, grey: int = 0) -> bytes:
    """A PNG file of one shade, written by hand."""
    rows = (b"\0" + bytes([grey]) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def test_a_picture_comes_back_and_is_written_once(store: ImageStore) -> None:
    image = store.put(png(3, 2))
    assert (image.width, image.height) == (3, 2)
    assert store.get(image) == png(3, 2) and image in store
    written = store.path(image)
    assert written == store.folder / image.sha256[:2] / f"{image.sha256}.png"
    number = written.stat().st_ino
    assert store.put(png(3, 2)) == image and written.stat().st_ino == number
    assert store.put(png(3, 2, grey=9)) != image
    assert sorted(path.suffix for path in store.folder.rglob("*") if path.is_file()) == [".png", ".png"]


WRONG = {
    "empty": (b"", "a picture is empty; only PNG files are kept"),
    "jpeg": (b"\xff\xd8\xff\xe0 and so on", "a JPEG, not a PNG"),
    "gif": (b"GIF89a and so on", "a GIF, not a PNG"),
    "svg": (b"  <svg xmlns='x'/>", "an SVG, not a PNG"),
    "text": (b"hello", "a picture is no PNG"),
    "cut": (png()[:-20], "damaged or cut short"),
    "signature alone": (png()[:8], "damaged or cut short"),
    "changed": (png()[:40] + b"x" + png()[41:], "damaged or cut short"),
    "without pixels": (png()[:33] + chunk(b"IEND", b""), "damaged or cut short"),
    "without a head": (png()[:8] + png()[33:], "damaged or cut short"),
    "no width": (png(0, 2), "says that it has 0 x 2 pixels"),
    "too wide": (png(3000, 2), "3000 x 2 pixels is too large (at most 5,000 pixels)"),
    "too heavy": (png() + bytes(20_000), "too large (at most 20,000)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_picture_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    data, why = WRONG[case]
    store = ImageStore(tmp_path / "images", max_pixels=5_000, max_bytes=20_000)
    with pytest.raises(ImageError) as caught:
        store.put(data)
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert not store.folder.exists()


def test_a_missing_or_damaged_picture_is_said_with_what_to_do(store: ImageStore) -> None:
    image = store.put(png())
    path = store.path(image)
    path.write_bytes(png(grey=7))
    with pytest.raises(ImageError, match=r"is damaged \(its bytes have changed\); bring back a copy"):
        store.get(image)
    assert store.put(png()) == image and store.get(image) == png()
    with pytest.raises(ImageError, match="3 x 9 pixels, and it has 3 x 2"):
        store.get(replace(image, height=9))
    path.unlink()
    with pytest.raises(ImageError, match=r"cannot be read \(No such file or directory\); bring its folder images/"):
        store.get(image)
    assert image not in store


@pytest.mark.parametrize("name", ["../../secret", "", "A" * 64, "0" * 63, "0" * 64 + "\n", "/etc/passwd"])
def test_a_name_leads_nowhere_else(store: ImageStore, name: str) -> None:
    with pytest.raises(ImageError, match="no SHA-256"):
        store.get(Image(name, 1, 1))


def page(image: Image | None, url: str = "http://a/") -> Observation:
    shot = Screenshot(image, (1280, 720), 1.5, marks=True) if image is not None else None
    return Observation(url, (Node(1, "link", "Home"),), screenshot=shot)


def test_records_hold_references_that_come_back_exactly(tmp_path: Path, store: ImageStore) -> None:
    first, last = store.put(png()), store.put(png(grey=200))
    steps = (Step(page(first), Action("click", target=1)), Step(page(None), Action("stop")))
    episode = Trajectory("e", Task("t", "go", "http://a/"), steps, page(last), "real", "stop")
    back = read(to_json(episode), Trajectory)
    assert [one.screenshot for one in (back.steps[0].observation, back.steps[1].observation)] == [
        Screenshot(first, (1280, 720), 1.5, marks=True),
        None,
    ]
    assert list(pictures_of(back)) == [first, last]
    path = tmp_path / "trajectories" / "eval.jsonl.gz"
    TrajectoryStore(path).append([episode])
    stored = TrajectoryStore(path)[0]
    assert stored.final is not None and stored.final.screenshot == Screenshot(last, (1280, 720), 1.5, marks=True)
    goal = replace(episode, task=replace(episode.task, images=(last, first)))
    assert list(pictures_of(read(to_json(goal), Trajectory))) == [last, first, first, last]
    assert list(pictures_of(Transition(page(first), Action("stop"), page(last)))) == [first, last]
    # Found again from the run folder, from its stores, and from one of them.
    for origin in (tmp_path, path.parent, path):
        assert images_of(origin).get(last) == png(grey=200)


def test_a_picture_is_no_part_of_what_a_page_is(store: ImageStore) -> None:
    assert page(store.put(png())) == page(None)
    assert "screenshot" not in to_json(page(None))


def test_pages_that_differ_in_their_picture_alone_are_both_kept(tmp_path: Path, store: ImageStore) -> None:
    shots = [store.put(png(grey=shade)) for shade in (1, 2)]
    episodes = [
        Trajectory(f"{n}", Task("t", "go", "http://a/"), (), page(shot), "real", "stop") for n, shot in enumerate(shots)
    ]
    path = tmp_path / "x.jsonl.gz"
    TrajectoryStore(path).append(episodes)
    assert [image for one in TrajectoryStore(path) for image in pictures_of(one)] == shots


def test_pictures_are_shared_with_another_folder_as_links(tmp_path: Path, store: ImageStore) -> None:
    image, gone = store.put(png()), store.put(png(grey=3))
    store.path(gone).unlink()
    assert store.share([image, gone, image], tmp_path / "run" / "images") == 1
    other = images_of(tmp_path / "run")
    assert other.get(image) == png() and gone not in other
    assert other.path(image).stat().st_ino == store.path(image).stat().st_ino
    assert png_size(other.get(image)) == (3, 2)
    for grey, data in enumerate((b"", b"hello", png()[:-20], png(grey=9)), start=20):
        damaged = store.put(png(grey=grey))
        store.path(damaged).write_bytes(data)
        for link in (True, False):
            assert store.share([damaged], tmp_path / "run" / "images", link=link) == 1
        assert damaged not in other
    # Whoever may change them gets copies, also where there were links.
    assert store.share([image], tmp_path / "run" / "images", link=False) == 0
    other.path(image).write_bytes(b"changed")
    assert store.get(image) == png()
