"""Windows of sensors at the sites of a federation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites import Loop, study, workers

from idiolect.core.errors import InputError
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def walks(path: Path, seed: int, time: int = 9, names: tuple[str, ...] = ("x", "y")) -> Path:
    rng = np.random.default_rng(seed)
    label = rng.choice(["walk", "run"], 24)
    shift = (label == "run") * 1.0
    frame = pd.DataFrame({name: list(rng.normal(shift[:, None] + k, 1, (24, time))) for k, name in enumerate(names)})
    frame.assign(label=label).to_parquet(path)
    return path


def test_the_numbers_are_those_of_a_simulation(tmp_path: Path) -> None:
    files = {name: walks(tmp_path / f"{name}.parquet", k) for k, name in enumerate(("north", "south", "east"))}
    study(tmp_path, "fedavg, fedper", rounds=2)
    whole = study_for(tmp_path / "study.yaml", "trial")
    link = Loop(workers(tmp_path / "states", files))
    found = conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True)).records
    sites = {name: SiteFiles(file, target="label") for name, file in files.items()}
    both = found.merge(rehearsed(whole, sites, tmp_path / "one").records, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"time": 8}, "one has windows 2x9 and two has windows 2x8: all sites need samples of one kind and size"),
        ({"names": ("x", "y", "z")}, "one has windows 2x9 and two has windows 3x9"),
        ({"names": ("y", "x")}, "one has windows in the columns x, y and two in y, x: all sites need the same columns"),
    ],
)
def test_sites_that_differ_are_told_how(other: dict[str, object], message: str, tmp_path: Path) -> None:
    one = SiteFiles(walks(tmp_path / "1.parquet", 0), target="label").offer()
    two = SiteFiles(walks(tmp_path / "2.parquet", 1, **other), target="label").offer()
    with pytest.raises(InputError, match=message):
        common_form({"one": one, "two": two})
