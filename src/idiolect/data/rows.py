"""The numbers of each client's samples, in one tensor: one for each of many clients would take ten times as much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, overload

import torch
from torch import Tensor


class Rows(Sequence[Tensor]):
    """A tensor of numbers for each client, as a view of one tensor.

    Args:
        flat: the numbers of all clients, client by client, int64.
        ends: for each client the place in ``flat`` where its numbers end, int64.
    """

    def __init__(self, flat: Tensor, ends: Tensor) -> None:
        self.flat, self._ends = flat, ends

    @classmethod
    def of(cls, rows: Iterable[Tensor]) -> Rows:
        """The numbers of each client, from a tensor for each."""
        if isinstance(rows, Rows):
            return rows
        each = list(rows)
        flat = torch.cat(each) if each else torch.zeros(0, dtype=torch.int64)
        return cls(flat, torch.tensor(list(accumulate(map(len, each))), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...

    @overload
    def __getitem__(self, client: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, client: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(client, slice):
            return tuple(self[k] for k in range(len(self))[client])
        client = range(len(self))[client]
        return self.flat[int(self._ends[client - 1]) if client else 0 : int(self._ends[client])]

    def __iter__(self) -> Iterator[Tensor]:
        start = 0
        for end in self._ends.tolist():
            yield self.flat[start:end]
            start = end

    def __add__(self, other: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return (*self, *other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.flat, self._ends)
