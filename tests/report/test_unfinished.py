"""Whose training seems not to be finished, by losses and accuracies made by hand."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect import report
from idiolect.core.errors import as_options
from idiolect.report.unfinished import advice, still_falls

ROUND = np.arange(30)
NOISE = np.random.default_rng(3)

FALLING = {
    "a line": np.linspace(2.3, 0.9, 30),
    "a short line": np.linspace(2.3, 2.2, 6),
    "hardly at all, as with a tiny rate": np.linspace(2.286, 2.277, 10),
    "half way": 0.3 + 2 * np.exp(-ROUND / 20),
    "a wavering fall": np.linspace(2.0, 1.0, 30) + NOISE.normal(0, 0.04, 30),
    "slowly at first": 2.2 - 1.5 / (1 + np.exp(-(ROUND - 22) / 4)),
}
DONE = {
    "flat": np.full(30, 0.7),
    "flat after a fall": 0.1 + 2 * np.exp(-ROUND / 4),
    "wavering about a level": 0.5 + np.concatenate([2 * np.exp(-ROUND[:10] / 2), NOISE.normal(0, 0.05, 20)]),
    "rising": np.linspace(0.5, 1.5, 30),
    "fell and rises": np.abs(ROUND - 15) / 10.0,
    "too short to say": np.linspace(2.3, 0.9, 5),
    "not a number": np.where(ROUND == 4, np.nan, np.linspace(2.3, 0.9, 30)),
    "a recovery after a peak": np.concatenate([np.full(19, 0.4), [3.0], 3.0 - np.linspace(0, 2, 10)]),
}


@pytest.mark.parametrize("name", FALLING)
def test_falls(name: str) -> None:
    assert still_falls(FALLING[name].tolist())


@pytest.mark.parametrize("name", DONE)
def test_does_not_fall(name: str) -> None:
    assert not still_falls(DONE[name].tolist())


@pytest.mark.parametrize("rounds", [6, 9, 20, 60])
def test_noise_alone_is_no_fall(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    assert np.mean([still_falls(rng.normal(2, 0.1, rounds).tolist()) for _ in range(1000)]) < 0.01


def with_loss(made: Any, losses: dict[str, np.ndarray]) -> Any:
    made.drop(lambda r: r[5] == "train_loss")
    for label, loss in losses.items():
        for seed in made.study["seeds"]:
            for r, value in enumerate(loss.tolist(), 1):
                for client in range(len(made.manifest["clients"])):
                    made.add(label, seed, r, client, "local", "train_loss", value * (1 + 0.1 * client))
    return made


def test_it_is_said_under_the_table_and_on_the_page(make: Any, tmp_path: Path) -> None:
    losses = {"local": DONE["flat after a fall"], "fedavg": FALLING["a line"], "fedpac": FALLING["half way"]}
    made = with_loss(make(list(losses), 5, (0, 1), rounds=30), losses)
    made.study["lr"] = 0.01
    folder = made.save(tmp_path / "run")
    said = (
        "Training may not be finished: the training loss of FedAvg, FedPAC still falls steadily. Try more rounds "
        "(rounds=60), or a larger learning rate (lr=0.03)."
    )
    assert advice(report.read(folder)) == [said]
    page = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    assert said in page
    assert "finished" not in report.export(folder, "latex")[0].read_text(), "not for a paper"


@pytest.mark.parametrize(
    ("lr", "said"), [(0.1, "0.3"), (0.7, "2.1"), (1.1, "3.3"), (0.003, "0.009"), (1e-5, "3e-05"), (2, "6")]
)
@pytest.mark.parametrize("is_command", [True, False])
def test_a_learning_rate_is_written_as_a_person_would(
    make: Any, tmp_path: Path, lr: float, said: str, is_command: bool
) -> None:
    """Three times 0.1 is 0.30000000000000004 for a computer."""
    made = with_loss(make(["fedavg"], 5, (0,), rounds=30), {"fedavg": FALLING["a line"]})
    made.study["lr"] = lr
    with as_options() if is_command else nullcontext():
        [line] = advice(report.read(made.save(tmp_path / "run")))
    assert f"({'--lr ' if is_command else 'lr='}{said})" in line


def test_not_of_a_method_that_is_stopped_or_overfits(make: Any, tmp_path: Path) -> None:
    made = with_loss(
        make(["local", "fedavg"], 5, (0,), rounds=30), dict.fromkeys(["local", "fedavg"], FALLING["a line"])
    )
    made.drop(lambda r: r[0] == "fedavg" and r[2] > 20)
    made.records = [
        (*r[:6], 0.9 - r[2] / 100, r[7]) if r[5] == "accuracy" and r[0] == "local" else r for r in made.records
    ]
    assert advice(report.read(made.save(tmp_path / "run"))) == []


def constant(make: Any, tests: list[list[int]], trains: list[list[int]], right: list[float], balanced: Any) -> Any:
    """A run of FedAvg with these classes, accuracies and balanced accuracies, beside one that learned."""
    made = make(["local", "fedavg"], len(tests), (0,), rounds=7, classes=len(tests[0]))
    made.drop(lambda r: r[0] == "fedavg" and r[4] == "personalised")
    for k, (test, train, value) in enumerate(zip(tests, trains, right, strict=True)):
        made.manifest["clients"][k] |= {"test": test, "train": train}
        made.add("fedavg", 0, 7, k, "personalised", "accuracy", value)
        if balanced:
            made.add("fedavg", 0, 7, k, "personalised", "balanced_accuracy", balanced[k])
    return made


@pytest.mark.parametrize(
    ("tests", "trains", "right", "balanced", "stuck"),
    [
        ([[6, 4], [3, 7]], [[60, 10], [30, 40]], [0.6, 0.3], [0.5, 0.5], True),  # the most frequent class of all
        ([[6, 4], [3, 7]], [[60, 10], [30, 40]], [0.6, 0.7], [0.5, 0.5], True),  # each client's own
        ([[6, 4], [3, 7]], [[60, 10], [30, 40]], [0.6, 0.7], None, True),  # an older folder
        ([[5, 3, 2], [10, 0, 0]], [[50, 3, 2], [9, 0, 0]], [0.5, 1.0], [1 / 3, 1.0], True),
        ([[6, 4], [3, 7]], [[60, 10], [30, 40]], [0.6, 0.7], [0.6, 0.65], False),  # by chance the same accuracy
        ([[6, 4], [3, 7]], [[60, 10], [30, 40]], [0.7, 0.6], None, False),
        ([[10, 0], [0, 10]], [[60, 0], [0, 40]], [1.0, 1.0], [1.0, 1.0], False),  # nothing to tell
    ],
)  # fmt: skip
def test_the_most_frequent_class(
    make: Any, tmp_path: Path, tests: Any, trains: Any, right: Any, balanced: Any, stuck: bool
) -> None:
    found = advice(report.read(constant(make, tests, trains, right, balanced).save(tmp_path / "run")))
    want = "Accuracy is that of always predicting the most frequent class: FedAvg. Try more rounds (rounds=14), or a"
    assert [text.startswith(want) for text in found] == ([True] if stuck else [])
