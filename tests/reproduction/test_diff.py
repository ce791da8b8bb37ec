"""Why a number is different: all that was changed on purpose is named, the likeliest cause first, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.reproduction import diff, recipes
from idiolect.reproduction.diff import EFFECTS, Diff, Side, compare, of_run
from idiolect.reproduction.diff_recipe import of_recipe
from idiolect.reproduction.recipes import Cell, Recipe, Tuned
from idiolect.studies import Study
from idiolect.studies.runner import run

SETTINGS: dict[str, Any] = {
    "clients": 4, "rounds": 4, "local_epochs": 1, "model": "mlp", "methods": "local,fedavg,fedpac", "evaluate_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of one study, and one of another."""
    folder = tmp_path_factory.mktemp("runs")
    run(Study(**SETTINGS), folder / "a", engine="sequential")
    shutil.copytree(folder / "a", folder / "same")
    other = SETTINGS | {
        "methods": "fedpac:alignment=0.5,fedper,local",
        "partition": "dirichlet:alpha=0.1",
        "lr": 0.05,
        "seeds": (0, 1),
        "evaluate_every": 2,
        "protocol": "weighting=sample",
    }
    run(Study(**other), folder / "b", engine="sequential")
    return folder


def sides(mine: dict[str, Any], theirs: dict[str, Any]) -> Diff:
    return compare(Side("A", Study(**mine)), Side("B", Study(**theirs)))


def edited(folder: Path, into: Path, change: Any) -> Path:
    """A copy of a run of which other machines and versions are told."""
    shutil.copytree(folder, into)
    ran = json.loads((into / "engine.json").read_text())
    del ran[-1]["seal"]
    change(ran)
    (into / "engine.json").write_text(json.dumps(ran))
    return into


