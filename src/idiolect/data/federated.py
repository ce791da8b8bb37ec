"""From a data set, a partition and shifts to the one shape that everything after this works on."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as cached
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError, RunError, nearest
from idiolect.core.import_path import by_path
from idiolect.core.option_spec import Spec, check
from idiolect.data import shared_memory
from idiolect.data.datasets import cache
from idiolect.data.datasets.catalogue import SETS
from idiolect.data.datasets.dataset import Source, shape
from idiolect.data.partitions import PARTITIONS, flower
from idiolect.data.partitions.allocation import Rows, Split
from idiolect.data.partitions.flower import Partitioner
from idiolect.data.partitions.sizes import draw_sizes, scarce
from idiolect.data.shifts import KINDS, SHIFTS, Shifted, Who, corruptions, transforms
from idiolect.data.shifts.corruptions import Images

# R rows of everybody, N rows of one client, K clients

log = logging.getLogger(__name__)

Normalise = Literal["reference", "training", "symmetric"]
_CLIENTS = 20  # where nothing says how many
_WORTH_KEEPING = 2.0  # seconds that shifts took
_KEPT = 4e9  # bytes of all settings' shifted rows


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Everybody's rows, once, and who owns which.

    Attributes:
        name: of the data set.
        x_R: images (R, C, H, W), uint8, shifted; or float32 (R, ...), NaN where a value is missing. Client by client,
            training rows before test rows; owned rows only.
        y_R: labels in 0..classes-1, int64.
        train: per client the numbers of its training rows, int64.
        test: per client the numbers of its test rows, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel (on a scale of 0 to 1, of the data set without shifts) or feature.
        std: per channel or feature, like ``mean``.
        shifts: per client the shifts of its rows with all options, comma-separated, in order; "" for none.
        names: what each client is called; () for their numbers.
        conditions: of the last clients, which do not train but join afterwards, what else was done to their rows (""
            for nothing); a client that joins under several conditions stands here once for each.
        file: where ``x_R`` stands, if other processes can map it.
        validation: per client the numbers of the rows that are held back from training, to validate on; () for none.
        scaled: of a table, per feature the column that is brought to mean 0 and standard deviation 1; "" for one that
            stays as it is.
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
    names: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    file: shared_memory.File | None = None
    validation: tuple[Tensor, ...] = ()
    scaled: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Shapes alone."""
        rows = f"x_R={shape(self.x_R)}, y_R={shape(self.y_R)}"
        return f"FederatedData({self.name!r}, {rows}, classes={self.classes}, clients={self.clients})"

    def measured(self, client: int) -> Tensor:
        """The numbers of a client's test rows, and after them of its validation rows."""
        return torch.cat([self.test[client], self.validation[client]]) if self.validation else self.test[client]

    @property
    def clients(self) -> int:
        """The number of clients, those that join afterwards included, once for each condition."""
        return len(self.train)

    @property
    def trained(self) -> int:
        """The number of clients that take part in training: the first ones."""
        return self.clients - len(self.conditions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row: (C, H, W) of an image."""
        return tuple(self.x_R.shape[1:])


def build(
    source: Source,
    partition: Spec | Partitioner,
    shifts: Sequence[Spec] = (),
    clients: int | None = None,
    seed: int = 0,
    *,
    sizes: Sequence[int] = (),
    keep: float | int | None = None,
    new_clients: str | int | None = None,
    new_shifts: Sequence[Spec] = (),
    normalise: Normalise = "reference",
    validation: float = 0.0,
) -> FederatedData:
    """Divide a data set among clients and shift some of them; a function of the arguments alone.

    The owned rows stand in one new tensor, client by client, shifted. A shift's option
    ``clients`` says who is shifted: "all" (the default), "half" (the first half, rounded up), "0-4", "0-4+8", a number
    or a list of numbers. Shifts apply in the order given, to training and test rows alike, and what a client's shift
    draws depends on the seed, the client and the shift's place in the list alone.

    Args:
        source: the rows.
        partition: one of ``PARTITIONS`` with options, the import path of a function like them or of a flwr-datasets
            partitioner, or such a partitioner itself.
        shifts: of ``SHIFTS``, with options.
        clients: how many; None takes 20, or as many as the data have where the partition follows a column.
        seed: of all draws.
        sizes: training rows per client: one number for all, or several of which each client draws one; () leaves it to
            the partition.
        keep: of each client's training rows a share (a float up to 1) or a number, drawn at random; the test rows stay.
        new_clients: who does not train and joins afterwards: a number or "20%" (the last so many), or clients' names
            joined by "+".
        new_shifts: what their rows are measured under, each by itself, beside the rows as they are.
        validation: share of a client's training rows that it does not train on but validates on, drawn at random: at
            least one where it has two; none of those that join afterwards.
        normalise: with the mean and standard deviation that the literature uses for the set ("reference"; where there
            is none, as for "training"), with those of the training rows, unshifted, or images to [-1, 1] ("symmetric").

    Raises:
        InputError: unknown partition, shift or option, a client number out of range, or too few rows.
    """
    if clients is not None and clients < 1:
        raise InputError(f"clients={clients} is not possible: ask for at least 1")
    whole = _divide(source, partition, clients, seed, sizes)
    split = whole if keep is None else scarce(whole, keep, keys.generator(seed, "keep"))
    order, new = _new_last(whole, new_clients)
    whole, split = _ordered(whole, order), _ordered(split, order)
    stints = _stints(whole, split, new, shifts, new_shifts)
    ends = np.cumsum([len(s.at_N) for s in stints]).tolist()
    x_R, file = _room((ends[-1], *source.x_R.shape[1:]), source.x_R.dtype)
    y_R = torch.empty(ends[-1], dtype=torch.int64)
    says = _fill(x_R, y_R, ends, source, stints, seed)
    cuts = [end - len(split.test[s.client]) for s, end in zip(stints, ends, strict=True)]
    train = [torch.arange(start, cut) for start, cut in zip([0, *ends], cuts, strict=False)]
    test = [torch.arange(cut, end) for cut, end in zip(cuts, ends, strict=True)]
    trained = len(order) - new
    mean, std = _moments(source, np.concatenate(split.train[:trained]), normalise)
    train, valid = _validating(train, trained, validation, seed) if validation else (train, [])
    data = FederatedData(
        source.name, x_R, y_R, tuple(train), tuple(test), source.classes, source.class_names, mean, std, says,
        () if split.names is None else tuple(split.names[s.client] for s in stints),
        tuple(s.condition for s in stints[trained:]), file, tuple(valid), _scaled(source),
    )  # fmt: skip
    _warn(data)
    if source.name not in SETS:
        _warn_of_own(data, source, split)
    return data


def _validating(train: Sequence[Tensor], trained: int, share: float, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training rows in two: those that it goes on training on, and those that it validates on."""
    kept, valid = [], []
    for k, row_N in enumerate(train):
        count = min(len(row_N) - 1, max(1, round(share * len(row_N)))) if k < trained else 0
        order_N = torch.from_numpy(keys.generator(seed, k, "validation").permutation(len(row_N)))
        valid.append(row_N[order_N[:count].sort().values])
        kept.append(row_N[order_N[count:].sort().values])
    return kept, valid


def holdings(data: FederatedData) -> dict[str, Any]:
    """Who holds how many rows of each class, ready for JSON."""

    def counts(rows: Tensor) -> list[int]:
        return [int(n) for n in torch.bincount(data.y_R[rows], minlength=data.classes)]

    def client(k: int) -> dict[str, Any]:
        about: dict[str, Any] = {"id": k, "train": counts(data.train[k]), "test": counts(data.test[k])}
        if data.validation:
            about["validation"] = counts(data.validation[k])
        about["shift"] = data.shifts[k]
        if data.names:
            about["name"] = data.names[k]
        if k >= data.trained:
            about["joins"] = data.conditions[k - data.trained]
        return about

    return {
        "dataset": data.name,
        "classes": data.classes,
        "class_names": list(data.class_names),
        "clients": [client(k) for k in range(data.clients)],
    }


def manifest(data: FederatedData) -> dict[str, Any]:
    """The holdings, what rows are normalised with, and a SHA-256 over rows, labels and row numbers."""
    digest = hashlib.sha256()
    for tensor in (data.x_R, data.y_R, *data.train, *data.test):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.numpy().data)
    return holdings(data) | {"normalisation": _normalisation(data), "hash": digest.hexdigest()}


