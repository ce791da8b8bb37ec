"""Whatever the output takes, and whatever nobody nearer named: a sentence and an exit code, never a traceback."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from idiolect import cli
from idiolect.cli import list as listing
from idiolect.cli import output

Ended = Callable[..., int]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ended:
    """``ended(arguments, stdout, stderr)``: the exit code of the command with other streams."""
    monkeypatch.chdir(tmp_path)
    for console in (output.out_console, output.err_console):  # rich silences one for good when nobody reads on
        monkeypatch.setattr(console, "quiet", False)

    def ended(arguments: list[str], stdout: Any = None, stderr: Any = None) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout or io.StringIO())
            patch.setattr(sys, "stderr", stderr or io.StringIO())
            with pytest.raises(SystemExit) as caught:
                cli.main(arguments)
        return int(caught.value.code or 0)

    return ended


def narrow(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)  # type: ignore[attr-defined]


# --- encodings


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_letters_that_an_encoding_lacks(ended: Ended, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"±…█": {"summary": "ż é \udce9"}}
    monkeypatch.setitem(listing._LISTS, listing.Kind.engines, lambda: entry)
    out = narrow(encoding)
    assert ended(["list", "engines"], out) == 0
    wanted = {"ascii": "+-.#  \\u017c \\xe9 \\udce9", "utf-8": "±…█  ż é \\udce9"}
    wanted |= {"cp1252": "±…#  \\u017c é \\udce9", "latin-1": "±.#  \\u017c é \\udce9"}
    assert text(out).strip() == wanted[encoding]
    out = narrow(encoding)
    assert ended(["list", "engines", "--json"], out) == 0
    assert json.loads(text(out)) == entry, "it stays JSON"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_message_that_an_encoding_lacks(ended: Ended, encoding: str) -> None:
    err = narrow(encoding)
    assert ended(["report", "ż\udce9"], None, err) == 2
    assert text(err) == "idiolect: there is no run folder \\u017c\\udce9: give the folder that a run wrote\n"


def test_a_run_into_a_folder_that_is_not_utf8(ended: Ended, tmp_path: Path) -> None:
    """Said after training, when it must not fail."""
    out, err = narrow("utf-8"), narrow("utf-8")
    line = "run --clients 3 --rounds 1 --local-epochs 1 --model mlp --methods local --engine sequential --quiet --out"
    assert ended([*line.split(), "caf\udce9"], out, err) == 0, text(err)
    assert "Report: caf\\udce9/report.html" in text(out)
    assert ended(["report", "caf\udce9"], out) == 0
    assert [os.fsencode(p.name) for p in tmp_path.iterdir()] == [b"caf\xe9"]


@pytest.mark.parametrize("option", ["--methods", "--data", "--model", "--partition", "--target"])
def test_names_that_are_not_utf8_are_refused_first(ended: Ended, tmp_path: Path, option: str) -> None:
    err = narrow("utf-8")
    assert ended(["run", option, "caf\udce9"], None, err) == 2
    assert text(err).startswith("idiolect: ")
    assert text(err).count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- full disks and closed pipes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device is Linux's")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_output(ended: Ended, options: list[str]) -> None:
    err = narrow("utf-8")
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(["list", "engines", *options], full, err) == 2
    said = "idiolect: cannot read or write (No space left on device): free some space, or send the output elsewhere\n"
    assert text(err) == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device is Linux's")
def test_errors_that_cannot_be_said(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "err_console", Console(stderr=True))  # which keeps what it could not write
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(["report", "nowhere"], None, full) == 2


@pytest.mark.skipif(os.name != "posix", reason="pipes are those of POSIX")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nobody_reads_on(ended: Ended, options: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    err = narrow("utf-8")
    with open(writes, "w", encoding="utf-8") as pipe:
        assert ended(["list", "engines", *options], pipe, err) == 141
    assert text(err) == ""


def test_no_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["list", "engines"])
    assert caught.value.code == 0


# --- the last handler


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/x/y"),
            "cannot use /x/y (Permission denied): allow access, or give",
        ),
        (OSError(28, "No space left on device"), "cannot read or write (No space left on device): free some space"),
        (MemoryError("Unable to allocate 2 GiB"), "there is not enough memory (Unable to allocate 2 GiB): take"),
        (
            RuntimeError("[enforce fail at a.cpp:1] . DefaultCPUAllocator: can't allocate memory: you tried"),
            "there is not enough memory (DefaultCPUAllocator: can't allocate memory: you tried): take",
        ),
        (MemoryError(), "there is not enough memory (none is left): take"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "a name or a text is not UTF-8 ("),
        (RecursionError("too\ndeep"), "something that was read is nested too deeply (too deep): "),
    ],
)
def test_what_nobody_named(ended: Ended, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail() -> dict[str, Any]:
        raise error

    monkeypatch.setitem(listing._LISTS, listing.Kind.engines, fail)
    err = narrow("utf-8")
    assert ended(["list", "engines"], None, err) == 2
    assert text(err).startswith(f"idiolect: {said}")
    assert text(err).count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        ["report", "x" * 300], ["report", "r/" * 3000], ["diff", "x" * 300, "y"], ["run", "x" * 300],
        ["run", "--rounds", "1", "--out", "x" * 300], ["run", "--resume", "--out", "x" * 300],
        ["run", "--data", "x" * 300], ["run", "--data", "~nosuchuser/x.csv"], ["run", "--data-dir", "~nosuchuser/x"],
        ["run", "--out", "/dev/null"], ["run", "/dev/null"], ["run", "/dev/zero"], ["report", "/dev/null"],
    ],
)  # fmt: skip
def test_places_that_cannot_be(ended: Ended, tmp_path: Path, line: list[str]) -> None:
    err = narrow("utf-8")
    assert ended(line, None, err) == 2
    assert text(err).startswith("idiolect: ")
    assert text(err).count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_permission(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which root knows nothing, so it is made up."""

    def denied(path: Any, **how: Any) -> Any:
        raise PermissionError(13, "Permission denied", os.fspath(path))

    for line in (["report", "r"], ["diff", "r", "r"], ["run", "--resume", "--out", "r"], ["run", "--data", "r"]):
        err = narrow("utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", denied)
            assert ended(line, None, err) == 2
        assert re.fullmatch(r"idiolect: cannot (use|read) r\S* \(Permission denied\): .*\n", text(err))
