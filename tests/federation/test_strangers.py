"""What somebody without a key can do to a server, and a site to the others: nothing that keeps a study from its end."""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pandas as pd
import pytest
from machines import Launcher, Machines, port
from places import Heard, Place, until
from sites import NAMES, study

from idiolect.federation.link.server_end import Link
from idiolect.federation.link.web import Limits, _origin
from idiolect.federation.messages import pack
from idiolect.federation.trust.authority import operator, revoke

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits of open files")
_SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
_SHORT = Limits(strangers=24, address=16, handshake=0.5, head=0.5, body=0.5)
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first bytes of a TLS handshake


def _idle(address: tuple[str, int], source: str | None = None) -> socket.socket:
    return socket.create_connection(address, timeout=20, source_address=None if source is None else (source, 0))


def _reset(connection: socket.socket) -> None:
    """Close a connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _gone(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection."""
    if connection.fileno() < 0:  # it was closed while it was being secured
        return True
    connection.settimeout(0.01)
    try:
        return connection.recv(2**16) == b""
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


# a server of its own, with few files to open


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("strangers"), launcher)
    study(machines.folder, "fedavg", rounds=3)
    try:
        for name in NAMES:
            machines.site(name)
        yield machines
    finally:
        machines.close()


@pytest.fixture(scope="module")
def alone(machines: Machines) -> pd.DataFrame:
    return machines.simulated("alone")


