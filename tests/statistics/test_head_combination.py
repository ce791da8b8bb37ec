"""The quadratic program against cvxpy, and FedPAC's matrix against its definition by pairs and classes."""

import cvxpy as cp
import numpy as np
import pytest

from idiolect.core.errors import InputError
from idiolect.statistics import head_combination
from idiolect.statistics.head_combination import combination_weights, kkt_residual, simplex_qp


def cvxpy_solution(P):
    a = cp.Variable(len(P))
    problem = cp.Problem(cp.Minimize(cp.quad_form(a, cp.psd_wrap(P))), [a >= 0, cp.sum(a) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return a.value, problem.value


def participants(m=7, C=3, d=4, seed=0, spread=0.5):
    rng = np.random.default_rng(seed)
    kind = rng.normal(size=(2, C, d))[rng.integers(0, 2, m)]
    return kind + spread * rng.normal(size=(m, C, d)), rng.uniform(0.1, 0.8, m)


def definition(h, variance, i):
    """FedPAC's matrix entry by entry: traces of outer products over pairs and classes."""
    m, C, _ = h.shape
    P = np.diag(variance)
    for j in range(m):
        for k in range(m):
            P[j, k] += sum(np.trace(np.outer(h[i, c] - h[j, c], h[i, c] - h[k, c])) for c in range(C))
    return P


@pytest.mark.parametrize(("m", "rank", "scale"), [(2, 2, 1.0), (6, 6, 1e-18), (6, 6, 1e18), (15, 15, 1.0), (8, 3, 1.0)])
def test_simplex_qp_against_cvxpy(m, rank, scale):
    root = np.random.default_rng(m + rank).normal(size=(m, rank))
    P = root @ root.T
    a = simplex_qp(scale * P)
    expected, value = cvxpy_solution(P)
    assert a.min() >= 0
    assert a.sum() == pytest.approx(1)
    assert a @ P @ a == pytest.approx(value, rel=1e-7, abs=1e-9)
    if rank == m:
        np.testing.assert_allclose(a, expected, atol=1e-5)
    assert kkt_residual(scale * P, a) < 1e-12


def test_simplex_qp_by_hand():
    np.testing.assert_allclose(simplex_qp(np.diag([1.0, 2.0, 4.0])), np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(simplex_qp(np.array([[1.0, 2.0], [2.0, 9.0]])), [1, 0])  # a corner
    np.testing.assert_allclose(simplex_qp(np.array([[0.0]])), [1])


def test_simplex_qp_of_singular_and_indefinite_matrices():
    a = simplex_qp(np.diag([0.0, 1.0, 2.0]))  # one participant costs nothing
    np.testing.assert_allclose(a, [1, 0, 0], atol=1e-12)
    assert simplex_qp(np.zeros((3, 3))).sum() == pytest.approx(1)
    difference = np.array([1.0, -1.0, 0.0])  # the free direction crosses the simplex
    a = simplex_qp(np.outer(difference, difference) + np.diag([0, 0, 1.0]))
    np.testing.assert_allclose(a, [0.5, 0.5, 0], atol=1e-12)
    vector, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    value = np.array([-0.5, 0.3, 1.0, 2.0])
    a = simplex_qp((vector * value) @ vector.T)
    _, best = cvxpy_solution((vector * value.clip(min=0)) @ vector.T)
    assert a @ ((vector * value.clip(min=0)) @ vector.T) @ a == pytest.approx(best, abs=1e-9)


def test_kkt_residual_bounds_what_is_left_to_gain():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(5, 5))
    P = root @ root.T
    _, best = cvxpy_solution(P)
    for a in rng.dirichlet(np.ones(5), 20):
        residual = kkt_residual(P, a)
        assert a @ P @ a - best <= 2 * residual * P.diagonal().min() + 1e-9
        assert residual == pytest.approx(kkt_residual(1e6 * P, a))
        assert residual > 1e-3
    assert kkt_residual(P, 1.1 * simplex_qp(P)) >= 0.1 - 1e-9
    assert kkt_residual(np.eye(2), np.array([1.5, -0.5])) >= 0.5


@pytest.mark.parametrize("spread", [0.02, 0.5])
def test_combination_weights_solve_the_program_of_the_definition(spread):
    h, variance = participants(spread=spread)
    alpha, residual = combination_weights(h, variance, threshold=0.0)
    assert residual.max() < 1e-10
    for i in range(len(h)):
        expected, _ = cvxpy_solution(definition(h, variance, i))
        np.testing.assert_allclose(alpha[i], expected, atol=1e-5)


def test_combination_weights_do_not_see_a_common_offset():
    h, variance = participants()
    near, _ = combination_weights(h, variance)
    far, _ = combination_weights(h + 1e4, variance)
    np.testing.assert_allclose(near, far, atol=1e-8)


def test_small_weights_become_zero_and_the_rest_stays():
    h, variance = participants(m=12)
    full, _ = combination_weights(h, variance, threshold=0.0)
    kept, _ = combination_weights(h, variance, threshold=0.1)
    assert ((full > 0) & (full < 0.1)).any()
    np.testing.assert_array_equal(kept, np.where(full < 0.1, 0, full))
    crowd, _ = combination_weights(np.zeros((8, 1, 1)), np.ones(8), threshold=0.5)  # every weight is 1/8
    assert (crowd.max(1) > 0).all()


def test_one_and_two_participants():
    np.testing.assert_allclose(combination_weights(np.ones((1, 3, 2)), np.ones(1))[0], [[1.0]])
    alpha, _ = combination_weights(np.array([[[0.0]], [[2.0]]]), np.array([1.0, 3.0]), threshold=0.0)
    # a_own = (v_other + d) / (v_own + v_other + d) with d = 4
    np.testing.assert_allclose(alpha, [[7 / 8, 1 / 8], [3 / 8, 5 / 8]])


def test_participants_without_variance():
    h, _ = participants(m=4)
    for variance in (np.zeros(4), np.full(4, -1e-18)):
        alpha, residual = combination_weights(h, variance)
        np.testing.assert_allclose(alpha, np.eye(4), atol=1e-7)  # the own head costs nothing
        assert residual.max() < 1e-6
    negative, zero = (combination_weights(h, np.array([v, 1.0, 2.0, 3.0]))[0] for v in (-0.1, 0.0))
    np.testing.assert_array_equal(negative, zero)
    alpha, residual = combination_weights(np.concatenate([h, h, h]), np.zeros(12))  # nor does a copy's
    group = np.arange(12) % 4
    np.testing.assert_allclose(alpha @ np.eye(4)[group], np.eye(4)[group], atol=1e-7)
    assert residual.max() < 1e-6
    alpha, residual = combination_weights(np.zeros((3, 2, 2)), np.zeros(3))  # everything is optimal
    np.testing.assert_allclose(alpha.sum(1), 1)
    assert residual.max() == 0


@pytest.mark.parametrize("variance", [1e-4, 1.0, 1e6])
def test_copies_share_by_the_inverse_of_their_variance(variance):
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(6), 5)
    v = variance * rng.uniform(0.5, 2, 30)
    alpha, residual = combination_weights(rng.normal(size=(6, 2, 3))[group], v, threshold=0.0)
    assert residual.max() < 1e-9
    for members in (group == g for g in range(6)):
        cost = alpha[:, members] * v[members]
        np.testing.assert_allclose(cost, np.tile(cost[:, :1], 5), rtol=1e-6, atol=1e-9 * variance)


# spread of h, its numbers, how many kinds, V / n: supports of a few, of all, and between
REGIMES = {
    "kinds": (0.05, (3, 4), 6, 1e-3),
    "narrow": (1.0, (1, 3), 1, 1e-3),
    "wide": (1.0, (5, 20), 1, 0.1),
    "between": (1.0, (5, 20), 1, 100.0),
    "rank 3": (1.0, (1, 3), 1, 10.0),
    "dense": (0.1, (5, 20), 1, 1e3),
}


def regime(name, m=60, seed=1):
    spread, shape, kinds, variance = REGIMES[name]
    rng = np.random.default_rng(seed)
    kind = (kinds > 1) * rng.normal(size=(kinds, *shape))[rng.integers(0, kinds, m)]
    return kind + spread * rng.normal(size=(m, *shape)), variance * rng.uniform(0.3, 3, m)


def programs(h, variance):
    """Every participant's matrix from the differences themselves."""
    for own in h:
        away = (own - h).reshape(len(h), -1)
        yield np.diag(variance) + away @ away.T


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("path", ["as it is", "conjugate gradients", "steps"])
def test_all_programs_at_once_against_one_by_one(monkeypatch, name, path):
    h, variance = regime(name)
    if path == "conjugate gradients":
        monkeypatch.setattr(head_combination, "_DIRECT", 1)
    elif path == "steps":
        monkeypatch.setattr(head_combination, "_FAST_ROUNDS", 0)
    monkeypatch.setattr(head_combination, "simplex_qp", None)  # nothing may need it
    alpha, residual = combination_weights(h, variance, threshold=0.0)
    assert residual.max() < 1e-9
    assert alpha.min() >= 0
    for P, row, reported in zip(programs(h, variance), alpha, residual, strict=True):
        np.testing.assert_allclose(row, simplex_qp(P), atol=1e-6)
        assert kkt_residual(P, row) == pytest.approx(reported, abs=1e-11)


def test_regimes_differ_in_their_supports():
    support = {name: (combination_weights(*regime(name), threshold=0.0)[0] > 0).sum(1) for name in REGIMES}
    assert support["kinds"].max() <= 20
    assert support["dense"].min() == 60
    assert 20 < np.median(support["between"]) < 60


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("name", ["kinds", "between"])
def test_the_scale_of_features_cancels(name, scale):
    h, variance = regime(name, m=20)
    alpha, residual = combination_weights(scale * h, scale**2 * variance, threshold=0.0)
    assert residual.max() < 1e-9
    for P, row in zip(programs(h, variance), alpha, strict=True):
        np.testing.assert_allclose(row, simplex_qp(P), atol=1e-6)


@pytest.mark.parametrize("ratio", [1e-12, 1e12])
def test_variances_far_from_the_distances(ratio):
    h, variance = participants(m=12)
    alpha, residual = combination_weights(h, ratio * variance, threshold=0.0)
    expected = np.eye(12) if ratio < 1 else np.tile(1 / variance / (1 / variance).sum(), (12, 1))
    np.testing.assert_allclose(alpha, expected, atol=1e-6)
    assert residual.max() < 1e-6


def test_a_program_that_fails_goes_to_the_general_solver_and_then_keeps_the_own_head(monkeypatch):
    h, variance = participants(m=4)
    expected = np.stack([simplex_qp(P) for P in programs(h, variance)])
    monkeypatch.setattr(head_combination, "_programs", lambda gram, variance: np.full(gram.shape, 0.25))
    alpha, residual = combination_weights(h, variance, threshold=0.0)
    np.testing.assert_allclose(alpha, expected, atol=1e-9)
    assert residual.max() < 1e-6

    monkeypatch.setattr(head_combination, "_programs", lambda gram, variance: np.full(gram.shape, np.nan))
    np.testing.assert_allclose(combination_weights(h, variance, threshold=0.0)[0], expected, atol=1e-9)

    monkeypatch.setattr(head_combination, "simplex_qp", lambda P: np.full(len(P), 0.25))
    alpha, residual = combination_weights(h, variance)
    np.testing.assert_array_equal(alpha, np.eye(4))
    assert (residual > 1e-6).all()

    def exhausted(*args, **kwargs):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(head_combination, "simplex_qp", exhausted)
    alpha, residual = combination_weights(h, variance)
    np.testing.assert_array_equal(alpha, np.eye(4))
    assert np.isinf(residual).all()


def test_numbers_that_are_not_finite_name_the_participant():
    h, variance = participants()
    h[2, 0, 0] = np.nan
    with pytest.raises(InputError, match="participant 2 "):
        combination_weights(h, variance)
    variance[1] = np.inf
    with pytest.raises(InputError, match="participant 1 "):
        combination_weights(h, variance)
