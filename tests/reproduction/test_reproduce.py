"""Recipes run, resumed and judged on cells of digits; what is expected comes from plain runs or from the definition."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from scipy import stats

import idiolect as idl
from idiolect import data, methods, report
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.report import page as drawn
from idiolect.report.figures import palette, sensitivity
from idiolect.reproduction import (
    forecast,
    outcome_files,
    outcomes,
    pages,
    recipes,
    reproduce,
    seed_runs,
    speeds,
    verdicts,
)
from idiolect.reproduction.recipes import Cell, Recipe, cell, select
from idiolect.runs.store import Store
from idiolect.studies.config import Study
from idiolect.studies.progress import Watcher
from idiolect.training import trial

SMALL: dict[str, Any] = {
    "dataset": "digits", "clients": 4, "rounds": 4, "local_epochs": 1, "model": "mlp", "evaluate_every": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast methods are is remembered where the user's cache is."""
    drawn._bundle()  # seconds in a cache that is empty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def made(method: str, published: float | None = None, where: dict[str, Any] | None = None, **settings: Any) -> Cell:
    named = {"dataset": "digits", **(where or {}), "method": method.partition(":")[0]}
    return cell(named, SMALL | settings, method, published)


def accuracy(method: str, out: Path, **settings: Any) -> float:
    """Per cent, of a plain run."""
    result = idl.run(Study(methods=[method], **SMALL | settings), out, engine="sequential")
    records = result.records
    last = records[(records.metric == "accuracy") & (records["round"] == records["round"].max())]
    return 100 * float(last[last.stage == "personalised"].value.mean())


def run(cells: list[Cell], out: Path, **how: Any) -> list[outcomes.Outcome]:
    return list(reproduce.reproduce(cells, out, engine="sequential", **how))


def test_one_run_measures_what_is_received_and_what_is_tuned(tmp_path: Path) -> None:
    tuned = made("fedavg_ft")
    received = cell({"dataset": "digits", "method": "fedavg"}, SMALL, "fedavg_ft", stage="received")
    first, second = (seed_runs.seed_runs(c, tmp_path) for c in (tuned, received))
    assert [one.folder for one in first] == [one.folder for one in second]
    said: list[str] = []
    found = run([received, tuned], tmp_path / "cells", told=said.append)
    assert len(said) == len(list((tmp_path / "cells").iterdir())) == 1
    assert found[0].value == pytest.approx(accuracy("fedavg", tmp_path / "a"), abs=1e-9)
    assert found[1].value == pytest.approx(accuracy("fedavg_ft", tmp_path / "b"), abs=1e-9)
    assert found[0].value != found[1].value
    assert "as received" in found[0].protocol
    assert "personal model" in found[1].protocol
    again: list[str] = []
    assert [o.value for o in run([received, tuned], tmp_path / "cells", told=again.append)] == [o.value for o in found]
    assert not again, "what is done is not run again"


def test_one_page_has_the_methods_of_one_setting_together(tmp_path: Path) -> None:
    cells = [
        cell({"dataset": "digits", "method": "fedavg"}, SMALL, "fedavg_ft", stage="received"),
        made("fedavg_ft"), made("local"), made("local", local_epochs=2, where={"epochs": 2}),
    ]  # fmt: skip
    found = run(cells, tmp_path, seeds=[0, 1])

    one, other = pages.runs_of(cells, tmp_path, seeds=[0, 1])
    assert one.titles == {"fedavg": "FedAvg", "fedavg_ft": "FedAvg-FT", "local": "Local"}
    assert list(other.titles) == ["local"]
    rows = idl.report.summary(one) + idl.report.summary(other)
    assert [100 * float(r.accuracy or 0) for r in rows] == pytest.approx([o.value for o in found])
    assert {r.seeds for r in rows} == {2}
    recipe = Recipe("fedpac/table1", "a table", "results", tuple(cells))
    page = pages.page(recipe, [one, other], tmp_path)
    assert page == tmp_path / "fedpac-table1.html"
    assert "FedAvg-FT" in page.read_text()
    assert pages.page(recipe, [], tmp_path / "none") is None


def test_one_page_tells_the_options_of_a_method_apart(tmp_path: Path) -> None:
    joins: dict[str, Any] = {"clients": 6, "new_clients": 2}
    cells = [
        made("ditto:pull=0.1", where={"design": "loose"}, **joins),
        made("ditto:pull=5", where={"design": "tight"}, **joins),
    ]
    fresh = Cell({**cells[0].where, "clients": "new"}, cells[0].study, condition="")
    loose, tight, _ = run([*cells, fresh], tmp_path)
    (one,) = pages.runs_of([*cells, fresh], tmp_path)
    assert {r.label: 100 * float(r.accuracy or 0) for r in idl.report.summary(one)} == pytest.approx(
        {"ditto design=loose": loose.value, "ditto design=tight": tight.value}
    )
    assert [use["label"] for use in one.study["methods"]] == ["ditto design=loose", "ditto design=tight"]


@pytest.fixture(scope="module")
def some_run(tmp_path_factory: pytest.TempPathFactory) -> report.Run:
    folder = tmp_path_factory.mktemp("run") / "run"
    idl.run(Study(methods=["local"], **SMALL), folder, engine="sequential")
    return report.read(folder)


def as_measured(c: Cell, one: report.Run) -> report.Run:
    """That run as if it were the cell's."""
    assert c.study is not None
    (use,) = c.study.model_dump(mode="json")["methods"]
    about = {use["label"]: {"name": use["name"], "title": methods.get(use["name"]).title, "summary": ""}}
    return replace(
        one,
        study=one.study | {"methods": [use]},
        manifest=one.manifest | {"methods": about},
        records=one.records.assign(
            method=use["label"], stage=one.records["stage"].replace("personalised", outcomes.protocol_of(c).stage)
        ),
        timings=one.timings.assign(method=use["label"]),
    )


