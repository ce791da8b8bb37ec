"""What must not get lost: the spread of large numbers, a channel, two answers in two writings, and sizes."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import build
from idiolect.data.custom.parts import Part
from idiolect.deploy.samples import Reader
from idiolect.deploy.schema import Inputs
from idiolect.federation.data.agreement import Offer, common_form

RNG = np.random.default_rng(0)
SITES = {"oslo": ("0", "1"), "graz": ("no", "yes")}


@pytest.mark.parametrize(("mean", "std"), [(1e7, 1), (1.6e7, 1), (-1e7, 3), (3e6, 0.6), (5, 2)])
def test_the_spread_of_large_numbers(mean: float, std: float) -> None:
    x_R = np.round(RNG.normal(mean, std, 5000))
    frame = pd.DataFrame({"x": x_R, "z": RNG.normal(size=5000), "label": np.arange(5000) % 2})
    data = build(idl.data.from_frame(frame, target="label"), Spec.parse("iid"), [], clients=2, seed=0)
    mine_R = torch.cat([*data.train]).numpy()
    assert isinstance(data.std, tuple)
    assert data.std[0] == pytest.approx(np.std(data.x_R.double().numpy()[mine_R, 0]), rel=1e-9)
    inputs = data.preprocessing(data.x_R[torch.from_numpy(mine_R)])
    assert float(inputs[:, 0].double().std(correction=0)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("unit", [1e-13, 1e-9, 1.0])
def test_windows_in_small_units_are_scaled(unit: float) -> None:
    x_N = RNG.normal(0, unit, (200, 2, 10))
    x_N[:, 1] = 3 * unit  # a channel of one number is left as it is
    data = build(idl.data.from_arrays(x_N, np.arange(200) % 2), Spec.parse("iid"), [], clients=2, seed=0)
    mine_R = torch.cat([*data.train])
    inputs = data.preprocessing(data.x_R[mine_R]).double()
    assert float(inputs[:, 0].std(correction=0)) == pytest.approx(1, abs=1e-3)
    assert data.std[1] == 1


def test_a_channel_that_float32_makes_one_number() -> None:
    x_R = RNG.normal(size=(40, 2, 30))
    x_R[:, 1] = 1.7e9 + 10 * x_R[:, 1]
    with pytest.raises(
        InputError, match=r"channel 1 \(counting from 0\) of x has numbers that float32 cannot tell apart"
    ):
        idl.data.from_arrays(x_R, np.arange(40) % 2)
    x_R[:, 1] -= 1.7e9
    assert idl.data.from_arrays(x_R, np.arange(40) % 2).x_R.shape == (40, 2, 30)


@pytest.mark.parametrize("value", [0.1, 9.81, 36.6, -0.42421296, 1.7e9 + 0.3])
def test_a_constant_channel_is_no_loss(value: float) -> None:
    for rows in range(20, 60):
        x_R = RNG.normal(size=(rows, 2, 7))
        x_R[:, 1] = value
        assert idl.data.from_arrays(x_R, np.arange(rows) % 2).x_R.shape == (rows, 2, 7)


@pytest.mark.parametrize("value", [1000.1, 1004.3])
def test_flat_windows_are_predicted(value: float) -> None:
    flat = [value + 1e-5 * np.sin(np.arange(30.0)) for _ in range(3)]
    inputs = Inputs(kind="windows", shape=(1, 30), channels=("t",), mean=(1000.0,), std=(100.0,))
    x_R = Reader(inputs, "here").encode(Part(pd.DataFrame({"t": flat})))
    assert x_R.numpy() == pytest.approx(np.stack(flat)[:, None], rel=1e-6)


@pytest.mark.parametrize("offset", [1.7e9, 300.0])
def test_windows_of_a_table(offset: float, tmp_path: Path) -> None:
    rows = [(offset + 10 * RNG.normal(size=8)).tolist() for _ in range(20)]
    pq.write_table(pa.table({"time": rows, "label": [0, 1] * 10}), tmp_path / "a.parquet")
    if offset < 1e6:
        assert idl.data.open_data(tmp_path / "a.parquet", target="label").x_R.shape == (20, 1, 8)
        return
    with pytest.raises(
        InputError, match=r"column 'time' of .* has numbers that float32 cannot tell apart \(around 1\.7e"
    ):
        idl.data.open_data(tmp_path / "a.parquet", target="label")


def test_targets_that_are_too_large() -> None:
    source = idl.data.from_arrays(RNG.normal(size=(60, 2)), 1e200 * RNG.normal(size=60), task="regression")
    with pytest.raises(InputError, match=r"target .* has numbers too large: divide them"):
        build(source, Spec.parse("iid"), [], clients=2, seed=0)


def test_sites_that_write_two_answers_in_two_ways(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for site, answers in (("oslo", ("0", "1")), ("graz", ("True", "False")), ("bern", ("1", "0"))):
        rows = "".join(f"{RNG.normal():.3f},{answers[k % 2]}\n" for k in range(20))
        (tmp_path / f"{site}.csv").write_text(f"x,label\n{rows}")
    source = idl.data.open_data(tmp_path, target="label")
    assert source.classes == 4
    assert "'0', '1', 'False', 'True' are different classes: if they are the same two answers" in caplog.text
    caplog.clear()
    common_form({name: Offer(kind="images", shape=(1, 2, 2), classes=classes) for name, classes in SITES.items()})
    assert "the target of all sites together: '0', '1', 'no', 'yes' are different classes" in caplog.text
    caplog.clear()
    (tmp_path / "graz.csv").unlink()
    idl.data.open_data(tmp_path, target="label")
    assert "different classes" not in caplog.text


@pytest.mark.parametrize("gap", [0, 3])
def test_clients_that_get_fewer_than_sizes_says(gap: int, caplog: pytest.LogCaptureFixture) -> None:
    source = idl.data.from_arrays(RNG.normal(size=(300, 2)), np.arange(300) % 3)
    with caplog.at_level(logging.WARNING):
        data = build(
            source, Spec.parse("dirichlet_fixed:rows=80"), [], clients=3, seed=0, sizes=(20,),
            split=Spec.parse(f"ordered:gap={gap}") if gap else Spec.parse("random"),
        )  # fmt: skip
    fewer = sum(len(rows) < 20 for rows in data.train)
    assert bool(fewer) == bool(gap)
    assert (f"sizes: {fewer} of 3 clients have fewer training samples than they should" in caplog.text) == bool(fewer)


def test_domains_do_not_divide_numbers_by_class() -> None:
    owner = np.repeat(["a", "b"], 80)
    source = idl.data.from_arrays(RNG.normal(size=(160, 2)), RNG.normal(size=160), clients=owner, task="regression")
    with pytest.raises(InputError, match=r"partition domains: inside=dirichlet divides classes, .*: take inside=iid"):
        build(source, Spec.parse("domains"), [], clients=4, seed=0)
    assert len(build(source, Spec.parse("domains:inside=iid"), [], clients=4, seed=0).train) == 4
