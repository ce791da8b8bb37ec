"""The command line through its real entry point: what a person types, reads and gets back."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

import idiolect as idl
from idiolect import cli, data
from idiolect.cli.run import run_command
from idiolect.core import files
from idiolect.data.partitions import Split
from idiolect.studies import Study

SMALL = "run --clients 4 --rounds 2 --local-epochs 1 --model mlp --engine sequential"


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[[str], Said]


@pytest.fixture
def idiolect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def call(line: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return Said(ended.value.code, out, err)  # type: ignore[arg-type]

    return call


def refused(said: Said, *words: str) -> None:
    """One clear sentence, exit code 2."""
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith("idiolect: ")
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err


def same_records(a: Path, b: Path) -> bool:
    return (a / "records.parquet").read_bytes() == (b / "records.parquet").read_bytes()


# --- runs


def test_run(idiolect: Command, tmp_path: Path) -> None:
    said = idiolect(f"{SMALL} --methods local,fedavg --set local.nothing=1")
    refused(said, "local", "nothing")

    said = idiolect(f"{SMALL} --methods local,fedavg")
    assert said.code == 0
    assert all(word in said.out for word in ("Local", "FedAvg", "Accuracy", "Report: runs/study/report.html"))
    assert max(map(len, said.out.splitlines())) <= 80
    assert "local: seed 0, round 2, accuracy" in said.err
    assert (tmp_path / "runs/study/report.html").stat().st_size > 10_000
    assert not list(tmp_path.rglob(".*"))

    again = idiolect("run runs/study/study.yaml --quiet")
    assert (again.code, again.err) == (0, "")
    assert same_records(Path("runs/study"), Path("runs/study-2"))

    other = idiolect("run runs/study/study.yaml --seeds 1 --json --quiet --out a/new/place")
    told = json.loads(other.out)
    assert told["run"] == "a/new/place"
    assert Path(told["report"]).is_file()
    assert [m["label"] for m in told["methods"]] == ["local", "fedavg"]
    assert all(0 < m["accuracy"] <= 1 for m in told["methods"])
    assert not same_records(Path("runs/study"), Path("a/new/place"))

    assert idiolect("report runs/study a/new/place --out both.html").out == "Report: both.html\n"
    assert Path("both.html").is_file()


# --- engines


def test_how_busy_the_workers_were(idiolect: Command) -> None:
    line = f"{SMALL.replace('sequential', 'processes')} --workers 2 --methods local,fedavg --seeds 0,1 --out r"
    said = idiolect(line)
    busy = re.search(r"^2 workers were busy (\d+)% of [\d.]+ m?s\.$", said.out, re.MULTILINE)
    assert busy, said.out
    (ran,) = json.loads(Path("r/engine.json").read_text())
    assert (ran["engine"], ran["workers"]) == ("processes", 2)
    assert 0 < ran["busy"] <= 1
    assert f"{ran['busy']:.0%}" == f"{busy[1]}%"
    again = idiolect("run --resume --out r --json --quiet")
    del ran["seal"]  # of the file
    assert json.loads(again.out)["engine"] == ran, "nothing was left to run"
    assert idiolect(f"{SMALL} --methods local,fedavg --seeds 0,1 --out alone --quiet").code == 0
    assert same_records(Path("r"), Path("alone")), "side by side or one after another"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vectorised:chunck=3", ["no option 'chunck'", "did you mean 'chunk'"]),
        ("vectorised:chunk=0", ["chunk=0 is not valid", "greater than or equal to 1"]),
        ("vectorised:device=tpu", ["device=tpu", "choose cpu"]),
        ("auto:chunk=1", ["engine auto has no options", "name the engine"]),
        ("processes:chunk=1", ["engine processes has no option 'chunk'"]),
        ("vektorised", ["did you mean 'vectorised'"]),
        ("processes --ray-address auto", ["--ray-address goes with --engine ray, not processes"]),
        ("vectorised --workers 3", ["workers=3"]),
    ],
)
def test_engines_that_cannot_be(idiolect: Command, tmp_path: Path, engine: str, words: list[str]) -> None:
    refused(idiolect(f"run --engine {engine} --quiet --out r"), *words)
    assert not Path("r").exists()


def test_vectorised(idiolect: Command) -> None:
    """Its records are those of the plain loop but for rounding."""
    assert idiolect(f"{SMALL} --methods fedavg,ditto --out plain --quiet").code == 0
    line = SMALL.replace("--engine sequential", "--engine vectorised:device=cpu,chunk=3")
    assert idiolect(f"{line} --methods fedavg,ditto --out mapped --quiet").code == 0
    plain, mapped = (pq.read_table(f"{folder}/records.parquet").to_pandas() for folder in ("plain", "mapped"))
    assert plain.drop(columns=["value", "study"]).equals(mapped.drop(columns=["value", "study"]))
    loss = plain["metric"].isin(["loss", "train_loss"])
    assert loss.sum() > 20
    assert (plain["value"] - mapped["value"])[loss].abs().max() < 1e-4


def test_the_written_study_is_complete(idiolect: Command) -> None:
    line = (
        f"{SMALL} --methods fedavg,fedpac:alignment=0 --set fedpac.head_epochs=2 --shift rotate:clients=0-1"
        " --shift noise:std=0.2,clients=3 --partition iid --participation 0.5 --seeds 3,1 --lr 0.02 --momentum 0"
        " --weight-decay 0 --batch-size 20 --drop-last --quiet --out here"
    )
    assert idiolect(line).code == 0
    written = yaml.safe_load(Path("here/study.yaml").read_text())
    assert set(written) == set(Study.model_fields)
    assert [u["label"] for u in written["methods"]] == ["fedavg", "fedpac:alignment=0.0,head_epochs=2"]
    assert written["methods"][1]["options"]["alignment"] == 0
    assert written["methods"][1]["options"]["head_epochs"] == 2
    assert set(written["methods"][1]["options"]) == set(Study(methods="fedpac").methods[0].options)
    assert written["partition"] == {"name": "iid", "options": {"test_fraction": 0.2, "stratified": False}}
    assert written["shifts"][0] == {"name": "rotate", "options": {"clients": "0-1"}}
    about = ("seeds", "lr", "momentum", "weight_decay", "batch_size", "drop_last", "participation")
    assert {k: written[k] for k in about} == {
        "seeds": [3, 1], "lr": 0.02, "momentum": 0, "weight_decay": 0, "batch_size": 20, "drop_last": True,
        "participation": 0.5,
    }  # fmt: skip
    assert idiolect("run here/study.yaml --quiet --out there").code == 0
    assert same_records(Path("here"), Path("there"))
    assert idiolect("run here/study.yaml --no-drop-last --rounds 1 --quiet --out whole").code == 0
    assert yaml.safe_load(Path("whole/study.yaml").read_text())["drop_last"] is False


def test_preset_by_set(idiolect: Command) -> None:
    assert idiolect(f"{SMALL} --rounds 1 --methods pfedfda --set pfedfda.preset=paper --quiet").code == 0
    written = yaml.safe_load(Path("runs/study/study.yaml").read_text())
    assert written["methods"][0]["options"]["ridge"] == 1e-4


def test_a_preset_by_set_begins_anew(idiolect: Command) -> None:
    """Another preset in the study leaves nothing behind, and an option beside the new one wins, in any order."""
    line = "--methods pfedfda:preset=paper --set pfedfda.ridge=0.5 --set pfedfda.preset=official --quiet"
    assert idiolect(f"{SMALL} --rounds 1 {line}").code == 0
    options = yaml.safe_load(Path("runs/study/study.yaml").read_text())["methods"][0]["options"]
    assert options["ridge"] == 0.5
    assert options["ridge_everywhere"] == 1e-4
    assert options["clip_correlation"] is False
    assert options["initial_means"] == "uniform"


def test_titles_follow_the_labels(idiolect: Command) -> None:
    methods = [
        "{name: pfedfda, label: mine}", "fedavg", "{name: fedpac, label: 'fedpac:alignment=0'}",
        "'hypcluster:clusters=5'", "'hypcluster:clusters=3'", "{name: fedsr, options: {head_epochs: 10}}", "fedem",
    ]  # fmt: skip
    Path("s.yaml").write_text(f"methods: [{', '.join(methods)}]\n")
    assert idiolect(f"{SMALL} s.yaml --rounds 1 --quiet").code == 0
    about = json.loads(Path("runs/study/manifest.json").read_text())["methods"]
    ours = ["HypCluster (k=5)", "HypCluster (k=3)", "FedSR-FT", "FedEM"]
    assert [m["title"] for m in about.values()] == ["mine", "FedAvg", "FedPAC, alignment=0", *ours]


def test_titles_follow_what_is_set(idiolect: Command) -> None:
    line = "--methods fedem,fedper:tuning_epochs=1,fedavg --rounds 1 --quiet"
    sets = "--set fedem.models=5 --set fedem.tuning_epochs=None --set fedper.preset=fedrep"
    assert idiolect(f"{SMALL} {line} {sets}").code == 0
    about = json.loads(Path("runs/study/manifest.json").read_text())["methods"]
    assert [m["title"] for m in about.values()] == ["FedEM-FT (M=5)", "FedPer, preset=fedrep", "FedAvg"]
    said = idiolect(f"{SMALL} --methods fedem,fedem:models=5 --set fedem.models=5 --rounds 1 --quiet --out again")
    assert (said.code, "stands twice" in said.err) == (2, True)


def test_resume_of_a_finished_run(idiolect: Command) -> None:
    assert idiolect(f"{SMALL} --out r").code == 0
    before = Path("r/records.parquet").read_bytes()
    said = idiolect("run --resume --out r")
    assert said.code == 0
    assert "fedavg: 2 of 2 rounds done" in said.err
    assert Path("r/records.parquet").read_bytes() == before


def test_resume_may_change_what_changes_no_number(idiolect: Command) -> None:
    assert idiolect(f"{SMALL} --out r --quiet").code == 0
    settings = yaml.safe_load(Path("r/study.yaml").read_text()) | {"name": "renamed", "checkpoint_every": 1}
    Path("other.yaml").write_text(yaml.safe_dump(settings))
    before = Path("r/records.parquet").read_bytes()
    assert idiolect("run other.yaml --resume --out r --quiet").code == 0
    assert Path("r/records.parquet").read_bytes() == before


def test_resume_starts_where_nothing_is(idiolect: Command) -> None:
    Path("r").mkdir()
    assert idiolect(f"{SMALL} --out r --resume --quiet").code == 0
    assert idiolect(f"{SMALL} --out s --resume --quiet").code == 0
    assert same_records(Path("r"), Path("s"))


def test_labels_that_read_alike_stay_apart(idiolect: Command) -> None:
    """Two labels that make one file name must not share a checkpoint."""
    uses = [{"label": label, "name": "fedavg_ft", "options": {"epochs": n}} for n, label in ((1, "a:b"), (5, "a b"))]
    Path("s.yaml").write_text(yaml.safe_dump({"methods": uses, "clients": 3, "rounds": 1, "model": "mlp"}))
    assert idiolect("run s.yaml --out r --quiet --engine sequential").code == 0
    records = pq.read_table("r/records.parquet").to_pandas()
    loss = records[records.metric == "loss"].groupby("method").value.mean()
    assert set(loss.index) == {"a:b", "a b"}
    assert loss["a:b"] != loss["a b"]


# --- help and lists


@pytest.mark.parametrize("line", ["--help", "run --help", "describe --help", "report -h", "list --help"])
def test_help(idiolect: Command, line: str) -> None:
    said = idiolect(line)
    assert said.code == 0
    assert "Usage: idiolect" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_help_names_every_option(idiolect: Command) -> None:
    said = idiolect("run --help").out
    options = inspect.signature(run_command).parameters.keys() - {"study", "set_", "as_json"} | {"set", "json"}
    for option in options:
        assert f"--{option.replace('_', '-')} " in said


def test_version(idiolect: Command) -> None:
    assert idiolect("--version").out.startswith("idiolect 0.")


def test_no_arguments_show_help(idiolect: Command) -> None:
    said = idiolect("")
    assert said.code == 2
    assert "Usage: idiolect" in said.out + said.err


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        ("methods", "fedpac", {"title": "FedPAC", "options": {"alignment": 1.0}}),
        ("datasets", "mnist", {"classes": 10, "train_rows": 60_000, "shape": [1, 28, 28]}),
        ("partitions", "dirichlet", {"options": {"alpha": 0.5}}),
        ("shifts", "noise", {"options": {"std": 0.1, "clients": "all"}}),
        ("models", "auto", {}),
        ("engines", "processes", {}),
    ],
)
def test_list(idiolect: Command, kind: str, name: str, keys: dict[str, Any]) -> None:
    entries = json.loads(idiolect(f"list {kind} --json").out)
    assert all(len(e["summary"]) > 15 for e in entries.values())
    for key, value in keys.items():
        found = entries[name][key]
        assert value.items() <= found.items() if isinstance(value, dict) else found == value
    said = idiolect(f"list {kind}").out
    assert all(any(line.startswith(entry) for line in said.splitlines()) for entry in entries)
    assert max(map(len, said.splitlines())) <= 80
    assert "``" not in said


def test_list_shows_options_and_presets(idiolect: Command) -> None:
    said = idiolect("list methods").out
    assert "alignment=1.0" in said
    assert "epochs=null" in said
    assert "preset=paper:" in said


# --- bad settings: one sentence, code 2, nothing written

REFUSED = {
    "unknown method": ("--methods fedpca", "unknown method 'fedpca'", "did you mean 'fedpac'"),
    "unknown dataset": ("--dataset digit", "unknown dataset 'digit'", "did you mean 'digits'"),
    "unknown partition": ("--partition dirichle", "unknown partition", "did you mean 'dirichlet'"),
    "unknown shift": ("--shift roatte", "unknown shift", "did you mean 'rotate'"),
    "unknown model": ("--model mpl", "unknown model 'mpl'", "did you mean 'mlp'"),
    "unknown engine": ("--engine process", "unknown engine 'process'", "did you mean 'processes'"),
    "unknown option": ("--clints 3", "No such option: --clints"),
    "method option": ("--methods fedpac:alignmnt=1", "fedpac has no option 'alignmnt'", "did you mean 'alignment'"),
    "partition option": ("--partition iid:alpha=1", "iid has no option 'alpha'", "test_fraction"),
    "shift option": ("--shift rotate:degree=9", "rotate has no option 'degree'", "did you mean 'degrees'"),
    "method value": ("--methods fedpac:alignment=x", "fedpac", "alignment='x'", "number"),
    "set value": ("--set fedavg_ft.epochs=0", "fedavg_ft", "epochs=0", "greater than"),
    "preset": ("--methods fedpac:preset=papr", "preset 'papr'", "did you mean 'paper'"),
    "no clients": ("--clients 0", "clients=0", "greater than 0"),
    "negative clients": ("--clients -3", "clients=-3", "greater than 0"),
    "no rounds": ("--rounds 0", "rounds=0", "greater than 0"),
    "no epochs": ("--local-epochs 0", "local_epochs=0", "greater than 0"),
    "no batch": ("--batch-size -1", "batch_size=-1", "greater than 0"),
    "no lr": ("--lr 0", "lr=0", "greater than 0"),
    "nan lr": ("--lr nan", "lr=nan", "finite"),
    "infinite lr": ("--lr inf", "lr=inf", "finite"),
    "negative decay": ("--weight-decay -1", "weight_decay=-1", "greater than or equal to 0"),
    "momentum": ("--momentum 1", "momentum=1", "less than 1"),
    "text for number": ("--clients many", "--clients", "integer"),
    "alpha zero": ("--partition dirichlet:alpha=0", "alpha=0", "greater than 0"),
    "alpha negative": ("--partition dirichlet:alpha=-1", "alpha=-1", "greater than 0"),
    "alpha nan": ("--partition dirichlet:alpha=nan", "alpha"),
    "participation zero": ("--participation 0", "participation=0", "greater than 0"),
    "participation over": ("--participation 1.5", "participation=1.5", "less than or equal to 1"),
    "too many clients": ("--clients 5000", "clients=5000", "at most 898 clients"),
    "no workers": ("--workers 0 --engine auto", "workers=0", "at least 1"),
    "no workers, processes": ("--workers 0 --engine processes", "workers=0", "at least 1"),
    "workers of the loop": ("--workers 2", "workers=2", "sequential"),
    "set without value": ("--set fedavg.x", "--set fedavg.x", "METHOD.OPTION=VALUE"),
    "set without option": ("--set fedavg=3", "--set fedavg=3", "METHOD.OPTION=VALUE"),
    "set of nobody": ("--set fedpac.alignment=1", "'fedpac' is not in this study", "fedavg"),
    "seed twice": ("--seeds 1,2,1", "seed 1", "twice"),
    "seed text": ("--seeds 1,x", "seeds", "'x'", "integer"),
    "seed half": ("--seeds 1.5", "seeds", "1.5", "integer"),
    "seed negative": ("--seeds=-1", "seeds", "-1", "greater than or equal to 0"),
    "seed huge": ("--seeds 99999999999999999999", "seeds", "less than"),
    "seeds none": ("--seeds ,", "seeds", "at least 1"),
    "method twice": ("--methods fedavg,local,fedavg", "method 'fedavg'", "twice"),
    "methods none": ("--methods ,", "methods", "name:option=value"),
    "shift clients range": ("--shift invert:clients=2-9", "there is no client 9", "0 to 3"),
    "shift clients text": ("--shift invert:clients=some", "clients='some'", "all, half, 0-4"),
    "shift malformed": ("--shift rotate:90", "'90'", "key=value"),
    "model of other shape": ("--model cifar_cnn", "cifar_cnn", "choose model auto"),
    "no data_dir": ("--data-dir nowhere", "data_dir=nowhere", "no such folder"),
    "no data set in data_dir": ("--data-dir . --dataset mnist", "there is no folder mnist", "train.parquet"),
    "resume without out": ("--resume", "--out"),
    "missing study": ("nowhere.yaml", "nowhere.yaml", "No such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings(idiolect: Command, tmp_path: Path, case: str) -> None:
    line, *words = REFUSED[case]
    refused(idiolect(f"{SMALL} {line}"), *words)
    assert list(tmp_path.iterdir()) == [], "something is left behind"


STUDIES = {
    "typo": ("dataset: digits\nclinets: 3\n", "unknown setting 'clinets'", "did you mean 'clients'"),
    "not YAML": ("dataset: [digits\n", "is not YAML", "line 2"),
    "binary": ("\x00\x01", "is not YAML"),
    "text": ("digits\n", "is not a study", "dataset: digits"),
    "empty": ("", "is not a study"),
    "numbers for names": ("1: 2\n", "is not a study"),
    "wrong value": ("rounds: -1\n", "rounds=-1", "greater than 0"),
    "wrong kind": ("rounds: [1]\n", "rounds=[1]", "integer"),
    "spec as mapping": ("partition:\n  dirichlet:\n    alpha: 1\n", "partition", "dirichlet:alpha=0.3"),
    "method as mapping": ("methods:\n  - fedpac: 1\n", "methods", "name:option=value"),
    "unknown method": ("methods: [fedpca]\n", "unknown method 'fedpca'"),
    "label with slash": ("methods: [{name: fedavg, label: a/b}]\n", "label='a/b'", "pattern"),
    "name with slash": ("name: a/b\n", "name='a/b'", "pattern"),
}


@pytest.mark.parametrize("case", STUDIES)
def test_bad_study_file(idiolect: Command, tmp_path: Path, case: str) -> None:
    content, *words = STUDIES[case]
    Path("s.yaml").write_text(content)
    refused(idiolect("run s.yaml"), "s.yaml", *words)
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


def test_study_file_that_is_a_folder(idiolect: Command) -> None:
    Path("s.yaml").mkdir()
    refused(idiolect("run s.yaml"), "cannot read study s.yaml", "directory")


@pytest.mark.parametrize("missing", ["train", "test"])
def test_client_without_rows(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def lopsided(source: data.Source, clients: int, rng: np.random.Generator) -> Split:
        """Client 2 has nothing of one kind."""
        rows = list(np.arange(10 * clients).reshape(clients, 10))
        fewer = [r[:0] if k == 2 else r[5:] for k, r in enumerate(rows)]
        return Split(*([fewer, [r[:5] for r in rows]] if missing == "train" else [[r[:5] for r in rows], fewer]))

    monkeypatch.setitem(data.PARTITIONS, "lopsided", lopsided)
    kind = "training" if missing == "train" else "test"
    refused(idiolect(f"{SMALL} --partition lopsided"), f"client 2 has no {kind} rows", "fewer clients")
    assert list(tmp_path.iterdir()) == []


# --- bad data files


def _images(count: int, labels: list[int] | None = None, **columns: Any) -> pa.Table:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(buffer, "png")
    pictures = [{"bytes": buffer.getvalue(), "path": None}] * count
    return pa.table({"image": pictures, "label": labels or [k % 10 for k in range(count)]} | columns)


def _broken(case: str, train: Path) -> None:
    if case == "missing":
        train.unlink()
    elif case == "truncated":
        train.write_bytes(train.read_bytes()[:-100])
    elif case == "empty":
        train.write_bytes(b"")
    elif case == "no rows":
        pq.write_table(_images(10).slice(0, 0), train)
    elif case == "schema":
        pq.write_table(_images(10).rename_columns(["picture", "label"]), train)
    elif case == "labels":
        pq.write_table(_images(10, [0, 1, 2, 10, 4, 5, 6, 7, 8, 9]), train)
    elif case == "no picture":
        pq.write_table(_images(10).set_column(0, "image", [[{"bytes": b"png", "path": None}] * 10]), train)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", ["no train.parquet", "put them at"]),
        ("truncated", ["cannot be read as parquet", "fetch the file again"]),
        ("empty", ["cannot be read as parquet", "fetch the file again"]),
        ("no rows", ["has no rows", "fetch the file again"]),
        ("schema", ["picture", "it needs image"]),
        ("labels", ["row 3", "label 10", "0 to 9"]),
        ("no picture", ["row 0", "no readable image"]),
    ],
)
def test_bad_data_file(idiolect: Command, tmp_path: Path, case: str, words: list[str]) -> None:
    folder = tmp_path / "sets" / "mnist"
    folder.mkdir(parents=True)
    for which in ("train", "test"):
        pq.write_table(_images(40), folder / f"{which}.parquet")
    _broken(case, folder / "train.parquet")
    refused(idiolect(f"{SMALL} --dataset mnist --data-dir sets"), *words)
    assert [p.name for p in tmp_path.iterdir()] == ["sets"]


# --- folders


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "r"
    line = f"{SMALL} --methods fedavg,fedavg_ft --rounds 1 --quiet --out {shlex.quote(str(folder))}"
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    assert ended.value.code == 0
    return folder


@pytest.fixture
def finished(idiolect: Command, trained: Path) -> Path:
    """A run of its own for each test, in ``r``."""
    return Path(shutil.copytree(trained, "r"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --out r", ["r exists", "--resume"]),
        ("run --resume --out r --rounds 9 --clients 3", ["clients: 4 there, 3 here"]),
        ("run --resume --out r --rounds 9", ["rounds: 1 there, 9 here"]),
        ("run --resume --out r --methods fedavg", ["methods: fedavg, fedavg_ft there, fedavg here"]),
        (
            "run --resume --out r --set fedavg_ft.epochs=3",
            ["methods: fedavg, fedavg_ft there, fedavg, fedavg_ft:epochs=3 here"],
        ),
        ("run --resume --out r --partition dirichlet:alpha=0.7", ["alpha=0.3", "alpha=0.7", "another folder"]),
        ("run --resume --out r --shift invert:clients=1", ["shifts: none there, invert:clients=1 here"]),
        ("run --resume --out r/cells", ["holds no run to resume", "--out"]),
        ("run --resume --out nowhere", ["nowhere holds no run to resume"]),
        (f"{SMALL} --resume --out r/cells", ["r/cells holds no run", "another folder"]),
        (f"{SMALL} --out r/study.yaml", ["cannot use r/study.yaml as a folder", "another folder"]),
        (f"{SMALL} --resume --out r/study.yaml", ["cannot use r/study.yaml as a folder", "another folder"]),
        ("report nowhere", ["no run folder nowhere"]),
        ("report r/cells", ["study.yaml is missing"]),
        ("report r --out r/cells", ["r/cells is a folder"]),
    ],
)
def test_folder_that_does_not_fit(idiolect: Command, finished: Path, line: str, words: list[str]) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    refused(idiolect(line), *words)
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("manifest.json", "{", ["manifest.json is missing or broken", "another folder"]),
        ("manifest.json", "{}", ["manifest.json is missing or broken"]),
        ("manifest.json", '{"hash": "0"}', ["the data have changed", "another folder"]),
        ("study.yaml", "nonsense", ["is not a study"]),
        ("cells/01-fedavg-seed0/checkpoint.safetensors", "x", ["not a readable checkpoint", "delete it"]),
        ("cells/01-fedavg-seed0/records.parquet", "x", ["records.parquet is not readable", "delete its folder"]),
    ],
)
def test_run_that_is_damaged(idiolect: Command, finished: Path, name: str, content: str, words: list[str]) -> None:
    (finished / name).write_text(content)
    refused(idiolect("run --resume --out r --quiet"), *words)


def test_the_mend_of_a_damaged_run_works(idiolect: Command, finished: Path) -> None:
    before = (finished / "records.parquet").read_bytes()
    (finished / "cells/01-fedavg-seed0/checkpoint.safetensors").unlink()
    assert idiolect("run --resume --out r --quiet").code == 0
    assert (finished / "records.parquet").read_bytes() == before


def test_out_that_cannot_be_made(idiolect: Command) -> None:
    Path("file").write_text("")
    refused(idiolect(f"{SMALL} --out file/r"), "file/r", "Not a directory", "another")
    Path("runs").write_text("")
    refused(idiolect(SMALL), "runs/study", "--out")


# --- data of one's own, new clients, describe


@pytest.fixture
def patients() -> Path:
    """A table of two hospitals in the current folder."""
    rng = np.random.default_rng(0)
    lines = ["age,hospital,outcome"]
    for i, age in enumerate(rng.normal(55, 12, 120)):
        lines.append(f"{age:.2f},{('Mercy', 'North')[i % 2]},{'sick' if age > 55 else 'well'}")
    Path("p.csv").write_text("\n".join(lines))
    return Path("p.csv")


OWN = "--data p.csv --target outcome --client-column hospital"
TINY = "--rounds 1 --local-epochs 1 --model mlp --engine sequential --quiet"


@pytest.fixture
def called(idiolect: Command, patients: Path) -> Command:
    """The command, in a folder with a table."""
    return idiolect


def test_own_data_and_a_hospital_that_joins(called: Command) -> None:
    said = called(f"run {OWN} {TINY} --new-clients North --keep 50% --out r")
    assert said.code == 0, said.err
    assert "new clients" in said.out
    assert "clients that trained" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    told = json.loads(called(f"run r/study.yaml --json {TINY} --out again").out)
    assert [row["who"] for row in told["joined"]] == ["clients that trained", "new clients"]
    assert set(told["joined"][1]["accuracy"]) == {"fedavg", "fedavg_ft"}
    assert same_records(Path("r"), Path("again"))
    assert called("run --resume --out r --quiet").code == 0


def test_nobody_joins_nothing_is_said_of_it(called: Command) -> None:
    said = called(f"run {OWN} {TINY} --json")
    assert json.loads(said.out)["joined"] == []
    assert "joined" not in called(f"run {OWN} {TINY}").out


def test_own_data_take_the_place_of_a_set_by_name(called: Command) -> None:
    Path("s.yaml").write_text("dataset: digits\nrounds: 1\nmodel: mlp\nlr: 0.02\n")
    assert called(f"run s.yaml {OWN} --quiet --engine sequential --out r").code == 0
    written = yaml.safe_load(Path("r/study.yaml").read_text())
    assert (written["data"], written["dataset"], written["lr"]) == ("p.csv", None, 0.02)
    assert (written["partition"]["name"], written["clients"]) == ("natural", None)
    assert called(f"run r/study.yaml --dataset digits --partition iid --clients 3 {TINY} --out back").code == 0
    written = yaml.safe_load(Path("back/study.yaml").read_text())
    assert (written["data"], written["dataset"], written["target"]) == (None, "digits", None)
    refused(called(f"run s.yaml {OWN} --dataset digits"), "give data (your own) or dataset", "not both")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --target outcome", ["target goes with data of your own"]),
        ("run --data nowhere.csv", ["nowhere.csv"]),
        ("run --data p.csv --target nothing", ["p.csv", "'nothing'"]),
        (f"run {OWN} --new-clients East", ["there is no client 'East'", "Mercy, North"]),
        (f"run {OWN} --new-clients 2", ["new_clients=2 leaves no client to train", "of 2, 1 to 1 fit"]),
        (f"run {OWN} --shift invert", ["shift invert", "these rows are numbers"]),
        (f"run {OWN} --new-shift invert", ["give new_clients too"]),
        (f"run {OWN} --keep 1000", ["keep=1000", "is the most that every client has"]),
        (f"run {OWN} --sizes 1000", ["sizes: client", "ask for at most"]),
        (f"run {OWN} --keep 300%", ["keep='300%'", "25%"]),
        (f"run {OWN} --normalise symmetric", ["normalise=symmetric is for images"]),
        (f"describe {OWN} --show 7", ["--show: there is no client 7", "0 to 1"]),
        (f"describe {OWN} --show some", ["--show: cannot read clients='some'"]),
        (f"describe {OWN} --out .", ["is a folder"]),
        (f"describe {OWN} --model cifar_cnn", ["cifar_cnn"]),
    ],
)
def test_requests_about_data_that_cannot_be(called: Command, tmp_path: Path, line: str, words: list[str]) -> None:
    refused(called(line), *words)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


def test_describe(called: Command) -> None:
    said = called("describe --clients 4 --partition iid --shift invert:clients=1 --show 1+3 --out d/page.html")
    assert said.code == 0, said.err
    assert said.out.endswith("\nPage: d/page.html\n")
    assert "digits: 10 classes" in said.out
    assert "Classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in " ".join(said.out.split())
    assert max(map(len, said.out.splitlines())) <= 80
    page = Path("d/page.html").read_text()
    assert page.count('src="data:image/png;base64,') == 20
    told = json.loads(called("describe --clients 4 --partition iid --json").out)
    assert told["page"] == "runs/describe.html"
    assert Path(told["page"]).is_file()
    assert [sum(c["train"]) for c in told["clients"]] == [359] * 4
    assert 0 <= told["label_divergence"]["mean"] < 0.05


def test_describe_own_data_and_a_study(called: Command) -> None:
    said = called(f"describe {OWN} --new-clients Mercy")
    assert said.code == 0, said.err
    assert "Mercy (joins)" in said.out
    assert "1 that train, 1 that join afterwards" in said.out
    Path("s.yaml").write_text("data: p.csv\ntarget: outcome\nclient_column: hospital\nrounds: 3\n")
    told = json.loads(called("describe s.yaml --json").out)
    assert [c["name"] for c in told["clients"]] == ["Mercy", "North"]
    assert told["clients"][0]["train"] == json.loads(called(f"describe {OWN} --json").out)["clients"][0]["train"]


def test_a_run_that_python_gave_its_data_says_so(called: Command) -> None:
    source = data.from_arrays(np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, name="mine")
    idl.run(Study(data=source, partition="iid", clients=3, rounds=1, model="mlp"), out="r", engine="sequential")
    for line in ("run r/study.yaml", "run --resume --out r", "describe r/study.yaml"):
        refused(called(line), "data given: mine, ", "they stood in a Python program: run the study from there")
    assert called("report r").code == 0


# --- what fails on the way


@pytest.mark.parametrize("write", [0, 1, 2, 4, 8, 12, 14])
def test_full_disk(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    left, real = write, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    line = f"{SMALL} --rounds 6 --out r"  # checkpoints after rounds 5 and 6
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fsync)
        said = idiolect(line + " --quiet")
    refused(said, "cannot write r/", "No space left on device", "make room")
    assert not list(tmp_path.rglob(".*")), "a draft is left behind"
    if write < 4:  # the folder itself could not be begun
        assert list(tmp_path.iterdir()) == []
    else:
        assert said.err.rstrip().endswith("continue with: idiolect run --resume --out r --engine sequential")
        assert idiolect("run --resume --out r --engine sequential --quiet").code == 0
        assert idiolect(line.replace("--out r", "--out whole --quiet")).code == 0
        assert same_records(Path("r"), Path("whole"))


def test_all_diverge(idiolect: Command, caplog: pytest.LogCaptureFixture) -> None:
    said = idiolect(f"{SMALL} --methods local,fedavg --lr 1e6 --out r --json --quiet")
    assert said.code == 1
    found = json.loads(said.out)
    assert [(d["method"], d["seed"], d["round"]) for d in found["diverged"]] == [("local", 0, 1), ("fedavg", 0, 1)]
    assert [(m["accuracy"], m["diverged"]) for m in found["methods"]] == [(None, 1), (None, 1)]
    assert "local, seed 0: diverged in round 1 (local: client 0, round 1, local: training diverged (" in caplog.text
    assert "lower the learning rate" in caplog.text
    assert Path("r/report.html").exists()


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_diverges_ends_alone(
    idiolect: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lanes: int
) -> None:
    """FedAvg's training becomes NaN in round 3; what runs beside it and after it comes to the end."""
    from idiolect.engines import sequential
    from idiolect.simulation import rounds

    real, rounds, broken = rounds._Run.map, [], True
    monkeypatch.setattr(sequential.Sequential, "lanes", lanes)

    def run(self: rounds._Run, stage: Any, round: int, ids: Any, down: Any, clients: Any) -> Any:
        rounds.append((self.job.name, round))
        found = real(self, stage, round, ids, down, clients)
        if broken and (self.job.name, stage, round) == ("fedavg", "local", 3):
            found[1] = found[1]._replace(up=rounds.tree.map(lambda a: a * float("nan"), found[1].up))
        return found

    line = f"{SMALL} --methods local,fedavg,fedper --rounds 4 --quiet"
    monkeypatch.setattr(rounds._Run, "map", run)
    said = idiolect(f"{line} --out r")
    assert said.code == 1
    row = next(text for text in said.out.splitlines() if text.startswith("FedAvg"))
    assert "diverged in round 3" in row
    assert "fedavg, seed 0: diverged in round 3 (fedavg: server, round 3, aggregate: training diverged (" in caplog.text
    assert ("fedper", 4) in rounds
    assert ("fedavg", 4) not in rounds
    assert "FedAvg, seed 0: diverged in round 3, so that the method has no final results (" in Path(
        "r/report.html"
    ).read_text(encoding="utf-8")
    refused(idiolect("report r --compare fedper,fedavg"), "fedavg diverged in round 3 with seed 0")

    del rounds[:]
    again = "run --resume --out r --quiet --engine sequential"
    said = idiolect(again)
    assert (said.code, rounds) == (1, [])
    assert "diverged in round 3" in said.out
    assert "it was not tried again: to do so, delete r/diverged.json and resume" in caplog.text

    note = Path("r/diverged.json")
    whole = note.read_bytes()
    note.write_bytes(whole.replace(b'"round": 3', b'"round": 2'))
    for command in (again, "report r"):
        refused(idiolect(command), "diverged.json cannot be read (its content has changed since it was written)")
    note.unlink()
    broken = False
    said = idiolect(again)
    assert (said.code, "diverged" in said.out) == (0, False)
    assert {round for _, round in rounds} == {3, 4}, "it goes on after its last whole round"
    assert idiolect(f"{line} --out whole").code == 0
    assert same_records(Path("r"), Path("whole"))


def test_ctrl_c_before_the_run(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Study) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "federation", interrupted)
    said = idiolect(SMALL)
    assert said.code == 130
    assert said.err.strip() == "idiolect: stopped"
    assert list(tmp_path.iterdir()) == []


# --- in a process of its own


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def start(line: str, code: str = "from idiolect.cli import main; main()") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *shlex.split(line)],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def test_ctrl_c_while_importing(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start(SMALL)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.005)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.strip() == "idiolect: stopped"
    assert list(tmp_path.iterdir()) == []


def test_limit_of_file_size(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))\n"
        "from idiolect.cli import main; main()"
    )
    process = start(f"{SMALL} --out r --quiet", code)
    _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith("idiolect: cannot write r/cells/01-fedavg-seed0/checkpoint.safetensors (File too large)")
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob(".*"))


def test_reader_that_leaves_early(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("list methods --json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.wait()
