"""Tables with one client in each, compressed files, and what the paths of images say."""

import gzip
import io
import logging
import zipfile

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idiolect.core.errors import InputError
from idiolect.data.custom import open_data, streaming
from idiolect.data.custom.text_files import Roles

SITES = {
    "oslo": pd.DataFrame({"age": [60, 41], "sex": ["m", "f"], "y": ["sick", "well"]}),
    "porto": pd.DataFrame({"age": [57.5, np.nan, 33], "sex": ["f", "m", "m"], "y": ["well", "sick", "sick"]}),
    "bern": pd.DataFrame({"sex": [None, "f"], "y": ["well", "sick"], "age": [20, 70]}),
}
AGES = {"bern": [20, 70], "oslo": [60, 41], "porto": [57.5, np.nan, 33]}


def write(frame, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "".join(path.suffixes)
    if kind == ".parquet":
        frame.to_parquet(path)
    elif kind == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in kind else ",")  # and compressed by its name
    return path


def has_ages_by_client(source, column="client"):
    owner, age_R = source.columns[column], source.x_R[:, source.feature_names.index("age")].numpy()
    assert source.client_column == column
    assert sorted(owner.names) == sorted(AGES)
    for k, name in enumerate(owner.names):
        np.testing.assert_array_equal(age_R[owner.code_R == k], AGES[name])


@pytest.mark.parametrize("place", ["{}.csv", "{}.csv.gz", "{}.tsv", "{}.parquet", "{}.jsonl", "{}/visits.csv"])
def test_the_name_of_a_file_is_its_client(place, tmp_path, caplog):
    for name, frame in SITES.items():
        write(frame, tmp_path / "sites" / place.format(name))
    source = open_data(tmp_path / "sites" / place.format("*"), target="y")
    has_ages_by_client(source)
    assert source.name == "sites"
    assert "each of its 3 tables is a client: bern, oslo, porto" in caplog.text
    named = open_data(tmp_path / "sites" / place.format("*"), target="y", client_column="hospital")
    has_ages_by_client(named, "hospital")
    if "/" not in place and ".gz" not in place:
        has_ages_by_client(open_data(tmp_path / "sites", target="y"))


def test_a_column_of_clients_counts_if_it_is_named(tmp_path):
    for name, frame in SITES.items():
        write(
            frame.assign(client=name.upper(), ward=[f"{name} {k % 2}" for k in range(len(frame))]),
            tmp_path / f"{name}.csv",
        )
    with pytest.raises(InputError, match=r"bern\.csv has a column 'client': give client_column='client' to take it"):
        open_data(tmp_path / "*.csv", target="y")
    source = open_data(tmp_path / "*.csv", target="y", client_column="client", drop="ward")
    assert source.columns["client"].names == ("BERN", "OSLO", "PORTO")
    assert (
        len(open_data(tmp_path / "*.csv", target="y", client_column="ward", drop="client").columns["ward"].names) == 6
    )
    has_ages_by_client(open_data(tmp_path / "*.csv", target="y", client_column="file", drop="ward+client"), "file")


def test_numbers_are_read_in_one_way_in_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("x;y\n0,5;u\n1,5;v\n")
    (tmp_path / "b.csv").write_text("x;y\n1,234;u\n2,345;v\n")
    assert open_data(tmp_path / "*.csv", target="y").x_R[:, 0].tolist() == [
        0.5,
        1.5,
        np.float32(1.234),
        np.float32(2.345),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="sex"), r"bern\.csv and .*porto\.csv differ in the columns sex"),
        (
            lambda frame: frame.assign(dose=1),
            r"differ in the columns dose: give both the same columns, or drop these; .*bern\.csv has no dose$",
        ),
        (lambda frame: frame.assign(age="old"), r"column 'age' has numbers in .*bern\.csv and texts in .*porto\.csv"),
        (lambda frame: frame[:0], r"porto\.csv has no rows"),
        (lambda frame: frame.drop(columns="y"), r"target: .*porto\.csv has no column 'y'"),
    ],
)
def test_a_table_that_differs_is_named(change, message, tmp_path):
    for name, frame in SITES.items():
        write(change(frame) if name == "porto" else frame, tmp_path / f"{name}.csv")
    with pytest.raises(InputError, match=message):
        open_data(tmp_path / "*.csv", target="y")


def test_patterns_that_mean_no_table_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*\*\.csv: check the folder"):
        open_data(tmp_path / "*.csv", target="y")
    (tmp_path / "a.pdf").write_text("no")
    with pytest.raises(InputError, match=r"means .*a\.pdf too, which is no table"):
        open_data(tmp_path / "*", target="y")


