"""Whom a federation trusts over time: sites that are added, renewed and revoked, and rosters that are passed on."""

from __future__ import annotations

import datetime
import json
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from machines import port
from places import Heard, Place, authority, certificate_of, dated, key_of, until, write_key

from idiolect.cli import main
from idiolect.core.errors import InputError
from idiolect.federation import programs
from idiolect.federation.events import Events
from idiolect.federation.link import members, server_end, site_end
from idiolect.federation.link.server_end import Link
from idiolect.federation.messages import pack
from idiolect.federation.server.conduct import Terms
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.roster import FILE, Roster

DAY = datetime.timedelta(days=1)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_LOOK", 0.05)
    monkeypatch.setattr(server_end, "HOLD", 0.3)
    monkeypatch.setattr(site_end, "_FIRST", 0.02)
    monkeypatch.setattr(site_end, "_LONGEST", 0.1)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        return int(end.value.code or 0), " ".join("".join(capsys.readouterr()).split())

    return run


def _works(place: Place, server: Link, site: str) -> None:
    until(lambda: server.connections(site), site)
    ticket = server.send(site, pack({"kind": "x"}))
    assert [reply.ticket for reply in place.replies(server)] == [ticket]


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def _every(place: Place) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_site_is_added_while_the_server_runs(place: Place, command: Command) -> None:
    said, before = Heard(), {name: _bytes(place.kit(name)) for name in ("north", "south")}
    with place.running(place.connection("north")), place.link(said) as server:
        until(lambda: server.connections("north"))
        code, told = command("federation", "add", place.folder / "operator", "coast")
        assert (code, "a running server takes it within seconds" in told) == (0, True)
        with place.running(place.connection("coast")):
            _works(place, server, "coast")
        assert said.lines("coast is in the roster now")
        assert set(server.keys) == {"north", "south", "coast"}
        _works(place, server, "north")
        assert server.connections("north") == 1
    assert {name: _bytes(place.kit(name)) for name in before} == before
    kit = place.site("coast")
    assert (kit.number, kit.trust.roster.version) == (2, 2)
    assert kit.identity.peers == place.server.roster.keys()


