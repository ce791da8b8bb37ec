"""FedPAC: Xu, Tong & Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
2023.

Sections 6.1 and 6.2, appendices B.2, B.3 and C. The protocol is read off the released code: the mean over clients of
the accuracy in the last round, in which all take part, of each method's personal model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from idiolect.experiments.recipes import Recipe, table

_TUNED = {
    "apfl": "apfl:alpha=0.25",
    "pfedme": "pfedme:pull=10,inner_steps=5",
    "ditto": "ditto:pull=1",
    "fedfomo": "fedfomo:models=5",
    "pfedhn": "pfedhn:lr=0.01,server_lr=0.01",
    "fedrep": "fedrep:tuning_epochs=0",
}
_OURS = ("pfedfda", "fedlda", "fedcr")


def _main(where: Mapping[str, Any]) -> dict[str, Any]:
    """Section 6.1: equal sizes, a fifth of a client's rows uniform, the rest of its group's dominant classes."""
    dataset, clients = where["dataset"], where.get("clients", 20)
    few = dataset in ("fashion_mnist", "cifar10") and clients == 100  # too few rows for as many disjoint clients
    tested = ",test_size=600" if few and dataset == "fashion_mnist" else ""
    settings: dict[str, Any] = {
        "dataset": dataset,
        "clients": clients,
        "partition": f"dominant:official_quirks=true{tested}" if few else "dominant",
        "rounds": 200,
        "local_epochs": 5,
        "batch_size": 100 if dataset == "emnist" else 50,
        "lr": 0.02 if dataset in ("cifar10", "cinic10") else 0.01,
        "momentum": 0.5,
        "weight_decay": 5e-4,
        "evaluate_every": 10,
    }
    if dataset == "emnist":
        settings["sizes"] = [1000]
    if clients == 100:
        settings |= {"participation": 0.3, "protocol": {"full_last_round": True}}
    return settings


def table1() -> Recipe:
    """15 methods on four data sets, 20 clients who all take part, and 100 of whom 30 do in a round."""
    return table("fedpac/table1", _main, _TUNED, beside=_OURS)
