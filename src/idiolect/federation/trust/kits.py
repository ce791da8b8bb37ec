"""Kits: what the server and each site need to know each other, as ``authority`` has made them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.documents import read_json, read_yaml
from idiolect.core.errors import InputError
from idiolect.federation.trust.certificates import public_pem
from idiolect.federation.trust.private_files import private
from idiolect.federation.trust.roster import COPY, FILE, Name, Roster, Trust

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


class Description(BaseModel):
    """``federation.yaml``: who takes part.

    Attributes:
        name: of the federation.
        server: where sites reach the server, as host:port.
        sites: their names, in the order of the clients' numbers.
        days: how long the certificates of server and sites are valid; the authority lasts longer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Annotated[Name, Field(max_length=40)]
    server: str
    sites: tuple[Name, ...] = Field(min_length=1, max_length=10_000)
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
    ca: bytes
    """The certificate of the authority, in PEM."""
    roster: Roster
    """The newest one that the server has seen."""
    run: Path | None = None
    """The folder of its run."""

    @property
    def memory(self) -> tuple[Path, ...]:
        """Copies of the newest roster, for a server that starts again with older files: in the kit, and in the run."""
        return tuple(folder / COPY for folder in (self.folder, self.run) if folder is not None)

    @property
    def certificate(self) -> Path:
        """Its certificate, with its chain."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.folder / "server.key"

    @property
    def roster_file(self) -> Path:
        """Its roster, which may be replaced by a newer one while the server runs."""
        return self.folder / FILE

    @property
    def authority(self) -> x509.Certificate:
        """Whose signature counts."""
        return x509.load_pem_x509_certificate(self.ca)

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, in the order of the clients' numbers."""
        return tuple(member.name for member in self.roster.members)


class Identity(NamedTuple):
    """Who a site is to other sites."""

    site: str
    key: ec.EllipticCurvePrivateKey
    peers: Mapping[str, bytes]
    """The public key of each site in PEM, by name; it follows the roster."""


class SiteKit(NamedTuple):
    """A site's kit."""

    folder: Path
    name: str
    """Of the federation."""
    server: str
    site: str
    ca: bytes
    """The certificate of the authority, in PEM."""
    key: ec.EllipticCurvePrivateKey
    trust: Trust
    """Who the other sites are."""

    @property
    def number(self) -> int:
        """The client's number."""
        number = self.trust.roster.number(self.site)
        assert number is not None
        return number

    @property
    def identity(self) -> Identity:
        """Who this site is to other sites."""
        return Identity(self.site, self.key, self.trust.peers)


def address(text: str) -> tuple[str, int]:
    """The host and the port of an address.

    Raises:
        ValueError: it is not host:port.
    """
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{text!r} is not an address: write host:port, as 192.0.2.1:9092")
    return match[1].strip("[]"), int(match[2])


def describe(path: Path) -> Description:
    """The description in a file.

    Raises:
        InputError: there is no such file, or it is not a description.
    """
    try:
        values = read_yaml(path)
        return Description.model_validate(values)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        reason = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: {where}: {reason}; a federation has name, server (host:port) and sites") from None
    except ValueError as error:
        raise InputError(f"{path} is not YAML ({error}): fix it") from None


def server_kit(folder: Path, run: Path | None = None) -> ServerKit:
    """The server's kit in a folder; in it and in ``run``, the folder of its run, may be a copy of a newer roster.

    Raises:
        InputError: it is none, others can read its key, or there are two rosters of one version.
    """
    about = _about(folder, "server.json", "server")
    try:
        ca = (folder / "ca.pem").read_bytes()
        private(folder / "server.key")
        roster = Roster.read(folder / FILE, x509.load_pem_x509_certificate(ca))
        _same(folder, str(about["federation"]), roster)
        kit = ServerKit(folder, str(about["federation"]), str(about["server"]), ca, roster, run)
        return kit._replace(roster=_newest(kit))
    except InputError:
        raise
    except (OSError, KeyError, ValueError):
        raise _broken(folder, "server") from None


def _newest(kit: ServerKit) -> Roster:
    newest = kit.roster
    for path in filter(Path.exists, kit.memory):
        try:
            copy = Roster.read(path, kit.authority)
        except InputError:  # of another authority: the kits were made again
            continue
        if copy.federation != newest.federation:
            continue
        if copy.version == newest.version and copy.text != newest.text:
            raise InputError(
                f"there are two rosters {copy.version}, {kit.roster_file} and {path}: one was made with an old copy of "
                f"the operator's kit, so copy {path} over the {FILE} of both kits, and make the change again"
            )
        newest = max(newest, copy, key=lambda roster: roster.version)
    return newest


def site_kit(folder: Path, state: Path | None = None) -> SiteKit:
    """A site's kit in a folder; in ``state`` may be a newer roster and a renewed certificate.

    Raises:
        InputError: it is none, others can read its key, or the key is not that of its certificate.
    """
    about = _about(folder, "site.json", "site")
    try:
        name, server, site = (str(about[which]) for which in ("federation", "server", "site"))
        if not (folder / "site.key").exists():
            raise InputError(f"{folder} has no site.key: copy the one that idiolect federation request made into it")
        private(folder / "site.key")
        key = serialization.load_pem_private_key((folder / "site.key").read_bytes(), None)
        certificate, ca = folder / "site.pem", (folder / "ca.pem").read_bytes()
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError
        public = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        if public_pem(public) != public_pem(key.public_key()):
            raise InputError(f"{folder / 'site.key'} is not the key of {certificate}: put both from one kit together")
        authority = x509.load_pem_x509_certificate(ca)
        roster = Roster.read(folder / FILE, authority)
        _same(folder, name, roster)
        trust = Trust(site, roster, authority, certificate, state)
        if trust.roster.number(site) is None:
            raise InputError(f"{folder / FILE} does not name {site}: ask the operator for a new kit")
        return SiteKit(folder, name, server, site, ca, key, trust)
    except InputError:
        raise
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        raise _broken(folder, "site") from None


def _same(folder: Path, federation: str, roster: Roster) -> None:
    if roster.federation != federation:
        raise InputError(
            f"{folder / FILE} is of the federation {roster.federation}, not {federation}: take the right one"
        )


def _about(folder: Path, file: str, whose: str) -> dict[str, Any]:
    try:
        about = read_json(folder / file)
    except (OSError, ValueError):
        raise _broken(folder, whose) from None
    if not isinstance(about, dict):
        raise _broken(folder, whose)
    return about


def _broken(folder: Path, whose: str) -> InputError:
    return InputError(f"{folder} is not the kit of a {whose}: give a folder that idiolect federation provision made")
