"""A process that measures one method: it imports the method, fits, and prints one JSON object.

    python -m rewa.experiments.regression.measure '["designs", {"method": "lasso", "design": "B", "seeds": 1, "tiny": true}]'

"First call" is the imports of a method and its first fit, so nothing that a method may import is imported here.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rewa.experiments.regression.contenders import CONTENDERS, CONTEST, SPARSE_PATHS, Fitter, estimator
from rewa.experiments.regression.designs import DESIGNS, TINY, SparseModel, real_data, score, sparse_data

__all__ = ["MEASURES", "measure"]


def measure(part: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure, and count the warnings.

    Args:
        part: A key of :data:`MEASURES`.
        arguments: Arguments of that function.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = MEASURES[part](**arguments)
    return {**found, "warnings": len(caught)}


def measure_design(method: str, design: str, seeds: int, tiny: bool) -> dict[str, Any]:
    """The first call and every seed of a method on a design.

    Args:
        method: A key of :data:`CONTENDERS` or :data:`CONTEST`.
        design: A key of :data:`DESIGNS`.
        seeds: Number of data sets.
        tiny: Whether the small version of the design is drawn.
    """
    model = (TINY if tiny else DESIGNS)[design]
    make = (CONTENDERS | CONTEST)[method].make
    first, fit, rows = math.nan, None, []
    for seed in range(seeds):
        X, y, X_test, y_test = model.draw(seed)
        if fit is None:
            begin = time.perf_counter()
            fit = make() if make else _oracle(model)
            fit(X, y)
            first = time.perf_counter() - begin
        taken, (coef, intercept) = _seconds(lambda: fit(X, y))  # noqa: B023 - called at once
        rows.append({"seed": seed, "seconds": taken, **score(model, coef, intercept, X_test, y_test)})
    return {"first_call": first, "rows": rows}


def measure_data(method: str, data: str, splits: int, noise: int) -> dict[str, Any]:
    """Every split of a data set; the columns are standardized by the training part.

    Args:
        method: ``"rewa"`` or ``"lasso"``.
        data: The name of the data set.
        splits: Number of random splits.
        noise: Number of columns of noise.
    """
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    judge = r2_score if data == "diabetes" else accuracy_score
    rows: list[dict[str, Any]] = []
    first = math.nan
    for seed in range(splits):
        X, y, X_test, y_test, real = real_data(data, seed, noise)
        if not rows:
            first, _ = _seconds(lambda: make_pipeline(StandardScaler(), estimator(method, data)).fit(X, y))  # noqa: B023
        model = make_pipeline(StandardScaler(), estimator(method, data))
        taken, _ = _seconds(lambda: model.fit(X, y))  # noqa: B023
        # Several binary models keep what any of them keeps.
        coefs = [np.atleast_2d(each.coef_) for each in getattr(model[-1], "estimators_", [model[-1]])]
        kept = np.flatnonzero(np.vstack(coefs).any(axis=0))
        found = {"kept": len(kept), "real": int((kept < real).sum()), "of": real}
        rows.append({"seed": seed, "seconds": taken, "score": float(judge(y_test, model.predict(X_test))), **found})
    return {"first_call": first, "rows": rows}


def measure_scaling(method: str, n: int, d: int) -> dict[str, Any]:
    """One path on sparse data: the median of up to three, after a small one.

    Args:
        method: A key of :data:`SPARSE_PATHS`.
        n: Number of rows.
        d: Number of columns.
    """
    path = SPARSE_PATHS[method]()
    warm_up, _ = _seconds(lambda: path(*sparse_data(n, 200)))
    X, y = sparse_data(n, d)
    times: list[float] = []
    while len(times) < 3 and sum(times) < 20:
        taken, last = _seconds(lambda: path(X, y))
        times.append(taken)
    return {"warm_up": warm_up, "seconds": statistics.median(times), "all_seconds": times, "nnz": last}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "designs": measure_design,
    "contest": measure_design,
    "data": measure_data,
    "scaling": measure_scaling,
}


def _oracle(model: SparseModel) -> Fitter:
    """Least squares on the true support."""

    def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        coef = np.zeros(model.d)
        coef[model.support] = np.linalg.lstsq(X[:, model.support], y)[0]
        return coef, 0.0

    return fit


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and what it returns."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


if __name__ == "__main__":
    os.write(1, json.dumps(measure(*json.loads(sys.argv[1]))).encode() + b"\n")
