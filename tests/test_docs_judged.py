"""What docs/judged.py says of FedShrink's report: counts and differences of results that are written here by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from idiolect.reproduction.outcomes import SeedResult

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import judged


def result(value: float | None, worst: float = 50.0, error: float = 0.04) -> SeedResult:
    facts = {} if value is None else {"worst_decile": worst, "calibration_error": error}
    return SeedResult(value, 60, facts, {})


def found(ours: list[list[float]]) -> dict[tuple[str, ...], Any]:
    """A cell for each list: FedShrink's seeds; the best of the four has 70, the best of all 71, and one diverged."""
    return {
        (f"cell{n}",): {
            "fedshrink": {s: result(v) for s, v in enumerate(seeds)},
            "local": {0: result(60, 40)},
            "fedlda": {0: result(70)},
            "fedpac": {0: result(69)},
            "ditto": {0: result(72), 1: result(70)},
            "pfedfda": {0: result(None)},
        }
        for n, seeds in enumerate(ours)
    }


def test_each_cell_is_compared_with_the_best_of_the_others_and_of_the_four() -> None:
    first, second = judged.judged(found([[72, 73], [70.9]]))
    assert (first.ours, first.best) == (72.5, "ditto")
    assert (first.beyond, first.beyond_four, first.tenth) == (1.5, 2.5, 10)
    assert second.beyond == pytest.approx(-0.1)
    lines = judged.each([first, second])
    assert lines[2:] == [
        "| cell0 | 72.5 | Ditto, 71.0 | +1.5 | +2.5 |",
        "| cell1 | 70.9 | Ditto, 71.0 | -0.1 | +0.9 |",
    ]


def test_squared_errors_are_not_judged() -> None:
    cells = found([[72]])
    cells["schools",] = cells["cell0",]
    assert len(judged.judged(cells)) == 1


@pytest.mark.parametrize(
    ("ours", "reached", "said"),
    [
        ([[72]] * 10, "yes yes yes yes yes", "10 of 10; the best in 10"),
        ([[70.8]] * 10, "yes yes no yes yes", "10 of 10; the best in 0"),
        ([[72]] * 8 + [[70.6]] * 2, "no yes yes yes yes", "8 of 10; the best in 8"),
        ([[74]] * 9 + [[70.4]], "yes no yes yes yes", "9 of 10; the best in 9"),
    ],
)
def test_goals_are_counted_over_cells(ours: list[list[float]], reached: str, said: str) -> None:
    rows = [line.strip("| ").split(" | ") for line in judged.goals(judged.judged(found(ours)))[2:]]
    assert " ".join(row[2] for row in rows) == reached
    assert rows[0][1] == said


def test_a_worst_tenth_below_locals_and_a_calibration_error_above_its_goal_are_not_reached() -> None:
    cells = found([[72], [72]])
    cells["cell1",]["fedshrink"] = {0: result(72, worst=39, error=0.09)}
    rows = judged.goals(judged.judged(cells))
    (tenth,) = (row for row in rows if "the worst tenth" in row)
    assert tenth.endswith(" at least Local's in every cell | 1 of the 2 that have Local, lowest -1.0 | no |")
    assert "| a calibration error of at most 0.05 | 1 of 2, mean 0.065 | no |" in rows


def test_a_cell_in_which_fedshrink_diverged_is_far_below() -> None:
    cells = found([[72], [72]])
    cells["cell1",]["fedshrink"] = {0: result(90), 1: result(None)}
    both = judged.judged(cells)
    rows = [line.strip("| ").split(" | ") for line in judged.goals(both)[2:]]
    assert [row[2] for row in rows] == ["no"] * 5
    assert rows[0][1] == "1 of 2; the best in 1"
    assert rows[2][1] == "it diverged in 1"
    assert judged.each(both)[-1] == "| cell1 | diverged | Ditto | | |"


def test_a_method_of_which_a_seed_diverged_is_not_the_best() -> None:
    cells = found([[72]])
    cells["cell0",]["fedpac"] = {0: result(99), 1: result(None)}
    (one,) = judged.judged(cells)
    assert (one.best, one.beyond, one.beyond_four) == ("ditto", 1, 2)


def test_one_round_is_compared_with_the_best_after_fifty() -> None:
    ours = {"fedcgs": 85, "fedcgs_own": 95, "fedcgs_shrunk": 96}
    cells: dict[tuple[str, ...], Any] = {
        ("news", "1"): {m: {0: result(v)} for m, v in {"fedshrink": 90, **ours}.items()},
        ("news", "50"): {m: {0: result(v)} for m, v in {"fedshrink": 93, "local": 80, "fedpac": 92}.items()},
    }
    row, _, goal = judged.one_round(cells)[2:]
    assert row == "| news | 90.0 | 85.0 | 95.0 | 96.0 | 93.0 | 80.0 | **92.0** | -2.0 |"
    assert goal.endswith("on three of four, is missed: on 0.")
    for n in range(3):
        once = cells["news", "1"] | {"fedshrink": {0: result(91)}}
        cells |= {(f"{n}", "1"): once, (f"{n}", "50"): cells["news", "50"]}
    assert judged.one_round(cells)[-1].endswith("on three of four, is reached: on 3.")


def test_what_diverged_under_privacy_is_said() -> None:
    cells = {("1",): {"fedavg_ft": {0: result(81)}, "fedlda": {0: result(None)}, "fedshrink": {0: result(80)}}}
    row, _, goal = judged.private(cells)[2:]
    assert row == "| 1 | 81.0 | diverged | 80.0 |"
    assert goal == "Some diverge. The goal, not below FedAvg-FT, is missed: the differences are -1.0 points."


@pytest.mark.parametrize(("ours", "said"), [([80.0, None], "80.0 (1 diverged)"), ([90.0, None], "90.0 (1 diverged)")])
def test_one_seed_that_diverged_is_said_and_reaches_no_goal(ours: list[float | None], said: str) -> None:
    cells = {("1",): {"fedavg_ft": {0: result(81), 1: result(81)}, "fedshrink": dict(enumerate(map(result, ours)))}}
    row, _, goal = judged.private(cells)[2:]
    assert row == f"| 1 | 81.0 | {said} |"
    assert goal == "Some diverge. The goal, not below FedAvg-FT, is missed: the differences are (diverged) points."


def test_nothing_is_shown_before_all_numbers_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = {0: result(70)}
    monkeypatch.setattr(judged.outcome_files, "kept_results", lambda recipe, cell, folder: seeds)
    numbers = len(judged.recipes.get("own/private").cells)
    (line,) = judged.section(["own/private"], judged.private)
    assert line.startswith(f"{2 * numbers} numbers are missing.")
    seeds.update({1: result(70), 2: result(70)})
    *rows, _, goal = judged.section(["own/private"], judged.private)[2:]
    assert rows == [f"| {e} |" + " 70.0 |" * 4 for e in (1, 3, 8)]
    assert goal == "None diverges. The goal, not below FedAvg-FT, is reached."
