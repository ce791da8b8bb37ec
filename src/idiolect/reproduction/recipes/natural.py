"""Clients as they are in nature: hospitals, phones, regions, schools, shops, roles of plays, writers and domains.

No client is made by a draw. docs/results/natural.md says where each source is published. The files lie in the folder
``natural`` of the folder that the variable IDIOLECT_DATA names; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from idiolect.reproduction.recipes import Cell, Recipe, Tuned, cell

_FOLDER = "$IDIOLECT_DATA/natural"
_RATES = (0.001, 0.004, 0.016, 0.06, 0.25)
_OF_CLASSES = (
    "local", "fedavg", "fedavg_ft", "fedrep", "ditto", "fedlda", "fedpac", "pfedfda", "fedcr", "fedshrink",
)  # fmt: skip
_OF_NUMBERS = ("local", "fedavg", "fedavg_ft", "fedrep", "ditto", "apfl", "fedper", "fedbabu", "fedshrink")
_HEART = "age+sex+cp+trestbps+chol+fbs+restecg+thalach+exang+oldpeak+slope+ca+thal+num"


class _Source(NamedTuple):
    """Where clients come from, and how their models are learnt and measured."""

    settings: Mapping[str, Any]
    reads: str = "accuracy"
    methods: tuple[str, ...] = _OF_CLASSES
    new_clients: str | None = None
    """Who takes no part in the training: the number is theirs."""


_OF_HEART = {
    "data": f"{_FOLDER}/heart/*.data", "columns": _HEART, "target": "num>0", "missing": "chol=0", "measures": ["auroc"],
    "partition": "natural:test_fraction=0.3,stratified=true", "rounds": 40, "local_epochs": 2, "batch_size": 16,
}  # fmt: skip
SOURCES = {
    "heart": _Source(_OF_HEART, "auroc"),
    "heart_new": _Source(_OF_HEART, "auroc", new_clients="va"),
    "phones": _Source({
        "data": f"{_FOLDER}/wisdm.arff", "header": "none", "drop": ["1"], "client_column": "2", "target": "46",
        "split": "ordered:each_class=true", "rounds": 30, "local_epochs": 2, "batch_size": 16,
    }),
    "regions": _Source({
        "data": f"{_FOLDER}/brca_regions.csv", "client_column": "region", "target": "survived_3_years",
        "partition": "natural:test_fraction=0.3,stratified=true,min_rows=20", "measures": ["auroc"],
        "rounds": 40, "local_epochs": 2, "batch_size": 16,
    }, "auroc"),
    "schools": _Source({
        "data": f"{_FOLDER}/school.parquet", "client_column": "school", "target": "score", "task": "regression",
        "rounds": 30, "local_epochs": 1, "batch_size": 16,
    }, "mse", _OF_NUMBERS),
    "shops": _Source({
        "data": f"{_FOLDER}/reviews.parquet", "client_column": "shop", "target": "label", "text": "text",
        "model": f"hf:{_FOLDER}/all-MiniLM-L6-v2,body=mlp:64", "rounds": 20, "local_epochs": 1, "batch_size": 32,
    }),
    "roles": _Source({
        "data": f"{_FOLDER}/tinyshakespeare.txt", "model": "char_lstm:hidden=64,layers=1", "clients": 30,
        "partition": "natural:min_rows=500", "keep": 300,
        "rounds": 20, "local_epochs": 1, "batch_size": 20, "momentum": 0.9, "clip": 5.0,
    }),
    "drawers": _Source({
        "data": f"{_FOLDER}/omniglot_small1.zip", "layout": "{class}/{class}/*_{client}", "resize": "28",
        "model": "fmnist_cnn", "rounds": 30, "local_epochs": 2, "batch_size": 16,
    }),
    "domains": _Source({
        "dataset": "digits3", "partition": "natural:column=domain", "keep": 1000, "model": "cifar_cnn",
        "rounds": 20, "local_epochs": 1, "batch_size": 20,
    }),
}  # fmt: skip
"""By the name in the table."""
TUNED = Tuned(
    {"all": {"lr": _RATES}}, "docs/results/natural.md",
    ("Trials are compared by accuracy, also where the table has the area under the ROC curve; those of schools by the "
     "mean squared error.",),
    always=True,
)  # fmt: skip
_ASSUMPTIONS = (
    "Five seeds are --seeds 0,1,2,3,4.",
    "The files lie in the folder natural of the folder that the variable IDIOLECT_DATA names; docs/results/natural.md "
    "says where each is published.",
)


def _cell(name: str, source: _Source, method: str) -> Cell:
    settings = {"lr": _RATES[2], "evaluate_every": source.settings["rounds"], **source.settings}
    condition = None
    if source.new_clients is not None:
        settings, condition = {**settings, "new_clients": source.new_clients}, ""
    return cell({"source": name, "method": method}, settings, method, reads=source.reads, condition=condition)


def table1() -> Recipe:
    """Clients as they are in nature, none of them made by a draw, each method with a tuned learning rate."""
    cells = tuple(_cell(name, source, method) for name, source in SOURCES.items() for method in source.methods)
    return Recipe("natural/table1", "", "results", cells, assumptions=_ASSUMPTIONS)
