"""The study of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.core.errors import InputError, nearest

if TYPE_CHECKING:
    from idiolect.studies import Study


def study_of(
    path: Path | None, settings: dict[str, Any], sets: Sequence[str], resumed: Path | None, allow_import: bool
) -> Study:
    """The study from a file, options and ``--set`` together; a run to be resumed has its own file.

    Code that an option names may be imported; code that the file names needs permission.
    """
    from idiolect.runs.folder import STUDY_FILE, has_run
    from idiolect.studies import Study
    from idiolect.studies.config import names_code

    if path is None and resumed is not None:
        if has_run(resumed):
            path = resumed / STUDY_FILE
        elif not settings and not sets:
            raise InputError(f"{resumed} has no run to resume: give --out the folder of one, or leave out --resume")
    if path is None and re.fullmatch(r"\w[\w.-]{,99}", own_name := Path(settings.get("data") or "").stem):
        settings = {"name": own_name} | settings
    there = Study.look(path) if path else None
    written = there.model_dump(exclude_unset=True) if there else {}  # the rest depends on what is overridden
    by_name, own_data = ("dataset", "data_dir"), ("data", "target", "task", "client_column", "drop", "resize")
    for own, other in (("data", by_name), ("dataset", own_data)):
        if own in settings:  # one replaces the other
            written = {k: v for k, v in written.items() if k not in other}
    if "data" in settings or "client_column" in settings:  # these say how samples are divided
        written = {k: v for k, v in written.items() if k not in ("partition", "clients")}
    if path and there and not allow_import:
        named = {k: v for k, v in there.imports().items() if k in written and k not in settings}
        if named:
            raise names_code(path, named)
    study = Study(**written | settings)
    return Study(**study.model_dump() | {"methods": _with(study, sets)})


def _with(study: Study, sets: Sequence[str]) -> list[dict[str, Any]]:
    """The study's methods with the options that ``--set`` gives."""
    from idiolect.core.option_spec import scalar
    from idiolect.studies.method_use import labelled

    uses = [u.model_dump() for u in study.methods]
    given: list[dict[str, Any]] = [{} for _ in uses]
    for text in sets:
        target, equals, value = text.partition("=")
        label, dot, option = target.strip().rpartition(".")
        if not (equals and dot):
            raise InputError(f"--set {text}: write METHOD.OPTION=VALUE, for example pfedfda.ridge=1.0")
        meant = [mine for u, mine in zip(uses, given, strict=True) if label in (u["name"], u["label"])]
        if not meant:
            hint = nearest(label, [u["label"] for u in uses])
            raise InputError(f"--set {text}: method {label!r} is not in this study; {hint}")
        for mine in meant:
            mine[option] = scalar(value)
    for u, mine in zip(uses, given, strict=True):
        u["options"] = ({} if "preset" in mine else u["options"]) | mine  # a preset replaces all options
        if mine and (u["label"] == u["name"] or u["label"].startswith(f"{u['name']}:")):
            u["label"] = labelled(u["name"], u["options"])
    return uses
