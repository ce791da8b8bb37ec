import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data.custom import from_arrays, from_dataset, from_frame, open_data

RNG = np.random.default_rng(0)
WINDOWS = RNG.normal(size=(6, 3, 5)).astype(np.float32)
LABELS = ["walk", "sit"] * 3


def frame_of(cell):
    """One column of channels x time, each cell as this kind of list."""
    return pd.DataFrame({"window": [cell(x_CT) for x_CT in WINDOWS], "user": list("aabbcc"), "label": LABELS})


@pytest.mark.parametrize(
    "cell",
    [
        lambda x_CT: x_CT.tolist(),
        lambda x_CT: x_CT,
        lambda x_CT: tuple(map(tuple, x_CT.tolist())),
        lambda x_CT: [np.asarray(x_T) for x_T in x_CT],
    ],
    ids=["lists", "arrays", "tuples", "lists of arrays"],
)
def test_a_column_of_channels_by_time(cell):
    source = from_frame(frame_of(cell), target="label", client_column="user")
    assert source.x_R.dtype == torch.float32
    np.testing.assert_array_equal(source.x_R.numpy(), WINDOWS)
    assert (source.encodings, source.client_column) == ((), "user")


@pytest.mark.parametrize("names", [["x"], ["x", "y"], ["z", "x", "y"]])
def test_a_column_for_each_channel_in_their_order(names):
    frame = pd.DataFrame({name: list(WINDOWS[:, k].tolist()) for k, name in enumerate(names)} | {"label": LABELS})
    source = from_frame(frame, target="label")
    np.testing.assert_array_equal(source.x_R.numpy(), WINDOWS[:, : len(names)])


@pytest.mark.parametrize("column", ["channels", "one"])
def test_lists_of_parquet(column, tmp_path):
    frame = frame_of(lambda x_CT: x_CT.tolist())
    if column == "one":
        expected = WINDOWS
    else:
        frame = pd.DataFrame({"x": list(WINDOWS[:, 0]), "y": list(WINDOWS[:, 1]), "label": LABELS})
        expected = WINDOWS[:, :2]
    frame.drop(columns="user", errors="ignore").to_parquet(tmp_path / "w.parquet")
    source = open_data(tmp_path / "w.parquet", target="label")
    np.testing.assert_array_equal(source.x_R.numpy(), expected)


def test_lists_of_jsonl(tmp_path):
    path = tmp_path / "w.jsonl"
    frame_of(lambda x_CT: x_CT.tolist()).to_json(path, orient="records", lines=True, double_precision=15)
    source = open_data(path, target="label", client_column="user")
    np.testing.assert_allclose(source.x_R.numpy(), WINDOWS, rtol=1e-6)


@pytest.mark.parametrize("kind", ["list", "Array2D"])
def test_lists_of_the_package_datasets(kind):
    datasets = pytest.importorskip("datasets")
    features = None
    if kind == "Array2D":
        features = datasets.Features(window=datasets.Array2D((3, 5), "float32"), label=datasets.Value("string"))
    rows = {"window": WINDOWS.tolist(), "label": LABELS}
    source = from_dataset(datasets.Dataset.from_dict(rows, features=features), target="label")
    np.testing.assert_allclose(source.x_R.numpy(), WINDOWS, rtol=1e-6)


def test_windows_as_an_array_stay_as_they_are():
    source = from_arrays(WINDOWS, LABELS)
    np.testing.assert_array_equal(source.x_R.numpy(), WINDOWS)


def changed(row, cell):
    frame = frame_of(lambda x_CT: x_CT[0].tolist())
    frame.at[row, "window"] = cell
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (changed(2, [1.0, 2.0]), "lists of different lengths (5 in row 0, 2 in row 2, counting from 0): cut them into"),
        (changed(4, [[1.0] * 5]), "lists of different lengths (5 in row 0, 1 x 5 in row 4, counting from 0)"),
        (changed(3, None), "has no list in row 3, counting from 0"),
        (changed(1, "1,2,3,4,5"), "has a str where the others have lists in row 1, counting from 0"),
        (changed(5, [1, 2, "x", 4, 5]), "has a list in row 5, counting from 0, that is not of numbers"),
        (changed(5, [[1.0], [2.0, 3.0]]), "has a list in row 5, counting from 0, that is not of numbers"),
        (changed(0, [1, 2, float("nan"), 4, 5]), "a number that is missing or not finite in row 0, counting from 0"),
        (changed(0, [1, 2, float("inf"), 4, 5]), "a number that is missing or not finite in row 0, counting from 0"),
        (changed(0, [1, 2, 1e300, 4, 5]), "a number that is missing or not finite in row 0, counting from 0"),
        (frame_of(lambda x_CT: []), "has lists of shape (0,): give lists of numbers"),
        (frame_of(lambda x_CT: [[[1.0]]]), "has lists of shape (1, 1, 1): give lists of numbers"),
        (
            frame_of(lambda x_CT: x_CT[0].tolist()).assign(age=range(6)),
            "has lists in window and single values in user, age: a sample is either a window or a row of a table",
        ),
        (
            pd.DataFrame({"x": [[1.0, 2.0]] * 6, "y": [[1.0]] * 6, "label": LABELS}),
            "have lists of different lengths (x: 2, y: 1): give all one length",
        ),
        (
            pd.DataFrame({"x": [[[1.0], [2.0]]] * 6, "y": [[1.0]] * 6, "label": LABELS}),
            "has lists of lists in x and 1 more columns of lists: give one column with channels x time",
        ),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else "",
)
def test_lists_that_are_no_windows_are_refused_in_a_sentence(frame, message):
    drop = ["user"] if "user" in frame and "age" not in frame else []
    with pytest.raises(InputError) as error:
        from_frame(frame, target="label", drop=drop)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
