"""What evaluation will train is counted before it starts, against draws counted here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import idiolect as idl
from idiolect.core.errors import as_options
from idiolect.simulation.sampling import participants
from idiolect.studies import Study, cost
from idiolect.studies.cost import evaluation_warning, turns
from idiolect.studies.progress import Watcher

K = 1_000


def said(methods: str, done: int = 0, **settings: object) -> str | None:
    study = Study(**{"clients": K, "participation": 0.02, "rounds": 2, "methods": methods} | settings)
    with as_options():
        cells = {(u.label, s): done for u in study.methods for s in study.seeds}
        return evaluation_warning(study, study.clients, cells)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"evaluate_every": 3},
        {"participation": 0.5, "protocol": "full_last_round=true"},
        {"participation": 0.3, "evaluate_every": 2, "protocol": "clients=participants"},
        {"participation": 0.1, "evaluate_every": 7, "rounds": 4},
        {"participation": 0.7, "new_clients": 2, "protocol": "full_last_round=true,also=received"},
    ],
)
def test_turns_are_those_that_a_run_records(settings: dict[str, Any], tmp_path: Path) -> None:
    usual = {"clients": 6, "rounds": 5, "local_epochs": 1, "model": "mlp", "methods": "fedavg"}
    study = Study(**usual | settings)
    records = idl.run(study, tmp_path / "r", engine="sequential").records
    for done in (0, 2, study.rounds):
        left = records[records["round"] > done]
        trained = left[(left["stage"] == "local") & (left["metric"] == "train_loss")]
        measured = left[(left["stage"] == "personalised") & (left["metric"] == "accuracy")]
        work = turns(study, 6 - (study.new_clients or 0), done)
        assert (work.training, work.evaluations) == (len(trained), measured["round"].nunique())
        assert work.per_evaluation * work.evaluations == len(measured)


def counted(text: str | None) -> list[int]:
    assert text is not None
    return [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) times", text)]


def test_clients_that_never_took_part_train_to_be_measured() -> None:
    first, second = (set(participants(0, r, K, 0.02)) for r in (1, 2))
    text = said("ditto,fedavg")
    assert counted(text) == [2 * K - len(first) - len(first | second), 40]
    assert text is not None
    assert text.startswith("Ditto trains a client that has not taken part yet, to measure it: ")
    assert "--protocol clients=participants" in text
    assert "--evaluate-every" in text
    first, second = (set(participants(0, r, 2 * K, 0.02)) for r in (1, 2))
    assert counted(said("ditto", done=1, clients=2 * K)) == [2 * K - len(first | second), 40]


def test_who_always_trains_counts_for_everybody() -> None:
    assert counted(said("fedavg_ft")) == [2 * K, 40]
    assert counted(said("fedavg_ft", seeds=[0, 1])) == [4 * K, 80]


@pytest.mark.parametrize(
    ("methods", "settings"),
    [
        ("fedavg,pfedfda", {}),
        ("ditto", {"protocol": "clients=participants"}),
        ("ditto", {"protocol": "stage=received"}),
        ("ditto", {"clients": 100}),
        ("ditto", {"participation": 1.0}),
        ("fedavg_ft", {"participation": 1.0, "rounds": 100}),
        ("ditto", {"done": 2}),
    ],
)
def test_nothing_is_said_where_it_is_not_much(methods: str, settings: dict[str, object]) -> None:
    assert said(methods, **settings) is None


def test_a_run_says_it_before_its_first_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_MANY", 5)
    seen: list[int] = []

    class Counter(Watcher):
        def start(self, label: str, seed: int, done: int) -> None:
            seen.append(len(caplog.records))

    study = Study(clients=6, participation=0.1, rounds=1, methods="ditto", model="mlp", local_epochs=1)
    idl.run(study, tmp_path / "run", engine="sequential", watcher=Counter())
    assert seen == [1]
    assert "5 times in the evaluations, 1 times in the rounds" in caplog.text
    idl.run(study, tmp_path / "run", engine="sequential", resume=True)
    assert len(caplog.records) == 1  # nothing is left to say it of
