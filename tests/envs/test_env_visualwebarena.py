"""VisualWebArena's tasks: goals with images, questions about the images on pages, and what is skipped and counted."""

from __future__ import annotations

import io
import itertools
import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import pytest_asyncio
from judge_server import JudgeServer, judge_server
from PIL import Image as Pillow
from web_pages import PageServer, serving

from dynaweb.config.sections import ObservationSettings
from dynaweb.config.server import Server
from dynaweb.data.images import ImageStore
from dynaweb.errors import ConfigError, MissingError
from dynaweb.protocols import EnvironmentContext
from dynaweb.web.chromium.pool import BrowserPool
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb.web.evaluators import string_match
from dynaweb.web.session import UrlMap
from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.env import WebarenaSource
from dynaweb_env_webarena.images import SeeingJudge, page_image_query, readable, similarity

LAST = {"eval_image_url": "last", "eval_image_class": ""}
COLOR = [{"question": "What colour is it?", "answer": "red"}]


def png(color: tuple[int, int, int], size: tuple[int, int] = (40, 40), *, dots: int = 0) -> bytes:
    out = io.BytesIO()
    image = Pillow.new("RGB", size, color)
    for at in range(dots):
        image.paste((255, 255, 255), (at * 7 % size[0], at * 11 % size[1], at * 7 % size[0] + 4, at * 11 % size[1] + 4))
    image.save(out, "PNG")
    return out.getvalue()


def src(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


RED, BLUE = png((255, 0, 0), dots=9), png((0, 0, 255), dots=4)


def built(width: int, height: int, pixels: bytes) -> bytes:
    """A PNG whose parts are whole, whatever its pixels are."""

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", pixels) + part(b"IEND", b"")


DAMAGED = {
    "cut": RED[: len(RED) // 2],
    "signature alone": RED[:8],
    "pixels cut": built(40, 40, zlib.compress(bytes(range(256)) * 19)[:90]),
    "no pixels": built(40, 40, b"nothing"),
    "too large": built(8_000, 8_000, zlib.compress(b"")),
    "a bomb": built(60_000, 60_000, zlib.compress(b"")),
}


def task(number: int, evaluation: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        **{"task_id": number, "sites": ["classifieds"], "intent": "Find it", "start_url": "__CLASSIFIEDS__"},
        **{"require_login": False, "image": None, "eval": evaluation, **more},
    }


TEXT = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "42"}}
SEEN = {"eval_types": ["page_image_query"], "page_image_query": [{**LAST, "eval_vqa": COLOR}]}
SAME = {"eval_types": ["page_image_query"], "page_image_query": [{**LAST, "eval_fuzzy_image_match": "a.png"}]}
TASKS = [task(1, TEXT), task(2, SEEN), task(3, SAME), task(4, TEXT, image=["http://x.test/a.png"])]


def source(
    tmp_path: Path, tasks: list[dict[str, Any]] = TASKS, *, modality: str = "text", **settings: Any
) -> WebarenaSource:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    look = ObservationSettings(modality=modality)  # type: ignore[arg-type]
    context = EnvironmentContext(observation=look, images=ImageStore(tmp_path / "images"))
    return WebarenaSource(WebarenaConfig(path=str(path), **settings), context)


def test_what_cannot_be_seen_here_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="classifieds has no address"):
        source(tmp_path).catalogue("test")
    monkeypatch.setenv("VWA_CLASSIFIEDS", "http://ads.test")
    plain = source(tmp_path)
    assert [one.id for one in plain.catalogue("test")] == ["1", "3"]
    assert sorted((why.split(" (")[0], count) for why, count in plain.skipped("test").items()) == [
        ("its goal comes with images, and the policy reads text alone", 1),
        ("page_image_query needs a model that sees", 1),
    ]
    seeing = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
    able = source(tmp_path, seeing=seeing, goal_images="address")
    assert [one.id for one in able.catalogue("test")] == ["1", "2", "3", "4"] and not able.skipped("test")
    assert able.catalogue("test")[3].intent == "Find it (with the image http://x.test/a.png)"
    assert {one.start_url for one in able.catalogue("test")} == {"http://ads.test"}
    for modality in ("text", "both"):
        left_out = source(tmp_path, modality=modality, goal_images="skip").skipped("test")
        assert left_out["its goal comes with images (env.goal_images = show shows them to a policy that sees)"] == 1
    upstream = source(tmp_path, seeing=seeing, evaluator="upstream")
    assert upstream.skipped("test")["page_image_query needs env.evaluator = repaired"] == 2


