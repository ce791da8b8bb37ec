"""Differences of two methods' scores, in which rounding alone counts as none."""

from __future__ import annotations

import numpy as np
import pandas as pd

from idiolect.core.objectives import Score

# S seeds, K clients


def of(value_SK: pd.DataFrame, base_SK: pd.DataFrame, by: Score) -> pd.DataFrame:
    """In points, or in the unit of the score; of equal fractions they are equal, and what is rounding alone is 0."""
    point_SK = by.factor * (value_SK - base_SK)
    if by.is_share:
        return point_SK.round(9)
    return point_SK.mask(point_SK.abs() <= 1e-12 * by.factor * np.maximum(value_SK.abs(), base_SK.abs()), 0.0)


def over_seeds(point_SK: pd.DataFrame) -> pd.Series[float]:
    """The mean difference of each client over seeds; what is rounding alone is 0."""
    mean_K = point_SK.mean()
    return mean_K.mask(mean_K.abs() <= 1e-9 * point_SK.abs().mean(), 0.0)
