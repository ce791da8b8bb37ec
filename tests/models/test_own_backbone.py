"""Backbones of one's own, by import path: as the function makes them, frozen, trained, and refused in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import idiolect as idl
from idiolect import models
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.code import digest_of
from idiolect.deploy.export import export
from idiolect.models import pretrained

CODE = """
import torch
from torch import nn


class Eyes(nn.Module):
    def __init__(self, channels=3, pool=True):
        super().__init__()
        torch.manual_seed(7)
        self.conv, self.pool = nn.Conv2d(channels, 5, 3), pool

    def forward(self, x):
        z = self.conv(2 * x - 1).relu()
        return z.mean((2, 3)) if self.pool else z


def pooled():
    return Eyes()


def places():
    return Eyes(pool=False)


def grey():
    eyes = nn.Sequential(nn.Flatten(), nn.Linear(49, 4))
    eyes.input_size = (1, 7, 7)
    return eyes


def colour():
    eyes = Eyes()
    eyes.input_size = (3, 12, 10)
    return eyes


def one_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 4))


def size():
    eyes = Eyes()
    eyes.input_size = 224
    return eyes


def with_options(width):
    return Eyes()


def text():
    return "a network"


def words():
    class Words(nn.Module):
        def forward(self, x):
            return ["no tensor"]

    return Words()


def not_finite():
    class Zero(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) / 0

    return Zero()


def broken():
    raise SystemExit("no weights here")


number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_eyes.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("my_eyes", None)
    pretrained.readers._read.cache_clear()


def images(channels: int = 3, height: int = 9, width: int = 8, rows: int = 6) -> Any:
    return torch.from_numpy(np.random.default_rng(2).integers(0, 256, (rows, channels, height, width), dtype=np.uint8))


def features(model: str, x: Any) -> Any:
    backbone = pretrained.frozen_backbone(model, "float32")
    assert backbone is not None
    backbone.check(x)
    return backbone(x).numpy()


def conv() -> nn.Conv2d:
    torch.manual_seed(7)
    return nn.Conv2d(3, 5, 3)


def expected(x: Any) -> Any:
    """By numpy, a place after the other."""
    weight, bias = (a.detach().double().numpy() for a in conv().parameters())
    x = 2 * x.double().numpy() - 1
    height, width = x.shape[2] - 2, x.shape[3] - 2
    z = np.stack([[np.tensordot(x[:, :, i : i + 3, j : j + 3], weight, ((1, 2, 3), (1, 2, 3))) + bias
                   for j in range(width)] for i in range(height)])  # fmt: skip
    return np.maximum(z, 0).mean((0, 1))


@pytest.mark.parametrize("name", ["pooled", "places"])
@pytest.mark.parametrize("channels", [3, 1])
def test_features_are_what_the_module_makes_of_images_from_0_to_1(name: str, channels: int) -> None:
    x = images(channels)
    want = expected(x.expand(-1, 3, -1, -1) / 255)
    np.testing.assert_allclose(features(f"torch:my_eyes.{name}", x), want, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(9, 8), (12, 10), (30, 40)])
def test_images_are_brought_to_the_size_that_the_module_names(height: int, width: int) -> None:
    x = images(3, height, width)
    big = interpolate(x / 255, (12, 10), mode="bicubic", antialias=True).clamp(0, 1)
    np.testing.assert_allclose(features("torch:my_eyes.colour", x), expected(big), atol=1e-5)


def test_a_network_for_grey_images_of_one_size() -> None:
    x = images(1, 7, 7)
    assert features("torch:my_eyes.grey", x).shape == (6, 4)
    with pytest.raises(InputError, match="these images have 3 channels, and the backbone takes 1"):
        features("torch:my_eyes.grey", images(3, 7, 7))


@pytest.mark.parametrize("adapt", ["frozen", "full", "lora(r=2,targets=conv)"])
def test_a_network_on_it_is_built(adapt: str) -> None:
    network = models.build(f"torch:my_eyes.pooled,adapt={adapt},body=mlp:6", (3, 9, 8), 3)
    model = network.init(keys.key(0))
    assert network(model, torch.rand(4, 3, 9, 8)).shape == (4, 3)
    assert any("conv" in name for name in model.body) == (adapt != "frozen")


def study() -> Any:
    x, y = images(rows=60), np.arange(60) % 3
    return idl.Study(
        data=idl.data.from_arrays(x.numpy(), y), model="torch:my_eyes.pooled,body=linear:3", clients=3,
        partition="iid", methods=["fedper"], rounds=2, batch_size=10, lr=0.1, local_epochs=1,
    )  # fmt: skip


def test_a_study_computes_its_features_once(caplog: pytest.LogCaptureFixture) -> None:
    features = study().federation()
    assert "computing features of 60 samples by torch:my_eyes.pooled, 5 numbers each" in caplog.text
    caplog.clear()
    again, raw = study().federation(), study().samples()
    assert "computing features" not in caplog.text
    for k in range(3):
        np.testing.assert_allclose(features.x_R[features.train[k]], expected(raw.x_R[raw.train[k]] / 255), atol=1e-5)
    assert torch.equal(features.x_R, again.x_R)