def _normalisation(data: FederatedData) -> dict[str, Any]:
    """Mean and standard deviation, per channel or number, or of a table by column."""
    both = zip(data.mean, data.std, strict=True)
    if data.scaled:
        by_column = {name: {"mean": m, "std": s} for name, (m, s) in zip(data.scaled, both, strict=True) if name}
        return {"columns": by_column}
    return {"mean": list(data.mean), "std": list(data.std)}


def _scaled(source: Source) -> tuple[str, ...]:
    """Names of columns that are scaled; of those that are not, the name may hold a value: ``sex=f``."""
    names = source.feature_names
    scaled = source.scaled or (True,) * len(names)
    return tuple(name if yes else "" for name, yes in zip(names, scaled, strict=True)) if names else ()


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, shared_memory.File | None]:
    """Room for rows, in a file that worker processes can map; where there is none for files, in this process."""
    try:
        return shared_memory.shared(shape, dtype)
    except RunError as error:
        log.info("rows are kept in this process alone: %s", error)
        return torch.empty(shape, dtype=dtype), None


# --- who owns which rows


def partition_of(spec: Spec) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function, or the class of partitioners, that a spec names, and its options, checked.

    Raises:
        InputError: unknown name, import path or option.
    """
    what = f"partition {spec.name}"
    if spec.name in PARTITIONS:
        return PARTITIONS[spec.name], check(PARTITIONS[spec.name], spec.options, what)
    if "." not in spec.name:
        raise InputError(f"unknown partition {spec.name!r}; {nearest(spec.name, PARTITIONS)}")
    found = by_path(spec.name, "partition")
    if flower.is_kind(found):
        flower.check(found, spec.options, what)
        return found, dict(spec.options)
    if not inspect.isfunction(found) or "source" not in inspect.signature(found).parameters:
        raise InputError(
            f"{what}: this is no partition; name a function (source, clients, rng, *, options) -> Split, or a class of "
            "flwr_datasets.partitioner"
        )
    return found, check(found, spec.options, what)


def follows_a_column(spec: Spec) -> bool:
    """Whether the data say how many clients this partition makes, where nobody else does.

    Raises:
        InputError: as for ``partition_of``.
    """
    function, options = partition_of(spec)
    known = inspect.signature(function).parameters
    if flower.is_kind(function):
        return "num_partitions" not in known or "num_partitions" in options
    annotated = inspect.signature(function, eval_str=True).parameters
    return "clients" in known and type(None) in get_args(annotated["clients"].annotation)


def _divide(
    source: Source, partition: Spec | Partitioner, clients: int | None, seed: int, sizes: Sequence[int]
) -> Split:
    rng = keys.generator(seed, "partition")
    draw = keys.generator(seed, "sizes")
    sized = False
    if not isinstance(partition, Spec):
        name = type(partition).__name__
        split = flower.from_flower(partition, source, clients, rng)
    else:
        name = partition.name
        function, options = partition_of(partition)
        if flower.is_kind(function):
            partitioner, more = flower.made(function, options, clients or _CLIENTS)
            split = flower.from_flower(partitioner, source, clients, rng, **more)
        else:
            count = clients or (None if follows_a_column(partition) else _CLIENTS)
            sized = bool(sizes and count and "sizes_K" in inspect.signature(function).parameters)
            more = {"sizes_K": draw_sizes(sizes, count, draw)} if sized and count else {}
            call = partial(function, source, count, rng, **more, **options)
            split = call() if name in PARTITIONS else _guarded(call, name)
    _check_split(split, clients, len(source.y_R), name)
    return _capped(split, draw_sizes(sizes, len(split.train), draw), name) if sizes and not sized else split


def _guarded(divide: Callable[[], Any], name: str) -> Split:
    """What a function of the user's gives, as a split."""
    try:
        found = divide()
        train, test = ([np.asarray(rows) for rows in part] for part in found[:2])
        if not all(rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer) for rows in [*train, *test]):
            raise TypeError("row numbers are whole numbers, in one array for each client")
        return Split([r.astype(np.int64) for r in train], [r.astype(np.int64) for r in test], *found[2:])
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"partition {name} fails ({type(error).__name__}: {error}): let it return Split(train, test), each a list "
            "with an array of row numbers for every client"
        ) from error


