"""The link between server and sites, over TLS on this machine: who is let in, and what a site may do."""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import httpx
import pytest
import torch
from places import Heard as Said
from places import Place, until
from sites import Heard, Loop

from idiolect.core.errors import InputError, RunError
from idiolect.federation.events import Events
from idiolect.federation.link.server_end import CONNECTION, ROSTER, TICKET, Link
from idiolect.federation.link.site_end import Connection
from idiolect.federation.messages import pack, unpack
from idiolect.federation.rounds.conversation import Conversation, Patience, Question
from idiolect.federation.site.worker import Worker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("link"))


@pytest.fixture(scope="module")
def north(place: Place) -> Connection:
    return place.connection("north")


@pytest.fixture(scope="module")
def link(place: Place, north: Connection) -> Iterator[Link]:
    with place.running(north), place.link() as link:  # the link ends first, so nobody waits for it
        yield link


def _introduced(client: httpx.Client, version: int = 1) -> None:
    about = {"connection": client.headers[CONNECTION], "roster": version, "clock": time.time()}
    assert client.post("/connect", content=json.dumps(about).encode()).status_code == 200


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
    assert not link._letters  # nothing is kept of what has been answered


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "other://127.0.0.1:1", "http://127.0.0.1:none"])
def test_a_proxy_that_cannot_be_used_ends_a_site(proxy: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as where it is not installed
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(InputError, match=r"the proxy of this environment cannot be used .*unset ALL_PROXY"):
        place.connection("south").run(threading.Event())


def test_a_reply_counts_once(place: Place, link: Link) -> None:
    """A reply that is sent again, also by the site itself, finds no question to which it belongs."""
    with place.client(place.context(place.kit("south"))) as south:
        _introduced(south)
        ticket = link.send("south", pack({"kind": "again"}))
        withdrawn = link.send("south", pack({"kind": "withdrawn"}))
        assert south.post("/work").headers[TICKET] == ticket
        answer = {"content": pack({"kind": "again"}), "headers": {TICKET: ticket}}
        codes = [south.post("/reply", **answer).status_code for _ in range(3)]
        assert codes == [204, 409, 409]
        assert [reply.ticket for reply in place.replies(link)] == [ticket]
        assert south.post("/reply", **answer).status_code == 409
        link.forget([withdrawn])
        assert south.post("/reply", content=b"x", headers={TICKET: withdrawn}).status_code == 409
        assert south.post("/reply", content=b"x").status_code == 409
    assert link.replies() == []


def test_a_site_speaks_for_nobody_else(place: Place, link: Link, north: Connection) -> None:
    working, go_on = threading.Event(), threading.Event()
    honest = north._answer

    def slow(content: bytes) -> bytes:
        working.set()
        assert go_on.wait(30)
        return honest(content)

    north._answer = slow
    try:
        ticket = link.send("north", pack({"kind": "secret"}))
        assert working.wait(30)
        other = link._current["north"]
        with place.client(place.context(place.kit("south")), "south's") as south:
            _introduced(south)
            forged = pack({"kind": "secret"})
            assert south.post("/reply", content=forged, headers={TICKET: ticket}).status_code == 409
            for path in ("/reply", "/work", "/alive"):  # as if it were north's connection
                said = south.post(path, content=b"x", headers={TICKET: ticket, CONNECTION: other})
                assert (said.status_code, b"secret" in said.content) == (410, False)
            assert south.post("/alive").status_code == 204
        go_on.set()
        [reply] = place.replies(link)
    finally:
        north._answer = honest
        go_on.set()
    assert (reply.site, reply.ticket, reply.why) == ("north", ticket, "")
    assert reply.content is not None
    assert unpack(reply.content).about["from"] == "north"


def test_a_key_that_is_not_in_the_roster_learns_nothing(place: Place, link: Link, tmp_path: Path) -> None:
    """Of this authority, of another, self-signed, the server's own, or none."""
    ticket = link.send("south", pack({"kind": "study", "text": "secret"}))
    stranger, other = tmp_path / "stranger", Place(tmp_path / "other")
    Place(tmp_path / "same", ca=place.folder / "operator" / "ca.pem", ca_key=place.folder / "operator" / "ca.key")
    (tmp_path / "same" / "kits" / "site-south").rename(stranger)
    with place.client(place.context(stranger)) as client:
        for path in ("/connect", "/work", "/reply", "/alive", "/", "/roster"):
            said = client.post(path, content=b"{}", headers={CONNECTION: "x", TICKET: ticket})
            assert (said.status_code, said.json()) == (403, {"why": "its key is not in the roster of this federation"})
            assert "secret" not in said.text
            assert ROSTER not in said.headers
    server = ssl.create_default_context(cafile=str(place.folder / "server" / "ca.pem"))
    server.load_cert_chain(place.folder / "server" / "server.pem", place.folder / "server" / "server.key")
    for context in (place.context(other.kit("south")), place.context(None), server):
        with place.client(context) as client, pytest.raises(httpx.TransportError):
            client.post("/connect", content=b"{}")
    link.forget([ticket])


def test_nothing_else_is_served(place: Place, link: Link) -> None:
    context = place.context(place.kit("south"))
    with place.client(context) as south:
        _introduced(south)
        for path in ("/", "/docs", "/roster.json", "/connect/", "/../server.key", "/alive?x=1&y"):
            expected = 204 if path.startswith("/alive") else 404
            assert south.post(path, timeout=60).status_code == expected, path
        for method in ("GET", "HEAD", "PUT", "DELETE", "BREW"):
            assert south.request(method, "/work").status_code == 405
        for about in (b"", b"[]", b'"x"', b"{}", b'{"connection": 1, "roster": "x", "clock": 1}', b"[" * 60_000,
                      b'{"connection": "a", "roster": 1, "clock": Infinity}',
                      b'{"connection": "a", "roster": 1e999, "clock": 1}'):  # fmt: skip
            assert south.post("/connect", content=about).status_code == 400, about[:60]
        assert south.post("/alive", content=bytes(2**17)).status_code == 413
    for sent, code in (
        (b"POST /reply HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % 2**40, 410),
        (b"POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % 2**40, 413),
        (b"POST http://[/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nx: " + 40_000 * b"y", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ):
        assert place.raw(context, sent).startswith(b"HTTP/1.1 %d" % code), sent[:40]
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{place.about.server}/connect", content=b"x")


def test_what_a_lost_connection_has_asked_takes_no_message(place: Place, link: Link) -> None:
    """A site that was killed left a question for work at the server; the site that comes back gets the next message."""
    context = place.context(place.kit("south"))
    with place.client(context, "lost") as lost, place.client(context, "back") as back, ThreadPoolExecutor(1) as pool:
        _introduced(lost)
        link._last_signs.pop("south")
        pulling = pool.submit(lost.post, "/work")
        until(lambda: "south" in link._last_signs)
        _introduced(back)
        ticket = link.send("south", pack({"kind": "x"}))
        assert back.post("/work").headers[TICKET] == ticket
        assert pulling.result().status_code == 410
        assert lost.post("/alive").status_code == 410
    link.forget([ticket])


def test_a_message_that_is_withdrawn_while_it_is_answered_costs_no_connection(
    place: Place, link: Link, north: Connection
) -> None:
    until(lambda: link.connections("north"))
    before, honest = link.connections("north"), north._answer
    place.asked.clear()

    tickets = list[str]()

    def late(content: bytes) -> bytes:
        until(lambda: tickets)
        link.forget(tickets)
        return honest(content)

    north._answer = late
    try:
        tickets.append(link.send("north", pack({"kind": "withdrawn"})))
        until(lambda: place.asked)
    finally:
        north._answer = honest
    second = link.send("north", pack({"kind": "second"}))
    assert [reply.ticket for reply in place.replies(link)] == [second]
    assert link.connections("north") == before


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "at work"])
def test_a_server_that_starts_again_is_connected_to_again(busy: bool, tmp_path: Path) -> None:
    """Also where the first request after that is a sign of life, or the reply to what the earlier server asked."""
    place, said, go_on = Place(tmp_path), Said(), threading.Event()
    if not busy:
        go_on.set()
    with place.running(place.connection("north", said, lambda: go_on.wait(30))):
        with place.link() as link:
            until(lambda: link.connections("north"))
            if busy:
                link.send("north", pack({"kind": "before"}))
                until(lambda: place.asked)
        with place.link() as link:
            if busy:
                time.sleep(2.5)  # longer than between two signs of life
                go_on.set()
            ticket = link.send("north", pack({"kind": "after"}))
            assert [reply.ticket for reply in place.replies(link)] == [ticket]
    assert len(said.lines("connected to")) >= 2


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
    found = asking.ask({0: Question({"kind": "x"}, {})}, lambda i, message: message.about["kind"], Patience(silence=60))
    assert found == {0: "x"}
    assert len(link.sent) == sent


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "at work"])
def test_of_a_site_that_runs_twice_the_first_ends(busy: bool, place: Place, link: Link) -> None:
    stop, working, before = threading.Event(), threading.Event(), link.connections("south")

    def slow() -> None:
        working.set()
        until(lambda: link.connections("south") >= before + 2)

    first = place.connection("south", during=slow if busy else lambda: None)
    with ThreadPoolExecutor(2) as pool:
        if busy:
            lost = link.send("south", pack({"kind": "first"}))
        ended = pool.submit(first.run, stop)
        until(lambda: link.connections("south") > before and (working.is_set() or not busy))
        other = pool.submit(place.connection("south", during=stop.set).run, stop)
        with pytest.raises(InputError, match=r"another program has connected to \S+ as south since"):
            ended.result()
        if busy:
            link.forget([lost])
        link.send("south", pack({"kind": "last"}))
        [reply] = place.replies(link)  # a site that is stopped while it works still sends its answer
        assert reply.site == "south"
        other.result()


