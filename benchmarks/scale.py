"""What a participant and a client cost the program that runs the server: the constants of docs/scale.md (Linux).

Seconds are of this program's processor time, all threads together, so that neither the workers' training nor others'
work on the machine counts; memory is that of this program alone, over what it held before. Every line is measured in a
process of its own.

    python benchmarks/scale.py [PART ...] [--ray]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from common import SHAPES, federation, task
from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Up
from idiolect.core.reduction import reduced
from idiolect.engines import Processes, serialization
from idiolect.runs.checkpoint import save
from idiolect.simulation import Job, Record, State, begin, fit
from idiolect.simulation.client_store import InMemory, OnDisk
from idiolect.simulation.records import of_server
from idiolect.simulation.sampling import participants
from idiolect.statistics.head_combination import combination_weights

MANY, DRAWN = 10**6, 10**4
STORED = 10**5  # clients on disk
MODELS = {"cifar_cnn": 400, "resnet18_cifar": 20}  # participants that are measured


def resident() -> int:
    """Bytes of this program that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spent(work: Callable[[], Any], times: int = 1) -> float:
    """Processor seconds of one go: the median."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds))


def draw() -> str:
    """Who takes part."""
    seconds = spent(lambda: participants(0, 1, MANY, DRAWN / MANY), 5)
    return f"participants: {seconds * 1e3:.1f} ms for {DRAWN:,} of {MANY:,}"


def rows() -> str:
    """Row numbers, a tensor of 50 for training and one of 10 for tests, and what it takes to tell a worker of them."""
    clients = 50_000
    before = resident()
    held = [torch.arange(n) for _ in range(clients) for n in (50, 10)]
    each = (resident() - before) / clients
    message = serialization.pack(held)
    pack, load = (
        spent(lambda: serialization.pack(held), 3) / clients,
        spent(lambda: serialization.load(bytes(message)), 3) / clients,
    )
    return (
        f"row numbers: {each:,.0f} B a client (480 B are numbers); told to workers {len(message) / clients:,.0f} B, "
        f"packed in {pack * 1e6:.0f} us, read in {load * 1e6:.0f} us by each worker"
    )


def states(model: str) -> str:
    """A network that each client keeps."""
    state = task(model, federation(1, 1, SHAPES[model])).network.init(torch.tensor(0))
    size, count = tree.nbytes(state), MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        kept = OnDisk(state, STORED, Path(folder) / "clients")
        put = spent(lambda: kept.put(range(count), [state] * count), 3) / count
        get = spent(lambda: [kept[i] for i in range(count)], 3) / count
        one = tree.nbytes(kept.snapshot()) / STORED
    held = InMemory(state, MANY)
    held.put(range(count), [state] * count)
    saved = sum(a.numel() * a.element_size() for a in held.snapshot().values()) / count
    return (
        f"{model}: state {size:,} B, on disk put {put * 1e3:.2f} ms, get {get * 1e3:.2f} ms and {one:.0f} B in a "
        f"checkpoint; in memory {saved:,.0f} B in a checkpoint"
    )


def server(model: str) -> str:
    """FedAvg's server: stacking the uploads, and their mean."""
    data = federation(1, 1, SHAPES[model])
    built = methods.build("fedavg", {}, task(model, data))
    start, count = built.init_server(torch.tensor(0)), MODELS[model]
    seconds = []
    for _ in range(3):
        ups = [Up(tree.copy(start), torch.tensor(1.0)) for _ in range(count)]
        clock = time.process_time()
        up = tree.gather(ups)
        middle = time.process_time()
        built.aggregate(start, reduced(built.reduce, up), torch.arange(count))
        seconds.append((middle - clock, time.process_time() - middle))
    gather, aggregate = np.median(seconds, axis=0) / count
    return f"{model}: gather {gather * 1e3:.3f} ms, aggregate {aggregate * 1e3:.3f} ms a participant"


