"""What a site has measured, before it counts: the metrics that the study defines, each in its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Self

from idiolect.core.objectives import TaskName
from idiolect.federation.messages import Message, Refusal
from idiolect.federation.rounds.checks import numbers
from idiolect.simulation.client_runner import EvaluationResult, Job
from idiolect.simulation.metric_ranges import SCALARS, Range, of_measures

_FIELDS: Mapping[TaskName, tuple[str, ...]] = {
    "classification": ("accuracy", "loss", "calibration_error", "brier"),
    "regression": ("loss",),
    "multilabel": ("loss",),
}
_MEASURES: Mapping[TaskName, tuple[str, ...]] = {
    "classification": (), "regression": ("mse", "mae"), "multilabel": ("micro_f1", "subset_accuracy")
}  # fmt: skip
"""Those that a site has if it has test samples."""
_ON_VALIDATION: Mapping[TaskName, tuple[str, ...]] = {
    "classification": ("validation_accuracy", "validation_loss"),
    "regression": ("validation_loss", "validation_mse"),
    "multilabel": ("validation_loss", "validation_micro_f1"),
}
"""Those of which it has all or none."""
_WITH_VALUE = ("accuracy", "validation_accuracy")  # wherever there are samples


class Metrics(NamedTuple):
    """The metrics that a site can have, by the study and what is agreed."""

    task: TaskName
    measures: Mapping[str, Range]

    @classmethod
    def of(cls, job: Job) -> Self:
        """Those of a job."""
        data = job.data
        names = () if data.targets is None else data.targets.names
        return cls(data.task, of_measures(data.task, data.outputs, names, job.measures, job.threshold))


def evaluation_result(message: Message, metrics: Metrics) -> EvaluationResult | None:
    """What a site measured of what is learnt; None where its policy keeps this to itself.

    Raises:
        Refusal: it is not in order.
    """
    if message.about.get("withheld"):
        return None
    about = message.about.get("measured")
    if not isinstance(about, dict):
        raise Refusal("it holds no measurements")
    scalars = dict(about)
    more = numbers(scalars.pop("measures", {}), "measures", gaps=True)
    values = numbers(scalars, "measured", gaps=True)
    on_validation = _ON_VALIDATION[metrics.task]
    fields = {*_FIELDS[metrics.task], *(name for name in on_validation if name in SCALARS)}
    _in_range(values, {name: SCALARS[name] for name in fields})
    _in_range(more, metrics.measures)
    both = values.keys() | more.keys()
    if not both >= {*_FIELDS[metrics.task], *_MEASURES[metrics.task]}:
        raise Refusal("it holds other measurements")
    if len({name in both for name in on_validation}) == 2:
        raise Refusal("it holds only some of its numbers of validation samples")
    return EvaluationResult(**values, measures=more or None)  # type: ignore[arg-type]


def _in_range(values: Mapping[str, float], ranges: Mapping[str, Range]) -> None:
    for name, value in values.items():
        if name not in ranges:
            raise Refusal(f"it holds other measurements than the study's ({name[:40]})")
        if not (ranges[name].holds(value) or (math.isnan(value) and name not in _WITH_VALUE)):
            raise Refusal(f"a value of {value:g} of {name[:60]} is not possible")
