"""Sparse regression and classification in scikit-learn's terms; needs ``pip install 'rewa[sklearn]'``."""

try:
    from sklearn.utils.validation import validate_data  # noqa: F401 - came with 1.6
except ImportError as error:
    raise ImportError("rewa.estimators needs scikit-learn 1.6 or newer: pip install 'rewa[sklearn]'") from error

from rewa.estimators.classifier import ReWAClassifier, ReWAClassifierCV
from rewa.estimators.display import ReWAPathDisplay
from rewa.estimators.model import Path
from rewa.estimators.regressor import ReWARegressor, ReWARegressorCV
from rewa.estimators.selector import ReWASelector
from rewa.estimators.stability import Stability, stability_selection

__all__ = [
    "Path",
    "ReWAClassifier",
    "ReWAClassifierCV",
    "ReWAPathDisplay",
    "ReWARegressor",
    "ReWARegressorCV",
    "ReWASelector",
    "Stability",
    "stability_selection",
]
