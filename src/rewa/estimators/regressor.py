r"""Sparse linear regression with an :math:`\ell_p` penalty, :math:`0 < p \le 1`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from rewa.estimators import iteration
from rewa.estimators.least_squares import Correlations, LeastSquares
from rewa.estimators.model import CrossValidated, LinearModel, Single
from rewa.estimators.path import Loss
from rewa.estimators.problem import Problem

__all__ = ["ReWARegressor", "ReWARegressorCV"]

Array = NDArray[np.float64]


class Regression(Problem):
    """Least squares, each output by itself."""

    @property
    def outputs(self) -> int:
        """Columns of the targets."""
        return int(self.y.shape[1])

    @property
    def loss(self) -> iteration.Loss:
        """The squared one."""
        return "squared"

    def losses(self) -> list[Loss]:
        """The squared loss of each output; they share the correlations of X."""
        correlations = Correlations(self.standardized())
        return [LeastSquares(correlations, y, fit_intercept=self.fit_intercept) for y in self.y.T]

    def errors(self, y: NDArray[Any], output: Array) -> Array:
        """The mean squared error over outputs."""
        result: Array = ((y - output) ** 2).mean(axis=1)
        return result

    def deviance(self, output: Array) -> float:
        """The log of the mean squared error, summed over outputs."""
        return float(np.log(np.maximum(self.shares @ (self.y - output) ** 2, np.finfo(np.float64).tiny)).sum())


class _Regressor(MultiOutputMixin, RegressorMixin, LinearModel):
    """What a fitted regressor does."""

    _target_checks: ClassVar[dict[str, Any]] = {"y_numeric": True}

    def _check_targets(self, y: Any, *, reset: bool = True) -> NDArray[Any]:
        targets = np.asarray(y, dtype=np.float64)
        self._one_output = targets.ndim == 1
        return targets.reshape(len(targets), -1)

    def _problem(self, X: Any, y: NDArray[Any], weights: Array, **settings: Any) -> Problem:
        return Regression(X=X, y=y, weights=weights, **settings)

    def _shaped(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return (coef[0], float(intercept[0])) if self._one_output else (coef, intercept)

    def predict(self, X: ArrayLike) -> Array:
        """Predictions for rows of X."""
        check_is_fitted(self)
        data = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=np.float64, reset=False)
        result: Array = safe_sparse_dot(data, np.asarray(self.coef_).T, dense_output=True) + self.intercept_
        return result


class ReWARegressor(_Regressor, Single):
    r"""Linear regression with ReWA's implicit penalty, at one weight of it.

    .. math::
        \min_{b_0, b}\ \frac{1}{2\sum_i w_i}\sum_i w_i\,(y_i - b_0 - x_i^\top b)^2
        + \alpha \sum_j f_j\,\frac{|s_j b_j|^p}{p}, \qquad p = 1 + \frac{1 - M}{K}

    with w the sample weights (1 by default, so the first factor is :math:`1/(2n)`), f the penalty factors, and s the spread of
    each feature if ``standardize``, otherwise 1. The penalty is :func:`rewa.theory.regularizer` with :math:`\varepsilon = 0`.
    For p = 1 it is the lasso; with smaller p large coefficients are shrunk less and small ones are zero sooner. For p < 1 the
    problem has many local minima: the solution is a point that no single coefficient can improve, found by following the path
    from the empty model.

    Args:
        alpha: Weight :math:`\alpha` of the penalty, in the units of the loss: twice the y, :math:`2^{2-p}` times the alpha.
            Several outputs share it, so bring them to the same scale.
        p: Exponent in (0, 1], the one thing to tune; by default from K and M, which make it 1/2.
        K: Order of the reparameterization :math:`x = \mathrm{sign}(y)|y|^K`. With the path it matters through p only.
        M: Adaptivity exponent; by default from p, or K - 1, the plain product of K factors, which makes p = 2/K.
        fit_intercept: Whether to fit an intercept, which is not penalized.
        standardize: Whether the penalty counts coefficients in units of the spread of their feature: its weighted standard
            deviation, or its root mean square without an intercept. Coefficients are reported in the units of X either way.
        positive: Whether coefficients must not be negative.
        penalty_factor: Factor of the penalty for each feature; 0 for features that must not be penalized.
        refit: Whether the nonzero coefficients are fitted again without a penalty.
        solver: ``"path"``, Newton's method over a working set along the path; ``"rewa"``, the paper's iteration in pair form
            with torch, which also does mini-batches and :meth:`partial_fit`; ``"auto"``, the path.
        max_iter: Most Newton steps for a model; most passes over the data of ``solver="rewa"``.
        tol: How far from zero the slopes of nonzero coefficients may be, as a share of the largest slope of the empty model.
            Smaller slopes are taken for zero.
        warm_start: Whether to start from the coefficients of the last fit, not from the empty model.
        lr: Learning rate of ``solver="rewa"``.
        batch_size: Rows in a batch of ``solver="rewa"``, which then makes ``max_iter`` passes; by default all of them.
        start: Value of both parts of a pair at which ``solver="rewa"`` starts; by default what makes it agree with the path on
            which coefficients leave zero.
        device: torch's device of ``solver="rewa"``; the CPU by default.
        random_state: Seed of the order of the batches.

    Attributes:
        coef_: Coefficients, of the shape ``(n_features,)``, or ``(n_outputs, n_features)`` if y has two dimensions.
        intercept_: A number, or one for each output.
        support_: Which features have a coefficient that is not zero.
        sparse_coef_: The coefficients as a sparse array.
        n_iter_: Newton steps along the path, or passes over the data.
        p_: Exponent of the penalty.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X has any.

    Example:
        >>> random = np.random.default_rng(0)
        >>> X = random.standard_normal((100, 200))
        >>> y = 3 * X[:, 5] - 2 * X[:, 7] + 0.5 * random.standard_normal(100)
        >>> model = ReWARegressor(alpha=0.3).fit(X, y)
        >>> print(np.flatnonzero(model.coef_), model.coef_[[5, 7]].round(2))
        [5 7] [ 2.76 -1.7 ]
        >>> print(ReWARegressor(alpha=0.3, refit=True).fit(X, y).coef_[[5, 7]].round(2))
        [ 2.96 -1.99]
    """

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ReWARegressor:
        """Make one more pass over new rows by the paper's iteration, for data in chunks; after a fit, start again.

        Args:
            X: Features, dense or sparse.
            y: Targets.
            sample_weight: Weights of the rows.
        """
        self._stream(X, y, sample_weight)
        return self


class ReWARegressorCV(_Regressor, CrossValidated):
    r"""Linear regression with ReWA's implicit penalty, whose weight is chosen by cross-validation or by EBIC.

    The objective is that of :class:`ReWARegressor`. Its weight runs from the least that leaves the model empty downwards, the
    thresholds that coefficients must pass to enter falling evenly on a log scale.

    Args:
        p: Exponent in (0, 1]; several, or ``"auto"`` for 1, 2/3, 1/2 and 1/3, to choose the best one, too. By default from K
            and M.
        K: Order of the reparameterization.
        M: Adaptivity exponent; by default from p, or K - 1, the plain product of K factors, which makes p = 2/K.
        alphas: Weights of the penalty to try, or how many.
        alpha_ratio: Last threshold over the first; by default 0.01 if there are more features than rows, else 0.0001. A
            path ends before when its models have become clearly worse.
        cv: Folds: a number, a splitter, or splits; by default five.
        selection: ``"min"``, the least error on held-out rows; ``"1se"``, the largest weight whose error is within a standard
            error of that (of several weights with the same refit, the middle one); ``"ebic"``, the least extended Bayesian
            information criterion, without folds.
        refit: Whether the nonzero coefficients are fitted again without a penalty; ``"auto"``: if that makes the error on
            held-out rows smaller. The criterion of EBIC is always that of a refitted model, and ``"auto"`` then means yes.
        gamma: How much EBIC counts the number of features; 0 is BIC, which keeps far too many if there are more than rows.
        fit_intercept: Whether to fit an intercept, which is not penalized.
        standardize: Whether the penalty counts coefficients in units of the spread of their feature.
        positive: Whether coefficients must not be negative.
        penalty_factor: Factor of the penalty for each feature; 0 for features that must not be penalized.
        max_iter: Most Newton steps for a model.
        tol: How far from zero the slopes of nonzero coefficients may be, as a share of the largest slope of the empty model.
        n_jobs: Threads for the folds; one by default, -1 for all cores.

    Attributes:
        coef_: Coefficients, of the shape ``(n_features,)``, or ``(n_outputs, n_features)`` if y has two dimensions.
        intercept_: A number, or one for each output.
        support_: Which features have a coefficient that is not zero.
        sparse_coef_: The coefficients as a sparse array.
        alpha_: The weight chosen.
        p_: The exponent chosen.
        refit_: Whether the coefficients were fitted again.
        alphas_: Weights that were tried, of the shape ``(n_alphas,)``, or ``(n_exponents, n_alphas)`` for several p.
        mse_path_: Mean squared error of each on each fold, of the shape ``alphas_.shape + (n_folds,)``, of the refitted models
            if ``refit_``; not a number where a path had ended. With EBIC there is ``criterion_`` instead, of the shape of
            alphas_.
        n_iter_: Newton steps on all rows to the chosen model.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X has any.

    Example:
        >>> random = np.random.default_rng(0)
        >>> X = random.standard_normal((100, 200))
        >>> y = 3 * X[:, 5] - 2 * X[:, 7] + 0.5 * random.standard_normal(100)
        >>> model = ReWARegressorCV().fit(X, y)
        >>> print(np.flatnonzero(model.coef_), model.coef_[[5, 7]].round(2), model.refit_)
        [5 7] [ 2.96 -1.99] True
    """
