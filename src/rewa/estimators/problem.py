"""Data and a penalty: what stays the same while its weight and exponent are chosen."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewa.estimators import iteration, path
from rewa.estimators.path import Fit, Loss
from rewa.estimators.standardized import Columns, Standardized

Array = NDArray[np.float64]

STEP = 0.9  # of the thresholds from the empty model to a single weight of the penalty


@dataclass(kw_only=True)
class Problem(abc.ABC):
    """A linear model to be fitted with an l_p penalty.

    Args:
        X: Dense, or sparse in columns (CSC), in float64.
        y: Targets: a column for each output, or the number of each row's class.
        weights: Weights of the rows, positive.
        rows: How many there are, counted by their sample weights.
        factors: Factors of the penalty, one per column of X.
        fit_intercept: Whether there is an intercept.
        standardize: Whether columns are taken in units of their spread.
        positive: Whether coefficients must not be negative.
        tol: How far from balance slopes may be.
        max_iter: Most Newton steps for a model.
    """

    X: Any
    y: NDArray[Any]
    weights: Array
    rows: float
    factors: Array
    fit_intercept: bool = True
    standardize: bool = True
    positive: bool = False
    tol: float = 1e-8
    max_iter: int = 1000

    @functools.cached_property
    def columns(self) -> Columns:
        """The columns of X, for all weights of the rows."""
        return Columns(self.X, self.shares if self.fit_intercept else None)

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Rows of the coefficients."""

    @property
    @abc.abstractmethod
    def loss(self) -> iteration.Loss:
        """Name of the loss for :mod:`rewa.estimators.iteration`."""

    @abc.abstractmethod
    def losses(self) -> list[Loss]:
        """The loss of each output that is fitted by itself, at the empty model."""

    @abc.abstractmethod
    def errors(self, y: NDArray[Any], output: Array) -> Array:
        """The error of each row, for linear predictions of the shape (rows, outputs)."""

    @abc.abstractmethod
    def deviance(self, output: Array) -> float:
        """Twice the negative log likelihood of a row on average, up to a constant, of linear predictions."""

    @property
    def shares(self) -> Array:
        """The weights with sum 1."""
        result: Array = self.weights / self.weights.sum()
        return result

    def reweighted(self, weights: Array) -> Problem:
        """The same problem with other weights of the rows; one with weight 0 is as if it were not there."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        other = type(self)(**{**fields, "weights": weights})
        other.__dict__["columns"] = self.columns  # shared, not computed again
        return other

    def standardized(self) -> Standardized:
        """The columns as the penalty sees them."""
        return Standardized(self.columns, self.shares, center=self.fit_intercept, standardize=self.standardize)

    def alpha_max(self, losses: list[Loss], p: float) -> float:
        """The least weight of the penalty at which all models are empty; leaves the losses there."""
        return max(path.alpha_max(loss, p, self.all_factors(loss), self.positive) for loss in losses)

    def follow(self, losses: list[Loss], alphas: Array, p: float) -> Iterator[list[Fit]]:
        """The models of all losses at each weight of the penalty."""
        paths = [
            path.follow(
                loss,
                alphas,
                p,
                self.all_factors(loss),
                positive=self.positive,
                tol=self.tol,
                max_iter=self.max_iter,
            )
            for loss in losses
        ]
        return map(list, zip(*paths, strict=True))

    def towards(self, losses: list[Loss], alpha: float, p: float) -> Array:
        """Weights of the penalty from the empty model down to one of them."""
        largest = self.alpha_max(losses, p)
        if not 0 < alpha < largest:
            return np.array([alpha])
        ratio = (alpha / largest) ** (1 / (2 - p))
        count = 1 + int(np.ceil(np.log(max(ratio, 1e-6)) / np.log(STEP)))
        alphas = path.grid(largest, p, count, ratio)
        alphas[-1] = alpha
        return alphas

    def all_factors(self, loss: Loss) -> Array:
        """Factors of the penalty for all coefficients of a loss."""
        return np.tile(self.factors, loss.size // len(self.factors))

    def placed(self, fits: list[Fit]) -> tuple[NDArray[np.intp], Array]:
        """Places of the nonzero coefficients of a model among those of all outputs, and their values."""
        each = self.outputs * self.X.shape[1] // len(fits)
        index = np.concatenate([place * each + fit.index for place, fit in enumerate(fits)])
        return index, np.concatenate([fit.values for fit in fits])

    def intercepts(self, fits: list[Fit]) -> Array:
        """One for each output."""
        return np.concatenate([fit.intercept for fit in fits])

    def dense(self, fits: list[Fit]) -> tuple[Array, Array]:
        """Coefficients of the shape (outputs, columns) and intercepts of a model."""
        index, values = self.placed(fits)
        coef = np.zeros(self.outputs * self.X.shape[1])
        coef[index] = values
        return coef.reshape(self.outputs, -1), self.intercepts(fits)

    def fits(self, coef: Array, intercept: Array, losses: list[Loss]) -> list[Fit]:
        """The model with these coefficients of the shape (outputs, columns) and intercepts: the reverse of :meth:`dense`."""
        flat, each = coef.ravel(), self.outputs // len(losses)
        fits = []
        for place, loss in enumerate(losses):
            mine = flat[place * loss.size : (place + 1) * loss.size]
            index = np.flatnonzero(mine)
            fits.append(Fit(index, mine[index], intercept[place * each : (place + 1) * each], 0, True))
        return fits

    def output(self, X: Any, fits: list[Fit]) -> Array:
        """Linear predictions of a model for rows of X, of the shape (rows, outputs)."""
        columns = self.X.shape[1]
        result = []
        for fit in fits:
            for place, intercept in enumerate(fit.intercept):
                mine = fit.index // columns == place
                index = fit.index[mine] % columns
                result.append(X[:, index] @ fit.values[mine] + intercept)
        return np.column_stack(result)
