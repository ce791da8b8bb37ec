"""What the command line says about itself."""

from __future__ import annotations

import inspect
import json
import runpy
import subprocess
import sys
from typing import Any

import pytest
from commands import Command

from idiolect.cli.run import run_command
from idiolect.studies.settings import SETTINGS


@pytest.mark.parametrize("line", ["--help", "run --help", "describe --help", "report -h", "list --help"])
def test_help(idiolect: Command, line: str) -> None:
    said = idiolect(line)
    assert said.code == 0
    assert "Usage: idiolect" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_help_names_every_option(idiolect: Command) -> None:
    said = idiolect("run --help").out
    options = inspect.signature(run_command).parameters.keys() - {"study", "set_", "as_json"} | {"set", "json"}
    for option in options:
        assert f"--{option.replace('_', '-')} " in said


def test_help_begins_with_what_people_use_most(idiolect: Command) -> None:
    first = "\n".join(idiolect("run --help").out.splitlines()[:24])
    for option in (
        "methods",
        "dataset",
        "data",
        "target",
        "clients",
        "partition",
        "model",
        "rounds",
        "seeds",
        "engine",
    ):
        assert f"--{option} " in first
    assert "--out " in first


def test_help_needs_nothing_heavy() -> None:
    code = "import sys; from idiolect.cli import app; app(['run', '--help'], standalone_mode=False); print(sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'idiolect.studies.settings'" in said
    assert not [name for name in ("torch", "numpy", "pandas", "idiolect.studies.config") if f"'{name}'" in said]


@pytest.mark.parametrize("command", ["run", "describe"])
def test_options_say_what_the_study_says(idiolect: Command, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    said = [" ".join(line.split()) for line in idiolect(f"{command} --help").out.splitlines() if "--" in line]
    lines = {line.split()[1]: line for line in said}
    found = 0
    for name, setting in SETTINGS.items():
        option = f"--{(setting.option or name).replace('_', '-')}"
        if setting.option == "" or (command == "describe" and option not in lines):
            continue
        found += 1
        default = f" [{setting.shown}]" if setting.shown and setting.type is not bool else ""
        assert f"{setting.about}{default} " in lines[option]
    assert found == (57 if command == "run" else 29)


def test_version(idiolect: Command) -> None:
    assert idiolect("--version").out.startswith("idiolect 0.")


def test_python_m_idiolect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["idiolect", "--version"])
    monkeypatch.delitem(sys.modules, "idiolect.__main__", raising=False)  # of a test that has imported every module
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("idiolect", run_name="__main__")
    assert ended.value.code in (None, 0)
    assert capsys.readouterr().out.startswith("idiolect 0.")


def test_no_arguments_show_help(idiolect: Command) -> None:
    said = idiolect("")
    assert said.code == 2
    assert "Usage: idiolect" in said.out + said.err


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        ("methods", "fedpac", {"title": "FedPAC", "options": {"alignment": 1.0}}),
        ("datasets", "mnist", {"classes": 10, "train_rows": 60_000, "shape": [1, 28, 28]}),
        ("partitions", "dirichlet", {"options": {"alpha": 0.5}}),
        ("shifts", "noise", {"options": {"std": 0.1, "clients": "all"}}),
        ("models", "auto", {}),
        ("engines", "processes", {}),
    ],
)
def test_list(idiolect: Command, kind: str, name: str, keys: dict[str, Any]) -> None:
    entries = json.loads(idiolect(f"list {kind} --json").out)
    assert all(len(e["summary"]) > 15 for e in entries.values())
    for key, value in keys.items():
        found = entries[name][key]
        assert value.items() <= found.items() if isinstance(value, dict) else found == value
    said = idiolect(f"list {kind}").out
    assert all(any(line.startswith(entry) for line in said.splitlines()) for entry in entries)
    assert max(map(len, said.splitlines())) <= 80
    assert "``" not in said


def test_list_shows_options_and_presets(idiolect: Command) -> None:
    said = idiolect("list methods").out
    assert "alignment=1.0" in said
    assert "epochs=null" in said
    assert "preset=paper:" in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("tunes", "unknown command 'tunes'; did you mean 'tune'? Known: run, tune, describe, "),
        ("rnu", "unknown command 'rnu'; did you mean 'run'? Known: run, "),
        ("Bundle", "unknown command 'Bundle'; did you mean 'bundle'? Known: run, "),
        ("federation xyzzy", "unknown command 'federation xyzzy'; known: provision, add"),
        ("federation sevre", "unknown command 'federation sevre'; did you mean 'serve'? Known: provision, add"),
        ("run --metods local", "unknown option --metods; did you mean --methods? All options: idiolect run --help"),
        ("site kit --dat x", "unknown option --dat; did you mean --data? All options: idiolect site --help"),
        ("federation serve --xyzzy", "unknown option --xyzzy; all options: idiolect federation serve --help"),
        ("--verson", "unknown option --verson; did you mean --version? All options: idiolect --help"),
        ("diff a b --ots", "unknown option --ots; all options: idiolect diff --help"),
    ],
)
def test_an_unknown_command_or_option_is_told_once(idiolect: Command, line: str, sentence: str) -> None:
    said = idiolect(line)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"idiolect: {sentence}")
    assert said.err.casefold().count("did you mean") <= 1
    assert said.err.count("\n") == 1
