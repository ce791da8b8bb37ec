import inspect
import itertools
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec, check
from idiolect.data import shifts
from idiolect.data.shifts import (
    Who,
    corrupt,
    invert,
    noise,
    permute_labels,
    rotate,
    shuffle_labels,
    transforms,
    translate,
)

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (4, 3, 9, 9)).astype(np.uint8)
WIDE = RNG.integers(0, 256, (4, 1, 8, 11)).astype(np.uint8)
LABELS = np.array([3, 0, 9, 3])
EVERY = [rotate, permute_labels, shuffle_labels, invert, noise, corrupt, translate]
ORDER = [
    *("motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise"),
    *("frost", "fog", "jpeg", "brightness", "contrast"),
]


def rng(seed=0):
    return np.random.default_rng(seed)


def who(client=0, place=None, classes=10, seed=0):
    return Who(client, client // 2 if place is None else place, classes, lambda *path: keys.generator(seed, *path))


def images(shift, x_N=COLOUR, *, client=0, seed=0, **options):
    return shift(x_N, LABELS[: len(x_N)], who(client), rng(seed), **options).x_N


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


def test_the_shifts_are_all_here():
    found = inspect.getmembers(transforms, lambda f: inspect.isfunction(f) and f.__module__ == transforms.__name__)
    assert {f for name, f in found if not name.startswith("_")} == set(EVERY)


@pytest.mark.parametrize("shift", EVERY)
@pytest.mark.parametrize("x_N", [COLOUR, WIDE, COLOUR[:0]], ids=["colour", "wide", "none"])
def test_shape_and_type_stay_and_the_input_too(shift, x_N):
    y_N = LABELS[: len(x_N)]
    before = x_N.copy(), y_N.copy()
    out = shift(x_N, y_N, who(1), rng())
    assert out.x_N.shape == x_N.shape
    assert out.x_N.dtype == np.uint8
    assert out.y_N.shape == y_N.shape
    assert out.y_N.dtype == np.int64
    assert (x_N == before[0]).all()
    assert (y_N == before[1]).all()


@pytest.mark.parametrize("shift", EVERY)
def test_every_option_has_a_default(shift):
    options = [p for p in inspect.signature(shift).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert all(p.default is not p.empty for p in options)


@pytest.mark.parametrize(
    ("shift", "options"),
    [
        *((rotate, o) for o in ({}, {"degrees": -37.5}, {"groups": 7}, {"groups": 3, "degrees": 1e-3})),
        *((permute_labels, o) for o in ({}, {"groups": 2}, {"to": "9+8+7+6+5+4+3+2+1+0"})),
        (invert, {}),
        (shuffle_labels, {}),
        *((noise, o) for o in ({}, {"std": 1e-5}, {"std": 1})),
        *((translate, o) for o in ({}, {"pixels": 3})),
        *((corrupt, o) for o in ({}, {"kind": "impulse_noise"}, {"severity": 5}, {"official_assignment": True})),
    ],
)
@pytest.mark.parametrize("client", [1, 8])
def test_what_it_says_does_the_same_to_this_client_alone(shift, options, client):
    out = shift(COLOUR, LABELS, who(client), rng(3), **check(shift, options, "shift"))
    said = Spec.parse(out.says)
    assert said.name == shift.__name__
    alone = shift(COLOUR, LABELS, who(0), rng(3), **check(shift, said.options, "shift"))
    assert (alone.x_N == out.x_N).all()
    assert (alone.y_N == out.y_N).all()
    assert alone.says == out.says


@pytest.mark.parametrize(
    ("says", "options", "client"),
    [
        ("rotate:degrees=90", {}, 3),
        ("rotate:degrees=30.5", {"degrees": 30.5}, 3),
        ("rotate:degrees=180", {"groups": 4}, 6),
        ("rotate:degrees=45", {"groups": 4, "degrees": 15}, 7),
        ("", {"groups": 4}, 8),
        ("", {"degrees": -360.0}, 0),
        ("", {"groups": 5, "degrees": 90}, 4),
    ],
)
def test_rotate_says_its_angle_or_nothing(says, options, client):
    out = rotate(COLOUR, LABELS, who(client), rng(), **check(rotate, options, "shift rotate"))
    assert out.says == says
    assert (out.x_N == COLOUR).all() == (not says)
    assert (out.y_N == LABELS).all()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, 360, -90, 450, 90.0])
