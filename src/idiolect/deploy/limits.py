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
def limited(folder: Path, size: int, options: Mapping[str, Any], fix: str) -> Iterator[None]:
    """Inside the block, no tensor is made that is too large for a bundle whose file of numbers has ``size`` bytes.

    Not all that a method makes is in the file: training alone draws its network itself.

    Raises:
        InputError: one would be, or all together, or a whole number in the method's options is above ``COUNT``.
    """
    counts = [(v, k) for k, v in options.items() if type(v) is int]
    if counts and (most := max(counts))[0] > COUNT:
        raise InputError(f"{folder} has a method with {most[1]}={most[0]}, which is more than {COUNT}: {fix}")
    with _Limit(folder, size, fix):
        yield


class _Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses a tensor that is too large before it is made, and counts what all tensors take together."""

    def __init__(self, folder: Path, size: int, fix: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sentence = f"{folder} asks for much more memory than its {size:,} bytes of numbers need"
        self._one, self._rest, self._fix = max(_ONE, 2 * size), _ALL + 16 * size, fix

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        before = [t for value in arguments.values() for t in _tensors(value)]
        size = max(sum(t.numel() * t.element_size() for t in before), _bytes_of(str(func), arguments))
        if size > self._one:
            raise InputError(f"{self._sentence} (a tensor of {size / 1e9:,.1f} GB): {self._fix}")
        result = func(*args, **(kwargs or {}))
        old = {t.untyped_storage()._cdata for t in before}
        self._rest -= max(_STEP, sum(t.nbytes for t in _tensors(result) if t.untyped_storage()._cdata not in old))
        if self._rest < 0:
            raise InputError(f"{self._sentence}: {self._fix}")
        return result


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in (value if isinstance(value, list | tuple) else [value]) if isinstance(t, Tensor)]


def _bytes_of(function: str, arguments: Mapping[str, Any]) -> int:
    """The bytes of what a shape or a count makes, at four bytes a number."""
    shape = arguments.get("size")
    if isinstance(shape, list | tuple):
        return 4 * math.prod(max(int(n), 0) for n in shape)
    if function.startswith("aten.arange"):
        return 4 * int(abs(arguments["end"]))
    if function.startswith("aten.eye"):
        return 4 * int(arguments["n"]) * int(arguments.get("m", arguments["n"]))
    return 0
