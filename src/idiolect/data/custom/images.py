"""Encoded images of any kind, read into one 8-bit array."""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.data import shared_memory
from idiolect.data.datasets import cache

# R images, C channels, H height, W width

log = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm")
LARGEST = 512  # pixels a side, without resize
MOST_PIXELS = 2**26  # of one image: 8192 x 8192, or a camera's 67 megapixels
_LARGEST_RESIZED = 4096  # pixels a side
_KEPT = 4e9  # bytes of decoded images
_MANY = 2000  # images that are worth a cache
_SMALL = 64 * 64  # pixels of an image whose decoding is too short for threads
_STRETCH = 256  # images per task of a thread
_ORIENTATION = 0x0112


class Encoded(NamedTuple):
    """An image that is not decoded yet: a file, or its bytes, and what to call it in a message."""

    name: str
    data: Path | bytes | None


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
    if min(size) < 1 or max(size) > _LARGEST_RESIZED:
        raise InputError(
            f"resize={resize} is not a size in pixels: write 32, or 32x24 for width x height, at most "
            f"{_LARGEST_RESIZED} a side"
        )
    return size


def read(images: Sequence[Encoded], resize: tuple[int, int] | None, where: str, *, keep: bool = True) -> Tensor:
    """Decode all images: (R, C, H, W), uint8, grey if all are grey, else RGB.

    A camera's orientation is applied, transparent pixels become white, and only the first of several frames is used.
    Grey values of more than 8 bits are scaled by one factor for all images. The factor follows from the number of bits
    of the brightest pixel, so that images with 12 bits in 16 keep their contrast. ``resize`` stretches to (W, H),
    bilinear with antialiasing. If there are many images, the decoded ones are kept in the cache (if ``keep``), by their
    bytes or by their files' marks (see ``cache.mark``). Nothing is decoded before all sizes are known.

    Raises:
        InputError: an image cannot be read, one image or all together are too large, or, without ``resize``, images
            have mixed sizes or colours or are large.
    """
    place = cache.place(f"own-{_digest(images, resize)}") if keep and len(images) > _MANY else None
    if place and (kept := cache.load(place)):
        with suppress(OSError):
            place.touch()  # used now
        return kept.tensors["x"]
    x_R = _read(images, resize, where)
    if place and cache.save(place, {"x": x_R}, {}) and (kept := cache.load(place)):
        cache.trim(place, "own-", _KEPT)
        return kept.tensors["x"]  # mapped, to save memory
    return x_R


def _digest(images: Sequence[Encoded], resize: tuple[int, int] | None) -> str:
    """What the decoded images depend on."""
    digest = hashlib.blake2b(f"2 {resize}".encode(), digest_size=16)
    for name, data in images:
        if isinstance(data, Path):
            try:
                data = " ".join(map(str, cache.mark(data))).encode()
            except OSError:
                raise InputError(f"{name} cannot be read: fix it, or remove it") from None
        content = data or b""
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _read(images: Sequence[Encoded], resize: tuple[int, int] | None, where: str) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower
        looks = [_look(item) for item in images]
    size = resize or _one_size(looks, images, where)
    colour = any(look.colour for look in looks)
    if not resize and not all(look.colour == colour for look in looks):
        kinds = [next(i.name for i, look in zip(images, looks, strict=True) if look.colour == c) for c in (True, False)]
        count = sum(look.colour for look in looks)
        raise InputError(
            f"{where} mixes {count} colour images (for example {kinds[0]}) and {len(looks) - count} grey ones (for "
            f"example {kinds[1]}): give resize={size[0]}x{size[1]} to make all of them colour images, or convert them"
        )
    several = sum(look.frames > 1 for look in looks)
    if several:
        log.warning("%s: %d images have several frames, and only the first is used", where, several)
    bits = max(8, max(look.top for look in looks).bit_length())
    if bits > 8:
        log.info("%s: grey values of %d bits are scaled to 8 bits", where, bits)
    shape = (len(images), 3 if colour else 1, size[1], size[0])
    shared_memory.check(
        math.prod(shape), f"{where}: {len(images)} images of {size[0]}x{size[1]}", "give a smaller resize"
    )
    x_R = np.empty(shape, np.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + _STRETCH, len(images))):
            x_R[i] = _decode(images[i], colour, size, 2**bits - 1)

    area = sum(math.prod(look.size) for look in looks) / len(looks)
    with ThreadPoolExecutor(os.cpu_count() if area > _SMALL else 1) as pool:
        for _ in pool.map(fill, range(0, len(images), _STRETCH)):
            pass
    return torch.from_numpy(x_R)


def _one_size(looks: list[_Look], images: Sequence[Encoded], where: str) -> tuple[int, int]:
    found: dict[tuple[int, int], list[int]] = {}
    for i, look in enumerate(looks):
        found.setdefault(look.size, []).append(i)
    common = sorted(found, key=lambda size: -len(found[size]))
    width, height = common[0]
    offer = f"{width}x{height}" if max(common[0]) <= LARGEST else "224x224"
    if len(common) > 1:
        kinds = [f"{w}x{h} ({len(found[w, h])}, for example {images[found[w, h][0]].name})" for w, h in common[:3]]
        more = f" and {len(common) - 3} more" if len(common) > 3 else ""
        raise InputError(f"{where} has images of mixed sizes: {' and '.join(kinds)}{more}: give resize={offer}")
    if max(common[0]) > LARGEST:
        raise InputError(f"{where} has images of {width}x{height} pixels, more than {LARGEST}: give resize={offer}")
    return common[0]


@contextmanager
def _opened(item: Encoded) -> Iterator[Image.Image]:
    if item.data is None:
        raise InputError(f"{item.name} has no image: fill it in or remove it")
    if isinstance(item.data, Path) and not item.data.is_file() and item.data.exists():
        raise InputError(f"{item.name} is a folder, a pipe or a device, not a file: remove it")
    try:
        with Image.open(item.data if isinstance(item.data, Path) else io.BytesIO(item.data)) as image:
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


def _look(item: Encoded) -> _Look:
    """What the head of the file says; pixels are read only if it does not say enough."""
    with _opened(item) as image:
        if math.prod(image.size) > MOST_PIXELS:
            raise _too_large(item.name, f"{image.size[0]}x{image.size[1]}")
        if image.format == "TIFF" and image.getexif().get(_ORIENTATION, 1) != 1:
            image.load()  # turns it
        width, height = image.size
        turned = _orientation(image) in (5, 6, 7, 8)
        if image.mode in ("P", "PA"):
            x_HWC = np.asarray(image.convert("RGB"))
            colour = bool((x_HWC != x_HWC[..., :1]).any())
        else:
            colour = image.mode not in ("1", "L", "LA", "La") and not _is_deep(image)
        top = _top(image, item.name) if _is_deep(image) else 0
        return _Look((height, width) if turned else (width, height), colour, top, getattr(image, "n_frames", 1))


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


def _decode(item: Encoded, colour: bool, size: tuple[int, int], top: int) -> NDArray[np.uint8]:
    with _opened(item) as image:
        upright = ImageOps.exif_transpose(image) if _orientation(image) != 1 else image
        if _is_deep(upright):
            upright = Image.fromarray(np.rint(np.asarray(upright) * (255 / top)).astype(np.uint8))
        elif {"A", "a"} & set(upright.getbands()) or "transparency" in upright.info:
            over = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
        upright = upright.convert("RGB" if colour else "L")
        if upright.size != size:
            upright = upright.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(upright).reshape(size[1], size[0], -1).transpose(2, 0, 1)
