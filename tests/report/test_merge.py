"""Two runs of the same clients in one table, and columns of tables."""

from __future__ import annotations

import csv
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from idiolect import report
from idiolect.core.errors import InputError
from idiolect.report import export


def final(made: Any, label: str) -> dict[int, float]:
    """The last accuracies of a run with one seed, by client."""
    last = max(r[2] for r in made.records if r[0] == label and r[5] == "accuracy")
    return {r[3]: r[6] for r in made.records if r[0] == label and r[5] == "accuracy" and r[2] == last}


def two(make: Any, tmp_path: Path, **changed: Any) -> tuple[Any, Any, list[Path]]:
    """Runs of Local and FedAvg, and of FedAvg and FedPAC, on the same five clients; the second with other settings."""
    a, b = make(["local", "fedavg"], 5, (0,)), make(["fedavg", "fedpac"], 5, (0,))
    b.study |= changed
    return a, b, [a.save(tmp_path / "slow"), b.save(tmp_path / "fast")]


def test_one_table_of_both(make: Any, tmp_path: Path) -> None:
    a, b, folders = two(make, tmp_path, lr=0.1)
    (path,) = export(folders, "csv", tmp_path)
    with path.open() as text:
        rows = {row["label"]: row for row in csv.DictReader(text)}
    want = {
        "local": final(a, "local"), "fedavg (slow)": final(a, "fedavg"), "fedavg (fast)": final(b, "fedavg"),
        "fedpac": final(b, "fedpac"),
    }  # fmt: skip
    assert {k: float(row["accuracy"]) for k, row in rows.items()} == pytest.approx(
        {k: sum(v.values()) / 5 for k, v in want.items()}
    )
    assert rows["fedavg (fast)"]["title"] == "FedAvg (fast)"
    gains = {k: 100 * (sum(v.values()) - sum(want["fedavg (slow)"].values())) / 5 for k, v in want.items()}
    assert {k: float(row["versus_fedavg"]) for k, row in rows.items()} == pytest.approx(gains)
    tex = export(folders, "latex", tmp_path)[0].read_text()
    assert "The runs differ in lr: not given in slow, 0.1 in fast." in tex
    assert "vs FedAvg is against FedAvg (slow)." in tex
    clients = pd.read_csv(export(folders, "clients", tmp_path)[0], index_col="client")
    assert clients["fedavg (fast)"].to_dict() == pytest.approx(want["fedavg (fast)"])


def test_methods_of_two_runs_are_compared(make: Any, tmp_path: Path) -> None:
    a, b, folders = two(make, tmp_path)
    for method, base, of, to in (
        ("fedpac", "local", final(b, "fedpac"), final(a, "local")),
        ("fedavg (fast)", "fedavg (slow)", final(b, "fedavg"), final(a, "fedavg")),
        ("FedAvg (fast)", "local", final(b, "fedavg"), final(a, "local")),
    ):
        found = report.compare(report.merged(folders), method, base)
        assert found.difference == pytest.approx(20 * (sum(of.values()) - sum(to.values())))
        assert found.better == sum(of[c] > to[c] for c in of)


def test_methods_that_stopped_after_patience_of_their_own_are_compared(make: Any, tmp_path: Path) -> None:
    a, b = make(["local", "fedavg"], 5, (0,), rounds=5), make(["fedpac"], 5, (0,), rounds=7)
    a.study["patience"], b.study["patience"] = 3, 5
    run = report.merged([a.save(tmp_path / "a"), b.save(tmp_path / "b")])
    found = report.compare(run, "fedpac", "fedavg")
    assert found.better + found.worse + found.equal == 5


def test_clients_that_one_run_lacks_do_not_count(make: Any, tmp_path: Path) -> None:
    a, b = make(["local", "fedavg"], 5, (0,)), make(["fedpac"], 5, (0,))
    b.drop(lambda r: r[3] == 2 and r[4] == "personalised")
    run = report.merged([a.save(tmp_path / "a"), b.save(tmp_path / "b")])
    rows = {row.label: row.accuracy for row in report.summary(run)}
    assert rows["local"] == pytest.approx(sum(v for c, v in final(a, "local").items() if c != 2) / 4)
    assert "Not counted: 2 (no results of FedPAC)" in report.notes(run)[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"protocol": {"weighting": "sample"}}, "the protocol's weighting is client in slow and sample in fast"),
        ({"protocol": {"stage": "received"}}, "the protocol's stage is personalised in slow and received in fast"),
        (
            {"protocol": {"validation": 0.2, "threshold": "f1"}},
            "the protocol's threshold is half in slow and f1 in fast",
        ),
        ({"partition": "iid"}, "partition is dirichlet (alpha 0.3) in slow and iid in fast, so their samples differ"),
        ({"shifts": ["rotate:degrees=90"]}, "shifts is not given in slow and rotate (degrees 90) in fast, so their"),
        ({"data_seed": 3}, "data_seed is not given in slow and 3 in fast, so their samples differ"),
        ({}, "the clients of slow and fast have other samples"),
    ],
)
def test_other_clients_or_another_protocol(make: Any, tmp_path: Path, changed: Any, said: str) -> None:
    a, b, folders = two(make, tmp_path)
    b.study |= changed
    if "validation" in changed.get("protocol", {}):
        a.study["protocol"] = {"validation": changed["protocol"]["validation"]}
        a.save(tmp_path / "slow")
    if "protocol" not in changed:
        b.manifest["hash"] = "1" * 16
    b.save(tmp_path / "fast")
    for ask in (lambda: report.merged(folders), lambda: export(folders, "latex", tmp_path / "new")):
        with pytest.raises(InputError, match="slow and fast cannot stand in one table: " + re.escape(said)):
            ask()  # type: ignore[no-untyped-call]
    assert not (tmp_path / "new").exists()


