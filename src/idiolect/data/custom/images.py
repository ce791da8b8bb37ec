"""Encoded images of any kind, read into one 8-bit array."""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import re
import stat
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from idiolect.core import shared_memory
from idiolect.core.errors import InputError, option
from idiolect.core.processor import cores
from idiolect.data.datasets import cache

# R images, C channels, H height, W width

log = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm")
LARGEST = 512  # pixels a side, without resize
MOST_PIXELS = 2**26  # of one image: 8192 x 8192, or a camera's 67 megapixels
_LARGEST_TARGET = 4096  # pixels a side
_CACHE_BYTES = 4e9  # bytes of decoded images
_MANY = 2000  # images that are worth a cache
_SMALL = 64 * 64  # pixels of an image whose decoding is too short for threads
_IN_MEMORY = 2**20  # bytes of a file that is read at once, which is faster than in pieces
_STRETCH = 256  # images per task of a thread
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe must not make it wait
_ORIENTATION = 0x0112


class EncodedImage(NamedTuple):
    """An image that is not decoded yet: a file, or its bytes, and what to call it in a message."""

    name: str
    data: Path | bytes | None


class Pixels(NamedTuple):
    """Images as they are stored."""

    x_R: Tensor
    """(R, C, H, W), uint8."""
    bits: int
    """Of the grey values that became these: 8, or up to 16."""
    own: int
    """Of the brightest: if they are more, it became white."""


class _Look(NamedTuple):
    size: tuple[int, int]
    colour: bool
    top: int
    frames: int


def parse_size(resize: str | int | None) -> tuple[int, int] | None:
    """Width and height in pixels.

    Raises:
        InputError: it is not a size, or more than 4096 pixels a side.

    >>> parse_size("32x24"), parse_size(32), parse_size(None)
    ((32, 24), (32, 32), None)
    """
    if resize is None:
        return None
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", str(resize).strip().lower())
    size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(size) < 1 or max(size) > _LARGEST_TARGET:
        raise InputError(
            f"resize={resize} is not a size in pixels: write 32, or 32x24 for width x height, at most "
            f"{_LARGEST_TARGET} a side"
        )
    return size


def resized(size: str) -> str:
    """What to give if images need a common size, WxH."""
    return option("resize", size)


def read(
    images: Sequence[EncodedImage], resize: tuple[int, int] | None, where: str, *, keep: bool = True,
    bits: int | None = None, fix: Callable[[str], str] = resized,
) -> Pixels:  # fmt: skip
    """Decode all images: grey if all are grey, else RGB.

    A camera's orientation is applied, transparent pixels become white, and only the first of several frames is used.
    Grey values of more than 8 bits are scaled by one factor for all images. It follows from ``bits``, and without from
    the number of bits of the brightest pixel, so that images with 12 bits in 16 keep their contrast; brighter ones than
    ``bits`` allows become white. ``resize`` stretches to (W, H), bilinear with antialiasing. If there are many images,
    the decoded ones are kept in the cache (if ``keep``), by their bytes or by their files' marks (see ``cache.mark``).
    Nothing large is decoded before all sizes are known. ``fix`` says what to give if images need a common size, WxH.

    Raises:
        InputError: an image cannot be read, one image or all together are too large, images have more than 8 bits and
            ``bits`` says 8, or, without ``resize``, images have mixed sizes or colours or are large.
    """
    place = cache.place(f"own-{_digest(images, resize, bits)}") if keep and len(images) > _MANY else None
    if place and (entry := cache.load(place)):
        with suppress(OSError):
            place.touch()  # used now
        return Pixels(entry.tensors["x"], int(entry.about["bits"]), int(entry.about["own"]))
    pixels = _read(images, resize, where, bits, fix)
    about = {"bits": str(pixels.bits), "own": str(pixels.own)}
    if place and cache.save(place, {"x": pixels.x_R}, about) and (entry := cache.load(place)):
        cache.trim(place, "own-", _CACHE_BYTES)
        return pixels._replace(x_R=entry.tensors["x"])  # mapped, to save memory
    return pixels


