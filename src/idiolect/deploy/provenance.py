"""Where a bundle is from, and what the records of its run say."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from idiolect.data import FederatedData
from idiolect.deploy.schema import Provenance
from idiolect.runs import environment
from idiolect.runs.reader import Run

log = logging.getLogger(__name__)

_PRIVATE = {"data", "data_dir", "name", "methods", "seeds", "checkpoint_every"}


def participants_of(run: Run, method: str, seed: int) -> list[int]:
    """The clients that trained in some round, and whose upload counted."""
    r = run.records
    uploads = r[(r["method"] == method) & (r["seed"] == seed) & (r["metric"] == "bytes_up")]
    return sorted(uploads["client"].unique().tolist())


def provenance_of(
    federation: FederatedData, study: Mapping[str, Any], manifest: Mapping[str, Any],
    participants: Sequence[int] | None = None,
) -> Provenance:  # fmt: skip
    """Where a bundle is from, by the run's manifest; an empty one stands for this machine and no known data.

    ``participants`` are the clients that trained; None where this is not known.
    """
    trainers = range(federation.trained) if participants is None else participants
    rows = torch.cat([torch.empty(0, dtype=torch.int64), *(federation.train[k] for k in trainers)])
    count_C: Tensor = torch.bincount(federation.y_R[rows], minlength=federation.classes)
    return Provenance(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=dict(manifest.get("versions") or environment.versions()),
        study={k: v for k, v in study.items() if k not in _PRIVATE},
        dataset=federation.name,
        data_digest=str(manifest.get("hash", "")),
        samples=tuple(count_C.tolist()),
        participants=None if participants is None else len(participants),
    )


def say_validation(federation: FederatedData) -> None:
    """Say how many samples models were not trained on, because they were kept to validate on."""
    kept = sum(map(len, federation.validation[: federation.trained]))
    if kept:
        count = kept + sum(map(len, federation.train[: federation.trained]))
        log.warning(
            "the models were trained without the %s of %s training samples that the protocol keeps to validate on "
            "(validation): once settings are chosen, run the study without it for a bundle of models from all samples",
            f"{kept:,}", f"{count:,}",
        )  # fmt: skip
