"""What sites agree on: numpy's numbers over all rows, and columns as in one table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.federation.data.agreement import Agreement, Offer, agree, common_form
from idiolect.federation.data.samples import SiteFiles, SiteSamples, alone, sums

N = pd.DataFrame(
    {"age": [31.0, 54, np.nan, 47], "sex": ["f", "m", "f", "f"], "dead": [0, 0, 0, 0], "label": list("abab")}
)
S = pd.DataFrame(
    {"sex": ["x", None, "m"], "age": [72.0, 66, 59], "extra": [1, 2, 3], "dead": [0, 1, 1], "label": list("cca")}
)


def _samples(tmp_path: Path, frames: dict[str, pd.DataFrame]) -> dict[str, SiteFiles]:
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return {name: SiteFiles(tmp_path / f"{name}.csv", target="label") for name in frames}


def _agreed(samples: dict[str, SiteFiles], normalise: str = "training") -> tuple[Agreement, list[SiteSamples]]:
    inputs, classes = common_form({name: one.offer() for name, one in samples.items()})
    ready = [one.encode(inputs, classes, 0, k, look=False) for k, one in enumerate(samples.values())]
    summed = {name: sums(one, len(classes)) for name, one in zip(samples, ready, strict=True)}
    return agree(inputs, classes, summed, normalise), ready


def test_columns_classes_and_numbers_of_tables(tmp_path: Path) -> None:
    agreement, ready = _agreed(_samples(tmp_path, {"north": N, "south": S}))
    names = [f for column in agreement.inputs.columns for f in column.features]
    assert names == ["age", "age is missing", "sex=f", "sex=m", "sex=x", "sex=missing", "dead"]
    assert agreement.classes == ("a", "b", "c")
    x_R = np.concatenate([one.x_N[one.train_N].double().numpy() for one in ready])
    assert agreement.inputs.mean[0] == pytest.approx(np.nanmean(x_R[:, 0]), rel=1e-12)
    assert agreement.inputs.std[0] == pytest.approx(np.nanstd(x_R[:, 0]), rel=1e-12)
    constant = (agreement.inputs.mean[1:], agreement.inputs.std[1:])
    assert constant == ((0.0,) * 6, (1.0,) * 6)  # features of 0 and 1 stay as they are
    for k, one in enumerate(ready):
        label_N = one.y_N.numpy()
        assert agreement.train[k] == tuple(np.bincount(label_N[one.train_N.numpy()], minlength=3))
        assert agreement.test[k] == tuple(np.bincount(label_N[one.test_N.numpy()], minlength=3))
        assert sorted([*one.train_N.tolist(), *one.test_N.tolist()]) == list(range(len(label_N)))


def test_the_server_knows_counts_and_no_sample(tmp_path: Path) -> None:
    agreement, ready = _agreed(_samples(tmp_path, {"north": N, "south": S}))
    data = agreement.federation("trial")
    assert data.x_R.numel() == 0
    for k, one in enumerate(ready):
        assert torch.equal(data.y_R[data.train[k]].bincount(minlength=3), one.y_N[one.train_N].bincount(minlength=3))
    mine = alone(ready[1], agreement, 1, "trial")
    assert [len(rows) for rows in (*mine.train, *mine.test)] == [0, len(ready[1].train_N), 0, len(ready[1].test_N)]
    assert (mine.mean, mine.std, mine.class_names) == (data.mean, data.std, data.class_names)


def test_what_a_site_says_holds_no_value_of_a_number(tmp_path: Path) -> None:
    text = _samples(tmp_path, {"north": N})["north"].offer().model_dump_json()
    assert "54" not in text
    assert "31" not in text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (pd.DataFrame({"height": [1.0, 2, 3], "label": list("aba")}), "no column in common"),
        (pd.DataFrame({"age": ["old", "new", "old"], "label": list("aba")}), "texts at south and numbers at north"),
    ],
)
def test_tables_that_do_not_fit(other: pd.DataFrame, said: str, tmp_path: Path) -> None:
    samples = _samples(tmp_path, {"north": N[["age", "label"]], "south": other})
    with pytest.raises(InputError, match=said):
        common_form({name: one.offer() for name, one in samples.items()})


def test_kinds_and_classes_that_do_not_fit() -> None:
    images = {
        "a": Offer(kind="images", shape=(1, 8, 8), classes=("x",)),
        "b": Offer(kind="images", shape=(3, 8, 8), classes=("y",)),
    }
    with pytest.raises(InputError, match="a has images 1x8x8 and b has images 3x8x8"):
        common_form(images)
    with pytest.raises(InputError, match="two classes"):
        common_form({"a": images["a"]})


def test_images_count_by_channel() -> None:
    inputs, classes = common_form({"a": Offer(kind="images", shape=(3, 2, 2), classes=("x", "y"))})
    x_N = torch.randint(0, 256, (5, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ready = SiteSamples(x_N, torch.tensor([0, 1, 0, 1, 1]), torch.arange(4), torch.arange(4, 5))
    train = x_N[:4].double().numpy() / 255
    found = agree(inputs, classes, {"a": sums(ready, 2)}, "reference").inputs
    assert found.mean == pytest.approx(train.mean((0, 2, 3)), rel=1e-12)
    assert found.std == pytest.approx(train.std((0, 2, 3)), rel=1e-12)
    symmetric = agree(inputs, classes, {"a": sums(ready, 2)}, "symmetric").inputs
    assert (symmetric.mean, symmetric.std) == ((0.5,) * 3, (0.5,) * 3)


def test_test_samples_of_ones_own(tmp_path: Path) -> None:
    N.to_csv(tmp_path / "train.csv", index=False)
    N[:2].to_csv(tmp_path / "test.csv", index=False)
    samples = SiteFiles(tmp_path / "train.csv", target="label", test=tmp_path / "test.csv")
    inputs, classes = common_form({"a": samples.offer()})
    ready = samples.encode(inputs, classes, 0, 0, look=False)
    assert (ready.train_N.tolist(), ready.test_N.tolist()) == ([0, 1, 2, 3], [4, 5])
    assert torch.equal(ready.x_N[:2].nan_to_num(), ready.x_N[4:].nan_to_num())
