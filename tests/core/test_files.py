"""Files are written whole or not at all, into nothing but files; and a sealed one that has changed is noticed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from idiolect.core import files
from idiolect.core.errors import InputError, RunError

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


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "no parent"])
def test_a_folder_appears_as_a_whole(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "parent" / "kit" if there == "no parent" else tmp_path / "kit"
    if there == "an empty folder":
        folder.mkdir()
    with files.drafted_folder(folder) as draft:
        files.write(draft / "sub" / "a", "1")
        assert not (folder / "sub").exists()
    assert (folder / "sub" / "a").read_text() == "1"
    assert [p.name for p in folder.parent.iterdir()] == ["kit"]


@posix
@pytest.mark.parametrize("its", [0o700, 0o750, 0o755])
def test_a_folder_has_no_more_rights_than_asked_for(tmp_path: Path, its: int) -> None:
    old = os.umask(0)
    try:
        with files.drafted_folder(tmp_path / "kit", its) as draft:
            assert mode(draft) == its
    finally:
        os.umask(old)
    assert mode(tmp_path / "kit") == its


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), ValueError("no"), KeyboardInterrupt(), InputError("wrong")],
    ids=lambda error: type(error).__name__,
)
def test_nothing_is_left_of_a_folder_that_failed(tmp_path: Path, error: BaseException) -> None:
    def fill() -> None:
        with files.drafted_folder(tmp_path / "kit") as draft:
            files.write(draft / "a", "1")
            raise error

    with pytest.raises(RunError if isinstance(error, OSError) else type(error)) as caught:
        fill()
    if isinstance(error, OSError):
        said = f"cannot write {tmp_path / 'kit'} (No space left on device): free some space, or choose another place"
        assert str(caught.value) == said
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_has_its_last_name(tmp_path: Path) -> None:
    def fill() -> None:
        with files.drafted_folder(tmp_path / "kit") as draft:
            (draft / "key").mkdir()
            files.write(draft / "key", "1")

    with pytest.raises(RunError) as caught:
        fill()
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'kit' / 'key'} (it is a folder, not a file)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["a file", "a folder with a file", "a folder with a folder", "a hidden file"])
def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "kit"
    if there == "a file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        mine = folder / (".mine" if there == "a hidden file" else "mine")
        mine.mkdir() if there == "a folder with a folder" else mine.touch()
    before = sorted(tmp_path.rglob("*"))
    for attempt in (files.vacant, lambda path: files.drafted_folder(path).__enter__()):
        with pytest.raises(InputError, match="kit exists and is not an empty folder: choose another with out="):
            attempt(folder)
    assert sorted(tmp_path.rglob("*")) == before
