"""Networks for windows of sensors: channels x time."""

from __future__ import annotations

from torch import nn

from idiolect.core.errors import InputError
from idiolect.models.parts import Parts, Shape, dense

LEAST = 28
"""The time steps of the shortest window that two convolutions of 9 with pooling leave something of."""


def har_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions over time (32, 64; kernel 9) with pooling, then layers of 1,024 and d = 512 (HARCNN).

    Args:
        shape: (channels, time), of at least 28 time steps; the usual windows have 9 channels and 128 steps.
        classes: of the data.

    Source: the network for human activity recognition in the literature on personalised federated learning, as PFLlib
    (Zhang et al., 2023) has it; its convolutions are (1, 9) over windows of height 1, which are these.
    """
    if len(shape) != 2:
        raise InputError(f"model har_cnn takes windows (channels, time), and these samples have shape {shape}: choose "
                         "model auto")  # fmt: skip
    channels, time = shape
    if time < LEAST:
        raise InputError(f"model har_cnn takes windows of at least {LEAST} time steps, and these have {time}: choose "
                         "model mlp")  # fmt: skip
    steps = ((time - 8) // 2 - 8) // 2
    convs = (
        nn.Conv1d(channels, 32, 9), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 9), nn.ReLU(), nn.MaxPool1d(2),
    )  # fmt: skip
    body = nn.Sequential(*convs, nn.Flatten(), *dense(64 * steps, 1024), *dense(1024, 512))
    return body, nn.Linear(512, classes)
