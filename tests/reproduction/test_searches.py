"""Cells whose settings are chosen first; what is expected comes from plain runs of every value."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import idiolect as idl
from idiolect.core.errors import InputError, Interrupted
from idiolect.reproduction import forecast, outcome_files, outcomes, pages, recipes, reproduce, searches, verdicts
from idiolect.reproduction.recipes import Cell, Recipe, Tuned, cell
from idiolect.tuning.progress import SearchWatcher
from idiolect.tuning.trials import read

SMALL: dict[str, Any] = {
    "dataset": "digits", "clients": 3, "keep": 40, "rounds": 3, "local_epochs": 2, "batch_size": 8, "lr": 0.05,
    "model": "mlp:hidden=8", "evaluate_every": 3,
}  # fmt: skip
TUNED = Tuned(
    {
        "ditto": {"pull": (0.01, 1, 30)}, "fedavg": {"lr": (0.0005, 0.05)}, "fedavg_ft": {"lr": (0.05, 0.3)},
        "fedpac": {"alignment": (1, 3), "head_lr": (0.001, 0.1)},
    },
    "appendix X",
    ("One value for all is assumed.",),
)  # fmt: skip
USES = {"local": "local", "ditto": "ditto:pull=1", "fedavg": "fedavg_ft", "fedavg_ft": "fedavg_ft", "fedpac": "fedpac"}
STAGES = {"fedavg": "received"}


def small(*names: str, tuned: Tuned = TUNED, **settings: Any) -> Recipe:
    """A tuned recipe with cells of these methods."""
    cells = [
        cell({"dataset": "digits", "method": n}, SMALL | settings, USES[n], 95.0, stage=STAGES.get(n)) for n in names
    ]
    return searches.tuned_recipe(Recipe("fedpac/table1", "A small table", "results", tuple(cells), tuned=tuned))


def opened(recipe: Recipe, trials: int | None = None) -> list[Cell]:
    return searches.with_searches(recipe, recipe.cells, trials)


def run(cells: list[Cell], out: Path, **how: Any) -> list[outcomes.Outcome]:
    return list(reproduce.reproduce(cells, out, engine="sequential", **how))


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def plain(method: str, values: dict[str, Any], out: Path, validation: float, metric: str) -> float:
    """The mean over clients of a plain run's last round."""
    name, _, given = USES[method].partition(":")
    options = dict(pair.split("=") for pair in given.split(",") if pair)
    text = f"{name}:" + ",".join(f"{k}={v}" for k, v in (options | values).items())
    stage = STAGES.get(method, "personalised")
    study = idl.Study(methods=[text], protocol={"validation": validation, "stage": stage}, **SMALL)
    records = idl.run(study, out / f"{text} {validation}", engine="sequential", resume=True).records
    last = records[(records.metric == metric) & (records.stage == stage) & (records["round"] == SMALL["rounds"])]
    return float(last.value.mean())


GRIDS: dict[str, list[dict[str, Any]]] = {
    "ditto": [{"pull": v} for v in (0.01, 1, 30)],
    "fedavg": [{"lr": v} for v in (0.0005, 0.05)],
    "fedavg_ft": [{"lr": v} for v in (0.05, 0.3)],
    "fedpac": [{"alignment": a, "head_lr": r} for a in (1, 3) for r in (0.001, 0.1)],
}


@pytest.mark.thorough(but=["fedpac"])
@pytest.mark.parametrize("method", GRIDS)
def test_the_choice_is_the_best_on_validation_samples_and_is_trained_on_all(method: str, tmp_path: Path) -> None:
    grid = GRIDS[method]
    (found,) = run(opened(small(method)), tmp_path / "cells")
    scores = [
        (plain(method, v, tmp_path, 0.2, "validation_accuracy"), -plain(method, v, tmp_path, 0.2, "validation_loss"))
        for v in grid
    ]
    best = max(range(len(grid)), key=lambda k: (*scores[k], -k))
    assert found.cell.search is not None
    assert found.cell.choice is not None
    assert (found.cell.search.trials, dict(found.cell.choice.values)) == (len(grid), grid[best])
    assert found.cell.choice.score == pytest.approx(scores[best][0], abs=1e-9)
    assert found.value == pytest.approx(100 * plain(method, grid[best], tmp_path, 0.0, "accuracy"), abs=1e-9)
    [trials] = (tmp_path / "cells").glob("*-tune-*/trials-1")
    assert "accuracy" not in set(pd.read_parquet(trials / "records.parquet")["metric"]), "no test sample in a trial"


