"""A server and five sites, each a process of its own: the simulator's numbers, and what happens when one is killed."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pandas as pd
import pytest
from machines import LONG, Machines, port
from sites import NAMES, study

from idiolect.core.version import __version__
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
_METHODS = "fedavg, fedpac, pfedfda, fedcr, fedlda, fedshrink, scaffold"
_SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def _equal(one: pd.DataFrame, other: pd.DataFrame) -> None:
    both = one.merge(other, on=_SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


def test_methods_give_the_numbers_of_a_simulation(machines: Machines) -> None:
    study(machines.folder, _METHODS, rounds=3)
    machines.serve("plain", "--page", port())
    machines.until("north", "fedavg, seed 0: round 2 trained")
    _page_of(machines, machines.folder / "plain")
    assert machines.ended("server") == 0, machines.said("server")
    assert not (machines.folder / "kits" / "server" / "page.url").exists()
    found = machines.records("plain")
    accuracies = found[(found["metric"] == "accuracy")]
    assert accuracies.groupby(["method", "round"])["client"].nunique().tolist() == [5] * 3 * len(_METHODS.split(","))
    _equal(found, machines.simulated("plain simulated"))
    assert (machines.folder / "plain" / "report.html").exists()


def _page_of(machines: Machines, out: Path) -> None:
    file = machines.folder / "kits" / "server" / "page.url"
    url = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert re.fullmatch(r"http://127\S+token=\S{32,}", url)
    assert str(file) in machines.said("server")
    assert url.partition("=")[2] not in machines.said("server")  # which is no terminal
    status = httpx.get(url.replace("/?", "/status.json?")).json()
    assert [site["site"] for site in status["sites"]] == list(NAMES)
    assert {site["version"] for site in status["sites"]} == {__version__}
    assert status["latest"][-1]["counted"] == 5
    assert httpx.get(url).status_code == 200
    assert url.partition("=")[2] not in (out / "events.jsonl").read_text()


def test_a_server_that_is_killed_goes_on_from_its_last_whole_round(machines: Machines) -> None:
    study(machines.folder, "scaffold", rounds=3)
    machines.serve("killed")
    machines.until(
        "coast", "scaffold, seed 0: round 2 trained"
    )  # the last of five: the server aggregates, or soon will
    machines.kill("server", signal.SIGKILL)
    assert machines.ended("server") == -signal.SIGKILL
    machines.serve("killed")
    assert machines.ended("server") == 0, machines.said("server")
    _equal(machines.records("killed"), machines.simulated("killed simulated"))


def test_a_site_that_is_killed_in_training_comes_back(machines: Machines) -> None:
    study(machines.folder, "fedper", rounds=2, local_epochs=40)
    machines.serve("gone", "--min-sites", 5)
    machines.until("north", "fedper, seed 0: round 1 trained")
    machines.kill("north", signal.SIGKILL)
    assert machines.ended("north") == -signal.SIGKILL
    machines.site("north")
    assert machines.ended("server") == 0, machines.said("server")
    _equal(machines.records("gone"), machines.simulated("gone simulated"))


def test_a_site_that_is_cut_off_is_not_waited_for_and_rejoins(machines: Machines) -> None:
    study(machines.folder, "fedavg", rounds=6, local_epochs=5)
    machines.serve("cut", "--min-sites", 3)
    machines.until("west", "fedavg, seed 0: round 1 trained")
    machines.kill("west", signal.SIGSTOP)
    machines.until("north", "fedavg, seed 0: round 3 trained")
    machines.kill("west", signal.SIGCONT)
    assert machines.ended("server") == 0, machines.said("server")
    found = machines.records("cut")
    absent = found[found["metric"] == "answered"]
    assert set(absent["client"]) == {NAMES.index("west")}
    assert 1 <= absent["round"].nunique() <= 5
    assert "goes on without west" in machines.said("server")
    assert "accuracy" in set(found.query(f"client == {NAMES.index('west')} and round == 6")["metric"])


def _may(*command: object) -> bool:
    """Whether a command that changes the machine succeeded."""
    try:
        return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _fill(disk: Path) -> None:
    """Write until there is no room."""
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_site_whose_disk_is_full_says_so_and_takes_part_again(machines: Machines) -> None:
    disk = machines.folder / "disk"
    disk.mkdir()
    if not _may("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", disk):
        pytest.skip("needs root, to mount a small disk")
    try:
        machines.kill("west", signal.SIGKILL)
        machines.ended("west")
        machines.site("west", state=disk)
        study(machines.folder, "fedper", rounds=12, local_epochs=5)
        machines.serve("full", "--min-sites", 3)
        machines.until("west", "fedper, seed 0: round 1 trained")
        end = time.monotonic() + LONG
        while not re.search(r"west does not count: it says: cannot write \S*round-\d+\.state", machines.said("server")):
            _fill(disk)  # again: older states are deleted
            assert time.monotonic() < end, machines.said("west")
        (disk / "filler").unlink()
        assert machines.ended("server") == 0, machines.said("server")
        found = machines.records("full")
        absent = found[found["metric"] == "answered"]
        assert set(absent["client"]) == {NAMES.index("west")}
        assert 12 not in set(absent["round"])
        assert "No space left on device" in machines.said("west")
        assert {path.name for path in disk.rglob("*.*") if path.is_file()} == {
            "agreement.json", "model.state", "round-11.state", "round-12.state", "secret.json", ".lock"
        }  # fmt: skip
        machines.kill("west", signal.SIGKILL)
        machines.ended("west")
    finally:
        _may("umount", "-l", disk)
    machines.site("west")


@pytest.fixture
def cable() -> Iterator[tuple[str, str]]:
    """Two networks, apart from this machine's own, with a cable between them: the namespaces here and there."""
    here, there = (f"idiolect-{os.getpid()}-{side}" for side in ("here", "there"))
    try:
        if not (
            _may("ip", "netns", "add", here)
            and _may("ip", "netns", "add", there)
            and _may("ip", "-n", here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", there)
            and _may("ip", "-n", here, "address", "add", "192.0.2.1/30", "dev", "cable")
            and _may("ip", "-n", there, "address", "add", "192.0.2.2/30", "dev", "cable")
            and _may("ip", "-n", here, "link", "set", "lo", "up")
            and _may("ip", "-n", here, "link", "set", "cable", "up")
            and _may("ip", "-n", there, "link", "set", "cable", "up")
        ):
            pytest.skip("needs root and the command ip, to make a network that can be cut")
        yield here, there
    finally:
        _may("ip", "netns", "delete", here)
        _may("ip", "netns", "delete", there)


def test_a_cable_that_is_cut_and_mended(machines: Machines, cable: tuple[str, str]) -> None:
    here, there = (f"/run/netns/{name}" for name in cable)
    about = kits.Description(name="far", server=f"192.0.2.1:{port()}", sites=("north", "west"))
    provision(about, machines.folder / "far")
    study(machines.folder, "fedavg", rounds=1000)
    for name, network in (("north", here), ("west", there)):
        machines.start(
            f"far {name}", "site", machines.folder / "far" / f"site-{name}", "--data", machines.files[name],
            "--target", "label", "--state", machines.folder / "states" / f"far {name}", network=network,
        )  # fmt: skip
    machines.start(
        "far server", "federation", "serve", machines.folder / "far" / "server", machines.folder / "study.yaml",
        "--out", machines.folder / "cable", "--lost-after", 3, "--min-sites", 1,
        network=here,
    )  # fmt: skip
    machines.until("far west", " trained", times=2)
    assert _may("ip", "-n", cable[1], "link", "set", "cable", "down")
    machines.until("far server", "closed with 1 of 2 sites", times=2)
    assert _may("ip", "-n", cable[1], "link", "set", "cable", "up")
    before = machines.said("far west").count(" trained")
    machines.until("far west", " trained", times=before + 4)  # the first ones may come too late to count
    for name, number in (("far server", 15), ("far north", 15), ("far west", 15)):
        machines.kill(name, number)
        assert machines.ended(name) == 128 + number, machines.said(name)
    found = machines.records("cable")
    absent = found[found["metric"] == "answered"]
    assert set(absent["client"]) == {1}
    assert absent["round"].nunique() >= 2
    counted = found[(found["metric"] == "bytes_up") & (found["client"] == 1)]
    assert counted["round"].max() > absent["round"].max()


def test_a_signal_ends_the_server_at_a_whole_round(machines: Machines) -> None:
    out, number = "stopped", signal.SIGTERM
    study(machines.folder, "fedavg", rounds=30)
    machines.serve(out)
    machines.until("east", "fedavg, seed 0: round 2 trained")
    machines.kill("server", number)
    assert machines.ended("server") == 128 + number
    assert f"federation serve {machines.folder}/kits/server" in machines.said("server")
    assert machines.records(out)["round"].max() < 30


def test_a_wrong_authority_or_key_learns_nothing_and_goes_on_trying(machines: Machines, tmp_path: Path) -> None:
    provision(kits.Description(name="trial", server=machines.server, sites=NAMES), tmp_path / "other")
    operator = machines.folder / "kits" / "operator"
    same = kits.Description(name="trial", server=machines.server, sites=NAMES)
    provision(same, tmp_path / "same", ca=operator / "ca.pem", ca_key=operator / "ca.key")
    study(machines.folder, "fedavg", rounds=1)
    machines.serve("strange", "--min-sites", 5)
    machines.until("server", "sites can connect")
    machines.site("wrong ca", tmp_path / "other" / "site-north")
    machines.site("wrong key", tmp_path / "same" / "site-north")
    machines.until("wrong ca", "is not the server of this kit, whose authority did not sign its certificate")
    machines.until("wrong key", "its key is not in the roster of this federation")
    assert machines.ended("server") == 0, machines.said("server")
    assert "from 127.0.0.1 was refused: its key is not in the roster" in machines.said("server")
    for name, why in (("wrong ca", "is not the server of this kit"), ("wrong key", "is not in the roster")):
        assert machines.said(name).count(why) == 1  # one line for what is wrong, however often it tries
        machines.kill(name, signal.SIGTERM)
        assert machines.ended(name) == 128 + signal.SIGTERM
        assert not list((machines.folder / "states" / name).rglob("agreement.json"))


def test_a_signal_ends_a_site_and_leaves_no_process(machines: Machines) -> None:
    children: Callable[[int], list[str]] = lambda pid: Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: E731
    pids = dict(machines.running)
    assert sorted(pids) == sorted(NAMES)
    if Path(f"/proc/{pids['north']}/task").is_dir():
        assert all(children(pid) == [] for pid in pids.values())  # a site is one process
    for name, number in zip(NAMES, (2, 15, 15, 15, 2), strict=True):
        machines.kill(name, number)
        assert machines.ended(name) == 128 + number
        assert f"{name} stops" in machines.said(name)
