"""Subgroups of a site's samples, by a column of its table, and how well the model does in each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, nearest
from idiolect.core.objectives import number
from idiolect.data.custom.columns import in_order, missing, text_of
from idiolect.data.custom.questions import answered, columns_asked
from idiolect.deploy.validation import Outcome, Settings, auroc
from idiolect.statistics.intervals import Estimate, share

# N samples, K of them with a value

MOST = 20
"""Values of a column of subgroups."""
_NUMBERS = 10  # with more different ones, a column is divided at its quartiles
_ABSENT = "no value"


class Subgroup(NamedTuple):
    """The samples with one value of a column. What has too few samples to judge, or to be shown, is None."""

    column: str
    value: str
    samples: int | None = None
    cases: int | None = None
    controls: int | None = None
    auroc: Estimate | None = None
    accuracy: Estimate | None = None
    sensitivity: Estimate | None = None
    """Where a sample is positive if its class is predicted, and so the specificity."""
    specificity: Estimate | None = None
    predicted: float | None = None
    """The mean probability of being a case."""
    observed: Estimate | None = None
    """The share of cases."""


def subgroups(
    table: pd.DataFrame | None, column: str, outcome: Outcome, settings: Settings, where: str
) -> list[Subgroup]:
    """How well the model does in the samples with each value of a column.

    A column of more than 10 different numbers is divided at its quartiles; a question, as ``age>=65``, has the values
    no and yes. Nothing is told of a subgroup with fewer samples than ``settings.least`` but that it has fewer; a
    number that is of cases, or of controls, alone needs as many of these, and counts below that are not told.

    Raises:
        InputError: there is no such column, or it has more than 20 texts.
    """
    return [
        _subgroup(column, value, outcome.part(where_N), settings)
        for value, where_N in _parts(_column(table, column, where), column, where)
    ]


def _subgroup(column: str, value: str, part: Outcome, settings: Settings) -> Subgroup:
    count, cases, least = len(part.p_N), part.cases, settings.least
    if count < least:
        return Subgroup(column, value)
    controls = count - cases
    right, false = int((part.is_named_N == part.is_case_N).sum()), int((part.is_named_N & ~part.is_case_N).sum())
    true = int((part.is_named_N & part.is_case_N).sum())
    is_known = cases >= least and controls >= least
    return Subgroup(
        column,
        value,
        count,
        cases if is_known else None,
        controls if is_known else None,
        auroc(part) if is_known else None,
        share(right, count),
        share(true, cases) if cases >= least else None,
        share(controls - false, controls) if controls >= least else None,
        float(part.p_N.mean()),
        share(cases, count) if is_known else None,
    )


def _column(table: pd.DataFrame | None, name: str, where: str) -> pd.Series[Any]:
    columns = [] if table is None else [str(c) for c in table]
    if table is None or name in columns:
        values = None if table is None else table[name]
    elif columns_asked(name) & set(columns):
        try:
            values = answered(table, name, where)[name]
        except InputError as error:
            raise InputError(str(error).replace("target", "subgroup", 1)) from None
    else:
        values = None
    if values is None:
        raise InputError(f"subgroup: {where} has no column {name!r}; {nearest(name, columns)}")
    return values


def _parts(values: pd.Series[Any], name: str, where: str) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each value, or range of numbers, in order, and which samples have it; those without a value last."""
    absent_N = missing(values)
    there = values[~absent_N]
    number_K = pd.to_numeric(there.astype(object), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    is_numbers = len(number_K) > 0 and not np.isnan(number_K).any() and len(np.unique(number_K)) > _NUMBERS
    code_K, names = _quartiles(number_K) if is_numbers else _values(there, name, where)
    code_N = np.full(len(values), -1)
    code_N[~absent_N] = code_K
    for k, value in enumerate(names):
        yield value, code_N == k
    if absent_N.any():
        yield _ABSENT, absent_N


def _values(there: pd.Series[Any], name: str, where: str) -> tuple[NDArray[np.int64], list[str]]:
    texts = there.astype(object).map(text_of)
    names = in_order(set(texts))
    if len(names) > MOST:
        raise InputError(
            f"subgroup: column {name!r} of {where} has {len(names)} different values, more than {MOST}: is it an "
            f'identifier? Give a column with fewer, or ask of it, as "{name}=VALUE"'
        )
    place = {text: k for k, text in enumerate(names)}
    return np.array([place[text] for text in texts], np.int64), names


def _quartiles(number_K: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    value_U = np.unique(number_K)
    edges = np.unique(np.quantile(number_K, [0.25, 0.5, 0.75], method="inverted_cdf"))
    edges = edges[edges < value_U[-1]] if edges[0] < value_U[-1] else value_U[-2:-1]
    texts = [number(edge) for edge in edges]
    digits = 5
    while len(set(texts)) < len(texts):
        texts, digits = [number(edge, digits) for edge in edges], digits + 1
    between = [f"above {low} to {high}" for low, high in pairwise(texts)]
    return np.searchsorted(edges, number_K), [f"up to {texts[0]}", *between, f"above {texts[-1]}"]
