"""A network with batch normalisation in body and head; it travels to other processes by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from idiolect import methods
from idiolect.core.method import Method, Task
from idiolect.core.network import Network


def make(inputs: int = 16, width: int = 5, classes: int = 3) -> tuple[nn.Module, nn.Module]:
    """Buffers as if trained before, so that frozen ones show."""
    first, second = nn.BatchNorm1d(width), nn.BatchNorm1d(width, eps=1e-3)
    for shift, layer in enumerate((first, second)):
        layer.running_mean += 0.1 * torch.arange(width) - 0.2 * shift
        layer.running_var += 0.3 * torch.arange(width)
    body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), first, nn.Tanh(), nn.Linear(width, width))
    return body, nn.Sequential(second, nn.Linear(width, classes))


def network(policy: Any, inputs: int = 16) -> Network:
    """On 4x4 pictures."""
    return Network(partial(make, inputs), (1, 4, 4) if inputs == 16 else (inputs,), policy)


def build(name: str, options: dict[str, Any], policy: Any, task: Task) -> Method:
    """A method on this network."""
    return methods.build(name, options, replace(task, network=network(policy)))