# --- settings


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ({"rounds": 20}, {"rounds": 40}, [("rounds", "20", "40"), ("evaluate_every", "2", "4")]),
        ({}, {"partition": "dirichlet:alpha=0.1"}, [("partition.alpha", "0.3", "0.1")]),
        ({"shifts": "rotate:degrees=90"}, {}, [("shifts", "rotate:degrees=90.0", "none")]),
        ({"keep": "25%", "lr": 0.1}, {"momentum": 0.9},
         [("keep", "0.25", "not set"), ("lr", "0.1", "0.01"), ("momentum", "0.5", "0.9")]),
        ({"protocol": "stage=received,full_last_round=true"}, {},
         [("protocol.stage", "received", "personalised"), ("protocol.full_last_round", "true", "false")]),
        ({"optimiser": "adam", "server_optimiser": "momentum"}, {},
         [("optimiser", "adam", "sgd"), ("server_optimiser", "momentum:lr=1.0,momentum=0.9", "average"),
          ("momentum", "0.0", "0.5")]),
        ({"protocol": "also=received"}, {"augment": "none"}, [("protocol.also", "received", "none")]),
        ({"model": "mlp"}, {}, [("model", "mlp", "small_cnn")]),
        ({"model": "small_cnn"}, {}, []),
        ({"evaluate_every": 3}, {}, []),
        ({"name": "x", "checkpoint_every": 9, "data_dir": "/tmp"}, {}, []),
        ({"methods": "fedpac:alignment=0.5,head_epochs=2,local"}, {"methods": "local,fedpac"},
         [("fedpac:alignment=0.5,head_epochs=2.alignment", "0.5", "1.0"),
          ("fedpac:alignment=0.5,head_epochs=2.head_epochs", "2", "1")]),
        ({"methods": "fedpac,fedpac:alignment=0.5"}, {"methods": "fedpac,fedpac:alignment=0.25"},
         [("fedpac:alignment=0.5.alignment", "0.5", "0.25")]),
        ({"methods": "fedper"}, {"methods": "local"}, [("method", "fedper", "local")]),
    ],
)  # fmt: skip
def test_settings(mine: dict[str, Any], theirs: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    if "methods" not in mine and "model" not in mine:
        mine, theirs = {"model": "mlp"} | mine, {"model": "mlp"} | theirs
    found = sides(mine, theirs)
    assert [d[:3] for d in found.differences] == expected
    assert all(d.effect for d in found.differences)


def test_every_setting_has_its_place() -> None:
    settings = set(Study.model_fields) - {"name", "data_dir", "checkpoint_every", "protocol", "methods"}
    assert settings <= EFFECTS.keys()
    assert {f"protocol.{k}" for k in Protocol.model_fields} <= EFFECTS.keys()
    beside = {
        "partition.alpha",
        "split",
        "method",
        "methods",
        "idiolect",
        "torch",
        "numpy",
        "python",
        "engine",
        "dtype",
    }
    known = settings | beside | {f"protocol.{k}" for k in Protocol.model_fields}
    assert EFFECTS.keys() <= known, "nothing that is no setting"


def test_the_likeliest_first() -> None:
    theirs: dict[str, Any] = {
        "evaluate_every": 30, "participation": 0.5, "rounds": 300, "batch_size": 7, "lr": 0.5, "normalise": "symmetric",
        "model": "small_cnn", "methods": "fedavg,fedavg_ft:epochs=3", "protocol": "weighting=sample,also=trained",
        "data_seed": 5, "partition": "dirichlet:alpha=1", "dataset": "cifar10",
    }  # fmt: skip
    found = sides({"dataset": "fashion_mnist", "model": "mlp"}, theirs)
    assert [d.what for d in found.differences] == [
        "dataset", "partition.alpha", "data_seed", "protocol.weighting", "fedavg_ft.epochs", "model", "normalise", "lr",
        "batch_size", "rounds", "participation", "evaluate_every", "protocol.also",
    ]  # fmt: skip


# --- runs


def test_nothing_differs(runs: Path) -> None:
    found = compare(of_run(runs / "a"), of_run(runs / "same"))
    assert str(found) == "Nothing that determines the numbers differs, and they are the same."
    assert found.differences == found.remains == ()
    assert [(n.method, n.points, n.first) for n in found.numbers] == [
        ("local", 0, None), ("fedavg", 0, None), ("fedpac", 0, None),
    ]  # fmt: skip


def test_two_runs(runs: Path) -> None:
    found = compare(of_run(runs / "a"), of_run(runs / "b"))
    assert [d.what for d in found.differences] == [
        "partition.alpha", "split", "protocol.weighting", "fedpac.alignment", "lr", "seeds", "evaluate_every",
        "methods",
    ]  # fmt: skip
    assert str(found).startswith(f"partition.alpha is 0.3 in {runs / 'a'} and 0.1 in {runs / 'b'} (a smaller one makes")
    assert str(found).endswith(". 7 more things differ.")
    assert found.differences[1].effect == "a result of the other data settings"
    assert found.differences[-1][1:3] == ("fedavg", "fedper")
    assert [n.method for n in found.numbers] == ["local", "fedpac"]
    for number, labels in zip(found.numbers, [("local", "local"), ("fedpac", "fedpac:alignment=0.5")], strict=True):
        a, b = (_accuracy(runs / name, label) for name, label in zip("ab", labels, strict=True))
        assert number.a == pytest.approx(a[a["round"] == 4].value.mean(), abs=1e-12)
        rows = np.array([sum(c["test"]) for c in json.loads((runs / "b/manifest.json").read_text())["clients"]])
        last = b[b["round"] == 4].pivot_table(index="seed", columns="client", values="value").to_numpy()
        wanted = np.mean([(seed * rows).sum() / rows.sum() for seed in last])
        assert number.b == pytest.approx(wanted, abs=1e-12), "by the protocol of its run"
        assert number.points == pytest.approx(100 * (number.b - number.a))
        assert number.first == 2, "the first round that both evaluated"


def _accuracy(folder: Path, label: str) -> pd.DataFrame:
    records = pd.read_parquet(folder / "records.parquet")
    return records[(records.method == label) & (records.stage == "personalised") & (records.metric == "accuracy")]


def test_the_first_round_that_is_unlike(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "c")
    records = pd.read_parquet(runs / "a" / "records.parquet")
    late = (records.method == "fedavg") & (records["round"] >= 3) & (records.metric == "accuracy")
    records.loc[late, "value"] /= 2
    records.to_parquet(tmp_path / "c" / "records.parquet")
    found = compare(of_run(runs / "a"), of_run(tmp_path / "c"))
    assert [n.first for n in found.numbers] == [None, 3, None]
    assert str(found) == "Nothing that determines the numbers differs."
    assert found.remains == (
        "Still, the numbers differ: the code changed without a new version, or a GPU gave other numbers.",
    )


def test_a_run_that_is_not_at_its_end_explains_the_numbers(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "c")
    records = pd.read_parquet(runs / "a" / "records.parquet")
    last = int(records["round"].max())
    records[(records.method != "fedavg") | (records["round"] < last)].to_parquet(tmp_path / "c" / "records.parquet")
    [sentence] = compare(of_run(runs / "a"), of_run(tmp_path / "c")).remains
    assert re.fullmatch(f"The runs are not equally long: fedavg is at round {last} and [0-9]+. Finish both.", sentence)


def test_the_same_settings_on_other_rows(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "c")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    del manifest["seal"]
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest | {"hash": "0" * 64}))
    (one,) = compare(of_run(runs / "a"), of_run(tmp_path / "c")).differences
    assert one == ("split", manifest["hash"][:12], "0" * 12, "the same settings gave other samples: other files?")