class Stopped(SearchWatcher):
    """Ctrl-C in a search."""

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        if round == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.thorough(but=["fedavg"])
@pytest.mark.parametrize("method", ["ditto", "fedavg", "fedpac"])
def test_a_search_that_was_stopped_goes_on(method: str, tmp_path: Path) -> None:
    cells, said = opened(small("local", method)), list[str]()
    with pytest.raises(Interrupted, match=r"^stopped in rung 1 of 1, batch 1; the same command "):
        run(cells, tmp_path / "a", search_watcher=Stopped, told=said.append)
    search = searches.search_run(cells[1], tmp_path / "a")
    assert 0 < search.done < search.rounds
    [planned] = [p for p in forecast.forecast(cells, tmp_path / "a") if "trials" in p.method]
    assert (planned.done, planned.rounds) == (search.done, search.rounds)
    after, whole = run(cells, tmp_path / "a"), run(cells, tmp_path / "b")
    assert [o.value for o in after] == [o.value for o in whole]
    assert after[1].cell.choice == whole[1].cell.choice
    said.clear()
    assert all(p.done == p.rounds for p in forecast.forecast(cells, tmp_path / "a"))
    settled = [searches.settled(small("local", method), c, tmp_path / "a", None) for c in cells]
    assert [o.value for o in run(settled, tmp_path / "a", told=said.append)] == [o.value for o in whole]
    assert not said, "nothing is left"


def test_when_the_time_is_used_up_nothing_is_begun(tmp_path: Path) -> None:
    said: list[str] = []
    found = run(opened(small("ditto", "local", "fedpac")), tmp_path, budget=-1.0, told=said.append)
    assert [o.status for o in found] == ["not run"] * 3
    assert set(said) <= {"the time is used up: the same command continues from here"}
    assert not list(tmp_path.iterdir())


def test_tuned_numbers_stand_beside_the_others(tmp_path: Path) -> None:
    """In files and a page of their own; a choice that is the printed value is the run that is there."""
    recipe = small("local", "fedavg", "ditto")
    before = replace(recipe, name="fedpac/table1")
    out, results = tmp_path / "runs", tmp_path / "results"
    for one in run(list(before.cells), out):
        outcome_files.keep(before, one, results)
    files = {p: p.read_bytes() for p in results.rglob("*.json")}
    folders = {p.name for p in out.iterdir()}
    tuned = run(opened(recipe), out)
    for one in tuned:
        outcome_files.keep(recipe, one, results)
    assert {p: p.read_bytes() for p in files} == files
    assert {p.parent.name for p in results.rglob("*.json")} == {"table1", "table1-tuned"}
    choice = tuned[1].cell.choice
    assert choice is not None
    assert choice.values == {"lr": 0.05}
    assert tuned[1].cell.study == before.cells[1].study
    changed = [o for o in tuned if o.cell.choice and o.cell.choice.values not in ({"lr": 0.05}, {"pull": 1})]
    new = {p.name for p in out.iterdir()} - folders
    assert len([name for name in new if "-tune-" not in name]) == len(changed)
    head = verdicts.head(recipe, tuned)
    assert [row[1] for row in head.rows] == ["", "lr 0.05", f"pull {tuned[2].cell.choice.values['pull']:g}"]  # type: ignore[union-attr]
    assert "tuned as the paper says" in head.title
    page = pages.page(recipe, pages.runs_of([o.cell for o in tuned], out), out, head)
    assert page == out / "fedpac-table1-tuned.html"
    assert "lr 0.05" in page.read_text()
    assert "tuned" not in verdicts.as_json(tuned[0])
    assert verdicts.as_json(tuned[1])["tuned"] == {"values": {"lr": 0.05}, "score": choice.score}
    csv = verdicts.as_csv(tuned).splitlines()
    assert "tuned" in csv[0].split(",")


@pytest.mark.thorough(but=["ditto"])
@pytest.mark.parametrize("method", ["ditto", "fedavg", "fedpac"])
def test_a_file_of_results_has_the_choice(method: str, tmp_path: Path) -> None:
    recipe = small(method)
    out, results, said = tmp_path / "runs", tmp_path / "results", list[str]()
    (first,) = run(opened(recipe), out)
    path = outcome_files.keep(recipe, first, results)
    assert path is not None
    shutil.rmtree(out)

    def again(cells: list[Cell]) -> list[outcomes.Outcome]:
        settled = [searches.settled(recipe, c, out, results) for c in cells]
        known = {c.slug: outcome_files.kept_results(recipe, c, results) for c in settled}
        return run(settled, out, told=said.append, known=lambda c: known[c.slug])

    (second,) = again(opened(recipe))
    assert (second.cell.choice, second.value) == (first.cell.choice, pytest.approx(first.value, abs=1e-4))
    assert not said
    assert not out.exists()
    content = json.loads(path.read_text())
    content["tuned"]["over"] = {name: [*each, 7] for name, each in content["tuned"]["over"].items()}
    path.write_text(json.dumps(content))
    assert outcome_files.current(recipe, opened(recipe)[0], results) is None, "other values were tried"


