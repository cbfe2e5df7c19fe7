"""Feature selection by a sparse linear model, for pipelines."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from rewa.estimators.classifier import ReWAClassifierCV
from rewa.estimators.regressor import ReWARegressorCV

__all__ = ["ReWASelector"]


class ReWASelector(SelectorMixin, MetaEstimatorMixin, BaseEstimator):
    """Keeps the features whose coefficient in a sparse linear model is not zero.

    Dropped is what is exactly zero in all outputs: there is no other threshold. scikit-learn's ``SelectFromModel`` compares
    with the mean coefficient unless it knows the estimator by name, and so drops what is small but there.

    Args:
        estimator: A linear model that has ``coef_`` after its fit; a clone of it is fitted. None is :class:`ReWAClassifierCV`
            where y holds class labels, which are strings, booleans or integers, and :class:`ReWARegressorCV` where it holds
            floats: for integers that are amounts, name the regressor.

    Attributes:
        estimator_: The fitted model.
        n_features_in_: Number of features seen in the fit.
        feature_names_in_: Their names, if X had any.

    Example:
        >>> import numpy as np
        >>> from rewa.estimators.selector import ReWASelector
        >>> X = np.random.default_rng(0).standard_normal((100, 50))
        >>> y = 3 * X[:, 7] + 0.2 * X[:, 30] + 0.1 * X[:, 0] ** 2
        >>> print(ReWASelector().fit(X, y).get_support(indices=True))
        [ 7 30]
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {"estimator": [HasMethods("fit"), None]}

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, **fit_params: Any) -> ReWASelector:
        """Fit the model.

        Args:
            X: Features, dense or sparse.
            y: Targets.
            fit_params: For the model's fit, such as ``sample_weight``; by metadata routing if that is on.

        Returns:
            The selector.
        """
        self._validate_params()
        if fit_params and _routing():
            fit_params = process_routing(self, "fit", **fit_params).estimator.fit
        estimator = _default(y) if self.estimator is None else clone(self.estimator)
        estimator.fit(X, y, **fit_params)
        if not hasattr(estimator, "coef_"):
            raise TypeError(
                f"{type(estimator).__name__} has no coef_ after its fit: ReWASelector needs a linear model, "
                "such as ReWARegressorCV()"
            )
        self.estimator_ = estimator
        validate_data(self, X, skip_check_array=True)  # the model has checked it; what is left is to note names and number
        return self

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        coef = self.estimator_.coef_
        dense = coef.toarray() if sparse.issparse(coef) else np.atleast_2d(coef)
        mask: NDArray[np.bool_] = (dense != 0).any(axis=0)
        return mask

    def get_metadata_routing(self) -> MetadataRouter:
        """What metadata goes to the model's fit."""
        model = self.estimator
        if model is None:
            model = ReWARegressorCV()
            if _routing():  # nobody else can say of the default that it takes weights
                model.set_fit_request(sample_weight=True)
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=type(self).__name__).add(estimator=model, method_mapping=mapping)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(ReWARegressorCV() if self.estimator is None else self.estimator)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        tags.target_tags.required = True
        return tags


def _routing() -> bool:
    return bool(get_config()["enable_metadata_routing"])


def _default(y: Any) -> Any:
    """The model for such targets."""
    if y is None or np.asarray(y).dtype.kind == "f" or type_of_target(y) not in ("binary", "multiclass"):
        return ReWARegressorCV()
    return ReWAClassifierCV()
