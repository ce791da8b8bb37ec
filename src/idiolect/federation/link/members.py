"""Who may connect to a server: the roster and the certificates of its kit, taken over again while it runs."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography import x509

from idiolect.core import files
from idiolect.core.errors import InputError, RunError
from idiolect.federation.events import Events
from idiolect.federation.link.exchange import Refusal
from idiolect.federation.trust.certificates import out_of_date, public_of, trouble
from idiolect.federation.trust.kits import ServerKit
from idiolect.federation.trust.roster import COPY, FILE, Roster

_LOOK = 2.0  # seconds between two looks for a new roster or certificate
_DAY = 86400.0
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME


class Members:
    """The sites of a server's kit.

    Args:
        kit: the server's.
        say: for events.
        dismiss: is told of a site whose key no longer counts.

    Raises:
        InputError: the certificate cannot be used.
    """

    def __init__(self, kit: ServerKit, say: Events, dismiss: Callable[[str], None]) -> None:
        self._kit, self._say, self._dismiss = kit, say, dismiss
        self.tls = context_of(kit)
        self.contexts = [self.tls]
        """All that show the server's certificate, which each loads again when it is renewed."""
        self.keys: dict[str, bytes] = {}
        """The public key of each site in PEM that is not revoked, by name; changed in place."""
        self._files = self._times()
        self._copies: dict[Path, int] = {}
        self._enrol(kit.roster)
        if (own := Roster.read(kit.roster_file, kit.authority).version) < kit.roster.version:
            what = (
                f"roster {own} of this kit is older than {kit.roster.version}, which this server has seen and keeps to"
            )
            self._say(f"{what}: copy {COPY} over {FILE}, here and in the operator's kit", older=True)
        self._last_warnings: list[str] = []
        self._warning_time = float("-inf")
        self._warn()

    def site(self, certificate: bytes | None) -> str:
        """The site with the key of a certificate in DER.

        Raises:
            Refusal: no site has it, it is revoked, or the certificate in the roster has expired.
        """
        member = None if certificate is None else self._members.get(public_of(certificate))
        if member is None:
            raise Refusal(403, "its key is not in the roster of this federation")
        if member.revoked:
            raise Refusal(403, f"the key of {member.name} was revoked on {member.revoked}", member.name)
        if fault := out_of_date(member.x509):
            raise Refusal(403, f"the certificate of {member.name} {fault}: the operator has to renew it", member.name)
        return member.name

    def _enrol(self, roster: Roster) -> None:
        self.roster = roster
        self._members = {member.public: member for member in roster.members}
        keys = roster.keys()
        self.keys.update(keys)  # at no moment is a site missing that is in both
        for name in self.keys.keys() - keys.keys():
            del self.keys[name]
        self._remember()

    def _remember(self) -> None:
        """Keep a copy of the newest roster where a server that starts again finds it."""
        for path in self._kit.memory:
            if path.parent.is_dir() and self._copies.get(path) != self.roster.version:
                self._copies[path] = self.roster.version
                with suppress(RunError):  # a kit may be read-only
                    files.write(path, self.roster.text, mode=0o600)

    def _times(self) -> list[int]:
        paths = (self._kit.roster_file, self._kit.certificate)
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]

    async def watch(self) -> None:
        """Take over a new roster or a new certificate while sites are here."""
        while True:
            await asyncio.sleep(_LOOK)
            self._remember()  # the run's folder may be there by now
            try:
                if (times := self._times()) != self._files:
                    self._files = times
                    self._reload()
                elif time.monotonic() - self._warning_time > _DAY:
                    self._warn()
            except (ValueError, OSError) as error:
                self._say(f"the kit cannot be read again; what it had counts ({error})", refused=str(error))

    def _reload(self) -> None:
        new = Roster.read(self._kit.roster_file, self._kit.authority)
        if new.federation != self.roster.federation:
            raise InputError(f"the roster is of the federation {new.federation}")
        if new.version < self.roster.version:
            raise InputError(f"roster {new.version} is older than {self.roster.version}")
        if new.version == self.roster.version and new.text != self.roster.text:
            raise InputError(f"there is another roster {new.version}: make the change again with the operator's newest")
        before = {member.name: member for member in self.roster.members}
        self._enrol(new)
        for member in new.members:
            old = before.get(member.name)
            if old is None:
                self._say(f"{member.name} is in the roster now", site=member.name, added=True)
            elif member.revoked and not old.revoked:
                self._say(f"the key of {member.name} is revoked", site=member.name, revoked=True)
            if old is not None and (member.revoked or old.public != member.public):
                self._dismiss(member.name)
        context_of(self._kit)  # a certificate without its key would leave the server without one
        for context in self.contexts:
            context.load_cert_chain(self._kit.certificate, self._kit.key)
        self._warn()
        end = x509.load_pem_x509_certificate(self._kit.certificate.read_bytes()).not_valid_after_utc
        self._say(f"roster {new.version} counts from now on; the server's certificate is valid until {end:%Y-%m-%d}")

    def warnings(self) -> list[str]:
        """What is wrong with the dates of certificates, or soon will be: of the server, the authority and the sites."""
        own = x509.load_pem_x509_certificate(self._kit.certificate.read_bytes())
        certificates = [("the server's certificate", own), ("the authority", self._kit.authority)]
        certificates += [(f"the certificate of {m.name}", m.x509) for m in self.roster.members if not m.revoked]
        return [f"{what} {fault}" for what, certificate in certificates if (fault := trouble(certificate))]

    def _warn(self) -> None:
        """Say it at the start, when it changes, and each day."""
        warnings, again = self.warnings(), time.monotonic() - self._warning_time > _DAY
        for what in warnings:
            if again or what not in self._last_warnings:
                mend = "make new kits" if what.startswith("the authority") else "idiolect federation renew renews it"
                self._say(f"{what}: {mend}", expires=True)
        if again:
            self._warning_time = time.monotonic()
        self._last_warnings = warnings


def context_of(kit: ServerKit) -> ssl.SSLContext:
    """TLS for the server of a kit: sites show a certificate of its authority.

    Raises:
        InputError: the certificate and the key cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority of a kit may be below another one
    context.verify_flags |= _NO_CHECK_TIME  # the dates in the roster count: a site gets a renewed certificate from here
    try:
        context.load_cert_chain(kit.certificate, kit.key)
        context.load_verify_locations(cadata=kit.ca.decode())
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{kit.certificate} and {kit.key} cannot be used ({error}): make the kit again") from None
    context.num_tickets = 0  # a session that is resumed would outlive a revoked key
    return context
