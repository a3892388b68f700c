"""The host list of a browser, enforced in its network: whatever a page tries, it connects to allowed hosts only.

Two ways, both below all that pages can do (redirects, frames, workers, sockets, prefetching, WebRTC):

- A list of loopback hosts alone is kept by Chromium's own resolver, which knows no other name or address. That is fast.
- With any other list all connections go through `FilteringProxy`, a SOCKS5 proxy (RFC 1928) in this process. It takes
  names, compares each with the list, resolves it, and connects to an address that it has looked at. A name that a
  wildcard admits leads to no private, link-local or loopback address, whatever its owner's name server says: only hosts
  that are named in full may be there. Nothing else resolves in Chromium, so that no lookup of a name leaves either.

WebRTC knows sockets of its own; it may only use what goes through a proxy. WebTransport and QUIC are not proxied, and
find no address.
"""

from __future__ import annotations

import asyncio
import fnmatch
import ipaddress
import re
import secrets
import socket
import threading
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from dynaweb.errors import ConfigError
from dynaweb.web.quoting import quote

LOOPBACK = ("*.localhost", "localhost", "127.0.0.1")
_WEB = ("http", "https", "ws", "wss")
_CONNECT_SECONDS = 20.0
_CHUNK = 2**16
_REFUSED, _UNREACHABLE = 2, 4
"""Replies of SOCKS5: not allowed by ruleset, host unreachable."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_INTERNET = ipaddress.ip_network("2000::/3")
"""All addresses of IPv6 that are given to the internet; the forms of others that hold one of IPv4 lie outside."""
_HOST = re.compile(r"[\w.:%-]+")
_PATTERN = re.compile(r"[\w.:%*?!\[\]-]+")
_ADDRESSES = re.compile(r"\d[\d.*]*")
"""A pattern of addresses of IPv4, such as `10.0.*`, or one of them."""


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise `ConfigError` for what is neither a host nor a pattern of hosts: Chromium would read rules out of it."""
    for host in hosts:
        if not _PATTERN.fullmatch(host):
            raise ConfigError(
                f"{quote(host[:120])} is no host that a browser may be allowed; write a name or an address alone, such "
                "as shop.example, *.shop.example or 10.0.0.5, without scheme, port and path"
            )


def hosts_in(urls: Iterable[str]) -> list[str]:
    """The hosts of others' addresses, in order, once each; what a list would read as a pattern is left out."""
    found = []
    for url in urls:
        with suppress(ValueError):
            found.append(urlsplit(url).hostname or "")
    return list(dict.fromkeys(host for host in found if _HOST.fullmatch(host)))


def allows(url: str, hosts: Sequence[str]) -> bool:
    """Whether a list admits the host of a web address."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _WEB and admits(parts.hostname or "", hosts)
    except ValueError:
        return False


def admits(host: str, hosts: Sequence[str]) -> bool:
    """Whether a list admits a name or an address. Wildcards admit no private one."""
    host = host.lower().rstrip(".")
    if not host or not any(_fits(host, pattern.lower()) for pattern in hosts):
        return False
    return is_named(host, hosts) or (not _is_local_name(host) and not is_private(host))


def is_named(host: str, hosts: Sequence[str]) -> bool:
    """Whether a list has the host itself, not only a wildcard; `*.localhost` and `10.0.*` mean what is private."""
    host = host.lower().rstrip(".")
    for pattern in (pattern.lower() for pattern in hosts):
        telling = "*" not in pattern or _is_local_name(pattern) or _ADDRESSES.fullmatch(pattern)
        if telling and _fits(host, pattern):
            return True
    return False


def _fits(host: str, pattern: str) -> bool:
    """Whether a pattern means a host; one of addresses means no name that begins like them (`10.0.evil.example`)."""
    if not fnmatch.fnmatchcase(host, pattern):
        return False
    return host == pattern or not _ADDRESSES.fullmatch(pattern) or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_private(address: str) -> bool:
    """Whether a text is an IP address that is not for the whole internet; False for names."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_private(str(inner))
        if ip not in _INTERNET:
            return True
    return not ip.is_global or ip.is_multicast


def is_loopback_only(hosts: Sequence[str]) -> bool:
    """Whether Chromium's resolver alone can keep the list."""
    return all(host in LOOPBACK or host.endswith(".localhost") for host in hosts)


