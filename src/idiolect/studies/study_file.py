"""A study as a file has it, before its settings are checked, and the code that these name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pydantic

from idiolect import data, methods
from idiolect.core.documents import read_yaml
from idiolect.core.errors import InputError, option
from idiolect.core.files import about_backslashes
from idiolect.core.option_spec import Spec, split_list
from idiolect.studies.naming import is_path, path_of_model


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


def code_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that name code by its import path, with the path; of several methods the first.

    ``settings`` are as they are written, or checked.
    """
    model, partition, source = (settings.get(name) for name in ("model", "partition", "data"))
    paths: dict[str, str | None] = {}
    with suppress(InputError, pydantic.ValidationError):  # what cannot be read names nothing, and is refused elsewhere
        paths["model"] = path_of_model(model) if isinstance(model, str) else None
    with suppress(InputError, pydantic.ValidationError):
        spec = Spec.model_validate(partition)
        paths["partition"] = spec.name if is_path(spec) else None
    paths["methods"] = next(filter(methods.registry.is_path, _names(settings.get("methods"))), None)
    paths["data"] = source if isinstance(source, str) and data.is_program(source) else None
    return {setting: path for setting, path in paths.items() if path}


def _names(uses: Any) -> Iterator[str]:
    """The names of methods; what cannot be read has none, and is refused elsewhere."""
    for use in split_list(uses) if isinstance(uses, str) else uses if isinstance(uses, list | tuple) else ():
        with suppress(InputError, pydantic.ValidationError):
            if isinstance(use, str):
                yield Spec.parse(use).name
            elif isinstance(use, Mapping) and "name" in use:
                yield str(use["name"])
            elif isinstance(name := getattr(use, "name", None), str):
                yield name


def names_code(file: str | Path, paths: Mapping[str, str]) -> InputError:
    """The error for a file that names code without permission to import it."""
    setting, path = next(iter(paths.items()))
    return InputError(
        f"{file}: {setting} {path} is code, and reading it would run the module {path.rpartition('.')[0]}: check "
        f"that module first, then give {option('allow_import', True)}"
    )
