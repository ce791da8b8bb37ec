"""Reads ``bundle.json``, which may come from anywhere, changes what it says, and names the files of a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pydantic

from idiolect.core import files, tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree
from idiolect.deploy.schema import VERSION, About, Inputs
from idiolect.runs.folder import BUNDLE_FILE, STUDY_FILE

ABOUT, NUMBERS, CARD = BUNDLE_FILE, "model.safetensors", "README.md"
FIX = "get the bundle again from where it was made"
_MOST = 2**27  # bytes of bundle.json


def read_about(folder: Path) -> tuple[About, str]:
    """What a bundle says about itself, and its digest; its other files are not looked at.

    Raises:
        InputError: there is no bundle, or its ``bundle.json`` is broken or of a newer version.
    """
    path = folder / ABOUT
    if not folder.is_dir():
        raise InputError(f"there is no bundle {folder}: give the folder that idiolect bundle or idiolect join wrote")
    if next(folder.glob("*/*/agreement.json"), None) is not None and not path.exists():
        raise InputError(f"{folder} is a site's state folder: write its model with idiolect bundle first")
    if (folder / STUDY_FILE).exists() and not path.exists():
        raise InputError(f"{folder} is the folder of a run: make a bundle of it with idiolect bundle, and give that")
    try:
        raw = json.loads(files.read(path, _MOST).decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise InputError(f"{path} cannot be read ({reason}): {FIX}") from None
    if not isinstance(raw, dict) or raw.get("format") != About.model_fields["format"].default:
        raise InputError(f"{path} is not that of a bundle: give the folder that idiolect bundle or idiolect join wrote")
    version = raw.get("version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(f"{folder} has format {version}, and this idiolect reads up to {VERSION}: update idiolect")
    digest = str(raw.pop("seal", "")).rpartition(":")[2]
    if len(digest) != 64:
        raise InputError(f"{path} has no seal: {FIX}")
    try:
        about = About.model_validate(raw)
        if not {NUMBERS, CARD} <= set(about.files) or any("/" in name or "\\" in name for name in about.files):
            raise ValueError("files: it does not list the files of a bundle")
    except (pydantic.ValidationError, ValueError) as error:
        reason = str(error)
        if isinstance(error, pydantic.ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg'].lower()}"
        raise InputError(f"{path} cannot be used ({reason}): {FIX}") from None
    return about, digest


def about_features(about: About) -> About:
    """What a bundle would say whose samples are the features of its frozen backbone."""
    features = about.network.features
    assert features is not None
    inputs = Inputs(kind="numbers", shape=(len(features.mean),), mean=features.mean, std=features.std)
    network = about.network.model_copy(update={"frozen": None, "features": None})
    return about.model_copy(update={"inputs": inputs, "network": network})


def with_memory(about: About, client: Tree, samples: int) -> About:
    """The same, and that a client's state holds numbers for each of its training samples, if it does."""
    per_sample = any(leaf.ndim > 1 and len(leaf) == samples for leaf in tree.leaves(client))
    if about.revealed is None or not per_sample:
        return about
    return about.model_copy(update={"revealed": about.revealed.model_copy(update={"per_sample": True})})
