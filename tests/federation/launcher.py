"""Starts the command line in processes of their own, forked from one that has imported everything.

Reads a line of JSON for each: {"arguments": [...], "log": path}; answers with its process id. {"wait": pid} answers
with its exit code, {"over": true} ends. With "network", the file of a network namespace, the process starts in it. With
"files" it may open so many. With "program", it is one of ``programs.py``, and it starts in "folder".
"""

# ruff: noqa: F401  imported for the children

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import traceback

import programs
import pyarrow.dataset
import scipy.stats

import idiolect.federation.link.server_end
import idiolect.federation.link.site_end
import idiolect.federation.programs
import idiolect.report.page
from idiolect.cli import main
from idiolect.studies import run, watcher

_NETWORK = 0x40000000  # CLONE_NEWNET of Linux; Python has os.setns from 3.12 on


def _child(
    arguments: list[str], log: str, network: str | None = None, program: str = "idiolect", files: int | None = None,
    folder: str = ".",
) -> None:  # fmt: skip
    os.setsid()
    os.chdir(folder)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if network is not None and ctypes.CDLL(None).setns(os.open(network, os.O_RDONLY), _NETWORK):
        os._exit(71)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    try:
        {"idiolect": main, **programs.PROGRAMS}[program](arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001  a child must never go on as its parent
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    os._exit(code)


def serve() -> None:
    """Answer commands until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "over" in asked:
            return
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _child(**asked)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
