"""The data: three linear models with a known support, scikit-learn's data sets among columns of noise, and wide sparse data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["DATA_SETS", "DESIGNS", "TINY", "SparseModel", "real_data", "score", "sparse_data"]

DATA_SETS = ("breast_cancer", "wine", "diabetes")


@dataclass(frozen=True, kw_only=True)
class SparseModel:
    """A linear model with normal columns and a known support.

    Args:
        n: Number of rows to train on.
        d: Number of columns.
        n_test: Number of rows to test on.
        k: Number of coefficients of 1, spread evenly; the others are zero.
        rho: Correlation of a column with the next.
        snr: Variance of the signal over that of the noise.
    """

    n: int
    d: int
    n_test: int
    k: int = 20
    rho: float = 0.5
    snr: float = 1.0

    @property
    def support(self) -> np.ndarray:
        """The columns that count."""
        return np.round(np.linspace(0, self.d - 1, self.k)).astype(int)

    @property
    def noise(self) -> float:
        """The variance of the noise."""
        distance = np.abs(self.support[:, None] - self.support[None, :])
        return float((self.rho**distance).sum()) / self.snr

    def draw(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw X and y to train on, and X and y to test on.

        Args:
            seed: Seeds one generator, which draws X, the test X, the noise and the test noise in this order.
        """
        rng = np.random.default_rng(seed)
        X, X_test = (self._columns(rng.standard_normal((rows, self.d))) for rows in (self.n, self.n_test))
        y, y_test = (
            each[:, self.support].sum(axis=1) + math.sqrt(self.noise) * rng.standard_normal(len(each)) for each in (X, X_test)
        )
        return X, y, X_test, y_test

    def _columns(self, z: np.ndarray) -> np.ndarray:
        if self.rho:
            for j in range(1, self.d):
                z[:, j] = self.rho * z[:, j - 1] + math.sqrt(1 - self.rho**2) * z[:, j]
        return z


DESIGNS = {
    "A": SparseModel(n=2000, d=10_000, n_test=2000, k=1, rho=0.0),
    "B": SparseModel(n=500, d=2000, n_test=5000),
    "C": SparseModel(n=500, d=2000, n_test=5000, snr=5.0),
}
TINY = {
    "A": SparseModel(n=100, d=150, n_test=100, k=1, rho=0.0),
    "B": SparseModel(n=120, d=100, n_test=200, k=4),
    "C": SparseModel(n=120, d=100, n_test=200, k=4, snr=5.0),
}


def score(model: SparseModel, coef: np.ndarray, intercept: float, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """Score a fit: no method judges itself.

    Args:
        model: The model behind the data.
        coef: The coefficients that were found.
        intercept: The intercept that was found.
        X_test: Rows to test on.
        y_test: Their targets.

    Returns:
        Columns kept, those of them that count, F1 of the support, whether it is exact, and the test error over the variance
        of the noise.
    """
    found = set(np.flatnonzero(coef).tolist())
    true = len(found & set(model.support.tolist()))
    return {
        "nnz": len(found),
        "true_positives": true,
        "f1": 2 * true / (len(found) + model.k),
        "exact": found == set(model.support.tolist()),
        "error": float(np.mean((y_test - X_test @ coef - intercept) ** 2)) / model.noise,
    }


def sparse_data(n: int, d: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Draw columns of variance 1 of which one value in a hundred is not zero, and y from 20 of them with a fifth of noise.

    Args:
        n: Number of rows.
        d: Number of columns.
        seed: Seeds the draws.

    Returns:
        X as a CSC array, and y.
    """
    from scipy.sparse import coo_array

    rng = np.random.default_rng(seed)
    size = n * d // 100
    places = rng.integers(n, size=size, dtype=np.int32), rng.integers(d, size=size, dtype=np.int32)
    X = coo_array((10 * rng.standard_normal(size), places), shape=(n, d)).tocsc()
    support = np.unique(np.round(np.linspace(0, d - 1, 20)).astype(int))
    return X, X[:, support].sum(axis=1) + math.sqrt(len(support) / 5) * rng.standard_normal(n)


def real_data(name: str, seed: int, noise: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Load one of scikit-learn's data sets, add columns of noise at its end, and split it.

    Args:
        name: A name of :data:`DATA_SETS`.
        seed: Seeds the noise and the split.
        noise: Number of columns of noise.

    Returns:
        X and y to train on, X and y to test on, and how many columns are real.
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    wide = np.hstack([X, np.random.default_rng(seed).standard_normal((len(X), noise))])
    stratify = None if name == "diabetes" else y
    X_train, X_test, y_train, y_test = train_test_split(wide, y, test_size=0.3, random_state=seed, stratify=stratify)
    return X_train, y_train, X_test, y_test, X.shape[1]