def test_versions_engine_and_machine(runs: Path, tmp_path: Path) -> None:
    def newer(ran: list[dict[str, Any]]) -> None:
        ran.append(json.loads(json.dumps(ran[0])))
        ran[1]["versions"]["torch"] = "9.9"
        ran[1] |= {"machine": "Babbage, 1 core", "engine": "vectorised", "options": {"chunk": 4}, "dtype": "float64"}

    found = compare(of_run(runs / "a"), of_run(edited(runs / "a", tmp_path / "c", newer)))
    torch = json.loads((runs / "a" / "engine.json").read_text())[0]["versions"]["torch"]
    assert [d[:3] for d in found.differences] == [
        ("torch", torch, f"{torch} then 9.9"),
        ("engine", "sequential", "sequential then vectorised:chunk=4"),
        ("dtype", "float32", "float32 then float64"),
    ]
    (machine,) = found.remains
    assert re.fullmatch(r"The machine was .+ in .+/a and .+ then Babbage, 1 core in .+/c: .+\.", machine)


def test_engines_of_the_same_bits_are_no_difference(runs: Path, tmp_path: Path) -> None:
    other = edited(runs / "a", tmp_path / "c", lambda ran: ran[0].update(engine="processes"))
    found = compare(of_run(runs / "a"), of_run(other))
    assert found.differences == ()
    assert found.remains == (
        f"The engine was sequential in {runs / 'a'} and processes in {tmp_path / 'c'}: the same bits.",
    )


def test_a_run_without_its_note_of_machines(runs: Path, tmp_path: Path) -> None:
    folder = edited(runs / "a", tmp_path / "c", lambda ran: None)
    (folder / "engine.json").unlink()
    found = compare(of_run(folder), of_run(runs / "a"))
    assert found.differences == ()
    assert found.remains == (f"{folder} does not say on which machine and with which versions it ran.",)


# --- a run and a recipe


def recipe(**settings: Any) -> Recipe:
    def cell(method: str, label: str, published: float | None, **more: Any) -> Cell:
        return Cell(
            {"method": method, "clients": 4}, Study(**SETTINGS | {"methods": [label]} | settings), published, **more
        )

    far = Cell({"method": "fedpac", "clients": 9}, Study(**SETTINGS | {"methods": "fedpac", "clients": 9}), 10.0)
    absent = Cell({"method": "none", "clients": 4}, None, absent="nobody knows how")
    cells = (
        far, absent, cell("fedper", "fedper", 1.0), cell("fedpac", "fedpac", 91.5),
        cell("fedavg", "fedavg_ft", 60.0, stage="received"), cell("fedavg_ft", "fedavg_ft", 70.0),
    )  # fmt: skip
    return Recipe("x/table1", "Table", "results", cells)