def _digest(images: Sequence[EncodedImage], resize: tuple[int, int] | None, bits: int | None) -> str:
    """What the decoded images depend on."""
    digest = hashlib.blake2b(f"3 {resize} {bits}".encode(), digest_size=16)
    for name, data in images:
        if isinstance(data, Path):
            try:
                data = " ".join(map(str, cache.mark(data))).encode()
            except OSError:
                raise InputError(f"{name} cannot be read: fix it, or remove it") from None
        content = data or b""
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _read(
    images: Sequence[EncodedImage], resize: tuple[int, int] | None, where: str, known: int | None,
    fix: Callable[[str], str],
) -> Pixels:  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower
        looks, x_R = _look_at_all(images, resize, where)
    if x_R is not None:
        return Pixels(torch.from_numpy(x_R), known or 8, 8)
    size = resize or _one_size(looks, images, where, fix)
    colour = any(look.colour for look in looks)
    if not resize and not all(look.colour == colour for look in looks):
        kinds = [next(i.name for i, look in zip(images, looks, strict=True) if look.colour == c) for c in (True, False)]
        count = sum(look.colour for look in looks)
        common = f"give {fix(f'{size[0]}x{size[1]}')} to make all of them colour images, or " if fix is resized else ""
        raise InputError(
            f"{where} mixes {count} colour images (for example {kinds[0]}) and {len(looks) - count} grey ones (for "
            f"example {kinds[1]}): {common}convert them"
        )
    several = sum(look.frames > 1 for look in looks)
    if several:
        log.warning("%s: %d images have several frames, and only the first is used", where, several)
    own = max(8, max(look.top for look in looks).bit_length())
    if known == 8 < own:
        raise InputError(
            f"{where} has images of {own} bits a pixel, and those of training had 8: save them with 8 bits"
        )
    bits = known or own
    if bits > 8:
        log.info("%s: grey values of %d bits are scaled to 8 bits", where, bits)
    image_R = _room(len(images), colour, size, where)

    def fill(start: int) -> None:
        for i in range(start, min(start + _STRETCH, len(images))):
            with _open(images[i]) as image:
                image_R[i] = _decode(image, colour, size, 2**bits - 1)

    area = sum(math.prod(look.size) for look in looks) / len(looks)
    with ThreadPoolExecutor(cores() if area > _SMALL else 1) as pool:
        for _ in pool.map(fill, range(0, len(images), _STRETCH)):
            pass
    return Pixels(torch.from_numpy(image_R), bits, own)


def brighter(known: int) -> str:
    """What is said of images of more bits than those of training."""
    what = f"some images have more than {known} bits a pixel, and those of training had not"
    return f"{what}: what is brighter becomes white"


def _look_at_all(
    images: Sequence[EncodedImage], resize: tuple[int, int] | None, where: str
) -> tuple[list[_Look], NDArray[np.uint8] | None]:
    """What the heads say, and the images, if all are small and plain and alike: so no file is opened twice."""
    looks: list[_Look] = []
    x_R = None
    for i, item in enumerate(images):
        with _open(item) as image:
            look = _look(image, item.name)
            looks.append(look)
            first = looks[0]
            if i == 0 and math.prod(first.size) <= _SMALL:
                x_R = _room(len(images), first.colour, resize or first.size, where)
            if look != first or look.frames > 1 or image.mode not in ("L", "RGB"):
                x_R = None
            if x_R is not None:
                x_R[i] = _decode(image, first.colour, resize or first.size, 255)
    return looks, x_R


def _room(count: int, colour: bool, size: tuple[int, int], where: str) -> NDArray[np.uint8]:
    shape = (count, 3 if colour else 1, size[1], size[0])
    shared_memory.check(math.prod(shape), f"{where}: {count} images of {size[0]}x{size[1]}", "give a smaller resize")
    return np.empty(shape, np.uint8)


