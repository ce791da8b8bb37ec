"""A method of one's own, named by its import path: what is taken, where it works, and what is wrong with it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import idiolect as idl
from idiolect import cli, methods
from idiolect.core import keys
from idiolect.core.errors import IdiolectError, InputError
from idiolect.core.import_path import no_imports
from idiolect.core.method import Method, Task
from idiolect.deploy.bundle import Bundle
from idiolect.methods import registry
from idiolect.studies import Study

SKELETON = (Path(methods.__file__).parent / "_skeleton.py").read_text()
MINE = SKELETON.replace("def skeleton(task: Task)", "def fedmine(task: Task, *, share: float = 0.5)")
MINE = MINE.replace("Title: what", "FedMine: what") + (
    "\nPRESETS = {'small': {'share': 0.1}}\nVARIANTS = {'FedMine (whole)': {'share': 1.0}}\n"
)
MORE = """
from idiolect.methods.fedavg import fedavg as borrowed

def silent(task, *, steps: int = 3):
    return borrowed(task)

def plain(task):
    \"\"\"Averages, and says so.\"\"\"
    return borrowed(task)

number = 3

class Kind: ...

def positional(task, ridge: float = 1.0): ...
def unannotated(task, *, ridge=1.0): ...
def compulsory(task, *, ridge: float): ...
def odd(task, *, ridge: "Ridge" = 1.0): ...
def fails(task): raise RuntimeError("no room\\nat all")
def quits(task): raise SystemExit(3)
def gives(task): return 3
"""
SMALL = {"dataset": "digits", "clients": 3, "rounds": 2, "local_epochs": 1, "model": "mlp"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which the search path does not hold, with a module and a package of methods."""
    (tmp_path / "lab_module.py").write_text(MINE)
    (tmp_path / "lab" / "trials").mkdir(parents=True)
    (tmp_path / "lab" / "trials" / "more.py").write_text(MORE)
    (tmp_path / "lab" / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lab" / "needy.py").write_text("import not_installed_here\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    torch.set_default_dtype(torch.float32)
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] in ("lab", "lab_module")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("path", "title", "options"),
    [
        ("lab_module.fedmine", "FedMine", {"share": 0.5}),
        ("lab.trials.more.silent", "silent", {"steps": 3}),
        ("lab.trials.more.plain", "plain", {}),
        ("lab.trials.more.borrowed", "FedAvg", {}),
    ],
)
def test_a_function_that_can_be_imported(path: str, title: str, options: dict[str, object]) -> None:
    assert registry.is_path(path)
    entry = methods.get(path)
    assert (entry.title, entry.options) == (title, options)
    assert methods.settle(path, {}) == options
    task = Task(idl.models.build("mlp", (1, 8, 8), 10), 10, 3)
    built = methods.build(path, {}, task)
    assert isinstance(built, Method)
    built.init_server(keys.key(0))
    assert path not in methods.names(), "lists have what everyone has"


def test_options_presets_and_labels_are_as_ever() -> None:
    path = "lab_module.fedmine"
    study = Study(methods=f"{path},{path}:share=0.3,fedavg,{path}:preset=small")
    assert [(u.label, u.options.get("share")) for u in study.methods] == [
        (path, 0.5), (f"{path}:share=0.3", 0.3), ("fedavg", None), (f"{path}:preset=small", 0.1)
    ]  # fmt: skip
    assert idl.use(path, label="mine", share=1).options == {"share": 1.0}
    with pytest.raises(InputError, match=r"method lab_module\.fedmine has no option 'shares'; did you mean 'share'"):
        idl.use(path, shares=1)
    with pytest.raises(InputError, match=r"method lab_module\.fedmine: share='much' is not valid"):
        Study(methods=f"{path}:share=much")
    with pytest.raises(InputError, match=r"lab_module has no 'fedmin'; did you mean 'fedmine'"):
        idl.use("lab_module.fedmin")
    with pytest.raises(InputError, match=r"one of your own by its import path, my_module\.my_method"):
        idl.use("fedmine")


