import gzip
import io
import json
import logging
import os
import struct

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.data.datasets import cache, loading


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


def rows_of(count, shape=(1, 28, 28), classes=10, seed=3):
    """Random images and labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape)).astype(np.uint8), rng.integers(0, classes, count)


def make(folder, name, rows=(7, 3), shape=(1, 28, 28), classes=10, **columns):
    """Random train.parquet and test.parquet; returns the images and labels that went in."""
    x_R, y_R = rows_of(sum(rows), shape, classes)
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
    for statistic in (about["mean"], about["std"]):
        assert statistic is None or len(statistic) == about["shape"][0]
    assert about["client_column"] is None or about["client_column"] in about["columns"]
    assert about["rows"] == about["train_rows"] + about["test_rows"]
    assert about["bytes"] == about["rows"] * np.prod(about["shape"])
    assert about["licence"]
    assert about["source"]


def test_the_sizes_of_the_published_sets():
    about = {name: data.describe(name) for name in data.names()}
    assert {name: (a["train_rows"], a["test_rows"], a["classes"], a["shape"]) for name, a in about.items()} == {
        "digits": (1797, 0, 10, [1, 8, 8]),
        "mnist": (60000, 10000, 10, [1, 28, 28]),
        "fashion_mnist": (60000, 10000, 10, [1, 28, 28]),
        "emnist": (697932, 116323, 62, [1, 28, 28]),
        "emnist_letters": (48000, 8000, 10, [1, 28, 28]),
        "femnist": (814277, 0, 62, [1, 28, 28]),
        "cifar10": (50000, 10000, 10, [3, 32, 32]),
        "cifar100": (50000, 10000, 100, [3, 32, 32]),
        "cinic10": (90000, 90000, 10, [3, 32, 32]),
        "tiny_imagenet": (100000, 10000, 200, [3, 64, 64]),
        "digit5": (678949, 56593, 10, [3, 32, 32]),
        "digits3": (126292, 21008, 10, [3, 32, 32]),
    }
    assert "not DIGIT-5" in about["digits3"]["title"]


def test_the_classes_of_the_letters_stand_in_the_official_order():
    names = data.describe("emnist")["class_names"]
    assert [names[i] for i in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]
    assert names == data.describe("femnist")["class_names"]
    assert "".join(data.describe("emnist_letters")["class_names"]) == "ABCDEFGHIJ"


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
        ("cinic10", {"shape": (3, 32, 32)}),
        ("tiny_imagenet", {"shape": (3, 64, 64), "classes": 200}),
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
        m.setattr(loading, "decode", fail)
        again = data.load("mnist", tmp_path)
    assert torch.equal(first.x_R, again.x_R)
    x_R, _ = make(tmp_path, "mnist", rows=(9, 3))
    assert (data.load("mnist", tmp_path).x_R.numpy() == x_R).all()


def test_a_file_that_is_touched_is_decoded_again(tmp_path, monkeypatch):
    make(tmp_path, "mnist")
    data.load("mnist", tmp_path)
    os.utime(tmp_path / "mnist/test.parquet", ns=(1, 1))
    calls = []
    decode = loading.decode
    monkeypatch.setattr(loading, "decode", lambda *a: calls.append(1) or decode(*a))
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
    cache.save_file({"x": torch.zeros(2)}, path)


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
    assert (cache.load(path).tensors["x"].numpy() == x_R).all()


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

    monkeypatch.setattr(cache, "save_file", full)
    assert (data.load("mnist", tmp_path).x_R.numpy() == x_R).all()
    assert list(own_cache.iterdir()) == []


# --- what can be wrong with the files

GREY = np.zeros((1, 28, 28), np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (1, 28, 28)).astype(np.uint8)


def test_missing_folder_and_missing_file(tmp_path):
    with pytest.raises(
        InputError, match=r"no folder .*mnist; download mnist/train-00000-of-00001\.parquet .* put them at"
    ):
        data.load("mnist", tmp_path)
    make(tmp_path, "mnist")
    (tmp_path / "mnist/test.parquet").unlink()
    with pytest.raises(InputError, match=r"has no test\.parquet; download .* and put them at .*mnist/test\.parquet"):
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
    match = r"train\.parquet (cannot be read as parquet|has no readable image).*: download the file again"
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
    match = rf"row 2 of .*test\.parquet has the label {label}, where the files of mnist have labels 0 to 9: put"
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
    with pytest.raises(InputError, match=r"row 1 of .*train\.parquet has no readable image: download the file again"):
        data.load("mnist", tmp_path)


def test_no_rows(tmp_path):
    make(tmp_path, "mnist")
    write(tmp_path / "mnist/test.parquet", [], [])
    with pytest.raises(InputError, match=r"test\.parquet has no rows: download the file again"):
        data.load("mnist", tmp_path)


# --- the hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub in a folder: write to hub.folder/<owner>/<name>/<file>; hub.asked lists what was fetched."""

    class Hub:
        folder = tmp_path / "hub"

    def download(repository, file, repo_type):
        assert repo_type == "dataset"
        Hub.asked.append(f"{repository}/{file}")
        path = Hub.folder / repository / file
        if not path.exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError("Couldn't reach it.\nTry again.")
        return str(path)

    Hub.asked = []
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return Hub


