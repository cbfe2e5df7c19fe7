"""The squared loss of a linear model, through the correlations of its columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rewa.estimators.active_set import minimize
from rewa.estimators.standardized import ROUNDING, Standardized

Array = NDArray[np.float64]
Index = NDArray[np.intp]

AHEAD = 16  # columns whose correlations are computed before they are needed


class Correlations:
    """What is known of Z'WZ: the columns that a path has needed, kept for all paths over the same rows.

    With dense X a kept column makes every later slope cheap: it costs one number for each feature, not one for each entry of X.
    With sparse X the entries are fewer than that, and only the columns of Z are kept.
    """

    def __init__(self, Z: Standardized) -> None:
        self.Z = Z
        self.place = np.full(Z.columns, -1)
        self.count = 0
        self.kept = np.empty((0, 0))  # of Z'WZ, or of Z where that is sparse; one in a row
        self.among = np.empty((0, 0))  # Z'WZ of the kept ones, where Z is sparse

    def keep(self, index: Index, slope: Array | None = None) -> Index:
        """Places of some columns among the kept ones; the missing are computed, and with them the steepest of the others.

        Reading X takes most of the time: for one column it is hardly less than for a few.
        """
        new = index[self.place[index] < 0]
        if new.size and slope is not None and not self.Z.sparse:
            missing = np.abs(slope) * (self.place < 0)
            missing[new] = 0.0
            likely = np.argpartition(-missing, min(AHEAD, len(missing) - 1))[:AHEAD]
            new = np.append(new, likely[missing[likely] > 0])
        if new.size:
            Z, weights = self.Z, self.Z.weights
            total = self.count + len(new)
            columns = Z.take(new)
            if total > len(self.kept):
                self.kept = _grown(self.kept, (2 * total, Z.rows if Z.sparse else Z.columns), self.count)
                if Z.sparse:
                    self.among = _grown(self.among, (2 * total, 2 * total), self.count)
            if Z.sparse:
                self.kept[self.count : total] = columns.T
                block = self.kept[:total] @ (weights[:, None] * columns)
                self.among[:total, self.count : total] = block
                self.among[self.count : total, :total] = block.T
            else:
                self.kept[self.count : total] = Z.correlate(weights[:, None] * columns)
            self.place[new] = np.arange(self.count, total)
            self.count = total
        return self.place[index]

    def gram(self, index: Index) -> Array:
        """Z'WZ of some columns."""
        places = self.keep(index)
        return self.among[np.ix_(places, places)] if self.Z.sparse else self.kept[np.ix_(places, index)]

    def times(self, index: Index, values: Array) -> Array:
        """Z'WZb for a b that is zero elsewhere."""
        places = self.keep(index)
        if self.Z.sparse:
            return self.Z.correlate(self.Z.weights * (values @ self.kept[places]))
        return values @ self.kept[places]


class LeastSquares:
    r"""The loss :math:`\frac12\sum_i w_i (y_i - b_0 - z_i^\top b)^2` at a point, with y in units of its largest value.

    Args:
        correlations: Correlations of the columns of X.
        y: Targets.
        fit_intercept: Whether there is an intercept; the columns must be centered then.
    """

    def __init__(self, correlations: Correlations, y: Array, *, fit_intercept: bool) -> None:
        Z = correlations.Z
        self.correlations, self.Z = correlations, Z
        self.center = float(Z.weights @ y) if fit_intercept else 0.0
        there = Z.weights > 0
        rest = np.where(there, y - self.center, 0.0)
        largest = float(np.max(np.abs(rest), initial=0.0))
        self.unit = largest if largest > ROUNDING * np.max(np.abs(y[there]), initial=0.0) else 0.0
        self.y = rest / self.unit if self.unit > 0 else np.zeros_like(rest)
        self.q = Z.correlate(Z.weights * self.y)
        self.size = Z.columns
        self.b = np.zeros(self.size)
        self._slope: Array | None = -self.q

    def start(self, coef: Array, intercept: Array) -> None:
        """Move to coefficients in the units of X and y; the intercept follows from them."""
        self.b = coef * self.Z.scale / self.unit if self.unit > 0 else np.zeros(self.size)
        self._slope = None

    def reset(self) -> None:
        """Move back to the empty model."""
        self.b = np.zeros(self.size)
        self._slope = -self.q

    def slopes(self) -> tuple[Array, Array]:
        """Derivatives of the loss in each coefficient, and its second derivatives."""
        if self._slope is None:
            index = np.flatnonzero(self.b)
            self._slope = self.correlations.times(index, self.b[index]) - self.q if index.size else -self.q
        return self._slope, self.Z.curvature

    def solve(self, working: Index, a: Array, p: float, positive: bool, tol: float, max_iter: int) -> tuple[int, bool]:
        """Move to where no coefficient of the working set can improve loss and penalty; the steps it took, and success."""
        self.correlations.keep(working, self._slope)
        Q = self.correlations.gram(working)
        b, steps, done = minimize(Q, self.q[working], a, p, self.b[working], positive=positive, tol=tol, max_iter=max_iter)
        self.b[working] = b
        self._slope = None
        return steps, done

    def in_units(self, index: Index) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X and y."""
        return self._from_units(index, self.b[index])

    def refit(self, index: Index, positive: bool = False) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X and y that minimize the loss alone, all others being zero."""
        if not index.size:
            return self._from_units(index, np.empty(0))
        if positive:
            Q, none = self.correlations.gram(index), np.zeros(len(index))
            return self._from_units(index, minimize(Q, self.q[index], none, 1.0, self.b[index], positive=True)[0])
        values = np.linalg.lstsq(self.correlations.gram(index), self.q[index], rcond=1e-12)[0]
        return self._from_units(index, np.asarray(values, dtype=np.float64))

    def _from_units(self, index: Index, values: Array) -> tuple[Array, Array]:
        coef = values * self.unit / self.Z.scale[index]
        return coef, np.array([self.center - self.Z.mean[index] @ coef])


def _grown(buffer: Array, shape: tuple[int, int], count: int) -> Array:
    larger = np.empty(shape)
    larger[:count, : buffer.shape[1]] = buffer[:count]
    return larger
