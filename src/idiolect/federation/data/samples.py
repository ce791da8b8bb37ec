"""A site's own samples: read, divided into training and test samples, and brought into the agreed form."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.errors import Disagreement, InputError, listed
from idiolect.core.inputs import is_integer
from idiolect.core.method import Blocks
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.data.blocks import blocks_of
from idiolect.data.custom import dates, images, streaming, tables
from idiolect.data.custom.columns import check_amounts, codes, columns_to_drop, in_order, targets_in
from idiolect.data.custom.form import Form
from idiolect.data.custom.identifiers import look_at_numbers
from idiolect.data.custom.images import Pixels
from idiolect.data.custom.label_sets import cells_of
from idiolect.data.custom.names import look
from idiolect.data.custom.parts import Part
from idiolect.data.custom.questions import answered
from idiolect.data.custom.text_files import Roles
from idiolect.data.custom.texts import Reading, joined
from idiolect.data.custom.windows import list_columns, windows
from idiolect.data.datasets.dataset import Encoding
from idiolect.data.partitions.apart import Splitting, check_order, splitting_of
from idiolect.data.text.encoders import Ids
from idiolect.data.text.tokens import Tokens, filled_up, tokens_of
from idiolect.data.text.tokens import look as look_at_texts
from idiolect.deploy.groups import group_numbers, group_of
from idiolect.deploy.label_columns import values_of as values_of_labels
from idiolect.deploy.samples import Reader
from idiolect.deploy.schema import Inputs, Scale, TokensPart
from idiolect.deploy.target_columns import labels as places_of
from idiolect.deploy.units import scale_of
from idiolect.federation.data.agreement import Agreement, Offer, Sums, data_of
from idiolect.federation.data.division import divide
from idiolect.federation.data.targets import values_of
from idiolect.studies import Study
from idiolect.studies.backbones import encoder_of

log = logging.getLogger(__name__)

# N samples of this site, F features or channels, C classes, D numbers of a target

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
    group_N: Tensor | None = None
    """Which samples belong together, int64; None where each stands for itself."""
    raw_N: Tensor | None = None
    """Where there are features, what they are made of, as stored."""
    value_ND: Tensor | None = None
    """The numbers to predict, or 1 for each label that a sample has and 0 for others, float64; None for classes."""
    blocks: Blocks | None = None
    """Groups of training samples that follow each other, where the study divides samples in order."""

    @property
    def groups(self) -> Tree:
        """What a method gets of the samples that belong together."""
        return (() if self.group_N is None else self.group_N) if self.blocks is None else self.blocks

    @property
    def truth_N(self) -> Tensor:
        """What is predicted: labels, or numbers (N, D)."""
        return self.y_N if self.value_ND is None else self.value_ND

    @property
    def own_N(self) -> Tensor:
        """As stored, before a backbone."""
        return self.x_N if self.raw_N is None else self.raw_N


class SiteFiles:
    """A site's samples as they are in its files.

    Args:
        where: a table, or a folder of images.
        target: the column of labels, or a question as ``num>0``; folders of classes need none. Of numbers to predict
            the column, or several joined by +.
        test: further samples to test on; None takes a fifth of all, drawn at random.
        drop: columns to leave out.
        as_is: columns whose numbers are right although they look like those of another unit.
        form: how the tables are written.
        group_column: the column that says which samples belong together; else the study's, if it is there.

    Raises:
        InputError: the files cannot be read, or lack the columns.
    """

    def __init__(
        self, where: str | Path, *, target: str | None = None, test: str | Path | None = None,
        drop: Sequence[str] = (), as_is: Sequence[str] = (), form: Form = Form(),  # noqa: B008  immutable
        group_column: str | None = None,
    ) -> None:  # fmt: skip
        self._form, self._group_column = form, group_column
        self._groups: dict[str | None, str | None] = {}
        self.where, self._as_is, self._target, self._drop = str(where), tuple(as_is), target, drop
        self._places = (where, *([test] if test is not None else []))
        self._parts = self._read(None)
        self._goals = [targets_in([str(c) for c in p.frame], target, self.where) for p in self._parts]
        self._read_images: list[Pixels] = []
        self._read_texts: list[Part] = []

    def _read(self, roles: Roles | None) -> list[Part]:
        roles = (roles or Roles(self._target, drop=self._drop))._replace(form=self._form)
        parts = streaming.whole(*self._places, target=self._target, drop=self._drop, roles=roles)
        return [self._known(part, str(place)) for part, place in zip(parts, self._places, strict=True)]

    def _known(self, part: Part, where: str) -> Part:
        """A part without the columns to leave out and marks of missing values, and with the answers to the target."""
        part = _without(part._replace(frame=self._form.known(part.frame)), self._drop, where)
        frame = answered(part.frame, self._target, where)
        features = {str(c) for c in frame}.difference(targets_in([str(c) for c in frame], self._target, where))
        return part._replace(frame=self._form.known_features(frame, features))

    def __len__(self) -> int:
        return sum(len(part.frame) for part in self._parts)

    def group(self, usual: str | None) -> str | None:
        """The column that says which samples belong together, if there is one; ``usual`` is the study's.

        Raises:
            InputError: there is no such column.
        """
        if usual not in self._groups:
            label, *more = self._goals[0]
            frame = self._parts[0].frame.drop(columns=more)
            self._groups[usual] = group_of(frame, label, self._group_column, usual, self.where, "the study")
        return self._groups[usual]

    def offer(
        self, task: TaskName | None = None, reading: Reading = Reading(), group: str | None = None  # noqa: B008
    ) -> Offer:  # fmt: skip
        """What the site says of them before anything is agreed.

        Args:
            task: that of the study; None takes classes, unless they look like numbers to predict.
            reading: which columns the study takes as texts, and how these become ids.
            group: the study's column of groups, which is no feature.

        Raises:
            InputError: a column cannot be a feature, a label is missing, or the target looks like an amount and the
                task is not said.
        """
        if task == "regression":
            goal = self._offered_numbers()
        elif task == "multilabel":
            names = self._labels()
            goal = {"classes": ("+".join(names),), "targets": names, "labels": True}
        else:
            goal = {"classes": self._classes(task, reading)}
        train = self._parts[0]
        reading.check()
        if reading.columns is not None:
            tokens = tokens_of(reading.tokens, reading.most, self._text_columns(reading))
            look_at_texts(self._ids(tokens, 0), tokens, self.where, advice=False)
            how = TokensPart(columns=tokens.columns, encoder=tokens.encoder.name, most=tokens.most)
            return Offer(kind="texts", shape=(tokens.most,), tokens=how, **goal)
        if train.pictures is not None:
            pixels = self._pixels()
            bits = max(one.bits for one in pixels)
            return Offer(kind="images", shape=tuple(pixels[0].x_R.shape[1:]), bits=bits, **goal)
        rest = train.frame.drop(columns=[*self._goals[0], *filter(None, [self.group(group)])])
        channels = tuple(str(c) for c in rest)
        if list_columns(rest, channels):
            shape = tuple(windows(rest, channels, self.where).shape[1:])
            return Offer(kind="windows", shape=shape, channels=channels, **goal)
        look_at_numbers({str(c): rest[c] for c in rest}, np.zeros(len(rest), np.int64), clients=False)
        rest, names_of_features, further = dates.expanded(rest, [str(c) for c in rest], every=True)
        columns = tuple(_columns(rest[names_of_features], further))
        scales = tuple(self._scale(rest, column) for column in columns)
        return Offer(kind="table", columns=columns, scales=scales, **goal)

    def _classes(self, task: TaskName | None, reading: Reading) -> tuple[str, ...]:
        """The names of the classes that occur."""
        names: set[str] = set()
        for part, goal in zip(self._parts, self._goals, strict=True):
            if len(goal) > 1:
                raise Disagreement(
                    f"target {listed(goal)} has {len(goal)} columns, and classes are in one: give one, or write "
                    "task: regression in the study"
                )
            y_N, there = codes(part.frame[goal[0]], f"the target {goal[0]!r}")
            look(f"the target {goal[0]!r} of {self.where}", "class", y_N, there)
            names |= set(there)
        if self._parts[0].pictures is None and reading.columns is None:
            check_amounts(f"the target {self._goals[0][0]!r} of {self.where}", sorted(names), task)
        return tuple(sorted(names))

    def _offered_numbers(self) -> dict[str, Any]:
        """The names of the numbers to predict, and how large they are."""
        names = tuple(self._goals[0])
        both = zip(names, self._values().T.numpy(), strict=True)
        scales = tuple(Scale() if name in self._as_is else scale_of(value_N, SAID) for name, value_N in both)
        return {"classes": ("+".join(names),), "targets": names, "target_scales": scales}

    def _labels(self) -> tuple[str, ...]:
        """The names of the labels: of their columns, or those that occur in a single one."""
        if len(self._goals[0]) > 1:
            return tuple(self._goals[0])
        what = f"target {self._goals[0][0]!r} of {self.where}"
        parts = zip(self._parts, self._goals, strict=True)
        names = {
            name for part, [goal] in parts for cell in cells_of(part.frame[goal], what, alone=True) for name in cell
        }
        if not names:
            raise InputError(f"{what} has no label in any row: give samples that have some")
        return tuple(in_order(names))

    def _label_values(self, labels: Sequence[str]) -> Tensor:
        """Which of all sites' labels each sample has (N, L), float64."""
        goal = self._goals[0]
        if len(goal) > 1 and (absent := [name for name in labels if name not in goal]):
            raise Disagreement(
                f"{self.where} has no column for the label {absent[0]!r}, which another site has: add it, with 0 where "
                "a sample does not have it, and give it in target too"
            )
        columns = list(labels) if len(goal) > 1 else goal
        return torch.cat([values_of_labels(part.frame, columns, labels, self.where) for part in self._parts])

    def _values(self) -> Tensor:
        return values_of([part.frame for part in self._parts], self._goals[0], self.where)

    def _text_columns(self, reading: Reading) -> list[str]:
        part, goal = self._parts[0], set(self._goals[0])
        names = reading.names([str(c) for c in part.frame], self.where)
        if part.pictures is not None or goal.intersection(names):
            what = "has images" if part.pictures is not None else f"has the target in {listed(goal)}"
            raise Disagreement(f"text: {self.where} {what}, and this study learns from texts: give a table with both")
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
        self, inputs: Inputs, classes: Sequence[str], seed: int, number: int, *, look: bool, validation: float = 0.0,
        group: str | None = None, way: Splitting = Splitting(),  # noqa: B008  immutable
        task: TaskName | None = None, labels: Sequence[str] = (),
    ) -> SiteSamples:  # fmt: skip
        """The samples in an agreed form; ``look`` says if numbers that look like those of another unit are refused.

        ``validation`` is the share of the training samples that is kept for validation, drawn as in a simulation.
        ``group`` is the study's column of groups, ``way`` how it divides samples, and ``task`` what it learns;
        ``labels`` are those that all sites have together.

        Raises:
            InputError: they do not fit it, or cannot be divided so.
        """
        x, y, column = [], [], self.group(group)
        check_order(way, column, f"the order is the study's, so leave out the groups of {self.where}")
        value_ND = self._values() if task == "regression" else None
        if task == "multilabel":
            value_ND = self._label_values(labels)
        for k, (part, goal) in enumerate(zip(self._parts, self._goals, strict=True)):
            if value_ND is None:
                y.append(torch.from_numpy(places_of(part.frame[goal[0]], classes, self.where)))
            x.append(self._features(k, inputs, [*goal, *filter(None, [column])], look))
        x_N, group_N = torch.cat(x), None
        y_N = torch.cat(y) if y else torch.zeros(len(x_N), dtype=torch.int64)
        if column is not None:
            values = pd.concat([part.frame[column] for part in self._parts], ignore_index=True)
            group_N = group_numbers(values, column, self.where)
        parts = divide(
            [len(part) for part in x], y_N.numpy(), None if group_N is None else group_N.numpy(), way, validation,
            seed=seed, number=number, where=self.where,
        )  # fmt: skip
        train_N, test_N, validation_N = map(torch.from_numpy, parts)
        blocks = blocks_of([train_N], np.arange(len(x_N)), way.gap) if way.ordered else None
        return SiteSamples(x_N, y_N, train_N, test_N, validation_N, group_N, value_ND=value_ND, blocks=blocks)

    def _features(self, k: int, inputs: Inputs, beside: Sequence[str], look: bool) -> Tensor:
        part = self._parts[k]
        if part.pictures is not None:
            x_N = self._pixels(inputs.bits)[k].x_R
            if tuple(x_N.shape[1:]) != inputs.shape:
                raise Disagreement(f"{self.where} has images of shape {tuple(x_N.shape[1:])}, not {inputs.shape}")
            return x_N
        if inputs.tokens is not None:
            if absent := [name for name in inputs.tokens.columns if name not in part.frame]:
                raise Disagreement(f"{self.where} has no column {absent[0]!r}, which this study learns from: add it")
            tokens = inputs.tokens.tokens
            return filled_up(self._ids(tokens, k), tokens.encoder, tokens.most)
        frame = part.frame.drop(columns=list(beside))
        if inputs.channels:
            return Reader(inputs, self.where).encode(Part(frame))
        if look:
            return Reader(inputs, self.where, as_is=self._as_is).encode(Part(frame))
        frame, _ = dates.with_parts(frame, [c.name for c in inputs.columns], self.where)
        if absent := [c.name for c in inputs.columns if c.name not in frame]:
            absent = dates.as_written(absent)
            raise Disagreement(f"{self.where} has no column {absent[0]!r}, which the sites agreed on: add it")
        return tables.encode(inputs.columns, frame)

    def _pixels(self, bits: int | None = None) -> list[Pixels]:
        """The images of each part, with grey values of so many bits."""
        if not self._read_images or (bits and any(one.bits != bits for one in self._read_images)):
            every, same = (p.pictures or [] for p in self._parts), "all of them {} pixels".format
            self._read_images = [images.read(one, None, self.where, bits=bits, fix=same) for one in every]
            if (own := max(one.own for one in self._read_images)) > (bits or own):
                log.warning("%s: %s", self.where, images.brighter(bits or own))
        return self._read_images


