"""What a run of each method keeps in memory: two rounds of 100 clients with FedPAC's network for CIFAR-10.

Synthetic pictures, a few rows per client, everybody takes part and is evaluated, two worker processes. Sizes are in
models (107,690 weights); the peak is that of the memory of the program and its workers together, sampled every 50 ms
(Linux); pages that they share count once. Every method runs in a process of its own.

    python benchmarks/memory.py [METHOD ...] [--clients 100] [--rows 8] [--workers 2]

A method is written as in a study: fedem, or fedem:keep_momentum=true.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from common import SHAPES, Peak, federation, task
from idiolect import methods
from idiolect.core import tree
from idiolect.core.option_spec import Spec
from idiolect.engines import Processes
from idiolect.simulation import Job, Record, State, fit

ROUNDS = 2


def measure(method: str, clients: int, rows: int, workers: int) -> str:
    """A line of the table: sizes in models, peak in MB."""
    data = federation(clients, rows, SHAPES["cifar_cnn"])
    about = task("cifar_cnn", data, epochs=1)
    name, options = Spec.parse(method).name, Spec.parse(method).options
    build = partial(methods.build, name, methods.settle(name, options), about)
    wire = {"bytes_down": 0.0, "bytes_up": 0.0}

    def on_round(state: State, records: list[Record], seconds: float) -> None:
        wire.update({r.metric: r.value for r in records if r.stage == "wire"})

    with Peak() as peak, Processes(workers) as engine:
        end = fit(Job(name, build, data, 0), engine, rounds=ROUNDS, on_round=on_round)
    model = tree.nbytes(about.network.init(torch.tensor(0)))
    sizes = tree.nbytes(end.server), tree.nbytes(end.clients[0]), *wire.values()
    return f"{method:28}" + "".join(f"{size / model:8.2f}" for size in sizes) + f"{peak.bytes / 1e6:9.0f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="all where none is named")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    print(f"{'in models:':28}{'server':>8}{'client':>8}{'down':>8}{'up':>8}{'peak MB':>9}")
    for name in asked.methods or methods.names():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            print(fresh.submit(measure, name, asked.clients, asked.rows, asked.workers).result(), flush=True)


if __name__ == "__main__":
    main()
