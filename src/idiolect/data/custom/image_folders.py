"""Images in folders: which there are, and what their folders and names say of them."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core import shared_memory
from idiolect.core.errors import InputError, nearest
from idiolect.data.custom.columns import listed
from idiolect.data.custom.images import SUFFIXES, EncodedImage
from idiolect.data.custom.inside import Within
from idiolect.data.custom.parts import Part

log = logging.getLogger(__name__)

BESIDE = ("metadata.csv", "labels.csv", "metadata.parquet", "metadata.jsonl")
"""The tables in a folder of images that say what they are."""
TEXT_FILES = (".csv", ".tsv", ".data")
TABLES = (*TEXT_FILES, ".parquet", ".jsonl", ".arff")
_DEEPEST = 8
_LAYOUTS = (
    "give images as <folder>/<class>/<image> or <folder>/<client>/<class>/<image>, under train and test if you like, "
    "or beside a metadata.csv with the column file_name"
)


def metadata_of(folder: Path) -> Path | None:
    """The table in a folder of images that says what they are, or None."""
    return next((folder / name for name in BESIDE if (folder / name).is_file()), None)


def by_levels(folder: Path, options: dict[str, Any], within: Within | None) -> Part:
    """Images whose folders say their class, and their client if there are two levels."""
    paths = images_in(folder, within)
    if options.get("layout"):
        return Part(_by_layout(folder, paths, options), _pictures(paths))
    levels = [path.relative_to(folder).parts[:-1] for path in paths]
    depths = Counter(map(len, levels))
    if len(depths) > 1:
        examples = " and ".join(str(paths[[len(level) for level in levels].index(depth)]) for depth in sorted(depths))
        raise InputError(f"{folder} has images at different depths ({examples}): {_LAYOUTS}")
    depth = len(levels[0])
    if depth not in (1, 2):
        raise InputError(f"{folder} has images {depth} folders deep (for example {paths[0]}): {_LAYOUTS}")
    label, client = options["target"], options["client_column"]
    if client is not None and depth == 1:
        raise InputError(
            f"client_column: {folder} has folders for classes but none for clients: give images as "
            "<folder>/<client>/<class>/<image>, or leave client_column out"
        )
    full = {path.parent for path in paths}
    folders = (path for path in sorted(folder.glob("/".join("*" * depth))) if path.is_dir())
    empty = [path for path in folders if path not in full and not path.name.startswith(".")]
    if empty:
        log.warning("%s: %d folders contain no images and are left out (%s)", folder, len(empty), listed(empty, 3))
    columns = {label: [level[-1] for level in levels]}
    if depth == 2:
        columns = {client or "client": [level[0] for level in levels]} | columns
    if len(columns) < depth:
        raise InputError(f"target and client_column are both {label!r}: give the two levels of folders different names")
    return Part(pd.DataFrame(columns), _pictures(paths))


def _pictures(paths: Sequence[Path]) -> list[EncodedImage]:
    return [EncodedImage(str(path), path) for path in paths]


def _by_layout(folder: Path, paths: Sequence[Path], options: dict[str, Any]) -> pd.DataFrame:
    """What the parts of the images' paths say, by the names that a layout gives them."""
    layout = str(options["layout"])
    names, pattern = _pattern(layout)
    roles = (options["target"], options["client_column"], options.get("group_column"))
    wanted = [name for name in roles if name is not None]
    if absent := [name for name in wanted if name not in names]:
        raise InputError(f"layout={layout} has no {{{absent[0]}}}; {nearest(absent[0], names)}")
    matches = [pattern.fullmatch(path.relative_to(folder).with_suffix("").as_posix()) for path in paths]
    if odd := [path for path, match in zip(paths, matches, strict=True) if match is None]:
        raise InputError(
            f"layout={layout} does not fit {len(odd)} of {len(paths)} images of {folder} (for example "
            f"{odd[0].relative_to(folder).as_posix()}): write each folder and the name of the file without its ending, "
            "as {client}/{class}/*"
        )
    places = {name: [k for k, other in enumerate(names, 1) if other == name] for name in dict.fromkeys(names)}
    return pd.DataFrame(
        {name: ["/".join(m[k] for k in at) for m in matches if m is not None] for name, at in places.items()}
    )


def _pattern(layout: str) -> tuple[list[str], re.Pattern[str]]:
    """The names of a layout, in order, and an expression with a group for each."""
    pieces = re.split(r"(\{[^{}/]+\}|\*)", layout)  # what is between is at the even places
    names = [piece[1:-1].strip() for piece in pieces[1::2] if piece != "*"]
    if not names or "" in names or re.search(r"[{}]", "".join(pieces[::2])):
        raise InputError(f"layout={layout} is not understood: write names in braces, as {{client}}/{{class}}/*")
    ways = {"*": "[^/]*"}
    return names, re.compile("".join(
        "([^/]+)" if piece.startswith("{") else ways.get(piece) or re.escape(piece) for piece in pieces
    ))  # fmt: skip


def in_memory(pictures: Sequence[EncodedImage]) -> list[EncodedImage]:
    """The same images with their bytes, which the cache knows wherever the files were unpacked."""
    sizes = [one.data.stat().st_size for one in pictures if isinstance(one.data, Path)]
    shared_memory.check(sum(sizes), "the images", "unpack them into a folder")
    return [
        EncodedImage(one.name, one.data.read_bytes() if isinstance(one.data, Path) else one.data) for one in pictures
    ]


def images_in(folder: Path, within: Within | None) -> list[Path]:
    """Every image in the folder and below, in order of name.

    Raises:
        InputError: there is none.
    """
    images = []
    kinds: Counter[str] = Counter()
    for entry in _files(folder, within):
        path = Path(entry.path)
        kind = path.suffix.lower()
        if not entry.is_file() and path.exists():
            kinds["pipe, socket or device"] += 1
        elif kind in SUFFIXES:
            images.append(path)
        elif path.name not in BESIDE:
            kinds[kind or path.name] += 1
    counts = listed((f"{count} {kind}" for kind, count in kinds.most_common()), 3)
    if not images:
        fix = _LAYOUTS
        if set(TABLES) & set(kinds):
            fix = "give one of its tables, or call them train and test, for example train.csv and test.csv"
        if ".dcm" in kinds:
            fix = "convert DICOM files to PNG or TIFF"
        raise InputError(f"{folder} has no images (files: {counts}): {fix}")
    if kinds:
        log.warning("%s: files that are not images are left out (%s)", folder, counts)
    return images


def _files(folder: str | Path, within: Within | None, depth: int = 0) -> Iterator[os.DirEntry[str]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if within and entry.is_symlink():
            within.check([Path(entry.path)])
        if not entry.is_dir():
            yield entry
        elif depth < _DEEPEST:  # a link to a folder above would never end
            yield from _files(entry.path, within, depth + 1)
