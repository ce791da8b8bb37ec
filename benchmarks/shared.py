"""Uses that train alike, in one study and in studies of their own, in turns.

FedAvg, FedAvg-FT and kNN-Per on the bundled digits, 20 clients: they train once where they are together.

    python benchmarks/shared.py [--turns 3] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import idiolect as idl


def seconds(studies: list[idl.Study], folder: Path) -> float:
    """Seconds of the runs, on one thread."""
    start = time.perf_counter()
    for number, study in enumerate(studies):
        idl.run(study, folder / str(number), engine="sequential")
    return time.perf_counter() - start


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    together = idl.Study(methods=["fedavg", "fedavg_ft", "knnper"], model="mlp", rounds=asked.rounds)
    apart = [together.model_copy(update={"methods": (use,)}) for use in together.methods]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        seconds([together], Path(folder) / "first")
        for turn in range(asked.turns):
            place = Path(folder) / str(turn)
            ratios.append(seconds(apart, place / "apart") / seconds([together], place / "together"))
    print(
        f"{', '.join(use.name for use in together.methods)}: one study is {statistics.median(ratios):.2f} times as "
        f"fast as three ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
