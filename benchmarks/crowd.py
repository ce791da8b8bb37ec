"""A whole command with very many clients: its memory, and its seconds beside the rounds.

100,000 clients of 20 samples of synthetic features (two Gaussian classes of ten, unlike for each client), 0.2 % of them
in a round, participants evaluated, ten rounds, two workers. "rounds" are the seconds of all jobs as the run notes them;
the rest is what a user waits besides. The peak is that of all processes together, sampled every 0.2 s; pages that they
share count once (Linux).

    python benchmarks/crowd.py [--methods fedavg,ditto,fedshrink] [--clients 100000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import resident

ROWS, FEATURES, CLASSES = 20, 32, 10


def samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples (R, 32) in float32, labels and clients, each client with two classes."""
    clients = int(os.environ["CROWD"])
    rng = np.random.default_rng(0)
    centre_CF = rng.normal(size=(CLASSES, FEATURES)).astype(np.float32)
    pair_K2 = rng.integers(0, CLASSES, size=(clients, 2))
    y_R = np.take_along_axis(pair_K2, rng.integers(0, 2, size=(clients, ROWS)), 1).ravel()
    x_RF = centre_CF[y_R] + rng.normal(size=(clients * ROWS, FEATURES)).astype(np.float32)
    return x_RF, y_R, np.repeat(np.arange(clients), ROWS)


def main() -> None:
    """Print a line for each method, and one for all of them in one study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,ditto,fedshrink")
    parser.add_argument("--clients", type=int, default=100_000)
    options = parser.parse_args()
    print(f"{'':28}{'whole s':>9}{'rounds':>9}{'rest':>8}{'peak MB':>9}")
    for methods in (*options.methods.split(","), options.methods):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            command = [
                sys.executable, "-m", "idiolect", "run", "--data", "crowd.samples", "--methods", methods,
                "--model", "mlp", "--participation", "0.002", "--rounds", "10", "--local-epochs", "5",
                "--batch-size", "20", "--protocol", "clients=participants", "--workers", "2", "--quiet",
                "--out", str(out),
            ]  # fmt: skip
            environment = os.environ | {"CROWD": str(options.clients)}
            start, peak = time.perf_counter(), 0
            with subprocess.Popen(
                command, cwd=Path(__file__).parent, env=environment, stdout=subprocess.DEVNULL
            ) as child:
                while child.poll() is None:
                    peak = max(peak, resident(child.pid))
                    time.sleep(0.2)
            seconds = time.perf_counter() - start
            if child.returncode:
                sys.exit(f"{' '.join(command)} ended with {child.returncode}")
            rounds = json.loads((out / "engine.json").read_text())[-1]["seconds"]
        print(f"{methods:28}{seconds:9.1f}{rounds:9.1f}{seconds - rounds:8.1f}{peak / 1e6:9.0f}", flush=True)


if __name__ == "__main__":
    main()
