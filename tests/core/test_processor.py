"""The cores that a process may use, also where a container's quota gives it fewer than the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from idiolect.core import processor


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores, whose files about groups of processes are in a folder."""
    monkeypatch.setattr(processor, "_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(processor, "_ROOT", tmp_path / "fs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "files", "count"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "350000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "100000 100000\n", "a/cpu.max": "800000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 16),
        ("0::/\n", {}, 16),
        ("4:cpu,cpuacct:/box\n3:memory:/\n",
         {"cpu,cpuacct/box/cpu.cfs_quota_us": "600000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000"}, 6),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ("5:cpuset:/\n", {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, 16),
    ],
)  # fmt: skip
def test_cores_under_a_quota(place: Path, group: str, files: dict[str, str], count: int) -> None:
    (place / "cgroup").write_text(group)
    for name, text in files.items():
        (place / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "fs" / name).write_text(text)
    assert processor.cores() == count


def test_without_groups_of_processes_there_is_no_quota(place: Path) -> None:
    assert processor.quota() == math.inf
    assert processor.cores() == 16
