"""Whole commands: how long ``idiolect run`` takes beside its rounds, and its memory, for some numbers of clients.

Two rounds on Fashion-MNIST dealt out iid, 2 % of the clients in a round (one at least), one local epoch, everybody
measured after each round. "rounds" are the seconds from the first round's start to the last one's end, as the run
notes them; the rest is what a user waits besides: start, data, page, table. "own" are processor seconds of that rest,
which others' work on the machine changes less. "work" is what the workers did in the rounds, added up; the peak is the
largest process's (Linux). Where Fashion-MNIST is not to be had, that is said and nothing measured.

    python benchmarks/whole.py [--clients 20,1000,10000] [--methods fedavg,ditto] [--data-dir DIR] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from idiolect import data
from idiolect.core.errors import InputError

PROGRAM = """
import sys, time
from idiolect.studies import runner

def measured(self, *given, run=runner.Schedule.run):
    start = time.process_time()
    try:
        run(self, *given)
    finally:
        spent.append(time.process_time() - start)

spent = []
runner.Schedule.run = measured
from idiolect.cli import main
try:
    main(sys.argv[2:])
finally:
    open(sys.argv[1], "w").write(str(time.process_time() - sum(spent)))
"""


def whole(clients: int, method: str, data_dir: Path | None, workers: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        out, own = Path(folder, "run"), Path(folder, "own")
        given = (
            f"run --dataset fashion_mnist --partition iid --clients {clients} --methods {method} --participation 0.02 "
            f"--rounds 2 --local-epochs 1 --workers {workers} --quiet --out {out}"
        ).split() + ([] if data_dir is None else ["--data-dir", str(data_dir)])
        start = time.perf_counter()
        child = os.posix_spawn(
            sys.executable, [sys.executable, "-c", PROGRAM, str(own), *given], dict(os.environ),
            file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
        )  # fmt: skip
        _, status, used = os.wait4(child, 0)
        seconds = time.perf_counter() - start
        if status:
            sys.exit(f"idiolect {' '.join(given)} ended with {os.waitstatus_to_exitcode(status)}")
        sat = json.loads((out / "engine.json").read_text())[-1]
        work = sat["busy"] * sat["seconds"] * sat["workers"]
        page, peak = (out / "report.html").stat().st_size / 1e6, used.ru_maxrss * 1024 / 1e6
        rest = seconds - sat["seconds"]
        return (
            f"{method:8}{clients:8,}{seconds:9.1f}{sat['seconds']:9.1f}{rest:8.1f}{float(own.read_text()):8.1f}"
            f"{work:11.1f}{peak:9.0f}{page:9.2f}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="20,1000,10000")
    parser.add_argument("--methods", default="fedavg,ditto")
    parser.add_argument(
        "--data-dir", type=Path, help="holds fashion_mnist/{train,test}.parquet; else $IDIOLECT_DATA, else the hub"
    )
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    try:
        data.load("fashion_mnist", asked.data_dir)
    except InputError as error:
        print(f"Not yet measured: {error}.")
        return
    load = os.getloadavg()[0]
    print(f"{load:.0f} other programs wanted a processor at the start" if load >= 1 else "the machine was idle")
    print(
        f"{'':8}{'clients':>8}{'whole s':>9}{'rounds':>9}{'rest':>8}{'own':>8}{'work':>11}{'peak MB':>9}{'page MB':>9}"
    )
    for method in asked.methods.split(","):
        for clients in map(int, asked.clients.split(",")):
            print(whole(clients, method, asked.data_dir, asked.workers), flush=True)


if __name__ == "__main__":
    main()
