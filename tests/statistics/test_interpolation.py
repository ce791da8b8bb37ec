"""Folds by counting; the search against a direct implementation in numpy, by scipy and by a grid."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from torch.func import vmap

from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.statistics.covariance import ridge
from idiolect.statistics.gaussian import Gaussian, log_prior
from idiolect.statistics.interpolation import _minimise, moments_by_fold, search, search_moments, stratified_folds
from idiolect.statistics.moments import moments, total

C, D, RIDGE = 4, 6, 0.2


def repair(cov_dd):
    return ridge(cov_dd, RIDGE)


def problem(seed, n=60, drift=0.5, absent=None):
    """Rows of a client, the Gaussian of everyone, and folds: (z, y, weight, fold, other)."""
    rng = np.random.default_rng(seed)
    centre, root = rng.normal(size=(C, D)), rng.normal(size=(D, D))
    y = rng.integers(0, C, n)
    y[y == absent] = 0
    z = (centre + drift * rng.normal(size=(C, D)))[y] + rng.normal(size=(n, D)) @ root
    other = root + 0.3 * rng.normal(size=(D, D))
    fold = np.empty(n, int)
    for c in range(C):
        fold[y == c] = rng.permutation((y == c).sum()) % 2
    return (
        torch.tensor(z), torch.tensor(y), torch.ones(n), torch.tensor(fold),
        Gaussian(torch.tensor(centre), torch.tensor(other.T @ other + 0.1 * np.eye(D))),
    )  # fmt: skip


def prior(y, weight):
    return log_prior(torch.stack([weight[y == c].sum() for c in range(C)]))


def direct(z, y, fold, other, logprior, shrink=1e-4, folds=2):
    """The sum over folds of the mean held-out loss as a function of (mean weight, covariance weight), by definition."""
    z, y, fold, logprior = (np.asarray(t) for t in (z, y, fold, logprior))
    keep = np.bincount(y, minlength=C)[y] >= 2
    z, y, fold = z[keep], y[keep], fold[keep]
    g_mean, g_cov = other.mean_Cd.numpy(), other.cov_dd.numpy()

    def risk(on_mean, on_cov):
        total = 0.0
        for k in range(folds):
            zt, yt = z[fold != k], y[fold != k]
            mean = np.array([zt[yt == c].mean(0) if (yt == c).any() else g_mean[c] for c in range(C)])
            centred = zt - mean[yt]
            cov = centred.T @ centred / max(len(zt) - 1, 1) + RIDGE * np.eye(D)
            mean, cov = on_mean * mean + (1 - on_mean) * g_mean, on_cov * cov + (1 - on_cov) * g_cov
            cov = (1 - shrink) * cov + shrink * np.trace(cov) / D * np.eye(D)
            weight = np.linalg.solve(cov, mean.T)
            logits = z[fold == k] @ weight + logprior - 0.5 * (mean * weight.T).sum(1)
            total += np.mean(logsumexp(logits, 1) - logits[np.arange(len(logits)), y[fold == k]])
        return total

    return risk


# ---------------------------------------------------------------- folds


def test_folds_share_out_every_class_and_all_rows():
    y = torch.tensor(np.random.default_rng(0).integers(0, 6, 101))
    y[y == 5] = torch.where(torch.arange((y == 5).sum()) == 0, 5, 4)  # class 5 has one row
    for folds in (2, 3, 5):
        fold = stratified_folds(y, torch.ones(101), keys.key(0, "folds"), folds=folds)
        for rows in [fold, *(fold[y == c] for c in range(6))]:
            count = np.bincount(rows, minlength=folds)
            assert count.max() - count.min() <= 1
            assert len(count) == folds


def test_folds_are_random_and_repeat():
    y, w = torch.arange(400) % 4, torch.ones(400)
    one, again, two = (stratified_folds(y, w, keys.key(s)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert 120 < (one == two).sum() < 280  # 200 expected, 10 the standard deviation
    neighbours = (one[4:] == one[:-4]).sum()  # rows of one class, next to each other
    assert 120 < neighbours < 280


def test_copies_of_one_sample_stay_together():
    n, copies = 31, 5
    y = torch.tensor(np.random.default_rng(1).integers(0, 4, n))
    sample = torch.cat([torch.randperm(n, generator=torch.Generator().manual_seed(e)) for e in range(copies)])
    fold = stratified_folds(y[sample], torch.ones(n * copies), keys.key(3), sample_N=sample * 1000 + 7)
    by_sample = torch.stack([fold[sample == s] for s in range(n)])
    assert (by_sample == by_sample[:, :1]).all()
    for rows in [by_sample[:, 0], *(by_sample[y == c, 0] for c in range(4))]:
        assert abs((rows == 0).sum() - (rows == 1).sum()) <= 1
    alone = stratified_folds(y[sample], torch.ones(n * copies), keys.key(3))
    assert not all((alone[sample == s] == alone[sample == s][0]).all() for s in range(n))


@pytest.mark.parametrize("grouped", [False, True])
def test_padding_moves_no_row(grouped):
    n, pad = 30, 9
    y = torch.tensor(np.random.default_rng(2).integers(0, 4, n))
    sample = torch.arange(n) % 11 + 5
    y = y[sample - 5]
    fold = stratified_folds(y, torch.ones(n), keys.key(5), sample_N=sample if grouped else None)
    padded = stratified_folds(
        torch.cat([y, y[:pad]]),
        torch.tensor([1.0] * n + [0.0] * pad),
        keys.key(5),
        sample_N=torch.cat([sample, torch.arange(pad)]) if grouped else None,
    )
    assert torch.equal(padded[:n], fold)


def test_one_fold_is_refused():
    z, y, w, fold, other = problem(0)
    with pytest.raises(InputError, match="folds=1"):
        stratified_folds(y, w, keys.key(0), folds=1)
    with pytest.raises(InputError, match="folds=1"):
        search(z, y, w, fold, other, prior(y, w), repair=repair, folds=1)


# ---------------------------------------------------------------- search


@pytest.mark.parametrize(("seed", "n", "drift"), [(0, 60, 0.5), (1, 30, 0.3), (9, 80, 0.2), (3, 24, 0.6)])
def test_search_finds_what_scipy_finds(seed, n, drift):
    z, y, w, fold, other = problem(seed, n, drift)
    lp = prior(y, w)
    risk = direct(z, y, fold, other, lp)
    found = search(z, y, w, fold, other, lp, repair=repair).item()
    grid = np.linspace(0, 1, 201)
    values = np.array([risk(b, b) for b in grid])
    best = values.argmin()
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, 200)])
    exact = minimize_scalar(lambda b: risk(b, b), bounds=bounds, method="bounded", options={"xatol": 1e-9}).x
    assert 0.02 < exact < 0.98  # an inner minimum, or the test shows nothing
    assert found == pytest.approx(exact, abs=2e-7)
    assert risk(found, found) <= values.min() + 1e-12


def test_search_with_three_folds_and_another_shrink():
    z, y, w, _, other = problem(0, 45, 0.3)
    fold = torch.arange(45) % 3
    lp = prior(y, w)
    risk = direct(z, y, fold, other, lp, shrink=0.1, folds=3)
    found = search(z, y, w, fold, other, lp, repair=repair, shrink=0.1, folds=3).item()
    exact = minimize_scalar(lambda b: risk(b, b), bounds=(0, 1), method="bounded", options={"xatol": 1e-9}).x
    assert 0.02 < exact < 0.98
    assert found == pytest.approx(exact, abs=2e-7)


def test_search_with_an_absent_class_and_a_class_of_one_row():
    z, y, w, fold, other = problem(2, 30, 0.3, absent=3)
    y[y == 2] = 0
    y[4] = 2  # one row: left out of both sides
    lp = prior(y, w)
    risk = direct(z, y, fold, other, lp)
    found = search(z, y, w, fold, other, lp, repair=repair).item()
    values = [risk(b, b) for b in np.linspace(0, 1, 501)]
    assert found == pytest.approx(np.argmin(values) / 500, abs=2e-3)
    moved = z.clone()
    moved[4] += 100
    assert search(moved, y, w, fold, other, lp, repair=repair).item() == found


def test_a_class_missing_from_a_training_fold_takes_the_other_mean():
    z, y, w, fold, other = problem(7, 40, 0.3)
    fold[y == 1] = 0
    lp = prior(y, w)
    risk = direct(z, y, fold, other, lp)
    found = search(z, y, w, fold, other, lp, repair=repair).item()
    values = [risk(b, b) for b in np.linspace(0, 1, 501)]
    assert found == pytest.approx(np.argmin(values) / 500, abs=2e-3)


def test_the_ends_are_met_exactly():
    z, y, w, fold, other = problem(0, 2000, 1.0)
    lp = prior(y, w)
    strange = Gaussian(torch.flip(other.mean_Cd, (0,)) + 5, torch.eye(D).double())
    assert search(z, y, w, fold, strange, lp, repair=repair).item() == 1.0
    contrary = torch.where(fold == 0, y, (y + 1) % C)  # what one fold teaches, the other refutes
    assert search(z, contrary, w, fold, other._replace(mean_Cd=torch.zeros(C, D)), lp, repair=repair).item() == 0.0


@pytest.mark.parametrize("phase", [0.0, 1.0, 2.5, 4.0])
def test_the_line_search_is_not_caught_in_a_lesser_valley(phase):
    found = _minimise(lambda w: torch.sin(torch.as_tensor(15.0 * w + phase).double()) + 0.3 * w)
    grid = np.linspace(0, 1, 2_000_001)
    assert found.item() == pytest.approx(grid[np.argmin(np.sin(15.0 * grid + phase) + 0.3 * grid)], abs=1e-6)


def test_nothing_to_learn_from_gives_the_other_estimate():
    z, _, _, _, other = problem(0, 4)
    y, fold, lp = torch.arange(4), torch.tensor([0, 1, 0, 1]), torch.zeros(C).double()
    for weight in (torch.ones(4), torch.zeros(4)):
        assert search(z, y, weight, fold, other, lp, repair=repair).item() == 0.0
        assert search(z, y, weight, fold, other, lp, repair=repair, separate=True).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", [4, 6, 9])
def test_separate_weights(seed):
    z, y, w, fold, other = problem(seed, 40, 0.3)
    lp = prior(y, w)
    risk = direct(z, y, fold, other, lp)
    on_mean, on_cov = search(z, y, w, fold, other, lp, repair=repair, separate=True).tolist()
    starts = [(0.2, 0.8), (0.5, 0.5), (0.8, 0.2)]
    best = min(minimize(lambda p: risk(*p), s, bounds=[(0, 1)] * 2, tol=1e-12).fun for s in starts)
    one = search(z, y, w, fold, other, lp, repair=repair).item()
    assert risk(one, one) > best + 1e-3  # two weights are worth something here
    assert risk(on_mean, on_cov) < best + 1e-3 * (risk(one, one) - best) + 1e-9


def test_absent_rows_change_no_bit():
    z, y, w, fold, other = problem(0)
    w[::7] = 0
    lp = prior(y, w)
    found = search(z, y, w, fold, other, lp, repair=repair)
    z2, y2, fold2 = z.clone(), y.clone(), fold.clone()
    z2[::7], y2[::7], fold2[::7] = torch.nan, -1, 1
    assert torch.equal(search(z2, y2, w, fold2, other, lp, repair=repair), found)
    kept = w > 0
    alone = search(z[kept], y[kept], w[kept], fold[kept], other, lp, repair=repair)
    torch.testing.assert_close(alone, found, atol=1e-7, rtol=0)


def test_what_is_not_finite_gives_nan_and_never_raises():
    z, y, w, fold, other = problem(0)
    lp = prior(y, w)
    broken = z.clone()
    broken[3, 2] = torch.nan
    for rows, g in [
        (broken, other),
        (z, other._replace(cov_dd=-other.cov_dd)),
        (z, other._replace(cov_dd=other.cov_dd * torch.nan)),
        (z, other._replace(mean_Cd=other.mean_Cd * torch.inf)),
    ]:
        assert search(rows, y, w, fold, g, lp, repair=repair).isnan()
        assert search(rows, y, w, fold, g, lp, repair=repair, separate=True).isnan().all()


def test_a_singular_local_covariance_is_no_failure():
    z, y, w, fold, other = problem(0, 12)
    lp = prior(y, w)
    z[:, 0] = 0.0
    found = search(z, y, w, fold, other, lp, repair=lambda s: s, shrink=0.0)
    assert 0 <= found < 1


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_moments_by_fold_are_sums_over_the_samples_of_each_fold(folds):
    z, y, w, _, _ = problem(2, 41)
    w[::6] = 0
    fold = torch.tensor(np.random.default_rng(3).integers(0, folds, 41))
    parts = moments_by_fold(z, y, w, fold, classes=C, folds=folds)
    assert len(parts) == folds
    for k, part in enumerate(parts):
        of = ((fold == k) & (w > 0)).numpy()
        some, label = z.numpy()[of], y.numpy()[of]
        np.testing.assert_allclose(part.n_C, np.bincount(label, minlength=C))
        np.testing.assert_allclose(part.sum_Cd, [some[label == c].sum(0) for c in range(C)], atol=1e-12)
        np.testing.assert_allclose(part.outer_dd, some.T @ some, atol=1e-11)
    np.testing.assert_allclose(total(parts).outer_dd, z.numpy().T @ (w[:, None] * z).numpy(), atol=1e-11)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("seed", [0, 3, 5])
def test_known_moments_change_no_bit(seed, separate):
    z, y, w, fold, other = problem(seed, 50)
    y[y == 3], y[0] = 0, 3  # of class 3 there is one sample
    lp = prior(y, w)
    parts, lone = search_moments(z, y, w, fold, classes=C)
    assert (lone.n_C.tolist(), sum(p.n_C[3].item() for p in parts)) == ([0, 0, 0, 1], 0)
    for got, want in zip(total([*parts, lone]), moments(z, y, w, C), strict=True):
        torch.testing.assert_close(got, want, atol=1e-11, rtol=0)
    one, two = (search(z, y, w, fold, other, lp, repair=repair, separate=separate, parts=p) for p in (None, parts))
    assert torch.equal(one, two)


@pytest.mark.parametrize("rare", [(3,), (0,), (1, 2), (0, 1, 3)])
def test_classes_of_one_sample_are_left_out_of_both_sides(rare):
    """Only the prior sees them: moments, scatter and held-out samples are those of the other classes."""
    z, _, w, fold, other = problem(1, 60, 0.3)
    rest = torch.tensor([c for c in range(C) if c not in rare])
    y = rest[torch.arange(60) % len(rest)]
    y[: len(rare)] = torch.tensor(rare)
    z[: len(rare)] += 30  # they would move the means and the covariance far
    lp = prior(y, w)
    found = search(z, y, w, fold, other, lp, repair=repair).item()
    risk = direct(z, y, fold, other, lp)
    assert risk(found, found) <= min(risk(b, b) for b in np.linspace(0, 1, 201)) + 1e-9
    kept = slice(len(rare), None)
    alone = search(z[kept], y[kept], w[kept], fold[kept], other, lp, repair=repair).item()
    assert found == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize("separate", [False, True])
def test_mapped_over_clients(separate):
    many = tree.stack([problem(s, 50) for s in range(3)])
    many[0][1, 0, 0] = torch.nan  # one client fails, and only that one
    lp = torch.stack([prior(y, w) for y, w in zip(many[1], many[2], strict=True)])
    key = torch.stack([keys.key(0, k) for k in range(3)])
    sample = torch.arange(50) % 25

    def client(data, logprior_C, key):
        z, y, w, _, other = data
        fold = stratified_folds(y, w, key, sample_N=sample)
        return fold, search(z, y, w, fold, other, logprior_C, repair=repair, separate=separate)

    mapped = vmap(client)(many, lp, key)
    looped = tree.stack([client(tree.rows(many, k), lp[k], key[k]) for k in range(3)])
    assert torch.equal(mapped[0], looped[0])
    torch.testing.assert_close(mapped[1], looped[1], atol=1e-7, rtol=0, equal_nan=True)
    assert mapped[1].reshape(3, -1).isnan().any(1).tolist() == [False, True, False]
