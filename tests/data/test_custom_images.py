import io
import logging
import os
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from idiolect.core.errors import InputError
from idiolect.data.custom import open_data
from idiolect.data.custom.images import EncodedImage, parse_size, read

RNG = np.random.default_rng(0)


def grey(height=6, width=8):
    return RNG.integers(0, 256, (height, width)).astype(np.uint8)


def colour(height=6, width=8):
    return RNG.integers(0, 256, (height, width, 3)).astype(np.uint8)


def save(path, x=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    x = grey() if x is None else x
    (x if isinstance(x, Image.Image) else Image.fromarray(x)).save(path, **options)
    return x


def encode(image, kind="PNG", **options):
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def decode(*contents, resize=None):
    return read([EncodedImage(f"image {i}", c) for i, c in enumerate(contents)], resize, "here").x_R.numpy()


# --- one image


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_lossless_kinds_come_back_as_they_went_in(kind):
    x = colour(64, 72)
    options = {"WEBP": {"lossless": True}, "JPEG2000": {"irreversible": False}}.get(kind, {})
    assert (decode(encode(x, kind, **options))[0] == x.transpose(2, 0, 1)).all()
    if kind != "WEBP":
        x = grey(64, 72)
        assert (decode(encode(x, kind))[0, 0] == x).all()


def test_jpeg_and_gif_as_pillow_reads_them():
    x = np.tile(np.arange(64, dtype=np.uint8), (64, 1))
    assert np.abs(decode(encode(x, "JPEG", quality=95))[0, 0].astype(int) - x).max() <= 6
    assert (decode(encode(x, "GIF"))[0, 0] == x).all()


def test_black_and_white_palettes_and_cmyk():
    bits = Image.fromarray(grey()).convert("1")
    assert (decode(encode(bits))[0, 0] == np.asarray(bits) * 255).all()
    palette = Image.fromarray(colour()).quantize(5)
    expected = np.array(palette.getpalette()).reshape(-1, 3)[np.asarray(palette)]
    assert (decode(encode(palette))[0] == expected.transpose(2, 0, 1)).all()
    greys = Image.fromarray(np.array([[0, 1, 2]] * 2, np.uint8))
    greys.putpalette([9, 9, 9, 80, 80, 80, 200, 200, 200])
    assert decode(encode(greys)).tolist() == [[[[9, 80, 200]] * 2]]
    cmyk = Image.new("CMYK", (4, 4), (0, 255, 255, 0))
    assert decode(encode(cmyk, "TIFF"))[0, :, 0, 0].tolist() == [255, 0, 0]


def test_transparency_lies_on_white():
    x, alpha = colour(), grey()
    rgba = np.dstack([x, alpha])
    part = alpha[..., None] / 255
    expected = (x * part + 255 * (1 - part)).transpose(2, 0, 1)
    assert np.abs(decode(encode(rgba))[0] - expected).max() <= 1
    x = grey()
    la = Image.merge("LA", [Image.fromarray(x), Image.fromarray(alpha)])
    found = decode(encode(la))
    assert found.shape == (1, 1, 6, 8)
    assert np.abs(found[0, 0] - (x * part[..., 0] + 255 * (1 - part[..., 0]))).max() <= 1
    keyed = Image.fromarray(np.array([[[10, 20, 30], [1, 2, 3]]], np.uint8))
    assert decode(encode(keyed, transparency=(1, 2, 3)))[0, :, 0].T.tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("bits", [16, 12, 9])
def test_deep_greys_share_one_scale(kind, bits):
    top = 2**bits - 1
    x = RNG.integers(0, top + 1, (2, 6, 8)).astype(np.uint16)
    x[1] //= 4
    x[0, 0, 0] = top
    found = decode(*(encode(one, kind) for one in x))
    assert (found[:, 0] == np.rint(x * 255.0 / top)).all()


def test_deep_greys_below_256_stay():
    x = grey().astype(np.uint16)
    assert (decode(encode(x))[0, 0] == x).all()
    for strange in (np.full((3, 3), 0.5, np.float32), np.full((3, 3), -1, np.int32)):
        with pytest.raises(
            InputError, match="image 0 has pixels of 32 bits or below zero: save the images with 8 or 16"
        ):
            decode(encode(strange, "TIFF"))


TURN = {
    1: lambda x: x,
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("code", TURN)
def test_a_cameras_orientation_is_applied(kind, code):
    x = colour()
    exif = Image.Exif()
    exif[0x0112] = code
    content = encode(x, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    assert (decode(content)[0].transpose(1, 2, 0) == TURN[code](x)).all()


def test_resizing_is_bilinear_with_antialiasing_and_stretches():
    x, small = grey(40, 60), colour(5, 6)
    found = decode(encode(x), encode(small), resize=(10, 20))
    assert found.shape == (2, 3, 20, 10)
    for one, image in zip(found, (x, small), strict=True):
        wanted = Image.fromarray(image).convert("RGB").resize((10, 20), Image.Resampling.BILINEAR)
        assert (one == np.asarray(wanted).transpose(2, 0, 1)).all()
    flat = np.tile(np.array([0, 255], np.uint8), (40, 30))  # stripes: without antialiasing they would stay stripes
    assert np.ptp(decode(encode(flat), resize=(6, 6)).astype(int)) < 40
    assert decode(encode(x), encode(grey(3, 3)), resize=(4, 4)).shape == (2, 1, 4, 4)


def test_many_images_are_in_order():
    x = RNG.integers(0, 256, (600, 3, 4)).astype(np.uint8)
    assert (decode(*map(encode, x))[:, 0] == x).all()


def test_small_images_that_are_alike_are_opened_once(monkeypatch):
    opened, open_ = [], Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(file) or open_(file))
    x = [grey() for _ in range(4)]
    assert (decode(*map(encode, x))[:, 0] == x).all()
    assert len(opened) == 4
    palette = Image.fromarray(x[2]).convert("P")  # from which on the heads of all come first
    assert (decode(*map(encode, [*x[:2], palette, x[3]]))[:, 0] == x).all()
    assert (decode(*map(encode, [x[0], np.stack([x[1]] * 3, 2)]), resize=(8, 6)) == np.stack(x[:2])[:, None]).all()


def test_sizes():
    assert [parse_size(s) for s in ("32", 32, "32x24", " 32X24 ")] == [(32, 32), (32, 32), (32, 24), (32, 24)]
    assert parse_size("4096x1") == (4096, 1)
    for wrong in ("big", "0", 0, -3, "3x", "3x4x5", 1.5, 4097, "1x4097", 99999999999, "9" * 5000):
        with pytest.raises(InputError, match=r"resize=.* is not a size in pixels: write 32, or 32x24"):
            parse_size(wrong)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            [encode(grey())] * 2 + [encode(grey(9, 9))],
            r"here has images of mixed sizes: 8x6 \(2, for example image 0\) and 9x9 \(1, for example image 2\): give "
            "resize='8x6'",
        ),
        (
            [encode(grey(n, n)) for n in (1, 2, 3, 4, 5)],
            r"3x3 \(1, for example image 2\) and 2 more: give resize='1x1'",
        ),
        (
            [encode(grey()), encode(colour())],
            r"mixes 1 colour images \(for example image 1\) and 1 grey ones \(for example image 0\): give resize='8x6'",
        ),
        ([encode(grey(600, 500))], "here has images of 500x600 pixels, more than 512: give resize='224x224'"),
        ([encode(grey(600, 500)), encode(grey(601, 500))], "mixed sizes: .*: give resize='224x224'"),
        (
            [encode(grey()), b"no image"],
            r"image 1 cannot be read as an image \(.*\): fix it, save it as PNG, or remove",
        ),
        ([encode(grey(200, 200))[:-9000]], "image 0 cannot be read as an image"),
        ([encode(grey()), None], "image 1 has no image: fill it in or remove it"),
        ([b""], "image 0 cannot be read as an image"),
    ],
)
def test_images_that_do_not_fit_are_named(images, message):
    with pytest.raises(InputError, match=message):
        decode(*images)


