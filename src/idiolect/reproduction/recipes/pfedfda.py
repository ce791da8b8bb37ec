"""pFedFDA: McLaughlin & Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024.

Section 5, appendices C and D. The protocol is read off the released code: the mean over test rows of the accuracy of
each client's personal model in the last round, in which all take part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from torch import nn

from idiolect import models
from idiolect.core.option_spec import options_of
from idiolect.reproduction.recipes import Cell, Recipe, _split, cell, published, settings_table, table, tuned
from idiolect.statistics.interpolation import stratified_folds
from idiolect.studies.config import Study

_USES = {
    "apfl": "apfl:alpha=0.25,weighting=samples",
    "pfedme": "pfedme:pull=5,weighting=samples",
    "ditto": "ditto:pull=1",
    "fedrep": "fedrep:head_epochs=5,tuning_epochs=0,weighting=samples",
    "pfedfda": "pfedfda:drop_last_adapt=true",
}
_OPTIONS = {  # by the paper's names
    ("apfl", "alpha"): "alpha",
    ("pfedme", "lambda"): "pull",
    ("ditto", "mu"): "pull",
    ("fedrep", "head_epochs"): "head_epochs",
    ("fedbabu", "head_epochs"): "tuning_epochs",
    ("fedpac", "lambda"): "alignment",
    ("fedpac", "head_epochs"): "head_epochs",
    ("fedpac", "head_lr"): "head_lr",
}
TUNED = tuned(
    "pfedfda", _OPTIONS, "appendix C.2",
    "The paper takes one value of each setting for all of its tables; here each cell has its own.",
)  # fmt: skip
_LOCAL = (
    "Local trains a client in the rounds that it is drawn for and in the last, as in the released code: by itself it "
    "would train in every round."
)
_BASELINES = (
    "The released code has Local, FedAvg, FedAvg-FT and pFedFDA. As it does, all methods weigh clients by their rows. "
    "FedRep's heads stay as the last round leaves them; pFedMe takes 5 steps for a batch."
)
_MEASUREMENT = (
    "The released code takes the mean over test rows, the paper's text the mean over clients: it is kept beside the "
    "number. As many clients are drawn for a round as their share says, where the code draws each by chance."
)
_SHIFTS = (
    "Ten pairs of corruption and severity, each at five clients, as the released code assigns them; the paper speaks "
    "of a pair for each of the 50 clients."
)
_BATCHES = (
    "An epoch leaves out the rows that do not fill a batch, as in the released code, where pFedFDA's last statistics "
    "do too; taken for all methods."
)
_CLIENTS = "Clients are those that the released code draws, with a seed of its own, whatever the data seed."
_DIRICHLET = "The Dirichlet parameter is not stated; 0.5 is taken."
_BREAKDOWN = "python benchmarks/breakdown.py, in the repository, measures the shares of a client's time"


def _settings(where: Mapping[str, Any]) -> dict[str, Any]:
    """Section 5.1, appendix C.2: everything is dealt out by class, or by writer, a fifth of it to test on."""
    dataset, percent = str(where["dataset"]), where.get("samples_percent", 100)
    writers = dataset == "femnist"
    settings: dict[str, Any] = {
        "dataset": dataset.removesuffix("s"),
        "clients": 1000 if writers else 100,
        "partition": "natural" if writers else f"dirichlet_official:alpha={where.get('dirichlet', 0.5)}",
        "normalise": "symmetric",
        "rounds": 200,
        "participation": 0.03 if writers else 0.3,
        "local_epochs": where.get("local_epochs", 5),
        "batch_size": 16 if writers else 50,
        "lr": 0.01,
        "momentum": 0.5,
        "weight_decay": 5e-4,
        "drop_last": True,
        "protocol": {"weighting": "sample", "full_last_round": True},
        "evaluate_every": 50,  # tuning a hundred clients takes as long as three rounds
    }
    if dataset.endswith("s"):
        settings["shifts"] = ["corrupt:clients=0-49,official_assignment=true"]
    if percent < 100:
        settings["keep"] = percent / 100
    if dataset == "tiny_imagenet":
        settings["model"] = "resnet18:shared_affine=true"  # the one that Table 8 counts
    return settings


def _ours(where: Mapping[str, Any]) -> str:
    return _USES.get(where["method"], str(where["method"]))


def _cell(where: Mapping[str, Any]) -> Cell:
    """A run of a figure."""
    return cell(where, _settings(where), _ours(where))


def table1() -> Recipe:
    """12 methods on CIFAR10-S and CIFAR100-S, with all and with less of the training samples."""
    recipe = table("pfedfda/table1", _settings, _USES)
    small = [
        cell(where, _settings(where), f"{_USES['pfedfda']},ridge=1e-4")
        for percent in (100, 25)
        for where in [{"dataset": "cifar10s", "samples_percent": percent, "method": "pfedfda_paper_ridge"}]
    ]
    return Recipe(
        recipe.name, "", "results", (*recipe.cells, *small),
        assumptions=(
            _MEASUREMENT, _BATCHES,
            _SHIFTS, _CLIENTS, "Test rows stay whole where training rows are fewer, as in the released code.",
            _LOCAL, _BASELINES,
            "pFedFDA adds 1 to the covariance's diagonal, as the released code does; pfedfda_paper_ridge adds 1e-4, "
            "for the small number of which the paper speaks.",
        ),
    )  # fmt: skip


def table2() -> Recipe:
    """12 methods on EMNIST by writer, CIFAR-10, CIFAR-100 and Tiny-ImageNet."""
    return table(
        "pfedfda/table2", _settings, _USES,
        assumptions=(
            _MEASUREMENT, _BATCHES, _CLIENTS, _LOCAL, _BASELINES,
            "The first 1,000 writers by name, a fifth of each one's rows to test on, as the paper has it; the released "
            "code takes them as the file system lists them, and a tenth.",
        ),
    )  # fmt: skip


def table3() -> Recipe:
    """Eight methods with 50 training samples per client."""
    return table(
        "pfedfda/table3",
        lambda where: _settings(where) | {"partition": "dirichlet_fixed:alpha=0.5,rows=63"},
        _USES,
        assumptions=(
            _MEASUREMENT,
            _BATCHES,
            _BASELINES,
            "How a client gets its 50 samples is not said: here every client draws 63 rows from a Dirichlet prior "
            "of its own, as a partition of the released code does, and tests on 13.",
        ),
    )


def table4() -> Recipe:
    """New clients on CIFAR-10: 50 train, 50 join afterwards, as they are and under ten corruptions."""

    def make(where: Mapping[str, Any], value: Any, std: float | None) -> Cell:
        method = _ours(where)
        settings = _settings(where) | {"new_clients": 50, "new_shifts": ["corrupt:kind=each,severity=3"]}
        if where["method"] == "fedpac":
            settings["protocol"] = {**settings["protocol"], "also": ["received"]}
            method = "fedpac:tuning_epochs=5"
        result = cell(where, settings, method, value, std)
        if where["clients"] == "new":
            return replace(result, condition=_condition(result, where["corruption"]))
        return replace(result, stage="received") if where["method"] == "fedpac" else result

    return Recipe(
        "pfedfda/table4", "", "results", tuple(make(*_split(row)) for row in published("pfedfda/table4")),
        assumptions=(
            _MEASUREMENT, _BATCHES, _CLIENTS,
            "The last 50 clients are new; 0.3 of the others take part in a round.",
            "New clients of FedBABU and FedPAC tune their heads for five epochs, where the paper takes the better of "
            "head and whole model; FedPAC's original clients are not tuned.",
        ),
    )  # fmt: skip


def _condition(result: Cell, corruption: str) -> str:
    """As a run says what was done to the rows of new clients."""
    if corruption == "clean":
        return ""
    assert result.study is not None
    kind = corruption.removesuffix("_compression")
    return next(str(s) for s in result.study.new_shifts if s.options["kind"] == kind)


def table5() -> Recipe:
    """Local statistics alone (NB), one weight for means and covariance (SB), and one for each (MB), on CIFAR-100."""
    ours = _USES["pfedfda"]
    strategies = {"NB": f"{ours},beta=local", "SB": ours, "MB": f"{ours},beta=separate"}

    def make(where: Mapping[str, Any], value: Any, std: float | None) -> Cell:
        settings = _BREAKDOWN if "quantity" in where else _settings(where)
        return cell(where, settings, strategies[where["beta_strategy"]], value, std)

    return Recipe(
        "pfedfda/table5", "", "results", tuple(make(*_split(row)) for row in published("pfedfda/table5")),
        assumptions=(
            _MEASUREMENT,
            _BATCHES,
            _SHIFTS,
            _CLIENTS,
            "NB searches no weight at the end either: it stays with the client's own statistics.",
        ),
    )  # fmt: skip


def table6() -> Recipe:
    """Run times of seven methods on CIFAR-10: minutes in all, seconds of local training in a round."""

    def make(where: Mapping[str, Any], value: Any, std: float | None) -> Cell:
        if where["quantity"] == "local_training":
            return cell(where, _BREAKDOWN, "", value)
        return cell(where, _settings(where), _ours(where), value, reads="minutes")

    return Recipe(
        "pfedfda/table6", "", "results", tuple(make(*_split(row)) for row in published("pfedfda/table6")),
        assumptions=(
            _BATCHES,
            _DIRICHLET,
            _CLIENTS,
            "Minutes of this machine, the measuring of all clients in every 50th round and in the last included; the "
            "paper's are of one A100. FedAvg has a run of its own, in which nobody tunes.",
        ),
    )  # fmt: skip


def table7() -> Recipe:
    """Six methods on DIGIT-5, four clients in each of five domains, with all and with less of the samples."""

    def settings(where: Mapping[str, Any]) -> dict[str, Any] | str:
        if where["quantity"] != "accuracy":
            return "a gain over Local is the difference of two accuracies of this table"
        return _settings(where) | {
            "clients": 20,
            "partition": "domains:inside=dirichlet(alpha=0.5),train_rows=7438",
            "participation": 1.0,
        }

    return table(
        "pfedfda/table7", settings, _USES,
        assumptions=(
            _MEASUREMENT, _BATCHES,
            "At most 7,438 training rows of a domain, as in the files that the released code reads; 32x32 colour "
            "images and the network for CIFAR. The paper names none of the three.",
        ),
    )  # fmt: skip


_NETWORKS = {
    "EMNIST-CNN": ("fmnist_cnn", (1, 28, 28)),
    "CIFAR-CNN": ("cifar_cnn", (3, 32, 32)),
    "ResNet18": ("resnet18:shared_affine=true", (3, 64, 64)),
    "MobileNetV3-Small": ("mobilenetv3_small", (3, 224, 224)),
}


def table8() -> Recipe:
    """Parameters per message: the Gaussians of pFedFDA against a linear classifier, on four networks."""
    cells = [
        Cell(where, None, value, value=partial(_count, where["model"], where["classes"], where["quantity"]))
        for where, value, _ in map(_split, published("pfedfda/table8"))
    ]
    return Recipe(
        "pfedfda/table8", "", "results", tuple(cells), decimals=3,
        assumptions=(
            "The hidden layer of MobileNetV3-Small counts as a part of its classifier, as in the paper.",
            "The overhead is in per cent of backbone and linear classifier, which is what the paper's numbers are.",
        ),
    )  # fmt: skip


@lru_cache
def _sizes(model: str, classes: int) -> tuple[int, int, int]:
    """Parameters of the backbone and of the classifier, and the number of features."""
    name, shape = _NETWORKS[model]
    network = models.build(name, shape, classes)
    body, head = network.make()
    layers = [m for m in body.children() if isinstance(m, nn.Linear)] if model == "MobileNetV3-Small" else []
    linear = sum(p.numel() for m in (head, *layers) for p in m.parameters())
    everything = sum(p.numel() for m in (body, head) for p in m.parameters())
    return everything - linear, linear, network.width


def _count(model: str, classes: int, quantity: str) -> float:
    backbone, linear, d = _sizes(model, classes)
    gaussian = classes * d + d * (d + 1) // 2  # means, and a covariance's lower half
    return {
        "backbone_params": backbone,
        "linear_classifier_params": linear,
        "gaussian_params": gaussian,
        "overhead_percent": 100 * (gaussian - linear) / (backbone + linear),
    }[quantity]


def table9() -> Recipe:
    """Shares of a client's time: network passes, means and covariance, and the search for beta."""
    rows = map(_split, published("pfedfda/table9"))
    return Recipe(
        "pfedfda/table9", "", "results", tuple(cell(where, _BREAKDOWN, "", value, std) for where, value, std in rows),
        assumptions=(_DIRICHLET,), decimals=3,
    )  # fmt: skip


