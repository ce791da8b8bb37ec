"""From which probability on a class or a label is predicted, chosen on a client's validation samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.objectives import TaskName

# N samples of one client, C classes, L labels

HALF = 0.5


def check(how: Threshold, task: TaskName, classes: int) -> None:
    """Check that a threshold can be chosen for a task with so many classes.

    Raises:
        InputError: it cannot.
    """
    if how != "half" and (task == "regression" or (task == "classification" and classes != 2)):
        has = "this target is a number" if task == "regression" else f"these data have {classes}"
        raise InputError(
            f"protocol threshold={how} is for two classes or several labels, and {has}: leave threshold out"
        )


def chosen(how: Threshold, p_N: NDArray[np.float64], yes_N: NDArray[np.bool_]) -> float:
    """The threshold t such that predictions p > t have the largest F1, or balanced accuracy.

    Between two thresholds that are as good, the one nearer to 1/2; between two probabilities, 1/2 or their middle. It
    is 1/2 where samples are all of one kind.

    Args:
        how: "f1" or "balanced"; "half" gives 1/2.
        p_N: probabilities.
        yes_N: which samples are of the class, or have the label.
    """
    if how == "half" or yes_N.all() or not yes_N.any():
        return HALF
    order_N = np.argsort(-p_N, kind="stable")
    p_N, yes_N = p_N[order_N], yes_N[order_N]
    ends = np.flatnonzero(np.append(p_N[1:] < p_N[:-1], p_N[-1] > 0)) + 1  # how many are predicted
    right = np.append(0, np.cumsum(yes_N))[np.append(0, ends)]
    said = np.append(0, ends)
    high, low = np.append(1.0, p_N[ends - 1]), np.append(p_N, 0.0)[said]
    wrong, count = said - right, yes_N.sum()
    if how == "f1":
        value = 2 * right / (count + said)
    else:
        value = (right / count + 1 - wrong / (len(p_N) - count)) / 2
    middle = np.where((low <= HALF) & (high > HALF), HALF, (low + high) / 2)
    best = np.flatnonzero(value >= value.max() - 1e-12)
    return float(middle[best[np.abs(middle[best] - HALF).argmin()]])


def of_class(how: Threshold, logp_NC: Tensor, y_N: Tensor) -> tuple[float, dict[str, float]]:
    """The threshold of the second of two classes, and the same by metric, ``threshold``; nothing of "half".

    Args:
        how: as for ``chosen``.
        logp_NC: log-probabilities of validation samples.
        y_N: their labels.
    """
    if how == "half":
        return HALF, {}
    value = chosen(how, logp_NC[:, 1].exp().numpy(), y_N.numpy() == 1)
    return value, {"threshold": value}


def of_labels(how: Threshold, p_NL: Tensor, y_NL: Tensor, names: Sequence[str]) -> tuple[Tensor, dict[str, float]]:
    """The threshold (L,) of each label, and the same by metric, ``threshold[name]``; nothing of "half".

    Args:
        how: as for ``chosen``.
        p_NL: probabilities of validation samples.
        y_NL: 1 where a sample has a label, else 0.
        names: of the labels.
    """
    if how == "half":
        return torch.full((y_NL.shape[1],), HALF, dtype=p_NL.dtype), {}
    values = [chosen(how, p_N, yes_N) for p_N, yes_N in zip(p_NL.numpy().T, y_NL.numpy().T > 0, strict=True)]
    by_metric = {f"threshold[{name}]": value for name, value in zip(names, values, strict=True)}
    return torch.tensor(values, dtype=p_NL.dtype), by_metric
