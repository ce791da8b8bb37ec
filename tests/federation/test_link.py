"""The link between server and sites, over TLS on this machine: who is let in, and what a site may do."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from machines import port
from sites import Heard, Loop

from idiolect.core.errors import InputError, RunError
from idiolect.federation import flower, kits
from idiolect.federation.conversation import Conversation, Patience, Question
from idiolect.federation.events import Events
from idiolect.federation.link import Link, Reply
from idiolect.federation.messages import pack, unpack
from idiolect.federation.node import Connection
from idiolect.federation.site import Worker


class Place:
    """A server with two sites' kits, and what a site called north has been asked."""

    def __init__(self, folder: Path) -> None:
        self.about = kits.Description(name="trial", server=f"127.0.0.1:{port()}", sites=("north", "south"))
        kits.provision(self.about, folder / "kits")
        self.folder, self.address = folder / "kits", kits.address(self.about.server)
        self.server = kits.server_kit(self.folder / "server")
        self.north, self.south = (kits.site_kit(self.folder / f"site-{name}") for name in self.about.sites)
        self.asked: list[bytes] = []
        self.running = self.connection(self.north)

    def connection(self, kit: kits.SiteKit, during: Callable[[], object] = lambda: None) -> Connection:
        """Of a site that answers, and does something else while it does."""

        def answer(content: bytes) -> bytes:
            self.asked.append(content)
            during()
            message = unpack(content)
            return pack(message.about | {"from": kit.site}, message.arrays)

        return Connection(kit, answer, Events(quiet=True))

    def replies(self, link: Link) -> list[Reply]:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if found := link.replies():
                return found
            time.sleep(0.01)
        raise AssertionError("no reply came")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("link"))


@pytest.fixture(scope="module")
def link(place: Place) -> Iterator[Link]:
    stop = threading.Event()
    with Link(place.server, place.address) as link:
        thread = threading.Thread(target=place.running.run, args=(stop,), daemon=True)
        thread.start()
        yield link
        stop.set()
    thread.join(15)


@pytest.mark.parametrize("size", [1000, 1_500_000], ids=["in one piece", "in several"])
def test_a_message_goes_there_and_comes_back(size: int, place: Place, link: Link) -> None:
    arrays = {"w": torch.randn(size), "n": torch.arange(3)}
    ticket = link.send("north", pack({"kind": "x"}, arrays))
    [reply] = place.replies(link)
    assert (reply.site, reply.ticket) == ("north", ticket)
    assert reply.content is not None
    found = unpack(reply.content)
    assert found.about == {"kind": "x", "from": "north"}
    assert all(torch.equal(found.arrays[name], a) for name, a in arrays.items())
    assert link.quiet_for("north") < 20
    assert link.connections("south") == 0
    assert link.quiet_for("south") > link.quiet_for("north")  # since the link was made
    assert not link._state.message_ins_store  # nothing is kept of what has been answered
    assert not link._state.message_res_store


