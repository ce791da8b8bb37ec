"""The oracle is a plain loop over the synthetic records; no pandas."""

from __future__ import annotations

import csv
import io
import math

import pytest
from rich.console import Console

import idiolect as idl
from idiolect import report
from idiolect.core.objectives import OBJECTIVES
from idiolect.report.rows import is_best
from idiolect.studies.result import Result


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def expected(made, label, seeds=None):
    """Every number of a row, from the records as a list of tuples; ``seeds`` are those that count."""
    tests = {c["id"]: sum(c["test"]) for c in made.manifest["clients"]}
    by_seed = {}
    for method, seed, r, client, stage, metric, value, _ in made.records:
        if seeds is not None and seed not in seeds:
            continue
        if (method, stage, metric) == (label, "personalised", "accuracy") and not math.isnan(value) and tests[client]:
            by_seed.setdefault(seed, {}).setdefault(r, {})[client] = value
    ends = {seed: rounds[max(rounds)] for seed, rounds in by_seed.items()}
    wire = [r for r in made.records if r[0] == label and r[4] == "wire"]
    accuracies = [mean(e.values()) for e in ends.values()]
    middle = mean(accuracies) if accuracies else None

    def worst(end):
        return mean(sorted(end.values())[: max(1, len(end) // 10)])

    def spread(end):
        centre = mean(end.values())
        return math.sqrt(mean((v - centre) ** 2 for v in end.values()))

    def weighted(end):
        return sum(v * tests[c] for c, v in end.items()) / sum(tests[c] for c in end)

    return {
        "accuracy": middle,
        "per_sample": mean(map(weighted, ends.values())) if ends else None,
        "std": mean(map(spread, ends.values())) if ends else None,
        "worst_decile": mean(map(worst, ends.values())) if ends else None,
        "bytes_per_round": sum(r[6] for r in wire) / len({r[1:4] for r in wire}) if wire else None,
        "seconds": sum(t[3] for t in made.timings if t[0] == label) or None,
        "rounds": min((max(rounds) for rounds in by_seed.values()), default=0),
        "seeds": len(ends),
        "seed_std": math.sqrt(sum((a - middle) ** 2 for a in accuracies) / (len(ends) - 1)) if len(ends) > 1 else None,
        "calibration_error": None,
        "brier": None,
    }


def check(made, folder):
    rows = report.summary(report.read(made.save(folder)))
    assert [row.label for row in rows] == made.labels
    for row in rows:
        want = expected(made, row.label)
        own = {r[1] for r in made.records if r[0] == row.label and r[5] == "accuracy"}
        base = expected(made, "fedavg", own)["accuracy"] if "fedavg" in made.labels else None
        known = (
            base is not None and want["accuracy"] is not None and want["rounds"] == expected(made, "fedavg")["rounds"]
        )
        want["versus_fedavg"] = 100 * (want["accuracy"] - base) if known else None
        for name, value in want.items():
            got = getattr(row, name)
            assert got == (value if value is None else pytest.approx(value, rel=1e-12, abs=1e-12)), (row.label, name)
    return rows


@pytest.mark.parametrize("clients", [1, 6, 25])
@pytest.mark.parametrize("seeds", [(0,), (3, 5, 8)])
def test_summary(make, tmp_path, clients, seeds):
    check(make(clients=clients, seeds=seeds, rounds=6), tmp_path / "run")


def test_without_fedavg(make, tmp_path):
    rows = check(make(["local", "fedpac"]), tmp_path / "run")
    assert {row.versus_fedavg for row in rows} == {None}


def test_a_method_that_stopped_early_and_one_without_records(make, tmp_path):
    made = make(["fedavg", "fedpac", "pfedfda"], rounds=12)
    made.drop(lambda r: r[0] == "pfedfda" or (r[0] == "fedpac" and r[1] == 1 and r[2] > 5))
    made.timings = [t for t in made.timings if t[0] != "pfedfda"]
    rows = check(made, tmp_path / "run")
    assert [row.rounds for row in rows] == [12, 5, 0]


def test_partial_participation_and_unequal_seeds(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1))
    made.drop(lambda r: r[4] == "wire" and (r[2] + r[3]) % 3 == 0)
    made.drop(lambda r: r[0] == "fedpac" and r[1] == 1)
    check(made, tmp_path / "run")


def test_a_client_without_test_rows_is_in_no_mean(make, tmp_path):
    made = make(["fedavg", "fedpac"])
    made.manifest["clients"][2]["test"] = [0] * 10
    made.records = [(*r[:6], math.nan if r[3] == 2 and r[4] == "personalised" else r[6], r[7]) for r in made.records]
    check(made, tmp_path / "run")


def test_fedavg_is_found_under_a_label_with_options(make, tmp_path):
    made = make(["fedavg", "fedpac"])
    made.records = [("fedavg:momentum=0", *r[1:]) if r[0] == "fedavg" else r for r in made.records]
    methods = made.manifest["methods"]
    made.manifest["methods"] = {"fedavg:momentum=0": methods["fedavg"], "fedpac": methods["fedpac"]}
    rows = report.summary(report.read(made.save(tmp_path / "run")))
    assert rows[0].versus_fedavg == 0
    assert rows[1].versus_fedavg == pytest.approx(100 * (rows[1].accuracy - rows[0].accuracy))


def test_nothing_on_record_yet(make, tmp_path):
    made = make()
    made.records, made.timings = [], []
    rows = check(made, tmp_path / "run")
    for text in (report.as_latex(rows), shown(rows)):
        assert "nan" not in text.lower()


def shown(rows, **options):
    console = Console(width=80, force_terminal=bool(options), color_system=None, record=False)
    with console.capture() as capture:
        console.print(report.render(rows))
    return capture.get()


ROW = report.Row("a", "A", 0.5, 0.5, 0.4, 0.1, 0.2, 1.25, 236_400.0, 90.0, 100, 3, 0.0123)


def test_render_fits_80_columns_with_every_number_whole(make, tmp_path):
    wide = ROW._replace(
        title="pFedFDA (pfedfda:separate=true)",
        score=1.0,
        per_sample=1.0,
        worst_decile=1.0,
        versus_fedavg=-100.0,
        seconds=7000.0,
        rounds=1000,
    )
    text = shown([ROW, wide])
    assert max(map(len, text.splitlines())) <= 80
    for piece in ("50.00 ± 1.23", "100.00 ± 1.23", "-100.0", "236 kB", "117 min", "1000", "+1.2", "pFedFDA"):
        assert piece in text
    assert "…" not in text


def test_render_aligns_right_and_marks_the_best():
    rows = [
        ROW,
        ROW._replace(label="b", title="B", score=0.7, seed_std=None),
        ROW._replace(title="C", score=None),
    ]
    table = report.render(rows)
    assert [c.justify for c in table.columns[1:]] == ["right"] * (len(table.columns) - 1)
    cells = list(table.columns[1].cells)
    assert [str(c) for c in cells] == ["50.00 ± 1.23", "70.00", "-"]
    assert [str(c.style) for c in cells] == ["", "bold", ""]


def test_a_title_is_no_markup():
    assert "[red]x[/]" in shown([ROW._replace(title="[red]x[/]")])


def test_a_method_that_stopped_early_is_not_the_best():
    rows = [ROW, ROW._replace(title="B", score=0.9, rounds=20)]
    best, early = (line for line in report.as_latex(rows).splitlines() if "1.23" in line)
    assert r"\textbf{50.00 $\pm$ 1.23}" in best
    assert "textbf" not in early
    assert [str(c.style) for c in report.render(rows).columns[1].cells] == ["bold", ""]


@pytest.mark.parametrize(
    ("task", "scores", "best"),
    [
        ("classification", (0.75, 0.7500000000000001, 0.7), (True, True, False)),
        ("classification", (0.75, 0.75001, 0.7), (False, True, False)),
        ("regression", (123456.7, 123456.70000000001, 123456.8), (True, True, False)),
        ("regression", (3e-15, 2e-15, 2.1e-15), (False, True, False)),
    ],
)
def test_means_that_differ_by_rounding_are_all_the_best(task, scores, best):
    rows = [ROW._replace(label=str(k), score=score, by=OBJECTIVES[task].score) for k, score in enumerate(scores)]
    assert tuple(is_best(row, rows) for row in rows) == best


def test_calibration_is_the_mean_over_clients_and_then_seeds(make, tmp_path):
    made = make(["fedavg", "fedpac"], clients=3, seeds=(0, 1), rounds=2)
    for seed in (0, 1):
        for client in range(3):
            made.add("fedpac", seed, 1, client, "personalised", "calibration_error", 9)
            made.add("fedpac", seed, 2, client, "personalised", "calibration_error", 0.1 * client + 0.01 * seed)
            made.add("fedpac", seed, 2, client, "personalised", "brier", 0.2 * client + 0.01 * seed)
            made.add("fedpac", seed, 2, client, "received", "brier", 7)
    old, new = report.summary(report.read(made.save(tmp_path / "run")))
    assert (old.calibration_error, old.brier) == (None, None)
    assert (new.calibration_error, new.brier) == (pytest.approx(0.105), pytest.approx(0.205))
    assert "& 0.105 & 0.205 &" in report.as_latex([new])
    assert "0.105" not in shown([new]), "the terminal has no room"


def test_as_latex_and_as_csv():
    other = ROW._replace(title="A & B_1 50%\\{}~^#$", score=0.7, versus_fedavg=-3.25, brier=0.5)
    lines = report.as_latex([ROW, other]).splitlines()
    assert lines[0] == r"\begin{tabular}{l" + 12 * "r" + "}"
    assert [line.count("&") - line.count(r"\&") for line in lines[2:3] + lines[4:6]] == [12, 12, 12]
    assert lines[4].startswith(r"A & 50.00 $\pm$ 1.23 & 50.0 & 40.0 & 10.0 & 20.0 & +1.2 & -- & -- & 236 kB & 90 s &")
    assert lines[5].startswith(
        r"A \& B\_1 50\%\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}\#\$ & \textbf{70.00 $\pm$ 1.23}"
    )
    assert "& $-$3.2 & -- & 0.500 &" in lines[5]
    read = list(csv.DictReader(io.StringIO(report.as_csv([ROW, other]))))
    for row, line in zip((ROW, other), read, strict=True):
        assert list(line) == ["accuracy" if n == "score" else n for n in row._fields if n not in ("measures", "by")]
        for name, value in row._asdict().items():
            if name in ("measures", "by"):
                continue
            got = line["accuracy" if name == "score" else name]
            assert got == "" if value is None else got == value if isinstance(value, str) else float(got) == value


# --- clients that joined


def with_joined(made, clients=(6, 7), conditions=("invert", "noise:std=0.2")):
    """The run with two clients that join, as they are and under two conditions, better by 10 points with fedpac."""
    about = made.manifest["clients"]
    for condition in ("", *conditions):
        for _ in clients:
            about.append(about[0] | {"id": len(about), "shift": condition, "joins": condition})
    last = made.study["rounds"]
    for label in made.labels:
        for seed in made.study["seeds"]:
            for k in range(6, len(about)):
                value = 0.02 * k + 0.01 * seed + 0.1 * (label == "fedpac")
                made.add(label, seed, last, k, "new", "accuracy", value)
                made.add(label, seed, last, k, "new", "loss", 1.0)
    return made


@pytest.mark.parametrize("clients", ["all", "new"])
def test_joined_are_means_per_condition_over_clients_and_seeds(make, tmp_path, clients):
    """Whoever the protocol is about."""
    made = with_joined(make(["fedavg", "fedpac"], clients=6, seeds=(0, 1)))
    made.study["protocol"] = {"clients": clients}
    rows = report.new_clients(report.read(made.save(tmp_path / "run")))
    assert rows[0].who == "clients that trained"
    assert len(rows) == 4
    assert all(word in row.who for row, word in zip(rows[1:], ("new clients", "invert", "noise"), strict=True))
    for label, more in (("fedavg", 0), ("fedpac", 0.1)):
        assert rows[0].score[label] == pytest.approx(expected(made, label)["accuracy"])
        for row, ids in zip(rows[1:], ((6, 7), (8, 9), (10, 11)), strict=True):
            assert row.score[label] == pytest.approx(mean(0.02 * k for k in ids) + 0.005 + more)


def test_who_joined_is_in_no_other_number(make, tmp_path):
    plain, made = make(["fedavg", "fedpac"]), with_joined(make(["fedavg", "fedpac"]))
    before, after = (report.summary(report.read(m.save(tmp_path / n))) for m, n in ((plain, "a"), (made, "b")))
    assert before == after
    check(made, tmp_path / "c")


def test_nobody_joined(make, tmp_path):
    assert report.new_clients(report.read(make().save(tmp_path / "run"))) == []


def test_joined_without_results_is_a_dash(make, tmp_path):
    made = with_joined(make(["fedavg", "fedpac"]))
    made.drop(lambda r: r[0] == "fedpac" and r[4] == "new")
    run = report.read(made.save(tmp_path / "run"))
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(report.render_new_clients(report.new_clients(run), run.titles))
    lines = [line for line in capture.get().splitlines() if line.startswith("new clients")]
    assert [line.split()[-1] for line in lines] == ["-"] * 3
    assert lines[0].split()[-2] == "13.5"
    assert max(map(len, capture.get().splitlines())) <= 80


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({}, ""),
        ({"weighting": "sample", "validation": 0.2}, ""),
        ({"threshold": "f1", "validation": 0.2}, "at the threshold 1/2."),
        ({"stage": "received"}, "by their personal models."),
        ({"round": "best_validation", "validation": 0.2}, "after the last round."),
        (
            {"threshold": "f1", "stage": "received", "round": "best_validation", "validation": 0.2},
            "at the threshold 1/2, by their personal models, after the last round.",
        ),
    ],
)
def test_it_is_said_where_new_clients_are_measured_otherwise(make, tmp_path, protocol, said):
    made = with_joined(make(["fedavg", "fedpac"], clients=6))
    made.study["protocol"] = protocol
    folder = made.save(tmp_path / "run")
    table = Result(folder, idl.Study()).new_clients_table()
    page = report.write([folder], tmp_path / "page.html").read_text()
    html = Result(folder, idl.Study())._repr_html_()
    sentence = f"Unlike clients that trained, new ones are measured {said}"
    assert table.caption.endswith(f"mean over clients. {sentence}" if said else "mean over clients.")
    for text in (page, html):
        assert text.count(f"which took no part in training. {sentence}") == bool(said)
        assert ("Unlike clients" in text) == bool(said)
