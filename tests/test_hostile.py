"""Files of somebody else: what they name is not run, and what they hold reaches neither terminal nor page as it is."""

from __future__ import annotations

import base64
import json
import logging
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import idiolect as idl
from idiolect import cli
from idiolect.core import files
from idiolect.core.errors import InputError, as_options
from idiolect.core.terminal import Formatter
from idiolect.studies import Study

CODE = """
from pathlib import Path
import torch
Path("executed").touch()
def net(shape, classes):
    return torch.nn.Flatten(), torch.nn.LazyLinear(classes)
def rows():
    raise SystemExit
def split(source, clients, rng, *, share: float = 0.5):
    raise SystemExit
def method(task, share=0.5):
    raise SystemExit
"""
SITES = ("\x1b]0;gone\x07Oslo", "\u202eotroP")
CLASSES = ("\x1b[31mill", "</script><img src=x>\x9b2J")
TABLE = "patient,site,a,diagnosis\n" + "".join(
    f"p{i},{SITES[i % 2]},{i % 7},{CLASSES[i % 3 == 0]}\n" for i in range(40)
)


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[[str], Said]


@pytest.fixture
def idiolect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in a folder with a stranger's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    Path("theirs.py").write_text(CODE)

    def call(line: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return Said(int(str(ended.value.code)), out, err)

    return call


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "p.csv").write_text(TABLE)
    study = Study(
        data=str(folder / "p.csv"), target="diagnosis", client_column="site", drop="patient", model="mlp", rounds=1,
        local_epochs=1, methods="fedavg",
    )  # fmt: skip
    idl.run(study, folder / "run", engine="sequential")
    return folder / "run"


# --- code named by a file


@pytest.mark.parametrize(
    "setting",
    [
        "model: theirs.net",
        "data: theirs.rows",
        "partition: theirs.split:share=0.2",
        "methods: theirs.method",
        "methods: fedavg,theirs.method:share=0.2",
        "methods: [fedavg, {name: theirs.method, label: fedprox}]",
        "methods: {name: theirs.method}",
        "methods: {name: theirs.method, options: {share: 0.2}}",
        "methods: !!set {theirs.method}",
        "methods: !!set {fedavg, 'theirs.method:share=0.2'}",
        f"model: !!binary {base64.b64encode(b'theirs.net').decode()}  # theirs.net",
    ],
)
@pytest.mark.parametrize("command", ["run s.yaml", "describe s.yaml"])
def test_code_that_a_study_names_is_not_run(idiolect: Command, setting: str, command: str) -> None:
    Path("s.yaml").write_text(f"{setting}\nrounds: 1\n")
    code, out, err = idiolect(command)
    name, path = setting.partition(":")[0], re.search(r"theirs\.\w+", setting)[0]
    assert (code, out) == (2, "")
    assert err == (
        f"idiolect: s.yaml: {name} {path} is code, and reading it would run the module theirs: check that module "
        "first, then give --allow-import\n"
    )
    assert not Path("executed").exists()
    with pytest.raises(InputError, match=rf"s\.yaml: {name} {path} is code, .* then give allow_import=True$"):
        Study.read("s.yaml")
    assert Study.look("s.yaml").imports() == {name: path}
    assert not Path("executed").exists()
    assert idiolect(f"{command} --allow-import").code == 2
    assert Path("executed").exists(), "with a word it is, and fails by itself"


def test_code_that_a_run_names_is_not_run(idiolect: Command, a_run: Path, tmp_path: Path) -> None:
    theirs = {"model": "theirs.net"}, {"partition": "theirs.split", "clients": None}, {"methods": ["theirs.method"]}
    for name, also in zip("abc", theirs, strict=True):
        shutil.copytree(a_run, name)
        there = yaml.safe_load((a_run / "study.yaml").read_text())
        Path(name, "study.yaml").write_text(yaml.safe_dump(there | also))
        manifest = json.loads(Path(name, "manifest.json").read_text())
        manifest["study"] |= also  # whoever hands on a folder sees to it that they fit
        manifest["hash"] = name * 64  # nor do their samples have to be ours
        del manifest["seal"]
        Path(name, "manifest.json").write_text(json.dumps(manifest))
    code, out, err = idiolect("diff a b")
    assert (code, err) == (0, "")
    assert "theirs.net" in out
    assert "theirs.split" in out
    code, out, err = idiolect("run --resume --out a")
    assert (code, out) == (2, "")
    assert "a/study.yaml: model theirs.net is code" in err
    refused = idiolect(f"run --resume --out b --data {a_run.parent / 'p.csv'} --target diagnosis --model mlp")
    assert refused.code == 2
    refused = idiolect("run --resume --out c")
    assert refused.code == 2
    assert "c/study.yaml: methods theirs.method is code" in refused.err
    assert "theirs.method" in idiolect("diff a c").out
    with pytest.raises(InputError, match="has another study"):
        idl.run(Study(**yaml.safe_load((a_run / "study.yaml").read_text())), "a", resume=True)
    assert idiolect("report a").code == 0
    assert not Path("executed").exists()


