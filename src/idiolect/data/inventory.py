"""The content of a federation, ready for JSON: who has what, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.data.federated import FederatedData


def holdings(data: FederatedData) -> dict[str, Any]:
    """How many samples of each class each client has, and whether an official split is kept, ready for JSON."""

    def by_class(rows: Tensor) -> list[int]:
        counts: list[int] = torch.bincount(data.y_R[rows], minlength=data.classes).tolist()
        return counts

    def client(k: int) -> dict[str, Any]:
        about: dict[str, Any] = {"id": k, "train": by_class(data.train[k]), "test": by_class(data.test[k])}
        if data.validation:
            about["validation"] = by_class(data.validation[k])
        about["shift"] = data.shifts[k]
        if data.names:
            about["name"] = data.names[k]
        if k >= data.trained:
            about["joins"] = data.conditions[k - data.trained]
        return about

    official = {} if data.official_split is None else {"official_split": data.official_split}
    return {
        "dataset": data.name,
        "classes": data.classes,
        "class_names": list(data.class_names),
        **_task(data),
        **official,
        "clients": [client(k) for k in range(data.clients)],
    }


def _task(data: FederatedData) -> dict[str, Any]:
    if data.targets is None:
        return {}
    return {"task": data.task, "targets": list(data.targets.names)}


def manifest(data: FederatedData) -> dict[str, Any]:
    """The ``holdings``, the statistics for normalisation, and a SHA-256 over samples, labels and sample numbers.

    Features of a frozen backbone count by its digest and by the samples that it made them of: on another machine they
    differ by rounding.
    """
    digest = hashlib.sha256("".join(map(str, data.raw or ())).encode())
    targets = [] if data.targets is None else [data.targets.value_RD]
    for tensor in (*(() if data.raw else tree.leaves(data.x_R)), data.y_R, *targets, *data.train, *data.test):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(_once(tensor).numpy().data)
    backbone = {"backbone": {"name": data.raw.backbone, "weights": data.raw.weights}} if data.raw else {}
    scales = {"normalisation": _normalisation(data)}
    if data.targets is not None:
        scales["target_scale"] = {"mean": list(data.targets.mean), "std": list(data.targets.std)}
    return holdings(data) | backbone | scales | {"hash": digest.hexdigest()}


def _once(tensor: Tensor) -> Tensor:
    """A tensor without the copies of a number that stands for many: it may say more samples than fit into memory."""
    for axis, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(axis, 0, min(1, tensor.shape[axis]))
    return tensor


def _normalisation(data: FederatedData) -> dict[str, Any]:
    """Mean and standard deviation, per channel or number, for a table by column.

    Only of columns that are scaled: the names of other features may contain a value, as in ``sex=f``.
    """
    if data.encodings:
        features = [(e.name, scale) for e in data.encodings for scale in e.scales]
        scales = zip(features, data.mean, data.std, strict=True)
        return {"columns": {name: {"mean": m, "std": s} for (name, scale), m, s in scales if scale}}
    if isinstance(data.mean, Mapping) and isinstance(data.std, Mapping):
        return {"mean": {n: list(v) for n, v in data.mean.items()}, "std": {n: list(v) for n, v in data.std.items()}}
    return {"mean": list(data.mean), "std": list(data.std)}
