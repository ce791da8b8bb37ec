"""How long it takes to divide, shift and open data, and what a run holds in memory beside one copy of its rows.

    python benchmarks/data.py [divide] [corrupt] [open] [memory]

``divide``: every partition, 1,000 clients over 60,000 synthetic rows, ten classes. ``corrupt``: pFedFDA's 50 corrupted
clients of 100, the first time and from the cache. ``open``: a cached set of 60,000 images. ``memory``: two rounds of
FedAvg-FT with two workers over 60,000 rows, for 20 and for 1,000 clients, as proportional set size (Linux: what
processes share counts once), beside the same run with next to no rows. ``corrupt``, ``open`` and ``memory`` need
CIFAR-10 and Fashion-MNIST: set IDIOLECT_DATA, or they are made up of noise.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch

from common import Peak, task
from idiolect import data, methods
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import Column, Source
from idiolect.engines import Processes
from idiolect.simulation import Job, fit

ROWS, CLASSES, CLIENTS = 60_000, 10, 1_000


def made_up(rows: int, shape: tuple[int, ...] = (1, 1, 1)) -> Source:
    """Rows of noise, in five domains and 1,000 hospitals."""
    rng = np.random.default_rng(0)
    columns = {
        "domain": Column(np.arange(rows) % 5, tuple("abcde")),
        "hospital": Column(np.arange(rows) % CLIENTS, tuple(f"{k:04}" for k in range(CLIENTS))),
    }
    x_R = torch.from_numpy(rng.integers(0, 256, (rows, *shape), dtype=np.uint8))
    y_R = torch.from_numpy(np.arange(rows) % CLASSES)
    about = (CLASSES, tuple("0123456789"), (0.5,) * shape[0], (0.3,) * shape[0], rows * 6 // 7)
    return Source("noise", x_R, y_R, *about, columns=columns, client_column="hospital")


def real(name: str, shape: tuple[int, ...]) -> Source:
    """A set by name, or noise of its size."""
    if os.environ.get("IDIOLECT_DATA"):
        return data.load(name)
    return made_up(ROWS, shape)


def seconds(do: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def divide() -> None:
    """Every partition."""
    source = made_up(ROWS, (1, 4, 4))
    print(f"{CLIENTS:,} clients over {ROWS:,} rows, seconds")
    for spec in (
        "iid", "dirichlet:alpha=0.5,min_rows=5", "dirichlet:alpha=0.1", "dirichlet_fixed:alpha=0.1,rows=60",
        "dirichlet_fixed:alpha=0.5,rows=null", "classes", "classes:draw=random", "dominant:test_size=5",
        "dominant:official_quirks=true", "pathological:test_size=5", "natural:column=hospital",
        "domains:column=domain,inside=iid",
    ):  # fmt: skip
        sizes = [30] if spec.startswith(("dominant:test", "pathological")) else []
        note = ""

        def build(spec: str = spec, sizes: list[int] = sizes) -> None:
            nonlocal note
            try:
                data.build(source, Spec.parse(spec), (), CLIENTS, 0, sizes=sizes)
            except InputError as error:
                note = f"   ({error})"

        print(f"  {spec:36}{seconds(build):8.2f}{note}")


def corrupt() -> None:
    """The 50 corrupted clients of CIFAR10-S."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        source = real("cifar10", (3, 32, 32))
        build = partial(
            data.build, source, Spec.parse("dirichlet:alpha=0.5"), [Spec.parse("corrupt:clients=0-49")], 100
        )
        print("50 corrupted clients of 100, CIFAR-10, seconds")
        print(f"  the first time                      {seconds(build):8.2f}")
        print(f"  from the cache                      {seconds(build):8.2f}")


def opened() -> None:
    """A cached set."""
    if not os.environ.get("IDIOLECT_DATA"):
        print("open: set IDIOLECT_DATA to a folder with fashion_mnist")
        return
    data.load("fashion_mnist")
    print("a cached set of 70,000 images, seconds")
    print(f"  fashion_mnist                       {seconds(lambda: data.load('fashion_mnist')):8.2f}")


def run(rows: int, clients: int) -> tuple[int, int]:
    """Bytes of the rows, and the most that two rounds held."""
    whole = real("cifar10", (3, 32, 32))
    source = Source(
        "some", whole.x_R[:rows], whole.y_R[:rows], CLASSES, *(whole.class_names, whole.mean, whole.std), rows
    )
    del whole
    federation = data.build(source, Spec.parse("iid"), (), clients, 0)
    del source
    build = partial(
        methods.build, "fedavg_ft", methods.settle("fedavg_ft", {}), task("cifar_cnn", federation, epochs=1)
    )
    with Peak() as peak, Processes(2) as engine:
        fit(Job("fedavg_ft", build, federation, 0), engine, rounds=2, participation=min(1.0, 20 / clients))
    return federation.x_R.numel(), peak.bytes


def memory() -> None:
    """Rows and what is held beside them."""
    print(f"{'two rounds, two workers, MB':36}{'rows':>8}{'held':>8}{'beside the rows':>17}{'more than no rows':>19}")
    base = None
    for rows, clients in ((400, 20), (ROWS, 20), (ROWS, 1_000)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            size, most = fresh.submit(run, rows, clients).result()
        base = base or most
        beside = most - size
        print(
            f"  {clients:,} clients, {rows:,} rows".ljust(36)
            + f"{size / 1e6:8.0f}{most / 1e6:8.0f}{beside / 1e6:17.0f}{(beside - base) / 1e6:19.0f}"
        )


def main() -> None:
    """Command line."""
    torch.set_num_threads(1)
    parts = {"divide": divide, "corrupt": corrupt, "open": opened, "memory": memory}
    for name in sys.argv[1:] or parts:
        if name not in parts:
            sys.exit(f"unknown part {name!r}; known: {', '.join(parts)}")
        parts[name]()


if __name__ == "__main__":
    main()
