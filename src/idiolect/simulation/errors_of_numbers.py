"""Measures of a client's test samples where the target is numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.data.targets import Targets
from idiolect.statistics import conformal
from idiolect.statistics.conformal import LEVEL, OF_INTERVALS

# N test samples of one client, M validation samples, D numbers of a target


def read(scaled_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Predictions in the units of the data (N, D), and the loss of each sample (N,), from scaled predictions.

    Raises:
        ValueError: they have another shape than the targets.
    """
    if scaled_ND.shape != targets.value_RD.shape:
        what = f"predict returns the shape {tuple(scaled_ND.shape)} for {len(targets.value_RD)} samples"
        raise ValueError(f"{what}: return {targets.value_RD.shape[1]} for each sample")
    return targets.unscaled(scaled_ND), (scaled_ND.double() - targets.scaled().double()).square().mean(1)


def of_predictions(value_ND: Tensor, y_ND: Tensor, names: Sequence[str] = ("",)) -> dict[str, float]:
    """Mean squared error, mean absolute error and R2, by metric; none if there are no samples.

    ``mse`` and ``mae`` are in the units of the target, squared or not. ``r2`` is 1 - sum of squared errors / sum of
    squared distances from the mean, as scikit-learn's ``r2_score``; it is left out where all targets are equal. Each is
    the mean over the numbers of a target; ``mse[name]`` and so on are those of each number, if there are several.
    ``mse_low`` and ``mse_high`` are the ends of Student's 95 % interval of the mean squared error, from two samples on:
    what another draw of as many samples might give.

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
    if len(y_ND) > 1:
        from scipy.special import stdtrit  # slow to import

        width = float(stdtrit(len(y_ND) - 1, 0.975)) * float(error_ND.square().mean(1).std()) / math.sqrt(len(y_ND))
        values |= {"mse_low": max(0.0, values["mse"] - width), "mse_high": values["mse"] + width}
    if bool((y_ND != y_ND[0]).any(0).all()):  # the spread of equal numbers can be a rounding above 0
        values["r2"] = float((1 - mse_D / spread_D).mean())
    if len(names) > 1:
        for name, mse, mae in zip(names, mse_D.tolist(), mae_D.tolist(), strict=True):
            values |= {f"mse[{name}]": mse, f"mae[{name}]": mae}
    return values


def of_intervals(error_RD: Tensor, test: int, groups: Tree = (), names: Sequence[str] = ("",)) -> dict[str, float]:
    """Of intervals at 90 %, by metric: the share that holds the number, their mean width, and the interval score.

    The intervals are predictions plus and minus a quantile of the absolute errors of the client's validation samples,
    on which the model was not trained: see ``idiolect.statistics.conformal``. Each is the mean over the numbers of a
    target; ``coverage[name]`` and so on are those of each number, if there are several. None if there are no test
    samples, or too few validation samples, or groups of them, for intervals of finite width.

    Args:
        error_RD: predictions less targets of the test samples, and after them of the validation samples, float64.
        test: how many are test samples.
        groups: which samples belong together (R,); () where each stands for itself.
        names: of the numbers.
    """
    if not test:
        return {}
    each = []
    weight_M = conformal.group_weights(groups[test:].numpy()) if isinstance(groups, Tensor) else None
    for error_N, error_M in zip(error_RD[:test].T.numpy(), np.abs(error_RD[test:].T.numpy()), strict=True):
        order_M = np.argsort(error_M, kind="stable")
        weights = () if weight_M is None else weight_M[order_M].tolist()
        half = conformal.quantile(error_M[order_M].tolist(), LEVEL, weights)
        if math.isinf(half):
            return {}
        each.append(conformal.quality(error_N, half, np.zeros(len(error_N)), LEVEL))
    values = dict(zip(OF_INTERVALS, np.mean(each, axis=0).tolist(), strict=True))
    if len(names) > 1:
        for name, quality in zip(names, each, strict=True):
            values |= {f"{metric}[{name}]": v for metric, v in zip(OF_INTERVALS, quality, strict=True)}
    return values