@pytest.mark.thorough(but=["fedpac/fig5*", "fedcr/*", "pfedfda/*"])
@pytest.mark.parametrize(
    ("recipe", "axis", "groups", "at", "count"),
    [
        ("fedpac/fig1a", "share", [""], (0, 20, 50, 80), 4),
        ("fedpac/fig1b", "size", [""], (100, 300, 600, 1200), 4),
        ("fedpac/fig5", "local epochs", [""], (1, 5, 10, 20), 1),
        ("pfedfda/fig4", "local epochs", ["cifar100", "cifar100s"], (1, 2, 5, 10), 2),
        ("fedcr/fig3d", "beta", ["emnist_letters", "cifar10"], (0, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2), 1),
        (
            "fedcr/fig4",
            "beta",
            ["fashion_mnist, non-iid_1", "cifar100, non-iid_1"],
            (0, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2),
            1,
        ),
        ("fedcr/table9", "classes per client", [""], (10, 15, 20), 4),
        ("fedpac/table1", "", [], (), 0),
    ],
)
def test_figures_against_a_number_have_a_curve_of_it(
    some_run: report.Run, recipe: str, axis: str, groups: list[str], at: tuple[float, ...], count: int
) -> None:
    cells = [c for c in recipes.get(recipe).cells if c.study]
    runs = pages.beside((c, as_measured(c, some_run)) for c in cells)
    drawn = sensitivity(runs, palette(runs))
    assert [figure.title.partition(" (")[2].rstrip(")") for figure in drawn] == groups
    for figure in drawn:
        assert figure.spec["encoding"]["x"]["title"] == axis
        values = figure.spec["data"]["values"]
        assert tuple(sorted({v["x"] for v in values})) == at
        assert len({v["method"] for v in values}) == count
        assert len(values) == count * len(at)
        assert figure.spec["encoding"]["x"]["scale"].get("type") == ("symlog" if axis == "beta" else None)


def test_what_is_drawn_together_is_named_by_what_it_shares(some_run: report.Run) -> None:
    def sections(recipe: str) -> list[tuple[str, int]]:
        cells = [c for c in recipes.get(recipe).cells if c.study]
        runs = pages.beside((c, as_measured(c, some_run)) for c in cells)
        assert {label for run in runs for label in run.titles} == set(pages.labels(cells))
        return [(run.name, len(run.titles)) for run in runs]

    assert sections("fedcr/fig3b") == [("fashion_mnist non-iid_1", 10)], "FedSR's learning rate is its own"
    assert sections("fedcr/fig3d") == [("emnist_letters non-iid_1", 6), ("cifar10 non-iid_1", 6)]
    assert ("fashion_mnist", 4) in sections("fedpac/table2")
    assert sections("fedlda/fig1a") == [("cifar10 wrn16_2 500", 8)]


def test_the_gaussianity_of_every_method_is_observed_at_its_moment() -> None:
    for c in recipes.get("fedlda/fig1a").cells:
        assert c.study is not None
        assert c.study.protocol.observe == ("gaussianity",)
        assert outcomes.protocol_of(c).stage == c.study.protocol.stage


def test_what_is_under_way_is_left_out_where_whole_part_runsare_asked_for(tmp_path: Path) -> None:
    cells = [made("local", rounds=400), made("fedper", rounds=400)]
    part_runs = [part for c in cells for part in seed_runs.seed_runs(c, tmp_path)]
    idl.run(part_runs[0].study.model_copy(update={"rounds": 4}), part_runs[0].folder, engine="sequential")
    (part_runs[0].folder / "study.yaml").write_text(part_runs[0].study.to_yaml())
    manifest = json.loads((part_runs[0].folder / "manifest.json").read_text())
    manifest["study"]["rounds"] = 400
    del manifest["seal"]  # which would tell of the edit
    (part_runs[0].folder / "manifest.json").write_text(json.dumps(manifest))
    assert [list(run.titles) for run in pages.runs_of(cells, tmp_path)] == [["local"]]
    assert pages.runs_of(cells, tmp_path, whole=True) == []


def test_the_names_of_runs() -> None:
    same = [made("fedpac"), made("fedpac:alignment=1", where={"clients": 4}), made("fedpac", lr=0.01)]
    assert len({seed_runs.digest(c.study) for c in same if c.study}) == 1
    others = [
        made("fedpac:alignment=0"), made("fedper"), made("fedpac", lr=0.02), made("fedpac", rounds=5),
        made("fedpac", protocol={"weighting": "sample"}), made("fedpac", seeds=[1]), made("fedpac", data_seed=1),
        made("fedpac", partition="iid"), made("fedpac", keep=0.5),
    ]  # fmt: skip
    assert len({seed_runs.digest(c.study) for c in [*same, *others] if c.study}) == 1 + len(others)


def test_a_budget_stops_at_a_whole_round_and_the_rest_follows(tmp_path: Path) -> None:
    cells = [made("fedper"), made("local")]
    said: list[str] = []
    stopped = run(cells, tmp_path / "cells", budget=0.0, told=said.append)
    assert {o.status for o in stopped} <= {"not run", "under way"}
    assert "the time is used up" in said[-1]
    found = run(cells, tmp_path / "cells")
    assert [o.status for o in found] == ["measured", "measured"]
    assert found[0].value == pytest.approx(accuracy("fedper", tmp_path / "plain"), abs=1e-9)
    (part_way,) = run([made("local", rounds=100_000)], tmp_path / "cells", budget=2.0)
    assert part_way.status == "under way"
    assert 0 < part_way.rounds < 100_000


def test_seeds_and_their_interval(tmp_path: Path) -> None:
    (found,) = run([made("local")], tmp_path / "cells", seeds=[0, 1, 2])
    alone = [accuracy("local", tmp_path / f"s{s}", seeds=[s]) for s in range(3)]
    assert found.seeds == pytest.approx({s: a for s, a in enumerate(alone)})
    assert found.value == pytest.approx(np.mean(alone))
    half = stats.t.interval(0.95, 2, loc=0, scale=np.std(alone, ddof=1) / np.sqrt(3))[1]
    assert found.interval == pytest.approx(half)
    (first,) = run([made("local")], tmp_path / "cells")
    assert first.value == pytest.approx(alone[0])
    assert first.interval is None