def jpeg(data: bytes) -> bytes:
    out = io.BytesIO()
    Pillow.open(io.BytesIO(data)).convert("RGB").save(out, "JPEG")
    return out.getvalue()


def shown(tmp_path: Path, server: PageServer, image: Any, **settings: Any) -> tuple[list[bytes], dict[str, int]]:
    """The pictures of a task's goal for a policy that sees, and what is skipped."""
    tasks = [task(1, TEXT), task(2, TEXT, image=image)]
    urls = {"classifieds": server.url("", host="127.0.0.1")}
    able = source(tmp_path, tasks, modality="both", urls=urls, **settings)
    both = {one.id: one for one in able.catalogue("test")}
    assert both["1"].images == () and both["1"].intent == "Find it"
    if "2" not in both:
        return [], able.skipped("test")
    assert both["2"].intent == "Find it"
    store = ImageStore(tmp_path / "images")
    return [store.get(one) for one in both["2"].images], able.skipped("test")


def test_a_policy_that_sees_is_given_the_images_of_a_goal(tmp_path: Path, server: PageServer) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "red.jpg").write_bytes(jpeg(RED))
    server.files |= {"/blue": ("image/png", BLUE), "/a b": ("image/png", BLUE), "/jpeg": ("image/jpeg", jpeg(BLUE))}
    server.headers["/moved"] = {"Location": "/blue"}
    asked = len(server.requests)
    for image, wanted in (
        ("red.png", [RED]),
        (str(tmp_path / "red.png"), [RED]),
        (["red.png", "__CLASSIFIEDS__/blue"], [RED, BLUE]),
        ([server.url("/blue", host="127.0.0.1"), "red.png"], [BLUE, RED]),
        ("__CLASSIFIEDS__/moved", [BLUE]),
        ("", []),
        ([], []),
    ):
        assert shown(tmp_path, server, image) == (wanted, {}), image
    for image in ("red.jpg", "__CLASSIFIEDS__/jpeg"):
        (one,), _ = shown(tmp_path, server, image)
        assert one.startswith(b"\x89PNG")
    # One request for each address and source, however often tasks are listed.
    assert len(server.requests) - asked == 5


