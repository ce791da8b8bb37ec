"""What makes one client's images look different: one public function each, found by ``idiolect.data.SHIFTS``.

To add one, write a public function here with this signature, its options keyword-only, annotated with their range:
``def name(x_N, rng, *, option: Type = default) -> x_N``, for the images (N, C, H, W) of one client, uint8 in and out.
The option ``clients``, which says who is shifted, is common to all and handled by ``idiolect.data.build``.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

# N rows of one client

Images = NDArray[np.uint8]
Degrees = Annotated[float, Field(allow_inf_nan=False)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]


def rotation(x_N: Images, rng: np.random.Generator, *, degrees: Degrees = 90) -> Images:
    """Rotate counter-clockwise about the centre: exact by multiples of 90 degrees, else bilinear with black outside.

    Args:
        degrees: the angle.
    """
    square = x_N.shape[2] == x_N.shape[3]
    if degrees % (90 if square else 180) == 0:
        return np.rot90(x_N, int(degrees // 90) % 4, axes=(2, 3))
    from scipy import ndimage  # slow to import, and every worker would

    return np.asarray(ndimage.rotate(x_N, degrees, axes=(2, 3), reshape=False, order=1, mode="constant", cval=0))


def invert(x_N: Images, rng: np.random.Generator) -> Images:
    """Swap dark and bright: 255 - x."""
    return 255 - x_N


def noise(x_N: Images, rng: np.random.Generator, *, std: UnitInterval = 0.1) -> Images:
    """Add independent Gaussian noise to every value, rounded and clipped to 0..255.

    Args:
        std: of the noise, as a fraction of the intensity range.
    """
    noisy_N = rng.standard_normal(x_N.shape, dtype=np.float32)
    noisy_N *= 255 * std
    noisy_N += x_N
    return np.clip(np.rint(noisy_N, out=noisy_N), 0, 255, out=noisy_N).astype(np.uint8)
