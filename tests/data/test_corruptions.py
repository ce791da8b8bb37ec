import colorsys
import importlib.util
import io
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy import ndimage, stats

from idiolect.core.errors import InputError
from idiolect.data.shifts import corruptions

KINDS = [
    *("motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise"),
    *("frost", "fog", "jpeg", "brightness", "contrast"),
]
SEVERITIES = range(1, 6)
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (3, 3, 9, 11)).astype(np.uint8)
COLOUR[0, :, :2] = 0
COLOUR[1, :, 3:] = 255
GREY = RNG.integers(0, 256, (2, 1, 13, 8)).astype(np.uint8)
BOTH = pytest.mark.parametrize("x_N", [COLOUR, GREY], ids=["colour", "grey"])
EACH = pytest.mark.parametrize("severity", SEVERITIES)


@pytest.fixture
def photographs():
    """The folder of the frost photographs; skips where they are absent."""
    package = importlib.util.find_spec("imagecorruptions")
    if package is None:
        pytest.skip('the frost photographs are not here: pip install "idiolect[corruptions]"')
    return Path(package.submodule_search_locations[0]) / "frost"


def rng(seed=0):
    return np.random.default_rng(seed)


def apply(kind, x_N, severity=3, seed=0):
    return getattr(corruptions, kind)(x_N, severity, rng(seed))


def kinds(x_N, severity=3):
    """Every kind that can be applied here, with its result."""
    here = [kind for kind in KINDS if kind != "frost" or importlib.util.find_spec("imagecorruptions")]
    return {kind: apply(kind, x_N, severity) for kind in here}


def near(got_N, want_N):
    """Equal up to rounding to 8 bits; ``want_N`` is on a scale of 0 to 1."""
    assert got_N.dtype == np.uint8
    assert got_N.shape == want_N.shape
    assert np.abs(got_N - np.clip(want_N, 0, 1) * 255).max() <= 0.5 + 1e-3


def smooth(n=20, channels=3, side=32):
    """Synthetic images: blurred noise, stretched to the whole range."""
    x_N = ndimage.gaussian_filter(rng(5).random((n, channels, side, side)), (0, 0, 1.5, 1.5))
    x_N -= x_N.min((1, 2, 3), keepdims=True)
    return np.rint(x_N / x_N.max((1, 2, 3), keepdims=True) * 255).astype(np.uint8)


@EACH
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 8, 8), (1, 1, 28, 28), (1, 3, 33, 17), (2, 3, 70, 64)], ids=str)
def test_shape_and_type_stay_and_the_input_too(shape, severity):
    x_N = rng().integers(0, 256, shape).astype(np.uint8)
    before = x_N.copy()
    for kind, out_N in kinds(x_N, severity).items():
        assert out_N.shape == shape, kind
        assert out_N.dtype == np.uint8, kind
        assert (out_N != x_N).any(), kind
        assert (x_N == before).all(), kind
    assert all(out_N.shape == (0, *shape[1:]) for out_N in kinds(x_N[:0]).values())


@BOTH
def test_draws_come_from_the_generator_alone(x_N):
    for kind, out_N in kinds(x_N).items():
        assert (apply(kind, x_N) == out_N).all(), kind
        drawn = kind not in ("defocus_blur", "jpeg", "brightness", "contrast")
        assert (apply(kind, x_N, seed=1) != out_N).any() == drawn, kind


@BOTH
def test_images_of_a_client_are_drawn_apart(x_N):
    twin_N = np.repeat(x_N[:1], 2, axis=0)
    for kind, out_N in kinds(twin_N).items():
        drawn = kind not in ("defocus_blur", "jpeg", "brightness", "contrast")
        assert (out_N[0] != out_N[1]).any() == drawn, kind


@BOTH
@EACH
def test_motion_blur_by_definition(x_N, severity):
    radius, std = {1: (6, 1), 2: (6, 1.5), 3: (6, 2), 4: (8, 2), 5: (9, 2.5)}[severity]
    weight = [math.exp(-(i**2) / (2 * std**2)) for i in range(2 * radius + 1)]
    height, width = x_N.shape[2:]
    want_N = np.zeros(x_N.shape)
    angles = np.deg2rad(rng().uniform(-45, 45, len(x_N)))
    for n, channel, row, column in np.ndindex(x_N.shape):
        for i, w in enumerate(weight):
            r = row + math.ceil(i * math.sin(angles[n]) - 0.5)
            c = column + math.ceil(i * math.cos(angles[n]) - 0.5)
            value = x_N[n, channel, min(max(r, 0), height - 1), min(max(c, 0), width - 1)]
            want_N[n, channel, row, column] += w / sum(weight) * value / 255
    near(apply("motion_blur", x_N, severity), want_N)