def test_a_finished_run_whose_records_were_not_joined_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = made("local", checkpoint_every=1)
    (part,) = seed_runs.seed_runs(mine, tmp_path / "cells")

    class Stop(Watcher):
        def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
            if round == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        idl.run(part.study, part.folder, engine="sequential", watcher=Stop())

    def full(store: Store) -> None:
        raise RunError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "merge", full)
        with pytest.raises(RunError, match="the disk is full"):
            idl.run(part.study, part.folder, engine="sequential", resume=True)
    assert part.done == 4
    assert outcomes.outcome(mine, [part]).status == "under way", "the records are of round 2"
    (part.folder / "timings.parquet").write_bytes(b"broken")
    assert outcomes.outcome(mine, [part]).status == "under way"
    (found,) = run([mine], tmp_path / "cells")
    assert found.value == pytest.approx(accuracy("local", tmp_path / "plain"))


def diverges(part: seed_runs.SeedRun) -> None:
    """As a run would note it."""
    part.folder.mkdir(exist_ok=True)
    noted = {"method": part.study.methods[0].label, "seed": part.study.seeds[0], "round": 1, "said": "client 3"}
    (part.folder / "diverged.json").write_text(json.dumps([noted]))


def test_a_seed_that_is_missing_is_said(tmp_path: Path) -> None:
    mine = made("local", 99.0)
    run([mine], tmp_path)
    part_runs = seed_runs.seed_runs(mine, tmp_path, seeds=[0, 1])
    diverges(part_runs[1])
    (found,) = run([mine], tmp_path, seeds=[0, 1])
    assert list(found.seeds or {}) == [0]
    assert found.rounds == 4
    assert found.said == "Without seed 1 (diverged): client 3"


def test_seeds_of_before_calibration_was_measured(tmp_path: Path) -> None:
    mine = made("local")
    run([mine], tmp_path, seeds=[0, 1])
    part_runs = seed_runs.seed_runs(mine, tmp_path, seeds=[0, 1])
    path = part_runs[1].folder / "records.parquet"
    records = pd.read_parquet(path)
    records[records["metric"] != "brier"].to_parquet(path)
    facts = outcomes.outcome(mine, part_runs).facts or {}
    assert "calibration_error" in facts
    assert "brier" not in facts


@pytest.mark.parametrize("how", [{"engine": "sequentail"}, {"track": ["tensorbord"]}])
def test_a_misspelt_engine_or_tracker_part_runsnothing(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"unknown (engine|tracker)"):
        list(reproduce.reproduce([made("local")], tmp_path, **how))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("gap", "status"), [(0.0, "matches"), (1.49, "matches"), (1.51, "differs"), (-1.51, "differs")]
)
def test_verdicts(tmp_path_factory: pytest.TempPathFactory, gap: float, status: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "verdicts"
    (plain,) = run([made("local")], folder)
    assert plain.status == "measured"
    (judged,) = run([made("local", float(plain.value or 0) - gap)], folder)
    assert judged.status == status
    assert judged.difference == pytest.approx(gap)


@pytest.mark.parametrize(
    ("values", "paper", "status"),
    [
        ([88.0, 90.0], 91.0, "differs"),  # the interval of two is 12.7 points either way
        ([88.0, 90.0, 89.0], 91.4, "matches"),  # 89 +- 4.303 / sqrt(3) = 89 +- 2.48
        ([88.0, 90.0, 89.0], 91.5, "differs"),
    ],
)
def test_an_interval_counts_from_three_seeds_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], paper: float, status: str
) -> None:
    mine, given = made("local", paper), iter(values)
    monkeypatch.setattr(outcomes, "seed_result", lambda cell, folder: outcomes.SeedResult(next(given)))
    monkeypatch.setattr(seed_runs.SeedRun, "complete", True)
    found = outcomes.outcome(mine, seed_runs.seed_runs(mine, tmp_path, seeds=range(len(values))))
    assert (found.value, found.status) == (89.0, status)


def test_weighting_and_new_clients(tmp_path: Path) -> None:
    settings = {"sizes": [20, 120], "partition": "dirichlet", "protocol": {"weighting": "sample"}}
    (found,) = run([made("local", **settings)], tmp_path / "a")
    assert found.facts is not None
    assert found.value == found.facts["per_row"]
    joins: dict[str, Any] = {"clients": 6, "new_clients": 2, "new_shifts": ["invert"]}
    base = made("fedavg_ft", **joins)
    assert base.study is not None
    clean = Cell(base.where, base.study, condition="")
    dark = Cell(base.where, base.study, condition="invert")
    trained, fresh, inverted = run([base, clean, dark], tmp_path / "b")
    result = idl.run(base.study.model_copy(update={"name": "x"}), tmp_path / "c", engine="sequential")
    rows = [100 * float(row.score["fedavg_ft"] or 0) for row in result.new_clients()]
    assert [trained.value, fresh.value, inverted.value] == pytest.approx(rows)
    assert "over new clients" in fresh.protocol


def test_what_diverges_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    cells = [made("local", lr=1e12), made("fedper")]
    found = run(cells, tmp_path / "cells")
    assert [o.status for o in found] == ["diverged", "measured"]
    assert "training diverged" in found[0].said
    assert str(tmp_path) not in found[0].said, "it is kept in results"
    again = run(cells, tmp_path / "cells")
    assert [o.status for o in again] == ["diverged", "measured"]
    assert again[0].said == found[0].said


