"""Which metrics the models of a client can have, and in which range each is.

A simulation records what its own code has measured; a site of a federation sends what it says that it has measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import Spec
from idiolect.simulation import label_measures
from idiolect.simulation.measures import BINS
from idiolect.statistics.conformal import OF_INTERVALS

_OFF = 0.005  # by which a number may be off, because probabilities may sum to a little more than 1


class Range(NamedTuple):
    """The least and the largest value."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Whether a value is possible; NaN is none."""
        return self.least <= value <= self.most


_SHARE, _NEARLY_SHARE = Range(0, 1), Range(0, 1 + _OFF)
_SIZE = Range(0, math.inf)
SCALARS = {
    "accuracy": _SHARE, "loss": Range(-_OFF, math.inf), "calibration_error": _NEARLY_SHARE, "brier": Range(0, 2 + _OFF),
    "validation_accuracy": _SHARE, "validation_loss": Range(-_OFF, math.inf),
}  # fmt: skip
"""The metrics that are fields of an ``EvaluationResult``."""


def of_measures(
    task: TaskName, outputs: int, names: Sequence[str], asked: Iterable[str], threshold: Threshold
) -> dict[str, Range]:
    """The metrics that ``EvaluationResult.measures`` can have, with their ranges.

    Args:
        task: what is learnt.
        outputs: how many classes, numbers or labels there are.
        names: of the numbers or labels; of classes, none.
        asked: the measures that the study asks for.
        threshold: from which probability on a class or a label is predicted.
    """
    if task == "regression":
        return _of_numbers(names)
    if task == "multilabel":
        return _of_labels(names, asked, threshold)
    found = {"balanced_accuracy": _SHARE, "macro_f1": _SHARE} | ({} if threshold == "half" else {"threshold": _SHARE})
    for text in asked:
        found |= _of_measure(text, outputs)
    return found


def _of_measure(text: str, classes: int) -> dict[str, Range]:
    spec = Spec.parse(text)
    if spec.name == "recall":
        return {f"recall[{c}]": _SHARE for c in range(classes)}
    if spec.name == "calibration":
        kinds = {"count": _SIZE, "predicted": _NEARLY_SHARE, "observed": _SHARE}
        return {f"calibration_{kind}[{b}]": how for kind, how in kinds.items() for b in range(BINS)}
    ends = ("", "_low", "_high") if spec.options or spec.name == "auroc" else ("",)
    return {f"{text}{end}": _NEARLY_SHARE for end in ends}


def _of_numbers(names: Sequence[str]) -> dict[str, Range]:
    errors = dict.fromkeys(("mse", "mae", "mse_low", "mse_high"), _SIZE) | {"r2": Range(-math.inf, 1)}
    intervals = {name: _SHARE if name == "coverage" else _SIZE for name in OF_INTERVALS}
    found = errors | intervals | {f"validation_{name}": how for name, how in errors.items()}
    if len(names) > 1:
        each = {name: errors[name] for name in ("mse", "mae")} | intervals
        found |= {f"{metric}[{name}]": how for metric, how in each.items() for name in names}
    return found


def _of_labels(names: Sequence[str], asked: Iterable[str], threshold: Threshold) -> dict[str, Range]:
    whole = dict.fromkeys(("micro_f1", "macro_f1", "subset_accuracy"), _SHARE)
    ranked = [measure for measure in label_measures.RANKED if measure in asked]
    found = whole | {f"validation_{name}": how for name, how in whole.items()}
    found |= {f"f1[{name}]": _SHARE for name in names} | dict.fromkeys(ranked, _NEARLY_SHARE)
    found |= {f"{measure}[{name}]": _NEARLY_SHARE for measure in ranked for name in names}
    return found | ({} if threshold == "half" else {f"threshold[{name}]": _SHARE for name in names})
