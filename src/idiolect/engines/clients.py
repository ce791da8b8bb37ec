"""What stays at the clients, kept for them in a simulation: in memory, or where that is large, on disk."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from idiolect import tree
from idiolect.errors import RunError
from idiolect.tree import Tree

_LARGE = 2**28  # bytes of all clients together, from which they stand on disk


class Clients(Protocol):
    """The state of each client, by its number; one that was never put is as it was enrolled, and takes no room."""

    def __len__(self) -> int:
        """How many clients there are."""

    def __getitem__(self, client: int) -> Tree:
        """A client's state."""

    def __iter__(self) -> Iterator[Tree]:
        """All states, in order."""

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Take new states."""

    def saved(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the clients; it is theirs again after ``restore``."""

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to what ``saved`` gave.

        Raises:
            ValueError: these are not the same clients.
        """


def store(enrolled: Tree, count: int, folder: Path | None = None) -> Clients:
    """Clients that all start alike: on disk where there is a folder and they could come to more than 256 MB."""
    if folder is not None and count * tree.nbytes(enrolled) > _LARGE:
        return OnDisk(enrolled, count, folder)
    return InMemory(enrolled, count)


class InMemory:
    """States in memory."""

    def __init__(self, enrolled: Tree, count: int) -> None:
        self._enrolled, self._count = enrolled, count
        self._states: dict[int, Tree] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: int) -> Tree:
        return self._states.get(range(self._count)[client], self._enrolled)

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self._count))

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Take new states."""
        self._states.update(zip(clients, states, strict=True))

    def saved(self) -> dict[str, Tensor]:
        """The states that differ from the enrolled one, leaf by leaf, and whose they are."""
        ids = sorted(self._states)
        states = tree.named(tree.stack([self._states[i] for i in ids])) if ids else {}
        return {"of": torch.tensor(ids, dtype=torch.int64)} | states

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to what ``saved`` gave."""
        ids = saved["of"].tolist()
        found = {k: v for k, v in saved.items() if k != "of"}
        wanted = tree.named(self._enrolled) if ids else {}
        like = {k: (v.shape, v.dtype) for k, v in wanted.items()}
        if like != {k: (v.shape[1:], v.dtype) for k, v in found.items()} or not set(ids) <= set(range(self._count)):
            raise ValueError("other clients")
        _, build = tree.flatten(self._enrolled)
        many = [found[name] for name in wanted]
        self._states = {i: tree.copy(build([a[row] for a in many])) for row, i in enumerate(ids)}


class OnDisk:
    """States in memory-mapped files, one per tensor, of which nothing stays resident.

    A client has two rows in each file, and what is put goes into the one that the last checkpoint does not name: a
    checkpoint says for each client which row is its own (0 or 1; 2 for none yet), so that it is exact whatever was put
    after it. The files are sparse: what was never put takes no room.

    Raises:
        RunError: the folder cannot be written, or (``put``, ``saved``) the disk is full.
    """

    def __init__(self, enrolled: Tree, count: int, folder: Path) -> None:
        self._enrolled, self._count = enrolled, count
        leaves = tree.named(enrolled)
        self._own_K = np.full(count, 2, np.uint8)
        self._saved_K = self._own_K.copy()
        with _on_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            names = [f"{n:02d}-{re.sub(r'[^A-Za-z0-9._-]', '.', path)}" for n, path in enumerate(leaves)]
            self._files = [_File(folder / n, a, 2 * count) for n, a in zip(names, leaves.values(), strict=True)]
        self._folder = folder

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: int) -> Tree:
        client = range(self._count)[client]
        row = 2 * client + int(self._own_K[client])
        if self._own_K[client] == 2:
            return self._enrolled
        return tree.flatten(self._enrolled)[1]([file.read(row) for file in self._files])

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self._count))

    def put(self, clients: Sequence[int], states: Sequence[Tree]) -> None:
        """Take new states."""
        with _on_disk(self._folder):
            for client, state in zip(clients, states, strict=True):
                row = int(self._saved_K[client] == 0)
                for file, leaf in zip(self._files, tree.leaves(state), strict=True):
                    file.write(2 * client + row, leaf)
                self._own_K[client] = row

    def saved(self) -> dict[str, Tensor]:
        """Which row is a client's own; the files are brought to disk."""
        with _on_disk(self._folder):
            for file in self._files:
                file.flush()
        self._saved_K = self._own_K.copy()
        return {"rows": torch.from_numpy(self._own_K.copy())}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to what ``saved`` gave."""
        if set(saved) != {"rows"} or saved["rows"].shape != (self._count,):
            raise ValueError("other clients")
        self._own_K = saved["rows"].numpy().copy()
        self._saved_K = self._own_K.copy()


class _File:
    """Rows of one tensor, written as to a file, so that a full disk is an error, and read through a map."""

    def __init__(self, path: Path, like: Tensor, rows: int) -> None:
        self._like, self._bytes = like, like.numel() * like.element_size()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self._file, max(1, rows * self._bytes))
        self._map = mmap.mmap(self._file, 0)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._file)

    def read(self, row: int) -> Tensor:
        """A row, in memory of its own."""
        if not self._bytes:
            return self._like
        flat = torch.frombuffer(bytearray(self._map[row * self._bytes : (row + 1) * self._bytes]), dtype=torch.uint8)
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # pages that were read count as this process's memory otherwise
        return flat.clone().view(self._like.dtype).view(self._like.shape)

    def write(self, row: int, value: Tensor) -> None:
        """Write a row."""
        if (value.shape, value.dtype) != (self._like.shape, self._like.dtype):
            kinds = [f"{tuple(a.shape)} {a.dtype}" for a in (self._like, value)]
            raise ValueError("a client's state changed from {} to {}: let enrol give what local gives".format(*kinds))
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        done = 0
        while done < self._bytes:
            done += os.pwrite(self._file, flat[done:], row * self._bytes + done)

    def flush(self) -> None:
        """Bring it to disk."""
        os.fsync(self._file)


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot keep the clients' states in {folder} ({error.strerror})"
        raise RunError(f"{what}: make room, or choose another folder") from error
