"""Seconds of a round of every method relative to FedAvg, the two in turns, in one run.

Five clients of 200 rows of random 28x28 images, FMNIST-CNN, batch 50, 5 local epochs, one process of one thread. A
round is send, local work and aggregation; evaluation is left out. Results go to docs/results/cost.json, from where
docs/build.py takes them.

    python benchmarks/methods.py [--methods fedavg,fedpac] [--turns 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from idiolect import methods, models, tree
from idiolect.data import FederatedData
from idiolect.engines import Job, Sequential, State, begin
from idiolect.method import SGD, Method, Task, Training

CLIENTS, ROWS, CLASSES, SHAPE, MODEL = 5, 200, 10, (1, 28, 28), "fmnist_cnn"
OUT = Path(__file__).parents[1] / "docs" / "results" / "cost.json"
SETTING = "5 clients, 200 rows, FMNIST-CNN, one thread"


def federation() -> FederatedData:
    """Random images with labels in turn: speed does not see what is on them."""
    rows = CLIENTS * ROWS
    numbers = tuple(torch.arange(rows).view(CLIENTS, ROWS))
    x_R = torch.randint(256, (rows, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return FederatedData(
        name="random", x_R=x_R, y_R=torch.arange(rows) % CLASSES, train=numbers, test=numbers, classes=CLASSES,
        class_names=tuple("0123456789"), mean=(0.5,), std=(0.3,), shifts=("",) * CLIENTS,
    )  # fmt: skip


class Rounds:
    """A method that is timed round after round, each from where the last one ended."""

    def __init__(self, name: str, options: dict[str, Any], data: FederatedData) -> None:
        task = Task(models.build(MODEL, SHAPE, CLASSES), CLASSES, CLIENTS, Training(5, 50, SGD()), data.mean, data.std)
        self.job = Job(name, partial(methods.build, name, options, task), data, 0)
        self.method: Method = self.job.build()
        self.state: State = begin(self.method, CLIENTS, 0)
        self.engine = Sequential()
        self.engine.open(self.job)

    def one(self) -> float:
        """Seconds of the next round."""
        ids, (server, clients, number) = list(range(CLIENTS)), self.state
        start = time.perf_counter()
        down = self.method.send(server, torch.tensor(ids))
        trained: Any = self.engine.map("local", number + 1, ids, down, clients, lambda: False)
        server, _ = self.method.aggregate(server, tree.stack([t.up for t in trained]), torch.tensor(ids))
        seconds = time.perf_counter() - start
        self.state = State(server, [t.client for t in trained], number + 1)
        return seconds


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="separated by commas; all of them unless given")
    parser.add_argument("--turns", type=int, default=5, help="rounds of each, after one that is not counted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = federation()
    about = {"rounds": arguments.turns, "setting": SETTING}
    kept = {}
    if arguments.methods and OUT.exists():
        before = json.loads(OUT.read_text())
        if before["about"] != about:
            parser.error(f"{OUT.name} holds medians of {before['about']['rounds']} rounds: measure all methods anew")
        kept = before["methods"]
    for name in arguments.methods.split(",") if arguments.methods else sorted(methods.ours()):
        for title, options in methods.get(name).forms.items():
            mine, fedavg = (Rounds(n, methods.settle(n, o), data) for n, o in ((name, options), ("fedavg", {})))
            mine.one(), fedavg.one()
            ratios = [mine.one() / fedavg.one() for _ in range(arguments.turns)]
            kept[title] = round(statistics.median(ratios), 3)
            print(f"{title:16} {kept[title]:6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    OUT.write_text(json.dumps({"about": about, "methods": dict(sorted(kept.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
