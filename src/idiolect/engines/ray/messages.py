"""Messages between the program and the nodes."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.core import tree
from idiolect.core.tree import Tree
from idiolect.engines import serialization


def pack(message: Any) -> NDArray[np.uint8]:
    """Anything that can be pickled, in a form that Ray stores without another copy."""
    return np.frombuffer(serialization.pack(message), np.uint8)


def unpack(array: NDArray[np.uint8]) -> Any:
    """The object that ``pack`` got."""
    return pickle.loads(array.data)


def version_of(state: Tree) -> int:
    """A number for a state: a digest of its bytes, so that a node never uses a wrong state."""
    digest = hashlib.sha256()
    for leaf in tree.leaves(state):
        digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
        digest.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:8], "little") >> 1 | 1


def one_line(error: BaseException) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split())[:300]
