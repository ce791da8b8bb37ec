"""What each method takes beside images with one class each: found out by building it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from idiolect import methods
from idiolect.core.errors import InputError
from idiolect.core.method import AdamW, Task, Training
from idiolect.core.network import Network
from idiolect.core.objectives import OBJECTIVES, TaskName
from idiolect.training.server_optimisers import ServerMomentum

COLUMNS = ("numbers", "several labels", "class weights", "AdamW", "weights that stay", "server optimiser")


def _task(network: Network, classes: int, clients: int, kind: TaskName = "classification") -> Task:
    how = OBJECTIVES[kind]
    training = Training(epochs=1)
    return Task(network, classes, clients, training, loss=how.loss, output=how.output, mixture=how.mixture, kind=kind)


def rows(network: Network, classes: int, clients: int) -> list[str]:
    """A table: a row for each method, with a mark for what it takes."""
    plain = _task(network, classes, clients)
    weighted = replace(plain, loss=lambda *given: plain.loss(*given))  # any other than the usual one
    steps = replace(plain, training=Training(epochs=1, optimiser=AdamW()))
    numbers, labels = (_task(network, classes, clients, kind) for kind in ("regression", "multilabel"))
    tried: tuple[tuple[Task, dict[str, Any]], ...] = (
        (numbers, {}), (labels, {}), (weighted, {}), (steps, {}), (plain, {"personal_weights": "body.*bias"}),
        (plain, {"server": ServerMomentum()}),
    )  # fmt: skip
    out = [f"| method | {' | '.join(COLUMNS)} |", "| :-- |" + " :-: |" * len(COLUMNS)]
    for name in sorted(methods.ours()):
        marks = ["yes" if _can(partial(methods.build, name, {}, task, **how)) else "" for task, how in tried]
        out.append(f"| {methods.get(name).title} | {' | '.join(marks)} |")
    return out


def _can(build: Callable[[], Any]) -> bool:
    try:
        build()
    except InputError:
        return False
    return True
