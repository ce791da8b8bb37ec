"""The statistics that batch normalisation uses in predictions: measured after training, never running averages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import (
    Aggregate,
    Data,
    Down,
    Info,
    InitClient,
    InitServer,
    Local,
    Method,
    Reduced,
    Rounds,
    Send,
    Task,
    Up,
    reduce,
)
from idiolect.core.network import BatchMoments, Network, Statistics
from idiolect.core.reduce import within
from idiolect.core.tree import Tree
from idiolect.training import trial
from idiolect.training.sharing import shared

_CHUNK = 256  # samples per pass, at most
ONE_AT_A_TIME = (
    "batch normalisation takes one client at a time: choose another engine than vectorised, or the model's option "
    "buffers=frozen"
)


class WithStatistics(NamedTuple):
    """A method's tree together with the statistics."""

    method: Tree
    statistics: Statistics


class Weight(NamedTuple):
    """The weights of an upload."""

    method: Tree
    rows: Tensor


def with_statistics(method: Method, task: Task) -> Method:
    """The method with the statistics that the network's policy for buffers needs.

    Wherever the method trains, a batch normalisation normalises by the batch. A client's statistics are the mean and
    the mean square of each batch normalisation's input. They are measured in one pass of ``predict`` over the client's
    training samples, in chunks that are normalised separately.

    "local": a client measures after ``personalise`` and predicts by its own statistics, which are not sent. Passes
    without gradients in ``local`` and ``personalise`` normalise by their own samples.

    "aggregate": a client measures after ``local``, with the model that ``personalise`` then makes from the message it
    has, and sends the statistics. All clients predict by the mean of these, weighted by samples; before the first round
    by mean 0 and variance 1. So a model that predicts with the received weights uses statistics of the weights of one
    round before. Passes without gradients in ``local`` and ``personalise`` normalise by the received statistics too.
    Where ``predict`` passes a layer several times (a mixture of networks), they normalise by their own samples instead.

    "frozen", or no buffers: the method is unchanged.

    Raises:
        InputError: "local" or "aggregate" is mapped over clients.

    Source: Wu and Johnson, Rethinking "Batch" in BatchNorm (2021), section 3, where the pass is called precise
    BatchNorm.
    """
    if task.network.buffers == "local":
        return _local(method, task.network)
    if task.network.buffers == "aggregate":
        return _aggregate(method, task)
    return method