def test_names_that_are_no_paths() -> None:
    assert not any(map(registry.is_path, ["fedavg", "fedmine", "lab/trials.py", "FedEM-FT (M=5.0)", "3.5", ""]))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.fedmine", "there is no module 'nowhere'"),
        ("lab.broken.fedmine", "importing lab.broken fails (ZeroDivisionError"),
        ("lab.needy.fedmine", "lab.needy needs 'not_installed_here'"),
        ("lab.trials.more.number", "it is not a function"),
        ("lab.trials.more.Kind", "it is not a function"),
        ("lab.trials.more.positional", "ridge is no option, because it is not keyword-only"),
        ("lab.trials.more.unannotated", "option ridge has no annotation"),
        ("lab.trials.more.compulsory", "option ridge has no default"),
        ("lab.trials.more.odd", "name 'Ridge' is not defined"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(path: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        Study(methods=["fedavg", path])
    assert path in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fails", "cannot be built (RuntimeError: no room at all): fix it"),
        ("quits", "cannot be built (SystemExit: 3): fix it"),
        ("gives", "gives a int: it should give a Method"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(name: str, why: str) -> None:
    study = Study(methods=f"lab.trials.more.{name}", **SMALL)
    with pytest.raises(InputError) as caught:
        idl.run(study, "run", engine="sequential")
    assert str(caught.value) == f"method lab.trials.more.{name} {why}"
    assert not Path("run").exists()


@pytest.mark.thorough
def test_it_runs_in_other_processes_and_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line in a fresh process, with workers; then the run goes on here."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    line = "run --methods lab_module.fedmine:share=0.3 --clients 3 --local-epochs 1 --model mlp --quiet"
    command = [sys.executable, "-P", "-m", "idiolect.cli", *line.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)

    done = call("--rounds", "2", "--engine", "processes", "--workers", "2", "--out", "there")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "FedMine, share=0.3" in done.stdout
    study = Study(methods="lab_module.fedmine:share=0.3", **SMALL)
    result = idl.run(study, "here", engine="sequential")
    assert Path("here/records.parquet").read_bytes() == Path("there/records.parquet").read_bytes()
    assert result.table() is not None
    assert Study.look("here/study.yaml").imports() == {"methods": "lab_module.fedmine"}
    Path("there/records.parquet").unlink()
    again = Study.read("there/study.yaml", allow_import=True)
    assert again.methods == study.methods
    idl.run(again, "there", engine="sequential", resume=True)
    assert Path("here/records.parquet").read_bytes() == Path("there/records.parquet").read_bytes()


def test_a_study_file_names_it_with_permission() -> None:
    for number, text in enumerate((
        "methods: [fedavg, 'lab_module.fedmine:share=0.3']",
        "methods:\n- {name: lab_module.fedmine, label: mine, options: {share: 0.3}}",
        "methods: lab_module.fedmine",
    )):  # fmt: skip
        file = Path(f"{number}.yaml")
        file.write_text(f"{text}\nrounds: 1\n")
        with pytest.raises(InputError, match=r"methods lab_module\.fedmine is code"):
            Study.read(file)
        assert "lab_module" not in sys.modules
        study = Study.read(file, allow_import=True)
        assert study.methods[-1].options == {"share": 0.5 if number == 2 else 0.3}
        with no_imports():
            again = Study(**study.model_dump())
        assert again.methods == study.methods
        del sys.modules["lab_module"]


def test_the_list_shows_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", "methods", "lab_module.fedmine", "fedper"])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0, err) == (0, "")
    assert "share=0.5" in out
    assert "preset=small: share=0.1" in out
    assert "fedper" in out
    assert "fedavg" not in out


@pytest.mark.parametrize(
    "line", ["methods fedavgg", "methods lab_module.nothing", "models small_cn", "datasets digit", "recipes fedpac/tab"]
)
def test_the_list_knows_no_other(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", *line.split()])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.count("\n") == 1
    assert line.split()[1].rpartition(".")[2] in err


def test_its_bundle_needs_permission_and_the_same_file(folder: Path) -> None:
    study = Study(methods="lab_module.fedmine", **SMALL)
    idl.run(study, "run", engine="sequential").bundle("lab_module.fedmine", "b", client=1)
    for name in ("b", Path("b")):
        with pytest.raises(InputError, match=r"b has a method of its own, lab_module\.fedmine, .* allow_import=True$"):
            Bundle.read(name)
    assert Bundle.read("b", allow_import=True).model().down is not None
    (folder / "lab_module.py").write_text(MINE + "# another\n")
    with pytest.raises(InputError, match=r"b was made with another version of lab_module\.fedmine"):
        Bundle.read("b", allow_import=True)
    (folder / "lab_module.py").unlink()
    del sys.modules["lab_module"]
    with pytest.raises(InputError, match="there is no module 'lab_module'"):
        Bundle.read("b", allow_import=True)


PARTS = """
import torch
from idiolect import methods
from idiolect.core.method import Down, Method, Up, keys, reduce, tree


def broken(task, *, how: str = ""):
    good = methods.get("fedavg").build(task)
    if how == "seven":
        return Method(*good[:4], *good[5:8])
    if how == "no id":
        return good._replace(init_client=lambda key: ())
    if how == "its own":
        return good._replace(init_client=lambda key, id: id)
    if how == "one round":
        return good._replace(full_rounds=1)
    if how == "round 0":
        return good._replace(full_rounds=(0, 2))
    if how == "declaration":
        return good._replace(reduce=reduce.mean("samples"))
    if how == "number":
        return good._replace(local=lambda *a: (a[1], Up(good.local(*a)[1].value, 3.0), {}))
    if how == "state":
        return good._replace(stand_by=lambda down, client, data, key: (client, Up(), {}))
    if how == "nothing":
        return good._replace(stand_by=lambda down, client, data, key: None)
    if how == "wider":
        return good._replace(local=lambda *a: ({"w": torch.ones(3)}, *good.local(*a)[1:]))
    if how == "whole":
        return good._replace(
            init_client=lambda key, id: {"rounds": torch.zeros(())},
            local=lambda *a: ({"rounds": (a[1]["rounds"] + 1).long()}, *good.local(*a)[1:]),
        )
    if how == "python":
        return good._replace(
            init_client=lambda key, id: torch.zeros(()), local=lambda *a: (1.5, *good.local(*a)[1:])
        )
    if how == "memory":
        return good._replace(
            init_client=lambda key, id: torch.zeros(20), local=lambda *a: (a[2].real_N, *good.local(*a)[1:])
        )
    if how == "negative":
        return good._replace(local=lambda *a: (a[1], Up(good.local(*a)[1].value, -a[2].real_N.sum()), {}))
    return good._replace(
        reduce=reduce.each(),
        aggregate=lambda server, up, ids: (server, {"n": torch.zeros([] if how == "scalar" else [len(ids) + 1])}),
    )
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("seven", "does not make a whole Method: it takes init_server, init_client, send, local, reduce, aggregate"),
        ("no id", "init_client fails (TypeError: "),
        ("its own", "init_client depends on the client's number: give Method own_start=True"),
        ("one round", "full_rounds=1 are no numbers of rounds: write (1, 5)"),
        ("round 0", "full_rounds=(0, 2) are no numbers of rounds: write (1, 5)"),
        ("declaration", "reduce weighs the part 'body/"),
        ("number", "the upload's weight is a float: make it a tensor"),
        (
            "state",
            "stand_by does not return the client's state in the form that it got (the same tensors in other ",
        ),
        ("nothing", "state in the form that it got (the whole: None in place of nothing): return the state alone"),
        (
            "wider",
            "used: local does not return the client's state in the form that it got (w: (3,) float32 in",
        ),
        ("whole", "the form that it got (rounds: () int64 in place of () float32): let init_client return"),
        ("python", "the form that it got (the whole: a float in place of () float32): let init_client return"),
        ("memory", "round 1, local: local does not return the client's state in the form that it got (the whole: ("),
        ("negative", "a weight is negative: weigh by numbers of samples, or by 1"),
        ("scalar", "aggregate: info 'n' has the shape (): the server reports a number for each participant (2,)"),
        ("one more", "aggregate: info 'n' has the shape (3,): the server reports a number for each participant (2,)"),
    ],
)
def test_a_method_that_breaks_the_contract_is_one_sentence(
    how: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_module.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("parts_module", None)
    study = idl.Study(methods=[idl.use("parts_module.broken", how=how)], clients=4, rounds=2, participation=0.5)
    with pytest.raises(IdiolectError) as caught:
        idl.run(study, tmp_path / "run", engine="sequential")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
