"""The clients' data: made from a data set, a partition and shifts, and used by everything that follows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idiolect.core import keys, shared_memory, tree
from idiolect.core.errors import InputError, RunError, option
from idiolect.core.inputs import Inputs, Moments, form_of, shapes
from idiolect.core.method import Blocks
from idiolect.core.objectives import OBJECTIVES, Score, TaskName
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.data.blocks import blocks_of
from idiolect.data.caveats import warn
from idiolect.data.datasets.dataset import Encoding, Source, shape
from idiolect.data.new_clients import new_last, ordered
from idiolect.data.normalisation import Normalise, moments
from idiolect.data.partitions import Split, divide
from idiolect.data.partitions.apart import splitting_of
from idiolect.data.partitions.flower import Partitioner
from idiolect.data.partitions.sizes import scarce
from idiolect.data.plan import View, views_of
from idiolect.data.rows import Rows
from idiolect.data.shifted import fill
from idiolect.data.targets import Targets
from idiolect.data.text.tokens import Tokens
from idiolect.data.validation import validating
from idiolect.training.preprocessing import Preprocessing

# R samples of all clients, N samples of one client, K clients

log = logging.getLogger(__name__)


class RawSamples(NamedTuple):
    """The samples that a frozen backbone has made features of.

    Attributes:
        form: of one.
        digest: SHA-256 of all of them.
        backbone: its name.
        weights: the digest of the backbone with its preprocessing.
    """

    form: Inputs
    digest: str
    backbone: str
    weights: str


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All clients' samples, each stored once, and which client has which.

    Attributes:
        name: of the data set.
        x_R: images (R, C, H, W), uint8, shifted; float32 (R, ...), NaN if a value is missing; whole numbers (R, ...);
            or several of them by name. Client by client, training samples before test samples; without samples that no
            client has, unless it is a federation ``without_test``, which shares the samples of the whole one.
        y_R: labels in 0..classes-1, int64.
        train: for each client the numbers of its training samples, int64.
        test: for each client the numbers of its test samples, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel (on a scale of 0 to 1, of the data set without shifts) or feature; () for whole numbers; by
            name where a sample has several tensors.
        std: per channel or feature, like ``mean``.
        shifts: for each client the shifts of its samples with all options, comma-separated, in order; "" for none.
        names: the name of each client; () if they have only numbers.
        conditions: for the last clients, which are new and do not train, what else was done to their samples ("" for
            nothing); a new client under several conditions is listed once for each.
        file: the file of ``x_R``, if other processes can map it.
        validation: for each client the numbers of its samples that are kept for validation; () for none.
        encodings: for a table, how each of its columns became features.
        official_split: whether clients train on samples of the data set's official training split only, and test on
            those of its official test split only; None if it has no official test split.
        sizes: of whole numbers, one more than the largest that may occur, for one tensor or by name; 0 if that is not
            known.
        tokens: of texts, how they became ids.
        channels: of windows in columns of lists, the names of these columns.
        bits: of the grey values of images, before they became 8.
        group_R: which samples belong together, int64; None where each stands for itself.
        blocks: groups of training samples that follow each other, where the split is in order.
        raw: where the samples are features of a frozen backbone, what it made them of; else None.
        targets: the targets where they are numbers, with the mean and standard deviation of training samples, or
            several labels; else None. ``y_R`` is all 0 then, and ``classes`` is 1.
        counted: ``class_counts``, where they are known without the samples; else ().
    """

    name: str
    x_R: Tree
    y_R: Tensor
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    classes: int
    class_names: tuple[str, ...]
    mean: Moments
    std: Moments
    shifts: tuple[str, ...]
    names: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    file: shared_memory.File | None = None
    validation: Sequence[Tensor] = ()
    encodings: tuple[Encoding, ...] = ()
    official_split: bool | None = None
    sizes: int | Mapping[str, int] = 0
    tokens: Tokens | None = None
    channels: tuple[str, ...] = ()
    bits: int = 8
    raw: RawSamples | None = None
    targets: Targets | None = None
    group_R: Tensor | None = None
    blocks: Blocks | None = None
    counted: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("train", "test", "validation"):
            object.__setattr__(self, name, Rows.of(getattr(self, name)))

    def __repr__(self) -> str:
        """Shapes only."""
        y = f"y_R={shape(self.y_R)}, classes={self.classes}"
        if self.targets is not None:
            y = f"targets={shape(self.targets.value_RD)}"
        return f"FederatedData({self.name!r}, x_R={shape(self.x_R)}, {y}, clients={self.clients})"

    def measured(self, client: int) -> Tensor:
        """The numbers of a client's test samples, and after them of its validation samples."""
        return torch.cat([self.test[client], self.validation[client]]) if self.validation else self.test[client]

    @property
    def has_test(self) -> bool:
        """Whether any client has test samples."""
        return any(map(len, self.test))

    def without_test(self) -> FederatedData:
        """The same clients without test samples: whoever chooses settings by them measures validation samples alone.

        Raises:
            InputError: no client has validation samples.
        """
        if not any(map(len, self.validation)):
            raise InputError(
                "without test samples there is nothing to measure, because no client has validation samples: give "
                f"{option('protocol', 'validation=0.2')}"
            )
        none = Rows(torch.zeros(0, dtype=torch.int64), torch.zeros(self.clients, dtype=torch.int64))
        return replace(self, test=none)

    @property
    def groups(self) -> Tree:
        """As ``group_R`` or ``blocks``, () where there are none: what a method gets."""
        if self.blocks is not None:
            return self.blocks
        return () if self.group_R is None else self.group_R

    @property
    def clients(self) -> int:
        """The number of clients, including new clients, once for each condition."""
        return len(self.train)

    @property
    def trained(self) -> int:
        """The number of clients that take part in training: the first ones."""
        return self.clients - len(self.conditions)

    @property
    def task(self) -> TaskName:
        """What is learnt of the target."""
        return "classification" if self.targets is None else self.targets.task

    @property
    def score(self) -> Score:
        """The number by which methods are judged."""
        return OBJECTIVES[self.task].score

    @property
    def outputs(self) -> int:
        """How many numbers a network returns for a sample: one for each class, or for each number of the target."""
        return self.classes if self.targets is None else len(self.targets.names)

    @cached_property
    def target_R(self) -> Tensor:
        """What methods learn: labels (R,), int64, or scaled numbers (R, D), float32."""
        return self.y_R if self.targets is None else self.targets.scaled()

    @property
    def class_counts(self) -> tuple[tuple[int, ...], ...]:
        """Training samples of each class over the clients that train, (1, C); without and with each label, (L, 2)."""
        if self.counted:
            return self.counted
        rows = torch.cat([*self.train[: self.trained]])
        if self.targets is None:
            return (tuple(torch.bincount(self.y_R[rows], minlength=self.classes).tolist()),)
        having_L = self.targets.value_RD[rows].sum(0).long().tolist()
        return tuple((len(rows) - having, having) for having in having_L)

    @property
    def inputs(self) -> Inputs:
        """The form of a sample."""
        return form_of(self.x_R, self.sizes)

    @property
    def shape(self) -> Any:
        """The shape of a sample: (C, H, W) for an image; by name where it has several tensors."""
        return shapes(self.inputs)

    @property
    def preprocessing(self) -> Preprocessing:
        """What turns samples as stored into what a network takes."""
        return Preprocessing(self.mean, self.std)

    def some(self, count: int) -> Tree:
        """The first training samples, as stored."""
        return tree.rows(self.x_R, torch.cat([*self.train])[:count])

    @property
    def has_images(self) -> bool:
        """Whether the samples are 8-bit images."""
        return isinstance(self.x_R, Tensor) and self.x_R.dtype == torch.uint8

    @property
    def samples(self) -> int:
        """R, of all clients."""
        return len(tree.leaves(self.x_R)[0])


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
    split: Spec = Spec(name="random"),  # noqa: B008  immutable
) -> FederatedData:
    """Divide a data set among clients and shift some of them. The result depends only on the arguments.

    The samples are copied into one new tensor, client by client, and shifted there. A shift's option ``clients`` says
    who is shifted: "all" (the default), "half" (the first half, rounded up), "0-4", "0-4+8", a number or a list of
    numbers. Shifts are applied in the order given, to training and test samples. The random draws of a client's shift
    depend only on the seed, the client and the shift's place in the list.

    Args:
        source: the samples.
        partition: one of ``PARTITIONS`` with options, the import path of a function like them or of a flwr-datasets
            partitioner, or such a partitioner itself.
        shifts: from ``SHIFTS``, with options.
        clients: how many; None takes 20, or all that the data have if the partition follows a column.
        seed: of all random draws.
        sizes: training samples per client: one number for all, or several, from which each client draws one; with ()
            the partition decides.
        keep: how many of each client's training samples stay, drawn at random: a share (a float up to 1) or a number.
            The test samples stay.
        new_clients: the clients that do not train and get a model afterwards: a number or "20%" (the last so many), or
            clients' names separated by "+".
        new_shifts: shifts under which new clients are measured too, one at a time.
        validation: share of a client's training samples that are used for validation and not for training, drawn at
            random from each of its classes (see ``validation.held_out``). New clients have none.
        split: "random", or "ordered" with the options ``gap`` and ``each_class``: the last samples of each client, or
            of each of its classes, are its test samples, and the last training samples its validation samples.
        normalise: with the mean and standard deviation that the literature uses for the set ("reference"; if there are
            none, as "training"), with those of the training samples before shifts ("training"), images to [-1, 1]
            ("symmetric"), or not ("none"; images to [0, 1]).

    Raises:
        InputError: unknown partition, shift or option, a client number out of range, or too few samples, also for
            validation.
    """
    if clients is not None and clients < 1:
        raise InputError(f"clients={clients} is not possible: give at least 1")
    way = splitting_of(split)
    whole = divide(source, partition, clients, seed, sizes, way)
    divided = whole if keep is None else scarce(whole, keep, keys.generator(seed, "keep"))
    if way.ordered and keep is not None:
        divided = divided._replace(train=[np.sort(rows) for rows in divided.train])
    order, new = new_last(whole, new_clients)
    whole, divided = ordered(whole, order), ordered(divided, order)
    views = views_of(whole, divided, new, shifts, new_shifts)
    ends = np.cumsum([len(view.at_N) for view in views]).tolist()
    x_R, file = room(source.x_R, ends[-1])
    y_R = torch.empty(ends[-1], dtype=torch.int64)
    says = fill(x_R, y_R, ends, source, views, seed)
    cuts = [end - len(divided.test[view.client]) for view, end in zip(views, ends, strict=True)]
    train = [torch.arange(start, cut) for start, cut in zip([0, *ends], cuts, strict=False)]
    test = [torch.arange(cut, end) for cut, end in zip(cuts, ends, strict=True)]
    trained = len(order) - new
    mean, std = moments(source, np.concatenate(divided.train[:trained]), normalise)
    names = () if divided.names is None else tuple(divided.names[view.client] for view in views)
    targets = None
    if source.targets is not None:
        row_R = torch.from_numpy(np.concatenate([view.row_N[view.at_N] for view in views]))
        targets = source.targets.rows(row_R).scaled_by(torch.cat(train[:trained]))
    group_R, place_R = _groups(source, views), _places(whole, views) if way.ordered else None
    valid = list[Tensor]()
    if validation:
        train, valid = validating(
            train, y_R, trained, validation, seed, names, group_R=group_R, way=way, place_R=place_R
        )
    data = FederatedData(
        source.name, x_R, y_R, tuple(train), tuple(test), source.classes, source.class_names, mean, std, says, names,
        tuple(view.condition for view in views[trained:]), file, tuple(valid), source.encodings,
        _keeps_official(source, divided), source.sizes, source.tokens, source.channels, source.bits, targets=targets,
        group_R=group_R, blocks=None if place_R is None else blocks_of(train, place_R.numpy(), way.gap),
    )  # fmt: skip
    warn(data, source, divided, partition)
    if way.ordered and divided.names is None:
        log.warning(
            "split=ordered keeps each client's own samples in order, but clients are drawn from all rows, so that one "
            "client may train on what stands beside another's test samples: take real clients, with a client column"
        )
    return data


