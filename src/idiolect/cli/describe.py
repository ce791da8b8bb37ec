"""``idiolect describe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from idiolect.cli.options import AllowImport, AsJson, StudyFile, option, with_settings
from idiolect.cli.output import out_console, print_json, say
from idiolect.cli.study import study_of
from idiolect.studies.settings import DATA, OUTPUT, PARTITION, SETTINGS, SHIFTS

_ABOUT_DATA = [name for name, setting in SETTINGS.items() if setting.group in (DATA, PARTITION, SHIFTS)]


@with_settings([*_ABOUT_DATA, "model"])
def describe_command(
    settings: dict[str, Any],
    study: StudyFile = None,
    show: Annotated[
        str | None,
        option(
            "Clients whose images, texts or windows are shown, for example 0-2+50.",
            "the first of each shift",
            metavar="CLIENTS",
            panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[Path | None, option("The page.", "runs/describe.html", panel=OUTPUT)] = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Show how clients differ before anything is trained: who has what, how much, how different, how it looks.

    Example: idiolect describe --dataset cifar10 --clients 100 --shift corrupt:clients=0-49
    """
    from idiolect.data import heterogeneity, members
    from idiolect.report import description as drawing
    from idiolect.studies.backbones import check_task

    whole = study_of(study, settings, [], None, allow_import)
    federation = whole.samples()
    check_task(whole, federation)  # here a network that does not fit the samples is an error
    about = heterogeneity.describe_clients(federation)
    values = whole.model_dump(mode="json")
    clients = sorted(members(show, len(about.train_KC), "--show")) if show else drawing.typical(federation, about)
    facts = drawing.facts(values, federation, about)
    page = drawing.write_description(facts, federation, about, clients, out or Path("runs", "describe.html"))
    if as_json:
        print_json(drawing.as_json(values, federation, about) | {"page": str(page)})
    else:
        out_console.print(drawing.terminal(facts, federation, about))
        say(out_console, f"\nPage: {page}")