def test_a_bundle_predicts_from_images_and_needs_the_code_as_it_was(folder: Path) -> None:
    result = idl.run(study(), out="run", engine="sequential")
    table, raw = pd.read_parquet(result.folder / "records.parquet"), study().samples()
    bundle = result.bundle("fedper", "b", client="all")
    last = table[(table["stage"] == "personalised") & (table["round"] == 2) & (table["metric"] == "loss")]
    for k in range(3):
        logp = log_probabilities(bundle.model(k), bundle.predicting, raw.x_R[raw.test[k]])
        got = float(torch.nn.functional.nll_loss(logp.double(), raw.y_R[raw.test[k]]))
        assert got == pytest.approx(float(last[last["client"] == k]["value"].iloc[0]), abs=2e-4)
    assert export(bundle, Path("model.onnx"), client=0).difference < 1e-4
    with pytest.raises(InputError, match=r"has a network of its own, my_eyes.pooled, and using it runs the mod"):
        Bundle.read("b")
    (folder / "my_eyes.py").write_text(CODE + "# edited")
    with pytest.raises(InputError, match=r"was made with another version of my_eyes.pooled"):
        Bundle.read("b", allow_import=True)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("torch:my_eyes.pooled", "my_eyes.pooled"),
        ("torch:my_eyes.pooled,adapt=full,body=mlp:8", "my_eyes.pooled"),
        ("my_nets.small:width=3", "my_nets.small"),
        ("hf:owner/name.v2", None),
        ("timm:resnet18.a1_in1k", None),
        ("mlp:hidden=8", None),
    ],
)
def test_the_code_that_a_model_names_is_known_without_running_it(model: str, path: str | None) -> None:
    assert pretrained.code_of(model) == path
    assert "my_eyes" not in sys.modules


@pytest.mark.parametrize("model", ["torch:my_eyes.pooled", "torch:my_eyes.pooled,adapt=full", "torch:my_eyes.grey"])
def test_a_study_file_that_names_it_is_not_run_without_permission(folder: Path, model: str) -> None:
    (folder / "s.yaml").write_text(f"dataset: digits\nmodel: {model}\nmethods: [fedavg]\n")
    with pytest.raises(InputError, match=r"s.yaml: model my_eyes.\w+ is code, and reading it would run the modul"):
        idl.Study.read(folder / "s.yaml")
    assert "my_eyes" not in sys.modules
    assert idl.Study.read(folder / "s.yaml", allow_import=True).model == model


def test_other_code_makes_other_features(folder: Path) -> None:
    def digests() -> tuple[str | None, str]:
        backbone = pretrained.frozen_backbone("torch:my_eyes.pooled", "float32")
        assert backbone is not None
        return digest_of("torch:my_eyes.pooled"), backbone.digest

    code, backbone = digests()
    (folder / "my_eyes.py").write_text(CODE.replace("2 * x - 1", "2 * x - 2"))
    sys.modules.pop("my_eyes")
    pretrained.readers._read.cache_clear()
    assert (code != digests()[0], backbone != digests()[1]) == (True, True)


BAD = [
    ("torch:", r"model torch does not say which: write torch:my_package.my_backbone"),
    ("torch:eyes", r"'eyes' is not the import path of a function: write torch:my_package"),
    ("torch:my_eyes.nothing", r"my_eyes has no 'nothing'"),
    ("torch:no_such.thing", r"there is no module 'no_such'"),
    ("torch:my_eyes.number", r"cannot be built \(TypeError: 'int' object is not callable\): name a function without a"),
    ("torch:my_eyes.with_options", r"cannot be built \(TypeError: .*'width'\): name a function without arguments"),
    ("torch:my_eyes.broken", r"cannot be built \(SystemExit: no weights here\)"),
    ("torch:my_eyes.text", r"gives a str: let the function return a torch module"),
    ("torch:my_eyes.words", r"makes no features of a sample"),
    ("torch:my_eyes.not_finite", r"makes no features of a sample, but \(2, 3\): fix it, or set its input_size"),
    ("torch:my_eyes.one_shape", r"makes no features of a sample \(.*\): fix it, or set its input_size to the \(chan"),
    ("torch:my_eyes.size", r"its input_size is 224: write \(channels, height, width\), with 1 or 3 channels"),
    ("torch:my_eyes.pooled,pooling=cls", r"is code of your own: leave pooling out"),
    ("torch:my_eyes.pooled,weights=w.pt", r"is code of your own: leave weights out"),
]


@pytest.mark.parametrize(("model", "said"), BAD, ids=[model for model, _ in BAD])
def test_what_cannot_be_used_is_one_sentence(model: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pretrained.frozen_backbone(model, "float32")


@pytest.mark.parametrize("x", [torch.ones(3, 5, dtype=torch.int64), torch.ones(3, 5), {"a": torch.ones(3, 5)}])
def test_other_samples_than_images_are_refused(x: Any) -> None:
    with pytest.raises(InputError, match=r"model torch:my_eyes.pooled takes images, and these samples are"):
        features("torch:my_eyes.pooled", x)
