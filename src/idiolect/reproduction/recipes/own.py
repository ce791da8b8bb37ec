"""idiolect's own method beside the papers', and the field's beside both.

There are no numbers of a paper to compare with. The protocols are docs/methods/fedpool-protocol.md and
docs/methods/fedshrink-protocol.md; of table 6 and its trials, docs/results/rivals.md. Tables 1 and 3 share their runs.
They keep the numbers of FedPool, which is no longer a method; table 2 was about its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from idiolect.core.import_path import no_imports
from idiolect.reproduction.recipes import Cell, Recipe, cell
from idiolect.studies import Study
from idiolect.studies.method_use import Use, label_of, use, with_values
from idiolect.tuning.sampler import spread
from idiolect.tuning.space import DEFAULT, spaces
from idiolect.tuning.trials import USUAL_SHARE

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
_ONE_ROUND = {
    "fedcgs": "fedcgs", "fedcgs_own": "fedcgs:prior=own", "fedcgs_shrunk": "fedcgs:prior=own,shrinkage=0.3"
}  # fmt: skip
_RIVALS = ("fedshrink", "fedlda", "fedpac", "pfedfda", "pfedfda_0.1", "fedcr", "local")
_FEDSHRINK_WITHOUT = {
    "fedshrink": "fedshrink",
    "no pull": "fedshrink:alignment=0",
    "trained with everyone's means": "fedshrink:train_with=everyone",
    "trained with the client's own means": "fedshrink:train_with=own",
    "one shrunk head": "fedshrink:personal=shrunk",
    "no linear heads": "fedshrink:personal=gaussians",
    "ridges of heads 1": "fedshrink:head_ridge=1",
    "ridges of heads 20": "fedshrink:head_ridge=20",
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
    """Three clients that join after training, as they are and in noise, in the runs of own/table1.

    A new client of FedAvg has no run here: FedAvg-FT's has measured it only after it was tuned.
    """
    cells = [
        _cell({**where, "new_clients": name}, method, condition=condition)
        for where in _conditions()
        for name, condition in (("clean", ""), ("noise", _NEW))
        for method in _METHODS
        if method != "fedavg"
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


_TRAINED = ("fedlda", "fedpac", "pfedfda", "fedcr", "ditto")


def long() -> Recipe:
    """Much data and long training: all of Fashion-MNIST, 150 rounds, the four papers' methods, Ditto and FedShrink."""
    cells = []
    for partition, method in product(("classes_5", "dirichlet_0.5"), ("fedshrink", *_TRAINED)):
        settings = {
            "dataset": "fashion_mnist", "partition": _PARTITIONS[partition], "clients": 15, "data_seed": _NEW_CLIENTS,
            "rounds": 150, "local_epochs": 1, "batch_size": 50, "lr": 0.02, "momentum": 0.5, "weight_decay": 5e-4,
            "evaluate_every": 150,
        }  # fmt: skip
        cells.append(cell({"dataset": "fashion_mnist", "partition": partition, "method": method}, settings, method))
    return Recipe("own/long", "", "results", tuple(cells), assumptions=("One seed, 0.",))


_FOLDER = "$IDIOLECT_DATA/natural"
_MINILM, _LITE0 = f"hf:{_FOLDER}/all-MiniLM-L6-v2,body=identity", "torch:lite0.lite0,body=identity"
_ON_FEATURES: dict[str, dict[str, Any]] = {
    "ag_news": {
        "data": f"{_FOLDER}/ag_news_test.csv", "header": "none", "target": "1", "text": "3", "clients": 20,
        "partition": "dirichlet:alpha=0.3,test_fraction=0.5", "model": _MINILM,
    },
    "shops": {
        "data": f"{_FOLDER}/reviews.parquet", "client_column": "shop", "target": "label", "text": "text",
        "model": _MINILM,
    },
    "cifar10": {
        "dataset": "cifar10", "partition": "dirichlet:alpha=0.1,test_fraction=0.1", "sizes": 100, "clients": 20,
        "model": _LITE0,
    },
    "fashion_mnist": {
        "dataset": "fashion_mnist", "partition": "dirichlet:alpha=0.3,test_fraction=0.1", "sizes": 100, "clients": 20,
        "model": _LITE0,
    },
}  # fmt: skip


