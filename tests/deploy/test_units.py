"""Numbers of another unit are noticed between sites, and plausible differences are not."""

from __future__ import annotations

import numpy as np
import pytest

from idiolect.deploy.schema import Scale
from idiolect.deploy.units import apart, common_scale, hidden_gaps, scale_of

N = 400


def draws(seed: int, median: float, spread: float, zeros: float = 0.0, count: int = N) -> np.ndarray:
    """Numbers whose logarithms are normal."""
    rng = np.random.default_rng(seed)
    x_R = median * np.exp(spread * rng.normal(size=count))
    return np.where(rng.random(count) < zeros, 0.0, x_R)


QUANTITIES = {
    # column: median and spread in the first unit, the number in the second of one in the first, units
    "chol": (6.0, 0.22, lambda x: 38.67 * x, "mmol/L in place of mg/dl"),
    "fasting_glucose": (5.6, 0.25, lambda x: 18.02 * x, "mmol/L in place of mg/dl"),
    "Creatinine": (0.9, 0.3, lambda x: 88.42 * x, "mg/dl in place of umol/L"),
    "weight": (75, 0.18, lambda x: 2.2046 * x, "kg in place of lb"),
    "height": (67, 0.06, lambda x: 2.54 * x, "inches in place of cm"),
    "bodyTemp": (37, 0.012, lambda x: 1.8 * x + 32, "degrees Celsius in place of degrees Fahrenheit"),
    "sysBP": (17, 0.13, lambda x: 7.5 * x, "kPa in place of mmHg"),
    "age": (55, 0.18, lambda x: 12 * x, "years in place of months"),
    "hba1c": (6.2, 0.15, lambda x: 10.93 * x - 23.5, "per cent in place of mmol/mol"),
    "saturation": (0.9, 0.05, lambda x: 100 * x, "shares, m or units in place of per cent, cm or hundredths"),
    "dose": (0.5, 0.5, lambda x: 1000 * x, "kg, g or thousands in place of g, mg or ones"),
}


@pytest.mark.parametrize("column", QUANTITIES)
def test_another_unit_is_named_with_its_site_and_factor(column: str) -> None:
    median, spread, to, units = QUANTITIES[column]
    large = to(draws(9, median, spread)) / draws(9, median, spread)
    for smaller in (True, False):
        x = {f"site {k}": draws(k, median * (1 + 0.05 * k), spread) for k in range(4)}
        x = {site: to(x_R) if (site == "site 2") != smaller else x_R for site, x_R in x.items()}
        found = apart(column, {site: scale_of(x_R) for site, x_R in x.items()})
        assert found is not None
        assert (found.sites, found.smaller) == (("site 2",), smaller)
        assert set(found.others) == {"site 0", "site 1", "site 3"}
        assert found.factor == pytest.approx(np.median(large), rel=0.2)
        assert found.units == (units if smaller else " in place of ".join(units.split(" in place of ")[::-1]))
        assert f"at site 2 it is about {found.factor:.3g} times {'smaller' if smaller else 'larger'}" in str(found)


PLAUSIBLE = {
    "age": ((25, 0.12), (55, 0.16), (70, 0.1)),
    "age of children and adults": ((8, 0.55), (40, 0.3)),
    "income": ((1200, 0.6), (2900, 0.7), (3600, 0.5)),
    "weight of children": ((32, 0.35), (75, 0.18)),
    "crp": ((2, 1.6), (40, 1.4)),
    "bilirubin": ((0.7, 0.5), (1.6, 0.9)),
    "leukocytes": ((6, 0.3), (9, 0.6)),
    "distance": ((3, 1.2), (25, 1.3)),
}


@pytest.mark.parametrize("column", PLAUSIBLE)
def test_plausible_sites_raise_no_alarm(column: str) -> None:
    for seed in range(5):
        scales = {f"site {k}": scale_of(draws(10 * seed + k, *how)) for k, how in enumerate(PLAUSIBLE[column])}
        assert apart(column, scales) is None, scales


def test_numbers_that_are_codes_are_not_compared() -> None:
    """A code of a class has no unit: sites may have quite different codes."""
    assert scale_of(np.repeat([1.0, 2.0], 50)).quartiles is None
    scales = {"a": scale_of(np.repeat([1.0, 2.0], 50)), "b": scale_of(np.repeat([90.0, 91.0], 50))}
    assert apart("code", scales) is None


def test_zeros_and_gaps_do_not_blur_a_unit() -> None:
    mine = draws(1, 6, 0.2, zeros=0.6)
    mine[::7] = np.nan
    scales = {"north": scale_of(mine), "south": scale_of(38.67 * draws(2, 6, 0.2)), "east": Scale(zeros=1.0)}
    found = apart("chol", scales)
    assert found is not None
    assert found.sites == ("north",)


@pytest.mark.parametrize(
    ("zeros", "said"),
    [
        ({"a": 1.0, "b": 0.0, "c": 0.25}, ("a",)),
        ({"a": 0.7, "b": 0.0, "c": 0.0}, ("a",)),
        ({"a": 0.3, "b": 0.0, "c": 0.0}, ()),
        ({"a": 0.6, "b": 0.35, "c": 0.4}, ()),
        ({"a": 0.9, "b": 0.8, "c": 0.0}, ()),
    ],
)
def test_zeros_that_may_be_gaps_are_said(zeros: dict[str, float], said: tuple[str, ...]) -> None:
    scales = {site: scale_of(draws(k, 200, 0.2, zeros=share)) for k, (site, share) in enumerate(zeros.items())}
    assert hidden_gaps(scales) == said


def test_what_is_said_is_coarse_and_of_many_numbers() -> None:
    x_R = draws(3, 240.123, 0.2)
    found = scale_of(-x_R, 20)
    assert found.quartiles is not None
    for said, exact in zip(found.quartiles, np.quantile(x_R, (0.25, 0.5, 0.75)), strict=True):
        assert said == float(f"{exact:.1e}")
        assert said not in x_R
    assert scale_of(x_R[:19], 20) == Scale()
    assert scale_of(np.concatenate([x_R[:19], np.zeros(100)]), 20).quartiles is None
    assert scale_of(np.full(5, np.nan)) == Scale()
    assert common_scale([]) == Scale()
    assert common_scale([found, Scale(zeros=1.0), found]).quartiles == found.quartiles
