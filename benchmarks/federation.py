"""What a federation costs beside training: a server and ten sites, each a process of its own, on one machine (Linux).

Three ways to do the same rounds, one after the other:

    federation  rounds of FedAvg on few samples, as ``idiolect federation serve`` and ``idiolect site`` do them
    messages    the link alone: the bytes of such a round to each site and back, and nothing is done with them
    simulation  the same study on the same samples in one process

A round of the federation has one message to each site and its reply, because only the last one is evaluated. Seconds of
a round are the median; processor seconds are of all processes together, the mean of the rounds after the tenth.

    python benchmarks/federation.py [--sites 10] [--rounds 50] [--hidden 128]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from idiolect.core.errors import Interrupted
from idiolect.federation import messages, programs
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.link import server_end, site_end
from idiolect.federation.rounds.conversation import Reply
from idiolect.federation.server import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.studies.progress import Watcher
from rehearsal import rehearsed

LOOKED = (10, 30, 50)  # rounds at which memory is read
FEATURES, CLASSES, ROWS = 50, 5, 100
_FORK = multiprocessing.get_context("fork")
_TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spent(pid: int) -> float:
    """Processor seconds of a process."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / _TICKS


class Measured(NamedTuple):
    """What rounds cost."""

    seconds: float
    """Of a round, the median."""
    processor: float
    """Processor seconds of a round, over all processes."""
    server: dict[int, int]
    """By round, the bytes in the server's memory."""
    sites: dict[int, list[int]]
    """By round, those of each site's."""
    down: bytes = b""
    up: bytes = b""


