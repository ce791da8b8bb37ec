"""What a client measures has the names and the values that are said of it before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.objectives import TaskName
from idiolect.data.targets import Targets
from idiolect.simulation import measures, target_measures, thresholds
from idiolect.simulation.metric_ranges import SCALARS, of_measures

ASKED = measures.specs_of("auroc,average_precision,recall,calibration")
SPECS = ("sensitivity", "specificity", "specificity:sensitivity=0.80", "sensitivity:specificity=0.9")
OF_TWO = (*ASKED, *measures.specs_of(SPECS))


@pytest.mark.parametrize(("classes", "asked", "threshold"), [(2, OF_TWO, "f1"), (2, (), "half"), (4, ASKED, "half")])
def test_measures_of_classes(classes: int, asked: tuple[str, ...], threshold: Threshold) -> None:
    draw = torch.Generator().manual_seed(1)
    logp_NC = torch.randn(60, classes, dtype=torch.float64, generator=draw).log_softmax(1)
    y_N = torch.arange(60) % classes
    at, found = thresholds.of_class(threshold, logp_NC, y_N)
    found |= measures.values_of(asked, logp_NC.exp(), y_N, at)
    ranges = of_measures("classification", classes, (), asked, threshold)
    assert set(found) == set(ranges) - _empty_bins(ranges, found)
    assert all(ranges[name].holds(value) for name, value in found.items())


def _empty_bins(ranges: Any, found: Any) -> set[str]:
    return {name for name in ranges if name.startswith("calibration_") and name not in found}


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
@pytest.mark.parametrize(
    ("task", "asked", "threshold"),
    [
        ("regression", (), "half"),
        ("multilabel", (), "half"),
        ("multilabel", ("auroc", "average_precision"), "balanced"),
        ("multilabel", ("average_precision",), "f1"),
    ],
)
def test_measures_of_numbers_and_labels(
    task: TaskName, names: tuple[str, ...], asked: tuple[str, ...], threshold: Threshold
) -> None:
    draw = torch.Generator().manual_seed(1)
    y_ND = torch.randn(60, len(names), dtype=torch.float64, generator=draw)
    raw = torch.randn(60, len(names), 2, dtype=torch.float64, generator=draw)
    if task == "multilabel":
        y_ND, said_N = (y_ND > 0).double(), raw.log_softmax(-1)
    else:
        said_N = raw[..., 0]
    goal = Targets(y_ND, names, (0.0,) * len(names), (1.0,) * len(names), task)
    _, _, found = target_measures.of_predictions(said_N, goal, (), 30, asked, threshold)
    ranges = of_measures(task, len(names), names, asked, threshold)
    assert set(found) == set(ranges)
    assert all(ranges[name].holds(value) for name, value in found.items())


def test_perfect_predictions_are_in_range() -> None:
    p_NC, y_N = torch.eye(3, dtype=torch.float64).repeat(7, 1), torch.arange(21) % 3
    ranges = of_measures("classification", 3, (), ASKED, "half")
    assert all(ranges[name].holds(value) for name, value in measures.values_of(ASKED, p_NC, y_N).items())
    assert SCALARS["calibration_error"].holds(measures.calibration_error(p_NC, y_N))
