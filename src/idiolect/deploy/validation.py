"""Validation: how well a site's model tells cases from others, and whether its probabilities can be acted on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, argument, listed, nearest, option
from idiolect.data.custom.columns import NUMBER
from idiolect.data.custom.questions import ANSWERS
from idiolect.deploy.labels import probabilities
from idiolect.deploy.schema import About
from idiolect.deploy.usual import usual_of
from idiolect.simulation.thresholds import HALF
from idiolect.statistics import intervals
from idiolect.statistics.calibration import Bin, Recalibration, bins, brier, recalibration
from idiolect.statistics.decision_curve import NetBenefit, decision_curve
from idiolect.statistics.intervals import Estimate, rate_at, share
from idiolect.statistics.operating_point import OperatingPoint, at_sensitivity, at_specificity, of_calls

# N samples, C classes, L labels; a case has the class or label in question, a control has not

LEAST = 10
"""Cases, controls and samples of a subgroup from which on a number is shown."""
ENOUGH = 100
"""Cases, and controls, from which on a validation is precise enough to rely on (Vergouwe et al., 2005)."""
_STEPS = 19  # of the curves


class Settings(NamedTuple):
    """What is asked of a validation."""

    specificity: float = 0.9
    """At which the sensitivity is given."""
    sensitivity: float = 0.9
    """At which the specificity is given."""
    prevalence: float | None = None
    """The share of cases where the model is used; None is that of the samples."""
    thresholds: tuple[float, float] = (0.05, 0.95)
    """The lowest and the highest threshold probability of the decision curve."""
    least: int = LEAST
    """Cases, controls and samples of a subgroup from which on a number is shown."""

    def check(self) -> None:
        """Check that the values are possible.

        Raises:
            InputError: one is not.
        """
        for name in ("specificity", "sensitivity"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise InputError(f"{option(name, value)} is not between 0 and 1: give a share, as 0.9")
        if self.prevalence is not None and not 0 < self.prevalence < 1:
            raise InputError(
                f"{option('prevalence', self.prevalence)} is not between 0 and 1: give the share of cases, as 0.1"
            )
        low, high = self.thresholds
        if not 0 < low < high < 1:
            raise InputError(
                f"{argument('thresholds')} {low:g} to {high:g} is no range: give two probabilities between 0 and 1, "
                "the lower one first, as 0.05,0.5"
            )
        if self.least < 2:
            raise InputError(f"{option('least', self.least)} is too small: give 2 or more, as {LEAST}")


class Outcome(NamedTuple):
    """One class, or one label, against the rest."""

    name: str
    p_N: NDArray[np.float64]
    """Its probability."""
    is_case_N: NDArray[np.bool_]
    """Whether a sample has it."""
    is_named_N: NDArray[np.bool_]
    """Whether it is predicted."""
    title: str
    """What it is called in sentences; of a question, as ``num>0``, the question in place of yes."""
    threshold: float = math.nan
    """Above which probability it is predicted; NaN where this depends on those of other classes."""

    def part(self, where: NDArray[np.bool_]) -> Outcome:
        """The same of some of the samples."""
        parts = (self.p_N[where], self.is_case_N[where], self.is_named_N[where])
        return Outcome(self.name, *parts, self.title, self.threshold)

    @property
    def cases(self) -> int:
        """How many samples are cases."""
        return int(self.is_case_N.sum())

    def fewest(self) -> int:
        """The number of cases or of controls, whichever is less."""
        return min(self.cases, len(self.p_N) - self.cases)


class Performance(NamedTuple):
    """How well one class, or label, is told from the rest."""

    title: str
    """What the class is called in sentences."""
    samples: int
    cases: int
    auroc: Estimate
    brier: Estimate
    accuracy: Estimate
    named: OperatingPoint
    """Where a sample is positive if ``idiolect predict`` names the class."""
    specific: OperatingPoint
    """At the specificity that is asked for."""
    sensitive: OperatingPoint
    """At the sensitivity that is asked for."""
    recalibration: Recalibration


class Curves(NamedTuple):
    """What is drawn of one class."""

    sensitivity: dict[float, Estimate]
    """By the specificity."""
    bins: list[Bin]
    decision: list[NetBenefit]


def check_task(about: About) -> None:
    """Check that a model can be validated.

    Raises:
        InputError: it predicts numbers.
    """
    if about.targets:
        names = listed([one.name for one in about.targets], 3)
        raise InputError(
            f"validate is for classes and labels, and this model predicts numbers ({names}): compare its errors by "
            "idiolect watch --target"
        )


def outcomes(about: About, at: Sequence[float], logp: Tensor, y: Tensor) -> list[Outcome]:
    """The classes or labels against the rest, in the bundle's order.

    Args:
        about: the bundle.
        at: its thresholds; () for 1/2.
        logp: log-probabilities of the classes (N, C), or without and with each label (N, L, 2).
        y: classes (N,), or 1 where a sample has a label, else 0 (N, L).

    Raises:
        InputError: the bundle predicts numbers.
    """
    check_task(about)
    if about.labels:
        p_NL, y_NL = probabilities(logp).numpy(), y.numpy() > 0
        threshold_L = np.array(at or [HALF] * len(about.labels))
        return [
            Outcome(name, p_NL[:, k], y_NL[:, k], p_NL[:, k] > threshold_L[k], name, float(threshold_L[k]))
            for k, name in enumerate(about.labels)
        ]
    p_NC = logp.double().exp()
    said_N = p_NC.argmax(1) if not at or at[0] == HALF else (p_NC[:, 1] > at[0]).long()
    second = at[0] if at else HALF
    limits = (1 - second, second) if len(about.classes) == 2 else [math.nan] * len(about.classes)
    p_CN, y_N, named_N = p_NC.T.numpy(), y.numpy(), said_N.numpy()
    return [
        Outcome(name, p_CN[k], y_N == k, named_N == k, _title(about, name), limits[k])
        for k, name in enumerate(about.classes)
    ]


def _title(about: About, name: str) -> str:
    usual = usual_of(about)
    if usual.asked and set(about.classes) == set(ANSWERS):
        return str(usual.target) if name == ANSWERS[1] else f"not {usual.target}"
    return f"class {name}" if NUMBER.fullmatch(name) else name


def chosen(every: Sequence[Outcome], name: str | None) -> list[Outcome]:
    """The class of this name; without a name the second of two classes, or all of several classes and of labels.

    Raises:
        InputError: there is no such class.
    """
    if name is None:
        is_two = len(every) == 2 and bool((every[0].is_case_N != every[1].is_case_N).all())
        return [every[1]] if is_two else list(every)
    known = {one.name: one for one in every}
    if name not in known:
        raise InputError(f"this model predicts no class or label {name!r}; {nearest(name, known)}")
    return [known[name]]


def performance(outcome: Outcome, settings: Settings) -> Performance | None:
    """How well one class is told from the rest; None if there are too few cases or controls to judge.

    The area under the ROC curve has DeLong's interval (``intervals.auroc``), shares have Wilson's. For points and
    recalibration see ``idiolect.statistics.operating_point`` and ``calibration``.
    """
    if outcome.fewest() < settings.least:
        return None
    p_N, is_case_N, is_named_N = outcome.p_N, outcome.is_case_N, outcome.is_named_N
    return Performance(
        outcome.title,
        len(p_N),
        outcome.cases,
        auroc(outcome),
        brier(p_N, is_case_N),
        share(int((is_named_N == is_case_N).sum()), len(p_N)),
        of_calls(is_named_N, is_case_N, outcome.threshold, settings.prevalence),
        at_specificity(p_N, is_case_N, settings.specificity, settings.prevalence),
        at_sensitivity(p_N, is_case_N, settings.sensitivity, settings.prevalence),
        recalibration(p_N, is_case_N),
    )


def curves(outcome: Outcome, settings: Settings) -> Curves:
    """What is drawn of one class, at 19 points each, so that no curve tells the probabilities of single samples."""
    p_N, is_case_N = outcome.p_N, outcome.is_case_N
    rates = {}
    for specificity in np.linspace(0.05, 0.95, _STEPS).round(2).tolist():
        rate, ends = rate_at(p_N[is_case_N], p_N[~is_case_N], specificity)
        rates[specificity] = Estimate(rate, *ends)
    low, high = settings.thresholds
    thresholds = np.linspace(low, high, _STEPS).round(6).tolist()
    return Curves(
        rates,
        bins(p_N, is_case_N, least=settings.least),
        decision_curve(p_N, is_case_N, thresholds, settings.prevalence),
    )


def auroc(outcome: Outcome) -> Estimate:
    """The area under the ROC curve; it has no interval if no case is below a control."""
    from sklearn.metrics import roc_auc_score

    p_N2 = np.stack((1 - outcome.p_N, outcome.p_N), 1)
    ends = intervals.auroc(p_N2, outcome.is_case_N.astype(np.int64))
    return Estimate(float(roc_auc_score(outcome.is_case_N, outcome.p_N)), *(ends or (math.nan, math.nan)))
