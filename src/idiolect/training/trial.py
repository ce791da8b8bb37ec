"""A round of a method on synthetic samples: what its messages and states look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from idiolect.core import keys, tree
from idiolect.core.inputs import Form, inputs_of, synthetic
from idiolect.core.method import Data, Down, Info, Method, Up
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree


class Trial(NamedTuple):
    """One round of some clients, all from their first states."""

    server: Tree
    """Before the round."""
    down: Down
    """To all of them."""
    clients: list[Tree]
    """After it."""
    ups: list[Up]
    infos: list[Info]
    """What they report."""
    data: list[Data]
    starts: list[Tree]
    """The clients before it."""

    def message_to(self, client: int) -> Down:
        """What one client received."""
        return Down(self.down.shared, tree.rows(self.down.own, client))


def samples(
    form: Form, classes: int, rows: int, *, clients: int = 1, images: bool = False, task: TaskName = "classification"
) -> list[Data]:
    """Samples of some clients, drawn at random, with labels in turn, with numbers or with several labels.

    Args:
        form: of a sample: a shape, or what ``idiolect.core.inputs`` describes.
        classes: C, or the numbers of a target, or how many labels there are.
        rows: samples of each client.
        clients: how many.
        images: whether they are 8-bit images as stored; else normal draws, and ids where the form says so.
        task: what is learnt.
    """
    x_R, count = synthetic(inputs_of(form), clients * rows, keys.key(1)), clients * rows
    if images:
        x_R = (x_R * 64 + 128).clamp(0, 255).to(torch.uint8)
    y_R = torch.arange(count) % classes
    if task != "classification":
        y_R = torch.randn(count, classes, generator=torch.Generator().manual_seed(2))
    if task == "multilabel":
        y_R = (y_R > 0).to(y_R.dtype)
    return [Data(x_R, y_R, row_N, torch.ones(rows)) for row_N in torch.arange(count).view(clients, rows)]


def trial(method: Method, data: Sequence[Data]) -> Trial:
    """A round of clients 0, 1, ... with these samples, from the first state of each."""
    ids = torch.arange(len(data))
    server = tree.copy(method.init_server(keys.start(0)))
    down = method.send(server, ids)
    starts = [tree.copy(method.init_client(keys.start(0), id)) for id in ids]
    downs = [Down(down.shared, tree.rows(down.own, k)) for k in range(len(data))]
    clients, ups, infos = list[Tree](), list[Up](), list[Info]()
    for k, client_data in enumerate(data):
        client, up, info = method.local(downs[k], tree.copy(starts[k]), client_data, keys.key(0, k))
        clients.append(client)
        ups.append(up)
        infos.append(info)
    return Trial(server, down, clients, ups, infos, list(data), starts)


def stand_by(method: Method, one: Trial) -> Tree:
    """The first client's state if it had not been drawn for the round."""
    if method.stand_by is None:
        return one.starts[0]
    return method.stand_by(one.message_to(0), tree.copy(one.starts[0]), one.data[0], keys.key(0, "stand_by"))


def personal(method: Method, server: Tree, data: Data) -> tuple[Down, Tree]:
    """What a new client receives, and its state with a personal model."""
    down = method.send(server, torch.tensor([0]))
    down = Down(down.shared, tree.rows(down.own, 0))
    return down, method.personalise(down, method.init_client(keys.start(0), torch.tensor(0)), data, keys.key(0))
