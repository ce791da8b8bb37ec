"""Methods are compared over the clients that all of them have. The oracle is a plain loop over the records."""

from __future__ import annotations

import csv
import dataclasses
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import idiolect as idl
from idiolect import report
from idiolect.report.common_clients import counted, left_out

METHODS = ["local", "fedavg", "fedpac"]


def gap(method: str, client: int, *, seed: int | None = None, after: int = 0) -> Any:
    """Records that are dropped: what a client is measured to have with a method, after a round."""
    return lambda r: (
        r[0] == method and r[3] == client and seed in (None, r[1]) and r[2] > after and r[4] == "personalised"
    )


def cells(made: Any) -> dict[int, dict[str, dict[int, float]]]:
    """By seed and method, the accuracies of the method's last evaluated round with this seed."""
    tested = {c["id"] for c in made.manifest["clients"] if sum(c["test"])}
    found: dict[int, dict[str, dict[int, float]]] = {}
    for method, seed, r, client, stage, metric, value, _ in made.records:
        if (stage, metric) == ("personalised", "accuracy") and not math.isnan(value) and client in tested:
            found.setdefault(seed, {}).setdefault(method, {}).setdefault(r, {})[client] = value
    return {s: {m: rounds[max(rounds)] for m, rounds in each.items()} for s, each in found.items()}


