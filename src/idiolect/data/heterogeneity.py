"""How the clients of a federation differ, in numbers, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import keys
from idiolect.core.inputs import is_integer
from idiolect.data.federated import FederatedData

# K clients, C classes, D values of a sample, B a block of clients, O clients compared with these

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

COMPARED = 2_000
"""Each client is compared with at most so many others."""
MATRIX = 60
"""Up to so many clients, the values of all pairs are kept."""
_BLOCK = 256
_IDS = 4096  # different ids that are counted apart


@dataclass(frozen=True, eq=False)
class Description:
    """The clients in numbers; a new client under several conditions counts once.

    Means are over all other clients, or over 2,000 drawn at random if there are more.

    Attributes:
        train_KC: training samples per client and class.
        test_KC: test samples per client and class.
        label_K: for each client the mean Jensen-Shannon divergence between its training labels and another client's, in
            bits: 0 for the same mixture of classes, 1 for no class in common. Where the target is numbers, the mean
            distance between mean training targets: root mean square over the numbers, in standard deviations of all.
        feature_K: for each client the mean distance between its mean training sample and another client's: root mean
            square over a sample's values, each in standard deviations of the data set. Of texts and other ids the
            Hellinger distance between how often each id occurs: 0 for the same frequencies, 1 for no id in common.
        label_chance: the mean over pairs that clients of these sizes have if samples are distributed at random.
        feature_chance: the same for the distance of mean samples.
        label_KK: the divergence of each pair, for up to 60 clients; None for more.
        target_KD: where the target is numbers, each client's mean, in the units of the data; else None.
    """

    train_KC: Counts
    test_KC: Counts
    label_K: Numbers
    feature_K: Numbers
    label_chance: float
    feature_chance: float
    label_KK: Numbers | None
    target_KD: Numbers | None = None

    @property
    def label_mean(self) -> float:
        """Mean over pairs of clients of the divergence of labels, bits, or of the distance of targets."""
        return float(self.label_K.mean())

    @property
    def feature_mean(self) -> float:
        """Mean distance of mean samples over pairs of clients."""
        return float(self.feature_K.mean())


def describe_clients(data: FederatedData) -> Description:
    """Count and compare the clients of a federation; takes two passes over the training samples."""
    clients = data.trained + sum(not condition for condition in data.conditions)
    train, test = data.train[:clients], data.test[:clients]

    def counts(parts: Sequence[torch.Tensor]) -> Counts:
        return np.stack([np.bincount(data.y_R[rows].numpy(), minlength=data.classes) for rows in parts])

    every = torch.cat([*train]).numpy()
    dealt = keys.generator(0, "describe").permutation(every)
    ends = np.cumsum([len(rows) for rows in train])[:-1]
    chance = tuple(torch.from_numpy(rows) for rows in np.split(dealt, ends))
    compare: Callable[[Any, Any], Numbers] = jensen_shannon
    train_K: NDArray[Any] = counts(train)
    chance_K: NDArray[Any] = counts(chance)
    target_KD = None
    if data.targets is not None:
        value_RD, mean, std = data.targets.value_RD, np.array(data.targets.mean), np.array(data.targets.std)
        target_KD = np.stack([value_RD[rows].mean(0).numpy() for rows in train])
        compare, train_K = _distances, (target_KD - mean) / std
        chance_K = (np.stack([value_RD[rows].mean(0).numpy() for rows in chance]) - mean) / std
    return Description(
        counts(train), counts(test),
        to_others(compare, train_K), to_others(_distances, _means(data, train)),
        float(to_others(compare, chance_K).mean()),
        float(to_others(_distances, _means(data, chance)).mean()),
        compare(train_K, train_K) if clients <= MATRIX else None,
        target_KD,
    )  # fmt: skip


def to_others(compare: Callable[[Any, Any], Numbers], about_K: NDArray[Any]) -> Numbers:
    """For each client the mean of ``compare`` over the others, or over 2,000 of them; 0 for a single client.

    Args:
        compare: gives a value for each pair (B, O) of some clients (B, ...) and others (O, ...).
        about_K: the data of each client (K, ...).
    """
    clients = len(about_K)
    others = np.arange(clients)
    if clients > COMPARED:
        others = keys.generator(0, "describe", "others").choice(clients, COMPARED, replace=False)
    mean_K = np.zeros(clients)
    for block in np.split(np.arange(clients), range(_BLOCK, clients, _BLOCK)):
        is_other_BO = block[:, None] != others
        sum_B = compare(about_K[block], about_K[others]).sum(1, where=is_other_BO)
        mean_K[block] = sum_B / np.maximum(1, is_other_BO.sum(1))
    return mean_K


def jensen_shannon(count_BC: Counts, count_OC: Counts) -> Numbers:
    """JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 in bits of each pair (B, O) of rows of counts."""
    p_CB, q_CO = (np.ascontiguousarray((count / count.sum(1, keepdims=True)).T) for count in (count_BC, count_OC))
    h_B, h_O = _entropy(p_CB), _entropy(q_CO)
    rows = [_entropy((p_C[:, None] + q_CO) / 2) - (h + h_O) / 2 for p_C, h in zip(p_CB.T, h_B, strict=True)]
    return np.asarray(np.clip(np.stack(rows), 0, 1))


def _entropy(p_CK: Numbers) -> Numbers:
    return np.asarray(-(p_CK * np.log2(np.where(p_CK > 0, p_CK, 1))).sum(0))


def _means(data: FederatedData, parts: Sequence[torch.Tensor]) -> Numbers:
    """Mean normalised sample (K, D) of each client; a missing value counts as the data set's mean.

    Of ids, the square roots of how often each occurs. Of several tensors, one after another.
    """
    if isinstance(data.x_R, dict):
        assert isinstance(data.mean, Mapping)
        assert isinstance(data.std, Mapping)
        leaves = [_of_tensor(data.x_R[n], data.mean[n], data.std[n], parts, False) for n in data.x_R]
        return np.concatenate(leaves, axis=1)
    return _of_tensor(data.x_R, data.mean, data.std, parts, data.tokens is not None)


def _of_tensor(x_R: Tensor, mean: Any, std: Any, parts: Sequence[Tensor], padded: bool) -> Numbers:
    means = []
    if is_integer(x_R):
        largest = int(x_R.max())
        width = min(largest + 1, _IDS)
        for rows in parts:
            count_I = torch.zeros(width, dtype=torch.float64)
            for chunk in torch.split(rows, 2048):
                id_N = x_R[chunk].flatten()
                count_I += torch.bincount(id_N if largest < _IDS else id_N.long() % _IDS, minlength=width)
                count_I[0] -= (id_N == 0).sum() if padded else 0
            share_I = count_I / count_I.sum().clamp(min=1)
            means.append((share_I * width / 2).sqrt().numpy())  # whose distance, below, is Hellinger's
        return np.stack(means)
    shape = (1, -1, *(1,) * (x_R.ndim - 2))
    scale = 255.0 if x_R.dtype == torch.uint8 else 1.0
    mean, std = (torch.tensor(v, dtype=torch.float64).view(shape) for v in (mean, std))
    for rows in parts:
        total = torch.zeros(x_R.shape[1:], dtype=torch.float64)
        for chunk in torch.split(rows, 2048):
            total += x_R[chunk].double().div_(scale).sub_(mean).nan_to_num_(0.0).sum(0)
        means.append((total / std[0] / len(rows)).flatten().numpy())
    return np.stack(means)


def _distances(mean_BD: Numbers, mean_OD: Numbers) -> Numbers:
    square_BO = (mean_BD**2).sum(1)[:, None] + (mean_OD**2).sum(1) - 2 * mean_BD @ mean_OD.T
    return np.asarray(np.sqrt(np.maximum(square_BO, 0) / mean_BD.shape[1]))
