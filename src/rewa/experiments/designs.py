"""Data of the studies of linear models: what is drawn, from which seed, and the loss that nobody can beat on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Design", "Lasso", "lasso", "logistic", "paper", "sparse"]

TRAIN_SEED, TEST_SEED = 9913, 1113  # of the authors' runs
# scikit-learn's default grid: from the least penalty that leaves no coefficient, down to a thousandth of it.
GRID, DEPTH = 100, 1e-3
# How much of the grid is tried at first, and then; the dense models at its lower end take almost all of the time.
PARTS = (50, 75, GRID)
RISEN = 3  # penalties below the best by which the error is taken to rise for good


@dataclass(frozen=True, kw_only=True)
class Design:
    """Training and test data of a linear model, in float32.

    Args:
        name: What it is called in tables.
        X: Features to train on, a row for each sample.
        y: Targets, one for each row; 0 or 1 where the loss is logistic.
        X_test: Features to test on.
        y_test: Their targets.
        beta: The coefficients that made the targets; there is no intercept.
        bayes: The expected loss of ``beta``, below which luck begins: the variance of the noise. It has no closed form
            where the loss is logistic, and is then the same as ``realised``.
        realised: The loss of ``beta`` on the test data as drawn.
        loss: ``"squared"``, the mean of squared errors, or ``"logistic"``, the mean of -log(probability of the label).
    """

    name: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    beta: Tensor
    bayes: float
    realised: float
    loss: Literal["squared", "logistic"] = "squared"

    def test_loss(self, coef: Tensor, intercept: Tensor | float = 0.0) -> Tensor:
        """The loss on the test data, of one model or of many.

        Args:
            coef: Coefficients, of the shape ``(..., d)``.
            intercept: Intercepts, of the shape ``(...)``.

        Returns:
            Losses of the shape ``(...)``, in float64.
        """
        return _loss(self.loss, self.X_test, self.y_test, coef, intercept)

    def gradient_at_zero(self) -> Tensor:
        """The gradient of the training loss, of the shape ``(d,)``, where all coefficients and the intercept are zero."""
        slope = -2 * self.y if self.loss == "squared" else 0.5 - self.y
        return self.X.T @ slope / len(self.X)


def _loss(kind: str, X: Tensor, y: Tensor, coef: Tensor, intercept: Tensor | float = 0.0) -> Tensor:
    output = (coef.to(X.dtype) @ X.T).double() + torch.as_tensor(intercept, dtype=torch.float64).unsqueeze(-1)
    target = y.double().expand_as(output)
    if kind == "squared":
        return (output - target).square().mean(-1)
    return F.binary_cross_entropy_with_logits(output, target, reduction="none").mean(-1)


def _design(
    name: str,
    beta: np.ndarray,
    draw: Callable[[str], tuple[np.ndarray, np.ndarray]],
    *,
    bayes: float | None,
    loss: Literal["squared", "logistic"] = "squared",
) -> Design:
    X, y, X_test, y_test = (torch.from_numpy(part.astype(np.float32)) for which in ("train", "test") for part in draw(which))
    true = torch.from_numpy(beta.astype(np.float32))
    realised = float(_loss(loss, X_test, y_test, true))
    floor = realised if bayes is None else bayes
    return Design(name=name, X=X, y=y, X_test=X_test, y_test=y_test, beta=true, bayes=floor, realised=realised, loss=loss)


def paper(*, n: int = 2000, d: int = 10_000, n_test: int = 2000) -> Design:
    r"""The paper's synthetic data: :math:`y = x_1 + \xi`, all features and the noise standard normal.

    The draws are those of the authors' code: features row by row, then the noise, from one generator for each set.

    Args:
        n: Samples to train on.
        d: Features.
        n_test: Samples to test on.
    """
    beta = np.zeros(d)
    beta[0] = 1.0

    def draw(which: str) -> tuple[np.ndarray, np.ndarray]:
        seed, rows = (TRAIN_SEED, n) if which == "train" else (TEST_SEED, n_test)
        random = np.random.RandomState(seed)
        X = random.standard_normal((rows, d))
        return X, X @ beta + random.standard_normal(rows)

    return _design("paper", beta, draw, bayes=1.0)


def sparse(
    *,
    seed: int,
    n: int,
    d: int,
    s: int,
    noise: float = 1.0,
    rho: float = 0.0,
    signs: Literal["mixed", "positive"] = "mixed",
    n_test: int = 2000,
) -> Design:
    r"""A few coefficients of magnitude 1 among correlated features: :math:`y = X\beta + \sigma\xi`.

    Args:
        seed: Seeds the draw.
        n: Samples to train on.
        d: Features.
        s: Coefficients that are not zero, evenly spread from the first feature on.
        noise: Standard deviation :math:`\sigma` of the noise.
        rho: Correlation of neighbouring features; of features j and k it is :math:`\rho^{|j-k|}`.
        signs: ``"mixed"`` for 1, -1, 1, ..., or ``"positive"``.
        n_test: Samples to test on.
    """
    if not 0 <= s <= d:
        raise ValueError(f"Invalid s: {s} (allowed: from 0 to d = {d})")
    if not -1 < rho < 1:
        raise ValueError(f"Invalid rho: {rho} (allowed: between -1 and 1)")
    if signs not in ("mixed", "positive"):
        raise ValueError(f"Invalid signs: {signs!r} (allowed: 'mixed', 'positive')")
    beta = np.zeros(d)
    beta[np.arange(s) * d // max(s, 1)] = np.where((np.arange(s) % 2 == 1) & (signs == "mixed"), -1.0, 1.0)

    def draw(which: str) -> tuple[np.ndarray, np.ndarray]:
        random, rows = _generator(seed, which), n if which == "train" else n_test
        X = random.standard_normal((rows, d))
        for j in range(1, d) if rho else ():
            X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
        return X, X @ beta + noise * random.standard_normal(rows)

    return _design(f"sparse n={n} d={d} s={s} noise={noise:g} rho={rho:g} {signs}", beta, draw, bayes=noise**2)


def logistic(*, seed: int, n: int, d: int, n_test: int = 2000) -> Design:
    r"""Labels that are 1 with probability :math:`1/(1 + e^{-x_1 - x_2/2})`, features standard normal.

    The Bayes loss is that of the true coefficients on this very test set, since it has no closed form; an estimate may be below
    it by luck.

    Args:
        seed: Seeds the draw.
        n: Samples to train on.
        d: Features, at least 2.
        n_test: Samples to test on.
    """
    beta = np.zeros(d)
    beta[:2] = 1.0, 0.5

    def draw(which: str) -> tuple[np.ndarray, np.ndarray]:
        random, rows = _generator(seed, which), n if which == "train" else n_test
        X = random.standard_normal((rows, d))
        return X, random.random(rows) < 1 / (1 + np.exp(-X @ beta))

    return _design(f"logistic n={n} d={d}", beta, draw, bayes=None, loss="logistic")


def _generator(seed: int, which: str) -> np.random.Generator:
    return np.random.default_rng([seed, 0 if which == "train" else 1])


@dataclass(frozen=True)
class Lasso:
    """The lasso with the penalty that cross-validation chose.

    Args:
        coef: Coefficients.
        intercept: Intercept.
        alpha: The penalty chosen, of the loss (mean of squared errors)/2 + alpha |coef|_1.
        alphas: The penalties tried, from the largest.
        cv: The mean squared error of each, over the folds.
    """

    coef: Tensor
    intercept: float
    alpha: float
    alphas: tuple[float, ...]
    cv: tuple[float, ...]


def lasso(design: Design, *, seed: int = 0, n_jobs: int | None = None, folds: int = 5) -> Lasso:
    """scikit-learn's ``LassoCV`` with its own grid of penalties, from the top down to where the error has turned.

    The lower end of the grid, where thousands of coefficients fit noise, takes almost all of the time; it is left out when the
    error has a minimum above it and rises again.

    Args:
        design: The data, with squared loss.
        seed: Seeds the folds.
        n_jobs: Folds at a time; None for one.
        folds: How many.

    Warns:
        UserWarning: If the error does not rise before the smallest penalty of the grid, which is then taken.
    """
    if design.loss != "squared":
        raise ValueError(f"the lasso is for squared loss, and {design.name} has {design.loss} loss")
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import KFold

    # Coordinate descent wants columns in one piece.
    X, y = np.asfortranarray(design.X.numpy()), design.y.numpy()
    largest = float(np.abs((X - X.mean(0)).T @ (y - y.mean())).max()) / len(y)
    grid = largest * np.geomspace(1, DEPTH, GRID)
    for part in PARTS:
        splits = KFold(folds, shuffle=True, random_state=seed)
        fitted = LassoCV(alphas=grid[:part], cv=splits, n_jobs=n_jobs).fit(X, y)
        errors = fitted.mse_path_.mean(1)
        # Between penalties that are close the solver may stay where it is: a level error has not risen.
        if errors.min() < errors[-1] and errors.argmin() < part - (1 if part == GRID else 1 + RISEN):
            break
    else:
        # One odd data set does not end a study of many. A second fit, since among equal errors the first would be taken.
        fitted = LassoCV(alphas=grid[-1:], cv=splits).fit(X, y)
        warnings.warn(
            f"the cross-validated error of {design.name} has no minimum inside the grid of penalties: alpha = {grid[-1]:.3g}, "
            "the smallest tried, is taken",
            stacklevel=2,
        )
    coef = torch.from_numpy(fitted.coef_.astype(np.float32))
    tried = tuple(map(float, grid[: len(errors)]))
    return Lasso(coef, float(fitted.intercept_), float(fitted.alpha_), tried, tuple(map(float, errors)))
