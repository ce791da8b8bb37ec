"""A site's folder on its own disk: nobody else can look into it, lead it elsewhere, or put a state of theirs there."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sites import Loop, study, tables, worker

from idiolect.core.errors import InputError
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, pack, unpack
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import key_of, private_folder, secret_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")


class Place:
    """A site that has taken part in a study of three rounds, and what it was asked."""

    def __init__(self, folder: Path, root: Path, **more: Any) -> None:
        self.root = root
        self.file = tables(folder, ["north"])["north"]
        self.link = Loop({"north": self.worker()})
        study(folder, rounds=3, **more)
        self.run = folder / "run"
        conduct(study_for(folder / "study.yaml", "trial"), self.link, ["north"], self.run, Events(quiet=True))

    def worker(self, policy: Policy | None = None) -> Any:
        return worker(self.root.parent, self.root.name, 0, self.file, policy, Vault.of(self.root))

    def asked(self, round: int) -> Message:
        return next(m for _, m in self.link.sent if (m.about["kind"], m.about.get("round")) == ("local", round))

    def answer(self, message: Message, policy: Policy | None = None, **more: Any) -> dict[str, Any]:
        """What a program that was just started says."""
        return unpack(self.worker(policy).answer(pack(message.about | more, message.arrays))).about


@pytest.fixture(params=["0o000", "0o022", "0o077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(int(request.param, 8))
    yield int(request.param, 8)
    os.umask(before)


def test_whatever_the_umask_only_the_owner_can_look(umask: int, tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "states" / "north")
    for path in [place.root, *place.root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((place.run / ".federation.json").stat().st_mode) == 0o600
    key_of(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o707, 0o777])
def test_a_folder_that_others_can_look_into_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(InputError, match=r"chmod 700 .*state"):
        private_folder(tmp_path / "state")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o666])
@pytest.mark.parametrize("what", ["key", "secret"])
def test_a_secret_that_others_can_read_is_refused(what: str, mode: int, tmp_path: Path) -> None:
    use: dict[str, tuple[Path, Callable[[], object]]] = {
        "key": (tmp_path / "key", lambda: key_of(tmp_path / "key")),
        "secret": (tmp_path / "secret.json", lambda: secret_of(tmp_path, "seal")),
    }
    path, read = use[what]
    tmp_path.chmod(0o700)
    assert read() == read()
    path.chmod(mode)
    with pytest.raises(InputError, match=f"mode {mode:04o}.*chmod 600 .*{path.name}"):
        read()


def test_each_folder_has_a_secret_of_its_own_and_each_purpose_a_key(tmp_path: Path) -> None:
    keys = {secret_of(tmp_path / folder, purpose) for folder in "ab" for purpose in ("seal", "noise")}
    assert len(keys) == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_link_below_the_folder_is_not_followed(depth: int, tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "states" / "north")
    [state] = place.root.rglob("round-3.state")
    inside = [state.parent, *state.parent.parents][3 - depth]
    elsewhere = tmp_path / "elsewhere"
    shutil.move(inside, elsewhere)
    inside.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    said = place.answer(place.asked(3))
    assert "is a link" in str(said), said
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_a_state_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "states" / "north")
    [state] = place.root.rglob("round-2.state")
    shutil.move(state, tmp_path / "moved")
    state.symlink_to(tmp_path / "moved")
    assert "it is a link" in place.answer(place.asked(3))["failed"]


def _copied(place: Place) -> bytes:
    return next(place.root.rglob("round-3.state")).read_bytes()


FORGED: dict[str, Callable[[Place], bytes]] = {
    "a copy of another round": _copied,
    "nothing": lambda place: b"",
    "any bytes": lambda place: os.urandom(500),
    "the form of one": lambda place: b"idiolect state 2\n" + bytes(32) + pack({"round": 64}, {}),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("round", [64, 4, 999_999])
def test_a_forged_state_costs_no_round(name: str, round: int, tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "states" / "north")
    folder = next(place.root.rglob("round-3.state")).parent
    (folder / f"round-{round}.state").write_bytes(FORGED[name](place))
    said = place.answer(place.asked(3))
    assert "info" in said, said
    assert (folder / f"round-{round}.refused").exists()
    assert "has trained round 3" in place.answer(place.asked(2))["refused"]  # what is genuine still counts


def test_a_state_of_another_site_is_not_taken(tmp_path: Path) -> None:
    """It has the same study, method and round, but another folder's seal."""
    one, other = (Place(tmp_path / name, tmp_path / name / "north") for name in ("a", "b") if _made(tmp_path / name))
    [mine], [theirs] = (list(place.root.rglob("round-2.state")) for place in (one, other))
    mine.write_bytes(theirs.read_bytes())
    assert "this site has not written it" in one.answer(one.asked(3))["failed"]


def _made(folder: Path) -> bool:
    folder.mkdir()
    return True


def test_every_training_counts_but_the_same_one_again(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "states" / "north")
    policy = Policy(most_trainings=5)
    asked = place.asked(3)
    said = [place.answer(asked, policy) for _ in range(7)]  # as after a server that was killed
    assert all("info" in one for one in said)
    others = []
    for k in range(6):
        arrays = {name: a + 1e-3 * (k + 1) for name, a in asked.arrays.items()}
        others.append(place.answer(Message(asked.about, arrays), policy))
    assert ["info" in one for one in others] == [True] * 5 + [False]
    assert "5 times, as often as is allowed here" in others[-1]["refused"]
