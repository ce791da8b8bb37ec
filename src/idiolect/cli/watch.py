"""``idiolect watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.form import Columns, Header, Missing, Unlabelled
from idiolect.cli.join import AsIs, Resize
from idiolect.cli.model_folder import Method, Seed, StateKey, Study, model
from idiolect.cli.options import AllowImport, AsJson, flag, option
from idiolect.cli.output import out_console, print_json, say


def watch_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder that idiolect join wrote, or a site's state.")],
    data: Annotated[Path, option("New samples: a table, or a folder of images; labels are not used.", metavar="WHERE")],
    target: Annotated[
        str | None,
        option(
            "Of numbers or several labels, their columns in the new samples, joined by +, if they are known: errors "
            "are compared too.",
            metavar="COLUMN",
        ),
    ] = None,
    level: Annotated[float, option("The rate of alarms where nothing moved.", "0.05")] = 0.05,
    adapt: Annotated[
        bool, flag("adapt", "If only the proportions of the classes moved, write the site's model for the new ones.")
    ] = False,
    out: Annotated[Path | None, option("Folder of the adapted site.", metavar="FOLDER")] = None,
    method: Method = None,
    seed: Seed = None,
    study: Study = None,
    state_key: StateKey = None,
    header: Header = None,
    columns: Columns = None,
    missing: Missing = None,
    unlabelled: Unlabelled = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Say whether new samples are still like those that a site joined with; the exit code is 1 if they are not.

    Example: idiolect watch site --data new.csv
    """
    from idiolect.core.errors import InputError
    from idiolect.core.files import vacant
    from idiolect.data.custom.form import form_of
    from idiolect.deploy import watch as watching
    from idiolect.deploy.samples import read, stream
    from idiolect.deploy.usual import usual_of

    if adapt != (out is not None):
        raise InputError("give --adapt and --out (a new folder) together")
    if out is not None:
        vacant(out)
    form = form_of(header, columns, missing, unlabelled)
    bundle = model(site, allow_import=allow_import, method=method, seed=seed, study=study, state_key=state_key)
    about, right = bundle.about, as_is or ()
    if not about.classes and adapt:
        what = "numbers" if about.targets else "several labels"
        raise InputError(f"--adapt is for proportions of classes, and {site} predicts {what}: leave it out")
    if about.classes and target is not None:
        raise InputError(
            f"--target is for numbers or several labels, and {site} predicts classes, whose labels are not read: leave "
            "it out"
        )
    if target is None:
        parts = stream(data, about.inputs, resize=resize, as_is=right, form=form, usual=usual_of(about))
        result = watching.watch(bundle, (x_N for x_N, _ in parts), level=level)
    else:
        own = read(
            data, about.inputs, (), target, resize=resize, as_is=right, form=form, targets=about.targets,
            labels=about.labels, usual=usual_of(about),
        )  # fmt: skip
        result = watching.watch(bundle, own.x_N, y_MD=own.y_N, level=level)
    folder = out if out is not None and result.adaptable else None
    if folder is not None:
        watching.adapt(bundle, result, folder)
    if as_json:
        print_json(result.as_json() | {"adapted": str(folder) if folder else None})
    else:
        for sentence in watching.sentences(result):
            say(out_console, sentence)
        if adapt:
            say(out_console, f"Adapted site: {folder}" if folder else "No site was written.")
    if result.alarm:
        raise typer.Exit(1)