def test_what_fails_is_said_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reproduce.run

    def failing(study: Study, *args: Any, **more: Any) -> Any:
        if study.methods[0].name == "local" and study.seeds == (1,):
            raise RunError("local, round 1, client 0: worker 1 died")
        return whole(study, *args, **more)

    cells, out = [made("local"), made("fedper")], tmp_path / "cells"
    with monkeypatch.context() as broken:
        broken.setattr(reproduce, "run", failing)
        found = run(cells, out, seeds=[1])
        assert [(o.status, o.to_retry) for o in found] == [("failed", True), ("measured", False)]
        assert found[0].said == "local, round 1, client 0: worker 1 died"
        (both,) = run(cells[:1], out, seeds=[0, 1])
        assert (both.status, both.to_retry) == ("measured", True)
        assert both.said == "Without seed 1 (failed): local, round 1, client 0: worker 1 died"
    (again,) = run(cells[:1], out, seeds=[0, 1])
    assert (again.status, again.to_retry, again.said, set(again.seeds or {})) == ("measured", False, "", {0, 1})


def test_a_stop_loses_no_run_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cells = reproduce.run, [made("local"), made("fedper"), made("fedavg")]

    def stopped(study: Study, *args: Any, **more: Any) -> Any:
        if study.methods[0].name == "fedper" and study.seeds == (1,):
            raise Interrupted("stopped", 2)
        return whole(study, *args, **more)

    monkeypatch.setattr(reproduce, "run", stopped)
    kept: dict[str, outcomes.Outcome] = {}
    with pytest.raises(Interrupted):
        run(cells, tmp_path / "cells", seeds=[0, 1], keep=lambda one: kept.update({str(one.cell.where["method"]): one}))
    assert {name: set(one.seeds or {}) for name, one in kept.items()} == {"local": {0, 1}, "fedper": {0}, "fedavg": {0}}
    assert kept["local"].seeds == {s: accuracy("local", tmp_path / f"plain{s}", seeds=[s]) for s in (0, 1)}


def test_data_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str, data_dir: Path | None = None) -> Any:
        raise InputError("cannot fetch cifar100: the hub is out of reach; put its files into --data-dir")

    monkeypatch.setattr(data, "load", gone)
    found = run([made("local"), Cell({"method": "x"}, absent="the paper does not say which")], tmp_path / "cells")
    assert [o.status for o in found] == ["no data", "no data"]
    assert [o.to_retry for o in found] == [True, False]
    assert found[0].said.startswith("cannot fetch cifar100")
    assert found[1].said == "the paper does not say which"
    assert not (tmp_path / "cells").exists()


