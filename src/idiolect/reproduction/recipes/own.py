"""idiolect's own method beside the papers': docs/methods/fedpool-protocol.md and docs/methods/fedshrink-protocol.md.

There are no numbers of a paper to compare with. Tables 1 and 3 share their runs. They keep the numbers of FedPool,
which is no longer a method; table 2 was about its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from idiolect.reproduction.recipes import Cell, Recipe, cell

_DATASETS = ("fashion_mnist", "cifar10")
_PARTITIONS = {
    "dominant": "dominant:share=20",
    "dirichlet_0.1": "dirichlet:alpha=0.1",
    "dirichlet_0.5": "dirichlet:alpha=0.5",
    "classes_5": "classes:per_client=5",
}
_SHIFTS: dict[str, list[str]] = {
    "clean": [],
    "half_corrupted": ["corrupt:clients=half"],
    "rotated_groups": ["rotate:groups=4"],
}
_SAMPLES = (300, 75, 50)
_METHODS: dict[str, str | None] = {
    "fedshrink": "fedshrink",
    "fedpool": None,
    "fedlda": "fedlda",
    "fedpac": "fedpac",
    "pfedfda": "pfedfda",
    "pfedfda_0.1": "pfedfda:ridge=0.1",
    "fedcr": "fedcr",
    "fedavg_ft": "fedavg_ft",
    "ditto": "ditto",
    "fedrep": "fedrep",
    "local": "local",
    "fedavg": "fedavg_ft",  # before it tunes: one run measures both
}
_RIVALS = ("fedshrink", "fedlda", "fedpac", "pfedfda", "pfedfda_0.1", "fedcr", "local")
_FEDSHRINK_WITHOUT = {
    "fedshrink": "fedshrink",
    "no pull": "fedshrink:alignment=0",
    "trained with everyone's means": "fedshrink:train_with=everyone",
    "trained with the client's own means": "fedshrink:train_with=own",
    "one head, shrunk": "fedshrink:personal=shrunk",
    "ridge 0.1": "fedshrink:ridge=0.1",
    "ridge 1": "fedshrink:ridge=1",
}
TUNED = "it is a table of our own, whose settings were fixed before its first run"
_NEW = "noise:std=0.3"
_NO_METHOD = "FedPool is no longer a method: docs/methods/fedpool-protocol.md has its record"
_TOO_SMALL = "with data seed 2 a client has 221 training samples, fewer than 300"
_ASSUMPTIONS = (
    "Three seeds are --seeds 0,1,2.",
    "The protocols are docs/methods/fedpool-protocol.md and docs/methods/fedshrink-protocol.md.",
)


def _conditions() -> Iterator[dict[str, Any]]:
    """24 cells: the number of samples goes on by one with the partition, the shift and the data set."""
    for (d, dataset), (p, partition), (s, shift) in product(*map(enumerate, (_DATASETS, _PARTITIONS, _SHIFTS))):
        yield {"dataset": dataset, "partition": partition, "shift": shift, "samples": _SAMPLES[(d + p + s) % 3]}


def _settings(where: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dataset": where["dataset"],
        "partition": _PARTITIONS[where["partition"]],
        "shifts": _SHIFTS[where["shift"]],
        "keep": where["samples"],
        "clients": 15,
        "new_clients": 3,
        "new_shifts": [_NEW],
        "rounds": 60,
        "local_epochs": 2,
        "batch_size": 20,
        "lr": 0.01,
        "momentum": 0.5,
        "weight_decay": 5e-4,
        "evaluate_every": 60,
    }


def _cell(
    where: Mapping[str, Any], method: str, use: str | None = None, condition: str | None = None, **more: Any
) -> Cell:
    stage = "received" if method == "fedavg" else None
    use = use or _METHODS[method]
    if use is None:
        return Cell({**where, "method": method}, condition=condition, absent=_NO_METHOD)
    return cell({**where, "method": method}, _settings(where) | more, use, stage=stage, condition=condition)


def table1() -> Recipe:
    """FedShrink beside the four papers' methods and five others: data sets, partitions, shifts."""
    cells = tuple(_cell(where, method) for where in _conditions() for method in _METHODS)
    return Recipe("own/table1", "", "results", cells, assumptions=_ASSUMPTIONS)


def _parts(recipe: str, variants: Mapping[str, str]) -> Recipe:
    diagonal = {("dominant", "clean"), ("dirichlet_0.1", "half_corrupted"), ("classes_5", "rotated_groups")}
    some = [where for where in _conditions() if (where["partition"], where["shift"]) in diagonal]
    cells = tuple(_cell(where, name, use) for where in some for name, use in variants.items())
    return Recipe(recipe, "", "results", cells, assumptions=_ASSUMPTIONS)


def table3() -> Recipe:
    """Three clients that join after training, as they are and in noise, in the runs of own/table1."""
    cells = [
        _cell({**where, "new_clients": name}, method, condition=condition)
        for where in _conditions()
        for name, condition in (("clean", ""), ("noise", _NEW))
        for method in _METHODS
    ]
    return Recipe("own/table3", "", "results", tuple(cells), assumptions=_ASSUMPTIONS)


def table4() -> Recipe:
    """What each part of FedShrink is worth: each left out or changed alone, on six of the cells of own/table1."""
    return _parts("own/table4", _FEDSHRINK_WITHOUT)


def table5() -> Recipe:
    """FedShrink beside the four papers' methods on other clients: the settings of own/table1 with data seed 2."""
    cells = tuple(
        Cell({**where, "method": method}, absent=_TOO_SMALL)
        if (where["partition"], where["samples"]) == ("dirichlet_0.1", 300)
        else _cell(where, method, data_seed=2)
        for where in _conditions()
        for method in _RIVALS
    )
    return Recipe(
        "own/table5", "", "results", cells, assumptions=("The protocol is docs/methods/fedshrink-protocol.md.",)
    )
