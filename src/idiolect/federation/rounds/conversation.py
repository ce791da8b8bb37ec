"""Asking sites and waiting for their answers: those that are lost, slow, late, new, or say what they should not."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from idiolect.core.errors import IdiolectError, Interrupted, RunError, listed
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal, pack, unpack

T = TypeVar("T")
_PAUSE = 0.02  # seconds between two looks for replies


class Question(NamedTuple):
    """What a site is asked."""

    about: Mapping[str, Any]
    arrays: Mapping[str, Tensor]
    then: Callable[[Message], list[Question]] | None = None
    """Reads the answer to a question that was put before another one, and says what to ask next."""


class Reply(Protocol):
    """What a link brings back."""

    @property
    def site(self) -> str:
        """Who."""

    @property
    def ticket(self) -> str:
        """For which message."""

    @property
    def content(self) -> bytes | None:
        """What; None if it cannot be read."""

    @property
    def why(self) -> str:
        """Why it cannot be read."""


class Carrier(Protocol):
    """Carries messages: ``Link``, or something simpler in a test."""

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site; the ticket that its reply will have."""

    def replies(self) -> Sequence[Reply]:
        """The replies that have come since the last call."""

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these messages any more."""

    def quiet_for(self, site: str) -> float:
        """Seconds since a site was last heard of."""

    def connections(self, site: str) -> int:
        """How often a site has connected."""


class Patience(NamedTuple):
    """When the server stops waiting."""

    least: int = 1
    """Sites without which a round does not close."""
    deadline: float = 600.0
    """Seconds after which a round closes with the sites that have answered."""
    silence: float = 30.0
    """Seconds of silence after which a site is not waited for."""
    notice: float = 15.0
    """Seconds after which the server says for whom it waits."""


@dataclass
class _Open:
    """A site that has not answered yet."""

    site: str
    queue: list[Question]
    nonce: str = ""
    ticket: str = ""
    connections: int = 0
    knows_study: bool = False


class Conversation:
    """Asks several sites at once.

    Args:
        link: carries the messages.
        sites: their names, by the clients' numbers.
        say: for events.
    """

    def __init__(self, link: Carrier, sites: Sequence[str], say: Events) -> None:
        self.sites, self._link, self._say = sites, link, say
        self.introduce: Callable[[int, Mapping[str, Any]], list[Question]] = lambda client, asked: []
        """What a site that does not know the study is asked and told first, by what it was asked."""
        self.refusals: dict[str, str] = {}
        """The sites whose answers to the last questions did not count, and why."""
        self._states: dict[str, tuple[str, str]] = {}
        """Of sites: the kind of question at which it changed last, and what is wrong."""

    def ask(
        self,
        questions: Mapping[int, Question],
        take: Callable[[int, Message], T],
        patience: Patience,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[int, T]:
        """The answers of the clients that gave one in time, by number; ``take`` checks and reads an answer.

        Raises:
            RunError: fewer than ``patience.least`` can answer.
            Interrupted: ``stop`` returned true.
        """
        outsiders = [i for i in questions if self._is_revoked(self.sites[i])]
        waiting = {i: _Open(self.sites[i], [question]) for i, question in questions.items() if i not in outsiders}
        answers: dict[int, T] = {}
        why: dict[int, str] = {}
        start = notice_time = time.monotonic()
        self._enough(answers, waiting, outsiders, why, patience)
        try:
            for one in waiting.values():
                self._send(one)
            while waiting:
                if stop():
                    raise Interrupted
                replies = {reply.ticket: reply for reply in self._link.replies()}
                for i, one in list(waiting.items()):
                    if one.ticket in replies:
                        try:
                            self._take(i, one, replies[one.ticket], take, answers)
                        except Refusal as error:
                            why[i] = str(error)
                        except IdiolectError:
                            raise
                        except Exception as error:  # noqa: BLE001  whatever a site sends, the others go on
                            why[i] = f"its reply is not in order ({type(error).__name__})"
                        kind = str(questions[i].about["kind"])
                        if i in why:
                            if kind == "local":
                                self._say.count_refusal("upload", one.site)
                            what = f"{one.site} does not count: {why[i]}"
                            self._change(one.site, kind, why[i], what, refused=why[i])
                        elif not one.queue and self._states.get(one.site, ("", ""))[0] == kind:
                            self._change(one.site, kind, "", f"{one.site} counts again", back=True)
                        if not one.queue or i in why:
                            del waiting[i]
                    elif self._is_revoked(one.site):
                        self._link.forget([one.ticket])
                        outsiders.append(i)
                        del waiting[i]
                    elif (now := self._link.connections(one.site)) != one.connections:
                        if one.connections:
                            what = f"{one.site} is back and is asked again"
                            self._say.rarely((one.site, "back"), what, site=one.site, back=True)
                        if one.connections or now > 1:
                            self._send(one)
                        else:  # its first connection, which fetches the question that waits for it
                            one.connections = now
                self._enough(answers, waiting, outsiders, why, patience)
                if self._closes(waiting, answers, patience, time.monotonic() - start):
                    break
                if time.monotonic() - notice_time > patience.notice:
                    notice_time = time.monotonic()
                    self._say(f"waiting for {listed([one.site for one in waiting.values()], 10)}")
                if waiting:
                    time.sleep(_PAUSE)
        finally:
            self._link.forget([one.ticket for one in waiting.values()])
        for i in outsiders:
            what = f"goes on without {self.sites[i]}, whose key is revoked"
            self._change(self.sites[i], str(questions[i].about["kind"]), "revoked", what, revoked=True)
        for i, one in waiting.items():
            what = f"goes on without {one.site}, which did not answer in time"
            self._change(one.site, str(questions[i].about["kind"]), "missing", what, missing=True)
        self.refusals = {self.sites[i]: reason for i, reason in why.items()}
        return answers

    def _is_revoked(self, site: str) -> bool:
        return math.isinf(self._link.quiet_for(site))

    def _enough(
        self, answers: Mapping[int, Any], waiting: Mapping[int, _Open], outsiders: Iterable[int],
        why: Mapping[int, str], patience: Patience,
    ) -> None:  # fmt: skip
        if len(answers) + len(waiting) < patience.least:
            what = f"only {len(answers)} sites could answer, and {patience.least} are needed"
            raise RunError(f"{what}: {_reasons(self.sites, {i: 'its key is revoked' for i in outsiders} | dict(why))}")

    def _change(self, site: str, kind: str, state: str, what: str, **values: Any) -> None:
        """Say how a site stands if that is new, and not again in each round."""
        if self._states.get(site, ("", ""))[1] != state:
            self._states[site] = kind, state
            self._say(what, site=site, **values)

    def _send(self, one: _Open) -> None:
        """Send the next question; an answer to an earlier sending does not count."""
        if one.ticket:
            self._link.forget([one.ticket])
        question = one.queue[0]
        one.nonce, one.connections = secrets.token_hex(8), self._link.connections(one.site)
        one.ticket = self._link.send(one.site, pack(dict(question.about) | {"ticket": one.nonce}, question.arrays))

    def _take(self, i: int, one: _Open, reply: Reply, take: Callable[[int, Message], T], answers: dict[int, T]) -> None:
        """Take a reply; afterwards the queue is empty if the site has answered."""
        if reply.content is None:
            raise Refusal(f"its reply cannot be read ({reply.why})")
        message = unpack(reply.content)
        about, request = message.about, one.queue[0].about
        if about.get("ticket") != one.nonce or about.get("kind") != request["kind"]:
            raise Refusal("its reply is to another message")
        if about.get("unknown") and len(one.queue) == 1:
            before = [] if one.knows_study else self.introduce(i, request)
            if not before:
                raise Refusal("it does not know the study")
            one.queue, one.knows_study = [*before, *one.queue], True
        elif about.get("lost") and request.get("kept"):
            self._say(f"{one.site} has lost its state and starts from the first one again", site=one.site, lost=True)
            one.queue = [Question(dict(request) | {"kept": 0}, one.queue[0].arrays)]
        elif complaint := about.get("refused") or about.get("failed"):
            raise Refusal(f"it says: {str(complaint)[:500]}")
        elif len(one.queue) > 1:
            question = one.queue.pop(0)
            one.queue = [*(question.then(message) if question.then else []), *one.queue]
        else:
            answers[i] = take(i, message)
            one.queue = []
            return
        self._send(one)

    def _closes(self, waiting: Mapping[int, _Open], answers: Mapping[int, T], patience: Patience, age: float) -> bool:
        if not waiting:
            return True
        if len(answers) < patience.least:
            return False
        silent = all(self._link.quiet_for(one.site) > patience.silence for one in waiting.values())
        return silent or age > patience.deadline


def _reasons(sites: Sequence[str], why: Mapping[int, str]) -> str:
    return "; ".join(f"{sites[i]}: {text}" for i, text in why.items()) or "they did not answer"
