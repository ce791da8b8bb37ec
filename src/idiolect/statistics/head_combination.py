"""Quadratic programs on the simplex, and the weights with which FedPAC combines its participants' heads; host code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from idiolect.core.errors import InputError

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_TOLERANCE = 1e-6  # of kkt_residual, where a solution counts as one
_NEAR = 8  # participants in the first support
_FAST_ROUNDS, _ROUNDS = 20, 120
_DIRECT = 200  # the largest support solved by factorisation, where there are many
_ENTRIES = 2_000_000  # of the matrices factorised at a time


def simplex_qp(P_mm: Array) -> Array:
    """The minimiser of a quadratic form over non-negative weights that sum to 1, exact to rounding.

        min aᵀ P a   subject to   a >= 0, Σ a = 1

    Non-negative least squares finds u >= 0 that minimises ‖R u‖² + (Σu - 1)², RᵀR = P; its optimality conditions are
    those of the program for a = u / Σu. No inverse of R is needed, so a singular P is no special case. P is
    symmetrised and its negative eigenvalues count as 0.

    Args:
        P_mm: finite.

    Returns:
        a (m,); where several are optimal, one of them.
    """
    from scipy.optimize import nnls  # slow to import, and workers do not need it

    value_m, vector_mm = np.linalg.eigh((P_mm + P_mm.T) / 2)
    root_mm = np.sqrt(value_m.clip(min=0))[:, None] * vector_mm.T
    m = len(root_mm)
    scale = np.sqrt(_scale((root_mm**2).sum(0)))  # brings ‖R u‖ and Σu to one scale
    u_m, _ = nnls(np.vstack([root_mm / scale, np.ones(m)]), np.append(np.zeros(m), 1.0), maxiter=30 * m)
    alpha_m: Array = u_m / u_m.sum()
    return alpha_m


def kkt_residual(P_mm: Array, alpha_m: Array) -> float:
    """How far weights are from optimal, 0 at the optimum; the scale of P cancels.

        max( (aᵀPa - min_j (Pa)_j) / min_j P_jj,   |Σa - 1|,   -min a )

    For feasible weights and a convex form, twice the first term bounds aᵀPa - minimum, as a share of the best that a
    single participant reaches. (Where that best is 0, the largest P_jj is used instead.)
    """
    gradient_m = P_mm @ alpha_m
    gap = (alpha_m @ gradient_m - gradient_m.min()) / _scale(np.diag(P_mm))
    return float(max(gap, abs(alpha_m.sum() - 1), -alpha_m.min()))


def combination_weights(h_mCd: Array, variance_m: Array, *, threshold: float = 1e-3) -> tuple[Array, Array]:
    """For each participant i, the weights over all participants' heads that trade variance against bias.

        min_a Σ_j a_j² variance_j + ‖h_i - Σ_j a_j h_j‖²   on the simplex

    On the simplex that is aᵀ Q a - 2 g_iᵀ a + a constant, with Q = diag(variance) + G, G the Gram matrix of h and g_i
    its row i: m programs that share one matrix, solved together by an active set method. Each round minimises over
    every program's support under Σ a = 1 alone, drops the weights below 0 and adds the participants of the most
    negative gradient (block principal pivoting). Programs that this has not solved after 20 rounds restart from their
    nearest participants and step to the first weight that reaches 0, as in non-negative least squares. The objective
    falls, so no support recurs. A program that misses its optimum (``kkt_residual`` above 1e-6) goes to ``simplex_qp``;
    if that fails too, the participant keeps its own head.

    Args:
        h_mCd: class shares times class mean features.
        variance_m: V_j / n_j, with V = E‖z‖² - ‖h‖² over client j's n_j samples; below 0 it is rounding and counts as
            0.
        threshold: weights below it are set to 0 (never the largest of a row), and the rest is NOT scaled back to sum
            to 1.

    Returns:
        Weights (m, m), row i for participant i, and the residuals (m,) of the solutions before the threshold. The cost
        on one core is about 20 ms for 100 participants, 0.1 s for 300 and 1.5 s for 1,000; the slowest case of
        ``benchmarks/server.py`` takes 4 s (10 numbers per participant, almost no variance).

    Raises:
        InputError: a participant's numbers are not finite.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), Eqs. 11 and 43 to 46 (features of identity covariance); threshold as
    in the released code, 0 in the paper. Pivoting: Júdice & Pires (Computers & Operations Research, 1994), for many
    right-hand sides Kim & Park (SIAM J. Scientific Computing, 2011); steps: Lawson & Hanson (1974), chapter 23.
    """
    m = len(variance_m)
    h_mD = np.asarray(h_mCd, np.float64).reshape(m, -1)
    variance_m = np.asarray(variance_m, np.float64)
    if not (finite_m := np.isfinite(variance_m) & np.isfinite(h_mD).all(1)).all():
        raise InputError(f"participant {finite_m.argmin()} sent features that are not finite: lower the learning rate")
    h_mD = h_mD - h_mD.mean(0)  # only differences matter, and they keep more digits this way
    variance_m = variance_m.clip(min=0)
    gram_mm = h_mD @ h_mD.T
    alpha_mm = _programs(gram_mm, variance_m)
    residual_m = _residuals(h_mD, gram_mm, variance_m, alpha_mm)
    for i in np.flatnonzero(~(residual_m <= _TOLERANCE)):
        alpha_mm[i], residual_m[i] = _single(gram_mm, variance_m, int(i))
    failure_m = ~(residual_m <= _TOLERANCE)
    alpha_mm[failure_m] = np.eye(m)[failure_m]
    keep_mm = alpha_mm >= np.minimum(threshold, alpha_mm.max(1, keepdims=True))
    return np.where(keep_mm, alpha_mm, 0.0), residual_m


def _single(gram_mm: Array, variance_m: Array, i: int) -> tuple[Array, float]:
    """One participant's program by the general solver."""
    gram_m = gram_mm[i]
    P_mm = np.diag(variance_m) + gram_mm - gram_m - gram_m[:, None] + gram_m[i]
    try:
        alpha_m = simplex_qp(P_mm)
    except RuntimeError:  # out of iterations
        return np.eye(len(P_mm))[i], np.inf
    return alpha_m, kkt_residual(P_mm, alpha_m)


