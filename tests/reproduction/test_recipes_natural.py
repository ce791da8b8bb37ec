"""The benchmark of natural clients: its sources, and small files of the same form run from the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

import idiolect as idl
from idiolect import cli, report
from idiolect.core.arrow_tables import to_frame
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.files import expanded
from idiolect.core.objectives import number
from idiolect.report.by_client import _merit
from idiolect.reproduction import outcome_files, recipes, searches, seed_runs
from idiolect.reproduction.outcomes import SeedResult, outcome_of, seed_result
from idiolect.reproduction.recipes import Cell
from idiolect.reproduction.recipes.natural import SOURCES
from idiolect.runs import predictions
from idiolect.simulation.errors_of_numbers import of_predictions

# R samples, F features

REAL = Path(os.environ.get("IDIOLECT_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
RECIPE = "natural/table1"


def cells(**where: str) -> list[Cell]:
    return [c for c in recipes.get(RECIPE).cells if where.items() <= c.where.items()]


def hospitals(folder: Path) -> None:
    """Three hospitals as the published files are: no header, a question mark for what is missing, five grades."""
    rng = np.random.default_rng(5)
    (folder / "heart").mkdir(parents=True)
    for shift, name in enumerate(["cleveland", "hungarian", "va"]):
        x_RF = rng.normal(size=(60, 13)).round(2)
        grade_R = np.clip(np.round(x_RF[:, 0] + shift / 2 + rng.normal(size=60)), 0, 4).astype(int)
        rows = [[*map(str, x_F), str(g)] for x_F, g in zip(x_RF, grade_R, strict=True)]
        rows[7][4] = "?"
        (folder / "heart" / f"{name}.data").write_text("\n".join(map(",".join, rows)) + "\n")


def schools(folder: Path) -> None:
    rng = np.random.default_rng(6)
    folder.mkdir()
    x_RF, school_R = rng.normal(size=(120, 4)), np.repeat([11, 12, 13], 40)
    score_R = 20 + 5 * x_RF @ [1, -1, 0.5, 0] + school_R - 12 + rng.normal(size=120)
    frame = pd.DataFrame(x_RF, columns=list("abcd")).assign(school=school_R, score=score_R)
    frame.to_parquet(folder / "school.parquet")


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str) -> tuple[Any, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "natural"


def reproduced(run_cli: Any, tmp_path: Path, *options: str) -> dict[str, Any]:
    code, out, err = run_cli(
        "reproduce", RECIPE, *options, "--out", str(tmp_path / "runs"), "--engine", "sequential", "--json"
    )
    assert code == 0, err
    return json.loads(out)


def test_hospitals_from_files_to_a_tuned_table(run_cli: Any, small: Path, tmp_path: Path) -> None:
    hospitals(small)
    options = ("--only", "source=heart", "--methods", "local,fedavg", "--seeds", "3,4", "--rounds", "3")
    shown = reproduced(run_cli, tmp_path, *options)["cells"]
    assert [c["where"] for c in shown] == [
        {"source": "heart", "method": "local"}, {"source": "heart", "method": "fedavg"},
    ]  # fmt: skip
    rates = next(iter(recipes.get(RECIPE).tuned.values.values()))["lr"]  # type: ignore[union-attr]
    for one in shown:
        assert one["published"] is None
        assert one["tuned"]["values"]["lr"] in rates
        assert 0 <= one["tuned"]["score"] <= 1
        (search,) = (tmp_path / "runs").glob(f"heart-{one['where']['method']}-tune-*")
        trials = json.loads((search / "trials.json").read_text())
        assert sorted(t["values"]["lr"] for t in trials) == sorted(rates)
        values = {}
        for folder in (tmp_path / "runs").glob(f"heart-{one['where']['method']}-*"):
            if folder != search:
                run = report.read(folder)
                values[run.study["seeds"][0]] = 100 * run.last_of("auroc")["value"].mean()
        assert one["seeds"] == pytest.approx({str(k): v for k, v in sorted(values.items())})


def test_the_number_is_the_area_under_the_roc_curve_of_each_hospital(small: Path, tmp_path: Path) -> None:
    hospitals(small)
    (cell,) = cells(source="heart", method="local")
    assert cell.study is not None
    study = cell.study.model_copy(update={"rounds": 2, "save_predictions": True, "evaluate_every": 2})
    idl.run(study, tmp_path / "run", engine="sequential")
    result = seed_result(cell, tmp_path / "run")
    frame = to_frame(predictions.read(tmp_path / "run"))
    for client, own in frame.groupby("client"):
        theirs = 100 * roc_auc_score(own["label"], own["probability[1]"])
        assert result.clients[int(client)] == pytest.approx(theirs)
        if result.low:
            assert result.low[int(client)] <= theirs <= result.high[int(client)]
    assert result.value == pytest.approx(np.mean(list(result.clients.values())))
    right_R = frame["label"] == (frame["probability[1]"] > frame["probability[0]"])
    assert result.facts["accuracy"] == pytest.approx(100 * right_R.groupby(frame["client"]).mean().mean())


def test_a_hospital_that_comes_later_is_the_only_one_measured(run_cli: Any, small: Path, tmp_path: Path) -> None:
    hospitals(small)
    options = ("--only", "source=heart_new", "--methods", "fedavg", "--rounds", "2")
    (one,) = reproduced(run_cli, tmp_path, *options)["cells"]
    assert "new clients" in one["protocol"]
    (folder,) = (f for f in (tmp_path / "runs").glob("heart_new-fedavg-*") if "tune" not in f.name)
    run = report.read(folder)
    new = run.select("new", "auroc")
    assert [c["name"] for c in run.manifest["clients"] if c["id"] in set(new["client"])] == ["va"]
    assert one["measured"] == pytest.approx(100 * new["value"].mean())


def test_schools_are_measured_by_their_squared_error(run_cli: Any, small: Path, tmp_path: Path) -> None:
    schools(small)
    options = ("--only", "source=schools", "--methods", "local,fedshrink", "--rounds", "3", "--export", "csv")
    shown = run_cli("reproduce", RECIPE, *options, "--out", str(tmp_path / "runs"), "--engine", "sequential")
    assert shown[0] == 0, shown[2]
    assert "MSE: mean over all clients" in shown[1]
    assert "MSE (%)" not in shown[1]
    assert "paper" not in shown[1]
    (folder,) = (f for f in (tmp_path / "runs").glob("schools-local-*") if "tune" not in f.name)
    run = report.read(folder)
    (result,) = [r for r in pd.read_csv(tmp_path / "runs" / "natural-table1" / "table.csv").to_dict("records")
                 if r["method"] == "local"]  # fmt: skip
    assert result["measured"] == pytest.approx(run.last_of("mse")["value"].mean())
    assert result["worst_decile"] == pytest.approx(run.last_of("mse")["value"].max())
    rows = report.by_client(run)
    low = run.last_of("mse_low").set_index("client")["value"]
    assert [
        r.intervals["local"][0] if "local" in r.intervals else next(iter(r.intervals.values()))[0] for r in rows
    ] == (pytest.approx([low[r.client] for r in rows]))


def test_the_page_shows_the_intervals_of_errors_as_they_are(small: Path, tmp_path: Path) -> None:
    schools(small)
    (cell,) = cells(source="schools", method="local")
    assert cell.study is not None
    study = cell.study.model_copy(update={"rounds": 2, "protocol": Protocol(validation=0.3)})
    folder = idl.run(study, tmp_path / "run", engine="sequential").folder
    text = (folder / "report.html").read_text(encoding="utf-8")
    for row in report.by_client(report.read(folder)):
        (low, high) = next(iter(row.intervals.values()))
        assert f"<small>{number(low)}–{number(high)}</small>" in text
    covered = report.by_client(report.read(folder), "coverage")
    assert all(row.best for row in covered)


def test_of_two_coverages_the_one_nearer_to_the_level_is_best() -> None:
    value_MK = np.array([[1.0, 0.5, 0.9], [0.88, 0.7, 0.92]])
    assert _merit("coverage", value_MK).argmax(0).tolist() == [1, 1, 0]
    assert _merit("interval_score", value_MK).argmax(0).tolist() == [1, 0, 0]
    assert _merit("r2", value_MK).argmax(0).tolist() == [0, 1, 1]


def test_results_are_kept_with_each_clients_interval_and_read_again(run_cli: Any, small: Path, tmp_path: Path) -> None:
    schools(small)
    (cell,) = cells(source="schools", method="local")
    table = searches.tuned_recipe(recipes.get(RECIPE))
    assert table.name == RECIPE
    (opened,) = searches.with_searches(table, [cell])
    assert opened.search is not None
    assert opened.search.trials == len(opened.search.values["lr"])
    seed_runs_of = seed_runs.seed_runs(cell, tmp_path, seeds=[7])
    assert seed_runs_of[0].folder.name.startswith("schools-local-")
    one = SeedResult(99.5, 30, {"per_client": 99.5}, {0: 90.0, 1: 109.0}, {0: 80.0}, {0: 101.0})
    settled = searches.with_choice(opened, recipes.Choice({"lr": 0.06}, 1.5, seed_runs.digest(cell.study)))  # type: ignore[arg-type]
    outcome_files.keep(table, outcome_of(settled, {7: one}), tmp_path / "results")
    again = outcome_files.kept_results(table, opened, tmp_path / "results")
    assert again == {7: one}


def test_a_variable_that_is_not_set_is_one_sentence(
    run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    options = ("--only", "source=schools", "--methods", "local", "--out", str(tmp_path))
    code, out, err = run_cli("reproduce", RECIPE, *options)
    assert code == 1
    assert "IDIOLECT_DATA of the environment is not set: set it, or write the path out" in err
    code, out, _ = run_cli("reproduce", RECIPE, *options, "--dry-run")
    assert code == 0
    assert "No time is known yet" in out
    assert "docs/results/natural.md" in out


@pytest.mark.parametrize("text", ["$PLACE/a.csv", "${PLACE}/a.csv", "$PLACE/$OTHER.csv"])
def test_variables_in_paths(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("OTHER", "a")
    assert expanded(text) == tmp_path / "a.csv"
    odd = tmp_path / "$PLACE.csv"
    odd.touch()
    assert expanded(odd) == odd


def test_every_source_has_its_page_and_the_same_trials() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "natural.md").read_text(encoding="utf-8")
    table = searches.tuned_recipe(recipes.get(RECIPE))
    opened = searches.with_searches(table, table.cells)
    assert len({c.search.trials for c in opened if c.search}) == 1
    assert all(c.search for c in opened)
    for name in SOURCES:
        assert f"\n## {name.replace('_', ' ').capitalize()}" in page
        studies = [c.study for c in table.cells if c.where["source"] == name]
        without = {"methods", "protocol"}
        assert len({s.model_dump_json(exclude=without) for s in studies if s}) == 1


@pytest.mark.parametrize(
    ("name", "clients", "samples"),
    [("heart", 4, 920), ("phones", 36, 5418), ("regions", 5, 501), ("schools", 139, 15362), ("drawers", 20, 2720)],
)
def test_the_real_files(name: str, clients: int, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (REAL / "natural").is_dir():
        pytest.skip("the real files are not here: set IDIOLECT_DATA to the folder that holds natural")
    monkeypatch.setenv("IDIOLECT_DATA", str(REAL))
    (cell,) = cells(source=name, method="local")
    assert cell.study is not None
    federation = cell.study.federation()
    assert len(federation.train) == clients
    assert sum(len(federation.train[k]) + len(federation.test[k]) for k in range(clients)) == samples


def test_the_interval_of_a_squared_error_is_students() -> None:
    rng = np.random.default_rng(8)
    for rows, columns in ((5, 1), (40, 1), (12, 3)):
        value, y = rng.normal(size=(2, rows, columns))
        error = ((value - y) ** 2).mean(1)
        low, high = stats.t.interval(0.95, rows - 1, error.mean(), stats.sem(error))
        mine = of_predictions(torch.tensor(value), torch.tensor(y), [str(k) for k in range(columns)])
        assert (mine["mse_low"], mine["mse_high"]) == pytest.approx((max(0, low), high))
    assert "mse_low" not in of_predictions(torch.zeros(1, 1), torch.ones(1, 1))
