"""The operator's page: what it knows of sites, rounds and alarms, and who may read it."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from machines import port
from sites import NAMES, Loop, study, worker, workers

from idiolect.cli import main
from idiolect.core.errors import RunError
from idiolect.core.version import __version__
from idiolect.federation.events import FILE, Events
from idiolect.federation.messages import Message, pack
from idiolect.federation.monitor.overview import Overview
from idiolect.federation.monitor.page import Page, place, render
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.policy import Policy
from idiolect.studies.progress import Several, Watcher

_EVIL = "<script>alert(1)</script>\u202e"


class Watched:
    """A run of two rounds whose site east is hostile, whose west is silent once, and whose coast keeps accuracies."""

    def __init__(self, folder: Path, files: dict[str, Path]) -> None:
        study(folder, "fedper", rounds=2, protocol="{stage: personalised, also: [received]}")
        self.out, self.study = folder / "run", study_for(folder / "study.yaml", "trial")
        self.about = kits.Description(name="trial", server=f"127.0.0.1:{port()}", sites=NAMES)
        provision(self.about, folder / "kits")
        self.kit = kits.server_kit(folder / "kits" / "server")
        self.authority = folder / "kits" / "site-north" / "ca.pem"

        def hostile(asked: Message, reply: Message) -> Message:
            said: dict[str, Any] = {"version": _EVIL, "seconds": "soon"}
            return Message(reply.about | said | ({"refused": _EVIL} if asked.about["kind"] == "local" else {}), {})

        def silent(asked: Message, reply: Message) -> Message | None:
            return None if (asked.about["kind"], asked.about.get("round")) == ("local", 2) else reply

        self.link = Loop(workers(folder / "states", files), {"west": silent})
        self.link.workers["coast"] = worker(folder / "states", "coast", 4, files["coast"], Policy(evaluate=False))
        say = Events(quiet=True)
        self.overview = self.seen(say)

        def asked(reply: Message) -> bool:
            return reply.about["kind"] in ("local", "evaluate", "received")

        self.link.tamper["east"] = lambda question, reply: hostile(question, reply) if asked(reply) else reply
        self.result = conduct(
            self.study, self.overview, list(NAMES), self.out, say, terms=Terms(Patience(least=3)),
            watcher=Several(Watcher(), self.overview),
        )  # fmt: skip
        self.status = self.overview.status()

    def seen(self, say: Events) -> Overview:
        return Overview(self.link, "trial", self.study.name, lambda: NAMES, self.out, say, 30)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"), files)


def test_what_is_known_of_the_sites(watched: Watched) -> None:
    site = {s["site"]: s for s in watched.status["sites"]}
    assert {name: (s["counted"], s["asked"]) for name, s in site.items()} == {
        "north": (2, 2), "south": (2, 2), "east": (0, 2), "west": (1, 2), "coast": (2, 2)
    }  # fmt: skip
    assert site["north"]["version"] == __version__
    assert [site[name]["state"] for name in ("north", "west")] == ["ready", "silent"]
    for name in NAMES:
        assert site[name]["down"] == sum(len(pack(*m)) for who, m in watched.link.sent if who == name)
        assert site[name]["up"] == sum(len(pack(*m)) for who, m in watched.link.received if who == name)
    found = watched.result.records.query("metric == 'accuracy' and round == 2")
    for k, name in enumerate(NAMES):
        mine = found[found["client"] == k]
        told = {"fedper": {"seed": 0, "round": 2} | dict(zip(mine["stage"], mine["value"], strict=True))}
        assert site[name]["accuracy"] == ({} if name == "coast" else told)
    assert set(site["north"]["accuracy"]["fedper"]) == {"seed", "round", "received", "personalised"}


def test_what_is_known_of_the_rounds(watched: Watched) -> None:
    last, first = watched.status["latest"]
    assert [(r["method"], r["round"], r["counted"], r["asked"]) for r in (first, last)] == [
        ("fedper", 1, 4, 5), ("fedper", 2, 3, 5)
    ]  # fmt: skip
    assert last["seconds"] > 0
    assert (watched.status["done"], watched.status["of"], watched.status["round"]) == (2, 2, 2)
    means = watched.result.records.query("metric == 'accuracy' and stage == 'personalised'").groupby("round")["value"]
    assert [first["accuracy"], last["accuracy"]] == pytest.approx(means.mean().tolist())
    sent = [m for _, m in watched.link.sent if m.about.get("round") == 2]
    assert last["down"] == sum(len(pack(*m)) for m in sent)


def test_alarms_name_the_site_and_outlive_the_server(watched: Watched) -> None:
    told = [(a["kind"], a["site"]) for a in watched.status["alarms"]]
    assert told.count(("missing", "west")) == 1
    assert told.count(("refused", "east")) == 1  # once for both rounds
    with (watched.out / FILE).open("a") as file:
        file.write('{"event": 3}\n{"refused"\n')
    again = watched.seen(Events(quiet=True))
    assert [(a["kind"], a["site"]) for a in again.status()["alarms"]] == told
    again.diverged("fedper", 0, 2)
    assert again.status()["alarms"][0]["event"] == "fedper, seed 0: diverged in round 2"


def test_nothing_from_a_site_becomes_html(watched: Watched) -> None:
    page = render(watched.status)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\u202e" not in page
    assert page.count("<script>") == 1


def test_before_anything_is_agreed(watched: Watched, tmp_path: Path) -> None:
    early = Overview(watched.link, "trial", "hearts", lambda: NAMES, tmp_path, Events(quiet=True), 30).status()
    assert (early["method"], early["round"], early["of"]) == (None, None, 0)
    assert "all 5 are needed" in render(early)


def test_rounds_that_an_early_stop_leaves_out_are_not_waited_for(watched: Watched, tmp_path: Path) -> None:
    seen = Overview(watched.link, "trial", "hearts", lambda: NAMES, tmp_path, Events(quiet=True), 30)
    engine: Any = None
    seen.plan(50, {("fedavg", 0): 0, ("fedavg", 1): 20, ("local", 0): 50}, engine)
    assert (seen.status()["done"], seen.status()["of"]) == (70, 150)
    seen.stopped("fedavg", 1, 20, 10)
    assert (seen.status()["done"], seen.status()["of"]) == (70, 120)


@pytest.fixture(scope="module")
def served(watched: Watched) -> Iterator[httpx.URL]:
    with Page(lambda: watched.status, watched.kit, ("127.0.0.1", port())) as page:
        yield httpx.URL(page.url)


def test_who_has_the_token_reads(served: httpx.URL, watched: Watched) -> None:
    found = httpx.get(served)
    assert found.status_code == 200
    assert found.text == render(watched.status)
    assert served.params["token"] not in found.text
    assert len(served.params["token"]) >= 32
    assert httpx.get(served.copy_with(path="/status.json")).json() == json.loads(json.dumps(watched.status))
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert (found.headers["cache-control"], found.headers["referrer-policy"]) == ("no-store", "no-referrer")


@pytest.mark.parametrize("query", ["", "?token=", "?token=x", "?token=%C3%A9", "?other=1"])
def test_others_read_nothing(query: str, served: httpx.URL) -> None:
    for path in ("/", "/status.json", "/etc/passwd", "/../page.css"):
        found = httpx.get(f"http://{served.host}:{served.port}{path}{query}")
        assert found.status_code == 403
        assert "trial" not in found.text
        assert found.headers["x-content-type-options"] == "nosniff"


def test_there_is_nothing_else(served: httpx.URL) -> None:
    for path in ("/page.css", "/run/", "/status.json/"):
        assert httpx.get(served.copy_with(path=path)).status_code == 404
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
        found = httpx.request(method, served)
        expected = (200, None) if method == "HEAD" else (405, "GET")
        assert (found.status_code, found.headers.get("allow")) == expected
        assert method != "HEAD" or not found.content
    with socket.create_connection((served.host, served.port or 0)) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


def test_elsewhere_it_is_encrypted(watched: Watched) -> None:
    with Page(lambda: watched.status, watched.kit, ("0.0.0.0", port())) as page:
        assert page.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(watched.authority))
        assert httpx.get(page.url, verify=context).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(page.url.replace("https", "http"))


def test_where_it_is_served(served: httpx.URL, watched: Watched) -> None:
    assert (place("8080"), place("10.0.0.1:8080")) == (("127.0.0.1", 8080), ("10.0.0.1", 8080))
    for text in ("", "here", "0", "99999", "127.0.0.1"):
        with pytest.raises(ValueError, match="is not an address"):
            place(text)
    taken = Page(lambda: watched.status, watched.kit, (served.host, served.port or 0))
    with pytest.raises(RunError, match="is the port in use"), taken:
        pass


@pytest.mark.browser
def test_a_browser_shows_it_on_a_telephone(served: httpx.URL, watched: Watched) -> None:
    programs = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not programs:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs[0], args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append("a dialog"))
        page.goto(str(served))
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        watched.status["study"] = "renamed"
        page.evaluate("look()")
        assert (page.title(), page.locator("h1").inner_text()) == ("trial: renamed", "renamed")
        assert not page.locator("#silent").is_visible()
        assert said == []
        del watched.status["study"]  # now the server cannot answer
        page.evaluate("look()")
        assert page.locator("#silent").is_visible()
        assert page.locator("h1").inner_text() == "renamed"
        watched.status["study"] = "trial"
        browser.close()


def test_the_report_of_a_run_is_as_after_a_simulation(watched: Watched, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["report", str(watched.out), "--out", str(tmp_path / "report.html")])
    assert not end.value.code
    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("trial", "FedPer", *NAMES))
    assert (watched.out / "report.html").exists()
