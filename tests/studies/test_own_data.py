"""Studies on data of the user's own, end to end, and what their files say."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

import idiolect as idl
from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import Source, from_arrays

QUICK: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "model": "mlp", "methods": "local,fedavg"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)  # of another test's folder


def patients(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(55, 12, rows)
    sick = age + rng.normal(0, 4, rows) > 55
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "sex": rng.choice(["f", "m"], rows),
            "hospital": np.where(np.arange(rows) % 3 == 0, "Mercy", "North"),
            "outcome": np.where(sick, "sick", "well"),
        }
    )


def arrays(rows: int = 90, clients: bool = True) -> Source:
    rng = np.random.default_rng(1)
    y = np.arange(rows) % 3
    x = (rng.integers(0, 90, (rows, 4, 4)) + 80 * y[:, None, None]).astype(np.uint8)
    whose = np.array(["ann", "bob", "cyd"])[np.arange(rows) // 30] if clients else None
    return from_arrays(x, y, clients=whose, name="mine")


def run(study: idl.Study, out: str = "r", **more: Any) -> idl.Result:
    return idl.run(study, out=out, engine="sequential", **more)


def written(out: str = "r") -> dict[str, Any]:
    return yaml.safe_load(Path(out, "study.yaml").read_text())


# --- from every kind of place


def test_a_table_of_two_hospitals() -> None:
    frame = patients()
    frame.to_csv("p.csv", index=False)
    study = idl.Study(data="p.csv", target="outcome", client_column="hospital", **QUICK)
    federation = study.federation()
    assert federation.names == ("Mercy", "North")
    assert [len(a) + len(b) for a, b in zip(federation.train, federation.test, strict=True)] == [40, 80]
    result = run(study)
    assert [row.label for row in result.rows()] == ["local", "fedavg"]
    assert set(result.records.client) == {0, 1}
    assert "Mercy" in Path("r/report.html").read_text()
    assert (written()["data"], written()["dataset"], written()["clients"]) == ("p.csv", None, None)
    again = run(idl.Study.read("r/study.yaml"), "again")
    assert again.records.equals(result.records)
    without = idl.Study(data=Path("p.csv"), target="outcome", drop="hospital", clients=3, **QUICK)
    assert without.data == "p.csv"
    assert without.federation().names == ()
    assert without.federation().clients == 3


def test_new_hospitals_join() -> None:
    patients().to_csv("p.csv", index=False)
    result = run(
        idl.Study(data="p.csv", target="outcome", client_column="hospital", new_clients="North", keep="50%", **QUICK)
    )
    trained, joined = result.new_clients()
    assert (trained.who, joined.who) == ("clients that trained", "new clients")
    records = result.records
    assert set(records[records.stage == "new"].client) == {1}
    for label in ("local", "fedavg"):
        mine = records[(records.method == label) & (records.metric == "accuracy")].set_index("stage").value
        assert joined.score[label] == pytest.approx(mine["new"])
        assert trained.score[label] == pytest.approx(mine["personalised"])
    assert result.new_clients_table() is not None


def test_a_folder_of_images_with_a_level_of_clients() -> None:
    rng = np.random.default_rng(0)
    for client in ("east", "west"):
        for name, level in (("cat", 40), ("dog", 200)):
            folder = Path("pets", client, name)
            folder.mkdir(parents=True)
            for i in range(8):
                pixels = (level + rng.integers(0, 30, (6, 6))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    study = idl.Study(data="pets", resize=4, **QUICK)
    federation = study.federation()
    assert (federation.names, federation.class_names) == (("east", "west"), ("cat", "dog"))
    assert federation.shape == (1, 4, 4)
    assert run(study).rows()[0].accuracy is not None
    assert "natural" in Path("r/report.html").read_text()


def test_a_function_by_its_path() -> None:
    Path("my_rows.py").write_text(
        "import numpy as np\n"
        "def two():\n"
        "    y = np.arange(60) % 2\n"
        "    return (y[:, None] + np.zeros((60, 3))).astype(np.float32), y\n"
    )
    study = idl.Study(data="my_rows.two", partition="iid", clients=3, **QUICK)
    assert study.federation().clients == 3
    result = run(study)
    assert written()["data"] == "my_rows.two"
    assert run(idl.Study.read("r/study.yaml", allow_import=True), "again").records.equals(result.records)


# --- objects that only Python has


class ByModulo:
    """As much of a flwr-datasets partitioner as is asked for."""

    num_partitions = 3
    dataset: Any = None

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(partition_id, len(self.dataset), self.num_partitions))


def test_a_source_from_python() -> None:
    source = arrays()
    study = idl.Study(data=source, **QUICK)
    assert study.federation().names == ("ann", "bob", "cyd")
    result = run(study)
    assert written()["data"] == f"given: mine, {data.digest(source)}"
    assert set(result.records.client) == {0, 1, 2}
    assert run(study, resume=True).records.equals(result.records), "resuming from Python"
    there = idl.Study.read("r/study.yaml")
    with pytest.raises(
        InputError, match=r"^data given: mine, \w+: they were given in a Python program: run the study from"
    ):
        run(there, "again")
    assert not Path("again").exists()
    other = arrays()
    other.x_R[0, 0, 0, 0] ^= 1
    with pytest.raises(InputError, match=r"r has another study \(data: given: mine, \w+ there, given: mine, \w+ here"):
        run(idl.Study(data=other, **QUICK), resume=True)


FOR_TABLES = "data.from_frame, data.from_dataset or data.open_data"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"group_column": "patient"},
            f"group_column would change nothing, because data is a Source, which is read already: leave it out here "
            f"and give it to {FOR_TABLES}; data.from_arrays takes group_column as groups",
        ),
        (
            {"target": "sex", "drop": ["crp"]},
            "target, drop would change nothing, because data is a Source, which is read already: leave them out here "
            f"and give them to {FOR_TABLES}",
        ),
        ({"client_column": "site"}, f"{FOR_TABLES}; data.from_arrays takes client_column as clients"),
        ({"text": "note"}, FOR_TABLES),
        ({"missing": "-9"}, FOR_TABLES),
        ({"task": "classification"}, "data.from_frame, data.from_dataset, data.open_data or data.from_arrays"),
        ({"unlabelled": "drop"}, "data.from_frame, data.from_dataset, data.open_data or data.from_arrays"),
        ({"tokens": "words"}, "data.from_frame, data.from_dataset, data.open_data or data.from_arrays"),
        ({"max_tokens": 9}, "data.from_frame, data.from_dataset, data.open_data or data.from_arrays"),
        ({"resize": "32"}, "give it to data.from_dataset or data.open_data"),
        ({"header": "none"}, "give it to data.open_data"),
        ({"columns": "a+b"}, "give it to data.open_data"),
        ({"categorical": "a"}, "give it to data.open_data"),
        ({"layout": "{class}"}, "give it to data.open_data"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_source_is_read_already(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        idl.Study(data=arrays(), **settings)
    assert str(error.value).endswith(sentence)
    assert str(error.value).startswith(", ".join(settings))


@pytest.mark.parametrize(
    "settings", [{"task": "regression"}, {"unlabelled": "drop"}, {"tokens": "words"}, {"max_tokens": 9}]
)
def test_the_source_of_a_function_is_read_already(settings: dict[str, Any]) -> None:
    Path("read_rows.py").write_text(
        "import numpy as np\n"
        "from idiolect.data import from_arrays\n"
        "def source():\n"
        "    return from_arrays(np.zeros((60, 3), np.float32), np.arange(60) % 2)\n"
    )
    study = idl.Study(data="read_rows.source", partition="iid", clients=3, **settings, **QUICK)
    (name,) = settings
    with pytest.raises(
        InputError, match=rf"^{name} is for tables and arrays, and read_rows\.source returns a Source: "
    ):
        study.federation()


def test_what_divides_and_changes_the_samples_goes_with_a_source() -> None:
    study = idl.Study(
        data=arrays(), partition="natural", new_clients=1, keep="50%", normalise="symmetric",
        shifts="rotate:groups=2", split="ordered", **QUICK
    )  # fmt: skip
    assert study.federation().clients == 3
    ordered = idl.Study(data=arrays(), partition="iid", clients=3, sizes=10, **QUICK)
    assert [len(rows) for rows in ordered.federation().train] == [10] * 3


def test_rows_without_clients_are_divided_as_usual() -> None:
    federation = idl.Study(data=arrays(300, clients=False), **QUICK, clients=4).federation()
    assert federation.names == ()
    assert federation.clients == 4
    want = data.build(arrays(300, clients=False), Spec.parse("dirichlet:alpha=0.3"), [], 4, 0)
    assert data.manifest(federation) == data.manifest(want)
    assert idl.Study(data=arrays(900, clients=False), **QUICK, partition="iid").federation().clients == 20
    run(idl.Study(data=arrays(300, clients=False), **QUICK, clients=4))
    page = Path("r/report.html").read_text()
    assert "<dt>Partition</dt><dd>dirichlet (alpha 0.3), because the data have no clients</dd>" in page


def test_a_partitioner_from_python() -> None:
    study = idl.Study(data=arrays(), partition=ByModulo(), **QUICK)
    federation = study.federation()
    assert federation.clients == 3
    result = run(study)
    assert written()["partition"] == "given: ByModulo"
    assert "<dt>Partition</dt><dd>given: ByModulo</dd>" in Path("r/report.html").read_text()
    assert run(study, resume=True).records.equals(result.records)
    on_digits = idl.Study(partition=ByModulo(), **QUICK)
    assert on_digits.federation().clients == 3
    run(on_digits, "digits")
    with pytest.raises(
        InputError, match=r"^partition given: ByModulo: it was given in a Python program: run the study"
    ):
        run(idl.Study.read("digits/study.yaml"), "again")
    assert not Path("again").exists()


def test_a_class_of_partitioners_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("theirs")
    module.ByModulo = ByModulo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs", module)
    study = idl.Study(data=arrays(), partition="theirs.ByModulo:test_fraction=0.5", **QUICK)
    federation = study.federation()
    assert federation.clients == 3
    assert [len(rows) for rows in federation.test] == [15] * 3
    assert run(study).rows()[0].accuracy is not None
    assert written()["partition"] == {"name": "theirs.ByModulo", "options": {"test_fraction": 0.5}}


# --- settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"data": "p.csv", "dataset": "digits"},
            "give data (your own) or dataset and data_dir (one by name), not both",
        ),
        ({"data": "p.csv", "data_dir": "x"}, "give data (your own) or dataset and data_dir"),
        ({"target": "y"}, "target is for your own data: give data too, or leave target out"),
        ({"client_column": "y"}, "client_column is for your own data"),
        ({"drop": "y"}, "drop is for your own data"),
        ({"resize": 32, "dataset": "cifar10"}, "resize is for your own data"),
        ({"keep": "200%"}, "keep='200%' is not valid: write a share such as 25% or 0.25, or a number of samples"),
        ({"keep": "some"}, "keep='some' is not valid: write a share"),
        ({"keep": "0"}, "keep=0 is not valid: "),
        ({"keep": 1.5}, "keep=1.5 is not valid: "),
        ({"keep": "-5%"}, "keep=-0.05 is not valid: "),
        ({"sizes": "300+x"}, "sizes.1='x' is not valid: input should be a valid integer"),
        ({"sizes": 0}, "sizes.0=0 is not valid: input should be greater than or equal to 1"),
        ({"new_clients": 0}, "new_clients=0 is not valid: leave it out, or give a number above 0"),
        ({"new_clients": [1]}, "new_clients=[1] is not valid: "),
        ({"data": ["a"]}, "data is a list: give a path, or read it with idiolect.data.from_arrays"),
        (
            {"normalise": "no"},
            "normalise='no' is not valid: input should be 'reference', 'training', 'symmetric' or 'none'",
        ),
        ({"new_shifts": "invert:clients=1"}, "new_shifts invert:clients=1: this is done to every new client"),
        ({"new_shifts": "invrt"}, "unknown shift 'invrt'; did you mean 'invert'?"),
        ({"partition": "theirs.Nobody"}, "partition 'theirs.Nobody': there is no module 'theirs'"),
        ({"model": "nobody"}, "unknown model 'nobody'; "),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        idl.Study(**settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"keep": "25%"}, {"keep": 0.25}),
        ({"keep": "0.25"}, {"keep": 0.25}),
        ({"keep": "100%"}, {"keep": 1.0}),
        ({"keep": "50"}, {"keep": 50}),
        ({"keep": "1"}, {"keep": 1}),
        ({"sizes": "300+600+1200"}, {"sizes": (300, 600, 1200)}),
        ({"sizes": 600}, {"sizes": (600,)}),
        ({"sizes": [300, 600]}, {"sizes": (300, 600)}),
        ({"new_clients": "3"}, {"new_clients": 3}),
        ({"new_clients": "20%"}, {"new_clients": "20%"}),
    ],
)
def test_ways_to_write_the_same(given: dict[str, Any], meant: dict[str, Any]) -> None:
    study = idl.Study(**given)
    for name, value in meant.items():
        assert getattr(study, name) == value
        assert type(getattr(study, name)) is type(value), "one row and all of them are not the same"
    assert study == idl.Study(**meant) == idl.Study(**yaml.safe_load(study.to_yaml()))


@pytest.mark.parametrize(
    "study",
    [
        idl.Study(data="p.csv", target="y", client_column="who", drop="a+b", resize="32x24", new_clients="A+B"),
        idl.Study(data="p.csv"),
        idl.Study(data="folder", resize=32, partition="iid", clients=3, normalise="training"),
        idl.Study(
            dataset="cifar10", sizes="300+600", keep=0.5, new_clients="20%", normalise="symmetric",
            new_shifts="corrupt:kind=each,severity=3,invert", shifts="permute_labels:to=1+0",
        ),
        idl.Study(dataset="femnist", model="mobilenetv3_small", keep=1),
        idl.Study(dataset="digit5", partition="domains:inside=dirichlet(alpha=0.5)"),
        idl.Study(partition="pathological:classes_per_group=3+3+5"),
    ],
)  # fmt: skip
def test_every_setting_survives_its_file(study: idl.Study) -> None:
    Path("s.yaml").write_text(study.to_yaml(), encoding="utf-8")
    assert idl.Study.read("s.yaml") == study
    assert idl.Study.read("s.yaml").to_yaml() == study.to_yaml()


def test_ten_corruptions_are_ten_conditions() -> None:
    study = idl.Study(new_clients=2, new_shifts="corrupt:kind=each,severity=3")
    assert len({spec.options["kind"] for spec in study.new_shifts}) == len(study.new_shifts) == 10
    assert {spec.options["severity"] for spec in study.new_shifts} == {3}


def test_sets_with_a_client_column_are_divided_by_it() -> None:
    femnist = idl.Study(dataset="femnist")
    assert isinstance(femnist.partition, Spec)
    assert (femnist.partition.name, femnist.partition.options["column"]) == ("natural", "writer")
    assert femnist.clients is None
    assert idl.Study(dataset="femnist", clients=5).clients == 5
    assert idl.Study(dataset="femnist", partition="iid").clients == 20
    digits = idl.Study()
    assert (digits.partition.name, digits.partition.options["alpha"], digits.clients) == ("dirichlet", 0.3, 20)
    domain = idl.Study(dataset="digit5", client_column="domain")
    assert (domain.partition.name, domain.partition.options["column"]) == ("natural", "domain")
    own = idl.Study(data="p.csv", client_column="hospital")
    assert (own.partition.name, own.clients) == ("natural", None)
    assert idl.Study(data="p.csv").partition is None


def test_a_set_with_clients_of_its_own_gives_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards and rows as those of a set that is fetched by name."""
    real = data.describe
    monkeypatch.setattr(data, "load", lambda name, folder=None: arrays())
    monkeypatch.setattr(
        data, "describe", lambda name: real(name) | {"client_column": "client", "columns": ["client"]}
    )  # fmt: skip
    assert idl.Study(dataset="mnist").federation().names == ("ann", "bob", "cyd")
    assert idl.Study(dataset="mnist", clients=2).federation().names == ("ann", "bob")
    assert idl.Study(dataset="mnist", clients=3, partition="iid").federation().names == ()


