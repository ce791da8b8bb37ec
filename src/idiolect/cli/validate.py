"""``idiolect validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli.form import Columns, GroupColumn, Header, Missing, Target, Unlabelled
from idiolect.cli.join import AsIs, Resize
from idiolect.cli.model_folder import Method, Seed, StateKey, Study, is_state, model, state
from idiolect.cli.options import AllowImport, AsJson, flag, option
from idiolect.cli.output import out_console, print_json, say


def validate_command(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder with a model that is ready, or a site's state.")],
    data: Annotated[
        Path | None, option("Labelled samples that the model has not seen: a table, or a folder.", metavar="WHERE")
    ] = None,
    target: Target = None,
    out: Annotated[Path, option("New folder of the page and the tables.", "validation")] = Path("validation"),
    of_class: Annotated[
        str | None, option("The class, or label, of cases.", "the second of two", "--class", metavar="NAME")
    ] = None,
    specificity: Annotated[float, option("The specificity at which the sensitivity is given.", "0.9")] = 0.9,
    sensitivity: Annotated[float, option("The sensitivity at which the specificity is given.", "0.9")] = 0.9,
    subgroup: Annotated[
        list[str] | None,
        option("A column that divides the samples, or a question of one, as age>=65; repeat.", metavar="COLUMN"),
    ] = None,
    prevalence: Annotated[
        float | None, option("The share of cases where the model is used.", "that of the samples")
    ] = None,
    thresholds: Annotated[
        str, option("The range of threshold probabilities of the decision curve.", "0.05,0.95", metavar="LOW,HIGH")
    ] = "0.05,0.95",
    least: Annotated[
        int, option("Cases, controls and samples of a subgroup from which on a number is shown.", "10")
    ] = 10,
    client: Annotated[str | None, option("Whose model, where there are several.", metavar="NAME")] = None,
    own: Annotated[
        bool,
        flag("own", "Of a site's state folder, in place of --data: what the study predicted for its test samples."),
    ] = False,
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
    as_json: AsJson = False,
) -> None:
    """Judge a site's model on labelled samples: sensitivity, specificity, calibration, decision curve, subgroups.

    All is computed here; the page and the tables hold no sample.

    Example: idiolect validate site --data tested.csv --target diagnosis --subgroup sex
    """
    from idiolect.core.errors import InputError
    from idiolect.core.files import vacant
    from idiolect.data.custom.form import form_of
    from idiolect.deploy.validate import PAGE, judge, validate
    from idiolect.deploy.validation import Settings
    from idiolect.deploy.validation_result import cautions, sentences

    if own == (data is not None):
        raise InputError("give --data (labelled samples), or --own for the test samples of a site's state folder")
    settings = Settings(specificity, sensitivity, prevalence, _range(thresholds), least)
    settings.check()
    vacant(out)
    form = form_of(header, columns, missing, unlabelled)
    choice: dict[str, Any] = {"method": method, "seed": seed, "study": study, "state_key": state_key}
    if data is None and is_state(site):
        if subgroup:
            raise InputError("--subgroup needs the columns of samples, which a state folder does not keep: give --data")
        own_model = state(site, **choice)
        logp, y, group_N = own_model.tested
        result = judge(
            own_model, own_model.thresholds(client), logp, y, out, of_class=of_class, settings=settings,
            group_N=group_N, where=str(site),
        )  # fmt: skip
    else:
        bundle = model(site, allow_import=allow_import, **choice)
        if data is None:
            raise InputError(f"--own is for a site's state folder, and {site} is none: give --data")
        result = validate(
            bundle, data, out, target=target, of_class=of_class, subgroup_columns=subgroup or (), settings=settings,
            client=client, resize=resize, as_is=as_is or (), form=form, group_column=group_column,
        )  # fmt: skip
    if as_json:
        print_json(result.as_json())
        return
    for sentence in (*sentences(result), *cautions(result)):
        say(out_console, sentence)
    say(out_console, f"Validation: {out} (report: {out / PAGE})")


def _range(text: str) -> tuple[float, float]:
    from idiolect.core.errors import InputError

    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise InputError(
            f"--thresholds {text} is not understood: give two probabilities, the lower one first, as 0.05,0.5"
        ) from None
    return low, high
