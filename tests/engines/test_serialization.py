"""What is sent arrives: values, kinds and shapes, whatever the memory behind them."""

from __future__ import annotations

from multiprocessing.connection import Pipe
from typing import Any, NamedTuple

import pytest
import torch

from idiolect.core.method import Down
from idiolect.engines import serialization


class Pair(NamedTuple):
    left: Any
    right: Any


def _sent(message: Any) -> Any:
    ours, theirs = Pipe()
    with ours, theirs:
        serialization.send(ours, serialization.pack(message))
        return serialization.receive(theirs)


GRID = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        GRID,
        GRID.transpose(0, 2),
        GRID[:, ::2],
        GRID[1, 1, 1],
        GRID.expand(5, 2, 3, 4),
        torch.zeros(0, 3),
        torch.zeros((1, 2, 2, 2)).contiguous(memory_format=torch.channels_last),
        torch.tensor(-3),
    ],
    ids=["plain", "transposed", "strided", "scalar", "expanded", "empty", "channels_last", "integer"],
)
def test_layout(tensor: torch.Tensor) -> None:
    got = _sent(tensor)
    assert got.shape == tensor.shape
    assert torch.equal(got, tensor)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_dtype(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    got = _sent(tensor)
    assert got.dtype == dtype
    assert torch.equal(got, tensor)


def test_bits_survive() -> None:
    odd = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
    assert _sent(odd).view(torch.int32).tolist() == odd.view(torch.int32).tolist()


def test_structure_and_gradients() -> None:
    weight = torch.ones(2, requires_grad=True)
    got = _sent(("run", Pair({"a": weight}, [Down(GRID, ())]), None, torch.float32))
    assert type(got[1]) is Pair
    assert type(got[1].right[0]) is Down
    assert not got[1].left["a"].requires_grad
    assert got[2:] == (None, torch.float32)


def test_what_arrives_is_writable_and_its_own() -> None:
    tensor = torch.zeros(3)
    got = _sent(tensor)
    got += 1
    assert tensor.tolist() == [0, 0, 0]


def test_other_side_gone() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with ours:
        with pytest.raises(OSError):
            serialization.send(ours, serialization.pack(GRID))
        with pytest.raises((EOFError, OSError)):
            serialization.receive(ours)
