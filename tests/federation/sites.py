"""Small sites for tests: their samples, and a link without a network that can lose and spoil messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import SiteStudy
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.policy import Policy
from idiolect.studies import Result

NAMES = ("north", "south", "east", "west", "coast")
Tamper = Callable[[Message, Message], Message | None]
"""(what was asked, the honest reply) -> what is sent; None sends nothing."""


def tables(folder: Path, names: Iterable[str] = NAMES, rows: int = 20) -> dict[str, Path]:
    """A table for each site: five features, three classes of which each site mostly has two."""
    found = {}
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        y = rng.choice(3, rows, p=np.roll([0.6, 0.35, 0.05], k))
        x = rng.normal(size=(rows, 5)) + 1.5 * np.eye(3, 5)[y]
        frame = pd.DataFrame(x.round(3), columns=[f"m{j}" for j in range(5)])
        frame.assign(label=[f"grade {c}" for c in y]).to_csv(folder / f"{name}.csv", index=False)
        found[name] = folder / f"{name}.csv"
    return found


def study(folder: Path, methods: str = "fedavg", rounds: int = 3, **more: object) -> Path:
    """The file of a quick study."""
    usual = {"name": "trial", "methods": f"[{methods}]", "rounds": rounds, "local_epochs": 1, "batch_size": 8}
    settings = usual | {"lr": 0.05, "evaluate_every": 1} | more
    path = folder / "study.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return path


def measuring(values: dict[str, object]) -> Tamper:
    """A site that says other measurements than it has."""

    def tamper(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] != "evaluate":
            return reply
        return Message(reply.about | {"measured": reply.about["measured"] | values}, reply.arrays)

    return tamper


class Heard(NamedTuple):
    """A reply."""

    site: str
    ticket: str
    content: bytes | None
    why: str = ""


class Loop:
    """A link that calls the sites' workers at once."""

    def __init__(self, workers: dict[str, Worker], tamper: dict[str, Tamper] | None = None) -> None:
        self.workers, self.tamper = workers, tamper or {}
        self.sent: list[tuple[str, Message]] = []
        self.received: list[tuple[str, Message]] = []
        self._replies: list[Heard] = []

    def send(self, site: str, content: bytes) -> str:
        asked = unpack(content)
        self.sent.append((site, asked))
        reply: Message | None = unpack(self.workers[site].answer(content))
        if site in self.tamper and reply is not None:
            reply = self.tamper[site](asked, reply)
        ticket = str(len(self.sent))
        if reply is not None:
            self.received.append((site, reply))
            self._replies.append(Heard(site, ticket, pack(*reply)))
        return ticket

    def replies(self) -> list[Heard]:
        found, self._replies = self._replies, []
        return found

    def forget(self, tickets: Iterable[str]) -> None:
        gone = set(tickets)
        self._replies = [reply for reply in self._replies if reply.ticket not in gone]

    def quiet_for(self, site: str) -> float:
        return 1e9 if site in self.tamper else 0.0

    def connections(self, site: str) -> int:
        return 1


class Away(Loop):
    """Coast is away until a round, and has heard of nothing before unless it ``agrees`` first."""

    def __init__(self, workers: dict[str, Worker], back: int, *, agrees: bool = False) -> None:
        super().__init__(workers)
        self.back, self.there = back, agrees or back == 0

    def send(self, site: str, content: bytes) -> str:
        asked = unpack(content)
        if site == "coast" and "round" in asked.about:
            self.there = asked.about["round"] >= self.back
        if site == "coast" and not self.there:
            self.sent.append((site, asked))
            return "no reply"
        return super().send(site, content)

    def quiet_for(self, site: str) -> float:
        return 0.0 if site != "coast" or self.there else 1e9


def workers(
    folder: Path, files: dict[str, Path], policy: Policy | None = None, vault: Vault | None = None
) -> dict[str, Worker]:
    """A worker for each site, with its state in a folder."""
    return {name: worker(folder, name, k, file, policy, vault) for k, (name, file) in enumerate(files.items())}


def masked(folder: Path, whole: SiteStudy, files: dict[str, Path]) -> Result:
    """A run under secure aggregation, with kits in a folder."""
    names = tuple(files)
    provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=names), folder / "kits")
    link = Loop(workers(folder / "states", files))
    for name, one in link.workers.items():
        one._identity = kits.site_kit(folder / "kits" / f"site-{name}").identity
    public = kits.server_kit(folder / "kits" / "server").roster.keys()
    terms = Terms(Patience(least=3, deadline=60))
    return conduct(whole, link, list(names), folder / "run", Events(quiet=True), terms=terms, public=public)


def worker(
    folder: Path, name: str, number: int, file: Path, policy: Policy | None = None, vault: Vault | None = None
) -> Worker:
    samples = SiteFiles(file, target="label")
    return Worker(
        samples, number, folder / name, policy or Policy(), vault or Vault.of(folder / name), Events(quiet=True)
    )
