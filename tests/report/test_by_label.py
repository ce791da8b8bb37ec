"""The table by label: means by hand from the records, on the page and in files."""

import math
import re

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect import cli, report
from idiolect.core.errors import InputError
from idiolect.report.by_label import _cells, by_label, measured
from idiolect.runs.reader import read

LABELS = ["cough", "fever", "rare"]


def study(**more) -> idl.Study:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": np.arange(160) % 3})
    frame["cough"] = (x[:, 0] > 0).astype(int)
    frame["fever"] = (x[:, 1] + 0.5 * draw.normal(size=160) > 0.5).astype(int)
    frame["rare"] = (np.arange(160) < 9).astype(int) * (frame["site"] == 1)
    source = idl.data.from_frame(frame, target="+".join(LABELS), client_column="site")
    return idl.Study(data=source, methods=["local", "fedavg", "fedrep"], rounds=2, lr=0.1, batch_size=20, **more)


@pytest.fixture(scope="module", params=[(0,), (0, 1)], ids=["one seed", "two seeds"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels") / "run"
    idl.run(study(seeds=request.param, measures=("auroc",)), folder, engine="sequential")
    return read(folder)


def of_all(r: pd.DataFrame, measure: str, label: str) -> set[tuple[int, int]]:
    """Seeds and clients for which all three methods have a value of a label."""
    there = r[(r["metric"] == f"{measure}[{label}]") & (r["round"] == 2) & (r["stage"] == "personalised")]
    there = there[there["value"].notna()].groupby(["seed", "client"])["method"].nunique()
    return set(there[there == 3].index)


@pytest.mark.parametrize("measure", ["f1", "auroc"])
def test_means_over_seeds_of_means_over_clients(run, measure):
    table, r = by_label(run, measure), run.records
    assert list(table.index) == LABELS
    assert list(table) == ["local", "fedavg", "fedrep"]
    for label in LABELS:
        for method in table:
            of = r[(r["method"] == method) & (r["metric"] == f"{measure}[{label}]") & (r["round"] == 2)]
            of = of[of["stage"] == "personalised"]
            of = of[[(seed, client) in of_all(r, measure, label) for seed, client in of[["seed", "client"]].to_numpy()]]
            means = [of[of["seed"] == seed]["value"].mean() for seed in sorted(of["seed"].unique())]
            expected = np.mean(means) if means else np.nan
            np.testing.assert_allclose(table.loc[label, method], expected)
    assert set(measured(run)) == {"f1", "auroc"}


def test_page_and_file(run, tmp_path, capsys):
    page = report.write([run.folder], tmp_path / "page.html").read_text()
    assert "F1 of each label, %, mean over clients" in page
    assert "AUROC of each label, %, mean over clients" in page
    assert "Average precision of each label" not in page
    best = by_label(run).loc["cough"].max()
    assert re.search(rf'class="number best" data-value="{re.escape(str(best))}">{100 * best:.1f}<', page)
    [path] = report.export(run.folder, "labels", tmp_path)
    table = pd.read_csv(path)
    assert list(table) == ["measure", "label", "local", "fedavg", "fedrep"]
    assert table["measure"].tolist() == ["f1"] * 3 + ["auroc"] * 3
    np.testing.assert_allclose(table[table["measure"] == "f1"][["local", "fedavg", "fedrep"]], by_label(run))
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(run.folder), "--export", "labels", "--columns", "label,fedavg", "--out", str(tmp_path)])
    assert ended.value.code == 0
    assert list(pd.read_csv(path)) == ["label", "fedavg"]
    with pytest.raises(InputError, match="there is no column 'fedvag' of labels; did you mean 'fedavg'"):
        report.export(run.folder, "labels", tmp_path, ["fedvag"])


def test_a_run_of_classes_has_none(tmp_path):
    folder = tmp_path / "run"
    idl.run(idl.Study(dataset="digits", clients=2, rounds=1, methods=["local"], partition="iid"), folder)
    with pytest.raises(InputError, match="has no samples with several labels"):
        report.export(folder, "labels", tmp_path)
    assert "of each label" not in report.write([folder], tmp_path / "page.html").read_text()


def test_a_client_counts_where_all_methods_have_a_value(make, tmp_path):
    """Client 1 lacks F1 with Local, which predicts no such label there; client 2 has no results of FedAvg at all."""
    made = make(["local", "fedavg"], 4, (0,), 1, classes=2)
    made.manifest |= {"task": "multilabel", "targets": ["cough", "fever"], "class_names": ["cough", "fever"]}
    made.drop(lambda row: row[4] == "personalised")
    for k, label in enumerate(["local", "fedavg"]):
        for client in range(4):
            if (label, client) == ("fedavg", 2):
                continue
            made.add(label, 0, 1, client, "personalised", "micro_f1", 0.5)
            made.add(label, 0, 1, client, "personalised", "f1[fever]", 0.4 + 0.1 * client + 0.05 * k)
            if (label, client) != ("local", 1):
                made.add(label, 0, 1, client, "personalised", "f1[cough]", 0.1 + 0.2 * client * (client != 1))
    table = by_label(read(made.save(tmp_path / "r")))
    assert table.loc["cough"].to_dict() == pytest.approx({"local": (0.1 + 0.7) / 2, "fedavg": (0.1 + 0.7) / 2})
    fever = (0.4 + 0.5 + 0.7) / 3
    assert table.loc["fever"].to_dict() == pytest.approx({"local": fever, "fedavg": fever + 0.05})


def test_means_that_differ_by_rounding_are_both_best():
    cells = _cells(np.array([0.75, 0.7500000000000001, 0.7501, math.nan]))
    assert [cell["best"] for cell in cells] == [False, False, True, False]
    assert [cell["best"] for cell in _cells(np.array([0.75, 0.7500000000000001]))] == [True, True]
