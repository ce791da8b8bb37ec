"""FedLDA's ridge and rounding: the same runs as processors of several kinds compute them.

Accuracy in per cent of FedLDA with three ridges and three seeds, on three data sets, with torch's instructions for
AVX-512, for AVX2, and its plainest ones. A cell has the mean over seeds with each, and the largest difference between
two of them with one seed.

    python benchmarks/rounding.py --data-dir FOLDER [--seeds 0,1,2] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

import idiolect as idl

KINDS = ("avx512", "avx2", "default")
RIDGES = (0.1, 0.3, 1.0)
SMALL: dict[str, Any] = {
    "partition": "dominant:share=20", "sizes": [200], "keep": 0.25, "clients": 5, "local_epochs": 5, "batch_size": 10,
    "lr": 0.02, "rounds": 8, "evaluate_every": 4,
}  # fmt: skip
EXAMPLE = Path(__file__).parents[1] / "examples" / "digits_shifts.yaml"
ROUNDS = {"digits": (10, 15, 30), "fashion_mnist": (4, 8), "cifar10": (4, 8)}


def study(dataset: str, ridge: float, seed: int, data_dir: str) -> idl.Study:
    """One run of FedLDA."""
    own = {"methods": [{"name": "fedlda", "options": {"ridge": ridge}}], "seeds": [seed]}
    if dataset == "digits":
        whole = idl.Study.read(EXAMPLE).model_dump()
        return idl.Study(**whole | own)
    return idl.Study(dataset=dataset, data_dir=data_dir, **SMALL, **own)


def measured(dataset: str, ridge: float, seed: int, data_dir: str) -> dict[int, float | None]:
    """Accuracy by round; None from the round on in which it diverged."""
    with tempfile.TemporaryDirectory() as folder:
        run = idl.run(study(dataset, ridge, seed, data_dir), Path(folder) / "run", engine="sequential")
        found = run.records.query("stage == 'personalised' and metric == 'accuracy'")
    mean = 100 * found.groupby("round")["value"].mean()
    return {at: float(mean[at]) if at in mean.index else None for at in ROUNDS[dataset]}


def table(found: dict[str, dict[str, Any]], seeds: list[int]) -> None:
    """Print the whole."""
    print(f"| data | round | {' | '.join(f'ridge {ridge:g}' for ridge in RIDGES)} |")
    print("| --- " * (2 + len(RIDGES)) + "|")
    for dataset, rounds in ROUNDS.items():
        for at in rounds:
            cells = []
            for ridge in RIDGES:
                value_KS = [[found[kind][f"{dataset} {ridge:g} {seed}"][str(at)] for seed in seeds] for kind in KINDS]
                ended = sum(value is None for row in value_KS for value in row)
                whole = [column for column in zip(*value_KS, strict=True) if None not in column]
                means = ", ".join(f"{sum(row) / len(row):.1f}" for row in zip(*whole, strict=True)) or "-"
                apart = f"{max(max(column) - min(column) for column in whole):.1f}" if whole else "-"
                lost = f", {ended} diverged" if ended else ""
                cells.append(f"{means} ({apart}{lost})")
            print(f"| {dataset} | {at} | {' | '.join(cells)} |")


def main() -> None:
    """Run what is missing, in a process for each kind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("IDIOLECT_DATA", "../shared/data"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("runs/rounding"))
    parser.add_argument("--kind", choices=KINDS, help="one kind alone, in this process")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    args.out.mkdir(parents=True, exist_ok=True)
    if args.kind:
        torch.set_num_threads(1)
        place = args.out / f"{args.kind}.json"
        found = json.loads(place.read_text()) if place.exists() else {}
        for dataset, ridge, seed in product(ROUNDS, RIDGES, seeds):
            if (name := f"{dataset} {ridge:g} {seed}") not in found:
                found[name] = measured(dataset, ridge, seed, args.data_dir)
                place.write_text(json.dumps(found, indent=1))
        return
    for kind in KINDS:
        # oneDNN chooses by itself, and plainer than AVX2 it hardly is.
        limits = {"ATEN_CPU_CAPABILITY": kind} | ({} if kind == "avx512" else {"ONEDNN_MAX_CPU_ISA": "AVX2"})
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--kind", kind], env=os.environ | limits, check=True)
    table({kind: json.loads((args.out / f"{kind}.json").read_text()) for kind in KINDS}, seeds)


if __name__ == "__main__":
    main()
