"""A site's end of the network: connections over HTTPS that the site opens, and opens again whenever they are lost.

Nothing that arrives is ever run: a message is plain values and arrays, which ``Worker`` answers.
"""

from __future__ import annotations

import json
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import httpx
from cryptography import x509

from idiolect.core.errors import InputError, RunError, printable
from idiolect.federation.events import Events
from idiolect.federation.link.server_end import CLOCK, CONNECTION, HOLD, ROOM, ROSTER, SIZE, SKEW, TICKET
from idiolect.federation.trust.certificates import trouble
from idiolect.federation.trust.kits import SiteKit

Answer = Callable[[bytes], bytes]
"""The reply to a message of the server."""
_BEAT = 2.0  # seconds between two signs of life
_FIRST, _LONGEST = 0.5, 10.0  # seconds before the second try to connect, and at most between two: a server that
# starts again goes on without sites that it has not heard of for half a minute
_TIMES = httpx.Timeout(HOLD + 20, connect=10.0)
_PIECE = 2**16  # bytes of a reply that are sent at a time
_DAY = 86400.0
_SMALL, _LARGE = 2**26, 2**32  # bytes of a response: with a roster or a reason, and with a message
_DIGITS = 16  # of a roster's version
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's codes
_ADDRESS = (62, 64)
_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)
_ODD = "it answers as no server of a federation does"


class _Reply(NamedTuple):
    ticket: str
    reply: bytes
    headers: Mapping[str, str]


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes


class _Refusal(Exception):
    """The server does not let this site in, or answers as no server of a federation does; the text says why."""


