"""Where a client's time goes: the share of each part of the local work, method by method, in one run.

The setting is that of benchmarks/methods.py, whose clock runs on the whole round; here each part has its own, and time
that a part spends in another one counts there. pFedFDA's Table 9 (CIFAR-10) sets network passes, the first four parts,
to 84.9 %, means and covariance to 0.8 % and the search for beta to 14.4 %. The last line is the server's: aggregation
in percent of the local time.

    python benchmarks/breakdown.py [--methods fedavg,pfedfda] [--model cifar_cnn] [--rows 600] [--turns 5]
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from common import SHAPES, federation
from idiolect import methods
from idiolect.statistics import covariance
from methods import CLIENTS, Rounds, setting

PARTS = {
    "forward": ("sgd", "sgd_from"),  # and what else a step does
    "backward": (),
    "optimiser": (),
    "feature passes": ("features",),
    "statistics": ("moments", "estimate", "lda_head", "interpolate", "weights_by_class", "class_products"),
    "beta": ("stratified_folds", "search_moments", "search"),
    "order of rows": ("batches",),
    "the rest": (),
}


class Clock:
    """Seconds by part; a part that calls another stands still meanwhile."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def times(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, on the clock."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*args, **options)
            finally:
                seconds = time.perf_counter() - start
                self.seconds[part] += seconds - self._inner.pop()
                self._inner[-1] += seconds

        return timed


def shares(name: str, model: str, rows: int, turns: int) -> dict[str, float]:
    """Percent of the local time by part, and of aggregation beside it."""
    clock = Clock()
    rounds = Rounds(name, methods.settle(name, {}), federation(CLIENTS, rows, SHAPES[model]), model)
    rounds.one()
    with ExitStack() as stack:

        def put(where: Any, function: str, part: str) -> None:
            stack.enter_context(patch.object(where, function, clock.times(part, getattr(where, function))))

        for module in (sys.modules[f"idiolect.methods.{name}"], sys.modules["idiolect.training.supervised"]):
            for part, functions in PARTS.items():
                for function in functions:
                    if hasattr(module, function):
                        put(module, function, part)
        put(torch.autograd, "grad", "backward")
        put(torch, "_fused_sgd_", "optimiser")
        for function in ("pack", "unpack", "ridge"):
            put(covariance, function, "statistics")
        put(rounds.loop, "map", "the rest")
        rounds.method = rounds.method._replace(aggregate=clock.times("server", rounds.method.aggregate))
        for _ in range(turns):
            rounds.one()
    local = sum(seconds for part, seconds in clock.seconds.items() if part != "server")
    return {part: 100 * clock.seconds[part] / local for part in [*PARTS, "server"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,fedbabu,fedrep,fedlda,pfedfda,fedpac,fedcr")
    parser.add_argument("--model", choices=list(SHAPES), default="fmnist_cnn")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5, help="rounds, after one that is not counted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = arguments.methods.split(",")
    columns = [shares(name, arguments.model, arguments.rows, arguments.turns) for name in names]
    print(f"percent of the local time; {setting(arguments.model, arguments.rows)}")
    print(f"{'':15}" + "".join(f"{name:>9}" for name in names))
    for part in columns[0]:
        print(f"{part:15}" + "".join(f"{column[part]:9.1f}" for column in columns))


if __name__ == "__main__":
    main()
