"""Data sets of Hugging Face: on the hub, or saved on disk."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from idiolect.core.errors import InputError
from idiolect.core.import_path import optional

ON_HUB = "hf:"
"""Starts a name on the hub, so that a mistyped path is never looked for there."""
HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)


def from_disk(path: Path) -> Any:
    """A data set that ``datasets`` saved.

    Raises:
        InputError: the package is not installed, or the folder is broken.
    """
    datasets = optional("datasets", "datasets", f"the saved data set {path}")
    try:
        return datasets.load_from_disk(str(path))
    except PermissionError:
        raise
    except (OSError, *_ODD) as error:
        raise InputError(f"{path} cannot be read as a saved data set ({reason(error)}): save it again") from error


def from_hub(where: str) -> Any:
    """A data set on the hub, by ``owner/name`` or ``owner/name:config``.

    Raises:
        InputError: this is not such a name, the package is not installed, or the download fails.
    """
    match = HUB_NAME.fullmatch(where)
    if not match:
        raise InputError(
            f"{ON_HUB}{where} is not a name on the Hugging Face hub: write {ON_HUB}owner/name, or "
            f"{ON_HUB}owner/name:config"
        )

    datasets = optional("datasets", "datasets", f"downloading {where} from the Hugging Face hub")
    try:
        return datasets.load_dataset(match[1], match[2])
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            f"{where} cannot be downloaded from the Hugging Face hub ({reason(error)}): check the name (hf:owner/name "
            "or hf:owner/name:config), or download it elsewhere, save it with save_to_disk, and give that folder"
        ) from error


def reason(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def class_names(schema: pa.Schema, path: Path) -> dict[str, list[str]]:
    """The names of classes that ``datasets`` wrote into a parquet file, by column.

    Raises:
        InputError: what it wrote cannot be read.
    """
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return {}
    try:
        kinds = (json.loads(metadata).get("info") or {}).get("features") or {}
        return {
            column: [str(name) for name in kind["names"]]
            for column, kind in kinds.items()
            if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and kind.get("names")
            if column in schema.names and pa.types.is_integer(schema.field(column).type)
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: its metadata 'huggingface' cannot be read ({reason(error)}): write the file again without it"
        ) from error
