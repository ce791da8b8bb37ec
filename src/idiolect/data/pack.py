"""From a data set, a partition and shifts to the one shape that everything after this works on."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import keys
from idiolect.data import partitions, shifts
from idiolect.data.sources import Source
from idiolect.errors import InputError, nearest
from idiolect.spec import Spec, check, options_of

# R rows of everybody, N rows of one client


def _listing(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines, by name."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {name: f for name, f in functions if f.__module__ == module.__name__ and not name.startswith("_")}


PARTITIONS = _listing(partitions)
SHIFTS = _listing(shifts)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Everybody's rows, once, and who owns which.

    Attributes:
        name: of the data set.
        x_R: images (R, C, H, W), uint8, shifted; client by client, training rows before test rows; owned rows only.
        y_R: labels in 0..classes-1, int64.
        train: per client the numbers of its training rows, int64.
        test: per client the numbers of its test rows, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel, on a scale of 0 to 1, of the data set without shifts.
        std: per channel, on a scale of 0 to 1, of the data set without shifts.
        shifts: per client the shifts of its rows with all options, comma-separated, in order; "" for none.
    """

    name: str
    x_R: Tensor
    y_R: Tensor
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shifts: tuple[str, ...]

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image, (C, H, W)."""
        c, h, w = self.x_R.shape[1:]
        return c, h, w


def build(source: Source, partition: Spec, shifts: Sequence[Spec], clients: int, seed: int) -> FederatedData:
    """Divide a data set among clients and shift some of them; a function of the arguments alone.

    The owned rows are gathered into one new tensor, client by client, and shifted in place there. A shift's option
    ``clients`` says who is shifted: "all" (the default), "half" (the first half, rounded up), "0-4", "0-4+8", a number
    or a list of numbers. Shifts apply in the order given, to training and test rows alike, and what a client's shift
    draws depends on the seed, the client and the shift's place in the list alone.

    Raises:
        InputError: unknown partition, shift or option, a client number out of range, or too few rows.
    """
    if clients < 1:
        raise InputError(f"clients={clients} is not possible: ask for at least 1")
    divide = _find(PARTITIONS, "partition", partition.name)
    options = check(divide, partition.options, f"partition {partition.name}")
    split = divide(source, clients, keys.generator(seed, "partition"), **options)
    _check_split(split, clients, len(source.y_R), partition.name)
    steps = [_shift(spec, clients) for spec in shifts]

    sizes = [len(train) + len(test) for train, test in zip(*split, strict=True)]
    x_R = torch.empty((sum(sizes), *source.x_R.shape[1:]), dtype=torch.uint8)
    y_R = torch.empty(sum(sizes), dtype=torch.int64)
    train, test, names = [], [], []
    start = 0
    for client, rows in enumerate(zip(*split, strict=True)):
        cut, end = start + len(rows[0]), start + sizes[client]
        row_N = torch.from_numpy(np.concatenate(rows))
        torch.index_select(source.x_R, 0, row_N, out=x_R[start:end])
        torch.index_select(source.y_R, 0, row_N, out=y_R[start:end])
        mine = [(index, step) for index, step in enumerate(steps) if client in step.members]
        for index, step in mine:
            rng = keys.generator(seed, "shift", client, index)
            x_R[start:end] = torch.from_numpy(np.ascontiguousarray(step.apply(x_R[start:end].numpy(), rng)))
        train.append(torch.arange(start, cut))
        test.append(torch.arange(cut, end))
        names.append(",".join(step.text for _, step in mine))
        start = end
    about = (source.classes, source.class_names, source.mean, source.std)
    return FederatedData(source.name, x_R, y_R, tuple(train), tuple(test), *about, tuple(names))


def manifest(data: FederatedData) -> dict[str, Any]:
    """Who holds how many rows of each class, ready for JSON, and a SHA-256 over images, labels and row numbers."""

    def counts(rows: Tensor) -> list[int]:
        return [int(n) for n in torch.bincount(data.y_R[rows], minlength=data.classes)]

    digest = hashlib.sha256()
    for tensor in (data.x_R, data.y_R, *data.train, *data.test):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.numpy().data)
    return {
        "dataset": data.name,
        "classes": data.classes,
        "class_names": list(data.class_names),
        "clients": [
            {"id": k, "train": counts(data.train[k]), "test": counts(data.test[k]), "shift": data.shifts[k]}
            for k in range(data.clients)
        ],
        "hash": digest.hexdigest(),
    }


@dataclass(frozen=True)
class _Step:
    apply: Callable[..., Any]
    members: frozenset[int]
    text: str


def _shift(spec: Spec, clients: int) -> _Step:
    what = f"shift {spec.name}"
    function = _find(SHIFTS, "shift", spec.name)
    known = options_of(function)
    for key in spec.options:
        if key not in known and key != "clients":
            raise InputError(f"{what} has no option {key!r}; {nearest(key, [*known, 'clients'])}")
    given = check(function, {k: v for k, v in spec.options.items() if k != "clients"}, what)
    options = {key: given.get(key, option.default) for key, option in known.items()}
    whole = {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in options.items()}
    members = _members(spec.options.get("clients", "all"), clients, what)
    return _Step(lambda x_N, rng: function(x_N, rng, **options), members, str(Spec(name=spec.name, options=whole)))


def _members(value: object, clients: int, what: str) -> frozenset[int]:
    """The client numbers that ``all``, ``half``, ``0-4+8``, a number or a list of numbers stand for."""
    found: Iterable[int]
    if value == "all":
        found = range(clients)
    elif value == "half":
        found = range((clients + 1) // 2)
    elif isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        found = value
    else:
        found = _ranges(str(value), clients, what)
    numbers = frozenset(found)
    for number in sorted(numbers):
        if not 0 <= number < clients:
            raise InputError(f"{what}: there is no client {number}; the {clients} clients are 0 to {clients - 1}")
    return numbers


def _ranges(text: str, clients: int, what: str) -> list[int]:
    numbers: list[int] = []
    for piece in text.split("+"):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
            raise InputError(f"{what}: cannot read clients={text!r}; write all, half, 0-4, 0-4+8 or a list of numbers")
        low, high = map(int, ends)
        numbers += range(low, high + 1) if high < clients else [high]
    return numbers


def _find(known: dict[str, Callable[..., Any]], what: str, name: str) -> Callable[..., Any]:
    if name not in known:
        raise InputError(f"unknown {what} {name!r}; {nearest(name, known)}")
    return known[name]


def _check_split(split: partitions.Split, clients: int, rows: int, name: str) -> None:
    """What everything after relies on, whoever wrote the partition."""
    if len(split.train) != clients or len(split.test) != clients:
        raise InputError(f"partition {name} made {len(split.train)} clients of {clients}: return one entry per client")
    for client, (train, test) in enumerate(zip(*split, strict=True)):
        for kind, part in (("training", train), ("test", test)):
            if len(part) == 0:
                raise InputError(f"partition {name}: client {client} has no {kind} rows; ask for fewer clients")
    every = np.concatenate([*split.train, *split.test])
    if every.min() < 0 or every.max() >= rows or len(np.unique(every)) < len(every):
        raise InputError(f"partition {name} gives a row twice or one that does not exist: draw without replacement")