def by_hand(made: Any) -> dict[str, dict[str, float]]:
    """Accuracy, spread, worst client and gain over FedAvg of each method, over the clients that all have."""
    means: dict[str, list[tuple[float, float, float, float]]] = {}
    for each in cells(made).values():
        common = set.intersection(*(set(v) for v in each.values()))
        at = {m: [v[c] for c in sorted(common)] for m, v in each.items()}
        for m, values in at.items():
            middle = sum(values) / len(values)
            spread = math.sqrt(sum((v - middle) ** 2 for v in values) / len(values))
            means.setdefault(m, []).append(
                (middle, spread, min(values), 100 * (middle - sum(at["fedavg"]) / len(values)))
            )
    names = ("accuracy", "std", "worst_decile", "versus_fedavg")
    return {
        m: {name: sum(column) / len(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        for m, rows in means.items()
    }


def terminal(run: report.Run, width: int = 300) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        said = run.protocol.said(report.whose(run))
        console.print(
            report.render(report.summary(run), said, report.columns_of(run), notes=["x" * 200, *report.notes(run)])
        )
    return " ".join(capture.get().split())


CASES = {
    "one site absent at the end of one method": ([gap("fedavg", 2, after=5)], (0,), "2 (no results of FedAvg)"),
    "a site that refuses a method": ([gap("fedpac", 0)], (0, 1), "0 (no results of FedPAC)"),
    "one seed": ([gap("fedavg", 3, seed=1)], (0, 1), "3 (no results of FedAvg with seed 1)"),
    "two clients, two methods": (
        [gap("fedavg", 1), gap("local", 4), gap("fedpac", 4)],
        (0, 1, 2),
        "1 (no results of FedAvg); 4 (no results of Local and FedPAC)",
    ),
    "nowhere": ([gap(m, 5) for m in METHODS], (0,), "5 (no results)"),
    "different seeds, different clients": (
        [gap("fedavg", 1, seed=0), gap("fedpac", 2, seed=1)],
        (0, 1),
        "1 (no results of FedAvg with seed 0); 2 (no results of FedPAC with seed 1)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_over_the_clients_that_all_methods_have(make: Any, tmp_path: Path, case: str) -> None:
    gaps, seeds, named = CASES[case]
    made = make(METHODS, 6, seeds)
    for gone in gaps:
        made.drop(gone)
    folder = made.save(tmp_path / "run")
    run, want = report.read(folder), by_hand(made)
    rows = {row.label: row for row in report.summary(run)}
    for label, numbers in want.items():
        for name, value in numbers.items():
            assert getattr(rows[label], name) == pytest.approx(value, abs=1e-12), (label, name)
    means = report.scores(run).groupby("method").mean().to_dict()
    assert means == pytest.approx({label: numbers["accuracy"] for label, numbers in want.items()})
    for c in report.comparisons(run):
        assert c.difference == pytest.approx(100 * (rows[c.method].accuracy - rows[c.base].accuracy), abs=1e-6)
        assert c.base_worst_decile == pytest.approx(rows[c.base].worst_decile)
    # it is said wherever the numbers are
    page = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    (tex,), (table,) = report.export(folder, "latex", tmp_path), report.export(folder, "csv", tmp_path)
    for text in (terminal(run), page, tex.read_text()):
        assert f"Not counted: {named}." in text
    with table.open() as lines:
        for line in csv.DictReader(lines):
            assert line["left_out"] == named
            assert float(line["accuracy"]) == pytest.approx(want[line["label"]]["accuracy"])
    never = sum(c.never for c in left_out(run))
    total = f"mean over {6 - never} of 6 clients" if never else "mean over all clients"
    assert total in terminal(run)
    assert total in page
    assert rows["fedavg"].clients == 6 - never


def test_weighted_by_samples(make: Any, tmp_path: Path) -> None:
    made = make(METHODS, 5, (0,))
    made.study["protocol"] = {"weighting": "sample"}
    made.drop(gap("fedpac", 1))
    size = {c["id"]: sum(c["test"]) for c in made.manifest["clients"]}
    rows = {r.label: r for r in report.summary(report.read(made.save(tmp_path / "run")))}
    for label, end in cells(made)[0].items():
        want = sum(end[c] * size[c] for c in (0, 2, 3, 4)) / sum(size[c] for c in (0, 2, 3, 4))
        assert rows[label].accuracy == rows[label].per_sample == pytest.approx(want)


def test_a_missing_last_round_takes_no_older_one(make: Any, tmp_path: Path) -> None:
    """Not of the accuracy, and not of another measure that is defined in no client's last round."""
    made = make(METHODS, 4, (0,), rounds=10)
    made.drop(gap("fedavg", 3, after=5))
    for r, value in ((5, 0.1), (10, 0.2)):
        for client in range(4):
            for label in METHODS:
                if (label, r) != ("fedavg", 10):
                    made.add(label, 0, r, client, "personalised", "calibration_error", value)
    run = report.read(made.save(tmp_path / "run"))
    assert set(counted(run)["client"]) == {0, 1, 2}
    assert set(run.final["round"]) == {10}
    assert [row.calibration_error for row in report.summary(run)] == [pytest.approx(0.2), None, pytest.approx(0.2)]


def test_clients_without_test_samples_are_named(make: Any, tmp_path: Path) -> None:
    made = make(METHODS, 5, (0,))
    for k, name in ((1, "Oslo"), (4, "Porto")):
        made.manifest["clients"][k] |= {"test": [0] * 10, "name": name}
        made.drop(lambda r, k=k: r[3] == k and r[4] == "personalised")
    run = report.read(made.save(tmp_path / "run"))
    assert (
        "Numbers are over 3 of 5 clients, the same for every method. Not counted: Oslo, Porto (no test samples)."
        in (terminal(run))
    )


def test_many_clients_are_counted_not_listed(make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg"], 40, (0,))
    made.drop(lambda r: r[0] == "fedavg" and r[3] >= 20 and r[4] == "personalised")
    (said,) = report.notes(report.read(made.save(tmp_path / "run")))
    assert said.endswith("20 of 40 clients, the same for every method. Not counted: 20, 21, 22, 23, 24 and 15 more "
                         "(no results of FedAvg).")  # fmt: skip


@pytest.mark.parametrize(
    ("owners", "said", "numbers"),
    [
        ({"local": {0, 1}, "fedavg": {2, 3}, "fedpac": set()}, "Local and FedAvg share no client with another", {}),
        ({"local": {0, 1, 2}, "fedavg": {1, 2}, "fedpac": {3}}, "FedPAC shares no client with another method, so it",
         {"local": {1, 2}, "fedavg": {1, 2}}),
        ({"local": {0, 1}, "fedavg": {1, 2}, "fedpac": {0, 2}}, "none of the 4 clients has results of all methods", {}),
        ({"local": {3}, "fedavg": {3}, "fedpac": {0, 1, 2}}, "FedPAC shares no client", {"local": {3}, "fedavg": {3}}),
    ],
)  # fmt: skip
def test_methods_without_a_common_client(make: Any, tmp_path: Path, owners: Any, said: str, numbers: Any) -> None:
    made = make(METHODS, 4, (0, 1))
    made.drop(lambda r: r[4] == "personalised" and r[3] not in owners[r[0]])
    folder = made.save(tmp_path / "run")
    run, ends = report.read(folder), cells(made)
    for row in report.summary(run):
        if row.label not in numbers:
            assert (row.accuracy, row.std, row.worst_decile, row.versus_fedavg, row.clients) == (None,) * 5
            continue
        each = [[ends[seed][row.label][c] for c in numbers[row.label]] for seed in (0, 1)]
        assert row.accuracy == pytest.approx(sum(sum(v) / len(v) for v in each) / 2)
    page = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    assert said in terminal(run)
    assert said in page
    report.export(folder, "latex")
    report.export(folder, "png", tmp_path / "png")


def test_a_method_without_some_seeds(make: Any, tmp_path: Path) -> None:
    """Its difference to FedAvg is over the seeds that both have, and the others keep theirs."""
    made = make(METHODS, 4, (0, 1, 2))
    made.drop(lambda r: r[0] == "fedpac" and r[1] > 0)
    run, ends = report.read(made.save(tmp_path / "run")), cells(made)
    rows = {r.label: r for r in report.summary(run)}
    mean = {k: sum(v.values()) / 4 for k, v in ends[0].items()}
    assert rows["fedpac"].versus_fedavg == pytest.approx(100 * (mean["fedpac"] - mean["fedavg"]))
    assert rows["fedavg"].accuracy == pytest.approx(sum(sum(e["fedavg"].values()) / 4 for e in ends.values()) / 3)
    assert report.notes(run) == ["FedPAC has no results of seeds 1 and 2: its numbers are of seed 0 alone."]


def test_participants_of_different_rounds(make: Any, tmp_path: Path) -> None:
    """A method that stopped early was measured on others: its number stays, without a difference to FedAvg."""
    made = make(METHODS, 8, (0,), rounds=10)
    made.study["protocol"] = {"clients": "participants"}
    made.drop(lambda r: r[4] == "personalised" and r[3] % 2 != (r[2] == 10))
    made.drop(lambda r: r[0] == "fedpac" and r[2] > 5)
    run, ends = report.read(made.save(tmp_path / "run")), cells(made)
    rows = {r.label: r for r in report.summary(run)}
    for label, end in ends[0].items():
        assert rows[label].accuracy == pytest.approx(sum(end.values()) / 4)
    assert rows["fedpac"].versus_fedavg is None
    assert report.notes(run) == []


def test_new_clients_in_their_table(make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg"], 4, (0,))
    for k, name in ((4, "Oslo"), (5, "Porto")):
        made.manifest["clients"].append(made.manifest["clients"][0] | {"id": k, "joins": "", "name": name})
        for label in ["local", "fedavg"]:
            if (label, name) != ("fedavg", "Oslo"):
                made.add(label, 0, 7, k, "new", "accuracy", 0.1 * k)
    run = report.read(made.save(tmp_path / "run"))
    assert report.new_clients(run)[1].score == {"local": pytest.approx(0.5), "fedavg": pytest.approx(0.5)}
    assert report.notes(run) == ["New clients count only where all methods have results of them. Not counted: Oslo."]


def test_the_result_of_a_run_says_it(tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    study = idl.Study(clients=4, rounds=1, local_epochs=1, model="mlp", methods=["fedavg", "local"])
    result = idl.run(study, tmp_path / "r", engine="sequential")
    assert result.accuracy().attrs == {"notes": []}
    assert caplog.text == ""
    made = make(["fedavg", "local"], 4, (0,))
    made.drop(gap("local", 1))
    other = dataclasses.replace(result, folder=made.save(tmp_path / "made"))
    with caplog.at_level(logging.WARNING):
        found = other.accuracy()
    assert found.to_dict() == pytest.approx(
        {(m, 0): sum(v for c, v in end.items() if c != 1) / 3 for m, end in cells(made)[0].items()}
    )
    (said,) = found.attrs["notes"]
    assert said in caplog.text
    assert re.search(r"3 of 4 clients.*Not counted: 1 \(no results of Local\)", said)
    assert other.client_accuracy().isna().sum().to_dict() == {("fedavg", 0): 0, ("local", 0): 1}


def test_nothing_is_said_where_all_is_there(make: Any, tmp_path: Path) -> None:
    run = report.read(make(METHODS, 6, (0, 1)).save(tmp_path / "run"))
    assert (report.notes(run), left_out(run), report.whose(run)) == ([], [], "")
    assert "footnotesize" not in report.export(tmp_path / "run", "latex")[0].read_text()