def _distances(gram_mm: Array) -> Array:
    square_m = gram_mm.diagonal()
    return (square_m[:, None] + square_m - 2 * gram_mm).clip(min=0)


def _residuals(h_mD: Array, gram_mm: Array, variance_m: Array, alpha_mm: Array) -> Array:
    """``kkt_residual`` of every program, from h itself: the Gram matrix has lost the digits of small distances."""
    gradient_mm = variance_m * alpha_mm + (alpha_mm @ h_mD - h_mD) @ h_mD.T  # up to a constant per row, which cancels
    gap_m = _dot(alpha_mm, gradient_mm) - gradient_mm.min(1)
    scale_m = np.array([_scale(diagonal_m) for diagonal_m in variance_m + _distances(gram_mm)])
    residual_m: Array = np.maximum.reduce([gap_m / scale_m, abs(alpha_mm.sum(1) - 1), -alpha_mm.min(1)])
    return residual_m


def _programs(gram_mm: Array, variance_m: Array) -> Array:
    """The m programs of ``combination_weights``, one per row: weights that are feasible and, nearly always, optimal."""
    m = len(gram_mm)
    top = gram_mm.max() or variance_m.max() or 1.0
    gram_mm, variance_m = gram_mm / top, np.maximum(variance_m / top, 1e-13)  # keeps every support regular
    Q_mm = gram_mm + np.diag(variance_m)
    distance_mm = _distances(gram_mm)
    alpha_mm = _fill(distance_mm / 2, variance_m)
    cost_mm = variance_m + distance_mm  # of each single participant's head
    near_mm = np.eye(m, dtype=bool)
    nearest_mk = np.argpartition(cost_mm, min(_NEAR, m) - 1, axis=1)[:, :_NEAR]
    np.put_along_axis(near_mm, nearest_mk, True, axis=1)
    support_mm = near_mm | (alpha_mm > 0)
    exact_m = 1e-11 * cost_mm.min(1) + 4e-16 * Q_mm.max()
    todo = np.arange(m)
    for number in range(_ROUNDS):
        fast = number < _FAST_ROUNDS
        if number == _FAST_ROUNDS:
            alpha_mm[todo], support_mm[todo] = np.eye(m)[todo], near_mm[todo]
        on, exact = support_mm[todo], exact_m[todo]
        size = on.sum(1)
        new, gradient, is_exact = np.empty(on.shape), np.empty(on.shape), np.ones(len(todo), bool)
        large = (size > _DIRECT) & fast
        if (at := np.flatnonzero(~large)).size:
            new[at], gradient[at] = _factorise(Q_mm, gram_mm[todo[at]], on[at])
        if (at := np.flatnonzero(large)).size:
            new[at], gradient[at], is_exact[at] = _conjugate_gradients(
                Q_mm, variance_m, gram_mm[todo[at]], on[at], alpha_mm[todo[at]], exact[at]
            )
        below = on & (new < 0)
        missing = ~on & (gradient < -3 * exact[:, None])
        is_optimal = is_exact & ~below.any(1) & ~missing.any(1)
        if fast:
            # many weights below 0 mean that too many were added
            room = np.maximum(4, size - 3 * below.sum(1))
            alpha_mm[todo] = new.clip(min=0)
        else:
            old = alpha_mm[todo]
            step = np.where(below, old / np.where(below, old - new, 1), 1)
            first = step.min(1, keepdims=True)
            missing &= ~below.any(1, keepdims=True)
            below &= step <= first
            room = np.maximum(4, size // 4)
            alpha_mm[todo] = np.where(below, 0, old + first * (new - old))
        excess = np.flatnonzero(missing.sum(1) > room)
        order = np.sort(np.where(missing[excess], gradient[excess], 0), axis=1)
        missing[excess] &= gradient[excess] <= np.take_along_axis(order, room[excess, None] - 1, axis=1)
        support_mm[todo] = (on & ~below) | missing
        todo = todo[~is_optimal]
        if not todo.size:
            break
    alpha_mm /= alpha_mm.sum(1, keepdims=True)
    return alpha_mm


def _fill(cost_km: Array, variance_m: Array) -> Array:
    """Minimisers on the simplex of Σ_j a_j² variance_j + a_j cost_j, a_j = (level - cost_j)₊ / (2 variance_j).

    With half the distances as cost this guesses supports well: ‖h_i - Σ_j a_j h_j‖² = Σ_j a_j ‖h_i - h_j‖² minus ½ Σ_jk
    a_j a_k ‖h_j - h_k‖², about half of it where distances are similar.
    """
    under_km, count = np.ones(cost_km.shape, bool), 0
    while (count_now := int(under_km.sum())) != count:  # Newton's method, from above: the level only falls
        count = count_now
        level_k = (2 + (under_km * cost_km) @ (1 / variance_m)) / (under_km @ (1 / variance_m))
        under_km = cost_km < level_k[:, None]
    weight_km: Array = np.where(under_km, level_k[:, None] - cost_km, 0) / (2 * variance_m)
    return weight_km


def _factorise(Q_mm: Array, g_km: Array, on_km: Mask) -> tuple[Array, Array]:
    """The minimisers of aᵀ Q a / 2 - gᵀ a, Σ a = 1, over given supports, and the gradients minus their value there.

    Supports of about one size are solved together, filled up to the largest with rows of the unit matrix.
    """
    k, m = on_km.shape
    size_k = on_km.sum(1)
    row, column = np.nonzero(on_km)
    member_ks = np.full((k, size_k.max()), m)
    member_ks[row, np.arange(len(row)) - np.repeat(np.cumsum(size_k) - size_k, size_k)] = column
    Q_nn = np.pad(Q_mm, (0, 1))
    g_kn = np.pad(g_km, ((0, 0), (0, 1)))
    new_km, level_k = np.zeros((k, m + 1)), np.empty(k)
    order_k = size_k.argsort(kind="stable")
    width_k = size_k[order_k]
    start = 0
    while start < k:
        widest = max(int(1.2 * width_k[start]), width_k[start] + 3)
        stop = min(int(np.searchsorted(width_k, widest, side="right")), start + max(1, _ENTRIES // widest**2))
        at, s = order_k[start:stop], width_k[stop - 1]
        member, diagonal = member_ks[at, :s], np.arange(s)
        block = Q_nn[member[:, :, None], member[:, None, :]]
        block[:, diagonal, diagonal] += member == m
        side = np.stack([np.take_along_axis(g_kn[at], member, axis=1), member < m], axis=-1)
        free, slope = np.moveaxis(np.linalg.solve(block, side), -1, 0)
        level_k[at] = (1 - free.sum(1)) / slope.sum(1)
        new_km[at[:, None], member] = free + level_k[at, None] * slope
        start = stop
    new_km = new_km[:, :m]
    return new_km, new_km @ Q_mm - g_km - level_k[:, None]


def _conjugate_gradients(
    Q_mm: Array, variance_m: Array, g_km: Array, on_km: Mask, start_km: Array, exact_k: Array
) -> tuple[Array, Array, Mask]:
    """The same minimisers for large supports, all at once, preconditioned by the variances; and which are exact.

    With large supports the variances dominate G, so that few steps are enough. They stop at a hundredth of the first
    gradient: the next round continues from there.
    """
    new_km = np.where(on_km, start_km, 0) + 1e-9 * on_km / on_km.sum(1, keepdims=True)
    new_km /= new_km.sum(1, keepdims=True)
    inverse_km = on_km / variance_m
    total_k = inverse_km.sum(1)
    rest_km = g_km - new_km @ Q_mm
    direction_km, last_k = np.zeros_like(rest_km), np.ones(len(rest_km))
    for step in range(30):
        level_k = _dot(inverse_km, rest_km) / total_k
        inner_km = np.where(on_km, rest_km - level_k[:, None], 0)
        error_k = abs(inner_km).max(1)
        if step == 0:
            enough_k = np.maximum(exact_k, 1e-2 * error_k)
        if (error_k <= enough_k).all():
            break
        towards_km = inner_km * inverse_km
        size_k = _dot(inner_km, towards_km)
        direction_km = towards_km + (size_k / last_k)[:, None] * direction_km
        last_k = np.maximum(size_k, 1e-300)
        image_km = direction_km @ Q_mm
        curve_k = _dot(direction_km, image_km)
        length_k = np.divide(size_k, curve_k, out=np.zeros_like(size_k), where=curve_k > 0)
        new_km += length_k[:, None] * direction_km
        rest_km -= length_k[:, None] * image_km
    return new_km, level_k[:, None] - rest_km, error_k <= exact_k


def _dot(a_km: Array, b_km: Array) -> Array:
    product_k: Array = np.einsum("km,km->k", a_km, b_km)
    return product_k


def _scale(diagonal_m: Array) -> float:
    best = diagonal_m.min()
    return float(best if best > 0 else diagonal_m.max() if diagonal_m.max() > 0 else 1.0)