def reading_of(study: Study) -> Reading:
    """Which columns a study takes as texts, and how these become ids."""
    return Reading(study.text, encoder_of(study), study.max_tokens)


def division_of(study: Study) -> dict[str, Any]:
    """How a study divides a site's samples, as ``SiteFiles.encode`` takes it."""
    way = splitting_of(study.split)
    return {"validation": study.protocol.validation, "group": study.group_column, "way": way, "task": study.task}


def _without(part: Part, drop: Sequence[str], where: str) -> Part:
    """A part without some columns."""
    if not len(part.frame):
        raise InputError(f"{where} has no samples: give some")
    out = columns_to_drop([str(c) for c in part.frame], drop, where)
    return Part(part.frame.drop(columns=out), part.pictures)


def _columns(frame: pd.DataFrame, further: Collection[str]) -> Iterator[Encoding]:
    """How each column becomes features; other sites may have more texts than the only one here."""
    for column in tables.fit_columns(frame, further):
        if tables.is_free_text(frame[column.name]):
            continue
        values = frame[column.name].dropna()
        if not column.features and len(values) and isinstance(values.iloc[0], str):
            yield Encoding(column.name, "text", codes(values, f"column {column.name!r}")[1])
        else:
            yield column


def sums(samples: SiteSamples, classes: int) -> Sums:
    """Counts of classes, and sums over the training samples of features and of the numbers to predict."""
    x_N = samples.x_N[samples.train_N] if not is_integer(samples.x_N) else torch.zeros(1, 0)  # ids have no mean
    x = x_N.double() / (255 if x_N.dtype == torch.uint8 else 1)
    axes = [a for a in range(x.ndim) if a != 1]
    train_C, test_C, validation_C = (
        torch.bincount(samples.y_N[part_N], minlength=classes)
        for part_N in (samples.train_N, samples.test_N, samples.validation_N)
    )
    result = Sums(
        train_C, test_C, validation_C,
        (~x.isnan()).double().sum(axes), x.nansum(axes), x.square().nansum(axes),
    )  # fmt: skip
    if samples.value_ND is None:
        return result
    value_ND = samples.value_ND[samples.train_N]
    return result._replace(target_sum_D=value_ND.sum(0), target_square_D=value_ND.square().sum(0))


def alone(samples: SiteSamples, agreement: Agreement, number: int, name: str) -> FederatedData:
    """The clients' data as one site sees them: its own samples, and no others."""
    none = torch.empty(0, dtype=torch.int64)
    clients = range(len(agreement.names))
    train, test, validation = (
        tuple(part_N if k == number else none for k in clients)
        for part_N in (samples.train_N, samples.test_N, samples.validation_N)
    )
    data = data_of(agreement, name, samples.x_N, samples.y_N, train, test, validation, samples.value_ND)
    return dataclasses.replace(data, group_R=samples.group_N, blocks=samples.blocks)
