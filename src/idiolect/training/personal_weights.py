"""Weights that stay at each client: a rule of the study over the names of weights, which a method does not know of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.errors import InputError, listed, near
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
)
from idiolect.core.network import Model, Network, Weights, WeightShapes
from idiolect.core.reduce import Increment, Rule, children
from idiolect.core.tree import Tree
from idiolect.training.client_state import Personal
from idiolect.training.sgd import noting_ends
from idiolect.training.sharing import shared

_PARTS = ("body", "head")
_WORDS = (*_PARTS, "normalisation")
"""What a pattern may say in place of names."""
_SHOWN = 6  # names in a message

Path = tuple[str, ...]


class WithWeights(NamedTuple):
    """A client's state, and the weights that it keeps for itself."""

    method: Tree
    """The state that the method itself has."""
    weights: Model
    """Of body and head those that stay."""
    trained: Tensor
    """0 until the client's first round, then 1."""

    @property
    def switch(self) -> str:
        """The flag by which engines group clients."""
        return "trained"


class Place(NamedTuple):
    """Where the weights of body or head are: at one place in what is sent, in uploads and in their reduction."""

    part: str
    path: Path
    names: tuple[str, ...]
    """Of all weights of the part, in order."""
    shapes: tuple[tuple[int, ...], ...]
    own: frozenset[str]
    """The names of those that stay."""


def with_personal_weights(method: Method, name: str, pattern: str | None, task: Task) -> Method:
    """The method with some weights of its shared model kept by each client.

    The names that match are taken out of what the server sends and of what a client sends. A client fills in its own,
    trains as the method says, and keeps what they became:

        w_i <- (w without the names, own_i);   train;   own_i <- w_i at the names;   up: the increment of the rest

    So what adds, bounds, encrypts or steps uploads sees only what travels. The names start as the server's do. A client
    that has not trained yet does the local work of one round first, when its personal model is wanted, and sends
    nothing. A method whose server has no state, as training alone, stays as it is.

    Args:
        method: whose upload declares the increment of one model, or of its body or head, as ``Increment``.
        name: of the method, for messages.
        pattern: names as ``body.0.weight``, with ``*``, ``?`` and ``[...]`` as in names of files; several joined by +.
            ``head``, ``body`` and ``normalisation`` stand for all weights of the head, of the body, and of
            normalisation layers. None changes nothing.
        task: the problem.

    Raises:
        InputError: the pattern matches no weight, none that the method shares or all of them, or the method shares
            them in another way.

    Source: FedPer (Arivazhagan et al., 2019) for the head, FedBN (Li et al., ICLR 2021) for normalisation, FedSA-LoRA
    (Guo et al., ICLR 2025) for one factor of adapters. With ``head``, federated averaging is FedPer to the bit.
    """
    if pattern is None:
        return method
    terms = names_of(pattern, task.network)
    server = method.init_server(keys.start(0))
    if not tree.leaves(server):
        return method
    down = method.send(server, torch.tensor([0]))
    places = _places(method, name, pattern, terms, Down(down.shared, tree.rows(down.own, 0)), task.network)
    rounds = _with_weights(method.init_server, method.init_client, method.send, method.local, method.reduce,
                           method.aggregate, places)  # fmt: skip
    local = rounds.local

    def stand_by(down: Down, client: WithWeights, data: Data, key: Tensor) -> WithWeights:
        assert method.stand_by is not None
        return client._replace(method=method.stand_by(_filled(places, down, client), _inner(client), data, key))

    def personalise(down: Down, client: WithWeights, data: Data, key: Tensor) -> WithWeights:
        client = tree.when(client.trained, lambda: client, lambda: local(down, client, data, key)[0])
        tuning = keys.fold(key, "tuning")
        return client._replace(method=method.personalise(_filled(places, down, client), _inner(client), data, tuning))

    def predict(down: Down, client: WithWeights, x_B: Tensor) -> Tensor:
        return method.predict(_filled(places, down, client), client.method, x_B)

    return method._replace(
        **rounds._asdict(), personalise=personalise, predict=predict, stand_by=stand_by if method.stand_by else None
    )