def test_other_sites_learn_of_it_from_the_server(place: Place, command: Command, tmp_path: Path) -> None:
    said, state = Heard(), tmp_path / "state"
    kit = place.site("north", state)
    with place.running(place.connection("north", said, kit=kit)), place.link() as server:
        until(lambda: server.connections("north"))
        assert command("federation", "add", place.folder / "operator", "coast")[0] == 0
        until(lambda: "coast" in kit.identity.peers)
        assert command("federation", "revoke", place.folder / "operator", "south")[0] == 0
        until(lambda: "south" not in kit.identity.peers)
        assert server.connections("north") == 1
        assert said.lines("roster 2 of trial is taken over") + said.lines("roster 3 of trial is taken over")
    again = place.site("north", state)  # its kit has roster 1
    assert (again.trust.roster.version, set(again.identity.peers)) == (3, {"north", "coast"})
    assert (state / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("what", ["waiting", "at work", "away"])
def test_a_revoked_key_is_refused_at_once(what: str, place: Place, command: Command) -> None:
    said, heard = Heard(), Heard()
    with place.link(heard) as server, place.running(place.connection("north")):
        until(lambda: server.connections("north"))
        site = place.connection("south", said, (lambda: until(lambda: gone)) if what == "at work" else lambda: None)
        gone: list[int] = []
        with place.running(site):
            if what != "away":
                until(lambda: server.connections("south"))
            if what == "at work":
                server.send("south", pack({"kind": "secret"}))
                until(lambda: place.asked)
            code, told = command("federation", "revoke", place.folder / "operator", "south")
            assert (code, told.startswith("The key of south is revoked.")) == (0, True)
            until(lambda: heard.lines("the key of south is revoked"))
            gone.append(1)
            until(lambda: said.lines("the server refuses it: the key of south was revoked on"))
            assert server.replies() == []
            assert not server._server._visits.get("south")
            assert set(server.keys) == {"north"}
            _works(place, server, "north")
            assert server.connections("north") == 1
    [event] = [e for e in heard.events if "was revoked on" in e["event"]][:1]
    assert (event["address"], event["refused"][:25]) == ("127.0.0.1", "the key of south was revo")
    code, told = command("federation", "revoke", place.folder / "operator", "south")
    assert (code, f"was revoked on {_now():%Y-%m-%d}" in told) == (2, True)
    assert place.server.sites == ("north", "south")  # its number is not given to another one


def test_renewed_certificates_reach_sites_and_are_used(place: Place, command: Command, tmp_path: Path) -> None:
    """Those of a running server and of a site whose own has expired in the meantime, without a new kit."""
    place.date_site("north", -300, -2)
    (place.folder / "server" / "server.pem").write_bytes(place.dated(-300, 5))
    before, said = _bytes(place.kit("north")), Heard()
    shown = list[x509.Certificate]()
    with place.link(said) as server:
        honest = server.visitor

        def visitor(certificate: bytes | None, address: str) -> str:
            assert certificate is not None
            shown.append(x509.load_der_x509_certificate(certificate))
            return honest(certificate, address)

        server.visitor = visitor  # type: ignore[method-assign]
        kit = place.site("north", tmp_path / "state")
        with place.running(place.connection("north", kit=kit)):
            until(lambda: said.lines("the certificate of north has expired"))
            code, told = command("federation", "renew", place.folder / "operator")
            assert (code, "are valid until" in told) == (0, True)
            _works(place, server, "north")
            until(lambda: kit.trust.roster.version == 3)
            assert server._members.warnings() == []
            server._server.close("north")  # the next connection
            until(lambda: shown[-1].not_valid_after_utc > _now() + 300 * DAY)
    assert _bytes(place.kit("north")) == before
    for name in ("server.pem", FILE):
        assert (place.folder / "server" / name).read_bytes() == (place.folder / "operator" / name).read_bytes()
    assert certificate_of(place.folder / "server" / "server.pem").not_valid_after_utc > _now() + 300 * DAY
    assert place.site("north", tmp_path / "state").trust.certificate == tmp_path / "state" / "site.pem"


def test_the_operators_page_shows_a_renewed_certificate(place: Place, command: Command, tmp_path: Path) -> None:
    at = port()
    place_of_page, say = f"0.0.0.0:{at}", Events(quiet=True)
    with programs._open(place.server, tmp_path, "", tmp_path, None, place_of_page, None, Terms(), None, say):
        before = ssl.get_server_certificate(("127.0.0.1", at))
        assert command("federation", "renew", place.folder / "operator")[0] == 0
        until(lambda: ssl.get_server_certificate(("127.0.0.1", at)) != before)
        after = x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", at)).encode())
    assert after == certificate_of(place.folder / "server" / "server.pem")


def test_what_was_made_a_year_ago_is_renewed(place: Place, command: Command) -> None:
    ends = place.authority()[0].not_valid_after_utc
    assert ends > _now() + 19 * 365 * DAY  # the authority outlives what it signs
    provision(place.about.model_copy(update={"days": 3650}), place.folder.parent / "long")
    assert (
        certificate_of(place.folder.parent / "long" / "operator" / "ca.pem").not_valid_after_utc > _now() + 7000 * DAY
    )
    keys = place.server.roster.keys()
    for _ in range(3):
        assert command("federation", "renew", place.folder / "operator")[0] == 0
    assert (place.server.roster.version, place.server.roster.keys()) == (4, keys)
    for member in place.server.roster.members:
        assert 364 * DAY < member.x509.not_valid_after_utc - _now() < 366 * DAY


# rosters that do not count


def _tampered(place: Place, text: str) -> str:
    document = json.loads(text)
    return json.dumps(document | {"roster": re.sub(r'"version":\d+', '"version":10', document["roster"])})


def _by_another_authority(place: Place, text: str) -> str:
    key = ec.generate_private_key(ec.SECP384R1())
    return Roster.issue("trial", 9, place.server.roster.members, key).text


def _by_a_site(place: Place, text: str) -> str:
    return Roster.issue("trial", 9, place.server.roster.members, key_of(place.kit("north") / "site.key")).text


ROSTERS: dict[str, tuple[Callable[[Place, str], str], str]] = {
    "changed": (_tampered, "not signed by the authority"),
    "another authority": (_by_another_authority, "not signed by the authority"),
    "signed by a site": (_by_a_site, "not signed by the authority"),
    "another federation": (
        lambda p, t: Roster.issue("other", 9, p.server.roster.members, p.authority()[1]).text, "federation"
    ),
    "older": (lambda p, t: Roster.issue("trial", 2, p.server.roster.members, p.authority()[1]).text, "version 2"),
    "no signature": (lambda p, t: json.dumps({"roster": json.loads(t)["roster"]}), "is not a roster"),
    "empty signature": (lambda p, t: json.dumps(json.loads(t) | {"signature": ""}), "not signed by the authority"),
    "a list": (lambda p, t: "[1]", "is not a roster"),
    "deep": (lambda p, t: "[" * 100_000, "is not a roster"),
    "nothing": (lambda p, t: "", "Expecting value"),
}  # fmt: skip


@pytest.fixture
def third(place: Place) -> Place:
    """At the third version of its roster."""
    members = place.server.roster.members
    place.sign(members, 2)
    place.sign(members, 3)
    for name in ("north", "south"):
        (place.kit(name) / FILE).write_text((place.folder / "server" / FILE).read_text())
    return place


@pytest.mark.parametrize("what", list(ROSTERS))
def test_a_site_takes_no_roster_that_does_not_count(what: str, third: Place, tmp_path: Path) -> None:
    forge, why = ROSTERS[what]
    kit = third.site("north", tmp_path / "state")
    good = Roster.issue("trial", 9, kit.trust.roster.members, third.authority()[1]).text
    before = dict(kit.trust.peers)
    with pytest.raises(ValueError, match=why):
        kit.trust.take(forge(third, good))
    assert (kit.trust.roster.version, kit.trust.peers) == (3, before)
    assert not (tmp_path / "state" / FILE).exists()
    assert kit.trust.take(good)
    assert not kit.trust.take(good)
    assert kit.trust.roster.version == 9


@pytest.mark.parametrize("what", list(ROSTERS))
def test_a_server_takes_no_roster_that_does_not_count(what: str, third: Place) -> None:
    said, file = Heard(), third.folder / "server" / FILE
    with third.running(third.connection("north")), third.link(said) as server:
        until(lambda: server.connections("north"))
        file.write_text(ROSTERS[what][0](third, file.read_text()))
        until(lambda: said.lines("the kit cannot be read again; what it had counts"))
        assert said.events[-1]["refused"]
        assert server._members.roster.version == 3
        _works(third, server, "north")
    if what != "older":
        with pytest.raises(InputError, match=r"cannot be used|is of the federation"):
            third.server  # noqa: B018  nor at the start


def test_two_rosters_of_one_version_and_a_certificate_without_its_key(third: Place) -> None:
    said, folder = Heard(), third.folder / "server"
    with third.running(third.connection("north")), third.link(said) as server:
        until(lambda: server.connections("north"))
        kept, members = (folder / "server.pem").read_bytes(), third.server.roster.members
        third.sign(members, 3)
        until(lambda: said.lines("there is another roster 3"))
        (folder / "server.pem").write_bytes((third.kit("north") / "site.pem").read_bytes())
        with pytest.raises(InputError, match="there are two rosters 3"):
            third.server  # noqa: B018  nor at the start
        third.sign(members, 4)
        until(lambda: said.lines("cannot be used"))
        (folder / "server.pem").write_text("nothing")
        until(lambda: len(said.lines("cannot be used")) == 2)
        server._server.close("north")
        until(lambda: server.connections("north") == 2)  # by the certificate that it had
        (folder / "server.pem").write_bytes(kept)
        until(lambda: server._members.roster.version == 4)
        _works(third, server, "north")


def test_a_server_that_is_set_back_is_refused_by_sites(third: Place) -> None:
    """A backup of the server's kit would let a key in that has been revoked since."""
    said, heard = Heard(), Heard()
    (third.folder / "server" / FILE).write_text(
        Roster.issue("trial", 2, third.server.roster.members, third.authority()[1]).text
    )
    with third.running(third.connection("north", said)), third.link(heard):
        until(lambda: said.lines("its roster is not taken over: it has version 2, and this site has seen 3"))
        until(lambda: heard.lines("north has seen roster 3, and this server has 2"))
        assert not third.asked
        third.sign(third.server.roster.members, 4)
        until(lambda: said.lines("roster 4 of trial is taken over"))


# authorities of one's own


def _rsa() -> Any:
    return rsa.generate_private_key(65537, 3072)


KEYS: dict[str, Callable[[], Any]] = {
    "RSA": _rsa, "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
}  # fmt: skip


@pytest.mark.parametrize("below", [False, True], ids=["root", "intermediate"])
@pytest.mark.parametrize("kind", list(KEYS))
def test_an_authority_of_ones_own(kind: str, below: bool, tmp_path: Path, command: Command) -> None:
    above = None
    if below:
        root, root_key = authority(tmp_path / "root", KEYS[kind](), "a root")
        above = certificate_of(root), key_of(root_key)
    ca, key = authority(tmp_path / "own", KEYS[kind](), "the trust's authority", above=above)
    place, said = Place(tmp_path, ca=ca, ca_key=key), Heard()
    operator = place.folder / "operator"
    assert not (operator / "ca.key").exists()
    code, told = command("federation", "add", operator, "coast")
    assert (code, "--ca-key" in told) == (2, True)
    with place.running(place.connection("north", said)), place.link() as server:
        _works(place, server, "north")
        assert command("federation", "add", operator, "coast", "--ca-key", key)[0] == 0
        assert command("federation", "renew", operator, "--ca-key", key)[0] == 0
        assert command("federation", "revoke", operator, "south", "--ca-key", key)[0] == 0
        until(lambda: said.lines("roster 4 of trial is taken over"))
        with place.running(place.connection("coast")):
            _works(place, server, "coast")
    wrong = write_key(tmp_path / "wrong.key", KEYS[kind]())
    code, told = command("federation", "add", operator, "dale", "--ca-key", wrong)
    assert (code, "is not the key of" in told) == (2, True)
    with pytest.raises(ValueError, match="not signed by the authority"):
        place.site("north").trust.take(Roster.issue("trial", 9, place.server.roster.members, key_of(wrong)).text)


@pytest.mark.parametrize(
    ("days", "ca", "why"),
    [(-1, True, "has expired on"), (900, False, "is not the certificate of an authority"), (-2.5, True, "has expired")],
)
def test_an_authority_that_cannot_sign(days: float, ca: bool, why: str, tmp_path: Path, command: Command) -> None:
    own, key = authority(tmp_path / "own", _rsa(), days=days, ca=ca)
    (tmp_path / "federation.yaml").write_text("name: trial\nserver: h:1\nsites: [a, b]\n")
    asked = ("federation", "provision", tmp_path / "federation.yaml", "--out", tmp_path / "kits", "--ca", own)
    code, told = command(*asked, "--ca-key", key)
    assert (code, why in told) == (2, True), told
    key.chmod(0o644)
    code, told = command(*asked, "--ca-key", key)
    assert (code, "chmod 600" in told) == (2, True)
    assert not (tmp_path / "kits").exists()


# keys that sites make


def test_a_site_makes_its_key_and_keeps_it(place: Place, command: Command, tmp_path: Path) -> None:
    code, told = command("federation", "request", "coast", "--out", tmp_path / "mine")
    assert (code, "Keep" in told) == (0, True)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["site.csr", "site.key"]
    sent = tmp_path / "mail" / "coast.csr"
    sent.parent.mkdir()
    sent.write_bytes((tmp_path / "mine" / "site.csr").read_bytes())
    add = ("federation", "add", place.folder / "operator", "coast", "--request", sent, "--out", tmp_path / "back")
    assert command(*add)[0] == 0
    assert not [path for path in (tmp_path / "back").iterdir() if b"PRIVATE" in path.read_bytes()]
    own = (tmp_path / "mine" / "site.key").read_bytes()
    assert not [path for path in place.folder.rglob("*") if path.is_file() and own in path.read_bytes()]
    with pytest.raises(InputError, match=r"has no site.key: copy the one that idiolect federation request made"):
        kits.site_kit(tmp_path / "back")
    (tmp_path / "mine" / "site.key").rename(tmp_path / "back" / "site.key")
    kit = kits.site_kit(tmp_path / "back")
    with place.running(place.connection("coast", kit=kit)), place.link() as server:
        _works(place, server, "coast")


def _csr(name: str, key: Any) -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, digest)
    return request.public_bytes(serialization.Encoding.PEM)


