"""Processor seconds of a round of every method relative to FedAvg, the two in turns, in one run.

Random images, batch 50, 5 local epochs, one process of one thread: by default five clients of 200 rows of 28x28 and
FMNIST-CNN. pFedFDA's Table 6, whose figures stand beside, has ``--model cifar_cnn --rows 500`` (CIFAR-10's training
images over 100 clients). A round is send, local work and aggregation; evaluation is left out. Each is held against the
mean of FedAvg's rounds before and after it. ``--write`` puts the ratios of the default setting into
docs/results/cost.json, from where docs/build.py takes them.

    python benchmarks/methods.py [--methods fedavg,fedpac] [--model cifar_cnn] [--rows 500] [--clients 2] [--turns 7]
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

from common import SHAPES, federation, task
from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.core.reduction import reduced
from idiolect.data import FederatedData
from idiolect.engines import Sequential
from idiolect.simulation import Job, begin

CLIENTS, ROWS, MODEL = 5, 200, "fmnist_cnn"
PAPER = {  # minutes over FedAvg's 61.41: pFedFDA, Table 6 (CIFAR-10, 200 rounds of 30 clients, one GPU)
    "FedAvg": 1.0, "APFL": 1.16, "Ditto": 1.09, "FedBABU": 0.95, "FedRep": 1.90, "FedPAC": 2.38, "pFedFDA": 1.27,
}  # fmt: skip
OUT = Path(__file__).parents[1] / "docs" / "results" / "cost.json"


def setting(model: str, rows: int, clients: int = CLIENTS) -> str:
    """In words."""
    return f"{clients} clients, {rows} samples, {model.upper().replace('_', '-')}, one thread"


class Rounds:
    """A method that is timed round after round, each from where the last one ended."""

    def __init__(self, name: str, options: dict[str, Any], data: FederatedData, model: str = MODEL) -> None:
        self.job = Job(name, partial(methods.build, name, options, task(model, data)), data, 0)
        self.method: Method = self.job.build()
        self.server, clients, self.number = begin(self.method, data.clients, 0)
        self.clients = list(clients)
        self.loop = Sequential().open(self.job)

    def one(self) -> float:
        """Processor seconds of the next round, which other programs on the machine touch least."""
        self.number += 1
        ids = list(range(len(self.clients)))
        start = time.process_time()
        down = self.method.send(self.server, torch.tensor(ids))
        trained: Any = self.loop.map("local", self.number, ids, down, self.clients, lambda: False)
        up = tree.stack([t.up for t in trained])
        self.server, _ = self.method.aggregate(self.server, reduced(self.method.reduce, up), torch.tensor(ids))
        seconds = time.process_time() - start
        self.clients = [t.client for t in trained]
        return seconds


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="separated by commas; all of them unless given")
    parser.add_argument("--model", choices=list(SHAPES), default=MODEL)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--turns", type=int, default=7, help="rounds of each, after one that is not counted")
    parser.add_argument("--write", action="store_true", help=f"keep the ratios in {OUT.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, rows, clients = arguments.model, arguments.rows, arguments.clients
    data, keep = federation(clients, rows, SHAPES[model]), arguments.write
    print(setting(model, rows, clients))
    if keep and (model, rows, clients) != (MODEL, ROWS, CLIENTS):
        parser.error(f"{OUT.name} is about {setting(MODEL, ROWS)}: leave out --write")
    about = {"rounds": arguments.turns, "setting": setting(model, rows)}
    kept = {}
    if keep and arguments.methods and OUT.exists():
        before = json.loads(OUT.read_text())
        if before["about"] != about:
            parser.error(f"{OUT.name} holds medians of {before['about']['rounds']} rounds: measure all methods anew")
        kept = before["methods"]
    for name in arguments.methods.split(",") if arguments.methods else sorted(methods.ours()):
        for title, options in methods.get(name).forms.items():
            mine, fedavg = (Rounds(n, methods.settle(n, o), data, model) for n, o in ((name, options), ("fedavg", {})))
            mine.one(), fedavg.one()
            theirs, ratios = [fedavg.one()], []
            for _ in range(arguments.turns):
                seconds = mine.one()
                theirs.append(fedavg.one())
                ratios.append(2 * seconds / (theirs[-2] + theirs[-1]))
            kept[title] = round(statistics.median(ratios), 3)
            paper = f"   paper {PAPER[title]:.2f}" if title in PAPER else ""
            print(f"{title:16} {kept[title]:6.2f}   ({min(ratios):.2f} to {max(ratios):.2f}){paper}", flush=True)
    if keep:
        OUT.write_text(json.dumps({"about": about, "methods": dict(sorted(kept.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