def test_the_hub_out_of_reach(hub):
    with pytest.raises(InputError) as found:
        data.load("cifar10")
    assert str(found.value) == (
        "data set cifar10 cannot be downloaded from the Hugging Face hub (Couldn't reach it); elsewhere, "
        "download plain_text/train-00000-of-00001.parquet and plain_text/test-00000-of-00001.parquet from "
        "https://huggingface.co/datasets/uoft-cs/cifar10 and put them at <data_dir>/cifar10/train.parquet and "
        "<data_dir>/cifar10/test.parquet, with the columns img (a struct with the encoded bytes) and label "
        "(integers), and give that data_dir or set IDIOLECT_DATA to it"
    )


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("femnist", r"data/train-00000-of-00001\.parquet from .*/flwrlabs/femnist and put them at "
                    r"<data_dir>/femnist/train\.parquet, .* character \(integers\) and writer_id \(text\), and give"),
        ("tiny_imagenet", r"and data/valid-00000-of-00001-70d52db3c749a935\.parquet from .*zh-plus/tiny-imagenet and "
                          r"put them at .*/train\.parquet and <data_dir>/tiny_imagenet/test\.parquet"),
        ("emnist", r"emnist-byclass-train-images-idx3-ubyte\.gz and .* from .*/Royc30ne/emnist-byclass and put them "
                   r"into <data_dir>/emnist, or write <data_dir>/emnist/train\.parquet and"),
        ("digit5", r"its domain synth_digits cannot be downloaded by name; download synth_train_32x32\.mat and "
                   r"synth_test_32x32\.mat from http://yaroslav\.ganin\.net .* and put them into "
                   r"<data_dir>/digit5/synth_digits, or write .* and label \(integers\), and give that data_dir"),
        ("digits3", r"data set digits3/mnist cannot be downloaded .* <data_dir>/digits3/mnist/train\.parquet"),
    ],
)  # fmt: skip
def test_a_failed_download_says_what_to_fetch_and_where_to_put_it(hub, name, match):
    with pytest.raises(InputError, match=match):
        data.load(name)
    assert len(hub.asked) == (name != "digit5")  # nothing is fetched in vain


def test_the_hub_gives_the_same_as_its_files(hub, own_cache):
    x_R, y_R = make(hub.folder, "zalando-datasets/fashion_mnist/fashion_mnist")
    here = hub.folder / "zalando-datasets/fashion_mnist/fashion_mnist"
    for which in ("train", "test"):
        (here / f"{which}.parquet").rename(here / f"{which}-00000-of-00001.parquet")
    for _ in range(2):
        source = data.load("fashion_mnist")
        assert (source.x_R.numpy() == x_R).all()
        assert (source.y_R.numpy() == y_R).all()
        assert source.train_rows == 7
    repository = "zalando-datasets/fashion_mnist/fashion_mnist"
    assert hub.asked[:2] == [f"{repository}/{which}-00000-of-00001.parquet" for which in ("train", "test")]
    assert len(list(own_cache.iterdir())) == 1


