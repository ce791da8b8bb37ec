"""What the operator of a server sees of a federation: its sites, its rounds, and what went wrong."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from idiolect.core.errors import printable
from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.version import __version__
from idiolect.federation.events import FILE, STRANGERS, Events, read
from idiolect.federation.messages import Refusal, head
from idiolect.federation.rounds.conversation import Carrier, Reply
from idiolect.simulation import Engine, Record
from idiolect.studies.progress import Key, Watcher

_ALARMS = ("refused", "missing", "lost", "diverged", "back", "late", "expires", "skew", "revoked", "added", "ended")
"""What marks an event that the operator should see."""
_SHOWN = 200  # alarms and rounds that are kept


@runtime_checkable
class _Counts(Protocol):
    """An engine that knows how many samples its clients have."""

    def tests(self, client: int) -> int:
        """How many test samples a client has said that it has."""


class _Question(NamedTuple):
    """A message that is at a site."""

    site: str
    kind: str
    at: float


@dataclass
class _Site:
    """What is known of a site."""

    version: str = ""
    seconds: float | None = None
    """Between the last message that asked for a training and its reply."""
    down: int = 0
    up: int = 0
    rounds: int = 0
    """Rounds in which it should take part."""
    contributions: int = 0
    """Those in which its upload counted."""
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By method: seed and round of the last evaluation, and the score at each stage."""


