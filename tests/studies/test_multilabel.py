"""Several labels of a sample: which methods learn them, what is recorded, and what follows by the score."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn import metrics
from torch import nn

import idiolect as idl
from idiolect import data, methods, report
from idiolect.cli import main
from idiolect.core import keys
from idiolect.core.errors import InputError, Interrupted
from idiolect.core.method import SGD, Data, Method, Task, Training
from idiolect.core.network import Network
from idiolect.core.objectives import OBJECTIVES
from idiolect.core.reduction import Reduced
from idiolect.data.datasets.dataset import Source
from idiolect.runs import reader
from idiolect.simulation import label_measures
from idiolect.statistics import covariance
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
LABELS = ("red", "big", "rare")


def frame(rows: int = 150, seed: int = 0) -> pd.DataFrame:
    """Three clients, whose labels depend on the features, each in its own way."""
    draw = np.random.default_rng(seed)
    client = np.arange(rows) % 3
    x = draw.normal(size=(rows, 3))
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    table["site"] = [f"s{k}" for k in client]
    table["red"] = (x[:, 0] + 0.5 * client > 0.3).astype(int)
    table["big"] = (x[:, 1] - x[:, 0] > 0).astype(int)
    table["rare"] = (x[:, 2] > 1.2).astype(int)
    return table


def source() -> Source:
    return data.from_frame(frame(), target="red+big+rare", client_column="site")


def study(*uses: object, **more: object) -> idl.Study:
    settings = {"rounds": 4, "local_epochs": 2, "batch_size": 10, "lr": 0.05, "evaluate_every": 1} | more
    return idl.Study(data=source(), methods=list(uses), **settings)


def test_the_methods_that_need_only_a_loss_learn_labels_and_the_others_say_why(
    tmp_path: Path, of_kinds: Callable[[list[str]], list[str]]
) -> None:
    able = of_kinds([name for name in methods.ours() if name not in OF_CLASSES])
    result = idl.run(study(*able, rounds=3), tmp_path / "run", engine="sequential")
    assert set(result.score().index.get_level_values("method")) == set(able)
    assert result.score().name == "micro_f1"
    assert result.score().between(0, 1).all()
    for name in sorted(OF_CLASSES):
        with pytest.raises(
            InputError, match=f"method {name} needs classes, because .*: leave it out of a multilabel s"
        ):
            idl.run(study(name), tmp_path / name)
        assert not (tmp_path / name / "records.parquet").exists()


def shrunk(
    rows: int = 12, d: int = 3, labels: int = 2, **options: object
) -> tuple[Method, Data, np.ndarray, np.ndarray]:
    """FedShrink of several labels over an identity, and a client with its samples."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(rows, d))
    y = (x[:, :labels] + 0.5 * draw.normal(size=(rows, labels)) > 0).astype(float)
    how = OBJECTIVES["multilabel"]
    training = Training(epochs=1, batch_size=50, optimiser=SGD(lr=0.1, momentum=0.0, weight_decay=0.0))
    network = Network(lambda: (nn.Linear(d, d, bias=False), nn.Linear(d, labels)), (d,))
    task = Task(network, labels, 2, training, loss=how.loss, output=how.output, mixture=how.mixture, kind="multilabel")
    data_of = Data(torch.from_numpy(x).float(), torch.from_numpy(y).float(), torch.arange(rows), torch.ones(rows))
    return methods.build("fedshrink", options, task), data_of, x, y


