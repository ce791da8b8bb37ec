"""Whether the same column holds numbers of another unit at another site: a robust comparison of how large they are."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.deploy.schema import Scale

# R rows

FEW = 8
"""Numbers that are neither missing nor 0, and different ones among them, of which there is a scale."""
_FAR, _NEAR = 8.0, 1.7
"""Numbers look like another unit's if they are so many times larger; by the second only where a unit is known."""
_APART = 2.5
"""And if the logarithms of the medians differ by so many times their interquartile range: real sites rarely do."""
_NARROW = 0.02  # the least interquartile range of logarithms, because quartiles are rounded
_MANY, _HARDLY = 0.5, 0.2  # shares of zeros: at a site where they may stand for missing values, and at the others
_CLOSE = 0.25  # by which a ratio of medians may differ from a known factor
_OFF = 8  # standard deviations from the mean at which half of the numbers look like those of another unit
_BETWEEN = 2  # standard deviations between means, with spreads that differ by the factor above


class Apart(NamedTuple):
    """Sites whose numbers are much smaller or larger than those of the others."""

    sites: tuple[str, ...]
    others: tuple[str, ...]
    factor: float
    """How many times larger the larger ones are."""
    smaller: bool
    """Whether those of ``sites`` are the smaller ones."""
    units: str
    """What it may be, as "mmol/L in place of mg/dl"; empty if nothing is known."""

    def __str__(self) -> str:
        what = f"about {self.factor:.3g} times {'smaller' if self.smaller else 'larger'}"
        guess = f" ({self.units}?)" if self.units else ""
        return f"at {', '.join(self.sites)} it is {what} than at {', '.join(self.others)}{guess}"


class _Unit(NamedTuple):
    """Two units of a quantity: ``small``, whose numbers are larger, is ``factor`` times ``large``, plus ``offset``."""

    factor: float
    column: str
    """A regular expression of words in a column's name; empty for any."""
    large: str
    small: str
    offset: float = 0.0


_UNITS = (
    _Unit(38.67, "chol|cholesterol|ldl|hdl", "mmol/L", "mg/dl"),
    _Unit(88.57, "trig|triglyceride|tg", "mmol/L", "mg/dl"),
    _Unit(18.02, "gluc|glucose|sugar|glyc", "mmol/L", "mg/dl"),
    _Unit(88.42, "crea|creat|creatinine", "mg/dl", "umol/L"),
    _Unit(17.1, "bili|bilirubin", "mg/dl", "umol/L"),
    _Unit(7.5, "bp|rr|press|pressure|sys|systolic|dia|diastolic|trestbps", "kPa", "mmHg"),
    _Unit(10.93, "hba|hbac|hb|a1c|hba1c", "per cent", "mmol/mol", -23.5),
    _Unit(1.8, "temp|temperature", "degrees Celsius", "degrees Fahrenheit", 32.0),
    _Unit(2.2046, "weight|mass|kg|lb", "kg", "lb"),
    _Unit(2.54, "height|length|waist", "inches", "cm"),
    _Unit(39.37, "height|length|waist", "m", "inches"),
    _Unit(12.0, "age|duration|years|months", "years", "months"),
    _Unit(365.25, "age|duration|years|days", "years", "days"),
    _Unit(10.0, "", "g/dl or cm", "g/l or mm"),
    _Unit(100.0, "", "shares, m or units", "per cent, cm or hundredths"),
    _Unit(1000.0, "", "kg, g or thousands", "g, mg or ones"),
)


def of_another_unit(x_R: NDArray[np.float64], mean: float, std: float) -> bool:
    """Whether numbers look like those of another unit, by the mean and the standard deviation of others."""
    if (np.abs(x_R - mean) > _OFF * std).mean() > 0.5:
        return True
    is_narrow_or_wide = not 1 / _OFF < x_R.std() / std < _OFF and len(np.unique(x_R)) >= FEW  # equal ones say nothing
    return bool(is_narrow_or_wide and abs(x_R.mean() - mean) > _BETWEEN * std)


