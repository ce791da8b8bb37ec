"""The ten image corruptions of CIFAR-S, with the severities of CIFAR-10-C: one public function each.

Each takes the 8-bit images (N, C, H, W) of one client, grey or colour, at least 8 pixels wide and high, a severity from
1 to 5 and a generator, and returns 8-bit images of the same shape. Equations are for values from 0 to 1.

Source: Hendrycks & Dietterich, ICLR 2019, and the constants of the code that made CIFAR-10-C.
Differs from source: values are rounded to 8 bits, where the source truncates them; all random draws.
"""

from __future__ import annotations

import importlib.util
import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from idiolect.core.errors import InputError

# N samples of one client, S side of a square map, K side of a kernel

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]

_TEXTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
_TEXTURE_STEP = 5  # every fifth pixel of a texture, which is what the source's bilinear scaling by 0.2 gives


def _unit(x_N: Images) -> Floats:
    return np.divide(x_N, 255, dtype=np.float32)


def _eight_bit(x_N: Floats) -> Images:
    """From 0..1 to 0..255; overwrites its argument."""
    x_N *= 255
    return _rounded(x_N)


def _rounded(x_N: Floats) -> Images:
    return np.clip(np.rint(x_N, out=x_N), 0, 255, out=x_N).astype(np.uint8)


def add_noise(x_N: Images, std: float, rng: np.random.Generator) -> Images:
    """x + e, e ~ N(0, std^2) for each value independently, rounded and clipped."""
    noisy_N = rng.standard_normal(x_N.shape, dtype=np.float32)
    noisy_N *= 255 * std
    noisy_N += x_N
    return _rounded(noisy_N)


