"""The study as it travels: a text, and the digest by which both ends know that they mean the same one."""

from __future__ import annotations

import hashlib

from idiolect.core.documents import parse_yaml
from idiolect.core.errors import InputError
from idiolect.core.import_path import no_imports
from idiolect.federation.messages import Refusal
from idiolect.studies import Study


def digest(text: str) -> str:
    """The name of a text, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def study_of(text: str) -> Study:
    """The study in a text that came over the network, or from a folder that may have come from anywhere.

    Raises:
        Refusal: it is not a study of this version, or it names code by its import path, which is never imported.
    """
    try:
        settings = parse_yaml(text)
        if not isinstance(settings, dict):
            raise Refusal("it is not a study")
        with no_imports():
            study = Study(**settings)
    except (InputError, ValueError, TypeError) as error:
        raise Refusal(f"it is not a study of this version ({error})") from None
    for setting, path in study.imports().items():
        raise Refusal(f"{setting} {path} is code of its own, which no site imports")
    return study
