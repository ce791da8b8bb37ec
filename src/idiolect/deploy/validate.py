"""Validation at the site: predictions of labelled samples are judged where they are, and only summaries are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from torch import Tensor

from idiolect.core import files
from idiolect.core.errors import InputError, listed, option
from idiolect.core.terminal import as_json
from idiolect.data.custom.form import Form
from idiolect.data.custom.questions import columns_asked
from idiolect.deploy import page_of_validation
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.predict import finite
from idiolect.deploy.samples import read
from idiolect.deploy.subgroups import subgroups
from idiolect.deploy.usual import usual_of
from idiolect.deploy.validation import Settings, check_task, chosen, curves, outcomes, performance
from idiolect.deploy.validation_result import Validation
from idiolect.statistics.intervals import share

# N samples, C classes, L labels

PAGE, NUMBERS = "report.html", "validation.json"
"""Files of the folder; the tables are beside them, as .csv."""


def validate(
    bundle: Bundle,
    where: str | Path,
    out: Path | None = None,
    *,
    target: str | None = None,
    of_class: str | None = None,
    subgroup_columns: Sequence[str] = (),
    settings: Settings = Settings(),  # noqa: B008  immutable
    client: str | int | None = None,
    resize: bool = False,
    as_is: Sequence[str] = (),
    form: Form = Form(),  # noqa: B008  immutable
    group_column: str | None = None,
) -> Validation:
    """Judge a site's model on labelled samples that it has not seen.

    Nothing is told of a single sample: curves have 19 points, bins of the calibration ``settings.least`` samples or
    more, and of a subgroup with fewer it is only told that it has fewer.

    Args:
        bundle: with a model that is ready, of classes or labels.
        where: the samples and their labels, as for ``idiolect.deploy.samples.read``.
        out: a new or empty folder for the page, the JSON and the tables; None writes nothing.
        target: the column of labels, or a question as ``num>0``.
        of_class: the class, or label, of cases. By default the second of two classes; of several classes, or labels,
            there is then a table of all, each against the rest, and no curves.
        subgroup_columns: columns, or questions as ``age>=65``, by which samples are divided.
        settings: at which rates, thresholds and prevalence.
        client: whose model, where the bundle has several.
        resize: whether images of another size are stretched.
        as_is: columns whose numbers are used although they look like those of another unit.
        form: how tables are written.
        group_column: the column that says which samples are of one patient, or the like.

    Raises:
        InputError: the samples are not what the bundle takes, it predicts numbers, there is no such class or column,
            there are too few cases or controls, or a setting is out of range.
        RunError: the disk is full.
    """
    settings.check()
    if out is not None:
        files.vacant(out)
    about = bundle.about
    bundle.ready()
    check_task(about)
    model, at = bundle.model(client), bundle.thresholds(client)
    kept = set(subgroup_columns).union(*map(columns_asked, subgroup_columns))
    own = read(
        where, about.inputs, about.classes, target, resize=resize, as_is=as_is, form=form, group_column=group_column,
        usual=usual_of(about), labels=about.labels, kept=kept,
    )  # fmt: skip
    logp = finite(log_probabilities(model, bundle.predicting, own.x_N))
    return judge(
        bundle, at, logp, own.y_N, out, of_class=of_class, subgroup_columns=subgroup_columns, settings=settings,
        table=own.table, group_N=own.group_N, where=str(where),
    )  # fmt: skip


def judge(
    bundle: Bundle,
    at: Sequence[float],
    logp: Tensor,
    y: Tensor,
    out: Path | None = None,
    *,
    of_class: str | None = None,
    subgroup_columns: Sequence[str] = (),
    settings: Settings = Settings(),  # noqa: B008  immutable
    table: pd.DataFrame | None = None,
    group_N: Tensor | None = None,
    where: str = "the samples",
) -> Validation:
    """As ``validate``, of samples that have been predicted.

    Args:
        bundle: the model.
        at: its thresholds; () for 1/2.
        logp: log-probabilities of the classes (N, C), or without and with each label (N, L, 2).
        y: classes (N,), or 1 where a sample has a label, else 0 (N, L).
        out: as for ``validate``, and so are ``of_class``, ``subgroup_columns`` and ``settings``.
        of_class: see there.
        subgroup_columns: see there.
        settings: see there.
        table: the columns of the samples.
        group_N: which samples belong together, int64.
        where: what the samples are called in messages.

    Raises:
        InputError: as ``validate``.
        RunError: the disk is full.
    """
    settings.check()
    about = bundle.about
    every = outcomes(about, at, logp, y)
    few = chosen(every, of_class)
    if subgroup_columns and len(few) > 1:
        raise InputError(
            f"subgroups are of one class, and this model has {len(few)}: give {option('class')} as one of "
            f"{listed([one.name for one in few], 8)}"
        )
    judged = {one.name: performance(one, settings) for one in few}
    if not any(judged.values()):
        controls, cases = len(y) - few[0].cases, few[0].cases
        what = f"{cases} samples that are {few[0].title} and {controls} that are not" if len(few) == 1 else (
            "no class with so many"
        )  # fmt: skip
        raise InputError(
            f"a validation needs {settings.least} samples of a class and {settings.least} of the others, and {where} "
            f"has {what}: give more samples"
        )
    right = sum(int((one.is_named_N & one.is_case_N).sum()) for one in every)
    result = Validation(
        about.method.title,
        bundle.digest,
        len(y),
        None if group_N is None else len(set(group_N.tolist())),
        settings,
        share(right, len(y)) if about.classes else None,
        judged,
        curves(few[0], settings) if len(few) == 1 else None,
        [group for name in subgroup_columns for group in subgroups(table, name, few[0], settings, where)],
    )
    if out is not None:
        write(result, out)
    return result


def write(result: Validation, out: Path) -> None:
    """Write the page, the JSON and the tables into a new or empty folder, whole or not at all.

    Raises:
        InputError: the folder is not empty.
        RunError: the disk is full.
    """
    with files.drafted_folder(out) as draft:
        files.write(draft / PAGE, page_of_validation.text(result))
        files.write(draft / NUMBERS, as_json(result.as_json()))
        for name, frame in result.tables().items():
            files.write(draft / f"{name}.csv", frame.to_csv(index=False))
