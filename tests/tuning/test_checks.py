"""What is refused before a search begins, because its trials could not be compared or its tuned study could not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import idiolect as idl
from idiolect.simulation.sampling import participants

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=4", clients=3, keep=30, rounds=2, local_epochs=1, batch_size=8, seeds=[0],
    partition="iid:test_fraction=0.3",
)  # fmt: skip
ONE_OF_THREE = {"participation": 0.34, "attacks": "sign_flip:clients=0-1"}
"""One client takes part in a round, and two of three attack."""


def seed_where(*honest: bool, clients: int = 3) -> int:
    """The first seed with which the one participant of rounds 1, 2, ... is the last client, who alone is honest."""
    draws = {
        seed: tuple(participants(seed, number, clients, 0.34) == [clients - 1] for number in range(1, len(honest) + 1))
        for seed in range(200)
    }
    return next(seed for seed, draw in draws.items() if draw == honest)


def refused(tmp_path: Path, study: idl.Study, **how: Any) -> str:
    """What a search says that is refused, after which there is no file."""
    with pytest.raises(idl.InputError) as error:
        idl.tune(study, {"lr": [0.01, 0.1]}, tmp_path / "search", trials=2, engine="sequential", **how)
    assert not list(tmp_path.iterdir())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_rung_whose_participants_all_attack_is_told_before_the_search(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], protocol="clients=participants", **SMALL | ONE_OF_THREE)
    said = refused(tmp_path, study, seed=seed_where(True, False))
    assert "after round 2, because each participant of it attacks or has no validation samples" in said
    assert "protocol='clients=all', raise participation, or choose another seed" in said


def test_with_a_seed_that_draws_an_honest_participant_the_search_runs(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], protocol="clients=participants", **SMALL | ONE_OF_THREE)
    seed = seed_where(False, True)
    tuning = idl.tune(study, {"lr": [0.01, 0.1]}, tmp_path / "s", trials=2, engine="sequential", seed=seed)
    assert tuning.trials()["state"].tolist() == ["complete", "complete"]


@pytest.mark.parametrize("honest", [(True, False), (False, True), (False, False)])
def test_where_the_best_round_counts_one_round_with_an_honest_participant_is_enough(
    tmp_path: Path, honest: tuple[bool, bool]
) -> None:
    protocol = "clients=participants,round=best_validation,validation=0.2"
    study = idl.Study(methods=["fedavg"], protocol=protocol, evaluate_every=1, **SMALL | ONE_OF_THREE)
    seed = seed_where(*honest)
    if not any(honest):
        assert "each participant of the rounds that are measured until then" in refused(tmp_path, study, seed=seed)
        return
    tuning = idl.tune(study, {"lr": [0.01]}, tmp_path / "s", trials=1, engine="sequential", seed=seed)
    assert tuning.chosen()[0].score is not None


def test_where_all_take_part_in_the_last_round_the_search_runs(tmp_path: Path) -> None:
    protocol = "clients=participants,full_last_round=true"
    study = idl.Study(methods=["fedavg"], protocol=protocol, **SMALL | ONE_OF_THREE)
    tuning = idl.tune(
        study, {"lr": [0.01]}, tmp_path / "s", trials=1, engine="sequential", seed=seed_where(True, False)
    )
    assert tuning.chosen()[0].score is not None


def test_a_search_in_which_no_honest_client_has_validation_samples_is_refused(tmp_path: Path) -> None:
    x, y = torch.randn(26, 6).numpy(), (torch.arange(26) % 2).numpy()
    data = idl.data.from_arrays(x, y, clients=["a"] * 12 + ["b"] * 12 + ["c"] * 2)
    study = idl.Study(data=data, methods=["fedavg"], rounds=2, local_epochs=1, attacks="sign_flip:clients=0-1")
    assert "each client attacks or has no validation samples" in refused(tmp_path, study)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"methods": ["fedavg"], "protocol": "threshold=f1,validation=0.2"}, "these data have 10: leave threshold out"),
        ({"methods": ["fedavg"], "measures": "sensitivity:specificity=0.9"}, "is for two classes"),
        ({"methods": ["fedfomo"], "secure_aggregation": True}, "method fedfomo cannot take secure_aggregation"),
        ({"methods": ["fedavg"], "secure_aggregation": True, "participation": 0.34}, "a round has 1 of 3 clients"),
        (
            {"methods": ["fedproto"], "privacy": "gaussian:norm=1,noise_multiplier=1"},
            "method fedproto cannot take privacy, because its server weighs uploads by the clients' classes",
        ),
        ({"methods": ["fedavg"], "robust": "median", "privacy": "gaussian:norm=1,noise_multiplier=1"}, "together"),
    ],
)
def test_what_a_run_refuses_a_search_refuses_before_it_begins(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    assert words in refused(tmp_path, idl.Study(**SMALL | settings))


def test_a_trial_whose_option_does_not_go_with_privacy_is_refused_and_not_chosen(tmp_path: Path) -> None:
    privacy = "gaussian:norm=1,noise_multiplier=1"
    study = idl.Study(methods=["pfedfda:class_weighted_means=false"], privacy=privacy, **SMALL)
    tuning = idl.tune(
        study, {"class_weighted_means": [True, False]}, tmp_path / "s", trials=2, engine="sequential", halving=1
    )
    assert tuning.trials()["state"].tolist() == ["refused", "complete"]
    assert tuning.chosen()[0].values == {"class_weighted_means": False}
    assert "cannot take privacy" in tuning.each_trial[0].said


def test_values_of_the_study_that_a_method_refuses_do_not_stop_a_search_for_others(tmp_path: Path) -> None:
    study = idl.Study(methods=["pfedme:steps=2"], lr=0.5, robust="median", **SMALL)
    tuning = idl.tune(study, {"lr": [0.01, 0.1]}, tmp_path / "s", trials=2, engine="sequential")
    assert tuning.chosen()[0].score is not None
