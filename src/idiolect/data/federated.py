"""From a data set, a partition and shifts to the one shape that everything after this works on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError, RunError
from idiolect.core.option_spec import Spec
from idiolect.data import shared_memory
from idiolect.data.datasets.catalogue import SETS
from idiolect.data.datasets.dataset import Source, shape
from idiolect.data.new_clients import new_last, ordered
from idiolect.data.normalisation import Normalise, moments, scaled_columns
from idiolect.data.partitions import Split, divide
from idiolect.data.partitions.flower import Partitioner
from idiolect.data.partitions.sizes import scarce
from idiolect.data.plan import views_of
from idiolect.data.shifted import fill

# R rows of everybody, N rows of one client, K clients

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Everybody's rows, once, and who owns which.

    Attributes:
        name: of the data set.
        x_R: images (R, C, H, W), uint8, shifted; or float32 (R, ...), NaN where a value is missing. Client by client,
            training rows before test rows; owned rows only.
        y_R: labels in 0..classes-1, int64.
        train: per client the numbers of its training rows, int64.
        test: per client the numbers of its test rows, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel (on a scale of 0 to 1, of the data set without shifts) or feature.
        std: per channel or feature, like ``mean``.
        shifts: per client the shifts of its rows with all options, comma-separated, in order; "" for none.
        names: what each client is called; () for their numbers.
        conditions: of the last clients, which do not train but join afterwards, what else was done to their rows (""
            for nothing); a client that joins under several conditions stands here once for each.
        file: where ``x_R`` stands, if other processes can map it.
        validation: per client the numbers of the rows that are held back from training, to validate on; () for none.
        scaled: of a table, per feature the column that is brought to mean 0 and standard deviation 1; "" for one that
            stays as it is.
    """

    name: str
    x_R: Tensor
    y_R: Tensor
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shifts: tuple[str, ...]
    names: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    file: shared_memory.File | None = None
    validation: tuple[Tensor, ...] = ()
    scaled: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Shapes alone."""
        rows = f"x_R={shape(self.x_R)}, y_R={shape(self.y_R)}"
        return f"FederatedData({self.name!r}, {rows}, classes={self.classes}, clients={self.clients})"

    def measured(self, client: int) -> Tensor:
        """The numbers of a client's test rows, and after them of its validation rows."""
        return torch.cat([self.test[client], self.validation[client]]) if self.validation else self.test[client]

    @property
    def clients(self) -> int:
        """The number of clients, those that join afterwards included, once for each condition."""
        return len(self.train)

    @property
    def trained(self) -> int:
        """The number of clients that take part in training: the first ones."""
        return self.clients - len(self.conditions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row: (C, H, W) of an image."""
        return tuple(self.x_R.shape[1:])


def build(
    source: Source,
    partition: Spec | Partitioner,
    shifts: Sequence[Spec] = (),
    clients: int | None = None,
    seed: int = 0,
    *,
    sizes: Sequence[int] = (),
    keep: float | int | None = None,
    new_clients: str | int | None = None,
    new_shifts: Sequence[Spec] = (),
    normalise: Normalise = "reference",
    validation: float = 0.0,
) -> FederatedData:
    """Divide a data set among clients and shift some of them; a function of the arguments alone.

    The owned rows stand in one new tensor, client by client, shifted. A shift's option
    ``clients`` says who is shifted: "all" (the default), "half" (the first half, rounded up), "0-4", "0-4+8", a number
    or a list of numbers. Shifts apply in the order given, to training and test rows alike, and what a client's shift
    draws depends on the seed, the client and the shift's place in the list alone.

    Args:
        source: the rows.
        partition: one of ``PARTITIONS`` with options, the import path of a function like them or of a flwr-datasets
            partitioner, or such a partitioner itself.
        shifts: of ``SHIFTS``, with options.
        clients: how many; None takes 20, or as many as the data have where the partition follows a column.
        seed: of all draws.
        sizes: training rows per client: one number for all, or several of which each client draws one; () leaves it to
            the partition.
        keep: of each client's training rows a share (a float up to 1) or a number, drawn at random; the test rows stay.
        new_clients: who does not train and joins afterwards: a number or "20%" (the last so many), or clients' names
            joined by "+".
        new_shifts: what their rows are measured under, each by itself, beside the rows as they are.
        validation: share of a client's training rows that it does not train on but validates on, drawn at random: at
            least one where it has two; none of those that join afterwards.
        normalise: with the mean and standard deviation that the literature uses for the set ("reference"; where there
            is none, as for "training"), with those of the training rows, unshifted, or images to [-1, 1] ("symmetric").

    Raises:
        InputError: unknown partition, shift or option, a client number out of range, or too few rows.
    """
    if clients is not None and clients < 1:
        raise InputError(f"clients={clients} is not possible: ask for at least 1")
    whole = divide(source, partition, clients, seed, sizes)
    split = whole if keep is None else scarce(whole, keep, keys.generator(seed, "keep"))
    order, new = new_last(whole, new_clients)
    whole, split = ordered(whole, order), ordered(split, order)
    views = views_of(whole, split, new, shifts, new_shifts)
    ends = np.cumsum([len(view.at_N) for view in views]).tolist()
    x_R, file = _room((ends[-1], *source.x_R.shape[1:]), source.x_R.dtype)
    y_R = torch.empty(ends[-1], dtype=torch.int64)
    says = fill(x_R, y_R, ends, source, views, seed)
    cuts = [end - len(split.test[view.client]) for view, end in zip(views, ends, strict=True)]
    train = [torch.arange(start, cut) for start, cut in zip([0, *ends], cuts, strict=False)]
    test = [torch.arange(cut, end) for cut, end in zip(cuts, ends, strict=True)]
    trained = len(order) - new
    mean, std = moments(source, np.concatenate(split.train[:trained]), normalise)
    train, valid = _validating(train, trained, validation, seed) if validation else (train, [])
    data = FederatedData(
        source.name, x_R, y_R, tuple(train), tuple(test), source.classes, source.class_names, mean, std, says,
        () if split.names is None else tuple(split.names[view.client] for view in views),
        tuple(view.condition for view in views[trained:]), file, tuple(valid), scaled_columns(source),
    )  # fmt: skip
    _warn(data)
    if source.name not in SETS:
        _warn_of_own(data, source, split)
    return data


def _validating(train: Sequence[Tensor], trained: int, share: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training rows in two: those that it goes on training on, and those that it validates on."""
    kept, valid = [], []
    for k, row_N in enumerate(train):
        count = min(len(row_N) - 1, max(1, round(share * len(row_N)))) if k < trained else 0
        order_N = torch.from_numpy(keys.generator(seed, k, "validation").permutation(len(row_N)))
        valid.append(row_N[order_N[:count].sort().values])
        kept.append(row_N[order_N[count:].sort().values])
    return kept, valid


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, shared_memory.File | None]:
    """Room for rows, in a file that worker processes can map; where there is none for files, in this process."""
    try:
        return shared_memory.shared(shape, dtype)
    except RunError as error:
        log.info("rows are kept in this process alone: %s", error)
        return torch.empty(shape, dtype=dtype), None