def test_512_pixels_are_not_too_large():
    assert decode(encode(grey(512, 3))).shape == (1, 1, 512, 3)


def test_of_several_frames_the_first_is_taken_and_said(caplog):
    x = [grey(), grey()]
    content = encode(Image.fromarray(x[0]), "TIFF", save_all=True, append_images=[Image.fromarray(x[1])])
    assert (decode(content)[0, 0] == x[0]).all()
    assert "1 images have several frames, and only the first is used" in caplog.text


def test_many_images_are_decoded_once(tmp_path, own_cache, monkeypatch):
    x = RNG.integers(0, 256, (2001, 2, 3)).astype(np.uint8)
    for i, one in enumerate(x):
        save(tmp_path / f"{'ab'[i % 2]}/{i:04}.png", one)
    wanted = np.concatenate([x[::2], x[1::2]])
    contents = [encode(one) for one in x]
    assert (open_data(tmp_path).x_R[:, 0].numpy() == wanted).all()
    assert (decode(*contents)[:, 0] == x).all()
    assert len(list(own_cache.iterdir())) == 2
    with monkeypatch.context() as m:
        m.setattr(Image, "open", None)
        assert (open_data(tmp_path).x_R[:, 0].numpy() == wanted).all()
        assert (decode(*contents)[:, 0] == x).all()
        with pytest.raises(TypeError):
            open_data(tmp_path, resize=2)
    save(tmp_path / "a/0000.png", 255 - x[0])
    assert (open_data(tmp_path).x_R[0, 0].numpy() == 255 - x[0]).all()
    contents[0] = encode(255 - x[0])
    assert (decode(*contents)[0, 0] == 255 - x[0]).all()


