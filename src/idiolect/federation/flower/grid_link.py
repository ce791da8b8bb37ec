"""Carries messages to SuperNodes over Flower's grid. Flower knows numbers of nodes: each is asked whose it is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from idiolect.core.errors import printable
from idiolect.federation.events import Events
from idiolect.federation.flower.envelope import content_of, fill, values_of
from idiolect.federation.flower.names import is_signed
from idiolect.federation.link.server_end import Reply
from idiolect.federation.messages import Refusal, head

_LOOK = 2.0  # seconds between two looks for SuperNodes
_PULL = 0.2  # seconds between two looks for replies
_AGAIN = 30.0  # seconds after which a node that gave no name is asked again
_ROOM = 2**26  # bytes of a reply, besides _TIMES those of the question
_TIMES = 16


@dataclass
class _Letter:
    """A message that waits for its reply."""

    site: str
    content: bytes
    id: str = ""
    """Flower's; "" until it is sent."""
    node: int = 0


@dataclass
class _Node:
    """A SuperNode.

    ``start`` is when Flower says that it has started; where that changes, what it was asked before is lost.
    """

    start: str
    site: str | None = None
    is_online: bool = True
    nonce: str = ""
    asked_at: float = float("-inf")


class GridLink:
    """Carries messages to the sites behind SuperNodes.

    Args:
        grid: Flower's.
        sites: their names, by the clients' numbers.
        say: for events.
        keys: the public key of each site in PEM, by name; if there are any, a SuperNode has to prove its site's name.
    """

    def __init__(self, grid: Grid, sites: Sequence[str], say: Events, keys: Mapping[str, bytes] | None = None) -> None:
        self._grid, self._sites, self._say, self._keys = grid, tuple(sites), say, dict(keys or {})
        self._nodes: dict[int, _Node] = {}
        self._questions: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._letters: dict[str, _Letter] = {}
        self._connections: dict[str, int] = {}
        self._since = time.monotonic()
        self._last_signs: dict[str, float] = {}
        self._look_time = self._pull_time = float("-inf")

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site; the ticket that its reply will have."""
        ticket = secrets.token_hex(16)
        self._letters[ticket] = _Letter(site, content)
        self._post()
        return ticket

    def replies(self) -> list[Reply]:
        """The replies that have come since the last call."""
        now = time.monotonic()
        if now - self._look_time >= _LOOK:
            self._look_time = now
            self._look(now)
            self._post()
        if now - self._pull_time < _PULL:
            return []
        self._pull_time = now
        tickets = {letter.id: ticket for ticket, letter in self._letters.items() if letter.id}
        replies = []
        if tickets or self._questions:
            messages = list(self._grid.pull_messages([*tickets, *self._questions]))
            if any(message.has_error() for message in messages):
                self._look(now)  # the error may be that a SuperNode is gone, which is to be known before it is taken
            for message in messages:
                id = message.metadata.reply_to_message_id
                if id in self._questions:
                    self._name(self._questions.pop(id), message)
                elif id in tickets and (reply := self._reply(tickets[id], message)) is not None:
                    replies.append(reply)
            self._post()
        return replies

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these messages any more."""
        for ticket in tickets:
            self._letters.pop(ticket, None)

    def quiet_for(self, site: str) -> float:
        """Seconds since the site's SuperNode was online, as Flower's heartbeat says it, or since the start."""
        if self._is_here(site):
            return 0.0
        return time.monotonic() - self._last_signs.get(site, self._since)

    def connections(self, site: str) -> int:
        """How often a SuperNode of the site has come online."""
        return self._connections.get(site, 0)

    def _is_here(self, site: str) -> bool:
        return site in self._places and self._nodes[self._places[site]].is_online

    def _look(self, now: float) -> None:
        """Look which SuperNodes there are, and ask new ones whose they are."""
        starts = _starts(self._grid)
        for id, node in self._nodes.items():
            if node.is_online and id not in starts:
                node.is_online = False
                if node.site is not None and self._places.get(node.site) == id:
                    self._last_signs[node.site] = now
                    self._say.rarely((node.site, "gone"), f"the SuperNode of {node.site} is offline", site=node.site)
        for id, start in starts.items():
            node = self._nodes.setdefault(id, _Node(start))
            if not node.is_online or node.start != start:
                node.is_online, node.start = True, start
                if node.site is not None and self._places.get(node.site) == id:
                    self._connect(node.site, id)
            if node.site is None and now - node.asked_at >= _AGAIN and id not in self._questions.values():
                node.asked_at, node.nonce = now, secrets.token_hex(16)
                if question := self._push(Message(fill({"nonce": node.nonce}), id, "query")):
                    self._questions[question] = id

    def _name(self, id: int, message: Message) -> None:
        """Take a SuperNode's answer to whose it is."""
        node = self._nodes[id]
        if message.has_error():
            why = printable(str(message.error.reason)[:300])
            self._say.rarely((id, why), f"SuperNode {id} does not say whose it is: {why}", refused=why)
            return
        values = values_of(message.content)
        site, why = str(values.get("site", ""))[:100], printable(str(values.get("refused", ""))[:300])
        if not why and site not in self._sites:
            why = f"it says that it is {printable(site)!r}, which is no site of this federation"
        elif not why and self._keys:
            if site not in self._keys:
                why = f"the key of {site} is revoked"
            elif not is_signed(self._keys[site], site, id, node.nonce, values.get("signature")):
                why = f"it says that it is {site}, and has not the key of that site"
        if why:
            self._say.rarely((id, why), f"SuperNode {id} takes no part: {why}", refused=why)
            return
        if self._is_here(site) and self._places[site] != id:
            what = f"SuperNode {id} says that it is {site} as {self._places[site]} did before: the newer one counts"
            self._say(what, site=site)
        node.site = site
        self._connect(site, id)

    def _connect(self, site: str, id: int) -> None:
        self._places[site] = id
        self._connections[site] = self._connections.get(site, 0) + 1
        for letter in self._letters.values():
            if letter.site == site and letter.node != id:
                letter.id = ""
        self._say.rarely((site, "connected", id), f"{site} is SuperNode {id}", site=site, node=id)

    def _post(self) -> None:
        """Send the messages whose SuperNodes are online."""
        for letter in self._letters.values():
            if not letter.id and self._is_here(letter.site):
                letter.node = self._places[letter.site]
                values: dict[str, str | int | bytes] = {"site": letter.site, "number": self._sites.index(letter.site)}
                message = Message(fill(values, letter.content), letter.node, "train", group_id=_group_of(letter))
                letter.id = self._push(message)

    def _push(self, message: Message) -> str:
        """Flower's name of a message that is on its way; "" if Flower does not take it."""
        ids = [id for id in self._grid.push_messages([message]) if id]
        return ids[0] if ids else ""

    def _reply(self, ticket: str, message: Message) -> Reply | None:
        letter = self._letters[ticket]
        if message.has_error():
            if not self._is_here(letter.site):  # it waits for the site, which is asked again when it is back
                letter.id = ""
                return None
            del self._letters[ticket]
            return Reply(letter.site, ticket, None, f"its SuperNode says: {printable(str(message.error.reason)[:300])}")
        del self._letters[ticket]
        content = content_of(message.content)
        if content is None:
            why = printable(str(values_of(message.content).get("refused", "it has no content"))[:300])
            return Reply(letter.site, ticket, None, why)
        if len(content) > _ROOM + _TIMES * len(letter.content):
            return Reply(letter.site, ticket, None, "it has more bytes than any reply to this question needs")
        return Reply(letter.site, ticket, content)


def _starts(grid: Grid) -> dict[int, str]:
    """When each SuperNode that is online has started; before flwr 1.36 Flower does not say it."""
    if not hasattr(grid, "get_nodes"):
        return dict.fromkeys(grid.get_node_ids(), "")
    return {info.node_id: info.last_activated_at for info in grid.get_nodes()}


def _group_of(letter: _Letter) -> str:
    """What Flower's log calls a round."""
    try:
        return str(head(letter.content).get("round", ""))
    except Refusal:
        return ""