def _one_size(
    looks: list[_Look], images: Sequence[EncodedImage], where: str, fix: Callable[[str], str]
) -> tuple[int, int]:
    of_size: dict[tuple[int, int], list[int]] = {}
    for i, look in enumerate(looks):
        of_size.setdefault(look.size, []).append(i)
    common = sorted(of_size, key=lambda size: -len(of_size[size]))
    width, height = common[0]
    offer = f"{width}x{height}" if max(common[0]) <= LARGEST else "224x224"
    if len(common) > 1:
        kinds = [f"{w}x{h} ({len(of_size[w, h])}, for example {images[of_size[w, h][0]].name})" for w, h in common[:3]]
        more = f" and {len(common) - 3} more" if len(common) > 3 else ""
        raise InputError(f"{where} has images of mixed sizes: {' and '.join(kinds)}{more}: give {fix(offer)}")
    if max(common[0]) > LARGEST:
        raise InputError(f"{where} has images of {width}x{height} pixels, more than {LARGEST}: give {fix(offer)}")
    return common[0]


@contextmanager
def _open(item: EncodedImage) -> Iterator[Image.Image]:
    try:
        with Image.open(_content(item)) as image:
            yield image
    except InputError:
        raise
    except Image.DecompressionBombError as error:  # of more than twice Image.MAX_IMAGE_PIXELS
        raise _too_large(item.name, str(error).partition("(")[2].partition(" ")[0]) from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        reason = getattr(error, "strerror", None) or "broken"
        if isinstance(item.data, bytes):
            reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{item.name} cannot be read as an image ({reason}): fix it, save it as PNG, or remove it"
        ) from error


def _content(item: EncodedImage) -> Path | io.BytesIO:
    if item.data is None:
        raise InputError(f"{item.name} has no image: fill it in or remove it")
    if isinstance(item.data, bytes):
        return io.BytesIO(item.data)
    file = os.open(item.data, _READ)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{item.name} is a folder, a pipe or a device, not a file: remove it")
        return item.data if about.st_size > _IN_MEMORY else io.BytesIO(os.read(file, about.st_size))
    finally:
        os.close(file)


def _look(image: Image.Image, name: str) -> _Look:
    """What the head of the file says; pixels are read only if it does not say enough."""
    if math.prod(image.size) > MOST_PIXELS:
        raise _too_large(name, f"{image.size[0]}x{image.size[1]}")
    if image.format == "TIFF" and image.getexif().get(_ORIENTATION, 1) != 1:
        image.load()  # turns it
    width, height = image.size
    is_turned = _orientation(image) in (5, 6, 7, 8)
    if image.mode in ("P", "PA"):
        x_HWC = np.asarray(image.convert("RGB"))
        colour = bool((x_HWC != x_HWC[..., :1]).any())
    else:
        colour = image.mode not in ("1", "L", "LA", "La") and not _is_deep(image)
    top = _top(image, name) if _is_deep(image) else 0
    return _Look((height, width) if is_turned else (width, height), colour, top, getattr(image, "n_frames", 1))


def _too_large(name: str, pixels: str) -> InputError:
    return InputError(
        f"{name} has {pixels} pixels, and an image may have {MOST_PIXELS:,}: make it smaller with another program, or "
        "remove it"
    )


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _top(image: Image.Image, name: str) -> int:
    """The brightest pixel of an image of more than 8 bits."""
    x_HW = np.asarray(image)
    if image.mode == "F" or x_HW.min() < 0 or x_HW.max() > 65535:
        raise InputError(f"{name} has pixels of 32 bits or below zero: save the images with 8 or 16 bits a pixel")
    return int(x_HW.max())


def _orientation(image: Image.Image) -> int:
    # Asking a PNG without the entry decodes its pixels; Pillow turns a TIFF by itself.
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))


def _decode(image: Image.Image, colour: bool, size: tuple[int, int], top: int) -> NDArray[np.uint8]:
    upright = ImageOps.exif_transpose(image) if _orientation(image) != 1 else image
    if _is_deep(upright):
        upright = Image.fromarray(np.rint(np.minimum(np.asarray(upright) * (255 / top), 255)).astype(np.uint8))
    elif "transparency" in upright.info or (upright.mode not in ("L", "RGB") and {"A", "a"} & set(upright.getbands())):
        over = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    mode = "RGB" if colour else "L"
    if upright.mode != mode:
        upright = upright.convert(mode)
    if upright.size != size:
        upright = upright.resize(size, Image.Resampling.BILINEAR)
    x_HWC = np.frombuffer(upright.tobytes(), np.uint8).reshape(size[1], size[0], -1)
    return x_HWC.transpose(2, 0, 1)
