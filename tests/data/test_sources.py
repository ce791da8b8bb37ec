import io
import json
import os

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from idiolect import data
from idiolect.data import sources
from idiolect.errors import InputError


def encode(x_CHW, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(x_CHW[0] if len(x_CHW) == 1 else x_CHW.transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


def write(path, images, labels, image="image", label="label", **more):
    """A parquet file in the hub's layout, from encoded images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": b, "path": None} for b in images], kind)
    pq.write_table(pa.table({image: column, label: pa.array(labels, pa.int64()), **more}), path)


def make(folder, name, rows=(7, 3), shape=(1, 28, 28), classes=10, **columns):
    """Random train.parquet and test.parquet; returns the images and labels that went in."""
    rng = np.random.default_rng(3)
    x_R = rng.integers(0, 256, (sum(rows), *shape)).astype(np.uint8)
    y_R = rng.integers(0, classes, sum(rows))
    for which, here in (("train", slice(0, rows[0])), ("test", slice(rows[0], None))):
        write(folder / name / f"{which}.parquet", [encode(x) for x in x_R[here]], y_R[here], **columns)
    return x_R, y_R


def test_digits_are_scikit_learns_scaled_to_8_bits():
    source, bunch = data.load("digits"), load_digits()
    assert source.x_R.dtype == torch.uint8
    assert source.x_R.shape == (1797, 1, 8, 8)
    assert np.abs(source.x_R[:, 0].numpy() - bunch.images * 255 / 16).max() <= 0.5
    assert source.x_R.max() == 255
    assert (source.y_R.numpy() == bunch.target).all()
    assert source.y_R.dtype == torch.int64
    assert source.train_rows == 1797
    assert source.mean[0] == pytest.approx((source.x_R.double() / 255).mean().item(), abs=5e-5)
    assert source.std[0] == pytest.approx((source.x_R.double() / 255).std().item(), abs=5e-5)


@pytest.mark.parametrize("name", data.names())
def test_every_set_is_described_without_being_read(name):
    about = data.describe(name)
    assert json.loads(json.dumps(about)) == about
    assert about["classes"] == len(about["class_names"]) == len(set(about["class_names"]))
    assert len(about["mean"]) == len(about["std"]) == about["shape"][0]
    assert about["rows"] == about["train_rows"] + about["test_rows"]
    assert about["bytes"] == about["rows"] * np.prod(about["shape"])
    assert about["licence"]
    assert about["source"]


def test_the_sizes_of_the_published_sets():
    size = {name: (data.describe(name)["train_rows"], data.describe(name)["classes"]) for name in data.names()}
    assert size == {
        "digits": (1797, 10),
        "mnist": (60000, 10),
        "fashion_mnist": (60000, 10),
        "cifar10": (50000, 10),
        "cifar100": (50000, 100),
    }


def test_unknown_name():
    for call in (data.load, data.describe):
        with pytest.raises(InputError, match=r"unknown data set 'fashion-mnist'; did you mean 'fashion_mnist'\?"):
            call("fashion-mnist")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mnist", {}),
        ("fashion_mnist", {"label": "labels"}),
        ("cifar10", {"shape": (3, 32, 32), "image": "img"}),
        ("cifar100", {"shape": (3, 32, 32), "classes": 100, "image": "img", "label": "fine_label"}),
    ],
)
def test_parquet_files_come_back_as_they_went_in(tmp_path, name, options):
    x_R, y_R = make(tmp_path, name, **options)
    for _ in range(2):  # decoded, then from the cache
        source = data.load(name, tmp_path)
        assert (source.x_R.numpy() == x_R).all()
        assert (source.y_R.numpy() == y_R).all()
        assert source.train_rows == 7
        assert source.classes == len(source.class_names) == options.get("classes", 10)
        assert list(source.mean) == data.describe(name)["mean"]


def test_lossless_webp_and_a_second_label_column(tmp_path):
    x_R = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    files = []
    for x in x_R:
        files.append(io.BytesIO())
        Image.fromarray(x.transpose(1, 2, 0)).save(files[-1], "WEBP", lossless=True)
    for which in ("train", "test"):
        coarse = pa.array([99] * 4)
        write(tmp_path / f"cifar100/{which}.parquet", [f.getvalue() for f in files], [0, 1, 2, 3], "img", "fine_label",
              coarse_label=coarse)  # fmt: skip
    source = data.load("cifar100", tmp_path)
    assert (source.x_R[4:].numpy() == x_R).all()
    assert source.y_R.tolist() == [0, 1, 2, 3] * 2


def test_shards_are_read_in_order_and_batches_join_up(tmp_path):
    x_R = np.random.default_rng(0).integers(0, 256, (2100, 1, 28, 28)).astype(np.uint8)
    images, labels = [encode(x) for x in x_R], np.arange(2100) % 10
    shards = {f"train-{i}-of-8": slice(100 * i, 100 * (i + 1)) for i in (4, 0, 2, 6, 1, 7, 3, 5)}
    shards["train-8-of-8"], shards["test"] = slice(800, 2090), slice(2090, None)
    for which, here in shards.items():
        write(tmp_path / f"mnist/{which}.parquet", images[here], labels[here])
    source = data.load("mnist", tmp_path)
    assert (source.x_R.numpy() == x_R).all()
    assert (source.y_R.numpy() == labels).all()
    assert source.train_rows == 2090


def test_a_whole_file_beside_the_hubs_shards_is_not_read_twice(tmp_path):
    make(tmp_path, "mnist")
    for which in ("train", "test"):
        (tmp_path / f"mnist/{which}-00000-of-00001.parquet").symlink_to(tmp_path / f"mnist/{which}.parquet")
    (tmp_path / "mnist/train-00001-of-00002.parquet").symlink_to(tmp_path / "nowhere")
    assert len(data.load("mnist", tmp_path).y_R) == 10


def test_the_folder_is_the_argument_then_the_environment(tmp_path, monkeypatch):
    make(tmp_path / "a", "mnist", rows=(2, 1))
    make(tmp_path / "b", "mnist", rows=(4, 1))
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "a"))
    assert data.load("mnist").train_rows == 2
    assert data.load("mnist", tmp_path / "b").train_rows == 4


# --- the cache


def test_the_second_load_decodes_nothing_until_a_file_changes(tmp_path, monkeypatch):
    make(tmp_path, "mnist")
    first = data.load("mnist", tmp_path)

    def fail(*_):
        raise AssertionError("decoded again")

    with monkeypatch.context() as m:
        m.setattr(sources, "_decode", fail)
        again = data.load("mnist", tmp_path)
    assert torch.equal(first.x_R, again.x_R)
    x_R, _ = make(tmp_path, "mnist", rows=(9, 3))
    assert (data.load("mnist", tmp_path).x_R.numpy() == x_R).all()


def test_a_file_that_is_touched_is_decoded_again(tmp_path, monkeypatch):
    make(tmp_path, "mnist")
    data.load("mnist", tmp_path)
    os.utime(tmp_path / "mnist/test.parquet", ns=(1, 1))
    calls = []
    decode = sources._decode
    monkeypatch.setattr(sources, "_decode", lambda *a: calls.append(1) or decode(*a))
    data.load("mnist", tmp_path)
    assert calls == [1]


def test_writing_to_the_rows_leaves_the_cache_alone(tmp_path):
    x_R, _ = make(tmp_path, "mnist")
    for _ in range(2):
        source = data.load("mnist", tmp_path)
        assert (source.x_R.numpy() == x_R).all()
        source.x_R.zero_()


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def forget_the_labels(path):
    sources.save_file({"x": torch.zeros(2)}, path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: p.write_bytes(p.read_bytes()[:-50]),
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(b"rubbish" * 99),
        flip_last_byte,
        forget_the_labels,
    ],
    ids=["truncated", "empty", "rubbish", "flipped", "incomplete"],
)
def test_a_broken_cache_is_built_again(tmp_path, own_cache, spoil):
    x_R, y_R = make(tmp_path, "mnist")
    data.load("mnist", tmp_path)
    (path,) = own_cache.iterdir()
    spoil(path)
    source = data.load("mnist", tmp_path)
    assert (source.x_R.numpy() == x_R).all()
    assert (source.y_R.numpy() == y_R).all()
    assert list(own_cache.iterdir()) == [path]
    assert (sources._from_cache(path).x_R.numpy() == x_R).all()


def test_an_unwritable_cache_is_ignored(tmp_path, monkeypatch):
    x_R, _ = make(tmp_path, "mnist")
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        monkeypatch.chdir(tmp_path)
        assert (data.load("mnist", tmp_path).x_R.numpy() == x_R).all()
    assert not (tmp_path / "relative").exists()


def test_a_full_disk_leaves_no_half_cache(tmp_path, own_cache, monkeypatch):
    x_R, _ = make(tmp_path, "mnist")

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "save_file", full)
    assert (data.load("mnist", tmp_path).x_R.numpy() == x_R).all()
    assert list(own_cache.iterdir()) == []


# --- what can be wrong with the files

GREY = np.zeros((1, 28, 28), np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (1, 28, 28)).astype(np.uint8)


def test_missing_folder_and_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no folder .*mnist; fetch mnist/train-00000-of-00001\.parquet .* put them"):
        data.load("mnist", tmp_path)
    make(tmp_path, "mnist")
    (tmp_path / "mnist/test.parquet").unlink()
    with pytest.raises(InputError, match=r"has no test\.parquet; fetch .* and put them at .*mnist/test\.parquet"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b"not parquet at all",
        lambda b: b"",
        lambda b: b[: len(b) // 2],
        lambda b: b[:100] + bytes(len(b) - 1100) + b[-1000:],
    ],
    ids=["foreign", "empty", "truncated", "holed"],
)
def test_a_broken_file(tmp_path, spoil):
    make(tmp_path, "mnist", rows=(40, 3))
    path = tmp_path / "mnist/train.parquet"
    path.write_bytes(spoil(path.read_bytes()))
    match = r"train\.parquet (cannot be read as parquet|holds no readable image).*: fetch the file again"
    with pytest.raises(InputError, match=match):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        (pa.table({"pixels": [1], "label": [1]}), "pixels: int64, label: int64"),
        (pa.table({"image": [b"x"], "label": [1]}), "image: binary, label: int64"),
        (pa.table({"image": [{"bytes": b"x"}], "label": ["cat"]}), "image: struct<bytes: binary>, label: string"),
        (pa.table({"image": [{"bytes": b"x"}], "target": [1]}), "image: struct<bytes: binary>, target: int64"),
    ],
)
def test_wrong_columns(tmp_path, table, columns):
    make(tmp_path, "mnist")
    pq.write_table(table, tmp_path / "mnist/test.parquet")
    with pytest.raises(InputError, match=f"test.parquet has the columns {columns}; it needs image or img"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize("label", [10, -1, None])
def test_label_out_of_range(tmp_path, label):
    make(tmp_path, "mnist")
    write(tmp_path / "mnist/test.parquet", [encode(GREY)] * 3, [0, 9, label])
    match = rf"row 2 of .*test\.parquet has the label {label}, where mnist has labels 0 to 9: put the files of mnist"
    with pytest.raises(InputError, match=match):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (np.zeros((1, 32, 32), np.uint8), "32x32 in mode L"),
        (np.zeros((1, 28, 30), np.uint8), "30x28 in mode L"),
        (np.zeros((3, 28, 28), np.uint8), "28x28 in mode RGB"),
    ],
)
def test_wrong_image_shape(tmp_path, image, found):
    make(tmp_path, "mnist")
    write(tmp_path / "mnist/test.parquet", [encode(GREY), encode(image)], [0, 1])
    match = f"row 1 of .*test.parquet is an image of {found}, where mnist has 28x28 in mode L: put the files of mnist"
    with pytest.raises(InputError, match=match):
        data.load("mnist", tmp_path)


IDS = ["none", "empty", "rubbish", "header only", "half"]


@pytest.mark.parametrize("image", [None, b"", b"rubbish", encode(NOISE)[:20], encode(NOISE)[:400]], ids=IDS)
def test_unreadable_image(tmp_path, image):
    make(tmp_path, "mnist")
    write(tmp_path / "mnist/train.parquet", [encode(GREY), image], [0, 1])
    with pytest.raises(InputError, match=r"row 1 of .*train\.parquet holds no readable image: fetch the file again"):
        data.load("mnist", tmp_path)


def test_no_rows(tmp_path):
    make(tmp_path, "mnist")
    write(tmp_path / "mnist/test.parquet", [], [])
    with pytest.raises(InputError, match=r"test\.parquet has no rows: fetch the file again"):
        data.load("mnist", tmp_path)


# --- the hub


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach it"), datasets.exceptions.DatasetsError("broken")])
def test_the_hub_out_of_reach(monkeypatch, error):
    def unreachable(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError) as found:
        data.load("cifar10")
    assert str(found.value) == (
        f"data set cifar10 cannot be fetched from the Hugging Face hub ({error}); fetch "
        "plain_text/train-00000-of-00001.parquet and plain_text/test-00000-of-00001.parquet from "
        "https://huggingface.co/datasets/uoft-cs/cifar10 elsewhere, put them at <data_dir>/cifar10/train.parquet and "
        "<data_dir>/cifar10/test.parquet, and give that data_dir or set IDIOLECT_DATA to it"
    )


def test_the_hub_gives_the_same_as_its_files(tmp_path, monkeypatch, own_cache):
    x_R, y_R = make(tmp_path, "fashion_mnist")
    asked = []

    def hub(name, split):
        asked.append((name, split))
        path = str(tmp_path / "fashion_mnist" / f"{split}.parquet")
        return datasets.Dataset.from_parquet(path, cache_dir=str(tmp_path / "hub"))

    monkeypatch.setattr(datasets, "load_dataset", hub)
    datasets.disable_progress_bars()
    for _ in range(2):
        source = data.load("fashion_mnist")
        assert (source.x_R.numpy() == x_R).all()
        assert (source.y_R.numpy() == y_R).all()
        assert source.train_rows == 7
    assert asked[:2] == [("zalando-datasets/fashion_mnist", "train"), ("zalando-datasets/fashion_mnist", "test")]
    assert len(list(own_cache.iterdir())) == 1


# --- the real files


@pytest.mark.data
def test_real_fashion_mnist(fashion_mnist):
    source = fashion_mnist
    assert source.x_R.shape == (70000, 1, 28, 28)
    assert source.train_rows == 60000
    assert torch.bincount(source.y_R[:60000]).tolist() == [6000] * 10
    assert torch.bincount(source.y_R[60000:]).tolist() == [1000] * 10
    pixels = source.x_R[:60000].float() / 255
    assert pixels.mean().item() == pytest.approx(0.2860, abs=1e-4)  # the figures usually quoted for its training split
    assert pixels.std().item() == pytest.approx(0.3530, abs=1e-4)


@pytest.mark.data
def test_real_cifar10_files(cifar10, tmp_path):
    want = []
    for which in ("train", "test"):
        batch = next(pq.ParquetFile(cifar10 / f"{which}.parquet").iter_batches(400))
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"cifar10/{which}.parquet")
        want += batch.to_pylist()
    source = data.load("cifar10", tmp_path)
    assert source.x_R.shape == (800, 3, 32, 32)
    assert source.y_R.tolist() == [row["label"] for row in want]
    assert source.y_R[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile open the official order
    pixel = Image.open(io.BytesIO(want[650]["img"]["bytes"])).getpixel((20, 5))
    assert source.x_R[650, :, 5, 20].tolist() == list(pixel)
