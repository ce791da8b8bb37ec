import io
import json
import os
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from idiolect.core.errors import InputError
from idiolect.data.custom import from_dataset, open_data

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (6, 5, 7)).astype(np.uint8)
Y = [2, 0, 1, 0, 2, 1]
REAL = Path(os.environ.get("IDIOLECT_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "digits3"


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    datasets.disable_progress_bars()


def images(rows=slice(None), **columns):
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["zoo", "ant", "bee"])}
    site = {"site": datasets.Value("string")}
    content = {"image": [Image.fromarray(x) for x in X[rows]], "label": Y[rows], "site": list("nsnsns")[rows]}
    more = {name: datasets.Value("int64") for name in columns}
    return datasets.Dataset.from_dict(content | columns, features=datasets.Features(features | site | more))


def is_images(source, order=slice(None)):
    assert (source.x_R[:, 0].numpy() == X[order]).all()
    assert source.y_R.tolist() == np.array(Y)[order].tolist()
    assert source.class_names == ("zoo", "ant", "bee")
    assert source.client_column == "site"
    assert source.columns["site"].code_R.tolist() == np.array([0, 1] * 3)[order].tolist()
    return True


def test_images_with_named_classes():
    source = from_dataset(images(), client_column="site")
    assert is_images(source)
    assert (source.train_rows, source.name) == (6, "dataset")
    small = from_dataset(images(), resize="4x3", name="mine")
    assert (small.x_R.shape, small.name) == ((6, 1, 3, 4), "mine")


def test_a_view_in_another_order_and_format():
    order = [4, 1, 2, 3]
    assert is_images(from_dataset(images().select(order).with_format("torch"), client_column="site"), order)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("test", "train"), None),
        (("validation", "train"), "train is the training split and validation the test split"),
        (("second", "first"), "second is the training split and first the test split"),
    ],
)
def test_two_splits(names, said, caplog):
    first, second = images(slice(0, 2)), images(slice(2, 6))
    splits = {"test": (second, first), "validation": (second, first), "second": (first, second)}[names[0]]
    source = from_dataset(datasets.DatasetDict(dict(zip(names, splits, strict=True))), client_column="site")
    assert is_images(source)
    assert source.train_rows == 2
    assert (said or "") in caplog.text
    assert bool(caplog.text) == bool(said)


def test_splits_that_are_not_used_are_said(caplog):
    splits = datasets.DatasetDict({"train": images(slice(0, 2)), "valid": images(), "test": images(slice(2, 6))})
    assert is_images(from_dataset(splits, client_column="site"))
    assert "not used: valid" in caplog.text
    only = from_dataset(datasets.DatasetDict({"test": images()}), client_column="site")
    assert (only.train_rows, len(only.y_R)) == (6, 6)


def test_classes_that_do_not_occur_are_no_classes():
    source = from_dataset(images().filter(lambda row: row["label"] != 1, keep_in_memory=True))
    assert source.class_names == ("zoo", "bee")
    assert source.y_R.tolist() == [1, 0, 0, 1]


def test_tables():
    table = datasets.Dataset.from_dict(
        {"a": [1.5, None, 2.0], "b": ["u", "v", "u"], "id": [1, 2, 3], "y": ["k", "l", "k"]}
    )
    source = from_dataset(table, drop=["id"])
    assert source.feature_names == ("a", "a is missing", "b=u", "b=v")
    expected = [[1.5, 0, 1, 0], [np.nan, 1, 0, 1], [2, 0, 1, 0]]
    np.testing.assert_array_equal(source.x_R.numpy(), expected)
    assert source.y_R.tolist() == [0, 1, 0]