def measure(method: Method, network: Network, down: Down, client: Tree, data: Data) -> Statistics:
    """The statistics of ``predict`` over a client's samples, in float64."""
    row_N = data.row_N[data.real_N > 0]
    chunks = torch.tensor_split(row_N, -(-len(row_N) // _CHUNK))  # of similar sizes, so that none is a single sample
    parts = []
    for row_B in chunks:
        with torch.no_grad(), network.recording() as statistics:
            method.predict(down, client, tree.rows(data.x_R, row_B))
        parts.append(statistics)
    mean: Statistics = tree.mean(tree.stack(parts), torch.tensor([len(c) for c in chunks], dtype=torch.float64))
    return mean


@contextmanager
def _predicting(network: Network, statistics: Statistics) -> Iterator[None]:
    with torch.no_grad(), network.normalising(statistics):
        yield


def _refuse_mapped(data: Data) -> None:
    if tree.mapped(data.row_N):  # clients that are padded to one length would train on their padding
        raise InputError(ONE_AT_A_TIME)


def _local(method: Method, network: Network) -> Method:
    rounds = _one_at_a_time(*(getattr(method, name) for name in Rounds._fields))

    def personalise(down: Down, client: Tree, data: Data, key: Tensor) -> WithStatistics:
        _refuse_mapped(data)
        state = method.personalise(down, client, data, key)
        return WithStatistics(state, measure(method, network, down, state, data))

    def predict(down: Down, client: WithStatistics, x_B: Tensor) -> Tensor:
        with _predicting(network, client.statistics):
            return method.predict(down, client.method, x_B)

    return method._replace(**rounds._asdict(), personalise=personalise, predict=predict)


@shared
def _one_at_a_time(
    init_server: InitServer[Tree], init_client: InitClient[Tree], send: Send[Tree], train: Local[Tree], parts: Tree,
    aggregate: Aggregate[Tree],
) -> Rounds[Tree, Tree]:  # fmt: skip
    def local(down: Down, client: Tree, data: Data, key: Tensor) -> tuple[Tree, Up, Info]:
        _refuse_mapped(data)
        return train(down, client, data, key)

    return Rounds(init_server, init_client, send, local, parts, aggregate)


def _aggregate(method: Method, task: Task) -> Method:
    network = task.network

    def init_server(key: Tensor) -> WithStatistics:
        server = method.init_server(key)
        return WithStatistics(server, _in_default_type(_first_statistics(method, task, server)))

    def send(server: WithStatistics, ids: Tensor) -> Down:
        down = method.send(server.method, ids)
        return Down(WithStatistics(down.shared, server.statistics), down.own)

    def own_message(down: Down) -> Down:
        return Down(down.shared.method, down.own)

    def evaluating(statistics: Statistics) -> AbstractContextManager[None]:
        once = all(len(m.mean_MC) == 1 for m in statistics.values())
        return network.normalising(statistics) if once else nullcontext()

    def local(down: Down, client: Tree, data: Data, key: Tensor) -> tuple[Tree, Up, Info]:
        _refuse_mapped(data)
        with evaluating(down.shared.statistics):
            client, up, info = method.local(own_message(down), client, data, key)
            state = method.personalise(own_message(down), client, data, keys.fold(key, "statistics"))
        statistics = _in_default_type(measure(method, network, own_message(down), state, data))
        return client, Up(WithStatistics(up.value, statistics), Weight(up.weight, data.real_N.sum())), info

    def aggregate(server: WithStatistics, up: Reduced, ids: Tensor) -> tuple[WithStatistics, Info]:
        each = up.weight_m.method if up.weight_m else ()
        own, info = method.aggregate(server.method, Reduced(up.value.method, up.weight.method, each), ids)
        return WithStatistics(own, up.value.statistics), info

    def stand_by(down: Down, client: Tree, data: Data, key: Tensor) -> Tree:
        _refuse_mapped(data)
        assert method.stand_by is not None
        with evaluating(down.shared.statistics):
            return method.stand_by(own_message(down), client, data, key)

    def personalise(down: Down, client: Tree, data: Data, key: Tensor) -> Tree:
        _refuse_mapped(data)
        with evaluating(down.shared.statistics):
            return method.personalise(own_message(down), client, data, key)

    def predict(down: Down, client: Tree, x_B: Tensor) -> Tensor:
        with _predicting(network, down.shared.statistics):
            return method.predict(own_message(down), client, x_B)

    parts = WithStatistics(within(method.reduce, "method"), reduce.mean("rows", exact=True))
    return method._replace(
        init_server=init_server, send=send, local=local, reduce=parts, aggregate=aggregate, personalise=personalise,
        predict=predict, stand_by=stand_by if method.stand_by else None,
    )  # fmt: skip


def _first_statistics(method: Method, task: Task, server: Tree) -> Statistics:
    """Mean 0 and variance 1, in the layout that a prediction on synthetic samples shows."""
    [data] = trial.samples(task.network.form, task.classes, 2)
    down, client = trial.personal(method, server, data)
    layout = measure(method, task.network, down, client, data)
    return {name: BatchMoments(torch.zeros_like(m.mean_MC), torch.ones_like(m.square_MC)) for name, m in layout.items()}


def _in_default_type(statistics: Statistics) -> Statistics:
    value: Statistics = tree.map(lambda a: a.to(torch.get_default_dtype()), statistics)
    return value
