"""Kits: certificates that a verifier of its own accepts, private keys that only their owner can read."""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import verification

from idiolect.core.errors import InputError
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import add, ask, operator, provision, renew, revoke

ABOUT = kits.Description(name="trial", server="127.0.0.1:9092", sites=("north", "south"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("provision") / "kits"
    provision(ABOUT, out)
    return out


def _verified(server: Path, ca: Path, name: x509.GeneralName) -> None:
    store = verification.Store([x509.load_pem_x509_certificate(ca.read_bytes())])
    [leaf, *_] = x509.load_pem_x509_certificates(server.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    verification.PolicyBuilder().store(store).time(now).build_server_verifier(name).verify(leaf, [])


def test_the_servers_certificate_is_valid_for_its_address_alone(made: Path) -> None:
    pem, ca = made / "server" / "server.pem", made / "site-north" / "ca.pem"
    _verified(pem, ca, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    with pytest.raises(verification.VerificationError):
        _verified(pem, ca, x509.IPAddress(ipaddress.ip_address("127.0.0.2")))


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_what_is_written_is_for_its_owner_under_any_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        provision(ABOUT, tmp_path / "deep" / "kits")
        ask("coast", tmp_path / "mine")
        own = tmp_path / "deep" / "kits" / "operator"
        with operator(own) as kit:
            add(kit, "coast", tmp_path / "back", tmp_path / "mine" / "site.csr")
        with operator(own) as kit:
            add(kit, "dale", tmp_path / "dale")
        with operator(own) as kit:
            renew(kit)
        with operator(own) as kit:
            revoke(kit, "dale")
    finally:
        os.umask(before)
    for root in ("deep/kits", "mine", "back", "dale"):
        every = [tmp_path / root, *(tmp_path / root).rglob("*")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in every if path.is_dir()} == {0o700}
        files = [path for path in every if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files if b"PRIVATE" in path.read_bytes()} <= {0o600}
        assert not [path for path in files if path.stat().st_mode & 0o022]  # none can be changed by others
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}


def test_private_keys_are_for_their_owner_and_in_one_kit_only(made: Path) -> None:
    keys = [path for path in made.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(str(path.relative_to(made)) for path in keys) == [
        "operator/ca.key", "server/server.key", "site-north/site.key", "site-south/site.key"
    ]  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in keys} == {0o700}
    assert len({path.read_bytes() for path in keys}) == 4


def test_the_server_knows_the_public_key_of_each_site(made: Path) -> None:
    server = kits.server_kit(made / "server")
    assert list(server.sites) == ["north", "south"]
    for number, site in enumerate(server.sites):
        kit = kits.site_kit(made / f"site-{site}")
        public = kit.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        assert (kit.number, public) == (number, server.roster.keys()[site])
        assert kit.identity.peers == server.roster.keys()


def test_an_authority_of_ones_own(made: Path, tmp_path: Path) -> None:
    ca, key = made / "operator" / "ca.pem", made / "operator" / "ca.key"
    provision(ABOUT.model_copy(update={"server": "fl.example.org:443"}), tmp_path / "own", ca=ca, ca_key=key)
    _verified(tmp_path / "own" / "server" / "server.pem", ca, x509.DNSName("fl.example.org"))
    assert not (tmp_path / "own" / "operator" / "ca.key").exists()
    with pytest.raises(InputError, match="not the key of"):
        provision(ABOUT, tmp_path / "other", ca=ca, ca_key=made / "server" / "server.key")
    with pytest.raises(InputError, match="give both"):
        provision(ABOUT, tmp_path / "other", ca=ca)
    assert not (tmp_path / "other").exists()


def test_a_folder_with_something_in_it_is_left_alone(made: Path) -> None:
    before = (made / "server" / "server.key").read_bytes()
    with pytest.raises(InputError, match="not an empty folder"):
        provision(ABOUT, made)
    assert (made / "server" / "server.key").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nserver: nowhere\nsites: [b]", "not an address"),
        ("name: a\nserver: 'h:70000'\nsites: [b]", "not an address"),
        ("name: a\nserver: 'h:1'\nsites: [b, B]", "same name"),
        ("name: a\nserver: 'h:1'\nsites: [../b]", "sites"),
        ("name: a\nserver: 'h:1'\nsites: []", "sites"),
        ("[1, 2]", "a federation has name"),
        ("a: [", "not YAML"),
    ],
)
def test_a_description_that_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        kits.describe(path)


def test_a_folder_that_is_no_kit(made: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, made / "site-north"):
        with pytest.raises(InputError, match="not the kit of a server"):
            kits.server_kit(folder)
    with pytest.raises(InputError, match="not the kit of a site"):
        kits.site_kit(made / "server")