def arguments(hosts: Sequence[str], proxy: int | None) -> list[str]:
    """Chromium's switches for a list; `proxy` is the port of the `FilteringProxy`, None where it needs none."""
    # Versions of Chromium know one or the other.
    names = ("webrtc-ip-handling-policy", "force-webrtc-ip-handling-policy")
    webrtc = [f"--{name}=disable_non_proxied_udp" for name in names]
    if proxy is None:
        excluded = ", ".join(f"EXCLUDE {host}" for host in hosts)
        return [*webrtc, f"--host-resolver-rules=MAP * ~NOTFOUND, {excluded}", "--no-proxy-server"]
    through = [f"--proxy-server=socks5://127.0.0.1:{proxy}", "--proxy-bypass-list=<-loopback>"]
    return [*webrtc, *through, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


class FilteringProxy:
    """A SOCKS5 proxy on loopback that connects to the hosts of a list only.

    It has a thread and an event loop of its own, so that pages load while this process computes. Where the environment
    names an HTTP proxy (`HTTPS_PROXY`, `NO_PROXY`), allowed connections go through that one, which then resolves their
    names.
    """

    def __init__(self, hosts: Sequence[str], port: int = 0) -> None:
        self.hosts = tuple(hosts)
        self.port = port
        """Where it listens, once it is started; 0 = a free port."""
        self.check_host = f"{secrets.token_hex(8)}.localhost"
        """A host that only this proxy has; its page is `check_text`, and shows that a browser comes through here."""
        self.check_text = secrets.token_hex(16)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="dynaweb-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    def start(self) -> FilteringProxy:
        """Listen on a free port. Raises `OSError` where there is none."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result()
        except OSError:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End it with all its connections; calling it twice is allowed."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        # All that runs in this loop is the proxy's: its connections, and tunnels to browsers elsewhere.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        # A connection that was closed lets go of its socket a turn of the loop later.
        await asyncio.sleep(0)
        await self.loop.shutdown_default_executor()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end, in the loop of the proxy."""
        try:
            await self._connection(reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass  # either side has gone, or the proxy has
        finally:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = await _request(reader, writer)
        if host.lower() == self.check_host:
            await self._check(reader, writer)
            return
        other: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        reply = _REFUSED
        if admits(host, self.hosts):
            try:
                other = await asyncio.wait_for(self._reach(host, port), _CONNECT_SECONDS)
                reply = 0
            except PermissionError:
                reply = _REFUSED
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                reply = _UNREACHABLE
        writer.write(bytes([5, reply, 0, 1, 0, 0, 0, 0, 0, 0]))
        await writer.drain()
        if other is None:
            return
        try:
            await asyncio.gather(_pump(reader, other[1]), _pump(other[0], writer))
        finally:
            other[1].close()

    async def _check(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]))
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(self.check_text)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{self.check_text}".encode())
        await writer.drain()

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an admitted host. Raises `PermissionError` where all its addresses are private."""
        if upstream := _upstream(host, port):
            return await _through(upstream, host, port)
        named = is_named(host, self.hosts)
        if _is_local_name(host.lower().rstrip(".")):
            addresses = ["127.0.0.1", "::1"]
        else:
            infos = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
            addresses = [address for address in addresses if named or not is_private(address)]
        if not addresses:
            raise PermissionError(f"{host} leads to private addresses only")
        for address in addresses[:-1]:
            with suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_SECONDS / 4)
        return await asyncio.open_connection(addresses[-1], port)


def _is_local_name(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """Host and port that a client of SOCKS5 asks for. Raises `OSError` for what is no such request."""
    version, methods = await reader.readexactly(2)
    if version != 5 or 0 not in await reader.readexactly(methods):
        raise OSError("no SOCKS5")
    writer.write(b"\x05\x00")
    _, command, _, kind = await reader.readexactly(4)
    if kind == 3:
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode("ascii", "replace")
    elif kind in (1, 4):
        host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
    else:
        raise OSError("an unknown kind of address")
    port = int.from_bytes(await reader.readexactly(2), "big")
    if command != 1:
        raise OSError("no connection is asked for")
    return host, port


def _upstream(host: str, port: int) -> str:
    """The HTTP proxy that the environment names for a connection; '' where there is none."""
    if is_private(host) or _is_local_name(host) or proxy_bypass(host):
        return ""
    proxies = getproxies()
    address = proxies.get("https" if port == 443 else "http") or proxies.get("all") or ""
    return address if urlsplit(address).scheme == "http" else ""


async def _through(upstream: str, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A tunnel through an HTTP proxy. Raises `OSError` when that one refuses it."""
    parts = urlsplit(upstream)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    key = f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}\r\n" if parts.username else ""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    writer.write(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n{key}\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        head = b""
    if not re.match(rb"HTTP/1\.\d 200", head):
        writer.close()
        raise OSError(f"the proxy refuses {host}")
    return reader, writer


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
