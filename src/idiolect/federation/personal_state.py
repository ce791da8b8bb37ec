"""A site's personal state on its own disk, which never travels: by study, run, method and seed, in versions by round.

The server says on which version a round builds: the last one whose upload counted. So two versions are enough: a round
that is repeated, because the server was killed or closed it without this site, finds the state that it began from.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from idiolect.core import files
from idiolect.core.documents import sealed_json
from idiolect.core.errors import InputError, RunError, option
from idiolect.core.tree import Tree
from idiolect.federation.messages import Message, Refused, built, named, pack, unpack

_FILE = re.compile(r"round-(\d{1,12})\.state")
PRIVATE = 0o600
"""The mode of a file for this user only."""
_CLEAR, _SECRET = b"idiolect state 1\n", b"idiolect state 1, encrypted\n"


class Lost(Exception):
    """The version that a round builds on is not here."""


class Vault:
    """Reads and writes states, encrypted if there is a key.

    Args:
        key: 32 bytes; None writes them in the clear.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = None if key is None else AESGCM(key)

    @property
    def encrypts(self) -> bool:
        """Whether there is a key."""
        return self._key is not None

    def write(self, path: Path, about: Mapping[str, Any], state: Tree) -> None:
        """Write a state, atomically, for this user only.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        self.save(path, pack(about, named("state", state)))

    def save(self, path: Path, content: bytes) -> None:
        """Write a message, atomically, for this user only.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        if self._key is None:
            whole = _CLEAR + files.digest(content) + content
        else:
            nonce = secrets.token_bytes(12)
            whole = _SECRET + nonce + self._key.encrypt(nonce, content, path.name.encode())
        private_folder(path.parent)
        files.write(path, whole, PRIVATE)

    def read(self, path: Path, about: Mapping[str, Any], like: Tree) -> Tree:
        """The state in a file that was written with the same ``about``.

        Raises:
            InputError: it has changed, belongs to something else, or the key is not the right one.
        """
        fix = f"restore it, or delete {path.parent}: the site then starts from the first state again"
        found = self.load(path, about, fix)
        try:
            return built(found.arrays, {"state": like})["state"]
        except Refused as error:
            raise InputError(f"{path} cannot be read ({error}): {fix}") from None

    def load(self, path: Path, about: Mapping[str, Any], fix: str) -> Message:
        """The message in a file whose plain values are ``about``, and maybe more; ``fix`` ends an error's sentence.

        Raises:
            InputError: it has changed, belongs to something else, or the key is not the right one.
        """
        key = option("state_key")
        try:
            content = files.read(path)
            if content.startswith(_SECRET) and self._key is None:
                raise InputError(f"{path} is encrypted: give {key}, the file of its key")
            found = unpack(self._opened(content, path.name))
            if not found.about.items() >= about.items():
                raise Refused("it belongs to another study, method or round")
            return found
        except InvalidTag:
            what, fix = (
                "it is encrypted with another key, or has changed",
                f"give {key} as the file of its key, or {fix}",
            )
        except (Refused, OSError, ValueError) as error:
            what = str(error)
        raise InputError(f"{path} cannot be read ({what}): {fix}")

    def _opened(self, content: bytes, name: str) -> bytes:
        if content.startswith(_SECRET):
            assert self._key is not None
            start = len(_SECRET)
            return self._key.decrypt(content[start : start + 12], content[start + 12 :], name.encode())
        if not content.startswith(_CLEAR):
            raise ValueError("it is not a state")
        body = content[len(_CLEAR) + 32 :]
        if files.digest(body) != content[len(_CLEAR) : len(_CLEAR) + 32]:
            raise ValueError("its content has changed since it was written")
        return body


class PersonalState:
    """The versions of one client's state, for one method and seed of one run.

    Args:
        folder: of this run, method and seed.
        about: what the state belongs to; a state of anything else is not read.
        initial: the state before the first round.
        vault: reads and writes.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], initial: Tree, vault: Vault) -> None:
        self._folder, self._about, self._initial, self._vault = folder, dict(about), initial, vault

    @property
    def rounds(self) -> list[int]:
        """The rounds whose states are here, ascending."""
        if not self._folder.is_dir():
            return []
        found = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def load(self, round: int) -> Tree:
        """The state after a round; after round 0 it is the initial one.

        Raises:
            Lost: it is not here.
            InputError: it cannot be read.
        """
        if round == 0:
            return self._initial
        path = self._path(round)
        if not path.exists():
            raise Lost
        return self._vault.read(path, self._about | {"round": round}, self._initial)

    def put(self, round: int, base: int, state: Tree) -> None:
        """Keep the state after a round beside the one that it was made from, and delete all others.

        Raises:
            RunError: the disk is full or the folder cannot be written; what was there stays.
        """
        self._vault.write(self._path(round), self._about | {"round": round}, state)
        for old in self.rounds:
            if old not in (round, base):
                self._path(old).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._folder / f"round-{round}.state"


def private_folder(folder: Path) -> None:
    """Make a folder that only this user can look into.

    Raises:
        RunError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder} ({error.strerror}): choose another place") from error


def key_of(path: Path) -> bytes:
    """The key in a file, which is made if it does not exist.

    Raises:
        InputError: it is not a key of 32 bytes in hexadecimal.
        RunError: it cannot be made.
    """
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise RunError(f"cannot use the key {path} ({error.strerror}): choose another place") from None
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InputError(f"{path} is not a key: give a file with 64 hexadecimal digits, or one that does not exist yet")
    return key


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain values, atomically and sealed.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    private_folder(path.parent)
    files.write(path, sealed_json(dict(content)), PRIVATE)
