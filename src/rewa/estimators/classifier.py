r"""Sparse logistic regression with an :math:`\ell_p` penalty, :math:`0 < p \le 1`, for two classes and for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from rewa.estimators import iteration
from rewa.estimators.logistic import Logistic
from rewa.estimators.model import CrossValidated, LinearModel, Single
from rewa.estimators.path import Loss
from rewa.estimators.problem import Problem

__all__ = ["ReWAClassifier", "ReWAClassifierCV"]

Array = NDArray[np.float64]


@dataclass(kw_only=True)
class Classification(Problem):
    """Logistic regression; the targets are the numbers of the classes.

    Args:
        n_classes: Number of classes, from two.
    """

    n_classes: int

    @property
    def outputs(self) -> int:
        """One for two classes, as many as classes for more."""
        return 1 if self.n_classes == 2 else self.n_classes

    @property
    def loss(self) -> iteration.Loss:
        """Logistic for two classes, multinomial for more."""
        return "logistic" if self.n_classes == 2 else "multinomial"

    def losses(self) -> list[Loss]:
        """The logistic loss of all classes together."""
        return [Logistic(self.standardized(), self.y, self.n_classes, fit_intercept=self.fit_intercept)]

    def errors(self, y: NDArray[Any], output: Array) -> Array:
        """The log loss of each row."""
        if self.n_classes == 2:
            return np.logaddexp(0.0, np.where(y == 1, -1.0, 1.0) * output[:, 0])
        loss: Array = -log_softmax(output, axis=1)[np.arange(len(y)), y]
        return loss

    def deviance(self, output: Array) -> float:
        """Twice the mean log loss."""
        return float(2 * self.shares @ self.errors(self.y, output))


class _Classifier(ClassifierMixin, LinearModel):
    """What a fitted classifier does."""

    _classifies: ClassVar[bool] = True
    _scores_name: ClassVar[str] = "log_loss_path_"

    def _check_targets(self, y: Any, *, reset: bool = True) -> NDArray[Any]:
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if reset:
            self.classes_ = np.unique(labels)
        elif (unknown := np.setdiff1d(labels, self.classes_)).size:
            raise ValueError(f"y holds classes that were not there before: {unknown.tolist()}; known: {self.classes_.tolist()}")
        if len(self.classes_) < 2:
            only = self.classes_.tolist()
            raise ValueError(f"This solver needs samples of at least 2 classes in the data, but y has one class only: {only}")
        numbers: NDArray[Any] = np.searchsorted(self.classes_, labels)
        return numbers

    def _problem(self, X: Any, y: NDArray[Any], weights: Array, **settings: Any) -> Problem:
        weights = weights * self._of_classes(y, weights)[y]
        return Classification(X=X, y=y, weights=weights, n_classes=len(self.classes_), **settings)

    def _of_classes(self, y: NDArray[Any], weights: Array) -> Array:
        """The weight of each class; balanced ones make all classes count the same, with the weights of their rows."""
        known = self.classes_.tolist()
        if self.class_weight is None:
            return np.ones(len(known))
        if isinstance(self.class_weight, str):
            counts = np.bincount(y, weights, minlength=len(known))
            balanced: Array = weights.sum() / (np.count_nonzero(counts) * np.where(counts > 0, counts, 1.0))
            return balanced
        unknown = [label for label in self.class_weight if label not in known]
        if unknown:
            raise ValueError(f"class_weight names classes that y does not have: {unknown}; it has {known}")
        return np.array([float(self.class_weight.get(label, 1.0)) for label in known])

    def _shaped(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        return coef, intercept

    def decision_function(self, X: ArrayLike) -> Array:
        """The linear predictions: of the second class for two, of each class for more."""
        check_is_fitted(self)
        data = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=np.float64, reset=False)
        output: Array = safe_sparse_dot(data, self.coef_.T, dense_output=True) + self.intercept_
        return output[:, 0] if output.shape[1] == 1 else output

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class."""
        output = self.decision_function(X)
        if output.ndim == 1:
            return np.column_stack([expit(-output), expit(output)])
        probability: Array = softmax(output, axis=1)
        return probability

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """The log of the probability of each class."""
        output = self.decision_function(X)
        if output.ndim == 1:
            return -np.column_stack([np.logaddexp(0, output), np.logaddexp(0, -output)])
        logarithm: Array = log_softmax(output, axis=1)
        return logarithm

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class."""
        output = self.decision_function(X)
        number = (output > 0).astype(np.intp) if output.ndim == 1 else output.argmax(axis=1)
        label: NDArray[Any] = self.classes_[number]
        return label


class ReWAClassifier(_Classifier, Single):
    r"""Logistic regression with ReWA's implicit penalty, at one weight of it.

    .. math::
        \min_{b_0, b}\ -\frac{1}{\sum_i w_i}\sum_i w_i \log P(y_i \mid b_0 + x_i^\top b)
        + \alpha \sum_{jk} f_j\,\frac{|s_j b_{jk}|^p}{p}, \qquad p = 1 + \frac{1 - M}{K}

    with w the sample weights (times the class weights), f the penalty factors, and s the spread of each feature if
    ``standardize``, otherwise 1. Two classes have one row of coefficients and P is the logistic function; more have a row each
    and P is the softmax, whose coefficients the penalty makes unique up to the intercepts, which add up to 0.

    Args:
        alpha: Weight :math:`\alpha` of the penalty. At p = 1 without ``standardize`` it is 1/(nC) of scikit-learn's
            ``LogisticRegression``.
        p: Exponent in (0, 1], the one thing to tune; by default from K and M, which make it 1/2.
        K: Order of the reparameterization. With the path it matters through p only.
        M: Adaptivity exponent; by default from p, or K - 1, the plain product of K factors, which makes p = 2/K.
        fit_intercept: Whether to fit intercepts, which are not penalized.
        standardize: Whether the penalty counts coefficients in units of the spread of their feature.
        positive: Whether coefficients must not be negative.
        penalty_factor: Factor of the penalty for each feature; 0 for features that must not be penalized.
        class_weight: Weights of classes by label, or ``"balanced"``.
        refit: Whether the nonzero coefficients are fitted again without a penalty; if they separate the classes, until the log
            loss is 0.001.
        solver: ``"path"``, ``"rewa"`` or ``"auto"``, see :class:`ReWARegressor`.
        max_iter: Most Newton steps for a model; most passes over the data of ``solver="rewa"``.
        tol: How far from zero the slopes of nonzero coefficients may be, as a share of the largest slope of the empty model.
        warm_start: Whether to start from the coefficients of the last fit, not from the empty model.
        lr: Learning rate of ``solver="rewa"``.
        batch_size: Rows in a batch of ``solver="rewa"``, which then makes ``max_iter`` passes; by default all of them.
        start: Value of both parts of a pair at which ``solver="rewa"`` starts.
        device: torch's device of ``solver="rewa"``; the CPU by default.
        random_state: Seed of the order of the batches.

    Attributes:
        classes_: The labels.
        coef_: Coefficients, of the shape ``(1, n_features)`` for two classes and ``(n_classes, n_features)`` for more.
        intercept_: One number for each row of coefficients.
        support_: Which features have a coefficient that is not zero, in any class.
        sparse_coef_: The coefficients as a sparse array.
        n_iter_: Newton steps along the path, or passes over the data.
        p_: Exponent of the penalty.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X has any.

    Example:
        >>> random = np.random.default_rng(0)
        >>> X = random.standard_normal((200, 300))
        >>> y = np.where(2 * X[:, 5] - 2 * X[:, 7] + random.logistic(size=200) > 0, "yes", "no")
        >>> model = ReWAClassifier(alpha=0.05).fit(X, y)
        >>> print(np.flatnonzero(model.support_), model.predict(X[:3]))
        [5 7] ['no' 'yes' 'no']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Single._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        alpha: float = 0.01,
        *,
        p: float | None = None,
        K: float = 4,
        M: float | None = None,
        fit_intercept: bool = True,
        standardize: bool = True,
        positive: bool = False,
        penalty_factor: ArrayLike | None = None,
        class_weight: dict[Any, float] | str | None = None,
        refit: bool = False,
        solver: str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-8,
        warm_start: bool = False,
        lr: float | str = "auto",
        batch_size: int | None = None,
        start: float | str = "auto",
        device: Any = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            alpha, p=p, K=K, M=M, fit_intercept=fit_intercept, standardize=standardize, positive=positive,
            penalty_factor=penalty_factor, refit=refit, solver=solver, max_iter=max_iter, tol=tol, warm_start=warm_start,
            lr=lr, batch_size=batch_size, start=start, device=device, random_state=random_state,
        )  # fmt: skip
        self.class_weight = class_weight

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> ReWAClassifier:
        """Make one more pass over new rows by the paper's iteration, for data in chunks; after a fit, start again.

        Args:
            X: Features, dense or sparse.
            y: Labels.
            classes: All labels that will come; the first call needs them, unless its rows show all.
            sample_weight: Weights of the rows.
        """
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all rows at once: give partial_fit weights by label or by row")
        if classes is not None:
            labels = np.unique(np.asarray(classes))
            if hasattr(self, "_state") and not np.array_equal(labels, self.classes_):
                raise ValueError(f"classes={labels.tolist()} are not those of the first call: {self.classes_.tolist()}")
            self.classes_ = labels
        self._stream(X, y, sample_weight, known=classes is not None)
        return self


