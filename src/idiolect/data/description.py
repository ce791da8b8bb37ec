"""How the clients of a federation differ, in numbers, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect import keys
from idiolect.data.pack import FederatedData

# K clients, C classes, D values of a row, R rows

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Description:
    """Clients as they are: of those that join under further conditions, each once.

    Attributes:
        train_KC: training rows per client and class.
        test_KC: test rows per client and class.
        label_KK: Jensen-Shannon divergence between two clients' training labels in bits: 0 for the same mixture of
            classes, 1 for no class in common.
        feature_KK: distance between two clients' mean training rows: root mean square over a row's values, each in
            units of the data set's standard deviation.
        label_chance: the mean over pairs that clients of these sizes would have if rows were dealt at random.
        feature_chance: the same for the distance of mean rows.
    """

    train_KC: Counts
    test_KC: Counts
    label_KK: Numbers
    feature_KK: Numbers
    label_chance: float
    feature_chance: float

    @property
    def label_mean(self) -> float:
        """Mean Jensen-Shannon divergence over pairs of clients, bits."""
        return over_pairs(self.label_KK)

    @property
    def feature_mean(self) -> float:
        """Mean distance of mean rows over pairs of clients."""
        return over_pairs(self.feature_KK)


def describe_clients(data: FederatedData) -> Description:
    """Count and compare the clients of a federation; takes one pass over the training rows, and one more for chance."""
    clients = data.trained + sum(not condition for condition in data.conditions)
    train, test = data.train[:clients], data.test[:clients]

    def counts(parts: tuple[torch.Tensor, ...]) -> Counts:
        return np.stack([np.bincount(data.y_R[rows].numpy(), minlength=data.classes) for rows in parts])

    every = torch.cat(train).numpy()
    dealt = keys.generator(0, "describe").permutation(every)
    ends = np.cumsum([len(rows) for rows in train])[:-1]
    chance = tuple(torch.from_numpy(rows) for rows in np.split(dealt, ends))
    train_KC = counts(train)
    return Description(
        train_KC, counts(test), jensen_shannon(train_KC), _distances(_means(data, train)),
        over_pairs(jensen_shannon(counts(chance))), over_pairs(_distances(_means(data, chance))),
    )  # fmt: skip


def jensen_shannon(count_KC: Counts) -> Numbers:
    """Pairwise JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 in bits, of rows of counts."""
    p_KC = count_KC / count_KC.sum(1, keepdims=True)
    h_K = _entropy(p_KC)
    rows = [_entropy((p_C + p_KC) / 2) - (h + h_K) / 2 for p_C, h in zip(p_KC, h_K, strict=True)]
    return np.asarray(np.clip(np.stack(rows), 0, 1))


def over_pairs(value_KK: Numbers) -> float:
    """The mean over pairs of different clients; 0 for a single client."""
    clients = len(value_KK)
    return float((value_KK.sum() - np.trace(value_KK)) / max(1, clients * (clients - 1)))


def _entropy(p_KC: Numbers) -> Numbers:
    return np.asarray(-(p_KC * np.log2(np.where(p_KC > 0, p_KC, 1))).sum(1))


def _means(data: FederatedData, parts: tuple[torch.Tensor, ...]) -> Numbers:
    """Mean normalised row (K, D) of each client; a missing value counts as the data set's mean."""
    means = []
    shape = (1, -1, *(1,) * (data.x_R.ndim - 2))
    scale = 255.0 if data.x_R.dtype == torch.uint8 else 1.0
    mean, std = (torch.tensor(v, dtype=torch.float64).view(shape) for v in (data.mean, data.std))
    for rows in parts:
        total = torch.zeros(data.shape, dtype=torch.float64)
        for chunk in torch.split(rows, 2048):
            total += data.x_R[chunk].double().div_(scale).sub_(mean).nan_to_num_(0.0).sum(0)
        means.append((total / std[0] / len(rows)).flatten().numpy())
    return np.stack(means)


def _distances(mean_KD: Numbers) -> Numbers:
    square_K = (mean_KD**2).sum(1)
    square_KK = square_K[:, None] + square_K[None] - 2 * mean_KD @ mean_KD.T
    np.fill_diagonal(square_KK, 0)
    return np.asarray(np.sqrt(np.maximum(square_KK, 0) / mean_KD.shape[1]))
