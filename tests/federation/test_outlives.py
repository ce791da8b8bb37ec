"""A site goes on trying, whatever answers at its server's address, and ends only for what it alone can mend."""

from __future__ import annotations

import http.server
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from machines import Launcher, Machines
from places import Heard, Place, authority, dated, until
from sites import study

from idiolect.core.errors import InputError
from idiolect.federation.link import server_end, site_end
from idiolect.federation.link.server_end import ROSTER
from idiolect.federation.messages import pack
from idiolect.federation.trust.authority import operator, revoke

Handle = Callable[[socket.socket], object]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(site_end, "_FIRST", 0.02)
    monkeypatch.setattr(site_end, "_LONGEST", 0.1)
    monkeypatch.setattr(site_end, "_TIMES", site_end.httpx.Timeout(1.0))
    monkeypatch.setattr(server_end, "HOLD", 0.3)
    return Place(tmp_path)


@contextmanager
def _instead(place: Place, handle: Handle) -> Iterator[list[int]]:
    """Something else at the server's address; how often it was connected to."""
    calls, over = [0], threading.Event()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            handle(connection)

    def serve() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                calls[0] += 1
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    with socket.create_server(place.address) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield calls
        over.set()
        thread.join()


def _tls(place: Place, certificate: bytes, key: Path) -> ssl.SSLContext:
    file = place.folder / "impostor.pem"
    file.write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context


def _speaks(place: Place, certificate: bytes, key: Path | None = None) -> Handle:
    """An impostor with a certificate."""
    context = _tls(place, certificate, key or place.folder / "server" / "server.key")
    return lambda connection: context.wrap_socket(connection, server_side=True).recv(100)


def _self_signed(place: Place) -> Handle:
    certificate, key = authority(place.folder / "self", ec.generate_private_key(ec.SECP256R1()))
    return _speaks(place, certificate.read_bytes(), key)


def _of_another(place: Place) -> Handle:
    other = Place(place.folder.parent / "another").folder / "server"
    return _speaks(place, (other / "server.pem").read_bytes(), other / "server.key")


def _a_site(place: Place) -> Handle:
    """Another site of the same federation that plays the server."""
    return _speaks(place, (place.kit("south") / "site.pem").read_bytes(), place.kit("south") / "site.key")


