"""What the server's own work costs, on one thread: FedPAC's combination of heads for 20 to 1,000 participants.

    trained   class means and noise of trained features, 10 classes of 128: the usual case
    dense     no structure and much variance: everybody helps everybody
    between   no structure and less variance: every participant takes its weights from hundreds
    narrow    10 numbers per participant and almost no variance: the slowest

The ratio is to one general solver per participant (``simplex_qp``), taking turns with it in one run.

    python benchmarks/server.py [--participants 20,100,300,1000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from idiolect.statistics.head_combination import combination_weights, simplex_qp

Array = npt.NDArray[np.float64]
CLASSES, WIDTH = 10, 128
COMPARED = 100


def trained(m: int, alpha: float = 0.5) -> tuple[Array, Array]:
    """50 to 600 rows per client, labels Dirichlet(alpha), features behind a ReLU; their h and V / n."""
    rng = np.random.default_rng(0)
    mean_Cd = abs(rng.normal(size=(CLASSES, WIDTH)))
    spread_dd = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] / np.sqrt(1 + np.arange(WIDTH))
    h_mCd, variance_m = np.zeros((m, CLASSES, WIDTH)), np.zeros(m)
    for i, n in enumerate(rng.integers(50, 601, m)):
        y_N = rng.choice(CLASSES, n, p=rng.dirichlet(np.full(CLASSES, alpha)))
        z_Nd = np.maximum(mean_Cd[y_N] + rng.normal(size=(n, WIDTH)) @ spread_dd.T, 0)
        np.add.at(h_mCd[i], y_N, z_Nd / n)
        variance_m[i] = ((z_Nd**2).sum() / n - (h_mCd[i] ** 2).sum()) / n
    return h_mCd, variance_m


def cloud(m: int, numbers: int, variance: float) -> tuple[Array, Array]:
    """Independent normal numbers of total variance 1, and V / n around ``variance``."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(m, 1, numbers)) / np.sqrt(numbers), variance * rng.uniform(0.3, 3, m)


REGIMES: dict[str, Callable[[int], tuple[Array, Array]]] = {
    "trained": trained,
    "dense": lambda m: cloud(m, CLASSES * WIDTH, 100.0),
    "between": lambda m: cloud(m, CLASSES * WIDTH, 3.0),
    "narrow": lambda m: cloud(m, 10, 1e-4),
}


def one_by_one(h_mCd: Array, variance_m: Array) -> None:
    h_mD = h_mCd.reshape(len(h_mCd), -1)
    h_mD = h_mD - h_mD.mean(0)
    gram_mm = h_mD @ h_mD.T
    for gram_m, own in zip(gram_mm, gram_mm.diagonal(), strict=True):
        simplex_qp(np.diag(variance_m) + gram_mm - gram_m - gram_m[:, None] + own)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--participants", default="20,100,300,1000")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    counts = [int(m) for m in options.participants.split(",")]
    print(f"{'combination':12}" + "".join(f"{m:>9}" for m in counts) + f"   one by one at {COMPARED}")
    for name, regime in REGIMES.items():
        cells = []
        for m in counts:
            h_mCd, variance_m = regime(m)
            taken = [seconds(lambda: combination_weights(h_mCd, variance_m)) for _ in range(options.repeats)]  # noqa: B023
            cells.append(statistics.median(taken))
        h_mCd, variance_m = regime(COMPARED)
        ratios = []
        for _ in range(options.repeats):
            slow = seconds(lambda: one_by_one(h_mCd, variance_m))  # noqa: B023
            ratios.append(slow / seconds(lambda: combination_weights(h_mCd, variance_m)))  # noqa: B023
        print(
            f"{name:12}" + "".join(f"{s:8.3f}s" for s in cells) + f"   {statistics.median(ratios):5.1f} times",
            flush=True,
        )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
