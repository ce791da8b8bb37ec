"""``idiolect list recipes`` and ``idiolect reproduce``, as a person types them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from idiolect import cli
from idiolect.core.errors import RunError
from idiolect.report import page as drawn
from idiolect.reproduction import recipes, reproduce
from idiolect.reproduction.recipes import Cell, Recipe, Tuned, cell

ALL = {
    "fedpac": [*(f"table{k}" for k in range(1, 11)), "hyperparameters", "fig1a", "fig1b", "fig2", "fig3", "fig4",
        "fig5"],
    "pfedfda": [*(f"table{k}" for k in range(1, 10)), "hyperparameters", "fig1", "fig2", "fig3", "fig4"],
    "fedlda": ["table1", "table2", "hyperparameters", "fig1a", "fig1b"],
    "fedcr": [
        *(f"table{k}" for k in range(2, 11)), "hyperparameters",
        "fig1", "fig2", "fig3a", "fig3b", "fig3c", "fig3d", "fig4",
    ],
}  # fmt: skip
EVERY = [f"{paper}/{entry}" for paper, entries in ALL.items() for entry in entries]
OWN = [
    "natural/table1", *(f"own/table{n}" for n in (1, 3, 4, 5, 6, 7)), "own/development", "own/long", "own/one_round",
    "own/private_rates", "own/private",
]  # fmt: skip


class Said(NamedTuple):
    code: Any
    out: str
    err: str


@pytest.fixture
def idiolect(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], Said]:
    monkeypatch.chdir(tmp_path)
    drawn._bundle()  # seconds in a cache that is empty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(line: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        return Said(ended.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe that runs in a second, in the place of one of the papers'."""
    settings: dict[str, Any] = {"dataset": "digits", "clients": 4, "rounds": 2, "local_epochs": 1, "model": "mlp"}
    cells = [cell({"dataset": "digits", "method": m}, settings, m, p) for m, p in (("local", 99.0), ("fedper", None))]
    made = Recipe(
        "fedpac/table1", "A small table", "results", (*cells, Cell({"dataset": "moon", "method": "local"}, absent="x"))
    )
    monkeypatch.setattr(recipes, "get", lambda name: made)
    return made


def test_every_table_and_figure_is_listed(idiolect: Callable[[str], Said]) -> None:
    assert len(EVERY) == 53
    said = idiolect("list recipes --json")
    assert said.code == 0
    listed = json.loads(said.out)
    assert sorted(listed) == sorted(EVERY + OWN)
    assert all(entry["summary"] and not entry["summary"].endswith(".") for entry in listed.values())
    assert listed["fedpac/table1"]["cells"] == 120 + 3 * 8
    text = idiolect("list recipes").out
    assert "fedpac/table1" in text
    assert "144 cells" in text


