"""The roster of a federation: its sites and their keys, signed by the authority, with a version that only rises.

Server and sites believe it because of the signature, wherever it comes from. So the operator adds a site, renews
certificates or revokes a key without touching the kits of others: the server reads the new roster and passes it on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import pydantic
from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core import files
from idiolect.core.errors import InputError
from idiolect.federation.trust.certificates import public_pem, sign, verify

log = logging.getLogger(__name__)

FILE = "roster.json"
COPY = ".roster.json"
"""The file of the newest roster that a server has seen."""
_MOST = 2**26  # bytes of a roster
_Pem = Annotated[str, Field(max_length=20_000)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]


class Member(BaseModel):
    """A site.

    Attributes:
        name: the site's.
        certificate: in PEM; its key is the site's.
        revoked: the day on which its key was revoked; "" if it was not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Name
    certificate: _Pem
    revoked: Annotated[str, Field(max_length=40)] = ""

    @property
    def public(self) -> bytes:
        """The site's public key in PEM."""
        return public_pem(self.x509.public_key())

    @property
    def x509(self) -> x509.Certificate:
        """The certificate."""
        return x509.load_pem_x509_certificate(self.certificate.encode())


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    federation: Name
    version: Annotated[int, Field(ge=1, le=2**40)]
    members: tuple[Member, ...] = Field(min_length=1, max_length=10_000)


class Roster(NamedTuple):
    """Who takes part, in the order of the clients' numbers. A number is never used again."""

    federation: str
    version: int
    members: tuple[Member, ...]
    text: str
    """The signed document."""

    @classmethod
    def issue(cls, federation: str, version: int, members: Sequence[Member], key: Any) -> Self:
        """A roster with the authority's signature."""
        content = _Content(federation=federation, version=version, members=tuple(members)).model_dump_json()
        text = json.dumps({"roster": content, "signature": sign(key, content.encode()).hex()})
        return cls(federation, version, tuple(members), text)

    @classmethod
    def parse(cls, text: str, authority: x509.Certificate) -> Self:
        """The roster in a document.

        Raises:
            ValueError: it is none, or not signed by the authority.
        """
        try:
            document = json.loads(text)
            content, signature = str(document["roster"]), bytes.fromhex(document["signature"])
            verify(authority, content.encode(), signature)
            values = _Content.model_validate_json(content)
            if len({member.public for member in values.members}) < len(values.members):
                raise ValueError("two sites have the same key")
        except (KeyError, TypeError, AttributeError, RecursionError, pydantic.ValidationError) as error:
            raise ValueError(f"it is not a roster ({type(error).__name__})") from None
        return cls(values.federation, values.version, values.members, text)

    @classmethod
    def read(cls, path: Path, authority: x509.Certificate) -> Self:
        """The roster in a file.

        Raises:
            InputError: there is none, or it is not signed by the authority.
        """
        try:
            return cls.parse(files.read(path, _MOST).decode(), authority)
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror}): take it from the operator's kit") from None
        except ValueError as error:
            raise InputError(f"{path} cannot be used ({error}): take it from the operator's kit") from None

    def number(self, site: str) -> int | None:
        """The client's number of a site; None if it is not in the roster."""
        return next((k for k, member in enumerate(self.members) if member.name == site), None)

    def keys(self) -> dict[str, bytes]:
        """The public key of each site in PEM that is not revoked, by name."""
        return {member.name: member.public for member in self.members if not member.revoked}


class Trust:
    """What a site believes of the others: the newest roster that it has seen, kept in its state folder.

    Args:
        site: its name.
        roster: of its kit.
        authority: whose signature counts.
        certificate: the file of the kit's certificate.
        folder: where a newer roster and a renewed certificate are kept; None keeps them in memory.
    """

    def __init__(
        self, site: str, roster: Roster, authority: x509.Certificate, certificate: Path, folder: Path | None = None
    ) -> None:
        self.roster, self.certificate = roster, certificate
        self.peers: dict[str, bytes] = {}
        """The public key of each site in PEM, by name; changed in place."""
        self._site, self._authority, self._folder = site, authority, folder
        if folder is not None and (folder / FILE).exists():
            try:
                newer = Roster.read(folder / FILE, authority)
                if newer.federation == roster.federation and newer.version > roster.version:
                    self.roster = newer
            except InputError as error:  # as of the kits before these
                log.warning("the roster in the state folder does not count: %s", error)
        self._follow()

    def take(self, text: str) -> bool:
        """Believe a document that the server has passed on, if it is newer; whether it was.

        Raises:
            ValueError: it is not signed by the authority, of another federation, or older.
        """
        new = Roster.parse(text, self._authority)
        if new.federation != self.roster.federation:
            raise ValueError("it is of another federation")
        if new.version < self.roster.version:
            raise ValueError(f"it has version {new.version}, and this site has seen {self.roster.version}")
        if new.version == self.roster.version:
            return False
        if self._folder is not None:
            files.write(self._folder / FILE, text, mode=0o600)
        self.roster = new
        self._follow()
        return True

    def _follow(self) -> None:
        self.peers.clear()
        self.peers.update(self.roster.keys())
        own = next((member for member in self.roster.members if member.name == self._site), None)
        if own is None or self._folder is None:
            return
        kit = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        if own.x509.not_valid_after_utc > kit.not_valid_after_utc and own.public == public_pem(kit.public_key()):
            files.write(self._folder / "site.pem", own.certificate, mode=0o600)
            self.certificate = self._folder / "site.pem"