# --- the sets that differ from their files


def test_another_number_of_rows_than_published_is_logged(tmp_path, caplog):
    make(tmp_path, "mnist")
    data.load("mnist", tmp_path)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "mnist: the files hold 7 training and 3 test samples where 60,000 and 10,000 are published" in caplog.text
    caplog.clear()
    data.load("digits")
    assert not caplog.records


def write_idx(path, array):
    """LeCun's format, from its description: 0, 0, 8 (bytes), the dimensions, their sizes, the bytes; all gzipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def make_emnist(folder, train=1203, test=5):
    """The four official files of EMNIST by class; returns the images as they lie there, and the labels."""
    x_R, y_R = rows_of(train + test, classes=62)
    for split, here in (("train", slice(0, train)), ("test", slice(train, None))):
        write_idx(folder / f"emnist-byclass-{split}-images-idx3-ubyte.gz", x_R[here, 0])
        write_idx(folder / f"emnist-byclass-{split}-labels-idx1-ubyte.gz", y_R[here])
    return x_R, y_R


@pytest.mark.parametrize("by_name", [False, True])
def test_emnist_from_its_official_files_stands_upright(tmp_path, hub, by_name):
    x_R, y_R = make_emnist(hub.folder / "Royc30ne/emnist-byclass" if by_name else tmp_path / "emnist")
    for _ in range(2):
        source = data.load("emnist") if by_name else data.load("emnist", tmp_path)
        assert (source.x_R.numpy() == np.transpose(x_R, (0, 1, 3, 2))).all()
        assert (source.y_R.numpy() == y_R).all()
        assert source.train_rows == 1203
    assert len(hub.asked) == 8 * by_name


def test_emnist_from_parquet_files_stands_upright(tmp_path):
    x_R, y_R = make(tmp_path, "emnist", classes=62)
    source = data.load("emnist", tmp_path)
    assert (source.x_R.numpy() == np.transpose(x_R, (0, 1, 3, 2))).all()
    assert (source.y_R.numpy() == y_R).all()


def cut(path):
    path.write_bytes(path.read_bytes()[:-300])


@pytest.mark.parametrize(
    "spoil",
    [
        cut,
        lambda p: p.write_bytes(b"no gzip"),
        lambda p: p.write_bytes(b""),
        lambda p: write_idx(p, np.zeros((1202, 28, 28))),
        lambda p: write_idx(p, np.zeros((1203, 28, 27))),
        lambda p: write_idx(p, np.zeros(1203)),
        lambda p: p.write_bytes(gzip.compress(gzip.decompress(p.read_bytes())[:-1])),
    ],
    ids=["cut", "foreign", "empty", "other count", "other size", "labels", "a byte short"],
)
def test_broken_idx_files(tmp_path, spoil):
    make_emnist(tmp_path / "emnist")
    spoil(tmp_path / "emnist/emnist-byclass-train-images-idx3-ubyte.gz")
    with pytest.raises(
        InputError, match=r"train-images-idx3-ubyte\.gz cannot be read as IDX .*: download the file again"
    ):
        data.load("emnist", tmp_path)


def test_emnist_letters_keeps_the_first_ten_upright(tmp_path):
    x_R, y_R = make(tmp_path, "emnist_letters", rows=(70, 30), classes=26)
    for _ in range(2):
        source = data.load("emnist_letters", tmp_path)
        chosen = y_R < 10
        assert 0 < chosen.sum() < 100
        assert (source.x_R.numpy() == np.transpose(x_R[chosen], (0, 1, 3, 2))).all()
        assert (source.y_R.numpy() == y_R[chosen]).all()
        assert source.train_rows == chosen[:70].sum()
        assert source.classes == 10


def test_emnist_letters_with_nists_own_labels_are_refused(tmp_path):
    make(tmp_path, "emnist_letters")
    write(tmp_path / "emnist_letters/test.parquet", [encode(GREY)] * 2, [1, 26])
    with pytest.raises(InputError, match=r"row 1 of .* has the label 26, where the files .* have labels 0 to 25: put"):
        data.load("emnist_letters", tmp_path)


def make_femnist(folder, writers):
    """The hub's one file of FEMNIST; returns the images and labels that went in."""
    x_R, y_R = rows_of(len(writers), classes=62)
    write(
        folder / "femnist/train-00000-of-00001.parquet",
        [encode(x) for x in x_R],
        y_R,
        label="character",
        writer_id=pa.array(writers, pa.string()),
        hsf_id=pa.array([0] * len(writers), pa.int64()),
    )
    return x_R, y_R


