"""A site's personal state on its own disk, which never travels: by study, run, method and seed, in versions by round.

The server says on which version a round builds: the last one whose upload counted. So two versions are enough: a round
that is repeated, because the server was killed or closed it without this site, finds the state that it began from. At
the stage "trained" a site trains the next round before this one is whole, and there are three.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from idiolect.core import files
from idiolect.core.errors import InputError, option
from idiolect.core.tree import Tree
from idiolect.federation.messages import Message, Refusal, by_path, pack, trees_of, unpack
from idiolect.federation.trust.private_files import PRIVATE, key_of, private_folder, secret_of

_FILE = re.compile(r"round-(\d{1,12})\.state")
_CLEAR, _SECRET = b"idiolect state 2\n", b"idiolect state 2, encrypted\n"


class MissingState(Exception):
    """The version that a round builds on is not here."""


class MissingKey(InputError):
    """A file is encrypted, and there is no key."""


class Vault:
    """Reads and writes states: encrypted if there is a key, and always with a seal that nobody else can make.

    Args:
        key: 32 bytes; None writes them in the clear.
        seal: the key of the seal of states in the clear.
        root: the site's state folder; below it no link is followed.
    """

    def __init__(self, key: bytes | None = None, seal: bytes = b"", root: Path | None = None) -> None:
        self._key = None if key is None else AESGCM(key)
        self._seal, self._root = seal, root

    @classmethod
    def of(cls, root: Path, key: Path | None = None) -> Self:
        """That of a state folder; ``key`` is the file of a key, made if it does not exist.

        Raises:
            InputError: the key or the folder's secret cannot be used, or others can read it.
            RunError: the folder cannot be written.
        """
        return cls(None if key is None else key_of(key), secret_of(root, "seal"), root)

    @property
    def encrypts(self) -> bool:
        """Whether there is a key."""
        return self._key is not None

    def write(self, path: Path, about: Mapping[str, Any], state: Tree) -> None:
        """Write a state, atomically, for this user only.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        self.save(path, pack(about, by_path("state", state)))

    def save(self, path: Path, content: bytes) -> None:
        """Write a message, atomically, for this user only.

        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        if self._key is None:
            whole = _CLEAR + self._seal_of(path.name, content) + content
        else:
            nonce = secrets.token_bytes(12)
            whole = _SECRET + nonce + self._key.encrypt(nonce, content, path.name.encode())
        private_folder(path.parent, self._root)
        files.write(path, whole, PRIVATE)

    def _seal_of(self, name: str, content: bytes) -> bytes:
        return hmac.digest(self._seal, name.encode() + b"\0" + content, "sha256")

    def read(self, path: Path, about: Mapping[str, Any], like: Tree) -> Tree:
        """The state in a file that was written with the same ``about``.

        Raises:
            InputError: it has changed, belongs to something else, or the key is not the right one.
        """
        fix = f"restore it, or delete {path.parent}: the site then starts from the first state again"
        message = self.load(path, about, fix)
        try:
            return trees_of(message.arrays, {"state": like})["state"]
        except Refusal as error:
            raise InputError(f"{path} cannot be read ({error}): {fix}") from None

    def load(self, path: Path, about: Mapping[str, Any], fix: str) -> Message:
        """The message in a file whose plain values are ``about``, and maybe more; ``fix`` ends an error's sentence.

        Raises:
            MissingKey: it is encrypted, and there is no key.
            InputError: it has changed, belongs to something else, or the key is not the right one.
        """
        key = option("state_key")
        try:
            if path.is_symlink():
                raise ValueError("it is a link")
            content = files.read(path)
            if content.startswith(_SECRET) and self._key is None:
                raise MissingKey(f"{path} is encrypted: give {key}, the file of its key")
            message = unpack(self._content_of(content, path.name))
            if not message.about.items() >= about.items():
                raise Refusal("it belongs to another study, method or round")
            return message
        except InputError:
            raise
        except InvalidTag:
            what, fix = (
                "it is encrypted with another key, or has changed",
                f"give {key} as the file of its key, or {fix}",
            )
        except (Refusal, OSError, ValueError) as error:
            what = str(error)
        raise InputError(f"{path} cannot be read ({what}): {fix}")

    def _content_of(self, content: bytes, name: str) -> bytes:
        if content.startswith(_SECRET):
            assert self._key is not None
            start = len(_SECRET)
            return self._key.decrypt(content[start : start + 12], content[start + 12 :], name.encode())
        if not content.startswith(_CLEAR):
            raise ValueError("it is not a state")
        body = content[len(_CLEAR) + 32 :]
        if not hmac.compare_digest(self._seal_of(name, body), content[len(_CLEAR) : len(_CLEAR) + 32]):
            raise ValueError("its content has changed since it was written, or this site has not written it")
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
        matches = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def last(self) -> int:
        """The last round whose state is here, 0 for none. Files that this site has not written are put aside."""
        for round in reversed(self.rounds):
            try:
                self._vault.load(self._path(round), self._about | {"round": round}, "")
            except InputError:
                with suppress(OSError):
                    self._path(round).rename(self._path(round).with_suffix(".refused"))
            else:
                return round
        return 0

    def answers(self, round: int, question: bytes) -> bool:
        """Whether the state after a round is here and was made by this very question."""
        path = self._path(round)
        if not path.exists():
            return False
        try:
            return self._vault.load(path, self._about | {"round": round}, "").about.get("asked") == _name(question)
        except InputError:
            return False

    def load(self, round: int) -> Tree:
        """The state after a round; after round 0 it is the initial one.

        Raises:
            MissingState: it is not here.
            InputError: it cannot be read.
        """
        if round == 0:
            return self._initial
        path = self._path(round)
        if not path.exists():
            raise MissingState
        return self._vault.read(path, self._about | {"round": round}, self._initial)

    def put(self, round: int, base: int, state: Tree, question: bytes = b"", *, ahead: bool = False) -> None:
        """Keep the state after a round beside the one that it was made from, and delete all others.

        ``question`` is what was asked, which ``answers`` compares. ``ahead`` says that the round of ``base`` may be
        repeated, so what it was made from stays too.

        Raises:
            RunError: the disk is full or the folder cannot be written; what was there stays.
        """
        self._vault.write(self._path(round), self._about | {"round": round, "asked": _name(question)}, state)
        rounds = self.rounds
        before = max((old for old in rounds if old < base), default=base) if ahead else base
        for old in rounds:
            if old not in (round, base, before):
                self._path(old).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._folder / f"round-{round}.state"


def _name(question: bytes) -> str:
    return hashlib.sha256(question).hexdigest()
