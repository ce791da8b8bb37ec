"""The server's end of the network: four addresses over HTTPS, for sites whose certificates are in the roster.

    POST /connect   a site says that it is there, and gets the roster if it has an older one
    POST /work      waits up to ``HOLD`` seconds for a message to this site
    POST /reply     brings the reply to a message
    POST /alive     a sign of life while the site works

A site proves who it is by the certificate of its kit, in the TLS handshake. Before that no byte of HTTP is read.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from idiolect.federation.events import Events
from idiolect.federation.link.exchange import Refusal, Request, Response, json_response
from idiolect.federation.link.members import Members
from idiolect.federation.link.web import Limits, Server, descriptors
from idiolect.federation.trust.kits import ServerKit, address

HOLD = 10.0
"""Seconds that a site's question for work stays open while there is none; so a message is fetched at once."""
CONNECTION = "idiolect-connection"
"""The header that says to which of a site's connections a request belongs."""
TICKET = "idiolect-ticket"
"""That of a message, and of its reply."""
ROOM = "idiolect-room"
"""The bytes that a reply may have."""
SIZE = "idiolect-size"
"""The bytes of a reply that has more, and so is not sent."""
ROSTER = "idiolect-roster"
"""The version of the server's roster."""
CLOCK = "idiolect-clock"
"""The server's time."""
SKEW = 300.0
"""Seconds by which clocks may differ before it is said."""
_ROOM = 2**26  # bytes of a reply, besides _TIMES those of the question
_TIMES = 16
_TOO_LARGE = "it has more bytes than any reply to this question needs"
_APART = 0.3  # seconds between two connections of a site, at least
_SMALL = 2**16  # bytes of any other request
_OTHERS = 128  # open files for all that is no connection


class Reply(NamedTuple):
    """What a site sent."""

    site: str
    ticket: str
    content: bytes | None
    """None: it cannot be read, and ``why`` says why."""
    why: str = ""


@dataclass
class _Letter:
    """A message that waits for its reply."""

    site: str
    content: bytes
    room: int
    at_site: bool = False


