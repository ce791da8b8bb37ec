"""Repairs against their equations in numpy."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from idiolect.core.errors import InputError
from idiolect.statistics.covariance import above_noise, at_least, clip_correlation, pack, ridge, shrink, unpack

D = 6


def spd(seed=0, rank=D):
    root = np.random.default_rng(seed).normal(size=(D, rank)) * np.arange(1, D + 1)[:, None]
    return root @ root.T


def clipped(cov, floor):
    """Eigenvalues of the correlation matrix raised, its diagonal scaled back to 1, variances restored."""
    std = np.sqrt(np.diag(cov))
    value, vector = np.linalg.eigh(cov / np.outer(std, std))
    if (value >= floor).all():
        return cov
    corr = (vector * np.maximum(value, floor)) @ vector.T
    scale = np.sqrt(np.diag(corr))
    return corr / np.outer(scale, scale) * np.outer(std, std)


def indefinite():
    """A correlation matrix that is not one, with unequal variances."""
    corr = np.full((D, D), -0.6)
    np.fill_diagonal(corr, 1.0)
    return corr * np.outer(np.arange(1, D + 1), np.arange(1, D + 1))


def test_shrink_and_ridge():
    cov = spd()
    np.testing.assert_allclose(shrink(torch.tensor(cov), 0.3), 0.7 * cov + 0.3 * np.trace(cov) / D * np.eye(D))
    np.testing.assert_allclose(ridge(torch.tensor(cov), 0.5), cov + 0.5 * np.eye(D))
    np.testing.assert_allclose(ridge(torch.tensor(cov), 1.0, everywhere=1e-2), cov + np.eye(D) + 1e-2)


def test_repairs_refuse_what_would_harm():
    cov = torch.eye(D)
    for weight in (-0.1, 1.1):
        with pytest.raises(InputError, match="shrink="):
            shrink(cov, weight)
    for kw in ({"amount": -1.0}, {"amount": 1.0, "everywhere": -1e-4}):
        with pytest.raises(InputError, match="0 or more"):
            ridge(cov, **kw)


@pytest.mark.parametrize("floor", [1e-15, 1e-3])
def test_clip_correlation(floor):
    cov = indefinite()
    assert np.linalg.eigvalsh(cov).min() < -0.1
    out = clip_correlation(torch.tensor(cov), floor).numpy()
    np.testing.assert_allclose(out, clipped(cov, floor), atol=1e-12)
    assert np.linalg.eigvalsh(out).min() > -1e-12
    np.testing.assert_allclose(np.diag(out), np.diag(cov), rtol=1e-12)


@pytest.mark.parametrize("floor", [0.5, 20.0])
def test_at_least_is_the_nearest_with_such_eigenvalues(floor):
    """A projection onto a convex set: no other such matrix lies on the side of the given one."""
    cov, rng = indefinite(), np.random.default_rng(0)
    out = at_least(torch.tensor(cov), floor).numpy()
    assert np.linalg.eigvalsh(out).min() == pytest.approx(floor)
    for _ in range(50):
        root = rng.normal(size=(D, D))
        other = floor * np.eye(D) + rng.exponential(30) * root @ root.T
        assert np.sum((cov - out) * (other - out)) <= 1e-9 * np.sum(cov**2)


@pytest.mark.parametrize("cov", [spd() + np.eye(D), np.full((D, D), np.nan)])
def test_at_least_leaves_others_to_the_bit(cov):
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(
            at_least(torch.tensor(cov, dtype=dtype), 0.5).nan_to_num(7), torch.tensor(cov, dtype=dtype).nan_to_num(7)
        )
    assert torch.equal(at_least(torch.tensor(indefinite()), 0.0), torch.tensor(indefinite()))


@pytest.mark.parametrize("size", [1e-3, 0.3, 3.0, 8.0])
def test_above_noise_keeps_the_trace_and_what_is_larger_than_the_noise(size):
    noise = np.random.default_rng(2).normal(0, size, (D, D))
    cov = spd(rank=2) + noise + noise.T
    value, vector = np.linalg.eigh(cov)
    assert value[0] < 0
    assert value.sum() > 0
    count = (value <= -value[0]).sum()
    while value[:count].mean() < 0:
        count += 1
    want = (vector * np.r_[np.full(count, value[:count].mean()), value[count:]]) @ vector.T
    out = above_noise(torch.tensor(cov)).numpy()
    np.testing.assert_allclose(out, want, atol=1e-9)
    assert np.trace(out) == pytest.approx(np.trace(cov))
    assert np.linalg.eigvalsh(out).min() > -1e-9


def test_above_noise_of_a_negative_trace_is_0():
    assert not above_noise(torch.diag(torch.tensor([-3.0, 1.0, 1.0]))).any()


@pytest.mark.parametrize("cov", [spd(), spd(rank=2), np.full((D, D), np.nan), np.zeros((D, D))])
def test_above_noise_leaves_a_covariance_to_the_bit(cov):
    for dtype in (torch.float32, torch.float64):
        given = torch.tensor(cov, dtype=dtype)
        assert torch.equal(above_noise(given).nan_to_num(7), given.nan_to_num(7))


def test_clip_correlation_leaves_a_good_matrix_to_the_bit():
    cov = torch.tensor(spd())
    assert torch.equal(clip_correlation(cov), cov)


def test_clip_correlation_of_a_feature_without_variance():
    cov = indefinite()
    cov[2] = cov[:, 2] = 0
    rest = [0, 1, 3, 4, 5]
    out = clip_correlation(torch.tensor(cov)).numpy()
    assert not out[2].any()
    assert not out[:, 2].any()
    np.testing.assert_allclose(out[np.ix_(rest, rest)], clipped(cov[np.ix_(rest, rest)], 1e-15), atol=1e-12)


def test_clip_correlation_never_raises():
    for bad in (torch.nan, torch.inf):
        cov = torch.eye(D)
        cov[1, 2] = bad
        assert clip_correlation(cov).isnan().all()


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pack_and_unpack(d, dtype):
    cov = torch.tensor(spd()[:d, :d]).to(dtype)
    packed = pack(cov)
    np.testing.assert_array_equal(packed, [cov[i, j] for i in range(d) for j in range(i, d)])
    assert packed.dtype == dtype
    assert torch.equal(unpack(packed, d), cov)


def test_mapped_over_clients():
    cov = torch.tensor(np.stack([spd(), indefinite(), np.full((D, D), np.nan)]))

    def client(cov_dd):
        return shrink(cov_dd, 0.1), ridge(cov_dd, 0.1), clip_correlation(cov_dd), pack(cov_dd), unpack(pack(cov_dd), D)

    for a, b in zip(vmap(client)(cov), zip(*map(client, cov), strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b), rtol=1e-12, atol=1e-12, equal_nan=True)
