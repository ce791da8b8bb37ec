"""The metrics of a server as Prometheus reads them, its health, the token that reads them, and logs as JSON."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from machines import port
from places import Heard
from sites import NAMES, Loop, study, tables, workers

from idiolect.cli import main
from idiolect.core.errors import InputError
from idiolect.federation import events, programs
from idiolect.federation.events import Events
from idiolect.federation.link.server_end import Link
from idiolect.federation.messages import Message, pack
from idiolect.federation.monitor.overview import Overview
from idiolect.federation.monitor.page import STALLED, Page
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.private_files import token_of
from idiolect.studies.progress import Several, Watcher

prometheus = pytest.importorskip("prometheus_client.parser", reason="needs the extra federation")
_TOKEN = "reads-the-metrics-and-nothing-else-0"
Found = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read(text: str) -> Found:
    """The samples in a text, by name and labels, as the parser of Prometheus's own library reads them."""
    found: Found = {}
    for family in prometheus.text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge"), family
        assert family.documentation
        for name, labels, value, *_ in family.samples:
            key = tuple(sorted(labels.items()))
            assert key not in found.setdefault(name, {}), f"{name} {key} twice"
            found[name][key] = value
    return found


def of(found: Found, name: str, **labels: str) -> float:
    return found[f"idiolect_{name}"][tuple(sorted(labels.items()))]


class Watched:
    """A run of two rounds: east's uploads are refused twice, west is silent once, coast has few test samples."""

    def __init__(self, folder: Path) -> None:
        files = tables(folder, rows=60) | tables(folder, NAMES[4:], rows=20)
        study(folder, "fedper", rounds=2, protocol="{stage: personalised, also: [received]}")
        self.study = study_for(folder / "study.yaml", "trial")
        about = kits.Description(name="trial", server=f"127.0.0.1:{port()}", sites=NAMES)
        provision(about, folder / "kits")
        self.kit = kits.server_kit(folder / "kits" / "server")

        def hostile(asked: Message, reply: Message) -> Message:
            return Message(reply.about | {"refused": 'no "\n\\'}, {}) if asked.about["kind"] == "local" else reply

        def silent(asked: Message, reply: Message) -> Message | None:
            return None if (asked.about["kind"], asked.about.get("round")) == ("local", 2) else reply

        self.link = Loop(workers(folder / "states", files), {"east": hostile, "west": silent})
        self.link.there, self.say = True, Events(quiet=True)
        self.overview = Overview(self.link, "trial", 'a \\ "study"', lambda: NAMES, folder / "run", self.say, 30)
        start = time.monotonic()
        self.result = conduct(
            self.study, self.overview, list(NAMES), folder / "run", self.say, terms=Terms(Patience(least=3)),
            watcher=Several(Watcher(), self.overview),
        )  # fmt: skip
        self.seconds = time.monotonic() - start


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def served(watched: Watched) -> Iterator[httpx.URL]:
    idle = watched.overview.idle
    page = Page(
        watched.overview.status, watched.kit, ("127.0.0.1", port()), watched.say, idle=idle, metrics_token=_TOKEN
    )
    with page:
        yield httpx.URL(page.url)


def ask(served: httpx.URL, path: str, token: str = "", **how: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"http://{served.host}:{served.port}{path}", headers=headers, **how)


