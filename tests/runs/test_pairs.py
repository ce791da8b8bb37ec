"""Records of a value between two clients."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.runs.reader import read
from idiolect.studies import Study
from idiolect.studies.runner import run

STUDY = Study(
    clients=4, new_clients="1", rounds=2, local_epochs=1, model="mlp", methods="fedpac", evaluate_every=1,
    participation=0.7,
)  # fmt: skip


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(STUDY, tmp_path_factory.mktemp("pairs") / "r", engine="sequential").folder


def test_a_pair_of_clients_is_a_record_of_both(new: Path) -> None:
    records = read(new).records
    server = records[records["stage"] == "server"]
    assert set(server["metric"]) == {"combination"}
    for number in (1, 2):
        wire = records[(records["stage"] == "wire") & (records["round"] == number)]
        took_part = set(wire["client"])
        mine = server[server["round"] == number]
        assert set(zip(mine["client"], mine["other"], strict=True)) == {(i, j) for i in took_part for j in took_part}
        assert mine.groupby("client")["value"].sum().tolist() == pytest.approx([1] * len(took_part), abs=1e-6)
    assert records.loc[records["stage"] != "server", "other"].isna().all()


def test_a_line_of_a_pair_stands_once(new: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(new, tmp_path / "r"))
    records = pd.read_parquet(folder / "records.parquet")
    pairs = records[records["other"].notna()]
    pd.concat([records, pairs[:1]]).to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match="1 duplicate rows"):
        read(folder)
    records.assign(other=records["other"].replace(pairs["other"].iloc[0], 9.0)).to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match="has client 9, which"):
        read(folder)
    records.assign(other=records["other"] + 0.5).to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match="column of the wrong type"):
        read(folder)
