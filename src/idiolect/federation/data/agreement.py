"""How sites agree on features, classes and normalisation: each says sums and names, and the server puts them together.

No sample leaves a site for this. What does: the names of columns and classes, the texts that occur in columns of texts,
how many samples there are of each class, and for each feature of the training samples their number, sum and sum of
squares. Where a frozen backbone makes the features, these are meant, and texts and images have no sums of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from idiolect.core.errors import InputError, listed
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.data.custom import dates
from idiolect.data.custom.columns import check_amounts, in_order
from idiolect.data.custom.names import look_at_answers
from idiolect.data.datasets.dataset import Encoding
from idiolect.data.federated import RawSamples
from idiolect.data.text.tokens import filled_up
from idiolect.deploy.schema import FeaturesPart, Inputs, Kind, Scale, TargetPart, TokensPart
from idiolect.federation.data import targets
from idiolect.federation.data.backbone import Backbone
from idiolect.federation.data.common_columns import columns_of, scales_of

_PARTS = ("train", "test", "validation")
_Count = Annotated[int, Field(ge=0, le=2**40)]


class Offer(BaseModel):
    """What a site says of its samples before anything is agreed.

    Attributes:
        kind: of samples.
        shape: of an image, (channels, height, width); of a window, (channels, time); of a text, the most tokens that
            are used; () for a table.
        columns: of a table, as this site alone would make features of them.
        scales: for each column how large its numbers are, if they are enough.
        classes: the names of those that occur.
        tokens: of texts, how they become ids.
        channels: of windows, the columns of lists.
        bits: of the grey values of images; None for others.
        targets: the columns of numbers that are predicted, or the names of labels; () where classes are.
        target_scales: how large these numbers are, if they are enough.
        labels: whether the targets are labels, of which a sample can have several.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Kind
    shape: tuple[_Count, ...] = Field(default=(), max_length=3)
    columns: tuple[Encoding, ...] = Field(default=(), max_length=100_000)
    scales: tuple[Scale, ...] = Field(default=(), max_length=100_000)
    classes: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(min_length=1, max_length=100_000)
    tokens: TokensPart | None = None
    channels: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(default=(), max_length=100_000)
    bits: Annotated[int, Field(ge=8, le=16)] | None = None
    targets: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(default=(), max_length=1000)
    target_scales: tuple[Scale, ...] = Field(default=(), max_length=1000)
    labels: bool = False


class Sums(NamedTuple):
    """What a site says of its samples once features and classes are agreed."""

    train_C: Tensor
    """Training samples of each class, int64."""
    test_C: Tensor
    """Test samples of each class, int64."""
    validation_C: Tensor
    """Validation samples of each class, int64; none of them is a training sample."""
    count_F: Tensor
    """Known values of each feature, or channel, over the training samples, float64."""
    sum_F: Tensor
    """Their sum, float64."""
    square_F: Tensor
    """The sum of their squares, float64."""
    target_sum_D: Tree = ()
    """The sum of each number of the target over the training samples, float64, or how many have each label; () where
    there are classes."""
    target_square_D: Tree = ()
    """The sum of their squares, float64."""

    @property
    def samples(self) -> int:
        """How many samples there are, of all parts."""
        return sum(int(count_C.sum()) for count_C in self[: len(_PARTS)])

    @classmethod
    def like(cls, classes: int, features: int, targets: int = 0) -> Self:
        """Zeros of the right shapes."""
        whole, real = torch.zeros(classes, dtype=torch.int64), torch.zeros(features, dtype=torch.float64)
        goal: Tree = torch.zeros(targets, dtype=torch.float64) if targets else ()
        return cls(whole, whole, whole, real, real, real, goal, goal)


