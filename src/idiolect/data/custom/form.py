"""How tables are written, where they do not say it themselves: names of columns, marks of missing values.

Also what becomes of rows whose target is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import pandas as pd

from idiolect.core.errors import InputError, listed, nearest
from idiolect.core.option_spec import split_names
from idiolect.data.custom.columns import NUMBER, by_value, in_order, missing, text_of
from idiolect.data.datasets.dataset import Header, Unlabelled

# R rows

NAMELESS = (".csv", ".tsv", ".data", ".arff")
"""The kinds of files that may have no names of columns."""


class Form(NamedTuple):
    """How tables are written.

    Attributes:
        nameless: whether the first line of a text file is a row.
        names: of all columns then; () for 1, 2, ...
        missing: marks of missing values beside the usual ones, for all features, or for one column as COLUMN=MARK.
        unlabelled: "drop" leaves rows without a target out; they are an error otherwise.
        categorical: columns whose numbers are codes of categories.
    """

    nameless: bool = False
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unlabelled: Unlabelled | None = None
    categorical: tuple[str, ...] = ()

    def names_for(self, width: int) -> list[str]:
        """The names of so many columns."""
        return list(self.names) or [str(k + 1) for k in range(width)]

    def marks(self, columns: Collection[str]) -> dict[str | None, list[str]]:
        """The marks by the column that they are for; those of all features by None.

        Raises:
            InputError: a mark is for a column that is not there.
        """
        by: dict[str | None, list[str]] = {}
        for text in self.missing:
            name, equals, mark = text.rpartition("=")
            if equals and name not in columns:
                raise InputError(f"missing: there is no column {name!r} for {text!r}; {nearest(name, columns)}")
            by.setdefault(name if equals else None, []).append(mark)
        return by

    def refuse_names(self) -> None:
        """Check that a file that has names for its columns, or needs none, is not given some.

        Raises:
            InputError: it is.
        """
        if self.nameless:
            what = "columns" if self.names else "header"
            raise InputError(f"{what} is for files ending in {listed(NAMELESS)} without names: leave it out")

    def known(self, frame: pd.DataFrame, columns: Collection[str] = ()) -> pd.DataFrame:
        """A table whose cells with marks of their column are empty; ``columns`` may have marks and are not in it.

        Raises:
            InputError: as ``marks``.
        """
        by = self.marks([*map(str, frame), *columns])
        by = {name: marks for name, marks in by.items() if name in frame}
        return _emptied(frame, {name: marks for name, marks in by.items() if name is not None})

    def known_features(self, frame: pd.DataFrame, features: Collection[str]) -> pd.DataFrame:
        """A table whose features are empty where they have marks that are for all, and categories where they are codes.

        Raises:
            InputError: a column of categories is no feature.
        """
        usual = [mark for mark in self.missing if "=" not in mark]
        frame = _emptied(frame, dict.fromkeys(features, usual)) if usual else frame
        for name in self.categorical:
            if name not in features:
                raise InputError(f"categorical: there is no feature {name!r}; {nearest(name, features)}")
        categories = {name: _categories(frame[name]) for name in self.categorical}
        return frame.assign(**categories) if categories else frame


def form_of(
    header: str | None = None, columns: str | None = None, missing: str | Sequence[str] | None = None,
    unlabelled: str | None = None, categorical: str | None = None,
) -> Form:  # fmt: skip
    """The form that settings say.

    Args:
        header: "none" where the first line of a text file is a row.
        columns: names for the columns of such a file, joined by +.
        missing: marks of missing values, joined by +; one for a column alone as COLUMN=MARK.
        unlabelled: "error" or "drop": what becomes of rows without a target.
        categorical: columns whose numbers are codes of categories, joined by +.

    Raises:
        InputError: a setting is none of these.
    """
    if header not in (None, *get_args(Header)):
        raise InputError(f"header={header!r} is not known: give none where the first line is a row, or leave it out")
    names = () if columns is None else tuple(split_names(columns, ()))
    texts = [str(mark) for mark in (missing or () if isinstance(missing, list | tuple | None) else [missing])]
    marks = tuple(mark for text in texts for mark in ([text] if text == "+" else split_names(text, ())))
    if "" in marks:
        raise InputError(f"missing={'+'.join(texts)} has an empty mark: empty cells are missing anyway")
    if unlabelled not in (None, *get_args(Unlabelled)):
        raise InputError(f"unlabelled={unlabelled!r} is not known: give error or drop, or leave it out")
    codes = () if categorical is None else tuple(split_names(categorical, ()))
    return Form(header == "none" or bool(names), names, marks, cast(Unlabelled | None, unlabelled), codes)


def _categories(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column with the texts of its values as categories."""
    gone_R = missing(values)
    texts = pd.Series(None, index=values.index, dtype=object)
    texts[~gone_R] = by_value(text_of, values[~gone_R])
    return texts.astype(pd.CategoricalDtype(in_order(set(texts[~gone_R]))))


def _emptied(frame: pd.DataFrame, marks: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    emptied = {name: frame[name].mask(is_mark(frame[name], of_one)) for name, of_one in marks.items()}
    return frame.assign(**emptied) if emptied else frame


def is_mark(values: pd.Series[Any], marks: Sequence[str]) -> pd.Series[Any]:
    """For each row (R,) whether its value is a mark: as a number where the column has numbers, else as a text."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        numbers = [float(mark) for mark in marks if NUMBER.fullmatch(mark)]
        return pd.Series(np.isin(values.to_numpy(np.float64, na_value=np.nan), numbers), index=values.index)
    texts = values.astype(object).map(lambda v: v.strip() if isinstance(v, str) else v)
    return texts.isin(list(marks))


def check_names(names: Sequence[str], width: int, where: object) -> None:
    """Check that names for a table without names are as many as its columns, and different.

    Raises:
        InputError: they are not.
    """
    if len(names) != width:
        count = f"{len(names)} name{'s' * (len(names) > 1)}"
        raise InputError(
            f"columns has {count}, and {where} has {width} columns: name each, joined by +, in their order"
        )
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"columns: give each column of {where} a name of its own")
