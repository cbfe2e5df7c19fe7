"""Descent over all rows at once, with columns that leave the computation when they are zero and come back when they pay."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from rewa.estimators.iteration.loss import Design, Evaluation, evaluate, quotient
from rewa.estimators.iteration.pair import Parts
from rewa.estimators.iteration.rates import plain_rates
from rewa.estimators.iteration.result import settle
from rewa.estimators.iteration.start import LASSO_START, units
from rewa.estimators.iteration.state import Iteration
from rewa.reparam import power

CHECK = 10  # steps between looks at what may be set to zero
MEMORY = 10  # steps whose largest objective the next one must stay below
ENTRIES = 5  # times that a coefficient may come back
TOGETHER = 16  # beside so many that are in, one more may come in at the same time


class Slopes(NamedTuple):
    """Where a step goes: the gradient of the loss, by which share the parts shrink, and the slopes in the intercepts."""

    gradient: Tensor
    h: tuple[Tensor, Tensor]
    pull: Tensor


class FullBatch:
    """Full-batch descent over the columns that are alive.

    Args:
        state: The model; changed.
        design: All rows.
        target: Their targets.
        weights: Their weights, with a sum of 1.
    """

    def __init__(self, state: Iteration, design: Design, target: Tensor, weights: Tensor) -> None:
        self.state, self.all, self.target, self.weights = state, design, target, weights
        parts, varies = state.current(), state.curvature[:, state.penalized] > 0
        parts.u, parts.v = parts.u * varies, parts.v * varies  # what a constant column was given would only decay
        self.entries = torch.zeros_like(state.starts)  # how often a coefficient came back
        self.history: deque[float] = deque(maxlen=MEMORY)
        self.lr = math.inf
        self.direction: Tensor | None = None  # of the last step, from which the next learning rate is estimated
        self.plain_rate = self.intercept_rate = torch.zeros(())
        self.choose()

    @property
    def objective(self) -> float:
        """What a step lowers: the loss, and the penalty of both parts."""
        return self.now.value + self.parts.penalty()

    def choose(self) -> None:
        """Work on the columns with a part that is not zero."""
        parts = self.state.current()
        self.live = parts.on.any(dim=0).nonzero()[:, 0]
        self.parts = parts.take(self.live)
        columns = torch.cat([self.state.penalized[self.live], self.state.free])
        whole = len(columns) == self.all.rows.shape[1] and not len(self.state.free)
        self.design = self.all if whole else self.all.take_columns(columns)
        self.L = self.state.curvature[:, columns]
        self.threshold = self.parts.thresholds(self.L[:, : len(self.live)])
        self.limits = self.state.starts[:, self.live] * 0.1 ** self.entries[:, self.live]
        self.balance()
        self.restart()

    def restart(self) -> None:
        """Evaluate anew, and compare with nothing from before."""
        self.now = self.evaluate(self.parts)
        self.history.clear()
        self.history.append(self.objective)
        self.direction = None

    def evaluate(self, parts: Parts) -> Evaluation:
        """The loss of some parts."""
        return evaluate(self.state.loss, self.design.forward(parts.x()) + parts.intercept, self.target, self.weights)

    def balance(self) -> None:
        """Rates of the plain steps, again where they are off by a factor of 2."""
        plain_rate, intercept_rate = plain_rates(self.state, self.parts, self.L)
        if self.intercept_rate.ndim == 0 or not 0.5 < float(intercept_rate[0] / self.intercept_rate[0]) < 2:
            self.plain_rate, self.intercept_rate, self.direction = plain_rate, intercept_rate, None

    def store(self) -> None:
        """Write the living parts back."""
        parts = self.state.current()
        parts.u.zero_()
        parts.v.zero_()
        parts.u[:, self.live], parts.v[:, self.live] = self.parts.u, self.parts.v
        parts.plain, parts.intercept = self.parts.plain, self.parts.intercept

    def run(self, max_iter: int, tol: float) -> tuple[int, bool, float]:
        """Steps until nothing moves any more: how many, whether they were enough, the residual."""
        moves = 50 + 20 * min(len(self.state.penalized), len(self.target))
        residual = math.inf
        for taken in range(max_iter + 1):
            slopes = self.slopes()
            if taken % 2 == 0 or residual <= 10 * tol:
                residual = self.residual(slopes)
            if residual <= tol:
                self.store()
                moved = self.look() if moves > 0 else 0
                if not moved:
                    return taken, moves > 0, residual
                moves, residual = moves - moved, math.inf
                self.choose()
                slopes = self.slopes()
            elif taken % CHECK == 0:
                if self.drop(slopes):
                    slopes = self.slopes()
                self.balance()
            if taken < max_iter:
                self.step(*slopes)
        self.store()
        return max_iter, False, settle(self.state, self.all, self.target, self.weights)

    def slopes(self) -> Slopes:
        """Slopes at the parts as they are."""
        gradient = self.design.backward(self.now.slopes)
        return Slopes(gradient, self.parts.relative(gradient), self.state.pull(self.now))

    def step(self, gradient: Tensor, h: tuple[Tensor, Tensor], pull: Tensor) -> None:
        """One step of Algorithm 1, its learning rate chosen if it is not given."""
        plain_step = self.plain_rate * self.parts.plain_slopes(gradient)
        intercept_step = self.intercept_rate * pull
        if self.state.lr != "auto":
            self.parts = self.parts.moved(float(self.state.lr), h, plain_step, intercept_step)
            self.now = self.evaluate(self.parts)
            self.state.check_finite(self.now.value)
            return
        direction = torch.cat([each.ravel() for each in (*h, plain_step, intercept_step)])
        metrics = (
            *(self.state.K * each for each in self.parts.powers()),
            quotient(1.0, self.plain_rate).expand_as(plain_step),
            quotient(1.0, self.intercept_rate).expand_as(intercept_step),
        )
        metric = torch.cat([each.ravel() for each in metrics])
        slope = float((metric * direction * direction).sum())
        lr = min(self.estimate(direction, metric), self.parts.largest_lr(h))
        if not (0 < lr < math.inf):
            lr = 1.0
        bound, slack = max(self.history), 500 * torch.finfo(direction.dtype).eps
        for _ in range(60):
            parts = self.parts.moved(lr, h, plain_step, intercept_step)
            now = self.evaluate(parts)
            objective = now.value + parts.penalty()
            if objective <= bound - 1e-4 * lr * slope + slack * abs(bound):
                break
            lr /= 4
        self.state.check_finite(now.value)
        self.parts, self.now, self.lr, self.direction = parts, now, lr, direction
        self.history.append(objective)

    def estimate(self, direction: Tensor, metric: Tensor) -> float:
        """Barzilai and Borwein's learning rate, the short one where both differ much."""
        if self.direction is None:
            return self.lr
        change = self.direction - direction
        curved = float((metric * self.direction * change).sum())
        if curved <= 0:
            return 4 * self.lr
        long = self.lr * float((metric * self.direction * self.direction).sum()) / curved
        short = self.lr * curved / float((metric * change * change).sum())
        return short if short < 0.5 * long else long

    def residual(self, slopes: Slopes) -> float:
        """Largest slope over the parts that are not zero, see :class:`rewa.estimators.iteration.Result`."""
        if self.state.scale == 0:
            return 0.0
        m, units = self.parts.u.shape[1], self.L.sqrt()
        found = [slopes.pull, quotient(self.parts.plain_slopes(slopes.gradient), units[:, m:])]
        for part, relative in zip((self.parts.u, self.parts.v), slopes.h, strict=True):
            safe = torch.where(part > 0, part, 1.0)
            found.append(quotient(relative * safe ** (1 - self.state.M) * (part > 0), units[:, :m]))
        return max(float(each.abs().max()) for each in found if each.numel()) / self.state.scale

    def drop(self, slopes: Slopes) -> bool:
        """Set parts to zero that only shrink; whether any was."""
        m = self.parts.u.shape[1]
        outward = -slopes.gradient[:, :m]
        dead = []
        for part, relative, push in ((self.parts.u, slopes.h[0], outward), (self.parts.v, slopes.h[1], -outward)):
            s = power(part, self.state.K)
            own = push + self.L[:, :m] * s < self.threshold
            if self.parts.p < 1:
                small = (s <= self.limits / 4) & (relative >= self.parts.decay / 2) & own | (s <= self.limits / 100)
            else:
                small = (s <= self.limits) & own
            dead.append((part > 0) & small & (relative > 0))
        if not (dead[0].any() or dead[1].any()):
            return False
        self.parts.u, self.parts.v = self.parts.u * ~dead[0], self.parts.v * ~dead[1]
        if int(self.parts.on.any(dim=0).sum()) < 0.8 * m:
            self.store()
            self.choose()
        else:
            self.restart()
        return True

    def look(self) -> int:
        """Let coefficients in and out by their own problems, all columns considered; how many moved."""
        state, parts = self.state, self.state.current()
        state.refresh(self.all, self.target, self.weights)
        g, L = state.gradient[:, state.penalized], state.curvature[:, state.penalized]
        threshold, on = parts.thresholds(L), parts.on
        if parts.p < 1 and on.any():
            x = parts.x()[:, : len(state.penalized)]
            held = torch.where(on, (L * x - g).abs() / threshold, math.inf)
            worst = int(held.argmin())
            if float(held.view(-1)[worst]) < 1:
                parts.u.view(-1)[worst] = parts.v.view(-1)[worst] = 0.0
                return 1
        push = -g if state.positive else g.abs()
        # A slope that rounding alone could have made lets nothing in, nor does a coefficient that has come back too often.
        room = ~on & (L > 0) & (self.entries < ENTRIES) & (push > 1e-9 * state.scale * L.sqrt())
        ratio = torch.where(room, push / threshold, 0.0)
        entering = (ratio > 1 + 1e-7).view(-1).nonzero()[:, 0]
        if not len(entering):
            return 0
        if parts.p < 1:  # the strongest alone, or a few where many are in: together they may compete for the same signal
            few = 1 + int(on.sum()) // TOGETHER
            entering = entering[ratio.view(-1)[entering].argsort(descending=True)[:few]]
            sizes = units((1 - parts.p) * parts.decay, L, parts.p)  # start.least_slope: beyond the barrier, before the minimum
        else:
            sizes = units(LASSO_START * parts.decay, L, 1.0) * 0.1**self.entries
        root = sizes.view(-1)[entering] ** (1 / state.K)
        up = g.reshape(-1)[entering] < 0
        parts.u.view(-1)[entering] = torch.where(up, root, 0.0)
        parts.v.view(-1)[entering] = torch.where(up, 0.0, root)
        self.entries.view(-1)[entering] += 1
        return len(entering)
