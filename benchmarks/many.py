"""Many clients: memory, and seconds of a round whose participants are always as many (Linux).

Ditto, so that every client keeps a network of its own (CIFAR-CNN, 107,690 weights), 20 rows per client, one local
epoch, 100 participants a round, a checkpoint after each round, states on disk where they come to more than 256 MB. Then
rounds of FedAvg and FedPAC in turns with 1,000 clients of 50 rows and a rate of 0.03 (FedPAC, appendix C.9).

    python benchmarks/many.py [--clients 1000,10000] [--rounds 20] [--workers 2]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from common import SHAPES, Peak, federation, task
from idiolect import methods
from idiolect.core.errors import Interrupted
from idiolect.engines import Processes
from idiolect.runs.checkpoint import save
from idiolect.simulation import Job, Record, State, begin, fit

PARTICIPANTS = 100


def ditto(clients: int, rounds: int, workers: int) -> str:
    """A line of the table."""
    data = federation(clients, 20, SHAPES["cifar_cnn"])
    build = partial(methods.build, "ditto", methods.settle("ditto", {}), task("cifar_cnn", data, epochs=1))
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Processes(workers) as engine, Peak() as peak:
        clock = [time.perf_counter()]

        def on_round(state: State, records: list[Record], _: float) -> None:
            save(state, Path(folder) / "checkpoint")
            seconds.append(time.perf_counter() - clock[0])
            clock[0] = time.perf_counter()

        with suppress(Interrupted):  # so that no last round measures everybody
            fit(
                Job("ditto", build, data, 0), engine, rounds=10**6, participation=PARTICIPANTS / clients,
                evaluate_every=10**6, state=begin(build(), clients, 0, Path(folder) / "clients"), on_round=on_round,
                stop=lambda: len(seconds) > rounds,
            )  # fmt: skip
        files = sum(f.stat().st_blocks * 512 for f in Path(folder).rglob("*") if f.is_file())
    middle = statistics.median(seconds[1:])  # the first starts the workers
    return f"{clients:8}{middle:14.2f}{peak.bytes / 1e6:10.0f}{files / 1e6:10.0f}"


def c9(rounds: int, workers: int) -> str:
    """Seconds of a round of FedAvg and of FedPAC, in turns."""
    data = federation(1000, 50, SHAPES["cifar_cnn"])
    taken: dict[str, list[float]] = {"fedavg": [], "fedpac": []}
    with Processes(workers) as engine:
        for _ in range(rounds):
            for name, seconds in taken.items():
                build = partial(methods.build, name, methods.settle(name, {}), task("cifar_cnn", data))
                found: list[float] = []

                def note(state: State, records: list[Record], seconds: float, found: list[float] = found) -> None:
                    found.append(seconds)

                fit(
                    Job(name, build, data, 0), engine, rounds=2, participation=0.03, evaluate_every=10**6,
                    on_round=note,
                )  # fmt: skip
                seconds.append(found[0])  # the last round measures everybody
    fedavg, fedpac = (statistics.median(s) for s in taken.values())
    return f"FedAvg {fedavg:.2f} s a round, FedPAC {fedpac:.2f} s: ratio {fedpac / fedavg:.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    print(f"{'clients':>8}{'s per round':>14}{'peak MB':>10}{'disk MB':>10}")
    for clients in map(int, asked.clients.split(",")):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            print(fresh.submit(ditto, clients, asked.rounds, asked.workers).result(), flush=True)
    print(f"1,000 clients of 50 rows, 30 of them in a round: {c9(3, asked.workers)}")


if __name__ == "__main__":
    main()
