"""The image store: PNG files named by their content, beside the records that refer to them.

    images = ImageStore(Path("runs/x/images"))
    image = images.put(png)       # Image(sha256, width, height), which is what records and prompts hold
    png = images.get(image)

A picture lies in `<folder>/<first two digits>/<sha256>.png`, and the same bytes are written once. The stages of all
runs keep theirs in one folder beside the stage cache, since they share their episodes too; a run folder has links to
those that its episodes refer to, in `images/`. `images_of` finds the pictures of a run folder, or of any store.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from dynaweb.config.sections import MAX_PIXELS
from dynaweb.errors import ImageError
from dynaweb.runs.atomic import write_with
from dynaweb.runs.cache import IMAGES
from dynaweb.types import Image, Observation, Trajectory, Transition

MAX_BYTES = 64 * 1024 * 1024
"""Most bytes of one picture."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NAME = re.compile(r"[0-9a-f]{64}")
_READ = ("PNG", "JPEG", "GIF", "WEBP", "AVIF", "BMP", "ICO", "TIFF")
"""What pages and data sets hold. Of others pillow reads some by programs that it runs, such as Ghostscript for EPS."""
_KINDS = {b"\xff\xd8\xff": "a JPEG", b"GIF8": "a GIF", b"RIFF": "a WebP", b"<svg": "an SVG", b"%PDF": "a PDF"}


class ImageStore:
    """Pictures in a folder, which is made with the first one. Any number of processes may write to it."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> None:
        self.folder = folder
        self.max_bytes, self.max_pixels = max_bytes, max_pixels

    def path(self, image: Image) -> Path:
        """Where the file of a picture is, or would be. Raises `ImageError` for a name that is no SHA-256."""
        if not isinstance(image.sha256, str) or not _NAME.fullmatch(image.sha256):
            raise ImageError(
                f"a picture is named {str(image.sha256)[:80]!r}, which is no SHA-256 of 64 hexadecimal digits; the "
                "record that refers to it is damaged"
            )
        return self.folder / image.sha256[:2] / f"{image.sha256}.png"

    def __contains__(self, image: Image) -> bool:
        """Whether there is a file of that name; `get` looks into it."""
        return self.path(image).is_file()

    def put(self, data: bytes) -> Image:
        """Keep the bytes of a PNG file, and name them. Raises `ImageError` for anything else, and for one that is too
        large."""
        if len(data) > self.max_bytes:
            raise ImageError(
                f"a picture of {len(data):,} bytes is too large (at most {self.max_bytes:,}); make it smaller, such as "
                "by observation.max_pixels"
            )
        width, height = png_size(data)
        if width * height > self.max_pixels:
            raise ImageError(
                f"a picture of {width} x {height} pixels is too large (at most {self.max_pixels:,} pixels); make it "
                "smaller, such as by observation.max_pixels"
            )
        image = Image(sha256(data).hexdigest(), width, height)
        path = self.path(image)
        # A file that was damaged is written again.
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            with suppress(OSError):
                os.utime(path)  # so that pruning sees that it is in use
        else:
            write_with(path, lambda temporary: temporary.write_bytes(data))
        return image

    def get(self, image: Image) -> bytes:
        """The bytes of a picture. Raises `ImageError` when its file is missing, damaged, or of another size."""
        path = self.path(image)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ImageError(
                f"the picture {path} cannot be read ({error.strerror}); bring its folder {IMAGES}/ beside the records "
                "that refer to it, or play the episodes again"
            ) from None
        if sha256(data).hexdigest() != image.sha256:
            raise ImageError(f"the picture {path} is damaged (its bytes have changed); bring back a copy, or delete it")
        if png_size(data) != (image.width, image.height):
            raise ImageError(
                f"a record says that {path} has {image.width} x {image.height} pixels, and it has "
                f"{' x '.join(map(str, png_size(data)))}; the record is damaged, bring back a copy"
            )
        return data

    def share(self, pictures: Iterable[Image], folder: Path, *, link: bool = True) -> int:
        """Have these pictures in the store of another folder too, as hard links where the disk allows, else as copies.

        Without `link` they are copies, for whom may change them. Returns how many of them are not here; they stay
        missing there.
        """
        other, missing = ImageStore(folder), 0
        for image in dict.fromkeys(pictures):
            source, target = self.path(image), other.path(image)
            if target.is_file() and (link or not source.is_file() or not target.samefile(source)):
                continue
            if not source.is_file():
                missing += 1
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if link:
                with suppress(OSError):
                    target.hardlink_to(source)
                    continue
            write_with(target, lambda temporary, source=source: shutil.copyfile(source, temporary))  # type: ignore[misc]
        return missing


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels of a PNG file, whose parts are all there and whole. Raises `ImageError`."""
    if not data.startswith(_SIGNATURE):
        kind = next((name for start, name in _KINDS.items() if data[:64].lstrip().startswith(start)), "no PNG")
        what = f"{kind}, not a PNG" if kind != "no PNG" else "no PNG"
        raise ImageError(f"a picture is {what if data else 'empty'}; only PNG files are kept, so convert it first")
    size = _size(data)
    if size is None:
        raise ImageError(f"a PNG of {len(data):,} bytes is damaged or cut short; bring back a copy, or take it again")
    if min(size) < 1:
        raise ImageError(f"a PNG says that it has {size[0]} x {size[1]} pixels; take it again")
    return size


