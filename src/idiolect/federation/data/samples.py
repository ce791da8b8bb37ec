"""A site's own samples: read, divided into training and test samples, and brought into the agreed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.inputs import is_integer
from idiolect.data import FederatedData
from idiolect.data.custom import images, streaming, tables
from idiolect.data.custom.columns import check_amounts, codes, columns_to_drop, find_target
from idiolect.data.custom.identifiers import look_at_numbers
from idiolect.data.custom.names import look
from idiolect.data.custom.parts import Part
from idiolect.data.custom.text_files import Roles
from idiolect.data.custom.texts import Reading, joined
from idiolect.data.custom.windows import list_columns, windows
from idiolect.data.datasets.dataset import Encoding, TaskName
from idiolect.data.text.encoders import Ids
from idiolect.data.text.tokens import Tokens, filled_up, tokens_of
from idiolect.data.text.tokens import look as look_at_texts
from idiolect.data.validation import check_share, held_out
from idiolect.deploy.samples import Reader, labels
from idiolect.deploy.schema import Inputs, Scale, TokensPart
from idiolect.deploy.units import scale_of
from idiolect.federation.data.agreement import Agreement, Offer, Sums, data_of
from idiolect.studies import Study
from idiolect.studies.backbones import encoder_of

# N samples of this site, F features or channels, C classes

TEST = 0.2
"""The share of a site's samples that it tests on, unless it gives test samples of its own."""

SAID = 20
"""Numbers of a column, neither missing nor 0, from which a site says how large they are."""


class SiteSamples(NamedTuple):
    """A site's samples in an agreed form."""

    x_N: Tensor
    """As stored: uint8 images (N, channels, height, width), float32 (N, F) with NaN where a value is missing, or ids
    (N, L) of texts; or the features (N, d) that a frozen backbone has made."""
    y_N: Tensor
    train_N: Tensor
    """Numbers of the training samples, in the order in which they are batched."""
    test_N: Tensor
    validation_N: Tensor = torch.empty(0, dtype=torch.int64)
    """Numbers of the samples that are kept for validation; none of them is a training sample."""
    raw_N: Tensor | None = None
    """Where there are features, what they are made of, as stored."""

    @property
    def own_N(self) -> Tensor:
        """As stored, before a backbone."""
        return self.x_N if self.raw_N is None else self.raw_N


