"""Columns of dates at a site that joins, predicts or takes part: gaps, odd cells, names, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data.custom.form import form_of
from idiolect.data.custom.parts import Part
from idiolect.deploy.samples import Reader, read, stream
from idiolect.deploy.schema import Inputs
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.remarks import remarks
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


@pytest.mark.parametrize("mark", ["9999-12-31", "visit=9999-12-31"])
def test_a_date_that_stands_for_none_is_missing(inputs: Inputs, tmp_path: Path, mark: str) -> None:
    frame = visits().assign(visit="2022-05-14")
    frame.loc[::3, "visit"] = "9999-12-31"
    frame.to_parquet(tmp_path / "t.parquet")
    own = read(tmp_path / "t.parquet", inputs, ["bad", "good"], "y", form=form_of(missing=mark))
    site = SiteFiles(tmp_path / "t.parquet", target="y", form=form_of(missing=mark))
    for x_N in (own.x_N, site.encode(inputs, ["bad", "good"], 0, 0, look=False).x_N):
        year_N = x_N[:, column(inputs, "visit year")]
        assert year_N[::3].isnan().all()
        assert (year_N[1::3] == 2022).all()


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


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "empty cells" in record.getMessage()]


def test_gaps_of_the_training_are_no_news(inputs: Inputs, caplog: pytest.LogCaptureFixture) -> None:
    """Only the first part has the feature that says so; the column is one."""
    encoded(visits(), inputs)
    assert said(caplog) == []
    frame = visits(seed=2)
    frame.loc[3, "crp"] = None
    encoded(frame, inputs)
    assert said(caplog) == ["new.csv: column 'crp' has empty cells, which it never had in training: the mean is used"]


def test_gaps_that_the_training_never_had_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = offered(tmp_path, one=visits().dropna(), two=visits(seed=1).dropna())
    inputs, _ = common_form({name: site.offer() for name, site in sites.items()})
    encoded(visits(), inputs)
    assert said(caplog) == ["new.csv: column 'visit' has empty cells, which it never had in training: the mean is used"]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("visit", ["14.05.2022", None, ""])
def test_a_site_with_one_date_or_none_takes_no_column_from_the_others(
    tmp_path: Path, visit: str | None, first: bool
) -> None:
    cork = visits(seed=2).assign(visit=visit)
    tables = {"cork": cork, "faro": visits()} if first else {"faro": visits(), "cork": cork}
    sites = offered(tmp_path, **tables)
    offers = {name: site.offer() for name, site in sites.items()}
    inputs, classes = common_form(offers)
    features = {name for one in inputs.columns for name in one.features}
    parts = {f"visit {part}" for part in PARTS}
    assert features == {*parts, "visit year is missing", "smoker=no", "smoker=yes", "crp"}
    assert remarks(inputs, offers) == []
    x_N = sites["cork"].encode(inputs, classes, 0, list(tables).index("cork"), look=False).x_N
    year_N = x_N[:, column(inputs, "visit year")]
    assert (year_N == 2022).all() if visit == "14.05.2022" else year_N.isnan().all()


def test_a_site_with_dates_of_one_year_takes_neither_the_year_nor_the_gaps(tmp_path: Path) -> None:
    cork = visits(seed=2)
    cork["visit"] = cork["visit"].str.replace(r"\d{4}$", "2022", regex=True)
    sites = offered(tmp_path, cork=cork, faro=visits())
    offers = {name: site.offer() for name, site in sites.items()}
    inputs, _ = common_form(offers)
    features = {name for one in inputs.columns for name in one.features}
    assert {"visit year", "visit year is missing"} <= features
    assert "visit hour" not in features, "it is 0 everywhere"
    assert remarks(inputs, offers) == []


def test_a_site_without_the_column_is_named_with_it(tmp_path: Path) -> None:
    sites = offered(tmp_path, cork=visits(seed=2).drop(columns=["visit", "crp"]), faro=visits())
    offers = {name: site.offer() for name, site in sites.items()}
    inputs, classes = common_form(offers)
    assert remarks(inputs, offers) == ["columns 'visit', 'crp' are not used, because cork has none of this name"]
    alone, _ = common_form({"faro": offers["faro"]})
    with pytest.raises(InputError, match=r"cork\.csv has no column 'visit', which the sites agreed on: add it"):
        sites["cork"].encode(alone, classes, 0, 0, look=False)


def test_an_empty_column_has_no_parts_where_nobody_has_dates(tmp_path: Path) -> None:
    tables = {name: visits(seed=k).drop(columns="visit") for k, name in enumerate(["cork", "faro"])}
    sites = offered(tmp_path, cork=tables["cork"].assign(more=None), faro=tables["faro"].assign(more=1.5))
    offers = {name: site.offer() for name, site in sites.items()}
    inputs, _ = common_form(offers)
    assert [one.name for one in inputs.columns] == ["smoker", "crp"]
    assert remarks(inputs, offers) == []
    del tables["faro"]
    offers["faro"] = offered(tmp_path, faro=visits(seed=1).drop(columns="visit"))["faro"].offer()
    assert remarks(common_form(offers)[0], offers) == ["column 'more' is not used, because faro has none of this name"]


@pytest.mark.parametrize("kept", [["visit"], ["visit", "smoker"], []])
def test_a_column_of_dates_can_be_kept_for_subgroups(inputs: Inputs, tmp_path: Path, kept: list[str]) -> None:
    visits().to_csv(tmp_path / "t.csv", index=False)
    own = read(tmp_path / "t.csv", inputs, ["bad", "good"], "y", kept=kept)
    torch.testing.assert_close(own.x_N, encoded(visits(), inputs), equal_nan=True)
    assert own.table is not None
    assert "visit" in own.table


def test_a_column_of_dates_that_is_an_input_is_not_beside_the_predictions(inputs: Inputs, tmp_path: Path) -> None:
    visits().assign(note="seen").drop(columns="y").to_csv(tmp_path / "t.csv", index=False)
    for _, beside in stream(tmp_path / "t.csv", inputs):
        assert list(beside) == ["note"]


def test_a_column_that_lacks_is_called_as_it_was_written(inputs: Inputs) -> None:
    with pytest.raises(InputError) as error:
        encoded(visits().drop(columns="crp"), inputs)
    assert "has no column 'crp': the bundle takes visit, smoker, crp; add it" in str(error.value)
    with pytest.raises(InputError) as error:
        encoded(visits().drop(columns="visit"), inputs)
    assert "has no column 'visit': the bundle takes visit, smoker, crp; add it" in str(error.value)


def test_unknown_texts_are_said_and_many_without_a_known_one_refused(
    inputs: Inputs, caplog: pytest.LogCaptureFixture
) -> None:
    for rows in (1, 2, 19):
        x_N = encoded(visits(rows).assign(smoker="vaper"), inputs)
        assert (x_N[:, [column(inputs, "smoker=no"), column(inputs, "smoker=yes")]] == 0).all()
        assert f"column 'smoker' has {rows} values that the bundle does not know" in caplog.text
    with pytest.raises(InputError, match=r"column 'smoker' of .* has none of the texts that the bundle knows"):
        encoded(visits(20).assign(smoker="vaper"), inputs)
