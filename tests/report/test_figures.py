"""The values inside the specifications, against plain loops over the synthetic records."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

import pytest

from idiolect import report
from idiolect.core.reports import ClientValue, PairValue, to_json
from idiolect.report.figures import PALETTE, figures, palette, sensitivity


def drawn(made, folder):
    run = report.read(made.save(folder))
    found, notes = figures(run, palette([run]))
    return {f.name: f for f in found}, notes


def values(figure):
    return figure.spec["data"]["values"]


def finals(made):
    """{label: {client: mean over seeds of the accuracy at the last round, in per cent}} where nothing stopped early."""
    last = made.study["rounds"]
    found = defaultdict(lambda: defaultdict(list))
    for label, _, r, client, stage, metric, value, _ in made.records:
        if (r, stage, metric) == (last, "personalised", "accuracy"):
            found[label][client].append(100 * value)
    return {label: {c: sum(v) / len(v) for c, v in by.items()} for label, by in found.items()}


def test_all_figures_of_a_full_run(make, tmp_path):
    found, notes = drawn(make(), tmp_path / "run")
    names = ["rounds", "spread", "cost", "versus-fedavg", "versus-local", "labels", "combination-2", "beta-3"]
    names += ["beta-shift-3"]
    assert list(found) == names
    assert notes == []


def test_rounds_have_mean_and_range_over_seeds(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1, 2))
    found, _ = drawn(made, tmp_path / "run")
    per = defaultdict(lambda: defaultdict(list))
    for label, seed, r, _, _, metric, value, _ in made.records:
        if metric == "accuracy":
            per[label, r][seed].append(100 * value)
    points = {(v["method"], v["round"]): v for v in values(found["rounds"])}
    assert len(points) == len(per)
    for (label, r), seeds in per.items():
        means = [sum(v) / len(v) for v in seeds.values()]
        point = points[made.manifest["methods"][label]["title"], r]
        want = {"accuracy": sum(means) / 3, "low": min(means), "high": max(means), "seeds": 3}
        assert {k: point[k] for k in want} == pytest.approx(want, abs=0.006)
    assert any(layer["mark"] == "area" for layer in found["rounds"].spec["layer"])


def test_one_seed_has_no_band(make, tmp_path):
    found, _ = drawn(make(seeds=(0,)), tmp_path / "run")
    assert len(found["rounds"].spec["layer"]) == 2
    assert "band" not in found["rounds"].caption


def test_who_gains(make, tmp_path):
    made = make(clients=9)
    found, _ = drawn(made, tmp_path / "run")
    end = finals(made)
    for name, base in (("versus-fedavg", "fedavg"), ("versus-local", "local")):
        want = {}
        for label in made.labels:
            if label != base:
                title = made.manifest["methods"][label]["title"]
                want |= {(title, c): end[label][c] - end[base][c] for c in end[label]}
        got = {(v["method"], int(v["client"].split()[0])): v["points"] for v in values(found[name])}
        assert got == pytest.approx(want, abs=0.006)
        for fact in found[name].facts:
            title, better, of = re.fullmatch(r"(\w+): better for (\d+) of (\d+) clients", fact).groups()
            assert (int(better), int(of)) == (sum(d > 0 for (t, _), d in want.items() if t == title), 9)


def test_equal_clients_are_counted_apart(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0,), clients=4)
    made.records = [
        (*r[:6], 0.5 + 0.1 * (r[0] == "fedpac") * (r[3] - 1), r[7]) if r[5] == "accuracy" else r for r in made.records
    ]
    found, _ = drawn(made, tmp_path / "run")
    assert found["versus-fedavg"].facts == ["FedPAC: better for 2 of 4 clients, equal for 1"]


def test_label_map_counts_and_shifts(make, tmp_path):
    made = make()
    found, _ = drawn(made, tmp_path / "run")
    got = {(v["client"], v["class"]): (v["rows"], v["test samples"], v["kind"]) for v in values(found["labels"])}
    want = {}
    for c in made.manifest["clients"]:
        name = f"{c['id']} · rotate 90" if c["shift"] else str(c["id"])
        for k, rows in enumerate(c["train"]):
            if rows:
                want[name, f"class {k}"] = (rows, c["test"][k], "shifted" if c["shift"] else "not shifted")
    assert got == want


@pytest.mark.parametrize(("rounds", "shown"), [(7, [5, 7]), (62, [5, 20, 50, 62]), (3, [3])])
def test_combination_weights_of_a_few_rounds(make, tmp_path, rounds, shown):
    """Those on record, every fifth and the last, that are nearest to 1, 20 and 50, and the last."""
    made = make(["fedpac"], clients=12, rounds=rounds)
    found, _ = drawn(made, tmp_path / "run")
    want = defaultdict(list)
    for _, _, r, client, stage, _, value, other in made.records:
        if stage == "server" and r in shown:
            want[f"round {r}", client, other].append(value)
    points = values(found["combination-0"])
    got = {(v["round"], int(v["client"].split()[0]), int(v["other"])): v["value"] for v in points}
    assert got == pytest.approx({k: sum(v) / len(v) for k, v in want.items()}, abs=6e-5)
    assert found["combination-0"].spec["facet"]["column"]["sort"] == [f"round {r}" for r in shown]


def test_beta_of_each_clients_last_round(make, tmp_path):
    made = make(seeds=(0, 1))
    made.drop(lambda r: r[5] == "beta" and r[3] == 1 and r[2] > 4)
    found, _ = drawn(made, tmp_path / "run")
    want = defaultdict(list)
    for _, _, r, client, _, metric, value, _ in made.records:
        if metric == "beta" and r == (4 if client == 1 else 7):
            want[client].append(value)
    got = {int(v["client"].split()[0]): v["value"] for v in values(found["beta-3"])}
    assert got == pytest.approx({k: sum(v) / len(v) for k, v in want.items()}, abs=6e-4)


def test_beta_of_each_kind_of_corruption(make, tmp_path):
    made = make(["pfedfda"], seeds=(0, 1), clients=8)
    for c in made.manifest["clients"]:
        c["shift"] = f"corrupt:kind={('fog', 'dawn')[c['id'] % 2]},severity={c['id'] + 1}" if c["id"] < 5 else ""
    found, _ = drawn(made, tmp_path / "run")
    want = defaultdict(list)
    for _, _, r, client, _, metric, value, _ in made.records:
        if (metric, r) == ("beta", 7):
            want["clean" if client > 4 else ("fog", "dawn")[client % 2], client].append(value)
    got = {(v["kind"], int(v["client"].split()[0])): v["value"] for v in values(found["beta-shift-0"])}
    assert got == pytest.approx({k: sum(v) / 2 for k, v in want.items()}, abs=6e-5)
    order = found["beta-shift-0"].spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert order == ["clean", "dawn", "fog"]


def test_what_fedpac_and_pfedfda_say_of_their_figures(make, tmp_path):
    made = make(["fedpac", "pfedfda"], clients=5, seeds=(0,))
    mean = defaultdict(list)
    for *_, r, client, _, metric, value, other in made.records:
        if r == 7 and (metric == "beta" or client == other):
            mean[metric, client == 3 and metric == "beta"].append(value)
    mean = {key: sum(v) / len(v) for key, v in mean.items()}
    found, _ = drawn(made, tmp_path / "run")
    pairs, beta = found["combination-0"], found["beta-1"]
    share = f"{100 * mean['combination', False]:.0f} %"
    assert pairs.title == f"FedPAC: a client's own head carries {share} of its combined head on average"
    assert pairs.caption == (
        "Combination weights. Each row is a receiving client, its colours the weights of the heads given to it, on a "
        "square-root scale (mean over seeds; the last evaluation round and the recorded rounds nearest to 1, 20 and "
        "50). Clients with similar classes and shifts are next to each other."
    )
    encoding = pairs.spec["spec"]["encoding"]
    assert [encoding[k]["title"] for k in "xy"] == ["gives its head", "receives a combined head"]
    assert beta.title == "pFedFDA: β is {:.2f} on average for shifted clients, {:.2f} for the others".format(
        mean["beta", True], mean["beta", False]
    )
    assert beta.caption == (
        "Local weights (beta). At 1 a client uses its own estimate alone, at 0 the global one (its last round)."
    )
    x = beta.spec["layer"][0]["encoding"]["x"]
    assert (x["title"], x["scale"]) == ("β, weight of the local estimate (0 to 1)", {"domain": [0, 1]})


def _toy(make, reports):
    """A run of a method that nobody knows: at its last round pairs of a metric, and a number of each client."""
    made = make(["toy"], clients=4, seeds=(0,), rounds=5)
    made.manifest["methods"]["toy"]["reports"] = to_json(reports)
    for i in range(4):
        made.add("toy", 0, 5, i, "server", "debt/../1", 2.0 * i)
        for j in range(4):
            made.add("toy", 0, 5, i, "server", "trust", (i - j) / 3, j)
    return made


def test_a_method_that_nobody_knows_says_what_is_drawn(make, tmp_path):
    made = _toy(
        make,
        {
            "trust": PairValue("trusts", "who trusts whom", "Each row trusts", "trusts", "is trusted", "trust"),
            "debt/../1": ClientValue("debts", "d", "debt in euros", "who owes", "At 9 a client owes 9 euros", (-1, 9)),
            "absent": ClientValue("numbers of nothing", "n", "", "", ""),
        },
    )
    found, notes = drawn(made, tmp_path / "run")
    assert "No numbers of nothing are recorded for toy, so their figure is left out." in notes
    pairs, debt = found["trust-0"], found["debt-..-1-0"]
    assert pairs.title == "toy: who trusts whom"
    assert pairs.caption.startswith("Trusts. Each row trusts, orange below 0 and blue above (mean over seeds;")
    encoding = pairs.spec["spec"]["encoding"]
    assert encoding["color"]["scale"]["domain"] == pytest.approx([-1, 1]), "some are negative"
    assert [encoding[k]["title"] for k in "xy"] == ["is trusted", "trusts"]
    got = {(int(v["client"].split()[0]), int(v["other"])): v["value"] for v in values(pairs)}
    assert got == pytest.approx({(i, j): (i - j) / 3 for i in range(4) for j in range(4)}, abs=6e-5)
    assert debt.title == "toy: d is 6.00 on average for shifted clients, 2.00 for the others"
    assert debt.caption == "Debts. At 9 a client owes 9 euros (its last round)."
    assert found["debt-..-1-shift-0"].caption.startswith("Debts. Each dot is one client")
    x = debt.spec["layer"][0]["encoding"]["x"]
    assert (x["title"], x["scale"]) == ("d, debt in euros (-1 to 9)", {"domain": [-1, 9]})
    assert [v["value"] for v in sorted(values(debt), key=lambda v: v["client"])] == [0, 2, 4, 6]
    assert found["debt-..-1-shift-0"].title == "toy: half of the clients with rotate have d above 6.00"


def test_pairs_that_nobody_describes_are_drawn_in_general_words(make, tmp_path):
    found, _ = drawn(_toy(make, {}), tmp_path / "run")
    assert [name for name in found if name[-2:] == "-0"] == ["trust-0"]
    assert found["trust-0"].title == "toy: trust between clients"
    assert found["trust-0"].caption.startswith("Trust. Each row is a client; its colours are the values of trust")
    assert "the values of trust between it and the others, orange" in found["trust-0"].caption


def test_gaussianity_over_rounds(make, tmp_path):
    made = make(["fedavg", "fedlda"], seeds=(0, 1), clients=3, rounds=3)
    want = defaultdict(list)
    for n, (label, seed, r, client) in enumerate(
        (label, seed, r, client) for label in made.labels for seed in (0, 1) for r in (1, 3) for client in range(3)
    ):
        made.add(label, seed, r, client, "personalised", "gaussianity", n * n)
        made.add(label, seed, r, client, "personalised", "gaussianity_standardised", -n)
        want[made.manifest["methods"][label]["title"], r].append(n * n)
    found, _ = drawn(made, tmp_path / "run")
    got = {(v["method"], v["round"]): v["nats"] for v in values(found["gaussianity"])}
    assert got == pytest.approx({k: sum(v) / 6 for k, v in want.items()}, abs=6e-5)
    assert {v["nats"] < 0 for v in values(found["gaussianity-standardised"])} == {True}


@pytest.mark.parametrize("clients", [(2,), (0, 3)])
def test_representations_in_the_plane(make, tmp_path, clients):
    made = make(["fedavg", "fedcr"], clients=4, rounds=1)
    want = set()
    for label in made.labels:
        for seed in (0, 1):
            for client in clients:
                for row in range(12):
                    point = (len(label) + row / 4, client - row)
                    made.add(label, seed, 1, client, "personalised", f"feature[{row},0]", point[0] + seed)
                    made.add(label, seed, 1, client, "personalised", f"feature[{row},1]", point[1])
                    made.add(label, seed, 1, client, "personalised", f"feature_class[{row}]", row % 10)
                    want.add((made.manifest["methods"][label]["title"], client, *point, f"class {row % 10}"))
    found, _ = drawn(made, tmp_path / "run")
    points = values(found["representations"])
    got = {(v["method"], int(v["client"].split()[0]), v["first"], v["second"], v["class"]) for v in points}
    assert got == want, "of the first seed"
    facet = found["representations"].spec["facet"]
    assert (facet if len(clients) == 1 else facet["row"])["sort"] == ["FedAvg", "FedCR"]


def test_combination_weights_have_alike_clients_side_by_side(make, tmp_path):
    made = make(["fedpac"], clients=6)
    for c in made.manifest["clients"]:
        c["shift"] = ""
        c["train"] = [20 if k % 2 == c["id"] % 2 else 0 for k in range(len(c["train"]))]
    found, _ = drawn(made, tmp_path / "run")
    encoding = found["combination-0"].spec["spec"]["encoding"]
    assert encoding["x"]["scale"]["domain"] == ["0", "2", "4", "1", "3", "5"]
    assert [name.split()[0] for name in encoding["y"]["scale"]["domain"]] == ["0", "2", "4", "1", "3", "5"]


def _varied(make, tmp_path, key, numbers, labels=("fedavg", "fedpac")):
    """Runs in which a setting takes these values, the accuracy rising by a point with each."""
    runs = []
    for i, number in enumerate(numbers):
        made = make(list(labels), seeds=(0,), rounds=1, name=f"run {i}")
        made.study[key] = number
        made.records = [(*r[:6], 0.3 + 0.01 * i, r[7]) if r[5] == "accuracy" else r for r in made.records]
        runs.append(report.read(made.save(tmp_path / f"{key}{i}")))
    return runs


@pytest.mark.parametrize(
    ("key", "numbers", "called", "at"),
    [
        ("local_epochs", [1, 5, 10], "local epochs", [1, 5, 10]),
        (
            "partition",
            ["shards:share=0.2", {"name": "shards", "options": {"share": 0.8}}],
            "partition: share",
            [0.2, 0.8],
        ),
        ("sizes", [[100], [200]], "sizes", [100, 200]),
        ("lr", [1e-3, 1.0], "lr", [1e-3, 1.0]),
    ],
)
def test_a_curve_over_what_alone_differs(make, tmp_path, key, numbers, called, at):
    runs = _varied(make, tmp_path, key, numbers)
    [figure] = sensitivity(runs, palette(runs))
    got = sorted((v["method"], v["x"], v["score"]) for v in values(figure))
    assert got == [(m, x, 30 + i) for m in ("FedAvg", "FedPAC") for i, x in enumerate(at)]
    x = figure.spec["encoding"]["x"]
    assert x["title"] == called
    assert (x["scale"].get("type") == "log") == (key == "lr")


@pytest.mark.parametrize("part", ["test", "validation"])
def test_a_curve_says_which_samples_are_measured(make, tmp_path, part):
    runs = _varied(make, tmp_path, "lr", [0.1, 0.2])
    for run in runs if part == "validation" else ():
        for client in run.manifest["clients"]:
            client |= {"validation": client["test"], "test": [0] * 10}
        run.records.loc[run.records["metric"] == "accuracy", "metric"] = "validation_accuracy"
    [figure] = sensitivity(runs, palette(runs))
    assert figure.caption.startswith(f"{part.capitalize()} accuracy against lr; nothing else differs")


def test_a_curve_in_each_of_several_settings(make, tmp_path):
    runs = []
    for k, (dataset, split, lr) in enumerate(itertools.product("ab", (0, 1), (0.1, 0.2))):
        run = _varied(make, tmp_path / str(k), "lr", [lr], ("fedavg",))[0]
        run.study.update(data_seed=split, dataset=dataset)
        runs.append(run)
    ends = [figure.title.partition("lr 0.1")[2] for figure in sensitivity(runs, palette(runs))]
    assert ends == [f" ({d}, data seed {split})" for d in "ab" for split in (0, 1)]


def test_a_curve_over_an_option_of_a_method(make, tmp_path):
    made = make(["fedcr:beta=0.1", "fedcr:beta=0.01", "fedavg"], seeds=(0,), rounds=1)
    for label in made.labels[:2]:
        made.manifest["methods"][label] |= {"name": "fedcr", "title": "FedCR"}
    worth = dict(zip(made.labels, (0.2, 0.4, 0.6), strict=True))
    made.records = [(*r[:6], worth[r[0]], r[7]) if r[5] == "accuracy" else r for r in made.records]
    run = report.read(made.save(tmp_path / "run"))
    [figure] = sensitivity([run], palette([run]))
    assert [(v["method"], v["x"], v["score"]) for v in values(figure)] == [("FedCR", 0.1, 20), ("FedCR", 0.01, 40)]


def test_no_curve_where_more_or_nothing_or_a_name_differs(make, tmp_path):
    two = _varied(make, tmp_path, "lr", [0.1, 0.2])
    two[1].study["local_epochs"] = 3
    for runs in (
        two,
        _varied(make, tmp_path, "clients", [20, 20]),
        _varied(make, tmp_path, "seeds", [[0], [1]]),
        _varied(make, tmp_path, "dataset", ["cifar10", "emnist"]),
        _varied(make, tmp_path, "full", [True, False]),
    ):
        assert sensitivity(runs, palette(runs)) == []


def test_cost_agrees_with_the_table_and_labels_stand_apart(make, tmp_path):
    made = make(["fedavg", "fedrep", "fedpac"])
    made.records = [(*r[:6], 0.5, r[7]) if r[5] == "accuracy" else r for r in made.records]
    found, _ = drawn(made, tmp_path / "run")
    rows = values(found["cost"])
    assert [(v["method"], v["amount"], v["accuracy"]) for v in rows] == [
        ("FedAvg", 236.0, 50.0),
        ("FedRep", 236.0, 50.0),
        ("FedPAC", 243.8, 50.0),
    ]
    assert len({v["label"] for v in rows}) == 3


def test_of_many_methods_the_front_is_named(make, tmp_path):
    labels = [f"fedavg:{i}" for i in range(12)]
    made = make(labels)
    worth = {label: 0.5 + 0.03 * i for i, label in enumerate(labels)}  # all send as much, so the last beats the others
    made.records = [(*r[:6], worth[r[0]], r[7]) if r[5] == "accuracy" else r for r in made.records]
    made.records = [(*r[:6], 10.0, r[7]) if r[0] == labels[4] and r[5].startswith("bytes") else r for r in made.records]
    found, _ = drawn(made, tmp_path / "run")
    rows = values(found["cost"])
    assert [i for i, v in enumerate(rows) if "label" in v] == [4, 11]  # 4 is cheaper than all
    assert "Names are shown" in found["cost"].caption


def test_what_is_missing_is_said_once(make, tmp_path):
    made = make(["fedpac", "pfedfda"])
    made.drop(lambda r: r[4] in ("server", "wire") or r[5] == "beta")
    found, notes = drawn(made, tmp_path / "run")
    assert list(found) == ["rounds", "spread", "labels"]
    assert len(notes) == 5
    for word in ("bytes", "FedAvg", "training alone", "combination", "beta"):
        assert sum(word in note for note in notes) == 1


def test_what_nobody_misses_is_not_mentioned(make, tmp_path):
    found, notes = drawn(make(["local", "fedavg"]), tmp_path / "run")
    assert not any(name.startswith(("beta", "combination")) for name in found)
    assert notes == []


def test_nothing_on_record_yet(make, tmp_path):
    made = make()
    made.records, made.timings = [], []
    found, notes = drawn(made, tmp_path / "run")
    assert list(found) == ["labels"]
    assert any("No accuracy" in note for note in notes)


def test_a_method_keeps_its_colour_over_figures_and_runs(make, tmp_path):
    runs = [
        report.read(make(labels, name=labels[0]).save(tmp_path / labels[0]))
        for labels in (["local", "fedavg"], ["fedpac", "fedavg", "pfedfda"])
    ]
    colours = palette(runs)
    assert list(colours) == ["local", "fedavg", "fedpac", "pfedfda"]
    assert len(set(colours.values())) == 4
    for run in runs:
        for figure in figures(run, colours)[0]:
            for layer in figure.spec.get("layer", []):
                colour = layer["encoding"].get("color", {})
                if colour.get("field") == "method":
                    want = {title: colours[label] for label, title in run.titles.items()}
                    assert dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True)) == want


def test_palette_is_long_enough_for_twelve_methods():
    assert len(set(PALETTE)) == len(PALETTE) == 12
