r"""Minimizing :math:`\frac12 b^\top Q b - q^\top b + \sum_j \frac{a_j}{p}|b_j|^p` over a few coefficients.

While it is fixed which coefficients are zero, the problem is smooth: Newton's method, one Cholesky factorization a step. What
decides is which ones are zero. A coefficient is taken in or dropped by the global minimizer of its own problem, the others
fixed (:mod:`rewa.estimators.penalty`), the one that gains most first. Each such move lowers the objective, so they come to an
end, at a point that no single coefficient can improve. Among the many such points of a problem with p < 1, starting from a
sparser one and letting the strongest in first finds good ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from rewa.estimators import penalty

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

JITTER = 1e-12  # of the diagonal: lets duplicated columns through the factorization
TOGETHER = 16  # beside so many that are in, one more may come in at the same time
SMALL = 1e-200  # a nonzero coefficient whose size does not matter
CLEARLY = 1 + 1e-9  # above a threshold, not just by rounding


def minimize(
    Q: Array, q: Array, a: Array, p: float, b: Array, *, positive: bool = False, tol: float = 1e-8, max_iter: int = 1000
) -> tuple[Array, int, bool]:
    r"""A point that no single coefficient can improve, from a start.

    Args:
        Q: Symmetric, positive semidefinite, of the shape ``(m, m)``. A coefficient with a zero on the diagonal stays zero.
        q: Right-hand side, of the shape ``(m,)``.
        a: Weights of the penalty; a coefficient with weight 0 is not penalized.
        p: Exponent in (0, 1].
        b: Start; it decides which of several such points is found.
        positive: Whether coefficients must not be negative.
        tol: How far from zero the slope of a nonzero coefficient may be, as a share of the largest at :math:`b = 0`; slopes are
            compared in units of :math:`\sqrt{Q_{jj}}`.
        max_iter: Most Newton steps.

    Returns:
        The coefficients, the Newton steps taken, and whether they were enough.

    Example:
        >>> b, steps, done = minimize(np.eye(2), np.array([3.0, 1.0]), np.ones(2), 0.5, np.zeros(2))
        >>> print(b.round(4), done)
        [2.3473 0.    ] True
    """
    curvature = np.diag(Q).copy()
    movable = curvature > 0
    curvature[~movable] = 1.0
    unit = np.sqrt(curvature)
    goal = tol * np.max(np.abs(q[movable]) / unit[movable], initial=0.0) * unit
    if not goal.any():
        return np.zeros_like(b), 0, True
    problem = _Quadratic(Q, q, a, p, positive, goal)
    b = np.where(movable, np.maximum(b, 0.0) if positive else b, 0.0)
    on = b != 0
    threshold = np.maximum(penalty.entry_threshold(a, curvature, p), goal)
    taken, moves, most = 0, 0, 50 + 20 * len(b)
    while moves < most:
        steps, done = problem.settle(b, on, max_iter - taken)
        taken += steps
        if not done:
            return b, taken, False
        slope = Q[:, on] @ b[on] - q
        if p < 1:
            held = np.where(on & (a > 0), np.abs(curvature * b - slope) / threshold, np.inf)
            least = int(np.argmin(held))
            if held[least] < 1:  # it would rather be zero
                b[least], on[least] = 0.0, False
                moves += 1
                continue
        push = np.where(on | ~movable, 0.0, -slope if positive else np.abs(slope)) / threshold
        entering = np.flatnonzero(push > CLEARLY)
        if not entering.size:
            return b, taken, True
        if p < 1:  # several together may compete for the same signal; late on, only moves that surely lower the objective
            few = 1 + int(on.sum()) // TOGETHER if moves < 2 * len(b) else 1
            entering = entering[np.argsort(-push[entering], kind="stable")[:few]]
            b[entering] = penalty.prox(-slope[entering] / curvature[entering], a[entering], curvature[entering], p)
        else:
            b[entering] = -np.sign(slope[entering]) * SMALL
        on[entering] = True
        moves += len(entering)
    return b, taken, False


@dataclass(frozen=True)
class _Quadratic:
    """The problem, as long as it is fixed which coefficients are zero."""

    Q: Array
    q: Array
    a: Array
    p: float
    positive: bool
    goal: Array

    def settle(self, b: Array, on: Mask, max_iter: int) -> tuple[int, bool]:
        """Newton's method over what is ``on``; what arrives at zero is dropped. Changes ``b`` and ``on``."""
        for step in range(max(max_iter, 0)):
            index = np.flatnonzero(on)
            if not index.size:
                return step, True
            Q, q, a, x = self.Q[np.ix_(index, index)], self.q[index], self.a[index], b[index]
            size = np.abs(x)
            pull = a * size ** (self.p - 1)
            slope = Q @ x - q + np.sign(x) * pull
            if np.all(np.abs(slope) <= self.goal[index]):
                return step, True
            direction, convex = _direction(Q, slope, (1 - self.p) * pull / size)
            turns = np.sign(x) * direction < 0
            if not self.positive:
                turns &= a > 0
            room = np.full(len(x), np.inf)
            np.divide(-x, direction, out=room, where=turns)
            length = min(1.0, float(room.min()))
            if convex and self.p < 1:
                length = self._shorten(Q, q, a, x, direction, length, float(slope @ direction))
            arrived = room <= length
            b[index] = np.where(arrived, 0.0, x + length * direction)
            on[index[arrived]] = False
            on &= b != 0
        return max_iter, False

    def _shorten(self, Q: Array, q: Array, a: Array, x: Array, direction: Array, length: float, descent: float) -> float:
        """Half the step until the objective falls: Newton's model of the penalty may be far from it."""
        slope, bend = float(direction @ (Q @ x - q)), float(direction @ Q @ direction) / 2
        before = a @ penalty.value(x, self.p)
        slack = 1e-14 * abs(before)
        while length > 1e-10:
            # The difference by itself: between two objectives it would drown in rounding.
            change = length * (slope + length * bend) + a @ penalty.value(x + length * direction, self.p) - before
            if change <= 1e-4 * length * descent + slack:
                break
            length /= 2
        return length


def _direction(Q: Array, slope: Array, concave: Array) -> tuple[Array, bool]:
    """Newton's direction, and whether it is convex here; if not, that of the penalty's tangents, which lie above it."""
    place = np.arange(len(slope))
    for bend in (concave, 0.0):
        H = Q.copy()
        H[place, place] += JITTER * H[place, place] - bend
        _, direction, info = lapack.dposv(H, -slope, lower=1, overwrite_a=1)
        if info == 0:
            return direction, bend is concave
    return np.asarray(-np.linalg.lstsq(Q, slope, rcond=None)[0], dtype=np.float64), False