def _flipped(place: Place) -> bytes:
    """A request whose key was exchanged on its way."""
    key, other = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = x509.load_pem_x509_csr(_csr("coast", key)).public_bytes(serialization.Encoding.DER)
    changed = der.replace(key.public_key().public_bytes(*form), other.public_key().public_bytes(*form))
    assert changed != der
    return x509.load_der_x509_csr(changed).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda p: b"nothing", "is not a request that can be signed"),
        (lambda p: b"", "is not a request that can be signed"),
        (_flipped, "its signature is wrong"),
        (lambda p: _csr("coast", _rsa()), "its key is not of the curve P-384"),
        (lambda p: _csr("coast", ec.generate_private_key(ec.SECP256R1())), "its key is not of the curve P-384"),
        (lambda p: _csr("coast", ed25519.Ed25519PrivateKey.generate()), "its key is not of the curve P-384"),
        (lambda p: _csr("east", ec.generate_private_key(ec.SECP384R1())), "is a request of east, not of coast"),
        (lambda p: _csr("", ec.generate_private_key(ec.SECP384R1())), "not of coast"),
        (lambda p: _csr("coast", key_of(p.kit("north") / "site.key")), "has the key of a site that is in the roster"),
    ],
)
def test_a_request_that_cannot_be_signed(
    content: Callable[[Place], bytes], why: str, place: Place, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "site.csr").write_bytes(content(place))
    before = _bytes(place.folder / "operator")
    add = ("federation", "add", place.folder / "operator", "coast", "--request", tmp_path / "site.csr")
    code, told = command(*add)
    assert (code, why in told) == (2, True), told
    assert _bytes(place.folder / "operator") == before
    assert not place.kit("coast").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("add", "{operator}", "north"), "north is in the roster"),
        (("add", "{operator}", "NORTH"), "in the roster"),
        (("add", "{operator}", "../x"), "name"),
        (("add", "{north}", "coast"), "is not the operator's kit"),
        (("add", "{operator}", "coast", "--request", "{operator}/none.csr"), "cannot read"),
        (("add", "{operator}", "coast", "--out", "{north}"), "not an empty folder"),
        (("revoke", "{operator}", "nobody"), "there is no site nobody"),
        (("renew", "{server}"), "is not the operator's kit"),
        (("request", "no/name", "--out", "{operator}/../new"), "name"),
        (("request", "coast", "--out", "{north}"), "not an empty folder"),
    ],
)
def test_commands_that_cannot_work_change_nothing(
    arguments: tuple[str, ...], why: str, place: Place, command: Command
) -> None:
    places = {"operator": place.folder / "operator", "north": place.kit("north"), "server": place.folder / "server"}
    before = _every(place)
    code, told = command("federation", *(text.format(**places) for text in arguments))
    assert (code, why in told) == (2, True), told
    assert _every(place) == before