def test_a_reply_counts_once(place: Place, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded reply that is sent again, by the site itself, finds no question to which it belongs."""
    pushed = []
    honest = place.running._push

    def twice(client: FleetHttpClient, node: Node, reply: Message, run: int) -> None:
        pushed.append((client, node, reply))
        honest(client, node, reply, run)
        honest(client, node, reply, run)

    monkeypatch.setattr(place.running, "_push", twice)
    first = link.send("north", pack({"kind": "again"}))
    [reply] = place.replies(link)
    second = link.send("north", pack({"kind": "next"}))
    [later] = place.replies(link)  # by now the first one has been sent twice
    assert (reply.ticket, later.ticket) == (first, second)
    client, node, message = pushed[0]
    asked = PushMessagesRequest(
        node=node, messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[flower.get_object_tree(message)], clientapp_runtime_list=[0.0],
    )  # fmt: skip
    assert not client.PushMessages(asked).objects_to_push
    assert link.replies() == []


def test_a_reply_is_not_read_before_its_parts_are_known(
    place: Place, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, storing, read = link._state, threading.Event(), threading.Event()
    honest = state.preregister_object_tree

    def slow(tree: object, session: str) -> object:
        if threading.current_thread() is not threading.main_thread():
            storing.set()
            read.wait(0.2)  # replies() waits for this, so nobody says that it has read
        return honest(tree, session)

    monkeypatch.setattr(state, "preregister_object_tree", slow)
    ticket = link.send("north", pack({"kind": "x"}))
    assert storing.wait(60)
    early = link.replies()
    read.set()
    [reply] = early or place.replies(link)
    assert (reply.ticket, reply.why) == (ticket, "")


def _forged(place: Place, node: int, source: int, reply_to: str) -> PushMessagesRequest:
    message = Message(flower.record(pack({"kind": "forged"})), dst_node_id=node, message_type="query")
    message.metadata.__dict__.update(_src_node_id=source, _reply_to_message_id=reply_to, _message_id=message.object_id)
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[flower.get_object_tree(message)],
    )  # fmt: skip


def test_a_site_speaks_for_nobody_else(place: Place, link: Link) -> None:
    mine, other = link._node_of["south"], link._node_of["north"]
    with place.connection(place.south)._client() as client:
        for source, reply_to in ((1, ""), (other, "x" * 64), (mine, "")):  # as the server, as north, unasked
            with pytest.raises(httpx.HTTPStatusError, match="403"):
                client.PushMessages(_forged(place, mine, source, reply_to))
        with pytest.raises(httpx.HTTPStatusError, match="401"):  # with its own key in the name of another
            client.PushMessages(_forged(place, other, other, "x" * 64))


def test_an_unregistered_key_learns_nothing(place: Place, link: Link) -> None:
    ticket = link.send("south", pack({"kind": "study", "text": "secret"}))
    stranger = place.south._replace(key=ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(InputError, match="does not know the key of south"):
        place.connection(stranger).run(threading.Event())
    public = public_key_to_bytes(stranger.key.public_key())
    with place.connection(stranger)._client() as client:
        for ask in (
            lambda: client.RegisterNode(RegisterNodeFleetRequest(public_key=public)),
            lambda: client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=20)),
            lambda: client.ActivateNode(
                ActivateNodeRequest(public_key=place.server.sites["south"], heartbeat_interval=20)
            ),
            lambda: client.PullObject(PullObjectRequest(node=Node(node_id=link._node_of["south"]), run_id=link._run)),
        ):
            with pytest.raises(httpx.HTTPStatusError) as error:
                ask()
            assert error.value.response.status_code in (401, 403)
            assert b"secret" not in error.value.response.content
    link.forget([ticket])


def test_nothing_else_is_served(place: Place, link: Link) -> None:
    context = ssl.create_default_context(cadata=place.south.ca.decode())
    with httpx.Client(verify=context, base_url=f"https://{place.about.server}") as client:
        for path in ("/", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/runtime/acquire-task", "/health"):
            said = client.post(path, headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE})
            assert said.status_code in (403, 404, 405), path
    with (
        socket.create_connection(place.address) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as raw,
    ):
        raw.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (2**40))
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{place.about.server}/v1/fleet/activate-node", content=b"x")


def test_another_authority_is_not_trusted(place: Place, link: Link, tmp_path: Path) -> None:
    kits.provision(place.about, tmp_path / "other")
    wrong = place.south._replace(ca=(tmp_path / "other" / "site-south" / "ca.pem").read_bytes())
    with pytest.raises(InputError, match="is not the server of this kit"):
        place.connection(wrong).run(threading.Event())


def _connected(client: FleetHttpClient, kit: kits.SiteKit) -> Node:
    public = public_key_to_bytes(kit.key.public_key())
    asked = ActivateNodeRequest(public_key=public, heartbeat_interval=20)
    return Node(node_id=client.ActivateNode(asked).node_id)


def test_what_a_lost_connection_has_asked_takes_no_message(place: Place, link: Link) -> None:
    """A site that was killed left a question for work at the server; the site that comes back gets the next message."""
    south = place.connection(place.south)
    with south._client() as lost, south._client() as back, ThreadPoolExecutor(1) as pool:
        node = _connected(lost, place.south)
        link._seen.pop("south")
        pulling = pool.submit(lost.PullMessages, PullMessagesRequest(node=node))
        while "south" not in link._seen:
            time.sleep(0.01)
        assert _connected(back, place.south) == node
        ticket = link.send("south", pack({"kind": "x"}))
        [message] = back.PullMessages(PullMessagesRequest(node=node)).messages_list
        assert message.metadata.message_id == ticket
        with pytest.raises(httpx.HTTPStatusError, match="410"):
            pulling.result()
        with pytest.raises(httpx.HTTPStatusError, match="410"):
            lost.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=20))
    link.forget([ticket])


def test_a_message_that_is_withdrawn_while_it_is_fetched_costs_no_connection(
    place: Place, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    while not link.connections("north"):
        time.sleep(0.01)
    before, honest, gone = link.connections("north"), place.running._work, threading.Event()

    def late(*arguments: Any) -> None:
        if not gone.is_set():
            link.forget([first])
            gone.set()
        honest(*arguments)

    monkeypatch.setattr(place.running, "_work", late)
    place.asked.clear()
    first = link.send("north", pack({"kind": "withdrawn"}))
    assert gone.wait(60)
    second = link.send("north", pack({"kind": "second"}))
    [reply] = place.replies(link)
    assert reply.ticket == second
    assert [unpack(content).about["kind"] for content in place.asked] == ["second"]
    assert link.connections("north") == before


@pytest.mark.parametrize(("later", "sent"), [([0, 1, 1], 1), ([0, 2, 2], 2), ([1, 2, 2], 2)])
def test_a_question_is_sent_again_where_a_connection_may_have_taken_it(later: list[int], sent: int) -> None:
    class Slow(Loop):
        """A site that connects later, and answers after the server has looked twice."""

        def connections(self, site: str) -> int:
            return later[0]

        def replies(self) -> list[Heard]:
            found = super().replies() if len(later) == 1 else []
            del later[: len(later) > 1]
            return found

    class Echo:
        def answer(self, content: bytes) -> bytes:
            return content

    link = Slow({"north": cast(Worker, Echo())})
    asking = Conversation(link, ["north"], Events(quiet=True))
    found = asking.ask({0: Question({"kind": "x"}, {})}, lambda i, message: message.about["kind"], Patience(lost=60))
    assert found == {0: "x"}
    assert len(link.sent) == sent


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "at work"])
def test_of_a_site_that_runs_twice_the_first_ends(busy: bool, place: Place, link: Link) -> None:
    stop, working, before = threading.Event(), threading.Event(), link.connections("south")
    first = place.connection(place.south)

    def loses(*_: object) -> None:
        """What it works on, which the server has left for the other one."""
        working.set()
        while link.connections("south") < before + 2:
            time.sleep(0.01)
        raise ObjectPullError("x", "the object could not be found")

    with ThreadPoolExecutor(2) as pool:
        if busy:
            first._work = loses  # type: ignore[method-assign]
            link.send("south", pack({"kind": "first"}))
        ended = pool.submit(first.run, stop)
        while link.connections("south") == before or (busy and not working.is_set()):
            time.sleep(0.01)
        other = pool.submit(place.connection(place.south, stop.set).run, stop)
        with pytest.raises(InputError, match=r"another program has connected to \S+ as south since"):
            ended.result()
        link.send("south", pack({"kind": "last"}))
        [reply] = place.replies(link)  # a site that is stopped while it works still sends its answer
        assert reply.site == "south"
        other.result()


def test_a_port_in_use_is_said(place: Place, link: Link) -> None:
    """The last test: Flower knows one run in a process, and from here on it is that of the link that failed."""
    with pytest.raises(RunError, match="cannot listen on"), Link(place.server, place.address):
        pass
