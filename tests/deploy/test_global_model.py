"""Methods without a global model: who they are, and what their sites are compared with."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import idiolect as idl
from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.method import Down, Task, Training
from idiolect.core.network import Network
from idiolect.deploy import global_model, harm, reference, watch
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import candidates_of, join, ship
from idiolect.deploy.samples import Samples
from idiolect.simulation.rounds import first_state
from idiolect.training import trial

OWN_ALONE = [
    "apple", "ditto", "fd", "fedala", "fedamp", "fedas", "fedfomo", "fedkd", "fedmtl", "fedpcl", "fedphp", "fedproto",
    "fml", "local", "pfedme", "pfedsim", "pfl_da",
]  # fmt: skip
"""Methods whose equation of the prediction has only what the client keeps."""
WITH_OWN = ["apfl", "fedah", "fedcp", "fedcr", "fedgh", "fedper", "fedrep", "fedtgp", "gpfl", "lg_fedavg"]
"""Methods whose equation of the prediction has what the client received, and weights of its own that are drawn."""
RECEIVED = [
    "ccvr", "cfl", "elastic", "fedadmm", "fedap", "fedavg", "fedavg_ft", "fedbabu", "fedbn", "fedcac", "fedcgs",
    "fedcross", "feddbe", "feddyn", "fedem", "fedgc", "fedgen", "fedlc", "fedlda", "fedntd", "fedpac", "fedprox",
    "fedrod", "fedshrink", "fedsr", "floco", "flute", "hypcluster", "knnper", "moon", "perfedavg", "pfedfda", "pfedhn",
    "pfedla", "scaffold",
]  # fmt: skip
"""Methods whose equation of a newcomer's prediction has only what it received."""


def parts(norm: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU()), nn.Linear(8, 4)


class Found(NamedTuple):
    changes: bool
    is_random: bool


def found(
    name: str, *, buffers: str | None = None, norm: type[nn.Module] = nn.Identity, kept: str | None = None
) -> Found:
    network = Network(partial(parts, norm), (6,), buffers)
    task = Task(network, 4, 3, Training(epochs=1, batch_size=4))
    method = methods.build(name, methods.settle(name, {}), task, personal=False, personal_weights=kept)
    sent = method.send(method.init_server(keys.start(0)), torch.tensor([3]))
    down = Down(sent.shared, tree.rows(sent.own, 0))
    [data] = trial.samples(network.form, 4, 8)
    states = [first_state(method, seed, 3) for seed in (7, 8)]
    return Found(
        global_model.changes(method, down, states[0], data), global_model.is_random(method, down, states, data)
    )


def test_every_method_is_of_one_kind() -> None:
    assert sorted([*OWN_ALONE, *WITH_OWN, *RECEIVED]) == sorted(methods.names())


@pytest.mark.parametrize("name", OWN_ALONE)
def test_what_is_received_does_not_change_what_a_newcomer_predicts(name: str) -> None:
    assert not found(name).changes


@pytest.mark.parametrize("name", WITH_OWN)
def test_a_newcomer_predicts_in_part_with_weights_that_are_drawn(name: str) -> None:
    assert found(name) == Found(True, True)


@pytest.mark.parametrize("name", RECEIVED)
def test_a_newcomer_predicts_with_what_it_received(name: str) -> None:
    assert found(name) == Found(True, False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("fedavg", Found(True, False)), ("fedper", Found(True, True)), ("ditto", Found(False, True))],
)
@pytest.mark.parametrize("buffers", ["frozen", "local", "aggregate"])
def test_batch_normalisation_does_not_matter(name: str, kind: Found, buffers: str) -> None:
    assert found(name, buffers=buffers, norm=nn.BatchNorm1d) == kind


@pytest.mark.parametrize(("kept", "drawn"), [("head", True), ("body", True), ("*.bias", True), ("body.1.*", False)])
def test_weights_that_stay_at_clients_count(kept: str, drawn: bool) -> None:
    """Those of a normalisation begin with 1 and 0, whatever the seed."""
    assert found("fedavg", kept=kept, norm=nn.BatchNorm1d, buffers="frozen") == Found(True, drawn)


def fit(right: float):
    """A model that gives the right one of two classes this probability, for samples whose class is that of the row."""

    def from_rows(rows: torch.Tensor):
        def predict(held: torch.Tensor) -> torch.Tensor:
            p = torch.full((len(held), 2), 1 - right)
            p[torch.arange(len(held)), held % 2] = right
            return p.log()

        return predict

    return from_rows


