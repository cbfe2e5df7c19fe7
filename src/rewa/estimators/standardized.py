"""The columns of X as the penalty sees them: weighted, about their mean, in units of their spread."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]
Index = NDArray[np.intp]

ROUNDING = 1e-13  # of a number: what is left of a constant when its mean is taken away is no signal


class Columns:
    """The columns of X in numbers from -1 to 1, about their mean where they are dense: one copy for all weights of the rows.

    Args:
        X: Dense, or sparse in columns (CSC), in float64.
        weights: Weights of the rows, with sum 1, for the means; none without centering.
    """

    def __init__(self, X: Any, weights: Array | None) -> None:
        self.sparse = sparse.issparse(X)
        self.mean = np.zeros(X.shape[1])
        largest = _largest(X)
        varies = largest > 0
        self.unit = np.where(varies, largest, 1.0)
        if self.sparse:
            self.X = X.multiply(1 / self.unit).tocsc()
            return
        self.X = X / self.unit
        if weights is not None:
            middle = weights @ self.X
            self.X -= middle
            rest = _largest(self.X)
            varies = rest > ROUNDING
            self.X /= np.where(varies, rest, np.inf)  # a constant is zero
            self.mean = middle * self.unit
            self.unit = np.where(varies, rest * self.unit, 1.0)

    @functools.cached_property
    def squared(self) -> Any:
        """The square of each entry."""
        if not self.sparse:
            return self.X * self.X
        squared = self.X.copy()
        squared.data **= 2
        return squared


class Standardized:
    r"""The matrix :math:`Z = (X - 1m^\top)\,\mathrm{diag}(s)^{-1}`, which is never formed.

    A fold is the same columns with the weights of its held-out rows at zero.

    Args:
        X: Dense, or sparse in columns (CSC), in float64; or its columns.
        weights: Weights of the rows, not negative, with sum 1.
        center: Whether m is the weighted mean of each column; 0 otherwise.
        standardize: Whether s is the weighted root mean square of each column about m; 1 otherwise.

    Attributes:
        mean: m.
        scale: s, and 1 for columns that are constant.
        curvature: :math:`\sum_i w_i z_{ij}^2` of each column: 1 where standardized, 0 where constant.
    """

    def __init__(self, X: Any, weights: Array, *, center: bool, standardize: bool) -> None:
        base = X if isinstance(X, Columns) else Columns(X, weights if center else None)
        self.base, self.weights, self.sparse = base, weights, base.sparse
        self.rows, self.columns = base.X.shape
        self._mean = np.asarray(base.X.T @ weights) if center else np.zeros(self.columns)
        variance, varies = self._spread()
        spread = np.sqrt(np.where(varies, variance, 1.0))
        self._scale = spread if standardize else 1 / base.unit
        self.mean = base.mean + self._mean * base.unit if center else np.zeros(self.columns)
        self.scale = np.where(varies, spread * base.unit, 1.0) if standardize else np.ones(self.columns)
        with np.errstate(over="ignore", under="ignore"):
            self.curvature = np.where(varies, 1.0 if standardize else (spread * base.unit) ** 2, 0.0)
        if not (np.isfinite(self.curvature).all() and (self.curvature[varies] > 0).all()):
            extreme = base.unit[np.argmax(np.abs(np.log(base.unit)))]
            raise ValueError(f"a column is of the size {extreme:.2g}, whose square is no number: use standardize=True")

    def _spread(self) -> tuple[Array, NDArray[np.bool_]]:
        """The variance of each column about its mean, and whether that is more than rounding."""
        X, weights, mean = self.base.X, self.weights, self._mean
        if not self.sparse:
            second = np.einsum("ij,ij,i->j", X, X, weights)  # the columns are about the mean of all rows
            return second - mean**2, second - mean**2 > ROUNDING * second
        column = np.repeat(np.arange(self.columns), np.diff(X.indptr))
        there = weights[X.indices]
        stored = np.bincount(column, there * (X.data - mean[column]) ** 2, minlength=self.columns)
        absent = 1 - np.bincount(column, there, minlength=self.columns)  # the weight of entries that are not stored
        variance = stored + np.where(absent > ROUNDING, absent, 0.0) * mean**2
        return variance, variance > ROUNDING**2

    def correlate(self, v: Array) -> Array:
        """Z'v, or for a matrix v one of its columns in each row."""
        product = (self.base.X.T @ v).T  # of the shape (columns,) or (count, columns)
        total = v.sum(axis=0)
        result: Array = (product - np.multiply.outer(total, self._mean)) / self._scale
        return np.where(self.curvature > 0, result, 0.0)

    def take(self, index: Index) -> Array:
        """Some columns of Z, dense."""
        chosen = self.base.X[:, index]
        dense: Array = chosen.toarray() if self.sparse else chosen
        return np.where(self.curvature[index] > 0, (dense - self._mean[index]) / self._scale[index], 0.0)

    def squares(self, h: Array) -> Array:
        """The sum over the rows of h z^2, for each column."""
        total = self.base.squared.T @ h - 2 * self._mean * (self.base.X.T @ h) + self._mean**2 * h.sum()
        return np.where(self.curvature > 0, np.maximum(total, 0.0) / self._scale**2, 0.0)


def _largest(X: Any) -> Array:
    """The largest magnitude in each column."""
    if not sparse.issparse(X):
        largest: Array = np.maximum(X.max(axis=0), -X.min(axis=0))
        return largest
    return np.asarray(abs(X).max(axis=0).todense(), dtype=np.float64).ravel()