def _capped(split: Split, sizes_K: Rows, name: str) -> Split:
    """Of each client the first so many training rows, which stand in random order."""
    have_K = [len(rows) for rows in split.train]
    k = int(np.argmin(np.array(have_K) - np.array(sizes_K)))
    if have_K[k] < sizes_K[k]:
        who = split.names[k] if split.names else k
        raise InputError(
            f"sizes: client {who} of partition {name} has {have_K[k]} training rows, not {sizes_K[k]}; the smallest "
            f"client has {min(have_K)}: ask for at most that many, or leave out sizes"
        )
    return split._replace(train=[rows[:size] for rows, size in zip(split.train, sizes_K, strict=True)])


def _check_split(split: Split, clients: int | None, rows: int, name: str) -> None:
    """What everything after relies on, whoever wrote the partition."""
    count = len(split.train)
    if not 0 < count == len(split.test) == (clients or count):
        asked = f" of {clients}" if clients else ""
        fits = f", or ask for clients={count}" if count else ""
        raise InputError(f"partition {name} made {count} clients{asked}: return one entry per client{fits}")
    if split.names is not None and len(split.names) != count:
        raise InputError(f"partition {name} gives {len(split.names)} names to {count} clients: give each client one")
    for client, (train, test) in enumerate(zip(*split[:2], strict=True)):
        for kind, part in (("training", train), ("test", test)):
            if len(part) == 0:
                raise InputError(f"partition {name}: client {client} has no {kind} rows; ask for fewer clients")
    every = np.concatenate([*split.train, *split.test])
    if every.min() < 0 or every.max() >= rows or (not split.shared and len(np.unique(every)) < len(every)):
        raise InputError(f"partition {name} gives a row twice or one that does not exist: draw without replacement")