class Connection:
    """A site's connection.

    Args:
        kit: the site's.
        answer: what is done with a message.
        say: for events.
    """

    def __init__(self, kit: SiteKit, answer: Answer, say: Events) -> None:
        self._kit, self._answer, self._say = kit, answer, say
        self._program, self._count = secrets.token_hex(16), 0
        self._outbox: _Reply | None = None
        self._tries, self._fault, self._warning_time, self._contact = 0, "", float("-inf"), False
        self._warnings: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """Answer messages until ``stop`` is set, whatever happens on the network.

        Raises:
            InputError: the kit's key or certificate or the environment's proxy cannot be used, or another program has
                connected as this site.
        """
        while not stop.is_set():
            self._contact = False
            try:
                with self._client() as client:
                    self._warn()
                    self._converse(client, stop)
            except (httpx.HTTPError, _Refusal, OSError) as error:
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
        except (ssl.SSLError, FileNotFoundError, PermissionError) as error:
            raise InputError(
                f"the certificate and the key of {self._kit.folder} cannot be used ({error}): ask for a new kit"
            ) from None
        self._count += 1
        name = f"{self._program}-{self._count:08d}"  # the server keeps to the last one of a program
        headers = {CONNECTION: name, "accept-encoding": "identity"}
        try:
            return httpx.Client(base_url=f"https://{self._kit.server}", verify=context, timeout=_TIMES, headers=headers)
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise InputError(
                f"the proxy of this environment cannot be used ({printable(str(error)).rstrip('.')}): set "
                "HTTPS_PROXY=http://HOST:PORT and unset ALL_PROXY and HTTP_PROXY"
            ) from None

    def _converse(self, client: httpx.Client, stop: threading.Event) -> None:
        self._introduce(client)
        self._contact = True
        self._change("")
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(client, over), daemon=True)
        beating.start()
        try:
            while True:
                if self._outbox is not None:
                    self._deliver(client, self._outbox)
                    self._outbox = None
                if stop.is_set() or over.is_set():
                    return
                self._warn()
                response = self._post(client, "/work", most=_LARGE)
                self._tries = 0
                if response.status == httpx.codes.OK:
                    self._outbox = self._reply_to(response)
        finally:
            over.set()
            beating.join(5)

    def _introduce(self, client: httpx.Client) -> None:
        """Say who is there, and take a newer roster."""
        trust = self._kit.trust
        about = {"connection": client.headers[CONNECTION], "roster": trust.roster.version, "clock": time.time()}
        response = self._post(client, "/connect", json.dumps(about).encode())
        try:
            text, version = json.loads(response.content)["roster"], int(response.headers[ROSTER])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Refusal(_ODD) from None
        try:
            if version < trust.roster.version:
                raise ValueError(f"it has version {version}, and this site has seen {trust.roster.version}")
            if text is not None and trust.take(str(text)):
                self._say(f"roster {trust.roster.version} of {self._kit.name} is taken over")
                self._warn(again=True)
        except (ValueError, RunError) as error:
            raise _Refusal(f"its roster is not taken over: {error}") from None
        self._look_at_the_clock(response)

    def _reply_to(self, response: _Response) -> _Reply:
        try:
            ticket, room = response.headers[TICKET], int(response.headers[ROOM])
        except (KeyError, ValueError):
            raise _Refusal(_ODD) from None
        reply = self._answer(response.content)
        if len(reply) > room:
            self._say(f"a reply of {len(reply):,} bytes is not sent: the server takes {room:,}", refused=True)
            return _Reply(ticket, b"", {SIZE: str(len(reply))})
        return _Reply(ticket, reply, {})

    def _deliver(self, client: httpx.Client, reply: _Reply) -> None:
        """Send a reply; one that the server no longer waits for is dropped by it."""
        view = memoryview(reply.reply)
        pieces = (bytes(view[k : k + _PIECE]) for k in range(0, len(view), _PIECE))
        headers = dict(reply.headers) | {TICKET: reply.ticket, "content-length": str(len(view))}
        response = _request(client, "/reply", pieces, headers)
        if response.status in (httpx.codes.CONFLICT, httpx.codes.REQUEST_ENTITY_TOO_LARGE):
            self._say(f"the server did not take a reply ({_reason(response)})")
            return
        self._check(client, "/reply", response)

    def _post(self, client: httpx.Client, path: str, content: bytes = b"", most: int = _SMALL) -> _Response:
        return self._check(client, path, _request(client, path, content, most=most))

    def _check(self, client: httpx.Client, path: str, response: _Response) -> _Response:
        """The response if the server lets this site do what it asks.

        Raises:
            InputError: another program has this site's place: connecting again would take it back, and so on.
        """
        if response.status == httpx.codes.GONE:
            raise InputError(
                f"another program has connected to {self._kit.server} as {self._kit.site} since: a site runs once, so "
                "stop one of the two"
            )
        if response.status not in (httpx.codes.OK, httpx.codes.NO_CONTENT):
            raise _Refusal(_reason(response))
        version = response.headers.get(ROSTER, "")
        if (
            version.isdecimal()
            and len(version) < _DIGITS
            and int(version) > self._kit.trust.roster.version
            and path != "/connect"
        ):
            self._introduce(client)
        return response

    def _beat(self, client: httpx.Client, over: threading.Event) -> None:
        try:
            while not over.wait(_BEAT):
                _request(client, "/alive")  # an answer that is an error is met by the next request too
        except (httpx.HTTPError, _Refusal, OSError):
            return
        finally:
            over.set()

    # what is said

    def _change(self, fault: str) -> None:
        """Say what is wrong, or that nothing is, if it is another thing than before."""
        where = f"{self._kit.server} as {self._kit.site}"
        if not fault:
            self._say(f"connected to {where}")
        elif fault != self._fault:
            self._say(f"no connection to {where} ({fault}); trying again until there is one", disconnected=fault)
        self._fault = fault

    def _warn(self, again: bool = False) -> None:
        """Say, once a day and when it is new, which certificates expire soon; ``again`` looks although it has today."""
        due = time.monotonic() - self._warning_time >= _DAY
        if not again and not due:
            return
        own = x509.load_pem_x509_certificate(self._kit.trust.certificate.read_bytes())
        certificates = (("certificate", own), ("authority", x509.load_pem_x509_certificate(self._kit.ca)))
        warnings = [f"the {what} of this kit {t}" for what, certificate in certificates if (t := trouble(certificate))]
        for what in warnings:
            if due or what not in self._warnings:
                self._say(f"{what}: ask the operator to renew it", expires=True)
        self._warning_time, self._warnings = time.monotonic(), warnings

    def _look_at_the_clock(self, response: _Response) -> None:
        seconds = response.headers.get(CLOCK, "")
        try:
            skew = time.time() - float(seconds)
        except ValueError:
            return
        if SKEW < abs(skew) < float("inf"):
            what = f"this machine's clock is {abs(skew) / 60:.0f} minutes {'ahead of' if skew > 0 else 'behind'}"
            self._say(f"{what} the server's: set it", skew=round(skew))

    def _why(self, error: Exception) -> str:
        """Why there is no connection: the same words for the same reason, whatever part of it comes first."""
        if isinstance(error, _Refusal):
            return f"the server refuses it: {error}"
        if isinstance(error, httpx.TimeoutException):
            return "the server does not answer in time"
        causes = list[BaseException]()
        cause: BaseException | None = error.__cause__ or error
        while cause is not None:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        for one in causes:
            if isinstance(one, ssl.SSLCertVerificationError):
                return _of_server(one)
            if isinstance(one, ssl.SSLError) and not isinstance(one, _CUT):
                return _of_alert(one)
            if isinstance(one, ConnectionRefusedError):
                return "nobody listens there"
            if isinstance(one, socket.gaierror):
                return f"its name is not found ({one.strerror})"
        if isinstance(error, httpx.RemoteProtocolError) and "connect" not in str(error):
            return "what it sends is not HTTP"
        if isinstance(error, httpx.RemoteProtocolError) or any(isinstance(one, _CUT) for one in causes):
            if self._contact:
                return "the connection is closed"
            return "the server closes the connection: it may not take this site's certificate, or be another server"
        return printable(str(error) or type(error).__name__)


def _request(
    client: httpx.Client, path: str, content: bytes | Iterator[bytes] = b"",
    headers: Mapping[str, str] | None = None, most: int = _SMALL,
) -> _Response:  # fmt: skip
    """What the server answers, of at most so many bytes.

    Raises:
        _Refusal: it has more.
        httpx.HTTPError: there is no answer.
    """
    parts, size = list[bytes](), 0
    with client.stream("POST", path, content=content, headers=headers) as response:
        for part in response.iter_raw():
            parts.append(part)
            size += len(part)
            if size > most:
                raise _Refusal(f"it answers with more than {most:,} bytes")
    return _Response(response.status_code, response.headers, b"".join(parts))


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


def _reason(response: _Response) -> str:
    try:
        why = json.loads(response.content)["why"]
    except (ValueError, KeyError, TypeError, RecursionError):
        why = f"HTTP {response.status}"
    return printable(str(why)[:300])