def test_what_a_protocol_records_besides_keeps_no_runs_apart(make: Any, tmp_path: Path) -> None:
    a, b, folders = two(make, tmp_path, protocol={"also": ["received"], "observe": ["gaussianity"]})
    rows = {row.label: row.score for row in report.summary(report.merged(folders))}
    assert rows["local"] == pytest.approx(sum(final(a, "local").values()) / 5)
    assert rows["fedpac"] == pytest.approx(sum(final(b, "fedpac").values()) / 5)


def test_the_same_run_twice_and_folders_of_the_same_name(make: Any, tmp_path: Path) -> None:
    folder = make(["fedavg"], 5, (0,)).save(tmp_path / "a/r")
    with pytest.raises(InputError, match="a run is given twice: give each run once"):
        report.merged([folder, tmp_path / "a/../a/r"])
    other = make(["fedavg"], 5, (0,)).save(tmp_path / "b/r")
    assert list(report.merged([folder, other]).titles) == [f"fedavg ({folder})", f"fedavg ({other})"]


@pytest.mark.parametrize(
    ("names", "places", "starts"),
    [
        (("demo", "demo"), ("slow", "fast"), ("demo-slow-", "demo-fast-")),
        (("demo", "other"), ("slow", "fast"), ("demo-", "other-")),
        (("a b", "a-b"), ("slow", "fast"), ("a-b-1-", "a-b-2-")),
        (("Demo", "demo"), ("slow", "fast"), ("Demo-1-", "demo-2-")),
        (("demo", "demo"), ("x/r", "y/r"), None),
    ],
)
def test_pictures_of_several_runs_have_files_of_their_own(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Any, places: Any, starts: Any
) -> None:
    monkeypatch.setattr(import_module("idiolect.report.export"), "_png", lambda spec, width: repr(spec).encode())
    runs = [make(["local", "fedavg"], 5, (0,), 1, name) for name in names]
    folders = [run.save(tmp_path / place) for run, place in zip(runs, places, strict=True)]
    alone = [path.name for path in export(folders[0], "png", tmp_path / "alone")]
    paths = export(folders, "png", tmp_path / "both")
    assert len(set(paths)) == len(paths) == 2 * len(alone)
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "both").iterdir()}
    if starts:
        assert [path.name for path in paths] == [f"{start}{name}" for start in starts for name in alone]


def test_no_runs_no_pictures(tmp_path: Path) -> None:
    assert report.pictures([], tmp_path) == []


def test_a_page_tells_runs_of_one_name_and_folders_of_one_name_apart(make: Any, tmp_path: Path) -> None:
    folders = [make(["local"], 2, (0,), 1).save(tmp_path / place) for place in ("x/r", "y/r")]
    page = report.write(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    for folder in folders:
        assert f"demo ({folder})" in page


@pytest.mark.parametrize(
    ("names", "headers"),
    [
        (["accuracy", "worst"], ["Accuracy \\%", "Worst client"]),
        (["worst_decile", "accuracy"], ["Worst client", "Accuracy \\%"]),
        (["vs_fedavg", "ece", "seeds"], ["vs FedAvg", "ECE", "Seeds"]),
        (["bytes", "bytes_per_round", "time"], ["Bytes per round", "Time"]),
    ],
)
def test_columns_of_the_latex_table(make: Any, tmp_path: Path, names: list[str], headers: list[str]) -> None:
    folder = make(["local", "fedavg"], 5, (0,)).save(tmp_path / "r")
    lines = export(folder, "latex", None, names)[0].read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{l" + len(headers) * "r" + "}"
    assert lines[2] == " & ".join(["Method", *headers]) + r" \\"


def test_columns_of_the_other_tables(make: Any, tmp_path: Path) -> None:
    folder = make(["local", "fedavg"], 5, (0,)).save(tmp_path / "r")
    text = export(folder, "csv", None, ["worst", "accuracy", "clients"])[0].read_text()
    assert text.splitlines()[0] == "label,title,worst_decile,accuracy,clients"
    text = export(folder, "clients", None, ["name", "fedavg"])[0].read_text()
    assert text.splitlines()[0] == "client,name,fedavg"


@pytest.mark.parametrize(
    ("form", "name", "said"),
    [
        (
            "latex",
            "acuracy",
            "no column 'acuracy'; did you mean 'accuracy'? Known: accuracy, per_client, .*worst",
        ),
        ("csv", "left", "no column 'left'; .*left_out"),
        ("clients", "fedpac", "no column 'fedpac' of clients; .*fedavg"),
        ("png", "accuracy", "columns.* chooses columns of a table, and png has none"),
    ],
)
def test_a_column_that_is_not_there(make: Any, tmp_path: Path, form: Any, name: str, said: str) -> None:
    folder = make(["local", "fedavg"], 5, (0,)).save(tmp_path / "r")
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        export(folder, form, tmp_path / "new", ["accuracy" if form != "clients" else "name", name])
    assert not (tmp_path / "new").exists()
