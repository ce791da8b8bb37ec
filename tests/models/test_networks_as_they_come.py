"""Networks of one's own with dropout, frozen weights, ids, and several inputs: how they train, on every engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.inputs import Input
from idiolect.core.method import SGD, Data, Model, Task, Training
from idiolect.core.randomness import drawing
from idiolect.data import FederatedData
from idiolect.engines import Processes, Sequential, Vectorised
from idiolect.simulation import Job, fit
from idiolect.training import Preprocessing, train_model

NETS = """
import torch
from torch import nn
from torch.nn import functional as F

class Mean(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.table = nn.Embedding(size, width)
    def forward(self, x): return self.table(x).mean(1)

class Both(nn.Module):
    def __init__(self, shape, width):
        super().__init__()
        self.words, self.numbers = Mean(9, width), nn.Linear(*shape["numbers"], width)
    def forward(self, words, numbers): return torch.relu(self.words(words) + self.numbers(numbers))

class Functional(nn.Module):
    def forward(self, x): return F.dropout(x, 0.4, training=self.training)

class Attends(nn.Module):
    def __init__(self, size, width, drop):
        super().__init__()
        self.table = nn.Embedding(size, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 8, drop, batch_first=True)
    def forward(self, x): return self.layer(self.table(x)).mean(1)

class Recurrent(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.table = nn.Embedding(size, width)
        self.cells = nn.LSTM(width, width, 2, batch_first=True, dropout=0.3)
    def forward(self, x): return self.cells(self.table(x))[0][:, -1]

def dense(shape, classes, *, p: float = 0.5):
    body = nn.Sequential(nn.Linear(*shape, 12), nn.ReLU(), nn.Dropout(p))
    return body, nn.Sequential(nn.Dropout(p), nn.Linear(12, classes))

def functional(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 12), nn.ReLU(), Functional()), nn.Linear(12, classes)

def frozen(shape, classes):
    first = nn.Linear(*shape, 12)
    first.weight.requires_grad_(False)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(12, 6)), nn.Linear(6, classes)

def all_frozen(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 12), nn.ReLU()).requires_grad_(False), nn.Linear(12, classes)

def words(shape, classes): return Mean(9, 6), nn.Linear(6, classes)
def frozen_words(shape, classes):
    return Mean(9, 6).requires_grad_(False), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, classes))
def both(shape, classes): return Both(shape, 6), nn.Linear(6, classes)
def transformer(shape, classes): return Attends(9, 6, 0.2), nn.Linear(6, classes)
def recurrent(shape, classes): return Recurrent(9, 6), nn.Linear(6, classes)
"""
C, K, N, LENGTH = 3, 4, 10, 5
CLIENTS = [(n := N - 2 * k, n) for k in range(K)]  # clients of different sizes: some batches are short


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with networks in it that the path does not hold."""
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("nets_of_mine", None)


def federation(kind: str) -> FederatedData:
    """Clients with numbers, words or both."""
    draw = np.random.default_rng(0)
    count = sum(a + b for a, b in CLIENTS)
    words = torch.from_numpy(draw.integers(0, 9, (count, LENGTH)).astype(np.int32))
    numbers = torch.from_numpy(draw.normal(size=(count, 4)).astype(np.float32))
    x_R: Any = {"numbers": numbers, "words": words, "both": {"words": words, "numbers": numbers}}[kind]
    moments: Any = {"numbers": (0.0,) * 4, "words": (), "both": {"words": (), "numbers": (0.0,) * 4}}[kind]
    spread: Any = {"numbers": (1.0,) * 4, "words": (), "both": {"words": (), "numbers": (1.0,) * 4}}[kind]
    numbers_of = torch.split(torch.arange(count), [n for pair in CLIENTS for n in pair])
    return FederatedData(
        "toy", x_R, torch.from_numpy(draw.integers(0, C, count)), numbers_of[::2], numbers_of[1::2], C, tuple("abc"),
        moments, spread, ("",) * K, sizes={"words": 9, "both": {"words": 9}}.get(kind, 0),  # type: ignore[call-overload]
    )  # fmt: skip


def task_of(model: str, data: FederatedData, **settings: Any) -> Task:
    network = models.build(f"nets_of_mine.{model}", data.inputs, C, "float32", data.preprocessing(data.some(3)))
    training = Training(2, 4, SGD(0.05, 0.5, 0.0), **settings)
    return Task(network, C, K, training, data.preprocessing)


def job_of(model: str, kind: str, method: str = "fedavg", **options: Any) -> Job:
    data = federation(kind)
    return Job(method, partial(methods.build, method, options, task_of(model, data)), data, 3)


def end(engine: Any, job: Job) -> list[Tensor]:
    """All numbers of server and clients after two rounds."""
    with engine:
        state = fit(job, engine, rounds=2)
    return tree.leaves((state.server, [state.clients[k] for k in range(K)]))


RANDOM = ["dense", "functional"]
BY_TORCH = ["recurrent", "transformer"]
KINDS = {"dense": "numbers", "functional": "numbers", "recurrent": "words", "transformer": "words", "words": "words"}
KINDS |= {"frozen": "numbers", "all_frozen": "numbers", "frozen_words": "words", "both": "both"}


