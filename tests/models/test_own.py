"""A user's own network by import path: what is taken, and what is wrong with it in one sentence."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from idiolect import methods, models
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Task, Training
from idiolect.data import FederatedData
from idiolect.engines import Processes, Sequential
from idiolect.simulation import Job, fit

NETS = """
from __future__ import annotations
import random
from typing import TYPE_CHECKING, Annotated
import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from nowhere import Shape

def hospital(shape, classes, width: Annotated[int, Field(ge=1)] = 32):
    return nn.Sequential(nn.Linear(*shape, width), nn.ReLU()), nn.Linear(width, classes)

def anything(shape: Shape, classes: int, **options):
    return [nn.Linear(*shape, options["d"]), nn.Linear(options["d"], classes)]

def normed(shape, classes, *, width: int = 4):
    return nn.Sequential(nn.Linear(*shape, width), nn.BatchNorm1d(width)), nn.Linear(width, classes)

pretrained = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)), nn.Linear(6, 3)
pretrained[0][1].running_mean += torch.arange(6)
plain = nn.Linear(5, 6), nn.Linear(6, 3)
half = nn.Linear(5, 6).double(), nn.Linear(6, 3).half()
shared = nn.Linear(5, 5)
twice = shared, shared
number = 3
single = nn.Linear(5, 3)
parts = nn.Linear, nn.Linear

def wrong_type(shape, classes): return nn.Linear(5, 3)
def three(shape, classes): return nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)
def fails(shape, classes): raise RuntimeError("no weights\\non disk")
def refuses(shape, classes, *, width): return plain
def flat(shape, classes): return nn.Flatten(0), nn.Linear(10, 3)
def too_many(shape, classes): return nn.Linear(5, 6), nn.Linear(6, classes + 1)
def other_rows(shape, classes): return nn.Linear(7, 6), nn.Linear(6, classes)
def other_width(shape, classes): return nn.Linear(5, 6), nn.Linear(7, classes)
def drops_nothing(shape, classes): return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0)), nn.Linear(6, classes)
def lazy(shape, classes): return nn.LazyLinear(6), nn.Linear(6, classes)

class Noise(nn.Module):
    def forward(self, x): return F.dropout(x)

def draws(shape, classes): return nn.Sequential(nn.Linear(5, 6), Noise()), nn.Linear(6, classes)

def numpys(shape, classes):
    body = nn.Linear(5, 6)
    with torch.no_grad():
        body.weight.copy_(torch.from_numpy(np.random.randn(6, 5)))
    return body, nn.Linear(6, classes)

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.tensor(random.random()))
    def forward(self, x): return x * self.by

def scales(shape, classes): return nn.Linear(5, 6), nn.Sequential(nn.Linear(6, classes), Scale())

class Do(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward

centre = lambda z: z - z.mean(0)
def leave(z): raise SystemExit("bye")
def does(f): return nn.Sequential(nn.Linear(5, 6), Do(f)), nn.Linear(6, 3)
def centred(shape, classes): return does(centre)
def centred_head(shape, classes): return nn.Linear(5, 6), nn.Sequential(nn.Linear(6, classes), Do(centre))
def centred_frozen(shape, classes): return nn.Sequential(nn.BatchNorm1d(5), Do(centre)), nn.Linear(5, 3)

def hidden(shape, classes):
    body, head = does(centre)
    for p in head.parameters():
        nn.init.zeros_(p)
    return body, head

def two_rows(shape, classes): return does(lambda z: z.view(2, 6))
def no_single(shape, classes): return does(torch.squeeze)
def no_numbers(shape, classes): return does(lambda z: (-z.square()).sqrt())
def endless(shape, classes): return nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 3), Do(lambda z: z / 0))
def empty(shape, classes): return nn.Linear(5, 0), nn.Linear(0, classes)
def quits(shape, classes): raise SystemExit(3)
def quits_later(shape, classes): return does(leave)
"""
ROWS = (5,)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a package of the user's in it that the path does not hold."""
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "nets.py").write_text(NETS)
    (tmp_path / "ward" / "broken.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "ward" / "needy.py").write_text("import not_installed_here\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] == "ward"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "width"),
    [("ward.nets.hospital", 32), ("ward.nets.hospital:width=4", 4), ("ward.nets.anything:d=7", 7)],
)
def test_a_function_of_shape_and_classes(model: str, width: int) -> None:
    network = models.build(model, ROWS, 3)
    assert network.width == width
    one, other = (network.init(keys.key(s)).body for s in (0, 1))
    name = next(iter(one))
    assert one[name].shape == (width, 5)
    assert not torch.equal(one[name], other[name])
    assert models.choose(model, ROWS) == model


def test_a_pair_of_modules_is_where_training_starts() -> None:
    network = models.build("ward.nets.plain", ROWS, 3)
    body, head = sys.modules["ward.nets"].plain
    for seed in (0, 1):
        model = network.init(keys.key(seed))
        for module, part in ((body, model.body), (head, model.head)):
            assert all(torch.equal(part[k], p) for k, p in module.named_parameters())
    before = body.weight.clone()
    model.body["weight"].add_(1)
    network(model, torch.zeros(2, 5))
    assert torch.equal(body.weight, before)


def test_frozen_buffers_are_those_of_the_pair() -> None:
    network = models.build("ward.nets.pretrained:buffers=frozen", ROWS, 3)
    body, head = sys.modules["ward.nets"].pretrained
    x = torch.randn(4, 5)
    want = head.eval()(body.eval()(x))
    torch.testing.assert_close(network(network.init(keys.key(0)), x), want)


