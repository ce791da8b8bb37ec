"""Workers as copies of one process that has imported what they need: the first takes seconds, others milliseconds.

The program starts that process when it first makes an engine, and keeps it for later ones. The process ends with the
program, however the program ends. Linux only: on other systems it is not safe to copy a process that has loaded the
system's libraries, and every worker is a new interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any

_LENGTH = struct.Struct("!q")
_STANDARD = (1, 2)  # output and errors, which the program may have redirected after the server started


class ChildProcess:
    """A worker process, with the methods of ``subprocess.Popen`` that end it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self._server = pid, server

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self._server.kill(self.pid)

    def wait(self) -> None:
        """Do nothing: the process has already ended."""


class ForkServer:
    """The program's side of the server.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._ours, other_end = socket.socketpair()
        self._owner, self._lock, self._is_used = os.getpid(), Lock(), False
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                env=environment | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads cannot be copied
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the program alone
            )
        atexit.register(self.end)

    @property
    def usable(self) -> bool:
        """Whether the server runs and belongs to this process: a forked process needs its own server."""
        return self._owner == os.getpid() and self._process.poll() is None

    def start(self, descriptors: list[int]) -> ChildProcess:
        """A worker with these descriptors, and with the program's current folder, environment and import path.

        Raises:
            OSError: the server has ended, or cannot fork.
        """
        request = {"cwd": _folder(), "environ": dict(os.environ), "path": [p or os.getcwd() for p in sys.path]}
        streams = [os.open(os.devnull, os.O_WRONLY) if not _is_open(number) else number for number in _STANDARD]
        try:
            pid = self._ask(request, descriptors + streams)
        finally:
            for stream in set(streams) - set(_STANDARD):
                os.close(stream)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return ChildProcess(self, pid)

    def kill(self, pid: int) -> None:
        """End a worker; if its server has ended, it ends when its connection is closed."""
        with suppress(OSError):
            self._ask({"kill": pid}, [])

    def end(self) -> None:
        """End the server and all workers."""
        if self._owner == os.getpid():
            self._ours.close()
            if not self._is_used:  # perhaps it still imports
                self._process.kill()
            self._process.wait()

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> int:
        content = json.dumps(request).encode()
        with self._lock:
            self._is_used = True
            socket.send_fds(self._ours, [_LENGTH.pack(len(content))], descriptors)
            self._ours.sendall(content)
            answer = self._ours.recv(_LENGTH.size, socket.MSG_WAITALL)
        if len(answer) < _LENGTH.size:
            raise BrokenPipeError("the process that starts workers has ended")
        return int(_LENGTH.unpack(answer)[0])


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork on request, and return in the child its part of the request; end the process when the program has ended."""
    children: set[int] = set()
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, 2 + len(_STANDARD), socket.MSG_WAITALL)
        if not head:
            break
        content = control.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        request = json.loads(content)
        if "kill" in request:
            pid = request["kill"]
            if pid in children:  # else the number may belong to another process by now
                children.discard(pid)
                _end(pid)
            control.sendall(_LENGTH.pack(0))
            continue
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            control.close()
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            children.add(pid)
        control.sendall(_LENGTH.pack(pid))
    for pid in children:
        _end(pid)
    os._exit(0)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> None:
    """Import, serve, and in each child be a worker. The argument is the descriptor to listen on."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the program decides when to stop
        signal.signal(number, signal.SIG_IGN)
    from idiolect.engines.processes import worker

    control = socket.socket(fileno=int(sys.argv[1]))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # import errors had to be visible; the program's stream must not stay open
    request, (pipe, rows, *streams) = _serve(control)
    for standard, stream in zip(_STANDARD, streams, strict=True):
        os.dup2(stream, standard)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[:] = request["path"] + [p for p in sys.path if p not in request["path"]]
    with suppress(OSError):
        os.chdir(request["cwd"] or "/")
    worker.main(pipe, rows)
