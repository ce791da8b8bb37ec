"""The measures that a study asks for: columns, what clients lack, and the calibration figure."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import idiolect as idl
from idiolect import report
from idiolect.data import from_arrays
from idiolect.report.figures.calibration import pooled
from idiolect.report.measures import header, why_missing, words
from idiolect.report.notes import said

BOTH = ["local", "fedavg"]
RATE = "sensitivity:specificity=0.9"


def hospitals(make: Any, tests: dict[str, list[int]], measures: list[str], values: Any, seeds: Any = (0,)) -> Any:
    """A run of two classes; ``values(method, seed, client, measure)`` are recorded, where they are not None."""
    made = make(BOTH, len(tests), seeds, classes=2)
    made.study |= {"measures": measures, "partition": {"name": "natural", "options": {"stratified": False}}}
    for k, (name, test) in enumerate(tests.items()):
        made.manifest["clients"][k] |= {"name": name, "test": test, "train": [4 * n + 3 for n in test]}
        for label in BOTH:
            for seed in seeds:
                for measure in measures:
                    if (value := values(label, seed, k, measure)) is not None:
                        made.add(label, seed, 7, k, "personalised", measure, value)
    return made


def shown(run: report.Run, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(report.render(report.summary(run), run.protocol, report.columns_of(run), notes=said(run)))
    return capture.get()


TESTS = {"oslo": [20, 10], "geneva": [0, 12], "porto": [9, 21], "lyon": [8, 8]}


def some(label: str, seed: int, k: int, measure: str) -> float | None:
    return None if k == 1 else 0.5 + 0.1 * k + 0.05 * (label == "fedavg") + 0.01 * seed + 0.2 * (measure == RATE)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_column_with_the_mean_and_a_line_about_who_lacks_it(make: Any, tmp_path: Path, seeds: Any) -> None:
    folder = hospitals(make, TESTS, ["auroc", RATE], some, seeds).save(tmp_path / "r")
    run = report.read(folder)
    want = {
        (label, m): np.mean([np.mean([some(label, s, k, m) for k in (0, 2, 3)]) for s in seeds])
        for label in BOTH for m in ("auroc", RATE)
    }  # fmt: skip
    rows = {row.label: row for row in report.summary(run)}
    assert {(label, m): rows[label].measures[m] for label, m in want} == pytest.approx(want)
    lack = "3 of 4 clients; geneva's test samples have one class."
    page = report.write([folder], tmp_path / "p.html").read_text(encoding="utf-8").partition("<script")[0]
    page = page.replace("&#39;", "'")
    text, tex = shown(run), report.export(folder, "latex")[0].read_text()
    for place in (" ".join(text.split()), page, tex):
        assert f"AUROC: {lack}" in place
        assert f"Sensitivity at specificity 0.9: {lack}" in place
    assert f"{100 * want['fedavg', 'auroc']:.1f}" in text
    assert (
        ("Try partition=.natural:stratified=true" in " ".join(text.split()).replace("'", "."))
        is ("Try partition=" in page)
        is True
    )
    assert "Try" not in tex, "not for a paper"
    with report.export(folder, "csv")[0].open() as lines:
        for line in csv.DictReader(lines):
            assert float(line["auroc"]) == pytest.approx(want[line["label"], "auroc"])
    chosen = report.export(folder, "latex", None, ["auroc", RATE])[0].read_text().splitlines()
    assert chosen[2] == r"Method & AUROC \% & Sens. at spec. 0.9 \% \\"


def test_clients_without_a_value_keep_their_row(make: Any, tmp_path: Path) -> None:
    tests = TESTS | {"bonn": [0, 0]}
    made = hospitals(make, tests, ["auroc", "sensitivity"], lambda m, s, k, name: None if k == 4 else some(m, s, k, ""))
    made.drop(lambda r: r[3] == 4 and r[4] == "personalised")
    made.drop(lambda r: r[3] == 3 and r[0] == "local" and r[5] == "auroc")
    for end, value in (("low", 0.4), ("high", 0.9)):
        made.add("fedavg", 0, 7, 0, "personalised", f"auroc_{end}", value)
    folder = made.save(tmp_path / "r")
    table = pd.read_csv(report.export(folder, "clients")[1], index_col="name", keep_default_na=False)
    assert list(table.index) == list(tests)
    assert table["missing"].to_dict() == {
        "oslo": "", "geneva": "its test samples have one class", "porto": "", "lyon": "no results of Local",
        "bonn": "no test samples",
    }  # fmt: skip
    assert (table.loc["geneva", "fedavg"], table.loc["lyon", "local"], table.loc["lyon", "best"]) == ("", "", "fedavg")
    assert [float(v) for v in table.loc["oslo", ["fedavg low", "fedavg high"]]] == [0.4, 0.9]
    page = report.write([folder], tmp_path / "p.html").read_text(encoding="utf-8").partition("<script")[0]
    tables = re.findall(r'<details class="all" open>.*?</details>', page, re.S)
    assert [t.count("</tr>") - 1 for t in tables] == [5, 5, 5]
    assert "its test samples have one class" in tables[1]
    assert "<small>40–90</small>" in tables[1]


def test_nobody_has_a_value(make: Any, tmp_path: Path) -> None:
    tests = {"oslo": [9, 0], "porto": [0, 9], "lyon": [4, 0]}
    folder = hospitals(make, tests, ["auroc"], lambda *_: None).save(tmp_path / "r")
    run = report.read(folder)
    assert {row.measures["auroc"] for row in report.summary(run)} == {None}
    assert report.notes(run) == ["AUROC: 0 of 3 clients; the test samples of oslo, porto, lyon have one class."]
    assert (
        pd.read_csv(report.export(folder, "clients")[1])["missing"].tolist() == ["its test samples have one class"] * 3
    )
    report.write([folder], tmp_path / "p.html")


def test_a_recall_of_a_class_that_is_not_there(make: Any, tmp_path: Path) -> None:
    tests = {"oslo": [9, 3], "porto": [6, 0], "lyon": [5, 0]}
    folder = hospitals(make, tests, ["sensitivity"], lambda m, s, k, _: 0.5 if k == 0 else None).save(tmp_path / "r")
    assert report.notes(report.read(folder)) == [
        "Sensitivity: 1 of 3 clients; porto, lyon: no test samples of class class 1."
    ]


@pytest.mark.parametrize(
    ("partition", "train", "want"),
    [
        ({"name": "natural", "options": {"stratified": False}}, [7, 40], "natural:stratified=true"),
        ("dirichlet:alpha=0.3,test_fraction=0.3", [7, 40],
         "dirichlet:alpha=0.3,test_fraction=0.3,stratified=true"),
        ("iid", [7, 40], "iid:stratified=true"),
        ("natural:stratified=true", [7, 40], None),
        ("natural:official_split=true", [7, 40], None),
        ("natural", [0, 40], None),  # the client has no other class
        ("natural", [1, 99], None),  # not enough of the other class
        ("no_such_partition", [7, 40], None),
    ],
)  # fmt: skip
def test_what_is_suggested_exists_and_helps(make: Any, tmp_path: Path, partition: Any, train: Any, want: Any) -> None:
    made = hospitals(make, TESTS, ["auroc"], some)
    made.study["partition"] = partition
    made.manifest["clients"][1]["train"] = train
    found = [text for text in said(report.read(made.save(tmp_path / "r"))) if text.startswith("Try")]
    assert [text.partition(": it divides")[0] for text in found] == ([f"Try partition={want!r}"] if want else [])


def test_the_suggestion_helps_in_a_run(tmp_path: Path) -> None:
    """A hospital with few samples of one class, of which the test samples have none; then, as suggested, they do."""
    rng = np.random.default_rng(0)
    label = np.concatenate([rng.integers(0, 2, 120), np.arange(40) < 4]).astype(int)
    source = from_arrays(
        rng.normal(label[:, None], 1.0, (160, 3)).astype(np.float32),
        label,
        clients=np.repeat(["berlin", "lyon", "oslo", "geneva"], 40),
    )
    how: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "methods": ["fedavg"], "measures": ["auroc", RATE]}
    seed = next(
        s for s in range(99)
        if len(set((f := idl.Study(data=source, data_seed=s).federation()).y_R[f.test[1]].tolist())) == 1
    )  # fmt: skip
    result = idl.run(idl.Study(data=source, data_seed=seed, **how), tmp_path / "a", engine="sequential")
    lacking = [name for name, value in result.clients("auroc")[["name", "fedavg"]].to_numpy() if math.isnan(value)]
    assert result.notes()[-1].startswith("Try partition='natural:stratified=true': ")
    better = idl.Study(data=source, data_seed=seed, partition="natural:stratified=true", **how)
    again = idl.run(better, tmp_path / "b", engine="sequential")
    assert "geneva" in lacking
    assert again.clients("auroc")["fedavg"].notna().all()
    assert not any("AUROC" in note or "Try partition" in note for note in again.notes())


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_the_terminal_has_room(make: Any, tmp_path: Path, count: int) -> None:
    """For every measure, in 80 columns; times and bytes give way."""
    names = ["auroc", RATE, "specificity:sensitivity=0.8", "average_precision", "sensitivity", "specificity",
             "sensitivity:specificity=0.5", "specificity:sensitivity=0.5"][:count]  # fmt: skip
    made = hospitals(make, TESTS, names, lambda *_: 0.875, (0, 1))
    run = report.read(made.save(tmp_path / "r"))
    text = shown(run)
    assert max(map(len, text.splitlines())) <= 80
    line = next(text for text in text.splitlines() if text.startswith("FedAvg"))
    assert line.count("87.5") == min(count, 5)
    there = "There is no room for Specificity %, Sens. at spec. 0.5 %, Spec. at sens. 0.5 %: see the page."
    assert (there in " ".join(text.split())) == (count == 8)
    assert "…" not in text


def test_recall_is_the_mean_over_the_classes_that_are_there(make: Any, tmp_path: Path) -> None:
    made = make(BOTH, 2, (0,), classes=3)
    made.study["measures"] = ["recall"]
    for k, c, value in ((0, 0, 0.2), (0, 1, 0.6), (1, 2, 0.9)):
        for label in BOTH:
            made.add(label, 0, 7, k, "personalised", f"recall[{c}]", value)
    run = report.read(made.save(tmp_path / "r"))
    assert [row.measures["recall"] for row in report.summary(run)] == pytest.approx([0.65, 0.65])
    assert not any("Recall" in note for note in report.notes(run))


def test_a_measure_counts_only_for_clients_that_count(make: Any, tmp_path: Path) -> None:
    """Those that one method lacks are left out of the measures of all."""
    made = hospitals(make, TESTS, ["auroc"], some)
    made.drop(lambda r: r[0] == "local" and r[3] == 0 and r[4] == "personalised")
    run = report.read(made.save(tmp_path / "r"))
    for row in report.summary(run):
        want = np.mean([some(row.label, 0, k, "auroc") for k in (2, 3)])
        assert row.measures["auroc"] == pytest.approx(want)
    assert "AUROC: 2 of 3 clients; geneva's test samples have one class." in report.notes(run)


def test_names() -> None:
    assert (words("average_precision"), header("sensitivity")) == ("Average precision", "Sensitivity %")
    assert header("specificity:sensitivity=0.8") == "Spec. at sens. 0.8 %"


def test_calibration_is_pooled_over_samples(make: Any, tmp_path: Path) -> None:
    made = hospitals(make, TESTS, [], some, (0, 1))
    made.study["measures"] = ["calibration"]
    bins = {(0, 3): (10, 0.32, 0.4), (2, 3): (30, 0.36, 0.2), (0, 9): (5, 0.97, 1.0)}
    for label in BOTH:
        for seed in (0, 1):
            for (k, b), numbers in bins.items():
                for what, value in zip(("count", "predicted", "observed"), numbers, strict=True):
                    made.add(label, seed, 7, k, "personalised", f"calibration_{what}[{b}]", value)
    run = report.read(made.save(tmp_path / "r"))
    found = pooled(run).set_index(["method", "bin"])
    assert found.loc[("fedavg", 3)].to_dict() == pytest.approx({"count": 40, "predicted": 0.35, "observed": 0.25})
    assert found.loc[("local", 9)].to_dict() == pytest.approx({"count": 5, "predicted": 0.97, "observed": 1.0})
    page = report.write([run.folder], tmp_path / "p.html").read_text(encoding="utf-8")
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.S)[1])
    assert {"run1-calibration", "run1-calibration-counts"} <= set(specs)
    assert "measures" not in report.columns_of(run)
    names = {path.name for path in report.export(run.folder, "png", tmp_path / "png")}
    assert {"calibration.png", "calibration-counts.png"} <= names


def test_reasons_of_many_clients_are_found_in_one_walk(make: Any, tmp_path: Path) -> None:
    class Walked(list[Any]):
        walks = 0

        def __iter__(self) -> Any:
            self.walks += 1
            return super().__iter__()

    run = report.read(make(BOTH, 40, (0,), 1).save(tmp_path / "r"))
    run.manifest["clients"][7]["test"] = [0] * 10
    clients = run.manifest["clients"] = Walked(run.manifest["clients"])
    reasons = [why_missing(run, k, "accuracy") for k in range(40)]
    assert [k for k, why in enumerate(reasons) if why == "no test samples"] == [7]
    assert clients.walks == 1
