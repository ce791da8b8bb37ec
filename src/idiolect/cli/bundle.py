"""``idiolect bundle``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idiolect.cli import model_folder
from idiolect.cli.model_folder import StateKey, Study
from idiolect.cli.options import AllowImport, flag, option
from idiolect.cli.output import out_console, say
from idiolect.core.errors import InputError

if TYPE_CHECKING:
    from idiolect.studies import Result


def bundle_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a site's state; with --check that of a bundle.")
    ],
    method: Annotated[str | None, option("The method, by its label or name.", metavar="NAME")] = None,
    out: Annotated[Path | None, option("Folder of the bundle.", metavar="FOLDER")] = None,
    seed: Annotated[int | None, option("The seed, one of the run's.", "the first")] = None,
    client: Annotated[
        str | None,
        option("Write the personal model of this client, or of all.", "what a new client gets", metavar="NAME|all"),
    ] = None,
    study: Study = None,
    state_key: StateKey = None,
    check: Annotated[bool, flag("check", "Check that no file of the bundle has changed.")] = False,
    allow_import: AllowImport = False,
) -> None:
    """Write what a run trained as a folder that a site can use: to join, or with personal models.

    Example: idiolect bundle runs/digits --method pfedfda --out digits-bundle
    """
    if check:
        from idiolect.deploy.bundle import Bundle

        if method or out or client or seed is not None:
            raise InputError("--check only reads a bundle: leave out the other options")
        bundle = Bundle.read(run, allow_import=allow_import)
        bundle.check()
        say(out_console, f"{run} is whole: {bundle.about.method.title}, {bundle.about.kind}, digest {bundle.digest}")
        return
    if out is None:
        raise InputError("give --out (a new folder)")
    if model_folder.is_state(run):
        if client is not None:
            raise InputError("a site's state folder has the personal model of this site alone: leave out --client")
        model = model_folder.state(run, method=method, seed=seed, study=study, state_key=state_key)
        bundle = model.to_bundle(out)
    else:
        model_folder.refuse(run, study=study, state_key=state_key)
        if method is None:
            raise InputError("give --method (one of the run's)")
        bundle = _result(run, allow_import).bundle(method, out, seed=seed, client=client)
    from idiolect.report.tables import size as size_text

    size = sum(path.stat().st_size for path in bundle.folder.iterdir())
    say(out_console, f"Bundle: {bundle.folder} ({size_text(size)}), digest {bundle.digest}")


def _result(run: Path, allow_import: bool) -> Result:
    """A run, of a simulation or of a federation."""
    if (run / ".federation.json").exists():
        from idiolect.core.import_path import optional

        optional("cryptography", "federation", "the run of a federation")
        from idiolect.federation.server.conduct import result

        return result(run)
    from idiolect.runs.folder import STUDY_FILE
    from idiolect.runs.loading import look
    from idiolect.studies import Result, Study

    look(run)
    study = Study.read(run / STUDY_FILE, allow_import=allow_import)
    if str(study.data).startswith("given: the sites of "):
        raise InputError(
            f"{run} has no .federation.json, which says what its sites agreed on: take the server's folder"
        )
    return Result(run, study)
