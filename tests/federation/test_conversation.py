"""Whom the server waits for: not for a site whose key is revoked, whenever that happens."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

import pytest
from sites import Heard

from idiolect.core.errors import Interrupted, RunError
from idiolect.federation.events import Events
from idiolect.federation.messages import pack, unpack
from idiolect.federation.rounds.conversation import Conversation, Patience, Question

SITES = ("north", "south", "east")


class Silent:
    """Sites of which some answer, and some are revoked after so many looks."""

    def __init__(self, revoked: dict[str, int], answering: Iterable[str] = ()) -> None:
        self.revoked, self.answering, self.looks = revoked, set(answering), 0
        self.open: dict[str, str] = {}
        self._replies: list[Heard] = []

    def send(self, site: str, content: bytes) -> str:
        ticket = f"ticket {len(self.open)}"
        self.open[ticket] = site
        if site in self.answering:
            self._replies.append(Heard(site, ticket, pack(*unpack(content))))
        return ticket

    def replies(self) -> Sequence[Heard]:
        self.looks += 1
        found, self._replies = self._replies, []
        return found

    def forget(self, tickets: Iterable[str]) -> None:
        for ticket in tickets:
            del self.open[ticket]

    def quiet_for(self, site: str) -> float:
        return math.inf if self.looks >= self.revoked.get(site, 10**9) else 0.0

    def connections(self, site: str) -> int:
        return 1


def _ask(link: Silent, least: int) -> dict[int, str]:
    talk, start = Conversation(link, SITES, Events(quiet=True)), time.monotonic()
    questions = {i: Question({"kind": "local"}, {}) for i in range(len(SITES))}

    def stop() -> bool:  # a fault would wait for ever
        return time.monotonic() - start > 2

    return talk.ask(questions, lambda i, m: SITES[i], Patience(least), stop)


@pytest.mark.parametrize("looks", [0, 3])
def test_without_enough_sites_that_are_not_revoked_nobody_waits(looks: int) -> None:
    link = Silent(dict.fromkeys(SITES, looks))
    with pytest.raises(RunError, match="only 0 sites could answer, and 1 are needed: north: its key is revoked"):
        _ask(link, least=1)
    assert not link.open


def test_a_site_that_is_revoked_while_it_is_asked_is_not_waited_for() -> None:
    link = Silent({"south": 3}, answering=["north", "east"])
    assert _ask(link, least=2) == {0: "north", 2: "east"}
    with pytest.raises(RunError, match="only 2 sites could answer, and 3 are needed: south: its key is revoked"):
        _ask(Silent({"south": 3}, answering=["north", "east"]), least=3)


def test_a_site_that_is_silent_but_not_revoked_is_waited_for() -> None:
    with pytest.raises(Interrupted):
        _ask(Silent({}), least=1)