def test_femnist_knows_its_writers(tmp_path):
    writers = ["f0137_02", "f0000_14", "f0137_02", "f4099_10", "f0000_14"] * 300  # more rows than a batch
    x_R, y_R = make_femnist(tmp_path, writers)
    for _ in range(2):  # decoded, then from the cache
        source = data.load("femnist", tmp_path)
        assert (source.x_R.numpy() == x_R).all()
        assert (source.y_R.numpy() == y_R).all()
        assert source.train_rows == 1500
        assert source.client_column == "writer"
        assert list(source.columns) == ["writer"]
        column = source.columns["writer"]
        assert column.names == ("f0000_14", "f0137_02", "f4099_10")
        assert [column.names[code] for code in column.code_R] == writers
        assert column.code_R.dtype == np.int64


def test_a_row_without_a_writer_and_files_without_writers(tmp_path):
    make_femnist(tmp_path, ["f0000_14", "f0001_41", None])
    with pytest.raises(
        InputError, match=r"row 2 \(counting from 0\) of .*\.parquet has no writer_id: fill it in or drop the row"
    ):
        data.load("femnist", tmp_path)
    write(tmp_path / "femnist/train.parquet", [encode(GREY)], [0], label="character")
    with pytest.raises(InputError, match=r"it needs image or img .* and character or label .* and writer_id \(text\)"):
        data.load("femnist", tmp_path)


def test_grey_images_among_coloured_ones_become_coloured(tmp_path):
    colour, grey = rows_of(2, (3, 32, 32))[0], rows_of(2, (1, 32, 32))[0]
    palette = Image.fromarray(colour[0].transpose(1, 2, 0)).quantize(7)
    file = io.BytesIO()
    palette.save(file, "PNG")
    write(tmp_path / "cinic10/train.parquet", [encode(colour[0]), encode(grey[0]), file.getvalue()], [0, 1, 2])
    write(tmp_path / "cinic10/test.parquet", [encode(grey[1]), encode(colour[1])], [3, 4])
    write(tmp_path / "cinic10/validation.parquet", [encode(colour[0])] * 9, [0] * 9)
    x_R = data.load("cinic10", tmp_path).x_R.numpy()
    table = np.asarray(palette.getpalette()).reshape(-1, 3)
    assert len(x_R) == 5  # without the validation split
    assert (x_R[[0, 4]] == colour).all()
    assert (x_R[[1, 3]] == grey).all()  # the same in every channel
    assert (x_R[2] == table[np.asarray(palette)].transpose(2, 0, 1)).all()


def test_a_wrong_size_is_refused_where_modes_are_converted(tmp_path):
    make(tmp_path, "cinic10", shape=(3, 32, 32))
    write(tmp_path / "cinic10/test.parquet", [encode(GREY)], [0])
    with pytest.raises(InputError, match=r"row 0 of .* is an image of 28x28 in mode RGB, where cinic10 has 32x32 in"):
        data.load("cinic10", tmp_path)


@pytest.mark.parametrize("valid", ["valid.parquet", "valid-00000-of-00001-70d52db3c749a935.parquet"])
def test_tiny_imagenet_tests_on_its_validation_split(tmp_path, valid):
    x_R, y_R = make(tmp_path, "tiny_imagenet", shape=(3, 64, 64), classes=200)
    (tmp_path / "tiny_imagenet/test.parquet").rename(tmp_path / "tiny_imagenet" / valid)
    source = data.load("tiny_imagenet", tmp_path)
    assert (source.x_R.numpy() == x_R).all()
    assert (source.y_R.numpy() == y_R).all()
    assert source.train_rows == 7
    assert list(source.class_names) == sorted(set(source.class_names))


# --- the sets of several domains

