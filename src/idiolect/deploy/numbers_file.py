"""The file of a bundle's numbers; see ``idiolect.deploy.bundle`` for its form."""

from __future__ import annotations

from collections.abc import Iterable

import safetensors.torch
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Down
from idiolect.core.tree import Tree


def content(shared: Tree, own: Iterable[tuple[Tree, Tree]]) -> bytes:
    """The file of what all models share, and of what each received for itself and its client's state."""
    tensors = {f"shared/{path}": leaf.detach().contiguous() for path, leaf in tree.named(shared).items()}
    every: dict[str, list[Tensor]] = {}
    for mine, client in own:
        for path, leaf in tree.named((Down((), mine), client)).items():
            every.setdefault(path, []).append(leaf.detach())
    for path, leaves in every.items():
        tensors[f"own/{path}"] = torch.cat([leaf.reshape(-1) for leaf in leaves])
        tensors[f"ends/{path}"] = torch.tensor([leaf.numel() for leaf in leaves]).cumsum(0)
        tensors[f"shapes/{path}"] = torch.tensor([leaf.shape for leaf in leaves], dtype=torch.int64)
    return safetensors.torch.save(_apart(tensors))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, which the format does not allow."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
