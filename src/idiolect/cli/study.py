"""The study of a command."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.core.errors import InputError, argument, nearest
from idiolect.core.import_path import no_imports
from idiolect.studies.settings import OWN_DATA

if TYPE_CHECKING:
    from idiolect.studies import Study, Use

log = logging.getLogger(__name__)
_DIVISION = ("partition", "clients")
"""The settings that say how samples are divided."""


def study_of(
    path: Path | None, settings: dict[str, Any], sets: Sequence[str], resumed: Path | None, allow_import: bool
) -> Study:
    """The study from a file, options and ``--set`` together; a run to be resumed has its own file.

    Code that an option names may be imported; code that the file names needs permission.
    """
    from idiolect.runs.folder import STUDY_FILE, has_run
    from idiolect.studies import Study
    from idiolect.studies.study_file import names_code, settings_of_file

    if path is None and resumed is not None:
        if has_run(resumed):
            path = resumed / STUDY_FILE
        elif not settings and not sets:
            raise InputError(f"{resumed} has no run to resume: give --out the folder of one, or leave out --resume")
    if path is None and re.fullmatch(r"\w[\w.-]{,99}", own_name := Path(settings.get("data") or "").stem):
        settings = {"name": own_name} | settings
    in_file, replaced = settings_of_file(path) if path else {}, _replaced(settings)
    of_file = {k: v for k, v in in_file.items() if k not in replaced}
    lost = [k for k in _DIVISION if in_file.get(k) is not None and k in replaced and k not in settings]
    if lost and (resumed is None or path != resumed / STUDY_FILE):
        own, options = argument("data" if "data" in settings else "client_column"), map(argument, lost)
        log.warning("%s leaves out %s of %s: give %s too to keep them", own, ", ".join(lost), path, ", ".join(options))

    def whole() -> Study:
        try:
            return Study(**of_file | settings)
        except InputError:
            if path:
                Study.look(path)  # says so if the fault is the file's
            raise

    strange = path is not None and not allow_import
    with no_imports() if strange else nullcontext():
        study = whole()
    if strange and (paths := study.imports()):
        if theirs := {setting: code for setting, code in paths.items() if setting in of_file}:
            raise names_code(str(path), theirs)
        study = whole()  # with the code that options name
    return study.with_methods(_with(study.methods, sets)) if sets else study


def _replaced(settings: Mapping[str, Any]) -> set[str]:
    """The settings of a file that do not count beside these."""
    replaced = set(settings)
    for own, other in (("data", ("dataset", "data_dir")), ("dataset", ("data", *OWN_DATA))):
        if own in settings:
            replaced.update(other)
    if "data" in settings or "client_column" in settings:  # these say how samples are divided
        replaced.update(_DIVISION)
    return replaced


def _with(methods: Sequence[Use], sets: Sequence[str]) -> tuple[Use, ...]:
    """Methods with the options, and with the settings of their own, that ``--set`` gives."""
    from idiolect.core.option_spec import scalar
    from idiolect.studies.method_use import label_of, merged, with_values
    from idiolect.studies.naming import all_different

    given: list[dict[str, Any]] = [{} for _ in methods]
    for text in sets:
        target, equals, value = text.partition("=")
        label, dot, option = target.strip().rpartition(".")
        if not (equals and dot):
            raise InputError(
                f"--set {text}: write METHOD.OPTION=VALUE, for example pfedfda.ridge=1.0; a setting "
                "of the study is an option of its own, as --rounds 20"
            )
        chosen = [mine for m, mine in zip(methods, given, strict=True) if label in (m.name, m.label)]
        if not chosen:
            hint = nearest(label, [m.label for m in methods])
            raise InputError(f"--set {text}: method {label!r} is not in this study; {hint}")
        for mine in chosen:
            mine[option] = scalar(value)
    uses = []
    for m, mine in zip(methods, given, strict=True):
        own = bool(mine) and (m.label == m.name or m.label.startswith(f"{m.name}:"))
        uses.append(with_values(m, mine, label_of(m.name, *merged(m, mine)) if own else m.label))
    return all_different("method", tuple(uses), [u.label for u in uses])
