"""Every method: a site that joins from a bundle is the simulator's new client, and a client's bundle that client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

import idiolect as idl
from idiolect import methods
from idiolect.core.method import Data
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.estimator import load
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.samples import Samples

KEPT = [
    "fedavg:personal=head", "fedavg_ft:personal=*1.weight", "ditto:personal=body.1.bias+head.bias",
    "pfedfda:personal=body.1.bias", "fedcr:personal=body.1.*s",
]  # fmt: skip
"""Methods whose clients keep weights by a rule of the study."""
NAMES = [*sorted(methods.ours()), *KEPT]
CLIENTS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    study = idl.Study(
        dataset="digits", clients=CLIENTS + 1, new_clients=1, keep=20, rounds=1, local_epochs=1, batch_size=10,
        methods=NAMES, model="mlp", lr=0.05,
    )  # fmt: skip
    return idl.run(study, tmp_path_factory.mktemp("every") / "run", engine="sequential")


@pytest.fixture(scope="module")
def recorded(run: idl.Result):
    def value(method: str, client: int, stage: str, metric: str) -> float:
        r = run.records
        at = (r["method"] == method) & (r["client"] == client) & (r["stage"] == stage) & (r["metric"] == metric)
        [found] = r[at & (r["round"] == run.study.rounds)]["value"]
        return float(found)

    return value


@pytest.fixture(scope="module")
def data(run: idl.Result):
    return run.study.federation()


def measured(logp_NC: torch.Tensor, y_N: torch.Tensor) -> tuple[float, float]:
    return float((logp_NC.argmax(1) == y_N).double().mean()), float(nll_loss(logp_NC.double(), y_N))


@pytest.mark.kinds
@pytest.mark.parametrize("name", NAMES)
def test_a_site_that_joins_is_the_simulators_new_client(name, run, recorded, data, tmp_path: Path) -> None:
    run.bundle(name, tmp_path / "b")
    bundle = Bundle.read(tmp_path / "b")
    assert bundle.about.kind == "join"
    down = bundle.model().down
    rows = Data(data.x_R, data.y_R, data.train[CLIENTS], torch.ones(len(data.train[CLIENTS])))
    client = bundle.method.personalise(down, bundle.fresh, rows, bundle.key())
    test = data.test[CLIENTS]
    found = measured(log_probabilities(Personal(down, client), bundle.method, data.x_R[test]), data.y_R[test])
    assert found == pytest.approx([recorded(name, CLIENTS, "new", m) for m in ("accuracy", "loss")], abs=1e-6)
    received = log_probabilities(Personal(down, bundle.fresh), bundle.received, data.x_R[test])
    np.testing.assert_allclose(received.exp().sum(1), 1, atol=1e-5)


@pytest.mark.kinds
@pytest.mark.parametrize("name", NAMES)
def test_a_clients_bundle_is_that_client(name, run, recorded, data, tmp_path: Path) -> None:
    run.bundle(name, tmp_path / "b", client="2")
    bundle = Bundle.read(tmp_path / "b")
    assert (bundle.about.kind, bundle.about.models) == ("models", ("2",))
    test = data.test[2]
    found = measured(log_probabilities(bundle.model(), bundle.predicting, data.x_R[test]), data.y_R[test])
    assert found == pytest.approx([recorded(name, 2, "personalised", m) for m in ("accuracy", "loss")], abs=1e-6)
    listed = {c.name: c for c in bundle.about.evaluation.clients}
    assert listed["2"].personal == pytest.approx(found[0])


@pytest.mark.thorough(but=["pfedfda"])
@pytest.mark.parametrize("name", ["knnper", "pfedfda"])
def test_what_a_site_ships_is_one_onnx_file(name, run, data, tmp_path: Path) -> None:
    """pFedFDA's global model solves with a Cholesky factor, which ONNX does not have."""
    pytest.importorskip("onnxruntime")
    run.bundle(name, tmp_path / "b")
    row_N = torch.cat([data.train[CLIENTS], data.train[0]])
    site = join(Bundle.read(tmp_path / "b"), Samples(data.x_R[row_N], data.y_R[row_N]), tmp_path / "site")
    assert site.about.site is not None
    assert {"global", "personal"} <= set(site.about.site.weights)
    assert export(site, tmp_path / "m.onnx", x_R=data.x_R[data.test[CLIENTS]]).difference < 1e-5


