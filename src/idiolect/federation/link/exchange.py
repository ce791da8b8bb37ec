"""Requests and responses of one connection, in HTTP/1.1 as h11 reads it, of bounded size and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import h11

_HEAD = 2**14  # bytes of a request's head
_BLOCK = 2**16  # bytes that are written at a time
SLOWEST = 1024
"""Bytes a second at which the body of a request has to come, after the first seconds."""
_LINGER = 5.0  # seconds for which the rest of a refused body is read: a visitor reads no answer before it has sent all


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

    def __init__(self, status: int, why: str, visitor: str = "") -> None:
        super().__init__(why)
        self.status, self.visitor = status, visitor


class Exchange:
    """Reads the requests of a connection and writes the responses, one after another.

    Args:
        reader: of the connection.
        writer: of the connection.
        head_s: seconds for the head of a request, from its first byte on.
        body_s: seconds between two parts of a body, in either direction.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head_s: float, body_s: float
    ) -> None:
        self._reader, self._writer, self._head_s, self._body_s = reader, writer, head_s, body_s
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        self._headers: Mapping[str, str] = {}

    @property
    def busy(self) -> bool:
        """Whether a request has begun that has not been answered."""
        return self._state.their_state is not h11.IDLE or bool(self._state.trailing_data[0])

    async def head(self, patience: float) -> Request | None:
        """The next request without its body; None if the visitor has gone.

        Args:
            patience: seconds until its first byte.

        Raises:
            Refusal: it is not HTTP.
            TimeoutError: it took too long.
        """
        loop, busy = asyncio.get_running_loop(), self.busy
        end = loop.time() + (self._head_s if busy else patience)
        event = self._event()
        while event is h11.NEED_DATA:
            async with asyncio.timeout_at(end):
                block = await self._reader.read(2**16)
            if not busy:
                busy, end = True, min(end, loop.time() + self._head_s)
            self._state.receive_data(block)
            event = self._event()
        if not isinstance(event, h11.Request):
            return None
        self._headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        try:
            split = urlsplit(event.target.decode("ascii", "replace"))
            query = {key: values[0] for key, values in parse_qs(split.query).items()}
        except ValueError:
            raise Refusal(400, "its address is none") from None
        return Request("", "", event.method.decode("ascii"), split.path, query, self._headers, b"")

    async def body(self, room: int) -> bytes:
        """The body of the request.

        Args:
            room: bytes that it may have.

        Raises:
            Refusal: it is larger, or not HTTP.
            TimeoutError: it took too long.
        """
        if "transfer-encoding" in self._headers:  # thousands of tiny pieces would keep the others waiting
            raise Refusal(411, "a request without a content-length")
        length = self._headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > room:
            raise Refusal(413, f"a request of {length[:20]} bytes, and {room:,} are taken")
        body, loop = bytearray(), asyncio.get_running_loop()
        start = loop.time()
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                end = self._body_s + min(loop.time(), start + len(body) / SLOWEST)
                async with asyncio.timeout_at(end):
                    self._state.receive_data(await self._reader.read(2**18))
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                return bytes(body)

    async def write(self, response: Response, *, bare: bool = False) -> bool:
        """Send a response, with ``bare`` its head alone; whether another request may follow.

        Raises:
            TimeoutError: nobody reads it.
            ConnectionError: the visitor has gone.
        """
        state, headers = self._state, list(response.headers.items())
        if response.status != 204:
            headers.append(("content-length", str(len(response.body))))
        if state.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        body = memoryview(b"" if bare or response.status == 204 else response.body)
        blocks = (h11.Data(data=bytes(body[k : k + _BLOCK])) for k in range(0, len(body), _BLOCK))
        for event in chain([h11.Response(status_code=response.status, headers=headers)], blocks, [h11.EndOfMessage()]):
            if block := state.send(event):
                self._writer.write(block)
                async with asyncio.timeout(self._body_s):
                    await self._writer.drain()
        if state.our_state is h11.MUST_CLOSE or state.their_state is not h11.DONE:
            if state.their_state in (h11.SEND_BODY, h11.ERROR):
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_LINGER, self._body_s)):
                        while await self._reader.read(2**18):
                            pass
            self._writer.close()
            async with asyncio.timeout(self._body_s):
                await self._writer.wait_closed()  # what is on its way arrives
            return False
        state.start_next_cycle()
        return True

    def _event(self) -> Any:
        try:
            return self._state.next_event()
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, f"what it sends is not HTTP ({error})") from None


def json_response(status: int, values: Mapping[str, Any]) -> Response:
    """A response of plain values."""
    return Response(status, json.dumps(values).encode(), {"content-type": "application/json"})
