"""What a run keeps of its engine: number type, precision, options, how busy it was; and what is no engine."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as idl
from idiolect import engines, report
from idiolect.core.errors import InputError, Interrupted
from idiolect.simulation import Job

STUDY = idl.Study(dataset="digits", clients=4, rounds=2, local_epochs=1, methods=["fedavg"], lr=0.1)


def net(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """With batch normalisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), nn.Linear(8, classes)


class Stopping(engines.Sequential):
    """As by Ctrl-C in the second round."""

    def open(self, job: Job) -> Any:
        loop = super().open(job)
        run = loop.map

        def limited(phase: Any, round: int, *rest: Any, **more: Any) -> Any:
            if round == 2:
                signal.raise_signal(signal.SIGINT)
            return run(phase, round, *rest, **more)

        loop.map = limited  # type: ignore[method-assign]
        return loop


@pytest.fixture
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def starts(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "engine.json").read_text())
    return entries


@pytest.mark.usefixtures("doubles")
def test_processes_compute_in_the_callers_numbers(tmp_path: Path) -> None:
    one, other = (idl.run(STUDY, tmp_path / name, engine=name) for name in ("sequential", "processes"))
    assert one.records.equals(other.records)
    assert starts(tmp_path / "processes")[0]["dtype"] == "float64"


def test_a_run_in_doubles_is_not_continued_in_others(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(Interrupted):
            idl.run(STUDY, tmp_path / "run", engine=Stopping())
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(InputError, match=r"has numbers of torch\.float64, and torch makes torch\.float32 now: call"):
        idl.run(STUDY, tmp_path / "run", resume=True, engine="sequential")


def test_the_engines_precision_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = idl.run(STUDY, tmp_path / "run", engine=engines.Vectorised(precision="bf16", chunk=2))
    assert starts(tmp_path / "run")[0]["options"] == {"precision": "bf16", "chunk": 2}
    assert "Computed in bf16." in str(result.table().caption)
    assert "Networks computed in bf16." in (tmp_path / "run" / "report.html").read_text()
    assert not caplog.records


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("sequential", ""),
        ("processes", ""),
        (
            "vectorised:precision=bf16",
            "was started client by client, and now runs in the vectorised engine with precision=bf16",
        ),
    ],
)
def test_another_rounding_after_a_stop_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str, said: str
) -> None:
    with pytest.raises(Interrupted):
        idl.run(STUDY, tmp_path / "run", engine=Stopping())
    with caplog.at_level(logging.WARNING):
        idl.run(STUDY, tmp_path / "run", resume=True, engine=engine)
    assert said in caplog.text
    assert bool(said) == ("was started" in caplog.text)


def test_a_finished_run_says_nothing_of_another_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    idl.run(STUDY, tmp_path / "run", engine="sequential")
    with caplog.at_level(logging.WARNING):
        idl.run(STUDY, tmp_path / "run", resume=True, engine="vectorised")
    assert "was started" not in caplog.text
    (tmp_path / "run" / "engine.json").write_text("[")
    assert report.read(tmp_path / "run").precision == "float32"


def test_an_engine_of_ones_own_needs_no_options(tmp_path: Path) -> None:
    engine = engines.Sequential()
    del engine.options
    idl.run(STUDY, tmp_path / "run", engine=engine, budget=np.float32(100))
    assert starts(tmp_path / "run")[0]["options"] == {}
    assert engines.engine("sequential", np.int64(1)).workers == 1  # type: ignore[arg-type]


def test_an_engine_is_as_busy_in_its_third_run_as_in_its_first(tmp_path: Path) -> None:
    engine = engines.Sequential()
    for k in range(3):
        idl.run(STUDY, tmp_path / str(k), engine=engine)
    assert all(0 < starts(tmp_path / str(k))[0]["busy"] <= 1 for k in range(3))


def test_batch_normalisation_is_refused_before_a_folder_is_there(tmp_path: Path) -> None:
    study = idl.Study(**STUDY.model_dump() | {"model": f"{__name__}.net:buffers=local"})
    with pytest.raises(InputError, match="batch normalisation takes one client at a time: choose another engine"):
        idl.run(study, tmp_path / "run", engine="vectorised")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "processes", "workers": 2.0}, "workers=2.0 is not a number of workers"),
        ({"workers": "2"}, "workers='2' is not a number of workers"),
        ({"engine": engines.Sequential}, "is not an engine: give one of auto, sequential"),
        ({"engine": None}, "engine=None is not an engine"),
        ({"budget": "10"}, "budget='10' is not a number of seconds"),
    ],
)
def test_what_is_no_engine(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        idl.run(STUDY, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
