"""Class weights in studies: they act in the loss of training alone, from the training samples of all clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

import idiolect as idl
from idiolect import data, methods
from idiolect.core.errors import InputError
from idiolect.core.method import Data
from idiolect.core.objectives import cross_entropy
from idiolect.data.datasets.dataset import Source
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.schema import About
from idiolect.training.class_weights import WeightedLoss

OWN_LOSS = {
    "fedcr", "fedlc", "fedlda", "fedpac", "fedpcl", "fedproto", "fedrod", "fedshrink", "fedsr", "gpfl", "pfedfda",
}  # fmt: skip


def source(seed: int = 0) -> Source:
    """Two classes, of which one has a twelfth of the samples, at three hospitals; they overlap."""
    draw = np.random.default_rng(seed)
    ill = np.arange(360) % 12 == 0
    x = draw.normal(size=(360, 2)) + 1.0 * ill[:, None]
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in draw.integers(0, 3, 360)]})
    return data.from_frame(table.assign(y=np.where(ill, "ill", "healthy")), target="y", client_column="site")


def study(*uses: object, **more: object) -> idl.Study:
    settings = {"rounds": 5, "local_epochs": 3, "batch_size": 20, "lr": 0.05, "evaluate_every": 5} | more
    return idl.Study(data=source(), methods=list(uses), **settings)


def test_the_weights_are_those_of_all_clients_training_samples() -> None:
    one = study("fedavg", class_weights="balanced")
    federation = one.federation()
    y_N = federation.y_R[torch.cat([*federation.train])].numpy()
    loss = one.task_of(federation).loss
    assert isinstance(loss, WeightedLoss)
    np.testing.assert_allclose(loss.weights, compute_class_weight("balanced", classes=np.array([0, 1]), y=y_N))
    assert study("fedavg").task_of(federation).loss is cross_entropy


def test_the_rare_class_is_seen_more_often(tmp_path: Path) -> None:
    uses = ("local", "fedavg", "fedrep")
    plain = idl.run(study(*uses), tmp_path / "plain", engine="sequential").records
    balanced = idl.run(study(*uses, class_weights="balanced"), tmp_path / "b", engine="sequential").records

    def mean(records: pd.DataFrame, metric: str) -> float:
        return float(records[(records["metric"] == metric) & (records["round"] == 5)]["value"].mean())

    assert mean(balanced, "balanced_accuracy") > mean(plain, "balanced_accuracy") + 0.05
    assert mean(balanced, "loss") > mean(plain, "loss"), "what is measured has no weights"


def test_a_method_can_have_its_own(tmp_path: Path) -> None:
    one = study("fedavg", "fedavg:class_weights=numbers(weights=1+3)")
    federation = one.federation()
    losses = [one.of(use).task_of(federation).loss for use in one.methods]
    assert losses == [cross_entropy, WeightedLoss((1.0, 3.0))]


@pytest.mark.thorough(but=["vectorised"])
@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_engines_agree(tmp_path: Path, engine: str) -> None:
    uses = ("fedavg", "apfl", "fedem")
    one, other = (
        idl.run(study(*uses, class_weights="effective"), tmp_path / e, engine=e).records for e in ("sequential", engine)
    )
    keys = ["method", "round", "client", "stage", "metric"]
    both = one.merge(other, on=keys, suffixes=("", "_other"))
    both = both[both["metric"].isin(["loss", "train_loss"])]
    assert len(both) > 50
    np.testing.assert_allclose(both["value"], both["value_other"], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", sorted(OWN_LOSS))
def test_a_loss_of_its_own_takes_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"method {name} has a loss of its own, which knows no class_weights: leave"):
        idl.run(study(name, class_weights="balanced"), tmp_path / "run")


def test_the_other_methods_take_them(tmp_path: Path, of_kinds: Callable[[list[str]], list[str]]) -> None:
    able = of_kinds([name for name in methods.ours() if name not in OWN_LOSS | {"fedcgs"}])  # which has no loss
    result = idl.run(study(*able, rounds=1, class_weights="balanced"), tmp_path / "run", engine="sequential")
    assert set(result.accuracy().index.get_level_values("method")) == set(able)


def test_what_has_no_classes_takes_none() -> None:
    table = pd.DataFrame(
        {"a": np.arange(60.0), "y": np.arange(60) / 7, "u": np.arange(60) % 2, "v": np.arange(60) % 3 // 2}
    )
    numbers = idl.Study(data=data.from_frame(table[["a", "y"]], target="y"), methods=["local"], clients=3)
    several = idl.Study(data=data.from_frame(table, target="u+v"), methods=["local"], clients=3)
    given = "numbers:weights=1+2"
    for one, weights, said in (
        (numbers, "balanced", "class_weights=balanced is for classes, and this target is a number: leave it out"),
        (several, given, r"class_weights=numbers:weights=1\+2 is for classes, and here a sample can have several"),
        (study("local"), "numbers:weights=1+2+3", r"weights=1\+2\+3 has 3 numbers for 2 classes"),
    ):
        own = idl.Study(**{**dict(one), "class_weights": weights})
        with pytest.raises(InputError, match=said):
            own.task_of(own.federation())


@pytest.mark.parametrize("weights", ["balanced", "numbers:weights=1+7"])
def test_a_site_that_joins_trains_with_them(weights: str, tmp_path: Path) -> None:
    """Its weights are those of the clients that trained, and it is the simulator's new client."""
    one = study("fedavg_ft", "fedavg_ft:class_weights=none", class_weights=weights, new_clients=1)
    result = idl.run(one, tmp_path / "run", engine="sequential")
    federation, new = one.federation(), 2
    y_N = federation.y_R[torch.cat([*federation.train[:new]])].numpy()
    rows = federation.train[new]
    data_of_site = Data(federation.x_R, federation.y_R, rows, torch.ones(len(rows)))
    test = federation.test[new]
    losses = {}
    for use in one.methods:
        bundle = result.bundle(use.label, tmp_path / use.label)
        client = bundle.method.personalise(bundle.model().down, bundle.fresh, data_of_site, bundle.key())
        logp = log_probabilities(Personal(bundle.model().down, client), bundle.method, federation.x_R[test])
        losses[use.label] = float(torch.nn.functional.nll_loss(logp, federation.y_R[test]))
        r = result.records
        r = r[(r["method"] == use.label) & (r["stage"] == "new") & (r["metric"] == "loss")]
        assert losses[use.label] == pytest.approx(float(r["value"].iloc[-1]), abs=1e-6)
    assert len(set(losses.values())) == 2
    given = compute_class_weight("balanced", classes=np.array([0, 1]), y=y_N) if weights == "balanced" else [1, 7]
    about = Bundle.read(tmp_path / "fedavg_ft").about
    np.testing.assert_allclose(about.class_weights, [given])
    assert Bundle.read(tmp_path / one.methods[1].label).about.class_weights == ()


@pytest.mark.parametrize("rows", [[[1.0, 2.0, 3.0]], [[1.0]], [[1.0, 2.0], [1.0, 2.0]]])
def test_a_bundle_with_weights_for_other_classes_is_refused(rows: object, tmp_path: Path) -> None:
    one = study("fedavg", rounds=1, evaluate_every=1, class_weights="balanced")
    about = idl.run(one, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "b").about
    with pytest.raises(ValueError, match="class_weights are not one for each class, or two for each label"):
        About.model_validate(about.model_dump() | {"class_weights": rows})
