"""Thresholds chosen on validation samples, against scikit-learn's scores at every possible threshold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import idiolect as idl
from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.simulation.thresholds import chosen

SCORES = {"f1": metrics.f1_score, "balanced": metrics.balanced_accuracy_score}


@pytest.mark.parametrize("how", SCORES)
@pytest.mark.parametrize("digits", [1, 2, 9])
@pytest.mark.parametrize(("samples", "share", "seed"), [(4, 0.5, 0), (30, 0.1, 1), (200, 0.03, 2), (201, 0.6, 3)])
def test_no_threshold_is_better(how: str, digits: int, samples: int, share: float, seed: int) -> None:
    """With ties among probabilities, and with a threshold that is nearest to 1/2 among those as good."""
    rng = np.random.default_rng(seed)
    yes_N = rng.random(samples) < share
    yes_N[:2] = True, False
    p_N = np.round(np.clip(0.25 * yes_N + 0.5 * rng.random(samples), 0, 1), digits)
    edges = np.unique(np.concatenate([p_N, [0.0, 1.0]]))
    every = np.unique(np.concatenate([(edges[1:] + edges[:-1]) / 2, [0.5]]))
    value = np.array([SCORES[how](yes_N, p_N > t) for t in every])
    t = chosen(how, p_N, yes_N)
    assert SCORES[how](yes_N, p_N > t) == pytest.approx(value.max(), abs=1e-12)
    good = every[value >= value.max() - 1e-12]
    assert abs(t - 0.5) == pytest.approx(np.abs(good - 0.5).min(), abs=1e-12)


@pytest.mark.parametrize("how", [*SCORES, "half"])
@pytest.mark.parametrize("yes", [[], [True], [False, False, False], [True, True]])
def test_samples_of_one_kind_say_nothing(how: str, yes: list[bool]) -> None:
    assert chosen(how, np.full(len(yes), 0.3), np.array(yes, bool)) == 0.5


def table(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """A rare class, and two labels, at three sites."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2))
    rare = x[:, 0] + draw.normal(size=rows) > 1.8
    return pd.DataFrame({
        "a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in np.arange(rows) % 3],
        "y": np.where(rare, "yes", "no"), "u": rare.astype(int),
        "v": (x[:, 1] + draw.normal(size=rows) > 1).astype(int),
    })  # fmt: skip


def study(target: str, **more: object) -> idl.Study:
    columns = ["a", "b", "site", *target.split("+")]
    source = data.from_frame(table()[columns], target=target, client_column="site")
    settings = {"rounds": 3, "lr": 0.05, "batch_size": 10, "save_predictions": True} | more
    return idl.Study(data=source, methods=["local", "fedavg"], **settings)


@pytest.mark.parametrize("how", SCORES)
def test_accuracy_and_its_family_are_at_the_threshold_and_nothing_else_is(how: str, tmp_path: Path) -> None:
    measures = ["auroc", "recall", "sensitivity"]
    half, moved = (
        idl.run(
            study("y", protocol=f"validation=0.3{more}", measures=measures), tmp_path / f"r{k}", engine="sequential"
        )
        for k, more in enumerate(("", f",threshold={how}"))
    )
    predictions = moved.predictions()
    pd.testing.assert_frame_equal(predictions, half.predictions())
    chosen_there = last(moved)[last(moved)["metric"] == "threshold"]
    at = {f"{r.method}{r.client}": r.value for r in chosen_there.itertuples()}
    assert len(at) == 6
    assert set(at.values()) != {0.5}
    for (method, client), mine in predictions.groupby(["method", "client"]):
        own = last(moved)
        own = own[(own["method"] == method) & (own["client"] == client)].set_index("metric")["value"]
        y, said = mine["label"], mine["probability[1]"] > at[f"{method}{client}"]
        assert own["accuracy"] == pytest.approx(metrics.accuracy_score(y, said))
        assert own["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, said))
        assert own["macro_f1"] == pytest.approx(metrics.f1_score(y, said, average="macro"))
        assert own["sensitivity"] == own["recall[1]"] == pytest.approx(metrics.recall_score(y, said))
    rest = ["auroc", "loss", "brier", "calibration_error", "validation_accuracy", "validation_loss"]
    one, other = (last(r)[last(r)["metric"].isin(rest)].reset_index(drop=True) for r in (half, moved))
    pd.testing.assert_frame_equal(one, other)
    assert "threshold of the best" in (moved.folder / "report.html").read_text()


def last(result: idl.Result) -> pd.DataFrame:
    records = result.records
    return records[(records["round"] == 3) & (records["stage"] == "personalised")]


def test_each_label_has_its_own(tmp_path: Path) -> None:
    result = idl.run(study("u+v", protocol="validation=0.3,threshold=f1"), tmp_path / "run", engine="sequential")
    for (method, client), mine in result.predictions().groupby(["method", "client"]):
        own = last(result)
        own = own[(own["method"] == method) & (own["client"] == client)].set_index("metric")["value"]
        at = np.array([own["threshold[u]"], own["threshold[v]"]])
        y, p = (mine[[f"{what}[{k}]" for k in range(2)]].to_numpy() for what in ("target", "prediction"))
        assert own["micro_f1"] == pytest.approx(metrics.f1_score(y, p > at, average="micro"))
        assert own["subset_accuracy"] == pytest.approx(metrics.accuracy_score(y, p > at))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threshold=f1", "threshold=f1 is chosen on samples to validate on: add validation=0.2"),
        ("threshold=balanced", "threshold=balanced is chosen on samples to validate on: add validation=0.2"),
        ("threshold=f1,validation=0.2,clients=new", "chosen on validation samples, and new clients have none"),
        ("threshold=0.3,validation=0.2", "threshold"),
    ],
)
def test_what_a_protocol_refuses(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        idl.Study(protocol=text, new_clients=2)


def test_more_classes_and_numbers_have_no_threshold(tmp_path: Path) -> None:
    three = table().assign(y=[*"abcd"] * 100)[["a", "b", "y"]]
    numbers = table()[["a", "b"]]
    for frame, target, said in (
        (three, "y", "threshold=f1 is for two classes or several labels, and these data have 4: leave threshold out"),
        (numbers, "b", "threshold=f1 is for two classes or several labels, and this target is a number"),
    ):
        one = idl.Study(
            data=data.from_frame(frame, target=target), methods=["local"], clients=3, rounds=1,
            protocol="validation=0.2,threshold=f1",
        )  # fmt: skip
        with pytest.raises(InputError, match=said):
            idl.run(one, tmp_path / target)


def test_a_bundle_keeps_them_and_a_half_is_the_usual(tmp_path: Path) -> None:
    assert Protocol().threshold == "half"
    result = idl.run(study("y", protocol="validation=0.3,threshold=f1"), tmp_path / "run", engine="sequential")
    r = result.records
    r = r[(r["metric"] == "threshold") & (r["stage"] == "personalised") & (r["seed"] == r["seed"].min())]
    recorded = r[(r["round"] == r["round"].max()) & (r["method"] == "local")]
    kept = result.bundle("local", tmp_path / "b", client="all").about.thresholds
    assert [at for (at,) in kept] == recorded.sort_values("client")["value"].tolist()
