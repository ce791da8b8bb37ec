"""What the benchmarks share: synthetic federations, and the memory of a program with its workers."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import torch

from idiolect import models
from idiolect.core import shared_memory
from idiolect.core.method import SGD, Task, Training
from idiolect.data import FederatedData
from idiolect.training import Preprocessing

CLASSES = 10
SHAPES = {"fmnist_cnn": (1, 28, 28)} | dict.fromkeys(
    ("cifar_cnn", "fedcr_cifar_cnn", "resnet18_cifar", "wrn16_2"), (3, 32, 32)
)


def federation(clients: int, rows: int, shape: tuple[int, ...], test_rows: int = 1) -> FederatedData:
    """Random images with labels in turn: neither speed nor memory sees what is on them."""
    numbers = torch.arange(clients * (rows + test_rows)).view(clients, rows + test_rows)
    draw = torch.Generator().manual_seed(0)
    x_R, file = shared_memory.shared(torch.empty(0, *shape, dtype=torch.uint8), numbers.numel())
    torch.randint(256, x_R.shape, dtype=torch.uint8, generator=draw, out=x_R)
    return FederatedData(
        name="random", x_R=x_R, file=file, y_R=torch.arange(numbers.numel()) % CLASSES, classes=CLASSES,
        train=tuple(n[:rows] for n in numbers), test=tuple(n[rows:] for n in numbers),
        class_names=tuple("0123456789"), mean=(0.5,) * shape[0], std=(0.3,) * shape[0], shifts=("",) * clients,
    )  # fmt: skip


def task(model: str, data: FederatedData, epochs: int = 5) -> Task:
    """A network by name, batch 50, the usual rates."""
    network = models.build(model, SHAPES[model], CLASSES)
    return Task(network, CLASSES, data.clients, Training(epochs, 50, SGD()), Preprocessing(data.mean, data.std))


def resident(pid: int | None = None) -> int:
    """Bytes of a process, this one by default, and all below it; pages that they share count once (Linux)."""
    processes, total = [Path(f"/proc/{pid or os.getpid()}")], 0
    for process in processes:  # the list grows as it is read
        with suppress(OSError):
            processes += [Path(f"/proc/{c}") for p in process.glob("task/*/children") for c in p.read_text().split()]
    for process in processes:
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
            total += next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):  # it has ended
            continue
    return total


class Peak:
    """The most memory that this program and its workers hold at a time, sampled every 50 ms."""

    def __init__(self) -> None:
        self.bytes, self._over = resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, resident())