def _new_last(split: Split, new_clients: str | int | None) -> tuple[list[int], int]:
    """The clients with those at the end that do not train, and the number of these."""
    count = len(split.train)
    if new_clients is None:
        return list(range(count)), 0
    text, names = str(new_clients).strip(), list(split.names or ())
    if text.isdecimal() or (text.removesuffix("%").replace(".", "", 1).isdecimal() and text.endswith("%")):
        new = round(count * float(text[:-1]) / 100) if text.endswith("%") else int(text)
        chosen = list(range(count - new, count))
        if text in names:
            log.warning("new_clients=%s is the last %s clients; the one named %s is written %s+", *[text] * 4)
    else:
        asked = [name.strip() for name in text.removesuffix("+").split("+")]
        if unknown := [name for name in asked if name not in names]:
            hint = nearest(unknown[0], names) if names else "these clients have no names: give a number or a share"
            raise InputError(f"new_clients={text}: there is no client {unknown[0]!r}; {hint}")
        chosen = sorted({names.index(name) for name in asked})
    if not 0 < len(chosen) < count:
        raise InputError(
            f"new_clients={text} leaves no client to train or none to join: of {count}, 1 to {count - 1} fit"
        )
    return [k for k in range(count) if k not in set(chosen)] + chosen, len(chosen)


def _ordered(split: Split, order: Sequence[int]) -> Split:
    names = None if split.names is None else tuple(split.names[k] for k in order)
    return Split([split.train[k] for k in order], [split.test[k] for k in order], names, split.shared)


# --- shifts


class _Step(NamedTuple):
    """One shift of some clients."""

    function: Callable[..., Shifted]
    options: dict[str, Any]
    members: frozenset[int]
    text: str


class _Stint(NamedTuple):
    """A client's rows under one condition, with the shifts that apply, each beside the path of its draws.

    Shifts see all rows of the client, so that a row looks the same however many are kept.
    """

    client: int
    condition: str
    steps: tuple[tuple[tuple[int | str, ...], _Step], ...]
    row_N: Rows
    """All of them, in the source."""
    at_N: Rows
    """Places in ``row_N`` of those that are kept, training rows first."""


def shift_of(spec: Spec) -> tuple[Callable[..., Shifted], dict[str, Any]]:
    """The function that a shift's name stands for, and its options without ``clients``, checked.

    Raises:
        InputError: unknown name or option.
    """
    if spec.name not in SHIFTS:
        raise InputError(f"unknown shift {spec.name!r}; {nearest(spec.name, SHIFTS)}")
    own = {k: v for k, v in spec.options.items() if k != "clients"}
    return SHIFTS[spec.name], check(SHIFTS[spec.name], own, f"shift {spec.name}", beside=["clients"])


def conditions_of(specs: Iterable[Spec]) -> list[Spec]:
    """The shifts that new clients are measured under, ``corrupt:kind=each`` written out.

    Raises:
        InputError: unknown name or option, or clients named, since each condition is everybody's.
    """
    found = []
    for spec in specs:
        each = spec.name == "corrupt" and spec.options.get("kind") == "each"
        kinds = [{"kind": kind} for kind in KINDS] if each else [{}]
        found += [Spec(name=spec.name, options=spec.options | kind) for kind in kinds]
    for spec in found:
        shift_of(spec)
        if "clients" in spec.options:
            raise InputError(f"new_shifts {spec}: every new client is measured so; leave out clients")
    return found