@pytest.mark.parametrize(
    ("model", "method"), [(model, "fedavg") for model in sorted(KINDS)] + [("both", "fedpac"), ("dense", "ditto")]
)
def test_engines_agree(model: str, method: str) -> None:
    job = job_of(model, KINDS[model], method)
    one = end(Sequential(), job)
    assert all(map(torch.equal, one, end(Processes(workers=2), job)))
    if model in BY_TORCH:
        with pytest.raises(InputError, match=r"draws at random otherwise|LSTM|lstm"):
            end(Vectorised(chunk=3), job)
        return
    for a, b in zip(one, end(Vectorised(chunk=3), job), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", sorted({*RANDOM, *BY_TORCH}))
def test_random_layers_act_in_steps_alone(model: str) -> None:
    data = federation(KINDS[model])
    task = task_of(model, data)
    start, own = task.network.init(keys.key(1)), Data(data.x_R, data.y_R, data.train[0], torch.ones(N))
    x_B = task.inputs(data.some(4))
    calm = [task.network(start, x_B) for _ in range(2)]
    assert torch.equal(*calm)
    with drawing(keys.key(5), 0):
        first = task.network(start, x_B)
        with torch.no_grad():
            torch.testing.assert_close(task.network(start, x_B), calm[0])  # an LSTM has another kernel there
    with drawing(keys.key(5), 0):
        assert torch.equal(task.network(start, x_B), first)
        assert not torch.equal(task.network(start, x_B), first)  # the second call
    with drawing(keys.key(5), 1):
        assert not torch.equal(task.network(start, x_B), first)
    assert not torch.equal(first, calm[0])
    before = torch.random.get_rng_state()
    ends = [train_model(task, start, own, keys.key(k))[0] for k in (2, 2, 3)]
    assert torch.equal(before, torch.random.get_rng_state())
    flat = [torch.cat([w.flatten() for w in tree.leaves(e)]) for e in ends]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


@pytest.mark.parametrize(("model", "names"), [
    ("all_frozen", ([], ["weight", "bias"])), ("frozen", (["0.bias", "2.weight", "2.bias"], ["weight", "bias"])),
])  # fmt: skip
def test_frozen_weights_are_no_weights_of_the_model(model: str, names: tuple[list[str], list[str]]) -> None:
    network = task_of(model, federation("numbers")).network
    one, other = network.init(keys.key(0)), network.init(keys.key(1))
    assert (list(one.body), list(one.head)) == names
    x_B = torch.ones(2, 4)
    body = dict.fromkeys(one.body, torch.zeros(()))
    assert set(body) == set(one.body)
    if model == "all_frozen":  # nothing of a key is in it
        assert torch.equal(network.features(one.body, x_B), network.features(other.body, x_B))


@pytest.mark.kinds
@pytest.mark.parametrize("method", [*methods.names()])
@pytest.mark.parametrize("model", ["all_frozen", "both"])
def test_every_method_takes_them(model: str, method: str) -> None:
    assert all(a.isfinite().all() for a in end(Sequential(), job_of(model, KINDS[model], method)))


def test_the_oracle_of_an_embedding() -> None:
    """One step of FedAvg's training on ids, in numpy from the equations."""
    data = federation("words")
    task = task_of("words", data)
    start = task.network.init(keys.key(0))
    row_N = data.train[3]
    one = replace_training(task, Training(1, len(row_N), SGD(0.1, 0.0, 0.0), shuffle=False))
    model, _ = train_model(one, start, Data(data.x_R, data.y_R, row_N, torch.ones(len(row_N))), keys.key(0))
    E, W, b = (a.double().numpy() for a in (start.body["table.weight"], start.head["weight"], start.head["bias"]))
    ids, y = data.x_R[row_N].numpy(), data.y_R[row_N].numpy()
    z = E[ids].mean(1)
    p = np.exp(z @ W.T + b)
    p /= p.sum(1, keepdims=True)
    g = (p - np.eye(C)[y]) / len(y)
    slope = np.zeros_like(E)
    for row, ids_of_row in zip(g @ W, ids, strict=True):
        for i in ids_of_row:
            slope[i] += row / LENGTH
    np.testing.assert_allclose(model.body["table.weight"].numpy(), E - 0.1 * slope, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.head["weight"].numpy(), W - 0.1 * g.T @ z, rtol=1e-5, atol=1e-6)


def replace_training(task: Task, training: Training) -> Task:
    return Task(task.network, task.classes, task.clients, training, task.inputs)


@pytest.mark.parametrize("form", [{"ids": Input((3,), True, 9), "age": (1,)}, {"image": (1, 4, 4), "age": (1,)}])
def test_built_in_networks_refuse_several_tensors(form: Any) -> None:
    for model in ("auto", "mlp"):
        with pytest.raises(InputError, match=r"takes samples of one tensor, and these have .*age: name a network"):
            models.build(model, form, C)


def test_preprocessing_leaves_ids_as_they_are() -> None:
    inputs = Preprocessing({"ids": (), "age": (10.0,)}, {"ids": (), "age": (2.0,)})
    x_B = {"ids": torch.tensor([[3, 0], [8, 1]], dtype=torch.int16), "age": torch.tensor([[12.0], [torch.nan]])}
    z_B = inputs(x_B)
    assert z_B["ids"].dtype == torch.int64
    assert z_B["ids"].tolist() == [[3, 0], [8, 1]]
    assert z_B["age"].tolist() == [[1.0], [0.0]]
    assert isinstance(z_B, dict)
    assert isinstance(Model({}, {}), tuple)
