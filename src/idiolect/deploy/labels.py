"""Labels of which a sample can have several, and the probability from which on a label or a class is predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.deploy.schema import About
from idiolect.simulation import thresholds
from idiolect.simulation.thresholds import HALF

# N samples, L labels

BETWEEN = "|"
"""What stands between the labels of a sample in a table."""
LABELS, UNDECIDED = "labels", "undecided"
"""Columns of a table of predictions."""


def probabilities(logp_NL2: Tensor) -> Tensor:
    """The probability (N, L) of each label, float64, from log-probabilities without and with it."""
    return logp_NL2[..., 1].double().exp()


def table(
    logp_NL2: Tensor, about: About, threshold_L: Sequence[float], half_L: Sequence[float] | None,
    beside: dict[str, pa.Array],
) -> pa.Table:  # fmt: skip
    """Predictions as a table; see ``idiolect.deploy.predict.predict``.

    Args:
        logp_NL2: log-probabilities without and with each label.
        about: the bundle.
        threshold_L: from which probability on each label is predicted; () for 1/2.
        half_L: at a level, how far the probability of a label may be from 0 or 1; None without a level.
        beside: further columns, by names that no column of predictions has.
    """
    p_NL = probabilities(logp_NL2)
    is_there_NL = (p_NL > torch.tensor(threshold_L or [HALF] * len(about.labels), dtype=torch.float64)).numpy()
    columns = dict(beside)
    if half_L is not None:
        can_be_NL, can_lack_NL = can_have_or_lack(p_NL, half_L)
        is_there_NL = can_be_NL & ~can_lack_NL
        columns[UNDECIDED] = joined(can_be_NL == can_lack_NL, about.labels)
    columns[LABELS] = joined(is_there_NL, about.labels)
    return pa.table(
        columns | {f"p_{name}": pa.array(p_N) for name, p_N in zip(about.labels, p_NL.numpy().T, strict=True)}
    )


def can_have_or_lack(p_NL: Tensor, half_L: Sequence[float]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether a sample could have each label (N, L), and whether it could lack it.

    Args:
        p_NL: the probability of each label.
        half_L: how far it may be from 0 or 1.
    """
    half = torch.tensor(half_L, dtype=torch.float64)
    return (1 - p_NL <= half).numpy(), (p_NL <= half).numpy()


def joined(is_there_NL: NDArray[np.bool_], names: Sequence[str]) -> pa.Array:
    """The labels of each sample as a text."""
    texts = [
        BETWEEN.join(name for name, there in zip(names, row, strict=True) if there) for row in is_there_NL.tolist()
    ]
    return pa.array(texts, pa.string())


def site_thresholds(about: About, output: Tensor, y_N: Tensor) -> tuple[tuple[float, ...], ...]:
    """From which probability on a site's model predicts each label, or the second class; () for 1/2.

    As a run chooses it on a client's validation samples, here on all of the site's, each predicted by models made
    without it.

    Args:
        about: the bundle.
        output: log-probabilities, (N, L, 2) or (N, 2).
        y_N: labels (N, L), or classes (N,).
    """
    if about.threshold == "half" or about.targets:
        return ()
    if about.labels:
        chosen_L, _ = thresholds.of_labels(about.threshold, probabilities(output), y_N, about.labels)
        return (tuple(chosen_L.tolist()),)
    return ((thresholds.of_class(about.threshold, output.double(), y_N)[0],),)
