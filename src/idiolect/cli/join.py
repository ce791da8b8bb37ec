"""``idiolect join``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idiolect.cli import model_folder
from idiolect.cli.form import Columns, GroupColumn, Header, Missing, Samples, Target, Unlabelled
from idiolect.cli.model_folder import Method, Seed, StateKey, Study
from idiolect.cli.options import AllowImport, flag, option
from idiolect.cli.output import out_console, say

if TYPE_CHECKING:
    from idiolect.deploy.bundle import Bundle
    from idiolect.federation.data.samples import SiteFiles
    from idiolect.federation.site.personal_model import SiteModel

Resize = Annotated[bool, flag("resize", "Stretch images of another size to that of the training.")]
AsIs = Annotated[
    list[str] | None,
    option("A column whose numbers are right although they look like those of another unit; repeat.", metavar="COLUMN"),
]


def join_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="Folder that idiolect bundle wrote, or a site's state.")
    ],
    data: Samples,
    target: Target = None,
    out: Annotated[Path, option("Folder of the site's model.", "site")] = Path("site"),
    ships: Annotated[
        str | None, option("Take global, personal or local, whatever the comparison says.", "the best")
    ] = None,
    client: Annotated[
        int | None, option("The site's number (no name), on which random draws depend.", "that of the first new client")
    ] = None,
    test: Annotated[
        Path | None,
        option("Of a site's state folder: its samples to test on, where it took part with some.", metavar="WHERE"),
    ] = None,
    method: Method = None,
    seed: Seed = None,
    study: Study = None,
    state_key: StateKey = None,
    group_column: GroupColumn = None,
    header: Header = None,
    columns: Columns = None,
    missing: Missing = None,
    unlabelled: Unlabelled = None,
    as_is: AsIs = None,
    resize: Resize = False,
    allow_import: AllowImport = False,
) -> None:
    """Make a model for a site that did not train, and compare it with others before it ships.

    From the state folder of a site that did train, its personal model is compared on the site's test samples.

    Example: idiolect join digits-bundle --data my.csv --target diagnosis --out site
    """
    from idiolect.core.errors import InputError, nearest
    from idiolect.core.files import vacant
    from idiolect.data.custom.form import form_of
    from idiolect.deploy.bundle import Bundle
    from idiolect.deploy.join import join
    from idiolect.deploy.samples import read
    from idiolect.deploy.usual import usual_of

    names = ("global", "personal", "local")
    if ships not in (None, *names):
        raise InputError(f"--ships {ships} is not a model; {nearest(str(ships), names)}")
    vacant(out)
    form = form_of(header, columns, missing, unlabelled)
    if model_folder.is_state(bundle):
        if client is not None or resize:
            raise InputError("--client and --resize are for a bundle, not for a site's state folder: leave them out")
        from idiolect.federation.data.samples import SiteFiles

        model = model_folder.state(bundle, method=method, seed=seed, study=study, state_key=state_key)
        site = _of_state(
            model,
            SiteFiles(data, target=target, test=test, as_is=as_is or (), form=form, group_column=group_column),
            out,
            ships,
        )
        _say(site, out)
        return
    source = Bundle.read(bundle, allow_import=allow_import)
    model_folder.refuse(bundle, test=test, method=method, seed=seed, study=study, state_key=state_key)
    samples = read(
        data, source.about.inputs, source.about.classes, target, resize=resize, as_is=as_is or (), form=form,
        group_column=group_column, usual=usual_of(source.about),
        targets=source.about.targets, labels=source.about.labels,
    )  # fmt: skip
    site = join(source, samples, out, client=client, ships=ships)  # type: ignore[arg-type]
    _say(site, out)


def _of_state(model: SiteModel, samples: SiteFiles, out: Path, ships: str | None) -> Bundle:
    from idiolect.federation.site.comparison import join

    return join(model, samples, out, ships=ships)  # type: ignore[arg-type]


def _say(bundle: Bundle, out: Path) -> None:
    site = bundle.about.site
    assert site is not None
    say(out_console, f"This site's model: {site.why}")
    say(out_console, f"Site: {out} (report: {out / 'report.html'})")
