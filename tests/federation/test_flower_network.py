"""Faults of Flower's network, with a SuperLink and SuperNodes as processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from flower_network import BIN, Event, Network, network
from sites import study, tables

from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.server.conduct import result
from idiolect.federation.server.study import study_for
from rehearsal import rehearsed

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("flower-superlink", path=str(BIN)) is None, reason="needs the extra flower"),
]
NAMES = ("north", "south", "east")


def _killed(program: subprocess.Popen[bytes]) -> None:
    os.kill(program.pid, signal.SIGKILL)
    program.wait(10)


def _closed(net: Network, round: int) -> Event:
    return net.wait(lambda event: event.get("round") == round and "counted" in event)


def test_a_supernode_is_killed_in_a_round_and_a_stranger_comes(tmp_path: Path) -> None:
    files, file = tables(tmp_path, NAMES), study(tmp_path, rounds=4)
    with network(tmp_path, files, file) as net:
        net.superlink()
        net.register(NAMES)
        nodes = {site: net.supernode(site) for site in NAMES}
        net.stranger()
        run = net.run(**{"min-sites": 2, "lost-after": 5.0})
        _closed(net, 1)
        _killed(nodes["south"])
        assert _closed(net, 2)["absent"] == ["south"]
        net.supernode("south")
        assert run.wait(900) == 0
        assert sorted(_closed(net, 4)["counted"]) == sorted(NAMES)
        events = [event["event"] for event in net.events()]
        assert "the SuperNode of south is offline" in events
        assert "south counts again" in events
        assert len({event["node"] for event in net.events() if "node" in event}) == len(NAMES), (
            "the stranger is not let in"
        )


def test_a_superlink_is_killed_in_a_round_and_the_run_goes_on(tmp_path: Path) -> None:
    files, file = tables(tmp_path, NAMES), study(tmp_path, "fedper", rounds=4)
    with network(tmp_path, files, file) as net:
        link = net.superlink()
        net.register(NAMES)
        nodes = [net.supernode(site) for site in NAMES]
        run = net.run()
        _closed(net, 2)
        _killed(link)
        assert run.wait(120) != 0
        net.superlink()
        assert [node.wait(180) for node in nodes] == [0, 0, 0], "the new SuperLink does not know them"
        net.register(NAMES)
        for site in NAMES:
            net.supernode(site)
        assert net.run().wait(900) == 0
        assert sum(event.get("round") == 1 and "counted" in event for event in net.events()) == 1
        records = result(tmp_path / "run").records
    samples = {name: SiteFiles(path, target="label") for name, path in files.items()}
    alone = rehearsed(study_for(file, "trial"), samples, tmp_path / "simulated").records
    keys = ["method", "seed", "round", "client", "stage", "metric", "other"]
    both = records.merge(alone, on=keys, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


def test_keys_of_sums_are_deleted_at_the_end(tmp_path: Path) -> None:
    files, file = tables(tmp_path, NAMES), study(tmp_path, rounds=1, secure_aggregation=True)
    with network(tmp_path, files, file) as net:
        net.superlink()
        net.register(NAMES)
        for site in NAMES:
            net.supernode(site)
        run = net.run()
        _closed(net, 1)
        assert run.wait(600) == 0
        assert not list(tmp_path.glob("state-*/**/sum.state"))
        assert not [event for event in net.events() if event.get("missing")]
