"""``idiolect predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.join import AsIs, Resize
from idiolect.cli.options import AllowImport, option
from idiolect.cli.output import out_console, say


def predict_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder with a model that is ready.")],
    data: Annotated[Path, option("The samples: a table, or a folder of images.", metavar="WHERE")],
    out: Annotated[Path, option("The predictions, as .parquet or .csv.")] = Path("predictions.parquet"),
    client: Annotated[str | None, option("Whose model, where there are several.", metavar="NAME")] = None,
    level: Annotated[
        float | None,
        option(
            "Also give sets of classes that hold the right one for this share of samples, as 0.9; where a set has not "
            "exactly one class, no label is given.",
        ),
    ] = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
) -> None:
    """Predict new samples with a site's model.

    Example: idiolect predict site --data new.csv --out predictions.parquet
    """
    from idiolect.deploy.bundle import Bundle
    from idiolect.deploy.predict import predict

    found = Bundle.read(site, allow_import=allow_import)
    counted = predict(found, data, out, client=client, level=level, resize=resize, as_is=as_is or ())
    without = f", {counted.abstained:,} of them without a label" if level is not None else ""
    say(out_console, f"{counted.samples:,} samples predicted{without}: {out}")
