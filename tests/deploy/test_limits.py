"""A resealed bundle that asks for far more than its file has is refused in one sentence, before memory is taken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import idiolect as idl
from idiolect.core import files
from idiolect.deploy.bundle import Bundle

linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of a process's memory is read from Linux's /proc"
)

ROOM = 1000  # MB that a process may hold at its peak; Python, torch and the command take up to 500 of it
COMMANDS = {
    "join": "join b --data graz.csv --target diagnosis --out site",
    "predict": "predict b --data new.csv --out p.parquet",
    "export": "export b --out m.onnx",
    "watch": "watch b --data new.csv",
}
PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (12_000_000_000,) * 2)  # of addresses: threads and libraries reserve many
from idiolect import cli
try:
    cli.main(sys.argv[1:])
finally:
    print("PEAK", next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line[:5] == "VmHWM"))
"""
RESEALED: dict[str, tuple[str, dict[str, Any]]] = {
    "network": ("pfedfda", {"network": {"model": "mlp:hidden=150000000"}}),
    "smaller network": ("pfedfda", {"network": {"model": "mlp:hidden=8000000"}}),
    "network that is not in the file": ("local", {"network": {"model": "mlp:hidden=150000000"}}),
    "shape": ("pfedfda", {"inputs": {"shape": [2**36]}}),
    "image": ("pfedfda", {"inputs": {"kind": "images", "shape": [3, 2**20, 2**20], "columns": [], "scales": []}}),
    "code": ("fedcr", {"method": {"options": {"latent": 10**6}}}),
    "draws": ("fedcr", {"method": {"options": {"samples": 10**6}}}),
    "count": ("fedcr", {"method": {"options": {"samples": 10**12}}}),
    "components": ("fedem", {"method": {"options": {"models": 10**6}}}),
    "hypernetwork": ("pfedhn", {"method": {"options": {"hidden": 10**6}}}),
    "epochs": ("local", {"training": {"local_epochs": 2**40}}),
}


def resealed(folder: Path, changes: dict[str, Any]) -> None:
    """Change ``bundle.json`` as someone would who knows how it is sealed; of a part only the fields that are given."""
    about = json.loads((folder / "bundle.json").read_text())
    for part, value in changes.items():
        if isinstance(value, dict):
            fields = {k: about[part][k] | v if k == "options" else v for k, v in value.items()}
            value = about[part] | fields
        about[part] = value
    about["seal"] = files.UNSEALED
    (folder / "bundle.json").write_bytes(files.sealed(json.dumps(about).encode()))


@pytest.fixture(scope="module")
def bundles(table: idl.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of each method, of the same table."""
    folder = tmp_path_factory.mktemp("every")
    named = ["local", "fedcr", "fedem", "pfedhn", "pfedfda"]
    study = idl.Study(**{k: getattr(table.study, k) for k in ("data", "batch_size", "lr")}, methods=named, rounds=1)
    run = idl.run(study, folder / "run", engine="sequential")
    for name in named:
        run.bundle(name, folder / name)
    return folder


def peak_of(folder: Path, program: str, *line: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which may not hold more than ``ROOM``."""
    done = subprocess.run(
        [sys.executable, "-c", program, *line], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    said, _, peak = done.stdout.rpartition("PEAK ")
    assert int(peak) < ROOM, f"{peak} MB"
    done.stdout = said
    return done


@pytest.mark.thorough
@linux
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_huge_network_with_little_memory(bundles: Path, here: Path, command: str) -> None:
    shutil.copytree(bundles / "pfedfda", here / "b")
    resealed(here / "b", RESEALED["network"][1])
    done = peak_of(here, PROGRAM, *COMMANDS[command].split())
    assert done.returncode == 2
    assert done.stderr.startswith("idiolect: b asks for much more memory than its ")
    assert "get the bundle again from where it was made" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in here.iterdir()) == ["b", "graz.csv", "new.csv"], "nothing is written"


READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (12_000_000_000,) * 2)
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
for folder in sys.argv[1:]:
    try:
        Bundle.read(folder)
        print("read")
    except InputError as error:
        print(error)
print("PEAK", next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line[:5] == "VmHWM"))
"""


@linux
def test_other_huge_counts_are_refused_with_little_memory(bundles: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name.replace(" ", "-") for name in RESEALED]
    for folder, (method, changes) in zip(folders, RESEALED.values(), strict=True):
        shutil.copytree(bundles / method, folder)
        resealed(folder, changes)
    done = peak_of(tmp_path, READ, *map(str, folders))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(RESEALED), said
    words = dict.fromkeys(RESEALED, "asks for much more memory than its")
    words |= {"count": "has a method with samples=1000000000000, which is more than", "epochs": "training.local_epochs"}
    for name, sentence in zip(RESEALED, said, strict=True):
        assert words[name] in sentence, (name, sentence)
        assert sentence.endswith("get the bundle again from where it was made"), name


@linux
def test_a_number_of_clients_takes_no_memory(bundles: Path, tmp_path: Path) -> None:
    """The server's state, which may have a row for each client, is not in a bundle."""
    for name in ("pfedfda", "pfedhn"):
        shutil.copytree(bundles / name, tmp_path / name)
        resealed(tmp_path / name, {"clients": 2**40})
    done = peak_of(tmp_path, READ, "pfedfda", "pfedhn")
    assert (done.returncode, done.stdout) == (0, "read\nread\n")


@pytest.mark.parametrize("name", ["local", "fedcr", "fedem", "pfedhn", "pfedfda"])
def test_a_bundle_as_it_was_made_is_read(bundles: Path, name: str) -> None:
    assert Bundle.read(bundles / name).model().down is not None
