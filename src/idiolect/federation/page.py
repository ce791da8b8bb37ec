"""The operator's page: what a server knows of its federation, read-only, for who has the token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jinja2
from markupsafe import Markup

from idiolect.core.errors import RunError
from idiolect.federation.kits import ServerKit, address

Status = Callable[[], dict[str, Any]]
REFRESH = 5
"""Seconds between two looks of an open page."""
_PATIENCE = 10.0  # seconds in which a request must have come
_AT_ONCE = 16  # requests
_DOING = {"local": "trains", "evaluate": "measures", "received": "measures"} | dict.fromkeys(
    ("study", "inputs", "begin"), "agrees"
)
"""What a site does that was asked for a phase."""


class Page:
    """Serves a status as a page and as JSON, in the background, while it is entered.

    On this machine's own addresses it is plain HTTP, elsewhere HTTPS with the server's certificate. Every request needs
    the token, which is new each time.

    Args:
        status: says what is shown.
        kit: the server's.
        place: host and port.

    Raises:
        RunError: the port is taken.
    """

    def __init__(self, status: Status, kit: ServerKit, place: tuple[str, int]) -> None:
        host, port = place
        self._token = secrets.token_urlsafe(24)
        try:
            self._server = _Server(place, _handler(status, self._token))
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"the page cannot listen on {host}:{port} ({why}): choose another port") from None
        scheme = "http"
        if not _is_here(host):
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(kit.certificate, kit.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            host = address(kit.server)[0] if host in ("0.0.0.0", "::") else host
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{port}/?token={self._token}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(3)


def place(text: str) -> tuple[str, int]:
    """Where a page is served: a port of this machine alone, or host:port.

    Raises:
        ValueError: it is neither.
    """
    return address(f"127.0.0.1:{text}" if text.isdecimal() else text)


def render(status: Mapping[str, Any]) -> str:
    """The page as one document that contains all it needs."""
    found = [site["accuracy"] for site in status["sites"]]
    methods = list(dict.fromkeys(label for accuracy in found for label in accuracy))
    before = any("received" in stages for accuracy in found for stages in accuracy.values())
    fixed = {"doing": _DOING, "refresh": REFRESH, "css": Markup(_css()), "script": Markup(_script())}
    return _template().render(status, methods=methods, before=before, **fixed)


class _Server(ThreadingHTTPServer):
    """Answers a limited number of requests at a time, and drops more."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread if one is free."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and be free again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a visitor that goes away or sends nonsense is no event of the federation."""


def _handler(status: Status, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            given = parse_qs(asked.query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
                self.send_error(HTTPStatus.FORBIDDEN, "Open the address that the server's command has printed.")
            elif asked.path == "/":
                self._send(HTTPStatus.OK, "text/html", render(status()))
            elif asked.path == "/status.json":
                self._send(HTTPStatus.OK, "application/json", json.dumps(status(), allow_nan=False))
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "There is / and /status.json.")

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            if code == HTTPStatus.NOT_IMPLEMENTED:  # the base class finds no method for any other word than GET
                code, message = HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered."
            self._send(code, "text/plain", f"{message or HTTPStatus(code).phrase}\n")

        def _send(self, code: int, kind: str, text: str) -> None:
            content = text.encode("utf-8", "backslashreplace")
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            if code == HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET")
            for name, value in _headers().items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def version_string(self) -> str:
            return "idiolect"

        def log_message(self, *_: Any) -> None:
            """Nothing: the address has the token in it."""

    return Handler


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
        loader=jinja2.FunctionLoader(lambda name: _file("federation", name)), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"duration": _duration, "size": _size, "clock": _clock, "percent": _percent}
    return environment.get_template("page.html")


def _css() -> str:
    return _file("report", "page.css") + _file("federation", "page.css")


def _script() -> str:
    return _file("federation", "page.js")


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


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
