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


def test_a_run_is_opened_again_by_its_folder(tmp_path: Path) -> None:
    table = pd.DataFrame(SAMPLES, columns=list("abcd")).assign(site=OWNERS, label=LABELS)
    table.to_csv(tmp_path / "t.csv", index=False)
    own = idl.Study(data=tmp_path / "t.csv", client_column="site", rounds=1, local_epochs=1, methods=["fedavg"])
    first = idl.run(own, tmp_path / "r", engine="sequential")
    again = idl.Result(str(tmp_path / "r"))
    assert again == first == idl.Result(tmp_path / "r", own)
    assert again.folder == tmp_path / "r"
    assert again.study == own
    pd.testing.assert_series_equal(again.score(), first.score())
    made = [result.bundle("fedavg", tmp_path / name) for result, name in ((first, "a"), (again, "b"))]
    weights = [{file.name: file.read_bytes() for file in one.folder.glob("*.safetensors")} for one in made]
    assert weights[0]
    assert weights[0] == weights[1]


def test_a_run_of_data_from_python_is_opened_again(tmp_path: Path) -> None:
    """Its numbers are there; its data are not."""
    given = study(seeds=[0], rounds=1)
    first = idl.run(given, tmp_path / "r", engine="sequential")
    again = idl.Result(tmp_path / "r")
    pd.testing.assert_series_equal(again.score(), first.score())
    with pytest.raises(idl.InputError, match="they were given in a Python program"):
        again.bundle("fedavg", tmp_path / "a")
    idl.Result(tmp_path / "r", given).bundle("fedavg", tmp_path / "a")


def test_what_is_no_run_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(idl.InputError, match=r"^there is no run folder .*nowhere: give the folder that a run wrote$"):
        idl.Result(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(idl.InputError, match=r"study\.yaml"):
        idl.Result(tmp_path / "empty")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "networks_of_mine.py").write_text(
        "from torch import nn\n"
        "def small(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU()), nn.Linear(4, classes)\n"
    )
    own = study(seeds=[0], rounds=1, model="networks_of_mine.small")
    first = idl.run(own, "r", engine="sequential")
    with pytest.raises(idl.InputError, match=r"networks_of_mine\.small is code, .* give allow_import=True$"):
        idl.Result("r")
    pd.testing.assert_series_equal(idl.Result("r", allow_import=True).score(), first.score())
