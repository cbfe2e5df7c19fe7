r"""The logistic loss of a linear model, binary or multinomial: parabolas through its second derivatives.

A step minimizes the parabola that touches the loss, with the penalty as it is (:func:`rewa.estimators.active_set.minimize`).
It is taken only if loss and penalty together go down. For :math:`p < 1` a coefficient may jump farther than the parabola is
true; where that misleads, Newton's method moves the coefficients that are not zero, then single ones jump by the loss itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.special import expit

from rewa.estimators import penalty
from rewa.estimators.active_set import CLEARLY, JITTER, minimize
from rewa.estimators.standardized import Standardized

Array = NDArray[np.float64]
Index = NDArray[np.intp]

FLOOR = 1e-10  # added to the second derivative of a row's loss: rows that are predicted perfectly have none
RARE = 1e-12  # least share of a class: intercepts of classes without weight stay finite
SLACK = 1e-13  # of the objective: what its rounding may hide
LEAST_SCALE = 1e-3  # of slopes: columns that explain nothing are not fitted to the last digit
INNER_STEPS = 200  # Newton steps on a parabola
JUMP_STEPS = 10  # that a jump of one coefficient may take to pay
CANDIDATES = 16  # coefficients that may try to jump: where many look alike, none pays if the strongest do not
STALLED = 10  # steps without a visible gain after which there is none to expect
REFIT_LOSS, REFIT_STEPS = 1e-3, 50  # where a fit without a penalty ends if the classes can be separated


class Logistic:
    r"""The loss :math:`-\sum_i w_i \log P(y_i)`, at a point; first the empty model with its best intercepts.

    Two classes have one output, the log odds of class 1. More have one output each,
    :math:`P(k) = e^{\eta_k} / \sum_l e^{\eta_l}`, and intercepts with mean 0. The coefficient of column j for output k is
    number ``k * Z.columns + j``.

    Args:
        Z: The columns of X.
        y: Numbers of the classes, from 0.
        n_classes: How many there are, 2 or more; some may be without rows.
        fit_intercept: Whether there are intercepts; the columns must be centered then.

    Attributes:
        unit: 1, and 0 if the intercepts alone explain everything: all weight is on one class.
    """

    def __init__(self, Z: Standardized, y: NDArray[np.integer[Any]], n_classes: int, *, fit_intercept: bool) -> None:
        self.Z, self.fit_intercept = Z, fit_intercept
        self.outputs = 1 if n_classes == 2 else n_classes
        self.size = self.outputs * Z.columns
        classes = np.array([1]) if n_classes == 2 else np.arange(n_classes)
        self.truth = np.equal(np.asarray(y), classes[:, None])
        shares = self.truth @ Z.weights
        self.unit = 0.0 if fit_intercept and (shares.max() >= 1 - RARE or shares.sum() <= RARE) else 1.0
        self.best = np.zeros(self.outputs)  # intercepts of the empty model
        if fit_intercept:
            shares = np.clip(shares, RARE, 1 - RARE)
            self.best = np.log(shares / (1 - shares)) if n_classes == 2 else np.log(shares) - np.log(shares).mean()
        self._place = np.full(Z.columns, -1)
        self._kept = np.empty((0, Z.rows))
        self._count = 0
        self._slopes: tuple[Array, Array] | None = None
        self._empty: tuple[Array, Array] | None = None
        self.reset()
        self._empty = slope, _ = self.slopes()
        root = np.tile(np.sqrt(Z.curvature), self.outputs)
        self.movable = root > 0
        self.root = np.where(self.movable, root, 1.0)
        self.scale = float(np.max(np.abs(slope) / self.root, initial=LEAST_SCALE))  # of slopes, for tolerances

    def start(self, coef: Array, intercept: Array) -> None:
        """Move to coefficients, output by output, and intercepts in the units of X."""
        self.reset()
        index = np.flatnonzero(self.movable & (coef != 0))
        if not index.size:
            return
        self.b[index] = (coef * np.tile(self.Z.scale, self.outputs))[index]
        if self.fit_intercept:
            shifted = intercept + coef.reshape(self.outputs, -1) @ self.Z.mean
            self.intercept = shifted if self.outputs == 1 else shifted - shifted.mean()
        self.margins = _Block(self, index).margins(self.b[index], self.intercept)
        self._slopes = None

    def reset(self) -> None:
        """Move back to the empty model, with its best intercepts."""
        self.b = np.zeros(self.size)
        self.intercept = self.best
        self.margins = np.repeat(self.best[:, None], self.Z.rows, axis=1)
        self._slopes = self._empty

    def slopes(self) -> tuple[Array, Array]:
        """Derivatives of the loss in each coefficient, and its second derivatives."""
        if self._slopes is None:
            P = self.probabilities(self.margins)
            weights = self.Z.weights
            slope = [self.Z.correlate(weights * each) for each in P - self.truth]
            curvature = [self.Z.squares(weights * each) for each in P * (1 - P) + FLOOR]
            self._slopes = np.concatenate(slope), np.concatenate(curvature)
        return self._slopes

    def solve(self, working: Index, a: Array, p: float, positive: bool, tol: float, max_iter: int) -> tuple[int, bool]:
        """Move to where no coefficient of the working set can improve loss and penalty; the steps it took, and success.

        All other coefficients must be zero. A coefficient may stay where its parabola would not have it, if loss and penalty
        themselves are not lower at the other place.
        """
        block = _Block(self, working)
        goal = tol * self.scale * self.root[working]
        problem = _Penalized(block, a, p, positive, goal, tol * self.scale)
        start = problem.at(self.b[working], self.intercept)
        point, steps, done = problem.descend(start, tol, max_iter)
        if point is not start:
            self.b[working] = point.b
            self.intercept, self.margins = point.intercept, point.margins
            if not positive:
                self.b[working] = block.centered(self.b[working], a == 0)
            self._slopes = None
        return steps, done

    def in_units(self, index: Index) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X."""
        return self._from_units(index, self.b[index], self.intercept)

    def refit(self, index: Index, positive: bool = False) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X that minimize the loss alone, all others being zero.

        If the classes can be separated there is no minimum: it starts from the present point and ends once the loss is below
        0.001, or after 50 Newton steps.
        """
        block = _Block(self, index)
        none, goal = np.zeros(len(index)), 1e-10 * self.scale * self.root[index]
        problem = _Penalized(block, none, 1.0, positive, goal, 1e-10 * self.scale)
        point = problem.at(self.b[index], self.intercept)
        if positive:
            point, _, _ = problem.descend(point, 1e-10, REFIT_STEPS)
            return self._from_units(index, point.b, point.intercept)
        for _ in range(REFIT_STEPS):
            if point.value < REFIT_LOSS or problem.at_rest(point):
                break
            moved = problem.newton(point, *block.parabola(point))
            if moved is None:
                break
            point = moved
        return self._from_units(index, block.centered(point.b, none == 0), point.intercept)

    def probabilities(self, margins: Array) -> Array:
        """Of each output, for each row."""
        if self.outputs == 1:
            return np.asarray(expit(margins), dtype=np.float64)
        odds: Array = np.exp(margins - margins.max(axis=0))
        odds /= odds.sum(axis=0)
        return odds

    def loss(self, margins: Array) -> float:
        """The loss of a model with these outputs for the rows."""
        if self.outputs == 1:
            wrong = np.where(self.truth[0], -margins[0], margins[0])
            return float(self.Z.weights @ np.logaddexp(0.0, wrong))
        largest = margins.max(axis=0)
        total = largest + np.log(np.exp(margins - largest).sum(axis=0))
        return float(self.Z.weights @ (total - np.where(self.truth, margins, 0.0).sum(axis=0)))

    def columns(self, index: Index) -> Array:
        """Some columns of Z, one in a row; a path needs the same ones again and again."""
        new = np.unique(index[self._place[index] < 0])
        if new.size:
            total = self._count + len(new)
            if total > len(self._kept):
                larger = np.empty((2 * total, self.Z.rows))
                larger[: self._count] = self._kept[: self._count]
                self._kept = larger
            self._kept[self._count : total] = self.Z.take(new).T
            self._place[new] = np.arange(self._count, total)
            self._count = total
        return self._kept[self._place[index]]

    def _from_units(self, index: Index, values: Array, intercept: Array) -> tuple[Array, Array]:
        output, column = np.divmod(index, self.Z.columns)
        coef = values / self.Z.scale[column]
        intercept = intercept - np.bincount(output, self.Z.mean[column] * coef, minlength=self.outputs)
        return coef, intercept if self.outputs == 1 else intercept - intercept.mean()


class _Iterate(NamedTuple):
    b: Array  # of the working coefficients
    intercept: Array
    margins: Array  # outputs by rows
    value: float  # loss and penalty


class _Block:
    """The loss over some of its coefficients and the intercepts, all other coefficients being zero."""

    def __init__(self, loss: Logistic, index: Index) -> None:
        self.loss, self.weights = loss, loss.Z.weights
        self.output, self.column = np.divmod(index, loss.Z.columns)
        self.rows = loss.columns(self.column)
        self.parts = [np.flatnonzero(self.output == k) for k in range(loss.outputs)]

    def margins(self, b: Array, intercept: Array) -> Array:
        margins = np.repeat(intercept[:, None], self.loss.Z.rows, axis=1)
        for k, part in enumerate(self.parts):
            on = part[b[part] != 0]
            if on.size:
                margins[k] += b[on] @ self.rows[on]
        return margins

    def slopes(self, point: _Iterate) -> tuple[Array, Array]:
        """Derivatives in the coefficients and in the intercepts."""
        rest = self.weights * (self.loss.probabilities(point.margins) - self.loss.truth)
        slope = np.empty(len(self.output))
        for k, part in enumerate(self.parts):
            slope[part] = self.rows[part] @ rest[k]
        return slope, rest.sum(axis=1) if self.loss.fit_intercept else np.zeros(self.loss.outputs)

    def curvature(self, point: _Iterate) -> Array:
        """Second derivatives in each coefficient alone."""
        P = self.loss.probabilities(point.margins)
        h = self.weights * (P * (1 - P) + FLOOR)
        result: Array = np.einsum("ij,ij,ij->i", self.rows, self.rows, h[self.output])
        return result

    def parabola(self, point: _Iterate) -> tuple[Array, Array, Array, Array]:
        """Second and first derivatives in the coefficients where the intercepts follow, and how these do.

        Returns:
            Q and g of the parabola, and the intercepts' step: a constant, and a matrix for the step of the coefficients.
        """
        Q, across, among = self._second(point)
        g, g0 = self.slopes(point)
        outputs = self.loss.outputs
        constant, follow = np.zeros(outputs), np.zeros((outputs, len(g)))
        if self.loss.fit_intercept:
            # One of many intercepts stands still, since only their differences count: the one of the largest class.
            moving = np.arange(outputs) if outputs == 1 else np.delete(np.arange(outputs), np.argmax(np.diag(among)))
            known = np.column_stack([g0[moving], across[:, moving].T])
            _, answer, info = lapack.dposv(among[np.ix_(moving, moving)], known, lower=1)
            if info == 0:
                constant[moving], follow[moving] = -answer[:, 0], -answer[:, 1:]
                Q = Q + across @ follow
                Q = (Q + Q.T) / 2
                g = g + across @ constant
                constant, follow = constant - constant.mean() * (outputs > 1), follow - follow.mean(axis=0) * (outputs > 1)
        return Q, g, constant, follow

    def _second(self, point: _Iterate) -> tuple[Array, Array, Array]:
        """Second derivatives: in the coefficients, between them and the intercepts, in the intercepts."""
        P = self.loss.probabilities(point.margins)
        if self.loss.outputs == 1:
            h = self.weights * (P[0] * (1 - P[0]) + FLOOR)
            root = self.rows * np.sqrt(h)
            return root @ root.T, (self.rows @ h)[:, None], np.array([[h.sum()]])
        share = np.sqrt(self.weights) * P
        root = self.rows * share[self.output]
        Q, across, among = -(root @ root.T), -(root @ share.T), -(share @ share.T)
        for k, part in enumerate(self.parts):
            h = self.weights * (P[k] + FLOOR)
            root = self.rows[part] * np.sqrt(h)
            Q[np.ix_(part, part)] += root @ root.T
            across[part, k] += self.rows[part] @ h
            among[k, k] += h.sum()
        return Q, across, among

    def centered(self, b: Array, free: NDArray[np.bool_]) -> Array:
        """The same model, with mean 0 over the outputs where all coefficients of a column are free."""
        if self.loss.outputs == 1 or not free.any():
            return b
        count = np.bincount(self.column[free], minlength=self.loss.Z.columns)
        total = np.bincount(self.column[free], b[free], minlength=self.loss.Z.columns)
        return np.where(free & (count[self.column] == self.loss.outputs), b - total[self.column] / self.loss.outputs, b)


class _Penalized:
    """Loss and penalty over the coefficients of a block."""

    def __init__(self, block: _Block, a: Array, p: float, positive: bool, goal: Array, intercept_goal: float) -> None:
        self.block, self.a, self.p, self.positive = block, a, p, positive
        self.goal, self.intercept_goal = goal, intercept_goal  # slopes that count as zero
        self.free = (a == 0) & (not positive)

    def at(self, b: Array, intercept: Array) -> _Iterate:
        margins = self.block.margins(b, intercept)
        return _Iterate(b, intercept, margins, self.block.loss.loss(margins) + float(self.a @ penalty.value(b, self.p)))

    def descend(self, point: _Iterate, tol: float, max_iter: int) -> tuple[_Iterate, int, bool]:
        """Steps down until no single coefficient can improve; the point, how many there were, and whether that was enough."""
        stalled, steps = 0, 0
        while steps < max_iter:
            rest = self.at_rest(point)
            if rest and not self.violating(point).size:
                return point, steps, True
            parabola = self.block.parabola(point)
            moved = self.proximal(point, *parabola, tol=tol)
            if moved is None:
                moved = self.jump(point, self.violating(point), *parabola) if rest else self.newton(point, *parabola)
            if moved is None:
                return point, steps, rest
            stalled = 0 if moved.value < point.value * (1 - SLACK) else stalled + 1
            point, steps = moved, steps + 1
            if stalled == STALLED:
                break
        return point, steps, self.at_rest(point) and not self.violating(point).size

    def at_rest(self, point: _Iterate) -> bool:
        """Whether slopes are zero in the coefficients that are not held at zero, and in the intercepts."""
        slope, intercept_slope = self.block.slopes(point)
        on = (point.b != 0) | self.free
        total = slope[on] + self._pull(point.b[on], self.a[on])
        return bool(np.all(np.abs(total) <= self.goal[on]) and np.all(np.abs(intercept_slope) <= self.intercept_goal))

    def violating(self, point: _Iterate) -> Index:
        """The coefficients whose own parabola would rather have them at zero, and not there, the strongest first."""
        slope, _ = self.block.slopes(point)
        L = self.block.curvature(point)
        threshold = penalty.entry_threshold(self.a, L, self.p)
        threshold = np.maximum(np.maximum(threshold, self.goal), np.finfo(float).tiny)
        push = np.where((point.b == 0) & (L > 0), -slope if self.positive else np.abs(slope), 0.0) / threshold
        entering = np.flatnonzero(push > CLEARLY)
        entering = entering[np.argsort(-push[entering], kind="stable")]
        if self.p == 1:
            return entering
        leaving = np.flatnonzero((point.b != 0) & (np.abs(L * point.b - slope) * CLEARLY < threshold) & (self.a > 0))
        return np.concatenate([leaving, entering])

    def proximal(self, point: _Iterate, Q: Array, g: Array, constant: Array, follow: Array, *, tol: float) -> _Iterate | None:
        """To the minimizer of parabola and penalty, or towards it for p = 1; nothing if that is not lower."""
        b, _, _ = minimize(Q, Q @ point.b - g, self.a, self.p, point.b, positive=self.positive, tol=tol, max_iter=INNER_STEPS)
        step = b - point.b
        if not step.any():  # at rest by the tolerance of the parabola, which is not that of the loss
            return None
        change = constant + follow @ step
        gain = float(-g @ step - 0.5 * step @ Q @ step - self.a @ (penalty.value(b, self.p) - penalty.value(point.b, self.p)))
        length = 1.0
        while True:
            moved = self.at(point.b + length * step if length < 1 else b, point.intercept + length * change)
            same = np.array_equal(moved.b != 0, point.b != 0)
            if moved.value <= point.value - 1e-4 * length * max(gain, 0.0) + (SLACK * point.value if same else 0.0):
                return moved if same or moved.value < point.value else None
            length /= 2
            if self.p < 1 or length < 1e-6:
                return None

    def newton(self, point: _Iterate, Q: Array, g: Array, constant: Array, follow: Array) -> _Iterate | None:
        """A Newton step of the nonzero coefficients, not beyond zero, shortened until it is lower."""
        on = np.flatnonzero(((point.b != 0) | self.free) & (np.diag(Q) > 0))
        b, a = point.b[on], self.a[on]
        slope = g[on] + self._pull(b, a)
        among = Q[np.ix_(on, on)]
        diagonal = np.diag_indices_from(among)
        direction: Array = np.zeros(len(on))
        info = 1
        among[diagonal] += JITTER * among[diagonal]
        if on.size:
            if self.p < 1:
                with np.errstate(divide="ignore", invalid="ignore"):
                    bend = np.where(a > 0, (1 - self.p) * a * np.abs(b) ** (self.p - 2), 0.0)
                full = among.copy()
                full[diagonal] -= bend
                _, direction, info = lapack.dposv(full, -slope, lower=1)
            if info != 0:  # not convex here: the tangents of the penalty, which lie above it
                _, direction, info = lapack.dposv(among, -slope, lower=1)
            if info != 0:
                direction = np.asarray(-np.linalg.lstsq(among, slope, rcond=1e-12)[0], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(~self.free[on] & (np.sign(b) * direction < 0), -b / direction, np.inf)
        descent = float(slope @ direction)
        length = min(1.0, float(room.min(initial=np.inf)))
        for _ in range(60):
            new = point.b.copy()
            new[on] = np.where(room <= length, 0.0, b + length * direction)
            intercept = point.intercept + length * constant + follow @ (new - point.b)
            moved = self.at(new, intercept)
            if moved.value <= point.value + 1e-4 * length * min(descent, 0.0) + SLACK * point.value:
                return moved
            length /= 2
        return None

    def jump(self, point: _Iterate, index: Index, Q: Array, g: Array, constant: Array, follow: Array) -> _Iterate | None:
        """A lower point after one of the first of these coefficients has jumped, and the others and the intercepts followed."""
        for j in index[:CANDIDATES]:
            step = np.zeros_like(point.b)
            if point.b[j] != 0:
                step[j] = -point.b[j]
            elif Q[j, j] > 0:
                step[j] = penalty.prox(-g[j] / Q[j, j], self.a[j], Q[j, j], self.p)
            if step[j] == 0 or (self.positive and point.b[j] + step[j] < 0):
                continue
            moved = self.at(point.b + step, point.intercept + constant + follow @ step)
            for _ in range(JUMP_STEPS):
                if moved.value < point.value * (1 - SLACK):
                    return moved
                settled = self.newton(moved, *self.block.parabola(moved))
                if settled is None or (settled.b[j] == 0) == (point.b[j] == 0):  # it went back
                    break
                if settled.value - point.value > 3 * (moved.value - settled.value):  # steps gain less and less: too little
                    break
                moved = settled
        return None

    def _pull(self, b: Array, a: Array) -> Array:
        """The derivative of the penalty; 0 where there is none."""
        size = np.where(a > 0, np.abs(b), 1.0)
        return np.sign(b) * a * size ** (self.p - 1)
