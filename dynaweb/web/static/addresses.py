"""Addresses of links as a browser writes them: resolved against the page, unsafe characters percent-encoded."""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes, urljoin, urlsplit

INVALID = "about:invalid"
"""What a reference that is no address leads to."""
_PATH_UNSAFE = re.compile(r"[^!$-;=@-Z\[-\]_a-z~]")
_QUERY_UNSAFE = re.compile(r"[^!$-&(-;=?-~]")
_FRAGMENT_UNSAFE = re.compile(r"[^!#-;=?-_a-~]")


def resolve_url(base: str, reference: str) -> str:
    """The absolute address of a link as a browser writes it: unsafe and non-ASCII characters percent-encoded.

    References that are no address, such as `http://[`, give `about:invalid`.
    """
    try:
        return _resolve(base.partition("#")[0], reference.strip().translate({9: None, 10: None, 13: None}))
    except ValueError:
        return INVALID


def _resolve(base: str, reference: str) -> str:
    address, hash_mark, fragment = reference.partition("#")
    path, query_mark, query = address.partition("?")
    if path or query_mark:
        # Joined without the query, because `urljoin` takes an empty one for none.
        base = urljoin(base.partition("?")[0], path.replace("\\", "/")) + (f"?{query}" if query_mark else "")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https"):
        return f"{base}{hash_mark}{fragment}"
    host = parts.netloc.lower().removesuffix(":80" if parts.scheme == "http" else ":443")
    query = f"?{_encode(_QUERY_UNSAFE, parts.query)}" if "?" in base else ""
    tail = f"#{_encode(_FRAGMENT_UNSAFE, fragment)}" if hash_mark else ""
    return f"{parts.scheme}://{host}{_encode(_PATH_UNSAFE, parts.path) or '/'}{query}{tail}"


def _encode(unsafe: re.Pattern[str], text: str) -> str:
    if not unsafe.search(text):
        return text
    return unsafe.sub(lambda match: match[0] if match[0] == "%" else quote_from_bytes(match[0].encode(), safe=""), text)
