"""Rounds on the features of a frozen backbone: a whole run of each method, measured after its last round.

    python benchmarks/pretrained_rounds.py FOLDER TEXTS.csv [--rounds 50] [--methods fedavg,fedpac] [--workers 2]

FOLDER and TEXTS.csv are those of benchmarks/pretrained.py. Twenty clients, Dir(0.3), 5 local epochs in batches of 50,
``body=identity``. Features are computed before the first run unless they are in the usual cache ($XDG_CACHE_HOME);
that takes minutes for some thousand texts. A run lasts from its call to its result, with workers that start and a page
that is drawn; "rounds" is from the first round's start to the last one's end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pandas as pd

import idiolect as idl
from idiolect import data


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("table", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--methods", default="fedavg,fedpac,pfedfda,fedshrink")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    frame = pd.read_csv(asked.table, header=None)
    texts = frame[frame.columns[1:]].agg("\n".join, axis=1).tolist()
    study = idl.Study(
        data=data.from_arrays(texts, frame[0].to_numpy(), tokens=f"hf:{asked.folder}"), model=f"hf:{asked.folder}",
        partition="dirichlet:alpha=0.3", clients=20, rounds=asked.rounds, evaluate_every=asked.rounds,
        methods=asked.methods,
    )  # fmt: skip
    begun = time.perf_counter()
    fed = study.federation()
    d = fed.x_R.shape[1]
    print(f"{len(texts):,} texts, d = {d}: features ready after {time.perf_counter() - begun:.1f} s", flush=True)
    print(f"{'':12}{'run s':>8}{'rounds s':>10}{'x FedAvg':>10}{'accuracy %':>12}")
    first = 0.0
    for use in study.methods:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            one = study.with_methods([use])
            result = idl.run(one, out=Path(folder, "run"), engine="processes", workers=asked.workers)
            seconds = time.perf_counter() - begun
            sat = json.loads((result.folder / "engine.json").read_text())[-1]["seconds"]
            accuracy = result.rows()[0].accuracy or 0.0
        first = first or sat
        print(f"{use.label:12}{seconds:8.1f}{sat:10.1f}{sat / first:10.2f}{100 * accuracy:12.2f}", flush=True)


if __name__ == "__main__":
    main()
