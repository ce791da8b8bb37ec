"""The fuzzer: settings, files and run folders, each case a command in a process of its own.

python tests/fuzz/run.py --cases 1000 --seed 1     # counts, and every case that failed
python tests/fuzz/run.py --seed 1 --only 734       # one case again, with its folder kept
python tests/fuzz/run.py --specimens               # commands that are broken on purpose: each has to be caught
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import harness  # noqa: E402  after the threads are set
import specimens  # noqa: E402
from harness import Case, Seen  # noqa: E402

FAMILIES = ("settings", "settings", "files", "files", "run folders")
_FUZZER: list[Fuzzer] = []  # the processes that try cases are forked, and find it here


class Fuzzer:
    """Everything imported, and what cases copy made once, in ``place``."""

    def __init__(self, place: Path) -> None:
        import torch

        torch.set_num_threads(1)
        import files
        import folders
        import settings
        import sklearn.datasets  # noqa: F401  which takes a second
        import typer.main

        import idiolect.cli
        import idiolect.methods
        import idiolect.report.page

        self.place, self.entry = place, idiolect.cli.main
        commands = typer.main.get_command(idiolect.cli.app).commands  # type: ignore[attr-defined]
        known = {
            name: [o for p in command.params for o in p.opts if o[:2] == "--"] for name, command in commands.items()
        }
        idiolect.report.page._bundle()  # takes seconds where it is not in the user's cache
        with _home(place / "home"):
            files.prepare(place / "files")
            folders.prepare(place / "runs", self.entry)
        self._make: dict[str, Callable[[random.Random, Path], Case]] = {
            "settings": lambda rng, here: settings.case(rng, here, known),
            "files": lambda rng, here: files.case(rng, here, place / "files"),
            "run folders": lambda rng, here: folders.case(rng, here, place / "runs"),
        }
        typer.main.get_command = functools.cache(typer.main.get_command)  # it takes a tenth of a second
        typer.main.get_command(idiolect.cli.app)
        sys.path[:] = [p for p in sys.path if p != os.path.dirname(__file__)]
        idiolect.methods.names()  # kept for this path: it reads the metadata of all installed packages
        gc.collect()
        gc.freeze()  # so that children share the pages

    def one(self, seed: int, number: int, root: Path) -> tuple[Case, Seen]:
        """A case, in the folder ``root``."""
        rng = random.Random(f"{seed}-{number}")
        (root / "here").mkdir(parents=True)
        case = self._make[FAMILIES[number % len(FAMILIES)]](rng, root / "here")
        return case, harness.observe(case, self.entry, root)


@contextlib.contextmanager
def _home(path: Path) -> Iterator[None]:
    path.mkdir()
    old = {name: os.environ.get(name) for name in ("HOME", "XDG_CACHE_HOME")}
    os.environ.update(dict.fromkeys(old, str(path)))
    yield
    for name, value in old.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def _clear(root: Path) -> None:
    for folder, folders, _ in os.walk(os.fsencode(root)):
        for name in folders:
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                if not stat.S_ISLNK(os.lstat(path).st_mode):
                    os.chmod(path, 0o700)
    shutil.rmtree(os.fsencode(root), ignore_errors=True)


def _told(seed: int, number: int, case: Case, seen: Seen) -> str:
    command = shlex.join(("idiolect", *case.arguments)) if case.entry is None else "(from Python)"
    told = [f"case {number} of seed {seed}, {case.family}: {case.what}", f"  {command[:400]}"]
    told += [f"  code {seen.code}, {seen.seconds:.1f} s", *(f"  ! {one}" for one in seen.complaints)]
    told += [f"  | {line[:300]}" for line in seen.err.splitlines()[-6:]]
    return "\n".join(told).encode("ascii", "backslashreplace").decode()


def _tried(seed: int, number: int) -> tuple[int, str, str, float, str]:
    """A case in a folder that is removed: its number, family, outcome and seconds, and what failed, in words."""
    root = _FUZZER[0].place / f"case-{number}"
    case, seen = _FUZZER[0].one(seed, number, root)
    _clear(root)
    told = _told(seed, number, case, seen) if seen.complaints else ""
    return number, case.family, seen.outcome, seen.seconds, told


def _specimens(place: Path) -> int:
    """How many broken commands went unnoticed."""
    usual, harness.BLOCKED = harness.SECONDS, 2.0
    missed = 0
    for name, (entry, wanted) in specimens.SPECIMENS.items():
        harness.SECONDS = 1.5 if "hangs" in wanted else usual  # a slow machine needs seconds for the others too
        root = place / name
        (root / "here").mkdir(parents=True)
        seen = harness.observe(specimens.case(name, root / "here"), entry, root)
        caught = any(wanted in one for one in seen.complaints)
        missed += not caught
        print(f"{'caught' if caught else 'MISSED'}: {name}: {'; '.join(seen.complaints) or 'nothing'}"[:300])
    return missed


def main() -> int:
    """Run cases, print what came of them, and return how many failed."""
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--only", type=int, help="one case; its folder is kept")
    parser.add_argument("--specimens", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        if asked.specimens:
            return _specimens(place)
        _FUZZER.append(fuzzer := Fuzzer(place))
        if asked.only is not None:
            root = Path(tempfile.mkdtemp(prefix=f"case-{asked.seed}-{asked.only}-"))
            case, seen = fuzzer.one(asked.seed, asked.only, root)
            print(_told(asked.seed, asked.only, case, seen))
            print(
                f"{seen.out[-2000:]!a}\n{seen.err[-4000:].encode('ascii', 'backslashreplace').decode()}\nkept: {root}"
            )
            return len(seen.complaints)
        counts: dict[str, Counter[str]] = {family: Counter() for family in dict.fromkeys(FAMILIES)}
        failed, spent = [], 0.0
        with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("fork")) as pool:
            for number, family, outcome, seconds, told in pool.map(_tried, repeat(asked.seed), range(asked.cases)):
                spent += seconds
                counts[family].update((outcome, "cases"))
                if told:
                    failed.append(number)
                    print(told, flush=True)
        for family, found in counts.items():
            rest = ", ".join(f"{n} {name}" for name, n in sorted(found.items()) if name != "cases")
            print(f"{family}: {found['cases']} cases, {rest}")
        print(
            f"seed {asked.seed}: {sum(c['cases'] for c in counts.values())} cases, {len(failed)} failed {failed or ''}"
        )
        print(f"{time.monotonic() - began:.0f} s, of which the commands computed {spent:.0f} s")
        return len(failed)
    finally:
        _clear(place)


if __name__ == "__main__":
    sys.exit(min(1, main()))
