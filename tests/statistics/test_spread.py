"""How far clients' class means lie from everyone's: against the definition, and where there is nothing to see."""

import numpy as np
import pytest
import torch

from idiolect.statistics import spread
from idiolect.statistics.spread import Between


def test_excess_is_the_definition() -> None:
    rng = np.random.default_rng(1)
    n, apart, variance = np.array([3.0, 0.0, 5.0]), rng.normal(size=(3, 4)), 2.5
    want = sum(n[c] * (apart[c] ** 2).sum() / variance - 1 for c in (0, 2))
    got = spread.excess(torch.tensor(n), torch.tensor(apart), torch.tensor(variance))
    assert float(got) == pytest.approx(want, rel=1e-12)


def one_way(data: list[np.ndarray]) -> float:
    """The variance among groups by the analysis of variance, of one class, for groups of one size."""
    n = len(data[0])
    among = n * np.var([x.mean() for x in data], ddof=1)
    within = np.mean([x.var(ddof=1) for x in data])
    return float((among - within) / n / within)


def test_among_is_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(2)
    data = [rng.normal() + rng.normal(size=6) for _ in range(5)]
    every, within = np.concatenate(data), np.mean([x.var(ddof=1) for x in data])
    square = np.mean([(x.mean() - every.mean()) ** 2 for x in data for _ in x]) / within
    clients = Between(*(torch.tensor(a, dtype=torch.float64) for a in (square, 5 / len(every), 1 / len(every), 1 / 5)))
    assert float(spread.among(clients)) == pytest.approx(one_way(data), rel=1e-12)


def test_one_client_shows_nothing() -> None:
    assert float(spread.among(Between(*(torch.tensor(a, dtype=torch.float64) for a in (0.0, 0.1, 0.1, 1.0))))) == 0


def test_the_covariance_of_clients_with_many_samples_is_their_scatter() -> None:
    rng = np.random.default_rng(3)
    scatter = np.cov(rng.normal(size=(3, 9)))
    got = spread.within(torch.tensor(scatter), torch.tensor(0.4), torch.tensor(7.0))
    np.testing.assert_allclose(got, scatter / 0.4, rtol=1e-6)


@pytest.mark.parametrize("free", [0.0, 0.02])
def test_where_scatter_says_nothing_clients_are_taken_as_alike(free: float) -> None:
    """As if five hundredths of the samples were free: what is lacking has the trace of the means' scatter, evenly."""
    rng = np.random.default_rng(4)
    scatter, apart = free * np.cov(rng.normal(size=(3, 9))), 2.0
    args = (torch.tensor(a, dtype=torch.float64) for a in (scatter, free, apart))
    want = (scatter + (0.05 - free) * apart / 3 * np.eye(3)) / 0.05
    np.testing.assert_allclose(spread.within(*args), want, rtol=1e-12)
