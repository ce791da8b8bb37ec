"""A federation small enough to run every method on every engine, with every kind of client that breaks methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import nn

from idiolect import methods, models
from idiolect.core import keys
from idiolect.core.method import SGD, Adam, Data, Method, Task, Training
from idiolect.core.network import Network
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData, build, load
from idiolect.training import Preprocessing
from idiolect.training.server_optimisers import AVERAGE, ServerOptimiser

CLASSES, BATCH = 3, 8
# client 2 lacks class 2, client 3 has one sample, client 4 is smaller than a batch, client 1 ends in a short batch
SIZES = (16, 19, 12, 1, 5, 24)
LACKS, SINGLE, SMALL = 2, 3, 4
Build = Callable[[Task], Method]


def data() -> FederatedData:
    """Six clients with blurred 4x4 pictures of three classes."""
    draw = torch.Generator().manual_seed(0)
    centre = torch.rand(CLASSES, 1, 4, 4, generator=draw)
    x, y, train, test, at = [], [], [], [], 0
    for client, n in enumerate(SIZES):
        label = torch.arange(n + 6) % (2 if client == LACKS else CLASSES)
        noise = torch.rand(n + 6, 1, 4, 4, generator=draw)
        x.append(((0.6 * centre[label] + 0.4 * noise) * 255).to(torch.uint8))
        y.append(label)
        train.append(torch.arange(at, at + n))
        test.append(torch.arange(at + n, at + n + 6))
        at += n + 6
    return FederatedData(
        name="toy", x_R=torch.cat(x), y_R=torch.cat(y), train=tuple(train), test=tuple(test), classes=CLASSES,
        class_names=("a", "b", "c"), mean=(0.5,), std=(0.3,), shifts=("",) * len(SIZES),
    )  # fmt: skip


@cache
def shared() -> FederatedData:
    """The same for all who write nothing into it: worker processes that have it are not started again."""
    return data()


def task() -> Task:
    """Two local epochs in batches of eight."""
    network = models.build("mlp", (1, 4, 4), CLASSES)
    return Task(network, CLASSES, len(SIZES), Training(2, BATCH, SGD(lr=0.05)), Preprocessing((0.5,), (0.3,)))


@cache
def digits() -> FederatedData:
    """Two clients with thirty of scikit-learn's digits each to train on, of unlike labels, and 360 to test on."""
    return build(load("digits"), Spec.parse("dirichlet:alpha=0.3"), clients=2, keep=30)


def digits_task() -> Task:
    """Five local epochs in batches of ten, at a high rate."""
    whole = digits()
    network = models.build("mlp:hidden=16", whole.shape, whole.classes)
    return Task(
        network, whole.classes, len(whole.train), Training(5, 10, SGD(lr=0.09)), Preprocessing(whole.mean, whole.std)
    )


def builder(name: str, **options: object) -> Build:
    """A published method as a function of the task."""
    return partial(_build, name, methods.settle(name, options))


def with_server(name: str, server: ServerOptimiser) -> Build:
    """A published method with another server's step."""
    return partial(_build, name, methods.settle(name, {}), server=server)


def keeping(name: str, pattern: str, **options: object) -> Build:
    """A published method whose clients keep some weights by a rule of the study."""
    return partial(_build, name, methods.settle(name, options), personal_weights=pattern)


def normalised(build: Build) -> Build:
    """A method on a network with batch normalisation in body and head, whose statistics stay at the clients."""
    return partial(_normalised, build)


def _normalised(build: Build, task: Task) -> Method:
    return build(replace(task, network=Network(_with_norms, (1, 4, 4), "local")))


def _with_norms() -> tuple[nn.Module, nn.Module]:
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.BatchNorm1d(9), nn.LeakyReLU())
    return body, nn.Linear(9, CLASSES)


def by_adam(build: Build) -> Build:
    """A method whose clients train by Adam."""
    return partial(_by_adam, build)


def _by_adam(build: Build, task: Task) -> Method:
    return build(replace(task, training=replace(task.training, optimiser=Adam(lr=0.01))))


def _build(
    name: str, options: dict[str, object], task: Task, server: ServerOptimiser = AVERAGE,
    personal_weights: str | None = None,
) -> Method:  # fmt: skip
    return methods.build(name, options, task, server=server, personal_weights=personal_weights)


def rows(federation: FederatedData, client: int, *, padding: int = 0) -> Data:
    """A client's training rows, followed by ``padding`` rows of somebody else marked as not real."""
    own = federation.train[client]
    alien = federation.train[(client + 1) % len(SIZES)][:1].expand(padding)
    real = torch.cat([torch.ones(len(own)), torch.zeros(padding)])
    return Data(federation.x_R, federation.y_R, torch.cat([own, alien]), real)


def key(*path: int | str) -> torch.Tensor:
    """A key of the tests."""
    return keys.key(7, *path)