def _warn(data: FederatedData) -> None:
    """Say what is legal and probably not meant."""
    train_C = torch.bincount(data.y_R[torch.cat(data.train[: data.trained])], minlength=data.classes)
    test_C = torch.bincount(data.y_R[torch.cat(data.test)], minlength=data.classes)
    if unseen := [data.class_names[c] for c in range(data.classes) if test_C[c] and not train_C[c]]:
        log.warning(
            "no model can learn %s: in test rows, and in nobody's training rows; take more clients or rows",
            ", ".join(map(repr, unseen[:5])),
        )


def _warn_of_own(data: FederatedData, source: Source, split: Split) -> None:
    """The same of somebody's own data: a client of one class, where clients are real, and rows that several have."""
    count = len(split.train)
    names = split.names or tuple(map(str, range(count)))
    if split.names is not None:
        single = [k for k in range(count) if bool((data.y_R[data.train[k]] == data.y_R[data.train[k][0]]).all())]
        if single:
            log.warning(
                "%d of %d clients train on one class only (the first: %s): leave them out, or read accuracies with "
                "care",
                len(single), count, names[single[0]],
            )  # fmt: skip
    if split.shared:
        return
    from idiolect.data.custom import duplicates  # brings pandas, which no worker needs

    rows_K = [np.concatenate(parts) for parts in zip(split.train, split.test, strict=True)]
    owner_R = np.repeat(np.arange(count), [len(rows) for rows in rows_K])
    twice, pair = duplicates(source.x_R[torch.from_numpy(np.concatenate(rows_K))], owner_R)
    if pair:
        log.warning(
            "%d rows stand at more than one client (for one, at %s and %s): one may test on what another trains on",
            twice, *(names[k] for k in pair),
        )  # fmt: skip