# dates


def _date(place: Place, whose: str, start: float, end: float, tmp_path: Path) -> Place:
    if whose == "server":
        (place.folder / "server" / "server.pem").write_bytes(place.dated(start, end))
    elif whose == "site":
        place.date_site("north", start, end)
    else:
        own, key = authority(tmp_path / "own", ec.generate_private_key(ec.SECP384R1()), days=900)
        place = Place(tmp_path / "dated", ca=own, ca_key=key)
        short = dated(certificate_of(own), certificate_of(own), key_of(key), start, end)
        for path in place.folder.rglob("ca.pem"):
            path.write_bytes(short)
    return place


DATES = {
    "past": (-9, -1, "has expired on"), "tomorrow": (-9, 1, "expires on"), "soon": (-9, 29, "expires on"),
    "later": (-9, 31, ""), "not yet": (2, 90, "is not valid before"),
}  # fmt: skip


@pytest.mark.parametrize("whose", ["server", "site", "authority"])
@pytest.mark.parametrize(("start", "end", "why"), list(DATES.values()), ids=list(DATES))
def test_dates_are_said_on_both_sides(
    start: float, end: float, why: str, whose: str, place: Place, tmp_path: Path
) -> None:
    place, said, heard = _date(place, whose, start, end, tmp_path), Heard(), Heard()
    what = {"server": "the server's certificate", "site": "the certificate of north", "authority": "the authority"}
    with place.link(heard) as server:
        day = f"{_now() + (start if start > 0 else end) * DAY:%Y-%m-%d}"
        warnings = server._members.warnings()
        assert [text.startswith(f"{what[whose]} {why} {day}") for text in warnings] == [True] * bool(why)
        told = [event["event"] for event in heard.events if event.get("expires")]
        assert [text.startswith(f"{what[whose]} {why} {day}") for text in told] == [True] * bool(why)
    place.connection("north", said)._warn()
    told = [event["event"] for event in said.events if event.get("expires")]
    mine = {"site": "the certificate of this kit", "authority": "the authority of this kit"}.get(whose)
    assert [text.startswith(f"{mine} {why} {day}") for text in told] == [True] * bool(why and mine)