@pytest.mark.parametrize("name", EVERY + OWN)
def test_every_recipe_has_a_dry_run(
    idiolect: Callable[[str], Said], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idiolect.reproduction.speeds.step", lambda study, about: 1e-3)
    monkeypatch.delattr("idiolect.reproduction.speeds.measurement")
    said = idiolect(f"reproduce {name} --dry-run")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{name}: ")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("reproduce fedpac/table11", "unknown recipe 'fedpac/table11'; did you mean 'fedpac/table1'"),
        (
            "reproduce fedpac/table1 --only dataset=mars",
            "fedpac/table1 has no cell with dataset=mars; choose from emnist, ",
        ),
        (
            "reproduce fedpac/table1 --only data=emnist",
            "fedpac/table1 has no condition 'data'; did you mean 'dataset'",
        ),
        (
            "reproduce fedpac/table1 --only emnist",
            "--only emnist: cannot read 'emnist'; write KEY=VALUE,KEY=VALUE, for example ",
        ),
        (
            "reproduce fedpac/table1 --only clients=20,clients=100",
            "--only clients=20,clients=100: a key is given twice; write its values with +, for example clients=20+100",
        ),
        (
            "reproduce fedpac/table1 --methods fedpca",
            "fedpac/table1 has no cell with method=fedpca; choose from local, ",
        ),
        ("reproduce fedpac/table1 --compare fedpac,fedavgft", "--compare fedpac,fedavgft: write two of 'local', "),
        ("reproduce fedpac/table1 --compare fedpac", "--compare fedpac: write two of 'local', 'fedavg', "),
        ("reproduce fedpac/table1 --compare local,local", "--compare local,local: write two of 'local', 'fedavg', "),
        (
            "reproduce fedpac/table2 --compare fedpac,local",
            "--compare fedpac,local: write two of 'fedpac ",
        ),
        ("reproduce fedpac/table1 --seeds a", "--seeds a: write whole numbers separated by commas, as 0,1,2, or 0-2"),
        ("reproduce fedpac/table1 --budget soon", "--budget soon: write a time such as 90s, 30m or 8h"),
        ("reproduce fedpac/table1 --budget 0m", "--budget 0m: write a time such as 90s, 30m or 8h"),
        ("reproduce fedpac/table1 --rounds 0", "rounds=0 is not valid: input should be greater than 0"),
        ("reproduce fedpac/table1 --seeds -1", "--seeds -1: write whole numbers separated by commas, as 0,1,2, or 0-2"),
        ("reproduce fedpac/table1 --engine vectorized", "unknown engine 'vectorized'; did you mean 'vectorised'"),
        ("reproduce fedpac/table1 --workers 0", "workers=0 is not possible: give at least 1"),
        (
            "reproduce fedpac/table1 --precision fp16",
            "precision='fp16' is not valid: input should be 'float32' or 'bf16'",
        ),
        (
            "reproduce fedpac/table1 --precision bf16 --engine vectorised",
            "precision=bf16 is for the engines processes and sequential, not vectorised: choose one of them with ",
        ),
        ("reproduce fedpac/table1 --track tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        ("reproduce fedpac/table1 --measure", "--measure is for --dry-run"),
        ("reproduce fedpac/table1 --trials 5", "--trials is for --tune: add --tune, or leave it out"),
        ("reproduce fedpac/table1 --tune --trials 0", "trials=0 is not valid: input should be greater than 0"),
        ("reproduce fedpac/table1 --tune --methods pfedhn --trials 1", "1 trial for 2 settings of pfedhn"),
        (
            "reproduce fedpac/table1 --tune --methods local,fedavg",
            "none of these cells is tuned by the paper, only those",
        ),
        ("reproduce fedlda/table2 --tune --dry-run", "fedlda/table2 cannot be tuned, because its paper says that all "),
        ("reproduce own/table1 --tune", "own/table1 cannot be tuned, because it is a table of our own, whose "),
        (
            "reproduce fedcr/table4 --tune",
            "fedcr/table4 has nothing to tune, because it trains nothing: leave out --tune",
        ),
        ("reproduce fedpac/table1 --dry-run --budget soon", "--budget soon: write a time such as 90s, 30m or 8h"),
    ],
)
def test_bad_input_is_one_sentence(idiolect: Callable[[str], Said], line: str, sentence: str) -> None:
    said = idiolect(line)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"idiolect: {sentence}"), said.err
    assert said.err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_run_its_table_its_files_and_again(idiolect: Callable[[str], Said], small: Recipe) -> None:
    said = idiolect("reproduce fedpac/table1 --results results --engine sequential --quiet")
    assert said.code == 0
    assert said.err.startswith("2 runs are left, about ")
    for words in ("99.00", "measured", "no data", "A small table"):
        assert words in said.out
    kept = sorted(p.name for p in Path("results").rglob("*.json"))
    assert kept == ["digits-fedper.json", "digits-local.json"]
    assert Path("runs/reproduce/fedpac-table1.html").exists()
    again = idiolect("reproduce fedpac/table1 --json --engine sequential --quiet")
    assert "left" not in again.err, "all is run"
    assert [c["status"] for c in json.loads(again.out)["cells"]] == ["differs", "measured", "no data"]
    short = idiolect("reproduce fedpac/table1 --rounds 1 --results results --engine sequential --quiet")
    assert short.code == 0
    assert "nothing is written to results, because --rounds makes this a trial" in short.err
    assert sorted(p.name for p in Path("results").rglob("*.json")) == kept
    assert len(list(Path("runs/reproduce").glob("digits-*"))) == 4, "another number of rounds is another run"


def test_a_cell_goes_on_in_the_precision_of_its_numbers(idiolect: Callable[[str], Said], small: Recipe) -> None:
    line = "reproduce fedpac/table1 --only dataset=digits --results results --engine sequential --quiet"
    said = idiolect(f"{line} --precision bf16 --methods local")
    assert said.code == 0
    assert "Networks computed in bf16: all." in said.out
    said = idiolect(f"{line} --json")
    assert "1 cell keeps the precision of the numbers in results, which is not float32\n" in said.err
    assert [c["precision"] for c in json.loads(said.out)["cells"]] == ["bf16", "float32"]
    said = idiolect(f"{line} --precision bf16 --dry-run")
    assert "1 cell keeps the precision of the numbers in results, which is not bf16\n" in said.err
    assert "Nothing is left to run." in said.out


def test_without_anything_to_run_the_reason_is_the_error(idiolect: Callable[[str], Said], small: Recipe) -> None:
    said = idiolect("reproduce fedpac/table1 --only dataset=moon")
    assert said.code == 0
    assert "no data" in said.out


