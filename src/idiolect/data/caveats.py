"""Warnings of what clients' data allow and their owner probably did not intend."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from idiolect.core.option_spec import Spec
from idiolect.data.datasets.catalogue import SETS
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions import Split
from idiolect.data.partitions.flower import Partitioner

if TYPE_CHECKING:
    from idiolect.data.federated import FederatedData

log = logging.getLogger(__name__)

_MANY = 0.1  # of the test samples
_SAY_SO = ("dominant", "pathological")  # themselves, where they cannot keep the official splits


def warn(data: FederatedData, source: Source, split: Split, partition: Spec | Partitioner) -> None:
    """Warn of classes that nobody can learn, of splits that are not kept, and of samples that several clients have."""
    _unseen(data)
    own = source.name not in SETS
    _warn_of_new_classes(data, split, real=own and split.names is not None)
    if own:
        _warn_of_split(data, source, split, partition)
        _warn_of_own(data, source, split)


def _unseen(data: FederatedData) -> None:
    """Warn of what is allowed but probably not intended."""
    train_C = torch.bincount(data.y_R[torch.cat([*data.train[: data.trained]])], minlength=data.classes)
    test_C = torch.bincount(data.y_R[torch.cat([*data.test])], minlength=data.classes)
    if unseen := [data.class_names[c] for c in range(data.classes) if test_C[c] and not train_C[c]]:
        log.warning(
            "no model can learn %s, which is in test samples but in no client's training samples; take more clients or "
            "samples",
            ", ".join(map(repr, unseen[:5])),
        )


def _warn_of_new_classes(data: FederatedData, split: Split, *, real: bool) -> None:
    """Warn of classes that clients only test on: at real clients of any, at drawn ones of a large share."""
    count = len(split.train)

    def counts(rows: Tensor) -> Tensor:
        return torch.bincount(data.y_R[rows], minlength=data.classes)

    new_K = np.array([int(counts(data.test[k])[counts(data.train[k]) == 0].sum()) for k in range(count)])
    test_K = np.array([len(split.test[k]) for k in range(count)])
    if not new_K.any() or not (real or new_K.sum() >= _MANY * test_K.sum()):
        return
    worst = int(np.argmax(new_K / test_K))
    log.warning(
        "%d of %d test samples (%.3g %%) are of classes that their client has no training samples of, at %d of %d "
        "clients (most at %s: %d of %d): a model that is trained on this client alone gets them all wrong",
        new_K.sum(), test_K.sum(), 100 * new_K.sum() / test_K.sum(), (new_K > 0).sum(), count,
        f"client {split.names[worst]!r}" if split.names else f"client {worst}", new_K[worst], test_K[worst],
    )  # fmt: skip


def _warn_of_split(data: FederatedData, source: Source, split: Split, partition: Spec | Partitioner) -> None:
    """Warn that a partition divides the official splits of the user's own data again, unless that was asked for."""
    name = partition.name if isinstance(partition, Spec) else type(partition).__name__
    by_user = isinstance(partition, Spec) and partition.options.get("official_split") is False
    if data.official_split is not False or by_user or name in _SAY_SO:
        return
    log.warning(
        "the official test split of %s is not kept: partition %s divides all samples again, and clients train on %d of "
        "its %d test samples; the partitions natural, dominant and pathological keep it",
        source.name, name, sum(int((rows >= source.train_rows).sum()) for rows in split.train),
        len(source.y_R) - source.train_rows,
    )  # fmt: skip


def _warn_of_own(data: FederatedData, source: Source, split: Split) -> None:
    """The same for the user's own data: real clients with only one class, and samples that several clients have."""
    count = len(split.train)
    names = split.names or tuple(map(str, range(count)))
    if split.names is not None and data.targets is None:
        single = [k for k in range(count) if bool((data.y_R[data.train[k]] == data.y_R[data.train[k][0]]).all())]
        if single:
            log.warning(
                "%d of %d clients train on only one class (the first: %s): leave them out, or be careful with "
                "accuracies",
                len(single), count, names[single[0]],
            )  # fmt: skip
    if split.shared:
        return
    from idiolect.data.custom import duplicates  # brings pandas, which no worker needs

    rows_K = [np.concatenate(parts) for parts in zip(split.train, split.test, strict=True)]
    owner_N = np.repeat(np.arange(count), [len(rows) for rows in rows_K])
    twice, pair = duplicates(source.x_R, owner_N, np.concatenate(rows_K))
    if pair:
        log.warning(
            "%d samples belong to more than one client (the first to %s and %s): one client may test on what another "
            "trains on",
            twice, *(names[k] for k in pair),
        )  # fmt: skip