class Link:
    """Carries messages to sites and back, in the background, while it is entered.

    Args:
        kit: the server's.
        listen: host and port.
        say: for events.
        limits: what is spent on visitors.

    Raises:
        RunError: the port is taken.
        InputError: the certificate cannot be used.
    """

    def __init__(
        self, kit: ServerKit, listen: tuple[str, int], say: Events | None = None, limits: Limits | None = None
    ) -> None:
        self._say = say or Events(quiet=True)
        self._lock = threading.Lock()
        self._letters: dict[str, _Letter] = {}
        self._replies: list[Reply] = []
        self._since = time.monotonic()
        self._last_signs: dict[str, float] = {}
        self._connections: dict[str, int] = {}
        self._current: dict[str, str] = {}
        self._connect_times: dict[str, float] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._members = Members(kit, self._say, self._dismiss)
        self.keys, self.contexts = self._members.keys, self._members.contexts
        limits = limits or Limits()
        demand = limits.strangers + limits.each * len(kit.roster.members) + _OTHERS
        if (limit := descriptors(demand)) < demand:
            strangers = max(8, min(limits.strangers, limit // 8))
            limits = limits._replace(strangers=strangers, all=min(limits.all, limit - min(_OTHERS, limit // 2)))
            self._say(f"this process may open {limit} files, and {demand} are needed when all sites are here: raise it")
        self._server = Server(self, listen, self._members.tls, limits)

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._server.call(lambda: asyncio.ensure_future(self._members.watch()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, error, trace)

    # what the rounds use

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site; return the ticket that its reply will have."""
        ticket = secrets.token_hex(16)
        with self._lock:
            self._letters[ticket] = _Letter(site, content, _ROOM + _TIMES * len(content))
        self._server.call(self._waken, site)
        return ticket

    def replies(self) -> list[Reply]:
        """The replies that have come since the last call."""
        with self._lock:
            replies, self._replies = self._replies, []
        return replies

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these messages any more."""
        ids = set(tickets)
        with self._lock:
            for ticket in ids:
                self._letters.pop(ticket, None)
            self._replies = [reply for reply in self._replies if reply.ticket not in ids]

    def quiet_for(self, site: str) -> float:
        """Seconds since a site was last heard of, or since the link was made; infinite if its key is revoked."""
        if site not in self.keys:
            return float("inf")
        return time.monotonic() - self._last_signs.get(site, self._since)

    def connections(self, site: str) -> int:
        """How often a site has connected."""
        return self._connections.get(site, 0)

    def sites(self) -> tuple[str, ...]:
        """The names of the sites, in the order of the clients' numbers, as the authority has signed them last."""
        return tuple(member.name for member in self._members.roster.members)

    # what the web server asks

    def visitor(self, certificate: bytes | None, address: str) -> str:
        """The site with the key of a certificate.

        Raises:
            Refusal: no site has it, it is revoked, or the certificate in the roster has expired.
        """
        return self._members.site(certificate)

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        """The bytes that a request may have.

        Raises:
            Refusal: it belongs to an earlier connection.
        """
        if path != "/reply":
            return _SMALL
        self._check_current(visitor, headers)
        letter = self._letters.get(headers.get(TICKET, ""))
        if letter is None or letter.site != visitor:
            raise Refusal(409, "this message is not waited for any more")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > letter.room:
            self._take(headers[TICKET], visitor, None, _TOO_LARGE)
        return letter.room

    async def answer(self, request: Request) -> Response:
        """The response to a site."""
        kind = {"/connect": self._connect, "/work": self._work, "/reply": self._reply, "/alive": self._alive}
        if request.path not in kind:
            raise Refusal(404, "there is nothing here")
        if request.method != "POST":
            raise Refusal(405, "only POST is answered")
        self._last_signs[request.visitor] = time.monotonic()
        if request.path != "/connect":
            self._check_current(request.visitor, request.headers)
        response = await kind[request.path](request)
        self._last_signs[request.visitor] = time.monotonic()
        now = {ROSTER: str(self._members.roster.version), CLOCK: str(time.time())}
        return response._replace(headers=dict(response.headers) | now)

    def on_refusal(self, address: str, why: str, visitor: str = "") -> None:
        """Say that somebody was refused."""
        what = f"a connection {f'from {address} ' if address else ''}was refused: {why}"
        about = {"site": visitor} if visitor else {}
        self._say.count_refusal("connection", "site" if visitor else "stranger")
        self._say.rarely((address, visitor, why), what, address=address, refused=why, **about)

    async def _connect(self, request: Request) -> Response:
        site = request.visitor
        try:
            about = json.loads(request.body)
            name, version, clock = str(about["connection"])[:64], int(about["roster"]), float(about["clock"])
            if not math.isfinite(clock):
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise Refusal(400, f"this is not how a site connects ({type(error).__name__})") from None
        if (before := self._current.get(site, "")) != name:
            if _program(before) == _program(name) and before > name:  # it was on its way for long
                raise Refusal(409, f"{site} has connected again since")
            now = time.monotonic()
            if now - self._connect_times.get(site, -_APART) < _APART:
                raise Refusal(429, f"{site} connects too often")
            self._current[site], self._connect_times[site] = name, now
            self._connections[site] = self._connections.get(site, 0) + 1
            self._waken(site)
            what = f"{site} has connected from {request.address}"
            self._say.rarely((site, "connected", name), what, site=site, address=request.address)
        if abs(skew := clock - time.time()) > SKEW:
            what = f"the clock of {site} is {abs(skew) / 60:.0f} minutes {'ahead' if skew > 0 else 'behind'}"
            self._say.rarely((site, "clock"), what, site=site, address=request.address, skew=round(skew))
        roster = self._members.roster
        if version > roster.version:
            what = f"{site} has seen roster {version}, and this server has {roster.version}: copy the newest here"
            self._say.rarely((site, "roster"), what, site=site, address=request.address, older=True)
        return json_response(200, {"roster": roster.text if version < roster.version else None})

    async def _work(self, request: Request) -> Response:
        site, end = request.visitor, time.monotonic() + HOLD
        event = self._wake.setdefault(site, asyncio.Event())
        while True:
            event.clear()
            self._check_current(site, request.headers)
            with self._lock:
                for ticket, letter in self._letters.items():
                    if letter.site == site and not letter.at_site:
                        letter.at_site = True
                        return Response(200, letter.content, {TICKET: ticket, ROOM: str(letter.room)})
            seconds = end - time.monotonic()
            if seconds <= 0:
                return Response(204)
            try:
                async with asyncio.timeout(seconds):
                    await event.wait()
            except TimeoutError:
                return Response(204)

    async def _reply(self, request: Request) -> Response:
        content, why = (None, _TOO_LARGE) if SIZE in request.headers else (request.body, "")
        if not self._take(request.headers.get(TICKET, ""), request.visitor, content, why):
            return json_response(409, {"why": "this message is not waited for any more"})
        return Response(204)

    async def _alive(self, request: Request) -> Response:
        return Response(204)

    def _take(self, ticket: str, site: str, content: bytes | None, why: str = "") -> bool:
        with self._lock:
            letter = self._letters.get(ticket)
            if letter is None or letter.site != site:
                return False
            del self._letters[ticket]
            self._replies.append(Reply(site, ticket, content, why))
            return True

    def _check_current(self, site: str, headers: Mapping[str, str]) -> None:
        """Refuse what belongs to an earlier connection of a site.

        A site that was killed or cut off leaves an open question for work behind. This would take the next message, and
        nobody would get it.
        """
        if site not in self._current:
            raise Refusal(428, f"{site} has to connect first: this server has started since")
        name, current = headers.get(CONNECTION, ""), self._current[site]
        if name != current:
            same = _program(name) == _program(current)
            raise Refusal(409 if same else 410, f"{site} has connected again since")

    def _dismiss(self, site: str) -> None:
        self._current.pop(site, None)
        self._server.close(site)

    def _waken(self, site: str) -> None:
        if event := self._wake.get(site):
            event.set()


def _program(connection: str) -> str:
    return connection.partition("-")[0]


def listening(kit: ServerKit, listen: str | None) -> tuple[str, int]:
    """Where the server listens: as told, else at the port of its address, on this machine alone if that is there.

    Raises:
        ValueError: it is not an address.
    """
    if listen is not None:
        return address(listen)
    host, port = address(kit.server)
    if host in ("127.0.0.1", "localhost", "::1"):
        return host, port
    return ("::" if ":" in host else "0.0.0.0"), port
