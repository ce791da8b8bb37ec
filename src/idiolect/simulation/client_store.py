"""The clients' states in a simulation: in memory, or on disk if they are large."""

from __future__ import annotations

import errno
import io
import os
import re
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from idiolect.core import files, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.tree import Tree

_LARGE = 2**28  # bytes of all clients together from which they are kept on disk


class Clients(Protocol):
    """The state of each client, by its number; a state that was never put is the initial one and takes no space."""

    def __len__(self) -> int:
        """The number of clients."""

    def __getitem__(self, client: int) -> Tree:
        """A client's state."""

    def __iter__(self) -> Iterator[Tree]:
        """All states, in order."""

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Store new states."""

    def snapshot(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the clients; ``restore`` takes it."""

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Go back to what ``snapshot`` gave.

        Raises:
            ValueError: these are not the same clients.
        """


Start = Callable[[int], Tree]
"""A client's state before its first round, by its number."""


class LazyStates(Sequence[Tree]):
    """The states of some clients, of which each is read when it is needed."""

    def __init__(self, clients: Clients, ids: Sequence[int]) -> None:
        self._clients, self._ids = clients, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._clients[i] for i in self._ids[place]]
        return self._clients[self._ids[place]]


def store(initial: Tree, count: int, folder: Path | None = None, start: Start | None = None) -> Clients:
    """The states of clients: on disk if there is a folder and they could take more than 256 MB.

    Args:
        initial: a client's state before its first round.
        count: of the clients.
        folder: for states on disk.
        start: the first state of each, if they differ.
    """
    if folder is not None and count * tree.nbytes(initial) > _LARGE:
        return OnDisk(initial, count, folder, start)
    return InMemory(initial, count, start)


