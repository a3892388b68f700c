"""The host list holds for a browser's whole network: pages try every way out, and nothing arrives outside the list."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dynaweb.errors import ConfigError
from dynaweb.types import Action
from dynaweb.web.chromium.network import LOOPBACK, FilteringProxy, admits, allows, hosts_in, is_private
from dynaweb.web.chromium.pool import BrowserPool


def own_address() -> str:
    """An address of this machine, not on loopback where there is another: WebRTC sends from such ones alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"


OUTSIDE = own_address()
"""An address that no list below names."""

# A way is what a page does; `{u}` is an address outside, `{h}` its host and port, `{s}` the page's own server.
SCRIPTS = {
    "fetch": "fetch('{u}', {{mode: 'no-cors'}})",
    "fetch with a body": "fetch('{u}', {{mode: 'no-cors', method: 'POST', body: 'x'}})",
    "fetch that outlives the page": "fetch('{u}', {{mode: 'no-cors', keepalive: true}})",
    "fetch that is redirected": "fetch('/302?{u}', {{mode: 'no-cors'}})",
    "fetch later": "fetchLater('{u}', {{activateAfter: 0}})",
    "XMLHttpRequest": "const r = new XMLHttpRequest(); r.open('GET', '{u}'); r.send()",
    "XMLHttpRequest that is redirected": "const r = new XMLHttpRequest(); r.open('GET', '/307?{u}'); r.send()",
    "sendBeacon": "navigator.sendBeacon('{u}', 'x')",
    "EventSource": "new EventSource('{u}')",
    "EventSource, redirected": "new EventSource('/302?{u}')",
    "WebSocket": "new WebSocket('ws://{h}/')",
    "WebSocket over TLS": "new WebSocket('wss://{h}/')",
    "WebTransport": "new WebTransport('https://{h}/')",
    "WebRTC, STUN": "rtc('stun:{h}')",
    "WebRTC, TURN over UDP": "rtc('turn:{h}?transport=udp')",
    "WebRTC, TURN over TCP": "rtc('turn:{h}?transport=tcp')",
    "WebRTC, TURN over TLS": "rtc('turns:{h}?transport=tcp')",
    "WebRTC, a peer over UDP": "peer('{h}', 'udp')",
    "WebRTC, a peer over TCP": "peer('{h}', 'tcp')",
    "worker that fetches": "worker(`fetch('{u}', {{mode: 'no-cors'}})`)",
    "worker that imports": "worker(`importScripts('{u}')`)",
    "worker with a WebSocket": "worker(`new WebSocket('ws://{h}/')`)",
    "worker with an EventSource": "worker(`new EventSource('{u}')`)",
    "worker in a worker": "worker(`new Worker("
    "URL.createObjectURL(new Blob([\"fetch('{u}', {{mode: 'no-cors'}})\"])))`)",
    "worker with WebTransport": "worker(`new WebTransport('https://{h}/')`)",
    "worker of modules": "worker(`import('{u}')`, {{type: 'module'}})",
    "worker that is redirected": "new Worker('/302?{u}')",
    "shared worker": "new SharedWorker(URL.createObjectURL(new Blob([`fetch('{u}', {{mode: 'no-cors'}})`])))",
    "shared worker with a WebSocket": "new SharedWorker(URL.createObjectURL(new Blob([`new WebSocket('ws://{h}/')`])))",
    "service worker": "navigator.serviceWorker.register('/302?{u}')",
    "import": "import('{u}').catch(() => 0)",
    "Image": "new Image().src = '{u}'",
    "Audio": "new Audio('{u}').load()",
    "font": "new FontFace('x', 'url({u})').load()",
    "audio worklet": "new AudioContext().audioWorklet.addModule('{u}')",
    "paint worklet": "CSS.paintWorklet.addModule('{u}')",
    "popup": "open('{u}')",
    "popup that is redirected": "open('/302?{u}')",
    "popup that goes on": "const w = open('about:blank'); setTimeout(() => {{ w.location = '{u}' }}, 100)",
    "popup without an opener": "open('{u}', '_blank', 'noopener')",
    "payment": "new PaymentRequest([{{supportedMethods: '{u}'}}], {{total: {{label: 'x', amount: {{currency: 'EUR', "
    "value: '1'}}}}}}).canMakePayment()",
    "identity": "navigator.credentials.get({{identity: {{providers: [{{configURL: '{u}', clientId: '1'}}]}}}})",
    "style that imports": "const s = new CSSStyleSheet(); document.head.append(Object.assign("
    "document.createElement('style'), {{textContent: '@import url({u})'}}))",
    "link that is clicked": "const a = Object.assign(document.createElement('a'), {{href: '{u}', target: '_blank'}}); "
    "document.body.append(a); a.click()",
    "ping of a link": "const a = Object.assign(document.createElement('a'), {{href: '#x', ping: '{u}'}}); "
    "document.body.append(a); a.click()",
    "download": "const a = Object.assign(document.createElement('a'), {{href: '{u}', download: 'x'}}); "
    "a.target = '_blank'; document.body.append(a); a.click()",
    "form that is sent": "const f = Object.assign(document.createElement('form'), {{action: '{u}', method: 'post', "
    "target: '_blank'}}); document.body.append(f); f.submit()",
}
FRAMES = {
    "frame": "<iframe src='{u}'></iframe>",
    "frame that is redirected": "<iframe src='/302?{u}'></iframe>",
    "frame in a frame": "<iframe srcdoc=\"<iframe src='{u}'></iframe>\"></iframe>",
    "frame in a sandbox": "<iframe sandbox='allow-scripts' srcdoc=\"<script>"
    "fetch('{u}', {{mode: 'no-cors'}})</script>\"></iframe>",
    "frame of a script": "<iframe src=\"javascript:location.replace('{u}')\"></iframe>",
    "frame that moves": "<script>location = '{u}'</script>",
    "refresh": "<meta http-equiv=refresh content='0;url={u}'>",
    "form": "<form action='{u}' method=get><input name=q></form><script>document.forms[0].submit()</script>",
    "form that is redirected": "<form action='/307?{u}' method=post></form><script>document.forms[0].submit()</script>",
    "object": "<object data='{u}'></object>",
    "embed": "<embed src='{u}'>",
    "image": "<img src='{u}'>",
    "image that is redirected": "<img src='/301?{u}'>",
    "image of a set": "<img srcset='{u} 1x'>",
    "picture": "<picture><source srcset='{u}'><img></picture>",
    "input": "<input type=image src='{u}'>",
    "video": "<video src='{u}' autoplay muted></video>",
    "poster": "<video poster='{u}'></video>",
    "track": "<video src='data:video/mp4,'><track src='{u}' default></video>",
    "script": "<script src='{u}'></script>",
    "script that is redirected": "<script src='/302?{u}'></script>",
    "module": "<script type=module src='{u}'></script>",
    "module that imports": "<script type=module>import '{u}'</script>",
    "base": "<base href='{u}'><img src='x'>",
    "style": "<link rel=stylesheet href='{u}'>",
    "style with a background": "<style>body {{ background: url({u}) }}</style>",
    "style with a list": "<style>li {{ list-style: url({u}) }}</style><li>x",
    "style with a mask": "<style>p {{ mask: url({u}) }}</style><p>x",
    "style with a font": "<style>@font-face {{ font-family: x; src: url({u}) }} p {{ font-family: x }}</style><p>x",
    "style with a pointer": "<style>body {{ cursor: url({u}), auto }}</style>",
    "SVG image": "<svg><image href='{u}'/></svg>",
    "SVG in use": "<svg><use href='{u}#x'/></svg>",
    "SVG filter": "<svg><filter id=f><feImage href='{u}'/></filter><rect width=9 height=9 filter='url(#f)'/></svg>",
    "preload": "<link rel=preload as=image href='{u}'>",
    "preload of a module": "<link rel=modulepreload href='{u}'>",
    "prefetch": "<link rel=prefetch href='{u}'>",
    "prerender": "<link rel=prerender href='{u}'>",
    "preconnect": "<link rel=preconnect href='{u}'>",
    "icon": "<link rel=icon href='{u}'>",
    "manifest": "<link rel=manifest href='{u}'>",
    "dictionary": "<link rel=compression-dictionary href='{u}'>",
    "speculation rules, prefetch": "<script type=speculationrules>"
    '{{"prefetch": [{{"urls": ["{u}"], "eagerness": "immediate"}}]}}</script>',
    "speculation rules, prerender": "<script type=speculationrules>"
    '{{"prerender": [{{"urls": ["{u}"], "eagerness": "immediate"}}]}}</script>',
    "policy with a report": "<script>0</script>|Content-Security-Policy: script-src 'none'; report-uri {u}",
    "header that preloads": "<p>x|Link: <{u}>; rel=preload; as=image",
    "header that preconnects": "<p>x|Link: <{u}>; rel=preconnect",
    "header that refreshes": "<p>x|Refresh: 0;url={u}",
    "header with an icon": "<p>x|Link: <{u}>; rel=stylesheet",
    "stylesheet of XML": "<?xml-stylesheet href='{u}' type='text/xsl'?><a/>|Content-Type: text/xml",
}
VISITS = ("301", "302", "303", "307", "308")
"""Redirects of an address that the agent opens."""
RTC = """
const rtc = async urls => {
  const p = new RTCPeerConnection({iceServers: [{urls, username: 'u', credential: 'c'}]});
  p.createDataChannel('x');
  await p.setLocalDescription(await p.createOffer());
};
const peer = async (at, kind) => {
  const [ip, port] = at.split(':');
  const [p, q] = [new RTCPeerConnection(), new RTCPeerConnection()];
  p.createDataChannel('x');
  await p.setLocalDescription(await p.createOffer());
  await q.setRemoteDescription(p.localDescription);
  await q.setLocalDescription(await q.createAnswer());
  await p.setRemoteDescription(q.localDescription);
  const type = kind === 'tcp' ? ' tcptype passive' : '';
  await p.addIceCandidate({sdpMid: '0', candidate: `candidate:1 1 ${kind} 2122260223 ${ip} ${port} typ host${type}`});
};
const worker = (code, options) => new Worker(URL.createObjectURL(new Blob([code])), options);
"""


