"""The audit trail: who was refused, when, from where and why, however many; and secrets that are not in it."""

from __future__ import annotations

import io
import json
import socket
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from machines import port
from places import Place, until
from sites import study

from idiolect.federation import events, programs
from idiolect.federation.events import Events
from idiolect.federation.link.server_end import CONNECTION, Link
from idiolect.federation.monitor.page import Page
from idiolect.federation.trust.authority import operator, revoke


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def link(place: Place, file: Path) -> Iterator[Link]:
    with place.link(Events(file, quiet=True)) as link:
        yield link


def _kept(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _one(file: Path, why: str) -> dict[str, Any]:
    until(lambda: [e for e in _kept(file) if why in e["event"]], why)
    found = [e for e in _kept(file) if why in e["event"]]
    assert len(found) == 1, found
    assert abs(found[0]["at"] - time.time()) < 60
    return found[0]


def _visit(place: Place, context: ssl.SSLContext) -> None:
    with place.client(context) as client, suppress(httpx.TransportError):
        client.post("/connect", content=b"{}")


@pytest.mark.parametrize(
    "who", ["unknown key", "revoked", "no certificate", "another authority", "plain HTTP", "no head"]
)
@pytest.mark.parametrize("times", [1, 5])
def test_each_refused_key_is_a_line(who: str, times: int, place: Place, file: Path, tmp_path: Path) -> None:
    ca = place.folder / "operator"
    folder, why = {
        "unknown key": (Place(tmp_path / "a", ca=ca / "ca.pem", ca_key=ca / "ca.key").kit("north"), "in the roster"),
        "revoked": (place.kit("south"), "the key of south was revoked on"),
        "no certificate": (None, "it has no certificate of a kit"),
        "another authority": (Place(tmp_path / "b").kit("north"), "its certificate is refused"),
        "plain HTTP": (None, "it speaks plain HTTP"),
        "no head": (place.kit("south"), "the key of south was revoked on"),
    }[who]
    with operator(ca) as kit:
        revoke(kit, "south")
    with place.link(Events(file, quiet=True)):
        for _ in range(times):
            if who == "plain HTTP":
                with suppress(httpx.HTTPError):
                    httpx.post(f"http://{place.about.server}/connect")
            elif who == "no head":  # it shows its key and says nothing
                with socket.create_connection(place.address) as plain:
                    place.context(folder).wrap_socket(plain, server_hostname="127.0.0.1").close()
            else:
                _visit(place, place.context(folder))
        event = _one(file, why)
    assert (event["address"], event["times"]) == ("127.0.0.1", 1)
    assert event["event"].startswith("a connection from 127.0.0.1 was refused: ")
    assert event["refused"] in event["event"]


@pytest.mark.parametrize("minutes", [-600, -6, -4, 4, 6, 90])
def test_each_connection_is_a_line_and_so_is_a_wrong_clock(
    minutes: float, place: Place, file: Path, link: Link
) -> None:
    for k in range(3):
        with place.client(place.context(place.kit("north")), f"connection {k}") as client:
            about = {"connection": client.headers[CONNECTION], "roster": 1, "clock": time.time() + 60 * minutes}
            assert client.post("/connect", content=json.dumps(about).encode()).status_code == 200
    kept = _kept(file)
    came = [event for event in kept if event["event"] == "north has connected from 127.0.0.1"]
    assert [(event["site"], event["address"]) for event in came] == [("north", "127.0.0.1")] * 3
    told = [event for event in kept if "skew" in event]
    assert len(told) == (abs(minutes) > 5)
    for event in told:
        way = "ahead" if minutes > 0 else "behind"
        assert event["event"] == f"the clock of north is {abs(minutes)} minutes {way}"
        assert (event["site"], event["address"]) == ("north", "127.0.0.1")
        assert abs(event["skew"] - 60 * minutes) < 30


@pytest.mark.parametrize("guess", ["x", "x" * 5000, "\u00e9", "'; --", "%00"])
def test_each_guess_of_the_pages_token_is_a_line(guess: str, place: Place, file: Path) -> None:
    with Page(lambda: {}, place.server, ("127.0.0.1", port()), Events(file, quiet=True)) as page:
        bare, _, token = page.url.partition("?token=")
        for path in ("", "status.json", "other"):
            assert httpx.get(bare + path, params={"token": guess}).status_code == 403
        assert httpx.get(bare).status_code == 403  # no guess
        assert httpx.get(page.url.replace("/?", "/none?")).status_code == 404
        event = _one(file, "was refused")
        assert event["event"] == "a look at the page from 127.0.0.1 was refused: its token is wrong"
        assert (event["address"], event["refused"]) == ("127.0.0.1", "its token is wrong")
        assert token not in file.read_text()
        assert guess not in file.read_text() or guess == "x"


def test_a_browser_that_waits_is_not_refused(place: Place, file: Path) -> None:
    """It keeps a connection open, opens one in advance, and goes away."""
    with Page(lambda: {}, place.server, ("127.0.0.1", port()), Events(file, quiet=True)) as page:
        page._server._limits = page._server._limits._replace(head=0.2)
        url = httpx.URL(page.url)
        with socket.create_connection((url.host, url.port or 0)) as early, httpx.Client() as client:
            for _ in range(2):
                assert client.get(url.copy_with(path="/none")).status_code == 404
                time.sleep(0.5)
            early.settimeout(20)
            assert early.recv(10) == b""
    assert _kept(file) == []


def test_a_status_that_cannot_be_shown_is_an_answer(place: Place, file: Path) -> None:
    with Page(lambda: {"a": object()}, place.server, ("127.0.0.1", port()), Events(file, quiet=True)) as page:
        found = httpx.get(page.url.replace("/?", "/status.json?"))
        assert (found.status_code, "object" in found.text) == (500, False)
        assert _one(file, "it could not be answered (TypeError")["address"] == "127.0.0.1"


def _room() -> int:
    """Bytes that this machine takes for a connection whose other side does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            one.setblocking(False)
            size = 0
            with suppress(BlockingIOError):
                while True:
                    size += one.send(bytes(2**16))
    return size


def test_a_page_arrives_whole_where_the_connection_is_closed_after_it(place: Place) -> None:
    """Also where its end waits in the server when it is done."""
    sizes = [_room() + k * 2**14 for k in range(-20, 12)]
    status = {"text": ""}
    with Page(lambda: status, place.server, ("127.0.0.1", port())) as page, ExitStack() as stack:
        url, slow = httpx.URL(page.url), list[socket.socket]()
        for size in sizes:
            one = stack.enter_context(socket.create_connection((url.host, url.port or 0), timeout=30))
            status["text"] = size * "x"
            one.sendall(f"GET /status.json?{url.query.decode()} HTTP/1.0\r\n\r\n".encode())
            one.recv(1)
            slow.append(one)
        time.sleep(0.2)
        for one, size in zip(slow, sizes, strict=True):
            content = b"".join(iter(lambda one=one: one.recv(2**20), b""))  # type: ignore[misc]
            assert len(json.loads(content.partition(b"\r\n\r\n")[2])["text"]) == size


# how many lines


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(events, "time", clock)
    return clock


def test_the_same_is_said_once_a_minute_with_how_often(clock: _Clock, file: Path) -> None:
    say = Events(file, quiet=True)
    for _ in range(1000):
        say.rarely("a", "it came", address="a")
    clock.now += 59
    say.rarely("a", "it came", address="a")
    assert [event["times"] for event in _kept(file)] == [1]
    clock.now += 2
    say.rarely("a", "it came", address="a")
    assert [event["times"] for event in _kept(file)] == [1, 1001]
    assert _kept(file)[1]["event"] == "it came (1,001 times since this was said last)"


@pytest.mark.parametrize("keys", [21, 500, 5000])
def test_many_kinds_are_a_few_lines_a_minute_and_all_are_counted(keys: int, clock: _Clock, file: Path) -> None:
    say = Events(file, quiet=True)
    for key in range(keys):
        say.rarely(key, f"from {key}", address=str(key))
    assert len(_kept(file)) == 20
    assert len(say._rare) <= 1001
    clock.now += 61
    for key in range(keys, keys + 5):
        say.rarely(key, f"from {key}", address=str(key))
    assert len(_kept(file)) == 25
    say.close()
    left = _kept(file)[-1]
    assert left["event"].endswith("more refused connections or requests, not listed one by one")
    assert sum(event["times"] for event in _kept(file)) == keys + 5


def test_a_flood_of_strangers_is_a_few_lines(place: Place, file: Path, link: Link) -> None:
    for k in range(400):
        with socket.create_connection(place.address) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n" if k % 2 else b"\x16\x03\x01" + bytes(k))
    until(lambda: _kept(file))
    assert len(_kept(file)) <= 20
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# the secret of the page


class _Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_the_pages_token_is_in_one_file(
    terminal: bool, quiet: bool, ends: str, place: Place, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, url = _Screen(terminal), place.folder / "server" / "page.url"
    url.write_text("of a server that was killed")
    url.chmod(0o644)
    seen: list[str] = []

    def conduct(*_: Any, **__: Any) -> Any:
        seen.append(url.read_text().strip())
        assert stat.S_IMODE(url.stat().st_mode) == 0o600
        assert httpx.get(seen[0].replace("/?", "/none?")).status_code == 404
        if ends != "well":
            raise KeyError(ends)

    monkeypatch.setattr(programs, "conduct", conduct)
    monkeypatch.setattr(sys, "stderr", screen)
    say = Events(file, quiet=quiet)
    with suppress(KeyError):
        programs.serve(place.folder / "server", study(tmp_path), tmp_path / "run", page=str(port()), say=say)
    assert not url.exists()
    token = seen[0].partition("token=")[2]
    assert len(token) >= 32
    assert (token in screen.getvalue()) == terminal
    assert token not in file.read_text()
    assert str(url) in file.read_text()
    assert not [path for path in place.folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
