"""The measures that a study asks for: their columns, and which clients have no value of them and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from idiolect.core.errors import InputError, brief, listed, nearest, option
from idiolect.core.objectives import Score
from idiolect.core.option_spec import Spec, options_of
from idiolect.data.partitions import PARTITIONS
from idiolect.report.common_clients import counted, expected, names
from idiolect.runs.reader import Run, once, part_of
from idiolect.statistics.conformal import LEVEL, OF_INTERVALS, least

_NAMED = 5  # clients that a sentence lists
_FIGURE, _ONE = "calibration", "its test samples have one class"
_EQUAL = "its test samples have one value"
_FEW = f"fewer than {least(LEVEL)} validation samples, or groups of them"
_UNRANKED = "each label has one value in its test samples"
_UNLABELLED = "its test samples have no label, and none is predicted"
_SHORT = {"auroc": "AUROC", "micro_f1": "Micro F1", "macro_f1": "Macro F1", "mse": "MSE", "mae": "MAE", "r2": "R2"}
OF_NUMBERS = ("mse", "mae", "r2", "interval_width", "interval_score")
"""The metrics of predicted numbers, which are no shares."""
LESS_IS_BETTER = ("loss", "brier", "calibration_error", "mse", "mae", "interval_width", "interval_score")
"""Of the metrics, those of which less is better."""
_SHARES = (
    "accuracy", "balanced_accuracy", "macro_f1", "micro_f1", "f1", "subset_accuracy", "auroc", "average_precision",
    "recall", "sensitivity", "specificity",
)  # fmt: skip
_AMOUNTS = (*LESS_IS_BETTER, "r2")
_CLASS_OF = {"specificity": 0, "sensitivity": 1}


def requested(run: Run) -> list[str]:
    """The measures of a study that are numbers, as they are recorded; ``recall`` stands for those of all classes.

    They are of test samples: a run without test samples has none. Where numbers are predicted, they are always the mean
    absolute error and R2, and those of intervals where clients have validation samples; of several labels always macro
    F1 and subset accuracy, before what the study asks for.
    """
    if run.part == "validation":
        return []
    if run.task == "regression":
        recorded = set(run.records["metric"].unique())
        return ["mae", "r2", *(metric for metric in OF_INTERVALS if metric in recorded)]
    always = ["macro_f1", "subset_accuracy"] if run.task == "multilabel" else []
    return always + [str(name) for name in run.study.get("measures") or () if name != _FIGURE]


def words(metric: str) -> str:
    """The name of a metric for a heading.

    >>> [words(m) for m in ("auroc", "macro_f1", "sensitivity:specificity=0.9", "mae")]
    ['AUROC', 'Macro F1', 'Sensitivity at specificity 0.9', 'MAE']
    """
    spec = Spec.parse(metric) if ":" in metric and "[" not in metric else Spec(name=metric)
    at = "".join(f" at {k} {v:g}" for k, v in spec.options.items())
    return _SHORT.get(spec.name, spec.name.replace("_", " ").capitalize()) + at


def header(metric: str) -> str:
    """The same for a column, with its unit."""
    name = words(metric)
    if metric in OF_NUMBERS:
        return name
    if " at " in name:
        name = name.replace("ensitivity", "ens.").replace("pecificity", "pec.")
    return f"{name} %"


def score_of(run: Run, measure: str) -> Score:
    """A metric that the run recorded of clients' samples, as what methods are compared by.

    Raises:
        InputError: the run did not record it, or more of it is neither better nor worse.
    """
    names = [m for m in run.records["metric"].unique().tolist() if _plain(m) in (*_SHARES, *_AMOUNTS)]
    if measure not in names or run.last_of(measure).empty:
        raise InputError(f"methods cannot be compared by {brief(measure)}; {nearest(measure, names)}")
    plain, name = _plain(measure), words(measure)
    name = name if name[:2].isupper() else f"{name[0].lower()}{name[1:]}"
    return Score(measure, name, header(measure), plain not in LESS_IS_BETTER, 100 if plain in _SHARES else 1)


def _plain(metric: str) -> str:
    """A metric without its samples, options and class."""
    return metric.removeprefix("validation_").partition(":")[0].partition("[")[0]


def class_of(metric: str) -> int | None:
    """The class whose samples alone a recall is about."""
    name, _, rest = metric.partition("[")
    return int(rest[:-1]) if name == "recall" and rest else _CLASS_OF.get(metric)


def values(run: Run, measure: str) -> pd.DataFrame:
    """The final values of a measure over the clients that count; for ``recall``, means over each client's classes."""
    if measure != "recall":
        return counted(run, measure)
    metrics = run.records["metric"].unique().tolist()
    parts = [counted(run, metric) for metric in metrics if metric.startswith("recall[")]
    if not parts:
        return counted(run, measure)
    keys = ["method", "seed", "round", "client"]
    return pd.concat(parts).groupby(keys)["value"].mean().reset_index()


