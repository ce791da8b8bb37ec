"""What a method reveals, keeps and needs, found by running it on synthetic samples; nothing is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import blame
from idiolect.core.method import Data, Down, Method, Task, Training, Up
from idiolect.core.network import Model, Network
from idiolect.core.tree import Tree


class Message(NamedTuple):
    """Tensors that travel or stay: what is where, and its size for the network asked about."""

    parts: dict[str, str]
    """By name: "body", "head" or "model" for a tree of that structure, "M x body" for several, or a shape such as
    "(C, d)"; "?" is a dimension that depends on the sizes in another way."""
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
    """Whether the server's state was found to depend on nothing but sums over clients of what they send, each tensor
    weighted by 1 or by one tensor of ``Up.weight``; then the server need not see a single upload."""
    client: Message
    """What stays at a client after its first round."""
    server: Message
    joins_by: str
    """How a client that never trained gets its model: "what it receives", "forward passes" or "training"."""

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

    The method runs for a round or two of three clients; then, for the shapes alone, with one client: with a small
    network of another size, which tells the dimensions apart, and with the network given. Symbols: C classes,
    d features, K clients, N samples of the client.

    Args:
        name: of the method.
        options: complete or not.
        network: to count bytes for, float32.
        classes: of the data.
        clients: in the federation, for what the server keeps of each.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    build = partial(methods.build, name, methods.settle(name, options))
    with blame(f"method {name}, on synthetic samples"):
        with precision(torch.float64):
            small = [
                _round(build, s.network(), s.classes, s.clients, s.rows, some)
                for s, some in zip(_SIZES, (3, 1), strict=True)
            ]
            sums, joins = _are_sums(small[0]), _joins(small[0])
        with precision(torch.float32):
            large = _round(build, network, classes, clients, 2 * classes, 1, batch_size=4)

    def message(at: str) -> Message:
        one, other = (_parts(getattr(r, at), r.start) for r in small)
        parts = {path: _shown(a, b) for (path, a), (_, b) in zip(one, other, strict=True)}
        return Message(parts, tree.nbytes(getattr(large, at)))

    return Anatomy(
        message("shared"), message("own"), message("value"), message("weight"), sums,
        message("client"), message("server"), joins,
    )  # fmt: skip


class _Sizes(NamedTuple):
    """The sizes of a synthetic task. No option has such a default, so that each number shows what it measures."""

    classes: int
    width: int
    clients: int
    rows: int
    inputs: int

    def network(self) -> Network:
        return Network(partial(_perceptron, *self), (self.inputs,))


_SIZES = (_Sizes(19, 11, 29, 41, 13), _Sizes(17, 14, 37, 43, 12))


def _perceptron(classes: int, width: int, clients: int, rows: int, inputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU()), nn.Linear(width, classes)


_NUDGES = (0.01, 1.0, 100.0, 1e5)  # times the size of what is nudged


class Round(NamedTuple):
    """A method before and after one round of some clients; of what travels and stays, the first client's."""

    method: Method
    start: Model
    """Weights of the network, for their names and shapes."""
    server: Tree
    ups: Up
    data: Data
    shared: Tree
    own: Tree
    value: Tree
    weight: Tree
    client: Tree


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """A default type of numbers; also one thread, because with small tensors several threads wait for each other."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def _round(
    build: Any, network: Network, classes: int, clients: int, rows: int, some: int = 3, batch_size: int = 50
) -> Round:
    method: Method = build(Task(network, classes, clients, Training(epochs=1, batch_size=batch_size)))
    ids = list(range(min(some, clients)))
    x_R = keys.normal(keys.key(1), (len(ids) * rows, *network.shape))
    row_KN = torch.arange(len(x_R)).view(len(ids), rows)
    y_R = torch.arange(len(x_R)) % classes
    server, client = method.init_server(keys.start(0)), method.init_client(keys.start(0))
    down = method.send(server, torch.tensor(ids))
    data = [Data(x_R, y_R, row_N, torch.ones(rows)) for row_N in row_KN]
    done = [method.local(_one(down, k), client, data[k], keys.key(0, k)) for k in ids]
    up = done[0][1]
    return Round(
        method, network.init(keys.key(0)), server, tree.stack([up for _, up, _ in done]), data[0],
        down.shared, tree.rows(down.own, 0), up.value, up.weight, done[0][0],
    )  # fmt: skip


def _one(down: Down, k: int) -> Down:
    return Down(down.shared, tree.rows(down.own, k))


Shape = tuple[str, tuple[int, ...]]  # "body" and how many of it, or "" and a tensor's shape


def _parts(node: Tree, model: Model, path: str = "") -> Iterator[tuple[str, Shape]]:
    """Names and shapes; a tree with the structure of the network, or of a part of it, has that name."""
    for what, part in (("model", model), ("body", model.body), ("head", model.head)):
        if (several := _times(node, part)) is not None:
            yield path or what, (what, several)
            return
    children = _children(node)
    if children is None:
        yield path or "tensor", ("", tuple(node.shape))
        return
    for name, child in children:
        yield from _parts(child, model, f"{path}/{name}" if path else name)


def _children(node: Tree) -> list[tuple[str, Tree]] | None:
    if isinstance(node, Tensor):
        return None
    if isinstance(node, dict):
        return list(node.items())
    return list(zip(getattr(node, "_fields", map(str, range(len(node)))), node, strict=True))


def _times(node: Tree, part: Tree) -> tuple[int, ...] | None:
    """The leading axes that a node has over a part: () where it is one, None where it is something else."""
    mine, theirs = _children(node), _children(part)
    if mine is None or theirs is None:
        if not (isinstance(node, Tensor) and isinstance(part, Tensor)):
            return None
        extra = node.ndim - part.ndim
        return tuple(node.shape[:extra]) if extra >= 0 and node.shape[extra:] == part.shape else None
    if [name for name, _ in mine] != [name for name, _ in theirs] or not mine:
        return None
    counts = {_times(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True)}
    return counts.pop() if len(counts) == 1 else None


def _shown(one: Shape, other: Shape) -> str:
    """A shape, from the shapes at both sizes: each dimension is a number, a symbol or "?"."""

    def symbols(z: _Sizes) -> dict[int, str]:
        named = {z.classes: "C", z.width: "d", z.clients: "K", z.rows: "N", z.inputs: "inputs"}
        return named | {z.width * (z.width + 1) // 2: "d(d+1)/2"}

    def axis(a: int, b: int) -> str:
        first, second = (symbols(z).get(n, "?") for z, n in zip(_SIZES, (a, b), strict=True))
        return str(a) if a == b else first if first == second else "?"

    what, axes = one[0], [axis(a, b) for a, b in zip(one[1], other[1], strict=True)]
    return " x ".join([*axes, what]) if what else "(" + ", ".join(axes) + ")"


def _are_sums(r: Round) -> bool:
    """Whether other uploads with the same weighted sums give the same server, in the first round and in the second.

    Uploads are nudged by noise that sums to zero, in very different sizes, so that a threshold or a sign shows.
    """
    if not tree.leaves(r.ups.value):
        return True
    second = r.method.aggregate(r.server, r.ups, torch.arange(3))[0]
    return all(_keeps(r.method, server, r.ups) for server in (r.server, second))


def _keeps(method: Method, server: Tree, up: Up) -> bool:
    values, build_value = tree.flatten(up.value)
    weights, build_weight = tree.flatten(up.weight)
    if not all(a.is_floating_point() for a in [*values, *weights]):
        return False
    # different weights, so that one cannot pass for another or for none
    weights = [w * _over(1 + 0.3 * keys.normal(keys.key(3, k), (3,)).tanh(), w) for k, w in enumerate(weights)]
    values = [v + v.abs().mean() * keys.normal(keys.key(4, k), tuple(v.shape)) for k, v in enumerate(values)]

    def after(values: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        up = Up(build_value(values), build_weight(weights))
        return tree.leaves(method.aggregate(server, up, torch.arange(3))[0])

    reference = after(values, weights)

    def same(values: Sequence[Tensor], weights: Sequence[Tensor], size: float) -> bool:
        rounding = 1e-11 * max(1.0, size)
        close = ((a - b).abs().max() <= rounding * (1 + a.abs().max()) for a, b in pairs(values, weights))
        return all(bool(c) for c in close)

    def pairs(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for a, b in zip(reference, after(values, weights), strict=True):
            if a.numel():
                yield a.double(), b.double()

    owner: list[int | None] = []
    for at, value in enumerate(values):
        choices = [None, *(k for k, w in enumerate(weights) if w.shape == value.shape[: w.ndim])]
        for choice in choices:
            weight = torch.ones(()) if choice is None else _over(weights[choice], value)
            if all(same(_nudged(values, at, weight, size), weights, size) for size in _NUDGES):
                owner.append(choice)
                break
        else:
            return False
    moved = [w + _balanced(w, k, 0.1) for k, w in enumerate(weights)]
    scaled = [
        v if k is None else _divided(v * _over(weights[k], v), _over(moved[k], v))
        for v, k in zip(values, owner, strict=True)
    ]
    return same(scaled, moved, 1.0)


def _nudged(values: Sequence[Tensor], at: int, weight: Tensor, size: float) -> list[Tensor]:
    return [
        v + _divided(_balanced(v, at, size), weight / weight.mean()) if k == at else v for k, v in enumerate(values)
    ]


def _balanced(a: Tensor, seed: int, size: float) -> Tensor:
    """Noise of the tensor's size, times ``size``, that sums to zero over the clients."""
    noise = keys.normal(keys.key(2, seed), tuple(a.shape)) * a.abs().mean() * size
    return noise - noise.mean(0)