Y_N = torch.arange(60) % 2


def test_others_are_compared_with_the_local_model() -> None:
    """The personal model is right for all of 60 samples, the local one for none: 60 gains, by Agresti and Min."""
    choice = harm.compare({"personal": fit(0.9), "local": fit(0.2)}, Y_N, keys.key(0))
    assert (choice.against, set(choice.outputs)) == ("local", {"personal", "local", "blend"})
    assert set(choice.difference) == {"personal", "blend"}
    difference = choice.difference["personal"]
    assert (difference.mean, difference.high) == (1, 1)
    assert difference.low == pytest.approx(60 / 62 - 1.959964 * math.sqrt(61 - 60**2 / 62) / 62)
    assert "against the local model its accuracy differs by +100.0 points" in choice.why
    assert "global" not in choice.why


@pytest.mark.parametrize("right", [0.001, 0.05, 0.1])
def test_a_local_model_alone_is_said(right: float) -> None:
    choice = harm.compare({"personal": fit(right), "local": fit(0.95)}, Y_N, keys.key(0))
    assert set(choice.weights) == {"local"}
    assert choice.why == "it is the local model alone, because no other model predicts the 60 samples better"


@pytest.mark.parametrize("right", [0.2, 0.6, 0.9])
def test_a_model_that_is_compared_with_none(right: float) -> None:
    choice = harm.compare({"personal": fit(right)}, Y_N, keys.key(0))
    assert (choice.weights, choice.difference, choice.against, choice.settled) == ({"personal": 1.0}, {}, None, None)
    assert set(choice.outputs) == {"personal"}
    share = 100 * (right > 0.5)
    assert choice.why.startswith(f"it is the personal model alone ({share:.1f}% right), compared with no other")
    assert choice.why.endswith("and a local one needs 40 samples to train on")


def test_without_a_global_model_divergence_is_said() -> None:
    nan = fit(float("nan"))
    one = harm.compare({"personal": fit(0.8), "local": nan}, Y_N, keys.key(0))
    assert one.weights == {"personal": 1.0}
    assert one.why.endswith("and what the local one predicts is not a number")
    assert harm.compare({"personal": nan, "local": fit(0.8)}, Y_N, keys.key(0)).weights == {"local": 1.0}
    with pytest.raises(RunError, match="all models' probabilities of these samples are not numbers"):
        harm.compare({"personal": nan, "local": nan}, Y_N, keys.key(0))
    with pytest.raises(RunError, match="the global model's probabilities"):
        harm.compare({"global": nan, "personal": fit(0.8)}, Y_N, keys.key(0))


