"""The quadratic program against cvxpy, and FedPAC's matrix against its definition by pairs and classes."""

import cvxpy as cp
import numpy as np
import pytest

from idiolect.errors import InputError
from idiolect.statistics import simplex
from idiolect.statistics.simplex import combination_weights, kkt_residual, simplex_qp


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


def test_one_participant_and_participants_without_variance():
    np.testing.assert_allclose(combination_weights(np.ones((1, 3, 2)), np.ones(1))[0], [[1.0]])
    h, _ = participants(m=4)
    for variance in (np.zeros(4), np.full(4, -1e-18)):
        alpha, residual = combination_weights(h, variance)
        np.testing.assert_allclose(alpha, np.eye(4), atol=1e-7)  # the own head costs nothing
        assert residual.max() < 1e-6


def test_a_failed_program_keeps_the_own_head(monkeypatch):
    h, variance = participants(m=4)
    monkeypatch.setattr(simplex, "simplex_qp", lambda P: np.full(len(P), 0.25))
    alpha, residual = combination_weights(h, variance)
    np.testing.assert_array_equal(alpha, np.eye(4))
    assert (residual > 1e-6).all()

    def exhausted(*args, **kwargs):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.undo()
    monkeypatch.setattr(simplex, "nnls", exhausted)
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
