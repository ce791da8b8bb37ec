"""The study of a command: a file, options and --set together, checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import idiolect as idl
from idiolect.cli.study import study_of
from idiolect.core.errors import InputError
from idiolect.studies import Study

FILE = "methods: fedavg,pfedfda\nrounds: 7\nlr: 0.05\nclients: 5\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(file: str | None, settings: dict[str, Any], *sets: str, allow_import: bool = False) -> Study:
    path = None if file is None else Path("s.yaml")
    if path and file is not None:
        path.write_text(file)
    return study_of(path, settings, sets, None, allow_import)


@pytest.mark.parametrize(
    ("file", "settings", "sets", "expected"),
    [
        (None, {"rounds": 3}, (), {"rounds": 3}),
        (FILE, {}, (), {"methods": ["fedavg", "pfedfda"], "rounds": 7, "lr": 0.05, "clients": 5}),
        (FILE, {"lr": 0.1, "methods": "fedpac"}, (), {"methods": "fedpac", "rounds": 7, "lr": 0.1, "clients": 5}),
        (FILE, {"client_column": "x", "data": "p.csv"}, (),
         {"name": "p", "methods": "fedavg,pfedfda", "rounds": 7, "lr": 0.05, "client_column": "x", "data": "p.csv"}),
        ("data: p.csv\ntarget: y\nclient_column: x\n", {"dataset": "mnist"}, (), {"dataset": "mnist"}),
        ("dataset: mnist\ndata_dir: d\nclients: 3\n", {"data": "q.csv"}, (), {"data": "q.csv"}),
        (FILE, {"rounds": 2}, ("pfedfda.ridge=0.5",),
         {"methods": ["fedavg", "pfedfda:ridge=0.5"], "rounds": 2, "lr": 0.05, "clients": 5}),
        (None, {"methods": "fedcr,ditto"}, ("ditto.pull=2", "fedcr.beta=0.1"),
         {"methods": ["fedcr:beta=0.1", "ditto:pull=2.0"]}),
    ],
)  # fmt: skip
def test_what_stands_together(
    file: str | None, settings: dict[str, Any], sets: tuple[str, ...], expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    count, init = [0], Study.__init__

    def counted(self: Study, /, **settings: Any) -> None:
        count[0] += 1
        init(self, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "__init__", counted)
        study = made(file, settings, *sets)
    assert count == [1], "settings are checked once"
    wanted = Study(**expected)
    assert study.model_copy(update={"name": wanted.name}) == wanted


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        ("lr: -1\n", {}, "s.yaml: lr=-1 is not valid"),
        ("lr: -1\nrounds: 3\n", {"rounds": 4}, "s.yaml: lr=-1 is not valid"),
        ("rouds: 3\n", {"lr": 0.1}, "s.yaml: unknown setting 'rouds'; did you mean 'rounds'"),
        ("methods: fedavgg\n", {"lr": 0.1}, "s.yaml: "),
        ("self: 3\n", {}, "s.yaml: unknown setting 'self'"),
        ("rounds: 3\n", {"lr": -1}, "lr=-1 is not valid"),
        ("optimiser: adam\n", {"momentum": 0.9}, "momentum=0.9 is for optimiser=sgd"),
        ("data: p.csv\n", {"dataset": "digit"}, "unknown dataset 'digit'"),
    ],
)
def test_whose_fault_it_is(file: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        made(file, settings)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": "p.csv"}, ["data leaves out partition, clients of s.yaml: give partition, clients too to keep them"]),
        ({"client_column": "x", "data": "p.csv", "clients": 3},
         ["data leaves out partition of s.yaml: give partition too to keep them"]),
        ({"data": "p.csv", "clients": 3, "partition": "iid"}, []),
        ({"rounds": 3}, []),
    ],
)  # fmt: skip
def test_a_division_that_does_not_count_is_said(
    settings: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    made("partition: iid\nclients: 5\n", settings)
    assert caplog.messages == said


def test_a_wrong_setting_of_a_file_may_be_replaced() -> None:
    for file, settings in (
        ("lr: -1\n", {"lr": 0.1}),
        ("model: nett\n", {"model": "mlp"}),
        ("seeds: x\n", {"seeds": "1"}),
    ):
        assert made(file, settings) == Study(**settings)


@pytest.mark.parametrize(
    ("file", "setting", "other"),
    [
        ("model: theirs.net\n", "model", {"model": "mlp"}),
        ("partition: theirs.split\n", "partition", {"partition": "iid"}),
        ("partition:\n  name: theirs.split\n", "partition", {"partition": "iid"}),
        ("data: theirs.rows\n", "data", {"dataset": "digits"}),
    ],
)
def test_code_of_a_file_needs_a_word(file: str, setting: str, other: dict[str, Any]) -> None:
    ran = Path("ran")
    Path("theirs.py").write_text(f"open({str(ran.absolute())!r}, 'w').close()\n")
    for settings in ({}, {"rounds": 2}):
        with pytest.raises(InputError, match=f"s.yaml: {setting} theirs.* is code, and reading it would run"):
            made(file, settings)
    with pytest.raises(InputError, match=f"s.yaml: {setting} theirs.* is code"):
        idl.Study.read("s.yaml")
    assert idl.Study.look("s.yaml").imports().keys() == {setting}
    assert made(file, other).imports() == {}
    assert not ran.exists()
