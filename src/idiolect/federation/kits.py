"""Kits: what the server and each site need to know each other, made by one command. Private keys never leave theirs."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.documents import read_json, read_yaml
from idiolect.core.errors import InputError, RunError, option

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
_LATER = datetime.timedelta(minutes=5)  # clocks differ
_CURVE = ec.SECP384R1


class Description(BaseModel):
    """``federation.yaml``: who takes part.

    Attributes:
        name: of the federation.
        server: where sites reach the server, as host:port.
        sites: their names, in the order of the clients' numbers.
        days: how long certificates are valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: _Name
    server: str
    sites: tuple[_Name, ...] = Field(min_length=1, max_length=10_000)
    days: Annotated[int, Field(ge=1, le=3650)] = 365

    @pydantic.field_validator("server")
    @classmethod
    def _address(cls, value: str) -> str:
        address(value)
        return value

    @pydantic.field_validator("sites")
    @classmethod
    def _different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError("two sites have the same name: give each its own")
        return names


class ServerKit(NamedTuple):
    """The server's kit."""

    folder: Path
    name: str
    server: str
    """Where sites reach it, host:port."""
    sites: dict[str, bytes]
    """The public key of each site in PEM, by its name, in the order of the clients' numbers."""

    @property
    def certificate(self) -> Path:
        """Its certificate, with its chain."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.folder / "server.key"


class Identity(NamedTuple):
    """Who a site is to other sites."""

    site: str
    key: ec.EllipticCurvePrivateKey
    peers: Mapping[str, bytes]
    """The public key of each site in PEM, by name; none in a kit of an older version."""


class SiteKit(NamedTuple):
    """A site's kit."""

    folder: Path
    name: str
    """Of the federation."""
    server: str
    site: str
    number: int
    """The client's number."""
    ca: bytes
    """The certificate of the authority that signed the server's, in PEM."""
    key: ec.EllipticCurvePrivateKey
    peers: dict[str, bytes]
    """The public key of each site in PEM, by name."""

    @property
    def identity(self) -> Identity:
        """Who this site is to other sites."""
        return Identity(self.site, self.key, self.peers)


def address(text: str) -> tuple[str, int]:
    """The host and the port of an address.

    Raises:
        ValueError: it is not host:port.
    """
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) < 65536:
        raise ValueError(f"{text!r} is not an address: write host:port, as 192.0.2.1:9092")
    return found[1].strip("[]"), int(found[2])


def describe(path: Path) -> Description:
    """The description in a file.

    Raises:
        InputError: there is no such file, or it is not a description.
    """
    try:
        found = read_yaml(path)
        return Description.model_validate(found)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: {where}: {said}; a federation has name, server (host:port) and sites") from None
    except ValueError as error:
        raise InputError(f"{path} is not YAML ({error}): fix it") from None