def scale_of(x_R: NDArray[np.floating], few: int = FEW) -> Scale:
    """How large numbers are: quartiles of the absolute values that are neither missing nor 0, and the share of zeros.

    Args:
        x_R: the numbers, NaN if missing.
        few: from how many such values on there are quartiles; of fewer they could say what a single one is.
    """
    known_R = x_R[~np.isnan(x_R)].astype(np.float64)
    size_R = np.abs(known_R[known_R != 0])
    zeros = round(1 - len(size_R) / len(known_R), 1) if len(known_R) >= few else 0.0
    if len(size_R) < few or len(np.unique(size_R)) < FEW:
        return Scale(zeros=zeros)
    low, middle, high = (_rounded(q) for q in np.quantile(size_R, (0.25, 0.5, 0.75)).tolist())
    return Scale(quartiles=(low, middle, high), zeros=zeros)


def common_scale(scales: Sequence[Scale]) -> Scale:
    """The scale of several sites' numbers: the median of each number over sites."""
    quartiles = [scale.quartiles for scale in scales if scale.quartiles is not None]
    zeros = round(statistics.median([scale.zeros for scale in scales] or [0.0]), 2)
    if not quartiles:
        return Scale(zeros=zeros)
    low, middle, high = (float(statistics.median(numbers)) for numbers in zip(*quartiles, strict=True))
    return Scale(quartiles=(low, middle, high), zeros=zeros)


def apart(name: str, scales: Mapping[str, Scale], site: str | None = None) -> Apart | None:
    """The sites whose numbers of a column look like those of another unit; None if none do.

    The sites are divided where their medians are farthest apart. The smaller group is the one that is named, or that of
    ``site``.
    """
    by_median = [(scale.quartiles, at) for at, scale in scales.items() if scale.quartiles is not None]
    by_median.sort(key=lambda one: one[0][1])
    if len(by_median) < 2:
        return None
    gaps = [math.log(after[1] / before[1]) for (before, _), (after, _) in pairwise(by_median)]
    cut = max(range(len(gaps)), key=gaps.__getitem__)
    groups = by_median[: cut + 1], by_median[cut + 1 :]
    low, high = (statistics.median([quartiles[1] for quartiles, _ in group]) for group in groups)
    names = [tuple(at for _, at in group) for group in groups]
    smaller = len(names[0]) <= len(names[1]) if site is None else site in names[0]
    unit, fits_name = _unit(name, low, high)
    spread = max(_NARROW, *(math.log(quartiles[2] / quartiles[0]) for quartiles, _ in by_median))
    least = math.log(_NEAR if fits_name else _FAR)
    if gaps[cut] < max(least, _APART * spread):
        return None
    units = "" if unit is None else " in place of ".join((unit.large, unit.small)[:: 1 if smaller else -1])
    sites, others = names[:: 1 if smaller else -1]
    return Apart(sites, others, high / low, smaller, units)


def hidden_gaps(scales: Mapping[str, Scale]) -> tuple[str, ...]:
    """The sites where most numbers of a column are 0 and hardly any are elsewhere, so that 0 may mean "missing"."""
    sites = [site for site, scale in scales.items() if scale.quartiles is not None]
    suspects = []
    for site, scale in scales.items():
        others = [scales[other].zeros for other in sites if other != site]
        if scale.zeros > _MANY and others and statistics.median(others) < _HARDLY:
            suspects.append(site)
    return tuple(suspects)


def _rounded(value: float) -> float:
    """A number with two significant digits."""
    return float(f"{value:.1e}")


def _unit(name: str, low: float, high: float) -> tuple[_Unit | None, bool]:
    """The units of which medians look like, and whether the column's name says that they can be."""
    words = set(re.findall("[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))
    for unit in _UNITS:
        fits_name = any(re.fullmatch(unit.column, word) for word in words)
        ratio = high / max(low * unit.factor + unit.offset, low)
        if (fits_name or not unit.column) and 1 - _CLOSE < ratio < 1 / (1 - _CLOSE):
            return unit, fits_name
    return None, False
