"""What Flower's network costs: a SuperLink and a SuperNode for each site, each a process of its own, on one machine.

The study runs over Flower and over idiolect's own link, one after the other, with the same kits and the same files of
sites. Bytes are those of TCP between sites and server, both ways, counted by a program in between. Flower needs an
environment with the extra ``flower`` (``--bin``), the own link runs in this one.

    python benchmarks/flower.py study.yaml sites --bin flower/bin --out measured [--insecure] [--only own]

``sites`` has a file SITE.yaml for each site, as ``docs/flower.md`` says, without kit and state.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization

from idiolect.core.documents import read_yaml
from idiolect.federation.server.conduct import result
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.certificates import certificate_for, new_authority, new_key, pem


class Counter:
    """Passes TCP on to a port of this machine, and counts the bytes of both directions."""

    def __init__(self, port: int) -> None:
        self.bytes, self._target = 0, port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            visitor, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                visitor.close()
                continue
            for one, other in ((visitor, server), (server, visitor)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(2**16):
                self.bytes += len(content)
                other.sendall(content)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def started(
    commands: Sequence[tuple[Sequence[object], Path]], environment: dict[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that run until the end, with a file for what each says."""
    programs = []
    try:
        for words, log in commands:
            with log.open("wb") as file:
                programs.append(
                    subprocess.Popen(
                        [str(word) for word in words], stdout=file, stderr=subprocess.STDOUT, env=environment,
                        start_new_session=True, cwd=log.parent,
                    )
                )  # fmt: skip
        yield programs
    finally:
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGTERM)
        for program in programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


def certificates(folder: Path) -> None:
    """An authority and a certificate for 127.0.0.1: ca.pem, server.pem, server.key."""
    authority, key = new_authority("measurement", 2)
    own = new_key()
    certificate = certificate_for("superlink", own.public_key(), authority, key, 2, "127.0.0.1")
    private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "ca.pem").write_bytes(pem(authority))
    (folder / "server.pem").write_bytes(pem(certificate))
    (folder / "server.key").write_bytes(own.private_bytes(*private))


def node_key(path: Path) -> None:
    """A SuperNode's key: the private one for OpenSSH, the public one beside it."""
    key, form = new_key(), serialization
    private = form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
    path.write_bytes(key.private_bytes(*private))
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def until(port: int, seconds: float = 120.0) -> None:
    """Wait until somebody listens at a port."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > end:
            raise SystemExit(f"nobody listens at {port}")
        time.sleep(0.2)


def over_flower(study: Path, names: Sequence[str], folder: Path, bin: Path, *, insecure: bool) -> tuple[float, int]:
    """Run the study on a SuperLink and SuperNodes; seconds from ``flwr run`` to its end, and bytes."""
    home, port = folder / "home", free_port()
    home.mkdir()
    environment = os.environ | {
        "PATH": f"{bin}:{os.environ['PATH']}", "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)

    def call(*words: object) -> str:
        command = [str(word) for word in words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
        (folder / "calls.log").open("a").write(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}\n")
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} ends with {done.returncode}; see {folder / 'calls.log'}")
        return done.stdout

    call("idiolect", "federation", "app", study, "--kit", folder / "kits" / "server", "--out", "app", "--run", "run")
    superlink: list[object] = ["flower-superlink", "--port", port, "--disable-runtime-dependency-installation"]
    superlink += ["--fleet-api-address", f"127.0.0.1:{free_port()}"]
    superlink += ["--control-api-address", f"127.0.0.1:{free_port()}"]
    trust: list[object] = ["--insecure"]
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
    if insecure:
        superlink += ["--insecure"]
        config += "insecure = true\n"
    else:
        certificates(folder)
        superlink += ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        superlink += ["--enable-supernode-auth"]
        trust = ["--root-certificates", folder / "ca.pem"]
        config += f'root-certificates = "{folder / "ca.pem"}"\n'
    (home / "config.toml").write_text(config)
    counter = Counter(port)
    with started([(superlink, folder / "superlink.log")], environment):
        until(port)
        nodes = []
        for name in names:
            words: list[object] = ["flower-supernode", "--superlink", f"127.0.0.1:{counter.port}", *trust]
            words += ["--port", free_port(), "--node-config", f'idiolect="{folder / f"{name}.yaml"}"']
            if not insecure:
                node_key(folder / f"{name}.key")
                call("flwr", "supernode", "register", folder / f"{name}.pub", "here")
                words += ["--auth-supernode-private-key", folder / f"{name}.key"]
            nodes.append((words, folder / f"{name}.log"))
        with started(nodes, environment):
            time.sleep(10)
            start = time.monotonic()
            call("flwr", "run", "app", "here", "--stream")
            return time.monotonic() - start, counter.bytes


def over_own_link(study: Path, names: Sequence[str], folder: Path, port: int, counter: Counter) -> tuple[float, int]:
    """Run the study on idiolect's own link; seconds of the server, and bytes."""
    idiolect: list[object] = [sys.executable, "-m", "idiolect"]
    serve = [*idiolect, "federation", "serve", "kits/server", study, "--out", "run", "--listen", f"127.0.0.1:{port}"]
    sites = []
    for name in names:
        settings = read_yaml(folder / f"{name}.yaml")
        words = [*idiolect, "site", settings.pop("kit")]
        for key, value in settings.items():
            values = value if isinstance(value, list) else [value]
            words += [word for one in values for word in (f"--{key.replace('_', '-')}", one)]
        sites.append((words, folder / f"{name}.log"))
    start = time.monotonic()
    with started([(serve, folder / "serve.log")], dict(os.environ)) as [server], started(sites, dict(os.environ)):
        if server.wait(1800):
            raise SystemExit(f"the server ended with an error; see {folder / 'serve.log'}")
        return time.monotonic() - start, counter.bytes


