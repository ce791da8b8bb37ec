"""Commands that do what no command may, each with the complaint that it has to bring."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import SECRET, Case

Entry = Callable[[Sequence[str]], object]


def _raises(_: Sequence[str]) -> None:
    raise ValueError("a slip")


def _killed(_: Sequence[str]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _waits(_: Sequence[str]) -> None:
    time.sleep(1000)


def _computes(_: Sequence[str]) -> None:
    while True:
        pass


def _changes(_: Sequence[str]) -> None:
    Path("t.csv").write_text("a,b\n")


def _refuse(text: str = "t.csv has no columns: add one") -> None:
    print(f"idiolect: {text}", file=sys.stderr)
    raise SystemExit(2)


def _removes(_: Sequence[str]) -> None:
    Path("t.csv").unlink()
    _refuse()


def _leaves(_: Sequence[str]) -> None:
    Path("out").mkdir()
    _refuse()


def _halves(_: Sequence[str]) -> None:
    Path("out").mkdir()
    Path("out/study.yaml").write_text("name: x\n")


def _silent(_: Sequence[str]) -> None:
    raise SystemExit(2)


def _five(_: Sequence[str]) -> None:
    print("idiolect: something came in between", file=sys.stderr)
    raise SystemExit(5)


def _red(_: Sequence[str]) -> None:
    _refuse("t.csv has no column \x1b[31mred\x1b[0m: add it")


def _greedy(_: Sequence[str]) -> None:
    held = bytearray(1 << 30)
    held[:: 1 << 12] = b"\1" * len(held[:: 1 << 12])
    _refuse("there is not enough memory: give less")


def _calls(_: Sequence[str]) -> None:
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    except OSError:
        _refuse("t.csv is not on the hub: give another name")


def _outside(_: Sequence[str]) -> None:
    Path("../../written").touch()


def _pries(_: Sequence[str]) -> None:
    Path("../secret.png").read_bytes()


def _executes(_: Sequence[str]) -> None:
    sys.path.append(".")
    __import__("evil")


def _other_numbers(_: Sequence[str]) -> None:
    return None


def case(name: str, here: Path) -> Case:
    """What a specimen is given."""
    (here / "t.csv").write_text("a,b,label\n1,2,x\n")
    (here.parent / SECRET).touch()
    (here / "evil.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    check = (lambda root: ["it ended well with other numbers"]) if name == "other numbers" else None
    return Case("specimens", name, [], ("out",), "out" if name == "half a folder" else "", check=check)


SPECIMENS: dict[str, tuple[Entry, str]] = {
    "raises": (_raises, "a traceback"),
    "is killed": (_killed, "ended by SIGSEGV"),
    "waits": (_waits, "hangs"),
    "computes": (_computes, "hangs"),
    "changes a file": (_changes, "changed 't.csv'"),
    "removes a file": (_removes, "removed 't.csv', though it was refused"),
    "leaves a folder": (_leaves, "left 'out', though it was refused"),
    "half a folder": (_halves, "no out/records.parquet"),
    "says nothing": (_silent, "no sentence"),
    "another code": (_five, "exit code 5"),
    "control characters": (_red, "control characters"),
    "memory": (_greedy, "MiB in use"),
    "network": (_calls, "socket."),
    "writes outside": (_outside, "a traceback"),
    "reads outside": (_pries, "read secret.png"),
    "a stranger's code": (_executes, "was executed"),
    "other numbers": (_other_numbers, "other numbers"),
}
