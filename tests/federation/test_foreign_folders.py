"""Folders of a federation that somebody else hands on: code that their studies name is not imported by any command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sites import NAMES, Loop, study, tables, workers

from idiolect.cli import main
from idiolect.federation.events import Events
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for

CODE = """
from pathlib import Path
Path("imported").touch()
def net(shape, classes, *, width: int = 2): raise SystemExit
def method(task, *, share: float = 0.5): raise SystemExit
def split(source, clients, rng, *, share: float = 0.5): raise SystemExit
def rows(): raise SystemExit
"""
SETTINGS: list[dict[str, Any]] = [
    {"model": "theirs.net"},
    {"model": "theirs.net:width=3"},
    {"methods": "theirs.method"},
    {"methods": [{"name": "theirs.method", "label": "fedper", "options": {}}]},
    {"methods": {"name": "theirs.method", "label": "fedper"}},
    {"methods": ["fedper", "theirs.method:share=0.2"]},
    {"partition": "theirs.split"},
    {"data": "theirs.rows"},
]
OF_RUN = ("bundle {run} --method fedper --out b", "bundle {run} --method theirs.method --out b")
OF_STATE = (
    "bundle {state} --method fedper --out b",
    "predict {state} --method fedper --own --out p.csv",
    "predict {state} --method fedper --data {table} --out p.csv",
    "export {state} --method fedper --out m.onnx",
    "watch {state} --method fedper --data {table}",
    "join {state} --method fedper --data {table} --target label --out s",
)
OTHERS = ("report {run} --out page.html", "report {run} --export csv --out e", "diff {run} {run}")
"""These read a run, and say what code it names without importing it."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a federation has left its run and the states of its sites."""
    folder = tmp_path_factory.mktemp("past")
    names = NAMES[:3]
    files = tables(folder, names, 60)
    whole = study_for(study(folder, "fedper", rounds=1), "trial")
    conduct(whole, Loop(workers(folder / "states", files)), names, folder / "run", Events(quiet=True))
    return folder


def changed(text: str, setting: dict[str, Any]) -> str:
    return yaml.safe_dump(yaml.safe_load(text) | setting)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_command_imports_what_a_folder_names(
    past: Path, setting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    Path("theirs.py").write_text(CODE)
    shutil.copytree(past / "run", "run")
    shutil.copytree(past / "states" / "north", "state")
    [agreement] = Path("state").glob("*/*/agreement.json")
    for path in (Path("run", ".federation.json"), agreement):
        content = json.loads(path.read_text())
        content.pop("seal", None)  # whoever changes a folder can leave it out
        path.write_text(json.dumps(content | {"study": changed(content["study"], setting)}))
    study_file = Path("run", "study.yaml")
    study_file.write_text(changed(study_file.read_text(), setting))
    [(name, _)] = setting.items()
    for line in (*OF_RUN, *OF_STATE, *OTHERS):
        arguments = line.format(run="run", state="state", table=past / "north.csv").split()
        with pytest.raises(SystemExit) as end:
            main(arguments)
        error = capsys.readouterr().err
        assert not Path("imported").exists(), line
        assert "theirs" not in sys.modules
        if line in OTHERS:
            continue
        assert end.value.code == 2, line
        assert " ".join(error.split()).count(f"{name} theirs.") == 1, error
        assert "is code of its own, which no site imports" in error
        assert not any(Path(out).exists() for out in ("b", "p.csv", "m.onnx", "s"))