def test_what_is_computed_needs_no_run(tmp_path: Path) -> None:
    cells = [
        Cell({"model": "a"}, published=115_776, value=lambda: 115_776),
        Cell({"model": "b"}, published=6.62, value=lambda: 7.0),
    ]
    found = run(cells, tmp_path)
    assert [o.status for o in found] == ["matches", "differs"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_study(tmp_path: Path) -> None:
    mine = made("local")
    run([mine], tmp_path)
    (part,) = seed_runs.seed_runs(mine, tmp_path)
    path = part.folder / "study.yaml"
    path.write_text(path.read_text().replace("lr: 0.01", "lr: 0.5"))
    other = made("fedper")
    found = run([mine, other], tmp_path)
    assert [(o.status, o.to_retry) for o in found] == [("no data", True), ("measured", False)]
    assert "has another study (lr: 0.5 there, 0.01 here): move it away" in found[0].said


def test_a_broken_folder_costs_its_own_cell(tmp_path: Path) -> None:
    cells = [made("local"), made("fedper")]
    run(cells, tmp_path)
    (part,) = seed_runs.seed_runs(cells[0], tmp_path)
    (part.folder / "records.parquet").write_bytes(b"PAR1")
    found = run(cells, tmp_path)
    assert [(o.status, o.to_retry) for o in found] == [("no data", True), ("measured", False)]
    assert "records.parquet" in found[0].said


def test_what_cannot_be_written_or_built_is_said_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (found,) = run([made("local")], tmp_path / "file" / "cells")
    assert found.status == "failed"
    assert found.said.startswith(f"cannot make the folder {tmp_path / 'file' / 'cells'}")

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("dims do not fit")

    monkeypatch.setattr(idl.methods, "build", broken)
    (found,) = run([made("local")], tmp_path / "cells")
    assert (found.status, found.to_retry) == ("failed", True)
    assert "local" in found.said
    assert "dims do not fit" in found.said


def test_a_seed_with_a_number_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page could not be drawn, but all is measured: the same command has nothing to run."""
    mine, out = made("local"), tmp_path / "cells"

    def full(*_: Any) -> None:
        raise RunError("cannot write report.html: no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("idiolect.studies.result.Result.report", full)
        said: list[str] = []
        (found,) = run([mine], out, told=said.append)
    assert (found.status, found.said, found.to_retry, list(found.seeds or {})) == ("measured", "", False, [0])
    assert said[1:] == ["everything is measured, but cannot write report.html: no space left on device"]


def test_results_are_kept_with_the_reason_that_stands_there(tmp_path: Path) -> None:
    recipe = Recipe("fedpac/table1", "a table", "results", (made("local", 99.0),))
    (found,) = run(list(recipe.cells), tmp_path / "cells")
    path = outcome_files.keep(recipe, found, tmp_path / "results")
    assert path == tmp_path / "results" / "fedpac" / "table1" / "digits-local.json"
    kept = json.loads(path.read_text())
    assert kept["measured"] == pytest.approx(found.value, abs=1e-4)
    assert kept["verdict"] == "differs"
    assert kept["published"] == 99.0
    assert kept["rounds"] == 4
    assert kept["hash"] == seed_runs.digest(recipe.cells[0].study)  # type: ignore[arg-type]
    assert idl.run(Study(**kept["study"]), tmp_path / "again", engine="sequential").rows()[0].accuracy == pytest.approx(
        float(found.value or 0) / 100  # type: ignore[arg-type]
    )
    path.write_text(json.dumps(kept | {"because": "four rounds and not 200"}))
    outcome_files.keep(recipe, found, tmp_path / "results")
    assert json.loads(path.read_text())["because"] == "four rounds and not 200"
    path.write_text(json.dumps(kept | {"because": "four rounds and not 200", "hash": "another study's"}))
    outcome_files.keep(recipe, found, tmp_path / "results")
    assert not json.loads(path.read_text())["because"], "it was the reason of another number"
    outcome_files.keep(recipe, replace(found, said="Without seed 1 (diverged): client 3"), tmp_path / "results")
    assert json.loads(path.read_text())["said"] == "Without seed 1 (diverged): client 3"
    path.write_text('{"recipe": ')
    with pytest.raises(InputError, match=r"digits-local.json cannot be read .*: fix it, or delete it"):
        outcome_files.keep(recipe, found, tmp_path / "results")
    not_run = outcomes.Outcome(recipe.cells[0], "not run")
    assert outcome_files.keep(recipe, not_run, tmp_path / "none") is None


def test_a_kept_number_says_on_what_it_ran(tmp_path: Path) -> None:
    recipe = Recipe("fedpac/table1", "a table", "results", (made("local", 99.0),))
    (found,) = run(list(recipe.cells), tmp_path / "cells")
    (part,) = seed_runs.seed_runs(found.cell, tmp_path / "cells")
    path = part.folder / "engine.json"
    (sitting,) = json.loads(path.read_text())
    del sitting["seal"]  # of the file as it was
    elsewhere = sitting | {"machine": "a GPU", "versions": sitting["versions"] | {"torch": "2.11+cuda"}}
    path.write_text(json.dumps([sitting, elsewhere, elsewhere]))
    again = outcomes.outcome(found.cell, [part])
    kept = json.loads(outcome_files.keep(recipe, again, tmp_path / "results").read_text())  # type: ignore[union-attr]
    assert kept["machine"] == f"{sitting['machine']}; a GPU"
    assert kept["versions"] == sitting["versions"] | {"torch": f"{torch.__version__}; 2.11+cuda"}
    path.unlink()
    assert (outcomes.outcome(found.cell, [part]).machine, outcomes.outcome(found.cell, [part]).versions) == ("", {})
    path.write_text('[{"engine": ')
    with pytest.raises(InputError, match=r"engine\.json cannot be read .*: restore it, or delete it"):
        outcomes.outcome(found.cell, [part])


def test_seeds_add_up_in_a_file(tmp_path: Path) -> None:
    recipe = Recipe("fedpac/table1", "a table", "results", (made("local", 99.0),))
    (cell,), cells, results = recipe.cells, tmp_path / "cells", tmp_path / "results"
    (whole,) = run([cell], cells, seeds=[0, 1, 2])
    for seeds in ([1], [0], [1, 2]):
        (found,) = run([cell], cells, seeds=seeds)
        path = outcome_files.keep(recipe, found, results)
    assert path is not None
    content = json.loads(path.read_text())
    assert list(content["seeds"]) == ["0", "1", "2"]
    assert (whole.value, whole.interval) == (
        pytest.approx(content["measured"], abs=1e-3), pytest.approx(content["interval"], abs=1e-3)
    )  # fmt: skip
    assert content["facts"] == pytest.approx(whole.facts, abs=1e-3)
    assert content["seconds"] == pytest.approx(whole.seconds, abs=0.1)
    accuracy = {k: v["clients"] for k, v in content["each"].items()}
    assert [np.mean(list(v.values())) for v in accuracy.values()] == pytest.approx(list(whole.seeds.values()), abs=1e-3)  # type: ignore[union-attr]
    before = path.read_text()
    outcome_files.keep(recipe, found, results)
    assert path.read_text() == before
    path.write_text(json.dumps(content | {"hash": "another study's"}))
    outcome_files.keep(recipe, found, results)
    assert list(json.loads(path.read_text())["seeds"]) == ["1", "2"]


def test_a_file_has_options_to_the_last_digit(tmp_path: Path) -> None:
    """As a search chooses them: a rounded one would be another study's, and the run would be made again."""
    cell = made("fedprox:mu=0.00123456789", 99.0)
    recipe = Recipe("fedpac/table1", "a table", "results", (cell,))
    (one,) = run([cell], tmp_path / "cells")
    outcome_files.keep(recipe, one, tmp_path / "results")
    assert list(outcome_files.kept_results(recipe, cell, tmp_path / "results")) == [0]


def test_what_the_files_have_is_not_run_again(tmp_path: Path) -> None:
    both = (made("local", 99.0), made("fedavg", 99.0, lr=1e6))
    recipe = Recipe("fedpac/table1", "a table", "results", both)
    results = tmp_path / "results"
    first = run(list(both), tmp_path / "cells")
    assert [one.status for one in first] == ["differs", "diverged"]
    for one in first:
        outcome_files.keep(recipe, one, results)
    shutil.rmtree(tmp_path / "cells")

    def known(cell: Cell) -> dict[int, outcomes.SeedResult]:
        return outcome_files.kept_results(recipe, cell, results)

    assert not [p for p in forecast.forecast(both, tmp_path / "cells", known=known) if p.seconds != 0.0]
    said: list[str] = []
    again = run(list(both), tmp_path / "cells", told=said.append, known=known)
    assert not said
    assert not (tmp_path / "cells").exists()
    for one, two in zip(first, again, strict=True):
        assert (one.status, one.said, one.rounds) == (two.status, two.said, two.rounds)
        assert two.value == pytest.approx(one.value, abs=1e-3)
    more = run(list(both), tmp_path / "cells", seeds=[0, 1], told=said.append, known=known)
    assert [list(one.each) for one in more] == [[0, 1], [0, 1]]
    assert not list((tmp_path / "cells").glob("*/cells/*seed0"))
    other = made("local", 99.0, rounds=5)
    assert not outcome_files.kept_results(recipe, other, results), "another study"
    path = results / "fedpac" / "table1" / f"{both[0].slug}.json"
    for wrong in ([], {"x": {}}, {"0": []}, {"0": {"value": 1, "what": 2}}, {"0": {"value": 1, "clients": {"a": 1}}}):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"each": wrong}))
        with pytest.raises(InputError, match=r"digits-local.json cannot be read .*: fix it, or delete it"):
            known(both[0])