class Overview(Watcher):
    """Carries a server's messages, watches its run and hears its events; ``status`` says what it knows.

    Args:
        link: carries the messages.
        name: of the federation.
        study: the study's name; empty until there is one.
        sites: says their names, by the clients' numbers; more may come.
        out: folder of its run; alarms of earlier starts are read from there.
        say: whose events are heard.
        silence: seconds of silence after which a site counts as silent.
        queue: says which studies a server has beside this one, and how they stand.
    """

    def __init__(
        self,
        link: Carrier,
        name: str,
        study: str,
        sites: Callable[[], Sequence[str]],
        out: Path,
        say: Events,
        silence: float,
        queue: Callable[[], Sequence[Mapping[str, str]]] = tuple,
    ) -> None:
        self._link, self._silence, self._lock, self._queue = link, silence, threading.Lock(), queue
        self._federation, self._study = name, study
        self._sites: defaultdict[str, _Site] = defaultdict(_Site)
        self._names_of = sites
        self._open: dict[str, _Question] = {}
        self._progress: dict[Key, int] = {}
        self._ends: dict[Key, int] = {}  # of methods that stopped early
        self._total, self._by = 0, ACCURACY
        self._current: Key | None = None
        self._rounds: deque[dict[str, Any]] = deque(maxlen=_SHOWN)
        self._alarms: deque[dict[str, Any]] = deque(maxlen=_SHOWN)
        self._say, self._alarm_counts = say, Counter[str]()
        self._totals: dict[str, dict[str, float]] = {}  # by method: rounds, and their seconds
        self._last_round: float | None = None
        self._moved = time.monotonic()
        self._tests: Callable[[int], int] = lambda client: 0
        self._start_time, self._since, self._bytes = time.time(), time.monotonic(), (0, 0)
        self.follow(study, out)
        say.listener = self._hear_now

    def follow(self, study: str, out: Path) -> None:
        """Watch another study's run from now on: rounds and scores are its own, and what is counted goes on."""
        with self._lock:
            self._begin(study)
        for event in read(out / FILE, 10 * _SHOWN):
            self._hear(event)
        with self._lock:
            self._alarms = deque(sorted(self._alarms, key=lambda alarm: alarm["at"]), maxlen=_SHOWN)

    def rest(self) -> None:
        """Know that the server waits for a study and is well."""
        with self._lock:
            self._begin("")
            self._moved = time.monotonic()

    def _begin(self, study: str) -> None:
        self._study, self._total, self._by, self._current = study, 0, ACCURACY, None
        self._progress, self._ends = {}, {}
        self._rounds.clear()
        for site in self._sites.values():
            site.scores = {}

    # as what carries messages

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site; the ticket that its reply will have."""
        ticket = self._link.send(site, content)
        with self._lock:
            self._moved = time.monotonic()
            self._open[ticket] = _Question(site, str(head(content)["kind"]), self._moved)
            self._sites[site].down += len(content)
        return ticket

    def replies(self) -> Sequence[Reply]:
        """The replies that have come since the last call."""
        replies = self._link.replies()
        with self._lock:
            self._moved = time.monotonic()
            for reply in replies:
                self._note_reply(reply)
        return replies

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these messages any more."""
        ids = list(tickets)
        self._link.forget(ids)
        with self._lock:
            for ticket in ids:
                self._open.pop(ticket, None)

    def quiet_for(self, site: str) -> float:
        """Seconds since a site was last heard of."""
        return self._link.quiet_for(site)

    def connections(self, site: str) -> int:
        """How often a site has connected."""
        return self._link.connections(site)

    def _note_reply(self, reply: Reply) -> None:
        site, question = self._sites[reply.site], self._open.pop(reply.ticket, None)
        if reply.content is None:
            return
        site.up += len(reply.content)
        with suppress(Refusal):
            version = head(reply.content).get("version")
            site.version = printable(version[:40]) if isinstance(version, str) else ""
        if question is not None and question.kind == "local":
            site.seconds = time.monotonic() - question.at

    # as what watches a run

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Know how many rounds there are."""
        with self._lock:
            self._total, self._progress, self._by = rounds, dict(done), by
            self._tests = engine.tests if isinstance(engine, _Counts) else self._tests

    def start(self, label: str, seed: int, done: int) -> None:
        """Know which method runs."""
        with self._lock:
            self._current, self._since, self._bytes = (label, seed), time.monotonic(), self._traffic()

    def recorded(self, label: str, seed: int, round: int, records: Sequence[Record]) -> None:
        """Take what was recorded in a round."""
        now, numbers = time.monotonic(), self._names_of()
        with self._lock:
            contributors = {r.client for r in records if r.stage == "wire" and r.metric == "bytes_up"}
            silent = {r.client for r in records if r.metric == "answered"}
            for client in contributors | silent:
                site = self._sites[numbers[client]]
                site.rounds, site.contributions = site.rounds + 1, site.contributions + (client in contributors)
            for r in records:
                if r.metric == self._by.metric and r.value == r.value:
                    scores = self._sites[numbers[r.client]].scores
                    if (scores.get(label, {}).get("seed"), scores.get(label, {}).get("round")) != (seed, round):
                        scores[label] = {"seed": seed, "round": round}
                    scores[label][r.stage] = r.value
            before, self._bytes = self._bytes, self._traffic()
            down, up = (new - old for new, old in zip(self._bytes, before, strict=True))
            self._rounds.append(
                {
                    "method": label, "seed": seed, "round": round, "seconds": now - self._since, "down": down,
                    "up": up, "asked": len(contributors | silent), "counted": len(contributors), "score": None,
                }
            )  # fmt: skip
            total = self._totals.setdefault(label, {"rounds": 0, "seconds": 0.0})
            total["rounds"], total["seconds"] = total["rounds"] + 1, total["seconds"] + now - self._since
            self._since = self._moved = now
            self._last_round = time.time()

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """A round has ended."""
        with self._lock:
            self._rounds[-1]["score"] = score
            self._progress[label, seed] = round

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Take it as an alarm."""
        what = f"{label}, seed {seed}: diverged in round {round}"
        self._hear_now({"at": time.time(), "event": what, "diverged": True})

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Count its rounds up to here as all of them."""
        with self._lock:
            self._ends[label, seed] = round

    def _traffic(self) -> tuple[int, int]:
        return sum(site.down for site in self._sites.values()), sum(site.up for site in self._sites.values())

    # as what hears events

    def _hear_now(self, event: Mapping[str, Any]) -> None:
        if kind := self._hear(event):
            with self._lock:
                self._alarm_counts[kind] += 1

    def _hear(self, event: Mapping[str, Any]) -> str | None:
        """Keep an event that is an alarm; its kind."""
        kind = next((name for name in _ALARMS if event.get(name)), None)
        if kind is None:
            return None
        site, at = event.get("site"), event.get("at")
        alarm = {
            "at": at if isinstance(at, float | int) else 0.0, "kind": kind,
            "site": site if isinstance(site, str) else None, "event": printable(str(event["event"])[:1000]),
        }  # fmt: skip
        with self._lock:
            if alarm not in self._alarms:  # it may be in the file of a run that is followed again
                self._alarms.append(alarm)
        return kind

    def idle(self) -> float:
        """Seconds since the run has looked for replies, sent a message or ended a round."""
        return time.monotonic() - self._moved

    def status(self) -> dict[str, Any]:
        """All of it as plain values; times are seconds, ``at`` and ``now`` in Unix time.

        ``metric`` names the score by which methods are judged, and so do the fields that hold it.
        """
        refusals = self._say.refusals()
        with self._lock:
            label, seed = self._current or (None, None)
            here = None if self._current is None else self._progress.get(self._current, 0)
            questions = {question.site: question for question in self._open.values()}
            return {
                "federation": self._federation,
                "study": self._study,
                "version": __version__,
                "queue": list(self._queue()),
                "now": time.time(),
                "began": self._start_time,
                "method": label,
                "seed": seed,
                "round": here,
                "rounds": self._total,
                "metric": self._by.metric,
                "done": sum(self._progress.values()),
                "of": sum(self._ends.get(cell, self._total) for cell in self._progress),
                "sites": [
                    self._site_status(name, self._sites[name], questions.get(name))
                    | {"tests": self._tests(i), "refused": refusals["upload", name]}
                    for i, name in enumerate(self._names_of())
                ],
                "last_round": self._last_round,
                "totals": {
                    "methods": {name: dict(total) for name, total in self._totals.items()},
                    "refused": {who: refusals["connection", who] for who in STRANGERS},
                    "alarms": {name: self._alarm_counts[name] for name in _ALARMS},
                },
                "latest": [self._by.named(one) for one in reversed(self._rounds)],
                "alarms": list(self._alarms)[::-1],
            }

    def _site_status(self, name: str, site: _Site, question: _Question | None) -> dict[str, Any]:
        quiet, connections = self._link.quiet_for(name), self._link.connections(name)
        if math.isinf(quiet):
            state = "revoked"
        elif connections == 0:
            state = "not seen"
        elif quiet > self._silence:
            state = "silent"
        else:
            state = "ready" if question is None else "working"
        return {
            "site": name,
            "state": state,
            "seen": quiet if connections and math.isfinite(quiet) else None,
            "connections": connections,
            "question": None if question is None else question.kind,
            "waiting": None if question is None else time.monotonic() - question.at,
            "version": site.version,
            "seconds": site.seconds,
            "down": site.down,
            "up": site.up,
            "asked": site.rounds,
            "counted": site.contributions,
            self._by.metric: {label: dict(values) for label, values in site.scores.items()},
        }