class Agreement(BaseModel):
    """What server and sites know of the data in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    inputs: Inputs
    classes: tuple[str, ...]
    """Where numbers are predicted one, named like all of them, that every sample is of."""
    train: tuple[tuple[int, ...], ...]
    """For each client its training samples of each class, and so on for the others."""
    test: tuple[tuple[int, ...], ...]
    validation: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    backbone: Backbone | None = None
    """A pretrained backbone, which each has by itself."""
    targets: tuple[TargetPart, ...] = ()
    """The numbers that are predicted, or the labels; () where classes are."""
    several: bool = False
    """Whether the targets are labels, of which a sample can have several."""
    counts: tuple[tuple[int, ...], ...] = ()
    """``FederatedData.class_counts`` of the sites that agreed: sites that come later change no weight of a class."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; () where there are none."""
        return tuple(target.name for target in self.targets) if self.several else ()

    @property
    def features(self) -> FeaturesPart | None:
        """How the features of a frozen backbone are normalised; None if there is none."""
        return None if self.backbone is None else self.backbone.features

    @property
    def width(self) -> int:
        """The numbers that are normalised: channels, the features of a table, or those that a backbone makes."""
        return len(self.inputs.mean if self.features is None else self.features.mean)

    @property
    def samples(self) -> int:
        """How many samples all sites have, of all parts."""
        return sum(sum(row) for part in _PARTS for row in getattr(self, part))

    def federation(self, name: str) -> FederatedData:
        """The clients' data without the samples: who has how many of which class.

        Numbers to predict are one row of zeros that stands for all: a site may say that it has any number of samples.
        """
        rows = [row for client in zip(self.train, self.test, self.validation, strict=True) for row in client]
        counts = [sum(row) for row in rows]
        parts = torch.split(torch.arange(sum(counts)), counts)
        class_T = torch.arange(len(self.classes)).repeat(len(rows))
        y_R = class_T.repeat_interleave(torch.tensor(rows).flatten())
        train, test, validation = (tuple(parts[k::3]) for k in range(3))
        value_RD = torch.zeros((), dtype=torch.float64).expand(len(y_R), len(self.targets))
        return data_of(self, name, empty(self), y_R, train, test, validation, value_RD)

    def among(self, names: Sequence[str]) -> Self:
        """The same for all sites of a federation; those that were not there have no samples yet."""
        none = (0,) * len(self.classes)
        rows_of = {part: dict(zip(self.names, getattr(self, part), strict=True)) for part in _PARTS}
        every = {part: tuple(rows.get(n, none) for n in names) for part, rows in rows_of.items()}
        return self.model_copy(update=every | {"names": tuple(names)})

    def with_counts(self, client: int, sums: Sums) -> Self:
        """The same once a client has said what it has."""
        rows = {"train": sums.train_C, "test": sums.test_C, "validation": sums.validation_C}
        return self.model_copy(
            update={
                part: tuple(tuple(row_C.tolist()) if k == client else row for k, row in enumerate(getattr(self, part)))
                for part, row_C in rows.items()
            }
        )


def empty(agreement: Agreement) -> Tensor:
    """No samples, of the agreed form."""
    if agreement.features is not None:
        return torch.empty(0, agreement.width)
    if agreement.inputs.tokens is not None:
        return filled_up([], agreement.inputs.tokens.tokens.encoder, agreement.inputs.shape[0])
    dtype = torch.uint8 if agreement.inputs.kind == "images" else torch.float32
    return torch.empty((0, *agreement.inputs.shape), dtype=dtype)


