"""Processes of which one is hostile: each upload that it should not send, and what was recorded and is sent again."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pandas as pd
import pytest
from machines import Launcher, Machines
from programs import ROUNDS, TRICKS
from sites import NAMES, Loop, Tamper, study, workers

from idiolect.core import files
from idiolect.federation.events import FILE, Events, read
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
_SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
_COAST = NAMES.index("coast")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("hostile"), launcher)
    try:
        for name in ("south", "east"):
            machines.site(name)
        for name, program in (("north", "recorder"), *((name, "hostile") for name in TRICKS)):
            machines.start(
                name, machines.folder / "kits" / f"site-{name}", machines.files[name],
                machines.folder / "states" / name, machines.folder / "recorded", program=program,
            )  # fmt: skip
        yield machines
    finally:
        machines.close()


def _replayed(machines: Machines, tmp_path: Path) -> None:
    """Send the requests of another site again, as somebody would who has recorded them and has no key of a site."""
    requests = [json.loads(line) for line in (machines.folder / "recorded" / "requests").read_text().splitlines()]
    assert len(requests) >= 1
    operator = machines.folder / "kits" / "operator"
    again = kits.Description(name="trial", server=machines.server, sites=NAMES)
    provision(again, tmp_path / "same", ca=operator / "ca.pem", ca_key=operator / "ca.key")
    provision(again, tmp_path / "other")
    for stranger in (None, tmp_path / "same" / "site-north", tmp_path / "other" / "site-north"):
        context = ssl.create_default_context(cafile=str(operator / "ca.pem"))
        if stranger is not None:
            context.load_cert_chain(stranger / "site.pem", stranger / "site.key")
        for one in requests:
            with httpx.Client(verify=context, base_url=f"https://{machines.server}") as client:
                ask = {"headers": one["headers"], "content": base64.b64decode(one["body"])}
                if stranger is not None and stranger.parent.name == "same":
                    assert client.post(one["path"], **ask).status_code == 403
                else:
                    with pytest.raises(httpx.TransportError):
                        client.post(one["path"], **ask)


def _without(machines: Machines) -> pd.DataFrame:
    """The records of the same study where hostile sites say nothing in place of each trick."""

    def silent(site: str) -> Tamper:
        spoken = {round for round, trick in enumerate(TRICKS[site], 1) if not trick.said}
        return lambda asked, reply: (
            None if asked.about["kind"] == "local" and asked.about["round"] not in spoken else reply
        )

    link = Loop(workers(machines.folder / "alone", machines.files), {site: silent(site) for site in TRICKS})
    whole = study_for(machines.folder / "study.yaml", "trial")
    terms = Terms(Patience(least=3))
    return conduct(whole, link, list(NAMES), machines.folder / "without", Events(quiet=True), terms=terms).records


def test_every_trick_is_refused_and_changes_nothing(machines: Machines, tmp_path: Path) -> None:
    study(machines.folder, "fedper", rounds=ROUNDS, evaluate_every=6)
    machines.serve("hostile", "--min-sites", 3, "--lost-after", 60)  # the 80 MB may keep a busy machine for seconds
    machines.until("server", "does not count")
    _replayed(machines, tmp_path)
    assert machines.ended("server") == 0, machines.said("server")

    events = read(machines.folder / "hostile" / FILE, 1000)
    told = [event for event in events if event.get("site") and not event.get("address")]
    why = {event["round"]: event["excluded"] for event in events if "excluded" in event}
    assert list(why) == list(range(1, ROUNDS + 1))
    silenced = []
    for site, tricks in TRICKS.items():
        for round, trick in enumerate(tricks, 1):
            assert (site in why[round]) == bool(trick.said), trick.name
            if trick.said:
                assert re.search(trick.said, why[round][site]), trick.name
                silenced.append((round, NAMES.index(site)))
        lines = [event["event"] for event in told if event["site"] == site]
        assert all(re.match(f"{site} (does not count|counts again)", line) for line in lines), lines
        changes = [line for line in lines if "in round" not in line]
        assert all(one != other for one, other in itertools.pairwise(changes))  # said when it changes
    assert {event["site"] for event in told} == set(TRICKS)
    for what in (
        "as another's connection: HTTP 410", "with another's ticket: HTTP 409", "asks as another: HTTP 410",
        "one large request: HTTP 413", "an upload that nobody asked for: HTTP 409", "sent twice",
    ):  # fmt: skip
        assert what in machines.said("coast")
    refused = [event for event in events if event.get("address") and event.get("refused")]
    assert {event["address"] for event in refused} == {"127.0.0.1"}
    for text in ("in the roster", "no certificate of a kit", "coast has connected again", "bytes, and"):
        assert any(text in event["refused"] for event in refused), text

    found = machines.records("hostile")
    both = found.merge(_without(machines), on=_SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6
    gone = found.query("metric == 'answered'")
    assert sorted(zip(gone["round"], gone["client"], strict=True)) == sorted(silenced)
    assert (machines.folder / "hostile" / "report.html").exists()
    assert not list(machines.folder.rglob(files.DRAFT))
    assert not [name for name in ("server", *NAMES) if "Traceback" in machines.said(name)]


def test_a_site_that_comes_after_the_start(machines: Machines) -> None:
    for name in TRICKS:
        machines.kill(name, signal.SIGKILL)
        machines.ended(name)
    machines.site("west")
    study(machines.folder, "fedper", rounds=1000)
    machines.serve("late", "--start-with", 4, "--min-sites", 3)
    machines.until("server", "begins without coast, which takes part as soon as it is there")
    machines.until("south", " trained", times=2)
    machines.site("coast")
    machines.until("coast", " trained", times=2)
    machines.kill("server", signal.SIGTERM)
    assert machines.ended("server") == 128 + signal.SIGTERM
    assert re.search(r"coast comes late and takes part from round \d+ of fedper on, with 16", machines.said("server"))
    assert re.search(r"the study began without this site, which takes part from round \d+ on", machines.said("coast"))
    found = machines.records("late")
    absent = found.query("metric == 'answered'")
    assert set(absent["client"]) == {_COAST}
    counted = found.query(f"metric == 'bytes_up' and client == {_COAST}")
    assert counted["round"].min() > absent["round"].max()
    assert not found.query(f"metric == 'accuracy' and client == {_COAST}").empty


def test_of_two_programs_of_one_site_the_first_ends(machines: Machines) -> None:
    study(machines.folder, "fedavg", rounds=1000)
    machines.serve("twice", "--min-sites", 3)
    machines.until("coast", " trained")
    kit, state = machines.folder / "kits" / "site-coast", machines.folder / "states" / "copy"
    machines.start(
        "copy", "site", kit, "--data", machines.files["coast"], "--target", "label", "--state", state
    )  # fmt: skip
    assert machines.ended("coast") == 2
    assert "another program has connected" in machines.said("coast")
    machines.until("copy", " trained", times=2)
    machines.kill("server", signal.SIGTERM)
    machines.ended("server")
