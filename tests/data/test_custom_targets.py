"""Targets that are mostly numbers, and columns that are joined in another way than by +."""

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import from_frame, open_data


def scores(rows=120, odd=()):
    """A score of each pupil, and in some rows something else."""
    rng = np.random.default_rng(0)
    values = (50 + 10 * rng.normal(size=rows)).round(1).astype(object)
    values[: len(odd)] = odd
    return pd.DataFrame({"age": rng.integers(8, 18, rows), "hours": rng.normal(size=rows), "score": values})


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (["high"], r"fractions and 1 text \(high\): correct these to predict numbers, or give task='classification'"),
        (["-", "n.d."], r"2 texts \(-, n.d.\)"),
        (["absent", "sick", "-", "moved"], r"4 texts \(-, absent, moved and 1 more\)"),
        ([">90"], r"1 text \(>90\)"),
    ],
)
def test_a_few_texts_among_many_numbers_are_no_classes(odd, said, tmp_path):
    frame = scores(odd=odd)
    with pytest.raises(InputError, match=said):
        from_frame(frame, target="score")
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=said):
        open_data(tmp_path / "t.csv", target="score")
    assert from_frame(frame, target="score", task="classification").targets is None
    with pytest.raises(InputError, match="has texts"):
        from_frame(frame, target="score", task="regression")


def test_whole_numbers_with_a_text_too():
    days = pd.DataFrame({"x": np.arange(200.0), "days": [*map(str, range(100)), *map(str, range(99)), "never"]})
    with pytest.raises(InputError, match=r"100 different whole numbers and 1 text \(never\)"):
        from_frame(days, target="days")


@pytest.mark.parametrize(
    "labels",
    [
        ["1", "2", "3", "other"] * 30,
        [f"{k}.5" for k in range(15)] * 8,
        [f"E{k % 40}" if k % 3 else str(k % 40) for k in range(120)],  # a third of the names are numbers
        pd.Categorical([*map(str, range(40)), "none"] * 3),
    ],
)
def test_classes_that_are_partly_numbers_stay_classes(labels):
    frame = pd.DataFrame({"x": np.arange(float(len(labels))), "label": labels})
    assert from_frame(frame, target="label").targets is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target": "score,hours"}, r"target: .* columns are joined by \+: write score\+hours"),
        ({"target": "score, hours"}, r"write score\+hours"),
        ({"target": "score", "drop": ["age,hours"]}, r"drop: .* write age\+hours"),
        ({"target": "score,hour"}, "did you mean|Known"),
    ],
)
def test_columns_joined_by_commas(settings, said):
    with pytest.raises(InputError, match=said):
        from_frame(scores(), **settings)
