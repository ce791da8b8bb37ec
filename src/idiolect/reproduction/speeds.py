"""How fast a method is on this machine: measured once and kept, or estimated from a step of its network."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from idiolect import methods
from idiolect.core import files, keys, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.method import Down, Task
from idiolect.data import FederatedData
from idiolect.data.datasets import cache
from idiolect.engines.threads import OneThread
from idiolect.models import pretrained
from idiolect.runs import environment
from idiolect.simulation import Job, begin
from idiolect.simulation.client_runner import ClientRunner
from idiolect.studies.backbones import is_frozen
from idiolect.studies.config import Study
from idiolect.training.trial import samples

_ROWS, _TEST_ROWS = 100, 32  # synthetic samples that a method is timed on, at most
_UNIT = "processor seconds in whole batches"  # of the kept speeds; those in another unit are measured again
_STEP = "processor seconds of a training step per sample"
_LONG = 0.1  # seconds of the step by which a network is timed, unless a single sample takes longer

# How long a method's round takes, and its personal model, in rounds of FedAvg, as ``measurement`` gives them on one
# core of an AMD EPYC with AVX-512: fmnist_cnn, 5 epochs in batches of 50, default options, clients that have trained.
_RELATIVE: dict[str, tuple[float, float]] = {
    "apfl": (2.0, 0.0), "ditto": (1.9, 0.0), "fedavg_ft": (1.0, 1.0), "fedbabu": (1.0, 0.1), "fedcr": (1.6, 0.9),
    "fedem": (3.3, 0.2), "fedfomo": (1.2, 0.1), "fedlda": (1.1, 0.0), "fedpac": (1.2, 0.0),
    "fedprox": (1.1, 0.0), "fedrep": (1.2, 0.2), "fedshrink": (1.0, 0.4), "fedsr": (1.2, 0.0), "hypcluster": (1.3, 0.1),
    "knnper": (1.0, 0.1), "pfedfda": (1.0, 0.1), "pfedhn": (4.3, 0.0), "pfedme": (4.8, 0.0), "scaffold": (1.1, 0.0),
}  # fmt: skip
_AS_FEDAVG = (1.0, 0.0)


class Speed(NamedTuple):
    """Seconds of one client on one core that does nothing else, per training sample that it uses."""

    training: float
    """A round of ``local``."""
    personalised: float
    """An evaluation with ``personalise``."""
    received: float
    """An evaluation without ``personalise``."""
    rough: bool = False
    """Whether it is an estimate from a step of the network, not a measurement of the method."""


class Speeds:
    """The speed of methods on this machine: kept from before, measured now, or estimated.

    Args:
        measure: whether a method without a kept speed is measured, which takes seconds or minutes; otherwise only a
            training step of its network is timed, for about a tenth of a second.
    """

    def __init__(self, measure: bool) -> None:
        self._measure = measure
        place = cache.place("speeds")
        self._path, self._new = place and place.with_suffix(".json"), False
        self._here = {"machine": environment.machine()} | environment.versions()
        self._speeds: dict[str, list[float]] = {}
        self._steps: dict[str, float] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # a broken file is measured again
            content = json.loads(self._path.read_bytes()) if self._path else {}
            if content.get("here") == self._here:
                self._speeds = {str(k): [float(s) for s in v] for k, v in content[_UNIT].items() if len(v) == 3}
                self._steps = {str(k): float(v) for k, v in content.get(_STEP, {}).items()}

    def of(self, study: Study, about: dict[str, Any]) -> Speed:
        """The speed of a study's one method; on features, without the time that a frozen backbone needs for them.

        Raises:
            InputError: a backbone cannot be read.
        """
        use = study.methods[0]
        network = [study.model, "features" if is_frozen(study) else about["shape"], about["classes"]]
        batches = (study.local_epochs, study.batch_size, study.drop_last, study.augment)
        like = str([use.name, use.options, *network, *batches, study.precision])
        if like not in self._speeds:
            if not self._measure:
                return self._estimate(study, about, str([*network, study.batch_size, study.precision]))
            self._speeds[like], self._new = list(measurement(study, about)[:3]), True
        training, personalised, received = self._speeds[like]
        return Speed(training, personalised, received)

    def _estimate(self, study: Study, about: dict[str, Any], like: str) -> Speed:
        if like not in self._steps:
            self._steps[like], self._new = step(study, about), True
        training, personal = _RELATIVE.get(study.methods[0].name, _AS_FEDAVG)
        one = self._steps[like]
        whole, received = study.local_epochs * one, one / 3  # a step is a pass forward, and one back of twice the work
        return Speed(training * whole, received + personal * whole, received, True)

    def keep(self) -> None:
        """Keep the speeds for the next time; if that fails, they are measured again."""
        if self._path and self._new:
            with suppress(OSError, RunError, InputError):
                files.write(self._path, json.dumps({"here": self._here, _UNIT: self._speeds, _STEP: self._steps}))


def whole_batches(rows: float, size: int) -> float:
    """Samples in whole batches; all of them if they are fewer than one batch."""
    return rows - rows % size if rows >= size else rows


def step(study: Study, about: dict[str, Any]) -> float:
    """Processor seconds of a training step per sample, of a study's network: of a batch, or of fewer samples."""
    about = _learnt_on(study, about)
    task = study.task_of(_made_up(about, study.batch_size, 0))
    shape, classes = tuple(about["shape"]), int(about["classes"])
    stored = torch.uint8 if about.get("images", True) else torch.float32

    def seconds_of(rows: int) -> float:
        x_B, y_B = torch.zeros(rows, *shape, dtype=stored), torch.arange(rows) % classes
        start = time.process_time()
        _step(task, x_B, y_B)
        return max(time.process_time() - start, 1e-6)

    with OneThread():
        seconds_of(1)  # what happens only once
        one = seconds_of(1)
        rows = max(1, min(study.batch_size, int(_LONG / one)))
        return min([one, *(seconds_of(rows) / rows for _ in range(2 if rows > 1 else 0))])


