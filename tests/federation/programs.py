"""Programs of sites for tests: one that records what an honest site sends, and one that sends what it should not.

Both are as ``idiolect site`` but for what is below: PROGRAM KIT TABLE STATE RECORDED.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import safetensors.torch
import torch

from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.link.exchange import Request, Response
from idiolect.federation.link.server_end import CONNECTION, TICKET
from idiolect.federation.link.site_end import Connection, _Reply, _Response
from idiolect.federation.link.web import Limits, Server
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.programs import worker_of
from idiolect.federation.trust import kits


class Program(Connection):
    """A site with the parts that the command line gives it."""

    def __init__(self, arguments: list[str]) -> None:
        kit, table, state, recorded = map(Path, arguments)
        found, say = kits.site_kit(kit), Events()
        worker = worker_of(found, SiteFiles(table, target="label"), state, policy=None, key=None, say=say)
        super().__init__(found, self.reply, say)
        self.recorded, self.honest = recorded, worker.answer
        recorded.mkdir(exist_ok=True)

    def reply(self, content: bytes) -> bytes:
        """What it answers."""
        return self.honest(content)


class Recorder(Program):
    """Writes down its upload of round 1, and the requests by which it sends it."""

    round = 0

    def reply(self, content: bytes) -> bytes:
        """The honest answer."""
        answer = self.honest(content)
        about = unpack(content).about
        self.round = about["round"] if about["kind"] == "local" else 0
        if self.round == 1:
            (self.recorded / "reply").write_bytes(answer)
        return answer

    def _deliver(self, client: httpx.Client, reply: _Reply) -> None:
        """Write a request down, with all that says who sends it."""
        if self.round == 1:
            headers = {CONNECTION: client.headers[CONNECTION], TICKET: reply.ticket}
            body = base64.b64encode(reply.reply).decode()
            with (self.recorded / "requests").open("a") as file:
                file.write(json.dumps({"path": "/reply", "headers": headers, "body": body}) + "\n")
        super()._deliver(client, reply)


class Trick(NamedTuple):
    """What a hostile site sends in place of an honest upload, and what the server says of it."""

    name: str
    change: Callable[[Message, Hostile], bytes]
    """Of the honest upload."""
    said: str
    """A regular expression; empty where the upload counts."""


def _scaled(factor: float, part: str) -> Callable[[Message, Hostile], bytes]:
    def change(honest: Message, site: Hostile) -> bytes:
        return pack(honest.about, {k: a * factor if k.startswith(part) else a for k, a in honest.arrays.items()})

    return change


def _full_of(value: float) -> Callable[[Message, Hostile], bytes]:
    def change(honest: Message, site: Hostile) -> bytes:
        whole = {k: torch.full_like(a, value) if k.startswith("value") else a for k, a in honest.arrays.items()}
        return pack(honest.about, whole)

    return change


def _each(of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message, Hostile], bytes]:
    return lambda honest, site: pack(honest.about, {k: of(a) for k, a in honest.arrays.items()})


def _said(**more: object) -> Callable[[Message, Hostile], bytes]:
    return lambda honest, site: pack(honest.about | more, honest.arrays)


def _bytes(content: bytes) -> Callable[[Message, Hostile], bytes]:
    return lambda honest, site: content


def _deep() -> bytes:
    head = json.dumps({"__metadata__": {"about": "[" * 200_000}}).encode()
    return len(head).to_bytes(8, "little") + head


_NO_MESSAGE = "not a document of named arrays"
_FLOOD = 80_000_000

_HONEST = Trick("honest", lambda honest, site: pack(*honest), "")
_TRICKS = (
    Trick("its own upload of round 1", lambda honest, site: site.first, "its reply is to another message"),
    Trick(
        "another site's upload",
        lambda honest, site: (site.recorded / "reply").read_bytes(),
        "its reply is to another message",
    ),
    Trick("the answer to another question", _said(kind="evaluate"), "its reply is to another message"),
    Trick("other shapes", _each(lambda a: a[None]), r"is \(1,"),
    Trick("other types", _each(lambda a: a.double()), "float64, not"),
    Trick(
        "other names",
        lambda honest, site: pack(honest.about, {f"{k}.other": a for k, a in honest.arrays.items()}),
        "is missing",
    ),
    Trick(
        "one array more",
        lambda honest, site: pack(honest.about, honest.arrays | {"value/more": torch.ones(3)}),
        "value/more is not expected",
    ),
    Trick("not a number", _full_of(float("nan")), "is not finite"),
    Trick("infinite", _full_of(float("inf")), "is not finite"),
    Trick("a thousand times as large", _scaled(1000, "value"), "times as large as the median"),
    Trick("a negative weight", _scaled(-1, "weight"), "a weight is negative"),
    Trick("more samples than it has", _scaled(1e6, "weight"), r"its weight is 1.6e\+07, and it has 16"),
    Trick("nonsense for a loss", _said(info={"train_loss": "low"}), "info train_loss is not a finite number"),
    Trick("half of it", lambda honest, site: pack(*honest)[:-99], _NO_MESSAGE),
    Trick("a head of 2^64 bytes", _bytes(b"\xff" * 999), "its head is too large"),
    Trick("a head that is nested without end", _bytes(_deep()), _NO_MESSAGE),
    Trick("nothing", _bytes(b""), _NO_MESSAGE),
    Trick("a text", _bytes(b"a text that is long enough for a head"), "its head is too large"),
    Trick("arrays without plain values", _bytes(safetensors.torch.save({"w": torch.ones(3)})), _NO_MESSAGE),
    Trick("too many bytes", lambda honest, site: np.random.default_rng(0).bytes(_FLOOD), "more bytes than any reply"),
)
TRICKS = {
    "coast": (_HONEST, *_TRICKS[::2], _HONEST),
    "west": (_HONEST, *_TRICKS[1::2], _HONEST),
}
"""What hostile sites send, by round, from round 1; what they send in the last round they send twice."""
ROUNDS = len(TRICKS["coast"])


class Hostile(Program):
    """Sends its tricks, one a round; measurements are honest."""

    first, round = b"", 0

    def reply(self, content: bytes) -> bytes:
        """The trick of the round."""
        answer, about = self.honest(content), unpack(content).about
        self.round = about["round"] if about["kind"] == "local" else 0
        if not self.round:
            return answer
        self.first = self.first or answer
        return TRICKS[self._kit.site][self.round - 1].change(unpack(answer), self)

    def _deliver(self, client: httpx.Client, reply: _Reply) -> None:
        if self.round == 2:
            self._others(client)
        super()._deliver(client, reply)
        if self.round == ROUNDS:
            super()._deliver(client, reply)
            self._say("sent twice")

    def _reply_to(self, found: _Response) -> _Reply:
        """Also what the server has said that it will not take."""
        return _Reply(found.headers[TICKET], self._answer(found.content), {})

    def _others(self, client: httpx.Client) -> None:
        """Requests that have to be refused, whatever they carry."""
        first = json.loads((self.recorded / "requests").read_text().splitlines()[0])
        body, headers = base64.b64decode(first["body"]), first["headers"]
        mine = headers | {CONNECTION: client.headers[CONNECTION]}
        for what, path, content, more in (
            ("as another's connection", "/reply", body, headers),
            ("with another's ticket", "/reply", body, mine),
            ("asks as another", "/work", b"", headers),
            ("one large request", "/alive", bytes(2**20), mine),
            ("an upload that nobody asked for", "/reply", bytes(2**26 + 1), {}),
        ):
            self._say(f"{what}: HTTP {client.post(path, content=content, headers=more).status_code}")


def _run(kind: type[Program]) -> Callable[[list[str]], None]:
    return lambda arguments: kind(arguments).run(threading.Event())


class Plain:
    """Answers anybody."""

    def visitor(self, certificate: bytes | None, address: str) -> str:
        """Nobody in particular."""
        return ""

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        """None."""
        return 0

    async def answer(self, request: Request) -> Response:
        """Hello."""
        return Response(200, b"hello")

    def on_refusal(self, address: str, why: str) -> None:
        """Say it."""
        print(f"refused: {why}", flush=True)


def plain(arguments: list[str]) -> None:
    """A web server without limits of its own, until it is killed: PORT."""
    limits = Limits(strangers=10**6, address=10**6, head=1000)
    with Server(Plain(), ("127.0.0.1", int(arguments[0])), None, limits):
        print("serves", flush=True)
        threading.Event().wait()


PROGRAMS = {"plain": plain, "recorder": _run(Recorder), "hostile": _run(Hostile)}
