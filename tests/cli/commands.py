"""Commands that tests begin with, and what they look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SMALL = "run --clients 4 --rounds 2 --local-epochs 1 --model mlp --engine sequential"
OWN = "--data p.csv --target outcome --client-column hospital"
TINY = "--rounds 1 --local-epochs 1 --model mlp --engine sequential --quiet"


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[[str], Said]


def refused(said: Said, *words: str) -> None:
    """One clear sentence, exit code 2."""
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith("idiolect: ")
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err


def same_records(a: Path, b: Path) -> bool:
    return (a / "records.parquet").read_bytes() == (b / "records.parquet").read_bytes()
