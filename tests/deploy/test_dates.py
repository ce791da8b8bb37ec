"""Columns of dates at a site that joins, predicts or takes part: gaps, odd cells, names, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data.custom.parts import Part
from idiolect.deploy.samples import Reader
from idiolect.deploy.schema import Inputs
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles

PARTS = ("year", "month", "weekday", "days")


def visits(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Visits of three years, every tenth without a date."""
    rng = np.random.default_rng(seed)
    day = pd.Timestamp(2021, 1, 1) + pd.to_timedelta(rng.integers(0, 1000, rows), unit="D")
    frame = pd.DataFrame({
        "visit": day.strftime("%d.%m.%Y"), "smoker": rng.choice(["yes", "no"], rows),
        "crp": rng.normal(5, 1, rows).round(2), "y": np.where(rng.random(rows) < 0.5, "good", "bad"),
    })  # fmt: skip
    frame.loc[::10, "visit"] = None
    return frame


def offered(folder: Path, **frames: pd.DataFrame) -> dict[str, SiteFiles]:
    """What sites with these tables have."""
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: SiteFiles(folder / f"{name}.csv", target="y") for name in frames}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Those of two sites with such visits."""
    sites = offered(tmp_path_factory.mktemp("dates"), one=visits(), two=visits(seed=1))
    return common_form({name: site.offer() for name, site in sites.items()})[0]


def encoded(frame: pd.DataFrame, inputs: Inputs) -> torch.Tensor:
    return Reader(inputs, "new.csv").encode(Part(frame.drop(columns="y")))


def column(inputs: Inputs, feature: str) -> int:
    return [name for one in inputs.columns for name in one.features].index(feature)


@pytest.mark.parametrize("rows", [0, 1, 30])
@pytest.mark.parametrize("gap", [None, "", np.nan, pd.NaT])
def test_a_column_without_a_date_is_one_of_gaps(inputs: Inputs, rows: int, gap: object) -> None:
    x_N = encoded(visits(rows).assign(visit=gap), inputs)
    assert x_N.shape == (rows, *inputs.shape)
    for part in PARTS:
        assert x_N[:, column(inputs, f"visit {part}")].isnan().all()
    assert (x_N[:, column(inputs, "visit year is missing")] == 1).all()


@pytest.mark.parametrize("value", [20210411, 20210411.0, "2021-04-11", "11 Apr 2021"])
def test_one_row_has_a_date(inputs: Inputs, value: object) -> None:
    x_N = encoded(visits(1).assign(visit=value), inputs)
    assert [int(x_N[0, column(inputs, f"visit {part}")]) for part in PARTS[:3]] == [2021, 4, 7], "a Sunday"


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["2021-04-11", None, "soon", "2021-05-11"], 2),
        (["11.04.2021", "12.04.2021", "2021-05-11", "Zaphod"], 2),
        (["Zaphod", "", None, "2021-05-11"], 0),
        ([20210411, np.inf, 20210412, 20210413], 1),
        ([1.5, 2.5, 20210412, 20210413], 0),
    ],
)
def test_the_first_row_that_has_no_date_is_said(inputs: Inputs, values: list[object], row: int) -> None:
    with pytest.raises(InputError, match=r"column 'visit' of new\.csv has values that are no dates") as error:
        encoded(visits(4).assign(visit=values), inputs)
    assert f"the first in row {row}, counting from 0" in str(error.value)
    assert "write them as 2024-01-31, or leave the cells empty" in str(error.value)
    assert "Zaphod" not in str(error.value), "no value of a feature is shown"
