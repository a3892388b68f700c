"""The pictures that goals come with (`image` of VisualWebArena): files beside the task file, or addresses of sites.

Each is loaded once. Nothing is asked of a host that is neither a site's nor in `env.hosts`, also where a site leads to
it.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from dynaweb.data.images import MAX_BYTES
from dynaweb.errors import ImageError
from dynaweb.protocols import Images
from dynaweb.types import Image
from dynaweb.web.chromium.network import allows
from dynaweb_env_webarena.images import readable

TIMEOUT = 30.0
"""Seconds that a host may take to answer."""
ACCEPTED = "image/*"


class GoalImages:
    """Loads pictures by name into `images`; `folders` is where files are looked for, `hosts` who may be asked."""

    def __init__(self, folders: Sequence[Path], hosts: Sequence[str], images: Images) -> None:
        self._folders, self._hosts, self._images = folders, hosts, images
        self._loaded: dict[str, Image | ImageError] = {}
        self._silent: dict[str, str] = {}
        """Hosts that did not answer, and why: hundreds of tasks are not to wait for one of them."""

    def load(self, name: str) -> Image:
        """A picture by its path or its address. Raises `ImageError` where it cannot be had, each time."""
        if name not in self._loaded:
            try:
                data = self._fetched(name) if "://" in name else self._read(name)
                self._loaded[name] = self._images.put(readable(data))
            except ImageError as error:
                self._loaded[name] = error
        known = self._loaded[name]
        if isinstance(known, ImageError):
            raise known
        return known

    def _read(self, name: str) -> bytes:
        try:
            file = next((folder / name for folder in self._folders if (folder / name).is_file()), None)
            if file is None:
                raise ImageError("there is no such file beside the task file")
            with file.open("rb") as stream:
                return stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise ImageError(f"its file cannot be read: {error.strerror}") from None

    def _fetched(self, address: str) -> bytes:
        self.check(address)
        host = urlsplit(address).netloc
        if host in self._silent:
            raise ImageError(self._silent[host])
        # What an address may not hold, such as a space, is written as browsers write it.
        request = urllib.request.Request(quote(address, safe="%/:=&?~#+!$,;'@()*[]"), headers={"Accept": ACCEPTED})
        try:
            with urllib.request.build_opener(_Within(self)).open(request, timeout=TIMEOUT) as answer:
                data: bytes = answer.read(MAX_BYTES + 1)
                return data
        except HTTPError as error:
            error.close()
            raise ImageError(f"{host} answers HTTP {error.code}") from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, URLError) else error
            self._silent[host] = f"{host} does not answer ({why})"
            raise ImageError(self._silent[host]) from None

    def check(self, address: str) -> None:
        """Raise `ImageError` for an address that may not be asked."""
        if not address.startswith(("http://", "https://")) or not allows(address, self._hosts):
            host = address.partition("://")[2].partition("/")[0] or address
            raise ImageError(f"{host[:80]} is no site's host and not in env.hosts")


class _Within(urllib.request.HTTPRedirectHandler):
    """Follows redirections to hosts that may be asked."""

    def __init__(self, images: GoalImages) -> None:
        self._goal_images = images

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """See `HTTPRedirectHandler`. Raises `ImageError` for another host."""
        try:
            self._goal_images.check(newurl)
        except ImageError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)
