import inspect

import numpy as np
import pytest

from idiolect.data import SHIFTS
from idiolect.data.shifts import invert, noise, rotation

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (4, 3, 9, 9)).astype(np.uint8)
WIDE = RNG.integers(0, 256, (4, 1, 6, 9)).astype(np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def bilinear(x_N, degrees):
    """Counter-clockwise about the centre, in float64: every target pixel looks up its place in the source."""
    height, width = x_N.shape[2:]
    angle = np.deg2rad(degrees)
    out = np.zeros(x_N.shape)
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    for r in range(height):
        for c in range(width):
            dr, dc = np.array([r, c]) - middle
            y = np.cos(angle) * dr + np.sin(angle) * dc + middle[0]
            x = -np.sin(angle) * dr + np.cos(angle) * dc + middle[1]
            if 0 <= y <= height - 1 and 0 <= x <= width - 1:
                top, left = min(int(y), height - 2), min(int(x), width - 2)
                a, b = y - top, x - left
                patch = x_N[:, :, top : top + 2, left : left + 2].astype(float)
                out[:, :, r, c] = (patch * np.outer([1 - a, a], [1 - b, b])).sum((2, 3))
    return out


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("x_N", [COLOUR, WIDE, COLOUR[:0]], ids=["colour", "wide", "none"])
def test_shape_and_type_stay_and_the_input_too(name, x_N):
    before = x_N.copy()
    out = SHIFTS[name](x_N, rng())
    assert out.shape == x_N.shape
    assert out.dtype == np.uint8
    assert (x_N == before).all()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, 360, -90, 450, 90.0])
def test_rotation_by_right_angles_is_exact(degrees):
    assert (rotation(COLOUR, rng(), degrees=degrees) == np.rot90(COLOUR, degrees // 90, axes=(2, 3))).all()


def test_rotation_by_default_is_a_quarter_turn_and_four_make_none():
    x_N = COLOUR
    for _ in range(4):
        x_N = rotation(x_N, rng())
    assert (x_N == COLOUR).all()
    assert (rotation(COLOUR, rng()) == np.rot90(COLOUR, 1, axes=(2, 3))).all()


@pytest.mark.parametrize("degrees", [30, -45, 89.5, 200, 1e-3])
def test_rotation_by_other_angles_is_bilinear(degrees):
    got, want = rotation(COLOUR, rng(), degrees=degrees), bilinear(COLOUR, degrees)
    assert np.abs(got - want).max() <= 0.5 + 1e-6


def test_rotation_of_wide_images():
    assert (rotation(WIDE, rng(), degrees=180) == WIDE[:, :, ::-1, ::-1]).all()
    assert np.abs(rotation(WIDE, rng(), degrees=80) - bilinear(WIDE, 80)).max() <= 0.5 + 1e-6


def test_invert_is_its_own_inverse():
    assert (invert(invert(COLOUR, rng()), rng()) == COLOUR).all()
    assert (invert(COLOUR, rng()).astype(int) + COLOUR == 255).all()


@pytest.mark.parametrize("std", [0.01, 0.05, 0.1])
def test_noise_has_its_std(std):
    grey = np.full((100, 1, 30, 30), 128, np.uint8)
    added = noise(grey, rng(), std=std).astype(float) - 128
    n = added.size
    want = np.sqrt((255 * std) ** 2 + 1 / 12)  # rounding adds a twelfth
    assert added.std() == pytest.approx(want, rel=5 / np.sqrt(2 * n))
    assert abs(added.mean()) < 5 * want / np.sqrt(n)
    assert abs(np.corrcoef(added[:, 0, 0, :-1].ravel(), added[:, 0, 0, 1:].ravel())[0, 1]) < 0.1


def test_noise_is_clipped_and_does_not_wrap():
    for level in (0, 255):
        x_N = np.full((10, 1, 20, 20), level, np.uint8)
        out = noise(x_N, rng(), std=0.1)
        assert (out == level).mean() == pytest.approx(0.5, abs=0.05)
        assert np.abs(out.astype(int) - level).max() < 160


def test_noise_by_seed():
    assert (noise(COLOUR, rng(1)) == noise(COLOUR, rng(1))).all()
    assert (noise(COLOUR, rng(1)) != noise(COLOUR, rng(2))).any()
    assert (noise(COLOUR, rng(1), std=0) == COLOUR).all()


def test_every_shift_has_defaults_for_all_options():
    for function in SHIFTS.values():
        options = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert all(p.default is not p.empty for p in options)