DIGIT5 = {"mnist": (1, 28, 28), "svhn": (3, 32, 32), "usps": (1, 16, 16), "synth_digits": (3, 32, 32),
          "mnist_m": (3, 28, 28)}  # fmt: skip


def upright(x_CHW):
    """Pillow's own conversion and resizing."""
    image = Image.fromarray(x_CHW[0] if len(x_CHW) == 1 else x_CHW.transpose(1, 2, 0)).convert("RGB")
    return np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def make_domains(rows=(3, 2)):
    """By domain: images as published, and labels."""
    return {d: rows_of(sum(rows), shape, seed=i) for i, (d, shape) in enumerate(DIGIT5.items())}


def agrees(source, domains, order):
    """The rows of every domain, wherever they stand, are the ones that went in, resized."""
    column = source.columns["domain"]
    assert source.client_column == "domain"
    assert column.names == tuple(sorted(domains))
    assert [column.names[code] for code in column.code_R] == order
    for name, (x_R, y_R) in domains.items():
        mine = column.code_R == column.names.index(name)
        assert (source.x_R.numpy()[mine] == np.stack([upright(x) for x in x_R])).all()
        assert (source.y_R.numpy()[mine] == y_R).all()
    assert source.train_rows == 3 * len(domains)


@pytest.mark.parametrize("coded", [False, True])
def test_digit5_from_one_table_with_its_domains(tmp_path, coded):
    domains, names = make_domains(), sorted(DIGIT5)
    for which, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        images = [encode(x) for d in domains for x in domains[d][0][rows]]
        order = [d for d in domains for _ in range(5)[rows]]
        column = pa.array([names.index(d) for d in order] if coded else order)
        path = tmp_path / f"digit5/{which}.parquet"
        write(path, images, np.concatenate([domains[d][1][rows] for d in domains]), domain=column)
        if coded:  # as the datasets library writes a class label
            about = {"info": {"features": {"domain": {"names": names, "_type": "ClassLabel"}}}}
            table = pq.read_table(path)
            pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), path)
    for _ in range(2):
        agrees(data.load("digit5", tmp_path), domains, [d for n in (3, 2) for d in DIGIT5 for _ in range(n)])