def _divided(a: Tensor, weight: Tensor) -> Tensor:
    return torch.where(weight > 0, a / torch.where(weight > 0, weight, 1), a)


def _over(weight: Tensor, value: Tensor) -> Tensor:
    return weight.reshape(*weight.shape, *[1] * (value.ndim - weight.ndim))


def sums_only(name: str, options: dict[str, Any]) -> bool:
    """Whether the server needs nothing but sums or means of what clients send, or nothing at all.

    Such a method can take differential privacy and secure aggregation: it says so by its ``combine``.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    r = small_round(name, options)
    return r.method.combine is not None or not tree.leaves(r.ups.value)


def weighs_by_class(name: str, options: dict[str, Any]) -> bool:
    """Whether a method with ``combine`` weighs what clients send by more than one number for each client.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    r = small_round(name, options)
    if r.method.combine is None:
        return False

    def combined(weight: Callable[[Tensor], Tensor]) -> list[Tensor]:
        assert r.method.combine is not None
        return tree.leaves(r.method.combine(Up(r.ups.value, tree.map(weight, r.ups.weight))).value)

    other = combined(lambda w: torch.linspace(1, 2, w.numel()).view_as(w) if w.ndim > 1 else torch.ones_like(w))
    return not all(torch.allclose(a, b) for a, b in zip(combined(torch.ones_like), other, strict=True))


