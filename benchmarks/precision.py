"""bfloat16 beside float32: seconds of a training step, and the accuracy of paired runs.

    python benchmarks/precision.py [steps] [--models fmnist_cnn,cifar_cnn] [--turns 5]
    python benchmarks/precision.py pairs --out FOLDER --data-dir DIR [--rounds 30] [--seeds 0,1,2] [--hours 5]

``steps``: a client's local training with FedAvg, batch 50, on one thread, with the two precisions in turns, so that a
noisy machine hits both. ``pairs``: the setting of FedPAC's Table 1 with 20 clients, each method and seed with both
precisions, on one thread. It continues where it stopped. Accuracies are kept in precision.json beside this file, and
what that has is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import idiolect as idl
from common import CLASSES, SHAPES, federation, task
from idiolect import methods, models
from idiolect.core.errors import Interrupted
from idiolect.core.network import Precision
from idiolect.reproduction import recipes
from idiolect.simulation import Job
from idiolect.simulation.client_runner import ClientRunner

KEPT = Path(__file__).with_suffix(".json")
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")
BATCHES = {"wrn16_2": 2, "resnet18_cifar": 1}  # of 50 samples; networks that are not here have 12


def local(model: str, precision: Precision) -> Callable[[], float]:
    """A function that trains a client for an epoch and returns the seconds of a step."""
    steps = BATCHES.get(model, 12)
    data = federation(1, 50 * steps, SHAPES[model])
    whole = replace(task(model, data, 1), network=models.build(model, SHAPES[model], CLASSES, precision))
    job = Job("fedavg", partial(methods.build, "fedavg", {}, whole), data, 0)
    site = ClientRunner(job)
    down, ids = site.method.send(site.method.init_server(torch.tensor(0)), torch.tensor([0])), [0]

    def seconds() -> float:
        start = time.perf_counter()
        site.run("local", 1, ids, down, [()])
        return (time.perf_counter() - start) / steps

    return seconds


def steps(names: list[str], turns: int) -> None:
    """Print both times and their ratio."""
    torch.set_num_threads(1)
    for name in names:
        runs = [local(name, precision) for precision in PRECISIONS]
        for run in runs:
            run()
        pairs = [[run() for run in runs] for _ in range(turns)]
        plain, half = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = sorted(a / b for a, b in pairs)
        print(
            f"{name}: float32 {plain:.1f} ms, bf16 {half:.1f} ms a step, {statistics.median(ratios):.2f} times as fast "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def studies(asked: argparse.Namespace) -> Iterator[tuple[tuple[str, str, int], str, idl.Study]]:
    """(data set, method, seed), precision, study: pairs side by side, all methods of a seed before the next seed."""
    cells = recipes.get("fedpac/table1").cells
    for seed, dataset, method in itertools.product(
        map(int, asked.seeds.split(",")), asked.datasets.split(","), asked.methods.split(",")
    ):
        wanted = {"dataset": dataset, "clients": 20, "method": method}
        made = next(c.study for c in cells if c.where == wanted)
        assert made is not None
        for precision in PRECISIONS:
            changed = {"seeds": (seed,), "rounds": asked.rounds, "precision": precision, "data_dir": asked.data_dir}
            yield (dataset, method, seed), precision, made.model_copy(update=changed)


def pairs(asked: argparse.Namespace) -> None:
    """Run what is left, one run after another, and keep the accuracies."""
    ends = time.monotonic() + 3600 * asked.hours
    for key, precision, study in studies(asked):
        name = "-".join(map(str, (*key, f"{asked.rounds} rounds", precision)))
        if name in kept():
            continue
        left = ends - time.monotonic()
        if left <= 0:
            break
        try:
            result = idl.run(study, asked.out / name, engine="sequential", resume=True, budget=left)
        except Interrupted as stopped:
            print(stopped)
            break
        accuracy = float(result.accuracy().iloc[0])
        KEPT.write_text(json.dumps(dict(sorted((kept() | {name: accuracy}).items())), indent=1) + "\n")
        print(name, f"{100 * accuracy:.2f} %", flush=True)
    print(table(asked.rounds))


def kept() -> dict[str, float]:
    """Accuracies by data set, method, seed, rounds and precision."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def table(rounds: int) -> str:
    """Per data set and method the mean accuracy over the seeds that both precisions have, and the differences."""
    lines = [
        f"Accuracy in per cent after {rounds} rounds; difference: bf16 minus float32, points, seed by seed.\n",
        "| data set | method | float32 | bf16 | mean difference | differences |",
        "|---|---|---|---|---|---|",
    ]
    found = {tuple(name.split("-")): 100 * accuracy for name, accuracy in kept().items()}
    mine = {key[:4]: None for key in found if key[3] == f"{rounds} rounds"}
    both = {key: [found[*key, p] for p in PRECISIONS] for key in mine if all((*key, p) in found for p in PRECISIONS)}
    for dataset, method in dict.fromkeys(key[:2] for key in both):
        values = [v for key, v in both.items() if key[:2] == (dataset, method)]
        plain, half = (statistics.mean(column) for column in zip(*values, strict=True))
        apart = ", ".join(f"{b - a:+.2f}" for a, b in values)
        lines.append(f"| {dataset} | {method} | {plain:.2f} | {half:.2f} | {half - plain:+.2f} | {apart} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["steps", "pairs"], default="steps")
    parser.add_argument("--models", default="fmnist_cnn,cifar_cnn,fedcr_cifar_cnn,wrn16_2,resnet18_cifar")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of the paired runs")
    parser.add_argument("--data-dir", help="holds DATASET/{train,test}.parquet; else $IDIOLECT_DATA, else the hub")
    parser.add_argument("--datasets", default="fashion_mnist,cifar10")
    parser.add_argument("--methods", default="fedlda,fedpac,pfedfda,fedcr")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--hours", type=float, default=1e6, help="stop after so many, at a whole round")
    asked = parser.parse_args()
    if asked.what == "steps":
        steps(asked.models.split(","), asked.turns)
    elif asked.out is None:
        parser.error("pairs needs --out")
    else:
        asked.out.mkdir(parents=True, exist_ok=True)
        pairs(asked)


if __name__ == "__main__":
    main()
