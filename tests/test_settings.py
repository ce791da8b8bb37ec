"""The page of the papers' settings: complete, every command read by the command line, every number made again."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

from idiolect import cli, data, models
from idiolect.data import Source
from idiolect.studies import Study

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
REAL = Path(os.environ.get("IDIOLECT_DATA") or ROOT.parent / "shared" / "data")

TABLES = {"fedpac": range(1, 11), "pfedfda": range(1, 10), "fedlda": (1, 2), "fedcr": range(2, 11)}
FIGURES = {
    "fedpac": ("1a", "1b", 2, 3, 4, 5),
    "pfedfda": (1, 2, 3, 4),
    "fedlda": ("1a", "1b"),
    "fedcr": (1, 2, "3a", "3b", "3c", "3d", 4),
}
ENTRIES = [
    *(f"{paper}/table{n}" for paper, numbers in TABLES.items() for n in numbers),
    *(f"{paper}/fig{n}" for paper, numbers in FIGURES.items() for n in numbers),
    *(f"{paper}/hyperparameters" for paper in TABLES),
]

MNIST = (
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)
UNSAID = ("femnist", "digit5")  # rows per writer, and labels per domain, are in the files alone


class Command(NamedTuple):
    """A line of the page and the line under it."""

    line: str
    says: str


def commands() -> list[Command]:
    blocks = re.findall(r"^```settings\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith(("idiolect describe ", "#   ")) for line in lines)
    under = [*lines[1:], ""]
    return [Command(a, b if b[:1] == "#" else "") for a, b in zip(lines, under, strict=True) if a[:1] != "#"]


COMMANDS = commands()


class Parsed(Exception):
    """Ends the command when its study is known."""


def study_of(line: str) -> Study:
    """What the command line makes of a command, before any data is read."""

    def stop(study: Study) -> None:
        raise Parsed(study)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Study, "samples", stop)
        with pytest.raises(Parsed) as caught:
            cli.app(shlex.split(line)[1:], standalone_mode=False)
    study: Study = caught.value.args[0]
    return study


def spread(counts: list[int]) -> str:
    low, middle, high = min(counts), float(np.median(counts)), max(counts)
    return f"{low:,}" if low == high else f"{low:,}-{middle:,.1f}-{high:,}".replace(".0-", "-")


def says(train: list[int], test: list[int]) -> str:
    return f"#   {len(train):,} clients: {spread(train)} to train on, {spread(test)} to test on"


def test_every_table_and_figure_has_one_row_that_leads_to_its_section() -> None:
    assert len(ENTRIES) == 53
    rows = dict(re.findall(r"^\| `(\w+/\w+)` \|[^|]+\|([^|]+)\|$", PAGE, re.MULTILINE))
    assert sorted(rows) == sorted(ENTRIES)
    assert sorted(re.findall(r"^\| `(\w+/\w+)`", PAGE, re.MULTILINE)) == sorted(ENTRIES), "an entry stands twice"
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    targets = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert set(targets) <= anchors
    assert all("](#" in where for where in rows.values())


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("emnist_letters", "392 to train on, 168 to test on"),
        ("--model fedcr_fmnist_cnn", "490 to train on, 210 to test on"),
        ("--model fedcr_cifar_cnn", "420 to train on, 180 to test on"),
        ("rows=63", "50 to train on, 13 to test on"),
        ("--dataset cinic10", "600 to train on, 300 to test on"),
        ("--dataset emnist ", "1,000 to train on, "),
        ("--partition pathological", "600 to train on, 300 to test on"),
        ("rows=2000", "1,600 to train on, 400 to test on"),
    ],
)
def test_sizes_are_those_of_the_papers(part: str, rows: str) -> None:
    said = [command.says for command in COMMANDS if part in command.line]
    assert said
    assert all(rows in line for line in said)


def test_no_command_stands_twice() -> None:
    lines = [command.line for command in COMMANDS]
    assert len(lines) == len(set(lines)) > 90


def test_the_study_file_of_the_page_is_one_of_its_commands() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    written = Study(**yaml.safe_load(text))
    training = {"rounds": written.rounds, "participation": written.participation}
    assert written in [study_of(c.line).model_copy(update=training) for c in COMMANDS if "corrupt" in c.line]


@pytest.mark.parametrize("line", [command.line for command in COMMANDS])
def test_a_command_is_a_study_whose_network_takes_its_rows(line: str) -> None:
    study = study_of(line)
    about = data.describe(str(study.dataset))
    models.build(study.model, tuple(about["shape"]), about["classes"])
    assert Study(**study.model_dump()) == study


def stand_in(name: str) -> Source:
    """The labels of a data set, as many of each class as are published, with blank images."""
    about = data.describe(name)
    classes, train_rows, test_rows = about["classes"], about["train_rows"], about["test_rows"]
    even = [np.full(classes, rows // classes) for rows in (train_rows, test_rows)]
    if name == "emnist":  # a profile; the partition deals the same numbers to clients as long as no class runs out
        even = [np.diff(np.linspace(0, rows, classes + 1).astype(int)) for rows in (train_rows, test_rows)]
    train_C, test_C = MNIST if name == "mnist" else even
    y_R = np.concatenate([np.repeat(np.arange(classes), train_C), np.repeat(np.arange(classes), test_C)])
    assert len(y_R) == about["rows"]
    x_R = torch.zeros(len(y_R), 1, 1, 1, dtype=torch.uint8)
    names = tuple(about["class_names"])
    return Source(name, x_R, torch.from_numpy(y_R), classes, names, (0.5,), (0.5,), train_rows)


@pytest.fixture(scope="module")
def sources() -> dict[str, Source]:
    return {}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.line)
def test_the_clients_have_as_many_rows_as_the_page_says(command: Command, sources: dict[str, Source]) -> None:
    study = study_of(command.line)
    name = str(study.dataset)
    if name in UNSAID:
        assert not command.says
        return
    if name == "digits3":
        assert command.says  # compared where the files are, below
        return
    source = sources.setdefault(name, stand_in(name))
    made = data.build(source, study.partition, (), study.clients, study.data_seed, sizes=study.sizes, keep=study.keep)
    assert command.says == says([len(rows) for rows in made.train], [len(rows) for rows in made.test])


@pytest.mark.thorough(but=["line2"])
@pytest.mark.data
@pytest.mark.parametrize(
    "line",
    [
        "--dataset fashion_mnist --clients 20 --partition dominant --shift rotate:groups=5",
        "--dataset cifar10 --clients 100 --partition dirichlet:alpha=0.5 --keep 50 --normalise symmetric",
        '--dataset digits3 --clients 12 --partition "domains:inside=dirichlet(alpha=0.5)" --normalise symmetric',
    ],
)
def test_a_setting_is_described(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [command] = [c for c in COMMANDS if c.line == f"idiolect describe {line}"]
    study = study_of(command.line)
    if not (REAL / str(study.dataset) / "train.parquet").is_file():
        pytest.skip(f"the real {study.dataset} is not here: set IDIOLECT_DATA to the folder that holds it")
    where = ["--data-dir", str(REAL), "--out", str(tmp_path / "page.html"), "--json"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(command.line)[1:], *where])
    assert ended.value.code == 0
    about: dict[str, Any] = json.loads(capsys.readouterr().out)
    train, test = ([sum(client[part]) for client in about["clients"]] for part in ("train", "test"))
    assert len(train) == study.clients
    assert command.says == says(train, test)
