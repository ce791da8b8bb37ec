"""Seeds side by side over the same workers: how busy they are, and what it gains, in turns.

FedPAC and pFedFDA with three seeds on the bundled digits, 20 clients, 5 of them in each of 20 rounds: small rounds,
between which workers would wait for the server.

    python benchmarks/study.py [--turns 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import idiolect as idl
from idiolect.engines import Processes
from idiolect.studies import Study


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    study = Study(methods=["fedpac", "pfedfda"], seeds=[0, 1, 2], rounds=20, participation=0.25)
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(asked.turns):
            for lanes, found in runs.items():
                Processes.lanes = lanes
                result = idl.run(study, Path(folder) / f"{turn}-{lanes}", engine="processes")
                found.append(result.runs[-1])
    for lanes, found in runs.items():
        busy, seconds = (statistics.median(r[k] for r in found) for k in ("busy", "seconds"))
        print(f"{lanes} at a time: {found[0]['workers']} workers busy {busy:.0%} of {seconds:.1f} s")
    gains = [a["seconds"] / b["seconds"] for a, b in zip(runs[1], runs[2], strict=True)]
    print(f"side by side {statistics.median(gains):.2f} times as fast ({min(gains):.2f} to {max(gains):.2f})")


if __name__ == "__main__":
    main()
