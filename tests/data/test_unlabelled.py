"""Rows whose target is missing: refused with where they are, or left out."""

import gzip
import json
import logging
import re

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import from_arrays, from_dataset, from_frame, open_data, streaming
from idiolect.data.custom.form import form_of
from idiolect.data.custom.text_files import Roles

NAMES = "where the names of the columns are row 1"
CLASSES = "age,y\n50,u\n\n60,?\n70,v\n40,\n30,u\n"


def save(folder, content, name="t.csv"):
    path = folder / name
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("content", "settings", "count", "first", "rule", "ages"),
    [
        (CLASSES, {}, "2 of 5", 4, NAMES, [50, 70, 30]),
        ("\n\n" + CLASSES, {}, "2 of 5", 6, NAMES, [50, 70, 30]),
        (CLASSES.replace("\n\n", "\n \t\n"), {}, "2 of 5", 4, NAMES, [50, 70, 30]),
        (CLASSES, {"missing": "y=u"}, "4 of 5", 2, NAMES, [70]),
        ("50,u\n60,v\n70,?\n", {"columns": "age+y"}, "1 of 3", 3, "counting from 1", [50, 60]),
        ("age,y\n50,0\n60,NA\n70,1\n", {}, "1 of 3", 3, NAMES, [50, 70]),
        ('age,y\n50,"a\nb"\n60,NA\n70,?\n', {}, "1 of 3", 4, NAMES, [50, 60]),
        ("age;y\n50,5;1,5\n60,5;n/a\n70,5;-9\n20,5;2,5\n", {"task": "regression", "missing": "y=-9"}, "2 of 4", 3,
         NAMES, [50.5, 20.5]),
        ("age,y,z\n50,1,2\n60,2,\n70,NA,3\n20,3,4\n", {"target": "y+z"}, "2 of 4", 3,
         NAMES, [50, 20]),
        ("age,y\n50,0\n60,?\n70,3\n", {"target": "y>0"}, "1 of 3", 3, NAMES, [50, 70]),
        ("age,y\n50,a|b\n60,?\n70,\n20,b\n", {"task": "multilabel"}, "1 of 4", 3,
         NAMES, [50, 70, 20]),
        ("age,y,z\n50,0,1\n60,1,\n70,1,0\n", {"target": "y+z"}, "1 of 3", 3,
         NAMES, [50, 70]),
    ],
)  # fmt: skip
def test_rows_of_a_text_file(content, settings, count, first, rule, ages, tmp_path, caplog):
    """Expected by looking at the files: the row that an editor of tables shows, and the ages beside known targets."""
    path = save(tmp_path, content)
    settings = {"target": "y", **settings}
    place = (
        rf"target .*'[yz]' of {re.escape(str(path))} is missing in {count} rows \(the first is row {first}, {rule}\)"
    )
    with pytest.raises(InputError, match=f"^{place}: fill it in, or give unlabelled='drop' to leave such rows out$"):
        open_data(path, **settings)
    if ages == [70]:
        with pytest.raises(InputError, match="has only one class"):
            open_data(path, **settings, unlabelled="drop")
        return
    with caplog.at_level(logging.WARNING):
        source = open_data(path, **settings, unlabelled="drop")
    assert re.search(f"{place}: they are left out", caplog.text)
    assert source.x_R[:, 0].tolist() == ages
    assert source.train_rows == len(source.y_R) == len(ages)
    assert not any(name in ("?", "") for name in source.class_names)


def test_what_is_left_has_its_own_targets(tmp_path):
    source = open_data(save(tmp_path, CLASSES), target="y", unlabelled="drop")
    assert [source.class_names[y] for y in source.y_R] == ["u", "v", "u"]
    numbers = save(tmp_path, "age;y\n50,5;1,5\n60,5;n/a\n20,5;2,25\n", "n.csv")
    source = open_data(numbers, target="y", task="regression", unlabelled="drop")
    np.testing.assert_array_equal(source.targets.value_RD.numpy(), [[1.5], [2.25]])
    sets = save(tmp_path, "age,y\n50,a|b\n60,?\n70,\n20,b\n", "s.csv")
    source = open_data(sets, target="y", task="multilabel", unlabelled="drop")
    assert source.targets.names == ("a", "b")
    np.testing.assert_array_equal(source.targets.value_RD.numpy(), [[1, 1], [0, 0], [0, 1]])


FRAME = pd.DataFrame({"age": [50.0, 60, 70, 40], "y": ["u", None, "v", "?"], "who": ["a", "b", "a", "c"]})


