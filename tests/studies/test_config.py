"""Studies from Python: the same checks, the same sentences, and runs from wherever Python runs."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from rich.console import Console

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Adam, Training
from idiolect.runs.schema import RECORDS, TIMINGS

SMALL: dict[str, Any] = {"clients": 4, "rounds": 2, "local_epochs": 1, "model": "mlp"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"methods": ["fedpacc"]}, "unknown method 'fedpacc'; did you mean 'fedpac'? Known: "),
        ({"dataset": "digit"}, "unknown dataset 'digit'; did you mean 'digits'? Known: "),
        ({"clinets": 3}, "unknown setting 'clinets'; did you mean 'clients'? Known: "),
        ({"rounds": 0}, "rounds=0 is not valid: input should be greater than 0"),
        ({"rounds": 2.5}, "rounds=2.5 is not valid: "),
        ({"participation": float("nan")}, "participation=nan is not valid: "),
        ({"lr": float("inf")}, "lr=inf is not valid: "),
        ({"seeds": []}, "seeds=[] is not valid: "),
        ({"seeds": "0-x"}, "seeds='0-x': write whole numbers separated by commas, as 0,1,2, or 0-2"),
        ({"seeds": "0-2,1"}, "seed 1 is given twice"),
        ({"seeds": [0, 0]}, "seed 0 is given twice: give each seed once"),
        ({"partition": "iid:alpha=1"}, "partition iid has no option 'alpha'; "),
        ({"partition": 3}, "partition: cannot read 3; write name:option=value, for example dirichlet:alpha=0.3"),
        ({"shifts": ["rotate:90"]}, "cannot read '90' in 'rotate:90': write options as name:key=value,key=value"),
        (
            {"methods": [{"name": "fedavg", "colour": "red"}]},
            "methods: a method has no key 'colour'; known: name, label, options, settings",
        ),
        ({"methods": []}, "methods: cannot read []; write name:option=value, for example fedpac:alignment=0.5"),
        ({"evaluate_every": 0}, "evaluate_every=0 is not valid: "),
        ({"name": ""}, "name='' is not valid: "),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        idl.Study(**settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: idl.use("fedpacc"), "unknown method 'fedpacc'; did you mean 'fedpac'"),
        (lambda: idl.use("fedpac", alignmnt=1), "method fedpac has no option 'alignmnt'; did you mean 'alignment'"),
        (lambda: idl.use(idl.use), "a method is a function: give its name"),  # type: ignore[arg-type]
        (lambda: idl.run({}), "this is a dict, not a study: give idiolect.Study(...)"),  # type: ignore[arg-type]
        (lambda: idl.tune("s.yaml"), "this is a str, not a study: give idiolect.Study(...)"),  # type: ignore[arg-type]
        (lambda: idl.use("fedpac", label=""), "label='' is not valid"),
    ],
)
def test_bad_use(call: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(sentence)


def test_ways_to_write_the_same_study() -> None:
    text = idl.Study(
        methods="local,fedpac:alignment=0,head_epochs=2", shifts="invert,noise:std=0.2,clients=0-1", seeds="0,2"
    )
    lists = idl.Study(
        methods=[
            "local",
            {"name": "fedpac", "label": text.methods[1].label, "options": {"alignment": 0, "head_epochs": 2}},
        ],
        shifts=["invert", {"name": "noise", "options": {"std": 0.2, "clients": "0-1"}}],
        seeds=(0, 2),
    )
    used = idl.Study(
        methods=["local", idl.use("fedpac", alignment=0, head_epochs=2)],
        shifts=("invert", "noise:std=0.2,clients=0-1"),
        seeds=[0, 2],
    )
    assert text == lists == used
    assert idl.Study(seeds=3).seeds == (3,)
    assert idl.Study(seeds="0-2,7").seeds == (0, 1, 2, 7)
    of_list = idl.Study(data="a.csv", target=["y", "CD4+"], text=["a", "b"], categorical=["c", "d"], partition="iid")
    assert (of_list.target, of_list.text, of_list.categorical) == ('y+"CD4+"', "a+b", "c+d")
    assert idl.Study(methods=idl.use("local")).methods[0].name == "local"


@pytest.mark.parametrize(
    "study",
    [
        idl.Study(),
        idl.Study(methods=[idl.use("pfedfda", preset="paper", label="päper, <1>"), "fedcr"], seeds=(2**63 - 1, 0)),
        idl.Study(shifts="rotate:degrees=30,clients=0-4+8,noise", partition="dominant", evaluate_every=3, lr=1e-12),
        idl.Study(optimiser="adam", server_optimiser="adam:lr=0.1"),
    ],
)
def test_yaml_round_trip(study: idl.Study, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(study.to_yaml(), encoding="utf-8")
    assert idl.Study.read(tmp_path / "s.yaml") == study
    assert idl.Study(**yaml.safe_load(study.to_yaml())) == study


@pytest.mark.parametrize(("rounds", "every", "expected"), [(30, None, 3), (5, None, 1), (30, 7, 7)])
def test_evaluation(rounds: int, every: int | None, expected: int) -> None:
    assert idl.Study(rounds=rounds, evaluate_every=every).evaluation == expected


def test_methods_are_told_how_to_train() -> None:
    study = idl.Study(local_epochs=3, batch_size=7, lr=0.2, momentum=0, weight_decay=0, drop_last=True)
    assert study.task_of(study.federation()).training == Training(3, 7, SGD(0.2, 0, 0), drop_last=True)


def test_methods_are_told_to_train_by_adam() -> None:
    study = idl.Study(local_epochs=3, batch_size=7, optimiser="adam", lr=0.002, weight_decay=0.1)
    assert study.task_of(study.federation()).training == Training(3, 7, Adam(0.002, weight_decay=0.1))
    assert study.momentum == 0
    with pytest.raises(InputError, match=r"momentum=0\.9 is for optimiser=sgd, not adam: leave momentum out"):
        idl.Study(optimiser="adam", momentum=0.9)


def test_server_optimisers() -> None:
    """Study files of before name none, and mean the average."""
    assert str(idl.Study().server_optimiser) == "average"
    study = idl.Study(server_optimiser={"name": "momentum", "options": {"lr": 2}})
    assert str(study.server_optimiser) == "momentum:lr=2.0,momentum=0.9"
    assert study == idl.Study(server_optimiser="momentum:lr=2") != idl.Study()
    with pytest.raises(InputError, match="unknown server_optimiser 'adma'; did you mean 'adam'"):
        idl.Study(server_optimiser="adma")
    with pytest.raises(InputError, match="server_optimiser: cannot read 3; write name:option=value, for example adam:"):
        idl.Study(server_optimiser=3)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimiser": "adam", "lr": 0.001},
        {"server_optimiser": "momentum:momentum=0.5"},
        {"server_optimiser": "adam:lr=0.03"},
        {"optimiser": "adam", "lr": 0.001, "server_optimiser": "adam:lr=0.03"},
    ],
    ids=str,
)
def test_fedavg_learns_with_each_optimiser(settings: dict[str, Any], tmp_path: Path) -> None:
    study = idl.Study(**{**SMALL, "rounds": 8, "batch_size": 10}, methods="fedavg", partition="iid", **settings)
    [row] = idl.run(study, out=tmp_path / "r", engine="sequential").rows()
    assert row.accuracy > 0.8
    assert idl.Study.read(tmp_path / "r" / "study.yaml") == study
    idl.run(study, out=tmp_path / "r", engine="sequential", resume=True)


def test_a_study_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        idl.Study().rounds = 3  # type: ignore[misc]


# --- running


def test_result(tmp_path: Path) -> None:
    study = idl.Study(**SMALL, methods="local,fedavg", seeds=(0, 1), participation=0.5)
    result = idl.run(study, out=tmp_path / "r", engine="sequential")
    assert isinstance(result, idl.Result)
    records = result.records
    assert isinstance(records, pd.DataFrame)
    assert list(records) == RECORDS.names[1:]
    assert list(records[["method", "seed"]].drop_duplicates().itertuples(index=False, name=None)) == [
        ("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1),
    ]  # fmt: skip
    accuracy = records[(records.stage == "personalised") & (records.metric == "accuracy")]
    assert len(accuracy) == 2 * 2 * 2 * 4
    assert accuracy.groupby(["method", "seed", "round"]).client.apply(list).map(lambda c: c == [0, 1, 2, 3]).all()
    assert len(records[records.metric == "bytes_up"]) == 2 * 2 * 2 * 2, "two of four clients take part"
    last = accuracy[accuracy["round"] == 2].groupby(["method", "seed"]).value.mean().groupby("method").mean()
    assert {r.label: r.accuracy for r in result.rows()} == pytest.approx(last.to_dict(), abs=1e-12)
    timings = pd.read_parquet(tmp_path / "r" / "timings.parquet")
    assert list(timings) == TIMINGS.names
    assert len(timings) == 8
    assert (timings.seconds > 0).all()
    assert result.report() == tmp_path / "r" / "report.html"
    assert result.report(tmp_path / "page.html").is_file()
    console = Console(file=io.StringIO(), width=80)
    console.print(result.table())
    assert "FedAvg" in console.file.getvalue()  # type: ignore[attr-defined]


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = idl.Study(**SMALL | {"rounds": 1}, methods="local", name="mine")
    assert [idl.run(study, engine="sequential").folder for _ in range(3)] == [
        Path("runs/mine"), Path("runs/mine-2"), Path("runs/mine-3"),
    ]  # fmt: skip
    assert idl.run(study, out="deep/er/one", engine="sequential").folder == Path("deep/er/one")
    with pytest.raises(InputError, match="deep/er/one exists"):
        idl.run(study, out="deep/er/one")
    with pytest.raises(InputError, match=r"give out=\.\.\."):
        idl.run(study, resume=True)


def test_workers_are_not_counted_as_a_methods_time(tmp_path: Path) -> None:
    study = idl.Study(**SMALL, methods="local,fedavg")
    idl.run(study, out=tmp_path / "r", engine="processes", workers=1)
    seconds = pd.read_parquet(tmp_path / "r" / "timings.parquet").groupby("method").seconds.sum()
    assert seconds["local"] < 1 + 3 * seconds["fedavg"]


def test_in_a_thread(tmp_path: Path) -> None:
    study = idl.Study(**SMALL, methods="fedavg")
    found: list[idl.Result] = []
    thread = threading.Thread(
        target=lambda: found.append(idl.run(study, out=tmp_path / "thread", engine="processes", workers=1))
    )
    thread.start()
    thread.join()
    idl.run(study, out=tmp_path / "main", engine="sequential")
    assert found[0].records.equals(idl.Result(tmp_path / "main", study).records)


def test_script_without_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import idiolect as idl\n"
        f"study = idl.Study(**{SMALL!r}, methods='fedavg')\n"
        "print(idl.run(study, out='r', engine='processes', workers=2).rows()[0].accuracy)\n"
    )
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert 0 < float(ended.stdout) <= 1


def test_message_of_the_same_bad_data_dir(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data_dir=.*there is no such folder; leave it out"):
        idl.run(idl.Study(data_dir=str(tmp_path / "nowhere")), out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sizes", "clients", "new_clients", "keep", "rounds"])
def test_true_is_no_number(name):
    with pytest.raises(InputError, match=f"{name}=true is not valid: give a value, not true or false"):
        idl.Study(**{name: True})


def test_numbers_may_be_names():
    study = idl.Study(data="x.csv", target=3, client_column=1, drop=[2, "id"], partition={"name": "natural"})
    assert (study.target, study.client_column, study.drop) == ("3", "1", ("2", "id"))
    assert idl.Study(partition="natural:column=1").partition.options["column"] == "1"
    with pytest.raises(InputError, match="there is no module 'nowhere'"):
        idl.Study(model="nowhere.net")
