"""What is refused before a search begins, because its tuned study could not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import idiolect as idl

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=4", clients=3, keep=30, rounds=2, local_epochs=1, batch_size=8, seeds=[0],
    partition="iid:test_fraction=0.3",
)  # fmt: skip


def refused(tmp_path: Path, study: idl.Study, **how: Any) -> str:
    """What a search says that is refused, after which there is no file."""
    with pytest.raises(idl.InputError) as error:
        idl.tune(study, {"lr": [0.01, 0.1]}, tmp_path / "search", trials=2, engine="sequential", **how)
    assert not list(tmp_path.iterdir())
    assert "\n" not in str(error.value)
    return str(error.value)


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
