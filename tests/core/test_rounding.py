"""Numbers that differ by rounding alone are equal, whatever their size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.rounding import significant
from idiolect.runs.early_stopping import stop_of, validation_means


@pytest.mark.parametrize("power", range(-30, 7, 3))
def test_means_of_equal_fractions_are_equal_in_any_order(power: int) -> None:
    orders = [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.6, 0.0, 0.0)]
    means = [sum(value * 10.0**power for value in order) / 3 for order in orders]
    assert len(set(significant(means).tolist())) == 1
    assert significant(means) == pytest.approx(2 * 10.0 ** (power - 1), rel=1e-11)


def test_what_is_no_number_or_0_stays() -> None:
    np.testing.assert_array_equal(significant([np.nan, np.inf, -np.inf, 0.0, -2.5]), [np.nan, np.inf, -np.inf, 0, -2.5])


def test_errors_in_small_units_have_a_best_round() -> None:
    rows = [("received", "validation_mse", client, number, 1e-14 / number) for client in (0, 1) for number in (1, 2, 3)]
    records = pd.DataFrame(rows, columns=["stage", "metric", "client", "round", "value"])
    means = validation_means(records, Protocol(stage="received"), {0: 5, 1: 5}, metric="validation_mse")
    assert stop_of((-means).to_dict(), 1) is None