def means(run: Run) -> dict[str, dict[str, float]]:
    """For each measure that the study asks for, the mean over clients and then over seeds, by method."""
    means_of = {}
    for measure in requested(run):
        each = values(run, measure).groupby(["method", "seed"])["value"].mean()
        means_of[measure] = {str(k): float(v) for k, v in each.groupby("method").mean().items()}
    return means_of


@once
def _by_id(run: Run) -> dict[int, dict[str, Any]]:
    """The clients of the manifest, by number."""
    return {c["id"]: c for c in run.manifest["clients"]}


def why_missing(run: Run, client: int, metric: str) -> str:
    """Why a client has no value of a metric, in words that follow its name."""
    part = part_of(metric)
    test_C = _by_id(run).get(client, {}).get(part, ())
    if not sum(test_C):
        return f"no {part} samples"
    of = class_of(metric)
    if of is not None and of < len(test_C) and not test_C[of]:
        return f"no test samples of class {run.manifest['class_names'][of]}"
    if run.task == "regression" and metric == "r2":
        return _EQUAL
    if metric in OF_INTERVALS:
        return _FEW
    if run.task == "multilabel" and metric != run.metric:
        return _UNLABELLED if "f1" in metric else _UNRANKED
    if metric not in run.proportions and of is None and np.count_nonzero(test_C) == 1:
        return _ONE
    return "no results"


@once
def missing(run: Run) -> list[str]:
    """A sentence for each measure that some clients have no value of, though they count: how many have, and why not."""
    lines, client_names = [], names(run)
    for measure, without in _without(run).items():
        groups: dict[str, list[str]] = {}
        for client in without:
            groups.setdefault(why_missing(run, client, measure), []).append(client_names[client])
        count = counted(run)["client"].nunique()
        why = "; ".join(_because(reason, who) for reason, who in groups.items())
        lines.append(f"{words(measure)}: {count - len(without)} of {count} clients; {why}.")
    return lines


def _without(run: Run) -> dict[str, list[int]]:
    """The clients that count and have no value of a measure, by measure; recall is a mean over the classes there."""
    count, reasons = sorted(set(counted(run)["client"])), {}
    for measure in requested(run):
        if measure in OF_INTERVALS[1:]:  # clients that lack one lack all
            continue
        there = set(values(run, measure)["client"])
        if measure != "recall" and (without := [c for c in count if c not in there]):
            reasons[measure] = without
    return reasons


def _because(reason: str, who: Sequence[str]) -> str:
    if reason != _ONE:
        return f"{listed(who, _NAMED)}: {reason}"
    of = f"{who[0]}'s test samples" if len(who) == 1 else f"the test samples of {listed(who, _NAMED)}"
    return f"{of} have one class"


@once
def suggestion(run: Run) -> list[str]:
    """What helps if a stratified split would give test samples of several classes to clients that lack a measure."""
    without = {client for clients in _without(run).values() for client in clients}
    try:
        spec = Spec.model_validate(run.study["partition"] or "natural")
        options: dict[str, Any] = dict(options_of(PARTITIONS[spec.name]))
    except (InputError, KeyError, ValueError, TypeError):
        return []
    if "stratified" not in options or spec.options.get("stratified") or spec.options.get("official_split"):
        return []
    about = _by_id(run)
    if not any(_would_help(about[c]["train"], about[c]["test"]) for c in without):
        return []
    own_options = {k: v for k, v in spec.options.items() if k != "stratified" and v != options[k].default}
    better = Spec(name=spec.name, options=own_options | {"stratified": True})
    return [f"Try {option('partition', str(better))}: it divides the samples of each class between training and test."]


def _would_help(train_C: Sequence[int], test_C: Sequence[int]) -> bool:
    """Whether a split with the proportions of the classes has test samples of two classes or more."""
    all_C, test = np.add(train_C, test_C), sum(test_C)
    if not test:
        return False
    found_C, rest_C = np.divmod(all_C * test, all_C.sum())
    found_C[np.argsort(-rest_C, kind="stable")[: test - found_C.sum()]] += 1
    return bool(np.count_nonzero(found_C) > 1)


def everybody(run: Run, metric: str) -> list[int]:
    """The clients of the protocol, with a value of the metric or without."""
    return sorted({*expected(run), *(int(c) for c in run.last_of(metric)["client"])})
