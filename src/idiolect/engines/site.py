"""One client at a time: what every engine runs, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from idiolect import keys, tree
from idiolect.data import FederatedData
from idiolect.errors import Diverged, blame
from idiolect.method import Data, Down, Info, Method, Up
from idiolect.tree import Tree

Stage = Literal["local", "evaluate"]
Stop = Callable[[], bool]
_CHUNK = 256  # test rows per prediction: larger ones leave the processor's cache


class Trained(NamedTuple):
    """What ``local`` leaves of a client's round."""

    client: Tree
    up: Up
    info: Info


class Measured(NamedTuple):
    """A client's personal model on its test rows."""

    accuracy: float
    loss: float
    """Mean negative log-likelihood, nats."""


class Job(NamedTuple):
    """One method on one federation with one seed. ``build`` is importable, so that a worker can build it too."""

    name: str
    build: Callable[[], Method]
    data: FederatedData
    seed: int


class Site:
    """Runs stages for clients of a job, and says of every failure which method, round, client and stage it was."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.method = job.build()

    def run(self, stage: Stage, round: int, id: int, down: Down, client: Tree) -> Trained | Measured:
        """One stage of one client.

        Raises:
            RunError: the method raised.
            Diverged: something it computed is not finite.
        """
        where = f"{self.job.name}: client {id}, round {round}, {stage}"
        with blame(where):
            key = keys.key(self.job.seed, round, id, stage)
            do = self._local if stage == "local" else self._evaluate
            result, checked = do(id, tree.copy(down), tree.copy(client), key)
        if (path := tree.not_finite(checked)) is not None:
            what = f"training diverged ({path} is not a finite number)"
            raise Diverged(f"{where}: {what}; lower the learning rate or strengthen the method's repair")
        return result

    def _data(self, rows: Tensor) -> Data:
        data = self.job.data
        return Data(data.x_R, data.y_R, rows, torch.ones(len(rows)))

    def _local(self, id: int, down: Down, client: Tree, key: Tensor) -> tuple[Trained, Tree]:
        client, up, info = self.method.local(down, client, self._data(self.job.data.train[id]), key)
        trained = Trained(tree.copy(client), tree.copy(up), tree.copy(info))
        return trained, trained

    def _evaluate(self, id: int, down: Down, client: Tree, key: Tensor) -> tuple[Measured, Tree]:
        data = self.job.data
        client = self.method.adapt(down, client, self._data(data.train[id]), key)
        rows = data.test[id]
        with torch.no_grad():
            logp_NC = torch.cat(
                [self.method.predict(down, client, data.x_R[r]) for r in torch.split(rows, _CHUNK)]
            ).double()
        if bool(((total_N := logp_NC.exp().sum(1)) - 1).abs().amax() > 1e-3):
            what = f"a row's probabilities sum to {float(total_N[(total_N - 1).abs().argmax()]):.3g}"
            raise ValueError(f"predict gives no log-probabilities ({what}): end it in log_softmax")
        y_N = data.y_R[rows]
        right = (logp_NC.argmax(1) == y_N).double().mean()
        return Measured(float(right), float(nll_loss(logp_NC, y_N))), {"prediction": logp_NC.amax(1)}
