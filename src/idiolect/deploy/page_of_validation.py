"""The page of a validation: what a site's samples say of its model, in figures and tables without single samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from idiolect.deploy import figures_of_validation
from idiolect.deploy.subgroups import Subgroup
from idiolect.deploy.validation import Performance
from idiolect.deploy.validation_result import Validation, cautions, sentences
from idiolect.report.page import placed, render_page
from idiolect.statistics.intervals import Estimate
from idiolect.statistics.operating_point import OperatingPoint

_FEW = {"value": "", "text": "too few to judge", "interval": ""}
_RATES = ("Sensitivity, %", "Specificity, %", "PPV, %", "NPV, %", "Positive, %")
Table = dict[str, Any]
"""Names of columns, and rows with a name and cells."""


def text(result: Validation) -> str:
    """The page, as HTML."""
    one, curves = result.one, result.curves
    figures = figures_of_validation.figures(result) if one and curves else []
    more: dict[str, Any] = dict.fromkeys(("classes", "points", "calibration", "decisions", "name"))
    if one and curves:
        more |= {"points": _points(result, one), "calibration": _calibration(one), "name": one.title}
        more["decisions"] = _decisions(result)
    else:
        more["classes"] = _classes(result)
    return render_page(
        "validation.html",
        placed("validation", figures),
        title=f"Validation of {result.model} at this site",
        facts=_facts(result),
        sentences=sentences(result),
        cautions=cautions(result),
        figures=figures,
        groups=_groups(result.subgroups, result.settings.least),
        prevalence=_prevalence(result),
        least=result.settings.least,
        specificity=f"{100 * result.settings.specificity:g} %",
        sensitivity=f"{100 * result.settings.sensitivity:g} %",
        **more,
    )


def _prevalence(result: Validation) -> str:
    given, one = result.settings.prevalence, result.one
    if one is None:
        return ""
    return f"{100 * one.cases / one.samples:.1f} %, that of these samples" if given is None else f"{100 * given:g} %"


def _facts(result: Validation) -> list[tuple[str, str]]:
    one = result.one
    of = f"{result.samples:,}" + (f", {one.cases:,} of them {one.title}" if one else f", {len(result.classes)} classes")
    groups = [] if result.groups is None else [("Groups of samples", f"{result.groups:,}")]
    return [("Samples", of), *groups, ("Model", f"{result.model}, digest {result.digest[:12] or 'unknown'}")]


def _share(of: Estimate | None) -> dict[str, Any]:
    return _cell(of, 100, 1)


def _cell(of: Estimate | float | None, factor: float = 1, digits: int = 2) -> dict[str, Any]:
    """A number of a table with its interval; ``factor`` is what is shown of a value 1."""
    if of is None:
        return _FEW
    value, low, high = (of * 1.0, math.nan, math.nan) if isinstance(of, float | int) else of
    if math.isnan(value):
        return {"value": "", "text": "-", "interval": ""}
    text_ = [f"{factor * number:.{digits}f}" for number in (value, low, high)]
    return {"value": value, "text": text_[0], "interval": "" if math.isnan(low) else f"{text_[1]} to {text_[2]}"}


def _count(of: int | None, least: int) -> dict[str, Any]:
    return {"value": "", "text": f"< {least}", "interval": ""} if of is None else _cell(float(of), 1, 0)


def _points(result: Validation, one: Performance) -> Table:
    settings = result.settings
    rows = {
        "As idiolect predict names it": one.named,
        f"Specificity of {100 * settings.specificity:g} % or more": one.specific,
        f"Sensitivity of {100 * settings.sensitivity:g} % or more": one.sensitive,
    }
    columns = [f"{one.title} if", "Above probability", *_RATES]
    return {"columns": columns, "rows": [{"name": name, "cells": _of_point(point)} for name, point in rows.items()]}


def _of_point(point: OperatingPoint) -> list[dict[str, Any]]:
    everyone = {"value": -1, "text": "all", "interval": ""}
    threshold = everyone if point.threshold < 0 else _cell(point.threshold, 1, 3)
    return [threshold, *map(_share, (point.sensitivity, point.specificity, point.ppv, point.npv, point.positive))]


def _calibration(one: Performance) -> Table:
    parts = one.recalibration
    columns = ["Class", "In the large", "Slope", "Intercept", "Brier score"]
    cells = [_cell(parts.in_the_large), _cell(parts.slope), _cell(parts.intercept), _cell(one.brier, digits=3)]
    return {"columns": columns, "rows": [{"name": one.title, "cells": cells}]}


def _decisions(result: Validation) -> Table:
    assert result.curves is not None
    columns = ["Threshold probability", "Model", "Treat all", "Model less treat all"]
    rows = [
        {
            "name": f"{100 * point.threshold:.3g} %",
            "cells": [_share(of) for of in (point.model, point.everyone, point.gain)],
        }
        for point in result.curves.decision
    ]
    return {"columns": columns, "rows": rows}


def _classes(result: Validation) -> Table:
    columns = ["Class", "Samples", "AUROC", *_RATES[:2], "In the large", "Slope"]
    few = [_FEW, *[_cell(math.nan)] * (len(columns) - 2)]
    rows = [{"name": name, "cells": _of_class(of) if of else few} for name, of in result.classes.items()]
    return {"columns": columns, "rows": rows}


def _of_class(of: Performance) -> list[dict[str, Any]]:
    rates = [_share(of.specific.sensitivity), _share(of.sensitive.specificity)]
    calibration = [_cell(of.recalibration.in_the_large), _cell(of.recalibration.slope)]
    return [_cell(float(of.cases), 1, 0), _cell(of.auroc), *rates, *calibration]


def _groups(every: Iterable[Subgroup], least: int) -> list[Table]:
    columns = [
        "Subgroup", "Samples", "Cases", "AUROC", "Accuracy, %", "Sensitivity, %", "Specificity, %",
        "Mean probability, %", "Cases, %",
    ]  # fmt: skip
    by: dict[str, list[dict[str, Any]]] = {}
    for one in every:
        rates = [_share(of) for of in (one.accuracy, one.sensitivity, one.specificity)]
        means = [_FEW if one.predicted is None else _cell(one.predicted, 100, 1), _share(one.observed)]
        cells = [_count(one.samples, least), _count(one.cases, least), _cell(one.auroc), *rates, *means]
        if one.samples is None:
            cells = [_count(None, least), _FEW, *[_cell(math.nan)] * (len(columns) - 3)]
        by.setdefault(one.column, []).append({"name": one.value, "cells": cells})
    return [{"name": name, "columns": columns, "rows": rows} for name, rows in by.items()]
