"""Evaluation of 1,000 clients that share a body: test rows of several in one pass, against one client at a time.

FedAvg and FedPAC with 3 and 10 test rows per client, CIFAR-CNN, one process of one thread, in turns.

    python benchmarks/evaluation.py [--clients 1000] [--turns 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch

from common import SHAPES, federation, task
from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Down
from idiolect.simulation import Job, begin
from idiolect.simulation.client_runner import ClientRunner, groups


def measure(name: str, clients: int, rows: int, turns: int) -> str:
    """A line of the table."""
    data = federation(clients, 10, SHAPES["cifar_cnn"], rows)
    job = Job(name, partial(methods.build, name, methods.settle(name, {}), task("cifar_cnn", data)), data, 0)
    site, ids = ClientRunner(job), list(range(clients))
    state = begin(site.method, clients, 0)
    down = site.method.send(state.server, torch.tensor(ids))

    def seconds(parts: list[list[int]]) -> float:
        start = time.perf_counter()
        for part in parts:
            some = Down(down.shared, tree.rows(down.own, torch.tensor(part)))
            site.run("evaluate", 1, [ids[k] for k in part], some, [state.clients[k] for k in part])
        return time.perf_counter() - start

    one_by_one, together = [[k] for k in ids], groups("evaluate", data, ids)
    seconds(one_by_one[:20]), seconds(together[:4])
    taken = [(seconds(one_by_one), seconds(together)) for _ in range(turns)]
    alone, many = (statistics.median(t) for t in zip(*taken, strict=True))
    ratio = statistics.median(a / b for a, b in taken)
    return f"{name:8}{rows:6}{1e3 * alone / clients:12.2f}{1e3 * many / clients:12.2f}{ratio:8.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':8}{'rows':>6}{'one by one':>12}{'together':>12}{'ratio':>8}   (ms per client)")
    for name in ("fedavg", "fedpac"):
        for rows in (3, 10):
            print(measure(name, asked.clients, rows, asked.turns), flush=True)


if __name__ == "__main__":
    main()
