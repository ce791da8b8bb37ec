"""Runs a command in a forked child, as a shell would, and says what a user would have to complain about."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import signal
import stat
import sys
import threading
import time
import traceback
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

SECONDS = 12.0  # of processor time that a command may take before it trains
TRAINING = 4.0  # and where it trains as long as it was told to, until it is asked to stop
PATIENCE = 10.0  # seconds of processor time to stop in
BLOCKED = 60.0  # seconds on the wall in which nothing is computed
MEMORY = 2 << 30  # bytes beyond those of the parent
GROWTH = 700 << 20  # bytes that may be in use at once beyond the parent's
SECRET = "secret.png"  # lies outside of what a case may read
MARKER = "executed"  # the file that a stranger's code leaves
_GOING_ON = ("continue with", "what was done is in", "a new try needs another", "start again with")
_TOLD = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}
_POLLS = 0.004


class Case(NamedTuple):
    """A command with the files that it finds.

    Attributes:
        family: what it is about.
        what: what was done to its files, for a reader.
        arguments: of the command line.
        writes: where it may write, below the folder that it is run in.
        made: the folder that is whole once the command has ended well; "" for none.
        encoding: of the terminal.
        check: looks at the folder after a command that ended well, and returns complaints.
        entry: a program in place of the command line.
    """

    family: str
    what: str
    arguments: Sequence[str]
    writes: tuple[str, ...] = ()
    made: str = ""
    encoding: str = "utf-8"
    check: Callable[[Path], list[str]] | None = None
    entry: Callable[[Sequence[str]], object] | None = None


class Seen(NamedTuple):
    """What came of a case: a code as a shell gives it, what was printed, and what there is to complain about."""

    code: int
    out: str
    err: str
    seconds: float
    complaints: list[str]
    stopped: bool = False

    @property
    def outcome(self) -> str:
        """Accepted, refused, or failed in itself, as a run that diverges."""
        return "accepted" if self.code == 0 or self.stopped else "refused" if self.code == 2 else "ended with 1"


def refuse(error: Exception) -> NoReturn:
    """What the command line makes of an error, for cases from Python."""
    told = " ".join(str(error).encode("ascii", "backslashreplace").decode().split())
    print("idiolect: " + "".join(c if c.isprintable() else "?" for c in told), file=sys.stderr)
    raise SystemExit(2)


def contents(root: Path, without: tuple[str, ...] = ()) -> dict[str, str]:
    """What a folder holds: a digest of every file's kind, mode and bytes, links not followed."""
    found = {}
    for folder, folders, names in os.walk(os.fsencode(root)):
        for raw in folders + names:
            path = os.path.join(folder, raw)
            name = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            if any(name == skipped or name.startswith(f"{skipped}/") for skipped in without):
                continue
            about = os.lstat(path)
            digest = hashlib.blake2b(f"{about.st_mode} ".encode(), digest_size=16)
            if stat.S_ISLNK(about.st_mode):
                digest.update(os.readlink(path))
            elif stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    digest.update(file.read())
            found[name] = digest.hexdigest()
    return found


def observe(case: Case, entry: Callable[[Sequence[str]], object], root: Path) -> Seen:
    """Run a case in ``root/here``, and judge it."""
    here, private = root / "here", root / "private"
    private.mkdir()
    before = contents(here)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(case, case.entry or entry, here, private)
    status, usage, stopped, complaints = _wait(pid, here, case)
    out, err = ((private / name).read_bytes() for name in ("stdout", "stderr"))
    seen = Seen(
        os.waitstatus_to_exitcode(status),
        out.decode(case.encoding, "backslashreplace"),
        err.decode(case.encoding, "backslashreplace"),
        usage.ru_utime + usage.ru_stime,
        complaints,
        stopped,
    )
    grown = (usage.ru_maxrss << 10) - _resident()
    if grown > GROWTH:
        complaints.append(f"{grown >> 20} MiB in use")
    events = private / "events"
    if events.exists():
        complaints += sorted(set(events.read_text(errors="replace").splitlines()))[:5]
    if (here / MARKER).exists() and case.entry is None and not any("evil" in a for a in case.arguments):
        complaints.append("code that only a file named was executed")
    complaints += _words(seen) + _changes(case, seen, before, contents(here))
    if seen.code == 0 and not complaints and case.check:
        complaints += case.check(here)
    return seen