def test_a_table_is_tuned_beside_the_one_that_is_printed(
    idiolect: Callable[[str], Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "dataset": "digits", "clients": 4, "keep": 40, "rounds": 2, "local_epochs": 1, "model": "mlp:hidden=8",
    }  # fmt: skip
    cells = [cell({"dataset": "digits", "method": m}, settings, m, 99.0) for m in ("local", "fedpac", "fedprox")]
    values = {"fedpac": {"alignment": (1, 5)}, "fedprox": {"mu": (0.01, 0.1, 1)}}
    made = Recipe("fedpac/table1", "A small table", "results", tuple(cells), tuned=Tuned(values, "appendix B.3"))
    monkeypatch.setattr(recipes, "get", lambda name: made)
    line = "reproduce fedpac/table1 --results results --engine sequential --quiet"
    assert idiolect(line).code == 0
    before = {p: p.read_bytes() for p in Path("results").rglob("*.json")}
    planned = json.loads(idiolect(f"{line} --tune --dry-run --json").out)
    assert [(p["method"], p["rounds"]) for p in planned] == [
        ("local", 2), ("fedpac, 2 trials", 4), ("fedpac, tuned", 2), ("fedprox, 3 trials", 6), ("fedprox, tuned", 2),
    ]  # fmt: skip
    said = idiolect(f"{line} --tune")
    assert said.code == 0
    assert "fedpac/table1-tuned: A small table, tuned as the paper says" in said.out
    assert "Tuned over the values of the paper (appendix B.3): 2 to 3 trials for a cell" in " ".join(said.out.split())
    assert {p: p.read_bytes() for p in before} == before
    shown = json.loads(idiolect(f"{line} --tune --json").out)
    assert shown["recipe"] == "fedpac/table1-tuned"
    assert shown["page"] == "runs/reproduce/fedpac-table1-tuned.html"
    chosen = {c["where"]["method"]: c.get("tuned") for c in shown["cells"]}
    assert chosen["local"] is None
    assert chosen["fedpac"]["values"]["alignment"] in (1, 5)
    assert chosen["fedprox"]["values"]["mu"] in (0.01, 0.1, 1)
    page = Path(shown["page"]).read_text()
    assert f"mu {chosen['fedprox']['values']['mu']:g}" in page
    assert sorted(p.name for p in Path("results/fedpac/table1-tuned").iterdir()) == [
        "digits-fedpac.json", "digits-fedprox.json", "digits-local.json",
    ]  # fmt: skip
    again = idiolect(f"{line} --tune --dry-run")
    assert "Nothing is left to run." in again.out
    few = idiolect(f"{line} --tune --rounds 1 --methods fedpac --trials 1")
    assert few.code == 0
    assert "1 round only" in few.out


def test_a_failed_run_shows_in_the_exit_code(
    idiolect: Callable[[str], Said], small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise RunError("local, round 1, client 0: worker 1 died")

    with monkeypatch.context() as broken:
        broken.setattr(reproduce, "run", failing)
        said = idiolect("reproduce fedpac/table1 --methods local --quiet --workers 1 --out cells")
    assert said.code == 1
    assert "failed: local, round 1, client 0: worker 1 died" in said.err
    assert "failed" in said.out
    assert idiolect("reproduce fedpac/table1 --methods local --quiet --workers 1 --out cells").code == 0


def test_methods_are_compared_and_the_table_is_written(idiolect: Callable[[str], Said], small: Recipe) -> None:
    line = "reproduce fedpac/table1 --only dataset=digits --engine sequential --quiet --out cells"
    said = idiolect(f"{line} --compare fedper,local --export latex")
    assert said.code in (0, None)
    shown = " ".join(said.out.split())
    assert "FedPer against Local" in shown
    assert "4 clients, one seed" in shown
    assert "Written: cells/fedpac-table1/table.tex" in shown
    text = Path("cells/fedpac-table1/table.tex").read_text()
    assert text.startswith("\\begin{tabular}{lrrrl}\n\\toprule\nmethod & paper & ours & difference & status \\\\\n")
    assert "local & 99.00 & " in text
    said = idiolect(f"{line} --compare fedper,local --export csv --json")
    assert "Written: cells/fedpac-table1/table.csv" in said.err
    told = json.loads(said.out)
    (both,) = told["compared"]
    assert (both["setting"], both["method"], both["base"]) == ("digits", "fedper", "local")
    rows = pd.read_csv("cells/fedpac-table1/table.csv")
    assert list(rows["method"]) == ["local", "fedper"]
    for row, one in zip(rows.to_dict("records"), told["cells"], strict=True):
        assert row["measured"] == pytest.approx(one["measured"], rel=1e-15)
        assert row["worst_decile"] == pytest.approx(one["facts"]["worst_decile"], rel=1e-15)
    nothing = idiolect("reproduce fedpac/table1 --only dataset=moon --quiet --out none --export png")
    assert "--export png: there is nothing to write yet" in nothing.err
    pictures = idiolect(f"{line} --export png").out
    assert "Written: cells/fedpac-table1/rounds.png" in pictures
    assert Path("cells/fedpac-table1/rounds.png").read_bytes().startswith(b"\x89PNG")
    page = Path("cells/fedpac-table1.html").read_text()
    assert page.count("Copy LaTeX") == 2