def _groups(source: Source, views: Sequence[View]) -> Tensor | None:
    """The group of each sample, in the order of the clients."""
    if source.group_column is None:
        return None
    code_R = source.columns[source.group_column].code_R
    return torch.from_numpy(np.concatenate([code_R[view.row_N[view.at_N]] for view in views]))


def _places(split: Split, views: Sequence[View]) -> Tensor:
    """The place of each sample in its client's order, in the order of the clients."""
    every = [np.sort(np.concatenate(parts)) for parts in zip(split.train, split.test, split.left, strict=True)]
    places = [np.searchsorted(every[view.client], view.row_N[view.at_N]) for view in views]
    return torch.from_numpy(np.concatenate(places))


def _keeps_official(source: Source, split: Split) -> bool | None:
    """Whether a split keeps the official one; None if there is none."""
    if source.train_rows == len(source.y_R):
        return None
    train, test = (np.concatenate(part) for part in (split.train, split.test))
    return bool(train.max() < source.train_rows <= test.min())


def room(like: Tree, rows: int) -> tuple[Tree, shared_memory.File | None]:
    """Memory for samples, in a file that worker processes can map; if no file can be made, in this process."""
    try:
        return shared_memory.shared(like, rows)
    except RunError as error:
        log.info("other processes cannot share the samples: %s", error)
        return tree.map(lambda a: torch.empty((rows, *a.shape[1:]), dtype=a.dtype), like), None