def test_a_path_typed_by_oneself_is_ones_word(idiolect: Command) -> None:
    Path("s.yaml").write_text("model: theirs.net\nrounds: 1\n")
    assert "lazy" in idiolect("describe s.yaml --model theirs.net").err
    assert Path("executed").exists()
    Path("executed").unlink()
    sys.modules.pop("theirs")
    assert "theirs.net is code" in idiolect("describe s.yaml --clients 3").err
    assert idiolect("describe s.yaml --model mlp --clients 3").code == 0
    assert not Path("executed").exists()
    study = Study(model="theirs.net")
    federation = study.federation()
    with pytest.raises(InputError, match="lazy"):
        study.task_of(federation)


def test_the_way_on_repeats_the_word() -> None:
    """What a stopped run says goes on without asking again: its user has given that word."""
    from idiolect.studies.runner import command_again

    with as_options():
        assert command_again("run", "study", Path("r"), "auto", None, imports=True).endswith("--out r --allow-import")
        assert "--allow-import" not in command_again("run", "study", Path("r"), "auto", None, imports=False)


# --- names that a terminal would obey


def is_plain(text: str) -> bool:
    return not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"]


def test_names_reach_no_terminal_and_no_page_as_they_are(idiolect: Command, a_run: Path) -> None:
    Path("p.csv").write_text(TABLE)
    mine = "--data p.csv --client-column site --target diagnosis --drop patient --model mlp"
    code, out, err = idiolect(f"describe {mine}")
    assert (code, err, is_plain(out)) == (0, "", True), out
    assert r"\x1b]0;gone\x07Oslo" in out
    assert r"\u202eotroP" in out
    assert r"\x1b[31mill" in out
    code, out, err = idiolect(f"describe {mine} --json")
    assert (code, is_plain(out)) == (0, True)
    assert [client["name"] for client in json.loads(out)["clients"]] == sorted(SITES)
    for page in (Path("runs/describe.html"), a_run / "report.html"):
        assert "<img src=x>" not in page.read_text()
    wrong = idiolect(f"describe {mine} --new-clients '\x1b[2J'")
    assert (wrong.code, is_plain(wrong.err)) == (2, True)
    assert r"\x1b]0;gone\x07Oslo" in wrong.err
    labelled = 'label: "\\u001b[5mloud"'
    Path("s.yaml").write_text(f"methods: [{{name: fedavg, {labelled}}}]\ndata: p.csv\nrounds: 1\nlocal_epochs: 1\n")
    code, out, err = idiolect("run s.yaml --clients 2 --client-column site --target diagnosis --drop patient --out r")
    assert (code, is_plain(out), is_plain(err)) == (0, True, True), out + err
    assert "\\x1b[5mloud: 1 round\n" in err
    assert r"\x1b[5mloud" in out


def test_warnings_and_errors_are_fit_for_a_terminal(idiolect: Command) -> None:
    record = logging.LogRecord("idiolect", logging.WARNING, "", 0, "column %s", ("\x1b[31m",), None)
    assert Formatter().format(record) == r"column \x1b[31m"
    assert str(InputError("a\x9b2J\nb\udc80")) == "a\\x9b2J b\\udc80", "one line"
    assert idiolect("list engines").code == 0
    assert logging.lastResort is not None
    assert isinstance(logging.lastResort.formatter, Formatter)


def test_texts_for_a_terminal_are_made_in_one_place() -> None:
    """Rich's own text would send what it is given."""
    sends = re.compile(r"""rich\.text|console\.print\(f?["']""")
    found = [path.name for path in Path(files.__file__).parent.rglob("*.py") if sends.search(path.read_text())]
    assert found == ["terminal.py"]
