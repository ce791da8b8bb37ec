"""Networks of one's own with ids, several inputs, dropout and frozen weights, from a study to a bundle and a file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.export import export
from idiolect.runs import predictions

NETS = """
import torch
from torch import nn

class Both(nn.Module):
    def __init__(self, shape, width):
        super().__init__()
        self.table = nn.Embedding(9, width).requires_grad_(False)
        self.numbers = nn.Sequential(nn.Linear(*shape["numbers"], width), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, words, numbers):
        return torch.cat([self.table(words).mean(1), self.numbers(numbers)], 1)

def both(shape, classes, *, width: int = 5):
    return Both(shape, width), nn.Linear(2 * width, classes)
"""
K, N = 4, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the network, which is the current one."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets_with_two.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield folder
    sys.modules.pop("nets_with_two", None)


def samples() -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, K * N)
    words = np.where(draw.random((K * N, 6)) < 0.6, y[:, None] * 3, draw.integers(0, 9, (K * N, 6)))
    return {"words": words, "numbers": draw.normal(y[:, None] * [2.0, -1.0], 1.0).astype(np.float32)}, y


@pytest.fixture(scope="module")
def run(folder: Path) -> idl.Result:
    x, y = samples()
    source = idl.data.from_arrays(x, y, clients=np.arange(K * N) % K, name="both")
    study = idl.Study(
        data=source, model="nets_with_two.both", methods=["fedavg_ft", "fedpac"], rounds=3, lr=0.05, batch_size=8,
        new_clients=1, save_predictions=True,
    )  # fmt: skip
    return idl.run(study, folder / "run", engine="sequential")


def test_it_learns_and_the_record_has_the_frozen_weights(run: idl.Result) -> None:
    assert run.accuracy().min() > 0.6
    digest = json.loads((run.folder / "manifest.json").read_text())["frozen"]
    assert re.fullmatch("[0-9a-f]{64}", digest)


def test_workers_give_the_same_numbers(run: idl.Result, folder: Path) -> None:
    again = idl.run(run.study, folder / "processes", engine="processes", workers=2)
    value = ["method", "round", "client", "metric", "value"]
    assert run.records[value].equals(again.records[value])


@pytest.fixture(scope="module")
def models(run: idl.Result, folder: Path) -> Bundle:
    return run.bundle("fedavg_ft", folder / "models", client="all")


def test_a_bundle_predicts_what_the_run_predicted(run: idl.Result, models: Bundle) -> None:
    federation, stored = run.study.federation(), predictions.read(run.folder).to_pandas()
    stored = stored[(stored["method"] == "fedavg_ft") & (stored["stage"] == "personalised")]
    for client in range(K - 1):
        classifier = idl.load(models.folder, client=client, allow_import=True)
        rows = federation.test[client]
        p_NC = classifier.predict_proba({name: leaf[rows].numpy() for name, leaf in federation.x_R.items()})
        mine = stored[stored["client"] == client].filter(like="probability").to_numpy()
        np.testing.assert_allclose(p_NC, mine, atol=1e-5)
    assert classifier.n_features_in_ == 8


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_file_predicts_the_same(models: Bundle, folder: Path, format: Any) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
        pytest.importorskip("onnxscript", reason="needs the extra onnx")
    x_R = models_samples()
    check = export(models, folder / f"model.{format}", format=format, client=0, x_R=x_R)
    assert check.difference < 1e-5
    if format == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(folder / "model.onnx"))
        assert {i.name: i.type for i in session.get_inputs()} == {"words": "tensor(int64)", "numbers": "tensor(float)"}
        p_RC = session.run(None, {name: leaf[:3].numpy() for name, leaf in x_R.items()})[0]
        own = idl.load(models.folder, client=0, allow_import=True)
        np.testing.assert_allclose(p_RC, own.predict_proba({n: a[:3] for n, a in x_R.items()}), atol=1e-5)


def models_samples() -> dict[str, torch.Tensor]:
    x, _ = samples()
    return {"words": torch.from_numpy(x["words"]), "numbers": torch.from_numpy(x["numbers"])}


def test_a_new_client_joins(run: idl.Result, folder: Path) -> None:
    bundle = run.bundle("fedpac", folder / "join")
    x, y = samples()
    rows = np.flatnonzero(np.arange(K * N) % K == K - 1)
    own = idl.PersonalClassifier(str(bundle.folder), allow_import=True)
    own.fit({name: leaf[rows] for name, leaf in x.items()}, y[rows])
    assert (own.predict({name: leaf[rows] for name, leaf in x.items()}) == y[rows]).mean() > 0.6


@pytest.mark.parametrize(("X", "message"), [
    ([[1.0]], "X is a list: give a dict of arrays with the names words, numbers"),
    ({"words": [[1]]}, "X is the names words: give a dict of arrays with the names words, numbers"),
    ({"words": [[0] * 6], "numbers": [[1.0, 2.0]] * 2}, "the arrays of X have 1 and 2 samples: give as many of each"),
    ({"words": [[9] * 6], "numbers": [[1.0, 2.0]]}, r"X\['words'\] has numbers that are no ids: give .* below 9"),
    ({"words": [[0.5] * 6], "numbers": [[1.0, 2.0]]}, r"X\['words'\] has numbers that are no ids"),
    ({"words": [[-1] * 6], "numbers": [[1.0, 2.0]]}, r"X\['words'\] has numbers that are no ids"),
    ({"words": [[0] * 5], "numbers": [[1.0, 2.0]]}, r"X\['words'\] has the shape \(1, 5\)"),
    ({"words": [["a"] * 6], "numbers": [[1.0, 2.0]]}, r"X\['words'\] has the shape \(1, 6\) of <U1: give numbers"),
])  # fmt: skip
def test_what_a_bundle_does_not_take(X: Any, message: str, models: Bundle) -> None:
    with pytest.raises(ValueError, match=message) as error:
        idl.load(models.folder, client=0, allow_import=True).predict(X)
    assert "\n" not in str(error.value)


def test_other_frozen_weights_are_refused(run: idl.Result, models: Bundle, folder: Path) -> None:
    """Another seed for the table: the file's digest would notice, so it is set to the new one's."""
    path = folder / "nets_with_two.py"
    before = path.read_text()
    try:
        path.write_text(before.replace("nn.Embedding(9, width)", "nn.Embedding(9, width, norm_type=1.0)").replace(
            "self.numbers = ", "self.table.weight.data += 1\n        self.numbers = "))  # fmt: skip
        sys.modules.pop("nets_with_two", None)
        with pytest.raises(InputError, match="frozen weights of the network have changed since the run in") as error:
            idl.run(run.study, run.folder, resume=True, engine="sequential")
        assert "\n" not in str(error.value)
        about = models.about.model_copy(deep=True)
        changed = Bundle(models.folder, about, models.digest)
        with pytest.raises(InputError, match=r"was made with other frozen weights of nets_with_two\.both"):
            _ = changed.task
    finally:
        path.write_text(before)
        sys.modules.pop("nets_with_two", None)