def _step(task: Task, x_B: torch.Tensor, y_B: torch.Tensor) -> None:
    model = tree.map(lambda w: w.requires_grad_(), task.network.init(keys.key(0)))
    loss = cross_entropy(task.network(model, task.inputs(x_B)), y_B)
    torch.autograd.grad(loss, tree.leaves(model), allow_unused=True)


def _learnt_on(study: Study, about: dict[str, Any]) -> dict[str, Any]:
    """What is said of a data set, or of the features that a study's frozen backbone makes of it."""
    if not is_frozen(study):
        return about
    backbone = pretrained.frozen_backbone(study.model, study.precision)
    assert backbone is not None
    return about | {"shape": (backbone.width,), "images": False}


def _made_up(about: dict[str, Any], trained: int, tested: int) -> FederatedData:
    """Two clients with random samples of a data set's shape."""
    shape, classes = tuple(about["shape"]), int(about["classes"])
    data = samples(shape, classes, trained + tested, clients=2, images=about.get("images", True))
    return FederatedData(
        name="random", x_R=data[0].x_R, y_R=data[0].y_R, classes=classes,
        train=tuple(d.row_N[:trained] for d in data), test=tuple(d.row_N[trained:] for d in data),
        class_names=tuple(map(str, range(classes))), mean=(0.5,) * shape[0], std=(0.3,) * shape[0], shifts=("", ""),
    )  # fmt: skip


def measurement(study: Study, about: dict[str, Any]) -> Speed:
    """The time of a round and of an evaluation on synthetic samples, in whole batches as most of a client's are."""
    rows = int(whole_batches(_ROWS, study.batch_size))
    made_up = _made_up(_learnt_on(study, about), rows, _TEST_ROWS)
    use = study.methods[0]
    runner = ClientRunner(
        Job(use.label, partial(methods.build, use.name, use.options, study.task_of(made_up)), made_up, 0)
    )
    state = begin(runner.method, 2, 0)
    down = runner.method.send(state.server, torch.tensor([0]))
    own = Down(down.shared, down.own)

    def seconds_of(phase: Any) -> float:
        best = float("inf")
        for number in (1, 2):
            start = time.process_time()  # not what other programs take at the moment, because the speed is kept
            runner.run(phase, number, [0], own, [state.clients[0]])
            best = min(best, time.process_time() - start)
        return max(best, 1e-6) / rows  # the clock of some machines goes on in steps of milliseconds

    with OneThread():
        return Speed(seconds_of("local"), seconds_of("evaluate"), seconds_of("received"))