def test_a_recipes_cell_that_is_most_like_the_run(runs: Path) -> None:
    made = recipe(seeds=(7,))
    mine, theirs = of_recipe(made, made.cells, of_run(runs / "a"))
    found = compare(mine, theirs)
    assert found.b == "x/table1 (method=fedpac, clients=4)"
    assert found.differences == (), "of any seed"
    (number,) = found.numbers
    assert (number.b, number.round_b, number.first) == (0.915, 4, None)
    mine, theirs = of_recipe(made, recipes.select(made, {"clients": "9"}), of_run(runs / "a"))
    assert [d[:3] for d in compare(mine, theirs).differences] == [("clients", "4", "9")]


def test_a_cell_of_another_moment_is_compared_at_it(tmp_path: Path) -> None:
    study = Study(**SETTINGS | {"methods": "fedavg_ft", "rounds": 2, "protocol": "also=received"})
    run(study, tmp_path / "r", engine="sequential")
    made = recipe(rounds=2, protocol="also=received")
    records = pd.read_parquet(tmp_path / "r" / "records.parquet").query("metric == 'accuracy' and round == 2")
    for method, stage, published in (("fedavg", "received", 0.6), ("fedavg_ft", "personalised", 0.7)):
        mine, theirs = of_recipe(made, recipes.select(made, {"method": method}), of_run(tmp_path / "r"))
        found = compare(mine, theirs)
        assert found.differences == ()
        assert found.numbers[0].a == pytest.approx(records[records.stage == stage].value.mean(), abs=1e-12)
        assert found.numbers[0].b == published
    _, theirs = of_recipe(made, made.cells, of_run(tmp_path / "r"))
    assert theirs.name == "x/table1 (method=fedavg_ft, clients=4)", "the personal model where none is asked for"


def test_a_run_of_fedavg_is_compared_with_its_cell_in_a_run_of_another(runs: Path) -> None:
    made = recipe(protocol="also=received")
    mine, theirs = of_recipe(made, recipes.select(made, {"method": "fedavg"}), of_run(runs / "a"))
    found = compare(mine, theirs)
    assert theirs.name == "x/table1 (method=fedavg, clients=4)"
    assert found.differences == ()
    records = _accuracy(runs / "a", "fedavg")
    (number,) = found.numbers
    assert number.a == pytest.approx(records[records["round"] == 4].value.mean(), abs=1e-12)
    assert number.b == 0.6


@pytest.mark.parametrize(("lr", "differs"), [(0.01, False), (0.05, False), (0.3, True)])
@pytest.mark.parametrize("own", [False, True])
def test_what_a_search_chooses_may_have_each_of_its_values(tmp_path: Path, lr: float, differs: bool, own: bool) -> None:
    given = {"methods": f"fedavg:lr={lr}"} if own else {"methods": "fedavg", "lr": lr}
    run(Study(**SETTINGS | given | {"rounds": 1}), tmp_path / "r", engine="sequential")
    tuned = Tuned({"all": {"lr": (0.01, 0.05)}}, "nowhere", always=True)
    cell = Cell({"method": "fedavg"}, Study(**SETTINGS | {"methods": "fedavg", "rounds": 1}))
    tuned = Tuned({"all": {"lr": (0.01, 0.05)}}, "nowhere", always=True)
    made = Recipe("x/tuned", "Table", "results", (cell,), tuned=tuned)
    found = compare(*of_recipe(made, made.cells, of_run(tmp_path / "r")))
    assert [d.what.rpartition(".")[2] for d in found.differences] == ["lr"] * differs
    said = "lr is chosen by a search among 0.01, 0.05 in x/tuned, and not compared."
    assert (said in found.remains) is not differs


