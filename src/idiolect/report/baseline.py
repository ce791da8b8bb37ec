"""What is reached without a model: a client's most frequent class, its mean, or its labels that most samples have."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.data import FederatedData
from idiolect.simulation import errors_of_numbers, label_measures

# K clients

NAMES = {
    "classification": "The most frequent class", "regression": "The mean",
    "multilabel": "Labels that most samples have",
}  # fmt: skip
"""What is predicted for every test sample of a client, from its training samples alone, by task."""


def baseline(data: FederatedData) -> NDArray[np.float64]:
    """The score (K,) of each client's test samples by its training samples' most frequent class, mean or labels.

    NaN where a client has no training or no test samples. Between classes that are as frequent the first counts; a
    label is predicted if more than half of the training samples have it.
    """
    return np.array([_of_client(data, k) for k in range(data.clients)])


def _of_client(data: FederatedData, k: int) -> float:
    train, test = data.train[k], data.test[k]
    if not len(train) or not len(test):
        return math.nan
    if data.targets is None:
        most = torch.bincount(data.y_R[train], minlength=data.classes).argmax()
        return float((data.y_R[test] == most).double().mean())
    mean_D, y_ND = data.targets.value_RD[train].mean(0), data.targets.value_RD[test]
    if data.task == "regression":
        return errors_of_numbers.of_predictions(mean_D.expand_as(y_ND), y_ND)["mse"]
    return label_measures.of_predictions(mean_D.expand_as(y_ND), y_ND, data.targets.names)["micro_f1"]


def line(data: FederatedData) -> tuple[str, str] | None:
    """The same as a line of facts: the mean over clients that train, and the ends; None where no client has both."""
    score_K = baseline(data)[: data.trained]
    known = score_K[~np.isnan(score_K)]
    if not len(known):
        return None
    mean, low, high = (data.score.brief(float(value)) for value in (known.mean(), known.min(), known.max()))
    text = (
        f"{data.score.name} {mean} on average over clients ({low} to {high}), predicted for all of a client's samples"
    )
    return NAMES[data.task], text
