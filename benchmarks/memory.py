"""What a run of each method keeps in memory: two rounds of 100 clients with FedPAC's network for CIFAR-10.

Made-up pictures, a few rows per client, everybody takes part and is evaluated, two worker processes. Sizes are in
models (107,690 weights); the peak is that of the resident memory of the program and its workers together, sampled from
/proc every 20 ms (Linux); pages that they share count once for each. Every method runs in a process of its own.

    python benchmarks/memory.py [METHOD ...] [--clients 100] [--rows 8] [--workers 2]

A method is written as in a study: fedem, or fedem:keep_momentum=true.
"""

from __future__ import annotations

import argparse
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from idiolect import methods, models, tree
from idiolect.data import FederatedData
from idiolect.engines import Job, Processes, Record, State, fit
from idiolect.method import Task, Training
from idiolect.spec import Spec

SHAPE, CLASSES, ROUNDS = (3, 32, 32), 10, 2


def federation(clients: int, rows: int) -> FederatedData:
    """Random images: memory does not see what is on them."""
    draw = torch.Generator().manual_seed(0)
    numbers = torch.arange(clients * (rows + 1)).view(clients, rows + 1)
    return FederatedData(
        name="random", x_R=torch.randint(256, (numbers.numel(), *SHAPE), dtype=torch.uint8, generator=draw),
        y_R=torch.randint(CLASSES, (numbers.numel(),), generator=draw), train=tuple(n[:-1].clone() for n in numbers),
        test=tuple(n[-1:].clone() for n in numbers), classes=CLASSES, class_names=tuple("0123456789"),
        mean=(0.5,) * 3, std=(0.3,) * 3, shifts=("",) * clients,
    )  # fmt: skip


def resident() -> int:
    """Bytes of this process and of its children, workers among them."""
    mine = Path(f"/proc/{os.getpid()}")
    processes = [mine] + [Path(f"/proc/{c}") for p in mine.glob("task/*/children") for c in p.read_text().split()]
    pages = 0
    for process in processes:
        try:
            pages += int((process / "statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(method: str, clients: int, rows: int, workers: int) -> str:
    """A line of the table: sizes in models, peak in MB."""
    data = federation(clients, rows)
    network = models.build("cifar_cnn", SHAPE, CLASSES)
    task = Task(network, CLASSES, clients, Training(epochs=1), data.mean, data.std)
    name, options = Spec.parse(method).name, Spec.parse(method).options
    build = partial(methods.build, name, methods.settle(name, options), task)
    wire, peak, done = {"bytes_down": 0.0, "bytes_up": 0.0}, [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    def on_round(state: State, records: list[Record], seconds: float) -> None:
        wire.update({r.metric: r.value for r in records if r.moment == "wire"})

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with Processes(workers) as engine:
            end = fit(Job(name, build, data, 0), engine, rounds=ROUNDS, on_round=on_round)
    finally:
        done.set()
        thread.join()
    model = tree.nbytes(network.init(torch.tensor(0)))
    sizes = tree.nbytes(end.server), tree.nbytes(end.clients[0]), *wire.values()
    return f"{method:28}" + "".join(f"{size / model:8.2f}" for size in sizes) + f"{peak[0] / 1e6:9.0f}"


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
