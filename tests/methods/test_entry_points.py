"""A method of an installed package: found, held to the contract and run; a broken one says so and breaks no other."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "contract"))  # checks.py and toy.py, by name

import checks
import toy
from specimens import SPECIMENS

from idiolect import cli, methods
from idiolect.core.errors import InputError

SKELETON = (Path(methods.__file__).parent / "_skeleton.py").read_text()
MINE = SKELETON.replace("def skeleton(task: Task)", "def mine(task: Task)").replace("Title: what", "Mine: what")
Install = Callable[..., Path]
Command = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A package in a folder of its own on the path, with the metadata that an installer leaves."""
    added: list[str] = []

    def package(module: str, source: str | None, **points: str) -> Path:
        folder = tmp_path / f"site_{module}"
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[idiolect.methods]", *lines, ""]))
        if source is not None:
            (folder / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(folder)
        added.append(module)
        return folder

    yield package
    for module in added:
        sys.modules.pop(module, None)


@pytest.fixture
def idiolect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: code, output, errors."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(line.split())
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def test_it_is_a_method_like_ours(install: Install) -> None:
    before = methods.names()
    install("elsewhere", MINE, mine="elsewhere:mine")
    assert set(methods.names()) - set(before) == {"mine"}
    entry = methods.get("mine")
    assert (entry.title, entry.options, entry.presets) == ("Mine", {}, {})
    assert entry.summary.startswith("what it is")
    assert methods.settle("mine", {}) == {}
    with pytest.raises(InputError, match="method mine has no option 'ridge'"):
        methods.settle("mine", {"ridge": 1})
    with pytest.raises(InputError, match="did you mean 'mine'"):
        methods.get("mime")


def test_it_says_what_is_drawn(install: Install) -> None:
    install("elsewhere", MINE + TOLD, mine="elsewhere:mine")
    assert methods.get("mine").reports["loss"].shows == "who loses what"


def test_ours_outdo_another_of_the_same_name(install: Install) -> None:
    install("elsewhere", MINE, fedavg="elsewhere:mine")
    assert methods.get("fedavg").title == "FedAvg"


def test_one_that_ours_outdo_is_said(install: Install) -> None:
    install("elsewhere", MINE, fedavg="elsewhere:mine")
    assert methods.working()[1] == ["method fedavg of a package is not used: idiolect has one of this name"]


def test_its_code_is_its_package_and_its_file(install: Install) -> None:
    folder = install("elsewhere", MINE, mine="elsewhere:mine")
    digest = hashlib.sha256((folder / "elsewhere.py").read_bytes()).hexdigest()
    assert methods.code("mine") == f"elsewhere 1.0, code {digest[:12]}"
    assert methods.code("fedavg").startswith("code ")


def test_names_are_gone_with_their_package(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        folder = install("elsewhere", MINE, mine="elsewhere:mine")
        assert "mine" in methods.names()
        patch.setattr(sys, "path", [p for p in sys.path if p != str(folder)])
        assert "mine" not in methods.names()


@pytest.mark.parametrize("check", [c for c in SPECIMENS if c != "resumes_exactly"])
def test_it_satisfies(check: str, install: Install) -> None:
    install("elsewhere", MINE, mine="elsewhere:mine")
    torch.set_default_dtype(torch.float32 if check == "engines_agree" else torch.float64)
    getattr(checks, check)(toy.builder("mine"))


def test_it_resumes_exactly(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install("elsewhere", MINE, mine="elsewhere:mine")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    torch.set_default_dtype(torch.float32)
    checks.resumes_exactly(toy.builder("mine"), tmp_path)


def test_the_command_line_lists_it(install: Install, idiolect: Command) -> None:
    install("elsewhere", MINE, mine="elsewhere:mine")
    torch.set_default_dtype(torch.float32)
    code, out, errors = idiolect("list methods --json")
    assert (code, errors) == (0, "")
    listed = json.loads(out)
    assert set(listed) == set(methods.names())
    assert listed["mine"]["title"] == "Mine"


def test_the_command_line_runs_it(install: Install, idiolect: Command, tmp_path: Path) -> None:
    """Here, and from a fresh process with workers, to the same numbers."""
    folder = install("elsewhere", MINE, mine="elsewhere:mine")
    torch.set_default_dtype(torch.float32)
    line = "run --methods mine --clients 4 --rounds 2 --local-epochs 1 --model mlp --quiet --engine"
    code, out, errors = idiolect(f"{line} sequential --out {tmp_path / 'here'}")
    assert (code, errors) == (0, "")
    assert "Mine" in out
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "error", "-m", "idiolect.cli", *line.split(), "processes", "--workers", "2"]
    said = subprocess.run([*call, "--out", str(tmp_path / "afresh")], env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert not said.stderr
    assert "Mine" in said.stdout
    records = [pd.read_parquet(tmp_path / name / "records.parquet") for name in ("here", "afresh")]
    assert len(records[0])
    pd.testing.assert_frame_equal(*records)


TOLD = (
    "from idiolect.core.reports import PairValue\n"
    "REPORTS = {'loss': PairValue('losses', 'who loses what', 'Each row loses')}\n"
)
LATER = "from __future__ import annotations\n"
BROKEN = [
    ("no_such_module:mine", None, "No module named 'no_such_module'"),
    ("bad:other", MINE, "has no attribute 'other'"),
    ("bad:PRESETS", "PRESETS = {}\n", "is not a function"),
    ("bad:mine", LATER + "def mine(task, *, ridge: Ridge = 1): ...\n", "name 'Ridge' is not defined"),
    ("bad:mine", "def mine(:\n", "invalid syntax"),
    ("bad:mine", "def mine(task, ridge: float = 1): ...\n", "ridge is no option, because it is not keyword-only"),
    ("bad:mine", "def mine(task, *, ridge=1): ...\n", "option ridge has no annotation: write ridge: float"),
    ("bad:mine", "def mine(task, *, ridge: float): ...\n", "option ridge has no default: give it one"),
    ("bad:mine", MINE + "PRESETS = {'small': {'ridge': 1}}\n", "its preset small has no option 'ridge'"),
    ("bad:mine", "raise RuntimeError('two\\nlines')\n", "two lines"),
    ("bad:mine", MINE + "REPORTS = {'loss': 'yes'}\n", "REPORTS['loss'] is 'yes': write a ClientValue or a PairValue"),
    ("bad:mine", MINE + TOLD.replace("'losses'", "3"), "REPORTS['loss']: name: input should be a valid string"),
    ("bad:mine", MINE + TOLD.replace("loses')", "loses', size=3)"), "unexpected keyword argument 'size'"),
]


@pytest.mark.parametrize(("value", "source", "why"), BROKEN)
def test_a_broken_one_is_one_sentence_and_breaks_no_other(
    value: str, source: str | None, why: str, install: Install
) -> None:
    install("bad", source, broken=value)
    before = methods.names()
    assert "broken" in before
    with pytest.raises(InputError, match="method broken of bad") as caught:
        methods.get("broken")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert methods.settle("fedavg", {}) == {}
    entries, sentences = methods.working()
    assert sorted([*entries, "broken"]) == before
    assert sentences == [str(caught.value)]


@pytest.mark.parametrize(("value", "source", "why"), BROKEN[:3])
def test_a_broken_one_at_the_command_line(
    value: str, source: str | None, why: str, install: Install, idiolect: Command
) -> None:
    install("bad", source, broken=value)
    sentence = f"idiolect: {methods.working()[1][0]}\n"
    code, _, errors = idiolect("run --methods broken --rounds 1")
    assert code == 2
    assert why in errors
    assert errors == sentence
    code, out, errors = idiolect("list methods")
    assert code == 0
    assert "fedavg" in out
    assert errors == sentence
