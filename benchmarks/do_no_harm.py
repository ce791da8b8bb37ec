"""Does a site that joins ever lose by what it is given? Simulated joins, with the truth on samples that nobody saw.

One study of each data set trains every method on the first half of the samples. A new site then draws its classes from
Dirichlet(0.3), some of the other half as its own samples, and joins. The truth is the accuracy of each model on the
rest of the other half, weighted to the site's classes. Every site of a run is the same for all methods.

    python benchmarks/do_no_harm.py [--sites 20] [--seed 0] [--out joins.csv] [--datasets digits,fashion_mnist]
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import idiolect as idl
from idiolect.data.shifts import SHIFTS, Who
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.harm import Name
from idiolect.deploy.join import candidates_of
from idiolect.deploy.samples import Samples

METHODS = "fedavg_ft,fedrep,fedpac,fedlda,pfedfda,knnper"
SIZES = {"digits": (20, 35, 50, 75, 100, 150), "fashion_mnist": (20, 50, 100, 200, 400, 600)}
STUDY: dict[str, dict[str, Any]] = {
    "digits": {"rounds": 20, "local_epochs": 5, "batch_size": 10},
    "fashion_mnist": {"rounds": 15, "local_epochs": 2, "sizes": 200},
}
SHIFTED = ("", "", "rotate:degrees=90", "invert", "noise:std=0.3")


class Site(NamedTuple):
    """A new site and the samples that measure its models."""

    samples: Samples
    test: Samples
    weight_R: torch.Tensor
    """Of each test sample: the site's classes count as they do at the site."""
    shift: str


def halves(dataset: str, seed: int) -> tuple[idl.data.Source, Samples]:
    """The samples that clients train on, and the others."""
    source = idl.data.load(dataset, None)
    order = np.random.default_rng(seed).permutation(len(source.y_R))
    most = 20_000
    one, other = order[: len(order) // 2][:most], order[len(order) // 2 :][:most]
    trained = idl.data.from_arrays(
        source.x_R[one].numpy(), source.y_R[one].numpy(), name=dataset, class_names=list(source.class_names)
    )
    return trained, Samples(source.x_R[other].clone(), source.y_R[other].clone())


def site(pool: Samples, size: int, shift: str, rng: np.random.Generator) -> Site:
    """A site of this many samples of at least two classes."""
    classes = int(pool.y_N.max()) + 1
    label_N = pool.y_N.numpy()
    while True:
        share_C = rng.dirichlet([0.3] * classes)
        count_C = rng.multinomial(size, share_C)
        room_C = np.bincount(label_N, minlength=classes)
        if (count_C > 0).sum() >= 2 and (count_C <= room_C * 3 // 4).all():
            break
    rows = np.concatenate([rng.permutation(np.flatnonzero(label_N == c))[:n] for c, n in enumerate(count_C)])
    left = np.setdiff1d(np.arange(len(label_N)), rows)
    x_R, y_R = pool.x_N.numpy(), label_N
    if shift:
        name, _, options = shift.partition(":")
        given = {k: float(v) for k, v in (pair.split("=") for pair in options.split(",") if pair)}
        who = Who(0, 0, classes, lambda *path: np.random.default_rng(0))
        x_R, y_R, _ = SHIFTS[name](x_R, y_R, who, np.random.default_rng(int(rng.integers(2**31))), **given)
    x, y = torch.from_numpy(np.ascontiguousarray(x_R)), torch.from_numpy(np.ascontiguousarray(y_R))
    test = Samples(x[left], y[left])
    seen_C = torch.bincount(test.y_N, minlength=classes).clamp(min=1)
    weight_C = torch.from_numpy(share_C) / seen_C
    return Site(Samples(x[rows], y[rows]), test, weight_C[test.y_N], shift)


def truth(model: Any, method: Any, site: Site) -> float:
    """The accuracy of a model at a site."""
    right = log_probabilities(model, method, site.test.x_N).argmax(1) == site.test.y_N
    return float((right * site.weight_R).sum() / site.weight_R.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20, help="of each data set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--datasets", default="digits,fashion_mnist")
    parser.add_argument("--out", type=Path, default=Path("joins.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for dataset in args.datasets.split(","):
            rows += joins(dataset, Path(folder), args)
            with args.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    table(rows)


def joins(dataset: str, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method at every site of one data set."""
    source, pool = halves(dataset, args.seed)
    # ten rows a class at least, and no class at all for some: the sites are as unlike as the clients
    study = idl.Study(
        name=dataset, data=source, clients=20, partition="dirichlet:alpha=0.3", methods=args.methods,
        seeds=[args.seed], **STUDY[dataset],
    )  # fmt: skip
    result = idl.run(study, folder / dataset)
    print(result.accuracy())
    rng = np.random.default_rng([args.seed, len(dataset)])
    sites = [
        site(pool, SIZES[dataset][k % len(SIZES[dataset])], SHIFTED[k % len(SHIFTED)], rng) for k in range(args.sites)
    ]
    rows = []
    for use in study.methods:
        bundle: Bundle = result.bundle(use.label, folder / f"{dataset}-{use.label}")
        for k, one in enumerate(sites):
            found = candidates_of(bundle, one.samples, client=bundle.about.clients + k)
            down, weights = bundle.model().down, found.choice.weights
            models: dict[str, Mapping[Name, float]] = {name: {name: 1.0} for name in found.clients}
            models["ships"] = weights
            true = {
                name: truth(Personal(down, found.client(w)), bundle.method_of(w), one) for name, w in models.items()
            }
            stated = found.choice.difference["blend"]
            rows.append({
                "dataset": dataset, "method": use.label, "site": k, "samples": len(one.samples.y_N), "shift": one.shift,
                **{name: true.get(name) for name in ("global", "personal", "local", "ships")},
                "low": stated.low, "high": stated.high,
                **{f"weight_{name}": weights.get(name, 0.0) for name in ("global", "personal", "local")},
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    """How often what shipped was worse than another model, and by how much."""
    print("| data | samples | joins | > 2 points below the best | mean gap | global | personal | below the interval |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for dataset in [*dict.fromkeys(r["dataset"] for r in rows), "all"]:
        mine = [r for r in rows if dataset in (r["dataset"], "all")]
        for size in [*sorted({r["samples"] for r in mine}), "all"] if dataset != "all" else ["all"]:
            some = [r for r in mine if size in (r["samples"], "all")]
            best = np.array([max(v for v in (r["global"], r["personal"], r["local"]) if v is not None) for r in some])
            gap = {name: best - np.array([r[name] for r in some]) for name in ("ships", "global", "personal")}
            below = np.mean([r["ships"] - r["global"] < r["low"] for r in some])
            print(
                f"| {dataset} | {size} | {len(some)} | {100 * np.mean(gap['ships'] > 0.02):.1f}% | "
                f"{100 * gap['ships'].mean():.2f} | {100 * gap['global'].mean():.2f} | "
                f"{100 * gap['personal'].mean():.2f} | {100 * below:.1f}% |"
            )


if __name__ == "__main__":
    main()
