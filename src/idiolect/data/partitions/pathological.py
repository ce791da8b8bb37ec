"""Every client has samples of only a few classes; how many depends on its group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Rows, Split, draw_classes, whole
from idiolect.data.partitions.official_splits import deal_from_splits
from idiolect.data.partitions.option_types import Size
from idiolect.data.partitions.sizes import USUAL_SIZE, rows_each

# R samples, K clients, C classes, G groups of clients


def pathological(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    classes_per_group: str | int | list[Size] = "3+3+5+5+8",
    draw: Literal["random", "clustered"] = "random",
    test_size: Size = 300,
) -> Split:
    """Equal sizes, evenly over a few classes; how many depends on the client's group. Client i is in group i mod G.

    A client has 600 samples for training unless sizes are given. The numbers of samples of its classes differ by one at
    most. Training and test samples are drawn as for ``dominant``.

    Args:
        classes_per_group: for each group how many classes a client has, separated by "+".
        draw: "random": every client draws its classes; "clustered": every group draws them for all its clients, and no
            two groups draw the same (if there are enough classes).
        test_size: test samples per client.

    Raises:
        InputError: more classes than there are, or a class has too few samples; the message says how many clients or
            which sizes fit.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), appendix C.7.
    """
    rows_each(source, clients)
    wide_G = _numbers(classes_per_group)
    if max(wide_G) > source.classes:
        raise InputError(
            f"partition pathological: classes_per_group={classes_per_group} asks for {max(wide_G)} of "
            f"{source.name}'s {source.classes} classes; {source.classes} is the most"
        )
    group_K = np.arange(clients) % len(wide_G)
    if draw == "clustered":
        for _ in range(100):
            rank_GC = draw_classes(source.classes, source.classes, len(wide_G), rng).argsort(axis=1)
            own_GC = rank_GC < np.array(wide_G)[:, None]
            if len(np.unique(own_GC, axis=0)) == len(wide_G):
                break
        own_KC = own_GC[group_K]
    else:
        rank_KC = draw_classes(source.classes, source.classes, clients, rng).argsort(axis=1)
        own_KC = rank_KC < np.array(wide_G)[group_K][:, None]

    def counts(size_K: Rows) -> Rows:
        own = own_KC[: len(size_K)]
        return whole(own * (size_K / own.sum(1))[:, None], size_K)

    train_K = np.full(clients, USUAL_SIZE) if sizes_K is None else sizes_K
    return deal_from_splits("pathological", source, counts, train_K, np.full(clients, test_size), rng)


def _numbers(text: str | int | list[int]) -> list[int]:
    pieces = text if isinstance(text, list) else str(text).split("+")
    if not pieces or not all(str(piece).strip().isdecimal() and int(piece) > 0 for piece in pieces):
        raise InputError(f"partition pathological: cannot read classes_per_group={text}; write numbers such as 3+3+5")
    return [int(piece) for piece in pieces]