@pytest.mark.parametrize("split", [False, True])
def test_saved_to_disk(tmp_path, split):
    saved = datasets.DatasetDict({"test": images(slice(4, 6)), "train": images(slice(0, 4))}) if split else images()
    saved.save_to_disk(tmp_path / "saved")
    source = open_data(tmp_path / "saved", client_column="site")
    assert is_images(source)
    assert (source.train_rows, source.name) == (4 if split else 6, "saved")
    (tmp_path / "saved/state.json").write_text("{")
    (tmp_path / "saved/dataset_dict.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"saved cannot be read as a saved data set .*: save it again"):
        open_data(tmp_path / "saved")


def test_written_as_parquet_the_names_of_classes_stay(tmp_path):
    images().to_parquet(tmp_path / "a.parquet")
    assert is_images(open_data(tmp_path / "a.parquet", client_column="site"))


def test_images_that_are_files(tmp_path):
    for i, x in enumerate(X):
        Image.fromarray(x).save(tmp_path / f"{i}.png")
    kind = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    content = {"image": [str(tmp_path / f"{i}.png") for i in range(6)], "label": list("kklklk")}
    source = from_dataset(datasets.Dataset.from_dict(content, features=kind))
    assert (source.x_R[:, 0].numpy() == X).all()
    assert source.class_names == ("k", "l")


def test_what_does_not_fit_is_said():
    with pytest.raises(InputError, match=r"dataset is a IterableDataset, not a datasets.Dataset: load it whole"):
        from_dataset(images().to_iterable_dataset())
    with pytest.raises(InputError, match=r"dataset is a list, not a datasets.Dataset: give one, or a DatasetDict"):
        from_dataset([1, 2])
    with pytest.raises(
        InputError, match=r"dataset \(x\) is a list, not a datasets.Dataset: give one, or a DatasetDict"
    ):
        from_dataset({"x": [1, 2], "y": [0, 1]})
    with pytest.raises(InputError, match=r"dataset is a DatasetDict, not a datasets.Dataset"):
        from_dataset(datasets.DatasetDict())
    with pytest.raises(InputError, match="drop: dataset has no column 'age'; known: label, site"):
        from_dataset(images(), drop=["age"])
    with pytest.raises(
        InputError, match="image_column: column 'site' of dataset contains no encoded images: give another"
    ):
        from_dataset(images(), image_column="site")
    with pytest.raises(InputError, match="image_column: dataset has no column 'img'"):
        from_dataset(images(), image_column="img")
    unlabelled = images().remove_columns("label").add_column("label", [0, 1, 2, -1, -1, 0]).cast_column(
        "label", datasets.ClassLabel(names=["zoo", "ant", "bee"]))  # fmt: skip
    with pytest.raises(InputError, match=r"target 'label' of dataset is missing in 2 of 6 rows \(the first is row 3"):
        from_dataset(unlabelled)
    with pytest.raises(InputError, match="split differ in the columns age"):
        from_dataset(datasets.DatasetDict({"train": images(), "test": images(age=[1] * 6)}))


def test_numbers_beyond_the_names_of_classes_are_said():
    beyond = images().remove_columns("label").add_column("label", [0, 1, 2, 4, 1, 0])
    kind = datasets.Features(beyond.features | {"label": datasets.ClassLabel(names=["zoo", "ant", "bee"])})
    wrong = datasets.Dataset(beyond.data.table, info=datasets.DatasetInfo(features=kind))
    with pytest.raises(
        InputError,
        match="column 'label' of dataset contains a number that is too large: its 3 class names are for 0 to 2; c",
    ):
        from_dataset(wrong)
    kept = wrong.add_column("y", Y)
    assert from_dataset(kept, target="y", drop=["label"]).y_R.tolist() == Y


def test_one_of_several_columns_of_images():
    both = images().add_column("mask", [{"bytes": b"no", "path": None}] * 6).cast_column("mask", datasets.Image())
    with pytest.raises(InputError, match="dataset has images in image, mask: keep one and drop the others"):
        from_dataset(both)
    assert is_images(from_dataset(both, client_column="site", image_column="image"))
    assert is_images(from_dataset(both, client_column="site", drop=["mask"]))


def test_names_on_the_hub(monkeypatch):
    asked = []

    def load(name, config):
        asked.append((name, config))
        return datasets.DatasetDict({"train": images()})

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_data("hf:some.owner/some-name", client_column="site")
    assert is_images(source)
    assert source.name == "some.owner/some-name"
    assert is_images(open_data("hf:owner/name:config", client_column="site"))
    assert asked == [("some.owner/some-name", None), ("owner/name", "config")]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("out of\nreach."),
        ValueError("out of reach"),
        datasets.exceptions.DatasetNotFoundError("out of reach"),
    ],
)
def test_a_hub_out_of_reach(monkeypatch, error):
    def load(name, config):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match=r"owner/name cannot be downloaded .*\(out of reach\): check the name"):
        open_data("hf:owner/name")


