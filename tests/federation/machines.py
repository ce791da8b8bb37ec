"""Processes of a federation for tests: a server and sites, on this machine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from sites import NAMES, tables

from idiolect import report
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from rehearsal import rehearsed

LONG = 100.0  # seconds for what takes a few, on a machine that has other work


def port() -> int:
    """One that is free, and that the system gives to no outgoing connection meanwhile."""
    while True:
        number = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", number))
            return number


class Launcher:
    """A process that has imported everything, from which others are forked."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        assert self._out.readline().strip() == "ready"

    def say(self, **asked: Any) -> str:
        """The answer to a command."""
        self._in.write(json.dumps(asked) + "\n")
        self._in.flush()
        return self._out.readline().strip()

    def close(self) -> None:
        """End it."""
        self._in.close()
        self._process.wait(20)
        self._out.close()


class Machines:
    """The processes of a federation."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.folder = folder
        self.server = f"127.0.0.1:{port()}"
        about = kits.Description(name="trial", server=self.server, sites=NAMES)
        provision(about, folder / "kits")
        self.files = tables(folder)
        self.running: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._say = launcher.say

    def start(
        self, name: str, *arguments: object, network: str | None = None, program: str = "idiolect",
        files: int | None = None,
    ) -> int:  # fmt: skip
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        self._marks.pop(name, None)
        asked = {"arguments": [str(a) for a in arguments], "log": str(log), "network": network}
        asked |= {"program": program, "files": files}
        self.running[name] = int(self._say(**asked))
        return self.running[name]

    def site(self, name: str, kit: Path | None = None, **more: object) -> int:
        options = [part for key, value in more.items() for part in (f"--{key}", value)]
        data = self.files.get(name, self.files["north"])
        return self.start(
            name, "site", kit or self.folder / "kits" / f"site-{name}", "--data", data, "--target", "label",
            "--state", self.folder / "states" / name, *options,
        )  # fmt: skip

    def serve(self, out: str, *options: object, files: int | None = None) -> int:
        self._marks = {name: len(self.said(name)) + self._marks.get(name, 0) for name in self.running}
        return self.start(
            "server", "federation", "serve", self.folder / "kits" / "server", self.folder / "study.yaml", "--out",
            self.folder / out, "--lost-after", 4, *options, files=files,
        )  # fmt: skip

    def ended(self, name: str) -> int:
        """The exit code of a process, once it has one."""
        return int(self._say(wait=self.running.pop(name)))

    def said(self, name: str) -> str:
        """What a process has said since the server was started last."""
        path = self.folder / f"{name}.log"
        return path.read_text()[self._marks.get(name, 0) :] if path.exists() else ""

    def until(self, name: str, text: str, times: int = 1) -> None:
        """Wait until a process has said something so often."""
        end = time.monotonic() + LONG
        while self.said(name).count(text) < times:
            assert time.monotonic() < end, f"{name} never said {text!r}:\n{self.said(name)}"
            time.sleep(0.02)

    def kill(self, name: str, number: int) -> None:
        os.kill(self.running[name], number)

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name, signal.SIGKILL)
            self.ended(name)

    def records(self, out: str) -> pd.DataFrame:
        return report.read(self.folder / out).records

    def simulated(self, out: str) -> pd.DataFrame:
        samples = {name: SiteFiles(self.files[name], target="label") for name in NAMES}
        return rehearsed(study_for(self.folder / "study.yaml", "trial"), samples, self.folder / out).records
