"""``idiolect bundle``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.options import AllowImport, flag, option
from idiolect.cli.output import out_console, say
from idiolect.core.errors import InputError


def bundle_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run; with --check that of a bundle.")],
    method: Annotated[str | None, option("The method, by its label or name.", metavar="NAME")] = None,
    out: Annotated[Path | None, option("Folder of the bundle.", metavar="FOLDER")] = None,
    seed: Annotated[int | None, option("The seed, one of the run's.", "the first")] = None,
    client: Annotated[
        str | None,
        option("Write the personal model of this client, or of all.", "what a new client gets", metavar="NAME|all"),
    ] = None,
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
        found = Bundle.read(run, allow_import=allow_import)
        found.check()
        say(out_console, f"{run} is whole: {found.about.method.title}, {found.about.kind}, digest {found.digest}")
        return
    if method is None or out is None:
        raise InputError("give --method (one of the run's) and --out (a new folder)")
    from idiolect.studies import Result, Study

    study = Study.read(run / "study.yaml", allow_import=allow_import)
    made = Result(run, study).bundle(method, out, seed=seed, client=client)
    size = sum(path.stat().st_size for path in made.folder.iterdir())
    say(out_console, f"Bundle: {made.folder} ({size / 1e6:,.1f} MB), digest {made.digest}")
