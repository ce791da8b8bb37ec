"""What a method reveals, keeps and needs, found by running it on made-up rows: nothing here is typed in by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idiolect import keys, methods, tree
from idiolect.errors import blame
from idiolect.method import Data, Down, Method, Task, Training, Up
from idiolect.network import Model, Network
from idiolect.tree import Tree

# sizes that no option has by default, so that each stands for what it measures
_SIZES = {"C": 19, "d": 11, "K": 29, "N": 41}
_INPUTS = 13
_SYMBOL = {n: name for name, n in _SIZES.items()} | {11 * 12 // 2: "d(d+1)/2", _INPUTS: "inputs"}
_CLOSE, _NUDGE = 1e-6, 1e-2


class Message(NamedTuple):
    """Tensors that travel or stay: what is where, and its size for the network asked about."""

    parts: dict[str, str]
    """By name: "body", "head" or "model" of the network, "M x body" for several, or a shape such as "(C, d)"."""
    bytes: int


class Anatomy(NamedTuple):
    """What goes up and down, what stays, and how a new client joins."""

    down_shared: Message
    """One copy for everyone."""
    down_own: Message
    """For one client alone."""
    up_value: Message
    up_weight: Message
    uploads_are_sums: bool
    """Whether the server needs no more than sums of what clients send, weighted: then it need not see a single one."""
    client: Message
    """What stays at a client after its first round."""
    server: Message
    joins_by: str
    """How a client that never trained comes by its model: "what it receives", "forward passes" or "training"."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        part = {name: value._asdict() for name, value in self._asdict().items() if isinstance(value, Message)}
        return {
            "down": {"shared": part["down_shared"], "own": part["down_own"]},
            "up": {"value": part["up_value"], "weight": part["up_weight"]},
            "uploads_are_sums": self.uploads_are_sums,
            "keeps_state_at_the_client": bool(self.client.parts),
            "client": part["client"],
            "server": part["server"],
            "joins_by": self.joins_by,
            "joins_by_forward_passes_only": self.joins_by != "training",
        }


