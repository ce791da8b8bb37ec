"""Several tables with one client in each: a pattern such as ``sites/*.csv``, or a folder of them."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from idiolect.core.errors import InputError
from idiolect.data.custom.archives import GZIP
from idiolect.data.custom.columns import listed
from idiolect.data.custom.image_folders import TABLES

log = logging.getLogger(__name__)

_SHARD = re.compile(r"-\d+-of-\d+$")


def is_pattern(path: Path) -> bool:
    """Whether this is a pattern of paths, and not the path of a file."""
    return glob.has_magic(str(path)) and not os.path.exists(path)


def matches(pattern: Path) -> list[Path]:
    """The tables that a pattern means, in order of name.

    Raises:
        InputError: there is none, or another kind of file is among them.
    """
    paths = sorted(Path(name) for name in glob.glob(str(pattern), recursive=True))
    if not paths:
        raise InputError(f"there is no file {pattern}: check the folder, and the pattern of the names")
    if other := next((path for path in paths if not is_table(path)), None):
        raise InputError(f"{pattern} means {other} too, which is no table: give a pattern for tables alone, as *.csv")
    return paths


def folder_of(pattern: Path) -> Path:
    """The folder above the first part of a pattern that is not plain."""
    plain = [part for part in pattern.parts if not glob.has_magic(part)]
    count = next(k for k, part in enumerate(pattern.parts) if glob.has_magic(part))
    return Path(*plain[:count])


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder that has several of one kind, and no folders; else none."""
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    files = [path for path in entries if is_table(path)]
    alike = len(files) > 1 and len({path.suffix for path in files}) == 1
    shards = {_SHARD.sub("", path.stem) for path in files}
    return files if alike and len(shards) == len(files) and not any(path.is_dir() for path in entries) else []


def is_table(path: Path) -> bool:
    """Whether a path is that of a table, compressed or not."""
    plain = path.with_suffix("") if path.suffix.lower() == GZIP else path
    return plain.suffix.lower() in TABLES and path.is_file()


def names_of(paths: Sequence[Path]) -> list[str]:
    """A name for each of some tables: the file's, or the part of the path by which they differ.

    >>> names_of([Path("sites/oslo.csv"), Path("sites/porto.csv.gz")])
    ['oslo', 'porto']
    >>> names_of([Path("sites/oslo/data.csv"), Path("sites/porto/data.csv")])
    ['oslo', 'porto']
    >>> names_of([Path("a/x.csv"), Path("a/y.csv"), Path("b/x.csv")])
    ['a/x', 'a/y', 'b/x']
    """
    plain = [path.with_suffix("") if path.suffix.lower() == GZIP else path for path in paths]
    parts = [path.with_suffix("").parts for path in plain]
    if len({of_one[-1] for of_one in parts}) == len(parts):
        return [of_one[-1] for of_one in parts]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({of_one[0] for of_one in parts}) == 1:
        parts = [of_one[1:] for of_one in parts]
    while min(map(len, parts)) > 1 and len({of_one[-1] for of_one in parts}) == 1:
        parts = [of_one[:-1] for of_one in parts]
    return ["/".join(of_one) for of_one in parts]


def say(where: Path, names: Sequence[str]) -> None:
    """Say which clients there are."""
    log.warning("%s: each of its %d tables is a client: %s", where, len(names), listed(names, 10))