def test_a_cell_keeps_the_precision_of_its_numbers(tmp_path: Path) -> None:
    recipe = Recipe("fedpac/table1", "a table", "results", (made("local"), made("fedper"), Cell({"method": "x"})))
    results = tmp_path / "results"

    def precisions(asked: Any, folder: Path | None = results) -> list[str | None]:
        cells = [outcome_files.in_precision(recipe, c, folder, asked) for c in recipe.cells]
        return [c.study.precision if c.study else None for c in cells]

    assert precisions("bf16") == ["bf16", "bf16", None]
    half = outcome_files.in_precision(recipe, recipe.cells[0], results, "bf16")
    (found,) = run([half], tmp_path / "cells")
    path = outcome_files.keep(recipe, found, results)
    assert path is not None
    assert json.loads(path.read_text())["study"]["precision"] == "bf16"
    assert precisions("float32") == ["bf16", "float32", None]
    assert precisions("float32", None) == ["float32", "float32", None]
    assert not outcome_files.kept_results(recipe, recipe.cells[0], results), "a number in bf16 is none in float32"
    assert list(outcome_files.kept_results(recipe, half, results)) == [0]
    (whole,) = run([recipe.cells[0]], tmp_path / "cells")
    assert len(list((tmp_path / "cells").iterdir())) == 2, "each precision is a run of its own"
    assert verdicts.precision_note([half]) == ["Networks computed in bf16: all."]
    assert verdicts.precision_note([half, *recipe.cells[1:]]) == ["Networks computed in bf16: digits local."]
    assert not verdicts.precision_note(recipe.cells)
    notes = verdicts.head(recipe, [found]).notes
    assert "Networks computed in bf16: all." in notes
    assert [verdicts.as_json(one)["precision"] for one in (found, whole)] == ["bf16", "float32"]


def test_cells_are_chosen_by_their_conditions() -> None:
    cells = tuple(made(m, where={"clients": k}) for k in (20, 100) for m in ("local", "fedper"))
    recipe = Recipe("fedpac/table1", "a table", "results", cells)
    assert select(recipe, {}) == list(cells)
    assert select(recipe, {"clients": "20"}, ["fedper"]) == [cells[1]]
    assert select(recipe, {"clients": "20+100", "method": "local"}) == [cells[0], cells[2]]
    for only, sentence in (
        ({"client": "20"}, "fedpac/table1 has no condition 'client'; did you mean 'clients'"),
        ({"clients": "30"}, "fedpac/table1 has no cell with clients=30; choose from 20, 100"),
    ):
        with pytest.raises(InputError) as caught:
            select(recipe, only)
        assert str(caught.value).startswith(sentence)


def test_a_forecast_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "measurement", lambda study, about: speeds.Speed(1e-3, 2e-3, 5e-4))
    cells = [
        made("local", rounds=40),
        made("fedper", participation=0.5),
        made("fedper", partition="dominant", keep=0.5),
    ]
    planned = forecast.forecast(cells, tmp_path, workers=2, measure=True)
    assert [(p.method, p.rounds, p.done) for p in planned] == [("local", 40, 0), ("fedper", 4, 0), ("fedper", 4, 0)]
    assert not any(tmp_path.iterdir())
    rows = 0.8 * 1797 / 4  # of digits, a fifth for testing
    assert planned[0].seconds == pytest.approx((40 * 4 * rows * 1e-3 + 20 * 4 * rows * 2e-3) / 2)
    assert planned[1].seconds == pytest.approx((4 * 2 * rows * 1e-3 + 2 * 4 * rows * 2e-3) / 2)
    assert planned[2].seconds == pytest.approx((4 * 4 * 300 * 1e-3 + 2 * 4 * 300 * 2e-3) / 2)
    run(cells[:1], tmp_path)
    after = forecast.forecast(cells, tmp_path, workers=2, measure=True)
    assert (after[0].done, after[0].seconds) == (40, 0.0)
    (part,) = seed_runs.seed_runs(cells[1], tmp_path)
    with pytest.raises(idl.Interrupted):
        idl.run(part.study, part.folder, engine="sequential", budget=0.0)
    assert forecast.forecast(cells, tmp_path, workers=2, measure=True)[1].seconds == planned[1].seconds, (
        "begun, but no round is done"
    )
    diverges(part)
    will_not = forecast.forecast(cells, tmp_path, workers=2, measure=True)[1]
    assert will_not.seconds == 0.0
    assert will_not.note == f"fedper diverged with seed 0 and is not tried again until {part.folder} is deleted"
    other = seed_runs.seed_runs(cells[2], tmp_path)[0].folder
    other.mkdir()
    (other / "study.yaml").write_text(part.study.to_yaml())
    past = forecast.forecast(cells, tmp_path, workers=2, measure=True)
    assert past[2].seconds is None
    assert past[2].note.startswith(f"{other} has another study (")
    assert past[0] == after[0]
    recipe = Recipe("fedpac/table1", "a table", "results", tuple(cells))
    for rows, words in ((past[2:], "Nothing can run yet."), (after[:1], "Nothing is left to run.")):
        console = Console(record=True)
        console.print(forecast.render(recipe, rows))
        assert words in console.export_text()


def test_a_forecast_of_a_damaged_run_says_so(tmp_path: Path) -> None:
    cells = [made("local", rounds=400), made("fedper")]
    (part,) = seed_runs.seed_runs(cells[0], tmp_path)
    idl.run(part.study.model_copy(update={"rounds": 4}), part.folder, engine="sequential")
    (part.folder / "study.yaml").write_text(part.study.to_yaml())
    (times,) = part.folder.glob("cells/*/timings.parquet")
    whole = times.read_bytes()
    first, second = forecast.forecast(cells, tmp_path)
    assert first.seconds == pytest.approx(pd.read_parquet(times)["seconds"][1:].mean() * 396), (
        "workers start in the first"
    )
    times.write_bytes(whole[:100])
    damaged, other = forecast.forecast(cells, tmp_path)
    assert damaged.note.startswith(f"{times} is not readable (")
    assert other.method == second.method
    times.unlink()
    assert forecast.forecast(cells, tmp_path)[0].note == (
        f"{part.folder} has lost the times of its rounds: delete it to run this part again"
    )


