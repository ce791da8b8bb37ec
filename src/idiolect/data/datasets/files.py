"""Where the files of a data set are: in a folder, or on the Hugging Face hub."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from idiolect.core.errors import InputError
from idiolect.data.datasets.catalogue import Card, Origin

log = logging.getLogger(__name__)


class PartFiles(NamedTuple):
    """Files that are not read yet: a parquet or MATLAB file, or the two IDX files of images and labels."""

    files: tuple[Path, ...]
    domain: str | None


def locate(name: str, card: Card, folder: Path | None) -> tuple[list[PartFiles], list[PartFiles]]:
    """The parts of the training and of the test split; those that are not in the folder are downloaded.

    Raises:
        InputError: a file is missing, and it is not on the hub or the hub cannot be reached.
    """
    if card.origin:
        return _parts_of(name, card, card.origin, folder, None)
    if folder and (train := _in_folder(folder, "train")):
        if test := _in_folder(folder, "test"):
            return [PartFiles(files, None) for files in train], [PartFiles(files, None) for files in test]
        raise InputError(
            f"data set {name}: {folder} has no test.parquet; put one there {_columns(card, *card.columns.values())}"
        )
    places = {domain: folder / domain if folder and (folder / domain).is_dir() else None for domain in card.domains}
    for domain, origin in card.domains.items():  # first, so that no download is wasted
        if not origin.hub and not places[domain]:
            place = f"{folder or f'<data_dir>/{name}'}/{domain}"
            raise InputError(
                f"data set {name}: its domain {domain} cannot be downloaded by name; {_by_hand(card, origin, place)}"
                + ("" if folder else ", and give that data_dir or set IDIOLECT_DATA to it")
            )
    each = [_parts_of(f"{name}/{d}", card, origin, places[d], d) for d, origin in card.domains.items()]
    return [part for train, _ in each for part in train], [part for _, test in each for part in test]


def _parts_of(
    name: str, card: Card, origin: Origin, folder: Path | None, domain: str | None
) -> tuple[list[PartFiles], list[PartFiles]]:
    """The parts of both splits, in the folder if one is given, else on the hub."""

    def parts(split: str, files: tuple[str, ...]) -> list[PartFiles]:
        if not files:
            return []
        if folder:
            paths_of = _in_folder(folder, split, files)
            if not paths_of:
                lacks = f"{folder} has no {split}.parquet" if folder.is_dir() else f"there is no folder {folder}"
                fetch = ", or leave out data_dir and IDIOLECT_DATA to download it by name" if origin.hub else ""
                raise InputError(f"data set {name}: {lacks}; {_by_hand(card, origin, str(folder))}{fetch}")
        else:
            paths_of = _group([_fetch(name, card, origin, file) for file in files])
        return [PartFiles(paths, domain) for paths in paths_of]

    return parts("train", origin.train), parts("test", origin.test)


def _in_folder(folder: Path, split: str, originals: tuple[str, ...] = ()) -> list[tuple[Path, ...]]:
    """The files of a split: one parquet file, its shards, or the published files; [] if there are none."""
    own_names = [PurePosixPath(file).name for file in originals]
    aliases = [n.split("-")[0] for n in own_names if n.endswith(".parquet")]
    for alias in dict.fromkeys([split, *aliases]):
        whole = folder / f"{alias}.parquet"
        if whole.is_file():
            return [(whole,)]
        if shards := sorted(f for f in folder.glob(f"{alias}-*.parquet") if f.is_file()):
            return [(shard,) for shard in shards]
    files = [folder / n for n in own_names]
    return _group(files) if files and all(f.is_file() for f in files) else []


def _group(files: list[Path]) -> list[tuple[Path, ...]]:
    return [tuple(files)] if files[0].suffix == ".gz" else [(file,) for file in files]


def _fetch(name: str, card: Card, origin: Origin, file: str) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    path = try_to_load_from_cache(origin.hub, file, repo_type="dataset")
    if isinstance(path, str):
        return Path(path)
    log.warning("data set %s: downloading %s of %s from the Hugging Face hub", name, file, origin.hub)
    chatter = logging.getLogger("huggingface_hub")
    level = chatter.level
    chatter.setLevel(logging.ERROR)  # the one sentence at the end is enough
    try:
        return Path(hf_hub_download(origin.hub, file, repo_type="dataset"))
    except OSError as error:
        raise InputError(
            f"data set {name} cannot be downloaded from the Hugging Face hub ({first_line(error)}); "
            f"elsewhere, {_by_hand(card, origin, f'<data_dir>/{name}')}, and give that data_dir or set "
            "IDIOLECT_DATA to it"
        ) from error
    finally:
        chatter.setLevel(level)


def _by_hand(card: Card, origin: Origin, place: str) -> str:
    """What to download and where to put it."""
    files = " and ".join([*origin.train, *origin.test])
    columns = _columns(card, *(card.columns.values() if card.origin else ()))
    places = f"{place}/train.parquet" + (f" and {place}/test.parquet" if origin.test else "")
    if origin.train[0].endswith(".parquet"):
        return f"download {files} from {origin.page} and put them at {places}, {columns}"
    return f"download {files} from {origin.page} and put them into {place}, or write {places} {columns}"


def _columns(card: Card, *more: str) -> str:
    two = f"with the columns {card.image[0]} (a struct with the encoded bytes) and {card.label[0]} (integers)"
    return two + "".join(f" and {column} (text)" for column in more)


def first_line(error: Exception) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
