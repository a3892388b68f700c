"""The pages over a folder by address: what `dynaweb view` serves, and what it writes as a static site.

    /                            the list of runs; of a run or a matrix alone, its own page
    /runs.json                   the rows of the list, with a stamp that changes when they do
    /compare.html?run=A&run=B    runs side by side; in a static site all of them, of which the page shows those chosen
    /A/report.html               the report of run A, or of a matrix; `/A/version` is its stamp
    /A/data/FILE/3.js            the fourth block of trajectories of a file of A, loaded when one of them is opened
    /A/images/ab/ab....png       a picture of a page of A, by its content
    /A/data/evaluations.js       what arms of A have played, for the comparison of two of them

Addresses name runs that were found below the folder, and nothing else: no file is served as it lies there but pictures,
whose bytes are those that their name says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from dynaweb.data.store import SUFFIX, TrajectoryStore
from dynaweb.errors import CheckpointError
from dynaweb.report.data import ReportData, Sample
from dynaweb.report.gather import ReadFile, RealPages, gather, real_page_files
from dynaweb.report.html import Linked, render
from dynaweb.report.listing import ListedRun, listing_page, rows
from dynaweb.report.tokens import TokenTexts, token_texts
from dynaweb.report.viewer import BLOCK, blocks, evaluations, update_of
from dynaweb.runs.cache import IMAGES
from dynaweb.runs.lock import is_locked
from dynaweb.serve.comparisons import compared_page
from dynaweb.serve.runs import in_short, is_matrix, is_run, listed, runs_below

WATCHED = ("status.json", "metrics.jsonl", "summary.json", "matrix.json", "cells/*/status.json", "outcomes/*.json")
"""What a run, or a matrix with its cells, writes as it goes on; trajectories besides."""
LISTED = ("status.json", "metrics.jsonl", "summary.json", "checksums.json", "recipe.json", "seeds.json", "command.json")
"""What the row of a run in the list is made of."""
PATIENCE = 1.0
"""Seconds that a page waits for trajectories to be read before it is shown without them."""
LIST_PATIENCE = 0.3
"""Seconds that the list waits for the numbers of runs."""
KEPT_BLOCKS = 64
BLOCK_DIGITS = 9
"""Of the number of a block in an address: Python reads no number of thousands of digits."""

Kind = Literal["text/html", "text/plain", "text/javascript", "application/json", "image/png"]


_PICTURE = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{62}\.png")


class AddressError(ValueError):
    """An address that cannot be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What stands at an address: a text, or the `data` of a picture."""

    text: str
    kind: Kind = "text/html"
    data: bytes = b""
    pictures: tuple[str, ...] = ()
    """Of a block of trajectories, the addresses of the pictures in it, relative to the folder of the run."""

    @property
    def body(self) -> bytes:
        """What is sent."""
        return self.data or self.text.encode("utf-8")


def stamp_of(folder: Path) -> str:
    """A short text that changes when a run or a matrix has gone on."""
    paths = [path for pattern in (*WATCHED, "trajectories/*.gz") for path in sorted(folder.glob(pattern))]
    facts = "\n".join(f"{path.relative_to(folder)} {_state(path)}" for path in paths)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _state(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:  # the outcome of a cell goes when its next attempt starts; a link may lead to itself
        return "gone"
    return f"{state.st_size} {state.st_mtime_ns}"


def data_file(data: Any) -> Answer:
    """Data as a script that hands it to the page as text (see `base.js`): a page from a disk may not read files."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    literal = json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e")
    return Answer(f"dynawebData({literal});\n", "text/javascript")