def test_a_method_is_timed_on_made_up_rows() -> None:
    study = made("fedpac").study
    assert study is not None
    speed = speeds.measurement(study, data.describe("digits"))
    assert min(speed[:3]) > 0
    assert speed.training > speed.received, "ten epochs against a pass over the test samples"


@pytest.mark.parametrize("name", ["digits", "cifar10", "fashion_mnist"])
def test_made_up_rows_are_those_of_every_trial(name: str) -> None:
    """One function makes synthetic samples."""
    about = data.describe(name)
    made_up = speeds._made_up(about, 30, 12)
    [one, other] = trial.samples(tuple(about["shape"]), about["classes"], 42, clients=2, images=True)
    assert torch.equal(made_up.x_R, one.x_R)
    assert torch.equal(made_up.y_R, other.y_R)
    for train, test, mine in zip(made_up.train, made_up.test, (one, other), strict=True):
        assert torch.equal(torch.cat([train, test]), mine.row_N)
        assert (len(train), len(test)) == (30, 12)


@pytest.mark.parametrize(("size", "rows"), [(48, 96), (50, 100), (64, 64), (100, 100), (300, 100)])
def test_a_method_is_timed_in_whole_batches(monkeypatch: pytest.MonkeyPatch, size: int, rows: int) -> None:
    study, site, seen = made("local", batch_size=size).study, speeds.ClientRunner, set()
    assert study is not None
    run = site.run

    def watched(self: Any, *given: Any) -> Any:
        seen.add(len(self.job.data.train[0]))
        return run(self, *given)

    monkeypatch.setattr(site, "run", watched)
    speeds.measurement(study, data.describe("digits"))
    assert seen == {rows}


def test_waiting_for_the_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    study, site = made("local").study, speeds.ClientRunner
    assert study is not None
    run = site.run

    def waiting(*given: Any) -> Any:
        time.sleep(0.5)
        return run(*given)

    monkeypatch.setattr(site, "run", waiting)
    assert max(speeds.measurement(study, data.describe("digits"))[:3]) * 100 < 0.4


def test_a_speed_is_measured_once_and_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, stepped = list[str](), list[int]()

    def speed(study: Study, about: Any) -> speeds.Speed:
        measured.append(study.methods[0].name)
        return speeds.Speed(1e-3, 2e-3, 5e-4)

    def step(study: Study, about: Any) -> float:
        stepped.append(study.batch_size)
        return 3e-5

    monkeypatch.setattr(speeds, "measurement", speed)
    monkeypatch.setattr(speeds, "step", step)
    cells = [made("local"), made("fedper"), made("pfedme", rounds=40), made("local", batch_size=7)]
    rough = forecast.forecast(cells, tmp_path / "r", workers=2)
    assert (measured, stepped) == ([], [cells[0].study.batch_size, 7]), "one step for each network and size of a batch"
    assert all(p.rough and p.seconds for p in rough)
    assert rough[0].seconds == rough[1].seconds, "both train as FedAvg does"
    assert rough[2].seconds / rough[0].seconds > 10, "ten times the rounds, and more work in each"
    assert forecast.sentence(rough).endswith("on this machine by a rough estimate; a dry run says more")
    again = forecast.forecast(cells, tmp_path / "r", workers=2)
    assert (again, len(stepped)) == (rough, 2), "a step is timed once"
    known = forecast.forecast(cells[:1], tmp_path / "r", workers=2, measure=True)
    assert (measured, known[0].rough) == (["local"], False)
    partly = forecast.forecast(cells[:2], tmp_path / "r", workers=2)
    assert [(p.seconds, p.rough) for p in partly] == [(known[0].seconds, False), (rough[1].seconds, True)]
    recipe = Recipe("fedpac/table1", "a table", "results", tuple(cells))
    console = Console(record=True, width=500)
    console.print(forecast.render(recipe, partly))
    said = console.export_text()
    assert "1 of these times are rough estimates" in said
    assert "1 of these times are from speeds that were measured on this machine" in said
    for _ in range(2):
        whole = forecast.forecast(cells, tmp_path / "r", workers=2, measure=True)
    assert (measured, any(p.rough for p in whole)) == (["local", "fedper", "pfedme", "local"], False)
    assert forecast.sentence(whole).endswith("on this machine")
    assert forecast.sentence([known[0]._replace(done=4, seconds=0.0)]) == ""
    (kept,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("speeds.json")
    for broken in ("[", "[]", "{}"):
        kept.write_text(broken)
        assert forecast.forecast(cells[:1], tmp_path / "r", workers=2)[0].rough, (
            "what is broken is as if it were not there"
        )


@pytest.mark.parametrize("model", ["mlp", "mlp:hidden=2000", "small_cnn", "resnet18"])
def test_a_step_is_of_a_batch_or_of_fewer_samples_of_a_large_network(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """A dry run of a table of ResNet-18 once trained each of its methods on a hundred samples, for minutes."""
    study = made("local", model=model, batch_size=20).study
    assert study is not None
    sizes, taken = list[int](), speeds._step

    def watched(task: Any, x_B: Any, y_B: Any) -> None:
        sizes.append(len(x_B))
        taken(task, x_B, y_B)

    monkeypatch.setattr(speeds, "_step", watched)
    assert (
        speeds.step(study, data.describe("digits") | {"shape": (3, 32, 32) if model == "resnet18" else (1, 8, 8)}) > 0
    )
    assert len(sizes) <= 4
    assert max(sizes) <= 20
    assert sum(sizes) <= 42


def test_a_rough_estimate_knows_only_methods_that_there_are() -> None:
    assert set(speeds._RELATIVE) <= set(idl.methods.names())


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"drop_last": True, "batch_size": 50}, 4 * 4 * 300 * 1e-3 + 2 * 4 * 300 * 2e-3),
        ({"drop_last": True, "batch_size": 80}, 4 * 4 * 240 * 1e-3 + 2 * 4 * 300 * 2e-3),
        ({"drop_last": True, "batch_size": 301}, 4 * 4 * 300 * 1e-3 + 2 * 4 * 300 * 2e-3),
        ({"protocol": "validation=0.2"}, 4 * 4 * 240 * 1e-3 + 2 * 4 * 240 * 2e-3),
        ({"protocol": "also=received"}, 4 * 4 * 300 * 1e-3 + 2 * 4 * 300 * 2.5e-3),
        ({"protocol": "stage=trained"}, 4 * 4 * 300 * 1e-3 + 2 * 4 * 300 * 1.5e-3),
        ({"protocol": "clients=participants", "participation": 0.5}, 4 * 2 * 300 * 1e-3 + 2 * 2 * 300 * 2e-3),
        ({"protocol": "full_last_round=true", "participation": 0.5}, (4 * 2 + 2) * 300 * 1e-3 + 2 * 4 * 300 * 2e-3),
        ({"new_clients": 1}, 4 * 3 * 300 * 1e-3 + 2 * 3 * 300 * 2e-3 + 300 * 2e-3),
    ],
)
def test_what_a_forecast_counts(settings: dict[str, Any], seconds: float) -> None:
    study = made("fedper", partition="dominant", keep=0.5, **settings).study
    assert study is not None
    found = forecast._cost(study, SMALL["clients"], data.describe("digits"), speeds.Speed(1e-3, 2e-3, 5e-4))
    assert found == pytest.approx(seconds)