def test_a_site_with_several_files_has_the_samples_of_all(tmp_path):
    for name, frame in SITES.items():
        write(frame, tmp_path / f"{name}.csv")
    [part] = streaming.whole(tmp_path / "*.csv", target="y")
    expected = pd.concat([SITES[name] for name in ("bern", "oslo", "porto")], ignore_index=True)
    pd.testing.assert_frame_equal(part.frame[list(expected)], expected, check_dtype=False)
    parts = list(streaming.some(tmp_path / "*.csv", 2, Roles(None), lambda name: name == "age"))
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    np.testing.assert_array_equal(frame["age"], expected["age"])
    assert frame["file"].tolist() == ["bern.csv"] * 2 + ["oslo.csv"] * 2 + ["porto.csv"] * 3


# --- compressed files


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def text_of(name):
    return SITES[name].to_csv(index=False)


@pytest.mark.parametrize(
    "files",
    [
        {"porto.csv": text_of("porto")},
        {"data/porto.csv": text_of("porto")},
        {"data/": "", "data/porto.csv": text_of("porto"), "__MACOSX/._porto.csv": b"\0\1", "data/.DS_Store": b"\0"},
    ],
)
def test_a_table_in_an_archive_is_that_table(files, tmp_path):
    write(SITES["porto"], tmp_path / "plain.csv")
    write(SITES["porto"], tmp_path / "patients.csv.gz")
    zipped(tmp_path / "patients.zip", files)
    plain = open_data(tmp_path / "plain.csv", target="y")
    for name in ("patients.csv.gz", "patients.zip"):
        source = open_data(tmp_path / name, target="y")
        np.testing.assert_array_equal(source.x_R.numpy(), plain.x_R.numpy())
        assert source.name == "patients"
        [part] = streaming.whole(tmp_path / name, target="y")
        assert part.frame["sex"].tolist() == ["f", "m", "m"]
        [part] = streaming.some(tmp_path / "patients.csv.gz", 10, Roles(None), lambda name: name == "age")
        np.testing.assert_array_equal(part.frame["age"], SITES["porto"]["age"])


def test_an_archive_may_have_a_table_for_each_client_or_splits(tmp_path):
    zipped(tmp_path / "sites.zip", {f"sites/{name}.csv": text_of(name) for name in SITES})
    has_ages_by_client(open_data(tmp_path / "sites.zip", target="y"))
    zipped(tmp_path / "splits.zip", {"train.csv": text_of("porto"), "test.csv": text_of("bern")})
    source = open_data(tmp_path / "splits.zip", target="y")
    assert (source.train_rows, len(source.y_R)) == (3, 5)


