"""Data of one's own, new clients, and ``idiolect describe``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import OWN, TINY, Command, refused, same_records

import idiolect as idl
from idiolect import data
from idiolect.studies import Study


def test_own_data_and_a_hospital_that_joins(called: Command) -> None:
    said = called(f"run {OWN} {TINY} --new-clients North --keep 50% --out r")
    assert said.code == 0, said.err
    assert "new clients" in said.out
    assert "clients that trained" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    told = json.loads(called(f"run r/study.yaml --json {TINY} --out again").out)
    assert [row["who"] for row in told["new_clients"]] == ["clients that trained", "new clients"]
    assert set(told["new_clients"][1]["accuracy"]) == {"fedavg", "fedavg_ft"}
    assert same_records(Path("r"), Path("again"))
    assert called("run --resume --out r --quiet").code == 0


def test_a_score_is_no_class_unless_it_is_said(called: Command, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f"{'ab'[k % 2]},{k % 7},{k % 45}\n" for k in range(450))
    Path("s.csv").write_text("site,x,score\n" + rows)
    line = "--data s.csv --client-column site --target score"
    said = called(f"describe {line}")
    assert said.code == 0
    for words in ("has 45 different whole numbers, which are taken as numbers to predict", "--task classification"):
        assert words in caplog.text
    refused(called(f"describe {line} --task ranking"), "task='ranking' is not valid", "'classification'")
    told = json.loads(called(f"describe {line} --task classification --json").out)
    assert len(told["class_names"]) == 45
    Path("s.yaml").write_text("data: s.csv\ntarget: score\nclient_column: site\ntask: classification\n")
    assert called("describe s.yaml").code == 0
    assert called(f"run {line} --task classification {TINY} --quiet --out r").code == 0
    assert yaml.safe_load(Path("r/study.yaml").read_text())["task"] == "classification"
    refused(called("run --task classification"), "task is for your own data")


@pytest.mark.skipif(os.sep != "/", reason="backslashes separate folders there")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --data 'images\\train'", ["there is no file or folder images\\train", "write images/train"]),
        ("describe --data 'sub\\p.csv' --target outcome", ["backslashes do not separate folders", "write sub/p.csv"]),
        ("describe --data 'C:\\Users\\p.csv'", ["this is a path of Windows", "with / between folders"]),
        ("describe --dataset mnist --data-dir 'my\\sets'", ["--data-dir", "write my/sets"]),
        ("run 'studies\\one.yaml'", ["studies\\one.yaml", "write studies/one.yaml"]),
        (f"run {OWN} --out 'runs\\one'", ["--out", "write runs/one"]),
        ("predict 'a\\site' --data p.csv", ["write a/site"]),
        ("join site --data 'a\\p.csv'", ["--data", "write a/p.csv"]),
        ("report 'runs\\a' runs/b", ["write runs/a"]),
    ],
)
def test_backslashes(called: Command, tmp_path: Path, line: str, words: list[str]) -> None:
    refused(called(line), *words)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


def test_nobody_joins_nothing_is_said_of_it(called: Command) -> None:
    said = called(f"run {OWN} {TINY} --json")
    assert json.loads(said.out)["new_clients"] == []
    assert "new" not in called(f"run {OWN} {TINY}").out


def test_a_run_has_the_name_of_its_data(called: Command) -> None:
    assert called(f"run {OWN} {TINY} --quiet").code == 0
    assert yaml.safe_load(Path("runs/p/study.yaml").read_text())["name"] == "p"


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
        ("run --target outcome", ["target is for your own data"]),
        ("run --data nowhere.csv", ["nowhere.csv"]),
        ("run --data p.csv --target nothing", ["p.csv", "'nothing'"]),
        (f"run {OWN} --new-clients East", ["there is no client 'East'", "Mercy, North"]),
        (f"run {OWN} --new-clients 2", ["new_clients=2 leaves no clients that train", "of 2, 1 to 1 can be new"]),
        (f"run {OWN} --shift invert", ["shift invert", "these samples are numbers"]),
        (f"run {OWN} --new-shift invert", ["give new_clients too"]),
        (f"run {OWN} --keep 1000", ["keep=1000", "is the most that every client has"]),
        (f"run {OWN} --sizes 1000", ["sizes: client", "take at most"]),
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
    assert "Mercy (new)" in said.out
    assert "1 that train, 1 new" in said.out
    Path("s.yaml").write_text("data: p.csv\ntarget: outcome\nclient_column: hospital\nrounds: 3\n")
    told = json.loads(called("describe s.yaml --json").out)
    assert [c["name"] for c in told["clients"]] == ["Mercy", "North"]
    assert told["clients"][0]["train"] == json.loads(called(f"describe {OWN} --json").out)["clients"][0]["train"]


def test_a_run_that_python_gave_its_data_says_so(called: Command) -> None:
    source = data.from_arrays(np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2, name="mine")
    idl.run(Study(data=source, partition="iid", clients=3, rounds=1, model="mlp"), out="r", engine="sequential")
    for line in ("run r/study.yaml", "run --resume --out r", "describe r/study.yaml"):
        refused(
            called(line),
            "data given: mine, ",
            "they were given in a Python program: run the study from there",
        )
    assert called("report r").code == 0


@pytest.mark.parametrize(
    ("partition", "words", "sentence"),
    [
        ("", "natural, official test split", "Tested on the official test split."),
        (
            "--partition natural:official_split=false", "natural (test_fraction 0.2), official splits divided again",
            "Official splits divided again.",
        ),
    ],
)  # fmt: skip
def test_describe_the_table_and_the_page_say_which_split_is_used(
    idiolect: Command, partition: str, words: str, sentence: str
) -> None:
    folder = Path("own")
    folder.mkdir()
    (folder / "train.csv").write_text("site,x,label\na,1,0\na,2,1\nb,3,0\nb,4,1\n")
    (folder / "test.csv").write_text("site,x,label\na,90,0\nb,91,1\n")
    how = f"--data own --client-column site {partition}"
    assert words in " ".join(idiolect(f"describe {how}").out.split())
    assert json.loads(idiolect(f"describe {how} --json").out)["official_split"] is not bool(partition)
    ran = idiolect(f"run {how} --rounds 1 --methods local --engine sequential --out run")
    assert sentence in " ".join(ran.out.split())
    assert words in Path("run/report.html").read_text()
    assert json.loads(Path("run/manifest.json").read_text())["official_split"] is not bool(partition)