def test_other_precisions_become_the_usual_one() -> None:
    network = models.build("ward.nets.half", ROWS, 3)
    assert network(network.init(keys.key(0)), torch.randn(2, 5)).dtype == torch.float32
    assert models.build("ward.nets.drops_nothing", ROWS, 3).width == 6


def test_policies_are_the_models_option_like_any() -> None:
    network = models.build("ward.nets.normed:width=6,buffers=aggregate", ROWS, 3)
    assert (network.width, network.buffers) == (6, "aggregate")
    with pytest.raises(InputError, match=r"buffers \(body\.1\.running_mean\)"):
        models.build("ward.nets.normed", ROWS, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("wad.nets.hospital", r"no module 'wad'"),
        ("ward.nest.hospital", r"no module 'ward\.nest'"),
        ("ward.nets.hospitl", r"ward\.nets has no 'hospitl'; did you mean 'hospital'"),
        ("ward.broken.net", r"importing ward\.broken fails \(ZeroDivisionError: division by zero\)"),
        ("ward.needy.net", r"needs 'not_installed_here'|No module named 'not_installed_here'"),
        ("ward.nets.number", r"of type int: name a function \(shape, classes\) -> \(body, head\), or a pair"),
        ("ward.nets.single", r"of type Linear: name a function"),
        ("ward.nets.parts", r"of type tuple: name a function"),
        ("ward.nets.wrong_type", r"gives a Linear: it should give a pair of torch modules, \(body, head\)"),
        ("ward.nets.three", r"gives a tuple: it should give a pair"),
        ("ward.nets.fails", r"cannot be built \(RuntimeError: no weights on disk\)"),
        ("ward.nets.refuses", r"cannot be built \(TypeError: .*missing.*'width'"),
        ("ward.nets.hospital:widht=3", r"no option 'widht'; did you mean 'width'\? Known: width, buffers"),
        ("ward.nets.hospital:width=0", r"width=0 is not valid"),
        ("ward.nets.plain:width=3", r"pair of modules, which has no option 'width': leave it out"),
        ("ward.nets.flat", r"from 3 samples its body makes shape \(15,\): make it \(3, d\)"),
        ("ward.nets.too_many", r"from 3 samples its head makes shape \(3, 4\): make it \(3, 3\)"),
        ("ward.nets.other_rows", r"its body fails on 3 samples of shape \(5,\) \(RuntimeError: .*: fix it"),
        ("ward.nets.other_width", r"its head fails on features of shape \(3, 6\) \(RuntimeError: "),
        ("ward.nets.twice", r"body and head share head\.weight, and may train apart: give each weights of its own"),
        ("ward.nets.draws", r"another result for the same samples each time"),
        ("ward.nets.numpys", r"body\.weight differs each time it is built, with the same seed too: draw with torch"),
        ("ward.nets.scales:buffers=frozen", r"head\.1\.by differs each time it is built"),
        ("ward.nets.centred", r"another result for a sample alone than for the same sample among others"),
        ("ward.nets.centred_head", r"another result for a sample alone"),
        ("ward.nets.centred_frozen:buffers=frozen", r"another result for a sample alone"),
        ("ward.nets.hidden", r"another result for a sample alone"),
        ("ward.nets.two_rows", r"its body fails on 3 samples of shape \(5,\) \(RuntimeError: "),
        ("ward.nets.no_single", r"from 1 sample its body makes shape \(6,\): make it \(1, d\)"),
        ("ward.nets.no_numbers", r"its body makes numbers that are not finite from 3 samples: fix it"),
        ("ward.nets.endless", r"its head makes numbers that are not finite"),
        ("ward.nets.empty", r"from 3 samples its body makes shape \(3, 0\): make it \(3, d\) with d of at least 1"),
        ("ward.nets.quits", r"cannot be built \(SystemExit: 3\): fix it"),
        ("ward.nets.quits_later", r"its body fails on 3 samples of shape \(5,\) \(SystemExit: bye\)"),
        ("ward.nets.lazy", r"the size of body\.weight is not known yet"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_is_wrong_is_said(model: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        models.build(model, ROWS, 3)
    assert "\n" not in str(caught.value)


def test_it_travels_by_its_path(folder: Path) -> None:
    network = models.build("ward.nets.hospital:width=4", ROWS, 3)
    (folder / "network").write_bytes(pickle.dumps(network))
    code = (
        "import pickle, torch; from idiolect.core import keys; n = pickle.load(open('network', 'rb'));"
        "print(float(n(n.init(keys.key(0)), torch.ones(1, 5)).detach().sum()))"
    )
    # as a console script starts, which does not look into the current folder
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    want = network(network.init(keys.key(0)), torch.ones(1, 5))
    assert float(done.stdout) == pytest.approx(float(want.sum()), rel=1e-6)


def test_engines_agree() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=draw), torch.arange(40) % 3
    rows = torch.arange(40).split(10)
    data = FederatedData(
        name="table", x_R=x, y_R=y, train=rows[:2], test=rows[2:], classes=3, class_names=("a", "b", "c"),
        mean=(0.0,), std=(1.0,), shifts=("",) * 2,
    )  # fmt: skip
    network = models.build("ward.nets.pretrained:buffers=local", ROWS, 3)
    task = Task(network, 3, 2, Training(1, 4, SGD()))
    ends = []
    for engine in (Sequential(), Processes(1)):
        with engine:
            ends.append(fit(Job("own", partial(methods.build, "fedavg_ft", {}, task), data, 0), engine, rounds=1))
    for part in ("body", "head"):
        one, other = (getattr(e.server, part) for e in ends)
        assert all(torch.equal(one[k], other[k]) for k in one)
