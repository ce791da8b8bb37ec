"""Tables that are read in parts give what they give as a whole, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import idiolect as idl
from idiolect.data.custom import streaming
from idiolect.deploy import samples
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.samples import read, stream

HEAD = "age,sex,diagnosis,seen,died"


def visits(seed: int, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    seen = pd.Timestamp("2024-01-20") + pd.to_timedelta(rng.permutation(200)[:rows], "D")
    return pd.DataFrame({
        "age": rng.integers(20, 90, rows), "sex": rng.choice(["male", "female"], rows),
        "diagnosis": rng.choice(["flu", "cold", ""], rows), "seen": seen.strftime("%d/%m/%Y"),
        "died": np.where(rng.random(rows) < 0.5, "yes", "no"),
    })  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("visits")
    for k, name in enumerate(["oslo", "porto", "bern"]):
        visits(k).to_csv(folder / f"{name}.csv", index=False)
    study = idl.Study(data=str(folder / "*.csv"), target="died", rounds=1, methods=["fedper"])
    return idl.run(study, folder / "run", engine="sequential").bundle("fedper", folder / "bundle")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_BLOCK", 400)
    monkeypatch.setattr(samples, "ROWS", 7)


def in_parts(bundle: Bundle, where: Path) -> tuple[Tensor, pd.DataFrame]:
    parts = list(stream(where, bundle.about.inputs))
    return torch.cat([x_B for x_B, _ in parts]), pd.concat([beside for _, beside in parts])


def as_a_whole(bundle: Bundle, where: Path) -> Tensor:
    return read(where, bundle.about.inputs, bundle.about.classes, "died").x_N


def lines(frame: pd.DataFrame) -> list[str]:
    return frame.to_csv(index=False).splitlines()


WRITINGS: dict[str, Callable[[list[str]], list[str]]] = {
    "rows of empty cells": lambda rows: [*rows, *[",,,,"] * 300],
    "rows of empty cells between others": lambda rows: [*rows[:9], ",,,,", *rows[9:30], '"","",,,', *rows[30:]],
    "a space before a quotation mark": lambda rows: [
        rows[0], *(row.replace("male", 'male"').replace(",fe", ', "fe').replace(",male", ', "male') for row in rows[1:])
    ],
    "a short line far down": lambda rows: [*rows[:-2], rows[-2].rpartition(",")[0], *rows[-1:]],
    "a number with a sign far down": lambda rows: [*rows[:-1], "+" + rows[-1]],
    "a missing number with a space far down": lambda rows: [*rows[:-1], " NA" + rows[-1][2:]],
    "marks of missing values": lambda rows: [row.replace(",,", ",NA,") for row in rows],
    "an empty line first": lambda rows: ["", *rows],
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITINGS)
def test_a_table_in_parts_is_the_table_as_a_whole(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    rows = WRITINGS[kind](lines(visits(7)))
    assert rows != lines(visits(7))
    (tmp_path / "a.csv").write_text("\n".join(rows))
    x_N, beside = in_parts(bundle, tmp_path / "a.csv")
    filled = [row + ",no" * (row.count(",") == 3) for row in rows if row]
    (tmp_path / "b.csv").write_text("\n".join(filled))
    torch.testing.assert_close(x_N, as_a_whole(bundle, tmp_path / "b.csv"), equal_nan=True, rtol=0, atol=0)
    assert beside.index.tolist() == [*range(1, 61)]


def test_a_pattern_that_means_one_file(bundle: Bundle, tmp_path: Path) -> None:
    visits(7).to_csv(tmp_path / "visits-07.csv", index=False)
    x_N, beside = in_parts(bundle, tmp_path / "visits-*.csv")
    torch.testing.assert_close(x_N, as_a_whole(bundle, tmp_path / "visits-07.csv"), equal_nan=True)
    assert beside["file"].tolist() == ["visits-07.csv"] * 60


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_feature_with_the_usual_name_of_a_target_is_a_feature(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    frame = visits(7)
    frame["diagnosis"] = frame["diagnosis"].replace("", "NA" if kind == "csv" else None)
    frame.to_csv(tmp_path / "all.csv", index=False)
    new = frame.drop(columns="died")
    path = tmp_path / f"a.{kind}"
    new.to_csv(path, index=False) if kind == "csv" else new.to_json(path, orient="records", lines=True)
    x_N, _ = in_parts(bundle, path)
    torch.testing.assert_close(x_N, as_a_whole(bundle, tmp_path / "all.csv"), equal_nan=True, rtol=0, atol=0)


def test_the_writing_of_dates_is_that_of_the_parts_before(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "ROWS", 59)
    frame = visits(7)
    frame.loc[59, "seen"] = "05/01/2024"  # a part of its own, which does not show that the day stands first
    frame.to_parquet(tmp_path / "a.parquet")
    x_N, _ = in_parts(bundle, tmp_path / "a.parquet")
    assert (pd.Timestamp("2024-01-05") - pd.Timestamp(0)).days in x_N[-1].tolist()
    frame.loc[59, "seen"] = "01/25/2024"
    frame.to_parquet(tmp_path / "b.parquet")
    with pytest.raises(idl.InputError, match="dates in several writings"):
        in_parts(bundle, tmp_path / "b.parquet")


def test_texts_that_no_site_had_at_the_end_of_a_table(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "ROWS", 30)
    frame = visits(7)
    frame.loc[30:, "sex"] = "unknown"
    frame.to_parquet(tmp_path / "a.parquet")
    x_N, _ = in_parts(bundle, tmp_path / "a.parquet")
    torch.testing.assert_close(x_N, as_a_whole(bundle, tmp_path / "a.parquet"), equal_nan=True, rtol=0, atol=0)
    frame[30:].to_parquet(tmp_path / "b.parquet")
    with pytest.raises(idl.InputError, match="none of the texts that the bundle knows"):
        in_parts(bundle, tmp_path / "b.parquet")


def test_a_name_of_two_columns_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    rows = lines(visits(7))
    (tmp_path / "a.csv").write_text("\n".join([f"{HEAD},age", *(f"{row},50" for row in rows[1:])]))
    for way in (in_parts, as_a_whole):
        with pytest.raises(idl.InputError, match="column names more than once"):
            way(bundle, tmp_path / "a.csv")
