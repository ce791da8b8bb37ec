"""What a method reveals, keeps and needs: as it declares, and as a round on synthetic samples shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import blame
from idiolect.core.method import Down, Method, Task, Training
from idiolect.core.network import Model, Network
from idiolect.core.objectives import OBJECTIVES, TaskName
from idiolect.core.reduce import children, needs_each
from idiolect.core.reduction import reduced
from idiolect.core.tree import Tree
from idiolect.training.personal_weights import WithWeights
from idiolect.training.trial import Trial, samples, stand_by, trial


class MessageForm(NamedTuple):
    """Tensors that travel or stay: what is where, and its size for the network asked about."""

    parts: dict[str, str]
    """By name: "body", "head" or "model" for a tree of that structure, "M x body" for several, or a shape such as
    "(C, d)"; "?" is a dimension that depends on the sizes in another way."""
    bytes: int


class Anatomy(NamedTuple):
    """What goes up and down, what stays, and how a new client joins."""

    down_shared: MessageForm
    """One copy for everyone."""
    down_own: MessageForm
    """For one client alone."""
    up_value: MessageForm
    up_weight: MessageForm
    uploads_are_sums: bool
    """Whether the server needs nothing but sums and means of what clients send, as the method declares."""
    client: MessageForm
    """What stays at a client after its first round."""
    server: MessageForm
    joins_by: str
    """How a client that never trained gets its model: "what it receives", "forward passes" or "training"."""
    stands_by: bool
    """Whether a client does something in a round that it was not drawn for."""
    full_rounds: tuple[int, ...]
    """Rounds in which all clients take part."""
    own_start: bool
    """Whether each client starts from a state of its own."""
    note: str
    """What the method says of the network asked about; "" for nothing."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        part = {name: value._asdict() for name, value in self._asdict().items() if isinstance(value, MessageForm)}
        return {
            "down": {"shared": part["down_shared"], "own": part["down_own"]},
            "up": {"value": part["up_value"], "weight": part["up_weight"]},
            "uploads_are_sums": self.uploads_are_sums,
            "keeps_state_at_the_client": bool(self.client.parts),
            "client": part["client"],
            "server": part["server"],
            "joins_by": self.joins_by,
            "joins_by_forward_passes_only": self.joins_by != "training",
            "stand_by": self.stands_by,
            "full_rounds": list(self.full_rounds),
            "own_start": self.own_start,
            "note": self.note,
        }


def of(
    name: str, options: dict[str, Any], network: Network, classes: int, clients: int, *,
    personal_weights: str | None = None, task: TaskName = "classification",
) -> Anatomy:  # fmt: skip
    """The anatomy of a method with these options; shapes are symbolic, bytes are for this network.

    The method runs for a round or two of three clients; then, for the shapes alone, with one client: with a small
    network of another size, which tells the dimensions apart, and with the network given. Symbols: C classes,
    D numbers of a target, d features, K clients, N samples of the client.

    Args:
        name: of the method.
        options: complete or not.
        network: to count bytes for, float32.
        classes: of the data.
        clients: in the federation, for what the server keeps of each.
        personal_weights: a pattern over the names of weights that stay at each client.
        task: what is learnt; C is then the outputs of the network.

    Raises:
        InputError: unknown method or option, or one that cannot take the pattern.
        RunError: the method raised.
    """
    make = partial(methods.build, name, methods.settle(name, options))
    exact = partial(make, personal_weights=personal_weights) if personal_weights else make
    with blame(f"method {name}, on synthetic samples"):
        with precision(torch.float32):
            large = _round(exact, network, classes, clients, 2 * classes, 1, batch_size=4, task=task)
        whole, some_stay = _kept(large.trial.clients[0], network)
        build = partial(make, personal_weights="+".join(whole)) if whole else make
        with precision(torch.float64):
            small = [
                _round(build, s.network(), s.classes, s.clients, s.rows, some, task=task)
                for s, some in zip(_SIZES, (3, 1), strict=True)
            ]
            joins = "training" if some_stay else _personalises(small[0], _fresh(small[0].method))
            stand_by(small[0].method, small[0].trial)  # so that an error in it is seen

    def message(at: str) -> MessageForm:
        one, other = (_parts(r.part(at), r.start) for r in small)
        outputs = {"classification": "C", "regression": "D", "multilabel": "L"}[task]
        parts = {path: _text(a, b, outputs) for (path, a), (_, b) in zip(one, other, strict=True)}
        if at in ("shared", "value"):
            parts = dict(_rest(path, text, some_stay) for path, text in parts.items())
        if at == "client":
            parts |= {f"weights/{part}": f"some of {part}" for part in some_stay}
        return MessageForm(parts, tree.nbytes(large.part(at)))

    method = small[0].method
    return Anatomy(
        message("shared"), message("own"), message("value"), message("weight"), not needs_each(method.reduce),
        message("client"), message("server"), joins, method.stand_by is not None, method.full_rounds, method.own_start,
        large.method.note,
    )  # fmt: skip


