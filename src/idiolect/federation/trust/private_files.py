"""Files and folders that only this user can read: keys, states, and what is written beside them."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.core.documents import read_json, sealed_json
from idiolect.core.errors import InputError, RunError

PRIVATE = 0o600
"""The mode of a file for this user only."""
_SECRETS = "secret.json"
_LONG = 1000  # bytes of a token
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]{32,500}")


def private(path: Path) -> None:
    """Check that nobody else on this machine can read a file.

    Raises:
        InputError: somebody can.
        OSError: there is no such file.
    """
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        raise InputError(f"{path} can be read or changed by others (mode {mode:04o}): chmod 600 {path}")


def private_folder(folder: Path, root: Path | None = None) -> None:
    """Make a folder that only this user can look into; between ``root`` and it there may be no link.

    Raises:
        InputError: others can look into it, or there is a link.
        RunError: it cannot be made.
    """
    root = root or folder
    above = [folder, *folder.parents]
    below = above[: len(folder.parts) - len(root.parts) + 1]
    for place in reversed([one for one in above if one in below or not one.exists()]):
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            mode = stat.S_IMODE(place.stat().st_mode)
        except OSError as error:
            raise RunError(f"cannot make the folder {place} ({error.strerror}): choose another place") from error
        if place != root and place.is_symlink():
            raise InputError(f"{place} is a link, and none is followed in {root}: put a folder in its place")
        if os.name == "posix" and mode & 0o077:
            raise InputError(f"others can look into {place} (mode {mode:04o}): chmod 700 {place}")


def secret_of(root: Path, purpose: str) -> bytes:
    """A key for one purpose, 32 bytes, from the secret of a state folder, which is made if there is none.

    Raises:
        InputError: the secret cannot be read, or others can read it.
        RunError: it cannot be written.
    """
    path = root / _SECRETS
    try:
        if not os.path.lexists(path):
            write_json(path, {"secret": secrets.token_hex(32)})
        private(path)
        whole = bytes.fromhex(read_json(path)["secret"])
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}): restore it, or delete {root} to start from the first state again"
        ) from None
    return hmac.digest(whole, f"idiolect {purpose}".encode(), "sha256")


def key_of(path: Path) -> bytes:
    """The key in a file, which is made if it does not exist.

    Raises:
        InputError: it is not a key of 32 bytes in hexadecimal, or others can read it.
        RunError: it cannot be made.
    """
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                os.fsync(descriptor)  # before the first state that it encrypts
        private(path)
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except InputError:
        raise
    except OSError as error:
        raise RunError(f"cannot use the key {path} ({error.strerror}): choose another place") from None
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InputError(f"{path} is not a key: give a file with 64 hexadecimal digits, or one that does not exist yet")
    return key


def token_of(path: Path) -> str:
    """The token in a file, which is made if it does not exist. Its group may read it, as another program's.

    Raises:
        InputError: it is no token, or everybody can read it, or others can change it.
        RunError: it cannot be made or read.
    """
    try:
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="ascii") as file:
                file.write(f"{secrets.token_urlsafe(32)}\n")
        mode = path.stat().st_mode & 0o777
        token = path.read_bytes()[:_LONG].decode("ascii", "replace").strip()
    except OSError as error:
        raise RunError(f"cannot use the token {path} ({error.strerror}): choose another place") from None
    if os.name == "posix" and mode & 0o027:
        raise InputError(f"{path} can be read by everybody or changed by others (mode {mode:04o}): chmod 640 {path}")
    if not _TOKEN.fullmatch(token):
        raise InputError(
            f"{path} is not a token: give a file with 32 or more letters, digits, - or _ in one line, or one that does "
            "not exist yet"
        )
    return token


def write_json(path: Path, content: Mapping[str, Any], root: Path | None = None) -> None:
    """Write plain values, atomically and sealed.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    private_folder(path.parent, root)
    files.write(path, sealed_json(dict(content)), PRIVATE)