def test_the_time_with_clients_as_they_are_in_the_data_is_not_known(tmp_path: Path) -> None:
    """How many they are is only in the data: taken for a hundred, three domains were thought to need 28 hours."""
    found = forecast.forecast([made("fedper", dataset="digits3", partition="natural", clients=None)], tmp_path)
    assert [(one.seconds, one.note) for one in found] == [(None, forecast._UNKNOWN)]


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "dominant:share=100,test_size=20", "clients": 2},
        {"partition": "pathological:classes_per_group=10,test_size=20", "clients": 2},
        {"partition": "dominant:test_size=10", "clients": 3, "sizes": 250},
        {"partition": "dirichlet_fixed:rows=100", "clients": 5},
        {"partition": "dirichlet_fixed:rows=null,test_fraction=0.3", "clients": 5},
        {"partition": "classes:per_client=5,rows=200", "clients": 4, "keep": 40},
        {"partition": "iid", "clients": 7, "keep": 0.25},
        {"clients": 10},
    ],
)
def test_a_forecast_knows_how_many_samples_clients_have(settings: dict[str, Any]) -> None:
    study = Study(**settings)
    real = np.mean([len(train) for train in study.federation().train])
    assert forecast._training_rows(study, data.describe("digits"), study.clients or 0) == pytest.approx(real, rel=0.01)


def test_tables_say_what_they_mean(tmp_path: Path) -> None:
    recipe = Recipe(
        "fedpac/table1", "a table", "results", (made("local", 99.0), made("fedper")), assumptions=("20 clients",)
    )
    console = Console(record=True, width=100)
    console.print(verdicts.table(recipe, run(list(recipe.cells), tmp_path)))
    console.print(forecast.render(recipe, forecast.forecast(recipe.cells, tmp_path)))
    text = " ".join(console.export_text().split())
    for words in (
        "99.00",
        "differs",
        "measured",
        "over all clients of the personal model after the last",
        "20 clients",
    ):
        assert words in text


def test_a_deviation_stands_beside_its_number() -> None:
    over_clients = recipes.get("pfedfda/table1")
    (c,) = select(over_clients, {"dataset": "cifar10s", "samples_percent": "25"}, ["pfedfda"])
    assert verdicts.theirs(over_clients, c) == "59.50 ± 12"
    assert verdicts.ours(over_clients, c, 63.45, None, {"client_std": 11.93}) == "63.45 ± 12"
    assert verdicts.ours(over_clients, c, 63.45, 0.4, {"client_std": 11.93}) == "63.45 ± 12, mean ± 0.40"
    assert verdicts.ours(over_clients, replace(c, std=None), 63.45, None, {"client_std": 11.93}) == "63.45"
    assert verdicts.deviation_note(over_clients, [c]) == ["The ± of both is the standard deviation over clients."]
    over_seeds = recipes.get("fedcr/table10")
    (c,) = select(over_seeds, {"dataset": "emnist_letters", "partition": "non-iid_1"}, ["fedcr"])
    assert verdicts.theirs(over_seeds, c) == "97.47 ± 0.18"
    assert verdicts.ours(over_seeds, c, 97.0, 0.4, {"client_std": 3.0}) == "97.00 ± 0.40"
    assert verdicts.deviation_note(over_seeds, [c]) == ["The paper's ± is the standard deviation over three seeds."]
    plain = recipes.get("fedcr/table2")
    assert verdicts.deviation_note(plain, plain.cells) == []
    assert plain.doubts
    assert recipes.get("fedcr/fig3a").doubts == ()


def test_minutes_are_no_accuracy(tmp_path: Path) -> None:
    timed = replace(made("local", 3.0), reads="minutes")
    (found,) = run([timed], tmp_path)
    assert (found.status, found.protocol) == ("measured", "")
    head = verdicts.head(Recipe("pfedfda/table6", "a table", "results", (timed,)), [found])
    assert head.notes[1:] == ["Minutes depend on the machine, so they have no verdict."]


def test_a_frozen_backbone_is_not_timed_with_each_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan of runs on features, of about an hour, once said 54 hours."""
    (tmp_path / "slow_eyes.py").write_text(
        "import time, torch\n"
        "class Eyes(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        time.sleep(0.05 * len(x))\n"
        "        return x.mean((2, 3)).repeat(1, 7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [planned] = forecast.forecast([made("fedavg", model="torch:slow_eyes.Eyes,body=mlp:8")], tmp_path / "out")
    assert planned.seconds is not None
    assert 0 < planned.seconds < 5
    assert planned.note.startswith("what a frozen backbone needs for the features")
