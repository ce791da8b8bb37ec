"""Pages that a program writes: the option ``--check``, and what is done where a page is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def parser(program: str | None) -> argparse.ArgumentParser:
    """The options of a program, whose docstring is its help."""
    parser = argparse.ArgumentParser(description=program, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a page is out of date")
    return parser


def settle(pages: Mapping[Path, str], *, check: bool, gone: Iterable[Path] = ()) -> None:
    """Write the pages that are out of date, and remove those that are ``gone``; or only check, and end with 1."""
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    gone = sorted(gone)
    if check and (stale or gone):
        names = ", ".join(path.name for path in [*stale, *gone])
        sys.exit(f"out of date: {names}; run python docs/{Path(sys.argv[0]).name}")
    for path in () if check else stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
    for path in () if check else gone:
        path.unlink()
    print(f"{len(pages)} pages, {len(stale) + len(gone)} changed")