class SiteFiles:
    """A site's samples as they are in its files.

    Args:
        where: a table, or a folder of images.
        target: the column of labels; folders of classes need none.
        test: further samples to test on; None takes a fifth of all, drawn at random.
        drop: columns to leave out.
        as_is: columns whose numbers are right although they look like those of another unit.

    Raises:
        InputError: the files cannot be read, or lack the columns.
    """

    def __init__(
        self, where: str | Path, *, target: str | None = None, test: str | Path | None = None,
        drop: Sequence[str] = (), as_is: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.where, self._as_is, self._target, self._drop = str(where), tuple(as_is), target, drop
        self._places = (where, *([test] if test is not None else []))
        self._parts = self._read(None)
        self._labels = [find_target([str(c) for c in p.frame], target, self.where) for p in self._parts]
        self._read_images: list[Tensor] = []
        self._read_texts: list[Part] = []

    def _read(self, roles: Roles | None) -> list[Part]:
        parts = streaming.whole(*self._places, target=self._target, drop=self._drop, roles=roles)
        return [_without(part, self._drop, str(place)) for part, place in zip(parts, self._places, strict=True)]

    def __len__(self) -> int:
        return sum(len(part.frame) for part in self._parts)

    def offer(self, task: TaskName | None = None, reading: Reading = Reading()) -> Offer:  # noqa: B008  immutable
        """What the site says of them before anything is agreed.

        Args:
            task: that of the study; "classification" says that many different numbers of the target are classes.
            reading: which columns the study takes as texts, and how these become ids.

        Raises:
            InputError: a column cannot be a feature, a label is missing, or the target looks like an amount.
        """
        names: set[str] = set()
        for part, label in zip(self._parts, self._labels, strict=True):
            y_N, there = codes(part.frame[label], f"the target {label!r}")
            look(f"the target {label!r} of {self.where}", "class", y_N, there)
            names |= set(there)
        train, label = self._parts[0], self._labels[0]
        reading.check()
        if reading.columns is not None:
            tokens = tokens_of(reading.tokens, reading.most, self._text_columns(reading))
            look_at_texts(self._ids(tokens, 0), tokens, self.where, advice=False)
            how = TokensPart(columns=tokens.columns, encoder=tokens.encoder.name, most=tokens.most)
            return Offer(kind="texts", shape=(tokens.most,), tokens=how, classes=tuple(sorted(names)))
        if train.pictures is None:
            check_amounts(f"the target {label!r} of {self.where}", sorted(names), task)
        if train.pictures is not None:
            shape = tuple(self._pixels()[0].shape[1:])
            return Offer(kind="images", shape=shape, classes=tuple(sorted(names)))
        rest = train.frame.drop(columns=label)
        channels = tuple(str(c) for c in rest)
        if list_columns(rest, channels):
            shape = tuple(windows(rest, channels, self.where).shape[1:])
            return Offer(kind="windows", shape=shape, channels=channels, classes=tuple(sorted(names)))
        look_at_numbers({str(c): rest[c] for c in rest}, np.zeros(len(rest), np.int64), clients=False)
        columns = tuple(_columns(rest))
        scales = tuple(self._scale(rest, column) for column in columns)
        return Offer(kind="table", columns=columns, scales=scales, classes=tuple(sorted(names)))

    def _text_columns(self, reading: Reading) -> list[str]:
        part, label = self._parts[0], self._labels[0]
        names = reading.names([str(c) for c in part.frame], self.where)
        if part.pictures is not None or label in names:
            what = "has images" if part.pictures is not None else f"has the target in {label!r}"
            raise InputError(f"text: {self.where} {what}, and this study learns from texts: give a table with both")
        return names

    def _ids(self, tokens: Tokens, k: int) -> list[Ids]:
        """The ids of each of a part's texts."""
        if not self._read_texts:
            self._read_texts = self._read(Roles(self._target, drop=self._drop, features=lambda name: False))
        texts = joined(self._read_texts[k].frame, tokens.columns, self.where)
        return tokens.encoder.encode(texts)

    def _scale(self, frame: pd.DataFrame, column: Encoding) -> Scale:
        if column.kind != "number" or column.name in self._as_is:
            return Scale()
        return scale_of(frame[column.name].to_numpy(dtype=np.float64, na_value=np.nan), SAID)

    def encode(
        self, inputs: Inputs, classes: Sequence[str], seed: int, number: int, *, look: bool, validation: float = 0.0
    ) -> SiteSamples:
        """The samples in an agreed form; ``look`` says if numbers that look like those of another unit are refused.

        ``validation`` is the share of the training samples that is kept for validation, drawn as in a simulation.

        Raises:
            InputError: they do not fit it, or the share leaves none to train on.
        """
        x, y = [], []
        for k, (part, label) in enumerate(zip(self._parts, self._labels, strict=True)):
            y.append(torch.from_numpy(labels(part.frame[label], classes, self.where)))
            x.append(self._features(k, inputs, label, look))
        if len(x) == 2:
            train_N, test_N = np.arange(len(x[0])), np.arange(len(x[0]), len(x[0]) + len(x[1]))
        else:
            count = len(x[0])
            if count < 2:
                raise InputError(f"{self.where} has one sample: give two or more, to train and to test on")
            order_N = keys.generator(seed, number, "samples").permutation(count)
            tested = min(count - 1, max(1, round(TEST * count)))
            train_N, test_N = order_N[tested:], order_N[:tested]
        x_N, y_N, valid_N = torch.cat(x), torch.cat(y), np.zeros(0, np.int64)
        if validation:
            check_share(validation, len(train_N), self.where)
            at_N = held_out(y_N.numpy()[train_N], validation, seed, number)
            valid_N, train_N = train_N[at_N], np.delete(train_N, at_N)
        parts = (torch.from_numpy(part_N) for part_N in (train_N, test_N, valid_N))
        return SiteSamples(x_N, y_N, *parts)

    def _features(self, k: int, inputs: Inputs, label: str, look: bool) -> Tensor:
        part = self._parts[k]
        if part.pictures is not None:
            x_N = self._pixels()[k]
            if tuple(x_N.shape[1:]) != inputs.shape:
                raise InputError(f"{self.where} has images of shape {tuple(x_N.shape[1:])}, not {inputs.shape}")
            return x_N
        if inputs.tokens is not None:
            if absent := [name for name in inputs.tokens.columns if name not in part.frame]:
                raise InputError(f"{self.where} has no column {absent[0]!r}, which this study learns from: add it")
            tokens = inputs.tokens.tokens
            return filled_up(self._ids(tokens, k), tokens.encoder, tokens.most)
        frame = part.frame.drop(columns=label)
        if inputs.channels:
            return Reader(inputs, self.where).encode(Part(frame))
        if look:
            return Reader(inputs, self.where, as_is=self._as_is).encode(Part(frame))
        if absent := [c.name for c in inputs.columns if c.name not in frame]:
            raise InputError(f"{self.where} has no column {absent[0]!r}, which the sites agreed on: add it")
        return tables.encode(inputs.columns, frame)

    def _pixels(self) -> list[Tensor]:
        if not self._read_images:
            self._read_images = [images.read(p.pictures or [], None, self.where) for p in self._parts]
        return self._read_images


def reading_of(study: Study) -> Reading:
    """Which columns a study takes as texts, and how these become ids."""
    return Reading(study.text, encoder_of(study), study.max_tokens)


def _without(part: Part, drop: Sequence[str], where: str) -> Part:
    """A part without some columns."""
    if not len(part.frame):
        raise InputError(f"{where} has no samples: give some")
    out = columns_to_drop([str(c) for c in part.frame], drop, where)
    return Part(part.frame.drop(columns=out), part.pictures)


def _columns(frame: pd.DataFrame) -> Iterator[Encoding]:
    """How each column becomes features; other sites may have more texts than the only one here."""
    for column in tables.fit_columns(frame):
        values = frame[column.name].dropna()
        if not column.features and len(values) and isinstance(values.iloc[0], str):
            yield Encoding(column.name, "text", codes(values, f"column {column.name!r}")[1])
        else:
            yield column


def sums(samples: SiteSamples, classes: int) -> Sums:
    """Counts of classes, and sums over the training samples."""
    x_N = samples.x_N[samples.train_N] if not is_integer(samples.x_N) else torch.zeros(1, 0)  # ids have no mean
    x = x_N.double() / (255 if x_N.dtype == torch.uint8 else 1)
    axes = [a for a in range(x.ndim) if a != 1]
    train_C, test_C, validation_C = (
        torch.bincount(samples.y_N[part_N], minlength=classes)
        for part_N in (samples.train_N, samples.test_N, samples.validation_N)
    )
    return Sums(
        train_C, test_C, validation_C,
        (~x.isnan()).double().sum(axes), x.nansum(axes), x.square().nansum(axes),
    )  # fmt: skip


def alone(samples: SiteSamples, agreement: Agreement, number: int, name: str) -> FederatedData:
    """The clients' data as one site sees them: its own samples, and no others."""
    none = torch.empty(0, dtype=torch.int64)
    clients = range(len(agreement.names))
    train, test, validation = (
        tuple(part_N if k == number else none for k in clients)
        for part_N in (samples.train_N, samples.test_N, samples.validation_N)
    )
    return data_of(agreement, name, samples.x_N, samples.y_N, train, test, validation)