def _step(spec: Spec, clients: int) -> _Step:
    function, options = shift_of(spec)
    who = members(spec.options.get("clients", "all"), clients, f"shift {spec.name}")
    return _Step(function, options, who, str(spec))


def _stints(whole: Split, split: Split, new: int, shifts: Sequence[Spec], new_shifts: Sequence[Spec]) -> list[_Stint]:
    """Every client, then the new ones once more for each further condition."""
    count = len(split.train)
    steps = [_step(spec, count) for spec in shifts]
    if new_shifts and not new:
        raise InputError("new_shifts is about new clients, and there are none: give new_clients too")

    def stint(k: int) -> _Stint:
        mine = tuple(((i,), s) for i, s in enumerate(steps) if k in s.members)
        train_N, row_N = whole.train[k], np.concatenate([whole.train[k], whole.test[k]])
        at_N = np.arange(len(row_N))
        if split.train[k] is not train_N:  # some are not kept
            order_N = np.argsort(train_N, kind="stable")
            kept_N = order_N[np.searchsorted(train_N, split.train[k], sorter=order_N)]
            at_N = np.concatenate([kept_N, at_N[len(train_N) :]])
        return _Stint(k, "", mine, row_N, at_N)

    plain = [stint(k) for k in range(count)]
    joining = frozenset(range(count - new, count))
    conditions = [_step(spec, count)._replace(members=joining) for spec in conditions_of(new_shifts)]
    return plain + [
        s._replace(condition=more.text, steps=(*s.steps, (("new", j), more)))
        for j, more in enumerate(conditions)
        for s in plain[count - new :]
    ]


def _fill(
    x_R: Tensor, y_R: Tensor, ends: Sequence[int], source: Source, stints: Sequence[_Stint], seed: int
) -> tuple[str, ...]:
    """Put everybody's rows in place, shifted, and say of each client what was done; what took long is kept on disk."""
    steps = list({id(s): s for stint in stints for _, s in stint.steps}.values())
    images = source.x_R.dtype == torch.uint8 and source.x_R.ndim == 4
    for step in steps:
        takes = inspect.signature(step.function, eval_str=True).parameters["x_N"].annotation
        if not images and takes == Images:
            raise InputError(f"shift {step.text} changes images, and these rows are numbers: leave it out")
    kept = cache.place(f"shifts-{_digest(source, stints, seed)}") if steps else None
    if kept and (found := cache.load(kept)):
        x_R.copy_(found.tensors["x"])
        y_R.copy_(found.tensors["y"])
        with suppress(OSError):
            kept.touch()  # used now
        return tuple(json.loads(found.about["says"]))
    if not steps:  # at once: a call for each client would cost more than its rows
        row_R = torch.from_numpy(np.concatenate([s.row_N[s.at_N] for s in stints]))
        torch.index_select(source.x_R, 0, row_R, out=x_R)
        torch.index_select(source.y_R, 0, row_R, out=y_R)
        return ("",) * len(stints)
    begun = time.monotonic()
    places = {id(s): {k: i for i, k in enumerate(sorted(s.members))} for s in steps}
    says = []
    for stint, start, end in zip(stints, [0, *ends], ends, strict=False):
        if not stint.steps:
            row_N = torch.from_numpy(stint.row_N[stint.at_N])
            torch.index_select(source.x_R, 0, row_N, out=x_R[start:end])
            torch.index_select(source.y_R, 0, row_N, out=y_R[start:end])
            says.append("")
            continue
        row_N = torch.from_numpy(stint.row_N)
        x_N, y_N, done = source.x_R[row_N].numpy(), source.y_R[row_N].numpy(), []
        for path, step in stint.steps:
            who = Who(
                stint.client, places[id(step)][stint.client], source.classes,
                lambda *more, path=path: keys.generator(seed, "shift", "common", *path, *more),
            )  # fmt: skip
            rng = keys.generator(seed, "shift", stint.client, *path)
            x_N, y_N, said = step.function(x_N, y_N, who, rng, **step.options)
            done.append(said)
        x_R[start:end] = torch.from_numpy(np.ascontiguousarray(x_N[stint.at_N]))
        y_R[start:end] = torch.from_numpy(np.ascontiguousarray(y_N[stint.at_N]))
        says.append(",".join(filter(None, done)))
    if kept and time.monotonic() - begun > _WORTH_KEEPING:
        cache.save(kept, {"x": x_R, "y": y_R}, {"says": json.dumps(says)})
        cache.trim(kept, "shifts-", _KEPT)
    return tuple(says)


