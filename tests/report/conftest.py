"""Synthetic runs, written to disk as a real one would be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from idiolect import methods
from idiolect.core.reports import to_json

Row = tuple[str, int, int, int, str, str, float, int | None]
METHODS = {
    "local": ("local", "Local", 62.0),
    "fedavg": ("fedavg", "FedAvg", 66.0),
    "fedrep": ("fedrep", "FedRep", 70.0),
    "fedpac": ("fedpac", "FedPAC", 73.0),
    "pfedfda": ("pfedfda", "pFedFDA", 76.0),
    "fedcr": ("fedcr", "FedCR", 72.0),
    "fedlda": ("fedlda", "FedLDA", 71.0),
}


def about(label: str) -> tuple[str, str, float]:
    """Name, title and level of a method; others than those above are called as they are labelled."""
    return METHODS.get(label, (label, label, 80.0))


def drawn(name: str) -> dict[str, Any]:
    """What a method wants drawn, as a manifest holds it; nothing where the name is no method's."""
    return to_json(methods.get(name).reports) if name in methods.names() else {}


class Made:
    """A synthetic run: the lists that go into its files, open to changes before ``save``."""

    def __init__(
        self,
        labels: Sequence[str],
        clients: int,
        seeds: Sequence[int],
        rounds: int,
        name: str = "demo",
        classes: int = 10,
    ) -> None:
        rng = np.random.default_rng(7)
        self.labels = list(labels)
        self.study: dict[str, Any] = {
            "name": name,
            "dataset": "cifar10",
            "partition": "dirichlet:alpha=0.3",
            "rounds": rounds,
            "clients": clients,
            "seeds": list(seeds),
            "methods": list(labels),
            "precision": "float32",
            "protocol": {},
        }
        shifts = ["rotate:degrees=90" if i % 4 == 3 else "noise:std=0.2" if i % 10 == 6 else "" for i in range(clients)]
        share_KC = rng.dirichlet(np.full(classes, 0.4), clients)
        train_KC = np.round(share_KC * rng.integers(200, 900, (clients, 1))).astype(int)
        self.manifest: dict[str, Any] = {
            "dataset": "cifar10",
            "classes": classes,
            "class_names": [f"class {c}" for c in range(classes)],
            "clients": [
                {"id": i, "train": train_KC[i].tolist(), "test": (train_KC[i] // 4 + 1).tolist(), "shift": shifts[i]}
                for i in range(clients)
            ],
            "hash": "0" * 16,
            "methods": {
                label: {
                    "name": about(label)[0],
                    "title": about(label)[1],
                    "summary": f"What {about(label)[1]} does.",
                    "reports": drawn(about(label)[0]),
                }
                for label in labels
            },
        }
        self.diverged: list[dict[str, Any]] = []
        self.records: list[Row] = []
        self.timings: list[tuple[str, int, int, float]] = []
        evaluated = sorted({r for r in range(1, rounds + 1) if r % 5 == 0} | {rounds})
        skill_K = rng.normal(0, 7, clients) - 9 * np.array([bool(s) for s in shifts])
        for label in labels:
            level = about(label)[2]
            suits_K = rng.normal(0, 4, clients)
            for seed in seeds:
                for r in range(1, rounds + 1):
                    self.timings.append((label, seed, r, 1.5 + rng.random()))
                    for i in range(clients):
                        self._round(rng, label, seed, r, i, bool(shifts[i]))
                    if r not in evaluated:
                        continue
                    grown = level - 45 * np.exp(-6 * r / rounds)
                    value_K = np.clip(
                        grown + skill_K + suits_K + rng.normal(0, 1.2, clients) + rng.normal(0, 0.6), 1, 99
                    )
                    for i in range(clients):
                        self.add(label, seed, r, i, "personalised", "accuracy", value_K[i] / 100)
                        self.add(label, seed, r, i, "personalised", "loss", 2 - value_K[i] / 60)
                    if label == "fedpac":
                        near_KK = 2.5 * np.eye(clients) + 5 * share_KC @ share_KC.T
                        weight_KK = np.exp(near_KK) / np.exp(near_KK).sum(1, keepdims=True)
                        for i in range(clients):
                            for j in range(clients):
                                self.add(label, seed, r, i, "server", "combination", weight_KK[i, j], j)

    def _round(self, rng: np.random.Generator, label: str, seed: int, r: int, i: int, shifted: bool) -> None:
        self.add(label, seed, r, i, "local", "train_loss", 2 / r)
        if label == "pfedfda":
            self.add(
                label, seed, r, i, "local", "beta", float(np.clip(0.35 + 0.4 * shifted + rng.normal(0, 0.06), 0, 1))
            )
        if label != "local":
            extra = {"fedpac": 5_200, "pfedfda": 33_000, "fedcr": 10_000}.get(label, 0)
            self.add(label, seed, r, i, "wire", "bytes_down", 118_000 + extra)
            self.add(label, seed, r, i, "wire", "bytes_up", 118_000 + extra // 2)

    def add(
        self,
        label: str,
        seed: int,
        r: int,
        client: int,
        stage: str,
        metric: str,
        value: float,
        other: int | None = None,
    ) -> None:
        self.records.append((label, seed, r, client, stage, metric, float(value), other))

    def drop(self, gone: Callable[[Row], bool]) -> None:
        self.records = [row for row in self.records if not gone(row)]

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.yaml").write_text(yaml.safe_dump(self.study), encoding="utf-8")
        (folder / "manifest.json").write_text(json.dumps({"study": self.study} | self.manifest), encoding="utf-8")
        if self.diverged:
            (folder / "diverged.json").write_text(json.dumps(self.diverged), encoding="utf-8")
        columns = ["method", "seed", "round", "client", "stage", "metric", "value", "other"]
        types = {"seed": "int64", "round": "int64", "client": "int64", "value": "float64", "other": "Int64"}
        frame = pd.DataFrame(self.records, columns=columns).astype(types)
        frame.insert(0, "study", self.study["name"])
        frame.to_parquet(folder / "records.parquet")
        times = pd.DataFrame(self.timings, columns=["method", "seed", "round", "seconds"])
        times.astype({"seed": "int64", "round": "int64", "seconds": "float64"}).to_parquet(folder / "timings.parquet")
        return folder


@pytest.fixture(scope="session")
def make() -> Callable[..., Made]:
    """``make(labels, clients, seeds, rounds, name)``: a small synthetic run."""

    def made(
        labels: Sequence[str] = ("local", "fedavg", "fedpac", "pfedfda"),
        clients: int = 6,
        seeds: Sequence[int] = (0, 1),
        rounds: int = 7,
        name: str = "demo",
        classes: int = 10,
    ) -> Made:
        return Made(labels, clients, seeds, rounds, name, classes)

    return made


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