class Outside:
    """Listens outside the list, on a port for each way, for TCP and UDP; `hits` are the ways that arrived."""

    def __init__(self, ways: list[str], host: str = OUTSIDE) -> None:
        self.hits: set[str] = set()
        self.addresses: dict[str, str] = {}
        self._sockets: dict[socket.socket, str] = {}
        for way in ways:
            tcp = socket.create_server((host, 0))
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind(tcp.getsockname())
            self.addresses[way] = f"{host}:{tcp.getsockname()[1]}"
            self._sockets |= {tcp: way, udp: way}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    async def settled(self, quiet: float = 5.0, most: float = 30.0) -> None:
        """Wait until nothing has arrived for a while."""
        last, waited, idle = -1, 0.0, 0.0
        while waited < most and idle < quiet:
            idle = idle + 0.2 if len(self.hits) == last else 0.0
            last, waited = len(self.hits), waited + 0.2
            await asyncio.sleep(0.2)

    def _listen(self) -> None:
        import selectors

        with selectors.DefaultSelector() as selector:
            for one in self._sockets:
                selector.register(one, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(0.1):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    self.hits.add(self._sockets[one])
                    if one.type == socket.SOCK_DGRAM:
                        one.recv(2**16)
                    else:
                        one.accept()[0].close()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._sockets:
            one.close()


@contextmanager
def allowed_site(pages: dict[str, tuple[str, dict[str, str]]]) -> Iterator[int]:
    """The port of a server of an allowed host; `/302?ADDRESS` redirects to an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body, headers = pages.get(path, ("", {}))
            if path[1:].isdigit() and query:
                self.send_response(int(path[1:]))
                headers = {"Location": query}
            else:
                self.send_response(200)
            for name, text in ({"Content-Type": "text/html", "Content-Length": str(len(body))} | headers).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A browser that hangs up is part of the tests."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


async def tried(hosts: tuple[str, ...]) -> tuple[set[str], int, str]:
    """The ways that arrived outside, of how many, and all that the browser said of it."""
    visits = [f"visit, {status}" for status in VISITS]
    ways = [*SCRIPTS, *FRAMES, *visits]
    outside = Outside(ways)
    pages: dict[str, tuple[str, dict[str, str]]] = {}
    for at, (way, text) in enumerate(FRAMES.items()):
        address = outside.addresses[way]
        html, _, header = text.format(u=f"http://{address}/", h=address).partition("|")
        name, _, value = header.partition(": ")
        pages[f"/frame{at}"] = (html, {name: value} if name else {})
    tries = []
    for way, text in SCRIPTS.items():
        address = outside.addresses[way]
        code = text.format(u=f"http://{address}/", h=address)
        tries.append(f"(async () => {{ try {{ {code} }} catch (e) {{}} }})().catch(() => 0);")
    frames = "".join(f"<iframe src='/frame{at}'></iframe>" for at in range(len(FRAMES)))
    pages["/"] = (f"<!doctype html><body>{frames}<script>{RTC}{''.join(tries)}</script>", {})
    said: list[str] = []
    try:
        with allowed_site(pages) as port:
            async with BrowserPool(hosts=hosts, timeout=30.0, deadline=60.0) as pool:
                session = await pool.session()
                await session.reset()
                for status in VISITS:
                    to = outside.addresses[f"visit, {status}"]
                    await session.act(Action("goto", text=f"http://site.localhost:{port}/{status}?http://{to}/"))
                    said.append((await session.observe()).notice)
                await session.act(Action("goto", text=f"http://site.localhost:{port}/"))
                await outside.settled()
                said.append((await session.observe()).notice)
                await session.close()
                assert hosts[-1] == OUTSIDE or pool.blocked[OUTSIDE] > 20
    finally:
        outside.close()
    return outside.hits, len(ways), " ".join(said)


async def test_no_way_out_of_the_loopback_list() -> None:
    hits, count, said = await tried(LOOPBACK)
    assert not hits
    assert count >= 70
    assert f"a request to {OUTSIDE} was refused: this host is not allowed" in said


async def test_no_way_out_of_a_list_that_needs_the_proxy() -> None:
    """Neither past a wildcard that the address fits: it is private."""
    hits, _, _ = await tried((*LOOPBACK, "shop.example", "*"))
    assert not hits


async def test_the_ways_are_real() -> None:
    """With the host on the list they arrive, but for those through WebRTC and some that Chromium leaves for later."""
    hits, _, _ = await tried((*LOOPBACK, OUTSIDE))
    assert len(hits) >= 70, sorted({*SCRIPTS, *FRAMES} - hits)


@pytest.mark.parametrize(
    ("host", "hosts", "admitted"),
    [
        ("shop.localhost", LOOPBACK, True),
        ("127.0.0.1", LOOPBACK, True),
        ("127.0.0.2", LOOPBACK, False),
        ("::1", LOOPBACK, False),
        ("SHOP.example.", ("shop.example",), True),
        ("notshop.example", ("shop.example",), False),
        ("shop.example.evil", ("*.example", "shop.example"), False),
        ("a.shop.example", ("*.shop.example",), True),
        ("example.org", ("*",), True),
        ("93.184.216.34", ("*",), True),
        ("", ("*",), False),
        *((host, ("*",), False) for host in ("localhost", "a.localhost", "127.0.0.1", "::1", "10.0.0.1", "fd00::1")),
        *(
            (host, ("*",), False)
            for host in ("169.254.169.254", "192.168.1.1", "0.0.0.0", "::", "fe80::1", "100.64.0.1")
        ),
        *((host, ("*",), False) for host in ("::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "224.0.0.1")),
        ("10.0.0.1", ("10.0.0.1",), True),
        ("10.0.0.1", ("10.0.*",), True),
        ("10.1.0.1", ("10.0.*",), False),
        *((host, ("10.*", "10.0.*"), False) for host in ("10.0.evil.example", "10.evil.example", "10.0.0.1.evil.org")),
        *((host, ("*",), False) for host in ("::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b:1::7f00:1", "4000::1")),
        ("2606:2800:220:1::1", ("*",), True),
        ("localhost", ("*", "localhost"), True),
    ],
)
def test_what_a_list_admits(host: str, hosts: tuple[str, ...], admitted: bool) -> None:
    assert admits(host, hosts) is admitted
    if host:
        named = f"[{host}]" if ":" in host else host
        assert allows(f"http://{named}/", hosts) is admitted


NO_HOSTS = ("*", "*.example", "a, EXCLUDE *, EXCLUDE b.localhost", "a b.localhost", "[a-z].example", "", "?.example")
"""What stands where an address has its host, and is none."""


def test_no_host_of_an_address_is_read_as_a_pattern_or_a_rule() -> None:
    """Chromium's rules stand in one text, with commas; whoever writes a task writes its address."""
    addresses = [f"http://{host}/" for host in NO_HOSTS]
    assert hosts_in([*addresses, "http://Shop.example:80/x", "http://[::1]/", "http://[x"]) == ["shop.example", "::1"]
    for host in ("a, EXCLUDE *, EXCLUDE b.localhost", "http://shop.example", "shop.example/", "a b", "", "a\nb"):
        with pytest.raises(ConfigError, match="no host that a browser may be allowed"):
            BrowserPool(hosts=("localhost", host))


def test_other_schemes_are_on_no_list() -> None:
    for url in (
        "file:///etc/passwd",
        "chrome://version",
        "view-source:http://a.example/",
        "javascript:0",
        "data:,x",
        "x",
    ):
        assert not allows(url, ("*",))
    assert not allows("http://[::1", ("*",)) and is_private("fe80::1%eth0") and not is_private("example.org")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses by name, in the place of the machine's resolver."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(host, str) and host.endswith(".example"):
            if host not in known:
                raise socket.gaierror(socket.EAI_NONAME, "no such name")
            return [part for address in known[host] for part in real(address, port, *rest, **more)]
        return real(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


async def test_a_name_that_only_a_wildcard_admits_leads_to_no_private_address(names: dict[str, list[str]]) -> None:
    """Whoever owns a name decides where it leads: to the router, or to this machine."""
    names |= {"shop.example": ["127.0.0.1"], "evil.example": ["127.0.0.1", OUTSIDE, "10.0.0.1"]}
    with allowed_site({"/": ("<h1>Open</h1>", {})}) as port:
        async with BrowserPool(hosts=("shop.example", "*.example"), timeout=5.0) as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(f"http://shop.example:{port}/")
            assert [node.name for node in (await session.observe()).nodes] == ["Open"]
            await session.goto(f"http://evil.example:{port}/")
            assert session.failed
            await session.goto(f"http://none.example:{port}/")
            assert session.failed
            assert "not allowed" in await session.act(Action("goto", text=f"http://127.0.0.1:{port}/"))
            await session.close()


async def test_sockets_work_and_refused_ones_are_told(names: dict[str, list[str]]) -> None:
    names["shop.example"] = ["127.0.0.1"]
    page = "<script>new WebSocket('ws://evil.org/'); fetch('/302?http://10.0.0.1/', {mode: 'no-cors'})</script>"
    with allowed_site({"/": (page, {})}) as port:
        async with BrowserPool(hosts=("shop.example",), timeout=5.0) as pool:
            session = await pool.session()
            await session.reset()
            await session.goto(f"http://shop.example:{port}/")
            notice = (await session.observe()).notice
            assert "a request to evil.org was refused" in notice and "a request to 10.0.0.1 was refused" in notice
            assert pool.blocked["evil.org"] == 1
            await session.close()


def asked(port: int, *parts: bytes) -> bytes:
    """What the proxy answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        for part in parts:
            client.sendall(part)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(100), b""))


def test_the_proxy_refuses_what_is_not_on_its_list_and_nonsense(names: dict[str, list[str]]) -> None:
    def connect(host: bytes, port: int = 9, kind: int = 3) -> tuple[bytes, bytes]:
        name = bytes([len(host)]) + host if kind == 3 else host
        return b"\x05\x01\x00", b"\x05\x01\x00" + bytes([kind]) + name + port.to_bytes(2, "big")

    names["private.example"] = ["10.0.0.1", "::1"]
    proxy = FilteringProxy(("*.example", "shop.example", "*"))
    proxy.start()
    try:
        refused, unreachable = b"\x05\x02", b"\x05\x04"
        assert asked(proxy.port, *connect(b"private.example"))[2:4] == refused
        assert asked(proxy.port, *connect(b"\x7f\x00\x00\x01", kind=1))[2:4] == refused
        assert asked(proxy.port, *connect(b"\x00" * 15 + b"\x01", kind=4))[2:4] == refused
        assert asked(proxy.port, *connect(b"localhost"))[2:4] == refused
        assert asked(proxy.port, *connect(b"none.example"))[2:4] == unreachable
        for nonsense in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x05\x01\x02",
            b"\x05\x01\x00\x05\x02\x00\x01",
            b"\x04" * 99,
        ):
            assert len(asked(proxy.port, nonsense)) <= 2
    finally:
        proxy.close()
    proxy.close()


def test_allowed_connections_go_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as upstream:

        def serve() -> None:
            for answer in (b"HTTP/1.1 200 ok\r\n\r\nhello", b"HTTP/1.1 403 no\r\n\r\n"):
                client, _ = upstream.accept()
                with client:
                    heads.append(client.recv(1000))
                    client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@127.0.0.1:{upstream.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "")
        proxy = FilteringProxy(("shop.example",))
        proxy.start()
        try:
            ask = (b"\x05\x01\x00", b"\x05\x01\x00\x03\x0cshop.example\x01\xbb")
            assert asked(proxy.port, *ask)[2:4] == b"\x05\x00"
            assert asked(proxy.port, *ask)[2:4] == b"\x05\x04"
        finally:
            proxy.close()
    assert heads[0].startswith(b"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n")
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in heads[0]