def _old_tls(place: Place) -> Handle:
    context = _tls(place, (place.folder / "server" / "server.pem").read_bytes(), place.folder / "server" / "server.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return lambda connection: context.wrap_socket(connection, server_side=True).recv(100)


IMPOSTORS: dict[str, tuple[Callable[[Place], Handle], str]] = {
    "self-signed": (_self_signed, "it is not the server of this kit"),
    "another authority": (_of_another, "it is not the server of this kit"),
    "a site's certificate": (_a_site, "it is not the server of this kit"),
    "expired": (lambda place: _speaks(place, place.dated(-60, -1)), "the server's certificate has expired"),
    "not yet valid": (lambda place: _speaks(place, place.dated(2, 60)), "the server's certificate is not yet valid"),
    "another address": (
        lambda place: _speaks(place, place.dated(-1, 60, "other.example")),
        "the server's certificate is for another address",
    ),
    "old TLS": (_old_tls, "TLS fails"),
    "plain text": (lambda place: lambda c: (c.recv(1), c.sendall(b"220 mail.example ESMTP\r\n")), "TLS fails"),
    "silent": (lambda place: lambda c: (c.recv(10**6), time.sleep(4)), "the server does not answer in time"),
    "closes at once": (lambda place: lambda c: None, "the server closes the connection"),
    "closes after a hello": (lambda place: lambda c: c.recv(10**6), "the server closes the connection"),
}


@pytest.mark.parametrize("who", list(IMPOSTORS))
def test_an_impostor_at_the_servers_address_costs_time_only(who: str, place: Place) -> None:
    said = Heard()
    impostor, why = IMPOSTORS[who]
    with place.running(place.connection("north", said)):
        with _instead(place, impostor(place)) as calls:
            until(lambda: calls[0] >= 5, "the fifth try")
            lines = [line for line in said.lines() if "nobody listens" not in line]
        _takes_part(place)
    assert len(lines) == 1, lines  # one for what is wrong, however often it was tried
    assert lines[0].startswith(f"no connection to {place.about.server} as north ({why}")
    assert lines[0].endswith("; trying again until there is one")


def _takes_part(place: Place) -> None:
    with place.link() as server:
        until(lambda: server.connections("north"), "north")
        ticket = server.send("north", pack({"kind": "x"}))
        assert [reply.ticket for reply in place.replies(server)] == [ticket]


Answer = Callable[[http.server.BaseHTTPRequestHandler], object]


def _code(code: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(asked: http.server.BaseHTTPRequestHandler) -> None:
        asked.send_response(code)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": str(len(body))} | given).items():
            asked.send_header(name, value)
        asked.end_headers()
        asked.wfile.write(body)

    return answer


def _endless(asked: http.server.BaseHTTPRequestHandler) -> None:
    asked.send_response(500)
    asked.end_headers()
    while True:
        asked.wfile.write(bytes(2**20))


ANSWERS: dict[str, tuple[Answer, str]] = {
    "500": (_code(500, b"oops"), "the server refuses it: HTTP 500"),
    "404": (_code(404, b"<html>not here</html>"), "HTTP 404"),
    "503 with a reason": (_code(503, b'{"why": "too \\u001b[31mbusy"}'), r"the server refuses it: too \x1b[31mbusy"),
    "a redirect": (_code(307, Location="https://127.0.0.1:9/connect"), "HTTP 307"),
    "not JSON": (_code(200, b"hello"), "no server of a federation"),
    "JSON of something else": (_code(200, b"[1, 2]", **{ROSTER: "1"}), "no server of a federation"),
    "deep JSON": (_code(200, b"[" * 10**6, **{ROSTER: "1"}), "no server of a federation"),
    "no version": (_code(200, b'{"roster": null}'), "no server of a federation"),
    "another roster": (_code(200, b'{"roster": "{}"}', **{ROSTER: "2"}), "its roster is not taken over"),
    "an older roster": (_code(200, b'{"roster": null}', **{ROSTER: "0"}), "this site has seen 1"),
    "packed": (_code(200, b"\x1f\x8b\x08" + bytes(99), Content_Encoding="gzip"), "no server of a federation"),
    "half a body": (_code(200, b"{", Content_Length="99"), "the server closes the connection"),
    "no HTTP": (lambda asked: asked.wfile.write(b"\x00\x01nonsense\r\n\r\n"), "what it sends is not HTTP"),
    "endless": (_endless, "it answers with more than"),
}


@pytest.mark.parametrize("what", list(ANSWERS))
def test_odd_answers_cost_time_only(what: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    said, (answer, why) = Heard(), ANSWERS[what]
    monkeypatch.setattr(site_end._request, "__defaults__", (b"", None, 2**22))
    monkeypatch.setattr(site_end.Connection._post, "__defaults__", (b"", 2**22))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    own = place.folder / "server"
    context = _tls(place, (own / "server.pem").read_bytes(), own / "server.key")

    def handle(connection: socket.socket) -> None:
        secure = context.wrap_socket(connection, server_side=True)
        with suppress(OSError):
            Handler(secure, place.address, None)  # type: ignore[arg-type]
        secure.close()

    with place.running(place.connection("north", said)):
        with _instead(place, handle) as calls:
            until(lambda: calls[0] >= 4, "the fourth try")
            lines = [line for line in said.lines() if "nobody listens" not in line]
        _takes_part(place)
    assert len(lines) == 1, lines
    assert why in lines[0]


def test_each_change_is_one_line_and_pauses_grow(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, said = list[float](), Heard()
    monkeypatch.setattr(site_end, "_LONGEST", 0.3)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return super().wait(timeout)

    stop, site = Stop(), place.connection("north", said)
    thread = threading.Thread(target=site.run, args=(stop,), daemon=True)
    thread.start()
    try:
        until(lambda: len(pauses) >= 6)
        for who in ("self-signed", "expired", "self-signed", "not yet valid"):
            with _instead(place, IMPOSTORS[who][0](place)) as calls:
                until(lambda calls=calls: calls[0] >= 3)
        with place.link() as server:
            until(lambda: server.connections("north"))
            server.send("north", pack({"kind": "x"}))
            place.replies(server)
            first = len(pauses)
        until(lambda: len(pauses) > first)
    finally:
        stop.set()
        thread.join()
    steps = ["nobody listens", "not the server", "has expired", "not the server", "not yet valid", "connected"]
    lines, at = said.lines(), 0
    for line in lines:
        at += at < len(steps) and steps[at] in line
    assert at == len(steps), lines
    assert all(a != b for a, b in itertools.pairwise(lines)), lines
    assert all(0.75 * min(0.3, 0.02 * 2**k) <= pause <= min(0.3, 0.02 * 2**k) for k, pause in enumerate(pauses[:6]))
    assert pauses[first] <= 0.02  # after a connection that did something


@pytest.mark.parametrize("why", ["revoked", "not in the roster", "expired by the roster", "not yet valid"])
def test_a_site_that_the_server_refuses_goes_on_trying(why: str, place: Place) -> None:
    said = Heard()
    if why == "revoked":
        with operator(place.folder / "operator") as kit:
            revoke(kit, "north")
    elif why == "not in the roster":
        place.sign([member for member in place.server.roster.members if member.name == "south"])
    else:
        place.date_site("north", *((-90, -1) if why == "expired by the roster" else (3, 90)))
    kit = place.site("north")
    with place.running(place.connection("north", said, kit=kit)), place.link() as server:
        reason = {"revoked": "was revoked on", "not yet valid": "is not valid before"}.get(why, "in the roster")
        reason = "has expired on" if why == "expired by the roster" else reason
        until(lambda: [line for line in said.lines("the server refuses it") if reason in line], reason)
        time.sleep(0.5)
        assert len(said.lines("the server refuses it")) == 1
        assert server.connections("north") == 0
        if "valid" in why or "expired" in why:  # the operator renews it, and no kit is touched
            place.sign([m if m.name == "south" else _renewed(place, m) for m in place.server.roster.members])
            until(lambda: server.connections("north"), "north")
            until(lambda: said.lines("roster 3 of trial is taken over"))


def _renewed(place: Place, member: object) -> object:
    new = dated(member.x509, *place.authority(), -1, 300)  # type: ignore[attr-defined]
    return member.model_copy(update={"certificate": new.decode()})  # type: ignore[attr-defined]


def test_a_wrong_clock_is_said_and_costs_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    said, heard = Heard(), Heard()
    away = [3600.0]
    monkeypatch.setattr(site_end, "time", _Clock(away))
    with place.running(place.connection("north", said)), place.link(heard) as server:
        until(lambda: server.connections("north"))
        until(lambda: said.lines("clock is 60 minutes ahead of the server's: set it"))
        until(lambda: heard.lines("the clock of north is 60 minutes ahead"))
        ticket = server.send("north", pack({"kind": "x"}))
        assert [reply.ticket for reply in place.replies(server)] == [ticket]


class _Clock:
    """The module ``time`` of a machine whose clock is wrong."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, away: list[float]) -> None:
        self._away = away

    def time(self) -> float:
        return time.time() + self._away[0]


# what a site alone can mend


def _swap_key(place: Place) -> None:
    (place.kit("north") / "site.key").write_bytes((place.kit("south") / "site.key").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda p: (p.kit("north") / "site.key").chmod(0o644),
            r"by others \(mode 0644\): chmod 600",
        ),
        (lambda p: (p.kit("north") / "site.key").chmod(0o640), r"mode 0640"),
        (lambda p: (p.kit("north") / "site.key").chmod(0o602), r"mode 0602"),
        (lambda p: (p.kit("north") / "site.key").unlink(), "has no site.key"),
        (_swap_key, "is not the key of"),
        (lambda p: (p.kit("north") / "site.key").write_text("x"), "is not the kit of a site"),
        (lambda p: (p.kit("north") / "site.pem").write_text("x"), "is not the kit of a site"),
        (lambda p: (p.kit("north") / "ca.pem").write_text(""), "is not the kit of a site"),
        (lambda p: (p.kit("north") / "site.json").write_text("[]"), "is not the kit of a site"),
        (lambda p: (p.kit("north") / "roster.json").write_text("{}"), "cannot be used"),
        (lambda p: (p.kit("north") / "roster.json").unlink(), "cannot read"),
    ],
)
def test_a_broken_kit_ends_a_site_at_once(spoil: Callable[[Place], object], why: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    spoil(place)
    with pytest.raises(InputError, match=why):
        place.site("north")


def test_programs_end_with_2_for_what_they_alone_can_mend(tmp_path: Path, launcher: Launcher) -> None:
    """A key that others can read, a broken kit, and two programs with one key; an impostor ends none."""
    machines = Machines(tmp_path, launcher)
    kit = tmp_path / "kits" / "site-east" / "site.key"
    kit.chmod(0o644)
    (tmp_path / "kits" / "site-west" / "site.pem").write_text("nothing")
    try:
        for name in ("east", "west"):
            machines.site(name)
            assert machines.ended(name) == 2
            assert not (tmp_path / "states" / name).exists()
        assert f"chmod 600 {kit}" in machines.said("east")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority(tmp_path / "self", ec.generate_private_key(ec.SECP256R1())))
        host = ("127.0.0.1", int(machines.server.rpartition(":")[2]))
        with socket.create_server(host) as listener:
            machines.site("north")
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True)
        machines.until("north", "it is not the server of this kit")
        study(tmp_path, "fedavg", rounds=1000)
        machines.serve("run", "--min-sites", 1, "--start-with", 1, "--deadline", 1)
        machines.until("north", "connected to")
        machines.site("north again", tmp_path / "kits" / "site-north")
        assert machines.ended("north") == 2
        assert "another program has connected" in machines.said("north")
        machines.until("north again", "connected to")
    finally:
        machines.close()