def test_fedshrink_learns_each_label_as_two_classes() -> None:
    """Class means, scatter, the head and a step of the body, against numpy and scikit-learn."""
    method, client, x, y = shrunk(train_with="own", alignment=0.7, spread_samples=0.0, covariance_samples=0.0)
    server = method.init_server(keys.key(1))
    _, up, _ = method.local(method.send(server, torch.tensor([0])), (), client, keys.key(2))
    after, _ = method.aggregate(server, Reduced(up.value), torch.tensor([0]))  # of one client: its own
    (body,), (change,) = server.body.values(), up.value.body.values()
    z, labels, has = x @ body.double().numpy().T, range(y.shape[1]), y.astype(int)
    means = np.stack([z[has[:, k] == c].mean(0) for k in labels for c in (0, 1)])
    np.testing.assert_allclose(after.mean_Cd, means, rtol=1e-4, atol=1e-5)
    counts = np.array([(has[:, k] == c).sum() for k in labels for c in (0, 1)])
    np.testing.assert_allclose(after.share_C, counts / len(x), rtol=1e-5)
    alike = [c * (c - 1) / len(x) / (len(x) - 1) for c in counts]
    np.testing.assert_allclose(after.agreement, np.sum(alike) / len(labels), rtol=1e-5)  # the mean over labels
    rest = np.concatenate([z - means[2 * k + has[:, k]] for k in labels])  # a sample counts once for each label
    cov = covariance.unpack(after.cov.double(), 3).numpy()
    np.testing.assert_allclose(cov, rest.T @ rest / (len(rest) - len(means)), rtol=1e-3, atol=1e-5)
    weight = np.linalg.solve(rest.T @ rest / (len(rest) - len(means)) + 0.3 * np.eye(3), means.T).T
    bias = -0.5 * (means * weight).sum(1) + np.log(counts / len(x))
    theta = body.double().clone().requires_grad_()
    z_B = torch.from_numpy(x) @ theta.T
    logit = z_B @ torch.from_numpy(weight).T + torch.from_numpy(bias)
    loss = sum(
        nn.functional.binary_cross_entropy_with_logits(logit[:, 2 * k + 1] - logit[:, 2 * k], torch.from_numpy(y[:, k]))
        + 0.7 * (z_B - torch.from_numpy(means[2 * k + has[:, k]])).square().mean()
        for k in labels
    ) / len(y.T)
    (gradient,) = torch.autograd.grad(loss, theta)
    np.testing.assert_allclose(change, -0.1 * gradient.numpy(), rtol=5e-3, atol=1e-5)


