"""A small HTTP server whose visitors are known by their certificates, and whom strangers cost little.

asyncio carries it and h11 reads HTTP. What a stranger can use up is bounded: connections that have not proved who they
are, in all and from one address, and the seconds that each may take. When there are too many, the oldest of them is
closed, so somebody who proves it at once always finds room.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import h11

from idiolect.core.errors import RunError

_HEAD = 2**14  # bytes of a request's head
_BLOCK = 2**18  # bytes that are written at a time


class Limits(NamedTuple):
    """What the server spends on its visitors; times in seconds."""

    strangers: int = 128
    """Connections that have not proved who they are."""
    address: int = 32
    """Of these, from one address."""
    each: int = 6
    """Connections of one known visitor."""
    handshake: float = 10.0
    """For a TLS handshake."""
    head: float = 10.0
    """For the head of a request, from its first byte on."""
    body: float = 30.0
    """Between two parts of a body, in either direction."""
    idle: float = 120.0
    """Between two requests of a known visitor."""


class Request(NamedTuple):
    """What a visitor asks."""

    visitor: str
    """Who; "" if nobody has to prove it."""
    address: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


class Response(NamedTuple):
    """What it gets."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Refusal(Exception):
    """A request is not answered as asked; the text says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Application(Protocol):
    """What is served."""

    def visitor(self, certificate: bytes | None, address: str) -> str:
        """Who has connected, by the certificate in DER; raises ``Refusal`` for a stranger."""

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        """The largest body that is read, in bytes; raises ``Refusal``."""

    async def answer(self, request: Request) -> Response:
        """The response; raises ``Refusal``."""

    def refused(self, address: str, why: str) -> None:
        """Hear of a connection or a request that was refused."""


@dataclass(eq=False)
class _Visit:
    """A connection."""

    address: str
    task: asyncio.Task[None] | None = None
    why: str = "it did not say who it is in time"
    transport: asyncio.BaseTransport | None = field(default=None, repr=False)


class Server:
    """Serves an application in a thread of its own while it is entered.

    Args:
        application: what is served.
        place: host and port.
        tls: for HTTPS; None serves plain HTTP.
        limits: what is spent on visitors.

    Raises:
        RunError: the port is taken.
    """

    def __init__(
        self, application: Application, place: tuple[str, int], tls: ssl.SSLContext | None, limits: Limits | None = None
    ) -> None:
        self._application, self._place, self._tls = application, place, tls
        self._limits = limits or Limits()
        self._strangers: dict[_Visit, None] = {}
        self._known: dict[str, dict[_Visit, None]] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # a visitor that goes away is no event
        self._thread = threading.Thread(target=self._run, name=f"web {place[1]}", daemon=True)
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        host, port = self._place
        try:
            self._listener = socket.create_server(
                self._place, family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
            )
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"cannot listen on {host}:{port} ({why}): is the port in use?") from None
        self._listener.setblocking(False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(3)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the server's thread."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def close(self, visitor: str) -> None:
        """Close all connections of a visitor."""

        def cancel() -> None:
            for visit in list(self._known.get(visitor, ())):
                _cancel(visit)

        self.call(cancel)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        assert self._listener is not None
        accepting = self._loop.create_task(self._accept(self._listener))
        try:
            self._loop.run_forever()
        finally:
            accepting.cancel()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._listener.close()
            self._loop.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, found = await self._loop.sock_accept(listener)
            except OSError as error:  # no file descriptors are left, or the visitor has gone again
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._application.refused("", f"a connection cannot be taken ({error.strerror})")
                    self._make_room(1)
                    await asyncio.sleep(0.05)
                continue
            visit = _Visit(str(found[0]))
            same = [one for one in self._strangers if one.address == visit.address]
            if len(same) >= self._limits.address:
                self._drop(same[0], f"more than {self._limits.address} connections at a time that do not say who it is")
            elif len(self._strangers) >= self._limits.strangers:
                self._make_room(len(self._strangers) - self._limits.strangers + 1)
            self._strangers[visit] = None
            visit.task = self._loop.create_task(self._visited(visit, connection))
            await asyncio.sleep(0)  # it begins, so that it closes its connection even if it is cancelled at once

    def _make_room(self, count: int) -> None:
        for visit in list(self._strangers)[:count]:
            self._drop(visit, "too many connections at a time that do not say who they are")

    def _drop(self, visit: _Visit, why: str) -> None:
        visit.why = why
        self._strangers.pop(visit, None)
        _cancel(visit)

    async def _visited(self, visit: _Visit, connection: socket.socket) -> None:
        try:
            reader = asyncio.StreamReader(limit=2**18)
            protocol = asyncio.StreamReaderProtocol(reader)
            seconds = self._limits.handshake if self._tls else None
            visit.transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=seconds
            )
            assert isinstance(visit.transport, asyncio.Transport)
            writer = asyncio.StreamWriter(visit.transport, protocol, reader, self._loop)
            await self._served(visit, reader, writer)
        except asyncio.CancelledError:
            if visit.why:
                self._application.refused(visit.address, visit.why)
        except (ssl.SSLError, TimeoutError, ConnectionError, OSError) as error:
            if visit in self._strangers:
                self._application.refused(visit.address, _said_of(error))
        finally:
            self._strangers.pop(visit, None)
            if visit.transport is None:
                connection.close()
            else:
                visit.transport.abort()  # type: ignore[attr-defined]  # a transport of a socket has it

    async def _served(self, visit: _Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Any = writer.get_extra_info("ssl_object")
        stranger: Refusal | None = None
        name = ""
        try:
            name = self._application.visitor(peer.getpeercert(True) if peer else None, visit.address)
        except Refusal as refusal:
            stranger = refusal  # is told why, which takes a request
        own = self._known.setdefault(name, {}) if name and stranger is None else None
        if own is not None:
            del self._strangers[visit]
            visit.why = ""
            own[visit] = None
            for old in list(own)[: -self._limits.each]:
                _cancel(old)
        try:
            state = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
            while await self._exchange(visit, state, reader, writer, name, stranger):
                pass
        finally:
            if own is not None:
                own.pop(visit, None)

    async def _exchange(
        self, visit: _Visit, state: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        name: str, stranger: Refusal | None,
    ) -> bool:  # fmt: skip
        """One request and its response; whether another one may follow."""
        limits, head = self._limits, None
        try:
            head = await self._head(state, reader, limits.idle if name else limits.head)
            if head is None:
                return False
            split = urlsplit(head.target.decode("ascii", "replace"))
            headers = {k.decode("ascii"): v.decode("latin-1") for k, v in head.headers}
            if stranger is not None:
                raise stranger
            room = self._application.room(name, split.path, headers)
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > room:
                raise Refusal(413, f"a request of {length[:20]} bytes, and {room:,} are taken")
            body = await self._body(state, reader, room)
            query = {key: values[0] for key, values in parse_qs(split.query).items()}
            method = head.method.decode("ascii")
            request = Request(name, visit.address, method, split.path, query, headers, body)
            response = await self._application.answer(request)
        except Refusal as refusal:
            self._application.refused(visit.address, str(refusal))
            response = said(refusal.status, {"why": str(refusal)})
        except h11.RemoteProtocolError as error:
            self._application.refused(visit.address, f"what it sends is not HTTP ({error})")
            response = said(error.error_status_hint, {"why": "this is not HTTP as it should be"})
        except TimeoutError:
            if name and state.their_state is h11.IDLE:
                return False
            raise
        await self._write(state, writer, response, head is not None and head.method == b"HEAD")
        if state.our_state is h11.MUST_CLOSE or state.their_state is not h11.DONE:
            writer.close()
            return False
        state.start_next_cycle()
        return True

    async def _head(self, state: h11.Connection, reader: asyncio.StreamReader, patience: float) -> h11.Request | None:
        event, begun = state.next_event(), bool(state.trailing_data[0])
        end = self._loop.time() + (self._limits.head if begun else patience)
        while event is h11.NEED_DATA:
            async with asyncio.timeout_at(end):
                block = await reader.read(2**16)
            if not begun:
                begun, end = True, min(end, self._loop.time() + self._limits.head)
            state.receive_data(block)
            event = state.next_event()
        return event if isinstance(event, h11.Request) else None

    async def _body(self, state: h11.Connection, reader: asyncio.StreamReader, room: int) -> bytes:
        parts, size = list[bytes](), 0
        while True:
            event = state.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(self._limits.body):
                    state.receive_data(await reader.read(2**18))
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > room:
                    raise Refusal(413, f"a request of more than {room:,} bytes")
                parts.append(bytes(event.data))
            else:
                return b"".join(parts)

    async def _write(self, state: h11.Connection, writer: asyncio.StreamWriter, response: Response, bare: bool) -> None:
        headers = list(response.headers.items())
        if response.status != 204:
            headers.append(("content-length", str(len(response.body))))
        if state.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        blocks = [state.send(h11.Response(status_code=response.status, headers=headers))]
        if not bare and response.status != 204:
            body = response.body
            blocks += [state.send(h11.Data(data=body[k : k + _BLOCK])) for k in range(0, len(body), _BLOCK)]
        blocks.append(state.send(h11.EndOfMessage()))
        for block in blocks:
            if block:
                writer.write(block)
                async with asyncio.timeout(self._limits.body):
                    await writer.drain()


def said(status: int, values: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A response of plain values."""
    return Response(status, json.dumps(values).encode(), {"content-type": "application/json"} | dict(headers or {}))


def descriptors(needed: int) -> int:
    """Raise this process's limit of open files towards what is needed; return the limit that holds."""
    if sys.platform == "win32":
        return needed
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed and soft != resource.RLIM_INFINITY:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return needed if soft == resource.RLIM_INFINITY else soft


def _cancel(visit: _Visit) -> None:
    if visit.task is not None:
        visit.task.cancel()


def _said_of(error: Exception) -> str:
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
