"""Sparse regression: what is selected, how well it predicts and how long it takes, beside scikit-learn, skglm and abess.

designs: Three designs with a known support. A: 2,000 rows of 10,000 independent columns, one coefficient of 1, noise of
    variance 1. B: 500 rows of 2,000 columns, each correlated by .5 with the next, 20 coefficients of 1, as much noise as
    signal. C: B with a fifth of the noise. Ours has one setting for all, its default. Rivals know that there is no intercept
    and search 50 penalties down to .03 of the largest, by 5 folds where nothing else is said. Every method runs in a process
    of its own: "first call" is its imports and its first fit, the warm-up is what that took above the second fit of the same
    data. Then, in turns, ours with 50 penalties and 5 folds against skglm's L0.5 with as many, each turn in a fresh process.
data: scikit-learn's breast-cancer, wine and diabetes with 2,000 columns of noise, five random splits: test score, columns kept.
scaling: seconds of one path of 50 penalties against the number of columns, sparse X of 500 rows.

All fits have one thread. skglm and abess are not needed: what is missing is said in the table. To have them:
    pip install skglm abess

The record goes to results/regression; a part that is not run keeps the record it had.

    python benchmarks/regression.py
    python benchmarks/regression.py --parts designs --methods rewa,lasso,l0.5 --seeds 10 --json
    python benchmarks/regression.py --quick --methods rewa,lasso
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

# Nothing else at the top: a process that measures imports this file, and imports of a method are part of its first call.

Fit = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, float]]
"""From X and y to coefficients and intercept."""

ALPHAS, DEPTH, FOLDS = 50, 0.03, 5  # of the rivals: penalties, the least over the largest, and folds
SPLITS = 5
PARTS = ("designs", "data", "scaling")
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
OUT = Path(__file__).parent.parent / "results" / "regression"


# The data.


@dataclass(frozen=True, kw_only=True)
class Design:
    """A linear model with normal columns and a known support.

    Args:
        n: Rows to train on.
        d: Columns.
        n_test: Rows to test on.
        k: Coefficients of 1, spread evenly; the others are zero.
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
        """X, y, and X and y of the test, drawn in the order X, test X, noise, test noise."""
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
    "A": Design(n=2000, d=10_000, n_test=2000, k=1, rho=0.0),
    "B": Design(n=500, d=2000, n_test=5000),
    "C": Design(n=500, d=2000, n_test=5000, snr=5.0),
}
QUICK = {
    "A": Design(n=100, d=150, n_test=100, k=1, rho=0.0),
    "B": Design(n=120, d=100, n_test=200, k=4),
    "C": Design(n=120, d=100, n_test=200, k=4, snr=5.0),
}


