"""What a page and a table say of attackers, robust rules and privacy."""

from __future__ import annotations

from pathlib import Path

import pytest

import idiolect as idl
from idiolect import report
from idiolect.report import defences

ATTACK = {"attacks": ["nan:clients=1+3"]}
DEFENCES = {
    "robust": ({"robust": "norm_bound:multiple=100"}, "Robust rule"),
    "privacy": ({"privacy": "gaussian:norm=0.5,noise_multiplier=2,delta=0.01"}, "Privacy"),
}


@pytest.mark.parametrize(("settings", "name"), DEFENCES.values(), ids=DEFENCES)
@pytest.mark.parametrize("rounds", [1, 2])
def test_what_was_refused_is_counted(settings: dict[str, str], name: str, rounds: int, tmp_path: Path) -> None:
    """Two hostile clients of six, in each round."""
    if name == "Privacy":
        pytest.importorskip("dp_accounting")
    common = {"dataset": "digits", "methods": ["fedavg"], "clients": 6, "rounds": rounds, "local_epochs": 1}
    idl.run(idl.Study.model_validate(common | ATTACK | settings), out=tmp_path)
    run = report.read(tmp_path)
    said = dict(defences.facts(run))
    assert said[name].endswith(f"; {2 * rounds} uploads refused")
    assert said["Attacks"] == "nan: clients 1, 3"
    assert (f"{2 * rounds} uploads refused." in defences.caption(run)) == (name == "Privacy")


def test_one_upload_is_not_some(tmp_path: Path) -> None:
    study = idl.Study(
        dataset="digits", methods=["fedavg"], clients=4, rounds=1, local_epochs=1, attacks=["nan:clients=2"],
        robust="median",
    )  # fmt: skip
    idl.run(study, out=tmp_path)
    assert dict(defences.facts(report.read(tmp_path)))["Robust rule"].endswith("; 1 upload refused")
