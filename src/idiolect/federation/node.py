"""A site's end of the network: connections over HTTPS that the site opens, and opens again whenever they are lost.

Nothing that arrives is ever run: a message is plain values and arrays, which ``Worker`` answers.
"""

from __future__ import annotations

import json
import random
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx

from idiolect.core.errors import InputError, printable
from idiolect.federation.certificates import trouble
from idiolect.federation.events import Events
from idiolect.federation.kits import SiteKit
from idiolect.federation.link import CLOCK, CONNECTION, HOLD, ROOM, ROSTER, SKEW, TICKET

Answer = Callable[[bytes], bytes]
"""The reply to a message of the server."""
_BEAT = 2.0  # seconds between two signs of life
_FIRST, _LONGEST = 0.5, 60.0  # seconds before the second try to connect, and at most between two
_TIMES = httpx.Timeout(HOLD + 20, connect=10.0)
_PIECE = 2**18  # bytes of a reply that are sent at a time
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's codes
_ADDRESS = (62, 64)


class _Unsent(NamedTuple):
    ticket: str
    reply: bytes


class _Refused(Exception):
    """The server does not let this site in; the text says why."""


class Connection:
    """A site's connection.

    Args:
        kit: the site's.
        answer: what is done with a message.
        say: for events.
    """

    def __init__(self, kit: SiteKit, answer: Answer, say: Events) -> None:
        self._kit, self._answer, self._say = kit, answer, say
        self._unsent: _Unsent | None = None
        self._tries, self._wrong = 0, ""

    def run(self, stop: threading.Event) -> None:
        """Answer messages until ``stop`` is set, whatever happens on the network.

        Raises:
            InputError: the kit's key or certificate cannot be used, or another program has connected as this site.
        """
        self._warn()
        while not stop.is_set():
            try:
                with self._client() as client:
                    self._connected(client, stop)
            except (httpx.HTTPError, _Refused, OSError) as error:
                self._change(self._why(error))
            pause = min(_LONGEST, _FIRST * 2.0 ** min(self._tries, 10))
            stop.wait(pause * random.uniform(0.75, 1.0))  # sites do not all come back in the same second
            self._tries += 1

    def _client(self) -> httpx.Client:
        context = ssl.create_default_context(cadata=self._kit.ca.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority of a kit may be below another one
        try:
            context.load_cert_chain(self._kit.trust.certificate, self._kit.folder / "site.key")
        except (ssl.SSLError, OSError) as error:
            raise InputError(
                f"the certificate and the key of {self._kit.folder} cannot be used ({error}): ask for a new kit"
            ) from None
        name = secrets.token_hex(16)
        return httpx.Client(
            base_url=f"https://{self._kit.server}", verify=context, timeout=_TIMES, headers={CONNECTION: name}
        )

    def _connected(self, client: httpx.Client, stop: threading.Event) -> None:
        self._introduce(client)
        self._tries = 0
        self._change("")
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(client, over), daemon=True)
        beating.start()
        try:
            while True:
                if self._unsent is not None:
                    self._deliver(client, self._unsent)
                    self._unsent = None
                if stop.is_set() or over.is_set():
                    return
                found = self._post(client, "/work")
                if found.status_code == httpx.codes.OK:
                    self._unsent = self._answered(found)
        finally:
            over.set()
            beating.join(5)

    def _introduce(self, client: httpx.Client) -> None:
        """Say who is there, and take a newer roster."""
        about = {
            "connection": client.headers[CONNECTION], "roster": self._kit.trust.roster.version, "clock": time.time()
        }  # fmt: skip
        found = self._post(client, "/connect", json.dumps(about).encode())
        try:
            text = found.json()["roster"]
            if text is not None and self._kit.trust.take(str(text)):
                self._say(f"roster {self._kit.trust.roster.version} of {self._kit.name} is taken over")
                self._warn()
        except (ValueError, KeyError, TypeError) as error:
            raise _Refused(f"its roster is not taken over: {error}") from None
        self._look_at_the_clock(found)

    def _answered(self, found: httpx.Response) -> _Unsent:
        reply = self._answer(found.content)
        if len(reply) > int(found.headers.get(ROOM, len(reply))):
            self._say(f"a reply of {len(reply):,} bytes is larger than the server takes", refused=True)
        return _Unsent(found.headers[TICKET], reply)

    def _deliver(self, client: httpx.Client, unsent: _Unsent) -> None:
        """Send a reply; one that the server no longer waits for is dropped by it."""
        view = memoryview(unsent.reply)
        pieces = (bytes(view[k : k + _PIECE]) for k in range(0, len(view), _PIECE))
        headers = {TICKET: unsent.ticket, "content-length": str(len(view))}
        found = client.post("/reply", content=pieces, headers=headers)
        if found.status_code in (httpx.codes.CONFLICT, httpx.codes.REQUEST_ENTITY_TOO_LARGE):
            self._say(f"the server did not take a reply ({_reason(found)})")
            return
        self._check(client, found)

    def _post(self, client: httpx.Client, path: str, content: bytes = b"") -> httpx.Response:
        return self._check(client, client.post(path, content=content))

    def _check(self, client: httpx.Client, found: httpx.Response) -> httpx.Response:
        """The response if the server lets this site do what it asks.

        Raises:
            InputError: another program has this site's place: connecting again would take it back, and so on.
        """
        if found.status_code == httpx.codes.GONE:
            raise InputError(
                f"another program has connected to {self._kit.server} as {self._kit.site} since: a site runs once, so "
                "stop one of the two"
            )
        if found.is_error:
            raise _Refused(_reason(found))
        known = found.headers.get(ROSTER, "")
        if known.isdecimal() and int(known) > self._kit.trust.roster.version and found.request.url.path != "/connect":
            self._introduce(client)
        return found

    def _beat(self, client: httpx.Client, over: threading.Event) -> None:
        while not over.wait(_BEAT):
            try:
                client.post("/alive")  # an answer that is an error is met by the next request too
            except (httpx.HTTPError, OSError):
                over.set()

    # what is said

    def _change(self, wrong: str) -> None:
        """Say what is wrong, or that nothing is, if it is another thing than before."""
        where = f"{self._kit.server} as {self._kit.site}"
        if not wrong:
            self._say(f"connected to {where}")
        elif wrong != self._wrong:
            self._say(f"no connection to {where} ({wrong}); trying again until there is one", disconnected=wrong)
        self._wrong = wrong

    def _warn(self) -> None:
        from cryptography import x509

        own = x509.load_pem_x509_certificate(self._kit.trust.certificate.read_bytes())
        for what, certificate in (("certificate", own), ("authority", x509.load_pem_x509_certificate(self._kit.ca))):
            if wrong := trouble(certificate):
                self._say(f"the {what} of this kit {wrong}: ask the operator to renew it", expires=True)

    def _look_at_the_clock(self, found: httpx.Response) -> None:
        seconds = found.headers.get(CLOCK, "")
        try:
            skew = time.time() - float(seconds)
        except ValueError:
            return
        if abs(skew) > SKEW:
            what = f"this machine's clock is {abs(skew) / 60:.0f} minutes {'ahead of' if skew > 0 else 'behind'}"
            self._say(f"{what} the server's: set it", skew=round(skew))

    def _why(self, error: Exception) -> str:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return _of_server(cause)
            if isinstance(cause, ssl.SSLError):
                return _of_alert(cause)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, _Refused):
            return f"the server refuses it: {error}"
        return printable(str(error) or type(error).__name__)


def _of_server(error: ssl.SSLCertVerificationError) -> str:
    """Why the server's certificate is not taken."""
    if error.verify_code == _EXPIRED:
        return "the server's certificate has expired by this machine's clock: its operator renews it, or set the clock"
    if error.verify_code == _NOT_YET:
        return "the server's certificate is not yet valid by this machine's clock: set the clock"
    if error.verify_code in _ADDRESS:
        return "the server's certificate is for another address: this may be another server"
    return f"it is not the server of this kit, whose authority did not sign its certificate ({error.verify_message})"


def _of_alert(error: ssl.SSLError) -> str:
    reason = str(error.reason or error).replace("_", " ").lower()
    if "certificate expired" in reason:
        return "the server says that this site's certificate has expired: ask the operator to renew it"
    if "unknown ca" in reason or "bad certificate" in reason or "certificate" in reason:
        return f"the server does not take this site's certificate ({reason}): is the kit of another federation?"
    return f"TLS fails ({reason})"


def _reason(found: httpx.Response) -> str:
    try:
        why = found.json()["why"]
    except (ValueError, KeyError, TypeError):
        why = f"HTTP {found.status_code}"
    return printable(str(why)[:300])
