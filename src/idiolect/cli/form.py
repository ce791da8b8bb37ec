"""Options that say how the tables of a site are written, where they do not say it themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from idiolect.cli.options import option
from idiolect.studies.settings import SETTINGS

Target = Annotated[
    str | None, option("Column to predict, or a question as num>0.", SETTINGS["target"].unset, metavar="COLUMN")
]
Samples = Annotated[
    Path,
    option(
        "The site's samples: a table, several as visits-*.csv, or a folder of images.", "", "--data", metavar="WHERE"
    ),
]
GroupColumn = Annotated[str | None, option(SETTINGS["group_column"].about, metavar="COLUMN")]
Header = Annotated[
    str | None,
    option(SETTINGS["header"].about, SETTINGS["header"].unset, metavar="none"),
]
Columns = Annotated[str | None, option(SETTINGS["columns"].about, SETTINGS["columns"].unset, metavar="COLUMNS")]
Missing = Annotated[str | None, option(SETTINGS["missing"].about, metavar="MARKS")]
Categorical = Annotated[str | None, option(SETTINGS["categorical"].about, metavar="COLUMNS")]
Unlabelled = Annotated[str | None, option(SETTINGS["unlabelled"].about, SETTINGS["unlabelled"].unset, metavar="HOW")]
