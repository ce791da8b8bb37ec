"""A run's state on disk: safetensors, named by path, never pickle."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
from safetensors import SafetensorError

from idiolect import files, tree
from idiolect.engines.loop import State
from idiolect.errors import InputError

_MEND = "delete it to start this part of the run again"


def save(state: State, path: Path) -> None:
    """Write a state, atomically.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    tensors = tree.named({"server": state.server, "clients": state.clients})
    files.write(path, safetensors.torch.save(tensors, metadata={"round": str(state.round)}))


def load(path: Path, like: State) -> State:
    """Read a state whose trees have the shape of ``like``'s.

    Raises:
        InputError: the file is broken, or was written by another method or model.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            number = int(file.metadata()["round"])
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a readable checkpoint ({error}): {_MEND}") from error
    trees = {"server": like.server, "clients": like.clients}
    wanted = tree.named(trees)
    if {k: (v.shape, v.dtype) for k, v in wanted.items()} != {k: (v.shape, v.dtype) for k, v in found.items()}:
        raise InputError(f"{path} was written by another method, model or version: {_MEND}")
    _, rebuild = tree.flatten(trees)
    new = tree.copy(rebuild([found[name] for name in wanted]))
    return State(new["server"], new["clients"], number)
