"""Two methods compared, against scipy on the raw values and loops over the synthetic records."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import bootstrap, wilcoxon

from idiolect import cli, report
from idiolect.core.errors import InputError
from idiolect.report.compare import combined, interval, signed_rank, smallest_p
from idiolect.report.tables import columns_of


def table(made, label):
    """Seeds x clients, the accuracy at the last round."""
    found = {}
    for method, seed, r, client, stage, metric, value, _ in made.records:
        if (method, r, stage, metric) == (label, made.study["rounds"], "personalised", "accuracy"):
            found[seed, client] = value
    seeds, clients = (sorted({k[i] for k in found}) for i in (0, 1))
    return np.array([[found.get((s, c), np.nan) for c in clients] for s in seeds])


@pytest.mark.parametrize("seeds", [(0,), (3, 5, 8)])
@pytest.mark.parametrize("weighting", ["client", "sample"])
def test_against_scipy_and_numpy(make, tmp_path, seeds, weighting):
    made = make(clients=25, seeds=seeds)
    made.study["protocol"] = {"weighting": weighting}
    found = report.compare(report.read(made.save(tmp_path / "run")), "fedpac", "fedavg")
    a, b, alone = (table(made, label) for label in ("fedpac", "fedavg", "local"))
    d = 100 * (a - b)
    rows = [sum(c["test"]) if weighting == "sample" else 1 for c in made.manifest["clients"]]
    assert found.difference == pytest.approx(np.average(d, axis=1, weights=rows).mean())
    p = {seed: wilcoxon(one, zero_method="zsplit").pvalue for seed, one in zip(seeds, d, strict=True)}
    assert found.p_values == pytest.approx(p)
    assert found.p_value == pytest.approx(p[0] if len(seeds) == 1 else min(1, 2 * sum(p.values()) / 3))
    mean_K = d.mean(0)
    assert (found.better, found.worse, found.equal) == (sum(mean_K > 0), sum(mean_K < 0), 0)
    worst = [np.sort(part, 1)[:, :2].mean(1).mean() for part in (a, b)]
    assert [found.worst_decile, found.base_worst_decile] == pytest.approx(worst)
    assert found.harmed == sum(a.mean(0) < alone.mean(0))
    assert found.base_harmed == sum(b.mean(0) < alone.mean(0))
    assert found.low < found.difference < found.high
    if len(seeds) == 1 and weighting == "client":
        want = bootstrap(d, np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0))
        assert [found.low, found.high] == pytest.approx(list(want.confidence_interval), abs=0.15)


def test_the_interval_resamples_seeds_and_clients():
    """Against a plain loop, on differences of which some are missing."""
    rng = np.random.default_rng(3)
    point_SK = rng.normal(2, 1, (4, 9)) + rng.normal(0, 3, (4, 1))
    point_SK[1, 2:5] = np.nan
    weight_K = rng.uniform(1, 5, 9)
    means = []
    for _ in range(6000):
        part = point_SK[rng.integers(0, 4, 4)]
        who = rng.integers(0, 9, 9)
        there = ~np.isnan(part[:, who])
        means.append((np.nan_to_num(part[:, who]) * weight_K[who]).sum() / (there * weight_K[who]).sum())
    assert interval(point_SK, weight_K) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.25)
    clients_alone = interval(point_SK[:1], weight_K)
    assert interval(point_SK, weight_K)[1] - interval(point_SK, weight_K)[0] > clients_alone[1] - clients_alone[0]


def test_the_interval_covers_what_it_should():
    """Of 95 % intervals of normal draws without a seed effect, about 95 % hold the truth."""
    rng = np.random.default_rng(5)
    hits = sum(low < 1 < high for low, high in (interval(rng.normal(1, 2, (1, 60)), np.ones(60)) for _ in range(40)))
    assert 34 <= hits <= 40


def test_ties_and_equal_clients_are_tested_without_a_warning():
    for point_K in ([0, 0, 1, 1, -1, 2], [0.5] * 5, [1], [0, 0, 3], [0] * 60 + [1, -2]):
        p = signed_rank(np.array(point_K, float))
        assert p is not None
        assert 0 < p <= 1
    assert signed_rank(np.zeros(7)) is None
    assert signed_rank(np.array([1.0, 2, 3, 4, 5])) == pytest.approx(2 / 32), "all of 2^5 signs, two-sided"


@pytest.mark.thorough(but=["2", "5", "9"])
@pytest.mark.parametrize("count", [2, 5, 9, 12])
def test_with_ties_the_test_is_scipys(count: int) -> None:
    draw = np.random.default_rng(count)
    for point_K in (draw.integers(-2, 3, count), draw.integers(1, 3, count), np.arange(count) - 1):
        if point_K.any():
            want = wilcoxon(point_K, zero_method="zsplit").pvalue
            assert signed_rank(point_K.astype(float)) == pytest.approx(want, rel=1e-12)


def test_p_values_of_several_seeds():
    assert combined([0.03]) == 0.03
    assert combined([0.01, 0.05]) == pytest.approx(0.06)
    assert combined([0.01, None]) == 1
    assert combined([None, None]) is None
    rng = np.random.default_rng(0)
    one_p = rng.uniform(size=20_000)
    for other in (one_p, rng.uniform(size=20_000), 1 - one_p):  # the same, independent, opposed: never too often small
        below = np.mean([combined(pair) < 0.05 for pair in zip(one_p, other, strict=True)])
        assert below < 0.055


def shown(run, a, b, measure=None):
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(report.render_comparison(run, report.compare(run, a, b, measure)))
    return capture.get()


@pytest.mark.parametrize(("measure", "factor", "sign", "says"), [
    ("auroc", 100, 1, "points of test AUROC"), ("brier", 1, -1, "test brier, less is better"),
])  # fmt: skip
def test_another_measure(make, tmp_path, measure, factor, sign, says):
    """Client 4 has no value with one of the methods, so that it does not count."""
    made, rng = make(["local", "fedavg", "fedpac"], seeds=(0, 1), clients=9), np.random.default_rng(1)
    value_MSK = rng.uniform(0.2, 0.9, (3, 2, 9))
    for m, label in enumerate(made.labels):
        for seed, client in np.ndindex(2, 9):
            if (label, client) != ("fedavg", 4):
                value = value_MSK[m, seed, client]
                made.add(label, seed, made.study["rounds"], client, "personalised", measure, value)
    run = report.read(made.save(tmp_path / "run"))
    found = report.compare(run, "fedpac", "fedavg", measure)
    there = np.arange(9) != 4
    _, base, mine = value_MSK[:, :, there]
    d = factor * (mine - base)
    assert found.difference == pytest.approx(d.mean())
    assert found.low < found.difference < found.high
    assert found.p_values == pytest.approx({s: wilcoxon(d[s], zero_method="zsplit").pvalue for s in (0, 1)})
    assert (found.better, found.worse) == ((sign * d.mean(0) > 0).sum(), (sign * d.mean(0) < 0).sum())
    whole = value_MSK[0] - value_MSK[2]
    assert found.harmed == (sign * whole.mean(0) > 0).sum()
    worst = max if sign < 0 else min
    assert found.worst_decile == pytest.approx(np.mean([worst(row) for row in mine]))
    flat = " ".join(shown(run, "fedpac", "fedavg", measure).split())
    assert f"8 clients, 2 seeds; {says}" in flat
    assert report.compare(run, "fedpac", "fedavg") == report.compare(run, "fedpac", "fedavg", "accuracy")


@pytest.mark.parametrize("measure", ["train_loss", "bytes_up", "macro_f1", "nonsense"])
def test_a_measure_that_cannot_be_compared(make, tmp_path, measure):
    run = report.read(make().save(tmp_path / "run"))
    with pytest.raises(InputError, match=f"methods cannot be compared by '?{measure}'?; .*accuracy"):
        report.compare(run, "fedpac", "fedavg", measure)


def test_equal_methods_are_one_sentence(make, tmp_path):
    made = make(["fedavg", "fedpac"])
    made.records = [(*r[:6], 0.1 * r[3], r[7]) if r[5] == "accuracy" else r for r in made.records]
    run = report.read(made.save(tmp_path / "run"))
    found = report.compare(run, "fedpac", "fedavg")
    assert (found.difference, found.low, found.high, found.p_value, found.equal) == (0, 0, 0, None, 6)
    assert (found.harmed, found.base_harmed) == (None, None)
    assert "not tested, because the two are equal for every client" in shown(run, "fedpac", "fedavg")


def test_differences_that_are_equal_but_for_rounding_are_ties(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0,), clients=3)
    worth = {"fedavg": (0.1, 0.3, 0.7), "fedpac": (0.1 + 0.2, 0.5, 0.9)}
    made.records = [(*r[:6], worth[r[0]][r[3]], r[7]) if r[5] == "accuracy" else r for r in made.records]
    found = report.compare(report.read(made.save(tmp_path / "run")), "fedpac", "fedavg")
    assert found.low == found.high == pytest.approx(20)


def test_more_r2_is_better(make, tmp_path):
    made = make(["fedavg", "fedpac"])
    for seed, client in np.ndindex(2, 6):
        for label, value in (("fedavg", 0.6), ("fedpac", 0.8)):
            made.add(label, seed, made.study["rounds"], client, "personalised", "r2", value)
    run = report.read(made.save(tmp_path / "run"))
    assert report.compare(run, "fedpac", "fedavg", "r2").better == 6
    assert "test r2:" in shown(run, "fedpac", "fedavg", "r2").lower()


def test_clients_with_equal_means_over_seeds_are_equal(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1, 2), clients=2)
    worth = {"fedavg": (0, 0, 2 / 3), "fedpac": (1 / 3, 1 / 3, 0)}
    made.records = [(*r[:6], worth[r[0]][r[1]], r[7]) if r[5] == "accuracy" else r for r in made.records]
    found = report.compare(report.read(made.save(tmp_path / "run")), "fedpac", "fedavg")
    assert (found.better, found.worse, found.equal) == (0, 0, 2)


def test_errors_in_small_units_differ(make, tmp_path):
    made, mse = make(["fedavg", "fedpac"]), {"fedavg": 2e-14, "fedpac": 1e-14}
    for seed, client in np.ndindex(2, 6):
        for label, value in mse.items():
            made.add(label, seed, made.study["rounds"], client, "personalised", "brier", value)
    found = report.compare(report.read(made.save(tmp_path / "run")), "fedpac", "fedavg", "brier")
    assert (found.better, found.difference) == (6, pytest.approx(-1e-14))


def test_rendered_within_80_columns(make, tmp_path):
    run = report.read(make(clients=12).save(tmp_path / "run"))
    text = shown(run, "pfedfda", "local")
    found = report.compare(run, "pfedfda", "local")
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert f"better {found.better}, worse {found.worse}, equal 0" in flat
    assert f"{found.difference:+.2f} points, {found.low:+.2f} to {found.high:+.2f}" in flat
    assert re.search(r"\(seed 0\), .* \(seed 1\)", flat)
    assert f"pFedFDA {found.harmed}" in flat
    assert "Local" not in flat.partition("Worse than alone")[2].partition("12 clients")[0], "it cannot harm itself"


def test_the_best_against_every_other(make, tmp_path):
    made = make(["local", "fedavg", "fedpac", "pfedfda"], rounds=12)
    made.drop(lambda r: r[0] == "local" and r[2] > 5)
    run = report.read(made.save(tmp_path / "run"))
    best = max(report.summary(run), key=lambda r: r.accuracy).label
    found = report.comparisons(run)
    assert [(c.method, c.base) for c in found] == [(best, m) for m in made.labels if m not in (best, "local")]
    made.records = []
    assert report.comparisons(report.read(made.save(tmp_path / "empty"))) == []


def test_clients_without_a_pair_are_left_out(make, tmp_path):
    made = make(["fedavg", "fedpac"], clients=5, seeds=(0, 1))
    made.drop(lambda r: r[0] == "fedpac" and (r[3] == 4 or (r[1] == 1 and r[3] == 0)))
    found = report.compare(report.read(made.save(tmp_path / "run")), "fedpac", "fedavg")
    ends = defaultdict(dict)
    for label, seed, r, client, _, metric, value, _ in made.records:
        if (r, metric) == (7, "accuracy"):
            ends[label][seed, client] = value
    pairs = {k: 100 * (v - ends["fedavg"][k]) for k, v in ends["fedpac"].items()}
    means = [np.mean([v for (s, _), v in pairs.items() if s == seed]) for seed in (0, 1)]
    assert found.difference == pytest.approx(np.mean(means))
    assert found.better + found.worse == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fedavg", "cannot compare fedavg, which names 1 methods: write two"),
        ("fedavg,fedavg", "with itself: give two of local, fedavg"),
        ("fedavg,fedpak", "did you mean 'fedpac'"),
    ],
)
def test_what_cannot_be_compared(make, tmp_path, text, says):
    run = report.read(make().save(tmp_path / "run"))
    with pytest.raises(InputError, match=re.escape(says)):
        report.compare(run, *report.named(text))


def test_titles_of_the_table_name_methods_too(make, tmp_path):
    made = make(["fedavg", "fedpac", "fedpac:alignment=0,threshold=0.1"])
    made.manifest["methods"]["fedpac:alignment=0,threshold=0.1"]["title"] = "FedPAC, alignment=0,threshold=0.1"
    run = report.read(made.save(tmp_path / "run"))
    found = report.compare(run, *report.named("FedPAC, alignment=0,threshold=0.1,FedAvg"))
    assert (found.method, found.base) == ("fedpac:alignment=0,threshold=0.1", "fedavg")


def test_methods_that_have_not_come_equally_far(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1))
    last = made.study["rounds"]
    made.drop(lambda r: r[:2] == ("fedpac", 1) and r[2] == last)
    run = report.read(made.save(tmp_path / "run"))
    with pytest.raises(InputError, match=f"fedpac has [0-9]+ rounds with seed 1 and fedavg {last}, .* finish the run"):
        report.compare(run, "fedpac", "fedavg")
    assert [row.versus_fedavg for row in report.summary(run)] == [0.0, None]


def test_nothing_in_common(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1))
    made.drop(lambda r: (r[0], r[1]) in (("fedavg", 0), ("fedpac", 1)))
    run = report.read(made.save(tmp_path / "run"))
    with pytest.raises(InputError, match="no results of the same clients and seeds: finish the run"):
        report.compare(run, "fedpac", "fedavg")
    assert report.comparisons(run) == []


def test_export(make, tmp_path):
    folder = make(seeds=(0,)).save(tmp_path / "run")
    run = report.read(folder)
    rows = report.summary(run)
    assert report.export(folder, "latex") == [folder / "table.tex"]
    assert (folder / "table.tex").read_text() == report.as_latex(rows, columns_of(run))
    assert report.export(folder, "csv", tmp_path / "new" / "place") == [tmp_path / "new" / "place" / "table.csv"]
    assert (tmp_path / "new" / "place" / "table.csv").read_text() == report.as_csv(rows)
    with pytest.raises(InputError, match="is a file, but an export needs a folder"):
        report.export(folder, "png", folder / "table.tex")


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, " ".join(captured.out.split()), captured.err


def test_the_command(make, tmp_path, capsys):
    folder = make(seeds=(0,)).save(tmp_path / "run")
    code, out, _ = said(capsys, folder, "--compare", "fedpac,fedavg")
    assert (code, out[:21]) == (0, "FedPAC against FedAvg")
    assert not (folder / "report.html").exists()
    code, out, _ = said(capsys, folder, "--export", "csv", "--out", tmp_path / "new")
    assert (code, out) == (0, f"Written: {tmp_path}/new/table.csv")
    code, out, err = said(capsys, folder, folder, "--compare", "fedpac,fedavg")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a run is given twice: give each run once" in err


def test_every_figure_is_a_picture(make, tmp_path):
    from PIL import Image

    folder = make(seeds=(0,), rounds=2).save(tmp_path / "run")
    written = report.export(folder, "png")
    names = ["rounds", "spread", "cost", "versus-fedavg", "versus-local", "labels", "combination-2", "beta-3"]
    assert [p.stem for p in written] == [*names, "beta-shift-3"]
    for path in written:
        with Image.open(path) as image:
            assert min(image.size) > 150
            levels = np.asarray(image.convert("L"))
        assert levels.max() == 255, "on white"
        assert (levels < 160).mean() > 0.001, "with ink on it"


def test_the_interval_of_many_clients_is_that_of_their_mean():
    point_K = np.random.default_rng(3).gamma(2, 5, 1_500)
    low, high = interval(point_K[None], np.ones(1_500))
    error = point_K.std() / np.sqrt(1_500)
    np.testing.assert_allclose([low, high], point_K.mean() + np.array([-1.96, 1.96]) * error, atol=0.12 * error)


def worth(make, tmp_path, name, clients, gain):
    """A run of one seed in which FedPAC gains so many points over FedAvg at each client."""
    made = make(["fedavg", "fedpac"], clients=clients, seeds=(0,))
    for client in made.manifest["clients"]:
        client["name"] = f"Clinic {client['id']}"
    value = {("fedavg", k): 0.5 + 0.01 * k for k in range(clients)}
    value |= {("fedpac", k): 0.5 + 0.01 * k + gain(k) / 100 for k in range(clients)}
    made.records = [(*r[:6], value[r[0], r[3]], r[7]) if r[5] == "accuracy" else r for r in made.records]
    return report.read(made.save(tmp_path / name))


def test_the_smallest_p_is_that_of_clients_that_all_differ_in_one_direction():
    for clients in (1, 2, 5, 6, 9):
        assert smallest_p(clients) == pytest.approx(wilcoxon(np.arange(1.0, clients + 1)).pvalue)
    assert smallest_p(6, seeds=4) == pytest.approx(combined([wilcoxon(np.arange(1.0, 7)).pvalue] * 4))


def test_with_few_clients_nothing_is_won(make, tmp_path):
    run = worth(make, tmp_path, "few", 5, lambda k: k + 1)
    said = "With 5 clients no test can show a difference: the smallest p that this test can give is 0.0625."
    text = " ".join(shown(run, "fedpac", "fedavg").split())
    assert said in text
    assert "Worst client 51.0 % against 50.0 %" in text
    page = report.write([tmp_path / "few"], tmp_path / "few.html").read_text(encoding="utf-8")
    assert said in page
    assert "FedPAC is better than FedAvg for 5 of 5 clients: too few clients to show a difference" in page
    assert "beats FedAvg" not in page
    assert "Its worst client" in page
    assert '"other":"Clinic 3"' in page
    assert not re.search(r"Worst tenth</button>|Its worst tenth", page)


@pytest.mark.parametrize(
    ("gain", "title"),
    [
        (lambda k: k + 1, "FedPAC beats FedAvg for 20 of 20 clients"),
        (lambda k: (-1) ** k * k, "FedPAC is better than FedAvg for 9 of 20 clients: no clear difference"),
    ],
)
def test_with_many_clients_a_title_follows_the_test(make, tmp_path, gain, title):
    worth(make, tmp_path, "many", 20, gain)
    page = report.write([tmp_path / "many"], tmp_path / "many.html").read_text(encoding="utf-8")
    assert title in page
    assert "no test can show" not in page
    assert "Its worst tenth" in page


def test_samples_of_validation_weigh_what_they_measure(make, tmp_path):
    """Clients with 1, 9 and 30 validation samples, whose numbers of test samples are others."""
    sizes, gains = (1, 9, 30), (0.3, -0.1, 0.2)
    made = make(["fedavg", "fedpac"], clients=3, seeds=(0,), rounds=1)
    made.study["protocol"] = {"weighting": "sample", "validation": 0.2}
    for client, size in zip(made.manifest["clients"], sizes, strict=True):
        client["validation"] = [size, *[0] * 9]
        made.add("fedavg", 0, 1, client["id"], "personalised", "validation_accuracy", 0.4)
        made.add("fedpac", 0, 1, client["id"], "personalised", "validation_accuracy", 0.4 + gains[client["id"]])
    run = report.read(made.save(tmp_path / "run"))
    found = report.compare(run, "fedpac", "fedavg", "validation_accuracy")
    assert found.difference == pytest.approx(100 * np.average(gains, weights=sizes))
    flat = " ".join(shown(run, "fedpac", "fedavg", "validation_accuracy").split())
    assert "points of validation accuracy: mean over the validation samples of all clients" in flat
    tests = [sum(c["test"]) for c in made.manifest["clients"]]
    d = 100 * (table(made, "fedpac") - table(made, "fedavg"))[0]
    assert report.compare(run, "fedpac", "fedavg").difference == pytest.approx(np.average(d, weights=tests))
    assert "points of test accuracy: mean over the test samples" in " ".join(shown(run, "fedpac", "fedavg").split())
