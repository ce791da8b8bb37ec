"""Methods are found by their files, and their options checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from idiolect import methods
from idiolect.core import option_spec, reports
from idiolect.core.errors import InputError


def test_every_file_is_a_method() -> None:
    files = {p.stem for p in Path(methods.__file__).parent.glob("*.py") if not p.stem.startswith("_")}
    files -= {"registry", "profile"}
    assert set(methods.names()) == files
    for name in files:
        entry = methods.get(name)
        assert entry.title.lower().replace("-", "") == name.replace("_", "")
        assert entry.summary


@pytest.mark.parametrize("options", [[1], "ridge=1", {1: 2}, {"preset": ["official"]}, {"ridge": math.inf}])
def test_options_of_the_wrong_kind_are_one_sentence(options: Any) -> None:
    with pytest.raises(InputError, match="method pfedfda"):
        methods.settle("pfedfda", options)


@pytest.mark.parametrize("name", methods.names())
def test_presets_and_defaults_are_valid_options(name: str) -> None:
    entry = methods.get(name)
    assert methods.settle(name, {}) == entry.options
    assert option_spec.check(entry.build, entry.options, name) == entry.options
    for title, values in entry.variants.items():
        assert methods.settle(name, values) == entry.options | values, title
    for preset, values in entry.presets.items():
        assert option_spec.check(entry.build, values, name) == values
        assert methods.settle(name, {"preset": preset}) == entry.options | values
        for option in values:  # what is asked for by name outdoes the preset
            given = {option: entry.options[option]}
            assert methods.settle(name, {"preset": preset} | given)[option] == entry.options[option]


@pytest.mark.parametrize("name", methods.names())
def test_reports_come_back_from_a_manifest(name: str) -> None:
    table = methods.get(name).reports
    reports.check(table)
    assert reports.from_json(json.loads(json.dumps(reports.to_json(table)))) == table


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fedpac'"):
        methods.get("fedpacc")
    with pytest.raises(InputError, match="no preset 'offical'; did you mean 'official'"):
        methods.settle("fedpac", {"preset": "offical"})
    with pytest.raises(InputError, match="no option 'aligment'; did you mean 'alignment'"):
        methods.settle("fedpac", {"aligment": 1})
    with pytest.raises(InputError, match="no option 'presset'; did you mean 'preset'"):
        methods.settle("fedpac", {"presset": "official"})
    with pytest.raises(
        InputError, match=r"unknown method 'FedEM-FT \(M=5\)'; .* is written fedem:models=5,tuning_epochs"
    ):
        methods.get("FedEM-FT (M=5)")
    with pytest.raises(InputError, match="pFedFDA is written pfedfda"):
        methods.get("pFedFDA")
    with pytest.raises(InputError, match="alignment=-1 is not valid"):
        methods.settle("fedpac", {"alignment": -1})