def score(design: Design, coef: np.ndarray, intercept: float, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """What a method is judged by; no method judges itself."""
    found = set(np.flatnonzero(coef).tolist())
    true = len(found & set(design.support.tolist()))
    return {
        "nnz": len(found),
        "true_positives": true,
        "f1": 2 * true / (len(found) + design.k),
        "exact": found == set(design.support.tolist()),
        "error": float(np.mean((y_test - X_test @ coef - intercept) ** 2)) / design.noise,
    }


def sparse_data(n: int, d: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Columns of variance 1 of which one value in a hundred is not zero, as CSC; 20 coefficients of 1, a fifth of noise."""
    from scipy.sparse import coo_array

    rng = np.random.default_rng(seed)
    size = n * d // 100
    places = rng.integers(n, size=size, dtype=np.int32), rng.integers(d, size=size, dtype=np.int32)
    X = coo_array((10 * rng.standard_normal(size), places), shape=(n, d)).tocsc()
    support = np.unique(np.round(np.linspace(0, d - 1, 20)).astype(int))
    return X, X[:, support].sum(axis=1) + math.sqrt(len(support) / 5) * rng.standard_normal(n)


def real_data(name: str, seed: int, noise: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Training and test parts of a data set with columns of noise at its end, and how many columns are real."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    wide = np.hstack([X, np.random.default_rng(seed).standard_normal((len(X), noise))])
    stratify = None if name == "diabetes" else y
    X_train, X_test, y_train, y_test = train_test_split(wide, y, test_size=0.3, random_state=seed, stratify=stratify)
    return X_train, y_train, X_test, y_test, X.shape[1]


# The methods: each imports what it needs when it is asked for.


def _oracle() -> Fit:
    raise NotImplementedError("it is told the support")  # by measure_design


def _rewa(**settings: Any) -> Callable[[], Fit]:
    def make() -> Fit:
        from rewa.estimators import ReWARegressorCV

        def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
            model = ReWARegressorCV(**settings).fit(X, y)
            return model.coef_, float(model.intercept_)

        return fit

    return make


def _lasso() -> Fit:
    from sklearn.linear_model import LassoCV

    return lambda X, y: (LassoCV(alphas=ALPHAS, eps=DEPTH, cv=FOLDS, fit_intercept=False).fit(X, y).coef_, 0.0)


def _omp() -> Fit:
    from sklearn.linear_model import OrthogonalMatchingPursuitCV

    return lambda X, y: (OrthogonalMatchingPursuitCV(cv=FOLDS, fit_intercept=False).fit(X, y).coef_, 0.0)


def _by_folds(path: Callable[[np.ndarray, np.ndarray], np.ndarray], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of a path's coefficients, one row for each penalty, those whose penalty has the least error over the folds."""
    from sklearn.model_selection import KFold

    errors = []
    for train, test in KFold(FOLDS).split(X):
        coefs = path(X[train], y[train])
        errors.append(((y[test] - coefs @ X[test].T) ** 2).mean(axis=1))
    return path(X, y)[np.mean(errors, axis=0).argmin()]


def _grid(largest: float, depth: float = DEPTH) -> np.ndarray:
    return largest * np.geomspace(1, depth, ALPHAS)


def _relaxed() -> Fit:
    """The lasso's supports, each refitted by least squares."""
    from sklearn.linear_model import lasso_path

    def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        alphas = _grid(np.abs(X.T @ y).max() / len(y))

        def path(X: np.ndarray, y: np.ndarray) -> np.ndarray:
            coefs = lasso_path(X, y, alphas=alphas)[1].T.copy()
            for coef in coefs:
                support = np.flatnonzero(coef)
                coef[support] = np.linalg.lstsq(X[:, support], y)[0]
            return coefs

        return _by_folds(path, X, y), 0.0

    return fit


def _adaptive() -> Fit:
    """A lasso by cross-validation, then one whose penalty is divided by its coefficients; both stages in every fold."""
    from sklearn.linear_model import Lasso, LassoCV, lasso_path

    def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        first = LassoCV(alphas=ALPHAS, eps=DEPTH, cv=FOLDS, fit_intercept=False).fit(X, y)
        weight = np.abs(first.coef_)
        alphas = _grid(np.abs(weight * (X.T @ y)).max() / len(y))

        def path(X: np.ndarray, y: np.ndarray) -> np.ndarray:
            weight = np.abs(Lasso(alpha=first.alpha_, fit_intercept=False).fit(X, y).coef_)
            coefs, kept = np.zeros((ALPHAS, X.shape[1])), np.flatnonzero(weight)
            coefs[:, kept] = lasso_path(X[:, kept] * weight[kept], y, alphas=alphas)[1].T * weight[kept]
            return coefs

        return _by_folds(path, X, y), 0.0

    return fit


def largest_alpha(penalty: str, X: Any, y: np.ndarray) -> float:
    """The least weight of one of skglm's penalties at which no coefficient leaves zero, of the loss 1/(2n) ||y - X b||^2."""
    slope = np.abs(X.T @ y) / len(y)
    L = np.asarray((X**2).sum(axis=0)) / len(y)
    slope, L = slope[L > 0], L[L > 0]
    if penalty == "L0_5":  # slope / L is the threshold of the prox, 3/2 (alpha / L)^(2/3)
        return float((L * (2 * slope / (3 * L)) ** 1.5).max())
    if penalty == "L2_3":  # 2 (2/3 alpha / L)^(3/4)
        return float((1.5 * L * (slope / (2 * L)) ** (4 / 3)).max())
    return float(slope.max())


def _skglm_path(penalty: str, **settings: float) -> Callable[[Any, np.ndarray, np.ndarray], np.ndarray]:
    """One path of skglm's own solver, warm-started; the working set is chosen as skglm needs it for the penalty."""
    from skglm import penalties
    from skglm.datafits import Quadratic
    from skglm.solvers import AndersonCD

    strategy = "fixpoint" if penalty.startswith("L") else "subdiff"
    # Its default of 50,000 epochs takes ten times as long on design B and selects the same.
    solver = AndersonCD(fit_intercept=False, ws_strategy=strategy, max_epochs=1000)

    def path(X: Any, y: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        start = getattr(penalties, penalty)(alpha=1.0, **settings)
        return solver.path(X, y, Quadratic(), start, alphas)[1].T

    return path


def _skglm(penalty: str, *, own: bool = False, **settings: float) -> Callable[[], Fit]:
    """By folds, with the penalties of all rows, as scikit-learn has it, or with each fold's own, matched by their rank."""

    def make() -> Fit:
        path = _skglm_path(penalty, **settings)

        def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
            alphas = _grid(largest_alpha(penalty, X, y))

            def fold(X: np.ndarray, y: np.ndarray) -> np.ndarray:
                return path(X, y, _grid(largest_alpha(penalty, X, y)) if own else alphas)

            return _by_folds(fold, X, y), 0.0

        return fit

    return make


def _abess(**settings: Any) -> Callable[[], Fit]:
    def make() -> Fit:
        from abess import LinearRegression

        return lambda X, y: (LinearRegression(fit_intercept=False, thread=1, **settings).fit(X, y).coef_, 0.0)

    return make


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Args:
        label: What it is called there.
        make: Imports what it needs and gives the fit.
        needs: The package, None if that is ours or scikit-learn.
    """

    label: str
    make: Callable[[], Fit]
    needs: str | None = None


METHODS = {
    "oracle": Method("least squares on the true support", _oracle),
    "rewa": Method("**ReWARegressorCV()**", _rewa()),
    "lasso": Method("sklearn LassoCV", _lasso),
    "omp": Method("sklearn OrthogonalMatchingPursuitCV", _omp),
    "relaxed": Method("relaxed lasso, by sklearn", _relaxed),
    "adaptive": Method("adaptive lasso, by sklearn", _adaptive),
    "mcp": Method("skglm MCP", _skglm("MCPenalty", gamma=3.0), "skglm"),
    "scad": Method("skglm SCAD", _skglm("SCAD", gamma=3.7), "skglm"),
    "l0.5": Method("skglm L0.5", _skglm("L0_5"), "skglm"),
    "l2/3": Method("skglm L2/3", _skglm("L2_3"), "skglm"),
    "l0.5-own": Method("skglm L0.5, penalties of each fold's own", _skglm("L0_5", own=True), "skglm"),
    "l2/3-own": Method("skglm L2/3, penalties of each fold's own", _skglm("L2_3", own=True), "skglm"),
    "abess": Method("abess, EBIC (its default)", _abess(), "abess"),
    "abess-cv": Method("abess, 5 folds", _abess(cv=FOLDS), "abess"),
}
CONTEST = {"rewa-50": Method(f"ReWARegressorCV(alphas={ALPHAS}, cv={FOLDS})", _rewa(alphas=ALPHAS, cv=FOLDS))}


# A process that measures: imports, fits, prints one JSON object.


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and what it gives."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def measure_design(method: str, design: str, seeds: int, quick: bool) -> dict[str, Any]:
    """First call and every seed of a method on a design."""
    problem = (QUICK if quick else DESIGNS)[design]

    def make() -> Fit:
        if method == "oracle":
            coef = np.zeros(problem.d)

            def fit(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
                coef[problem.support] = np.linalg.lstsq(X[:, problem.support], y)[0]
                return coef, 0.0

            return fit
        return (METHODS | CONTEST)[method].make()

    first, fit, rows = math.nan, None, []
    for seed in range(seeds):
        X, y, X_test, y_test = problem.draw(seed)
        if fit is None:
            begin = time.perf_counter()
            fit = make()
            fit(X, y)
            first = time.perf_counter() - begin
        taken, (coef, intercept) = seconds(lambda: fit(X, y))  # noqa: B023 - called at once
        rows.append({"seed": seed, "seconds": taken, **score(problem, coef, intercept, X_test, y_test)})
    return {"first_call": first, "rows": rows}


def measure_data(method: str, data: str, splits: int, noise: int) -> dict[str, Any]:
    """Every split of a data set; the columns are standardized by the training part."""
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    judge = r2_score if data == "diabetes" else accuracy_score
    rows, first = [], math.nan
    for seed in range(splits):
        X, y, X_test, y_test, real = real_data(data, seed, noise)
        if not rows:
            first, _ = seconds(lambda: make_pipeline(StandardScaler(), _estimator(method, data)).fit(X, y))  # noqa: B023
        model = make_pipeline(StandardScaler(), _estimator(method, data))
        taken, _ = seconds(lambda: model.fit(X, y))  # noqa: B023
        # Several binary models keep what any of them keeps.
        coefs = [np.atleast_2d(each.coef_) for each in getattr(model[-1], "estimators_", [model[-1]])]
        kept = np.flatnonzero(np.vstack(coefs).any(axis=0))
        found = {"kept": len(kept), "real": int((kept < real).sum()), "of": real}
        rows.append({"seed": seed, "seconds": taken, "score": float(judge(y_test, model.predict(X_test))), **found})
    return {"first_call": first, "rows": rows}


def _estimator(method: str, data: str) -> Any:
    if method == "rewa":
        from rewa.estimators import ReWAClassifierCV, ReWARegressorCV

        return ReWARegressorCV() if data == "diabetes" else ReWAClassifierCV()
    from sklearn.linear_model import LassoCV, LogisticRegressionCV
    from sklearn.multiclass import OneVsRestClassifier

    if data == "diabetes":
        return LassoCV()
    # Of the solvers for l1, saga does not converge in 1,000 passes over this many columns; liblinear does, class by class.
    settings = {"l1_ratios": (1,), "solver": "liblinear", "scoring": "neg_log_loss", "use_legacy_attributes": False}
    return OneVsRestClassifier(LogisticRegressionCV(Cs=10, cv=FOLDS, max_iter=1000, **settings))


def measure_scaling(method: str, n: int, d: int) -> dict[str, Any]:
    """One path on sparse data: the median of up to three, after a small one."""
    path = {"rewa": _rewa_sparse, "lasso": _lasso_sparse, "l0.5": _skglm_sparse}[method]()
    warm_up, _ = seconds(lambda: path(*sparse_data(n, 200)))
    X, y = sparse_data(n, d)
    times: list[float] = []
    while len(times) < 3 and sum(times) < 20:
        taken, last = seconds(lambda: path(X, y))
        times.append(taken)
    return {"warm_up": warm_up, "seconds": statistics.median(times), "all_seconds": times, "nnz": last}


def _rewa_sparse() -> Callable[[Any, np.ndarray], int]:
    from rewa.estimators import ReWARegressor

    return lambda X, y: int(ReWARegressor().path(X, y, alphas=ALPHAS, alpha_ratio=DEPTH).n_nonzero[-1])


def _lasso_sparse() -> Callable[[Any, np.ndarray], int]:
    from sklearn.linear_model import lasso_path

    return lambda X, y: int(np.count_nonzero(lasso_path(X, y, alphas=ALPHAS, eps=DEPTH)[1][:, -1]))


def _skglm_sparse() -> Callable[[Any, np.ndarray], int]:
    path = _skglm_path("L0_5")
    depth = DEPTH**1.5  # the threshold goes with alpha^(2/3)
    return lambda X, y: int(np.count_nonzero(path(X, y, _grid(largest_alpha("L0_5", X, y), depth))[-1]))


MEASURES = {"designs": measure_design, "contest": measure_design, "data": measure_data, "scaling": measure_scaling}


# The parent: a process for every job, one after the other.


@dataclass(frozen=True)
class Job:
    """What one process measures.

    Args:
        part: A key of MEASURES.
        where: Design, data set or number of columns.
        method: A key of METHODS or CONTEST.
        arguments: Of the measure.
        cost: A guess at its share of the time, for the time left.
    """

    part: str
    where: str
    method: str
    arguments: dict[str, Any]
    cost: float = 1.0


def jobs_of(
    parts: Iterable[str], designs: Sequence[str], methods: Sequence[str], seeds: int, rounds: int, quick: bool
) -> Iterator[Job]:
    """All that is to be measured."""
    cost = {"A": 10.0, "B": 1.0, "C": 1.0}
    if "designs" in parts:
        for name in designs:
            for method in methods:
                count = 1 if name == "A" else seeds
                arguments = {"method": method, "design": name, "seeds": count, "quick": quick}
                yield Job("designs", name, method, arguments, cost[name] * (1 + count))
        if {"rewa", "l0.5"} <= set(methods):
            for _ in range(1 if quick else rounds):
                for name in designs:
                    for method in (*CONTEST, "l0.5"):
                        arguments = {"method": method, "design": name, "seeds": 1, "quick": quick}
                        yield Job("contest", name, method, arguments, 2 * cost[name])
    if "data" in parts:
        for name in ("wine",) if quick else ("breast_cancer", "wine", "diabetes"):
            for method in [each for each in ("rewa", "lasso") if each in methods]:
                arguments = {"method": method, "data": name, "splits": 2 if quick else SPLITS, "noise": 20 if quick else 2000}
                yield Job("data", name, method, arguments, 20.0)
    if "scaling" in parts:
        for power in (2, 3) if quick else (3, 4, 5, 6):
            for method in [each for each in ("rewa", "lasso", "l0.5") if each in methods]:
                yield Job("scaling", f"{10**power}", method, {"method": method, "n": 500, "d": 10**power}, 4.0 ** (power - 3))


def run_job(job: Job, timeout: float) -> dict[str, Any]:
    """What its process found, or under "failed" why not."""
    needs = (METHODS | CONTEST)[job.method].needs
    if needs and find_spec(needs) is None:
        return {"failed": f"{needs} is not installed"}
    command = [sys.executable, str(Path(__file__)), "--measure", json.dumps([job.part, job.arguments])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **ONE_THREAD})
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {timeout:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no words"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_jobs(jobs: Sequence[Job], timeout: float) -> list[dict[str, Any]]:
    """All of them in order, with a line each and the time left on stderr."""
    found, begin, done, total = [], time.monotonic(), 0.0, sum(job.cost for job in jobs)
    for number, job in enumerate(jobs, start=1):
        result = run_job(job, timeout)
        found.append({"part": job.part, "where": job.where, "method": job.method, **result})
        done += job.cost
        left = (time.monotonic() - begin) / done * (total - done)
        what = f"[{number}/{len(jobs)}] {job.part} {job.where}, {job.method}"
        print(f"{what}: {_line(result)}; about {left:.0f} s left", file=sys.stderr, flush=True)
    return found


def _line(result: dict[str, Any]) -> str:
    if "failed" in result:
        return str(result["failed"])
    if "rows" not in result:
        return f"{result['seconds']:.2f} s"
    row = {name: statistics.fmean(each[name] for each in result["rows"]) for name in result["rows"][0]}
    shown = {"f1": "F1", "error": "error / sigma^2", "score": "score", "seconds": "seconds"}
    return ", ".join(f"{word} {row[name]:.3f}" for name, word in shown.items() if name in row)


# Tables and the figure.


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Means over the seeds; of the first call its warm-up is what is above the second fit of the same data."""
    rows = found["rows"]
    means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0] if name not in ("seed", "exact")}
    exact = {"exact": sum(row["exact"] for row in rows)} if "exact" in rows[0] else {}
    return {
        **means,
        **exact,
        "runs": len(rows),
        "first_call": found["first_call"],
        "warm_up": max(found["first_call"] - rows[0]["seconds"], 0.0),
    }


def contest(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For each design the medians of ours and of skglm's L0.5, and the ratios."""
    answer = {}
    for name in DESIGNS:
        found = {
            method: [each for each in results if (each["where"], each["method"]) == (name, method) and "rows" in each]
            for method in (*CONTEST, "l0.5")
        }
        if all(found.values()):
            ours, rival = (
                {
                    "first_call": statistics.median(each["first_call"] for each in runs),
                    "second": statistics.median(each["rows"][0]["seconds"] for each in runs),
                    "turns": len(runs),
                }
                for runs in found.values()
            )
            ratios = {f"ratio_{each}": ours[each] / rival[each] for each in ("first_call", "second")}
            answer[name] = {"rewa-50": ours, "l0.5": rival, **ratios}
    return answer


def targets(designs: dict[str, Any], races: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What was to be reached: design, aim, what came out, and whether that is enough."""
    rows = []
    ours = {name: found["rewa"] for name, found in designs.items() if "f1" in found.get("rewa", {})}
    if "B" in ours:
        rows.append(("B", "F1 >= 0.81", f"{ours['B']['f1']:.3f}", ours["B"]["f1"] >= 0.81))
    for name, most in (("A", 0.996), ("B", 1.22), ("C", 1.03)):
        if name in ours:
            reached = ours[name]["error"]
            rows.append((name, f"error / sigma^2 <= {most}", f"{reached:.4f}", reached <= most))
    for name in ("A", "C"):
        if name in ours:
            exact, runs = ours[name]["exact"], ours[name]["runs"]
            rows.append((name, "exact support, every seed", f"{exact} of {runs}", exact == runs))
    for name, race in races.items():
        ratio = race["ratio_first_call"]
        rows.append((name, "first call <= 2x that of skglm's L0.5", f"{ratio:.2f}x", ratio <= 2))
    return sorted(rows)


def ahead(methods: dict[str, Any]) -> dict[str, list[str]]:
    """For each measure the rivals that do better than our default, beyond rounding."""
    ours = methods.get("rewa", {})
    if "f1" not in ours:
        return {}
    rivals = {name: found for name, found in methods.items() if name not in ("rewa", "oracle") and "f1" in found}
    return {
        "F1": [METHODS[name].label for name, found in rivals.items() if found["f1"] > ours["f1"] + 0.005],
        "error": [METHODS[name].label for name, found in rivals.items() if found["error"] < ours["error"] - 0.0005],
        "fit seconds": [METHODS[name].label for name, found in rivals.items() if found["seconds"] < ours["seconds"]],
        "first call": [METHODS[name].label for name, found in rivals.items() if found["first_call"] < ours["first_call"]],
    }


def to_panels(record: dict[str, Any]) -> list[Any]:
    """The tables and the chart of a record."""
    from rewa.report.panel import Table

    shown: list[Any] = []
    if part := record.get("designs"):
        aims = [[name, aim, value, "yes" if met else "**no**"] for name, aim, value, met in part["targets"]]
        caption = "One default setting of ours for all three designs."
        shown.append(Table(title="Aims", caption=caption, header=["design", "aim", "reached", "met"], rows=aims))
        for name, methods in part["methods"].items():
            shown.append(_design_table(name, methods))
        shown += [_contest_table(part["contest"])] if part["contest"] else []
        losses = [
            [name, measure, ", ".join(who) or "nobody"]
            for name, methods in part["methods"].items()
            for measure, who in ahead(methods).items()
        ]
        caption = "Of the methods in the tables above; F1 and error by more than rounding."
        shown.append(Table(title="Ahead of our default", caption=caption, header=["design", "in", "who"], rows=losses))
    if part := record.get("data"):
        shown.append(_data_table(part["results"]))
    if part := record.get("scaling"):
        shown += _scaling(part["results"])
    return shown


def _design_table(name: str, methods: dict[str, Any]) -> Any:
    from rewa.report.panel import Table

    rows = []
    for method, found in methods.items():
        if "failed" in found:
            rows.append([METHODS[method].label, found["failed"], *[""] * 7])
            continue
        rows.append(
            [
                METHODS[method].label,
                f"{found['nnz']:.1f}",
                f"{found['true_positives']:.1f}",
                f"{found['f1']:.2f}",
                f"{found['exact']}/{found['runs']}",
                f"{found['error']:.3f}",
                f"{found['seconds']:.2f}",
                f"{found['warm_up']:.2f}",
                f"{found['first_call']:.2f}",
            ]
        )
    header = ["method", "kept", "true", "F1", "exact", "error / σ²", "fit s", "warm-up s", "first call s"]
    caption = (
        "Means over the seeds. Fit: without what happens only once in a process; first call: imports and the first fit of a "
        "process that has loaded NumPy; warm-up: the difference of the two for the same data. Rivals do not fit an intercept."
    )
    return Table(title=f"Design {name}", caption=caption, header=header, rows=rows)


def _contest_table(races: dict[str, Any]) -> Any:
    from rewa.report.panel import Table

    rows = [
        [
            name,
            *(f"{race[method]['first_call']:.2f} / {race[method]['second']:.2f}" for method in ("rewa-50", "l0.5")),
            f"{race['ratio_first_call']:.2f}x / {race['ratio_second']:.2f}x",
        ]
        for name, race in races.items()
    ]
    turns = max(race["rewa-50"]["turns"] for race in races.values())
    return Table(
        title=f"Time with the same {ALPHAS} penalties and {FOLDS} folds, seconds: first call / second fit",
        caption=f"Seed 0, medians of {turns} turns, each in a fresh process.",
        header=["design", CONTEST["rewa-50"].label, "skglm L0.5", "ratio"],
        rows=rows,
    )


def _data_table(results: Sequence[dict[str, Any]]) -> Any:
    from rewa.report.panel import Table

    rows = []
    for found in results:
        regression = found["where"] == "diabetes"
        label = ("ReWARegressorCV()" if regression else "ReWAClassifierCV()") if found["method"] == "rewa" else (
            "LassoCV()" if regression else "LogisticRegressionCV, l1"
        )  # fmt: skip
        if "failed" in found:
            rows.append([found["where"], label, found["failed"], "", "", "", ""])
            continue
        mean, spread = (
            {name: take([row[name] for row in found["rows"]]) for name in ("score", "kept", "real", "seconds")}
            for take in (statistics.fmean, statistics.stdev)
        )
        rows.append(
            [
                found["where"],
                label,
                f"{'R²' if regression else 'accuracy'} {mean['score']:.3f} ± {spread['score']:.3f}",
                f"{mean['kept']:.1f} ± {spread['kept']:.1f}",
                f"{mean['real']:.1f} of {found['rows'][0]['of']}",
                f"{mean['seconds']:.2f} ± {spread['seconds']:.2f}",
                str(found["warnings"]),
            ]
        )
    splits = max((len(found.get("rows", ())) for found in results), default=0)
    return Table(
        title="Real data with columns of noise",
        caption=f"Mean and standard deviation over {splits} splits, 30 % of the rows for the test, all columns standardized by "
        "the training part. LogisticRegressionCV: liblinear, 10 penalties, 5 folds, log loss, one model a class; else default.",
        header=["data", "method", "test", "columns kept", "of them real", "fit s", "warnings"],
        rows=rows,
    )


def _scaling(results: Sequence[dict[str, Any]]) -> list[Any]:
    from rewa.report.panel import Lines, Mark, Series, Table

    labels = {"rewa": "ReWARegressor().path", "lasso": "sklearn lasso_path", "l0.5": "skglm L0.5 path"}
    series = []
    for method, label in labels.items():
        points = [
            Mark(
                x=float(found["where"]),
                y=found["seconds"],
                low=min(found["all_seconds"]),
                high=max(found["all_seconds"]),
                says=(f"{int(found['where']):,} columns: {found['seconds']:.2f} s, {found['nnz']} kept at the end",),
            )
            for found in results
            if found["method"] == method and "seconds" in found
        ]
        series += [Series(label=label, marks=points, bars=True)] if points else []
    shown: list[Any] = []
    if series:
        shown.append(
            Lines(
                title=f"One path of {ALPHAS} penalties, 500 rows",
                caption="Sparse X, one value in a hundred is not zero; down to .03 of the threshold of the first column. "
                "Median and range of up to three, after a small path.",
                x="columns",
                y="seconds",
                series=series,
                x_log=True,
                y_log=True,
            )
        )
    rows = [
        [
            f"{int(found['where']):,}",
            labels[found["method"]],
            *(
                [found["failed"], "", ""]
                if "failed" in found
                else [f"{found['seconds']:.2f}", f"{found['warm_up']:.2f}", str(found["nnz"])]
            ),
        ]
        for found in results
    ]
    caption = "Warm-up: imports excluded, the first path, of 200 columns. Kept: nonzero coefficients at the end of the path."
    header = ["columns", "method", "seconds", "warm-up s", "kept"]
    return [*shown, Table(title="Scaling in numbers", caption=caption, header=header, rows=rows)]


def lead(record: dict[str, Any]) -> str:
    """What was found, in a sentence or two."""
    words = []
    if part := record.get("designs"):
        met = [f"{name}: {aim}" for name, aim, _, met in part["targets"] if not met]
        count = len(part["targets"])
        words.append(
            f"{count - len(met)} of {count} aims of the designs are met" + (f"; not met: {', '.join(met)}." if met else ".")
        )
    words.append("One thread, every method in a process of its own, all in one run.")
    return " ".join(words)


def origin() -> dict[str, Any]:
    """The provenance, with the versions of the rivals."""
    from rewa.record import provenance

    made = provenance()
    for name in ("scikit-learn", "scipy", "skglm", "numba", "abess"):
        try:
            made["versions"][name] = version(name)
        except PackageNotFoundError:
            made["versions"][name] = None
    made["hardware"]["threads"] = 1
    return made


def to_record(results: Sequence[dict[str, Any]], parts: Iterable[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The record of the parts that were run."""
    made = {"provenance": origin(), "settings": settings}
    record: dict[str, Any] = {}
    for part in parts:
        own = [found for found in results if found["part"] == part]
        if part != "designs":
            record[part] = {**made, "results": own}
            continue
        methods: dict[str, Any] = {}
        for found in own:
            told = {"failed": found["failed"]} if "failed" in found else {**summary(found), "seeds": found["rows"]}
            methods.setdefault(found["where"], {})[found["method"]] = told
        turns = [found for found in results if found["part"] == "contest"]
        races = contest(turns)
        record[part] = {**made, "targets": targets(methods, races), "methods": methods, "contest": races, "turns": turns}
    return record


def write(out: Path, record: dict[str, Any]) -> list[Path]:
    """Write the record, with what an earlier one has of other parts, and its tables and figure."""
    from rewa.files import write_atomically
    from rewa.report.files import publish

    path = out / "regression.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    whole = {part: record.get(part, known.get(part)) for part in PARTS if part in record or part in known}
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(whole, indent=1, allow_nan=False))
    made = {part: found["provenance"] for part, found in whole.items()}
    title = "Sparse regression beside scikit-learn, skglm and abess"
    return [path, *publish(out, "regression", title=title, lead=lead(whole), panels=to_panels(whole), provenance=made)]


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="designs,data,scaling", help="which (default designs,data,scaling)")
    parser.add_argument("--designs", default=",".join(DESIGNS), help="which (default A,B,C)")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"which (default {','.join(METHODS)})")
    parser.add_argument("--seeds", type=int, default=3, help="data sets of designs B and C (default 3); A has one")
    parser.add_argument("--rounds", type=int, default=3, help="turns against skglm's L0.5 (default 3)")
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="seconds that a process may take (default 900)")
    parser.add_argument("--quick", action="store_true", help="tiny data: to try the command, not to measure")
    parser.add_argument(
        "--out", type=Path, help="folder of the record (default results/regression; none with --quick, --methods)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.measure:
        part, wish = json.loads(arguments.measure)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = MEASURES[part](**wish)
        print(json.dumps({**found, "warnings": len(caught)}))
        return
    parts, designs, methods = (getattr(arguments, each).split(",") for each in ("parts", "designs", "methods"))
    known = {"parts": PARTS, "designs": tuple(DESIGNS), "methods": tuple(METHODS)}
    for name, given in (("parts", parts), ("designs", designs), ("methods", methods)):
        if unknown := set(given) - set(known[name]):
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is not known (known: {', '.join(known[name])})")
    if min(arguments.seeds, arguments.rounds, arguments.timeout) <= 0:
        parser.error("--seeds, --rounds and --timeout must be at least 1")
    jobs = list(jobs_of(parts, designs, methods, arguments.seeds, arguments.rounds, arguments.quick))
    results = run_jobs(jobs, arguments.timeout)
    settings = {"alphas": ALPHAS, "depth": DEPTH, "folds": FOLDS, "seeds": arguments.seeds, "quick": arguments.quick}
    record = to_record(results, parts, settings)
    whole = not arguments.quick and set(methods) == set(METHODS) and set(designs) == set(DESIGNS)
    if out := arguments.out or (OUT if whole else None):
        for path in write(out, record):
            print(f"wrote {path}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(record, indent=1))
        return
    from rewa.report.markdown import to_markdown

    print(lead(record), to_markdown(to_panels(record)), sep="\n\n")


if __name__ == "__main__":
    main()
