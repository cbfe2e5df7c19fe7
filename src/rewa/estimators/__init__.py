"""Sparse regression and classification in scikit-learn's terms; needs ``pip install 'rewa[sklearn]'``."""

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