@shared
def _with_weights(
    start: InitServer[Tree], init_client: InitClient[Tree], send: Send[Tree], train: Local[Tree], parts: Tree,
    add: Aggregate[Tree], places: tuple[Place, ...],
) -> Rounds[Tree, WithWeights]:  # fmt: skip
    def init_own(key: Tensor, id: Tensor) -> WithWeights:
        down = send(start(key), id[None])
        own = {place.part: _chosen(place, _at(down.shared, place.path)) for place in places}
        return WithWeights(init_client(key, id), Model({}, {})._replace(**own), torch.zeros(()))

    def send_rest(server: Tree, ids: Tensor) -> Down:
        down = send(server, ids)
        return down._replace(shared=_without(places, down.shared))

    def local(down: Down, client: WithWeights, data: Data, key: Tensor) -> tuple[WithWeights, Up, Info]:
        with noting_ends() as ends:
            state, up, info = train(_filled(places, down, client), _inner(client), data, key)
        own = {}
        for place in places:
            before, change = getattr(client.weights, place.part), _chosen(place, _sent(up, place))
            own[place.part] = {n: _moved(before[n], change[n], ends) for n in before}
        up = up._replace(value=_without(places, up.value))
        return WithWeights(state, client.weights._replace(**own), torch.ones(())), up, info

    def aggregate(server: Tree, up: Reduced, ids: Tensor) -> tuple[Tree, Info]:
        return add(server, up._replace(value=_with_zeros(places, up.value)), ids)

    rules = parts
    for place in places:
        rules = _rules_without(rules, place.path, place)
    return Rounds(start, init_own, send_rest, local, rules, aggregate)


def _inner(client: WithWeights) -> Tree:
    """The method's own state, whose flag is the same as the outer one, by which engines group clients."""
    state = client.method
    return state._replace(trained=client.trained) if isinstance(state, Personal) else state


