"""What a number means: written, checked, and told in words."""

from __future__ import annotations

import pydantic
import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stage=received,weighting=sample,full_last_round=true",
        "stage=trained,also=received+personalised",
        "clients=participants,round=best_validation,validation=0.25",
    ],
)
def test_what_is_written_is_read(text: str) -> None:
    protocol = Protocol.model_validate(text)
    assert Protocol.model_validate(protocol.written()) == protocol
    assert Protocol.model_validate(protocol.model_dump(mode="json")) == protocol
    assert set(filter(None, protocol.written().split(","))) == set(filter(None, text.split(",")))


def test_moments() -> None:
    assert Protocol().stages == ("personalised",)
    assert Protocol(stage="received", also=("personalised", "received")).stages == ("received", "personalised")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stage=later", "protocol.stage='later' is not valid: input should be 'received', 'trained' or 'personalised'"),
        ("round=best_validation", "round=best_validation needs samples to validate on: add validation=0.2"),
        ("clients=new,stage=received", "clients=new is measured after the last round at stage=personalised: "),
        ("round=best", "protocol.round='best' is not valid: "),
        ("stag=received", "protocol has no 'stag'; did you mean 'stage'"),
        ("moment=received", "protocol has no 'moment'"),
        ("stage=adapted", "protocol.stage='adapted' is not valid: "),
        ("also=joined", "protocol.also.0='joined' is not valid: "),
        ("weighting=row", "protocol.weighting='row' is not valid: "),
        ("received", "cannot read 'received' in 'protocol:received': write options as name:key=value"),
        ("validation=1", "protocol.validation=1 is not valid: input should be less than 1"),
    ],
)
def test_bad_protocols(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        idl.Study(protocol=text)
    assert str(caught.value).startswith(sentence), caught.value
    assert "\n" not in str(caught.value)


def test_the_best_round_on_test_rows_is_not_to_be_had() -> None:
    with pytest.raises(pydantic.ValidationError):
        Protocol.model_validate({"round": "best_test"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "mean over all clients of the personal model after the last round"),
        (
            {"clients": "participants", "stage": "trained"},
            "mean over the round's participants of the model after local training after the last round",
        ),
        (
            {"round": "best_validation", "validation": 0.2, "weighting": "sample"},
            "mean over the test samples of all clients of the personal model after the round best on validation "
            "samples",
        ),
    ],
)
def test_in_words(settings: dict[str, object], words: str) -> None:
    assert str(Protocol.model_validate(settings)) == words
