"""Learning rate over the rounds, AdamW and a bound on gradients: settings of a study, on every engine."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import idiolect as idl
from idiolect.core.errors import InputError, Interrupted
from idiolect.core.method import SGD, Adam, AdamW, Data, unchanged
from idiolect.core.option_spec import Spec
from idiolect.core.schedules import Constant, Cosine, Exponential, Step
from idiolect.engines import Sequential
from idiolect.simulation import fit
from idiolect.studies import Study
from idiolect.studies.progress import Watcher

COMMON: dict[str, Any] = {
    "methods": "fedavg,scaffold,apfl:adaptive=true,pfedme,fedper", "clients": 4, "participation": 0.5, "lr": 0.05,
    "local_epochs": 1, "model": "mlp:hidden=8", "keep": 40, "new_clients": 1, "evaluate_every": 2,
    "checkpoint_every": 2,
}  # fmt: skip


def study(**more: Any) -> Study:
    return Study(**COMMON | {"rounds": 6, "lr_schedule": "cosine:end=0.1,warmup=2"} | more)


# --- the settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"clip": 1}, SGD(0.01, 0.5, 5e-4, clip=1.0)),
        ({"optimiser": "adam", "clip": 0.5}, Adam(0.01, weight_decay=5e-4, clip=0.5)),
        ({"optimiser": "adamw"}, AdamW(0.01, weight_decay=5e-4)),
        (
            {"optimiser": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip": 2.5},
            AdamW(0.001, weight_decay=0.1, clip=2.5),
        ),
        ({"optimiser": "adamw", "momentum": 0, "weight_decay": 0}, AdamW(0.01, weight_decay=0.0)),
    ],
)
def test_what_clients_train_by(settings: dict[str, Any], rule: Any) -> None:
    chosen = Study(**settings)
    training = chosen.task_of(chosen.federation()).training
    assert training.optimiser == rule
    assert type(training.optimiser) is type(rule)
    assert training.schedule == Constant()


@pytest.mark.parametrize(
    ("given", "written", "schedule"),
    [
        ("constant", "constant:warmup=0", Constant()),
        ("step:factor=0.5", "step:every=10,factor=0.5,warmup=0", Step(factor=0.5)),
        ({"name": "cosine", "options": {"warmup": 3}}, "cosine:end=0.0,warmup=3", Cosine(warmup=3)),
        (Spec.parse("exponential:warmup=1"), "exponential:factor=0.99,warmup=1", Exponential(warmup=1)),
    ],
)
def test_a_schedule_is_a_spec(given: Any, written: str, schedule: Any, tmp_path: Path) -> None:
    chosen = Study(lr_schedule=given)
    assert str(chosen.lr_schedule) == written
    assert chosen.task_of(chosen.federation()).training.schedule == schedule
    (tmp_path / "study.yaml").write_text(chosen.to_yaml())
    assert Study.read(tmp_path / "study.yaml") == chosen
    assert (chosen == Study()) == (schedule == Constant())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr_schedule": "step:factor=0"}, "lr_schedule step: factor=0 is not valid: input should be greater than 0"),
        (
            {"lr_schedule": "step:every=0.5"},
            "lr_schedule step: every=0.5 is not valid: input should be a valid integer",
        ),
        ({"lr_schedule": "cosine:end=2"}, "lr_schedule cosine: end=2 is not valid: input should be less than or equal"),
        ({"lr_schedule": "linear"}, "unknown lr_schedule 'linear'; known: constant, step, exponential, cosine"),
        ({"lr_schedule": 0.5}, "lr_schedule: cannot read 0.5; write name:option=value, for example cosine:warmup=5"),
        (
            {"lr_schedule": "constant:warmup=30"},
            "lr_schedule=constant:warmup=30: a warm-up of 30 rounds leaves none of the study's 30: choose a warmup "
            "below rounds",
        ),
        ({"lr_schedule": "cosine:warmup=8", "rounds": 5}, "lr_schedule=cosine:end=0.0,warmup=8: a warm-up of 8 rounds"),
        (
            {"optimiser": "adamw", "momentum": 0.9},
            "momentum=0.9 is for optimiser=sgd, not adamw: leave momentum out, or",
        ),
        ({"optimiser": "adamax"}, "optimiser='adamax' is not valid: input should be 'sgd', 'adam' or 'adamw'"),
        ({"clip": 0}, "clip=0 is not valid: input should be greater than 0"),
        ({"clip": -1.5}, "clip=-1.5 is not valid: input should be greater than 0"),
        ({"clip": float("inf")}, "clip=inf is not valid: input should be a finite number"),
        ({"clip": True}, "clip=true is not valid: give a value, not true or false"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        Study(**settings)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("method", ["scaffold", "pfedme"])
def test_a_method_of_sgd_alone_refuses_adamw(method: str, tmp_path: Path) -> None:
    chosen = Study(methods=method, optimiser="adamw")
    with pytest.raises(InputError, match=rf"method {method} needs SGD, .*: leave out optimiser=adamw, or this method"):
        idl.run(chosen, tmp_path / "r", engine="sequential")
    assert not (tmp_path / "r").exists()


# --- the same on every engine, and after a break ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "r"
    idl.run(study(), folder, engine="sequential")
    return folder


class Stops(Watcher):
    """Stops the run after a round of a method."""

    def __init__(self, label: str, round: int) -> None:
        self._when = label, round

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        if (label, round) == self._when:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("breaks", [[("fedavg", 1)], [("scaffold", 3), ("pfedme", 5)]], ids=str)
def test_a_run_that_goes_on_has_the_same_bits(breaks: list[tuple[str, int]], whole: Path, tmp_path: Path) -> None:
    for k, when in enumerate(breaks):
        with pytest.raises(Interrupted):
            idl.run(study(), tmp_path / "r", engine="sequential", resume=k > 0, watcher=Stops(*when))
    idl.run(study(), tmp_path / "r", engine="sequential", resume=True)
    assert (tmp_path / "r" / "records.parquet").read_bytes() == (whole / "records.parquet").read_bytes()


def test_processes_have_the_same_bits(whole: Path, tmp_path: Path) -> None:
    idl.run(study(), tmp_path / "r", engine="processes", workers=2)
    assert (tmp_path / "r" / "records.parquet").read_bytes() == (whole / "records.parquet").read_bytes()


# --- the rate that a round has ----------------------------------------------------------------------------------------


def seen_by(chosen: Study) -> dict[str, list[tuple[int, int]]]:
    """The round and the last round that ``local`` and ``personalise`` are told, in a whole run of a method."""
    seen: dict[str, list[tuple[int, int]]] = {"local": [], "personalise": []}
    [(_, job)] = chosen.jobs(chosen.federation())
    method = job.build()

    def note(part: str) -> Any:
        function = getattr(method, part)

        def noting(down: Any, client: Any, data: Data, key: Any) -> Any:
            seen[part].append((int(data.round), int(data.rounds)))
            return function(down, client, data, key)

        return noting

    noted = method._replace(local=note("local"), personalise=note("personalise"))
    received = method._replace(local=noted.local, personalise=unchanged)
    with Sequential() as engine:
        job = job._replace(build=lambda personal=True: noted if personal else received)
        fit(job, engine, rounds=chosen.rounds, protocol=chosen.protocol)
    return seen


def test_a_personal_model_has_no_round() -> None:
    """Nor has a new client; what is measured after one more training is of the round after the last."""
    chosen = Study(
        **COMMON | {"methods": "fedavg", "rounds": 3, "participation": 1.0, "protocol": "also=trained", "clients": 3},
    )
    seen = seen_by(chosen)
    assert set(seen["personalise"]) == {(0, 0)}
    assert sorted(set(seen["local"])) == [(1, 3), (2, 3), (3, 3), (4, 3)]


def test_a_bundle_has_the_settings(tmp_path: Path) -> None:
    chosen = Study(
        methods="fedper", clients=2, keep=20, rounds=2, local_epochs=1, model="mlp:hidden=4", optimiser="adamw",
        lr=0.01, lr_schedule="cosine:warmup=1", clip=0.5,
    )  # fmt: skip
    bundle = idl.run(chosen, tmp_path / "r", engine="sequential").bundle("fedper", tmp_path / "b")
    again = idl.Bundle.read(bundle.folder)
    assert again.task.training == chosen.task_of(chosen.federation()).training
    about = json.loads((tmp_path / "b" / "bundle.json").read_text())["training"]
    assert about["lr_schedule"] == {"name": "cosine", "options": {"end": 0.0, "warmup": 1}}
    assert (about["clip"], about["optimiser"]) == (0.5, "adamw")
