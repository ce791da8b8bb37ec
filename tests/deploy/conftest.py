"""Runs with small numbers of rounds, whose bundles the tests use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import idiolect as idl
from idiolect.deploy.bundle import Bundle


def hospitals() -> pd.DataFrame:
    """A table of four hospitals with numbers, gaps, a category and two classes."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 6, 27, 30]]
    frame.columns = ["radius", "texture", "smoothness", "concavity", "worst points", "diagnosis"]
    rng = np.random.default_rng(0)
    frame = frame.sample(frac=1, random_state=0).reset_index(drop=True)
    frame["diagnosis"] = frame["diagnosis"].map({0: "malignant", 1: "benign"})
    frame["machine"] = rng.choice(["A", "B", "C"], len(frame))
    frame.loc[7, "machine"] = "Zaphod"
    frame.loc[rng.random(len(frame)) < 0.1, "texture"] = np.nan
    frame["hospital"] = np.array(["Graz", "Lyon", "Oslo", "Porto"])[np.arange(len(frame)) % 4]
    return frame


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    """Three hospitals that trained."""
    frame = hospitals()
    source = idl.data.from_frame(frame[frame["hospital"] != "Graz"], client_column="hospital")
    study = idl.Study(data=source, methods=["pfedfda", "knnper"], rounds=4, batch_size=20, lr=0.05)
    return idl.run(study, tmp_path_factory.mktemp("table") / "run", engine="sequential")


@pytest.fixture(scope="session")
def of_table(table: idl.Result, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What a new hospital gets."""
    return table.bundle("pfedfda", tmp_path_factory.mktemp("table") / "bundle")


@pytest.fixture(scope="session")
def graz() -> pd.DataFrame:
    """A hospital that did not train: 60 samples, and others for tests."""
    frame = hospitals()
    return frame[frame["hospital"] == "Graz"].drop(columns="hospital").reset_index(drop=True)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graz: pd.DataFrame) -> Path:
    """An empty folder with the hospital's tables."""
    monkeypatch.chdir(tmp_path)
    graz[:60].to_csv("graz.csv", index=False)
    graz[60:].drop(columns="diagnosis").to_csv("new.csv", index=False)
    return tmp_path
