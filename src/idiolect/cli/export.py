"""``idiolect export``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.join import AsIs, Resize
from idiolect.cli.model_folder import Method, Seed, StateKey, Study, model
from idiolect.cli.options import AllowImport, option
from idiolect.cli.output import out_console, say


class Format(StrEnum):
    """What ``idiolect export`` writes."""

    onnx = "onnx"
    torch = "torch"


def export_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder with a model that is ready, or a site's state.")],
    format: Annotated[Format, option("A model of ONNX, or a program of torch.export.", "onnx")] = Format.onnx,
    out: Annotated[Path | None, option("The file.", "model.onnx or model.pt2")] = None,
    client: Annotated[str | None, option("Whose model, where there are several.", metavar="NAME")] = None,
    data: Annotated[
        Path | None, option("Labelled samples to compare the file on.", "synthetic ones", metavar="WHERE")
    ] = None,
    target: Annotated[
        str | None, option("Column of the labels in --data.", "label, target, class, ...", metavar="COLUMN")
    ] = None,
    method: Method = None,
    seed: Seed = None,
    study: Study = None,
    state_key: StateKey = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
) -> None:
    """Write a model as one file that runs without idiolect, compared with the model before it is kept.

    Example: idiolect export site --out model.onnx
    """
    from idiolect.deploy.export import export
    from idiolect.deploy.samples import read

    bundle = model(site, allow_import=allow_import, method=method, seed=seed, study=study, state_key=state_key)
    x_R = None
    if data is not None:
        about = bundle.about
        x_R = read(
            data,
            about.inputs,
            about.classes,
            target,
            resize=resize,
            as_is=as_is or (),
            targets=about.targets,
            labels=about.labels,
        ).x_N
    path = out or Path("model.onnx" if format is Format.onnx else "model.pt2")
    check = export(bundle, path, format=format.value, client=client, x_R=x_R)
    what = "synthetic samples" if data is None else "samples"
    outputs = "predictions" if bundle.about.targets else "probabilities"
    unit = " standard deviations of the target" if bundle.about.targets else ""
    say(out_console, f"{path}: {outputs} of {check.samples} {what} differ by at most {check.difference:.1e}{unit}")
