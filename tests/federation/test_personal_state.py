"""The personal state on a site's disk: two versions, whole or not at all, readable with the right key alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from idiolect.core import files
from idiolect.core.errors import InputError, RunError
from idiolect.core.tree import Tree
from idiolect.federation.site.personal_state import MissingState, PersonalState, Vault
from idiolect.federation.trust.private_files import key_of

FIRST = {"head": torch.zeros(3), "steps": torch.tensor(0)}
ABOUT = {"study": "s", "run": "r", "method": "fedper", "seed": 0}


def _state(folder: Path, vault: Vault | None = None, **other: object) -> PersonalState:
    return PersonalState(folder, ABOUT | other, FIRST, vault or Vault())


def _after(round: int) -> Tree:
    return {"head": torch.full((3,), float(round)), "steps": torch.tensor(round)}


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["clear", "encrypted"])
def test_the_round_that_is_repeated_finds_what_it_began_from(key: bytes | None, tmp_path: Path) -> None:
    state = _state(tmp_path, Vault(key))
    assert state.rounds == []
    assert torch.equal(state.load(0)["head"], FIRST["head"])
    state.put(1, 0, _after(1))
    state.put(2, 1, _after(2))
    state.put(2, 1, _after(2))  # repeated
    state.put(3, 1, _after(3))  # round 2 closed without this site
    assert state.rounds == [1, 3]
    again = _state(tmp_path, Vault(key))
    for round in (1, 3):
        assert torch.equal(again.load(round)["head"], _after(round)["head"])
        assert again.load(round)["steps"] == round
    with pytest.raises(MissingState):
        again.load(2)


def test_a_round_that_is_repeated_after_the_next_one_was_trained_finds_what_it_began_from(tmp_path: Path) -> None:
    """As at the stage "trained", which trains a round from the last one before the server has kept that."""
    state = _state(tmp_path)
    for round, base in ((1, 0), (2, 1), (4, 2), (5, 4)):
        state.put(round, base, _after(round), ahead=True)
    assert state.rounds == [2, 4, 5]
    state.put(4, 2, _after(4), ahead=True)
    assert state.rounds == [2, 4]
    assert torch.equal(state.load(2)["head"], _after(2)["head"])


def test_a_state_of_something_else_is_not_read(tmp_path: Path) -> None:
    _state(tmp_path).put(1, 0, _after(1))
    for other in ({"study": "t"}, {"run": "q"}, {"method": "fedrep"}, {"seed": 1}):
        with pytest.raises(InputError, match="belongs to another"):
            _state(tmp_path, **other).load(1)
    (tmp_path / "round-1.state").rename(tmp_path / "round-2.state")
    with pytest.raises(InputError, match="this site has not written it"):  # its name is under the seal
        _state(tmp_path).load(2)


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["clear", "encrypted"])
def test_a_changed_byte_is_noticed(key: bytes | None, tmp_path: Path) -> None:
    _state(tmp_path, Vault(key)).put(1, 0, _after(1))
    path = tmp_path / "round-1.state"
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(InputError, match="cannot be read"):
            _state(tmp_path, Vault(key)).load(1)


def test_an_encrypted_state_needs_its_key(tmp_path: Path) -> None:
    key = key_of(tmp_path / "key")
    assert (len(key), key_of(tmp_path / "key")) == (32, key)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    _state(tmp_path / "s", Vault(key)).put(1, 0, _after(1))
    assert b"head" not in (tmp_path / "s" / "round-1.state").read_bytes()
    for vault, said in ((Vault(), r"is encrypted: give state_key"), (Vault(bytes(32)), "encrypted with another key")):
        with pytest.raises(InputError, match=said):
            _state(tmp_path / "s", vault).load(1)
    (tmp_path / "key").write_text("abc")
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        key_of(tmp_path / "key")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(tmp_path)
    state.put(1, 0, _after(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        state.put(2, 1, _after(2))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["round-1.state"]
    assert torch.equal(_state(tmp_path).load(1)["head"], _after(1)["head"])
