"""Validation samples: the number of a run that they give, and runs in which no test sample is measured."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import idiolect as idl
from idiolect import report
from idiolect.core.errors import InputError
from idiolect.data import FederatedData, from_arrays
from idiolect.studies.progress import Lines

SITES = ["Berlin", "Lyon", "Oslo", "Porto"]
rng = np.random.default_rng(0)
LABELS = rng.integers(0, 2, 120)
SAMPLES = rng.normal(LABELS[:, None], 1.5, (120, 4)).astype(np.float32)
OWNERS = np.repeat(SITES, [12, 24, 36, 48])


class Blind(idl.Study):
    """A study that measures no test sample."""

    def federation(self) -> FederatedData:
        return super().federation().without_test()


def study(kind: type[idl.Study] = idl.Study, protocol: str = "validation=0.25", **settings: Any) -> idl.Study:
    source = from_arrays(SAMPLES, LABELS, clients=OWNERS)
    how: dict[str, Any] = {"rounds": 3, "local_epochs": 1, "seeds": [3, 1], "methods": ["fedavg_ft", "fedavg"]}
    return kind(data=source, protocol=protocol, **how | {"evaluate_every": 1} | settings)


def by_hand(folder: Path, stage: str, weights: list[int] | None, best: bool) -> dict[tuple[str, int], float]:
    """The mean validation accuracy of the last round, or of the earliest best one."""
    r = pd.read_parquet(folder / "records.parquet")
    r = r[(r["metric"] == "validation_accuracy") & (r["stage"] == stage)]
    values: dict[tuple[str, int], float] = {}
    for key, part in r.groupby(["method", "seed"]):
        rounds = [
            float(np.average(one.sort_values("client")["value"], weights=weights))
            for _, one in sorted(part.groupby("round"), key=lambda pair: pair[0])
        ]
        values[key] = max(rounds) if best else rounds[-1]
    return values


@pytest.mark.parametrize("kind", [idl.Study, Blind])
@pytest.mark.parametrize(
    ("protocol", "stage", "weights", "best"),
    [
        ("validation=0.25", "personalised", None, False),
        ("validation=0.25,stage=received,round=best_validation", "received", None, True),
        ("validation=0.25,weighting=sample", "personalised", [2, 5, 7, 10], False),
        ("validation=0.25,weighting=sample,round=best_validation", "personalised", [2, 5, 7, 10], True),
    ],
)
def test_validation_is_the_protocols_mean(
    kind: type[idl.Study], protocol: str, stage: str, weights: list[int] | None, best: bool, tmp_path: Path
) -> None:
    result = idl.run(study(kind, protocol), tmp_path / "r", engine="sequential")
    series = result.validation()
    assert series.to_dict() == pytest.approx(by_hand(tmp_path / "r", stage, weights, best))
    assert series.index.names == ["method", "seed"]
    means = series.groupby("method").mean()
    assert {row.label: row.validation for row in result.rows()} == pytest.approx(means.to_dict())


def test_of_new_clients_validation_is_that_of_the_clients_that_train(tmp_path: Path) -> None:
    new = {"new_clients": "Oslo+", "seeds": [1]}
    for name, kind in (("whole", idl.Study), ("blind", Blind)):
        result = idl.run(study(kind, "validation=0.25,clients=new", **new), tmp_path / name, engine="sequential")
        assert result.validation().to_dict() == pytest.approx(by_hand(tmp_path / name, "personalised", None, False))
        stages = set(result.records["stage"])
        assert ("new" in stages) == (name == "whole")
        assert len(result.new_clients()) == 2 * (name == "whole")


def test_a_run_without_test_samples_shows_validation_alone(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    measures = ["auroc", "calibration"]
    result = idl.run(
        study(Blind, save_predictions=True, measures=measures), tmp_path / "r", engine="sequential",
        watcher=Lines(console),
    )  # fmt: skip
    r = result.records
    assert not r["value"].isna().any()
    assert set(r.loc[r["stage"] == "personalised", "metric"]) == {"validation_accuracy", "validation_loss"}
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    by_round = r[(r["metric"] == "validation_accuracy") & (r["method"] == "fedavg") & (r["seed"] == 1)]
    for number, value in by_round.groupby("round")["value"].mean().items():
        assert f"fedavg: seed 1, round {number}, validation accuracy {value:.1%}" in shown
    with pytest.raises(InputError, match=r"no test sample was measured in this run: call validation\(\)"):
        result.accuracy()
    with pytest.raises(InputError, match="no test sample was measured"):
        result.client_accuracy()
    rows = result.rows()
    assert {row.measured for row in rows} == {"validation"}
    assert {(row.calibration_error, row.brier) for row in rows} == {(None, None)}
    note = "No test sample was measured: all numbers are of validation samples."
    assert note in result.notes()
    table = Console(file=io.StringIO(), width=80)
    table.print(result.table())
    text = " ".join(table.file.getvalue().split())  # type: ignore[attr-defined]
    assert "Validation" in text
    assert "Validation accuracy after 3 rounds: mean over all clients" in text
    assert note in text
    assert "Test accuracy" not in text
    page = result.page.read_text()
    body = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert note in body
    assert "Validation accuracy over the rounds" in page
    assert ">Validation samples<" in body
    assert "Test accuracy" not in page
    assert "Validation accuracy: mean over all clients" in body
    bundle = result.bundle("fedavg", tmp_path / "bundle")
    assert {(part.test, part.personal) for part in bundle.about.evaluation.clients} == {(0, None)}
    assert ">ECE<" not in body
    clients = result.clients()
    assert clients["validation_samples"].tolist() == [2, 5, 7, 10]
    [written] = report.export(result.folder, "latex", tmp_path / "out")
    assert "Validation \\%" in written.read_text()
    assert note in written.read_text()
    [written] = report.export(result.folder, "clients", tmp_path / "out")
    assert written.name == "clients.csv"


def test_a_run_with_both_shows_both(tmp_path: Path) -> None:
    result = idl.run(study(), tmp_path / "r", engine="sequential")
    assert [c.field for c in report.columns_of(report.read(result.folder))][:2] == ["accuracy", "validation"]
    assert ">Validation %<" in result.page.read_text()
    [written] = report.export(result.folder, "csv", tmp_path / "out")
    table = pd.read_csv(written)
    assert table["validation"].to_list() == pytest.approx([row.validation for row in result.rows()])
    assert table["accuracy"].to_list() == pytest.approx([row.accuracy for row in result.rows()])
    assert set(table["measured"]) == {"test"}
    assert result.clients("validation_accuracy")["validation_samples"].tolist() == [2, 5, 7, 10]


def test_a_run_without_validation_samples_has_no_such_number(tmp_path: Path) -> None:
    result = idl.run(study(protocol="stage=personalised", seeds=[1]), tmp_path / "r", engine="sequential")
    with pytest.raises(InputError, match=r"no validation samples: give the study protocol='validation=0\.2'"):
        result.validation()
    assert "validation" not in [c.field for c in report.columns_of(report.read(result.folder))]
    assert {row.validation for row in result.rows()} == {None}
