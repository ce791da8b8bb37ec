"""A run's state on disk: safetensors, named by path, never pickle."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError

from idiolect.core import files, tree
from idiolect.core.errors import InputError
from idiolect.simulation.interfaces import State

_FIX = "delete it to start this part of the run again"


def save(state: State, path: Path) -> None:
    """Write a state, atomically and with a checksum.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    tensors = tree.named({"server": state.server, "clients": state.clients.snapshot()})
    about = {"round": str(state.round), "seal": files.UNSEALED}
    content = safetensors.torch.save(tensors, metadata=about)
    one, other = (f'"{name}":"{value}"'.encode() for name, value in about.items())
    content = content.replace(other + b"," + one, one + b"," + other, 1)  # their order is random
    files.write(path, files.sealed(content))


def rounds(path: Path) -> int:
    """How many rounds a checkpoint has; 0 if there is no readable one."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return int(file.metadata()["round"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return 0


def load(path: Path, start: State) -> State:
    """Read a state of the method whose first state is ``start``; the clients of ``start`` are reused.

    Raises:
        InputError: the file is broken or has changed, or was written by another method or model.
    """
    try:
        files.read(path)
        with safetensors.safe_open(path, framework="pt") as file:
            number = int(file.metadata()["round"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a readable checkpoint ({error}): {_FIX}") from error
    first = tree.named({"server": start.server})
    server = {name: a for name, a in arrays.items() if name.partition("/")[0] == "server"}
    here, there = ({k: (v.shape, v.dtype) for k, v in arrays.items()} for arrays in (first, server))
    kinds = {(here[k][1], there[k][1]) for k in here.keys() & there.keys() if here[k] != there[k]}
    usual = torch.get_default_dtype()
    if len(kinds) == 1 and (kind := kinds.pop())[0] == usual != kind[1] and kind[1].is_floating_point:
        raise InputError(
            f"{path} has numbers of {kind[1]}, and torch makes {usual} now: call torch.set_default_dtype({kind[1]}) "
            "before, to continue in it"
        )
    try:
        if here != there:
            raise ValueError("another server")
        start.clients.restore({name.removeprefix("clients/"): a for name, a in arrays.items() if name not in server})
    except (KeyError, ValueError):
        raise InputError(f"{path} was written by another method, model or version: {_FIX}") from None
    _, rebuild = tree.flatten(start.server)
    return State(tree.copy(rebuild([server[name] for name in first])), start.clients, number)