def test_a_search_between_two_batches_counts_what_has_ended(tmp_path: Path) -> None:
    class InTheSecond(SearchWatcher):
        batch = 0

        def rung(self, batch: int, rung: int, until: int, trials: Any) -> None:
            self.batch = batch

        def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
            if (self.batch, round) == (2, 2):
                os.kill(os.getpid(), signal.SIGINT)

    cells = opened(small("fedpac"), 3)  # two at first, then one
    with pytest.raises(Interrupted):
        run(cells, tmp_path, search_watcher=InTheSecond)
    search = searches.search_run(cells[0], tmp_path)
    rounds = SMALL["rounds"]
    assert 2 * rounds < search.done < search.rounds == 3 * rounds


@pytest.mark.parametrize(("method", "trials"), [("ditto", 2), ("fedpac", 3), ("fedavg", 1)])
def test_fewer_trials_than_values(method: str, trials: int, tmp_path: Path) -> None:
    cells = opened(small(method), trials)
    (found,) = run(cells, tmp_path)
    assert found.cell.search is not None
    assert found.cell.search.trials == trials
    [folder] = tmp_path.glob("*-tune-*")
    assert [t.values in GRIDS[method] for t in read(folder)] == [True] * trials
    assert found.cell.choice is not None
    assert found.cell.choice.values in GRIDS[method]


def test_fewer_trials_take_the_choice_of_more(tmp_path: Path) -> None:
    recipe, results = small("fedpac"), tmp_path / "results"
    (full,) = run(opened(recipe, 3), tmp_path / "runs", seeds=[0, 1])
    path = outcome_files.keep(recipe, full, results)
    assert path is not None
    before = json.loads(path.read_bytes())
    [cell] = opened(recipe, 2)
    settled = searches.settled(recipe, cell, tmp_path / "none", results)
    assert (settled.choice, settled.search and settled.search.trials) == (full.cell.choice, 3)
    assert sorted(outcome_files.kept_results(recipe, settled, results)) == [0, 1]
    (again,) = run([settled], tmp_path / "runs")
    outcome_files.keep(recipe, again, results)
    after = json.loads(path.read_bytes())
    assert [after[name] for name in ("tuned", "study")] == [before[name] for name in ("tuned", "study")]
    assert after["each"].keys() == before["each"].keys()
    [more] = opened(recipe, None)
    assert searches.settled(recipe, more, tmp_path / "none", results).is_open


def test_a_result_of_no_search_does_not_take_the_place_of_one_of_a_search(tmp_path: Path) -> None:
    recipe = small("fedavg_ft", tuned=Tuned({"fedavg_ft": {"lr": (0.3,)}}, "nowhere", always=True))
    (full,) = run(opened(recipe), tmp_path / "runs")
    path = outcome_files.keep(recipe, full, tmp_path / "results")
    assert path is not None
    before = path.read_bytes()
    (plain,) = run(recipe.cells, tmp_path / "runs")
    with pytest.raises(InputError, match="has what a search chose, and this result is of none"):
        outcome_files.keep(recipe, plain, tmp_path / "results")
    assert path.read_bytes() == before


def test_more_trials_than_values_are_the_same_search(tmp_path: Path) -> None:
    each = [searches.search_run(opened(small("ditto"), n)[0], tmp_path).folder for n in (None, 3, 50)]
    assert len(set(each)) == 1
    assert searches.search_run(opened(small("ditto"), 2)[0], tmp_path).folder != each[0]


def test_where_every_trial_diverges_there_is_no_number(tmp_path: Path) -> None:
    recipe = small("fedavg_ft", lr=1e30, tuned=Tuned({"fedavg_ft": {"lr": (1e25, 1e30)}}, "appendix X"))
    (found,) = run(opened(recipe), tmp_path)
    assert (found.status, found.value) == ("diverged", None)
    assert "every trial of " in found.said
    assert outcome_files.keep(recipe, found, tmp_path / "results") is None
    [row] = forecast.forecast(opened(recipe), tmp_path)
    assert row.seconds == 0.0
    assert "diverged" in row.note