def write_mat(path, x_R, y_R):
    """SVHN's format, where the digit 0 is written as 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": x_R.transpose(2, 3, 1, 0), "y": np.where(y_R == 0, 10, y_R)[:, None]})


def test_digit5_from_four_hub_sets_and_a_file_fetched_by_hand(tmp_path, hub):
    domains = make_domains()
    files = {
        "mnist": "ylecun/mnist/mnist/{}-00000-of-00001.parquet",
        "svhn": "ufldl-stanford/svhn/cropped_digits/{}-00000-of-00001.parquet",
        "usps": "flwrlabs/usps/data/{}-00000-of-00001.parquet",
        "mnist_m": "Mike0307/MNIST-M/data/{}-00000-of-00001-{}.parquet",
    }
    tails = {"train": "571b6b1e2c195186", "test": "ba3ad971b105ff65"}
    for which, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        for domain, file in files.items():
            x_R, y_R = domains[domain]
            write(hub.folder / file.format(which, tails[which]), [encode(x) for x in x_R[rows]], y_R[rows])
        x_R, y_R = domains["synth_digits"]
        write_mat(tmp_path / f"digit5/synth_digits/synth_{which}_32x32.mat", x_R[rows], y_R[rows])
    for _ in range(2):
        agrees(data.load("digit5", tmp_path), domains, [d for n in (3, 2) for d in DIGIT5 for _ in range(n)])
    assert len(hub.asked) == 2 * 8
    three = {d: domains[d] for d in ("mnist", "usps", "mnist_m")}
    agrees(data.load("digits3"), three, [d for n in (3, 2) for d in three for _ in range(n)])


@pytest.mark.parametrize(
    "content",
    [
        b"no MATLAB file",
        b"no MATLAB file" * 99,
        b"",
        None,
        {"X": np.zeros((32, 32, 3, 4), np.uint8)},
        {"X": np.zeros((4, 32, 32, 3), np.uint8), "y": np.zeros((4, 1))},
        {"X": np.zeros((32, 32, 3, 4)), "y": np.zeros((4, 1))},
    ],
    ids=["short", "foreign", "empty", "cut", "no labels", "other order", "no bytes"],
)
def test_a_broken_matlab_file(tmp_path, hub, content):
    make(tmp_path, "digit5/synth_digits", shape=(3, 32, 32))
    for domain in ("mnist", "svhn", "usps", "mnist_m"):
        make(tmp_path, f"digit5/{domain}", shape=DIGIT5[domain])
    data.load("digit5", tmp_path)
    (tmp_path / "digit5/synth_digits/train.parquet").unlink()
    path = tmp_path / "digit5/synth_digits/synth_train_32x32.mat"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        savemat(path, content)
    else:
        write_mat(path, *rows_of(9, (3, 32, 32)))
        cut(path)
    with pytest.raises(
        InputError, match=r"synth_train_32x32\.mat cannot be read as a MATLAB file of X and y .*: download"
    ):
        data.load("digit5", tmp_path)


@pytest.mark.parametrize(
    ("domains", "match"),
    [
        (
            ["mnist", "usps", "mnist_m", "emoji"],
            r"have the domains emoji, mnist, mnist_m, usps; it needs samples of mnist, mnist_m, usps",
        ),
        (["mnist", "usps"], r"have only the domains mnist, usps; it needs samples of mnist, mnist_m, usps: rename"),
        ([0, 1, 2], r"have the domains 0, 1, 2; it needs samples of mnist, mnist_m, usps: rename the domains, or put"),
    ],
)
def test_unknown_and_missing_domains(tmp_path, domains, match):
    for which in ("train", "test"):
        images = [encode(GREY)] * len(domains)
        write(tmp_path / f"digits3/{which}.parquet", images, [0] * len(domains), domain=pa.array(domains))
    with pytest.raises(InputError, match=match):
        data.load("digits3", tmp_path)


def test_a_domain_without_a_test_split(tmp_path):
    make(tmp_path, "digits3/usps", shape=(1, 16, 16))
    (tmp_path / "digits3/usps/test.parquet").unlink()
    make(tmp_path, "digits3/mnist")
    with pytest.raises(
        InputError, match=r"digits3/usps: .*/digits3/usps has no test\.parquet; download .*/flwrlabs/usps"
    ):
        data.load("digits3", tmp_path)
    write(tmp_path / "digits3/train.parquet", [encode(GREY)], [0], domain=pa.array(["usps"]))
    with pytest.raises(
        InputError, match=r"digits3 has no test\.parquet; put one there with the columns image .*domain"
    ):
        data.load("digits3", tmp_path)


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


@pytest.fixture
def digits3(cifar10):
    """The folder that holds the real parquet files, beside those of CIFAR-10."""
    folder = cifar10.parent / "digits3"
    if not folder.is_dir():
        pytest.skip(f"the real digits3 is not here: set IDIOLECT_DATA to the folder that holds {folder.name}")
    return folder


@pytest.mark.data
def test_real_digits3(digits3, tmp_path):
    rows = []
    (tmp_path / "digits3").mkdir()
    for which in ("train", "test"):
        table = pq.read_table(digits3 / f"{which}.parquet")
        table = table.take(list(range(0, len(table), 40)))
        pq.write_table(table, tmp_path / f"digits3/{which}.parquet")
        rows += table.to_pylist()
    source = data.load("digits3", tmp_path)
    column = source.columns["domain"]
    assert column.names == ("mnist", "mnist_m", "usps")
    assert column.code_R.tolist() == [row["domain"] for row in rows]
    assert source.y_R.tolist() == [row["label"] for row in rows]
    assert source.x_R.shape == (547 + 151, 3, 32, 32)
    assert source.train_rows == 547
    for code, size in enumerate([(28, 28), (32, 32), (16, 16)]):  # as the data set's publishers give them
        row = int(np.flatnonzero(column.code_R == code)[-1])
        image = Image.open(io.BytesIO(rows[row]["image"]["bytes"])).convert("RGB")
        assert image.size == size
        want = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert (source.x_R[row].numpy() == want).all()
