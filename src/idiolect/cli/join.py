"""``idiolect join``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.options import AllowImport, flag, option
from idiolect.cli.output import out_console, say

Resize = Annotated[bool, flag("resize", "Stretch images of another size.")]
AsIs = Annotated[
    list[str] | None,
    option("A column whose numbers are right although they look like those of another unit; repeat.", metavar="COLUMN"),
]


def join_command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder that idiolect bundle wrote.")],
    data: Annotated[Path, option("The site's samples: a table, or a folder of images.", metavar="WHERE")],
    target: Annotated[str | None, option("Column to predict.", "label, target, class, ...", metavar="COLUMN")] = None,
    out: Annotated[Path, option("Folder of the site's model.", "site")] = Path("site"),
    ships: Annotated[
        str | None, option("Take global, personal or local, whatever the comparison says.", "the best")
    ] = None,
    client: Annotated[
        int | None, option("The site's number, on which random draws depend.", "that of the first new client")
    ] = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
) -> None:
    """Make a model for a site that did not train, and compare it with the global one before it ships.

    Example: idiolect join digits-bundle --data my.csv --target diagnosis --out site
    """
    from idiolect.core.errors import InputError, nearest
    from idiolect.deploy.bundle import Bundle, vacant
    from idiolect.deploy.join import join
    from idiolect.deploy.samples import read

    names = ("global", "personal", "local")
    if ships not in (None, *names):
        raise InputError(f"--ships {ships} is not a model; {nearest(str(ships), names)}")
    vacant(out)
    found = Bundle.read(bundle, allow_import=allow_import)
    samples = read(data, found.about.inputs, found.about.classes, target, resize=resize, as_is=as_is or ())
    made = join(found, samples, out, client=client, ships=ships)  # type: ignore[arg-type]
    site = made.about.site
    assert site is not None
    say(out_console, f"This site's model: {site.why}")
    say(out_console, f"Site: {out} (report: {out / 'report.html'})")
