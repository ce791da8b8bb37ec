"""Two operators who change a federation at one time: one change is made, and the other says why it is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import Place

from idiolect.cli import main
from idiolect.federation.trust.authority import operator
from idiolect.federation.trust.roster import FILE

CHANGES = {
    "add": ["add", "OPERATOR", "dale"],
    "renew": ["renew", "OPERATOR"],
    "revoke": ["revoke", "OPERATOR", "north"],
}
HOLDER = """
import sys
from pathlib import Path
from idiolect.federation.trust.authority import operator
with operator(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _ends(change: str, folder: Path) -> int:
    with pytest.raises(SystemExit) as end:
        main(["federation", *(word.replace("OPERATOR", str(folder)) for word in CHANGES[change])])
    return int(end.value.code or 0)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def _version(folder: Path) -> int:
    return int(json.loads(json.loads((folder / FILE).read_text())["roster"])["version"])


@pytest.mark.parametrize("change", CHANGES)
def test_a_second_change_waits_for_the_first(change: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    own = place.folder / "operator"
    before = _files(place.folder)
    with operator(own):
        assert _ends(change, own) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"idiolect: another command is changing {own}: wait until it has ended, and try again"
    assert _files(place.folder) == before
    assert _ends(change, own) == 0
    assert _version(own) == _version(place.folder / "server") == 2


@pytest.mark.parametrize("change", CHANGES)
def test_two_copies_of_the_kit_share_the_servers(change: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Both would sign a roster 2, and the server could believe only one of them."""
    copy = place.folder / "operator of the other shift"
    shutil.copytree(place.folder / "operator", copy)
    with operator(place.folder / "operator"):
        assert _ends(change, copy) == 2
    assert f"another command is changing {place.folder / 'server'}: wait" in capsys.readouterr().err.replace("\n", " ")
    assert _ends("revoke", place.folder / "operator") == 0
    assert _ends(change, copy) == 2
    assert "this is an old copy" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_killed_blocks_nobody(change: str, place: Place) -> None:
    own = place.folder / "operator"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        assert _ends(change, own) == 2
        other.kill()
    assert _ends(change, own) == 0


def test_an_error_leaves_the_kit_free(place: Place) -> None:
    own = place.folder / "operator"
    for _ in range(2):
        with pytest.raises(RuntimeError), operator(own):
            raise RuntimeError
    assert _ends("renew", own) == 0