def small_round(name: str, options: dict[str, Any]) -> Round:
    """A round of a method on the smaller synthetic task."""
    with blame(f"method {name}, on synthetic samples"), precision(torch.float64):
        s = _SIZES[0]
        build = partial(methods.build, name, methods.settle(name, options))
        return _round(build, s.network(), s.classes, s.clients, s.rows)


def adapts_by_training(name: str, options: dict[str, Any]) -> tuple[bool, bool]:
    """Whether ``personalise`` trains for a client that has never trained, and whether it does for one that has.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    with blame(f"method {name}, on synthetic samples"), precision(torch.float64):
        s = _SIZES[0]
        r = _round(
            partial(methods.build, name, methods.settle(name, options)), s.network(), s.classes, s.clients, s.rows
        )
        new = r.method.init_client(keys.start(0))
        return _personalises(r, new) == "training", _personalises(r, r.client) == "training"


def _joins(r: Round) -> str:
    """How a new client gets its model after the round."""
    return _personalises(r, r.method.init_client(keys.start(0)))


def _personalises(r: Round, client: Tree) -> str:
    """How a client gets its model after the round: anything that prepares a backward pass is noticed."""
    server, _ = r.method.aggregate(r.server, r.ups, torch.arange(3))
    down, saved = _one(r.method.send(server, torch.tensor([10**6])), 0), [0]

    def save(a: Tensor) -> Tensor:
        saved[0] += 1
        return a

    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda a: a):
            personalised = r.method.personalise(down, client, r.data, keys.key(0, "adapt"))
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):  # torch.func's gradients do not allow them
            raise
        return "training"
    if saved[0]:
        return "training"
    before, after = tree.leaves(client), tree.leaves(personalised)
    unchanged = len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return "what it receives" if unchanged else "forward passes"