def _words(seen: Seen) -> list[str]:
    """What is wrong with the exit code and with what was printed."""
    found = []
    if seen.code < 0:
        name = signal.Signals(-seen.code).name
        found.append(f"ended by {name}")
    elif seen.stopped and seen.code not in _TOLD:
        found.append(f"exit code {seen.code} where it was asked to stop")
    elif not seen.stopped and seen.code not in (0, 1, 2):
        found.append(f"exit code {seen.code}")
    for name, text in (("stderr", seen.err), ("stdout", seen.out)):
        if "Traceback (most recent call last)" in text or "Exception ignored" in text:
            found.append(f"a traceback on {name}")
        if control := sorted({c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"}):
            found.append(f"{name} has the control characters {control}")
    lines = seen.err.splitlines()
    said = bool(lines) and len(lines[-1]) > 20 and (seen.code == 1 or lines[-1].startswith("idiolect: "))
    if seen.code in (1, 2) and not said:
        found.append(f"no sentence on stderr, but {(lines or ['nothing'])[-1][:200]!r}")
    if seen.code == 2 and sum(line.startswith("idiolect: ") for line in lines) > 1:
        found.append("more than one sentence on stderr")
    return found


def _changes(case: Case, seen: Seen, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What was written that should not have been, or not written that should."""
    begun = seen.code in (0, 1) or seen.stopped or any(words in seen.err for words in _GOING_ON)
    allowed = case.writes if begun else ()

    def mine(name: str) -> bool:
        return any(name == one or name.startswith(f"{one}/") for one in allowed) or any(
            one.startswith(f"{name}/") for one in allowed
        )

    found = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not mine(name) and name != MARKER:
            how = "removed" if name not in after else "changed" if name in before else "left"
            found.append(f"{how} {name!r}" + ("" if begun else ", though it was refused"))
    found += [f"left the draft {name!r}" for name in after.keys() - before.keys() if name.endswith(".tmp")]
    if seen.code == 0 and case.made:
        parts = ("study.yaml", "manifest.json", "records.parquet", "timings.parquet", "engine.json", "report.html")
        found += [f"no {case.made}/{part}" for part in parts if f"{case.made}/{part}" not in after]
    return found[:6]


def _wait(pid: int, here: Path, case: Case) -> tuple[int, Any, bool, list[str]]:
    """Its end; it is asked to stop where it trains longer than a test has time for, and killed where it hangs."""
    began, asked, complaints = time.monotonic(), 0, list[str]()
    busy, since, asked_at = 0.0, began, 0.0
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage, asked > 0, complaints
        time.sleep(_POLLS)
        now = time.monotonic()
        if now - began < 1:
            continue
        spent = _processor_seconds(pid)
        if spent > busy + 0.05:
            busy, since = spent, now
        hangs = now - since > BLOCKED
        trains = case.made and (here / case.made / "study.yaml").exists()
        if not asked and trains and (spent > TRAINING or hangs):
            os.kill(pid, signal.SIGTERM)
            asked, asked_at, since = 1, spent, now
        elif asked == 1 and spent > asked_at + PATIENCE / 2:
            os.kill(pid, signal.SIGTERM)  # a second one stops at once
            asked = 2
        elif hangs or spent > (asked_at + PATIENCE if asked else SECONDS):
            complaints.append("does not stop" if asked else f"hangs ({spent:.1f} s of processor time)")
            os.kill(pid, signal.SIGKILL)
            return (*os.wait4(pid, 0)[1:], asked > 0, complaints)


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _child(case: Case, entry: Callable[[Sequence[str]], object], here: Path, private: Path) -> NoReturn:
    """The command, in a process like the one that a shell would start."""
    code = 99
    try:
        os.setpgid(0, 0)
        for number, name in enumerate(("/dev/null", private / "stdout", private / "stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), case.encoding, write_through=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), case.encoding, "backslashreplace", write_through=True
        )
        os.environ.update({k: str(private) for k in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "HF_HOME")})
        os.chdir(here)
        virtual = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True
        _guard(here.parent)
        try:
            entry(case.arguments)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:  # noqa: BLE001  what Python does at the end of a program
            traceback.print_exc()
            code = 1
        threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads, and so does a program's end
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


_ASKS = ("socket.connect", "socket.bind", "socket.getaddrinfo")  # the first two of pairs, for others are local
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full")  # to write into, not to replace
_WRITES = {
    "os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.move": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1,
    "os.chmod": 1, "os.chown": 1, "os.truncate": 1, "os.utime": 1, "shutil.rmtree": 1,
}  # fmt: skip
_WATCHED = frozenset({"open", *_WRITES, *_ASKS})


def _guard(root: Path) -> None:
    """Refuse what is written outside of the case's folder, for a fuzzer may run as anybody, and the network; note the
    latter."""
    inside, events, busy = f"{os.path.realpath(root)}/", root / "private" / "events", threading.local()

    def refuse_outside(path: str, *, follow: bool) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        real = os.path.realpath(path) if follow else os.path.join(os.path.realpath(folder), name)
        if not f"{real}/".startswith(inside) and not (follow and real in _HARMLESS):
            raise PermissionError(13, "Permission denied", path)

    def note(text: str) -> None:
        with open(events, "a", errors="replace") as file:
            file.write(f"{text}\n")

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if os.path.basename(os.path.realpath(path)) == SECRET:
                note(f"read {SECRET}, which lies outside of the data")
            if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                refuse_outside(path, follow=True)
        elif event in _WRITES:
            within = event != "os.truncate" and isinstance(arguments[-1], int) and arguments[-1] >= 0  # an open folder
            for one in arguments[: 0 if within else _WRITES[event]]:
                if isinstance(one, str | bytes | os.PathLike):
                    refuse_outside(os.fsdecode(one), follow=False)
        elif event in _ASKS and (event == "socket.getaddrinfo" or isinstance(arguments[1], tuple)):
            note(f"{event} {arguments[0] if event == 'socket.getaddrinfo' else arguments[1]}")
            raise OSError(101, "the fuzzer has no network")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _WATCHED and not getattr(busy, "on", False):
            busy.on = True
            try:
                look(event, arguments)
            finally:
                busy.on = False

    sys.addaudithook(hook)
