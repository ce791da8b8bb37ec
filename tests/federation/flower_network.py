"""A SuperLink with TLS and SuperNodes with registered keys, each a process, as docs/flower.md says to start them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import idiolect
from flower import certificates, free_port, node_key, until
from idiolect.federation.events import FILE
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision

BIN = Path(sys.executable).parent
"""Where the programs of Flower are, if it is installed."""
Event = dict[str, Any]


class Network:
    """A SuperLink, SuperNodes and an app.

    Args:
        folder: for all that they keep.
        files: the samples of each site, by name.
        study: the file of the study.
    """

    def __init__(self, folder: Path, files: dict[str, Path], study: Path) -> None:
        self.folder, self.sites = folder, tuple(files)
        self._port, self._fleet, self._control = free_port(), free_port(), free_port()
        self._programs: list[subprocess.Popen[bytes]] = []
        home = folder / "home"
        home.mkdir()
        self._environment = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONPATH": str(Path(idiolect.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        certificates(folder)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self._port}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )
        provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=self.sites), folder / "kits")
        for name, file in files.items():
            settings = {"kit": f"kits/site-{name}", "data": str(file), "target": "label", "state": f"state-{name}"}
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
            node_key(folder / f"{name}.key")
        self.call("idiolect", "federation", "app", study, "--kit", "kits/server", "--run", "run", "--out", "app")

    def call(self, *words: object) -> str:
        """What a program says that has to succeed."""
        command = [str(word) for word in words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, log: str, *words: object) -> subprocess.Popen[bytes]:
        """A program that goes on; what it says is added to a file."""
        with (self.folder / log).open("ab") as file:
            program = subprocess.Popen(
                [str(word) for word in words], stdout=file, stderr=subprocess.STDOUT, env=self._environment,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self._programs.append(program)
        return program

    def superlink(self, *more: object) -> subprocess.Popen[bytes]:
        """A SuperLink that listens."""
        words: list[object] = ["flower-superlink", "--port", self._port, "--disable-runtime-dependency-installation"]
        words += ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        words += ["--enable-supernode-auth", *more]
        program = self.start("superlink.log", *words)
        until(self._port)
        return program

    def register(self, sites: Sequence[str]) -> None:
        """Make the keys of sites known to the SuperLink."""
        for site in sites:
            self.call("flwr", "supernode", "register", f"{site}.pub", "here")

    def stranger(self) -> subprocess.Popen[bytes]:
        """A SuperNode whose key nobody has registered, with the settings of the last site."""
        node_key(self.folder / "stranger.key")
        return self.supernode(self.sites[-1], "stranger.key")

    def supernode(self, site: str, key: str | None = None) -> subprocess.Popen[bytes]:
        """A SuperNode with the settings of a site."""
        words: list[object] = [
            "flower-supernode",
            "--superlink",
            f"127.0.0.1:{self._port}",
            "--root-certificates",
            "ca.pem",
        ]
        words += ["--auth-supernode-private-key", key or f"{site}.key", "--port", free_port()]
        words += ["--node-config", f'idiolect="{self.folder / site}.yaml"']
        return self.start(f"{key or site}.log", *words)

    def run(self, **settings: float) -> subprocess.Popen[bytes]:
        """``flwr run`` of the app."""
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        return self.start("run.log", "flwr", "run", "app", "here", "--stream", "--run-config", text)

    def events(self) -> list[Event]:
        """The server's, so far."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.folder / "run" / FILE).read_text().splitlines()]
        return []

    def wait(self, what: Callable[[Event], bool], seconds: float = 600.0) -> Event:
        """The first event of a kind; it is waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := [event for event in self.events() if what(event)]:
                return found[0]
            time.sleep(0.5)
        raise AssertionError([event["event"] for event in self.events()])

    def log(self, name: str) -> str:
        """What a program has said."""
        return (self.folder / name).read_text(errors="replace")

    def end(self) -> None:
        """End all programs, with those that they started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for program in self._programs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, sign)
            for program in self._programs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(15)


@contextlib.contextmanager
def network(folder: Path, files: dict[str, Path], study: Path) -> Iterator[Network]:
    """A network that ends with the block."""
    one = Network(folder, files, study)
    try:
        yield one
    finally:
        one.end()