@contextmanager
def _crowd(machines: Machines, what: str, count: int) -> Iterator[None]:
    """Somebody who opens connections as fast as he can, from when the server listens to its end."""
    over, host = threading.Event(), ("127.0.0.1", int(machines.server.rpartition(":")[2]))
    begun = threading.Event()

    def open_them() -> None:
        opened = list[socket.socket]()
        while not over.is_set():
            with suppress(OSError):
                opened.append(_idle(host))
                begun.set()
                if what == "half a handshake":
                    opened[-1].sendall(_HELLO)
                elif what == "garbage":
                    opened[-1].sendall(random.Random(len(opened)).randbytes(3000))
                elif what == "closed at once":
                    _reset(opened.pop())
            if len(opened) >= count:
                begun.set()
                over.wait(0.2)
                while opened and _gone(opened[0]):
                    opened.pop(0).close()
        for one in opened:
            one.close()

    thread = threading.Thread(target=open_them, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


@pytest.mark.parametrize(
    ("files", "what", "count"),
    [
        (1024, "idle", 1100),
        (1024, "half a handshake", 1100),
        (256, "closed at once", 10**9),
        (96, "garbage", 500),
        (64, "idle", 300),
    ],
)
def test_sites_finish_a_study_while_strangers_crowd_in(
    files: int, what: str, count: int, machines: Machines, alone: pd.DataFrame
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("this process may not open enough connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    out = f"{what} {files}"
    with _crowd(machines, what, count):
        machines.serve(out, "--min-sites", 5, files=files)
        assert machines.ended("server") == 0, machines.said("server")
    both = machines.records(out).merge(alone, on=_SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6
    assert "a connection from 127.0.0.1 was refused" in machines.said("server")
    assert len(machines.said("server").splitlines()) < 120  # however many there were


def test_a_server_without_a_file_left_goes_on(machines: Machines) -> None:
    number = port()
    machines.start("plain", number, program="plain", files=40)
    machines.until("plain", "serves")
    with ExitStack() as stack:
        for _ in range(300):
            stack.callback(_idle(("127.0.0.1", number)).close)
        machines.until("plain", "a connection cannot be taken (Too many open files)")
        assert httpx.get(f"http://127.0.0.1:{number}/", timeout=60).text == "hello"
    assert httpx.get(f"http://127.0.0.1:{number}/", timeout=60).text == "hello"


# one in this process, with less patience


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("here"))
    folder = place.folder / "operator"
    Place(place.folder.parent / "same", ca=folder / "ca.pem", ca_key=folder / "ca.key")
    Place(place.folder.parent / "other")
    return place


@pytest.fixture(scope="module")
def said() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def link(place: Place, said: Heard) -> Iterator[Link]:
    with place.running(place.connection("north")), place.link(said, _SHORT) as link:
        until(lambda: link.connections("north"))
        yield link


def _goes_round(place: Place, link: Link) -> None:
    """A site is asked and answers."""
    ticket = link.send("north", pack({"kind": "x"}))
    assert [reply.ticket for reply in place.replies(link)] == [ticket]


_LORIS = (
    b"POST /work HTTP/1.1\r\nHost: x\r\nx-a: ",
    b"POST /connect HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n",
)


@pytest.mark.parametrize("sent", _LORIS, ids=["head", "body"])
@pytest.mark.parametrize("who", ["no certificate", "another authority", "not in the roster", "south", "no TLS"])
def test_nobody_holds_a_connection_by_being_slow(who: str, sent: bytes, place: Place, link: Link) -> None:
    kits = place.folder.parent
    folder = {
        "another authority": kits / "other" / "kits" / "site-south",
        "not in the roster": kits / "same" / "kits" / "site-south",
        "south": place.kit("south"),
    }.get(who)
    context = place.context(folder)
    with ExitStack() as stack:
        slow = list[socket.socket]()
        for _ in range(30):
            one = _idle(place.address)
            stack.callback(one.close)
            with suppress(OSError):  # a stranger may be sent away at once
                if who != "no TLS":
                    one = stack.enter_context(context.wrap_socket(one, server_hostname="127.0.0.1"))
                one.sendall(sent)
            slow.append(one)
        _goes_round(place, link)

        def all_gone() -> bool:
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"a")  # a byte now and then
            return all(map(_gone, slow))

        until(all_gone, "the end of slow connections")
        _goes_round(place, link)


def test_a_revoked_key_gets_no_more_than_a_stranger(tmp_path: Path) -> None:
    place, said = Place(tmp_path), Heard()
    with operator(place.folder / "operator") as kit:
        revoke(kit, "south")
    context = place.context(place.kit("south"))
    with place.running(place.connection("north")), place.link(said, _SHORT) as link, ExitStack() as stack:
        until(lambda: link.connections("north"))
        slow = []
        for _ in range(40):
            plain = stack.enter_context(_idle(place.address))
            slow.append(stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1")))
        assert sum(not _gone(one) for one in slow) <= _SHORT.address
        _goes_round(place, link)
        until(lambda: all(map(_gone, slow)))
        assert said.lines("the key of south was revoked on")


@pytest.mark.parametrize("limit", ["address", "strangers"])
def test_who_has_sent_nothing_is_closed_before_who_has(limit: str, tmp_path: Path) -> None:
    """However slow a site's machine is: its handshake has begun, and those of idle connections have not."""
    place, most = Place(tmp_path), 8
    limits = Limits(strangers=100, address=100, handshake=100.0)._replace(**{limit: most})
    with place.link(limits=limits), ExitStack() as stack:
        half = stack.enter_context(_idle(place.address))
        half.sendall(_HELLO)
        silent = [stack.enter_context(_idle(place.address)) for _ in range(most - 1)]
        until(lambda: not any(map(_gone, [half, *silent])))
        more = [stack.enter_context(_idle(place.address)) for _ in range(3 * most)]
        until(lambda: sum(not _gone(one) for one in [*silent, *more]) == most - 1)
        assert not _gone(half)
        assert not any(map(_gone, more[-(most - 1) :]))  # of these, too, the newest stay

        def is_gone() -> bool:
            stack.enter_context(_idle(place.address)).sendall(_HELLO)
            return _gone(half)

        until(is_gone)  # the oldest of those that have


def test_the_limit_holds_for_connections_that_come_all_at_once(tmp_path: Path) -> None:
    """While the server is busy they queue, and then each has sent its first bytes before it is looked at."""
    place, most, over = Place(tmp_path), 8, threading.Event()
    with place.link(limits=Limits(strangers=100, address=most, handshake=100.0)) as link, ExitStack() as stack:
        link._server.call(over.wait)
        crowd = [stack.enter_context(_idle(place.address)) for _ in range(200)]
        for one in crowd:
            one.sendall(_HELLO)
        over.set()
        until(lambda: sum(not _gone(one) for one in crowd) == most)


@pytest.mark.parametrize("each", [1, 3, 6])
def test_a_registered_site_has_so_many_connections_and_the_others_theirs(each: int, tmp_path: Path) -> None:
    place = Place(tmp_path)
    context = place.context(place.kit("south"))
    limits = _SHORT._replace(each=max(2, each), idle=100.0)
    with place.running(place.connection("north")), place.link(limits=limits) as link, ExitStack() as stack:
        until(lambda: link.connections("north"))
        held = list[ssl.SSLSocket]()
        for _ in range(50):
            plain = stack.enter_context(_idle(place.address))
            held.append(stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1")))
        until(lambda: sum(not _gone(one) for one in held) == limits.each)
        assert not any(map(_gone, held[-limits.each :]))  # the newest ones
        _goes_round(place, link)
        assert link.connections("north") == 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks plain HTTP"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "the TLS handshake failed"),
        (random.Random(0).randbytes(70_000), "the TLS handshake failed"),
        (b"\x16\x03\x01\xff\xff" + 70_000 * b"x", "the TLS handshake failed"),
        (b"\x80\x2e\x01\x00\x02" + 60 * b"\0", "the TLS handshake failed"),
        (_HELLO, "it did not say who it is in time"),
        (b"", "it did not say who it is in time"),
    ],
    ids=["HTTP", "SSH", "random", "a long record", "SSL 2", "half a hello", "nothing"],
)
def test_garbage_is_refused_with_address_and_reason(
    sent: bytes, why: str, place: Place, link: Link, said: Heard
) -> None:
    said.events.clear()
    said._rare.clear()
    said._of_one.clear()
    said._of_all.clear()
    with _idle(place.address) as one:
        with suppress(OSError):
            one.sendall(sent)
        until(lambda: _gone(one))
    until(lambda: said.lines(why), why)
    [event] = [event for event in said.events if why in event["event"]]
    assert (event["address"], event["times"]) == ("127.0.0.1", 1)
    assert event["refused"].startswith(why)
    _goes_round(place, link)


@pytest.mark.parametrize("how", [socket.socket.close, _reset])
def test_thousands_that_go_again_at_once(
    how: Callable[[socket.socket], None], place: Place, link: Link, said: Heard
) -> None:
    said.events.clear()
    for k in range(2000):
        how(_idle(place.address))
        if k % 500 == 0:
            _goes_round(place, link)
    _goes_round(place, link)
    assert len(said.events) <= 30


def test_who_has_few_connections_is_not_pushed_out_by_who_has_many(tmp_path: Path) -> None:
    if os.uname().sysname != "Linux":
        pytest.skip("needs addresses of 127.0.0.0/8")
    place, said = Place(tmp_path), Heard()
    limits = Limits(strangers=20, address=8, handshake=1000)
    with place.link(said, limits), ExitStack() as stack:
        few = [stack.enter_context(_idle(place.address, source)) for source in ("127.0.0.1", "127.0.0.77")]
        many = [stack.enter_context(_idle(place.address, f"127.0.0.{2 + k % 7}")) for k in range(200)]
        until(lambda: sum(not _gone(one) for one in many) <= 18)
        assert not any(map(_gone, few))
        assert said.lines("too many connections at a time")


def test_addresses_of_one_network_count_as_one() -> None:
    same = {_origin(text) for text in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:0:8000::")}
    assert len(same) == 1
    assert _origin("2001:db8:0:1::1") not in same
    assert _origin("::ffff:192.0.2.1") == _origin("192.0.2.1") != _origin("192.0.2.2")
    assert _origin("fe80::1%lo") == _origin("fe80::2%lo")
    assert _origin("") == ""


def _ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _ipv6(), reason="no IPv6 on this machine")
def test_the_same_by_ipv6(tmp_path: Path) -> None:
    place, said = Place(tmp_path, host="[::1]"), Heard()
    with place.running(place.connection("north")), place.link(said, _SHORT) as link, ExitStack() as stack:
        idle = [stack.enter_context(_idle(place.address)) for _ in range(60)]
        _goes_round(place, link)
        until(lambda: all(map(_gone, idle)))
        assert said.lines("a connection from ::1 was refused: more than 16 connections")
        assert said.lines("north has connected from ::1")
