"""When training stops before the last round: a rule about validation accuracy, for a run and for its report alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.rounding import significant


class Stop(NamedTuple):
    """The early end of a training."""

    round: int
    """After which it stopped."""
    best: int
    """The round that counts: the best on validation samples."""


def validation_means(
    records: pd.DataFrame, protocol: Protocol, sizes: Mapping[int, int], by: Sequence[str] = ("round",),
    metric: str = "validation_accuracy",
) -> pd.Series[float]:  # fmt: skip
    """The mean validation accuracy (0..1) that the protocol asks for, in each evaluated round; or another metric.

    Args:
        records: rows of ``records.parquet``.
        protocol: at which stage, and how clients are averaged.
        sizes: how many validation samples each client has that counts.
        by: the columns whose values tell rounds apart.
        metric: of validation samples.
    """
    mine = records[(records["stage"] == protocol.stage) & (records["metric"] == metric)]
    mine = mine[mine["value"].notna() & mine["client"].isin([client for client, size in sizes.items() if size])]
    weight = mine["client"].map(sizes) if protocol.weighting == "sample" else 1.0
    sums = mine.assign(weight=weight, sum=mine["value"] * weight).groupby(list(by))[["sum", "weight"]].sum()
    return pd.Series(significant(sums["sum"] / sums["weight"]), sums.index)


def stops(means: pd.Series[float], patience: int, rounds: int) -> dict[tuple[str, int], Stop]:
    """The methods and seeds that stop before the last round.

    Args:
        means: of the validation accuracy, by method, seed and evaluated round.
        patience: see ``stop_of``.
        rounds: of the study: a training that stops in the last one has come to its end.
    """
    cells: dict[tuple[str, int], dict[int, float]] = {}
    for method, seed, number, mean in means.reset_index(name="mean").itertuples(index=False):
        cells.setdefault((str(method), int(seed)), {})[int(number)] = float(mean)
    ends = {cell: stop_of(mine, patience) for cell, mine in cells.items()}
    return {cell: end for cell, end in ends.items() if end is not None and end.round < rounds}


def stop_of(means: Mapping[int, float], patience: int) -> Stop | None:
    """Where a training stops: in the evaluation that is the ``patience``-th in a row without a new highest mean.

    Args:
        means: of the validation accuracy, by evaluated round.
        patience: how many evaluations.

    >>> stop_of({10: 0.5, 20: 0.7, 30: 0.7, 40: 0.6, 50: 0.9}, 2), stop_of({10: 0.5, 20: 0.4}, 2)
    (Stop(round=40, best=20), None)
    """
    best, waiting = 0, 0
    for number in sorted(means):
        if not best or means[number] > means[best]:
            best, waiting = number, 0
            continue
        waiting += 1
        if waiting == patience:
            return Stop(number, best)
    return None
