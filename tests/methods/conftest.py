"""The methods in float64, against oracles written in numpy from the papers' equations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # oracle.py, by name


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