def prepare(sites: Path, folder: Path, address: str) -> list[str]:
    """Kits and files of the sites of one way; the sites' names, the clients' numbers by their order."""
    folder.mkdir(parents=True)
    names = sorted(path.stem for path in sites.glob("*.yaml"))
    provision(kits.Description(name="measured", server=address, sites=tuple(names)), folder / "kits")
    for name in names:
        settings: dict[str, Any] = read_yaml(sites / f"{name}.yaml")
        settings |= {part: str((sites / settings[part]).absolute()) for part in ("data", "test") if part in settings}
        settings |= {"kit": str(folder / "kits" / f"site-{name}"), "state": str(folder / f"state-{name}")}
        settings.pop("site", None)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return names


def main() -> None:
    """Measure, and say the largest difference between the two runs' numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("sites", type=Path)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--only", choices=["flower", "own"])
    given = parser.parse_args()
    study, out = given.study.absolute(), given.out.absolute()
    found = {}
    for way in ("flower", "own"):
        if given.only not in (None, way):
            continue
        folder, port = out / way, free_port()
        counter = Counter(port)
        names = prepare(given.sites.absolute(), folder, f"127.0.0.1:{counter.port}")
        if way == "flower":
            seconds, size = over_flower(study, names, folder, given.bin.absolute(), insecure=given.insecure)
        else:
            seconds, size = over_own_link(study, names, folder, port, counter)
        done = result(folder / "run")
        found[way] = done.records
        wire = done.records[done.records["metric"].isin(["bytes_up", "bytes_down"])]["value"].sum()
        lines = (folder / "run" / "events.jsonl").read_text().splitlines()
        each = [float(m[1]) for line in lines if (m := re.search(r'"seconds": ([0-9.]+), "counted"', line))]
        middle = sorted(each)[len(each) // 2] if each else float("nan")
        said = f"{seconds:.1f} s in all, {middle:.2f} s a round (median of {len(each)}), {size:,} bytes of TCP"
        print(f"{datetime.datetime.now():%H:%M} {way}: {said}, of which uploads and models {wire:,.0f}", flush=True)
    if len(found) == 2:
        keys = ["method", "seed", "round", "client", "stage", "metric", "other"]
        both = found["flower"].merge(found["own"], on=keys, how="outer", indicator=True)
        absent = int((both["_merge"] != "both").sum())
        print(f"{len(both)} numbers, {absent} on one side only, largest difference "
              f"{(both['value_x'] - both['value_y']).abs().max():.3g}")  # fmt: skip


if __name__ == "__main__":
    main()
