"""The worker processes of this program, as the system knows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from idiolect.engines.processes import pool


def alive() -> set[int]:
    """Children of the process that starts workers; those that have ended, and were not asked after yet, count."""
    if not Path("/proc/self").exists():
        pytest.skip("processes are known by Linux's /proc")
    server = pool._SERVER
    found = set()
    for entry in Path("/proc").glob("[0-9]*") if server else ():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == server._process.pid:
            found.add(int(entry.name))
    return found