def data_of(
    agreement: Agreement, name: str, x_R: Tensor, y_R: Tensor, train: tuple[Tensor, ...], test: tuple[Tensor, ...],
    validation: tuple[Tensor, ...], value_RD: Tensor | None = None,
) -> FederatedData:  # fmt: skip
    """Clients' data in the agreed form; ``value_RD`` are the numbers to predict, if they are."""
    inputs, classes, names = agreement.inputs, agreement.classes, agreement.names
    data = FederatedData(
        name, x_R, y_R, train, test, len(classes), classes, inputs.mean, inputs.std, ("",) * len(names), names,
        encodings=inputs.columns, validation=validation if any(map(len, validation)) else (), sizes=inputs.ids or 0,
        tokens=None if inputs.tokens is None else inputs.tokens.tokens, channels=inputs.channels, bits=inputs.bits or 8,
        targets=None if value_RD is None else targets.targets_of(agreement.targets, value_RD, labels=agreement.several),
        counted=agreement.counts,
    )  # fmt: skip
    if (backbone := agreement.backbone) is None or (features := backbone.features) is None:
        return data
    raw = RawSamples(inputs.input, "", backbone.name, backbone.digest)
    return dataclasses.replace(data, mean=features.mean, std=features.std, sizes=0, raw=raw)


def common_form(offers: Mapping[str, Offer], task: TaskName | None = None) -> tuple[Inputs, tuple[str, ...]]:
    """The form of the samples and the classes that all sites' offers allow; mean and deviation are still 0 and 1.

    ``task`` is the study's: "classification" says that many different numbers are classes.

    Raises:
        InputError: sites have samples of different kinds, sizes or columns, numbers of different units, there is only
            one class, or the classes of tables look like amounts.
    """
    (first, one), *_ = offers.items()
    for site, other in offers.items():
        if (
            other.kind != one.kind
            or (other.kind in ("images", "windows") and other.shape != one.shape)
            or other.tokens != one.tokens
        ):
            what = [f"{o.kind} {'x'.join(map(str, o.shape))}".strip() for o in (one, other)]
            raise InputError(
                f"{first} has {what[0]} and {site} has {what[1]}: all sites need samples of one kind and size"
            )
    predicted = targets.common_names(offers)
    classes = tuple(in_order({name for offer in offers.values() for name in offer.classes}))
    if predicted:
        classes = ("+".join(predicted),)
    elif len(classes) < 2:
        raise InputError(f"all samples of all sites are of the class {classes[0]!r}: two classes or more are needed")
    else:
        look_at_answers("the target of all sites together", classes)
    if one.kind == "table" and not predicted:
        check_amounts("the target of all sites together", classes, task)
    if wrong := next((site for site, other in offers.items() if other.channels != one.channels), None):
        raise InputError(
            f"{first} has windows in the columns {listed(one.channels, 5)} and {wrong} in "
            f"{listed(offers[wrong].channels, 5)}: all sites need the same columns, in one order"
        )
    if one.tokens is not None:
        return Inputs(kind="texts", shape=one.shape, ids=one.tokens.tokens.size, tokens=one.tokens), classes
    if one.kind in ("images", "windows"):
        mean, std = (0.0,) * one.shape[0], (1.0,) * one.shape[0]
        bits = max([offer.bits for offer in offers.values() if offer.bits], default=None)
        return Inputs(kind=one.kind, shape=one.shape, channels=one.channels, bits=bits, mean=mean, std=std), classes
    columns = columns_of(offers)
    scales = scales_of(columns, offers)
    width = sum(len(column.features) for column in columns)
    return Inputs(
        kind="table", shape=(width,), columns=columns, mean=(0.0,) * width, std=(1.0,) * width, scales=scales
    ), classes