def as_png(data: bytes) -> bytes:
    """A picture of another kind as PNG, and a PNG as it is.

    Raises `ImageError` for what is no picture, or is too large, and without the package pillow.
    """
    if data.startswith(_SIGNATURE):
        return data
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise ImageError("a picture is no PNG, and converting it needs pillow: pip install 'dynaweb[vision]'") from None
    try:
        Pillow.init()  # which kinds there are depends on its version
        with Pillow.open(BytesIO(data), formats=[kind for kind in _READ if kind in Pillow.OPEN]) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise ImageError(f"a picture of {opened.width} x {opened.height} pixels is too large")
            out = BytesIO()
            opened.convert("RGB").save(out, "PNG")
    except ImageError:
        raise
    # Whatever its decoders raise of a stranger's file, it is the file that is at fault.
    except Exception as error:
        raise ImageError(f"a file is no picture that can be read ({type(error).__name__})") from None
    return out.getvalue()


def _size(data: bytes) -> tuple[int, int] | None:
    """None where a part is missing, cut or changed."""
    size, at, filled = None, len(_SIGNATURE), False
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, end = data[at + 4 : at + 8], at + 8 + length
        if end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            return None
        if size is None:
            if kind != b"IHDR" or length != 13:
                return None
            size = struct.unpack_from(">II", data, at + 8)
        filled |= kind == b"IDAT"
        if kind == b"IEND":
            return size if filled else None
        at = end + 4
    return None


def images_next_to(store: Path) -> ImageStore:
    """Where the pictures of a store outside of runs are kept: in `images/` beside its file."""
    return ImageStore(store.parent / IMAGES)


def images_of(path: Path) -> ImageStore:
    """The pictures of a run folder, of a folder of stores, or of one store file: those in the nearest `images/` at most
    three folders above it. Where there is none, the store is empty."""
    home = path if path.is_dir() else path.parent
    # A store of a run lies in its `trajectories/`, one of the stage cache in `<stage>/<key>/`.
    nearest = (folder / IMAGES for folder in (home, *home.absolute().parents[:3]))
    return ImageStore(next((folder for folder in nearest if folder.is_dir()), home / IMAGES))


def pictures_of(record: Trajectory | Transition) -> Iterator[Image]:
    """The pictures that a record refers to: of its goal, then of its pages in their order; a page that comes twice
    twice."""
    if isinstance(record, Trajectory):
        yield from record.task.images
    for page in pages_of(record):
        if page.screenshot is not None:
            yield page.screenshot.image


def pages_of(record: Trajectory | Transition) -> Iterator[Observation]:
    """The pages of a record, in order."""
    if isinstance(record, Transition):
        yield from (record.observation, record.next_observation)
        return
    yield from (step.observation for step in record.steps)
    if record.final is not None:
        yield record.final
