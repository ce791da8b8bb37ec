"""``idiolect run``: what it prints and writes, its engines, presets, labels, and going on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from commands import SMALL, Command, refused, same_records

from idiolect.studies import Study


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
        ("auto:chunk=1", ["engine auto has no options", "give the name of the engine"]),
        ("processes:chunk=1", ["engine processes has no option 'chunk'"]),
        ("vektorised", ["did you mean 'vectorised'"]),
        ("processes --ray-address auto", ["--ray-address is for --engine ray, not processes"]),
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
    assert (said.code, "is given twice" in said.err) == (2, True)


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


def test_measures_and_predictions(idiolect: Command) -> None:
    line = f"{SMALL} --methods fedavg,local --rounds 1 --measure auroc,recall --measure auroc --save-predictions"
    assert idiolect(f"{line} --quiet --out r").code == 0
    assert yaml.safe_load(Path("r/study.yaml").read_text())["measures"] == ["auroc", "recall"]
    clients = pq.read_table("r/predictions.parquet")["client"].to_pylist()
    said = idiolect("report r --export clients --out tables")
    assert (said.code, "clients-auroc.csv" in said.out) == (0, True)
    lines = Path("tables/clients.csv").read_text().splitlines()
    assert lines[0].startswith("client,name,test_samples,fedavg,fedavg low,fedavg high,local,")
    assert len(lines) == 1 + len(set(clients))
    refused(idiolect(f"{SMALL} --measure aurok --out s"), "unknown measure 'aurok'", "did you mean 'auroc'")
    refused(idiolect(f"{SMALL} --measure sensitivity --out s"), "sensitivity is for two classes", "choose recall")
    assert not Path("s").exists()


def test_two_runs_in_one_table(idiolect: Command, finished: Path) -> None:
    assert idiolect(f"{SMALL} --methods fedavg,local --rounds 1 --lr 0.1 --quiet --out s").code == 0
    pages = Path("r/report.html").read_bytes(), Path("s/report.html").read_bytes()
    assert idiolect("report r s").out == "Report: r/comparison.html\n"
    assert (Path("r/report.html").read_bytes(), Path("s/report.html").read_bytes()) == pages, "a run keeps its page"
    said = idiolect("report r s --export latex --columns accuracy,worst --out t")
    assert (said.code, said.out) == (0, "Written: t/table.tex\n")
    text = Path("t/table.tex").read_text()
    assert all(f"\n{name} & " in text for name in ("FedAvg (r)", "FedAvg-FT", "FedAvg (s)", "Local"))
    assert "The runs differ in lr: 0.01 in r, 0.1 in s." in text
    assert "FedAvg (s) against FedAvg (r)" in idiolect("report r s --compare 'fedavg (s),fedavg (r)'").out
    refused(idiolect("report r s --export latex --columns acuracy"), "no column 'acuracy'", "did you mean 'accuracy'")
    refused(idiolect("report r --columns accuracy"), "--columns chooses columns of an exported table: add --export")
    assert idiolect(f"{SMALL} --methods local --rounds 1 --partition iid --quiet --out u").code == 0
    refused(
        idiolect("report r u --compare fedavg,local"), "r and u cannot stand in one table", "iid (test_fraction 0.2) in"
    )
