"""Measures of a client's test samples where a sample can have several labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from idiolect.simulation.thresholds import HALF

# N samples of one client, L labels

RANKED = ("auroc", "average_precision")
"""The measures that a study can ask for."""


def read(logp_NL2: Tensor, y_NL: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of each label (N, L), and the loss of each sample (N,), from log-probabilities without and with.

    Raises:
        ValueError: they have another shape, or do not sum to 1.
    """
    if logp_NL2.shape != (*y_NL.shape, 2):
        raise ValueError(
            f"predict returns the shape {tuple(logp_NL2.shape)} for {len(y_NL)} samples of {y_NL.shape[1]} labels: "
            f"return {(*y_NL.shape, 2)}, the log-probabilities that a sample has not, and has, each label"
        )
    if bool(((total_NL := logp_NL2.exp().sum(-1)) - 1).abs().amax() > 1e-3):
        worst = float(total_NL.flatten()[(total_NL - 1).abs().argmax()])
        raise ValueError(f"predict does not return log-probabilities (a label's two sum to {worst:.3g})")
    loss_NL = -torch.where(y_NL > 0, logp_NL2[..., 1], logp_NL2[..., 0])
    return logp_NL2[..., 1].exp(), loss_NL.mean(1)


def of_predictions(
    p_NL: Tensor, y_NL: Tensor, names: Sequence[str], threshold_L: Tensor | float = HALF
) -> dict[str, float]:
    """F1 over all labels together and label by label, and how many samples are right in all; none without samples.

    A label is predicted where its probability is above a threshold. ``micro_f1`` is 2 right / (true + predicted) over
    all samples and labels, and 1 where no sample has a label and none is predicted. ``f1[name]`` is that of one label,
    left out where no sample has it and none is predicted; ``macro_f1`` their mean. They are as scikit-learn's
    ``f1_score``.
    ``subset_accuracy`` is the share of samples whose labels are all right.

    Args:
        p_NL: probabilities, float64.
        y_NL: 1 where a sample has a label, else 0.
        names: of the labels.
        threshold_L: one for each label, or for all.
    """
    if not len(y_NL):
        return {}
    true_NL, said_NL = y_NL.numpy() > 0, (p_NL > threshold_L).numpy()
    right_L, either_L = (true_NL & said_NL).sum(0), true_NL.sum(0) + said_NL.sum(0)
    f1 = {f"f1[{n}]": float(2 * r / e) for n, r, e in zip(names, right_L, either_L, strict=True) if e}
    values = {"micro_f1": float(2 * right_L.sum() / either_L.sum()) if either_L.any() else 1.0}
    if f1:
        values["macro_f1"] = float(np.mean(list(f1.values())))
    values["subset_accuracy"] = float((true_NL == said_NL).all(1).mean())
    return values | f1


def ranked(asked: Sequence[str], p_NL: Tensor, y_NL: Tensor, names: Sequence[str]) -> dict[str, float]:
    """The measures that are asked for, as scikit-learn's functions.

    ``auroc[name]`` and ``average_precision[name]`` of each label that some samples have and others have not; ``auroc``
    and ``average_precision``, their means.

    Args:
        asked: of ``RANKED``.
        p_NL: probabilities, float64.
        y_NL: 1 where a sample has a label, else 0.
        names: of the labels.
    """
    values: dict[str, float] = {}
    for measure in asked:
        from sklearn import metrics  # no worker imports it otherwise

        score = metrics.roc_auc_score if measure == "auroc" else metrics.average_precision_score
        columns = zip(names, y_NL.T.numpy(), p_NL.T.numpy(), strict=True)
        each = {f"{measure}[{n}]": float(score(y_N, p_N)) for n, y_N, p_N in columns if y_N.any() and not y_N.all()}
        values |= {measure: float(np.mean(list(each.values()))), **each} if each else {}
    return values