@pytest.mark.parametrize(("method", "trials"), [("ditto", 3), ("fedavg_ft", 2), ("fedpac", 4)])
def test_a_dry_run_counts_the_trials(method: str, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idiolect.reproduction.speeds.step", lambda study, about: 1e-3)
    cells = opened(small("local", method))
    local, search, *after = forecast.forecast(cells, tmp_path, seeds=[0, 1, 2])[2:]
    assert (search.rounds, search.done, search.seed) == (trials * SMALL["rounds"], 0, 0)
    assert [(p.seed, p.rounds, p.folder) for p in after] == [(k, SMALL["rounds"], "") for k in range(3)]
    assert search.seconds is not None
    assert after[0].seconds is not None
    assert search.seconds < trials * after[0].seconds, "a fifth of the samples is held out"
    assert search.seconds > 0.7 * trials * after[0].seconds
    assert local.method == "local"
    assert not any(tmp_path.iterdir()), "a dry run writes nothing"
    few = forecast.forecast(opened(small(method)), tmp_path, rounds=1)
    assert few[0].rounds == trials


def test_seeds_share_one_search(tmp_path: Path) -> None:
    cells = opened(small("ditto"))
    (found,) = run(cells, tmp_path, seeds=[1, 2])
    assert set(found.seeds or {}) == {1, 2}
    assert len(list(tmp_path.glob("*-tune-*"))) == 1
    settled = [searches.settled(small("ditto"), c, tmp_path, None) for c in cells]
    run(settled, tmp_path, seeds=[1, 2, 3])
    assert len(list(tmp_path.glob("*-tune-*"))) == 1


@pytest.mark.thorough(but=["settings1-*"])
@pytest.mark.parametrize(
    ("settings", "condition"),
    [
        ({"clients": 5, "new_clients": 2}, ""),
        ({"clients": 6, "participation": 0.5, "protocol": {"weighting": "sample", "full_last_round": True}}, None),
        ({"protocol": {"stage": "trained", "observe": ["features"]}}, None),
        ({"precision": "bf16"}, None),
    ],
)  # fmt: skip
def test_other_protocols_are_searched_and_measured(
    settings: dict[str, Any], condition: str | None, tmp_path: Path
) -> None:
    recipe = small("ditto", **settings)
    cells = [replace(c, condition=condition) for c in opened(recipe)]
    (found,) = run(cells, tmp_path)
    assert found.cell.choice is not None
    assert 0 < found.cell.choice.score <= 1
    assert found.value is not None
    assert found.protocol == str(outcomes.protocol_of(cells[0]))
    search = searches.search_run(cells[0], tmp_path).study.protocol
    assert (search.validation, search.clients, search.also, search.observe) == (0.2, "all", (), ())


@pytest.mark.parametrize("file", ["trials.json", "search.yaml", "base.yaml"])
def test_a_broken_search_does_not_stop_the_others(file: str, tmp_path: Path) -> None:
    recipe = small("ditto", "local")
    run(opened(recipe), tmp_path)
    searches.search_run(opened(recipe)[0], tmp_path).folder.joinpath(file).write_text("{")
    settled = [searches.settled(recipe, c, tmp_path, None) for c in opened(recipe)]
    ditto, local = run(settled, tmp_path)
    assert (ditto.status, ditto.to_retry, local.status) == ("no data", True, "differs")
    assert file in ditto.said
    assert any(file in row.note for row in forecast.forecast(opened(recipe), tmp_path))


def test_none_of_the_cells_is_tuned() -> None:
    recipe = small("local", "ditto", "fedpac")
    local = [c for c in recipe.cells if c.where["method"] == "local"]
    with pytest.raises(InputError, match="only those of ditto, fedpac: choose one of them"):
        searches.with_searches(recipe, local)


@pytest.mark.parametrize(("trials", "sentence"), [(1, "1 trial for 2 settings of fedpac"), (0, "trials=0 is not")])
def test_too_few_trials(trials: int, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        opened(small("fedpac"), trials)


def test_a_table_of_a_paper_runs_tuned(tmp_path: Path) -> None:
    """A cell of fedpac/table1 with few rounds and other samples, from the text of the paper to its number."""
    recipe = searches.tuned_recipe(recipes.get("fedpac/table1"))
    where = {"dataset": "fashion_mnist", "clients": 20, "method": "fedpac"}
    [one] = [c for c in recipe.cells if c.where == where]
    assert one.study is not None
    tiny = {"dataset": "digits", "clients": 4, "rounds": 1, "local_epochs": 1, "model": "mlp:hidden=4", "sizes": (20,)}
    study = idl.Study(**one.study.model_dump(include={"protocol", "lr", "batch_size"}) | tiny)
    one = replace(one, study=study.with_methods(one.study.methods))
    (found,) = run(searches.with_searches(recipe, [one]), tmp_path)
    assert found.cell.search is not None
    assert found.cell.search.values == {"alignment": (0.1, 0.5, 1, 5, 10)}
    assert found.cell.choice is not None
    assert found.cell.choice.values["alignment"] in (0.1, 0.5, 1, 5, 10)
    assert found.value is not None