def pairs(count: int) -> str:
    """What FedPAC's server does for every pair of participants."""
    draw = np.random.default_rng(0)
    h_mCd, variance_m = draw.normal(size=(count, 10, 128)), draw.uniform(1, 2, count)
    with threadpool_limits(1):
        solving = spent(lambda: combination_weights(h_mCd, variance_m))
    before = resident()
    weight_mm = torch.rand(count, count)
    start = time.process_time()
    records = of_server(1, range(count), {"weight": weight_mm})
    writing, held = time.process_time() - start, resident() - before
    return (
        f"FedPAC, {count:,} participants: combination {solving:.2f} s; "
        f"its records {writing / len(records) * 1e6:.2f} us and {held / len(records):,.0f} B a pair"
    )


def rounds(name: str, model: str, with_ray: bool) -> str:
    """Whole rounds with a worker on one row per client: what the loop and the messages take."""
    count = MODELS[model]
    data = federation(count, 1, SHAPES[model])
    build = partial(methods.build, name, methods.settle(name, {}), task(model, data, epochs=1))
    used: dict[bool, list[float]] = {True: [], False: []}
    clock = [0.0]

    def on_round(state: State, records: list[Record], _: float) -> None:
        evaluated = any(r.stage == "personalised" for r in records)
        used[evaluated].append((time.process_time() - clock[0]) / count)
        clock[0] = time.process_time()

    if with_ray:
        from idiolect.engines.ray import Ray

        engine: Any = Ray(1, inner="sequential")
    else:
        engine = Processes(1)
    with engine:
        job = Job(name, build, data, 0)
        state = fit(job, engine, rounds=1, state=begin(build(), count, 0))
        before, clock[0] = resident(), time.process_time()
        fit(job, engine, rounds=11, evaluate_every=2, state=state, on_round=on_round)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / count
    size = tree.nbytes(build().init_server(torch.tensor(0)))
    train, both = (float(np.median(used[evaluated])) for evaluated in (False, True))
    return (
        f"{name}, {model}, {engine.name}: {train * 1e3:.2f} ms a participant, {(both - train) * 1e3:.2f} ms more with "
        f"an evaluation; at its peak {peak / size:.1f} models of {size / 1e6:.2f} MB a participant"
    )


def checkpoint() -> str:
    """A checkpoint of a million clients on disk."""
    with tempfile.TemporaryDirectory() as folder:
        kept = OnDisk(torch.zeros(1), MANY, Path(folder) / "clients")
        state = State(torch.zeros(107_690), kept, 1)
        seconds = spent(lambda: save(state, Path(folder) / "state"), 3)
        size = (Path(folder) / "state").stat().st_size
    return f"checkpoint: {size:,} B and {seconds * 1e3:.0f} ms for {MANY:,} clients and a server of 430,760 B"


def digest() -> str:
    """How a state's version is made, in the ray engine."""
    from idiolect.engines.ray import messages

    state = torch.zeros(107_690)
    return f"version of a state: {spent(lambda: messages.version_of(state), 50) * 1e3 / 0.43076:.2f} ms a MB"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", action="store_true", help="also the rounds through Ray on this machine")
    parts: dict[str, list[Callable[[], str]]] = {
        "draw": [draw], "rows": [rows], "checkpoint": [checkpoint], "digest": [digest],
        "states": [partial(states, m) for m in MODELS], "server": [partial(server, m) for m in MODELS],
        "pairs": [partial(pairs, m) for m in (100, 300, 1000)],
        "rounds": [partial(rounds, n, m, False) for m in MODELS for n in ("fedavg", "ditto")],
    }  # fmt: skip
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all where none is named")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(parts):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(parts)}")
    if asked.ray:
        parts["rounds"] += [partial(rounds, n, "cifar_cnn", True) for n in ("fedavg", "ditto")]
    for part in asked.parts or parts:
        for measure in parts[part]:
            with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as fresh:
                print(fresh.submit(measure).result(), flush=True)


if __name__ == "__main__":
    main()