def test_rotate_by_right_angles_is_exact(degrees):
    assert (images(rotate, degrees=degrees) == np.rot90(COLOUR, degrees // 90, axes=(2, 3))).all()


@pytest.mark.parametrize("degrees", [30, -45, 89.5, 200, 1e-3])
def test_rotate_by_other_angles_is_bilinear(degrees):
    assert np.abs(images(rotate, degrees=degrees) - bilinear(COLOUR, degrees)).max() <= 0.5 + 1e-6


def test_rotate_wide_images():
    assert (images(rotate, WIDE, degrees=180) == WIDE[:, :, ::-1, ::-1]).all()
    assert np.abs(images(rotate, WIDE, degrees=80) - bilinear(WIDE, 80)).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("groups", [2, 4])
def test_rotate_by_groups_divides_the_circle(groups):
    for client in range(9):
        turns = (client % groups) * (4 // groups)
        assert (images(rotate, client=client, groups=groups) == np.rot90(COLOUR, turns, axes=(2, 3))).all()


def test_rotate_by_groups_of_a_given_angle():
    for client in range(5):
        want = bilinear(COLOUR, 20.0 * (client % 3))
        assert np.abs(images(rotate, client=client, groups=3, degrees=20.0) - want).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("x_N", [COLOUR, WIDE], ids=["colour", "wide"])
@pytest.mark.parametrize("pixels", [1, 3])
def test_translate_moves_each_image_as_a_whole(x_N, pixels):
    height, width = x_N.shape[2:]
    many_N = np.repeat(x_N, 100, axis=0)
    out_N = translate(many_N, np.zeros(len(many_N), np.int64), who(), rng(), pixels=pixels).x_N
    found = Counter()
    for before, after in zip(many_N, out_N, strict=True):
        fits = []
        for down, right in itertools.product(range(-pixels, pixels + 1), repeat=2):
            want = np.zeros_like(before)
            for r, c in itertools.product(range(height), range(width)):
                if 0 <= r - down < height and 0 <= c - right < width:
                    want[:, r, c] = before[:, r - down, c - right]
            fits += [(down, right)] if (want == after).all() else []
        [place] = fits
        found[place] += 1
    assert len(found) == (2 * pixels + 1) ** 2
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def permutation(client, classes=10, seed=0, **options):
    """The new label of each class."""
    y_C = np.arange(classes)
    out = permute_labels(COLOUR[: len(y_C)], y_C, who(client, classes=classes, seed=seed), rng(client), **options)
    return tuple(out.y_N.tolist())


def test_permute_labels_is_one_bijection_per_group():
    drawn = [permutation(client) for client in range(13)]
    assert all(sorted(p) == list(range(10)) for p in drawn)
    assert all(drawn[k] == drawn[k % 5] for k in range(13))
    assert len(set(drawn)) == 5
    assert tuple(range(10)) not in drawn  # one of 3.6 million
    assert permutation(0, seed=1) != drawn[0]


@pytest.mark.parametrize(("classes", "groups", "different"), [(3, 6, 6), (3, 9, 6), (2, 2, 2), (2, 3, 2), (1, 2, 1)])
def test_permute_labels_differ_as_far_as_there_are_enough(classes, groups, different):
    for seed in range(20):
        assert len({permutation(k, classes, seed, groups=groups) for k in range(groups)}) == different


def drawn_again(seed, classes, group):
    """The definition: in the order of the groups, again where an earlier one has the same and others are left."""
    found = []
    for g in range(group + 1):
        source = keys.generator(seed, "labels", g)
        found.append(tuple(source.permutation(classes).tolist()))
        while found[-1] in found[:-1] and len(set(found)) < math.factorial(classes):
            found[-1] = tuple(source.permutation(classes).tolist())
    return found[group]


@pytest.mark.parametrize("clients", [range(9), range(8, -1, -1)], ids=["in order", "backwards"])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_permute_labels_depend_on_the_group_alone(clients, classes):
    for seed in (31, 32):
        for client in clients:
            assert permutation(client, classes, seed, groups=9) == drawn_again(seed, classes, client)


def test_permute_labels_draw_once_for_all_clients():
    drawn = Counter()

    def common(*path):
        drawn[path] += 1
        return keys.generator(77, *path)

    for client in range(300):
        permute_labels(COLOUR, LABELS, Who(client, client, 10, common), rng(), groups=100)
    assert [drawn["labels", g] for g in range(100)] == [1] * 100


def test_permute_labels_as_given():
    out = permute_labels(COLOUR, np.array([0, 1, 3, 0]), who(7, classes=4), rng(), to="3+1+0+2")
    assert out.y_N.tolist() == [3, 1, 2, 3]
    assert out.says == "permute_labels:to=3+1+0+2"
    assert out.x_N is COLOUR
    assert permute_labels(COLOUR, LABELS, who(classes=4), rng(), to="0+1+2+3").says == ""


def test_shuffled_labels_are_as_many_of_each_class_and_say_nothing_of_the_samples():
    y_N = RNG.choice(4, 20_000, p=[0.1, 0.2, 0.3, 0.4])
    x_N = np.zeros((len(y_N), 2))
    out = shuffle_labels(x_N, y_N, who(), rng())
    assert np.bincount(out.y_N).tolist() == np.bincount(y_N).tolist()
    assert out.x_N is x_N
    joint_CC = np.histogram2d(y_N, out.y_N, bins=4)[0]
    assert stats.chi2_contingency(joint_CC).pvalue > 0.001
    assert (shuffle_labels(x_N, y_N, who(1), rng(1)).y_N != out.y_N).any()


@pytest.mark.parametrize("to", ["", "3+1+0", "3+1+0+3", "3+1+0+4", "3+1+0+2+4", "a+1+0+2", "3 1 0 2", "-1+1+0+2"])
def test_permute_labels_refuses_what_is_no_permutation(to):
    with pytest.raises(InputError, match=r"shift permute_labels: to=.* write every class once, as 1\+2\+3\+0"):
        permute_labels(COLOUR, LABELS, who(classes=4), rng(), to=to)


def test_invert_is_its_own_inverse():
    assert (images(invert, images(invert)) == COLOUR).all()
    assert (images(invert).astype(int) + COLOUR == 255).all()


@pytest.mark.parametrize("std", [0.01, 0.05, 0.1])
def test_noise_has_its_std(std):
    grey = np.full((100, 1, 30, 30), 128, np.uint8)
    added = images(noise, grey, std=std).astype(float) - 128
    n = added.size
    want = np.sqrt((255 * std) ** 2 + 1 / 12)  # rounding adds a twelfth
    assert added.std() == pytest.approx(want, rel=5 / np.sqrt(2 * n))
    assert abs(added.mean()) < 5 * want / np.sqrt(n)
    assert abs(np.corrcoef(added[:, 0, 0, :-1].ravel(), added[:, 0, 0, 1:].ravel())[0, 1]) < 0.1


def test_noise_is_clipped_and_does_not_wrap():
    for level in (0, 255):
        x_N = np.full((10, 1, 20, 20), level, np.uint8)
        out = images(noise, x_N, std=0.1)
        assert (out == level).mean() == pytest.approx(0.5, abs=0.05)
        assert np.abs(out.astype(int) - level).max() < 160


def test_noise_by_seed():
    assert (images(noise, seed=1) == images(noise, seed=1)).all()
    assert (images(noise, seed=1) != images(noise, seed=2)).any()
    assert (images(noise, std=0) == COLOUR).all()


@pytest.fixture
def frost(monkeypatch):
    """Frost without its photographs, which may be absent."""
    monkeypatch.setattr(shifts.corruptions, "frost", lambda x_N, severity, rng: x_N)


def assigned(place, **options):
    """The kind and severity of the client in this place, whatever its number."""
    said = Spec.parse(corrupt(WIDE[:1], LABELS[:1], who(97, place), rng(), **options).says)
    return said.options["kind"], said.options["severity"]


@pytest.mark.usefixtures("frost")
def test_corrupt_assigns_fifty_unique_pairs():
    pairs = [assigned(place) for place in range(50)]
    assert len(set(pairs)) == 50
    assert pairs[0] == ("motion_blur", 1)
    assert pairs[9] == ("contrast", 1)
    assert pairs[10] == ("motion_blur", 2)
    assert pairs[36] == ("fog", 4)
    assert pairs[49] == ("contrast", 5)
    assert pairs == [(kind, severity) for severity in range(1, 6) for kind in ORDER]
    assert [assigned(place) for place in (50, 86, 100)] == [pairs[0], pairs[36], pairs[0]]


@pytest.mark.usefixtures("frost")
def test_corrupt_assigns_ten_pairs_five_times_as_the_released_code():
    pairs = Counter(assigned(place, official_assignment=True) for place in range(50))
    assert pairs == {(kind, severity): 5 for kind, severity in zip(ORDER, [1, 2, 3, 4, 5] * 2, strict=True)}


@pytest.mark.usefixtures("frost")
def test_corrupt_by_kind_or_severity():
    assert [assigned(place, severity=3) for place in range(20)] == [(kind, 3) for kind in ORDER] * 2
    assert assigned(7, kind="fog") == ("fog", 3)
    assert assigned(7, kind="fog", severity=5) == ("fog", 5)


@pytest.mark.parametrize("options", [{"kind": "fog"}, {"severity": 2}])
def test_corrupt_refuses_two_assignments(options):
    with pytest.raises(InputError, match="official_assignment=true chooses kind and severity: leave those two out"):
        corrupt(COLOUR, LABELS, who(), rng(), official_assignment=True, **options)


@pytest.mark.parametrize(
    ("shift", "options"),
    [
        (corrupt, {"severity": 0}),
        (corrupt, {"severity": 6}),
        (corrupt, {"kind": "snow"}),
        (rotate, {"groups": 1}),
        (rotate, {"degrees": float("inf")}),
        (permute_labels, {"groups": 0}),
        (noise, {"std": 1.5}),
    ],
)
def test_options_have_ranges(shift, options):
    with pytest.raises(InputError, match=f"{next(iter(options))}=.* is not valid"):
        check(shift, options, f"shift {shift.__name__}")


def test_corrupt_by_seed():
    out = [images(corrupt, kind="fog", seed=seed) for seed in (1, 1, 2)]
    assert (out[0] == out[1]).all()
    assert all((a != b).any() for a, b in pairwise(out[1:]))


@pytest.mark.parametrize("kind", ORDER)
@pytest.mark.parametrize("shape", [(7, 9), (9, 7), (1, 1)])
def test_corrupt_needs_eight_pixels_each_way(kind, shape):
    small = np.zeros((2, 1, *shape), np.uint8)
    with pytest.raises(InputError, match=rf"at least 8x8 pixels, and these have {shape[1]}x{shape[0]}: .*resize=8"):
        images(corrupt, small, kind=kind)
    eight = RNG.integers(0, 256, (2, 1, 8, 8)).astype(np.uint8)
    assert images(corrupt, eight, kind=kind).shape == eight.shape
