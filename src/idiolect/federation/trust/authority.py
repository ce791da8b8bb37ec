"""What the operator does with the authority's key: make kits, add sites, renew certificates, revoke keys."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import filelock
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from idiolect.core import files
from idiolect.core.documents import read_json
from idiolect.core.errors import InputError, RunError, listed, option
from idiolect.federation.trust.certificates import (
    certificate_for,
    name_and_key,
    new_authority,
    new_key,
    out_of_date,
    pem,
    private_pem,
    public_pem,
    request_of,
    signs,
)  # fmt: skip
from idiolect.federation.trust.kits import Description, address
from idiolect.federation.trust.private_files import private
from idiolect.federation.trust.roster import COPY, FILE, NAME, Member, Roster

Files = Mapping[str, bytes]


class Operator(NamedTuple):
    """The operator's kit, with the authority's key."""

    folder: Path
    name: str
    server: str
    days: int
    authority: x509.Certificate
    key: Any
    roster: Roster


def provision(description: Description, out: Path, *, ca: Path | None = None, ca_key: Path | None = None) -> list[Path]:
    """Make the kits of the server, of each site and of the operator; return their folders.

    Without ``ca`` a new certificate authority is made, whose key is in the operator's kit only.

    Raises:
        InputError: the folder is not empty, or the authority's files cannot be read.
        RunError: the folder cannot be written.
    """
    if (ca is None) != (ca_key is None):
        raise InputError(f"give both {option('ca')} and {option('ca_key')}, the authority's certificate and its key")
    if ca_key is not None and ca_key.exists():
        private(ca_key)
    days, name = description.days, description.name
    authority, key = _authority(ca, ca_key) if ca and ca_key else new_authority(name, days)
    keys = {site: new_key() for site in description.sites}
    server_key = new_key()
    members = [
        Member(name=site, certificate=pem(certificate_for(site, own.public_key(), authority, key, days)).decode())
        for site, own in keys.items()
    ]
    roster = Roster.issue(name, 1, members, key)
    host, _ = address(description.server)
    leaf = certificate_for(f"{name} server", server_key.public_key(), authority, key, days, host)
    server = pem(leaf) + pem(authority)
    common = {"ca.pem": pem(authority), FILE: roster.text.encode()}
    about = {"federation": name, "server": description.server}
    kits: dict[str, Files] = {
        "server": common | {"server.json": _json(about), "server.pem": server, "server.key": private_pem(server_key)},
        "operator": common
        | {"operator.json": _json(about | {"days": days}), "server.pem": server}
        | ({"ca.key": private_pem(key)} if ca is None else {}),
    }
    for member in members:
        kits[f"site-{member.name}"] = _site_files(about, common, member) | {"site.key": private_pem(keys[member.name])}
    _write(out, kits)
    return [out / folder for folder in kits]


@contextmanager
def operator(folder: Path, ca_key: Path | None = None) -> Iterator[Operator]:
    """The operator's kit in a folder, for one change at a time: until the end of the block nobody else makes one.

    ``ca_key`` is the authority's key where that is not in the kit.

    Raises:
        InputError: it is none, has no key, or another command is changing it, or the server's kit beside it.
        RunError: the folder cannot be written.
    """
    with ExitStack() as locks:
        if (folder / "operator.json").exists():
            for place in filter(Path.exists, (folder, folder.parent / "server")):
                locks.enter_context(_lock(place))
        yield _read(folder, ca_key)


def _lock(folder: Path) -> AbstractContextManager[object]:
    try:
        return filelock.FileLock(folder / ".lock", timeout=0, mode=0o600).acquire()
    except filelock.Timeout:
        raise InputError(f"another command is changing {folder}: wait until it has ended, and try again") from None
    except OSError as error:
        raise RunError(f"cannot write {folder} ({error.strerror}): allow access, or give another kit") from error


def _read(folder: Path, ca_key: Path | None) -> Operator:
    place = ca_key or folder / "ca.key"
    try:
        about = read_json(folder / "operator.json")
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        if not place.exists():
            raise InputError(f"{place} does not exist: give the authority's key with {option('ca_key')}")
        private(place)
        _, key = _authority(folder / "ca.pem", place)
        roster = Roster.read(folder / FILE, authority)
        for there in (folder.parent / "server" / FILE, folder.parent / "server" / COPY):
            if there.exists() and (newest := Roster.read(there, authority).version) > roster.version:
                raise InputError(
                    f"{there} has version {newest}, and {folder / FILE} only {roster.version}: this is an old copy of "
                    f"the operator's kit, so copy {there} over it first"
                )
        return Operator(
            folder, str(about["federation"]), str(about["server"]), int(about["days"]), authority, key, roster
        )
    except InputError:
        raise
    except (OSError, KeyError, ValueError, TypeError):
        raise InputError(
            f"{folder} is not the operator's kit: give the folder operator that idiolect federation provision made"
        ) from None


def add(who: Operator, site: str, out: Path, request: Path | None = None) -> Roster:
    """Make the kit of one more site; with a request the site has made its key itself, and keeps it.

    A site whose key is revoked gets a new one, and stays the same client.

    Raises:
        InputError: there is such a site, the request cannot be used, or the folder is not empty.
        RunError: a folder cannot be written.
    """
    _check_name(site)
    members = list(who.roster.members)
    same = [k for k, member in enumerate(members) if member.name.casefold() == site.casefold()]
    if same and not (members[same[0]].name == site and members[same[0]].revoked):
        raise InputError(
            f"{members[same[0]].name} is in the roster: give the new site another name, or, if its key is lost, revoke "
            "it first"
        )
    own: dict[str, bytes] = {}
    if request is None:
        key = new_key()
        public, own = key.public_key(), {"site.key": private_pem(key)}
    else:
        public = _public_of(request, site)
    if public_pem(public) in {member.public for member in who.roster.members}:
        raise InputError(f"{request} has the key of a site that is in the roster: let the site make a new one")
    certificate = pem(certificate_for(site, public, who.authority, who.key, who.days)).decode()
    member = Member(name=site, certificate=certificate)
    place = same[0] if same else len(members)
    members[place : place + 1] = [member]
    roster = Roster.issue(who.name, who.roster.version + 1, members, who.key)
    common = {"ca.pem": pem(who.authority), FILE: roster.text.encode()}
    _write(out, {"": _site_files({"federation": who.name, "server": who.server}, common, member) | own})
    _spread(who, roster)
    return roster


def renew(who: Operator) -> Roster:
    """Sign the certificates of the server and of all sites again; keys stay, and no kit of a site has to be touched.

    Raises:
        RunError: a folder cannot be written.
    """
    members = [
        member
        if member.revoked
        else member.model_copy(update={"certificate": pem(_again(who, member.name, member.x509)).decode()})
        for member in who.roster.members
    ]
    host, _ = address(who.server)
    old = x509.load_pem_x509_certificate((who.folder / "server.pem").read_bytes())
    server = pem(_again(who, f"{who.name} server", old, host)) + pem(who.authority)
    roster = Roster.issue(who.name, who.roster.version + 1, members, who.key)
    _spread(who, roster, server)
    return roster


def revoke(who: Operator, site: str) -> Roster:
    """Let a site's key be refused from now on, at once where the server runs and has the new roster.

    Raises:
        InputError: there is no such site, or its key is revoked.
        RunError: a folder cannot be written.
    """
    names = [member.name for member in who.roster.members]
    if site not in names:
        raise InputError(f"there is no site {site}: there are {listed(names, 20)}")
    if who.roster.members[names.index(site)].revoked:
        raise InputError(f"the key of {site} was revoked on {who.roster.members[names.index(site)].revoked}")
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    members = [m.model_copy(update={"revoked": today}) if m.name == site else m for m in who.roster.members]
    roster = Roster.issue(who.name, who.roster.version + 1, members, who.key)
    _spread(who, roster)
    return roster


def ask(site: str, out: Path) -> Path:
    """Make a site's key pair where it will be used, and a request that the operator signs; return the request.

    Raises:
        InputError: the name is not one, or the folder is not empty.
        RunError: the folder cannot be written.
    """
    _check_name(site)
    key = new_key()
    _write(out, {"": {"site.key": private_pem(key), "site.csr": request_of(site, key)}})
    return out / "site.csr"


def _check_name(site: str) -> None:
    if not re.fullmatch(NAME, site):
        raise InputError(f"{site!r} is not a name for a site: write up to 63 letters, digits, - and _")


def _again(who: Operator, name: str, old: x509.Certificate, host: str | None = None) -> x509.Certificate:
    return certificate_for(name, old.public_key(), who.authority, who.key, who.days, host)


def _public_of(request: Path, site: str) -> Any:
    try:
        name, key = name_and_key(request.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {request}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(
            f"{request} is not a request that can be signed ({error}): make one with idiolect federation request"
        ) from None
    if name != site:
        raise InputError(f"{request} is a request of {name}, not of {site}: check who sent it")
    return key


def _spread(who: Operator, roster: Roster, server: bytes | None = None) -> None:
    """Write a new roster, and perhaps a new certificate, into the operator's kit and the server's beside it."""
    for folder in (who.folder, who.folder.parent / "server"):
        if folder == who.folder or (folder / "server.json").exists():
            if server is not None:
                files.write(folder / "server.pem", server)
            files.write(folder / FILE, roster.text)


def _site_files(about: Mapping[str, str], common: Files, member: Member) -> dict[str, bytes]:
    own = {"site.json": _json(dict(about) | {"site": member.name}), "site.pem": member.certificate.encode()}
    return dict(common) | own


def _write(out: Path, kits: Mapping[str, Files]) -> None:
    """Make folders of files that appear as a whole or not at all; keys are for their owner alone.

    Raises:
        InputError: there is something.
        RunError: it cannot be written.
    """
    with files.drafted_folder(out, 0o700) as draft:
        for name, content in kits.items():
            (draft / name).mkdir(mode=0o700, exist_ok=True)
            for file, text in content.items():
                files.write(draft / name / file, text, 0o600 if file.endswith(".key") else 0o644)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


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
    if fault := out_of_date(certificate):
        raise InputError(f"{ca} {fault}: give an authority that is valid, or make a new one with new kits")
    if not signs(certificate):
        raise InputError(f"{ca} is not the certificate of an authority: give one that may sign others (CA:TRUE)")
    return certificate, key
