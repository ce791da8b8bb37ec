"""A study as a file has it, before its settings are checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.core.documents import read_yaml
from idiolect.core.errors import InputError, option
from idiolect.core.files import about_backslashes


def settings_of_file(path: str | Path) -> dict[str, Any]:
    """The settings in a file, as they are written there.

    Raises:
        InputError: there is no such file, it is not YAML, or it is not a mapping of settings.
    """
    try:
        settings = read_yaml(Path(path))
    except OSError as error:
        raise InputError(f"cannot read study {path}: {about_backslashes(path) or error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not YAML ({error}): fix it") from None
    if not isinstance(settings, dict) or not all(isinstance(k, str) for k in settings):
        raise InputError(f"{path} is not a study: it should have settings such as 'dataset: digits'")
    return settings


def names_code(file: str | Path, paths: Mapping[str, str]) -> InputError:
    """The error for a file that names code without permission to import it."""
    setting, path = next(iter(paths.items()))
    return InputError(
        f"{file}: {setting} {path} is code, and reading it would run the module {path.rpartition('.')[0]}: check "
        f"that module first, then give {option('allow_import', True)}"
    )
