"""Numbers to predict: which methods do, what is recorded, and that tables, searches and stops take less as better."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import nn

import idiolect as idl
from idiolect import data, methods, report
from idiolect.cli import main
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data, Reduced, Task, Training
from idiolect.core.network import Network
from idiolect.core.objectives import OBJECTIVES
from idiolect.runs import reader
from idiolect.simulation import errors_of_numbers
from idiolect.statistics.conformal import OF_INTERVALS
from idiolect.training import trial

OF_CLASSES = {
    "ccvr",
    "fd",
    "fedas",
    "fedcgs",
    "fedcr",
    "fedgc",
    "fedgen",
    "fedgh",
    "fedkd",
    "fedlc",
    "fedlda",
    "fedntd",
    "fedpac",
    "fedpcl",
    "fedphp",
    "fedproto",
    "fedrod",
    "fedsr",
    "fedtgp",
    "flute",
    "fml",
    "gpfl",
    "knnper",
    "pfedfda",
}


def frame(rows: int = 90, seed: int = 0, scale: float = 100.0) -> pd.DataFrame:
    """Three clients with slopes of their own, in units far from 1."""
    draw = np.random.default_rng(seed)
    client = np.arange(rows) % 3
    x = draw.normal(size=(rows, 2))
    y = scale * (x[:, 0] * (1 + client) + x[:, 1] + 3 * client + 0.1 * draw.normal(size=rows)) + 1000
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in client], "y": y})


def study(*uses: object, **more: object) -> idl.Study:
    source = data.from_frame(frame(), target="y", client_column="site")
    settings = {"rounds": 4, "local_epochs": 2, "batch_size": 10, "lr": 0.05, "evaluate_every": 1} | more
    return idl.Study(data=source, methods=list(uses), **settings)


def test_the_methods_that_need_only_a_loss_learn_numbers_and_the_others_say_why(
    tmp_path: Path, of_kinds: Callable[[list[str]], list[str]]
) -> None:
    able = of_kinds([name for name in methods.ours() if name not in OF_CLASSES])
    result = idl.run(study(*able, rounds=3), tmp_path / "run", engine="sequential")
    assert set(result.score().index.get_level_values("method")) == set(able)
    assert np.isfinite(result.score()).all()
    for name in sorted(OF_CLASSES):
        with pytest.raises(InputError, match=f"method {name} needs classes, because .*: leave it out of a regression"):
            idl.run(study(name), tmp_path / name)
        assert not (tmp_path / name / "records.parquet").exists()


def test_a_round_of_federated_averaging_is_gradient_descent_on_the_squared_error() -> None:
    """Two clients of unlike sizes, one full batch each, against float64 numpy."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(8, 3)).astype(np.float32), draw.normal(size=(8, 2)).astype(np.float32)

    def make(shape: object, outputs: int) -> tuple[nn.Module, nn.Module]:
        return nn.Identity(), nn.Linear(3, outputs)

    how = OBJECTIVES["regression"]
    training = Training(epochs=1, batch_size=8, optimiser=plain_sgd(0.1), shuffle=False)
    task = Task(
        Network(lambda: make((3,), 2), (3,)), 2, 2, training, loss=how.loss, output=how.output, mixture=how.mixture,
        kind="regression",
    )  # fmt: skip
    method = methods.build("fedavg", {}, task)
    parts = [np.arange(3), np.arange(3, 8)]
    clients = [
        Data(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(rows), torch.ones(len(rows))) for rows in parts
    ]
    one = trial.trial(method, clients)
    head = {k: v.double().numpy() for k, v in one.server.head.items()}
    want = {k: np.zeros_like(v) for k, v in head.items()}
    for rows in parts:
        error = x[rows].astype(float) @ head["weight"].T + head["bias"] - y[rows]
        by_output = 2 * error / (2 * len(rows))  # mean over samples and over the two numbers
        want["weight"] += len(rows) / 8 * (head["weight"] - 0.1 * by_output.T @ x[rows])
        want["bias"] += len(rows) / 8 * (head["bias"] - 0.1 * by_output.sum(0))
    total = sum(float(up.weight) for up in one.ups)
    for name in head:
        got = head[name] + sum(float(up.weight) * up.value.head[name].double().numpy() for up in one.ups) / total
        np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_round_of_fedshrink_is_bayesian_linear_regression(seed: int) -> None:
    """Sums, everyone's weights, the evidence and a client's weights, against numpy, scipy and scikit-learn."""
    draw = np.random.default_rng(seed)
    sizes, d, targets = (5, 12, 30), 3, 2
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    x, truth = draw.normal(size=(sum(sizes), d)), draw.normal(size=(d, targets))
    y = np.concatenate([x[r] @ (truth + 0.7 * draw.normal(size=truth.shape)) + draw.normal() for r in rows])
    y += 0.3 * draw.normal(size=y.shape)
    how = OBJECTIVES["regression"]
    training = Training(epochs=1, batch_size=50, optimiser=plain_sgd(0.1))
    network = Network(lambda: (nn.Identity(), nn.Linear(d, targets)), (d,))
    task = Task(
        network, targets, len(sizes), training, loss=how.loss, output=how.output, mixture=how.mixture, kind="regression"
    )
    method = methods.build("fedshrink", {}, task)
    x_R, y_R = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    clients = [Data(x_R, y_R, torch.from_numpy(r), torch.ones(len(r))) for r in rows]
    one = trial.trial(method, clients)
    z = np.column_stack([x, np.ones(len(x))])
    value = type(one.ups[0].value)(
        {}, *(sum(getattr(up.value, name).double() for up in one.ups) for name in one.ups[0].value._fields[1:])
    )
    server, _ = method.aggregate(one.server, Reduced(value, torch.tensor(float(len(x)))), torch.arange(3))
    grid, every = np.logspace(-6, 3, 37), [np.arange(len(x))]

    def likelihood(clients: list[np.ndarray], spread: np.ndarray) -> float:
        """Of the samples given weights around 0, with the best variance for each number of the target."""
        parts = [np.eye(len(r)) + (z[r] * spread) @ z[r].T for r in clients]
        square = sum(y[r].T @ np.linalg.solve(v, y[r]) for r, v in zip(clients, parts, strict=True)).diagonal()
        return sum(
            multivariate_normal(np.zeros(len(r)), s2 * v).logpdf(y[r, k])
            for r, v in zip(clients, parts, strict=True)
            for k, s2 in enumerate(square / len(x))
        )

    variance = max(grid, key=lambda t: likelihood(every, np.full(d + 1, t)))
    weight = Ridge(alpha=1 / variance, fit_intercept=False).fit(z, y).coef_.T
    np.testing.assert_allclose(server.weight_dD, weight, rtol=1e-3, atol=1e-4)
    spreads = [np.append(np.full(d, slope), bias) for slope in grid for bias in np.logspace(-4, 3, 15)]
    best = max(spreads, key=lambda spread: likelihood(rows, spread))
    np.testing.assert_allclose(server.spread, best[[0, -1]], rtol=1e-5)
    down = method.send(server, torch.tensor([0]))
    for data_of, r in zip(clients, rows, strict=True):
        own = method.personalise(down, (), data_of, keys.key(0))
        scaled = z[r] * np.sqrt(best)  # a ridge of 1 on weights in these units is the prior
        ridge = Ridge(alpha=1, fit_intercept=False).fit(scaled, y[r] - z[r] @ weight)
        np.testing.assert_allclose(own, weight + np.sqrt(best)[:, None] * ridge.coef_.T, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(method.predict(down, own, x_R), z @ own.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("ridge", "spread"), [(0.3, 0.5), (2.0, 0.01), (0.05, 10.0)])
def test_the_body_of_fedshrink_trains_under_a_head_that_is_pulled_to_0(ridge: float, spread: float) -> None:
    """A step of gradient descent against numpy: the head is the ridge regression of the features, near everyone's."""
    draw = np.random.default_rng(4)
    n, d, targets = 17, 3, 2
    x, y = draw.normal(size=(n, d)), draw.normal(size=(n, targets))
    how = OBJECTIVES["regression"]
    training = Training(epochs=1, batch_size=50, optimiser=plain_sgd(0.1))
    network = Network(lambda: (nn.Linear(d, d, bias=False), nn.Linear(d, targets)), (d,))
    task = Task(network, targets, 3, training, loss=how.loss, output=how.output, mixture=how.mixture, kind="regression")
    method = methods.build("fedshrink", {"ridge": ridge}, task)
    server = method.init_server(keys.key(1))
    weight = draw.normal(size=(d + 1, targets))
    slope, bias = spread, 3 * spread
    server = server._replace(weight_dD=torch.from_numpy(weight).float(), spread=torch.tensor([slope, bias]))
    data = Data(torch.from_numpy(x).float(), torch.from_numpy(y).float(), torch.arange(n), torch.ones(n))
    _, up, _ = method.local(method.send(server, torch.tensor([0])), (), data, keys.key(2))
    (body,) = server.body.values()
    body = body.double().numpy()
    z = np.column_stack([x @ body.T, np.ones(n)])
    near = np.append(np.full(d, 1 / slope), 1 / bias)[:, None]
    head = np.linalg.solve(z.T @ z + np.diag(near[:, 0]) + n * ridge * np.eye(d + 1), z.T @ y + near * weight)
    by_feature = 2 * (z @ head - y) @ head[:d].T / (n * targets)  # mean over samples and over the two numbers
    (change,) = up.value.body.values()
    np.testing.assert_allclose(change, -0.1 * by_feature.T @ x, rtol=1e-4, atol=1e-6)


def plain_sgd(lr: float) -> SGD:
    return SGD(lr=lr, momentum=0.0, weight_decay=0.0)


@pytest.mark.thorough(but=["vectorised"])
@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_engines_agree(tmp_path: Path, engine: str) -> None:
    uses = ("local", "fedavg", "apfl", "fedem", "hypcluster", "fedshrink")
    one, other = (idl.run(study(*uses), tmp_path / e, engine=e).records for e in ("sequential", engine))
    keys = ["method", "round", "client", "stage", "metric"]
    both = one.merge(other, on=keys, suffixes=("", "_other"))
    both = both[both["metric"].isin(["mse", "mae", "r2", "loss", "train_loss"])]
    assert len(both) > 100
    if engine == "processes":
        assert (both["value"] == both["value_other"]).all()
    np.testing.assert_allclose(both["value"], both["value_other"], rtol=2e-3, atol=1e-5)


def test_what_is_recorded_is_what_scikit_learn_says_of_the_saved_predictions(tmp_path: Path) -> None:
    result = idl.run(study("local", "fedavg", save_predictions=True), tmp_path / "run", engine="sequential")
    predictions = result.predictions()
    assert [c for c in predictions.columns if "[" in c] == ["target[0]", "prediction[0]"]
    stored = np.sort(frame()["y"].to_numpy())
    assert np.isin(predictions["target[0]"].round(6), stored.round(6)).all(), "in the units of the data"
    records = result.records
    last = records[(records["round"] == 4) & (records["stage"] == "personalised")]
    for (method, client), mine in predictions.groupby(["method", "client"]):
        own = last[(last["method"] == method) & (last["client"] == client)].set_index("metric")["value"]
        y, p = mine["target[0]"], mine["prediction[0]"]
        assert own["mse"] == pytest.approx(mean_squared_error(y, p), rel=1e-9)
        assert own["mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-9)
        assert own["r2"] == pytest.approx(r2_score(y, p), rel=1e-9)
    assert not set(records["metric"]) & {"accuracy", "balanced_accuracy", "macro_f1", "brier", "calibration_error"}


@pytest.mark.parametrize(("share", "finite"), [(0.45, True), (0.5, True), (0.3, False), (0.05, False)])
def test_intervals_of_validation_samples_are_measured(tmp_path: Path, share: float, finite: bool) -> None:
    """From the predictions that a run keeps; 9 validation samples give an interval, and 8 do not."""
    result = idl.run(study("local", "fedavg", protocol=f"validation={share}", save_predictions=True), tmp_path / "run")
    records = result.records
    metrics = set(records["metric"])
    assert (set(OF_INTERVALS) <= metrics) == finite
    if not finite:
        return
    federation = study("local", protocol=f"validation={share}").federation()
    last = records[(records["round"] == 4) & (records["stage"] == "personalised")]
    predictions = result.predictions()
    for (method, client), mine in predictions.groupby(["method", "client"]):
        own = last[(last["method"] == method) & (last["client"] == client)].set_index("metric")["value"]
        count = len(federation.validation[client])
        assert ("coverage" in own) == (count >= 9)
        size = np.abs(mine["prediction[0]"] - mine["target[0]"])
        half = own["interval_width"] / 2
        assert own["coverage"] == pytest.approx((size <= half + 1e-9).mean())
        assert own["interval_score"] == pytest.approx(2 * half + 20 * np.maximum(size - half, 0).mean())
    assert "Interval" in (result.folder / "report.html").read_text().split("<script")[0]


@pytest.mark.parametrize("groups", [0, 9, 12])
def test_intervals_by_hand(groups: int) -> None:
    draw = np.random.default_rng(groups)
    test, valid = draw.normal(size=(30, 2)), draw.normal(size=(40, 2)) * [1, 5]
    group = draw.permutation(np.arange(40) % groups) if groups else None
    both = torch.from_numpy(np.concatenate([test, valid]))
    all_groups = () if group is None else torch.from_numpy(np.concatenate([np.arange(30), group]))
    values = errors_of_numbers.of_intervals(both, 30, all_groups, ("a", "b"))
    halves = []
    for d, name in enumerate("ab"):
        size = np.abs(valid[:, d])
        if groups:
            weight = 1 / ((groups + 1) * np.bincount(group)[group])
            half = min(s for s in size if weight[size <= s].sum() >= 0.9 - 1e-9)
        else:
            half = np.sort(size)[36]  # the 37th of 40: ceil(41 * 0.9)
        beyond = np.maximum(np.abs(test[:, d]) - half, 0)
        assert values[f"interval_width[{name}]"] == pytest.approx(2 * half)
        assert values[f"coverage[{name}]"] == pytest.approx((beyond == 0).mean())
        assert values[f"interval_score[{name}]"] == pytest.approx(2 * half + 20 * beyond.mean())
        halves.append(half)
    assert values["interval_width"] == pytest.approx(sum(halves))
    few = () if group is None else torch.cat([torch.arange(30), torch.from_numpy(np.minimum(group, 7))])
    assert errors_of_numbers.of_intervals(both if groups else both[:38], 30, few) == {}


def test_training_targets_have_mean_0_and_standard_deviation_1_over_all_clients() -> None:
    federation = study("local").federation()
    z_R = federation.target_R[torch.cat([*federation.train])].double()
    np.testing.assert_allclose(z_R.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z_R.std(0, correction=0), 1, atol=1e-6)
    back = federation.targets.unscaled(federation.target_R)
    np.testing.assert_allclose(back, federation.targets.value_RD, rtol=1e-6)


def test_several_numbers_are_predicted_together(tmp_path: Path) -> None:
    table = frame()
    table["z"] = table["a"] * 2 - 5
    table.to_csv(tmp_path / "t.csv", index=False)
    source = idl.data.open_data(tmp_path / "t.csv", target="y+z", client_column="site")
    assert source.targets.names == ("y", "z")
    assert [e.name for e in source.encodings] == ["a", "b"]
    result = idl.run(idl.Study(data=source, methods=["fedavg"], rounds=2), tmp_path / "run", engine="sequential")
    last = result.records[(result.records["round"] == 2) & (result.records["client"] == 0)].set_index("metric")["value"]
    assert last["mse"] == pytest.approx((last["mse[y]"] + last["mse[z]"]) / 2)
    from_array = idl.data.from_arrays(table[["a", "b"]].to_numpy(), table[["y", "z"]].to_numpy())
    np.testing.assert_array_equal(from_array.targets.value_RD, table[["y", "z"]].to_numpy())


def test_tables_take_less_as_better(tmp_path: Path) -> None:
    result = idl.run(study("local", "fedavg", "fedavg_ft", seeds=(0, 1)), tmp_path / "run", engine="sequential")
    run = reader.read(result.folder)
    rows = {row.label: row for row in result.rows()}
    means = result.score().groupby("method").mean()
    assert {label: row.score for label, row in rows.items()} == pytest.approx(means.to_dict())
    best = means.idxmin()
    assert [row.label for row in rows.values() if report.rows.is_best(row, list(rows.values()))] == [best]
    assert rows["local"].versus_fedavg == pytest.approx(means["local"] - means["fedavg"])
    per_client = run.final.groupby(["method", "seed"])["value"].max().groupby("method").mean()
    assert rows["local"].worst_decile == pytest.approx(per_client["local"]), "the worst client has the largest error"
    worst = max(means.index, key=lambda label: means[label])
    c = report.compare(run, best, worst)
    assert c.difference == pytest.approx(means[best] - means[worst])
    assert c.difference < 0 < c.better
    [line] = list(csv.DictReader(report.as_csv([rows["local"]]).splitlines()))
    assert float(line["mse"]) == rows["local"].score
    assert "accuracy" not in line
    assert "brier" not in line
    assert rows["local"].accuracy is None
    page = result.page.read_text() if hasattr(result, "page") else (result.folder / "report.html").read_text()
    assert "MSE" in page
    assert "ccuracy" not in page.split("<script")[0], "nothing speaks of an accuracy"
    with pytest.raises(InputError, match="predicts numbers, which have no accuracy: call score"):
        result.accuracy()


def test_a_stop_and_the_best_round_are_of_the_lowest_error(tmp_path: Path) -> None:
    """A rate at which errors rise in the end."""
    protocol = "validation=0.3"
    result = idl.run(study("local", rounds=12, lr=0.3, patience=2, protocol=protocol), tmp_path / "run")
    run = reader.read(result.folder)
    means = run.validation_means["local", 0]
    assert run.best_rounds["local", 0] == int(means.idxmin())
    if run.stopped:
        stop = run.stopped["local", 0]
        assert stop.best == int(means[means.index <= stop.round].idxmin())
        assert (means[(means.index > stop.best) & (means.index <= stop.round)] >= means[stop.best]).all()


def test_a_search_chooses_the_lowest_error(tmp_path: Path) -> None:
    tuning = idl.tune(study("local"), {"lr": "0.0001..0.3:log"}, tmp_path / "search", trials=4, halving=1)
    trials = tuning.trials()
    chosen = trials[trials["chosen"]].iloc[0]
    assert chosen["validation_mse"] == trials["validation_mse"].min()
    assert "validation_accuracy" not in trials
    assert "ccuracy" not in tuning.page.read_text().split("<script")[0]


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_without_clients_samples_are_divided_at_random() -> None:
    source = data.from_frame(frame().drop(columns="site"), target="y")
    federation = idl.Study(data=source, methods=["local"], clients=5).federation()
    assert {len(rows) for rows in federation.train} <= {14, 15}


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    own = ["--data", str(tmp_path / "t.csv"), "--target", "y", "--client-column", "site"]
    assert call("describe", *own) == 0
    said = capsys.readouterr().out
    y = frame()["y"]
    assert "to predict, a number" in " ".join(said.split())
    assert f"{y.groupby(frame()['site']).mean().min():.0f}"[:2] in said
    assert "Label divergence" not in said
    assert call("describe", *own, "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["task"] == "regression"
    assert all("target_mean" in client for client in about["clients"])
    assert call("run", *own, "--methods", "local,fedavg", "--rounds", "2", "--out", str(tmp_path / "r")) == 0
    both = "".join(capsys.readouterr())
    assert "MSE" in both
    assert "ccuracy" not in both


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"measures": ("auroc",)}, "measure auroc is for classes, and this target is numbers"),
        ({"shifts": ("permute_labels",)}, "shift permute_labels.* changes classes, and this target is a number"),
        ({"shifts": ("shuffle_labels",)}, "shift shuffle_labels.* changes classes, and this target is a number"),
        ({"partition": "dirichlet:alpha=0.1"}, "partition dirichlet divides classes, and this target is a number"),
        ({"partition": "classes:per_client=2"}, "partition classes divides classes, and this target is a number"),
        ({"partition": "dominant"}, "partition dominant divides classes, and this target is a number"),
        ({"attacks": ("label_flip:clients=0",)}, "attack label_flip.* flips classes, and this target is a number"),
        (
            {"protocol": "observe=gaussianity+features"},
            r"protocol observe=gaussianity\+features is for classes, of which a sample has one, and this target is num",
        ),
    ],
)
def test_what_is_for_classes_alone_is_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        idl.run(study("local", rounds=1, **more), tmp_path / "run", engine="sequential")


@pytest.mark.parametrize("target", ["y", "y+b", "u+v"])
def test_the_division_that_is_taken_is_the_one_that_is_said(target: str, tmp_path: Path) -> None:
    table = frame().drop(columns="site").assign(u=[0, 1, 1] * 30, v=[1, 0] * 45)
    one = idl.Study(data=data.from_frame(table, target=target), methods=["local"], clients=3, rounds=1)
    assert "iid, because the data have no clients" in str(dict(one.describe().facts)["Partition"])
    result = idl.run(one, tmp_path / "run", engine="sequential")
    assert "iid, because the data have no clients" in (result.folder / "report.html").read_text()


@pytest.mark.parametrize("value", [0.1, 0.7, 36.6])
@pytest.mark.parametrize("count", [3, 6, 10])
def test_targets_that_are_all_equal_have_no_r2(value: float, count: int) -> None:
    y_ND = torch.full((count, 1), value, dtype=torch.float64)
    measures = errors_of_numbers.of_predictions(y_ND + 0.1, y_ND)
    assert "r2" not in measures
    assert measures["mse"] == pytest.approx(0.01)
