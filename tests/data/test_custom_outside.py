"""Data made by somebody else: what leads out of its folder, what waits for ever, what unfolds beyond any memory."""

import gzip
import io
import os
import struct
import threading
import zlib

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from idiolect.core import shared_memory
from idiolect.core.errors import InputError
from idiolect.data.custom import from_arrays, from_frame, images, open_data
from idiolect.data.custom.images import EncodedImage, read
from idiolect.data.custom.inside import Within
from idiolect.data.custom.parts import read_dataset
from idiolect.data.datasets import cache, decoding, files, formats, loading
from idiolect.data.datasets.catalogue import SETS


def save(path, level=0, size=(4, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, level).save(path)
    return path


def bomb(width, height):
    """A PNG of a few bytes that says it has so many pixels; they are not in it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# --- out of the folder


@pytest.mark.parametrize("name", ["../secret.png", "/secret.png", "up/../../secret.png", "link.png", "way/secret.png"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    secret = save(tmp_path / "secret.png", 200)
    cohort = tmp_path / "cohort"
    save(cohort / "1.png")
    (cohort / "up").mkdir()
    (cohort / "link.png").symlink_to(secret)
    (cohort / "way").symlink_to(tmp_path)
    name = str(secret) if name.startswith("/") else name
    (cohort / "metadata.csv").write_text(f"file_name,label\n1.png,a\n{name},b\n")
    for where in (cohort, cohort / "metadata.csv"):
        with pytest.raises(InputError, match=r"cohort/.* leads out of .*cohort: copy|secret.png leads out of"):
            open_data(where)
    assert open_data(cohort / "metadata.csv", outside=True).x_R[1].max() == 200


def test_names_and_links_that_stay_inside_are_read(tmp_path):
    save(tmp_path / "cohort/img/1.png", 7)
    (tmp_path / "cohort/2.png").symlink_to("img/1.png")
    (tmp_path / "cohort/metadata.csv").write_text("file_name,label\nimg/../2.png,a\nimg/1.png,b\n")
    (tmp_path / "way").symlink_to(tmp_path / "cohort")
    assert open_data(tmp_path / "way").x_R.unique().tolist() == [7]


def test_paths_in_a_parquet_file_and_in_a_data_set(tmp_path):
    save(tmp_path / "secret.png", 200)
    there = str(tmp_path / "secret.png")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.array([{"bytes": None, "path": there}] * 2, kind)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"image": rows, "label": ["a", "b"]}), tmp_path / "in/t.parquet")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    made = datasets.Dataset.from_dict({"image": [there] * 2, "label": ["a", "b"]}, features=features)
    with pytest.raises(InputError, match=r"secret.png leads out of"):
        read_dataset(made, within=Within(tmp_path / "in"))
    for where in ("in/t.parquet", "in"):
        with pytest.raises(InputError, match=r"secret.png leads out of"):
            open_data(tmp_path / where)
        assert open_data(tmp_path / where, outside=True).x_R.max() == 200


def test_a_table_that_is_a_link_out_of_the_folder(tmp_path):
    (tmp_path / "p.csv").write_text("a,label\n1,x\n2,y\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.csv").symlink_to(tmp_path / "p.csv")
    with pytest.raises(InputError, match=r"train.csv leads out of"):
        open_data(tmp_path / "in")


# --- what is no file, and what is no path


@pytest.fixture
def soon():
    """Fails a test that waits for a pipe: somebody writes to it in the end."""
    pipes = []
    timer = threading.Timer(20, lambda: [os.close(os.open(p, os.O_WRONLY | os.O_NONBLOCK)) for p in pipes])
    timer.start()
    yield pipes.append
    timer.cancel()


def test_pipes_are_not_read(tmp_path, soon, caplog):
    for name in ("k/a/1.png", "k/b/1.png"):
        save(tmp_path / name)
    os.mkfifo(tmp_path / "k/a/2.png")
    soon(tmp_path / "k/a/2.png")
    assert len(open_data(tmp_path / "k").y_R) == 2
    assert "left out (1 pipe, socket or device)" in caplog.text
    with pytest.raises(
        InputError, match=r"2.png is a pipe or a device, not a file or a folder: save the data in a file"
    ):
        open_data(tmp_path / "k/a/2.png")
    with pytest.raises(InputError, match="here is a folder, a pipe or a device, not a file: remove it"):
        read([EncodedImage("here", tmp_path / "k/a/2.png")], None, "all")
    os.mkfifo(tmp_path / "train.parquet")
    soon(tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"has no train.parquet"):
        files.locate("digit5", SETS["mnist"], tmp_path)


@pytest.mark.parametrize("where", ["patients/hospital_A", "owner/name:config"])
def test_a_mistyped_path_does_not_ask_the_hub(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("asked"))
    said = f"there is no folder {where.partition('/')[0]}: give the path of a file or a folder; for a data set of the "
    with pytest.raises(InputError) as refused:
        open_data(where)
    assert str(refused.value) == f"{said}Hugging Face hub write hf:{where}"
    with pytest.raises(InputError, match=r"hf:patients is not a name on the .* hub: write hf:owner/name, or"):
        open_data("hf:patients")


# --- what unfolds


def test_an_image_of_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    for width, height, said in ((13_300, 13_300, "13300x13300"), (30_000, 30_000, "900000000")):
        with pytest.raises(InputError, match=f"row 0 has {said} pixels, and an image may have 67,108,864"):
            read([EncodedImage("row 0", bomb(width, height))], (8, 8), "here")
    (tmp_path / "a.png").write_bytes(bomb(13_300, 13_300))
    with pytest.raises(InputError, match=r"a.png has 13300x13300 pixels"):
        read([EncodedImage("a.png", tmp_path / "a.png")], (8, 8), "here")
    with pytest.raises(InputError, match=r"x is an image of 13300x13300 in mode RGB, where digit5 has 32x32"):
        decoding._image(bomb(13_300, 13_300), "x", "digit5", SETS["digit5"])
    with pytest.raises(InputError, match=r"x is an image of 9000x9000 in mode L, where mnist has 28x28"):
        decoding._image(bomb(9_000, 9_000), "x", "mnist", SETS["mnist"])


def test_all_bytes_are_counted_before_the_first_is_decoded(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource", reason="POSIX alone tells the peak of memory")
    monkeypatch.setattr(shared_memory, "_memory", lambda: 16e9)
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "PNG")
    some = [EncodedImage("row", file.getvalue())] * 600
    monkeypatch.setattr(images, "_decode", lambda *_: pytest.fail("decoded"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = r"here: 600 images of 4096x4096 would take 10.1 GB, .* is 8.0 GB: give a smaller resize, or set IDIOLECT_MEM"
    with pytest.raises(InputError, match=said):
        read(some, (4096, 4096), "here")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    monkeypatch.setenv("IDIOLECT_MEMORY", "1e3")
    with pytest.raises(InputError, match=r"would take .* is 0.0 GB"):
        read(some, (8, 8), "here")
    table = pa.table({"a": pa.array(np.zeros(10**5)), "label": pa.array(np.zeros(10**5, np.int8))})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"the table .*t.parquet would take 0.0 GB, .*: read a part of it, or set"):
        open_data(tmp_path / "t.parquet")
    monkeypatch.setenv("IDIOLECT_MEMORY", "much")
    with pytest.raises(InputError, match="IDIOLECT_MEMORY=much is not a number of bytes: write one, for example 16e9"):
        shared_memory.most()


def test_half_of_the_memory_is_the_bound(monkeypatch):
    monkeypatch.delenv("IDIOLECT_MEMORY", raising=False)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < shared_memory.most() <= pages / 2


def test_labels_that_unfold_are_read_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_MOST_LABELS", 100)
    (tmp_path / "i.gz").write_bytes(gzip.compress(struct.pack(">4I", 2051, 100, 28, 28)))
    (tmp_path / "l.gz").write_bytes(gzip.compress(bytes(8 + 10**6)))
    part = files.PartFiles((tmp_path / "i.gz", tmp_path / "l.gz"), None)
    assert len(formats._open_idx(part, SETS["mnist"]).labels) == 100


# --- what was decoded before


def test_an_image_that_is_replaced_by_one_of_the_same_size_and_date_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "_MANY", 1)
    for place in ("a/1.bmp", "b/1.bmp"):
        save(tmp_path / "k" / place, 10)
    file = tmp_path / "k/a/1.bmp"
    assert open_data(tmp_path / "k").x_R.unique().tolist() == [10]
    about = file.stat()
    save(file, 200)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (about.st_size, about.st_mtime_ns)
    assert open_data(tmp_path / "k").x_R.unique().tolist() == [10, 200]
    assert cache.mark(file)[1] == about.st_size


def test_a_named_set_whose_file_is_replaced_has_another_place_in_the_cache(tmp_path):
    file = tmp_path / "train.parquet"
    keys = []
    for content in (b"one", b"two"):
        file.write_bytes(content)
        os.utime(file, ns=(0, 0))
        keys.append(loading._key("mnist", SETS["mnist"], [files.PartFiles((file,), None)]))
    assert keys[0] != keys[1]


# --- values that are none


def test_masked_arrays_are_refused():
    x, y = np.ones((6, 2)), np.arange(6) % 2
    mask = [True, False, False, False, False, False]
    masked = np.ma.array(y, mask=mask)
    for what, given in (
        ("x", {"x": np.ma.array(x, mask=np.eye(6, 2)), "y": y}),
        ("y", {"x": x, "y": masked}),
        ("clients", {"x": x, "y": y, "clients": masked}),
        ("x of test", {"x": x, "y": y, "test": (np.ma.masked_equal(x, 1), y)}),
    ):
        with pytest.raises(InputError, match=f"^{what} is a masked array, .*: fill them in, as .* or remove"):
            from_arrays(**given)
    assert from_arrays(np.ma.array(x), np.ma.array(y)).classes == 2, "nothing is under the mask"


@pytest.mark.parametrize("values", [[0.0, 1.0, np.inf, -np.inf], np.array([0, 1, np.inf, -np.inf], object)])
def test_infinite_labels_are_refused(values, tmp_path):
    said = r"is infinite in 2 of 4 rows \(the first is row 2, counting from 0\): correct it or remove those rows"
    with pytest.raises(InputError, match=f"^y {said}"):
        from_arrays(np.ones((4, 2)), values)
    with pytest.raises(InputError, match=f"^clients {said}"):
        from_arrays(np.ones((4, 2)), [0, 1, 0, 1], clients=values)
    frame = pd.DataFrame({"a": range(4), "label": values})
    with pytest.raises(InputError, match=f"^target 'label' of table {said}"):
        from_frame(frame)
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=said):
        open_data(tmp_path / "t.csv")


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT])
def test_labels_that_are_none_are_refused(nothing):
    y = np.array([0, 1, nothing, 1], object)
    with pytest.raises(InputError, match=r"^y is missing in 1 of 4 rows \(the first is row 2"):
        from_arrays(np.ones((4, 2)), y)
    whole = pd.array([0, 1, None, 1], dtype="Int64")
    with pytest.raises(InputError, match=r"^target 'label' of table is missing in 1 of 4 rows"):
        from_frame(pd.DataFrame({"a": range(4), "label": whole}))