def hyperparameters() -> Recipe:
    """Training settings and options of methods, appendix C.2 beside what Table 2 uses here."""
    recipe = settings_table("pfedfda/hyperparameters", table2().cells, _setting_of, decimals=4)
    note = "the search for beta is a bounded one in float64, in place of L-BFGS-B"
    cells = (
        replace(c, value=None, absent=note) if c.where["hyperparameter"] == "beta_solver" else c for c in recipe.cells
    )
    return replace(recipe, cells=tuple(cells))


def _setting_of(where: Mapping[str, Any], study: Study) -> float | str:
    """A setting by the paper's name for it, in one of the studies of Table 2."""
    setting, options = where["hyperparameter"], study.methods[0].options
    value: float | str
    if setting == "train_fraction":
        value = 1 - study.partition.options["test_fraction"]
    elif setting == "personalisation_epochs":
        value = options["personal_epochs"] or study.local_epochs
    elif setting == "cv_folds_k":
        value = options_of(stratified_folds)["folds"].default
    elif setting == "beta_terms":
        value = {"single": 1, "separate": 2}[options["beta"]]
    elif where["method"] == "all":
        value = getattr(study, setting)
    else:
        value = options[_OPTIONS[where["method"], setting]]
    return value


def fig1() -> Recipe:
    """Overview of pFedFDA."""
    return Recipe("pfedfda/fig1", "", "schematic", (), assumptions=("A drawing without data.",))