def test_two_ways_to_the_same_samples_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": np.arange(80) % 4, "x": rng.normal(size=80), "y": rng.integers(0, 2, 80)})
    for name in ("one.csv", "two.csv"):
        table.to_csv(name, index=False)
    table.assign(x=-table["x"]).to_csv("three.csv", index=False)
    for name in ("one", "two", "three"):
        study = Study(data=f"{name}.csv", client_column="site", target="y", methods="fedavg", rounds=1)
        run(study, Path(name), engine="sequential")
    found = compare(of_run(Path("one")), of_run(Path("two")))
    assert str(found) == "Nothing that determines the numbers differs, and they are the same."
    assert [d.what for d in compare(of_run(Path("one")), of_run(Path("three"))).differences] == ["data", "split"]
    manifest = json.loads(Path("two/manifest.json").read_text())
    del manifest["seal"]
    manifest["normalisation"]["mean"] = [0.5]
    Path("two/manifest.json").write_text(json.dumps(manifest))
    assert [d.what for d in compare(of_run(Path("one")), of_run(Path("two"))).differences] == ["data"]


def test_errors_of_numbers_are_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    table = pd.DataFrame({"site": np.arange(60) % 3, "x": x, "y": 3 * x + rng.normal(size=60)})
    table.to_csv("t.csv", index=False)
    settings: dict[str, Any] = {
        "data": "t.csv", "client_column": "site", "target": "y", "task": "regression", "methods": "fedavg", "rounds": 2,
    }  # fmt: skip
    for name, lr in (("slow", 0.001), ("fast", 0.05)):
        run(Study(**settings, lr=lr), Path(name), engine="sequential")
    code, out, _ = command("slow fast --json", capsys)
    (number,) = json.loads(out)["numbers"]
    records = [pd.read_parquet(f"{name}/records.parquet") for name in ("slow", "fast")]
    errors = [r[(r.metric == "mse") & (r.stage == "personalised") & (r["round"] == 2)].value.mean() for r in records]
    assert (code, number["by"], number["points"]) == (0, "mse", None)
    assert [number["a"], number["b"]] == pytest.approx(errors)
    _, out, _ = command("slow fast", capsys)
    assert re.search(r"^MSE +slow +fast +change +differs from round", out, re.MULTILINE)
    assert not re.search("accuracy|points|%", out)


def test_no_cell_of_the_method(runs: Path) -> None:
    made = recipe()
    with pytest.raises(InputError) as caught:
        of_recipe(made, made.cells[2:3], of_run(runs / "a"))
    assert str(caught.value) == (
        "x/table1 has no cell here that runs fedavg or fedpac or local: choose a run of fedper"
    )
    with pytest.raises(InputError, match=r"x/table1 has no cell here that runs .*: nobody knows how"):
        of_recipe(made, made.cells[1:2], of_run(runs / "a"))


# --- the command


def command(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["diff", *line.split()])
    out, err = capsys.readouterr()
    return int(str(ended.value.code)), out, err


def test_command(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(runs)
    code, out, err = command("a b", capsys)
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith("partition.alpha is 0.3 in a and 0.1 in b (a smaller one makes clients")
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = command("a b --json", capsys)
    told = json.loads(out)
    assert code == 0
    assert told == diff.compare(of_run(Path("a")), of_run(Path("b"))).as_json()
    code, out, _ = command("a fedpac/table1 --only dataset=cifar10,clients=100 --json", capsys)
    told = json.loads(out)
    assert told["b"].startswith("fedpac/table1 (dataset=cifar10, clients=100, method=")
    assert told["differences"][0] == {"what": "dataset", "a": "digits", "b": "cifar10", "effect": "another task"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("a nowhere", "there is no run folder nowhere and no table nowhere: idiolect list recipes has them all"),
        ("nowhere a", "there is no run folder nowhere: give the folder that a run wrote"),
        ("a b --only clients=4", "--only is for tables, and b is not a table: leave it out"),
        ("a fedpac/table1 --only clients=3", "fedpac/table1 has no cell with clients=3; choose from "),
        ("broken a", "broken/engine.json cannot be read "),
    ],
)
def test_command_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    monkeypatch.chdir(runs)
    if not Path("broken").exists():
        shutil.copytree("a", "broken")
        Path("broken/engine.json").write_text("[")
    code, out, err = command(line, capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"idiolect: {sentence}"), err
    assert err.count("\n") == 1
