import os
from pathlib import Path

import pytest
import torch

from idiolect import data

torch.set_num_threads(1)

REAL = Path(os.environ.get("IDIOLECT_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees the caller's cache or data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    return tmp_path / "cache" / "idiolect"


def real(name):
    """The folder of folders that holds a real data set; skips where it is absent."""
    if not (REAL / name / "train.parquet").is_file():
        pytest.skip(f"the real {name} is not here: set IDIOLECT_DATA to the folder that holds {name}/train.parquet")
    return REAL


@pytest.fixture
def natural():
    """Finds a file or a folder of data of natural clients by its name; skips where it is absent."""

    def find(name):
        if not (REAL / "natural" / name).exists():
            pytest.skip(f"natural/{name} is not here: set IDIOLECT_DATA to the folder that holds it")
        return REAL / "natural" / name

    return find


@pytest.fixture(scope="session")
def fashion_mnist(tmp_path_factory):
    """The real data set, decoded once."""
    folder = real("fashion_mnist")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("fashion")))
        return data.load("fashion_mnist", folder)


@pytest.fixture
def cifar10():
    """The folder that holds the real parquet files."""
    return real("cifar10") / "cifar10"