UNSEEN = {
    "no file": ("gone.png", "no such file"),
    "no picture": ("words.png", "no picture"),
    "cut": ("cut.png", "damaged or cut short"),
    "one of two": (["red.png", "gone.png"], "no such file"),
    "no page": ("__CLASSIFIEDS__/nothing", "answers HTTP 404"),
    "a page": ("__CLASSIFIEDS__/none", "no picture"),
    "another host": ("http://images.test/a.png", "images.test is no site's host and not in env.hosts"),
    "leads away": ("__CLASSIFIEDS__/away", "elsewhere.test is no site's host"),
    "a file by its address": ("file:///etc/hostname", "is no site's host and not in env.hosts"),
    "no address": ("http://[::1/a.png", "is no site's host"),
    "bytes instead of a name": (src(RED) + "A" * 5000, "its file cannot be read: File name too long"),
    "another site": ("__REDDIT__/a.png", "reddit has no address"),
    "nobody answers": ("http://127.0.0.2:9/a.png", "127.0.0.2:9 does not answer"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_a_task_whose_image_cannot_be_loaded_is_skipped_and_counted(
    tmp_path: Path, server: PageServer, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDDIT", raising=False)
    for name, data in {"red": RED, "words": b"hello", "cut": DAMAGED["cut"]}.items():
        (tmp_path / f"{name}.png").write_bytes(data)
    server.headers["/away"] = {"Location": "http://elsewhere.test/a.png"}
    image, why = UNSEEN[case]
    images, skipped = shown(tmp_path, server, image, hosts=("127.0.0.2",))
    assert not images and list(skipped.values()) == [1]
    (said,) = skipped
    assert why in said and "\n" not in said and len(said) < 300


WRONG = {
    "no list": ({"page_image_query": {}}, "page_image_query"),
    "no url": ({"page_image_query": [{"eval_vqa": COLOR}]}, "no object with eval_image_url"),
    "nothing asked": ({"page_image_query": [LAST]}, "neither eval_vqa nor eval_fuzzy_image_match"),
    "no selector": ({"page_image_query": [{**LAST, "eval_vqa": COLOR, "eval_image_class": [1]}]}, "a selector as text"),
    **{
        f"a threshold of {value!r}": (
            {"page_image_query": [{**LAST, "eval_fuzzy_image_match": "red.png", "ssim_threshold": value}]},
            "ssim_threshold is a number such as",
        )
        for value in ("high", "0.8", None, True, [])
    },
    "no answer": (
        {"page_image_query": [{**LAST, "eval_vqa": [{"question": "?"}]}]},
        "objects with question and answer",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_damaged_query_is_named_before_anything_is_played(tmp_path: Path, case: str) -> None:
    more, why = WRONG[case]
    with pytest.raises(ConfigError, match=why):
        source(tmp_path, [task(1, {"eval_types": ["page_image_query"], **more})]).skipped("test")
    with pytest.raises(ConfigError, match="image is a list of names, not 7"):
        source(tmp_path, [task(1, TEXT, image=7)]).skipped("test")


@pytest.mark.parametrize(
    ("kind", "reference", "answer", "score"),
    [
        ("must_exclude", ["red", "0"], "blue 10", 1.0),
        ("must_exclude", ["red"], "a red car", 0.0),
        ("one_of", ["red", "blue"], "It is blue.", 1.0),
        ("one_of", ["red", "blue"], "green", 0.0),
        ("required_values", ["> 5", "<= 1,000"], "1,000", 1.0),
        ("required_values", ["== 3 |OR| > 9"], "3.0", 1.0),
        ("required_values", ["> 5"], "5", 0.0),
        ("required_values", ["> 5"], "many", 0.0),
        ("required_values", ["> 5"], "nan", 0.0),
        ("required_values", ["> 5"], "inf", 0.0),
        ("required_values", ["> 5"], "1e999", 0.0),
        ("required_values", ["< 5"], "-Infinity", 0.0),
        ("required_values", ["about 5"], "5", None),
    ],
)
def test_further_kinds_of_answers(kind: str, reference: list[str], answer: str, score: float | None) -> None:
    if score is None:
        with pytest.raises(Exception, match="no condition such as"):
            string_match({kind: reference}, answer)
    else:
        assert string_match({kind: reference}, answer).score == score


def test_similarity_is_that_of_the_eye() -> None:
    bigger = io.BytesIO()
    Pillow.open(io.BytesIO(RED)).resize((80, 80)).save(bigger, "PNG")
    assert similarity(RED, RED) == pytest.approx(1.0)
    assert similarity(bigger.getvalue(), RED) > 0.8 > similarity(BLUE, RED)
    assert similarity(png((1, 2, 3), (3, 3)), png((1, 2, 3), (2, 2))) == pytest.approx(1.0)


def test_similarity_is_the_formula_window_by_window() -> None:
    """Equation 13 of Wang et al. 2004, with unbiased variances, as scikit-image computes it."""
    a, b = (numpy.asarray(Pillow.open(io.BytesIO(one)).convert("RGB"), dtype=float) for one in (RED, BLUE))
    values = []
    for y, x, c in itertools.product(range(34), range(34), range(3)):
        one, other = (image[y : y + 7, x : x + 7, c].ravel() for image in (a, b))
        covariance = numpy.cov(one, other)
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        luminance = (2 * one.mean() * other.mean() + c1) / (one.mean() ** 2 + other.mean() ** 2 + c1)
        values.append(luminance * (2 * covariance[0, 1] + c2) / (covariance[0, 0] + covariance[1, 1] + c2))
    assert similarity(RED, BLUE) == pytest.approx(numpy.mean(values), abs=1e-9)


# --- in a browser


def looks(request: dict[str, Any]) -> str:
    """A judge that really looks: at the colour of most pixels."""
    (picture,) = [part for part in request["messages"][-1]["content"] if part["type"] == "image_url"]
    data = b64decode(picture["image_url"]["url"].partition(",")[2])
    colors: Any = Pillow.open(io.BytesIO(data)).convert("RGB").getcolors()
    _, (red, _, blue) = max(colors)
    return "It is red." if red > blue else "It is blue."


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        running.pages["/both"] = f"<div class=item><img src='{src(BLUE)}'></div><img class=side src='{src(RED)}'>"
        running.pages["/none"] = "<p>nothing"
        running.pages["/broken"] = "<img src='data:text/plain,hello'>"
        running.pages["/damaged"] = "".join(f"<img src='{src(one)}'>" for one in DAMAGED.values())
        running.pages["/one-whole"] = running.pages["/damaged"] + f"<img src='{src(RED)}'>"
        yield running


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with judge_server(looks) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(server: PageServer) -> AsyncIterator[ChromiumSession]:
    async with BrowserPool() as pool:
        session = await pool.session()
        await session.reset()
        yield session
        await session.close()


CASES: dict[str, tuple[str, dict[str, Any], float | None, str]] = {
    "any image will do": ("/both", {"eval_vqa": COLOR}, 1.0, "as wanted"),
    "of a class": ("/both", {"eval_vqa": COLOR, "eval_image_class": ".item"}, 0.0, "answered 'It is blue.', not 'red'"),
    "the image itself": ("/both", {"eval_vqa": COLOR, "eval_image_class": ".side"}, 1.0, "as wanted"),
    "no image": ("/none", {"eval_vqa": COLOR}, 0.0, "there is no image"),
    "no selector": ("/both", {"eval_vqa": COLOR, "eval_image_class": ".[["}, 0.0, "there is no image"),
    "unreadable": ("/broken", {"eval_vqa": COLOR}, None, "none of the 1 images"),
    "damaged": ("/damaged", {"eval_vqa": COLOR}, None, f"none of the {len(DAMAGED)} images"),
    "damaged, to compare": ("/damaged", {"eval_fuzzy_image_match": "red.png"}, None, f"none of the {len(DAMAGED)}"),
    "one is whole": ("/one-whole", {"eval_vqa": COLOR, "eval_fuzzy_image_match": "red.png"}, 1.0, "as wanted"),
    **{
        f"a reference: {name}": ("/both", {"eval_fuzzy_image_match": f"{name}.png"}, None, f"{name}.png cannot be read")
        for name in DAMAGED
    },
    "bytes instead of a name": (
        "/both",
        {"eval_fuzzy_image_match": src(RED) + "A" * 5000},
        None,
        "cannot be read",
    ),
    "alike": ("/both", {"eval_fuzzy_image_match": "missing.png |OR| red.png"}, None, "missing.png cannot be read"),
    "the same": ("/both", {"eval_fuzzy_image_match": "red.png"}, 1.0, "as wanted"),
    "another": ("/both", {"eval_fuzzy_image_match": "red.png", "eval_image_class": ".item"}, 0.0, "most similar image"),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES)
async def test_images_of_pages_are_graded(
    session: ChromiumSession, server: PageServer, judge: JudgeServer, tmp_path: Path, case: str
) -> None:
    path, query, score, why = CASES[case]
    for name, data in {"red": RED, **DAMAGED}.items():
        (tmp_path / f"{name}.png").write_bytes(data)
    client = SeeingJudge(Server(model="m", base_url=judge.url))
    await session.goto(server.url(path))
    for url in ("last", server.url(path)):
        queries = [{**LAST, **query, "eval_image_url": url}]
        verdict = await page_image_query(queries, session, client, [tmp_path])
        assert (verdict.score, why in verdict.why) == (score, True), verdict
    await client.close()


def scene(mode: str) -> Pillow.Image:
    """Four colours, one a corner, so that what is turned or mixed up shows."""
    image = Pillow.new("RGB", (24, 16), (250, 240, 30))
    for box, color in (((0, 0, 12, 8), (200, 20, 30)), ((12, 0, 24, 8), (20, 40, 220)), ((0, 8, 12, 16), (10, 90, 20))):
        image.paste(color, box)
    if mode == "I;16":
        return Pillow.fromarray(numpy.asarray(image.convert("L"), dtype=numpy.uint16) * 257)
    return image.convert(mode, colors=8) if mode == "P" else image.convert(mode)


def see_through(mode: str) -> Pillow.Image:
    image = scene(mode)
    image.putalpha(Pillow.linear_gradient("L").resize(image.size))
    return image


def saved(image: Pillow.Image, kind: str, **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def turned(kind: str, way: int, **more: Any) -> bytes:
    notes = Pillow.Exif()
    notes[0x0112] = way
    return saved(scene("RGB"), kind, exif=notes, **more)


def moving(kind: str) -> bytes:
    first, second = scene("RGB"), scene("RGB").transpose(Pillow.Transpose.ROTATE_180)
    return saved(first, kind, save_all=True, append_images=[second], duration=100_000, loop=0)


SHOWN = {
    **{f"PNG of mode {mode}": saved(scene(mode), "PNG") for mode in ("RGB", "L", "1", "P", "I;16")},
    **{
        f"see-through {kind} of mode {mode}": saved(see_through(mode), kind)
        for mode, kind in (("RGBA", "PNG"), ("LA", "PNG"))
    },
    "see-through WebP": saved(see_through("RGBA"), "WEBP", lossless=True),
    "a colour that is transparent": saved(scene("RGB"), "PNG", transparency=(200, 20, 30)),
    "a palette that shines through": saved(scene("P"), "PNG", transparency=bytes([0, 90, 255])),
    "a GIF with a transparent colour": saved(scene("P"), "GIF", transparency=1),
    **{f"JPEG of mode {mode}": saved(scene(mode), "JPEG", quality=95, subsampling=0) for mode in ("L", "RGB")},
    **{f"JPEG turned {way}": turned("JPEG", way, quality=95, subsampling=0) for way in range(1, 9)},
    "PNG turned 6": turned("PNG", 6),
    **{f"moving {kind}": moving(kind) for kind in ("PNG", "GIF")},
    "BMP": saved(scene("RGB"), "BMP"),
}
_CANVAS = """(async () => {
  const image = new Image();
  image.src = %s;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.fillStyle = 'white';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  return {size: [canvas.width, canvas.height], pixels: [...pixels.data]};
})()"""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", SHOWN)
async def test_a_picture_of_any_kind_is_what_the_browser_shows(
    session: ChromiumSession, server: PageServer, case: str
) -> None:
    address = f"data:;base64,{b64encode(SHOWN[case]).decode()}"
    browsers = await session.evaluate(server.url("/none"), _CANVAS % json.dumps(address))
    ours = Pillow.open(io.BytesIO(readable(SHOWN[case])))
    assert ours.size == tuple(browsers["size"])
    theirs = numpy.array(browsers["pixels"]).reshape(ours.height, ours.width, 4)[..., :3]
    # Decoders of JPEG, and of what shines through, round otherwise.
    assert numpy.abs(numpy.asarray(ours.convert("RGB"), dtype=int) - theirs).max() <= 6


@pytest.mark.asyncio(loop_scope="module")
async def test_without_a_judge_or_with_a_broken_one_there_is_no_verdict(
    session: ChromiumSession, server: PageServer
) -> None:
    await session.goto(server.url("/both"))
    queries = [{**LAST, "eval_vqa": COLOR}]
    assert (await page_image_query(queries, session, None, [])).why.endswith("env.seeing.model names none")
    with judge_server(500) as broken:
        client = SeeingJudge(Server(model="m", base_url=broken.url, retries=0))
        verdict = await page_image_query(queries, session, client, [])
        assert verdict.score is None and verdict.why
        await client.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_image_with_an_address_is_that_of_the_episodes_copy_and_of_any_site(
    session: ChromiumSession, server: PageServer
) -> None:
    with serving() as other:
        other.files |= {"/red": ("image/png", RED), "/blue": ("image/png", BLUE)}
        await session.goto(server.url("/both"))
        # As tasks name them: by the first copy's address, where nothing answers here.
        named = "http://127.0.0.1:9"
        session.urls = UrlMap({other.url(""): named})
        try:
            for path, selector, score in (("red", ".side", 1.0), ("blue", ".side", 0.0), ("gone", "", None)):
                query = {**LAST, "eval_image_class": selector, "eval_fuzzy_image_match": f"{named}/{path}"}
                verdict = await page_image_query([query], session, None, [])
                assert verdict.score == score, verdict
        finally:
            session.urls = UrlMap()
        query = {**LAST, "eval_fuzzy_image_match": f"{named}/red"}
        assert (await page_image_query([query], session, None, [])).why == f"the image {named}/red cannot be read"
