"""``idiolect predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli.form import Columns, Header, Missing
from idiolect.cli.join import AsIs, Resize
from idiolect.cli.model_folder import Method, Seed, StateKey, Study, is_state, model, state
from idiolect.cli.options import AllowImport, flag, option
from idiolect.cli.output import out_console, say


def predict_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder with a model that is ready, or a site's state.")],
    data: Annotated[Path | None, option("The samples: a table, or a folder of images.", metavar="WHERE")] = None,
    out: Annotated[Path, option("The predictions, as .parquet or .csv.")] = Path("predictions.parquet"),
    client: Annotated[str | None, option("Whose model, where there are several.", metavar="NAME")] = None,
    level: Annotated[
        float | None,
        option(
            "Also give sets of classes that hold the right one for this share of samples, as 0.9; where a set has not "
            "exactly one class, no label is given. Of numbers, give intervals that hold them for this share.",
        ),
    ] = None,
    own: Annotated[
        bool,
        flag("own", "Of a site's state folder, in place of --data: what the study predicted for its test samples."),
    ] = False,
    method: Method = None,
    seed: Seed = None,
    study: Study = None,
    state_key: StateKey = None,
    header: Header = None,
    columns: Columns = None,
    missing: Missing = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
) -> None:
    """Predict new samples with a site's model.

    Example: idiolect predict site --data new.csv --out predictions.parquet
    """
    from idiolect.core.errors import InputError
    from idiolect.data.custom.form import form_of
    from idiolect.deploy.predict import predict, save

    if own == (data is not None):
        raise InputError("give --data (new samples), or --own for the test samples of a site's state folder")
    form = form_of(header, columns, missing)
    choice: dict[str, Any] = {"method": method, "seed": seed, "study": study, "state_key": state_key}
    if data is None and is_state(site):
        own_model = state(site, **choice)
        counts, has_labels = save(out, own_model.predictions(level)), bool(own_model.about.classes)
    else:
        bundle = model(site, allow_import=allow_import, **choice)
        if data is None:
            raise InputError(f"--own is for a site's state folder, and {site} is none: give --data")
        counts = predict(bundle, data, out, client=client, level=level, resize=resize, as_is=as_is or (), form=form)
        has_labels = bool(bundle.about.classes)
    without = f", {counts.abstained:,} of them without a label" if level is not None and has_labels else ""
    say(out_console, f"{counts.samples:,} samples predicted{without}: {out}")
