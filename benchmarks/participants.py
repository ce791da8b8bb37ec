"""Memory of a round by its participants: FedAvg, whose uploads are added up by workers, and FedPAC, which needs each.

400 clients with a few rows each and FedPAC's network for CIFAR-10, two workers; two rounds in which a share of the
clients takes part. The peak is that of the program and all processes below it, sampled every 50 ms, over what they hold
when the engine has started (Linux). Every line is measured in a process of its own.

    python benchmarks/participants.py [--ray] [--methods fedavg,fedpac] [--participants 50,100,200,400]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from common import SHAPES, Peak, federation, resident, task
from idiolect import methods
from idiolect.core import tree
from idiolect.engines import Processes
from idiolect.simulation import Job, fit

CLIENTS, ROWS = 400, 8


def engine(name: str) -> Any:
    """An engine with two workers."""
    if name == "processes":
        return Processes(2)
    from idiolect.engines.ray import Ray

    return Ray(2)


def measure(name: str, method: str, participants: int) -> str:
    """A line of the table, in MB and in models."""
    data = federation(CLIENTS, ROWS, SHAPES["cifar_cnn"])
    about = task("cifar_cnn", data, epochs=1)
    build = partial(methods.build, method, {}, about)
    size = tree.nbytes(about.network.init(torch.tensor(0)))
    job = Job(method, build, data, 0)
    with engine(name) as runs_on:
        fit(job, runs_on, rounds=1, participation=2 / CLIENTS)  # everything is started and imported
        before = resident()
        with Peak() as peak:
            fit(job, runs_on, rounds=2, participation=participants / CLIENTS, evaluate_every=3)
    more = peak.bytes - before
    return f"{name:10} {method:8} {participants:12,} {more / 1e6:9.0f} MB {more / size / participants:8.2f} models each"


def main() -> None:
    """Print a line for each engine, method and number of participants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", action="store_true", help="the ray engine too")
    parser.add_argument("--methods", default="fedavg,fedpac")
    parser.add_argument("--participants", default="50,100,200,400")
    options = parser.parse_args()
    for name in ("processes", "ray") if options.ray else ("processes",):
        for method in options.methods.split(","):
            for count in map(int, options.participants.split(",")):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    print(pool.submit(measure, name, method, count).result(), flush=True)


if __name__ == "__main__":
    main()