# --- without the package


NEEDED = r'needs the package datasets: pip install "idiolect\[datasets\]"'


def test_parquet_keeps_its_class_names_without_the_package(tmp_path, monkeypatch):
    images().to_parquet(tmp_path / "train.parquet")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert is_images(open_data(tmp_path / "train.parquet", client_column="site"))


@pytest.mark.parametrize(
    "written",
    ["no", "[]", '{"info": {"features": [1]}}', '{"info": {"features": {"y": {"names": 1, "_type": "ClassLabel"}}}}'],
)
def test_odd_metadata_of_parquet(tmp_path, written):
    table = pa.table({"a": [1.0, 2.0], "y": [0, 1]}).replace_schema_metadata({"huggingface": written})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"a.parquet: its metadata 'huggingface' cannot be read \(.*\): write the file"
    ):
        open_data(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "info", [None, {}, {"features": None}, {"features": {"y": {"dtype": "int64", "_type": "Value"}}}]
)
def test_metadata_without_class_names(tmp_path, info):
    table = pa.table({"a": [1.0, 2.0], "y": [3, 4]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": info})}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert open_data(tmp_path / "a.parquet").class_names == ("3", "4")


@pytest.mark.parametrize("folder", [False, True])
def test_the_package_is_missing(tmp_path, monkeypatch, folder):
    images().save_to_disk(tmp_path / "saved")
    if folder:  # that goes by its name, in the folder where one works
        (tmp_path / "datasets").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "datasets")
    else:
        monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=f"the saved data set .*saved {NEEDED}"):
        open_data(tmp_path / "saved")
    with pytest.raises(InputError, match=f"downloading owner/name from the .* hub {NEEDED}"):
        open_data("hf:owner/name")


@pytest.mark.data
def test_digits_of_three_domains(tmp_path):
    if not (REAL / "train.parquet").is_file():
        pytest.skip("the real digits3 is not here: set IDIOLECT_DATA to the folder that holds digits3/train.parquet")
    rows = []
    for split, domain in (("train", 7291), ("test", 2007)):
        whole = pq.read_table(REAL / f"{split}.parquet")
        some = whole.take([start + i for start in range(0, 3 * domain, domain) for i in range(0, domain, 20)])
        pq.write_table(some, tmp_path / f"{split}.parquet")
        rows += some.to_pylist()
    source = open_data(tmp_path, target="label", client_column="domain", resize=32)
    assert source.x_R.shape == (3 * (365 + 101), 3, 32, 32)
    assert source.train_rows == 3 * 365
    domains = source.columns["domain"]
    assert domains.names == ("mnist", "mnist_m", "usps")
    assert np.bincount(domains.code_R[: source.train_rows]).tolist() == [365] * 3
    assert source.y_R.tolist() == [row["label"] for row in rows]
    for row in range(0, len(rows), 50):
        with Image.open(io.BytesIO(rows[row]["image"]["bytes"])) as image:
            wanted = np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
        assert (source.x_R[row].numpy().transpose(1, 2, 0) == wanted).all()
    with pytest.raises(InputError, match=r"mixed sizes: 28x28 \(466, for example row 0 of .*\): give resize='28x28'"):
        open_data(tmp_path)