def test_decoded_images_that_nobody_asks_for_make_room(own_cache, monkeypatch):
    monkeypatch.setattr("idiolect.data.custom.images._MANY", 1)
    monkeypatch.setattr("idiolect.data.custom.images._CACHE_BYTES", 2000)  # bytes: each file has 2 * 300 and a head
    contents = [[encode(grey(10, 30)) for _ in range(2)] for _ in range(4)]
    for age, content in zip((50, 30, 20), contents, strict=False):
        before = set(own_cache.glob("*"))
        decode(*content)
        (new,) = set(own_cache.glob("*")) - before
        os.utime(new, (time.time() - age,) * 2)
        if age == 50:
            first = new
    decode(*contents[0])  # used again, so no longer the oldest
    (own_cache / "shifts-1.safetensors").write_bytes(bytes(5000))
    decode(*contents[3])
    kept = set(own_cache.glob("own-*"))
    assert sum(file.stat().st_size for file in kept) <= 2000
    assert first in kept
    assert (own_cache / "shifts-1.safetensors").exists()


def test_an_image_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    for c in "ab":
        save(tmp_path / c / "1.png")
    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(InputError, match=r"a/1.png cannot be read as an image \(Permission denied\)"):
        open_data(tmp_path)


# --- folders


def test_folders_of_classes(tmp_path, caplog):
    wanted = [save(tmp_path / f"{c}/{n}") for c, n in (("benign", "1.png"), ("benign", "2.PNG"), ("malign", "0.bmp"))]
    for extra in ("notes.txt", "benign/.hidden.png", "malign/Thumbs.db", ".git/x/y.png"):
        (tmp_path / extra).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / extra).write_text("no image")
    (tmp_path / "unsure").mkdir()
    source = open_data(tmp_path)
    assert (source.x_R[:, 0].numpy() == wanted).all()
    assert source.x_R.dtype == torch.uint8
    assert source.y_R.tolist() == [0, 0, 1]
    assert source.class_names == ("benign", "malign")
    assert (source.name, source.train_rows, source.client_column) == (tmp_path.name, 3, None)
    assert (source.feature_names, source.scaled, source.mean) == ((), (), None)
    assert "files that are not images are left out (1 .db, 1 .txt)" in caplog.text
    assert "1 folders contain no images and are left out" in caplog.text


@pytest.mark.parametrize("column", [None, "hospital"])
def test_folders_of_clients(tmp_path, column):
    places = ["north/benign/a.png", "north/malign/b.png", "south/benign/c.png"]
    wanted = [save(tmp_path / place) for place in places]
    source = open_data(str(tmp_path), client_column=column)
    assert (source.x_R[:, 0].numpy() == wanted).all()
    assert source.y_R.tolist() == [0, 1, 0]
    assert source.client_column == (column or "client")
    assert source.columns[column or "client"].names == ("north", "south")
    assert source.columns[column or "client"].code_R.tolist() == [0, 0, 1]


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize("clients", [False, True])
def test_folders_of_train_and_test(tmp_path, test, clients, caplog):
    above = ["north/", "south/"] if clients else ["", ""]
    places = [f"train/{above[0]}b/1.png", f"train/{above[1]}a/2.png", f"{test}/{above[1]}a/3.png"]
    wanted = {place: save(tmp_path / place) for place in places}
    source = open_data(tmp_path)
    train = sorted(places[:2])
    assert (source.x_R[:, 0].numpy() == [wanted[p] for p in [*train, places[2]]]).all()
    assert source.train_rows == 2
    assert source.y_R.tolist() == [*("ab".index(p.split("/")[-2]) for p in train), 0]
    if clients:
        assert source.columns["client"].names == ("north", "south")
    assert (f"train is the training split and {test} the test split" in caplog.text) == (test == "val")