def test_prometheus_reads_what_happened(served: httpx.URL, watched: Watched) -> None:
    answer = ask(served, "/metrics", _TOKEN)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = read(answer.text)
    assert of(found, "info", federation="trial", study='a \\ "study"', version="0.1.0") == 1
    assert of(found, "rounds_total", method="fedper") == of(found, "rounds_done") == of(found, "rounds_planned") == 2
    assert 0 < of(found, "round_seconds_total", method="fedper") < watched.seconds
    assert abs(of(found, "last_round_timestamp_seconds") - time.time()) < 600
    assert {key[0][1]: value for key, value in found["idiolect_sites"].items()} == {
        "ready": 3, "working": 0, "silent": 2, "not seen": 0, "revoked": 0
    }  # fmt: skip
    counted = {site: of(found, "site_counted_rounds_total", site=site) for site in NAMES}
    assert counted == {"north": 2, "south": 2, "east": 0, "west": 1, "coast": 2}
    assert {of(found, "site_asked_rounds_total", site=site) for site in NAMES} == {2}
    refused = {site: of(found, "site_refused_uploads_total", site=site) for site in NAMES}
    assert refused == {"north": 0, "south": 0, "east": 2, "west": 0, "coast": 0}
    for name in NAMES:
        sent = sum(len(pack(*m)) for who, m in watched.link.sent if who == name)
        received = sum(len(pack(*m)) for who, m in watched.link.received if who == name)
        assert of(found, "site_sent_bytes_total", site=name) == sent
        assert of(found, "site_received_bytes_total", site=name) == received
    assert of(found, "alarms_total", kind="missing") == of(found, "alarms_total", kind="refused") == 1
    assert of(found, "alarms_total", kind="diverged") == 0


def test_accuracies_are_those_of_the_run_but_for_few_samples(served: httpx.URL, watched: Watched) -> None:
    found = read(ask(served, "/metrics", _TOKEN).text)["idiolect_site_accuracy"]
    records = watched.result.records.query("metric == 'accuracy' and round == 2")
    expected = {
        (("method", "fedper"), ("site", NAMES[client]), ("stage", stage)): value
        for client, stage, value in zip(records["client"], records["stage"], records["value"], strict=True)
        if NAMES[client] != "coast"  # a mean over 4 samples
    }
    assert found == expected
    assert {dict(key)["stage"] for key in found} == {"received", "personalised"}
    assert set(records["client"]) == set(range(5))


def test_no_series_is_of_a_site_that_the_roster_does_not_name(served: httpx.URL) -> None:
    for name, samples in read(ask(served, "/metrics", _TOKEN).text).items():
        for key in samples:
            labels = dict(key)
            assert set(labels) <= {"federation", "study", "version", "site", "state", "method", "stage", "by", "kind"}
            assert labels.get("site", "north") in NAMES, name


def test_before_anything_is_agreed(watched: Watched, tmp_path: Path) -> None:
    from idiolect.federation.monitor.metrics import exposition

    early = Overview(watched.link, "trial", "hearts", lambda: NAMES, tmp_path, Events(quiet=True), 30).status()
    found = read(exposition(early).decode())
    assert of(found, "rounds_planned") == 0
    assert "idiolect_last_round_timestamp_seconds" not in found
    assert not found.get("idiolect_site_accuracy")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_is_measured_too(served: httpx.URL) -> None:
    found = read(ask(served, "/metrics", _TOKEN).text)
    assert 1e7 < found["process_resident_memory_bytes"][()] < 1e11
    assert found["process_open_fds"][()] > 3


def test_refused_connections_are_all_counted(tmp_path: Path, watched: Watched) -> None:
    place, say = ("127.0.0.1", port()), Heard()
    with Link(watched.kit, place, say) as link:
        for _ in range(7):  # of which one is an event
            with socket.create_connection(place) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        end = time.monotonic() + 30
        while say.refusals()["connection", "stranger"] < 7:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert [event["refused"] for event in say.events] == ["it speaks plain HTTP"]
        seen = Overview(link, "trial", "hearts", lambda: NAMES, tmp_path, say, 30)
        assert seen.status()["totals"]["refused"] == {"stranger": 7, "site": 0, "page": 0}


def test_who_reads_the_metrics(served: httpx.URL, watched: Watched) -> None:
    own = served.params["token"]
    before = watched.say.refusals()["connection", "page"]
    assert ask(served, "/metrics", own).status_code == ask(served, f"/metrics?token={own}").status_code == 200
    assert ask(served, "/status.json", own).status_code == 200
    for path in ("/", "/status.json", "/nothing"):
        assert ask(served, path, _TOKEN).status_code == 403
    for token in ("", "x", own[:-1], f"{_TOKEN}x"):
        answer = ask(served, "/metrics", token)
        assert answer.status_code == 403
        assert "idiolect" not in answer.text
    assert watched.say.refusals()["connection", "page"] == before + 6  # all but the one without a token