@pytest.mark.parametrize("kind", ["frame", "parquet", "jsonl", "arff", "gz", "arrays", "npz", "dataset"])
def test_tables_and_arrays_of_every_kind(kind, tmp_path, caplog):
    start = 1
    if kind == "parquet":
        FRAME.to_parquet(path := tmp_path / "t.parquet")
    if kind == "jsonl":
        rows = FRAME.astype(object).where(FRAME.notna(), None).to_dict("records")
        path = save(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    if kind == "arff":
        head = "@attribute age numeric\n@attribute y {u,v}\n@attribute who string\n@data\n"
        path = save(tmp_path, head + "50,u,a\n60,?,b\n70,v,a\n40,?,c\n", "t.arff")
    if kind == "gz":
        (path := tmp_path / "t.csv.gz").write_bytes(gzip.compress(FRAME.to_csv(index=False).encode()))
        start = 2
    if kind == "npz":
        x = FRAME["age"].to_numpy(np.float32)[:, None]
        np.savez(path := tmp_path / "t.npz", x=x, y=FRAME["y"].fillna("").to_numpy(str), who=FRAME["who"].to_numpy(str))
    options = {"client_column": "who"}
    if kind == "frame":
        start, read = 0, lambda **how: from_frame(FRAME, target="y", **options, **how)
    elif kind == "dataset":
        datasets = pytest.importorskip("datasets")
        table = datasets.Dataset.from_pandas(FRAME)
        start, read = 0, lambda **how: from_dataset(table, target="y", **options, **how)
    elif kind == "arrays":
        x, y, who = FRAME["age"].to_numpy()[:, None], FRAME["y"].to_numpy(object), FRAME["who"].tolist()
        start, read = 0, lambda **how: from_arrays(x, y, clients=who, **how)
    else:
        start = 0 if kind == "npz" else start
        read = lambda **how: open_data(path, target="y", **options, **how)  # noqa: E731
    with pytest.raises(InputError, match=rf"is missing in 2 of 4 rows \(the first is row {start + 1}, .*'drop'"):
        read()
    with pytest.raises(InputError, match="unlabelled='skip' is not known: give error or drop"):
        read(unlabelled="skip")
    source = read(unlabelled="drop")
    assert source.x_R.flatten().tolist() == [50, 70]
    assert source.class_names == ("u", "v")
    assert source.y_R.tolist() == [0, 1]
    [owner] = source.columns.values()
    assert owner.names == ("a",)  # nobody is left of the others
    assert owner.code_R.tolist() == [0, 0]


def test_test_samples_and_sites_are_looked_at_each(tmp_path, caplog):
    (tmp_path / "study").mkdir()
    save(tmp_path / "study", "age,y\n1,u\n2,\n3,v\n", "train.csv")
    save(tmp_path / "study", "age,y\n4,?\n5,v\n", "test.csv")
    source = open_data(tmp_path / "study", unlabelled="drop")
    assert (source.train_rows, source.x_R[:, 0].tolist()) == (2, [1, 3, 5])
    sites = tmp_path / "sites"
    sites.mkdir()
    save(sites, "age,y\n1,u\n2,v\n", "north.csv")
    save(sites, "age,y\n3,u\n4,\n", "south.csv")
    with pytest.raises(InputError, match=r"south.csv is missing in 1 of 2 rows \(the first is row 3"):
        open_data(sites)
    assert open_data(sites, unlabelled="drop").columns["client"].code_R.tolist() == [0, 0, 1]
    save(sites, "age,y\n3,\n4,?\n", "south.csv")
    with pytest.raises(InputError, match=r"south.csv is missing in all 2 rows: give rows that have one"):
        open_data(sites, unlabelled="drop")


def test_images_go_with_their_rows(tmp_path):
    from PIL import Image

    for k in range(4):
        Image.fromarray(np.full((4, 4), 60 * k, np.uint8)).save(tmp_path / f"{k}.png")
    save(tmp_path, "file_name,label\n0.png,u\n1.png,?\n2.png,v\n3.png,u\n", "metadata.csv")
    with pytest.raises(InputError, match=r"metadata.csv is missing in 1 of 4 rows \(the first is row 3"):
        open_data(tmp_path)
    source = open_data(tmp_path, unlabelled="drop")
    assert source.x_R[:, 0, 0, 0].tolist() == [0, 120, 180]
    [part] = streaming.whole(tmp_path, target=None, roles=Roles(form=form_of(unlabelled="drop")))
    assert [picture.name.rpartition("/")[2] for picture in part.pictures] == ["0.png", "2.png", "3.png"]


def test_names_are_still_names(tmp_path):
    """None and NA are classes among others, and a client may be called ``?``."""
    path = save(tmp_path, "age,y,site\n1,None,?\n2,NA,b\n3,u,?\n")
    source = open_data(path, target="y", client_column="site")
    assert source.class_names == ("NA", "None", "u")
    assert source.columns["site"].names == ("?", "b")


def test_lists_of_labels(tmp_path):
    frame = pd.DataFrame({"age": [1.0, 2, 3, 4], "tags": [["a"], None, [], ["a", "b"]]})
    with pytest.raises(
        InputError, match=r"target 'tags' of table is missing in 1 of 4 rows \(the first is row 1, count"
    ):
        from_frame(frame, target="tags", task="multilabel")
    source = from_frame(frame, target="tags", task="multilabel", unlabelled="drop")
    np.testing.assert_array_equal(source.targets.value_RD.numpy(), [[1, 0], [0, 0], [1, 1]])


def test_numbers_in_arrays():
    x, y = np.arange(5.0)[:, None], np.array([1.5, np.nan, 2.5, 3.5, np.nan])
    with pytest.raises(InputError, match=r"^y is missing in 2 of 5 rows \(the first is row 1, counting from 0\)"):
        from_arrays(x, y, task="regression")
    source = from_arrays(x[:3], y[:3], task="regression", unlabelled="drop", test=(x[3:], y[3:]), groups=list("abcde"))
    assert (source.train_rows, source.x_R.flatten().tolist()) == (2, [0, 2, 3])
    assert source.columns["group"].names == ("a", "c", "d")
    two = np.array([[1.0, 2], [2, np.nan], [3, 4]])
    with pytest.raises(InputError, match=r"^y\[1\] is missing in 1 of 3 rows"):
        from_arrays(x[:3], two, task="regression")


def test_the_form_of_a_site(tmp_path):
    path = save(tmp_path, CLASSES)
    with pytest.raises(InputError, match=r"'y' of .*t.csv is missing in 2 of 5 rows \(the first is row 4"):
        streaming.whole(path, target="y")
    [part] = streaming.whole(path, target="y", roles=Roles("y", form=form_of(unlabelled="drop")))
    assert part.frame["y"].tolist() == ["u", "v", "u"]
    assert part.frame["age"].tolist() == [50, 70, 30]