def test_a_port_in_use_is_said(place: Place, link: Link) -> None:
    with pytest.raises(RunError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in use\)"), place.link():
        pass


@pytest.mark.parametrize("size", [2**26 + 2**20, 2**27, 3 * 2**26])
def test_a_reply_that_is_too_large_costs_no_connection(size: int, tmp_path: Path) -> None:
    """The site does not send it; if it does, it is told."""
    place, said = Place(tmp_path), Said()
    site = place.connection("north", said)
    site._answer = lambda content: bytes(size)
    with place.running(site), place.link() as link:
        ticket = link.send("north", pack({"kind": "x"}))
        [reply] = place.replies(link)
        assert (reply.ticket, reply.content) == (ticket, None)
        assert reply.why == "it has more bytes than any reply to this question needs"
        assert said.lines(f"a reply of {size:,} bytes is not sent")
        ticket = link.send("south", pack({"kind": "x"}))
        with place.client(place.context(place.kit("south"))) as south:
            _introduced(south)
            assert south.post("/work").headers[TICKET] == ticket
            assert south.post("/reply", content=bytes(size), headers={TICKET: ticket}).status_code == 413
            assert south.post("/alive").status_code == 204
        assert [reply.why for reply in place.replies(link)] == [reply.why]
        assert link.connections("north") == 1
