"""Runs of more clients than have a line each: sizes and counts, never times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from idiolect import report
from idiolect.report.figures import DRAWN, PAIRS, SAMPLE, figures, palette
from idiolect.report.figures import view as module

CLIENTS = 10_000


@pytest.fixture(scope="module")
def folder(make, tmp_path_factory):
    made = make(["local", "fedavg", "pfedfda"], CLIENTS, (0,), 1)
    return made.save(tmp_path_factory.mktemp("many") / "run")


@pytest.fixture(scope="module")
def run(folder):
    return report.read(folder)


def drawn(run):
    return {f.name: f for f in figures(run, palette([run]))[0]}


def marks(spec):
    """How many values a figure holds, those of its layers with it."""
    own = len(spec.get("data", {}).get("values", ()))
    return own + sum(marks(layer) for layer in spec.get("layer", ()))


def boxes(figure):
    """What the boxes of a figure say, by what they are of."""
    [bars] = [layer for layer in figure.spec["layer"] if layer["mark"].get("type") == "bar"]
    by = bars["encoding"]["y"]["field"]
    return {v[by]: v for v in bars["data"]["values"]}


def test_the_page_of_ten_thousand_clients_stays_small(folder, tmp_path):
    page = report.write([folder], tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000
    text = page.read_text()
    assert f"a sample of {SAMPLE} of 10,000 clients" in text
    assert f"A sample of {SAMPLE} of 10,000 clients" in text


def test_figures_hold_a_sample_of_the_clients(run):
    found = drawn(run)
    names = ["rounds", "spread", "cost", "versus-fedavg", "versus-local", "labels", "beta-2", "beta-shift-2"]
    assert list(found) == names
    methods, classes = 3, 10
    for name, figure in found.items():
        assert marks(figure.spec) <= (classes if name == "labels" else methods) * SAMPLE + 30, name
        assert figure.spec["height"] <= 800
        clients = {v["client"] for v in figure.spec["data"]["values"] if "client" in v}
        assert len(clients) in (0, SAMPLE)
    [shown] = {
        frozenset(v["client"] for v in found[name].spec["data"]["values"])
        for name in ("spread", "versus-local", "labels", "beta-2", "beta-shift-2")
    }
    assert any("rotate" in client for client in shown)
    assert json.dumps([f.spec for f in drawn(run).values()]) == json.dumps([f.spec for f in found.values()])


def test_boxes_are_of_all_clients(run):
    found, final = drawn(run), run.final
    value = {m: final[final["method"] == m].set_index("client")["value"] * 100 for m in run.titles}
    wanted = {
        "spread": {run.titles[m]: value[m].to_numpy() for m in run.titles},
        "versus-fedavg": {run.titles[m]: (value[m] - value["fedavg"]).to_numpy() for m in ("local", "pfedfda")},
    }
    for name, groups in wanted.items():
        said = boxes(found[name])
        assert said.keys() == groups.keys()
        for group, each in groups.items():
            assert said[group]["clients"] == CLIENTS
            low, middle, high = (said[group][k] for k in ("lower quartile", "median", "upper quartile"))
            np.testing.assert_allclose([low, middle, high], np.quantile(each, [0.25, 0.5, 0.75]), atol=0.011)
            ends = said[group]["lowest"], said[group]["highest"]
            np.testing.assert_allclose(ends, [each.min(), each.max()], atol=0.011)
    shifted = sum(bool(s) for s in run.shifts.values())
    assert {k: v["clients"] for k, v in boxes(found["beta-2"]).items()} == {
        "not shifted": CLIENTS - shifted,
        "shifted": shifted,
    }


def test_each_client_is_named_once(make, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "short", lambda text: calls.append(text) or text)
    figures(report.read(make(["fedavg", "pfedfda"], clients=DRAWN, rounds=1).save(tmp_path / "run")), {
        "fedavg": "#000000", "pfedfda": "#000000",
    })  # fmt: skip
    assert len(calls) == DRAWN


def test_few_enough_clients_have_a_line_each(make, tmp_path):
    found = drawn(report.read(make(["local", "fedavg"], clients=DRAWN, rounds=1).save(tmp_path / "run")))
    assert len({v["client"] for v in found["labels"].spec["data"]["values"]}) == DRAWN
    assert found["versus-local"].spec["mark"] == {"type": "rect"}
    assert all("sample of" not in f.caption for f in found.values())


def test_pairs_are_of_fewer_clients(make, tmp_path):
    made = make(["fedpac"], clients=PAIRS + 10, rounds=2)
    found = drawn(report.read(made.save(tmp_path / "run")))["combination-0"]
    rounds = {v["round"] for v in found.spec["data"]["values"]}
    assert len(found.spec["data"]["values"]) == len(rounds) * PAIRS**2
    assert f"A sample of {PAIRS} of {PAIRS + 10} clients." in found.caption


def test_pairs_are_of_clients_that_met(make, tmp_path):
    made = make(["fedpac"], clients=PAIRS + 40, rounds=10)
    part = {5: range(40, 80), 10: range(40)}  # other participants in each round
    made.drop(lambda r: r[4] == "server" and not {r[3], r[7]} <= set(part[r[2]]))
    values = drawn(report.read(made.save(tmp_path / "run")))["combination-0"].spec["data"]["values"]
    assert {v["round"] for v in values} == {"round 10"}
    assert {int(v["other"]) for v in values} == set(range(40))
