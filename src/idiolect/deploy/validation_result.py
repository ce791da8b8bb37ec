"""The result of a validation: as sentences, as JSON and as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from idiolect.core.errors import listed
from idiolect.deploy.subgroups import Subgroup
from idiolect.deploy.validation import ENOUGH, Curves, Performance, Settings
from idiolect.statistics.decision_curve import NetBenefit
from idiolect.statistics.intervals import Estimate

_SHOWN = 8  # classes that a sentence names


class Validation(NamedTuple):
    """What a site's samples say of its model. What has too few samples to judge is None, here and in all tables."""

    model: str
    """The title of its method."""
    digest: str
    """Of the bundle."""
    samples: int
    groups: int | None
    """How many patients, or the like, they are of; None where each sample stands for itself."""
    settings: Settings
    accuracy: Estimate | None
    """The share of samples whose class is predicted; None of labels."""
    classes: dict[str, Performance | None]
    """By the name of the class or label: how well it is told from the rest."""
    curves: Curves | None
    """Of one class; None where there are several."""
    subgroups: list[Subgroup]

    @property
    def one(self) -> Performance | None:
        """Of the only class; None where there are several."""
        return next(iter(self.classes.values())) if self.curves else None

    def as_json(self) -> dict[str, Any]:
        """As plain values: an interval has ``value``, ``low`` and ``high``, and None stands for what there is not."""
        content: dict[str, Any] = _plain(self)
        return content

    def tables(self) -> dict[str, pd.DataFrame]:
        """By name; a column with an interval has ``NAME_low`` and ``NAME_high`` beside it."""
        rows: dict[str, Iterable[dict[str, Any]]] = {
            "classes": [{"name": name} | (_flat(of) if of else {}) for name, of in self.classes.items()]
        }
        if self.curves:
            rate = self.curves.sensitivity
            rows["sensitivity"] = [{"specificity": at} | _flat({"sensitivity": e}) for at, e in rate.items()]
            rows["calibration"] = map(_flat, self.curves.bins)
            rows["decision_curve"] = map(_flat, self.curves.decision)
        if self.subgroups:
            rows["subgroups"] = map(_flat, self.subgroups)
        return {name: _frame(list(lines)) for name, lines in rows.items()}


def sentences(result: Validation) -> list[str]:
    """The result in words."""
    one = result.one
    if one is None or result.curves is None:
        few = [name for name, of in result.classes.items() if of is None]
        lines = [] if result.accuracy is None else [f"The model is right for {percent(result.accuracy)} of samples."]
        areas = [f"{name} {decimals(of.auroc)}" for name, of in result.classes.items() if of]
        lines += [f"AUROC against the rest: {listed(areas, _SHOWN)}."] if areas else []
        return lines + ([f"Too few samples to judge: {listed(few, _SHOWN)}."] if few else [])
    settings, high, low = result.settings, one.specific, one.sensitive
    return [
        f"AUROC {decimals(one.auroc)}: of two samples, one {one.title} and one not, the first gets the higher "
        "probability in this share of pairs.",
        f"At a specificity of {100 * settings.specificity:g} % or more, the sensitivity is "
        f"{percent(high.sensitivity)}: positive {above(high.threshold)}.",
        f"At a sensitivity of {100 * settings.sensitivity:g} % or more, the specificity is "
        f"{percent(low.specificity)}: positive {above(low.threshold)}.",
        *_of_calibration(one),
        _of_decisions(result.curves.decision),
    ]


def cautions(result: Validation) -> list[str]:
    """What a reader has to know of these samples."""
    lines = ["The numbers flatter if the model was made from some of these samples: it must not have seen them."]
    few = [of for of in result.classes.values() if of and min(of.cases, of.samples - of.cases) < ENOUGH]
    if few:
        which = f"{few[0].cases:,} samples are {few[0].title} and {few[0].samples - few[0].cases:,} are not"
        who = which if result.curves else f"{len(few)} classes have fewer"
        lines.append(f"A validation needs about {ENOUGH} of each kind to be precise; {who}.")
    if result.groups is not None and result.groups < result.samples:
        lines.append(
            f"The {result.samples:,} samples are of {result.groups:,} groups, as of patients with several samples "
            "each. Intervals take samples as independent, so they are too narrow."
        )
    if result.settings.prevalence is not None:
        lines.append(
            f"Predictive values and net benefit are for a prevalence of {100 * result.settings.prevalence:g} %, "
            "calibration is that of the samples as they are."
        )
    small = sum(group.samples is None for group in result.subgroups)
    if small:
        what = "1 subgroup has" if small == 1 else f"{small} subgroups have"
        lines.append(f"{what} fewer than {result.settings.least} samples: too few to judge.")
    return lines