def test_dates_are_said_once_a_day(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.folder / "server" / "server.pem").write_bytes(place.dated(-9, 9))
    place.date_site("north", -9, 9)
    heard, said = Heard(), Heard()
    site = place.connection("north", said)
    with place.running(site), place.link(heard) as server:
        until(lambda: server.connections("north"))
        for text in ("the server's certificate expires", "the certificate of north expires"):
            assert len(heard.lines(text)) == 1
        assert len(said.lines("the certificate of this kit expires")) == 1
        monkeypatch.setattr(members, "_DAY", 0.2)
        monkeypatch.setattr(site_end, "_DAY", 0.2)
        until(lambda: len(heard.lines("the server's certificate expires")) > 2)
        until(lambda: len(said.lines("the certificate of this kit expires")) > 2)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(mode: int, place: Place, command: Command, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("name: trial\nmethods: [fedavg]\nrounds: 1\n")
    for key, asked in (
        (place.folder / "server" / "server.key",
         ("serve", place.folder / "server", tmp_path / "study.yaml", "--out", tmp_path / "run")),
        (place.folder / "operator" / "ca.key", ("add", place.folder / "operator", "coast")),
        (place.folder / "operator" / "ca.key", ("renew", place.folder / "operator")),
        (place.folder / "operator" / "ca.key", ("revoke", place.folder / "operator", "south")),
    ):  # fmt: skip
        key.chmod(mode)
        code, told = command("federation", *asked)
        assert (code, "can be read or changed by others" in told) == (2, True), told
        assert "chmod 600" in told
    assert not place.kit("coast").exists()