def test_links_to_folders_are_followed_and_end(tmp_path):
    wanted = [save(tmp_path / f"elsewhere/{c}.png") for c in "ab"]
    for c in "ab":
        (tmp_path / "data" / c).parent.mkdir(exist_ok=True)
        (tmp_path / f"only/{c}").mkdir(parents=True)
        (tmp_path / f"elsewhere/{c}.png").rename(tmp_path / f"only/{c}/1.png")
        (tmp_path / "data" / c).symlink_to(tmp_path / "only" / c)
    with pytest.raises(InputError, match=r"data/a leads out of .*data: copy the file into it, or, .*outside=True\)$"):
        open_data(tmp_path / "data")
    assert (open_data(tmp_path / "data", outside=True).x_R[:, 0].numpy() == wanted).all()
    (tmp_path / "data/again").symlink_to(tmp_path / "data")
    with pytest.raises(InputError, match="has images at different depths"):
        open_data(tmp_path / "data", outside=True)


def test_a_class_called_train_is_no_split(tmp_path):
    for vehicle in ("bus", "train"):
        save(tmp_path / vehicle / "1.png")
    assert open_data(tmp_path).class_names == ("bus", "train")


@pytest.mark.parametrize(
    ("places", "options", "message"),
    [
        (["a.png", "b.png"], {}, "has images 0 folders deep .*: give images as <folder>/<class>/<image> or"),
        (["a/b/c/d.png"], {}, "has images 3 folders deep"),
        (["a/1.png", "b/c/2.png"], {}, r"images at different depths \(.*1.png and .*2.png\): give images as"),
        (["a/1.png", "b/1.png"], {"client_column": "site"}, "client_column: .* classes but none for clients"),
        (["n/a/1.png", "n/b/1.png"], {"client_column": "class"}, "target and client_column are both 'class'"),
        (["a/1.png", "b/1.png"], {"drop": ["id"]}, "drop: .* has no column 'id'"),
        (["a/1.png"], {}, r"has only one class \(a\)"),
        (["train/a/1.png", "test/n/b/1.png"], {}, "the training split and the test split differ in the columns client"),
    ],
)  # fmt: skip
def test_layouts_that_do_not_fit_are_said(tmp_path, places, options, message):
    for place in places:
        save(tmp_path / place)
    with pytest.raises(InputError, match=message):
        open_data(tmp_path, **options)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"has no images \(files: none\): give images as <folder>/<class>/<image>"),
        (["a/1.dcm", "a/2.dcm"], r"has no images \(files: 2 .dcm\): convert DICOM files to PNG or TIFF"),
    ],
)
def test_folders_without_images(tmp_path, files, message):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(InputError, match=message):
        open_data(tmp_path)


def test_a_broken_file_is_named(tmp_path):
    save(tmp_path / "a/1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/2.png").write_bytes(b"no")
    with pytest.raises(InputError, match=r"b/2.png cannot be read as an image"):
        open_data(tmp_path)


# --- images beside a table


@pytest.mark.parametrize("name", ["metadata.csv", "labels.csv", "metadata.parquet", "metadata.jsonl"])
def test_images_beside_a_table(tmp_path, name, caplog):
    wanted = [save(tmp_path / f"scans/{i}.png") for i in (2, 1, 0)]
    save(tmp_path / "scans/unlisted.png")
    frame = pd.DataFrame(
        {
            "file_name": [f"scans/{i}.png" for i in (2, 1, 0)],
            "age": [1, 2, 3],
            "site": ["n", "s", "n"],
            "sick": ["y", "n", "y"],
        }
    )
    write = {
        "csv": lambda path: frame.to_csv(path, index=False),
        "parquet": frame.to_parquet,
        "jsonl": lambda path: frame.to_json(path, orient="records", lines=True),
    }
    write[name.partition(".")[2]](tmp_path / name)
    source = open_data(tmp_path, target="sick", client_column="site")
    assert (source.x_R[:, 0].numpy() == wanted).all()
    assert source.y_R.tolist() == [1, 0, 1]
    assert source.columns["site"].code_R.tolist() == [0, 1, 0]
    assert set(source.columns) == {"site"}
    assert "1 images are not in metadata" in caplog.text or "1 images are not in labels.csv" in caplog.text
    assert open_data(tmp_path / name, target="sick").y_R.tolist() == [1, 0, 1]
    with pytest.raises(InputError, match="no target is given"):
        open_data(tmp_path)


