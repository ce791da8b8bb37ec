"""Class frequencies of clients that are drawn about everyone's, and their agreement, against numpy and simulation."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from idiolect.statistics.class_shares import agreement, shrunk, with_unseen

NONE = torch.tensor(0.25)


@pytest.mark.parametrize("count", [[3, 1, 0, 2], [1, 1], [5, 0], [2, 2, 2]], ids=str)
def test_agreement_is_that_of_all_pairs_of_samples(count: list[int]) -> None:
    y = np.repeat(np.arange(len(count)), count)
    want = np.mean([a == b for a, b in permutations(y, 2)])
    np.testing.assert_allclose(float(agreement(torch.tensor(count).double(), NONE)), want)


def test_without_a_pair_something_else_stands_for_agreement() -> None:
    for count in ([0, 1], [0, 0]):
        assert float(agreement(torch.tensor(count).double(), NONE)) == float(NONE)
    rows = torch.tensor([[1.0, 0.0], [3.0, 1.0]]).double()
    np.testing.assert_allclose(float(agreement(rows, NONE)), (0.25 + 6 / 12) / 2)


@pytest.mark.parametrize("concentration", [0.5, 3.0, 40.0])
def test_agreement_tells_the_concentration_and_shrinks_to_the_mean_of_the_posterior(concentration: float) -> None:
    """Of 4,000 clients with 20 samples each: the mean squared error of frequencies is that of the posterior's mean."""
    rng, share = np.random.default_rng(4), np.array([0.5, 0.3, 0.15, 0.05])
    true = rng.dirichlet(concentration * share, 4000)
    count = np.array([rng.multinomial(20, p) for p in true])
    h = np.mean([float(agreement(torch.tensor(c).double(), NONE)) for c in count])
    guess = shrunk(torch.tensor(count).double(), torch.tensor(share), torch.tensor(h)).numpy()
    best = (count + concentration * share) / (20 + concentration)
    error, least = ((guess - true) ** 2).sum(1), ((best - true) ** 2).sum(1)
    assert error.mean() < 1.01 * least.mean()
    assert error.mean() < min(((count / 20 - true) ** 2).sum(1).mean(), ((share - true) ** 2).sum(1).mean())


def test_clients_that_agree_by_chance_have_everyones_frequencies() -> None:
    share, count = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.0, 9.0, 1.0]).double()
    for h in (0.53, 0.3):
        np.testing.assert_allclose(shrunk(count, share, torch.tensor(h).double()), share)


def test_clients_of_one_class_each_keep_their_counts() -> None:
    share, count = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.0, 9.0, 1.0]).double()
    np.testing.assert_allclose(shrunk(count, share, torch.tensor(1.0).double()), count / 10, atol=1e-8)


def test_the_next_sample_is_of_an_unseen_class_as_often_as_estimated() -> None:
    """Of 20,000 clients with 8 samples of 12 classes, and one more."""
    rng = np.random.default_rng(6)
    share = rng.dirichlet(np.ones(12))
    drawn = rng.choice(12, (20000, 9), p=share)
    count = np.stack([np.bincount(row[:8], minlength=12) for row in drawn])
    p = with_unseen(torch.tensor(count).double(), torch.tensor(share).expand(count.shape)).numpy()
    np.testing.assert_allclose(p.sum(1), 1)
    unseen = (p * (count == 0)).sum(1)
    new = count[np.arange(len(count)), drawn[:, 8]] == 0
    assert abs(new.mean() - unseen.mean()) < 0.01


def test_unseen_classes_share_as_everyone_has_them() -> None:
    count, share = torch.tensor([4.0, 1.0, 0.0, 0.0]).double(), torch.tensor([0.5, 0.2, 0.1, 0.2]).double()
    u = 1 / 6
    want = [(1 - u) * 4 / 5, (1 - u) / 5, u / 3, 2 * u / 3]
    np.testing.assert_allclose(with_unseen(count, share), want)


def test_where_nothing_is_left_to_come_frequencies_are_counts() -> None:
    share = torch.tensor([0.5, 0.5, 0.0]).double()
    for count in ([1.0, 3.0, 0.0], [1.0, 2.0, 4.0]):
        np.testing.assert_allclose(with_unseen(torch.tensor(count).double(), share), np.array(count) / sum(count))
    np.testing.assert_allclose(with_unseen(torch.zeros(3).double(), share), 0)
