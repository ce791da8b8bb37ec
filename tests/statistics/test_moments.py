"""Moments and the estimates from them, against numpy written row by row."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.statistics.gaussian import estimate, log_prior
from idiolect.statistics.moments import moments

N, C, D = 40, 5, 6


def rows(seed=0, absent=4, n=N):
    rng = np.random.default_rng(seed)
    y_N = rng.integers(0, C, n)
    y_N[y_N == absent] = 0
    return torch.tensor(rng.normal(2.0, 3.0, (n, D))), torch.tensor(y_N), torch.tensor(rng.integers(0, 3, n)).double()


def numpy_estimate(z, y, w, fallback, min_count):
    """Row by row: class means, then the scatter of every row about its class's mean."""
    mean, scatter = fallback.copy(), np.zeros((D, D))
    for c in range(C):
        if (n := w[y == c].sum()) >= min_count:
            mean[c] = (w[y == c, None] * z[y == c]).sum(0) / n
    for z_i, y_i, w_i in zip(z, y, w, strict=True):
        scatter += w_i * np.outer(z_i - mean[y_i], z_i - mean[y_i])
    return mean, scatter / max(w.sum() - 1, 1)


def test_moments_are_class_sums():
    z, y, w = rows()
    m = moments(z, y, w, C)
    for c in range(C):
        assert m.n_C[c] == w[y == c].sum()
        np.testing.assert_allclose(m.sum_Cd[c], (w[y == c, None] * z[y == c]).sum(0), atol=1e-12)
    np.testing.assert_allclose(m.outer_dd, np.einsum("n,ni,nj->ij", w, z, z), atol=1e-11)


def test_moments_of_a_union_are_the_sum():
    z, y, w = rows()
    both = tree.add(moments(z[:17], y[:17], w[:17], C), moments(z[17:], y[17:], w[17:], C))
    for a, b in zip(both, moments(z, y, w, C), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-12)


def test_float32_rows_are_summed_in_float64():
    z = torch.full((10, D), 1e4) + torch.arange(10)[:, None] * 2**-9
    m = moments(z, torch.zeros(10, dtype=torch.int64), torch.ones(10), 1)
    assert all(a.dtype == torch.float64 for a in m)
    variance = np.var(z.numpy().astype(float), axis=0, ddof=1)
    np.testing.assert_allclose(estimate(m, torch.zeros(1, D)).cov_dd.diagonal(), variance, rtol=1e-3)


def test_absent_rows_change_no_bit():
    z, y, _ = rows()
    full = moments(z, y, torch.ones(N), C)
    junk = torch.full((7, D), torch.nan)
    padded = moments(torch.cat([z, junk]), torch.cat([y, torch.full((7,), -1)]), torch.tensor([1.0] * N + [0.0] * 7), C)
    assert all(torch.equal(a, b) for a, b in zip(full, padded, strict=True))


@pytest.mark.parametrize("min_count", [1, 3, 9])
def test_estimate_with_an_absent_class_and_small_ones(min_count):
    z, y, w = rows()
    y[w > 1] = 1  # class 1 is large, the others are small, class 4 is absent
    fallback = torch.randn(C, D, generator=torch.Generator().manual_seed(1)).double()
    n_C = moments(z, y, w, C).n_C
    assert (n_C >= min_count).any()
    assert (n_C < min_count).any()
    g = estimate(moments(z, y, w, C), fallback, min_count=min_count)
    mean, cov = numpy_estimate(z.numpy(), y.numpy(), w.numpy(), fallback.numpy(), min_count)
    np.testing.assert_allclose(g.mean_Cd, mean, atol=1e-12)
    np.testing.assert_allclose(g.cov_dd, cov, atol=1e-11)
    assert torch.equal(g.cov_dd, g.cov_dd.T)


def test_estimate_of_one_row_and_of_none():
    z, y, _ = rows()
    fallback = torch.ones(C, D)
    g = estimate(moments(z[:1], y[:1], torch.ones(1), C), fallback)
    torch.testing.assert_close(g.mean_Cd[y[0]], z[0])
    torch.testing.assert_close(g.cov_dd, torch.zeros(D, D).double(), atol=1e-12, rtol=0)
    few = estimate(moments(z[:1], y[:1], torch.ones(1), C), fallback, min_count=2)
    np.testing.assert_allclose(few.cov_dd, np.outer(z[0] - 1, z[0] - 1), atol=1e-12)  # n - 1 counts as 1
    none = estimate(moments(z[:0], y[:0], torch.ones(0), C), fallback)
    assert torch.equal(none.mean_Cd, fallback.double())
    assert torch.equal(none.cov_dd, torch.zeros(D, D).double())


def test_estimate_refuses_a_count_of_zero():
    with pytest.raises(InputError, match="min_count=0"):
        estimate(moments(*rows(), C), torch.zeros(C, D), min_count=0)


def test_log_prior():
    p = np.array([12, 4, 0, 0, 0]) / 16 + 1e-4
    np.testing.assert_allclose(log_prior(torch.tensor([12.0, 4, 0, 0, 0])), np.log(p / p.sum()), rtol=1e-14)
    np.testing.assert_allclose(log_prior(torch.zeros(4)).exp(), 0.25)
    np.testing.assert_allclose(log_prior(torch.tensor([3, 1]), 0.0).exp(), [0.75, 0.25])
    assert log_prior(torch.tensor([1.0, 0.0]), 0.0)[1] == -torch.inf


def test_mapped_over_clients():
    z, y, w = (torch.stack(t) for t in zip(*(rows(seed) for seed in range(3)), strict=True))
    fallback = torch.ones(C, D)

    def client(z_Nd, y_N, weight_N):
        m = moments(z_Nd, y_N, weight_N, C)
        return m, estimate(m, fallback, min_count=8), log_prior(m.n_C)

    mapped, looped = vmap(client)(z, y, w), tree.stack([client(*t) for t in zip(z, y, w, strict=True)])
    for a, b in zip(tree.leaves(mapped), tree.leaves(looped), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
