"""Functions over many clients at once: mapped, with convolutions unfolded, and captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree


class Graph:
    """A function of tensors on a GPU, captured as a CUDA graph, for inputs of the same shapes.

    Raises:
        InputError: it does something that a graph cannot contain, such as waiting for the device.
    """

    def __init__(self, function: Callable[..., Tree], inputs: Tree, pool: Any) -> None:
        flat, build = tree.flatten(inputs)
        rows = tree.leaves((inputs[2].x_R, inputs[2].y_R, inputs[2].group_R))
        self._inputs = build([a if any(a is r for r in rows) else a.clone() for a in flat])  # those of all stay
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*self._inputs)  # what libraries set up at a first call must not be part of a graph
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph, pool):
                self._outputs = function(*self._inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            what = " ".join(str(error).split())
            raise InputError(f"graphs=true is not possible with this method ({what}): leave it out") from error

    def __call__(self, inputs: Tree) -> Tree:
        """The function's result; valid until the next call."""
        for buffer, new in zip(tree.leaves(self._inputs), tree.leaves(inputs), strict=True):
            if buffer is not new:
                buffer.copy_(new)
        self._graph.replay()
        return self._outputs


class UnfoldMode(TorchFunctionMode):
    """Inside, a convolution of images without groups copies its windows and is one product."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_conv2d if function is torch.conv2d else function)(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    if input.ndim != 4 or groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    x = pad(input, [p for p in reversed(_pair(padding)) for _ in range(2)]).transpose(0, 1)  # channels, images, H, W
    for axis, size, step in zip((-2, -1), weight.shape[2:], _pair(stride), strict=True):
        end = (x.shape[axis] - size) // step * step + 1
        x = torch.stack([x.transpose(axis, -1)[..., k : k + end : step].transpose(axis, -1) for k in range(size)])
    columns = x.flatten(3).flatten(0, 2)  # a window's places and channels, by images and their places
    out = (weight.permute(0, 3, 2, 1).flatten(1) @ columns).view(-1, len(input), *x.shape[-2:]).transpose(0, 1)
    return out if bias is None else out + bias[:, None, None]


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def vmap_of(function: Callable[..., Tree], axes: Any) -> Callable[..., Tree]:
    """A function of a method over clients."""
    return torch.func.vmap(lambda *a: function(*a), in_dims=axes)  # vmap reads the signature of a plain function


def to_host(a: Tensor) -> Tensor:
    """A tensor in the program's memory; half precision as float32."""
    return (a.float() if a.dtype == torch.bfloat16 else a).cpu()
