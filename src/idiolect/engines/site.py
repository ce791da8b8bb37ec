"""What every engine runs of a client, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from idiolect import keys, tree
from idiolect.data import FederatedData
from idiolect.errors import Diverged, blame
from idiolect.method import Data, Down, Info, Method, Up
from idiolect.training.sgd import laid_out
from idiolect.tree import Tree

Stage = Literal["local", "evaluate"]
Stop = Callable[[], bool]
_CHUNK = 256  # test rows per prediction: larger ones leave the processor's cache
_TOGETHER = 32  # test rows that several clients are measured on at a time: more leave the processor's cache


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


def groups(stage: Stage, data: FederatedData, ids: Sequence[int]) -> list[list[int]]:
    """Places in ``ids`` of the clients that a site is given at a time, the most work first.

    Training takes one client after another. Clients with few test rows are measured together, those of like numbers
    (see ``Site.run``). What is together hangs on ``ids`` alone, so that no number of workers changes a result.
    """
    if stage == "local":
        return [[k] for k in sorted(range(len(ids)), key=lambda k: -len(data.train[ids[k]]))]
    found: list[list[int]] = []
    rows = [len(data.test[i]) for i in ids]
    for k in sorted(range(len(ids)), key=lambda k: -rows[k]):
        if found and (len(found[-1]) + 1) * rows[found[-1][0]] <= _TOGETHER:
            found[-1].append(k)
        else:
            found.append([k])
    return found


class Site:
    """Runs stages for clients of a job, and says of every failure which method, round, client and stage it was."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.method = job.build()

    def run(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree]
    ) -> list[Trained] | list[Measured]:
        """One stage of a group of clients; ``down.own`` has a row for each.

        Where what a client has of its own is small beside what all are sent, a head beside a body, the group's test
        rows pass through the model together.

        Raises:
            RunError: the method raised.
            Diverged: something it computed is not finite.
        """
        downs = [Down(down.shared, tree.copy(tree.rows(down.own, k))) for k in range(len(ids))]
        clients = [tree.copy(c) for c in clients]
        if stage == "local":
            return [self._local(round, i, d, c) for i, d, c in zip(ids, downs, clients, strict=True)]
        adapted = [self._adapt(round, i, d, c) for i, d, c in zip(ids, downs, clients, strict=True)]
        logp = self._predict_together(ids, downs, adapted) if len(ids) > 1 else None
        if logp is None:
            logp = [self._predict(round, i, d, c) for i, d, c in zip(ids, downs, adapted, strict=True)]
        return [self.measure(round, i, logp_NC) for i, logp_NC in zip(ids, logp, strict=True)]

    def where(self, round: int, id: int, stage: Stage) -> str:
        """Which method, client, round and stage, for an error."""
        return f"{self.job.name}: client {id}, round {round}, {stage}"

    def _data(self, rows: Tensor) -> Data:
        data = self.job.data
        return Data(data.x_R, data.y_R, rows, torch.ones(len(rows)))

    def _key(self, round: int, id: int, stage: Stage) -> Tensor:
        return keys.key(self.job.seed, round, id, stage)

    def _local(self, round: int, id: int, down: Down, client: Tree) -> Trained:
        where = self.where(round, id, "local")
        with blame(where):
            rows = self._data(self.job.data.train[id])
            client, up, info = self.method.local(down, client, rows, self._key(round, id, "local"))
            trained = Trained(tree.copy(client), tree.copy(up), tree.copy(info))
        check(where, trained)
        return trained

    def _adapt(self, round: int, id: int, down: Down, client: Tree) -> Tree:
        with blame(self.where(round, id, "evaluate")):
            rows = self._data(self.job.data.train[id])
            return self.method.adapt(down, client, rows, self._key(round, id, "evaluate"))

    def _predict(self, round: int, id: int, down: Down, client: Tree) -> Tensor:
        data = self.job.data
        with blame(self.where(round, id, "evaluate")), torch.no_grad():
            parts = torch.split(data.test[id], _CHUNK)
            return torch.cat([self.method.predict(down, client, data.x_R[rows]) for rows in parts])

    def _predict_together(
        self, ids: Sequence[int], downs: Sequence[Down], clients: Sequence[Tree]
    ) -> list[Tensor] | None:
        """Log-probabilities of each client's test rows in one pass, or None where it would not be less work."""
        if 2 * tree.nbytes((downs[0].own, clients[0])) > tree.nbytes(downs[0].shared):
            return None
        data = self.job.data
        rows = [data.test[i] for i in ids]
        longest = max(map(len, rows))
        x_M = data.x_R[torch.cat([torch.cat([r, r[:1].expand(longest - len(r))]) for r in rows])]
        if x_M.ndim == 4:
            x_M = x_M.clone(memory_format=torch.channels_last)  # mapped images cannot be laid out later
        predict = torch.func.vmap(self.method.predict, in_dims=(Down(None, 0), 0, 0))
        try:
            down = Down(tree.map(laid_out, downs[0].shared), tree.stack([d.own for d in downs]))
            with torch.no_grad():
                logp_KNC = predict(down, tree.stack(clients), x_M.view(len(ids), longest, *x_M.shape[1:]))
        except Exception:  # noqa: BLE001  a network that does not map, or states of unlike sizes: one after another, then
            return None
        return [logp_NC[: len(r)] for logp_NC, r in zip(logp_KNC, rows, strict=True)]

    def measure(self, round: int, id: int, logp_NC: Tensor) -> Measured:
        """Log-probabilities of a client's test rows, checked and held against their labels."""
        where = self.where(round, id, "evaluate")
        logp_NC = logp_NC.double()
        with blame(where):
            if bool(((total_N := logp_NC.exp().sum(1)) - 1).abs().amax() > 1e-3):
                what = f"a row's probabilities sum to {float(total_N[(total_N - 1).abs().argmax()]):.3g}"
                raise ValueError(f"predict gives no log-probabilities ({what}): end it in log_softmax")
        check(where, {"prediction": logp_NC.amax(1)})
        y_N = self.job.data.y_R[self.job.data.test[id]]
        right = (logp_NC.argmax(1) == y_N).double().mean()
        return Measured(float(right), float(nll_loss(logp_NC, y_N)))


def check(where: str, result: Tree) -> None:
    """Raise Diverged where a number is not finite."""
    if (path := tree.not_finite(result)) is not None:
        what = f"training diverged ({path} is not a finite number)"
        raise Diverged(f"{where}: {what}; lower the learning rate or strengthen the method's repair")
