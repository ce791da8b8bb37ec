"""Which runs no bundle holds as yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.core.errors import InputError, option


def check_task(run: Path, study: Mapping[str, Any], client: str | int | None) -> None:
    """Check that a bundle can hold what a run has learnt.

    Args:
        run: the run's folder.
        study: the settings of the method, as in ``study.yaml``.
        client: as for ``make.make``.

    Raises:
        InputError: classes have weights, and a new client is to train with them.
    """
    if client is None and (study.get("class_weights") or {}).get("name", "none") != "none":
        raise InputError(
            f"{run} weighs classes in its loss, and the training of a new client from a bundle does not as yet: give "
            f"{option('client', 'all')} for the personal models, or run the study without class_weights"
        )