def unknown_texts(agreement: Agreement, site: str, offer: Offer) -> list[str]:
    """The texts of a site that comes after the agreement which the others did not have.

    Raises:
        InputError: its samples do not fit what the others have agreed on.
    """
    there = agreement.inputs.columns
    if offer.kind == "table" and (absent := {c.name for c in there if c.features} - {c.name for c in offer.columns}):
        first, *_ = dates.as_written(sorted(absent))
        raise InputError(f"{site} has no column {first!r}, which the other sites agreed on: add it, or start a new run")
    inputs = agreement.inputs
    whole = Offer(
        kind=inputs.kind, shape=() if inputs.kind == "table" else inputs.shape, columns=there,
        classes=agreement.classes, tokens=inputs.tokens, channels=inputs.channels,
        targets=tuple(target.name for target in agreement.targets), labels=agreement.several,
    )  # fmt: skip
    if new := sorted(set(offer.targets) - set(whole.targets)) if agreement.several else []:
        raise InputError(
            f"{site} has the label {new[0]!r}, which no site had at the start: leave it out, or start a new run"
        )
    _, classes = common_form({"the run": whole, site: offer}, "classification")  # which was decided at the start
    others = whole.model_copy(update={"scales": agreement.inputs.scales})
    scales_of(there, {"the other sites": others, site: offer}, site)
    if new := sorted(set(classes) - set(agreement.classes)):
        raise InputError(
            f"{site} has samples of the class {new[0]!r}, which no site had at the start: leave them out, or start a "
            "new run"
        )
    texts = {column.name: set(column.texts) for column in there if column.kind == "text"}
    return [f"{text!r} in {c.name}" for c in offer.columns for text in c.texts if text not in texts.get(c.name, {text})]


def agree(
    inputs: Inputs, classes: Sequence[str], sums: Mapping[str, Sums], normalise: str,
    backbone: Backbone | None = None, *, frozen: bool = False, predicted: Sequence[str] = (),
    labels: bool = False,
) -> Agreement:  # fmt: skip
    """The agreement with mean and standard deviation per feature or channel, over all sites' training samples.

    Args:
        inputs: the form of the samples.
        classes: of all sites.
        sums: what each site says, by its name.
        normalise: the study's: "symmetric" brings images to [-1, 1], "none" leaves numbers as they are and brings
            images to [0, 1]; else the numbers of the training samples count.
        backbone: a pretrained one.
        frozen: whether it makes features, of which the sums are then.
        predicted: the names of the numbers or labels that are predicted, if they are.
        labels: whether they are labels.

    Raises:
        InputError: one of these is the same in all training samples.
    """
    width = len(next(iter(sums.values())).sum_F)
    count, total, square = (
        torch.stack([getattr(s, name) for s in sums.values()]).sum(0).numpy()
        for name in ("count_F", "sum_F", "square_F")
    )
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    plain = ~np.array([s for column in inputs.columns for s in column.scales] or (True,) * width, dtype=bool)
    std[plain | (std <= 3e-8 * abs(mean))] = 1.0  # below that it is the rounding of the sums
    mean[plain] = 0.0
    if normalise == "symmetric" and inputs.kind == "images" and not frozen:
        mean, std = np.full(width, 0.5), np.full(width, 0.5)
    if normalise == "none":
        mean, std = np.zeros(width), np.ones(width)
    numbers = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    if backbone is not None and frozen:
        backbone, numbers = backbone.model_copy(update={"features": FeaturesPart(**numbers)}), {}
    return Agreement(
        inputs=inputs.model_copy(update=numbers),
        backbone=backbone,
        classes=tuple(classes),
        train=tuple(tuple(s.train_C.tolist()) for s in sums.values()),
        test=tuple(tuple(s.test_C.tolist()) for s in sums.values()),
        validation=tuple(tuple(s.validation_C.tolist()) for s in sums.values()),
        names=tuple(sums),
        targets=targets.parts_of(predicted, [*sums.values()], labels=labels),
        several=labels,
        counts=targets.counts_of([*sums.values()], labels=labels),
    )


def texts_of(inputs: Inputs, sums: Sequence[Sums]) -> tuple[int, ...]:
    """For each feature how many training samples of these sites have its text; 0 for numbers."""
    text = [column.kind == "text" for column in inputs.columns for _ in column.features]
    return tuple(int(sum(float(s.sum_F[k]) for s in sums)) if is_text else 0 for k, is_text in enumerate(text))


def plain(offer: Offer) -> dict[str, Any]:
    """An offer as plain values."""
    return offer.model_dump() | {"columns": [dataclasses.asdict(column) for column in offer.columns]}
