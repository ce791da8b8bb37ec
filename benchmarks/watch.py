"""How often does ``idiolect watch`` raise an alarm: where nothing moved, and where something moved by a known amount?

One study trains on the first half of the samples. Each site draws its classes from Dirichlet(1) and its own and its new
samples from the other half, all without replacement, and joins. Then its new samples are changed: rotated, made noisy,
a share of them inverted, or their classes drawn from proportions that lie between the site's and another site's.

    python benchmarks/watch.py [--sites 200] [--new 50] [--level 0.05] [--method pfedfda] [--dataset digits] [--seed 0]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import idiolect as idl
from do_no_harm import STUDY, halves
from idiolect.data.shifts import SHIFTS, Who
from idiolect.deploy import harm
from idiolect.deploy.join import join
from idiolect.deploy.samples import Samples
from idiolect.deploy.watch import WatchResult, watch

SIZES = {"digits": (20, 35, 50, 75, 100, 150), "fashion_mnist": (20, 50, 100, 200, 400, 600)}
POWER = 36  # sites of which the shifts are measured
CHANGES: dict[str, tuple[float, ...]] = {
    "rotate:degrees": (10, 20, 45, 90),
    "noise:std": (0.1, 0.2, 0.3, 0.5),
    "invert": (0.1, 0.25, 0.5, 1),
    "classes": (0.25, 0.5, 0.75, 1),
}


def rows(label_N: np.ndarray, class_N: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """A row of each class in turn, none twice; None if there are too few of one."""
    free = {c: list(rng.permutation(np.flatnonzero(label_N == c))) for c in np.unique(label_N)}
    wanted = np.bincount(class_N, minlength=len(free))
    if any(wanted[c] > len(free[c]) for c in free):
        return None
    return np.array([free[c].pop() for c in class_N])


def site(
    pool: Samples, size: int, new: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, dict[float, np.ndarray | None]]:
    """Rows of a site's own samples, of its new ones, and of new ones whose classes changed, by strength."""
    label_N = pool.y_N.numpy()
    classes = int(label_N.max()) + 1
    while True:
        share_C, other_C = rng.dirichlet([1.0] * classes, 2)
        both = rows(label_N, rng.choice(classes, size + new, p=share_C), rng)
        if both is None or len(np.unique(label_N[both[:size]])) < 2:
            continue
        left = np.setdiff1d(np.arange(len(label_N)), both[:size])
        moved = {}
        for s in CHANGES["classes"]:
            found = rows(label_N[left], rng.choice(classes, new, p=(1 - s) * share_C + s * other_C), rng)
            moved[s] = None if found is None else left[found]
        if all(m is not None for m in moved.values()):
            return both[:size], both[size:], moved


def changed(x_N: torch.Tensor, y_N: torch.Tensor, change: str, strength: float, seed: int) -> torch.Tensor:
    """Samples after a change of this strength."""
    name, _, option = change.partition(":")
    classes = int(y_N.max()) + 1
    who = Who(0, 0, classes, lambda *path: np.random.default_rng(0))
    given = {option: strength} if option else {}
    x, _, _ = SHIFTS[name](x_N.numpy(), y_N.numpy(), who, np.random.default_rng(seed), **given)
    made = torch.from_numpy(np.ascontiguousarray(x))
    if not option:
        kept = round((1 - strength) * len(made))
        made[:kept] = x_N[:kept]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=200, help="without change")
    parser.add_argument("--new", type=int, default=50, help="new samples")
    parser.add_argument("--level", type=float, default=0.05)
    parser.add_argument("--method", default="pfedfda")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    harm.FEW_FOR_LOCAL = 10**9  # a local model would take nearly all of the time
    found: dict[tuple[str, float, int], list[WatchResult]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, pool = halves(args.dataset, args.seed)
        study = idl.Study(
            name=args.dataset, data=source, clients=20, partition="dirichlet:alpha=0.3", methods=[args.method],
            seeds=[args.seed], **STUDY[args.dataset],
        )  # fmt: skip
        bundle = idl.run(study, folder / "run").bundle(args.method, folder / "bundle")
        rng = np.random.default_rng(args.seed)
        for k in range(args.sites):
            size = SIZES[args.dataset][k % len(SIZES[args.dataset])]
            own, new, moved = site(pool, size, args.new, rng)
            made = join(bundle, Samples(pool.x_N[own], pool.y_N[own]), folder / "site", client=bundle.about.clients + k)
            found["nothing", 0, size].append(watch(made, pool.x_N[new], level=args.level))
            for change, strengths in CHANGES.items() if k < POWER else ():
                for s in strengths:
                    x_M = (
                        pool.x_N[moved[s]] if change == "classes"
                        else changed(pool.x_N[new], pool.y_N[new], change, s, k)
                    )  # fmt: skip
                    found[change, s, size].append(watch(made, x_M, level=args.level))
            shutil.rmtree(folder / "site")
    table(found)


def table(found: dict[tuple[str, float, int], list[WatchResult]]) -> None:
    """The share of alarms by change, strength and number of own samples."""
    print("| change | strength | own samples | sites | alarm | features | classes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    sizes = sorted({size for _, _, size in found})
    for change, s in dict.fromkeys((change, s) for change, s, _ in found):
        for size in [*sizes, "all"] if change == "nothing" else ["all"]:
            some = [w for (c, t, n), ws in found.items() if (c, t) == (change, s) and size in (n, "all") for w in ws]
            signs = [(w.alarm, w.features.moved, w.labels is not None and w.labels.moved) for w in some]
            rate = np.mean(signs, axis=0)
            print(f"| {change} | {s:g} | {size} | {len(some)} | " + " | ".join(f"{100 * r:.1f}%" for r in rate) + " |")


if __name__ == "__main__":
    main()
