"""A site's samples, read as the bundle takes them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import Disagreement, InputError, listed, option
from idiolect.core.files import expanded
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.custom import dates, images, streaming, tables
from idiolect.data.custom.columns import fold
from idiolect.data.custom.form import Form
from idiolect.data.custom.images import EncodedImage
from idiolect.data.custom.npz import is_npz
from idiolect.data.custom.parts import Part
from idiolect.data.custom.questions import columns_asked
from idiolect.data.custom.several import is_pattern
from idiolect.data.custom.text_files import Roles
from idiolect.data.custom.texts import joined
from idiolect.data.custom.windows import windows
from idiolect.data.datasets.dataset import Encoding
from idiolect.data.text.tokens import Tokens, filled_up, unit
from idiolect.deploy import absent_columns, array_files, cells, units
from idiolect.deploy.column_names import names_of
from idiolect.deploy.groups import group_numbers, group_of
from idiolect.deploy.schema import Inputs, Scale, TargetPart
from idiolect.deploy.target_columns import with_targets
from idiolect.deploy.usual import Usual

# R samples, N samples of this site, F features

log = logging.getLogger(__name__)

_FEW = 8  # values of which a mean and a spread say something
_LOOKED_AT = 1024  # rows of which they are taken, at most twice as many
_OTHERS = "the sites that trained"
ROW = "row"  # of the numbers of rows in their file
IMAGES, ROWS = 4096, 32768
"""Images, and rows of a table, that are read at a time."""


class Samples(NamedTuple):
    """Samples as stored, and their labels."""

    x_N: Tree
    y_N: Tensor
    """Places among the bundle's classes, int64; where it predicts numbers, what its network learns of them (N, D),
    float64; where it predicts labels, 1 where a sample has one, else 0 (N, L), float64."""
    group_N: Tensor | None = None
    """Which samples belong together, int64; None where each stands for itself."""
    table: pd.DataFrame | None = None
    """The columns but those of the target, if they are asked for."""

    @property
    def groups(self) -> Tree:
        """As ``group_N``, () where there are none: what a method gets."""
        return () if self.group_N is None else self.group_N


def read(
    where: str | Path,
    inputs: Inputs,
    classes: Sequence[str],
    target: str | None,
    *,
    resize: bool = False,
    as_is: Sequence[str] = (),
    form: Form = Form(),  # noqa: B008  immutable
    group_column: str | None = None,
    usual: Usual = Usual(),  # noqa: B008  immutable
    targets: Sequence[TargetPart] = (),
    labels: Sequence[str] = (),
    kept: Collection[str] | None = None,
) -> Samples:
    """A site's samples with their classes, labels or numbers.

    Args:
        where: a table (.csv, .tsv, .data, .parquet, .jsonl, .arff), or a folder of images as ``<class>/<image>`` or
            beside a metadata.csv; in a .gz or .zip too; a pattern of tables; or arrays by name (.npz).
        inputs: what the bundle takes.
        classes: the names of its classes.
        target: the column of labels, or a question as ``num>0``; folders of classes need none. Of numbers their
            columns, joined by +, or None for those that are named as in training.
        resize: whether images of another size are stretched.
        as_is: columns whose numbers are used although they look like those of another unit.
        form: how the tables are written.
        group_column: the column that says which samples belong together.
        usual: what was said in training; its group column counts where the site has such a one and no other is given.
        targets: the numbers that the bundle predicts, in place of classes.
        labels: the labels of which a sample can have several, in place of classes.
        kept: further columns that the caller uses, from the table that is then returned too.

    Raises:
        InputError: there is nothing of the kind, or its columns, labels or images are not what the bundle takes.
    """
    names, as_is = [one.name for one in targets] or list(labels), _names(as_is)
    of_inputs = [c for c in as_is if c not in names]
    reader = Reader(inputs, str(where), resize=resize, as_is=of_inputs, form=form, usual=usual)
    task: TaskName | None = "multilabel" if labels else None
    x_N: Tree | None = None
    if is_npz(where):
        x_N, part = array_files.labelled(where, reader, target, names, form, task)
    else:
        given = "+".join(f'"{name}"' for name in names) if names and target is None else target
        [part] = streaming.whole(where, target=given, roles=reader.roles(given, names), task=task)
        reader.check(part)
    reader.beside = [str(c) for c in part.frame]
    frame, y_N, goal = with_targets(form.known(part.frame), classes, targets, labels, target, str(where), as_is, usual)
    if not len(y_N):
        raise InputError(f"{where} has no samples: give some")
    group = group_of(frame.drop(columns=goal[1:]), goal[0], group_column, usual.group, str(where))
    of_dates = dates.columns_of(c.name for c in inputs.columns if c.name not in frame)
    beside_them = [c for c in (group, *(kept or ())) if c is not None and not reader.takes(c)]
    used = {c for c in beside_them if c in frame and fold(c) not in of_dates}
    beside = frame.drop(columns=[*goal, *used.difference(goal)])
    group_N = None if group is None else group_numbers(frame[group], group, str(where))
    x_N = reader.encode(Part(beside, part.pictures)) if x_N is None else x_N
    return Samples(x_N, y_N, group_N, None if kept is None else frame.drop(columns=goal))


def stream(
    where: str | Path,
    inputs: Inputs,
    *,
    resize: bool = False,
    as_is: Sequence[str] = (),
    form: Form = Form(),  # noqa: B008
    usual: Usual = Usual(),  # noqa: B008
) -> Iterator[tuple[Tensor, pd.DataFrame]]:
    """A site's samples, some at a time, and the columns that are not inputs, or the images' names.

    The index of these, ``ROW``, has the numbers of the rows in their file, from 1 on; empty lines do not count.

    Raises:
        InputError: as ``read``; a fault far down is found when it is reached.
    """
    reader = Reader(inputs, str(where), resize=resize, as_is=as_is, keep=False, form=form, usual=usual)  # once
    size = IMAGES if inputs.kind == "images" else ROWS
    if is_npz(where):
        for x_B, beside in array_files.some(where, reader, size):
            yield x_B, beside.set_axis(pd.RangeIndex(beside.index[0] + 1, beside.index[-1] + 2, name=ROW))
        return
    file, count, several = None, 0, is_pattern(expanded(where))
    for part in streaming.some(where, size, reader.roles(None), reader.is_number):
        x_R = reader.encode(part)
        names = {c.name for c in inputs.columns} | set(reader.names)
        beside = part.frame[[c for c in part.frame if str(c) not in names]]
        if part.pictures is not None:
            beside = beside.assign(image=[one.name for one in part.pictures])
        if several and part.frame["file"].iloc[0] != file:
            file, count = part.frame["file"].iloc[0], 0
        yield x_R, beside.set_axis(pd.RangeIndex(count + 1, count + 1 + len(beside), name=ROW))
        count += len(beside)


class Reader:
    """Makes a site's tables and images what a bundle takes, and says once what it changed."""

    def __init__(
        self, inputs: Inputs, where: str, *, resize: bool = False, as_is: Sequence[str] = (), keep: bool = True,
        form: Form = Form(), usual: Usual = Usual(),  # noqa: B008  immutable
    ) -> None:  # fmt: skip
        self._form, self._usual = form, usual
        self.inputs, self.where, self._resize, self._keep = inputs, where, resize, keep
        self.names: dict[str, str] = {}
        """The site's name of a column by the bundle's, where they differ, and the other way round."""
        self.beside: list[str] = []
        """Columns of the site's table that may be left out of what is encoded."""
        self._by_name = {fold(e.name): e for e in inputs.columns} | {e.name: e for e in inputs.columns}
        self._as_is, self._sentences = set(_names(as_is)), set[str]()
        self._ways, self._shared = dict[str, str](), set[str]()  # of parts before
        if unknown := [c for c in _names(as_is) if c not in {e.name for e in inputs.columns}]:
            raise InputError(f"as_is: the bundle takes no column {unknown[0]!r}: leave it out")

    def roles(self, target: str | None, numbers: Sequence[str] = ()) -> Roles:
        """What the columns of a text file are for; ``numbers`` are those that the bundle predicts."""
        asked, bases = columns_asked(target), dates.columns_of(e.name for e in self.inputs.columns)
        asked |= set() if target is None else {name.strip('" ') for name in target.split("+")}
        asked |= set(numbers)
        return Roles(
            target, features=lambda name: self.takes(name) or name in asked or fold(name) in bases,
            as_texts=self._is_text, scale_of=self._moments, form=self._form,
        )  # fmt: skip

    def is_number(self, name: str) -> bool:
        """Whether the bundle takes numbers in a column of this name."""
        column = self._column(name)
        return column is not None and column.kind == "number"

    def _is_text(self, name: str) -> bool:
        """Whether the bundle takes texts in a column of this name, and not the codes of categories."""
        column = self._column(name)
        return column is not None and column.kind == "text" and not cells.has_codes(column)

    def takes(self, name: str) -> bool:
        """Whether a column of this name is one of the bundle's."""
        return self._column(name) is not None

    def _column(self, name: str) -> Encoding | None:
        return self._by_name.get(name) or self._by_name.get(fold(name))

    def _moments(self, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation of the numbers in a column; None if it has no scale."""
        at = 0
        for column in self.inputs.columns:
            if column == self._column(name):
                scaled = column.kind == "number" and column.value and column.scaled
                return (self.inputs.mean[at] + column.shift, self.inputs.std[at]) if scaled else None
            at += len(column.features)
        return None

    def encode(self, part: Part) -> Tensor:
        """The samples of a part as stored.

        Raises:
            InputError: they are not what the bundle takes.
        """
        self.check(part)
        if self._form.missing and self.inputs.columns:
            part = part._replace(frame=self._known(part.frame))
        if self.inputs.tokens is not None:
            return self._texts(part.frame, self.inputs.tokens.tokens)
        if self.inputs.channels:
            return self._windows(part.frame)
        return self._table(part.frame) if part.pictures is None else self._images(part.pictures)

    def _known(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame whose features are empty where they have marks of missing values."""
        of_dates = dates.columns_of(e.name for e in self.inputs.columns)
        features = [c for c in map(str, frame) if self.takes(c) or fold(c) in of_dates]
        return self._form.known_features(self._form.known(frame, self.beside), features)

    def check(self, part: Part) -> None:
        """Check that samples are of the bundle's kind.

        Raises:
            InputError: they are not.
        """
        if self.inputs.kind == "numbers":
            raise InputError(f"{self.where} has no arrays, which this bundle takes: give an .npz, or see idiolect.load")
        if self.inputs.kind == "images" and part.pictures is None:
            raise InputError(f"{self.where} is a table, and this bundle takes images: give a folder of images")
        if self.inputs.kind not in ("images", "numbers") and part.pictures is not None:
            what = "a table" if self.inputs.kind == "table" else self.inputs.kind
            raise InputError(f"{self.where} has images, and this bundle takes {what}: give a table")

    def _images(self, pictures: list[EncodedImage]) -> Tensor:
        channels, height, width = self.inputs.shape
        size = (width, height) if self._resize else None
        x_R, bits, own = images.read(
            pictures, size, self.where, keep=self._keep, bits=self.inputs.bits, fix=lambda _: option("resize", True)
        )
        if own > bits:
            self._say(images.brighter(bits))
        if x_R.shape[2:] != (height, width):
            raise InputError(
                f"{self.where} has images of {x_R.shape[3]}x{x_R.shape[2]} pixels, and this bundle takes "
                f"{width}x{height}: give {option('resize', True)} to stretch them, if that is what they need"
            )
        if x_R.shape[1] == 1 and channels == 3:
            return x_R.expand(-1, 3, -1, -1).contiguous()
        if x_R.shape[1] != channels:
            raise InputError(f"{self.where} has colour images, and this bundle takes grey ones: convert them")
        return x_R

    def _texts(self, frame: pd.DataFrame, tokens: Tokens) -> Tensor:
        """Texts as ids, int64; a list of texts in training had no name, and here may be in a column "text"."""
        there = [str(c) for c in frame]
        own = [there[0]] if len(there) == 1 and not tokens.columns else tokens.columns or ("text",)
        names = self._find(there, own)
        self.names |= {name: name for name in names.values()}
        return self.ids(joined(frame, list(names.values()), self.where, few=True), tokens)

    def ids(self, texts: Sequence[str], tokens: Tokens) -> Tensor:
        """The ids (N, L) of texts, int64."""
        rows, width = tokens.encoder.encode(texts), self.inputs.shape[0]
        if any(len(row) > width for row in rows):
            self._say(f"texts with more than {width} {unit(tokens.encoder)}, as the longest in training, are cut")
        return filled_up(rows, tokens.encoder, width).long()

    def _windows(self, frame: pd.DataFrame) -> Tensor:
        """Windows (N, C, T) in columns of lists."""
        names = self._find([str(c) for c in frame], self.inputs.channels)
        self.names |= {name: name for name in names.values()}
        x_N = windows(frame, list(names.values()), self.where, training=False)
        if tuple(x_N.shape[1:]) != self.inputs.shape:
            has, takes = ("{} channels and {} time steps".format(*s) for s in (x_N.shape[1:], self.inputs.shape))
            raise InputError(f"{self.where} has windows of {has}, and this bundle takes {takes}: cut them so")
        return x_N

    def _table(self, frame: pd.DataFrame) -> Tensor:
        own = [str(c) for c in frame]
        frame, added = dates.with_parts(frame, [e.name for e in self.inputs.columns], self.where, self._ways)
        self._as_is |= added  # dates go on
        self.names |= {name: name for name in own if name not in frame}  # columns of dates
        with_gaps = dates.with_gaps(self.inputs.columns)
        values = self._columns(frame)
        if self._usual.missing:
            for sentence in self._usual.forgotten(values, self._form):
                self._say(sentence)
        names = [str(column.name) for column in values.values()]
        x_RF = tables.as_they_are(self.inputs.columns, frame if list(frame) == names else frame[names])
        if x_RF is None:
            for one in self.inputs.columns:
                name = dates.base_of(one.name) if one.name in added else one.name
                knows_gaps = one.gaps or (one.name in added and name in with_gaps)
                for sentence in cells.remarks(
                    one, values[one.name], self.where, name, knows_gaps=knows_gaps, shared=self._shared
                ):
                    self._say(sentence)
            x_RF = tables.encode(self.inputs.columns, values)
        self._scales(x_RF)
        return x_RF

    def _columns(self, frame: pd.DataFrame) -> dict[str, pd.Series]:
        """The frame's columns by the bundle's names, with the codes of categories as in training."""
        own_of = self._find([str(c) for c in frame], [e.name for e in self.inputs.columns])
        return {
            one.name: cells.as_coded(one, frame[own_of[one.name]]) for one in self.inputs.columns if one.name in own_of
        }

    def _find(self, there: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
        """By the bundle's names of columns the site's, of whatever order, letter case and spacing.

        Raises:
            InputError: there is none, or several are written alike.
        """
        own_of = names_of(there, wanted, self.where)
        names = {name: own_of[name] for name in wanted if name in own_of}
        absent = [name for name in wanted if name not in own_of]
        if absent:
            others = [c for c in there if c not in names.values()]
            raise InputError(absent_columns.sentence(self.where, absent, others, wanted))
        for name, own in names.items():
            if name != own:
                self.names[name], self.names[own] = own, name
                self._say(f"column {own!r} is taken as {name!r}")
        extra = [c for c in there if c not in names.values()]
        if extra:
            self._say(f"columns that the bundle does not take are not used: {listed(extra, 40)}")
        return names

    def _scales(self, x_RF: Tensor) -> None:
        """Refuse numbers that look like those of another unit."""
        x_KF = x_RF[:: max(1, len(x_RF) // _LOOKED_AT)].double().numpy()
        at = 0
        for k, encoding in enumerate(self.inputs.columns):
            if encoding.kind == "number" and encoding.scaled and encoding.value and encoding.name not in self._as_is:
                x_N = x_KF[~np.isnan(x_KF[:, at]), at]
                if self.inputs.scales:
                    x_N = self._compare_sizes(encoding, x_N, self.inputs.scales[k])
                mean, std = self.inputs.mean[at], self.inputs.std[at]
                if len(x_N) >= _FEW and units.of_another_unit(x_N, mean, std):
                    shift = encoding.shift
                    raise InputError(
                        f"column {encoding.name!r} of {self.where} looks like another unit: its mean is "
                        f"{x_N.mean() + shift:.4g} with a spread of {x_N.std():.3g}, and in training it was "
                        f"{mean + shift:.4g} with {std:.3g}: convert it, or give {option('as_is', encoding.name)} if "
                        "the numbers are right"
                    )
            at += len(encoding.features)

    def _compare_sizes(self, encoding: Encoding, x_N: NDArray[np.float64], training: Scale) -> NDArray[np.float64]:
        """Compare sizes, where zeros do not count; returns the numbers whose mean says something."""
        x_K: NDArray[np.float64] = x_N + encoding.shift
        scales = {self.where: units.scale_of(x_K), _OTHERS: training}
        if (difference := units.apart(encoding.name, scales, self.where)) is not None:
            raise Disagreement(
                f"column {encoding.name!r} looks like another unit: {difference}: convert it, or give "
                f"{option('as_is', encoding.name)} if the numbers are right"
            )
        if self.where in units.hidden_gaps(scales):
            self._say(
                f"column {encoding.name!r} is 0 in most rows, and hardly ever at {_OTHERS}: if 0 stands for a missing "
                "value, leave these cells empty"
            )
            return np.asarray(x_N[x_K != 0])
        return x_N

    def _say(self, sentence: str) -> None:
        if sentence not in self._sentences:
            self._sentences.add(sentence)
            log.warning("%s: %s", self.where, sentence)


def _names(columns: Sequence[str]) -> list[str]:
    """Names of columns, of which one alone may be a text."""
    return [columns] if isinstance(columns, str) else [*columns]
