"""Which method for which client: intervals and tests against scipy, and by enumeration."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from idiolect import report
from idiolect.core.errors import InputError
from idiolect.report.by_client import _Table, asked, frame, mcnemar, most_discordant, shown
from idiolect.runs import predictions
from idiolect.runs.folder import PREDICTIONS_FILE
from idiolect.statistics.intervals import wilson


def two_sided(only_best: int, only_other: int) -> float:
    both = only_best + only_other
    return float(binomtest(only_best, both).pvalue) if both else 1.0


def with_predictions(make: Any, folder: Path, right_MSN: np.ndarray) -> tuple[report.Run, list[str]]:
    """A run of one round with one client of these right and wrong predictions, of classes 0 and 1 in turn."""
    methods, seeds, samples = right_MSN.shape
    labels = ["local", "fedavg", "fedpac", "pfedfda"][:methods]
    made = make(labels, 1, range(seeds), 1, classes=2)
    made.manifest["clients"][0] |= {"test": [(samples + 1) // 2, samples // 2], "name": "Oslo"}
    made.drop(lambda r: r[4] == "personalised")
    label_N = np.arange(samples) % 2
    tables = []
    for m, label in enumerate(labels):
        for seed in range(seeds):
            right_N = right_MSN[m, seed]
            made.add(label, seed, 1, 0, "personalised", "accuracy", right_N.mean())
            made.add(label, seed, 1, 0, "personalised", "recall[1]", right_N[label_N == 1].mean())
            made.add(label, seed, 1, 0, "personalised", "macro_f1", 0.5)
            p_NC = np.where((label_N == 1) == (right_N == 1), 0.9, 0.2)[:, None] * [-1, 1] + [1, 0]
            into = folder / f"{label}{seed}"
            predictions.save(into, label, seed, [predictions.ClientPredictions("personalised", 0, label_N, p_NC)])
            tables.append(into)
    made.save(folder)
    predictions.merge(folder, tables)
    return report.read(folder), labels


@pytest.mark.parametrize("n", [1, 5, 40, 1000])
def test_intervals_are_scipys(n: int) -> None:
    right = np.arange(n + 1)
    low, high = wilson(right / n, np.full(n + 1, float(n)))
    for k in right[:: max(1, n // 20)]:
        want = binomtest(int(k), n).proportion_ci(method="wilson")
        assert (low[k], high[k]) == pytest.approx(want, abs=1e-12)


def test_mcnemar_is_the_binomial_test() -> None:
    for b, c in itertools.product((0, 1, 2, 9, 30), repeat=2):
        if b >= c:
            assert min(1, 2 * float(mcnemar(np.array([float(b)]), np.array([float(c)]))[0])) == pytest.approx(
                two_sided(b, c), abs=1e-12
            )


def test_without_predictions_the_largest_p_value_that_is_possible() -> None:
    """Over all tables of pairs with these numbers of right samples."""
    for n in (4, 11, 16):
        for other, best in itertools.combinations_with_replacement(range(n + 1), 2):
            possible = [
                two_sided(b, b - (best - other))
                for b in range(best - other, n + 1)
                if b <= min(best, n - other) and b - (best - other) <= other
            ]
            ours, theirs = most_discordant(*(np.array([float(v)]) for v in (best, other, n)))
            assert two_sided(int(ours[0]), int(theirs[0])) == pytest.approx(max(possible), abs=1e-12)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_who_is_alike(make: Any, tmp_path: Path, seed: int, saved: bool) -> None:
    rng = np.random.default_rng(seed)
    hard_N = rng.random(80)
    right_MSN = (hard_N < np.array([0.55, 0.6, 0.75, 0.8])[:, None, None]) ^ (rng.random((4, 1, 80)) < 0.06)
    right_MSN = right_MSN.astype(float)
    run, labels = with_predictions(make, tmp_path / "r", right_MSN)
    if not saved:
        (tmp_path / "r" / PREDICTIONS_FILE).unlink()
    [row] = report.by_client(run)
    right_M = right_MSN.sum((1, 2)).astype(int)
    best = int(right_M.argmax())
    assert (row.name, row.samples, row.best) == ("Oslo", 80, labels[best])
    assert row.values == pytest.approx(dict(zip(labels, right_M / 80, strict=True)))
    alike = []
    for m in range(4):
        if m == best:
            continue
        b, c = (int((right_MSN[i] * (1 - right_MSN[j])).sum()) for i, j in ((best, m), (m, best)))
        if not saved:
            b, c = min(right_M[best], 80 - right_M[m]), min(right_M[m], 80 - right_M[best])
        alike += [labels[m]] if two_sided(b, c) >= 0.05 / 3 else []
    assert list(row.alike or ()) == alike
    low, high = row.intervals[labels[0]]
    assert (low, high) == pytest.approx(binomtest(int(right_M[0]), 80).proportion_ci(method="wilson"))


def test_recall_is_of_the_samples_of_its_class(make: Any, tmp_path: Path) -> None:
    right_MSN = np.ones((2, 1, 60))
    right_MSN[0, 0, 1:21:2] = 0  # ten of class 1
    right_MSN[1, 0, ::2] = 0  # all of class 0
    run, _ = with_predictions(make, tmp_path / "r", right_MSN)
    [row] = report.by_client(run, "recall[1]")
    assert row.best == "fedavg"
    assert row.values == {"local": pytest.approx(2 / 3), "fedavg": 1.0}
    assert row.alike == ()  # ten samples that only one has right, none that only the other has: p = 2 / 2^10
    assert row.intervals["local"] == pytest.approx(binomtest(20, 30).proportion_ci(method="wilson"))


def test_several_seeds(make: Any, tmp_path: Path) -> None:
    """Twice the mean of the p-values; a seed in which the other is better counts as 1."""
    right_MSN = np.ones((2, 2, 50))
    right_MSN[1, 0, :6], right_MSN[1, 1, :8] = 0, 0  # p = 2 / 2^6 and 2 / 2^8
    run, _ = with_predictions(make, tmp_path / "a", right_MSN)
    [row] = report.by_client(run)
    assert row.values == {"local": 1.0, "fedavg": pytest.approx(43 / 50)}
    assert row.intervals["fedavg"] == pytest.approx(binomtest(43, 50).proportion_ci(method="wilson"))
    assert row.alike == ()  # (2 / 2^6 + 2 / 2^8) = 0.039
    right_MSN[1, 1, 5:8] = 1  # p = 2 / 2^5: 0.031 + 0.0625
    assert report.by_client(with_predictions(make, tmp_path / "b", right_MSN)[0])[0].alike == ("fedavg",)
    right_MSN[1, 0] = 0
    right_MSN[0, 1, :8], right_MSN[1, 1] = 0, 1
    row = report.by_client(with_predictions(make, tmp_path / "c", right_MSN)[0])[0]
    assert (row.best, row.alike) == ("local", ("fedavg",))


def test_the_p_value_of_several_seeds_is_twice_the_mean_of_theirs(make: Any, tmp_path: Path) -> None:
    """Each seed's is two-sided and at most 1: of scipy's test, or 1 where the other method is ahead."""
    right_MSN = np.ones((3, 3, 20))
    right_MSN[1, 0, :8], right_MSN[1, 1, :9], right_MSN[0, 2, :3] = 0, 0, 0  # the second is ahead with the third seed
    right_MSN[2, :, 2:7] = 0
    right_MSN[0, 0, 4:6] = 0
    run, _ = with_predictions(make, tmp_path / "r", right_MSN)
    best_SN = right_MSN[0]
    want = []
    for other_SN in right_MSN[1:]:
        only_best, only_other = (
            (a * (1 - b)).sum(1).astype(int) for a, b in ((best_SN, other_SN), (other_SN, best_SN))
        )
        each = [two_sided(b, c) if b > c else 1.0 for b, c in zip(only_best, only_other, strict=True)]
        want.append(min(1, 2 * sum(each) / 3))
    assert 0 < want[0] < 1
    assert _Table(run, "accuracy").p_values()[1:, 0] == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("ahead", [1, 2])
def test_one_seed_of_many_in_which_the_other_is_ahead(make: Any, tmp_path: Path, ahead: int) -> None:
    """Of 60 seeds p is about 2 / 60 = 0.033 with one such seed, and 0.067 with two."""
    right_MSN = np.ones((2, 60, 40))
    right_MSN[1, ahead:, :20] = 0
    right_MSN[0, :ahead, :2] = 0
    run, _ = with_predictions(make, tmp_path / "r", right_MSN)
    assert report.by_client(run)[0].alike == ((), ("fedavg",))[ahead - 1]


def test_predictions_of_other_records_are_not_counted(make: Any, tmp_path: Path) -> None:
    """By them, both methods would be right everywhere."""
    with_predictions(make, tmp_path / "other", np.ones((2, 1, 40)))
    right_MSN = np.ones((2, 1, 40))
    right_MSN[1, 0, :12] = 0
    run, _ = with_predictions(make, tmp_path / "r", right_MSN)
    (tmp_path / "r" / PREDICTIONS_FILE).write_bytes((tmp_path / "other" / PREDICTIONS_FILE).read_bytes())
    assert report.by_client(run)[0].alike == ()


def test_the_best_is_among_them() -> None:
    """In at least 95 % of draws, whatever the methods: their correlation, and how many are truly best."""
    rng = np.random.default_rng(0)
    for share_M, together in (([0.8] * 6, 0.7), ([0.9] + [0.7] * 5, 0.0), ([0.82, 0.8, 0.8, 0.78], 0.9)):
        draws, n, missed = 400, 120, 0
        for _ in range(draws):
            common_N, own_MN = rng.random(n), rng.random((len(share_M), n))
            u_MN = np.where(rng.random(n) < together, common_N, own_MN)
            right_MN = u_MN < np.array(share_M)[:, None]
            best = int(right_MN.sum(1).argmax())
            b, c = (right_MN[best] & ~right_MN[0]).sum(), (right_MN[0] & ~right_MN[best]).sum()  # 0 is truly best
            missed += best != 0 and two_sided(int(b), int(c)) * (len(share_M) - 1) < 0.05
        assert missed <= 0.05 * draws


def test_no_proportion_no_interval(make: Any, tmp_path: Path) -> None:
    run, _ = with_predictions(make, tmp_path / "r", np.ones((2, 1, 10)))
    [row] = report.by_client(run, "macro_f1")
    assert (row.intervals, row.alike, row.best) == ({}, None, "local")
    table = frame([row])
    assert list(table.columns) == ["name", "test_samples", "local", "fedavg", "best", "alike", "missing"]
    assert pd.isna(table["alike"].iloc[0])


def test_less_loss_is_better(make: Any, tmp_path: Path) -> None:
    run = report.read(make(["local", "fedavg"], 3, (0,)).save(tmp_path / "r"))
    final = run.last_of("loss").set_index(["client", "method"])["value"].unstack()
    assert [row.best for row in report.by_client(run, "loss")] == final.idxmin(axis=1).tolist()


def test_means_over_seeds_in_the_protocols_round(make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg", "fedpac"], 5, (0, 1))
    made.drop(lambda r: r[0] == "fedpac" and r[1] == 1 and r[2] > 5)  # has not ended
    made.drop(lambda r: r[0] == "local" and r[3] == 2)  # one client has no result of one method
    run = report.read(made.save(tmp_path / "r"))
    table = frame(report.by_client(run))
    r = pd.DataFrame(made.records, columns=["method", "seed", "round", "client", "stage", "metric", "value", "other"])
    r = r[(r["metric"] == "accuracy") & (r["round"] == 7) & (r["method"] != "fedpac")]
    want = r.groupby(["client", "method"])["value"].mean().unstack()
    assert table.index.name == "client"
    assert "fedpac" not in table
    pd.testing.assert_frame_equal(
        table[["fedavg", "local"]], want[["fedavg", "local"]], check_names=False, check_column_type=False
    )
    assert table["test_samples"].tolist() == [sum(c["test"]) for c in made.manifest["clients"]]
    assert table["best"].tolist() == want.fillna(-1).idxmax(axis=1).tolist()
    assert pd.isna(table.loc[2, "local low"])


def test_a_measure_that_is_not_there(make: Any, tmp_path: Path) -> None:
    run = report.read(make(["local"], 2, (0,)).save(tmp_path / "r"))
    with pytest.raises(InputError, match="the run demo has no 'acuracy' of its clients; did you mean 'accuracy'"):
        report.by_client(run, "acuracy")


def test_one_method_is_alike_to_none(make: Any, tmp_path: Path) -> None:
    rows = report.by_client(report.read(make(["local"], 2, (0,)).save(tmp_path / "r")))
    assert [(row.best, row.alike) for row in rows] == [("local", ())] * 2


# --- where it is shown


def test_the_page_has_the_table(make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg"], 3, (0,))
    made.study["measures"] = ["auroc", "recall"]
    for k, label in enumerate(["local", "fedavg"]):
        made.add(label, 0, 7, 1, "personalised", "auroc", 0.7 + 0.1 * k)
        made.add(label, 0, 7, 1, "personalised", "recall[3]", 0.5)
    folder = made.save(tmp_path / "r")
    run = report.read(folder)
    text = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    text = text.partition("<script")[0]
    tables = re.findall(r'<details class="all" open>.*?</details>', text, re.S)
    assert [re.search(r"<summary>(\w+) ", t)[1] for t in tables] == ["Accuracy", "AUROC"]  # type: ignore[index]
    lines = re.findall(r'<th scope="row" data-value="(\d)">.*?</tr>', tables[0], re.S)
    assert lines == ["0", "1", "2"]
    cells = re.findall(r'<td class="number(?: best)?" data-value="([\d.]+)">(≈ )?([\d.]+) <small>', tables[0])
    rows = report.by_client(run)
    assert [float(value) for value, _, _ in cells] == pytest.approx(
        [row.values[label] for row in rows for label in run.titles], abs=1e-5
    )
    assert [bool(mark) for _, mark, _ in cells] == [label in (row.alike or ()) for row in rows for label in run.titles]
    assert tables[0].count('class="number best"') == 3
    assert "predictions were not saved" in tables[0]
    assert "<small>0\u2013" not in tables[1]
    assert tables[1].count("<small>no results</small>") == 2
    assert asked(run) == ["accuracy", "auroc", "recall[3]"]


@pytest.mark.parametrize("case", ["saved", "not saved", "best round", "validation", "threshold"])
def test_the_page_says_why_only_the_numbers_of_right_samples_count(make: Any, tmp_path: Path, case: str) -> None:
    run, _ = with_predictions(make, tmp_path / "r", np.ones((2, 1, 10)))
    if case == "not saved":
        (tmp_path / "r" / PREDICTIONS_FILE).unlink()
    if case in ("best round", "validation"):
        clients = [c | {"validation": [4, 4]} for c in run.manifest["clients"]]
        if case == "validation":
            clients = [c | {"test": [0, 0]} for c in clients]
        score = run.records[run.records["metric"] == "accuracy"].assign(metric="validation_accuracy")
        protocol = {"validation": 0.2} | ({"round": "best_validation"} if case == "best round" else {})
        run = dataclasses.replace(
            run, study=run.study | {"protocol": protocol}, manifest=run.manifest | {"clients": clients},
            records=pd.concat([run.records, score], ignore_index=True),
        )  # fmt: skip
    if case == "threshold":
        run = dataclasses.replace(run, study=run.study | {"protocol": {"threshold": "f1", "validation": 0.2}})
    [table] = shown(run, list)
    most = "the largest p-value of McNemar's exact test that the numbers of right samples allow, because "
    assert {
        "saved": "(McNemar's exact test on the saved predictions,",
        "not saved": f"({most}the predictions were not saved,",
        "best round": f"({most}the saved predictions are of the last round,",
        "validation": f"({most}the saved predictions are of test samples,",
        "threshold": f"({most}the saved predictions are probabilities, without each client's threshold,",
    }[case] in table.note


def test_many_clients_are_folded_away_and_sampled(make: Any, tmp_path: Path) -> None:
    for clients, listed in ((30, 30), (300, 100)):
        folder = make(["local", "fedavg"], clients, (0,), 1).save(tmp_path / str(clients))
        text = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
        [table] = re.findall(r'<details class="all">.*?</details>', text, re.S)
        assert table.count('<th scope="row"') == listed
        assert ("A sample of 100 of 300 clients" in table) == (clients == 300)


def test_no_results_no_table(make: Any, tmp_path: Path) -> None:
    made = make(["local"], 2, (0,))
    made.drop(lambda r: r[4] == "personalised")
    text = report.write([made.save(tmp_path / "r")], tmp_path / "p.html").read_text(encoding="utf-8")
    assert "which method for which" not in text


def test_export(make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg"], 250, (0, 1), 1)
    made.study["measures"] = ["recall"]
    for label in ("local", "fedavg"):
        made.add(label, 0, 1, 1, "personalised", "recall[3]", 0.5)
    folder = made.save(tmp_path / "r")
    paths = report.export(folder, "clients", tmp_path / "out")
    assert [p.name for p in paths] == ["clients.csv", "clients-recall-3.csv"]
    found = pd.read_csv(paths[0], index_col="client", keep_default_na=False, dtype={"name": str})
    pd.testing.assert_frame_equal(found, frame(report.by_client(report.read(folder))), check_dtype=False)
    other = pd.read_csv(paths[1])
    assert len(other) == 250
    assert other["local"].count() == 1
    assert other["missing"].value_counts().to_dict() == {"no results": 249}