def one_round() -> Recipe:
    """One round of FedShrink and of FedCGS on frozen features, beside fifty of others, which train heads on them."""
    heads = ("fedshrink", "local", "fedavg", "fedavg_ft", "fedrep", "ditto", "fedlda", "fedpac")
    each = [("fedshrink", 1), *((method, 1) for method in _ONE_ROUND), *((method, 50) for method in heads)]
    cells = [_on_features(name, method, rounds) for name in _ON_FEATURES for method, rounds in each]
    needs = "The network of images needs the folder examples on PYTHONPATH, and what examples/lite0.py names."
    return Recipe("own/one_round", "", "results", tuple(cells), assumptions=("Three seeds are --seeds 0,1,2.", needs))


def _on_features(name: str, method: str, rounds: int) -> Cell:
    where, source = {"data": name, "rounds": rounds, "method": method}, _ON_FEATURES[name]
    settings = source | {
        "data_seed": 2, "rounds": rounds, "local_epochs": 2, "batch_size": 20, "lr": 0.01, "momentum": 0.5,
        "weight_decay": 5e-4, "evaluate_every": rounds,
    }  # fmt: skip
    with no_imports():  # of a network that may not be there: its results can be shown all the same
        use = _ONE_ROUND.get(method) or _METHODS.get(method) or method
        return cell(where, settings, use, stage="received" if method == "fedavg" else None)


_EPSILONS = {"1": 5.783, "3": 2.378, "8": 1.211}
"""Noise multipliers, by epsilon at a delta of 1e-4 after 40 rounds of a quarter of the clients."""
_PRIVATE = ("fedavg_ft", "fedlda", "pfedfda", "fedshrink")
_RATES = (0.02, 0.05, 0.12, 0.3)
_PRIVATE_RATE = {"fedavg_ft": 0.05, "fedlda": 0.12, "pfedfda": 0.3, "fedshrink": 0.12}
"""The best of ``_RATES`` in own/private_rates."""


def _private(epsilon: str, method: str, lr: float, data_seed: int) -> Cell:
    where = {"epsilon": epsilon, "method": method}
    settings = {
        "dataset": "fashion_mnist", "partition": "dirichlet_fixed:alpha=0.3,rows=30", "clients": 2000,
        "data_seed": data_seed, "model": "tiny_cnn", "rounds": 40, "participation": 0.25, "local_epochs": 2,
        "batch_size": 8, "lr": lr, "momentum": 0.0, "evaluate_every": 40,
        "privacy": f"gaussian:norm=0.5,noise_multiplier={_EPSILONS[epsilon]},delta=0.0001",
    }  # fmt: skip
    return cell(where | ({"lr": lr} if data_seed == 1 else {}), settings, method)


def private_rates() -> Recipe:
    """Four learning rates for each method of own/private, at epsilon 3, on other clients."""
    cells = tuple(_private("3", method, lr, 1) for method in _PRIVATE for lr in _RATES)
    return Recipe("own/private_rates", "", "results", cells, assumptions=("Of development. One seed, 0.",))


def private() -> Recipe:
    """Client-level privacy with 2,000 small clients: what is left at epsilon 1, 3 and 8."""
    cells = [_private(epsilon, method, _PRIVATE_RATE[method], 3) for epsilon in _EPSILONS for method in _PRIVATE]
    return Recipe("own/private", "", "results", tuple(cells), assumptions=("Three seeds are --seeds 0,1,2.",))