def test_motion_blur_turns_up_to_45_degrees_either_way():
    """A bright point in the middle leaves its trace to the left, above or below."""
    x_N = np.zeros((400, 1, 41, 41), np.uint8)
    x_N[:, :, 20, 20] = 255
    out_N = apply("motion_blur", x_N, 5)[:, 0]
    assert (out_N[:, :, 21:] == 0).all()
    row, column = (np.abs(np.argwhere(out_N > 0)[:, i] - 20) for i in (1, 2))
    assert (row <= column).all()
    up = out_N[:, :20].sum((1, 2), dtype=int) > out_N[:, 21:].sum((1, 2), dtype=int)
    assert up.mean() == pytest.approx(0.5, abs=0.1)


DISKS = {1: (0.3, 0.4), 2: (0.4, 0.5), 3: (0.5, 0.6), 4: (1, 0.2), 5: (1.5, 0.1)}


@BOTH
@EACH
def test_defocus_blur_by_definition(x_N, severity):
    radius, alias = DISKS[severity]
    column, row = np.meshgrid(np.arange(-8, 9), np.arange(-8, 9))
    disk = (row**2 + column**2 <= radius**2).astype(float)
    bell = np.exp(-(np.array([-1.0, 0, 1]) ** 2) / (2 * alias**2))
    for axis in (0, 1):
        disk = ndimage.correlate1d(disk, bell / bell.sum(), axis=axis)
    want_N = np.array([[ndimage.correlate(x / 255, disk / disk.sum(), mode="mirror") for x in image] for image in x_N])
    near(apply("defocus_blur", x_N, severity), want_N)


@EACH
def test_defocus_blur_as_opencv_does_it(severity):
    cv2 = pytest.importorskip("cv2")
    radius, alias = DISKS[severity]
    column, row = np.meshgrid(np.arange(-8, 9), np.arange(-8, 9))
    disk = (row**2 + column**2 <= radius**2).astype(np.float32)
    disk = cv2.GaussianBlur(disk / disk.sum(), ksize=(3, 3), sigmaX=alias)
    want_N = np.array([[cv2.filter2D(x / 255, -1, disk) for x in image] for image in COLOUR])
    near(apply("defocus_blur", COLOUR, severity), want_N)