def test_what_decides_the_rows_reaches_them() -> None:
    plain = idl.Study(data=arrays(), **QUICK).federation()
    study = idl.Study(
        data=arrays(), **QUICK, sizes=12, keep="50%", shifts="invert:clients=0", normalise="symmetric",
        new_clients="ann", new_shifts="rotate:degrees=180",
    )  # fmt: skip
    federation = study.federation()
    assert federation.names == ("bob", "cyd", "ann", "ann")
    assert [len(rows) for rows in federation.train] == [6] * 4
    assert federation.shifts == ("invert", "", "", "rotate:degrees=180")
    assert (plain.mean, federation.mean) != (federation.mean, plain.mean)
    assert federation.mean == (0.5,)
    assert study.task_of(federation).clients == 2
    assert idl.Study(data=arrays(), **QUICK, data_seed=1).federation().train[0].tolist() == plain.train[0].tolist()
    assert data.manifest(idl.Study(data=arrays(), **QUICK, data_seed=1).federation()) != data.manifest(plain)


def test_columns_and_marks_may_be_lists(tmp_path: Path) -> None:
    """A name that has a + itself stays one name."""
    (tmp_path / "p.data").write_text("1,2,x\n3,?,y\n" * 20)
    how = {"data": str(tmp_path / "p.data"), "target": "y", "clients": 2, **QUICK}
    listed = idl.Study(columns=["a", "b+c", "y"], missing=["?", "a=3"], **how)
    assert listed == idl.Study(columns='a+"b+c"+y', missing="?+a=3", **how)
    assert listed == idl.Study(**yaml.safe_load(listed.to_yaml()))
    assert {one.name for one in listed.federation().encodings} == {"a", "b+c"}
