"""Every client has samples of all classes, most of them of the few classes that dominate its group."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Rows, Split, whole
from idiolect.data.partitions.official_splits import deal_from_splits
from idiolect.data.partitions.option_types import Size
from idiolect.data.partitions.sizes import USUAL_SIZE, rows_each

# R samples, K clients, C classes, G groups of clients

Percent = Annotated[float, Field(ge=0, le=100)]

_GROUPS = 5
_CHARACTERS = (0, 10, 36, 62)  # EMNIST by class: digits, upper case, lower case


def dominant(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    share: Percent = 20,
    test_size: Size = 300,
    groups: Literal["auto", "consecutive", "characters"] = "auto",
    official_quirks: bool = False,
) -> Split:
    """Equal sizes: ``share`` percent evenly over all classes, the rest evenly over the client's dominant classes.

    n_c = n share / (100 C) + [c dominant] n (1 - share / 100) / D, whole numbers by largest remainder; for
    ties, the next class gets more from client to client. n is 600 for training unless sizes are given. Client i belongs
    to group i mod 5; with ten classes the dominant ones are {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}. Any other
    number of classes is cut into five consecutive parts (fewer if there are fewer classes); each part also gets the
    first class of the next.

    Training samples come from the official training split and test samples from the official test split, if there is
    one and both are large enough for every class. Otherwise both come from all samples, and if there is an official
    split, a warning says so. Draws are random and disjoint; a client's test samples have the class proportions of its
    training samples.

    Args:
        share: percent of a client's samples that are spread evenly over all classes.
        test_size: test samples per client.
        groups: "consecutive": the five above; "characters": client i belongs to group i mod 3, whose dominant classes
            are 0-9 (digits), 10-35 (upper case) or 36-61 (lower case); "auto": characters if there are 62 classes.
        official_quirks: whether clients get the same samples as in the released code. There every client takes the next
            samples of a class in the official split, from sample 2000 (500 for testing) of CIFAR and CINIC, else from
            0. A slice that would pass the end of the class is taken from its beginning, so clients share samples. The
            even part is floor(n share / 100) samples: for each class floor of its C-th part, and the remainder for the
            last. The dominant classes are divided in the same way; with "characters", the last dominant class moves on
            by no more samples than the others.

    Raises:
        InputError: a class has too few samples; the message says how many clients or which sizes fit.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), section 6.1 and appendix B.2.
    Differs from source: ``official_quirks``; its order of samples within a class is that of the data set.
    """
    rows_each(source, clients)
    train_K = np.full(clients, USUAL_SIZE) if sizes_K is None else sizes_K
    test_K = np.full(clients, test_size)
    characters = groups == "characters" or (groups == "auto" and source.classes == _CHARACTERS[-1])
    if characters and source.classes != _CHARACTERS[-1]:
        raise InputError(
            f"partition dominant: groups=characters needs 62 classes and {source.name} has {source.classes}; "
            "take groups=consecutive"
        )
    if characters:
        main_G = [np.arange(a, b) for a, b in itertools.pairwise(_CHARACTERS)]
    else:
        main_G = _consecutive(source.classes)
    if official_quirks:
        return _released_slices(source, main_G, share, train_K, test_K, characters, rng)
    main_GC = np.zeros((len(main_G), source.classes), bool)
    for main_C, main in zip(main_GC, main_G, strict=True):
        main_C[main] = True

    def counts(size_K: Rows) -> Rows:
        main_KC = main_GC[np.arange(len(size_K)) % len(main_G)]
        exact_KC = np.repeat((size_K * share / 100 / source.classes)[:, None], source.classes, axis=1)
        exact_KC += main_KC * (size_K * (1 - share / 100) / main_KC.sum(1))[:, None]
        return whole(exact_KC, size_K)

    return deal_from_splits("dominant", source, counts, train_K, test_K, rng)


def _consecutive(classes: int) -> list[Rows]:
    """The dominant classes of each group: one part of the classes and the first class of the next part."""
    groups = min(_GROUPS, classes)
    ends = [g * classes // groups for g in range(groups + 1)]
    widths = [max(1, min(b - a + 1, classes - 1)) for a, b in itertools.pairwise(ends)]
    return [(a + np.arange(width)) % classes for a, width in zip(ends, widths, strict=False)]


def _released_slices(
    source: Source,
    main_G: list[Rows],
    share: float,
    train_K: Rows,
    test_K: Rows,
    characters: bool,
    rng: np.random.Generator,
) -> Split:
    y_R = source.y_R.numpy()
    if source.train_rows == len(y_R):
        raise InputError(
            f"partition dominant: official_quirks takes test samples from an official test split and {source.name} has "
            "none; take official_quirks=false"
        )
    begin = (2000, 500) if source.name.startswith(("cifar", "cinic")) else (0, 0)
    parts = []
    for size_K, first, end, start in (
        (train_K, 0, source.train_rows, begin[0]),
        (test_K, source.train_rows, len(y_R), begin[1]),
    ):
        stock_C = np.bincount(y_R[first:end], minlength=source.classes)
        row_C = np.split(np.argsort(y_R[first:end], kind="stable") + first, stock_C.cumsum()[:-1])
        used_C = np.full(source.classes, start)
        hands = []
        for k, size in enumerate(size_K):
            main = main_G[k % len(main_G)]
            uniform = int(np.floor(round(size * share / 100, 9)))
            hand = []
            for own_labels, rows in ((np.arange(source.classes), uniform), (main, size - uniform)):
                each = rows // len(own_labels)
                take = [each] * (len(own_labels) - 1) + [rows - each * (len(own_labels) - 1)]
                for c, count in zip(own_labels, take, strict=True):
                    if count > stock_C[c]:
                        raise InputError(
                            f"partition dominant: official_quirks needs {count} samples of class "
                            f"{source.class_names[c]!r} in one piece, and a split of {source.name} has {stock_C[c]}; "
                            "take smaller sizes or official_quirks=false"
                        )
                    at = 0 if used_C[c] + count > stock_C[c] else used_C[c]
                    hand.append(row_C[c][at : at + count])
                    used_C[c] = at + (each if characters and own_labels is main else count)
            hands.append(rng.permutation(np.concatenate(hand)))
        parts.append(hands)
    return Split(parts[0], parts[1], shared=True)
