"""Hostile clients, so that a study can measure what a defence is worth.

An attack on uploads takes the value that an honest client would send, a tree of tensors, and returns what the attacker
sends in its place. It comes after the study's upload steps, which an attacker need not follow. The attacker's own state
and its personal model stay those of an honest client. ``label_flip`` changes training labels instead, and the upload
is what honest training makes of these. Every attack is repeatable: its draws depend on seed, round and client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.data.shifts import members

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _each(value: Tree, change: Callable[[Tensor, int], Tensor]) -> Tree:
    """The tree with each tensor of floats changed; the change also gets the tensor's place."""
    flat, build = tree.flatten(value)
    return build([change(a, k) if a.is_floating_point() else a for k, a in enumerate(flat)])


@dataclass(frozen=True, kw_only=True)
class SignFlip:
    """Sends -scale times the honest value: the model is pushed away from where it should go.

    Source: Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019, section 5.
    """

    scale: Factor = 1.0

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value that is sent."""
        return _each(value, lambda a, _: -self.scale * a)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Sends draws from N(0, std^2) in place of every number.

    Source: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, section 5.
    """

    std: Factor = 1.0

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value that is sent."""
        return _each(value, lambda a, k: self.std * keys.normal(keys.fold(key, k), tuple(a.shape), a.dtype))


@dataclass(frozen=True, kw_only=True)
class NotANumber:
    """Sends NaN in place of every number: one such upload makes every mean NaN."""

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value that is sent."""
        return _each(value, lambda a, _: torch.full_like(a, torch.nan))


@dataclass(frozen=True, kw_only=True)
class Inflate:
    """Sends ``factor`` times the honest value, so that the mean becomes the attacker's own model.

    Source: Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020, section 4.2 (model replacement).
    """

    factor: Factor = 100.0

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value that is sent."""
        return _each(value, lambda a, _: self.factor * a)


@dataclass(frozen=True, kw_only=True)
class LabelFlip:
    """Trains on labels C - 1 - y in place of y. Test labels stay.

    Source: Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security 2020.
    """


ATTACKS: dict[str, Callable[..., Any]] = {
    "sign_flip": SignFlip,
    "label_flip": LabelFlip,
    "noise": GaussianNoise,
    "nan": NotANumber,
    "inflate": Inflate,
}


class Attackers(NamedTuple):
    """Some clients and what they do to their uploads."""

    clients: frozenset[int]
    change: Callable[[Tree, Tensor], Tree]


def attack_of(spec: Spec) -> Any:
    """The attack that a spec such as ``sign_flip:clients=0-3`` names.

    Raises:
        InputError: unknown name or option, a value out of range, or it does not say who attacks.
    """
    if "clients" not in spec.options and spec.name in ATTACKS:
        raise InputError(f"attack {spec.name} needs clients: write {spec.name}:clients=0-3, or other numbers")
    rest = {k: v for k, v in spec.options.items() if k != "clients"}
    return option_spec.made(Spec(name=spec.name, options=rest), ATTACKS, "attack")


def complete_attack(spec: Spec) -> Spec:
    """The spec with all its options.

    Raises:
        InputError: as ``attack_of``.
    """
    return Spec(name=spec.name, options={"clients": spec.options.get("clients")} | asdict(attack_of(spec)))


def _members(spec: Spec, clients: int) -> frozenset[int]:
    return members(spec.options["clients"], clients, f"attack {spec.name}")


def attackers(specs: Sequence[Spec], clients: int) -> dict[int, str]:
    """The clients that attack, of so many that train, with their attacks in words.

    Raises:
        InputError: there is no such client, or nobody is left who does not attack.

    >>> attackers([Spec.parse("sign_flip:clients=0-1,scale=2"), Spec.parse("nan:clients=1")], clients=4)
    {0: 'sign_flip:scale=2', 1: 'sign_flip:scale=2,nan'}
    """
    attacks_of: dict[int, list[str]] = {}
    for spec in specs:
        what = str(Spec(name=spec.name, options={k: v for k, v in spec.options.items() if k != "clients"}))
        for k in sorted(_members(spec, clients)):
            attacks_of.setdefault(k, []).append(what)
    if len(attacks_of) == clients and specs:
        raise InputError(f"all {clients} clients attack: leave at least one honest")
    return {k: ",".join(attacks_of[k]) for k in sorted(attacks_of)}


def on_uploads(specs: Sequence[Spec], clients: int) -> tuple[Attackers, ...]:
    """The attacks on uploads, in order."""
    every = [(attack_of(spec), _members(spec, clients)) for spec in specs]
    return tuple(Attackers(who, change) for change, who in every if not isinstance(change, LabelFlip))


def flip_labels(data: FederatedData, specs: Sequence[Spec]) -> FederatedData:
    """The clients' data after the attacks on training labels; without such an attack, the data as they are."""
    who = [k for s in specs if isinstance(attack_of(s), LabelFlip) for k in sorted(_members(s, data.trained))]
    if not who:
        return data
    if data.targets is not None:
        raise InputError(f"attack label_flip flips classes, and this target is {data.targets.what}: leave it out")
    y_R = data.y_R.clone()
    for k in who:
        y_R[data.train[k]] = data.classes - 1 - y_R[data.train[k]]
    return replace(data, y_R=y_R)


def apply_attacks(attacks: Sequence[Attackers], value: Tree, client: int, key: Tensor) -> Tree:
    """What a client sends: its value, changed by each attack that it takes part in."""
    for k, attack in enumerate(attacks):
        if client in attack.clients:
            value = attack.change(value, keys.fold(key, k))
    return value
