"""Numbers to so many digits that those which differ by rounding alone are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def significant(values: ArrayLike) -> NDArray[np.float64]:
    """Numbers to twelve significant digits, of any size: means of equal fractions are equal, whatever their order.

    >>> significant([(0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3, 2e-17 / 3]).tolist()
    [0.2, 0.2, 6.66666666667e-18]
    """
    return np.asarray(np.vectorize(lambda value: float(f"{value:.12g}"), otypes=[np.float64])(values))
