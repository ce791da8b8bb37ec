"""Files are written whole or not at all, into nothing but files; and a sealed one that has changed is noticed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from idiolect.core import files
from idiolect.core.errors import RunError

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes are those of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        files.write(tmp_path / "new", "a")
        for its in (0o600, 0o644, 0o666, 0o755):
            (tmp_path / "old").write_text("before")
            (tmp_path / "old").chmod(its)
            files.write(tmp_path / "old", "after")
            assert (mode(tmp_path / "old"), (tmp_path / "old").read_text()) == (its, "after")
    finally:
        os.umask(old)
    assert mode(tmp_path / "new") == 0o640


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "device"])
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path, there = tmp_path / "page.html", tmp_path / "there"
    there.write_text("mine")
    if kind == "link":
        path.symlink_to(there)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    before = os.lstat(path)
    with pytest.raises(RunError, match=rf"cannot write {path} \(it is a .*{kind.split()[-1]}.*, not a file\)"):
        files.write(path, "theirs")
    assert os.lstat(path) == before
    assert there.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@posix
def test_a_draft_does_not_follow_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one whose name somebody guessed."""
    (tmp_path / "there").write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".idiolect-guessed.tmp").symlink_to(tmp_path / "there")
    with pytest.raises(RunError, match="File exists"):
        files.write(tmp_path / "page.html", "theirs")
    assert (tmp_path / "there").read_text() == "mine"
    assert (tmp_path / ".idiolect-guessed.tmp").is_symlink()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", ""], ids=["long", "nul", "none"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot write"):
        files.write(tmp_path / name, "a")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name(tmp_path: Path) -> None:
    files.write(tmp_path / ("x" * 255), "a")


# --- seals


def test_every_bit_of_a_sealed_file_counts(tmp_path: Path) -> None:
    content = files.sealed(f"before {files.UNSEALED} after".encode())
    (tmp_path / "f").write_bytes(content)
    assert files.read(tmp_path / "f") == content
    mark = content.index(b"idiolect")
    for bit in range(8 * len(content)):
        if mark <= bit // 8 < mark + 16:  # what says that it is sealed
            continue
        harmed = bytearray(content)
        harmed[bit // 8] ^= 1 << bit % 8
        assert not files.intact(bytes(harmed)), bit
    (tmp_path / "f").write_bytes(bytes(harmed))
    with pytest.raises(ValueError, match="has changed since it was written"):
        files.read(tmp_path / "f")


def test_what_was_never_sealed_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"as before")
    assert files.read(tmp_path / "f", most=9) == b"as before"
    with pytest.raises(ValueError, match="it has 9 bytes, and at most 8 are read"):
        files.read(tmp_path / "f", most=8)


@posix
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        files.read(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"(?i)a directory"):
        files.read(tmp_path)