def _digest(source: Source, stints: Sequence[_Stint], seed: int) -> str:
    """What decides the shifted rows: the rows as they were, the plan, and the code."""
    digest = hashlib.blake2b(digest_size=16)
    for stint in stints:
        plan = [(path, step.text, sorted(step.members)) for path, step in stint.steps]
        digest.update(json.dumps([stint.client, len(stint.row_N), plan, seed]).encode())
        digest.update(stint.at_N.data)
        if not stint.condition:  # further conditions begin with the same rows
            row_N = torch.from_numpy(stint.row_N)
            digest.update(source.x_R[row_N].numpy().data)
            digest.update(source.y_R[row_N].numpy().data)
    digest.update(f"{source.classes} {source.x_R.dtype} {tuple(source.x_R.shape[1:])}".encode())
    digest.update(_code())
    return digest.hexdigest()


@cached
def _code() -> bytes:
    code = [Path(inspect.getfile(m)).read_bytes() for m in (transforms, corruptions, keys)]
    return b"".join([Path(__file__).read_bytes(), *code, *(version(p).encode() for p in ("numpy", "scipy", "pillow"))])


def members(value: object, clients: int, what: str) -> frozenset[int]:
    """The client numbers that ``all``, ``half``, ``0-4+8``, a number or a list of numbers stand for.

    Raises:
        InputError: it cannot be read, or there is no such client; ``what`` names the setting.
    """
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


# --- what the rows are like


def _moments(source: Source, row_N: Rows, normalise: Normalise) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel or feature that rows are normalised with; ``row_N`` train."""
    x_R = source.x_R
    if normalise == "symmetric":
        if x_R.dtype != torch.uint8:
            raise InputError("normalise=symmetric is for images, and these rows are numbers: take training")
        return (0.5,) * x_R.shape[1], (0.5,) * x_R.shape[1]
    if normalise == "reference" and source.mean is not None and source.std is not None:
        return source.mean, source.std
    axes = tuple(a for a in range(x_R.ndim) if a != 1)
    count, total, square = (np.zeros(x_R.shape[1]) for _ in range(3))
    for rows in torch.split(torch.from_numpy(row_N), 4096):
        x_N = x_R[rows].numpy().astype(np.float64) / (255 if x_R.dtype == torch.uint8 else 1)
        count += (~np.isnan(x_N)).sum(axes)
        total += np.nansum(x_N, axes)
        square += np.nansum(x_N**2, axes)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    plain = ~np.array(source.scaled or (True,) * len(mean))
    std[plain | (std < 1e-8 * (1 + abs(mean)))] = 1.0
    mean[plain] = 0.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _warn(data: FederatedData) -> None:
    """Say what is legal and probably not meant."""
    train_C = torch.bincount(data.y_R[torch.cat(data.train[: data.trained])], minlength=data.classes)
    test_C = torch.bincount(data.y_R[torch.cat(data.test)], minlength=data.classes)
    if unseen := [data.class_names[c] for c in range(data.classes) if test_C[c] and not train_C[c]]:
        log.warning(
            "no model can learn %s: in test rows, and in nobody's training rows; take more clients or rows",
            ", ".join(map(repr, unseen[:5])),
        )


def _warn_of_own(data: FederatedData, source: Source, split: Split) -> None:
    """The same of somebody's own data: a client of one class, where clients are real, and rows that several have."""
    count = len(split.train)
    names = split.names or tuple(map(str, range(count)))
    if split.names is not None:
        single = [k for k in range(count) if bool((data.y_R[data.train[k]] == data.y_R[data.train[k][0]]).all())]
        if single:
            log.warning(
                "%d of %d clients train on one class only (the first: %s): leave them out, or read accuracies with "
                "care",
                len(single), count, names[single[0]],
            )  # fmt: skip
    if split.shared:
        return
    from idiolect.data.custom import duplicates  # brings pandas, which no worker needs

    rows_K = [np.concatenate(parts) for parts in zip(split.train, split.test, strict=True)]
    owner_R = np.repeat(np.arange(count), [len(rows) for rows in rows_K])
    twice, pair = duplicates(source.x_R[torch.from_numpy(np.concatenate(rows_K))], owner_R)
    if pair:
        log.warning(
            "%d rows stand at more than one client (for one, at %s and %s): one may test on what another trains on",
            twice, *(names[k] for k in pair),
        )  # fmt: skip