@dataclass
class RunPages:
    """The report of one run, made anew when it has gone on, and its trajectories, a block at a time."""

    folder: Path
    _files: dict[Path, tuple[str, ReadFile]] = field(default_factory=dict)
    _page: tuple[str, str] = ("", "")
    _blocks: dict[tuple[str, int, str], Answer] = field(default_factory=dict)
    _real: tuple[str, RealPages] | None = None
    _texts: TokenTexts | None = None
    _reader: Thread | None = None
    _lock: Lock = field(default_factory=Lock)
    _read_lock: Lock = field(default_factory=Lock)

    @property
    def stamp(self) -> str:
        """Changes when the run has gone on, and when its trajectories have been read."""
        return stamp_of(self.folder) + ("" if self._is_read() else "-reading")

    def page(self, linked: Linked, *, wait: bool = False) -> str:
        """The report. Where trajectories take long to read it comes without them at first, unless it is to `wait`."""
        if not self._is_read():
            with self._lock:  # several requests may come first
                if self._reader is None or not self._reader.is_alive():
                    self._reader = Thread(target=self._read_all, daemon=True)
                    self._reader.start()
                reader = self._reader
            reader.join(None if wait else PATIENCE)
        stamp = self.stamp
        with self._lock:
            if self._page[0] != stamp:
                self._page = stamp, self._render(linked, stamp)
            return self._page[1]

    def _render(self, linked: Linked, stamp: str) -> str:
        reading = stamp.endswith("-reading") and (self._reader is not None and self._reader.is_alive())
        mine = Linked(stamp if linked.stamp else "", linked.ups, linked.compare, reading)
        return render(self.data(episodes=not reading), linked=mine)

    def data(self, *, episodes: bool = True) -> ReportData:
        """What the report shows; no sample, since trajectories are loaded when they are opened."""
        return gather(self.folder, each=0, episodes=episodes, read=self._read)

    def block(self, stem: str, number: int) -> Answer | None:
        """A block of trajectories of a file; None where there is none."""
        path = self._paths().get(stem)
        if path is None or number < 0:
            return None
        key = stem, number, _state(path)
        if key not in self._blocks:
            store = TrajectoryStore(path)
            if number * BLOCK >= len(store):
                return None
            episodes = islice(store.iterate(number * BLOCK), BLOCK)
            real = self._real_pages()
            samples = (real.paired(Sample(stem, episode, update_of(episode))) for episode in episodes)
            (block,) = blocks(samples, self._token_texts(), prompts=True)
            while len(self._blocks) >= KEPT_BLOCKS:
                self._blocks.pop(next(iter(self._blocks)), None)
            shown = [page["picture"] for page in block["pages"] if "picture" in page]
            shown += [picture for item in block["items"] for picture in item.get("goal", ())]
            addresses = dict.fromkeys(picture["src"] for picture in shown)
            self._blocks[key] = replace(data_file(block), pictures=tuple(filter(None, addresses)))
        return self._blocks[key]

    def picture(self, name: str) -> Answer | None:
        """A picture by its path below `images/`; None where there is none, or a damaged one."""
        path = self.folder / IMAGES / name
        digest = path.stem
        if not _PICTURE.fullmatch(name) or not path.is_file():
            return None
        data = path.read_bytes()
        return Answer("", "image/png", data) if hashlib.sha256(data).hexdigest() == digest else None

    def evaluations(self) -> Answer:
        """What each arm has played, for comparisons."""
        return data_file(evaluations(self.data()))

    def files(self) -> Iterator[tuple[str, int]]:
        """The files of trajectories by stem, with the number of blocks of each."""
        for stem, path in self._paths().items():
            yield stem, -(-len(TrajectoryStore(path)) // BLOCK)

    def _paths(self) -> dict[str, Path]:
        paths = sorted((self.folder / "trajectories").glob(f"*{SUFFIX}"))
        return {path.name.removesuffix(SUFFIX): path for path in paths}

    def _is_read(self) -> bool:
        return all(self._files.get(path, ("",))[0] == _state(path) for path in self._paths().values())

    def _read_all(self) -> None:
        for path in self._paths().values():
            try:
                self._read(path, 0)
            except (CheckpointError, OSError):
                return  # the page says so

    def _read(self, path: Path, each: int | None) -> ReadFile:
        """A file of trajectories, read again only when it has changed."""
        # Whoever comes second waits for the first, and reads nothing.
        with self._read_lock:
            state = _state(path)
            known = self._files.get(path)
            if known is None or known[0] != state:
                known = self._files[path] = state, ReadFile.read(path, each)
            return known[1]

    def _real_pages(self) -> RealPages:
        paths = real_page_files(self._paths().values())
        state = " ".join(map(_state, paths))
        if self._real is None or self._real[0] != state:
            self._real = state, RealPages(paths)
        return self._real[1]

    def _token_texts(self) -> TokenTexts | None:
        self._texts = self._texts or token_texts(self.folder)
        return self._texts


class RunList:
    """The rows of the list, read in the background: those that are read already are there at once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ListedRun]] = {}
        self._reader: Thread | None = None

    def rows(self, runs: dict[str, Path], *, wait: bool = False) -> list[ListedRun]:
        """The row of each run; with `wait` all of them are whole."""
        matrices = [path for path, folder in runs.items() if is_matrix(folder)]
        owner = {path: next((one for one in matrices if path.startswith(f"{one}/cells/")), "") for path in runs}
        stamps = {path: self._stamp(folder) for path, folder in runs.items()}
        missing = [path for path in runs if self._known.get(path, ("",))[0] != stamps[path]]
        if missing and (self._reader is None or not self._reader.is_alive()):

            def read() -> None:
                for path in missing:
                    self._known[path] = stamps[path], listed(path, runs[path], owner[path])

            self._reader = Thread(target=read, daemon=True)
            self._reader.start()
        if missing and self._reader is not None:
            self._reader.join(None if wait else LIST_PATIENCE)
        return [
            self._known[path][1] if path in self._known else in_short(path, folder, owner[path])
            for path, folder in runs.items()
        ]

    def _stamp(self, folder: Path) -> str:
        """Changes when the row may; a killed run writes nothing, but its lock is free."""
        # Asked of every run every two seconds: few files, and no look into folders.
        files = stamp_of(folder) if is_matrix(folder) else " ".join(_state(folder / name) for name in LISTED)
        return f"{files} {is_locked(folder / '.lock')}"


class Site:
    """All pages over a folder of runs, a run or a matrix. Raises `CheckpointError` where there is none of these."""

    def __init__(self, root: Path, *, live: bool = True) -> None:
        self.root, self.live = root, live
        self._pages: dict[Path, RunPages] = {}
        self._matrices: dict[Path, tuple[str, str]] = {}
        self._list = RunList()
        self._lock = Lock()
        if not root.is_dir() or not (self.runs or self.is_list):
            raise CheckpointError(f"{root} is no folder of runs; give the folder that a run, a matrix or several made")
        if not self.runs:
            raise CheckpointError(
                f"{root} is neither a run folder nor one of a matrix, and holds none; give the folder that a run made, "
                "or one with several of them such as runs/"
            )

    @property
    def runs(self) -> dict[str, Path]:
        """Runs and matrices by path."""
        return runs_below(self.root)

    @property
    def is_list(self) -> bool:
        """Whether the folder is one of runs, not a run or a matrix itself."""
        return not is_run(self.root) and not is_matrix(self.root)

    def answer(self, address: str) -> Answer | None:
        """What stands at an address (path and query), None where nothing does.

        Raises `AddressError` for what is no address.
        """
        parts = split_address(address)
        path = unquote(parts.path).strip("/")
        if self.is_list and path in ("", "index.html"):
            return self._listing()
        if self.is_list and path == "runs.json":
            data = rows(self._list.rows(self.runs))
            return Answer(json.dumps({"stamp": _digest(data), "runs": data}), "application/json")
        if path == "compare.html":
            return self._comparison(parse_qs(parts.query).get("run", []))
        runs = self.runs
        for name in ("report.html", "version", ""):
            run, _, last = path.rpartition("/") if name else (path, "", "")
            folder = runs.get(run) if last == name else None
            if folder is not None:
                return Answer(self._stamp(folder), "text/plain") if name == "version" else self._report(run, folder)
        return self._picture(path) or self._data(path)

    def is_folder(self, address: str) -> bool:
        """Whether an address names a folder without the slash that browsers resolve links by."""
        path = split_address(address).path
        return path != "/" and not path.endswith("/") and unquote(path).strip("/") in self.runs

    def addresses(self) -> Iterator[str]:
        """All addresses of a static site, as paths of files."""
        if self.is_list:
            yield "index.html"
        else:
            yield "report.html"
        yield "compare.html"
        for path, folder in self.runs.items():
            base = f"{path}/" if path else ""
            if path:
                yield f"{base}report.html"
            if is_run(folder):
                yield f"{base}data/evaluations.js"
                for stem, n in self._run(folder).files():
                    yield from (f"{base}data/{stem}/{number}.js" for number in range(n))

    def _run(self, folder: Path) -> RunPages:
        with self._lock:
            return self._pages.setdefault(folder, RunPages(folder))

    def _stamp(self, folder: Path) -> str:
        return stamp_of(folder) if is_matrix(folder) else self._run(folder).stamp

    def _listing(self) -> Answer:
        listed_runs = self._list.rows(self.runs, wait=not self.live)
        stamp = _digest(rows(listed_runs)) if self.live else ""
        return Answer(listing_page(self.root.resolve().name, listed_runs, linked=Linked(stamp)))

    def _report(self, path: str, folder: Path) -> Answer:
        linked = Linked("live" if self.live else "", self._ups(path), self._compare(path, folder))
        if is_matrix(folder):
            return Answer(self._matrix(folder, linked))
        return Answer(self._run(folder).page(linked, wait=not self.live))

    def _matrix(self, folder: Path, linked: Linked) -> str:
        from dynaweb.matrix import MatrixFolder
        from dynaweb.matrix.page import matrix_page
        from dynaweb.matrix.results import results

        stamp = stamp_of(folder)
        with self._lock:
            if self._matrices.get(folder, ("", ""))[0] != stamp:
                matrix = MatrixFolder(folder)
                mine = Linked(stamp if self.live else "", linked.ups, linked.compare)
                page = matrix_page(results(matrix.read_plan(), matrix), folder, linked=mine)
                self._matrices[folder] = stamp, page
            return self._matrices[folder][1]

    def _ups(self, path: str) -> tuple[tuple[str, str], ...]:
        """The way back from a page: to the list, and from a cell to its matrix."""
        if not path:
            return ()
        to_root = "../" * (path.count("/") + 1)
        ups = [("All runs", f"{to_root}index.html")] if self.is_list else []
        matrix, within, _ = path.rpartition("/cells/") if "/cells/" in path else ("", path.startswith("cells/"), "")
        if within:
            ups.append((f"Matrix {(self.root / matrix).resolve().name}", "../../report.html"))
        return tuple(ups)

    def _compare(self, path: str, folder: Path) -> str:
        """The address of the comparison of a run's arms, or of the cells of a matrix."""
        if is_matrix(folder):
            base = f"{path}/cells/" if path else "cells/"
            chosen = [one for one in self.runs if one.startswith(base)]
            if len(chosen) < 2:
                return ""
        else:
            chosen = [path]
        to_root = "../" * (path.count("/") + 1) if path else ""
        query = "&".join(f"run={quote(one, safe='')}" for one in chosen)
        return f"{to_root}compare.html{'?' if self.live else '#'}{query}"

    def _comparison(self, chosen: list[str]) -> Answer | None:
        runs = {path: folder for path, folder in self.runs.items() if is_run(folder)}
        if any(path not in runs for path in chosen):
            return None
        wanted = {path: runs[path] for path in (chosen or runs)}
        ups = (("All runs", "index.html"),) if self.is_list else (("Back to the report", "report.html"),)
        return Answer(compared_page(wanted, Linked("", ups)))

    def _picture(self, path: str) -> Answer | None:
        """A file below the `images` of a run."""
        run, is_picture, name = f"/{path}".rpartition(f"/{IMAGES}/")
        folder = self.runs.get(run.strip("/")) if is_picture else None
        return None if folder is None or is_matrix(folder) else self._run(folder).picture(name)

    def _data(self, path: str) -> Answer | None:
        """A file below the `data` of a run."""
        *parts, name = path.split("/")
        # A store may be called `data` too.
        stem = parts.pop() if name != "evaluations.js" and parts else ""
        folder = self.runs.get("/".join(parts[:-1])) if parts[-1:] == ["data"] else None
        if folder is None or is_matrix(folder):
            return None
        if name == "evaluations.js":
            return self._run(folder).evaluations()
        number = name.removesuffix(".js")
        if not (number.isdecimal() and name.endswith(".js")):
            return None
        if len(number) > BLOCK_DIGITS:
            raise AddressError(f"a block's number has {BLOCK_DIGITS} digits at most")
        return self._run(folder).block(stem, int(number))


def split_address(address: str) -> SplitResult:
    """The parts of an address. Raises `AddressError` where it has none."""
    try:
        return urlsplit(address)
    except ValueError as error:
        raise AddressError(f"the address cannot be read: {error}") from error


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
