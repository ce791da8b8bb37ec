"""Backbones of ``timm``, which cannot be imported here: against a stand-in for the few names that are used."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idiolect import models
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.models import pretrained

ABOUT = {
    "input_size": (3, 14, 14), "interpolation": "bicubic", "crop_pct": 0.875, "mean": (0.4, 0.5, 0.6),
    "std": (0.2, 0.3, 0.4),
}  # fmt: skip


class _Net(nn.Module):
    """Pooled features (B, 4) of images, as ``create_model(..., num_classes=0)`` gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


def _weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(9)
    return _Net().state_dict()


def create_model(name: str, *, pretrained: bool = False, num_classes: int = 1000, checkpoint_path: str = "") -> _Net:
    if name != "tiny.a1":
        raise RuntimeError(f"Unknown model ({name})")
    assert num_classes == 0, "without its classifier"
    net = _Net()
    if checkpoint_path:
        net.load_state_dict(torch.load(checkpoint_path, weights_only=True))
    elif pretrained:
        raise OSError("We couldn't connect to the hub")
    return net


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("timm")
    module.__spec__ = ModuleSpec("timm", None, origin="stand-in")
    module.create_model = create_model  # type: ignore[attr-defined]
    module.data = types.SimpleNamespace(resolve_model_data_config=lambda net: ABOUT)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    pretrained.readers._read.cache_clear()


@pytest.mark.parametrize(("height", "width"), [(16, 16), (20, 40), (9, 7)])
def test_features_are_those_of_the_network_after_resizing_cutting_and_normalising(
    tmp_path: Path, height: int, width: int
) -> None:
    torch.save(_weights(), tmp_path / "w.pt")
    small = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3)).astype(np.uint8)
    x = np.array([np.asarray(Image.fromarray(image).resize((width, height), 3)) for image in small])
    backbone = pretrained.frozen_backbone(f"timm:tiny.a1,weights={tmp_path / 'w.pt'}", "float32")
    assert backbone is not None
    ours = backbone(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    net = _Net()
    net.load_state_dict(_weights())
    short, rows = 16, []
    for image in x:  # the shorter side to 14 / 0.875 = 16 pixels, then the middle of 14
        size = (short, int(short * height / width)) if width < height else (int(short * width / height), short)
        big = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
        top, left = (big.shape[0] - 14) // 2, (big.shape[1] - 14) // 2
        cut = big[top : top + 14, left : left + 14] / 255
        rows.append(((cut - ABOUT["mean"]) / ABOUT["std"]).transpose(2, 0, 1))  # type: ignore[operator]
    with torch.no_grad():
        theirs = net(torch.from_numpy(np.array(rows)).float()).numpy()
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


@pytest.mark.parametrize("adapt", ["frozen", "full"])
def test_a_network_on_it_is_built(tmp_path: Path, adapt: str) -> None:
    torch.save(_weights(), tmp_path / "w.pt")
    network = models.build(f"timm:tiny.a1,weights={tmp_path / 'w.pt'},adapt={adapt},body=mlp:6", (3, 16, 16), 3)
    model = network.init(keys.key(0))
    assert network(model, torch.rand(5, 3, 16, 16)).shape == (5, 3)
    assert ("backbone.module.conv.weight" in model.body) == (adapt == "full")


BAD = [
    ("timm:other,weights={w}", r"timm:other cannot be read \(Unknown model \(other\)\): give its own weights"),
    (
        "timm:tiny.a1",
        r"cannot be read \(We couldn't connect to the hub\): check the name, or give its weights as a file",
    ),
    ("timm:tiny.a1,weights=/not/there", r"there is no file weights=/not/there"),
    ("timm:tiny.a1,weights={w},pooling=cls", r"its features are pooled by timm: leave pooling out"),
    ("timm:", r"write timm:resnet18"),
]


@pytest.mark.parametrize(("model", "said"), BAD, ids=[model for model, _ in BAD])
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, model: str, said: Any) -> None:
    torch.save(_weights(), tmp_path / "w.pt")
    with pytest.raises(InputError, match=said):
        models.build(model.format(w=tmp_path / "w.pt"), (3, 16, 16), 3)


def test_weights_of_another_network(tmp_path: Path) -> None:
    torch.save({"conv.weight": torch.ones(2, 3, 3, 3)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"tiny.a1 cannot be read \(Error\(s\) in loading state_dict"):
        models.build(f"timm:tiny.a1,weights={tmp_path / 'w.pt'}", (3, 16, 16), 3)