class ReWAClassifierCV(_Classifier, CrossValidated):
    r"""Logistic regression with ReWA's implicit penalty, whose weight is chosen by cross-validation or by EBIC.

    The objective is that of :class:`ReWAClassifier`, the arguments and attributes are those of :class:`ReWARegressorCV`. The
    error on held-out rows is the log loss, and folds keep the shares of the classes.

    Args:
        p: Exponent in (0, 1]; several, or ``"auto"`` for 1, 2/3, 1/2 and 1/3, to choose the best one, too.
        K: Order of the reparameterization.
        M: Adaptivity exponent; by default from p, or K - 1, the plain product of K factors, which makes p = 2/K.
        alphas: Weights of the penalty to try, or how many.
        alpha_ratio: Last threshold over the first; by default 0.01 if there are more features than rows, else 0.0001.
        cv: Folds: a number, a splitter, or splits; by default five.
        selection: ``"min"``, ``"1se"`` or ``"ebic"``.
        refit: Whether the nonzero coefficients are fitted again without a penalty; ``"auto"``: if that makes the error on
            held-out rows smaller.
        gamma: How much EBIC counts the number of features.
        fit_intercept: Whether to fit intercepts, which are not penalized.
        standardize: Whether the penalty counts coefficients in units of the spread of their feature.
        positive: Whether coefficients must not be negative.
        penalty_factor: Factor of the penalty for each feature; 0 for features that must not be penalized.
        class_weight: Weights of classes by label, or ``"balanced"``.
        max_iter: Most Newton steps for a model.
        tol: How far from zero the slopes of nonzero coefficients may be, as a share of the largest slope of the empty model.
        n_jobs: Threads for the folds; one by default, -1 for all cores.

    Attributes:
        classes_: The labels.
        coef_: Coefficients, of the shape ``(1, n_features)`` for two classes and ``(n_classes, n_features)`` for more.
        intercept_: One number for each row of coefficients.
        support_: Which features have a coefficient that is not zero, in any class.
        alpha_: The weight chosen.
        p_: The exponent chosen.
        refit_: Whether the coefficients were fitted again.
        alphas_: Weights that were tried.
        log_loss_path_: Log loss of each on each fold; not a number where a path had ended. ``criterion_`` with EBIC.
        n_iter_: Newton steps on all rows to the chosen model.
        n_features_in_: Number of features.
        feature_names_in_: Their names, if X has any.

    Example:
        >>> random = np.random.default_rng(0)
        >>> X = random.standard_normal((200, 300))
        >>> y = X[:, 5] - X[:, 7] + random.logistic(size=200) / 3 > 0
        >>> print(np.flatnonzero(ReWAClassifierCV().fit(X, y).support_))
        [5 7]
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **CrossValidated._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        *,
        p: float | str | ArrayLike | None = None,
        K: float = 4,
        M: float | None = None,
        alphas: int | ArrayLike = 200,
        alpha_ratio: float | str = "auto",
        cv: Any = None,
        selection: str = "min",
        refit: bool | str = "auto",
        gamma: float = 0.5,
        fit_intercept: bool = True,
        standardize: bool = True,
        positive: bool = False,
        penalty_factor: ArrayLike | None = None,
        class_weight: dict[Any, float] | str | None = None,
        max_iter: int = 1000,
        tol: float = 1e-8,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            p=p, K=K, M=M, alphas=alphas, alpha_ratio=alpha_ratio, cv=cv, selection=selection, refit=refit, gamma=gamma,
            fit_intercept=fit_intercept, standardize=standardize, positive=positive, penalty_factor=penalty_factor,
            max_iter=max_iter, tol=tol, n_jobs=n_jobs,
        )  # fmt: skip
        self.class_weight = class_weight
