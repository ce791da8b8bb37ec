"""FedAvg rounds through the processes engine against a bare PyTorch loop, and workers against one, in one run.

20 clients of 600 rows, batch 50, 5 epochs. The bare loop is what one would write by hand without a federation:
channels-last, torch.optim.SGD(fused=True), as many processes of one thread each. It does the same number of steps.
What is compared takes turns, and each of our rounds is held against the mean of the bare loop's turns
before and after it, so that a noisy machine hits both.

    python benchmarks/engine.py [--models fmnist_cnn,cifar_cnn] [--repeats 13] [--workers N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from common import CLASSES, SHAPES, federation, task
from idiolect import methods, models
from idiolect.core.processor import cores
from idiolect.engines import Processes
from idiolect.simulation import Job, State, begin, fit

CLIENTS, ROWS, BATCH, EPOCHS = 20, 600, 50, 5
STEPS = CLIENTS * (ROWS // BATCH) * EPOCHS


def bare(name: str, shape: tuple[int, ...], clients: int, barrier: Barrier, turns: int, seconds: Any) -> None:
    """One process of the bare loop: its share of the clients, once per turn."""
    torch.set_num_threads(1)
    body, head = models.NETWORKS[name](shape, CLASSES)
    network: Any = nn.Sequential(body, head).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randint(256, (ROWS, *shape), dtype=torch.uint8)
    y = torch.randint(CLASSES, (ROWS,))
    for _ in range(turns):
        barrier.wait()
        start = time.perf_counter()
        for _ in range(clients):
            optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.5, weight_decay=5e-4, fused=True)
            for _ in range(EPOCHS):
                order = torch.randperm(ROWS)
                for at in torch.split(order, BATCH):
                    batch = x[at].float().contiguous(memory_format=torch.channels_last).mul_(1 / 76.5).sub_(1.67)
                    loss = cross_entropy(network(batch), y[at])
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        barrier.wait()
        seconds.put(time.perf_counter() - start)


def fedavg(name: str) -> Job:
    """FedAvg on synthetic images."""
    data = federation(CLIENTS, ROWS, SHAPES[name])
    return Job("fedavg", partial(methods.build, "fedavg", {}, task(name, data, EPOCHS)), data, 0)


def scaling(name: str, repeats: int, workers: int) -> None:
    """Print how much faster some workers train a round's clients than one does."""
    job = fedavg(name)
    method = job.build()
    state, ids = begin(method, CLIENTS, 0), list(range(CLIENTS))
    down = method.send(state.server, torch.tensor(ids))

    def seconds(session: Any, number: int) -> float:
        start = time.perf_counter()
        session.map("local", number, ids, down, list(state.clients), lambda: False)
        return time.perf_counter() - start

    with Processes(1) as one, Processes(workers) as many:
        alone, together = one.open(job), many.open(job)
        seconds(alone, 1), seconds(together, 1)
        ratios = sorted(seconds(alone, n) / seconds(together, n) for n in range(2, repeats + 2))
    print(
        f"{name}: {workers} workers against 1: {statistics.median(ratios):.2f} times as fast (median of {repeats}; "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def measure(name: str, repeats: int, workers: int) -> None:
    """Print both speeds and their ratio."""
    shape, job = SHAPES[name], fedavg(name)
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(workers + 1), context.Queue()
    shares = [CLIENTS // workers + (k < CLIENTS % workers) for k in range(workers)]
    loops = [context.Process(target=bare, args=(name, shape, s, barrier, repeats + 1, queue)) for s in shares]
    for loop in loops:
        loop.start()
    ours, theirs, clock = [], [], [0.0]

    def turn(state: State, *_: Any) -> None:
        ours.append(STEPS / (time.perf_counter() - clock[0]))
        if state.round <= repeats + 1:
            barrier.wait()
            barrier.wait()
            theirs.append(STEPS / max(queue.get() for _ in range(workers)))
        clock[0] = time.perf_counter()

    with Processes(workers) as engine:  # the last round is evaluated, the first warms up: neither counts
        fit(job, engine, rounds=repeats + 2, evaluate_every=10**6, on_round=turn)
    ours = ours[1:-1]
    for loop in loops:
        loop.join()
    ratios = sorted(2 * a / (b + c) for a, b, c in zip(ours, theirs[:-1], theirs[1:], strict=True))
    print(
        f"{name}: engine {statistics.median(ours):.0f}, bare loop {statistics.median(theirs):.0f} client-steps/s, "
        f"ratio {statistics.median(ratios):.3f} (median of {repeats}; {ratios[0]:.3f} to {ratios[-1]:.3f}), "
        f"{workers} processes"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="fmnist_cnn,cifar_cnn")
    parser.add_argument("--repeats", type=int, default=13)
    parser.add_argument("--workers", type=int, default=cores())
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        measure(name, arguments.repeats, arguments.workers)
        scaling(name, max(1, arguments.repeats // 3), arguments.workers)


if __name__ == "__main__":
    main()
