"""A server and two sites in this process, certificates with chosen dates, and visitors who are no sites."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from machines import port

from idiolect.federation.events import Events
from idiolect.federation.link.server_end import CONNECTION, Link, Reply
from idiolect.federation.link.site_end import Connection
from idiolect.federation.link.web import Limits
from idiolect.federation.messages import pack, unpack
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.roster import FILE, Member, Roster

SECONDS = 30.0  # for what takes one, on a machine that has other work


def until(holds: Callable[[], object], what: str = "it") -> None:
    """Wait until something holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.01)


class Heard(Events):
    """Events that a test can look at."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.events: list[dict[str, Any]] = []
        self.listener = self.events.append

    def lines(self, text: str = "") -> list[str]:
        return [str(event["event"]) for event in self.events if text in event["event"]]


class Place:
    """A server with kits of sites, and what the sites have been asked."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", ca: Path | None = None, ca_key: Path | None = None
    ) -> None:
        self.about = kits.Description(name="trial", server=f"{host}:{port()}", sites=("north", "south"))
        self.folder, self.address = folder / "kits", kits.address(self.about.server)
        provision(self.about, self.folder, ca=ca, ca_key=ca_key)
        self.asked: list[bytes] = []

    @property
    def server(self) -> kits.ServerKit:
        return kits.server_kit(self.folder / "server")

    def site(self, name: str, state: Path | None = None) -> kits.SiteKit:
        return kits.site_kit(self.folder / f"site-{name}", state)

    def link(self, say: Events | None = None, limits: Limits | None = None) -> Link:
        return Link(self.server, self.address, say, limits)

    def connection(
        self, name: str, say: Events | None = None, during: Callable[[], object] = lambda: None,
        kit: kits.SiteKit | None = None,
    ) -> Connection:  # fmt: skip
        """Of a site that answers, and does something else while it does."""

        def answer(content: bytes) -> bytes:
            self.asked.append(content)
            during()
            message = unpack(content)
            return pack(message.about | {"from": name}, message.arrays)

        return Connection(kit or self.site(name), answer, say or Events(quiet=True))

    @contextmanager
    def running(self, connection: Connection) -> Iterator[threading.Event]:
        """A site that runs until the end of the block."""
        stop = threading.Event()
        thread = threading.Thread(target=connection.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            thread.join(SECONDS)
            assert not thread.is_alive()

    def client(self, context: ssl.SSLContext, name: str = "a client") -> httpx.Client:
        """Of somebody who speaks the protocol by hand."""
        return httpx.Client(
            base_url=f"https://{self.about.server}", verify=context, headers={CONNECTION: name}, timeout=SECONDS
        )

    def context(self, folder: Path | None) -> ssl.SSLContext:
        """TLS that trusts the server, with the certificate of a kit, or with none."""
        context = ssl.create_default_context(cafile=str(self.folder / "server" / "ca.pem"))
        if folder is not None:
            context.load_cert_chain(folder / "site.pem", folder / "site.key")
        return context

    def raw(self, context: ssl.SSLContext, sent: bytes) -> bytes:
        """The first bytes that come back."""
        with (
            socket.create_connection(self.address, timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=self.address[0]) as secure,
        ):
            secure.sendall(sent)
            return secure.recv(100)

    def kit(self, name: str) -> Path:
        return self.folder / f"site-{name}"

    def replies(self, link: Link, count: int = 1) -> list[Reply]:
        found: list[Reply] = []
        until(lambda: found.extend(link.replies()) or len(found) >= count, "a reply")
        return found

    def authority(self) -> tuple[x509.Certificate, Any]:
        folder = self.folder / "operator"
        return certificate_of(folder / "ca.pem"), key_of(folder / "ca.key")

    def dated(self, start: float, end: float, host: str | None = None) -> bytes:
        """The server's certificate, valid between so many days from now."""
        return dated(certificate_of(self.folder / "server" / "server.pem"), *self.authority(), start, end, host)

    def date_site(self, name: str, start: float, end: float) -> None:
        """Give a site a certificate of these dates, in the roster and in its kit."""
        roster = self.server.roster
        old = next(member for member in roster.members if member.name == name)
        new = dated(old.x509, *self.authority(), start, end)
        (self.kit(name) / "site.pem").write_bytes(new)
        members = [Member(name=m.name, certificate=new.decode()) if m is old else m for m in roster.members]
        self.sign(members)

    def sign(self, members: Sequence[Member], version: int | None = None, federation: str = "trial") -> str:
        """Write a roster into the server's kit and the operator's; its text."""
        number = self.server.roster.version + 1 if version is None else version
        text = Roster.issue(federation, number, members, self.authority()[1]).text
        for folder in ("server", "operator"):
            (self.folder / folder / FILE).write_text(text)
        return text


def certificate_of(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def key_of(path: Path) -> Any:
    return serialization.load_pem_private_key(path.read_bytes(), None)


def write_key(path: Path, key: Any) -> Path:
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    return path


def dated(
    old: x509.Certificate, ca: x509.Certificate, key: Any, start: float, end: float, host: str | None = None
) -> bytes:
    """A certificate as another one, with other dates (in days from now) and perhaps for another host, in PEM."""
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(ca.subject).public_key(old.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now + datetime.timedelta(days=start))
    builder = builder.not_valid_after(now + datetime.timedelta(days=end))
    for extension in old.extensions:
        value = extension.value
        if host is not None and isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(value, extension.critical)
    return issue(builder, key).public_bytes(serialization.Encoding.PEM)


def authority(
    folder: Path, key: Any, name: str = "an authority", days: float = 900,
    above: tuple[x509.Certificate, Any] | None = None, *, ca: bool = True,
) -> tuple[Path, Path]:  # fmt: skip
    """The files of an authority of one's own: certificate and key."""
    folder.mkdir(parents=True, exist_ok=True)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(above[0].subject if above else subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=3))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    certificate = issue(builder, above[1] if above else key)
    (folder / "own.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "own.pem", write_key(folder / "own.key", key)


def issue(builder: x509.CertificateBuilder, key: Any) -> x509.Certificate:
    plain = not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    return builder.sign(key, None if plain else hashes.SHA384())