def percent(of: Estimate, end: str = " %") -> str:
    """A share, and its interval in brackets.

    >>> percent(Estimate(0.5, 0.25, 0.75)), percent(Estimate(0.5))
    ('50.0 % (25.0 to 75.0)', '50.0 %')
    """
    return _with_interval(of, lambda value: f"{100 * value:.1f}", end)


def decimals(of: Estimate) -> str:
    """A number with two decimals, and its interval in brackets.

    >>> decimals(Estimate(0.5, -0.25, 0.75)), decimals(Estimate(float("nan")))
    ('0.50 (-0.25 to 0.75)', '-')
    """
    return _with_interval(of, lambda value: f"{value:.2f}".replace("-0.00", "0.00"))


def above(threshold: float) -> str:
    """Which samples are positive."""
    return f"above a probability of {threshold:.3g}" if threshold >= 0 else "are all samples"


def ranges(curve: list[NetBenefit], *, sure: bool) -> list[tuple[float, float]]:
    """The thresholds at which the model is better than treating all and than treating none, as ranges.

    Where it is ``sure``, the ends of both intervals say so.
    """
    runs: list[tuple[float, float]] = []
    before = False
    for point in curve:
        is_best = point.is_best if sure else min(point.model.value, point.gain.value) > 0
        if is_best:
            runs.append((runs.pop()[0] if before else point.threshold, point.threshold))
        before = is_best
    return runs


def _with_interval(of: Estimate, text: Callable[[float], str], end: str = "") -> str:
    if math.isnan(of.value):
        return "-"
    return f"{text(of.value)}{end}" + ("" if math.isnan(of.low) else f" ({text(of.low)} to {text(of.high)})")


def _of_calibration(one: Performance) -> Iterator[str]:
    large, slope = one.recalibration.in_the_large, one.recalibration.slope
    how = "too low on average" if large.low > 0 else "too high on average" if large.high < 0 else ""
    says = f"probabilities are {how}" if how else "0 is inside, so they may be right on average"
    yield f"Calibration in the large {decimals(large)}: {says}."
    if math.isnan(slope.value):
        yield "The calibration slope has no estimate, because the probabilities tell all samples apart, or are equal."
        return
    how = "too extreme" if slope.high < 1 else "not extreme enough" if slope.low > 1 else ""
    says = f"probabilities are {how}" if how else "1 is inside, so they may be as extreme as they should be"
    yield f"Calibration slope {decimals(slope)}: {says}."


def _of_decisions(curve: list[NetBenefit]) -> str:
    what = "acting on the model has more net benefit than treating all and than treating none"
    if sure := _listed(ranges(curve, sure=True)):
        return f"At a threshold probability of {sure} {what}, and the intervals say so too."
    if maybe := _listed(ranges(curve, sure=False)):
        return f"At a threshold probability of {maybe} {what}, but the intervals do not tell this from chance."
    return f"There is no threshold probability at which {what}."


def _listed(runs: list[tuple[float, float]]) -> str:
    return ", ".join(f"{100 * a:.3g} %" if a == b else f"{100 * a:.3g} to {100 * b:.3g} %" for a, b in runs)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with the ends of each interval beside it, also where the first rows have none."""
    names = dict.fromkeys(name for row in rows for name in row)
    ends = {f"{name}_{end}" for name in names for end in ("low", "high")}
    beside = ((name, f"{name}_low", f"{name}_high") for name in names if name not in ends)
    return pd.DataFrame(rows, columns=[name for some in beside for name in some if name in names])


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """The parts of a row by the names of columns."""
    if isinstance(value, Estimate):
        return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    parts = value._asdict() if hasattr(value, "_asdict") else value
    if not isinstance(parts, Mapping):
        return {name: value}
    return {k: v for key, part in parts.items() for k, v in _flat(part, f"{name}_{key}" if name else key).items()}