_FIELD = (
    "local", "fedavg", "fedavg_ft", "fedrep", "ditto", "fedlda", "fedpac", "pfedfda", "fedcr", "fedshrink", "fedala",
    "feddbe", "fedas", "gpfl", "fedcp", "moon", "feddyn", "fedamp", "perfedavg",
)  # fmt: skip
_TRIALS = 6
_NEW_CLIENTS = 4
"""The first data seed after those of tables 1 and 5 with which every client has samples enough in all 24 cells."""
_DEVELOPMENT: tuple[dict[str, Any], ...] = (
    {"dataset": "cifar10", "partition": "dominant", "shift": "clean", "samples": 75},
    {"dataset": "fashion_mnist", "partition": "classes_5", "shift": "rotated_groups", "samples": 50},
)
_CHOICES: dict[str, int] = {
    "local": 6, "fedavg": 3, "fedavg_ft": 6, "fedrep": 3, "ditto": 6, "fedlda": 1, "fedpac": 1, "pfedfda": 1,
    "fedcr": 2, "fedala": 3, "feddbe": 3, "fedas": 3, "gpfl": 6, "fedcp": 3, "moon": 3, "feddyn": 6, "fedamp": 3,
    "perfedavg": 2, "fedshrink": 1,
}  # fmt: skip
"""Which trial of ``development`` is each method's choice: docs/rivals.py says it, and a test compares."""


@cache  # each of the 24 cells asks
def _trials(method: str) -> list[Use]:
    """Six settings of a method, spread over the ranges that it declares and that of the learning rate."""
    one = use(method)
    space = spaces(Study(methods=(one,)), {DEFAULT: ""})[one.label]
    uses = [with_values(one, values) for values in spread(0, space, _TRIALS)]
    return [u.model_copy(update={"label": label_of(u.name, u.options, u.settings)}) for u in uses]


def _with_use(c: Cell, one: Use) -> Cell:
    assert c.study is not None
    return replace(c, study=c.study.with_methods([one]))


def development() -> Recipe:
    """Six trials of each method of own/table6 on two settings, of which validation samples choose one."""
    assumption = (
        f"{USUAL_SHARE:.0%} of each client's training samples are held out; the numbers are validation accuracies. The "
        "protocol is docs/results/rivals.md. One seed, 0."
    )
    cells = [
        _trial({**where, "trial": number, "method": method}, one)
        for where in _DEVELOPMENT
        for method in _FIELD
        for number, one in enumerate(_trials(method), 1)
    ]
    return Recipe("own/development", "", "results", tuple(cells), assumptions=(assumption,))


def _trial(where: Mapping[str, Any], one: Use) -> Cell:
    """On clients that the compared settings do not have, of whom none joins."""
    settings = {name: value for name, value in _settings(where).items() if not name.startswith("new_")}
    settings |= {"data_seed": 1, "protocol": {"validation": USUAL_SHARE}}
    return _with_use(cell(where, settings, one.name, reads="validation_accuracy"), one)


def table6() -> Recipe:
    """What papers compare with most, the four papers' methods and FedShrink, tuned alike on own/table1's settings."""
    return _compared("own/table6")


def table7() -> Recipe:
    """Three clients that join after training, in the runs of own/table6."""
    return _compared("own/table7", condition="")


def _compared(name: str, condition: str | None = None) -> Recipe:
    cells = tuple(_chosen(where, method, condition) for where in _conditions() for method in _FIELD)
    return Recipe(name, "", "results", cells, assumptions=("The protocol is docs/results/rivals.md. One seed, 0.",))


def _chosen(where: Mapping[str, Any], method: str, condition: str | None) -> Cell:
    """A cell with the settings that the trials chose."""
    if method not in _CHOICES:
        return Cell({**where, "method": method}, absent="its settings are not chosen yet: see own/development")
    settings = _settings(where) | {"data_seed": _NEW_CLIENTS}
    c = cell({**where, "method": method}, settings, method, condition=condition)
    return _with_use(c, _trials(method)[_CHOICES[method] - 1])
