"""A small HTTP server whose visitors are known by their certificates, and whom strangers cost little.

asyncio carries it. What a stranger can use up is bounded: connections that have not proved who they are, in all and
from one address, and the seconds that each may take. When there are too many, one of the address that has most of them
is closed: the oldest that has sent nothing, or else the oldest. So somebody who proves it at once finds room.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from idiolect.core.errors import RunError
from idiolect.federation.link.exchange import Exchange, Refusal, Request, Response, json_response

_USUAL = (409, 428)  # of a reply that comes too late, and of a server that has started since
_SMALL = 2**16  # bytes of a request of which one visitor may send several at a time


class Limits(NamedTuple):
    """What the server spends on its visitors; times in seconds."""

    strangers: int = 128
    """Connections that have not proved who they are."""
    address: int = 32
    """Of these, from one address; the first 64 bits of an address of IPv6 count."""
    each: int = 6
    """Connections of one known visitor."""
    all: int = 100_000
    """Connections of everybody, so that files are left for the rest of the process."""
    handshake: float = 10.0
    """For a TLS handshake."""
    head: float = 10.0
    """For the head of a request, from its first byte on."""
    body: float = 30.0
    """Between two parts of a body, in either direction; a request's has ``SLOWEST`` bytes a second besides."""
    idle: float = 120.0
    """Between two requests of a known visitor."""


class Application(Protocol):
    """What is served."""

    def visitor(self, certificate: bytes | None, address: str) -> str:
        """Who has connected, by the certificate in DER; raises ``Refusal`` for a stranger."""

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        """The largest body that is read, in bytes; raises ``Refusal``."""

    async def answer(self, request: Request) -> Response:
        """The response; raises ``Refusal``."""

    def on_refusal(self, address: str, why: str, visitor: str = "") -> None:
        """Hear of a connection or a request that was refused, and whose it was if that is known."""


@dataclass(eq=False)
class _Visit:
    """A connection."""

    address: str
    origin: str
    task: asyncio.Task[None] | None = None
    why: str = "it did not say who it is in time"
    """What is said when it is closed; "" for a visitor that is let in."""
    speaks: bool = False
    """Whether it has sent something, or has gone."""
    transport: asyncio.BaseTransport | None = field(default=None, repr=False)


