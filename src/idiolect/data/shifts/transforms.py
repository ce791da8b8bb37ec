"""The shifts: one public function each, found by ``idiolect.data.SHIFTS``.

To add one, write a public function here with this signature, its options keyword-only, annotated with their range:
``def name(x_N, y_N, who, rng, *, option: Type = default) -> Shifted``, for the 8-bit images (N, C, H, W) and labels of
one client, which it does not change in place; each client has its own ``rng``. All shifts have the option ``clients``,
which says who is shifted; ``idiolect.data.build`` handles it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from idiolect.core.errors import InputError, option
from idiolect.core.option_spec import Spec
from idiolect.data.shifts import corruptions
from idiolect.data.shifts.corruptions import Images

# N samples of one client, C classes

Labels = NDArray[np.int64]
Degrees = Annotated[float, Field(allow_inf_nan=False)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
Groups = Annotated[int, Field(ge=2)]
Pixels = Annotated[int, Field(ge=1)]
Severity = Annotated[int, Field(ge=1, le=5)]
Kind = Literal[
    "assigned",
    "motion_blur",
    "defocus_blur",
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "frost",
    "fog",
    "jpeg",
    "brightness",
    "contrast",
]

KINDS = get_args(Kind)[1:]
_SEVERITIES = 5
_LEAST = 8  # pixels that the corruptions need in width and height


class Who(NamedTuple):
    """A shifted client and its place.

    Attributes:
        client: its number.
        place: its place among the shifted clients, from 0.
        classes: of the data set.
        common: ``common(*path)`` is a random generator that gives all clients of this shift the same draws.
    """

    client: int
    place: int
    classes: int
    common: Callable[..., np.random.Generator]


class Shifted(NamedTuple):
    """A client's samples after a shift.

    Attributes:
        x_N: images (N, C, H, W), uint8.
        y_N: labels, int64.
        says: a spec of a shift that would do the same to this client alone; "" if nothing was done.
    """

    x_N: NDArray[Any]
    y_N: Labels
    says: str


def rotate(
    x_N: Images,
    y_N: Labels,
    who: Who,
    rng: np.random.Generator,
    *,
    degrees: Degrees | None = None,
    groups: Groups | None = None,
) -> Shifted:
    """Rotate counter-clockwise about the centre, all clients by one angle or each group by its own.

    Exact for multiples of 90 degrees if the image is square, else bilinear with black outside.

    Args:
        degrees: the angle; by default 90, and with ``groups`` a full circle divided by their number.
        groups: how many; client k is in group g = k mod groups and turns by g times the angle, so group 0 does not
            turn.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), which does not state the angles.
    """
    if groups is None:
        angle = 90.0 if degrees is None else degrees
    else:
        group = who.client % groups
        angle = 360 * group / groups if degrees is None else group * degrees
    if angle % 360 == 0:
        return Shifted(x_N, y_N, "")
    return Shifted(_rotated(x_N, angle), y_N, _says("rotate", degrees=angle))


def _rotated(x_N: Images, angle: float) -> Images:
    square = x_N.shape[2] == x_N.shape[3]
    if angle % (90 if square else 180) == 0:
        return np.rot90(x_N, int(angle // 90) % 4, axes=(2, 3))
    from scipy import ndimage  # slow to import, and workers do not need it

    return np.asarray(ndimage.rotate(x_N, angle, axes=(2, 3), reshape=False, order=1, mode="constant", cval=0))


def translate(x_N: Images, y_N: Labels, who: Who, rng: np.random.Generator, *, pixels: Pixels = 1) -> Shifted:
    """Move each image by a random whole number of pixels in height and in width, with black outside.

    Args:
        pixels: the farthest in each direction; every number from -pixels to pixels is as likely.
    """
    count, _, height, width = x_N.shape
    from_N2 = rng.integers(2 * pixels + 1, size=(count, 2))
    wide_N = np.pad(x_N, ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels)))
    places_N = np.lib.stride_tricks.sliding_window_view(wide_N, (height, width), axis=(2, 3))
    moved_N = places_N[np.arange(count), :, from_N2[:, 0], from_N2[:, 1]]
    return Shifted(np.ascontiguousarray(moved_N), y_N, _says("translate", pixels=pixels))


def permute_labels(
    x_N: NDArray[Any], y_N: Labels, who: Who, rng: np.random.Generator, *, groups: Groups = 5, to: str | None = None
) -> Shifted:
    """Concept shift: each group of clients has its own, fixed permutation of the labels.

    Counts, class names and captions are those of the permuted labels.

    Args:
        groups: how many; client k is in group k mod groups. Each group, also the first, has a random permutation; all
            are different if there are enough.
        to: instead, one permutation for all: the new label of class 0, of class 1 and so on, as "2+0+1".

    Raises:
        InputError: ``to`` does not name every class once.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), table 3, which does not state the permutations.
    """
    to_C = _permutation(who, who.client % groups) if to is None else _read_permutation(to, who.classes)
    if to_C == tuple(range(who.classes)):
        return Shifted(x_N, y_N, "")
    return Shifted(x_N, np.array(to_C, np.int64)[y_N], _says("permute_labels", to="+".join(map(str, to_C))))


def shuffle_labels(x_N: NDArray[Any], y_N: Labels, who: Who, rng: np.random.Generator) -> Shifted:
    """Deal a client's labels out anew among its samples, at random.

    How many samples of each class the client has stays the same, and nothing else can be learned of it: a client whose
    labels are worthless.
    """
    return Shifted(x_N, rng.permutation(y_N), _says("shuffle_labels"))


def _permutation(who: Who, group: int) -> tuple[int, ...]:
    """The group's permutation, drawn again if an earlier group has the same and others are left."""
    drawn, different = _drawn(int(who.common("labels").integers(2**63)), who.classes)
    while len(drawn) <= group:
        rng = who.common("labels", len(drawn))
        to_C = tuple(rng.permutation(who.classes).tolist())
        while to_C in different and len(different) < math.factorial(who.classes):
            to_C = tuple(rng.permutation(who.classes).tolist())
        drawn.append(to_C)
        different.add(to_C)
    return drawn[group]


