"""Plays: which character comes next, with each role as a client."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.core.errors import InputError
from idiolect.data.custom.form import Form
from idiolect.data.custom.text_files import decode
from idiolect.data.custom.texts import Reading
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.text.tokens import tokens_of

# R windows, L characters

log = logging.getLogger(__name__)

LENGTH = 80
"""Characters from which the next one is predicted, as in McMahan et al. (2017) and LEAF (Caldas et al., 2018)."""
STRIDE = 10
"""Characters between the beginnings of two windows, as a rule: LEAF takes 1, and has ten times the windows."""
_TRAIN = 0.8  # of a role's windows, the first ones
_ROLE = re.compile(r"([^:\n]{1,60}):[ \t]*(?:\n|(?=\S))")


def from_play(text: str, *, length: int = LENGTH, stride: int = STRIDE, name: str = "play") -> Source:
    """A data set from a play: windows of characters, the character after each, and the role that says them.

    A speech begins a paragraph with its role and a colon; paragraphs without one continue it. What a role says is one
    text, with a line end between speeches. The first four fifths of its windows are training samples. Test samples are
    the windows after these, from the first one that shares no character with them.

    Args:
        text: of the play.
        length: characters of a window.
        stride: characters between the beginnings of two windows of a role.
        name: what to call the data set.

    Raises:
        InputError: there are no speeches, or no role says enough for a training and a test sample.

    Source: LEAF (Caldas et al., LEAF: a benchmark for federated settings, 2018), Shakespeare, divided by time.
    """
    if length < 1 or stride < 1:
        raise InputError(f"length={length} and stride={stride} are not possible: give numbers of characters above 0")
    speeches = _speeches(text)
    if not speeches:
        raise InputError(f"{name} has no speeches: begin each, after an empty line, with its role and a colon")
    tokens = tokens_of("characters", length)
    parts: dict[str, tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]] = {}
    for role, (id_N, point_N) in zip(speeches, _encoded(list(speeches.values())), strict=True):
        start_R = np.arange(0, len(id_N) - length, stride)
        cut = int(_TRAIN * len(start_R))
        apart = start_R[start_R > start_R[cut - 1] + length] if cut else start_R[:0]
        if len(apart):
            both_R = np.concatenate([start_R[:cut], apart])
            window_RL = id_N[both_R[:, None] + np.arange(length)]
            parts[role] = window_RL, point_N[both_R + length], np.arange(len(both_R)) < cut
    if not parts:
        raise InputError(f"{name} has no role that says enough for windows of {length} characters: give a longer text")
    if few := len(speeches) - len(parts):
        log.warning("%s: %d of %d roles say too little and are left out", name, few, len(speeches))
    roles = tuple(sorted(parts))
    x_RL, point_R, is_train_R = (np.concatenate([parts[role][k] for role in roles]) for k in range(3))
    owner_R = np.repeat(np.arange(len(roles)), [len(parts[role][1]) for role in roles])
    order_R = np.argsort(~is_train_R, kind="stable")
    points, y_R = np.unique(point_R[order_R], return_inverse=True)
    return Source(
        name=name,
        x_R=torch.from_numpy(x_RL[order_R].astype(np.int16)),
        y_R=torch.from_numpy(y_R.astype(np.int64)),
        classes=len(points),
        class_names=tuple(map(_name, points.tolist())),
        mean=None,
        std=None,
        train_rows=int(is_train_R.sum()),
        columns={"role": Column(owner_R[order_R], roles)},
        client_column="role",
        sizes=tokens.size,
        tokens=tokens,
    )


def read_play(path: Path, options: Mapping[str, Any]) -> Source:
    """As ``from_play``, of a file.

    Args:
        path: of the file.
        options: those of ``open_data``, of which only ``max_tokens`` is for a play: the length of the windows.

    Raises:
        InputError: it is no text, or has too few speeches; or another option is given.
    """
    reading: Reading = options["reading"]
    others = {**options, "text": reading.columns, "tokens": reading.tokens, "reading": None}
    form: Form = others.pop("form")
    others |= {"columns": form.names, "header": form.nameless, "missing": form.missing}
    others |= {"unlabelled": form.unlabelled, "categorical": form.categorical}
    if given := [name for name, value in others.items() if value]:
        raise InputError(f"{given[0]} is for tables and images, and {path} is a play: leave it out")
    text = decode(path).replace("\r\n", "\n")
    return from_play(text, length=LENGTH if reading.most is None else reading.most, name=path.stem)


def _speeches(text: str) -> dict[str, str]:
    """What each role says."""
    said: dict[str, list[str]] = {}
    role = None
    for paragraph in re.split(r"\n[ \t]*\n", text):
        paragraph = paragraph.strip("\n")
        if match := _ROLE.match(paragraph):
            role, paragraph = match[1].strip(), paragraph[match.end() :]
        if role is not None and paragraph.strip():
            said.setdefault(role, []).append(paragraph)
    return {role: "\n".join(lines) + "\n" for role, lines in said.items()}


def _encoded(texts: list[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """For each text the ids and the code points of its characters."""
    plain = [unicodedata.normalize("NFC", text) for text in texts]
    ids = tokens_of("characters", None).encoder.encode(plain)
    return [(id_N, np.array([ord(c) for c in text])) for id_N, text in zip(ids, plain, strict=True)]


def _name(point: int) -> str:
    """A character as the name of a class."""
    character = chr(point)
    if character == "\n":
        return "line end"
    if character == " ":
        return "space"
    return character if character.isprintable() else unicodedata.name(character, f"U+{point:04X}").lower()
