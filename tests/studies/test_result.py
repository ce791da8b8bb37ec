"""The number of a run, against the records read without any code of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect.data import from_arrays

SITES = ["Berlin", "Lyon", "Oslo", "Porto"]
rng = np.random.default_rng(0)
LABELS = rng.integers(0, 2, 120)
SAMPLES = rng.normal(LABELS[:, None], 1.5, (120, 4)).astype(np.float32)
OWNERS = np.repeat(SITES, [12, 24, 36, 48])


def study(**settings: Any) -> idl.Study:
    source = from_arrays(SAMPLES, LABELS, clients=OWNERS)
    how: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "seeds": [3, 1], "methods": ["fedavg_ft", "fedavg"]}
    return idl.Study(data=source, new_clients="Oslo+", **how | settings)


def by_hand(folder: Path, stage: str, clients: range, weights: list[float]) -> dict[tuple[str, int], float]:
    """Of the last round."""
    r = pd.read_parquet(folder / "records.parquet")
    r = r[(r["metric"] == "accuracy") & (r["stage"] == stage) & (r["round"] == 2) & r["client"].isin(clients)]
    return {
        (method, seed): float(np.average(part.sort_values("client")["value"], weights=weights))
        for (method, seed), part in r.groupby(["method", "seed"])
    }


def test_accuracy_is_the_protocols_and_the_tables_number(tmp_path: Path) -> None:
    result = idl.run(
        study(protocol="stage=received,also=personalised,weighting=sample"), tmp_path / "r", engine="sequential"
    )
    found = result.accuracy()
    tested = [round(0.2 * count) for count in (12, 24, 48)]  # Oslo joins and stands last
    assert found.to_dict() == pytest.approx(by_hand(tmp_path / "r", "received", range(3), list(map(float, tested))))
    assert found.index.names == ["method", "seed"]
    assert list(dict.fromkeys(found.index.get_level_values("method"))) == ["fedavg_ft", "fedavg"]
    means = found.groupby("method").mean()
    assert {row.label: row.accuracy for row in result.rows()} == pytest.approx(means.to_dict())
    each = result.client_accuracy()
    assert each.index.tolist() == ["Berlin", "Lyon", "Porto"]
    assert np.average(each["fedavg", 3], weights=tested) == pytest.approx(found["fedavg", 3])
    r = result.records
    mixed = r[(r["metric"] == "accuracy") & (r["round"] == 2) & (r["method"] == "fedavg") & (r["seed"] == 3)]
    assert len(mixed) == 3 + 3 + 1  # what a filter by metric and round takes for the number


def test_accuracy_of_new_clients(tmp_path: Path) -> None:
    result = idl.run(study(protocol="clients=new", seeds=[1]), tmp_path / "r", engine="sequential")
    assert result.accuracy().to_dict() == pytest.approx(by_hand(tmp_path / "r", "new", range(3, 4), [1.0]))
    assert result.client_accuracy().index.tolist() == ["Oslo"]
