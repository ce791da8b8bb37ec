"""Numbers to so many digits that those which differ by rounding alone are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DIGITS = 12


def significant(values: ArrayLike) -> NDArray[np.float64]:
    """Numbers to twelve significant digits, of any size: means of equal fractions are equal, whatever their order.

    >>> (0.1 + 0.2 + 0.3) / 3 == (0.3 + 0.2 + 0.1) / 3
    False
    >>> one, other = significant([(0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3]).tolist()
    >>> one == other
    True
    """
    value = np.asarray(values, np.float64)
    known = np.isfinite(value) & (value != 0)
    scale = 10.0 ** np.floor(np.log10(np.abs(value, where=known, out=np.ones_like(value))))
    return np.where(known, np.round(value / scale, _DIGITS - 1) * scale, value)
