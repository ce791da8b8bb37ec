"""A site's policy: what it does not allow is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from idiolect.core.errors import InputError
from idiolect.federation.messages import Refusal
from idiolect.federation.rounds.study import study_of
from idiolect.federation.trust.policy import Policy
from idiolect.studies import Study

STUDY = Study(
    dataset="digits", methods=["fedavg", "fedpac"], rounds=20, seeds=[0, 1], model="mlp",
    uploads=["clip:norm=2.0", "noise:std=0.1"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"methods": ["fedavg"]}, "method fedpac is not allowed"),
        ({"models": ["small_cnn"]}, "model mlp is not allowed"),
        ({"most_rounds": 10}, "20 rounds are more than the 10"),
        ({"most_trainings": 79}, "80 trainings are more than the 79"),
        ({"most_norm": 1.0}, "clipped to a norm of at most 1"),
        ({"least_noise": 0.5}, "standard deviation of 0.5"),
    ],
)
def test_what_is_not_allowed(rule: dict[str, object], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        Policy.model_validate(rule).check(STUDY)


def test_the_stage_trained_is_one_training_more() -> None:
    study = STUDY.model_copy(update={"protocol": Study(protocol="also=trained").protocol})
    with pytest.raises(Refusal, match="84 trainings are more than the 83"):
        Policy(most_trainings=83).check(study)
    Policy(most_trainings=84).check(study)


def test_what_is_allowed() -> None:
    Policy().check(STUDY)
    Policy(methods=("fedavg", "fedpac"), models=("mlp",), most_rounds=20, most_trainings=80, most_norm=2.0,
           least_noise=0.1).check(STUDY)  # fmt: skip


def test_noise_without_clipping_before_it_hides_nothing() -> None:
    for uploads in (["noise:std=0.1"], ["noise:std=0.1", "clip:norm=2.0"]):
        with pytest.raises(Refusal, match="clipped before noise"):
            Policy(least_noise=0.1).check(STUDY.model_copy(update={"uploads": Study(uploads=uploads).uploads}))


@pytest.mark.parametrize(
    "setting",
    [
        {"model": "somewhere.networks.evil"},
        {"methods": "somewhere.networks.evil"},
        {"methods": ["fedavg", "somewhere.networks.evil:a=1"]},
        {"methods": [{"name": "somewhere.networks.evil", "label": "fedavg"}]},
        {"partition": "somewhere.networks.evil"},
    ],
)
def test_code_is_never_imported(setting: dict[str, object]) -> None:
    with pytest.raises(Refusal, match=r"somewhere.networks.evil is code"):
        study_of(yaml.safe_dump({"dataset": "digits"} | setting))


def test_bytes() -> None:
    Policy().fits(10**12)
    Policy(most_bytes=100).fits(100)
    with pytest.raises(Refusal, match="101 bytes"):
        Policy(most_bytes=100).fits(101)


@pytest.mark.parametrize(
    ("text", "said"),
    [("method: [fedavg]", "not a policy.*method"), ("most_rounds: -1", "most_rounds"), ("a: [", "not YAML")],
)
def test_a_file_that_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        Policy.read(path)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("methods: [fedavg]\nevaluate: false\n")
    assert Policy.read(path) == Policy(methods=("fedavg",), evaluate=False)
    path.write_text("")
    assert Policy.read(path) == Policy()
    with pytest.raises(InputError, match="cannot read the policy"):
        Policy.read(tmp_path / "none.yaml")
