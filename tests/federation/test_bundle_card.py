"""A bundle's card says how many sites trained: not those that were never there, revoked, or refused in each round."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sites import NAMES, Loop, study, workers

import idiolect as idl
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, unpack
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.study import study_for
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.site.worker import Worker

Files = dict[str, Path]
ROWS = 16  # training samples of each site: 20 rows, of which a fifth are for tests


class Leaving(Loop):
    """Sites that never answer, and sites whose keys are revoked from a round on."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        super().__init__(workers)
        self.revoked: dict[str, int] = {}
        self.round = 0

    def send(self, site: str, content: bytes) -> str:
        self.round = int(unpack(content).about.get("round", 0))
        return super().send(site, content)

    def quiet_for(self, site: str) -> float:
        if self.round + 1 >= self.revoked.get(site, 99):  # it is asked before the next round is sent
            return float("inf")
        return 1e9 if self.tamper.get(site) is _silence else 0.0


def _nonsense(question: Message, reply: Message) -> Message:
    return Message(reply.about, {}) if question.about["kind"] == "local" else reply


def _silence(question: Message, reply: Message) -> Message | None:
    return None


def _card(folder: Path) -> str:
    return (folder / "README.md").read_text()


@pytest.mark.thorough(but=["all", "two never there", "two refused", "revoked later"])
@pytest.mark.parametrize(
    ("change", "clients", "count"),
    [
        (lambda link: None, "5", 5),
        (lambda link: link.tamper.update(coast=_silence), "4 of 5", 4),
        (lambda link: link.tamper.update(coast=_silence, north=_silence), "3 of 5", 3),
        (lambda link: link.tamper.update(east=_nonsense, west=_nonsense), "3 of 5", 3),
        (lambda link: link.revoked.update(south=1), "4 of 5", 4),
        (lambda link: link.revoked.update(south=1, coast=1), "3 of 5", 3),
        (lambda link: link.revoked.update(south=3), "5", 5),  # it trained in rounds 1 and 2
    ],
    ids=["all", "one never there", "two never there", "two refused", "one revoked", "two revoked", "revoked later"],
)
def test_it_counts_the_sites_that_trained(
    change: Callable[[Leaving], None], clients: str, count: int, files: Files, tmp_path: Path
) -> None:
    study(tmp_path, "fedavg, fedper", rounds=3)
    link = Leaving(workers(tmp_path / "states", files))
    change(link)
    terms = Terms(Patience(least=2, silence=1.0), start=2)
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, NAMES, tmp_path / "run", Events(quiet=True), terms=terms)
    bundle = result(tmp_path / "run").bundle("fedavg", tmp_path / "bundle")
    card = _card(tmp_path / "bundle")
    assert f"- Clients: {clients} trained together for 3 rounds" in card
    assert f"- Training samples: {count * ROWS:,} (" in card
    assert bundle.about.provenance.participants == count


def test_a_site_does_not_know_who_trained(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg", rounds=1)
    link = Loop(workers(tmp_path / "states", files))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, NAMES, tmp_path / "run", Events(quiet=True))
    site_model(tmp_path / "states" / "north").to_bundle(tmp_path / "site")
    assert "- Clients: 5 in the federation, over 1 round of" in _card(tmp_path / "site")


@pytest.mark.parametrize(("participation", "clients"), [(0.2, "2 of 10"), (0.5, "5 of 10"), (1.0, "10")])
def test_a_simulation_counts_its_participants(participation: float, clients: str, tmp_path: Path) -> None:
    study = idl.Study(dataset="digits", clients=10, methods=["fedavg"], rounds=1, participation=participation)
    run = idl.run(study, tmp_path / "run", engine="sequential")
    run.bundle("fedavg", tmp_path / "bundle")
    assert re.search(r"- Clients: (.*) trained together for 1 round of", _card(tmp_path / "bundle"))[1] == clients  # type: ignore[index]
