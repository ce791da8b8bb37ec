"""The operator's port: what a server knows of its federation, read-only.

    GET /             the page
    GET /status.json  the same for programs
    GET /metrics      for Prometheus
    GET /health       whether the run moves, for everybody; it says nothing else

All but the last need the page's token, or for the metrics one that reads nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from importlib import resources
from types import TracebackType
from typing import Any, Self

import jinja2
from markupsafe import Markup

from idiolect.core.objectives import SCORES
from idiolect.federation.events import Events
from idiolect.federation.link.exchange import Request, Response
from idiolect.federation.link.web import Server
from idiolect.federation.trust.kits import ServerKit, address

Status = Callable[[], dict[str, Any]]
REFRESH = 5
"""Seconds between two looks of an open page."""
STALLED = 300.0
"""Seconds in which a run that moves has done something: it looks for replies many times a second."""
_DOING = {"local": "trains", "evaluate": "measures", "received": "measures"} | dict.fromkeys(
    ("study", "inputs", "begin"), "agrees"
)
"""What a site does that was asked for a phase."""


class Page:
    """Serves a status as a page and as JSON, in the background, while it is entered.

    On this machine's own addresses it is plain HTTP, elsewhere HTTPS with the server's certificate. Every request needs
    the token, which is new each time, but for one of the health.

    Args:
        status: says what is shown.
        kit: the server's.
        place: host and port.
        say: for events.
        idle: seconds since the run has moved.
        metrics_token: reads the metrics, beside the page's token.

    Raises:
        RunError: the port is taken.
    """

    def __init__(
        self, status: Status, kit: ServerKit, place: tuple[str, int], say: Events | None = None, *,
        idle: Callable[[], float] = lambda: 0.0, metrics_token: str | None = None,
    ) -> None:  # fmt: skip
        host, port = place
        self._idle, self._metrics_token = idle, metrics_token
        self._status, self._say, self._token = status, say or Events(quiet=True), secrets.token_urlsafe(24)
        self.tls: ssl.SSLContext | None = None
        """With the server's certificate; None for plain HTTP."""
        if not _is_here(host):
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.minimum_version = ssl.TLSVersion.TLSv1_3
            self.tls.load_cert_chain(kit.certificate, kit.key)
            host = address(kit.server)[0] if host in ("0.0.0.0", "::") else host
        url_host = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if self.tls else ''}://{url_host}:{port}/?token={self._token}"
        self._server = Server(self, place, self.tls)

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    # what the web server asks

    def visitor(self, certificate: bytes | None, address: str) -> str:
        """Nobody in particular: a request has the token."""
        return ""

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        """No bytes: nothing is taken."""
        return 0

    async def answer(self, request: Request) -> Response:
        """The page, its numbers as JSON or as metrics, or whether the run moves."""
        if request.method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "Only GET is answered.\n", {"Allow": "GET"})
        if request.path == "/health":
            return self._health()
        token = _token(request)
        if not (_same(token, self._token) or (request.path == "/metrics" and _same(token, self._metrics_token))):
            if token:
                self.on_refusal(request.address, "its token is wrong")
            return _text(HTTPStatus.FORBIDDEN, "text/plain", "Open the address that the server has written down.\n")
        if request.path == "/":
            return _text(HTTPStatus.OK, "text/html", render(self._status()))
        if request.path == "/status.json":
            return _text(HTTPStatus.OK, "application/json", json.dumps(self._status(), allow_nan=False))
        if request.path == "/metrics":
            from idiolect.federation.monitor import metrics

            body = metrics.exposition(self._status())
            return Response(HTTPStatus.OK, body, {"Content-Type": metrics.TYPE} | _headers())
        return _text(HTTPStatus.NOT_FOUND, "text/plain", "There is /, /status.json, /metrics and /health.\n")

    def _health(self) -> Response:
        if self._idle() > STALLED:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"stalled for {STALLED:.0f} seconds or more\n")
        return _text(HTTPStatus.OK, "text/plain", "ok\n")

    def on_refusal(self, address: str, why: str, visitor: str = "") -> None:
        """Say that somebody was refused."""
        what = f"a look at the page from {address} was refused: {why}"
        self._say.count_refusal("connection", "page")
        self._say.rarely(("page", address, why), what, address=address, refused=why)


def place(text: str) -> tuple[str, int]:
    """Where a page is served: a port of this machine alone, or host:port.

    Raises:
        ValueError: it is neither.
    """
    return address(f"127.0.0.1:{text}" if text.isdecimal() else text)


def _token(request: Request) -> str:
    """The token of a request: in its address, or as programs send it, in a header."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return request.query.get("token") or (bearer.strip() if scheme.lower() == "bearer" else "")


def _same(token: str, whole: str | None) -> bool:
    return whole is not None and hmac.compare_digest(token.encode("utf-8", "replace"), whole.encode())


def render(status: Mapping[str, Any]) -> str:
    """The page as one document that contains all it needs."""
    by = SCORES[status["metric"]]
    scores = [site[by.metric] for site in status["sites"]]
    methods = list(dict.fromkeys(label for of_site in scores for label in of_site))
    before = any("received" in stages for of_site in scores for stages in of_site.values())
    fixed = {"doing": _DOING, "refresh": REFRESH, "css": Markup(_css()), "script": Markup(_script())}
    name = by.name[0].upper() + by.name[1:]
    return _template().render(status, methods=methods, before=before, by=by, score_name=name, **fixed)


def _text(status: HTTPStatus, kind: str, text: str, more: Mapping[str, str] | None = None) -> Response:
    headers = {"Content-Type": f"{kind}; charset=utf-8"} | _headers() | dict(more or {})
    return Response(status, text.encode("utf-8", "backslashreplace"), headers)


@cache
def _headers() -> dict[str, str]:
    """Nothing is loaded from elsewhere, kept, framed, or told to another site."""
    style, script = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (_css(), _script()))
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _file("federation.monitor", name)), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"duration": _duration, "size": _size, "clock": _clock}
    return environment.get_template("page.html")


def _css() -> str:
    return _file("report", "page.css") + _file("federation.monitor", "page.css")


def _script() -> str:
    return _file("federation.monitor", "page.js")


def _file(package: str, name: str) -> str:
    return resources.files(f"idiolect.{package}").joinpath(name).read_text(encoding="utf-8")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _size(count: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g}\N{NO-BREAK SPACE}{name}"
    return f"{count:.0f}\N{NO-BREAK SPACE}B"


def _clock(at: float) -> str:
    try:
        return time.strftime("%d %b %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a broken line of the file of events
        return "–"