def _kept(client: Tree, network: Network) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of a network of which a client keeps all weights by the rule of the study, and some weights."""
    if not isinstance(client, WithWeights):
        return (), ()
    every = network.weight_shapes._asdict()
    counts = {part: (len(own), len(every[part])) for part, own in client.weights._asdict().items() if own}
    whole = tuple(part for part, (some, most) in counts.items() if some == most)
    return whole, tuple(part for part in counts if part not in whole)


def _rest(path: str, text: str, some_stay: Sequence[str]) -> tuple[str, str]:
    """The name and the text of a part that travels without the weights that stay."""
    is_cut = any(text.endswith(part) for part in some_stay) or (text.endswith("model") and some_stay)
    rest = f"{text} without the weights that stay" if is_cut else text
    return (rest if path == text else path), rest


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


class Round(NamedTuple):
    """A method before and after one round of some clients."""

    method: Method
    start: Model
    """Weights of the network, for their names and shapes."""
    trial: Trial

    def part(self, name: str) -> Tree:
        """What travels and stays, of the first client: shared, own, value, weight, client or server."""
        one, up = self.trial, self.trial.ups[0]
        parts = {"shared": one.down.shared, "own": one.message_to(0).own, "value": up.value, "weight": up.weight}
        return (parts | {"client": one.clients[0], "server": one.server})[name]


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
    build: Any, network: Network, classes: int, clients: int, rows: int, some: int = 3, batch_size: int = 50,
    task: TaskName = "classification",
) -> Round:  # fmt: skip
    how, training = OBJECTIVES[task], Training(epochs=1, batch_size=batch_size)
    method: Method = build(
        Task(network, classes, clients, training, loss=how.loss, output=how.output, mixture=how.mixture, kind=task)
    )
    data = samples(network.form, classes, rows, clients=min(some, clients), task=task)
    return Round(method, network.init(keys.key(0)), trial(method, data))


Shape = tuple[str, tuple[int, ...]]  # "body" and how many of it, or "" and a tensor's shape


def _parts(node: Tree, model: Model, path: str = "") -> Iterator[tuple[str, Shape]]:
    """Names and shapes; a tree with the structure of the network, or of a part of it, has that name."""
    for what, part in (("model", model), ("body", model.body), ("head", model.head)):
        if (several := _times(node, part)) is not None:
            yield path or what, (what, several)
            return
    inside = children(node)
    if inside is None:
        yield path or "tensor", ("", tuple(node.shape))
        return
    for name, child in inside.items():
        yield from _parts(child, model, f"{path}/{name}" if path else name)


def _times(node: Tree, part: Tree) -> tuple[int, ...] | None:
    """The leading axes that a node has over a part: () where it is one, None where it is something else."""
    node_children, part_children = children(node), children(part)
    if node_children is None or part_children is None:
        if not (isinstance(node, Tensor) and isinstance(part, Tensor)):
            return None
        extra = node.ndim - part.ndim
        return tuple(node.shape[:extra]) if extra >= 0 and node.shape[extra:] == part.shape else None
    if [*node_children] != [*part_children] or not node_children:
        return None
    counts = {_times(node_children[name], part_children[name]) for name in node_children}
    return counts.pop() if len(counts) == 1 else None


def _text(one: Shape, other: Shape, outputs: str) -> str:
    """A shape, from the shapes at both sizes: each dimension is a number, a symbol or "?"."""

    def symbols(z: _Sizes) -> dict[int, str]:
        symbol_of = {z.classes: outputs, z.width: "d", z.clients: "K", z.rows: "N", z.inputs: "inputs"}
        symbol_of |= {z.width + 1: "d+1", (z.width + 1) * (z.width + 2) // 2: "(d+1)(d+2)/2"}
        return symbol_of | {z.width * (z.width + 1) // 2: "d(d+1)/2"}

    def axis(a: int, b: int) -> str:
        first, second = (symbols(z).get(n, "?") for z, n in zip(_SIZES, (a, b), strict=True))
        return str(a) if a == b else first if first == second else "?"

    what, axes = one[0], [axis(a, b) for a, b in zip(one[1], other[1], strict=True)]
    return " x ".join([*axes, what]) if what else "(" + ", ".join(axes) + ")"


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
    r = small_round(name, options)
    with blame(f"method {name}, on synthetic samples"), precision(torch.float64):
        return _personalises(r, _fresh(r.method)) == "training", _personalises(r, r.trial.clients[0]) == "training"


def _fresh(method: Method) -> Tree:
    return method.init_client(keys.start(0), torch.tensor(10**6))


def _personalises(r: Round, client: Tree) -> str:
    """How a client gets its model after the round: anything that prepares a backward pass is noticed."""
    up = reduced(r.method.reduce, tree.stack(r.trial.ups))
    server, _ = r.method.aggregate(r.trial.server, up, torch.arange(3))
    down = r.method.send(server, torch.tensor([10**6]))
    down, count = Down(down.shared, tree.rows(down.own, 0)), [0]

    def save(a: Tensor) -> Tensor:
        count[0] += 1
        return a

    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda a: a):
            state = r.method.personalise(down, client, r.trial.data[0], keys.key(0, "adapt"))
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):  # torch.func's gradients do not allow them
            raise
        return "training"
    if count[0]:
        return "training"
    before, after = tree.leaves(client), tree.leaves(state)
    is_equal = len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return "what it receives" if is_equal else "forward passes"