@pytest.mark.parametrize(("severity", "std"), [(1, 0.04), (2, 0.06), (3, 0.08), (4, 0.09), (5, 0.10)])
def test_gaussian_noise_has_its_std(severity, std):
    x_N = np.full((200, 3, 32, 32), 128, np.uint8)
    added = apply("gaussian_noise", x_N, severity).astype(float) - 128
    want = np.sqrt((255 * std) ** 2 + 1 / 12)  # rounding adds a twelfth
    assert added.std() == pytest.approx(want, rel=5 / np.sqrt(2 * added.size))
    assert abs(added.mean()) < 5 * want / np.sqrt(added.size)
    assert abs(np.corrcoef(added[:, 0].ravel(), added[:, 1].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize(("severity", "photons"), [(1, 500), (2, 250), (3, 100), (4, 75), (5, 50)])
@pytest.mark.parametrize("level", [0, 1, 40, 128])
def test_shot_noise_is_poisson(severity, photons, level):
    out_N = apply("shot_noise", np.full((50, 3, 32, 32), level, np.uint8), severity)
    counts = np.arange(photons)
    share = stats.poisson.pmf(counts, level / 255 * photons)
    levels = np.rint(255 * counts / photons)
    mean = (share * levels).sum()
    var = (share * (levels - mean) ** 2).sum()
    fourth = (share * (levels - mean) ** 4).sum()
    assert out_N.mean() == pytest.approx(mean, abs=5 * np.sqrt(var / out_N.size))
    assert out_N.var() == pytest.approx(var, abs=5 * np.sqrt((fourth - var**2) / out_N.size))
    assert (out_N == 0).mean() == pytest.approx(share[levels == 0].sum(), abs=5 / np.sqrt(out_N.size))


@pytest.mark.parametrize(("severity", "share"), [(1, 0.01), (2, 0.02), (3, 0.03), (4, 0.05), (5, 0.07)])
def test_impulse_noise_is_half_salt_and_half_pepper(severity, share):
    x_N = np.full((100, 3, 32, 32), 77, np.uint8)
    out_N = apply("impulse_noise", x_N, severity)
    for level in (0, 255):
        error = 5 * np.sqrt(share / 2 / x_N.size)
        assert (out_N == level).mean() == pytest.approx(share / 2, abs=error)
    assert set(np.unique(out_N)) == {0, 77, 255}
    hit_N = out_N != 77
    both = (hit_N[:, 0] & hit_N[:, 1]).mean()
    assert both == pytest.approx(share**2, abs=5 * share / np.sqrt(hit_N[:, 0].size))


FROST = {1: (1, 0.2), 2: (1, 0.3), 3: (0.9, 0.4), 4: (0.85, 0.4), 5: (0.75, 0.45)}


def textures(photographs, mode):
    """The first five, scaled by 0.2: bilinear between the pixels' middles, (height, width, channels)."""
    for name in ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"):
        photograph = Image.open(photographs / name).convert(mode)
        size = (photograph.width // 5, photograph.height // 5)
        scaled = photograph.transform(size, Image.Transform.AFFINE, (5, 0, 0, 0, 5, 0), Image.Resampling.BILINEAR)
        yield np.atleast_3d(np.asarray(scaled))


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
@EACH
def test_frost_adds_a_crop_of_one_of_five_photographs(photographs, mode, channels, severity):
    image, texture = FROST[severity]
    crops = [
        np.lib.stride_tricks.sliding_window_view(t, (10, 12), axis=(0, 1)) for t in textures(photographs, mode)
    ]  # (row, column, channel, 10, 12)
    x_N = rng().integers(0, 256, (60, channels, 10, 12)).astype(np.uint8)
    black_N, out_N = (apply("frost", x, severity) for x in (np.zeros_like(x_N), x_N))
    used, places = set(), set()
    for x, black, out in zip(x_N, black_N, out_N, strict=True):
        found = []
        for index, crop in enumerate(crops):
            at = np.argwhere(np.abs(texture * crop[:, :, 0, 0, 0] - black[0, 0, 0]) <= 0.5 + 1e-3)
            t_M = texture * crop[at[:, 0], at[:, 1]]
            wrong_M = np.maximum(np.abs(t_M - black), np.abs(np.minimum(image * x + t_M, 255) - out))
            found += [(index, *place) for place in at[wrong_M.max((1, 2, 3), initial=0) <= 0.5 + 1e-3].tolist()]
        assert found, "no crop of the first five photographs"
        used.add(found[0][0])
        places.add(found[0][1:])
    assert len(used) >= 4  # the second and the third are the same photograph
    assert len(places) >= 55


@pytest.mark.usefixtures("photographs")
@pytest.mark.parametrize("side", [64, 200, 700])
def test_frost_covers_larger_images(side):
    out_N = apply("frost", np.zeros((3, 3, side, side), np.uint8), 5)
    assert (out_N.std((2, 3)) > 2).all()
    assert (out_N[:, :, -1].std(-1) > 0).all()


@pytest.mark.usefixtures("photographs")
def test_frost_does_not_import_opencv(monkeypatch):
    corruptions._texture.cache_clear()
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    monkeypatch.setitem(sys.modules, "cv2", None)  # importing it would fail
    apply("frost", COLOUR)
    assert "imagecorruptions" not in sys.modules


def test_frost_without_its_photographs_says_what_to_install(monkeypatch):
    corruptions._texture.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "idiolect\[corruptions\]"'):
        apply("frost", COLOUR)


def plasma(side, decay, draws):
    """Diamond-square on a torus, point by point; ``draws`` are one array per level and kind of point."""
    height = np.zeros((side, side))
    step, amplitude = side, 100.0**2
    while step > 1:
        half = step // 2
        squares, above, beside = (next(draws) for _ in range(3))

        def mean(*points):
            return sum(height[r % side, c % side] for r, c in points) / 4

        every = [(i, j) for i in range(side // step) for j in range(side // step)]
        for i, j in every:
            r, c = i * step + half, j * step + half
            near = mean((r - half, c - half), (r - half, c + half), (r + half, c - half), (r + half, c + half))
            height[r, c] = near + amplitude * squares[i, j]
        for dr, dc, wobble in ((0, half, above), (half, 0, beside)):
            for i, j in every:
                r, c = i * step + dr, j * step + dc
                near = mean((r - half, c), (r + half, c), (r, c - half), (r, c + half))
                height[r, c] = near + amplitude * wobble[i, j]
        step, amplitude = half, amplitude / decay**2
    height -= height.min()
    return height / height.max()


@BOTH
@EACH
def test_fog_by_definition(x_N, severity):
    amount, decay = {1: (0.2, 3), 2: (0.5, 3), 3: (0.75, 2.5), 4: (1, 2), 5: (1.5, 1.75)}[severity]
    n, _, height, width = x_N.shape
    source = rng()
    drawn = [source.uniform(-1, 1, (n, 2**level, 2**level)) for level in range(4) for _ in range(3)]
    want_N = np.zeros(x_N.shape)
    for i, image in enumerate(x_N / 255):
        fractal = plasma(16, decay, iter([d[i] for d in drawn]))[:height, :width]
        want_N[i] = (image + amount * fractal) * image.max() / (image.max() + amount)
    near(apply("fog", x_N, severity), want_N)


def test_fog_is_the_same_for_all_channels_and_spans_the_range():
    x_N = np.zeros((5, 3, 32, 32), np.uint8)
    assert (apply("fog", x_N, 3) == 0).all()  # black stays black
    x_N[:, :, 0, 0] = 255
    fog_N = apply("fog", x_N, 3)[:, :, 0, 1:]
    assert (fog_N == fog_N[:, :1]).all()
    out_N = apply("fog", np.full((5, 3, 32, 32), 255, np.uint8), 3)
    assert (out_N.max((1, 2, 3)) == 255).all()
    assert (out_N.min((1, 2, 3)) == round(255 / 1.75)).all()


@EACH
def test_brightness_raises_the_value_of_hsv(severity):
    more = [0.05, 0.1, 0.15, 0.2, 0.3][severity - 1]
    want_N = np.zeros(COLOUR.shape)
    for n, row, column in np.ndindex(3, 9, 11):
        hue, saturation, value = colorsys.rgb_to_hsv(*COLOUR[n, :, row, column] / 255)
        want_N[n, :, row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
    near(apply("brightness", COLOUR, severity), want_N)
    near(apply("brightness", GREY, severity), GREY / 255 + more)


@BOTH
@EACH
def test_contrast_by_definition(x_N, severity):
    less = [0.75, 0.5, 0.4, 0.3, 0.15][severity - 1]
    want_N = np.array([[(c - c.mean()) * less + c.mean() for c in image / 255] for image in x_N])
    near(apply("contrast", x_N, severity), want_N)


@EACH
def test_jpeg_of_one_image_at_a_time(severity):
    quality = [80, 65, 58, 50, 40][severity - 1]

    def through(pixels, mode):
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(file, format="jpeg", quality=quality)
        return np.array(Image.open(file))

    colour_N = apply("jpeg", COLOUR, severity)
    grey_N = apply("jpeg", GREY, severity)
    for x, out in zip(COLOUR, colour_N, strict=True):
        assert (out == np.moveaxis(through(np.moveaxis(x, 0, -1).copy(), "RGB"), -1, 0)).all()
    for x, out in zip(GREY, grey_N, strict=True):
        assert (out[0] == through(x[0], "L")).all()


def distances(x_N, kind):
    """The mean distance to the clean images by severity."""
    out = [apply(kind, x_N, severity).astype(float) - x_N for severity in SEVERITIES]
    return np.array([np.sqrt((d**2).sum((1, 2, 3))).mean() for d in out])


def grows(x_N, kind):
    """Further from the clean image at each severity; severities 3 and 4 of the motion blur differ by a hair."""
    steps = np.diff(distances(x_N, kind))
    if kind == "motion_blur":
        assert steps[2] >= -1e-2 * distances(x_N, kind)[2]
        steps = np.delete(steps, 2)
    assert (steps > 0).all(), steps


def fades(x_N):
    """Frost darkens the image too, so that from 3 on the distance may fall, but less and less of the image is left."""
    left = []
    for severity in SEVERITIES:
        out_N = apply("frost", x_N, severity)
        left.append(np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(x_N, out_N, strict=True)]))
    assert (np.diff(left) < 0).all(), left
    assert (np.diff(distances(x_N, "frost"))[:2] > 0).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "frost"])
@pytest.mark.parametrize("channels", [1, 3])
def test_severity_grows_on_smooth_images(kind, channels):
    grows(smooth(channels=channels), kind)


@pytest.mark.usefixtures("photographs")
@pytest.mark.parametrize("channels", [1, 3])
def test_frost_grows_on_smooth_images(channels):
    fades(smooth(channels=channels))


@pytest.fixture
def pictures(cifar10):
    """The first real images (N, C, H, W)."""
    batch = next(pq.ParquetFile(cifar10 / "test.parquet").iter_batches(200, columns=["img"]))
    pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in batch["img"].to_pylist()]
    return np.stack(pixels).transpose(0, 3, 1, 2)


@pytest.mark.data
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "frost"])
def test_severity_grows_on_real_images(kind, pictures):
    grows(pictures, kind)


@pytest.mark.data
@pytest.mark.usefixtures("photographs")
def test_frost_grows_on_real_images(pictures):
    fades(pictures)