def test_each_split_with_a_table(tmp_path):
    wanted = []
    for split, names in (("train", "ab"), ("test", "c")):
        wanted += [save(tmp_path / split / f"{n}.png") for n in names]
        lines = "".join(f"{n}.png,{int(n == 'a')}\n" for n in names)
        (tmp_path / split / "metadata.csv").write_text("file_name,label\n" + lines)
    source = open_data(tmp_path)
    assert (source.x_R[:, 0].numpy() == wanted).all()
    assert source.y_R.tolist() == [1, 0, 0]
    assert source.train_rows == 2
    (tmp_path / "test/metadata.csv").unlink()
    with pytest.raises(InputError, match=r"test has no metadata\.csv, which the other split has: add it"):
        open_data(tmp_path)


def test_what_a_table_of_images_lacks_is_said(tmp_path):
    save(tmp_path / "a.png")
    table = tmp_path / "metadata.csv"
    table.write_text("file_name,label\na.png,1\nb.png,0\n,1\n")
    with pytest.raises(InputError, match=r"names 2 images that do not exist \(the first is b.png\): write file_name"):
        open_data(tmp_path)
    table.write_text("file,label\na.png,1\nb.png,0\n")
    with pytest.raises(InputError, match=r"has no column file_name \(file, label\): give this name to the column"):
        open_data(tmp_path)


# --- images inside parquet


def images_table(x_R, **columns):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.table(
        {"image": pa.array([{"bytes": encode(x), "path": f"{i}.png"} for i, x in enumerate(x_R)], kind), **columns}
    )


def test_images_inside_parquet(tmp_path):
    x_R = [grey() for _ in range(4)]
    pq.write_table(images_table(x_R[:2], label=[1, 0], site=["s", "n"]), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(images_table(x_R[2:3], label=[1], site=["n"]), tmp_path / "train-00001-of-00002.parquet")
    pq.write_table(images_table(x_R[3:], label=[0], site=["n"]), tmp_path / "test.parquet")
    source = open_data(tmp_path, client_column="site")
    assert (source.x_R[:, 0].numpy() == x_R).all()
    assert source.y_R.tolist() == [1, 0, 1, 0]
    assert source.columns["site"].code_R.tolist() == [1, 0, 0, 0]
    assert source.train_rows == 3
    assert open_data(tmp_path, resize="4x3").x_R.shape == (4, 1, 3, 4)


def test_plain_bytes_are_images_and_one_column_of_them_is_wanted(tmp_path):
    x_R, other = [grey(), grey()], [encode(grey())] * 2
    pq.write_table(pa.table({"png": [encode(x) for x in x_R], "mask": other, "y": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has images in png, mask: keep one and drop the others"):
        open_data(tmp_path / "a.parquet")
    assert (open_data(tmp_path / "a.parquet", drop=["mask"]).x_R[:, 0].numpy() == x_R).all()
    pq.write_table(images_table([*x_R, x_R[0]], y=[0, 1, 1]).slice(0, 2), tmp_path / "b.parquet")
    assert (open_data(tmp_path / "b.parquet").x_R[:, 0].numpy() == x_R).all()


def test_a_row_without_an_image_is_named(tmp_path):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": encode(grey()), "path": None}, None], kind)
    pq.write_table(pa.table({"image": column, "label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 1 of .*a.parquet has no image: fill it in or remove it"):
        open_data(tmp_path / "a.parquet")


def test_reading_says_nothing_where_nothing_is_strange(tmp_path, caplog):
    for c in "ab":
        save(tmp_path / c / "1.png")
    with caplog.at_level(logging.INFO):
        open_data(tmp_path)
    assert not [r for r in caplog.records if r.name.startswith("idiolect")]
