"""A server that starts again remembers the newest roster: older files let no revoked site in again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import port
from places import Heard, Place, until
from sites import study

from idiolect.core.errors import InputError
from idiolect.federation import programs
from idiolect.federation.events import Events
from idiolect.federation.link.server_end import Link
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import add, operator, renew, revoke
from idiolect.federation.trust.roster import COPY, FILE


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("idiolect.federation.link.members._LOOK", 0.05)
    return Place(tmp_path)


def _revoke(place: Place, site: str) -> None:
    with operator(place.folder / "operator") as kit:
        revoke(kit, site)


def _restore_roster(place: Place, backup: Path) -> None:
    shutil.copy(backup / "server" / FILE, place.folder / "server" / FILE)


def _restore_kit(place: Place, backup: Path) -> None:
    shutil.rmtree(place.folder / "server")
    shutil.copytree(backup / "server", place.folder / "server")


@pytest.mark.parametrize("restore", [_restore_roster, _restore_kit])
@pytest.mark.parametrize("sites", [["south"], ["north"], ["south", "north"]])
@pytest.mark.parametrize("running", [True, False], ids=["revoked while it runs", "revoked before a start"])
def test_a_revoked_site_stays_out(
    running: bool, sites: list[str], restore: Callable[[Place, Path], None], place: Place, tmp_path: Path
) -> None:
    backup, run = tmp_path / "backup", tmp_path / "run"
    shutil.copytree(place.folder, backup)
    run.mkdir()

    def link(say: Events) -> Link:
        return Link(kits.server_kit(place.folder / "server", run), place.address, say)

    if not running:
        for site in sites:
            _revoke(place, site)
    version = 1 + len(sites)
    with link(Events(quiet=True)) as server:
        for site in sites if running else ():
            _revoke(place, site)
        until(lambda: server._members.roster.version == version)
        until(lambda: kits.server_kit(backup / "server", run).roster.version == version)
    restore(place, backup)
    said, refusal = Heard(), Heard()
    with link(said) as server, place.running(place.connection(sites[0], refusal)):
        until(lambda: refusal.lines(f"the key of {sites[0]} was revoked on"))
        assert not server.connections(sites[0])
        assert set(server.keys) == {"north", "south"} - set(sites)
    assert (
        len(said.lines(f"roster 1 of this kit is older than {version}, which this server has seen and keeps to")) == 1
    )


def test_the_program_keeps_a_copy_in_kit_and_run(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rosters = tmp_path / "run", []

    def conduct(*_: Any, **more: Any) -> None:
        run.mkdir(exist_ok=True)
        until(lambda: (run / COPY).exists())
        rosters.append(list(more["public"]))

    monkeypatch.setattr(programs, "conduct", conduct)
    backup = tmp_path / "backup"
    shutil.copytree(place.folder, backup)
    say = Events(quiet=True)
    _revoke(place, "south")
    programs.serve(place.folder / "server", study(tmp_path), run, listen=f"127.0.0.1:{port()}", say=say)
    assert (run / COPY).read_text() == (place.folder / "server" / COPY).read_text()
    assert (run / COPY).stat().st_mode & 0o777 == 0o600
    _restore_kit(place, backup)
    programs.serve(place.folder / "server", tmp_path / "study.yaml", run, listen=f"127.0.0.1:{port()}", say=say)
    assert rosters == [["north"], ["north"]]


@pytest.mark.parametrize("change", ["add", "renew", "revoke"])
def test_an_operators_old_copy_is_told_where_the_newest_is(change: str, place: Place, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(place.folder, backup)
    _revoke(place, "south")
    with place.link():
        pass
    for folder in ("server", "operator"):
        shutil.copy(backup / folder / FILE, place.folder / folder / FILE)
    changes: dict[str, Callable[[Any], object]] = {
        "add": lambda kit: add(kit, "dale", tmp_path / "dale"), "renew": renew, "revoke": lambda k: revoke(k, "north"),
    }  # fmt: skip
    with pytest.raises(InputError, match=r"\.roster\.json has version 2, .* only 1: this is an old copy"):  # noqa: SIM117
        with operator(place.folder / "operator") as kit:
            changes[change](kit)
    shutil.copy(place.folder / "server" / COPY, place.folder / "operator" / FILE)
    with operator(place.folder / "operator") as kit:
        changes[change](kit)
    assert place.server.roster.version == 3


def test_copies_of_another_authority_or_federation_do_not_count(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    for _ in range(3):
        with operator(other.folder / "operator") as kit:
            renew(kit)
    shutil.copy(other.folder / "server" / FILE, place.folder / "server" / COPY)
    assert place.server.roster.version == 1
    place.sign(place.server.roster.members, 9, federation="another")
    shutil.move(place.folder / "server" / FILE, place.folder / "server" / COPY)
    shutil.copy(place.kit("north") / FILE, place.folder / "server" / FILE)
    assert place.server.roster.version == 1
    (place.folder / "server" / COPY).write_text("nothing")
    assert place.server.roster.version == 1
