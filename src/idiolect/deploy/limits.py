"""A limit on the memory that what a bundle says about itself may ask for, before any of it is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from idiolect.core.errors import InputError

COUNT = 2**20
"""The largest whole number among a method's options, and the most local epochs."""
_ONE, _ALL = 2**27, 2**30  # bytes that one tensor, and all together, may take beside what the file accounts for
_STEP = 2**13  # bytes that each step counts at least, so that a million small models end too


@contextmanager
def limited(folder: Path, held: int, options: Mapping[str, Any], fix: str) -> Iterator[None]:
    """Inside the block, no tensor is made that is too large for a bundle whose file of numbers has ``held`` bytes.

    Not all that a method makes is in the file: training alone draws its network itself.

    Raises:
        InputError: one would be, or all together, or a whole number in the method's options is above ``COUNT``.
    """
    counts = [(v, k) for k, v in options.items() if type(v) is int]
    if counts and (most := max(counts))[0] > COUNT:
        raise InputError(f"{folder} has a method with {most[1]}={most[0]}, which is more than {COUNT}: {fix}")
    with _Limit(folder, held, fix):
        yield


class _Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses a tensor that is too large before it is made, and counts what all tensors take together."""

    def __init__(self, folder: Path, held: int, fix: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._said = f"{folder} asks for much more memory than its {held:,} bytes of numbers need"
        self._one, self._left, self._fix = max(_ONE, 2 * held), _ALL + 16 * held, fix

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        before = [t for value in given.values() for t in _tensors(value)]
        asked = max(sum(t.numel() * t.element_size() for t in before), _asked(str(func), given))
        if asked > self._one:
            raise InputError(f"{self._said} (a tensor of {asked / 1e9:,.1f} GB): {self._fix}")
        made = func(*args, **(kwargs or {}))
        old = {t.untyped_storage()._cdata for t in before}
        self._left -= max(_STEP, sum(t.nbytes for t in _tensors(made) if t.untyped_storage()._cdata not in old))
        if self._left < 0:
            raise InputError(f"{self._said}: {self._fix}")
        return made


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in (value if isinstance(value, list | tuple) else [value]) if isinstance(t, Tensor)]


def _asked(function: str, given: Mapping[str, Any]) -> int:
    """The bytes of what a shape or a count makes, at four bytes a number."""
    shape = given.get("size")
    if isinstance(shape, list | tuple):
        return 4 * math.prod(max(int(n), 0) for n in shape)
    if function.startswith("aten.arange"):
        return 4 * int(abs(given["end"]))
    if function.startswith("aten.eye"):
        return 4 * int(given["n"]) * int(given.get("m", given["n"]))
    return 0