def test_fedshrink_with_one_head_is_the_linear_discriminant_of_each_label() -> None:
    """Prediction of a label is that of two Gaussian classes, whatever the other labels are."""
    method, client, x, y = shrunk(rows=40, personal="own", covariance_samples=0.0, head_ridge=1e-6)
    server = method.init_server(keys.key(1))
    down = method.send(server, torch.tensor([0]))
    own = method.personalise(down, (), client, keys.key(3))
    got = method.predict(down, own, client.x_R).exp().numpy()
    assert got.shape == (40, 2, 2)
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    (body,) = server.body.values()
    z, has = x @ body.double().numpy().T, y.astype(int)
    means = [[z[has[:, k] == c].mean(0) for c in (0, 1)] for k in range(2)]
    rest = np.concatenate([z - np.stack(means[k])[has[:, k]] for k in range(2)])
    for k in range(2):
        density = [
            (has[:, k] == c).mean() * multivariate_normal(means[k][c], rest.T @ rest / (len(rest) - 4)).pdf(z)
            for c in (0, 1)
        ]
        np.testing.assert_allclose(got[:, k, 1], density[1] / (density[0] + density[1]), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_fedshrink_of_labels_is_the_same_on_engines(engine: str, tmp_path: Path) -> None:
    one, other = (
        idl.run(study("fedshrink", "fedavg", rounds=2), tmp_path / name, engine=name) for name in ("sequential", engine)
    )
    close = 1e-9 if engine == "processes" else 1e-2
    assert one.score().to_numpy() == pytest.approx(other.score().to_numpy(), abs=close)


def test_a_round_of_federated_averaging_is_gradient_descent_on_the_cross_entropy() -> None:
    """Two clients of unlike sizes, one full batch each, against float64 numpy."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(8, 3)).astype(np.float32)
    y = draw.integers(0, 2, (8, 4)).astype(np.float32)
    how = OBJECTIVES["multilabel"]
    training = Training(epochs=1, batch_size=8, optimiser=SGD(lr=0.3, momentum=0.0, weight_decay=0.0), shuffle=False)
    task = Task(
        Network(lambda: (nn.Identity(), nn.Linear(3, 4)), (3,)), 4, 2, training, loss=how.loss, output=how.output,
        mixture=how.mixture, kind="multilabel",
    )  # fmt: skip
    parts = [np.arange(3), np.arange(3, 8)]
    clients = [
        Data(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(rows), torch.ones(len(rows))) for rows in parts
    ]
    one = trial.trial(methods.build("fedavg", {}, task), clients)
    head = {k: v.double().numpy() for k, v in one.server.head.items()}
    want = {k: np.zeros_like(v) for k, v in head.items()}
    for rows in parts:
        z = x[rows].astype(float) @ head["weight"].T + head["bias"]
        by_output = (1 / (1 + np.exp(-z)) - y[rows]) / (4 * len(rows))  # mean over samples and over the labels
        want["weight"] += len(rows) / 8 * (head["weight"] - 0.3 * by_output.T @ x[rows])
        want["bias"] += len(rows) / 8 * (head["bias"] - 0.3 * by_output.sum(0))
    total = sum(float(up.weight) for up in one.ups)
    for name in head:
        got = head[name] + sum(float(up.weight) * up.value.head[name].double().numpy() for up in one.ups) / total
        np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough(but=["vectorised"])
@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_engines_agree(tmp_path: Path, engine: str) -> None:
    uses = ("local", "fedavg", "apfl", "fedem", "hypcluster", "fedrep")
    one, other = (idl.run(study(*uses), tmp_path / e, engine=e).records for e in ("sequential", engine))
    keys = ["method", "round", "client", "stage", "metric"]
    both = one.merge(other, on=keys, suffixes=("", "_other"))
    both = both[both["metric"].isin(["micro_f1", "macro_f1", "loss", "train_loss", "subset_accuracy"])]
    assert len(both) > 100
    if engine == "processes":
        assert (both["value"] == both["value_other"]).all()
    losses = both[both["metric"].isin(["loss", "train_loss"])]
    np.testing.assert_allclose(losses["value"], losses["value_other"], rtol=2e-3, atol=1e-5)


def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = study("fedavg", "fedrep", rounds=4, checkpoint_every=1)
    whole = idl.run(one, tmp_path / "whole", engine="sequential")
    measure, calls = label_measures.of_predictions, iter(range(100))

    def stop(*arguments: object, **more: object) -> dict[str, float]:
        if next(calls) == 8:
            raise KeyboardInterrupt
        return measure(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(label_measures, "of_predictions", stop)
        with pytest.raises(Interrupted):
            idl.run(one, tmp_path / "parts", engine="sequential")
    assert len(reader.read(tmp_path / "parts").records) < len(whole.records)
    parts = idl.run(one, tmp_path / "parts", engine="sequential", resume=True)
    pd.testing.assert_frame_equal(whole.records, parts.records)


def test_what_is_recorded_is_what_scikit_learn_says_of_the_saved_predictions(tmp_path: Path) -> None:
    asked = ["auroc", "average_precision"]
    result = idl.run(study("local", "fedavg", save_predictions=True, measures=asked), tmp_path / "run")
    predictions, records = result.predictions(), result.records
    last = records[(records["round"] == 4) & (records["stage"] == "personalised")]
    for (method, client), mine in predictions.groupby(["method", "client"]):
        own = last[(last["method"] == method) & (last["client"] == client)].set_index("metric")["value"]
        y, p = (mine[[f"{what}[{k}]" for k in range(3)]].to_numpy() for what in ("target", "prediction"))
        assert own["micro_f1"] == pytest.approx(metrics.f1_score(y, p > 0.5, average="micro", zero_division=1.0))
        assert own["subset_accuracy"] == pytest.approx(metrics.accuracy_score(y, p > 0.5))
        assert own["loss"] == pytest.approx(
            np.mean([metrics.log_loss(y[:, k], p[:, k], labels=[0, 1]) for k in range(3)])
        )
        some = [k for k in range(3) if 0 < y[:, k].mean() < 1]
        assert own["auroc"] == pytest.approx(metrics.roc_auc_score(y[:, some], p[:, some]))
        assert own["average_precision"] == pytest.approx(metrics.average_precision_score(y[:, some], p[:, some]))
        for k, name in enumerate(LABELS):
            assert own.get(f"auroc[{name}]") == (
                pytest.approx(metrics.roc_auc_score(y[:, k], p[:, k])) if k in some else None
            )
    assert not set(records["metric"]) & {"accuracy", "balanced_accuracy", "brier", "calibration_error", "mse"}


def test_tables_comparisons_and_the_page_go_by_micro_f1(tmp_path: Path) -> None:
    uses = ("local", "fedavg", "fedavg_ft")
    result = idl.run(study(*uses, seeds=(0, 1), measures=["auroc"]), tmp_path / "run", engine="sequential")
    run = reader.read(result.folder)
    means = result.score().groupby("method").mean()
    rows = {row.label: row for row in result.rows()}
    assert {label: row.score for label, row in rows.items()} == pytest.approx(means.to_dict())
    assert [r.label for r in rows.values() if report.rows.is_best(r, list(rows.values()))] == [means.idxmax()]
    assert rows["local"].versus_fedavg == pytest.approx(100 * (means["local"] - means["fedavg"]))
    c = report.compare(run, "local", "fedavg")
    assert c.difference == pytest.approx(100 * (means["local"] - means["fedavg"]))
    [line] = list(csv.DictReader(report.as_csv([rows["local"]]).splitlines()))
    assert float(line["micro_f1"]) == rows["local"].score
    assert not {"accuracy", "brier", "calibration_error"} & set(line)
    assert set(rows["local"].measures) == {"macro_f1", "subset_accuracy", "auroc"}
    assert rows["local"].accuracy is None
    page = (result.folder / "report.html").read_text().split("<script")[0]
    assert "Micro F1" in page
    assert "ccuracy" not in page.replace("ubset accuracy", "").replace("subset_accuracy", "")
    with pytest.raises(InputError, match="predicts several labels, which have no accuracy: call score"):
        result.accuracy()


def test_searches_and_stops_take_the_highest_micro_f1(tmp_path: Path) -> None:
    tuning = idl.tune(study("local"), {"lr": "0.0001..0.3:log"}, tmp_path / "search", trials=4, halving=1)
    trials = tuning.trials()
    assert trials[trials["chosen"]].iloc[0]["validation_micro_f1"] == trials["validation_micro_f1"].max()
    result = idl.run(study("local", rounds=12, patience=2, protocol="validation=0.3"), tmp_path / "run")
    run = reader.read(result.folder)
    assert run.best_rounds["local", 0] == int(run.validation_means["local", 0].idxmax())


def test_a_client_without_a_measure_is_named_with_the_reason(tmp_path: Path) -> None:
    table = frame()
    table.loc[table["site"] == "s1", ["red", "big", "rare"]] = [1, 0, 0]
    source = data.from_frame(table, target="red+big+rare", client_column="site")
    result = idl.run(
        idl.Study(data=source, methods=["local", "fedavg"], rounds=2, measures=["auroc"]), tmp_path / "run"
    )
    [line] = [line for line in report.measures.missing(reader.read(result.folder)) if line.startswith("AUROC")]
    assert line == "AUROC: 2 of 3 clients; s1: each label has one value in its test samples."


def test_a_label_that_training_samples_all_lack_is_said(caplog: pytest.LogCaptureFixture) -> None:
    table = frame()
    table["rare"] = 0
    table.loc[149, "rare"] = 1
    data.from_frame(table, target="red+big+rare", client_column="site")
    for seed in range(20):
        caplog.clear()
        source = data.from_frame(table, target="red+big+rare", client_column="site")
        federation = idl.Study(data=source, methods=["local"], data_seed=seed).federation()
        share = float(federation.targets.value_RD[torch.cat([*federation.train]), 2].mean())
        assert ("all training samples, or none, have rare" in caplog.text) == (share == 0)


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    table = frame()
    table.to_csv(tmp_path / "t.csv", index=False)
    own = ["--data", str(tmp_path / "t.csv"), "--target", "red+big+rare", "--client-column", "site"]
    assert call("describe", *own) == 0
    both = " ".join("".join(capsys.readouterr()).split())
    assert "3 labels, of which a sample can have several" in both
    assert "the targets red, big, rare have two values each, which say which labels a sample has" in caplog.text
    assert "Label big" in both
    assert "Label distance" in both
    assert call("describe", *own, "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["task"], about["targets"]) == ("multilabel", list(LABELS))
    shares = np.array([client["label_shares"] for client in about["clients"]])
    assert ((shares >= 0) & (shares <= 1)).all()
    assert call("describe", *own, "--out", str(tmp_path / "d.html")) == 0
    assert "Labels per sample" in (tmp_path / "d.html").read_text()
    capsys.readouterr()
    assert call("run", *own, "--methods", "local,fedavg", "--rounds", "2", "--out", str(tmp_path / "r")) == 0
    both = "".join(capsys.readouterr())
    assert "round 2, micro F1 " in both
    assert both.count("ccuracy") == both.count("ubset") > 0, "only that of all labels together"
    assert call("report", str(tmp_path / "r"), "--compare", "local,fedavg") == 0
    assert "points of test micro F1" in " ".join("".join(capsys.readouterr()).split())
    assert call("bundle", str(tmp_path / "r"), "--method", "fedavg", "--out", str(tmp_path / "b")) == 0
    assert json.loads((tmp_path / "b" / "bundle.json").read_text())["labels"] == list(LABELS)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"measures": ("recall",)}, "measure recall is for classes, of which a sample has one, and here it can have"),
        ({"shifts": ("permute_labels",)}, "shift permute_labels.* changes classes, and this target is several labels"),
        (
            {"partition": "dirichlet:alpha=0.1"},
            "partition dirichlet divides classes, and this target is several labels",
        ),
        ({"partition": "classes:per_client=2"}, "partition classes divides classes, and this target is several labels"),
        ({"partition": "dominant"}, "partition dominant divides classes, and this target is several labels"),
        (
            {"attacks": ("label_flip:clients=0",)},
            "attack label_flip.* flips classes, and this target is several labels",
        ),
        (
            {"protocol": "observe=features"},
            "protocol observe=features is for classes, of which a sample has one, and here it can have several: leave",
        ),
    ],
)
def test_what_is_for_classes_alone_is_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        idl.run(study("local", rounds=1, **more), tmp_path / "run", engine="sequential")