def png(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


IMAGES = {
    f"marks/{letter}/{character}/{10 * k + drawer:04}_{drawer:02}.png": png(10 * k + drawer)
    for k, (letter, character) in enumerate([("greek", "c1"), ("greek", "c2"), ("latin", "c1")])
    for drawer in (1, 2)
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("layout", "settings", "classes", "clients"),
    [
        ("{class}/{class}/*_{client}", {}, ("greek/c1", "greek/c2", "latin/c1"), ("01", "02")),
        ("{client}/{class}/*", {}, ("c1", "c2"), ("greek", "latin")),
        ("*/{sign}/*_{drawer}", {"target": "sign", "client_column": "drawer"}, ("c1", "c2"), ("01", "02")),
        ("{class}/*/00*", {}, ("greek", "latin"), None),
    ],
)
def test_the_paths_of_images_say_what_a_layout_names(packed, layout, settings, classes, clients, tmp_path):
    path = zipped(tmp_path / "marks.zip", IMAGES)
    if not packed:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path)
        path = tmp_path / "marks"
    source = open_data(path, layout=layout, **settings)
    assert source.class_names == classes
    assert source.name == "marks"
    assert sorted(source.x_R[:, 0, 0, 0].tolist()) == [1, 2, 11, 12, 21, 22]
    if clients is None:
        assert source.client_column is None
    else:
        assert source.columns[source.client_column].names == clients
        if clients == ("01", "02"):
            np.testing.assert_array_equal(
                source.x_R[:, 0, 0, 0].numpy() % 10 - 1, source.columns[source.client_column].code_R
            )


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        ("{class}/*", {}, r"layout=\{class\}/\* does not fit 6 of 6 images .*for example greek/c1/0001_01\.png"),
        ("{class/*", {}, "is not understood: write names in braces"),
        ("*/*/*", {}, "is not understood"),
        ("{letter}/*/*", {}, "has no {class}; known: letter"),
        ("{class}/*/*", {"client_column": "drawer"}, "has no {drawer}"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout, settings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        open_data(zipped(tmp_path / "marks.zip", IMAGES), layout=layout, **settings)
    (tmp_path / "t.csv").write_text("a,y\n1,u\n2,v\n")
    with pytest.raises(InputError, match="layout is for folders of images"):
        open_data(tmp_path / "t.csv", layout=layout, target="y")


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", "a,y\n" + "1,2\n" * 2_000_000)
    return path


def test_archives_that_are_broken_or_hostile_are_refused(tmp_path, monkeypatch):
    (tmp_path / "no.zip").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match=r"no\.zip cannot be unpacked .*: save it again"):
        open_data(tmp_path / "no.zip")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,y\n" * 1000)[:-9])
    with pytest.raises(InputError, match=r"cut\.csv\.gz cannot be unpacked"):
        open_data(tmp_path / "cut.csv.gz", target="y")
    with pytest.raises(InputError, match="has no files in it"):
        open_data(zipped(tmp_path / "empty.zip", {"../out.csv": "a,y\n1,2\n"}), target="y")
    assert not (tmp_path.parent / "out.csv").exists()
    (tmp_path / "t.tar").write_bytes(b"tar")
    with pytest.raises(InputError, match=r"t\.tar is an archive of a kind that is not read: unpack it"):
        open_data(tmp_path / "t.tar")
    link = zipfile.ZipInfo("a.csv")
    link.external_attr = 0o120777 << 16
    with pytest.raises(InputError, match="has links in it"):
        open_data(zipped(tmp_path / "link.zip", {link: "/etc/passwd"}), target="y")
    monkeypatch.setenv("IDIOLECT_MEMORY", "1e6")
    with pytest.raises(InputError, match=r"bomb\.zip, unpacked, would take"):
        open_data(bomb(tmp_path / "bomb.zip"), target="y")
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 1_000_000))
    with pytest.raises(InputError, match=r"bomb\.csv\.gz, unpacked, would take"):
        open_data(tmp_path / "bomb.csv.gz", target="y")


def test_messages_name_the_archive_and_not_where_it_was_unpacked(tmp_path):
    zipped(tmp_path / "sites.zip", {"sites/a.csv": "x,y\n1,u\n", "sites/b.csv": "z,y\n1,u\n"})
    with pytest.raises(InputError, match=r"sites\.zip/sites/a\.csv and .*differ in the columns x, z") as error:
        open_data(tmp_path / "sites.zip", target="y")
    assert "idiolect-" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "tables", "said"),
    [
        ("sites.zip", {"sites/a.csv": "x,y\n1,u\n2,v\n", "sites/b.csv": "x,y\n1,u\n3,v\n"}, "sites.zip/sites: each of"),
        ("one.zip", {"t.csv": "x;y\n1,5;u\n2,5;v\n3,5;u\n"}, "one.zip/t.csv: cells are separated by semicolons, and n"),
        ("one.zip", {"t.csv": "x;y\n1,5;u\n2.250,5;v\n3,5;u\n"}, "decimal commas and points between thousands"),
    ],
)
def test_lines_name_the_archive_and_not_where_it_was_unpacked(file, tables, said, tmp_path, caplog):
    zipped(tmp_path / file, tables)
    open_data(tmp_path / file, target="y")
    assert said in caplog.text
    assert f"{tmp_path / file}" in caplog.text
    assert "idiolect-" not in caplog.text
    logging.getLogger("idiolect.data.custom").warning("another line")  # lines after it are as they were
    assert "another line" in caplog.messages


def test_omniglot_by_drawer_and_the_character_of_its_alphabet(natural):
    """The folder's README: 136 characters of five alphabets, each drawn once by each of 20 people."""
    source = open_data(
        natural("omniglot_small1.zip"), layout="{sign}/{sign}/*_{drawer}", target="sign", client_column="drawer",
        resize=28,
    )  # fmt: skip
    drawer = source.columns["drawer"]
    assert source.classes == 136
    assert drawer.names == tuple(f"{k:02}" for k in range(1, 21))
    assert np.unique(np.stack([source.y_R.numpy(), drawer.code_R]), axis=1).shape[1] == 136 * 20 == len(source.y_R)
    assert {name.partition("/")[0] for name in source.class_names} >= {"Balinese"}