class InMemory:
    """States in memory."""

    def __init__(self, initial: Tree, count: int, start: Start | None = None) -> None:
        self._initial, self._count = initial, count
        self._start: Start = start or (lambda client: initial)
        self._states: dict[int, Tree] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: int) -> Tree:
        client = range(self._count)[client]
        return self._states[client] if client in self._states else self._start(client)

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self._count))

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Store new states."""
        self._states.update(zip(clients, states, strict=True))

    def snapshot(self) -> dict[str, Tensor]:
        """The states that differ from the initial one, leaf by leaf, and their clients' numbers."""
        ids = sorted(self._states)
        states = tree.named(tree.stack([self._states[i] for i in ids])) if ids else {}
        return {"of": torch.tensor(ids, dtype=torch.int64)} | states

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Go back to what ``snapshot`` gave."""
        ids = snapshot["of"].tolist()
        leaves = {k: v for k, v in snapshot.items() if k != "of"}
        initial = tree.named(self._initial) if ids else {}
        like = {k: (v.shape, v.dtype) for k, v in initial.items()}
        if like != {k: (v.shape[1:], v.dtype) for k, v in leaves.items()} or not set(ids) <= set(range(self._count)):
            raise ValueError("other clients")
        _, build = tree.flatten(self._initial)
        many = [leaves[name] for name in initial]
        self._states = {i: tree.copy(build([a[row] for a in many])) for row, i in enumerate(ids)}


class OnDisk:
    """States in files, one for each tensor; nothing stays in memory.

    A client has two rows in each file. A new state is written into the row that the last checkpoint does not name. A
    checkpoint says for each client which row is current (0 or 1; 2 for none yet), so it stays exact whatever is written
    later. The files are sparse: a state that was never put takes no space. They are read and written, not mapped: this
    takes a third of the time, keeps no pages in memory, and a full disk is an error. A checkpoint has a checksum of
    each state, which is compared when the state is first read again.

    Raises:
        RunError: the folder cannot be written, or (``put``, ``snapshot``) the disk is full.
        InputError: a state has changed on disk since the checkpoint was written.
    """

    def __init__(self, initial: Tree, count: int, folder: Path, start: Start | None = None) -> None:
        self._initial, self._count, self._folder = initial, count, folder
        self._start: Start = start or (lambda client: initial)
        self._own_K = np.full(count, 2, np.uint8)
        self._checkpoint_K = self._own_K.copy()
        self._sums_K, self._unsure_K = np.zeros(count, np.int64), np.zeros(count, bool)
        self._half_put = False
        with self._disk():
            self._files = [
                _File(folder / f"{n:02d}-{re.sub(r'[^A-Za-z0-9._-]', '.', path)}", leaf, 2 * count)
                for n, (path, leaf) in enumerate(tree.named(initial).items())
            ]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: int) -> Tree:
        client = range(self._count)[client]
        row = 2 * client + int(self._own_K[client])
        if self._own_K[client] == 2:
            return self._start(client)
        with self._disk():
            leaves = [file.read(row) for file in self._files]
        if self._unsure_K[client] and _sum(leaves) != self._sums_K[client]:
            raise InputError(
                f"the state of client {client} in {self._folder} has changed since it was written: delete "
                f"{self._folder.parent} to run this part again"
            )
        self._unsure_K[client] = False
        return tree.flatten(self._initial)[1](leaves)

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self._count))

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Store new states."""
        self._half_put = True
        with self._disk():
            for client, state in zip(clients, states, strict=True):
                row = int(self._checkpoint_K[client] == 0)
                for file, leaf in zip(self._files, tree.leaves(state), strict=True):
                    file.write(2 * client + row, leaf)
                self._own_K[client], self._unsure_K[client] = row, False
                self._sums_K[client] = _sum(tree.leaves(state))
        self._half_put = False

    def snapshot(self) -> dict[str, Tensor]:
        """Which row of each client is current; the files are written to disk.

        Raises:
            RunError: the last ``put`` failed midway, so some states are from the round that failed.
        """
        if self._half_put:
            raise RunError(
                f"the clients' states in {self._folder} are from two rounds: continue from the last checkpoint"
            )
        with self._disk():
            for file in self._files:
                file.flush()
            if any(file.is_new for file in self._files):
                files.sync(self._folder)
        self._checkpoint_K = self._own_K.copy()
        return {"rows": torch.from_numpy(self._own_K.copy()), "sums": torch.from_numpy(self._sums_K.copy())}

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Go back to what ``snapshot`` gave."""
        if not {"rows"} <= set(snapshot) <= {"rows", "sums"} or any(
            a.shape != (self._count,) for a in snapshot.values()
        ):
            raise ValueError("other clients")
        own_K = snapshot["rows"].numpy().copy()
        if (own_K < 2).any() and not all(file.exists for file in self._files):
            raise ValueError("the clients' files are missing or have other sizes")
        self._own_K, self._checkpoint_K, self._half_put = own_K, own_K.copy(), False
        if "sums" in snapshot:  # older versions did not write these
            self._sums_K, self._unsure_K = snapshot["sums"].numpy().copy(), own_K < 2

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"cannot keep the clients' states in {self._folder} ({error.strerror})"
            raise RunError(f"{what}: free some space, or choose another folder") from error


def _sum(leaves: Sequence[Tensor]) -> int:
    checksum = 0
    for leaf in leaves:
        checksum = zlib.crc32(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data, checksum)
    return checksum


class _File:
    """Rows of one tensor, made at the first write. ``stood``: the file existed in this size; ``made``: it is new."""

    def __init__(self, path: Path, like: Tensor, rows: int) -> None:
        self._path, self._like, self._rows = path, like, rows
        self._bytes = like.numel() * like.element_size()
        self.exists = path.exists() and path.stat().st_size == rows * self._bytes
        self.is_new = False
        self._file: io.FileIO | None = None

    def _open(self) -> io.FileIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.is_new = not self.exists
            self._file = io.FileIO(self._path, "w+" if self.is_new else "r+")
            weakref.finalize(self, self._file.close)
            self._file.truncate(self._rows * self._bytes)
        return self._file

    def read(self, row: int) -> Tensor:
        """A row, in its own memory."""
        value = torch.empty(self._like.shape, dtype=self._like.dtype)
        self._whole(row, value, lambda file, part: file.readinto(part))
        return value

    def write(self, row: int, value: Tensor) -> None:
        """Write a row."""
        if (value.shape, value.dtype) != (self._like.shape, self._like.dtype):
            kinds = [f"{tuple(a.shape)} {a.dtype}" for a in (self._like, value)]
            raise ValueError(
                "a client's state changed from {} to {}: init_client must return the same form as local".format(*kinds)
            )
        self._whole(row, value.detach().contiguous(), lambda file, part: file.write(part))

    def _whole(self, row: int, value: Tensor, step: Callable[[io.FileIO, memoryview], int | None]) -> None:
        file, flat = self._open(), value.reshape(-1).view(torch.uint8).numpy().data
        file.seek(row * self._bytes)
        position = 0
        while position < self._bytes:
            if not (count := step(file, flat[position:])):
                raise OSError(errno.EIO, "a file ends too soon")
            position += count

    def flush(self) -> None:
        """Write it to disk."""
        os.fsync(self._open().fileno())