COMPARED = ["ditto", "fedala", "fedper", "local", "fedavg", "fedpac", "fedshrink"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    study = idl.Study(
        dataset="digits", clients=5, new_clients=1, keep=60, rounds=2, local_epochs=1, batch_size=10, methods=COMPARED,
        model="mlp", lr=0.05,
    )  # fmt: skip
    return idl.run(study, tmp_path_factory.mktemp("digits") / "run", engine="sequential")


def own(result: idl.Result, rows: int) -> Samples:
    data = result.study.federation()
    row_N = torch.cat([data.train[4], data.test[4]])[:rows]
    assert len(row_N) == rows
    return Samples(data.x_R[row_N], data.y_R[row_N])


@pytest.mark.thorough(but=["ditto", "fedavg", "fedshrink"])
@pytest.mark.parametrize("name", COMPARED)
def test_a_site_of_each_kind(name: str, digits: idl.Result, tmp_path: Path) -> None:
    has, bundle = name not in ("ditto", "fedala", "fedper", "local"), digits.bundle(name, tmp_path / "b")
    assert (bundle.about.global_model, bundle.has_global) == (has, has)
    of_old = Bundle(bundle.folder, bundle.about.model_copy(update={"global_model": None}), bundle.digest)
    assert of_old.has_global is has
    [new] = [c for c in bundle.about.evaluation.clients if c.new]
    assert (new.received is not None) is has
    assert ("has no global model" in (tmp_path / "b" / "README.md").read_text()) is not has
    samples = own(digits, 45)
    site = join(bundle, samples, tmp_path / "site")
    about, page = site.about.site, (tmp_path / "site" / "report.html").read_text()
    against = "global" if has else "local"
    names = {"personal", "local", "blend"} | ({"global"} if has else set())
    assert (set(about.compared), about.against) == (names, against)
    assert {model for model, row in about.compared.items() if "mean" in row} == names - {against}
    assert f"Against {against}" in page
    assert ("This method has no global model" in page) is not has
    assert ("Global: the model that the server sends." in page) is has
    if has:
        return
    with pytest.raises(InputError, match=r"no global model .*: take personal or local, or leave out ships"):
        join(bundle, samples, tmp_path / "other", ships="global")
    assert not (tmp_path / "other").exists()
    model = idl.load(tmp_path / "b").fit(samples.x_N.numpy(), samples.y_N.numpy())
    assert model.choice_.against == "local"
    wanted = log_probabilities(site.model(), site.predicting, samples.x_N).exp()
    np.testing.assert_allclose(model.predict_proba(samples.x_N.numpy()), wanted.double(), atol=1e-6)


@pytest.mark.parametrize("name", ["ditto", "fedala", "fedper", "local"])
def test_few_samples_have_the_personal_model_alone(name: str, digits: idl.Result, tmp_path: Path) -> None:
    bundle, samples = digits.bundle(name, tmp_path / "b"), own(digits, 30)
    found = candidates_of(bundle, samples)
    assert set(found.clients) == {"personal"}
    site = join(bundle, samples, tmp_path / "site").about.site
    assert (site.weights, site.against, set(site.compared)) == ({"personal": 1.0}, None, {"personal"})
    page, card = ((tmp_path / "site" / part).read_text() for part in ("report.html", "README.md"))
    for text in (page, card):
        assert "a local one needs 40 samples to train on" in text
    assert "Against" not in page
    assert "Where they disagree" not in page
    assert "Blend:" not in page


@pytest.mark.thorough(but=["ditto"])
@pytest.mark.parametrize("name", ["ditto", "fedala"])
def test_a_blend_of_two_is_one_onnx_file(name: str, digits: idl.Result, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    bundle, samples = digits.bundle(name, tmp_path / "b"), own(digits, 45)
    found = candidates_of(bundle, samples)
    weights = {"personal": 0.5, "local": 0.7}
    site = ship(bundle, found._replace(choice=found.choice._replace(weights=weights)), samples, tmp_path / "site")
    assert site.about.site.weights == weights
    assert export(site, tmp_path / "m.onnx", x_R=samples.x_N).difference < 1e-5


def visits(rows: int, seed: int) -> pd.DataFrame:
    """Visits at four sites with a number and two labels."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    return pd.DataFrame({
        "a": x[:, 0], "b": x[:, 1], "site": [f"s{k % 4}" for k in range(rows)],
        "pressure": x[:, 0] + 0.1 * draw.normal(size=rows),
        "cough": (x[:, 0] > 0).astype(int), "fever": (x[:, 1] > 0).astype(int),
    })  # fmt: skip


@pytest.mark.thorough(but=["pressure"])
@pytest.mark.parametrize("target", ["pressure", "cough+fever"])
def test_numbers_and_labels_are_compared_with_the_local_model(target: str, tmp_path: Path) -> None:
    names = target.split("+")
    frame = visits(120, 0)[["a", "b", "site", *names]]
    source = idl.data.from_frame(frame, target=target, client_column="site")
    study = idl.Study(data=source, methods=["ditto", "fedper", "fedavg"], rounds=1, batch_size=20, lr=0.05)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    mine = visits(60, 1)
    for name, against, network in (
        ("ditto", "local", "initial"), ("fedper", "local", "received"), ("fedavg", "global", "global")
    ):  # fmt: skip
        bundle = result.bundle(name, tmp_path / name)
        y = torch.tensor(mine[names].to_numpy(), dtype=torch.float64)
        targets = bundle.about.targets
        y = (y - targets[0].mean) / targets[0].std if targets else y
        samples = Samples(torch.tensor(mine[["a", "b"]].to_numpy(), dtype=torch.float32), y)
        site = join(bundle, samples, tmp_path / f"{name} site")
        assert site.about.site.against == against
        page = (tmp_path / f"{name} site" / "report.html").read_text()
        assert f"Against {against}" in page
        assert reference.FILE in site.about.files
        said = " ".join(watch.sentences(watch.watch(site, samples.x_N + 0.1)))
        model = "model" if network == "global" else "network"
        assert f"The predictions of the {network} {model} " in said
        few = Samples(samples.x_N[:30], samples.y_N[:30])
        alone = join(bundle, few, tmp_path / f"{name} few").about.site
        assert alone.against == (None if against == "local" else "global")
