"""The table by label, where a sample can have several: which labels each method predicts well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from idiolect.report.common_clients import counted
from idiolect.runs.reader import Run

MEASURES = {"f1": "F1", "auroc": "AUROC", "average_precision": "Average precision"}
"""Those that have a value for each label, and how they are called."""


def by_label(run: Run, measure: str = "f1") -> pd.DataFrame:
    """A measure of each label (rows) by method (columns, by label of the method), 0 to 1.

    The mean over seeds of the mean over clients, at the protocol's stage and round. A client counts where all methods
    have a value of it (see ``common_clients.counted``): F1 has none where no test sample has the label and none is
    predicted. NaN where no client counts.

    Args:
        run: whose samples can have several labels.
        measure: one of ``MEASURES``; the others than f1 are there if the study asks for them.
    """
    methods = list(run.titles)
    table = {}
    for name in run.manifest["targets"]:
        records = counted(run, f"{measure}[{name}]")
        of_seed = records.groupby(["method", "seed"], observed=True)["value"].mean()
        table[name] = of_seed.groupby("method", observed=True).mean().reindex(methods)
    return pd.DataFrame(table, index=methods).T.rename_axis("label")


def measured(run: Run) -> dict[str, pd.DataFrame]:
    """The tables of all measures that have values, by measure; {} of a run of another task."""
    if run.task != "multilabel":
        return {}
    tables = {measure: by_label(run, measure) for measure in MEASURES}
    return {measure: table for measure, table in tables.items() if table.notna().to_numpy().any()}


def frame(run: Run) -> pd.DataFrame:
    """All tables by label as one, with the columns ``measure``, ``label`` and one for each method."""
    parts = [table.reset_index().assign(measure=measure) for measure, table in measured(run).items()]
    return pd.concat(parts)[["measure", "label", *run.titles]] if parts else pd.DataFrame()


def shown(run: Run) -> list[dict[str, Any]]:
    """The tables as the page has them: for each measure its name and rows of cells, the best of a row marked."""
    return [
        {
            "name": MEASURES[measure],
            "rows": [
                {"label": str(label), "cells": _cells(values.to_numpy(np.float64))}
                for label, values in table.iterrows()
            ],
        }
        for measure, table in measured(run).items()
    ]


def _cells(value_M: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, Any]]:
    best = np.nanmax(value_M).round(12) if not np.isnan(value_M).all() else math.nan  # equal means are equal
    return [
        {
            "value": "" if math.isnan(value) else value,
            "text": "-" if math.isnan(value) else f"{100 * value:.1f}",
            "best": round(value, 12) == best,
        }
        for value in value_M.tolist()
    ]