def of(name: str, options: dict[str, Any], network: Network, classes: int, clients: int) -> Anatomy:
    """The anatomy of a method with these options; shapes are symbolic, bytes are for this network.

    The method runs for one round of three clients: once with a small network whose sizes tell dimensions apart, once
    with the network given. Symbols: C classes, d features, K clients, N rows of the client.

    Args:
        name: of the method.
        options: settled or not.
        network: to count bytes for, float32.
        classes: of the data.
        clients: in the federation, for what the server keeps of each.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    settled = methods.settle(name, options)
    with blame(f"{name}, on made-up rows"):
        with _precision(torch.float64):
            small = _round(partial(methods.build, name, settled), _small(), _SIZES["C"], _SIZES["K"])
            sums, joins = _are_sums(small), _joins(small)
        with _precision(torch.float32):
            large = _round(partial(methods.build, name, settled), network, classes, clients)
    start = small.task.network.init(keys.key(0))

    def message(at: Callable[[_Round], Tree]) -> Message:
        return Message(dict(_parts(at(small), start)), tree.nbytes(at(large)))

    return Anatomy(
        message(lambda r: r.down.shared), message(lambda r: r.down.own), message(lambda r: r.up.value),
        message(lambda r: r.up.weight), sums, message(lambda r: r.client), message(lambda r: r.server), joins,
    )  # fmt: skip


class _Round(NamedTuple):
    """A method after one round of three clients."""

    task: Task
    method: Method
    server: Tree
    down: Down
    client: Tree
    up: Up
    ups: Up
    data: Data


@contextmanager
def _precision(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _parts_of_small() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(_INPUTS, _SIZES["d"]), nn.LeakyReLU()), nn.Linear(_SIZES["d"], _SIZES["C"])


def _small() -> Network:
    return Network(_parts_of_small, (_INPUTS,))


def _round(build: Callable[[Task], Method], network: Network, classes: int, clients: int) -> _Round:
    task = Task(network, classes, max(clients, 3), Training(epochs=1))
    method = build(task)
    sizes = [_SIZES["N"]] * 3
    x_R = keys.normal(keys.key(1), (sum(sizes), *network.shape))
    y_R = torch.arange(len(x_R)) % classes
    rows = torch.split(torch.arange(len(x_R)), sizes)
    server = method.init(keys.key(0, "init"))
    start = method.enrol(keys.key(0, "enrol"))
    down = method.send(server, torch.arange(3))
    data = [Data(x_R, y_R, r, torch.ones(len(r))) for r in rows]
    done = [method.local(_one(down, k), start, data[k], keys.key(0, k)) for k in range(3)]
    ups = tree.stack([up for _, up, _ in done])
    return _Round(task, method, server, _one(down, 0), done[0][0], done[0][1], ups, data[0])


def _one(down: Down, k: int) -> Down:
    return Down(down.shared, tree.rows(down.own, k))


def _parts(node: Tree, model: Model, path: str = "") -> Iterator[tuple[str, str]]:
    """Names and shapes, where what is laid out as the network or a part of it goes by that name."""
    for what, part in (("model", model), ("body", model.body), ("head", model.head)):
        if (count := _times(node, part)) is not None:
            yield path or what, f"{count} x {what}" if count else what
            return
    children = _children(node)
    if children is None:
        yield path or "tensor", "(" + ", ".join(_symbol(n) for n in node.shape) + ")"
        return
    for name, child in children:
        yield from _parts(child, model, f"{path}/{name}" if path else name)


def _children(node: Tree) -> list[tuple[str, Tree]] | None:
    if isinstance(node, Tensor):
        return None
    if isinstance(node, dict):
        return list(node.items())
    return list(zip(getattr(node, "_fields", map(str, range(len(node)))), node, strict=True))


def _times(node: Tree, part: Tree) -> str | None:
    """How many of a part a node holds: "" for one, None where it is something else."""
    mine, theirs = _children(node), _children(part)
    if mine is None or theirs is None:
        if not (isinstance(node, Tensor) and isinstance(part, Tensor)):
            return None
        extra = node.ndim - part.ndim
        if extra < 0 or node.shape[extra:] != part.shape:
            return None
        return " x ".join(_symbol(n) for n in node.shape[:extra])
    if [name for name, _ in mine] != [name for name, _ in theirs] or not mine:
        return None
    counts = {_times(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True)}
    return counts.pop() if len(counts) == 1 else None


def _symbol(size: int) -> str:
    return _SYMBOL.get(size, str(size))


def _are_sums(r: _Round) -> bool:
    """Whether other uploads with the same weighted sums give the same server.

    Each tensor is weighted by 1 or by a tensor of ``Up.weight``; which, is tried.
    """
    values, build_value = tree.flatten(r.ups.value)
    weights, build_weight = tree.flatten(r.ups.weight)
    # unlike weights, so that one cannot pass for another or for none
    weights = [w * _over(1 + 0.3 * keys.normal(keys.key(3, k), (3,)).tanh(), w) for k, w in enumerate(weights)]
    ids = torch.arange(3)
    reference = r.method.aggregate(r.server, Up(r.ups.value, build_weight(weights)), ids)[0]

    def same(values: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
        other = r.method.aggregate(r.server, Up(build_value(values), build_weight(weights)), ids)[0]
        return all(
            bool(torch.allclose(a.double(), b.double(), rtol=_CLOSE, atol=_CLOSE * _NUDGE))
            for a, b in zip(tree.leaves(reference), tree.leaves(other), strict=True)
        )

    owner: list[int | None] = []
    for at, value in enumerate(values):
        choices = [None, *(k for k, w in enumerate(weights) if w.shape == value.shape[: w.ndim])]
        for choice in choices:
            weight = torch.ones(()) if choice is None else _over(weights[choice], value)
            nudged = [v + _balanced(v, at) / weight if k == at else v for k, v in enumerate(values)]
            if same(nudged, weights):
                owner.append(choice)
                break
        else:
            return False
    moved = [w + 0.1 * _balanced(w, k) for k, w in enumerate(weights)]
    scaled = [
        v if k is None else v * _over(weights[k], v) / _over(moved[k], v) for v, k in zip(values, owner, strict=True)
    ]
    return same(scaled, moved)


def _balanced(a: Tensor, seed: int) -> Tensor:
    """Noise like the tensor that sums to nothing over the clients."""
    noise = keys.normal(keys.key(2, seed), tuple(a.shape)) * a.abs().amax(0) * _NUDGE
    return noise - noise.mean(0)


def _over(weight: Tensor, value: Tensor) -> Tensor:
    return weight.reshape(*weight.shape, *[1] * (value.ndim - weight.ndim))


def _joins(r: _Round) -> str:
    """A new client adapts, after the round, with gradients forbidden."""
    server, _ = r.method.aggregate(r.server, r.ups, torch.arange(3))
    down = _one(r.method.send(server, torch.tensor([10**6])), 0)
    new = r.method.enrol(keys.key(0, "enrol"))
    try:
        with torch.no_grad():
            adapted = r.method.adapt(down, new, r.data, keys.key(0, "adapt"))
    except RuntimeError as error:
        if "require grad" not in str(error):
            raise
        return "training"
    before, after = tree.leaves(new), tree.leaves(adapted)
    unchanged = len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return "what it receives" if unchanged else "forward passes"