def _moved(before: Tensor, change: Tensor, ends: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A weight after its increment: what training ended with, where that gives this increment.

    An increment is rounded, so that adding it to the start may miss the end by a bit.
    """
    after = before + change
    for start, end in reversed(ends):
        if start is before:
            after = torch.where(end - before == change, end, after)
    return after


def _sent(up: Up, place: Place) -> Weights:
    try:
        value: Weights = _at(up.value, place.path)
        if [*value] == [*place.names]:
            return value
    except KeyError:
        pass
    raise InputError(
        f"personal: the upload has no increment of the {place.part} at {'/'.join(place.path) or 'its root'}, where the "
        f"server sends the {place.part}: leave out personal, or send both in one form"
    )


# --- trees with and without the names


def _at(node: Tree, path: Path) -> Any:
    for step in path:
        node = (children(node) or {})[step]
    return node


def _changed(node: Tree, path: Path, change: Callable[[Weights], Weights]) -> Tree:
    """The tree with another part at a path."""
    if not path:
        return change(node)
    inside = children(node) or {}
    inside[path[0]] = _changed(inside[path[0]], path[1:], change)
    if isinstance(node, dict):
        return inside
    return tuple(inside.values()) if type(node) is tuple else type(node)(*inside.values())


def _chosen(place: Place, weights: Weights) -> Weights:
    return {n: weights[n] for n in place.names if n in place.own}


def _without(places: tuple[Place, ...], node: Tree) -> Tree:
    for place in places:
        node = _changed(node, place.path, partial(_rest, place))
    return node


def _rest(place: Place, weights: Weights) -> Weights:
    return {n: w for n, w in weights.items() if n not in place.own}


def _filled(places: tuple[Place, ...], down: Down, client: WithWeights) -> Down:
    """The message as the method would have got it, with the client's own weights."""
    node = down.shared
    for place in places:
        node = _changed(node, place.path, partial(_whole, place, getattr(client.weights, place.part)))
    return down._replace(shared=node)


def _with_zeros(places: tuple[Place, ...], node: Tree) -> Tree:
    """What is reduced, with increments of 0 for the weights that stay."""
    for place in places:
        zeros = {n: torch.zeros(shape) for n, shape in zip(place.names, place.shapes, strict=True) if n in place.own}
        node = _changed(node, place.path, partial(_whole, place, zeros))
    return node


def _whole(place: Place, own: Weights, rest: Weights) -> Weights:
    return {n: own[n] if n in own else rest[n] for n in place.names}


def _rules_without(declared: Tree, path: Path, place: Place) -> Tree:
    """The declaration for uploads without the weights that stay; a rule for a whole part stays as it is."""
    if isinstance(declared, Rule):
        return declared
    if not path:
        return _rest(place, declared)
    return _changed(declared, path[:1], lambda inside: _rules_without(inside, path[1:], place))


# --- what a pattern means


def names_of(pattern: str, network: Network) -> dict[str, frozenset[str]]:
    """The full names of a network's weights, as ``body.0.weight``, that each of a pattern's joined terms means.

    Raises:
        InputError: one means none; the message has some names.
    """
    return {term: _names(term, pattern, network) for term in map(str.strip, pattern.split("+"))}


def _names(term: str, pattern: str, network: Network) -> frozenset[str]:
    every = [f"{part}.{n}" for part in _PARTS for n in getattr(network.weight_shapes, part)]
    if term == "normalisation":
        kept = frozenset(f"{part}.{n}" for part in _PARTS for n in getattr(network.normalisation, part))
    else:
        kept = frozenset(n for n in every if fnmatchcase(n, f"{term}.*" if term in _PARTS else term))
    if kept:
        return kept
    what = f"personal={pattern}" + (f": {term or 'an empty name'}" if term != pattern else "")
    if term in _WORDS:
        kind = "normalisation layer with weights" if term == "normalisation" else f"weight in its {term}"
        raise InputError(f"{what} is not possible, because the network has no {kind}: name weights that it has")
    better = next((p + term for p in ("body.", "head.", "*.") if any(fnmatchcase(n, p + term) for n in every)), None)
    better = better or near(term, [*every, *_WORDS])
    hint = f"did you mean {better!r}? It has" if better else "it has"
    raise InputError(f"{what} matches no weight of the network; {hint} {listed(every, _SHOWN)}")


def _places(
    method: Method, name: str, pattern: str, terms: dict[str, frozenset[str]], down: Down, network: Network
) -> tuple[Place, ...]:
    """Where the method shares body and head, for those of which something stays.

    Raises:
        InputError: as ``with_personal_weights``.
    """
    wanted, what = frozenset[str]().union(*terms.values()), f"method {name} cannot take personal={pattern}"
    fix = "leave out this method, or give it the setting personal=null"
    moving = {path for path, _ in _leaves(down.shared) if isinstance(_rule(method.reduce, path), Increment)}
    places, left = list[Place](), moving
    for part in _PARTS:
        shapes = getattr(network.weight_shapes, part)
        own = frozenset(n for n in shapes if f"{part}.{n}" in wanted)
        if not own:
            continue
        if any(kind == part for kind, _ in _parts(down.own, network.weight_shapes)):
            raise InputError(f"{what}, because its server makes a {part} for each client: {fix}")
        paths = [path for kind, path in _parts(down.shared, network.weight_shapes) if kind == part]
        if not paths:
            continue
        if len(paths) > 1:
            where = " and ".join("/".join(path) for path in paths)
            raise InputError(f"{what}, because it shares several sets of the {part}'s weights ({where}): {fix}")
        [path] = paths
        if not moving.issuperset((*path, n) for n in shapes):
            continue
        places.append(Place(part, path, tuple(shapes), tuple(map(tuple, shapes.values())), own))
        left = left - {(*path, n) for n in own}
    kept = {f"{place.part}.{n}" for place in places for n in place.own}
    if absent := [term for term, names in terms.items() if not names & kept]:
        raise InputError(f"{what}, because {absent[0]} names no weights of one model that its server averages: {fix}")
    if not left:
        raise InputError(f"{what}, because nothing would be left to learn together: name fewer weights, or {fix}")
    return tuple(places)


def _leaves(node: Tree, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    inside = children(node)
    if inside is None:
        yield path, node
        return
    for step, child in inside.items():
        yield from _leaves(child, (*path, step))


def _parts(node: Tree, like: WeightShapes, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """The dictionaries in a tree that have the names and shapes of body or head; if of both, by their own name."""
    inside = children(node)
    if inside is None:
        return
    form = {n: getattr(leaf, "shape", None) for n, leaf in inside.items()}
    if fits := [part for part in _PARTS if form and form == getattr(like, part)]:
        named = [part for part in fits if path[-1:] == (part,)] or fits
        if len(named) == 1:
            yield named[0], path
        return
    for step, child in inside.items():
        yield from _parts(child, like, (*path, step))


def _rule(declared: Tree, path: Path) -> Rule | None:
    """What is declared of a part of the upload."""
    for step in path:
        if isinstance(declared, Rule):
            break
        declared = (children(declared) or {}).get(step)
    return declared if isinstance(declared, Rule) else None