def motion_blur(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """y(p) = sum over i = 0..2 radius of w_i x(p + i d), w_i ~ exp(-i^2 / (2 std^2)), with sum of w_i = 1.

    The direction d has an angle ~ U(-45, 45) degrees for each image; i d is rounded to whole pixels. Outside the image
    the pixels of its edge are repeated.
    """
    radius, std = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    step = np.arange(2 * radius + 1)
    weight = np.exp(-(step**2) / (2 * std**2)).astype(np.float32)
    weight /= weight.sum()
    angle_N1 = np.deg2rad(rng.uniform(-45, 45, (len(x_N), 1)))
    n, _, h, w = x_N.shape
    last_N = np.ascontiguousarray(_unit(x_N).transpose(0, 2, 3, 1))
    out_N = np.zeros(last_N.shape, np.float32)
    for i in step:
        row_Nh = np.clip(np.arange(h) + np.rint(i * np.sin(angle_N1)).astype(int), 0, h - 1)
        column_Nw = np.clip(np.arange(w) + np.rint(i * np.cos(angle_N1)).astype(int), 0, w - 1)
        out_N += weight[i] * last_N[np.arange(n)[:, None, None], row_Nh[:, :, None], column_Nw[:, None, :]]
    return _eight_bit(out_N.transpose(0, 3, 1, 2))


def defocus_blur(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """Convolve with a disk, smoothed by a 3 by 3 Gaussian; mirrored at the border, whose pixels do not repeat."""
    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    kernel_KK = _disk(radius, alias)
    margin = len(kernel_KK) // 2
    h, w = x_N.shape[2:]
    padded_N = np.pad(_unit(x_N), ((0, 0), (0, 0), (margin, margin), (margin, margin)), mode="reflect")
    out_N = np.zeros(x_N.shape, np.float32)
    for row, column in np.argwhere(kernel_KK):
        out_N += kernel_KK[row, column] * padded_N[:, :, row : row + h, column : column + w]
    return _eight_bit(out_N)


def _disk(radius: float, alias: float) -> Floats:
    """The kernel of a disk of radius below 2: within 2 pixels of its middle after smoothing."""
    at_K = np.arange(-2, 3)
    disk_KK = at_K[:, None] ** 2 + at_K**2 <= radius**2
    apart_KK = at_K[:, None] - at_K
    smooth_KK = np.where(abs(apart_KK) <= 1, np.exp(-(apart_KK**2) / (2 * alias**2)), 0)
    smooth_KK /= 1 + 2 * np.exp(-1 / (2 * alias**2))
    return np.asarray(smooth_KK @ disk_KK @ smooth_KK / disk_KK.sum(), np.float32)


def gaussian_noise(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """x + e, e ~ N(0, std^2) for each value independently."""
    return add_noise(x_N, (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1], rng)


def shot_noise(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """Poisson(c x) / c for each value independently."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    out_N = rng.poisson(_unit(x_N) * photons).astype(np.float32)
    out_N /= photons
    return _eight_bit(out_N)


def impulse_noise(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """Salt and pepper: a share of all values, chosen independently, becomes 1 or 0, half of them each."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw_N = rng.random(x_N.shape, dtype=np.float32)
    return np.select([draw_N < share / 2, draw_N < share], [np.uint8(0), np.uint8(255)], x_N)


def frost(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """a x + b t, t a random crop of one of five photographs of frost.

    A photograph is scaled by 0.2, or by less if it would not cover the image; grey images take its luminance.

    Raises:
        InputError: the photographs are not installed.

    Differs from source: crops may use the last row and column, which the source never uses.
    """
    image, texture = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    n, c, h, w = x_N.shape
    out_N = image * _unit(x_N)
    which_N = rng.integers(len(_TEXTURES), size=n)
    for index, name in enumerate(_TEXTURES):
        mine = np.flatnonzero(which_N == index)
        crops = np.lib.stride_tricks.sliding_window_view(_scaled(_texture(name, c == 3), h, w), (h, w), axis=(0, 1))
        row_M, column_M = (rng.integers(size, size=len(mine)) for size in crops.shape[:2])
        out_N[mine] += texture * _unit(crops[row_M, column_M])
    return _eight_bit(out_N)


@cache
def _texture(name: str, colour: bool) -> Images:
    """A photograph, (height, width, 3 or 1). The package that has them is not imported, because it imports OpenCV."""
    from PIL import Image

    package = importlib.util.find_spec("imagecorruptions")
    if package is None or not package.submodule_search_locations:
        raise InputError(
            'corruption frost needs photographs that are not installed: pip install "idiolect[corruptions]"'
        )
    with Image.open(Path(package.submodule_search_locations[0]) / "frost" / name) as photograph:
        return np.atleast_3d(np.asarray(photograph.convert("RGB" if colour else "L")))


def _scaled(texture: Images, height: int, width: int) -> Images:
    """The middle pixel of every 5 by 5, or of fewer if the result would not cover the image."""
    size = texture.shape[:2]
    step = min(_TEXTURE_STEP, size[0] / height, size[1] / width)
    row, column = (
        ((np.arange(max(least, int(whole / step))) + 0.5) * step).astype(int).clip(max=whole - 1)
        for whole, least in zip(size, (height, width), strict=True)
    )
    return np.asarray(texture[row[:, None], column])


def fog(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """(x + a m) max(x) / (max(x) + a), m from 0 to 1 a plasma fractal for each image, the same for all channels."""
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    n, _, h, w = x_N.shape
    out_N = _unit(x_N)
    highest_N = out_N.max((1, 2, 3), keepdims=True, initial=0)
    side = 1 << (max(h, w) - 1).bit_length()
    out_N += amount * _plasma(n, side, decay, rng)[:, None, :h, :w]
    out_N *= highest_N / (highest_N + amount)
    return _eight_bit(out_N)


def _plasma(n: int, side: int, decay: float, rng: np.random.Generator) -> Floats:
    """Diamond-square maps (N, S, S) on a torus, S a power of two, stretched to 0..1.

    Every point is the mean of four neighbours plus uniform noise, whose amplitude falls by decay^2 per halving.
    """
    map_NSS = np.zeros((n, side, side), np.float32)
    amplitude = 1.0

    def wobble(near_NSS: Floats) -> Floats:
        return near_NSS / 4 + amplitude * rng.uniform(-1, 1, near_NSS.shape).astype(np.float32)

    step = side
    while step >= 2:
        half = step // 2
        corner_NSS = map_NSS[:, ::step, ::step]
        pair_NSS = corner_NSS + np.roll(corner_NSS, -1, 1)
        middle_NSS = map_NSS[:, half::step, half::step]
        middle_NSS[:] = wobble(pair_NSS + np.roll(pair_NSS, -1, 2))
        for axis, edge_NSS in ((1, map_NSS[:, ::step, half::step]), (2, map_NSS[:, half::step, ::step])):
            middles_NSS = middle_NSS + np.roll(middle_NSS, 1, axis)
            corners_NSS = corner_NSS + np.roll(corner_NSS, -1, 3 - axis)
            edge_NSS[:] = wobble(middles_NSS + corners_NSS)
        step = half
        amplitude /= decay**2
    map_NSS -= map_NSS.min((1, 2), keepdims=True)
    map_NSS /= map_NSS.max((1, 2), keepdims=True)
    return map_NSS


def jpeg(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """Compressed as JPEG and read again: colour images with halved chroma, other channels each as a grey image."""
    from PIL import Image

    quality = (80, 65, 58, 50, 40)[severity - 1]
    n, c, h, w = x_N.shape
    plane_N = x_N.transpose(0, 2, 3, 1) if c == 3 else x_N.reshape(n * c, h, w)
    out_N = np.empty_like(plane_N)
    for i, plane in enumerate(plane_N):
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(plane)).save(file, "JPEG", quality=quality)
        out_N[i] = np.asarray(Image.open(file))
    return out_N.transpose(0, 3, 1, 2) if c == 3 else out_N.reshape(x_N.shape)


def brightness(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """The largest channel v, which is HSV's value, becomes min(v + c, 1); hue and saturation stay."""
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    out_N = _unit(x_N)
    value_N = out_N.max(1, keepdims=True)
    # a black pixel has neither hue nor saturation, and becomes grey
    out_N = np.where(value_N > 0, out_N / np.maximum(value_N, np.float32(1 / 255)), 1)
    out_N *= np.minimum(value_N + more, 1)
    return _eight_bit(out_N)


def contrast(x_N: Images, severity: int, rng: np.random.Generator) -> Images:
    """(x - m) c + m, m the mean of the image's channel."""
    less = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    out_N = _unit(x_N)
    mean_N = out_N.mean((2, 3), keepdims=True)
    out_N -= mean_N
    out_N *= less
    out_N += mean_N
    return _eight_bit(out_N)
