"""The table by label: means by hand from the records, on the page and in files."""

import re

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect import cli, report
from idiolect.core.errors import InputError
from idiolect.report.by_label import by_label, measured
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


@pytest.mark.parametrize("measure", ["f1", "auroc"])
def test_means_over_seeds_of_means_over_clients(run, measure):
    table, r = by_label(run, measure), run.records
    assert list(table.index) == LABELS
    assert list(table) == ["local", "fedavg", "fedrep"]
    for label in LABELS:
        for method in table:
            of = r[(r["method"] == method) & (r["metric"] == f"{measure}[{label}]") & (r["round"] == 2)]
            of = of[of["stage"] == "personalised"]
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