def provision(description: Description, out: Path, *, ca: Path | None = None, ca_key: Path | None = None) -> list[Path]:
    """Make the kits of the server, of each site and of the operator; return their folders.

    Without ``ca`` a new certificate authority is made, whose key is in the operator's kit only.

    Raises:
        InputError: the folder is not empty, or the authority's files cannot be read.
        RunError: the folder cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder: choose another with {option('out')}")
    if (ca is None) != (ca_key is None):
        raise InputError(f"give both {option('ca')} and {option('ca_key')}, the authority's certificate and its key")
    authority, authority_key = _authority(ca, ca_key) if ca and ca_key else _new_authority(description)
    draft = out.parent / f".{out.name}-{secrets.token_hex(8)}"
    try:
        draft.mkdir(parents=True)
        made = _kits(draft, description, authority, authority_key, keep=ca is None)
        if out.exists():
            out.rmdir()
        draft.replace(out)
    except OSError as error:
        raise RunError(f"cannot write {out} ({error.strerror}): free some space, or choose another place") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [out / name for name in made]


def _kits(draft: Path, about: Description, authority: x509.Certificate, authority_key: Any, *, keep: bool) -> list[str]:
    chain = authority.public_bytes(serialization.Encoding.PEM)
    common = {"federation": about.name, "server": about.server}
    keys = {site: ec.generate_private_key(_CURVE()) for site in about.sites}
    public = {
        site: key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
        for site, key in keys.items()
    }
    server_key = ec.generate_private_key(_CURVE())
    certificate = _server_certificate(about, server_key, authority, authority_key)
    kits: dict[str, dict[str, bytes]] = {
        "server": {
            "server.json": _json(common | {"sites": public}),
            "server.pem": certificate.public_bytes(serialization.Encoding.PEM) + chain,
            "server.key": _private(server_key),
            "ca.pem": chain,
        },
        "operator": {"operator.json": _json(common | {"sites": public}), "ca.pem": chain},
    }
    if keep:
        kits["operator"]["ca.key"] = _private(authority_key)
    for number, (site, key) in enumerate(keys.items()):
        kits[f"site-{site}"] = {
            "site.json": _json(common | {"site": site, "number": number, "sites": public}),
            "site.key": _private(key),
            "ca.pem": chain,
        }
    for name, files in kits.items():
        (draft / name).mkdir(mode=0o700)
        for file, content in files.items():
            _write(draft / name / file, content, 0o600 if file.endswith(".key") else 0o644)
    return list(kits)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # never readable by others, not even briefly
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _private(key: Any) -> bytes:
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def _new_authority(about: Description) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(_CURVE())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{about.name} certificate authority")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _certificate(about, name, name, key.public_key())
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(key, hashes.SHA384()), key


def _server_certificate(
    about: Description, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, authority_key: Any
) -> x509.Certificate:
    host, _ = address(about.server)
    try:
        known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        known = x509.DNSName(host)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{about.name} server")])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    made = _certificate(about, name, authority.subject, key.public_key())
    made = made.add_extension(x509.SubjectAlternativeName([known]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = made.add_extension(issuer, critical=False)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(authority_key, hashes.SHA384())


def _certificate(about: Description, subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - _LATER)
    return made.not_valid_after(now + datetime.timedelta(days=about.days))


def _authority(ca: Path, ca_key: Path) -> tuple[x509.Certificate, Any]:
    try:
        certificate = x509.load_pem_x509_certificate(ca.read_bytes())
        key: Any = serialization.load_pem_private_key(ca_key.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        what = "PEM without a password"
        raise InputError(
            f"{ca} and {ca_key} are not a certificate and its key ({error}): give both in {what}"
        ) from None
    if certificate.public_key() != key.public_key():
        raise InputError(f"{ca_key} is not the key of {ca}: give the key that belongs to this certificate")
    return certificate, key


def server_kit(folder: Path) -> ServerKit:
    """The server's kit in a folder.

    Raises:
        InputError: it is none.
    """
    about = _about(folder, "server.json", "server")
    try:
        sites = {str(site): str(key).encode() for site, key in about["sites"].items()}
        return ServerKit(folder, str(about["federation"]), str(about["server"]), sites)
    except (KeyError, AttributeError):
        raise _broken(folder, "server") from None


def site_kit(folder: Path) -> SiteKit:
    """A site's kit in a folder.

    Raises:
        InputError: it is none.
    """
    about = _about(folder, "site.json", "site")
    try:
        key = serialization.load_pem_private_key((folder / "site.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError
        name, server, site = (str(about[which]) for which in ("federation", "server", "site"))
        peers = {str(one): str(pem).encode() for one, pem in about.get("sites", {}).items()}
        return SiteKit(folder, name, server, site, int(about["number"]), (folder / "ca.pem").read_bytes(), key, peers)
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        raise _broken(folder, "site") from None


def _about(folder: Path, file: str, whose: str) -> dict[str, Any]:
    try:
        found = read_json(folder / file)
    except (OSError, ValueError):
        raise _broken(folder, whose) from None
    if not isinstance(found, dict):
        raise _broken(folder, whose)
    return found


def _broken(folder: Path, whose: str) -> InputError:
    return InputError(f"{folder} is not the kit of a {whose}: give a folder that idiolect federation provision made")