def test_health_needs_no_token_and_says_no_more(served: httpx.URL, watched: Watched) -> None:
    assert (ask(served, "/health").status_code, ask(served, "/health").text) == (200, "ok\n")
    since = [STALLED - 1]
    with Page(watched.overview.status, watched.kit, ("127.0.0.1", port()), idle=lambda: since[0]) as page:
        here = httpx.URL(page.url)
        assert ask(here, "/health").status_code == 200
        since[0] = STALLED + 1
        answer = ask(here, "/health")
        assert (answer.status_code, answer.text) == (503, "stalled for 300 seconds or more\n")
        assert ask(here, "/metrics", _TOKEN).status_code == 403  # this page was told of no such token


def test_a_run_that_waits_for_sites_moves(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("idiolect.federation.monitor.overview.time.monotonic", lambda: now + 1000)
    assert watched.overview.idle() > 900
    watched.overview.replies()
    assert watched.overview.idle() == 0


def test_a_token_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.token"
    token = token_of(file)
    assert len(token) >= 32
    assert token_of(file) == token == file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)  # for the group of Prometheus
    assert token_of(file) == token


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (_TOKEN, 0o644, "can be read by everybody or changed by others (mode 0644): chmod 640"),
        (_TOKEN, 0o660, "can be read by everybody or changed by others (mode 0660): chmod 640"),
        ("", 0o600, "is not a token: give a file with 32 or more"),
        ("short", 0o600, "is not a token"),
        (f"{_TOKEN} {_TOKEN}", 0o600, "is not a token"),
        ("\u00e9" * 40, 0o600, "is not a token"),
    ],
)
def test_what_is_no_token(content: str, mode: int, why: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(InputError) as error:
        token_of(file)
    assert why in str(error.value)


def test_a_token_without_a_page_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = kits.Description(name="trial", server=f"127.0.0.1:{port()}", sites=NAMES)
    provision(about, tmp_path / "kits")
    line = ["federation", "serve", tmp_path / "kits" / "server", study(tmp_path), "--metrics-token", tmp_path / "token"]
    with pytest.raises(SystemExit) as end:
        main([str(part) for part in line])
    assert end.value.code == 2
    why = "idiolect: --metrics-token is for the port of the operator's page: give --page too\n"
    assert capsys.readouterr().err == why
    assert not (tmp_path / "token").exists()


def test_the_command_that_continues_has_these_options(tmp_path: Path) -> None:
    told = programs.command(
        Path("kit"), Path("study.yaml"), Path("run"), listen=None, page="8080", metrics_token=Path("my token"),
        terms=Terms(Patience(2), start=3), sites=3, say=Events(as_json=True),
    )  # fmt: skip
    expected = "--page 8080 --metrics-token 'my token' --start-with 3 --log-json"
    assert told == f"idiolect federation serve kit study.yaml --out run {expected}"


def test_logs_are_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say = Events(tmp_path / "events.jsonl", as_json=True)
    say("north \u202e\x1b[31m\nwas refused", site="north", refused="why")
    say.note("round 3 closed", round=3)
    say.rarely("key", "a stranger", address="192.0.2.1")
    err = capsys.readouterr().err
    assert err == (tmp_path / "events.jsonl").read_text()
    assert err.isascii()
    first, second, third = map(json.loads, err.splitlines())
    assert first["event"] == "north \u202e\x1b[31m\nwas refused"
    assert (first["site"], second["round"], third["times"]) == ("north", 3, 1)
    assert abs(first["at"] - time.time()) < 60
    assert events.read(tmp_path / "events.jsonl", 10) == [first, second, third]
