"""Programs of sites for tests: one that records what an honest site sends, and one that sends what it should not.

Both are as ``idiolect site`` but for what is below: PROGRAM KIT TABLE STATE RECORDED.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as Carried
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from idiolect.federation import flower, kits
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.node import Connection
from idiolect.federation.running import worker_of
from idiolect.federation.samples import Samples


class Program(Connection):
    """A site with the parts that the command line gives it."""

    def __init__(self, arguments: list[str]) -> None:
        kit, table, state, recorded = map(Path, arguments)
        found, say = kits.site_kit(kit), Events()
        worker = worker_of(found, Samples(table, target="label"), state, policy=None, key=None, say=say)
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

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Write a request down, with all that proves who sends it."""
        request = context.request
        if self.round == 1 and "/push-" in str(request.url):
            headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length", "connection")}
            body = base64.b64encode(request.content).decode()
            with (self.recorded / "requests").open("a") as file:
                file.write(json.dumps({"url": str(request.url), "headers": headers, "body": body}) + "\n")
        return call_next(context)

    def _client(self) -> FleetHttpClient:
        client = super()._client()
        client._interceptors = (*client._interceptors, self)
        return client

    def _push(self, client: FleetHttpClient, node: Node, reply: Carried, run: int) -> None:
        if self.round == 1:
            (self.recorded / "node").write_text(str(node.node_id))
        super()._push(client, node, reply, run)


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


_NO_MESSAGE = "it holds no message of ours"
_FORMS = {
    b"no record": RecordDict(),
    b"a text": RecordDict({"message": ConfigRecord({"message": "text"})}),
    b"floats": RecordDict({"message": ArrayRecord({"message": Array(np.ones(3))})}),
}
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
    Trick("half of it", lambda honest, site: pack(*honest)[:-99], "not a document of named arrays"),
    Trick("a head of 2^64 bytes", _bytes(b"\xff" * 999), "its head is too large"),
    Trick("a head that is nested without end", _bytes(_deep()), "not a document of named arrays"),
    *(Trick(form.decode(), _bytes(form), _NO_MESSAGE) for form in _FORMS),
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

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        usual = flower.record
        flower.record = lambda content: _FORMS[content] if content in _FORMS else usual(content)

    def reply(self, content: bytes) -> bytes:
        """The trick of the round."""
        answer, about = self.honest(content), unpack(content).about
        self.round = about["round"] if about["kind"] == "local" else 0
        if not self.round:
            return answer
        self.first = self.first or answer
        return TRICKS[self._kit.site][self.round - 1].change(unpack(answer), self)

    def _push(self, client: FleetHttpClient, node: Node, reply: Carried, run: int) -> None:
        if self.round == 2:
            self._others(client, node, reply, run)
        super()._push(client, node, reply, run)
        if self.round == ROUNDS:
            super()._push(client, node, reply, run)
            self._say("sent twice")

    def _others(self, client: FleetHttpClient, node: Node, reply: Carried, run: int) -> None:
        """Requests that have to be refused, whatever they carry."""
        forged = message_to_proto(remove_content_from_message(reply))
        forged.metadata.src_node_id = int((self.recorded / "node").read_text())
        asked = PushMessagesRequest(
            node=node, messages_list=[forged], message_object_trees=[flower.get_object_tree(reply)]
        )
        large = PushObjectRequest(node=node, run_id=run, object_id="0" * 64, object_content=bytes(2**26))
        for what, ask in (
            ("speaks for another", lambda: client.PushMessages(asked)),
            ("one large request", lambda: client.PushObject(large)),
        ):
            try:
                ask()
                self._say(f"{what}: taken")
            except httpx.HTTPStatusError as error:
                self._say(f"{what}: HTTP {error.response.status_code}")


def _run(kind: type[Program]) -> Callable[[list[str]], None]:
    return lambda arguments: kind(arguments).run(threading.Event())


PROGRAMS = {"recorder": _run(Recorder), "hostile": _run(Hostile)}
