"""Measures of a client's test samples where the target is numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from idiolect.statistics import conformal
from idiolect.statistics.conformal import LEVEL, OF_INTERVALS

# N test samples of one client, M validation samples, D numbers of a target


def of_predictions(value_ND: Tensor, y_ND: Tensor, names: Sequence[str] = ("",)) -> dict[str, float]:
    """Mean squared error, mean absolute error and R2, by metric; none if there are no samples.

    ``mse`` and ``mae`` are in the units of the target, squared or not. ``r2`` is 1 - sum of squared errors / sum of
    squared distances from the mean, as scikit-learn's ``r2_score``; it is left out where all targets are equal. Each is
    the mean over the numbers of a target; ``mse[name]`` and so on are those of each number, if there are several.

    Args:
        value_ND: predictions, float64.
        y_ND: targets, float64.
        names: of the numbers.
    """
    if not len(y_ND):
        return {}
    error_ND = value_ND - y_ND
    mse_D, mae_D = error_ND.square().mean(0), error_ND.abs().mean(0)
    spread_D = (y_ND - y_ND.mean(0)).square().mean(0)
    values = {"mse": float(mse_D.mean()), "mae": float(mae_D.mean())}
    if bool((spread_D > 0).all()):
        values["r2"] = float((1 - mse_D / spread_D).mean())
    if len(names) > 1:
        for name, mse, mae in zip(names, mse_D.tolist(), mae_D.tolist(), strict=True):
            values |= {f"mse[{name}]": mse, f"mae[{name}]": mae}
    return values


def of_intervals(
    error_ND: Tensor, error_MD: Tensor, group_M: Tensor | None = None, names: Sequence[str] = ("",)
) -> dict[str, float]:
    """Of intervals at 90 %, by metric: the share that holds the number, their mean width, and the interval score.

    The intervals are predictions plus and minus a quantile of the absolute errors of the client's validation samples,
    on which the model was not trained: see ``idiolect.statistics.conformal``. Each is the mean over the numbers of a
    target; ``coverage[name]`` and so on are those of each number, if there are several. None if there are no test
    samples, or too few validation samples, or groups of them, for intervals of finite width.

    Args:
        error_ND: predictions less targets of the test samples, float64.
        error_MD: the same of the validation samples.
        group_M: which of these belong together; None where each stands for itself.
        names: of the numbers.
    """
    if not len(error_ND):
        return {}
    each = []
    for error_N, error_M in zip(error_ND.T.numpy(), error_MD.T.numpy(), strict=True):
        order_M = np.argsort(np.abs(error_M), kind="stable")
        weights = () if group_M is None else conformal.group_weights(group_M.numpy())[order_M].tolist()
        half = conformal.quantile(np.abs(error_M)[order_M].tolist(), LEVEL, weights)
        if math.isinf(half):
            return {}
        each.append(conformal.quality(error_N, half, np.zeros(len(error_N)), LEVEL))
    values = dict(zip(OF_INTERVALS, np.mean(each, axis=0).tolist(), strict=True))
    if len(names) > 1:
        for name, quality in zip(names, each, strict=True):
            values |= {f"{metric}[{name}]": v for metric, v in zip(OF_INTERVALS, quality, strict=True)}
    return values
