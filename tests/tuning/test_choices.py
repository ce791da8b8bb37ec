"""The study that comes out of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import idiolect as idl

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=4", clients=3, keep=30, rounds=2, local_epochs=1, batch_size=8, seeds=[0],
    partition="iid:test_fraction=0.3",
)  # fmt: skip


def test_methods_whose_choices_are_alike_have_labels_that_tell_them_apart(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg:lr=0.1", "fedavg:lr=0.01", "fedavg:lr=0.2"], **SMALL)
    tuning = idl.tune(study, {"lr": [0.05]}, tmp_path / "s", trials=1, engine="sequential", refit=True)
    labels = ["fedavg:lr=0.05", "fedavg:lr=0.05 (2)", "fedavg:lr=0.05 (3)"]
    assert [use.label for use in idl.Study.read(tmp_path / "s" / "tuned.yaml").methods] == labels
    assert [chosen.method for chosen in tuning.chosen()] == ["fedavg:lr=0.1", "fedavg:lr=0.01", "fedavg:lr=0.2"]
    assert tuning.result is not None
    assert [row.label for row in tuning.result.rows()] == labels