@lru_cache(maxsize=8)
def _drawn(shift: int, classes: int) -> tuple[list[tuple[int, ...]], set[tuple[int, ...]]]:
    """The permutations that a shift's groups have drawn, as a list and as a set, so that each group draws only once."""
    return [], set()


def _read_permutation(text: str, classes: int) -> tuple[int, ...]:
    pieces = [piece.strip() for piece in text.split("+")]
    if all(piece.isdecimal() for piece in pieces):
        to_C = tuple(map(int, pieces))
        if sorted(to_C) == list(range(classes)):
            return to_C
    example = "+".join(map(str, [*range(1, classes), 0]))
    raise InputError(f"shift permute_labels: to={text!r} is not a permutation: write every class once, as {example}")


def invert(x_N: Images, y_N: Labels, who: Who, rng: np.random.Generator) -> Shifted:
    """Exchange dark and bright: 255 - x."""
    return Shifted(255 - x_N, y_N, "invert")


def noise(x_N: Images, y_N: Labels, who: Who, rng: np.random.Generator, *, std: UnitInterval = 0.1) -> Shifted:
    """Add independent Gaussian noise to every value; the result is rounded and clipped to 0..255.

    Args:
        std: standard deviation of the noise, as a fraction of the intensity range.
    """
    return Shifted(corruptions.add_noise(x_N, std, rng), y_N, _says("noise", std=std))


def corrupt(
    x_N: Images,
    y_N: Labels,
    who: Who,
    rng: np.random.Generator,
    *,
    kind: Kind = "assigned",
    severity: Severity | None = None,
    official_assignment: bool = False,
) -> Shifted:
    """Corrupt all images of a client in one way: CIFAR-S, where the shifted clients have different corruptions.

    With "assigned", the i-th shifted client (from 0) gets kind i mod 10, in the order of the list, at severity
    i // 10 + 1. These are 50 different pairs; after them the same pairs are used again.

    Args:
        kind: the corruption, or "assigned" for the client's own.
        severity: 1 to 5; by default 3, or the assigned one.
        official_assignment: use severity i mod 5 + 1, as the released code does; this makes 10 pairs.

    Raises:
        InputError: ``official_assignment`` together with a kind or a severity, images smaller than 8 x 8 pixels, or
            frost without its photographs.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1; CIFAR-10-C (Hendrycks & Dietterich, ICLR 2019).
    Differs from source: the paper says unique pairs, the released code gives each of its 10 to five clients.
    """
    if official_assignment and (kind != "assigned" or severity is not None):
        raise InputError("shift corrupt: official_assignment=true chooses kind and severity: leave those two out")
    height, width = x_N.shape[2:]
    if min(height, width) < _LEAST:
        raise InputError(
            f"shift corrupt needs images of at least {_LEAST}x{_LEAST} pixels, and these have {width}x{height}: leave "
            f"it out, or enlarge your own images with {option('resize', _LEAST)}"
        )
    place = who.place % (len(KINDS) * _SEVERITIES)
    if kind == "assigned":
        kind = KINDS[place % len(KINDS)]
        turn = place % _SEVERITIES if official_assignment else place // len(KINDS)
        severity = severity or turn + 1
    severity = severity or 3
    out_N = getattr(corruptions, kind)(x_N, severity, rng)
    return Shifted(out_N, y_N, _says("corrupt", kind=kind, severity=severity))


def _says(name: str, **options: object) -> str:
    """A spec, with whole numbers written as such."""
    whole = {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in options.items()}
    return str(Spec(name=name, options=whole))
