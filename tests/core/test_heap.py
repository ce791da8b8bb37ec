"""Memory that a process keeps for its next step: page faults of a process that frees and allocates again."""

import os
import platform
import subprocess
import sys

import pytest

_STEPS = """
import resource, sys
from idiolect.core.heap import keep_heap

def step():
    buffers = [bytearray(8 << 20) for _ in range(8)]
    for b in buffers:
        b[::4096] = bytes(len(b) // 4096)

if sys.argv[1] == "kept":
    keep_heap()
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(), step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 2 * (8 * 8 << 20) // 4096  # of two steps


def _faults(mode: str, tunables: str = "") -> int:
    environment = os.environ | {"GLIBC_TUNABLES": tunables}
    run = subprocess.run([sys.executable, "-c", _STEPS, mode], env=environment, capture_output=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this system has another C library")
def test_a_process_keeps_its_buffers_unless_the_user_has_settings_of_his_own() -> None:
    assert _faults("not kept") > _PAGES / 2
    assert _faults("kept") < _PAGES / 10
    assert _faults("kept", "glibc.malloc.trim_threshold=131072") > _PAGES / 2