class Server:
    """Serves an application in a thread of its own while it is entered.

    Args:
        application: what is served.
        place: host and port.
        tls: for HTTPS; None serves plain HTTP.
        limits: what is spent on visitors.

    Raises:
        RunError: the port is taken, or this Python cannot serve.
    """

    def __init__(
        self, application: Application, place: tuple[str, int], tls: ssl.SSLContext | None, limits: Limits | None = None
    ) -> None:
        self._application, self._place, self._tls = application, place, tls
        self._limits = limits or Limits()
        self._strangers: dict[_Visit, None] = {}
        self._visits: dict[str, dict[_Visit, None]] = {}
        self._sending: set[str] = set()
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._start = threading.Event()
        """Set once visitors can come, or it is known that they cannot."""
        self._fault: Exception | None = None

    def __enter__(self) -> Self:
        host, port = self._place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server(self._place, family=family, backlog=512)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise RunError(f"cannot listen on {host}:{port} ({why}): is the port in use?") from None
        listener.setblocking(False)
        self._loop = asyncio.SelectorEventLoop()  # the usual one of Windows has no add_reader
        self._loop.set_exception_handler(lambda loop, context: None)  # a visitor that goes away is no event
        self._thread = threading.Thread(target=self._run, args=(self._loop, listener), name=f"web {port}", daemon=True)
        self._thread.start()
        self._start.wait()
        if self._fault is not None:
            why = f"{type(self._fault).__name__} {self._fault}".strip()
            raise RunError(f"cannot serve {host}:{port}, because asyncio does not start ({why}): take another Python")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self.call(self._loop.stop)
        self._thread.join(3)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the server's thread; nothing happens before it is entered and after it has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, visitor: str) -> None:
        """Close all connections of a visitor."""

        def cancel() -> None:
            for visit in list(self._visits.get(visitor, ())):
                _cancel(visit)

        self.call(cancel)

    def _run(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.add_reader(listener, self._accept, loop, listener)
        except Exception as error:  # noqa: BLE001  who has entered the server says it
            self._fault = error
            listener.close()
            loop.close()
            self._start.set()
            return
        loop.call_soon(self._start.set)
        try:
            loop.run_forever()
        finally:
            loop.remove_reader(listener)
            loop.run_until_complete(asyncio.sleep(0))  # each task has begun, so it closes its connection
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(asyncio.sleep(0))  # what they have closed is closed
            listener.close()
            loop.close()

    def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        """Take one connection that waits."""
        try:
            connection, peer = listener.accept()
        except OSError as error:  # no file descriptors are left, or the visitor has gone again
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._application.on_refusal("", f"a connection cannot be taken ({error.strerror})")
                self._drop_one()
                loop.remove_reader(listener)
                loop.call_later(0.01, loop.add_reader, listener, self._accept, loop, listener)
            return
        connection.setblocking(False)
        with suppress(OSError):  # a head and its body are two packets, and the second would wait for 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        visit = _Visit(str(peer[0]), _origin(str(peer[0])))
        if not self._has_room(visit):
            self._application.on_refusal(visit.address, "all connections that this process may have are in use")
            connection.close()
            return
        self._strangers[visit] = None
        self._count += 1
        visit.task = loop.create_task(self._handle(visit, connection))

    def _has_room(self, visit: _Visit) -> bool:
        """Whether one more connection can be taken; for it others are closed that have not said who they are."""
        limits = self._limits
        same = [one for one in self._strangers if one.origin == visit.origin]
        if len(same) >= limits.address:
            self._drop(_first(same), f"more than {limits.address} connections at a time that do not say who they are")
        elif len(self._strangers) >= limits.strangers or self._count >= limits.all:
            return self._drop_one()
        return True

    def _drop_one(self) -> bool:
        """Close a connection of the address that has most of those that do not say who they are."""
        most = Counter(one.origin for one in self._strangers).most_common(1)
        if not most:
            return False
        same = [one for one in self._strangers if one.origin == most[0][0]]
        self._drop(_first(same), "too many connections at a time that do not say who they are")
        return True

    def _drop(self, visit: _Visit, why: str) -> None:
        visit.why = why
        self._strangers.pop(visit, None)
        _cancel(visit)

    async def _handle(self, visit: _Visit, connection: socket.socket) -> None:
        try:
            reader = asyncio.StreamReader(limit=2**18)
            protocol = asyncio.StreamReaderProtocol(reader)
            seconds = self._limits.handshake if self._tls else None
            loop = asyncio.get_running_loop()
            if self._tls:
                await _first_bytes(loop, connection, self._limits.handshake)
                visit.speaks = True
            visit.transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=seconds
            )
            assert isinstance(visit.transport, asyncio.Transport)
            writer = asyncio.StreamWriter(visit.transport, protocol, reader, loop)
            await self._serve(visit, reader, writer)
        except asyncio.CancelledError:
            if visit.why:
                self._application.on_refusal(visit.address, visit.why)
        except (ssl.SSLError, TimeoutError, ConnectionError, OSError) as error:
            if visit.why:
                self._application.on_refusal(visit.address, _reason_of(error))
        finally:
            self._count -= 1
            self._strangers.pop(visit, None)
            if visit.transport is None:
                connection.close()
            else:
                visit.transport.abort()  # type: ignore[attr-defined]  # a transport of a socket has it

    async def _serve(self, visit: _Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Any = writer.get_extra_info("ssl_object")
        stranger: Refusal | None = None
        name = ""
        try:
            name = self._application.visitor(peer.getpeercert(True) if peer else None, visit.address)
        except Refusal as refusal:
            stranger = refusal  # is told why, which takes a request
            self._application.on_refusal(visit.address, str(refusal), refusal.visitor)
        visit.why = ""  # what it does from now on is said where it is refused
        own = self._visits.setdefault(name, {}) if name and stranger is None else None
        if own is not None:
            self._strangers.pop(visit, None)
            own[visit] = None
            for old in list(own)[: -self._limits.each]:
                _cancel(old)
        try:
            exchange = Exchange(reader, writer, self._limits.head, self._limits.body)
            while await self._answer(visit, exchange, name, stranger):
                pass
        finally:
            if own is not None:
                own.pop(visit, None)

    async def _answer(self, visit: _Visit, exchange: Exchange, name: str, stranger: Refusal | None) -> bool:
        """Answer one request; whether another one may follow."""
        app, bare = self._application, False
        try:
            head = await exchange.head(self._limits.idle if name else self._limits.head)
            if head is None:
                return False
            bare = head.method == "HEAD"
            if stranger is not None:
                raise stranger
            room = app.room(name, head.path, head.headers)
            if large := room > _SMALL:
                if name in self._sending:
                    raise Refusal(429, f"{name} sends two large requests at a time")
                self._sending.add(name)
            try:
                body = await exchange.body(room)
            finally:
                if large:
                    self._sending.discard(name)
            response = await app.answer(head._replace(visitor=name, address=visit.address, body=body))
        except Refusal as refusal:
            if stranger is None and refusal.status not in _USUAL:
                app.on_refusal(visit.address, str(refusal), name)
            response = json_response(refusal.status, {"why": str(refusal)})
        except TimeoutError:
            if exchange.busy:
                app.on_refusal(visit.address, "its request took too long", name)
            return False
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a request does, the others are answered
            app.on_refusal(visit.address, f"it could not be answered ({type(error).__name__}: {error})", name)
            response = json_response(500, {"why": "this could not be answered"})
        return await exchange.write(response, bare=bare)


def _first(visits: Sequence[_Visit]) -> _Visit:
    """Who is closed first of some, the oldest of whom comes first: who has sent nothing."""
    return min(visits, key=lambda one: one.speaks)


async def _first_bytes(loop: asyncio.AbstractEventLoop, connection: socket.socket, seconds: float) -> None:
    """Wait until a connection has something to read, or has ended.

    Raises:
        TimeoutError: it took longer.
    """
    there = asyncio.Event()
    loop.add_reader(connection, there.set)
    try:
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 can lose a cancellation
            await there.wait()
    finally:
        loop.remove_reader(connection)


def _origin(address: str) -> str:
    """What the connections of one visitor have in common: the address, or the first 64 bits of one of IPv6."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    mapped = ip.ipv4_mapped
    return str(mapped) if mapped else f"{int(ip) >> 64:x}"


def descriptors(demand: int) -> int:
    """Raise this process's limit of open files towards what is needed; return the limit that holds."""
    if sys.platform == "win32":
        return demand
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < demand and soft != resource.RLIM_INFINITY:
        target = demand if hard == resource.RLIM_INFINITY else min(demand, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return demand if soft == resource.RLIM_INFINITY else soft


def _cancel(visit: _Visit) -> None:
    if visit.task is not None:
        visit.task.cancel()


def _reason_of(error: Exception) -> str:
    """Why a handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = str(error.reason or "").replace("_", " ").lower()
        return {
            "peer did not return a certificate": "it has no certificate of a kit",
            "http request": "it speaks plain HTTP",
        }.get(reason, f"the TLS handshake failed ({reason or 'no reason given'})")
    if isinstance(error, TimeoutError) or "longer than" in str(error):
        return "it did not say who it is in time"
    return "it went away before it said who it is"