class Clock(Watcher):
    """Notes when rounds end, and what the processes hold and have spent by then."""

    def __init__(self, sites: Sequence[int]) -> None:
        self._sites, self._ends, self._spent = sites, [time.perf_counter()], list[float]()
        self._server: dict[int, int] = {}
        self._each: dict[int, list[int]] = {}

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """Note it."""
        self._ends.append(time.perf_counter())
        self._spent.append(sum(map(spent, (os.getpid(), *self._sites))))
        if round in LOOKED:
            self._server[round] = resident(os.getpid())
            self._each[round] = [resident(pid) for pid in self._sites]

    def measured(self) -> Measured:
        """The rounds so far."""
        seconds = np.diff(self._ends)[1:]  # the first includes what comes before it
        later = self._spent[min(10, len(self._spent) // 2) :]
        each = (later[-1] - later[0]) / max(1, len(later) - 1)
        return Measured(float(np.median(seconds)), each, self._server, self._each)


class Copies:
    """A link that keeps the last training's message and reply."""

    def __init__(self, carrier: server_end.Link) -> None:
        self._link, self.down, self.up = carrier, b"", b""

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site."""
        self.down = content if messages.head(content)["kind"] == "local" else self.down
        return self._link.send(site, content)

    def replies(self) -> Sequence[Reply]:
        """The replies since the last call."""
        found = self._link.replies()
        for reply in found:
            assert reply.content is not None
            self.up = reply.content if messages.head(reply.content)["kind"] == "local" else self.up
        return found

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these."""
        self._link.forget(tickets)

    def quiet_for(self, site: str) -> float:
        """Seconds since a site was heard of."""
        return self._link.quiet_for(site)

    def connections(self, site: str) -> int:
        """How often it has connected."""
        return self._link.connections(site)


class Place:
    """The files of a trial."""

    def __init__(self, folder: Path, sites: int, rounds: int, hidden: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.names = tuple(f"site{k}" for k in range(sites))
        address = f"127.0.0.1:{free_port()}"
        provision(kits.Description(name="trial", server=address, sites=self.names), folder / "kits")
        self.kit = kits.server_kit(folder / "kits" / "server")
        for k, name in enumerate(self.names):
            draw = np.random.default_rng(k)
            y_N = draw.integers(CLASSES, size=ROWS)
            x_NF = draw.normal(size=(ROWS, FEATURES)) + np.eye(CLASSES, FEATURES)[y_N]
            frame = pd.DataFrame(x_NF, columns=[f"f{j}" for j in range(FEATURES)]).assign(label=[f"c{c}" for c in y_N])
            frame.to_csv(folder / f"{name}.csv", index=False)
        text = f"name: trial\nmethods: [fedavg]\nrounds: {rounds}\nevaluate_every: {rounds}\nlocal_epochs: 1\n"
        (folder / "study.yaml").write_text(f"{text}model: mlp:hidden={hidden},layers=2\n")
        self.study = study_for(folder / "study.yaml", "trial")

    def samples(self, name: str) -> SiteFiles:
        """A site's."""
        return SiteFiles(self.folder / f"{name}.csv", target="label")

    def site_kit(self, name: str) -> Path:
        """A site's."""
        return self.folder / "kits" / f"site-{name}"


def site(place: Place, name: str) -> None:
    """A site of the federation."""
    with suppress(Interrupted):
        programs.take_part(
            place.site_kit(name), place.samples(name), place.folder / "states" / name, say=Events(quiet=True)
        )


def echo(place: Place, name: str, up: bytes) -> None:
    """A site that sends some bytes back."""
    connection = site_end.Connection(kits.site_kit(place.site_kit(name)), lambda content: up, Events(quiet=True))
    connection.run(threading.Event())


def federated(place: Place, sites: Sequence[int]) -> Measured:
    """Rounds of the federation."""
    clock, say = Clock(sites), Events(quiet=True)
    with server_end.Link(place.kit, kits.address(place.kit.server)) as carrier:
        copies = Copies(carrier)
        conduct.conduct(place.study, copies, list(place.names), place.folder / "run", say, watcher=clock)
    return clock.measured()._replace(down=copies.down, up=copies.up)


def exchanged(place: Place, sites: Sequence[int], down: bytes) -> Measured:
    """Rounds of messages alone."""
    clock = Clock(sites)
    with server_end.Link(place.kit, kits.address(place.kit.server)) as carrier:
        while not all(map(carrier.connections, place.names)):
            time.sleep(0.05)
        for round in range(1, place.rounds + 1):
            left = {carrier.send(name, down) for name in place.names}
            while left:
                left -= {reply.ticket for reply in carrier.replies()}
                time.sleep(0.02)  # as the federation's server does
            clock.advance("", 0, round, None)
    return clock.measured()


def simulated(place: Place, sites: Sequence[int]) -> Measured:
    """Rounds of the simulator."""
    clock = Clock(sites)
    samples = {name: place.samples(name) for name in place.names}
    rehearsed(place.study, samples, place.folder / "simulated", watcher=clock)
    return clock.measured()


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, run in a process of its own."""
    here, there = _FORK.Pipe(duplex=False)

    def told(end: Pipe) -> None:
        end.send(work(*arguments))

    process = _FORK.Process(target=told, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def among(sites: Sequence[BaseProcess], work: Callable[..., Measured], place: Place, *more: Any) -> Measured:
    """Measure a server's rounds while its sites run, and end these."""
    for one in sites:
        one.start()
    try:
        measured: Measured = apart(work, place, [one.pid for one in sites], *more)
        return measured
    finally:
        for one in sites:
            os.kill(one.pid or 0, signal.SIGTERM)
            one.join()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def table(found: dict[str, Measured], place: Place) -> str:
    """What was measured, as lines."""
    whole, bare = found["federation"], found["messages"]
    lines = [
        f"{len(place.names)} sites, {place.rounds} rounds; a message of {len(whole.down):,} bytes, "
        f"a reply of {len(whole.up):,}",
        f"{'':12}{'seconds of a round':>20}{'processor seconds':>20}{'times messages':>16}{'processor':>12}",
    ]
    for name, one in found.items():
        ratios = one.seconds / bare.seconds, one.processor / bare.processor
        lines.append(f"{name:12}{one.seconds:20.3f}{one.processor:20.3f}{ratios[0]:16.2f}{ratios[1]:12.2f}")
    lines.append(f"{'memory, MB':12}" + "".join(f"{f'round {r}':>12}" for r in whole.server))
    lines.append(f"{'server':12}" + "".join(f"{size / 1e6:12.1f}" for size in whole.server.values()))
    for what, pick in (("median site", statistics.median), ("largest site", max)):
        lines.append(f"{what:12}" + "".join(f"{pick(sizes) / 1e6:12.1f}" for sizes in whole.sites.values()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=128)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), asked.sites, asked.rounds, asked.hidden)
        real = [_FORK.Process(target=site, args=(place, name)) for name in place.names]
        whole = among(real, federated, place)
        empty = [_FORK.Process(target=echo, args=(place, name, whole.up)) for name in place.names]
        bare = among(empty, exchanged, place, whole.down)
        found = {"federation": whole, "messages": bare, "simulation": apart(simulated, place, [])}
        print(table(found, place), flush=True)


if __name__ == "__main__":
    main()