@pytest.mark.thorough(but=["fedcr", "pfedfda"])
@pytest.mark.parametrize("name", ["fedcp", "fedcr", "fedem", "fedtgp", "knnper", "pfedfda", KEPT[0], KEPT[2]])
def test_onnx_gives_the_same_probabilities(name, run, data, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run.bundle(name, tmp_path / "b", client="1")
    bundle = Bundle.read(tmp_path / "b")
    assert export(bundle, tmp_path / "m.onnx").difference < 1e-4
    x_R = data.x_R[data.test[1]]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["classes"].split("\n") == list(bundle.about.classes)
    wanted = log_probabilities(bundle.model(), bundle.predicting, x_R).exp().numpy()
    np.testing.assert_allclose(session.run(None, {"images": x_R.numpy()})[0], wanted, atol=1e-5)
    np.testing.assert_allclose(session.run(None, {"images": x_R[:1].numpy()})[0], wanted[:1], atol=1e-5)
    export(bundle, tmp_path / "m.pt2", format="torch")
    program = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        np.testing.assert_allclose(program(x_R).numpy(), wanted, atol=1e-6)


@pytest.mark.thorough(but=["pfedfda:*"])
@pytest.mark.parametrize("name", KEPT[:4])
def test_a_bundle_says_which_weights_stay_and_a_site_gets_its_own(name, run, data, tmp_path: Path) -> None:
    """The classifier of scikit-learn joins as a site does; the numbers of the messages are those of the run."""
    run.bundle(name, tmp_path / "b")
    bundle = Bundle.read(tmp_path / "b")
    assert bundle.about.training.personal == name.partition("=")[2]
    r = run.records.query("method == @name and stage == 'wire' and client == 0").groupby("metric")["value"].first()
    assert (bundle.about.revealed.bytes_down, bundle.about.revealed.bytes_up) == (r["bytes_down"], r["bytes_up"])
    assert bundle.about.revealed.joins_by == "training"
    rows = torch.cat([data.train[CLIENTS], data.train[0]])
    classifier = load(tmp_path / "b").set_params(ships="personal").fit(data.x_R[rows].numpy(), data.y_R[rows].numpy())
    site = join(bundle, Samples(data.x_R[rows], data.y_R[rows]), tmp_path / "site", ships="personal")
    weights = site.model().client.weights
    start = bundle.fresh.weights
    for part in ("body", "head"):
        kept, before = getattr(weights, part), getattr(start, part)
        assert all(not torch.equal(kept[n], before[n]) for n in before)
    wanted = log_probabilities(site.model(), site.predicting, data.x_R[rows]).exp().double()
    np.testing.assert_allclose(classifier.predict_proba(data.x_R[rows].numpy()), wanted, atol=1e-6)


def test_all_clients_share_the_body_on_disk(run, recorded, data, tmp_path: Path) -> None:
    whole = run.bundle("fedrep", tmp_path / "all", client="all")
    assert whole.about.models == tuple(map(str, range(CLIENTS)))
    one = run.bundle("fedrep", tmp_path / "one", client=3)
    size = {k: (tmp_path / k / "model.safetensors").stat().st_size for k in ("all", "one")}
    heads = 4 * (one.task.network.width + 1) * data.classes
    assert size["all"] < size["one"] + 4 * heads
    for name in whole.about.models:
        test = data.test[int(name)]
        found = measured(log_probabilities(whole.model(name), whole.predicting, data.x_R[test]), data.y_R[test])
        assert found[1] == pytest.approx(recorded("fedrep", int(name), "personalised", "loss"), abs=1e-6)
    with pytest.raises(idl.InputError, match=r"has the models of 4 clients: give client=.* as one of 0, 1, 2, 3"):
        whole.model()
    with pytest.raises(idl.InputError, match="no model of client '7'"):
        whole.model("7")


def test_models_of_unlike_sizes_are_kept_together(run, recorded, data, tmp_path: Path) -> None:
    whole = run.bundle("knnper", tmp_path / "all", client="all")
    assert whole.about.revealed.per_sample
    assert "holds numbers for each training sample" in (whole.folder / "README.md").read_text()
    sizes = {len(whole.model(k).client.y_N) for k in range(CLIENTS)}
    assert sizes == {len(data.train[k]) for k in range(CLIENTS)}
    test = data.test[3]
    found = measured(log_probabilities(whole.model("3"), whole.predicting, data.x_R[test]), data.y_R[test])
    assert found[1] == pytest.approx(recorded("knnper", 3, "personalised", "loss"), abs=1e-6)