def fig2() -> Recipe:
    """The weight beta of each client's own statistics, by the corruption of its images, on CIFAR10-S."""
    where = {"dataset": "cifar10s", "samples_percent": 100, "method": "pfedfda"}
    return Recipe("pfedfda/fig2", "", "figure", (_cell(where),), (_SHIFTS, _DIRICHLET, _CLIENTS))


def fig3() -> Recipe:
    """Samples per class and client on CIFAR-10 under Dirichlet partitions of 0.1 and 0.5."""
    command = "idiolect describe --dataset cifar10 --clients 100 --partition dirichlet_official:alpha={} draws it"
    cells = [Cell({"dataset": "cifar10", "dirichlet": alpha}, absent=command.format(alpha)) for alpha in (0.1, 0.5)]
    return Recipe("pfedfda/fig3", "", "figure", tuple(cells))


def fig4() -> Recipe:
    """Accuracy by local epochs, of pFedFDA and FedAvg-FT on CIFAR-100 and on CIFAR100-S with 25 % of the samples."""
    cells = [
        _cell({"dataset": dataset, "samples_percent": percent, "local_epochs": epochs, "method": method})
        for dataset, percent in (("cifar100", 100), ("cifar100s", 25))
        for method in ("pfedfda", "fedavg_ft")
        for epochs in (1, 2, 5, 10)
    ]
    epochs = "Of the local epochs the text names 1 and 5; 2 and 10 are added."
    return Recipe("pfedfda/fig4", "", "figure", tuple(cells), (_DIRICHLET, epochs, _SHIFTS, _CLIENTS))
