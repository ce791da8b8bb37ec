"""Messages: hints for misspelt names, and arguments by the names that the caller knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError, as_options, nearest, option

SOURCE = Path(idl.__file__).parent
OTHERS = ("ray start", "--object-store-memory", "idiolect ", "pip ", "--seeds 0,1,2")
COLUMNS = ["hospital", *(f"feature_{i}" for i in range(31)), "diagnosis"]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("Diagnosis", "diagnosis"), ("HOSPITAL", "hospital"), ("diagnose", "diagnosis"), ("Feature-30", "feature_30")],
)
def test_the_name_that_was_meant_comes_first(wrong: str, meant: str) -> None:
    assert nearest(wrong, COLUMNS).startswith(f"did you mean {meant!r}? Known: hospital, ")


def test_a_long_list_is_cut_and_a_foreign_name_has_no_hint() -> None:
    said = nearest("zzz", map(str, range(50)))
    assert said.startswith("known: 0, 1, ")
    assert said.endswith("38, 39 and 10 more")
    assert nearest("?", ["!", "?"]) == "did you mean '?'? Known: !, ?"


def test_a_message_is_one_line() -> None:
    """Libraries write tables of columns into theirs."""
    assert str(InputError("no match in a: string\r\n  b: int64\n: write it again\n")) == (
        "no match in a: string b: int64 : write it again"
    )


def texts(tree: ast.AST) -> list[ast.Constant]:
    """All strings but docstrings."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [n for n in found if id(n) not in documented]


def test_below_the_command_line_no_message_names_its_options() -> None:
    """``option`` does, as the caller knows them. Lists of a command's words are commands, not messages."""
    named = []
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.parts or path.name == "errors.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        words = {id(n) for part in ast.walk(tree) if isinstance(part, ast.List) for n in part.elts}
        for node in texts(tree):
            text = str(node.value)
            if re.search(r"(?<![\w-])--[a-z]", text) and id(node) not in words and not any(o in text for o in OTHERS):
                named.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {text}")
    assert named == []


def test_python_and_the_command_line_each_hear_their_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = idl.Study(dataset="digits", rounds=1, clients=2, partition="iid")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "letter.txt").write_text("mine")
    with pytest.raises(InputError) as python:
        study.run(out="there")
    said = "there exists: choose another folder with {}, or continue the run in it with {}"
    assert str(python.value) == said.format("out=...", "resume=True")
    with pytest.raises(InputError, match=r"^resume needs the folder to continue: give out=\.\.\.$"):
        study.run(resume=True)
    with pytest.raises(SystemExit):
        cli.main(["run", "--clients", "2", "--partition", "iid", "--rounds", "1", "--out", "there"])
    assert " ".join(capsys.readouterr().err.split()) == f"idiolect: {said.format('--out', '--resume')}"
    assert option("out") == "out=..."  # whatever a command did before
    with pytest.raises(ValueError, match="x"), as_options():
        raise ValueError("x")
    assert option("data_dir", "a b") == "data_dir='a b'"
