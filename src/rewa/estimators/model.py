"""What the regressors and the classifiers share: checking what they are given, fitting, choosing, telling how far they are."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, _raise_for_params, process_routing
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from rewa.estimators import iteration, penalty, selection
from rewa.estimators.problem import Problem

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # callbacks came with scikit-learn 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """The method as it is."""
        return method


Array = NDArray[np.float64]

POSITIVE = Interval(Real, 0, None, closed="neither")


@dataclass(frozen=True, eq=False)
class Path:
    """Models from the empty one on, as :meth:`ReWARegressor.path` gives them.

    Args:
        alphas: Weights of the penalty, falling.
        p: Its exponent.
        sparse_coefs: Coefficients, a column for each weight and a row for each feature, output by output.
        intercepts: Intercepts, of the shape ``(n_alphas,)`` or ``(n_outputs, n_alphas)``.
        n_iters: Newton steps for each.
    """

    alphas: Array
    p: float
    sparse_coefs: Any
    intercepts: Array
    n_iters: NDArray[np.intp]

    @property
    def coefs(self) -> Array:
        """Coefficients of the shape ``(n_features, n_alphas)``, or ``(n_outputs, n_features, n_alphas)`` for several."""
        dense: Array = self.sparse_coefs.toarray()
        return dense if self.intercepts.ndim == 1 else dense.reshape(len(self.intercepts), -1, len(self.alphas))

    @property
    def n_nonzero(self) -> NDArray[np.intp]:
        """Number of coefficients that are not zero, for each weight of the penalty."""
        count: NDArray[np.intp] = np.diff(self.sparse_coefs.indptr)
        return count


class LinearModel(CallbackSupportMixin, BaseEstimator, abc.ABC):
    """A linear model with an l_p penalty, in scikit-learn's terms."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "p": [Interval(Real, 0, 1, closed="right"), None],
        "K": [Interval(Real, 1, None, closed="left")],
        "M": [Interval(Real, 0, None, closed="left"), None],
        "fit_intercept": ["boolean"],
        "standardize": ["boolean"],
        "positive": ["boolean"],
        "penalty_factor": ["array-like", None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [POSITIVE],
    }

    @abc.abstractmethod
    def _check_targets(self, y: Any, *, reset: bool = True) -> NDArray[Any]:
        """The targets as the problem takes them."""

    @abc.abstractmethod
    def _problem(self, X: Any, y: NDArray[Any], weights: Array, **settings: Any) -> Problem:
        """The problem that they pose."""

    @abc.abstractmethod
    def _shaped(self, coef: Array, intercept: Array) -> tuple[Any, Any]:
        """Coefficients of the shape (outputs, columns) and intercepts as the estimator shows them."""

    def _check(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool = True, known: bool = False
    ) -> tuple[Any, NDArray[Any], Array]:
        """Data in float64, targets, and weights of the rows; labels must be known ones unless this is the first time."""
        self._validate_params()
        X, y = validate_data(
            self, X, y, accept_sparse="csc", dtype=np.float64, multi_output=True, reset=reset, **self._target_checks
        )
        y = self._check_targets(y, reset=reset and not known)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weights < 0).any():
            raise ValueError(f"Negative values in data passed to `sample_weight`: {weights.min():g} is the least.")
        if not (weights > 0).any():
            raise ValueError("The sample weights are all zero: at least one row must have a positive weight.")
        return X, y, weights

    _target_checks: ClassVar[dict[str, Any]] = {}

    def _settings(self, columns: int, weights: Array) -> dict[str, Any]:
        """Settings of the problem that are parameters of the estimator."""
        return {
            "factors": self._factors(columns),
            "fit_intercept": bool(self.fit_intercept),
            "standardize": bool(self.standardize),
            "positive": bool(self.positive),
            "tol": float(self.tol),
            "max_iter": int(self.max_iter),
            "rows": float(weights.sum()),
        }

    def _factors(self, columns: int) -> Array:
        if self.penalty_factor is None:
            return np.ones(columns)
        factors = np.asarray(self.penalty_factor, dtype=np.float64)
        if factors.shape != (columns,):
            raise ValueError(f"penalty_factor has the shape {factors.shape}; X has {columns} features: one number for each.")
        if not (np.isfinite(factors) & (factors >= 0)).all():
            raise ValueError("penalty_factor must hold finite numbers >= 0; 0 leaves a feature without a penalty.")
        return factors

    def _keep(self, coef: Array, intercept: Array, n_iter: int, converged: bool) -> None:
        """Set what a fit leaves behind, and say so if it fell short."""
        if not converged:
            warnings.warn(
                f"The slopes did not come below tol={self.tol:g} in max_iter={self.max_iter} steps: the coefficients are of a "
                "model that is not quite a minimum. Raise max_iter or tol; a larger alpha, too, makes it easier.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.coef_, self.intercept_ = self._shaped(coef, intercept)
        self.n_iter_ = max(n_iter, 1)

    @property
    def support_(self) -> NDArray[np.bool_]:
        """Which features have a coefficient that is not zero, in any output."""
        check_is_fitted(self, "coef_")
        mask: NDArray[np.bool_] = (np.atleast_2d(self.coef_) != 0).any(axis=0)
        return mask

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as a sparse array, a row for each output."""
        check_is_fitted(self, "coef_")
        return sparse.csr_array(np.atleast_2d(self.coef_))

    def path(
        self, X: ArrayLike, y: ArrayLike, *, alphas: int | ArrayLike = 200, alpha_ratio: float | str = "auto",
        sample_weight: ArrayLike | None = None,
    ) -> Path:  # fmt: skip
        """The models from the empty one on; the estimator itself stays as it is.

        Args:
            X: Features, dense or sparse.
            y: Targets.
            alphas: Weights of the penalty, or how many: then from the least that leaves the model empty downwards, so that the
                thresholds which coefficients must pass to enter fall evenly on a log scale.
            alpha_ratio: Last threshold over the first; by default 0.01 if there are more features than rows, else 0.0001.
            sample_weight: Weights of the rows.
        """
        clone = type(self)(**self.get_params(deep=False))
        data, targets, weights = _weighted(*clone._check(X, y, sample_weight))
        problem = clone._problem(data, targets, weights, **clone._settings(data.shape[1], weights))
        losses = problem.losses()
        ps = clone._exponents()
        if len(ps) > 1 and getattr(self, "p_", None) not in ps:
            raise ValueError(f"p={self.p!r} stands for several exponents, and a path has one: fit first, or set p to a number")
        p = float(self.p_) if len(ps) > 1 else ps[0]
        tried = selection.grids(problem, losses, [p], _checked_alphas(alphas), _ratio(alpha_ratio, data, weights))[0]
        models = list(problem.follow(losses, tried, p))
        placed = [problem.placed(fits) for fits in models]
        ends = np.cumsum([0, *(len(index) for index, _ in placed)])
        coefs = sparse.csc_array(
            (np.concatenate([values for _, values in placed]), np.concatenate([index for index, _ in placed]), ends),
            shape=(problem.outputs * data.shape[1], len(tried)),
        )
        empty = np.zeros((problem.outputs, 0))  # only the intercepts are shaped
        return Path(
            alphas=tried,
            p=p,
            sparse_coefs=coefs,
            intercepts=np.stack([clone._shaped(empty, problem.intercepts(fits))[1] for fits in models], axis=-1),
            n_iters=np.array([sum(fit.n_iter for fit in fits) for fits in models]),
        )

    def _exponents(self) -> list[float]:
        return [penalty.exponents(self.p, self.K, self.M)[0]]

    @contextmanager
    def _watched(self, X: Any, y: Any, sample_weight: Any, tasks: int) -> Iterator[Callable[[], None]]:
        """Tell scikit-learn's callbacks of the fit; each call of what it gives is one of its tasks done."""
        if not hasattr(self, "_init_callback_context"):
            yield lambda: None
            return
        metadata = {"sample_weight": sample_weight} if sample_weight is not None else None
        told = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        context = self._init_callback_context(max_subtasks=tasks)
        context.call_on_fit_task_begin(**told)

        def progress() -> None:
            task = context.subcontext(task_name="path")
            task.call_on_fit_task_begin(**told)
            task.call_on_fit_task_end(**told)

        yield progress
        context.call_on_fit_task_end(**told, reconstruction_attributes={})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Single(LinearModel):
    """A linear model at one weight of the penalty."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LinearModel._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left")],
        "refit": ["boolean"],
        "solver": [StrOptions({"auto", "path", "rewa"})],
        "warm_start": ["boolean"],
        "lr": [POSITIVE, StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "start": [POSITIVE, StrOptions({"auto"})],
        "device": "no_validation",  # torch says what it takes
        "random_state": ["random_state"],
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
        self.alpha = alpha
        self.p = p
        self.K = K
        self.M = M
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.positive = positive
        self.penalty_factor = penalty_factor
        self.refit = refit
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.lr = lr
        self.batch_size = batch_size
        self.start = start
        self.device = device
        self.random_state = random_state

    @with_callbacks
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Fit the model.

        Args:
            X: Features, dense or sparse.
            y: Targets.
            sample_weight: Weights of the rows: as if each were there so many times.

        Returns:
            The estimator.
        """
        before = (self.coef_, self.intercept_) if self.warm_start and hasattr(self, "coef_") else None
        data, targets, weights = _weighted(*self._check(X, y, sample_weight))
        for name in ("_state", "_begun", "_spread"):  # of a stream
            self.__dict__.pop(name, None)
        problem = self._problem(data, targets, weights, **self._settings(data.shape[1], weights))
        if before is not None and np.atleast_2d(before[0]).shape != (problem.outputs, data.shape[1]):
            before = None  # other data
        self.p_, M = penalty.exponents(self.p, self.K, self.M)
        with self._watched(data, targets, sample_weight, tasks=1) as progress:
            if self.solver == "rewa":
                self._iterate(problem, M, before)
            else:
                self._follow(problem, before)
            progress()
        return self

    def _iterate(self, problem: Problem, M: float, before: tuple[Any, Any] | None) -> None:
        """The paper's iteration, on columns in units of their spread."""
        scale = problem.standardized().scale
        result = iteration.fit(
            _divided(problem.X, scale),
            problem.y,
            problem.loss,
            weights=problem.weights,
            max_iter=problem.max_iter,
            tol=problem.tol,
            outputs=len(self.classes_) if hasattr(self, "classes_") else None,
            coef_init=None if before is None else before[0] * scale,
            intercept_init=None if before is None else before[1],
            **self._iteration(M, problem.factors),
        )
        coef, intercept = np.atleast_2d(result.coef) / scale, np.atleast_1d(result.intercept)
        if self.refit:
            losses = problem.losses()
            fits = problem.fits(coef, intercept, losses)
            coef, intercept = problem.dense(selection.refitted(losses, fits, problem.positive))
        done = result.converged or self.batch_size is not None  # with batches, the run is as long as it is
        self._keep(coef, intercept, result.n_iter, done)

    def _iteration(self, M: float, factors: Array) -> dict[str, Any]:
        """Settings of the iteration that are parameters of the estimator."""
        return {
            "alpha": float(self.alpha),
            "K": float(self.K),
            "M": float(M),
            "factors": factors,
            "fit_intercept": bool(self.fit_intercept),
            "positive": bool(self.positive),
            "lr": self.lr,
            "batch_size": self.batch_size,
            "start": self.start,
            "device": self.device,
            "random_state": check_random_state(self.random_state),
        }

    def _stream(self, X: Any, y: Any, sample_weight: Any, *, known: bool = False) -> None:
        """One pass over a chunk of rows."""
        first = not hasattr(self, "_state")
        data, targets, weights = self._check(X, y, sample_weight, reset=first, known=known)
        self.p_, M = penalty.exponents(self.p, self.K, self.M)
        problem = self._problem(data, targets, weights, **self._settings(data.shape[1], weights))
        if first:
            self._state = iteration.begin(
                data.shape[1],
                problem.loss,
                outputs=problem.outputs if problem.loss == "multinomial" else None,
                **self._iteration(M, problem.factors),
            )
            self._begun = self.get_params(deep=False)
            self._spread = StandardScaler(with_mean=False)
        now = self.get_params(deep=False).items()
        changed = [
            name for name, value in now if value is not self._begun[name] and not np.array_equal(value, self._begun[name])
        ]
        if changed:
            raise ValueError(
                f"{', '.join(changed)} changed since the first call of partial_fit, which continues with the settings it began "
                "with: use a clone of the estimator to begin anew."
            )
        self._spread.partial_fit(data, sample_weight=problem.weights)
        scale = np.ones(data.shape[1])
        if self.standardize:
            square = self._spread.var_ if self.fit_intercept else self._spread.var_ + self._spread.mean_**2
            scale = np.sqrt(np.where(square > 0, square, 1.0))
        iteration.step(self._state, _divided(data, scale), problem.y, problem.weights)
        result = iteration.finalize(self._state, tol=float(self.tol))
        coef, intercept = np.atleast_2d(result.coef) / scale, np.atleast_1d(result.intercept)
        self.coef_, self.intercept_ = self._shaped(coef, intercept)
        self.n_iter_ = result.n_iter

    def _follow(self, problem: Problem, before: tuple[Any, Any] | None) -> None:
        losses = problem.losses()
        alphas = np.array([float(self.alpha)])
        if before is not None:
            coef = np.maximum(np.atleast_2d(before[0]), 0.0 if self.positive else -np.inf)
            each = problem.outputs // len(losses)
            intercept = np.broadcast_to(np.atleast_1d(before[1]), problem.outputs)
            for place, loss in enumerate(losses):
                mine = slice(place * each, (place + 1) * each)
                loss.start(coef[mine].ravel(), np.asarray(intercept[mine], dtype=np.float64))
        else:
            alphas = problem.towards(losses, float(self.alpha), self.p_)
        n_iter = 0
        for fits in problem.follow(losses, alphas, self.p_):
            n_iter += sum(fit.n_iter for fit in fits)
        converged = all(fit.converged for fit in fits)
        model = selection.refitted(losses, fits, problem.positive) if self.refit else fits
        self._keep(*problem.dense(model), n_iter, converged)


class CrossValidated(LinearModel):
    """A linear model whose weight of the penalty is chosen."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LinearModel._parameter_constraints,
        "p": [*LinearModel._parameter_constraints["p"], StrOptions({"auto"}), "array-like"],
        "alphas": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "alpha_ratio": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "cv": ["cv_object"],
        "selection": [StrOptions({"min", "1se", "ebic"})],
        "refit": ["boolean", StrOptions({"auto"})],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "n_jobs": [Integral, None],
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
        max_iter: int = 1000,
        tol: float = 1e-8,
        n_jobs: int | None = None,
    ) -> None:
        self.p = p
        self.K = K
        self.M = M
        self.alphas = alphas
        self.alpha_ratio = alpha_ratio
        self.cv = cv
        self.selection = selection
        self.refit = refit
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.positive = positive
        self.penalty_factor = penalty_factor
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs

    def _exponents(self) -> list[float]:
        if isinstance(self.p, str):
            return list(selection.EXPONENTS)
        if self.p is None or isinstance(self.p, Real):
            return super()._exponents()
        if self.M is not None:
            raise ValueError(f"M={self.M} goes with one exponent, and p={self.p!r} are several: leave M out")
        ps = [penalty.exponents(float(p), self.K, None)[0] for p in np.asarray(self.p, dtype=np.float64).ravel()]
        if not ps:
            raise ValueError("p is empty: give an exponent in (0, 1], several, or 'auto'")
        return ps

    @with_callbacks
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, **params: Any) -> Any:
        """Choose the weight of the penalty, and fit the model with it on all rows.

        Args:
            X: Features, dense or sparse.
            y: Targets.
            sample_weight: Weights of the rows: as if each were there so many times. They count in the folds, too.
            params: For the splitter, by metadata routing: ``groups``.

        Returns:
            The estimator.
        """
        _raise_for_params(params, self, "fit")
        routed: Any = process_routing(self, "fit", **params) if params else None
        data, targets, weights = self._check(X, y, sample_weight)
        ps = self._exponents()
        common: dict[str, Any] = {
            "ps": ps,
            "alphas": _checked_alphas(self.alphas),
            "ratio": _ratio(self.alpha_ratio, data, weights),
        }
        for name in ("criterion_", self._scores_name):  # of an earlier fit
            self.__dict__.pop(name, None)
        if self.selection != "ebic":  # the splitter sees all rows, also those without a weight
            splitter = check_cv(self.cv, targets, classifier=self._classifies)
            splits = _places(list(splitter.split(data, targets, **(routed.splitter.split if routed else {}))), weights)
        data, targets, weights = _weighted(data, targets, weights)
        problem = self._problem(data, targets, weights, **self._settings(data.shape[1], weights))
        with self._watched(data, targets, sample_weight, tasks=len(ps) + 1) as progress:
            if self.selection == "ebic":
                choice = selection.by_information(
                    problem, refit=self.refit is not False, gamma=float(self.gamma), progress=progress, **common
                )
            else:
                choice = selection.by_cross_validation(
                    problem, splits, refit=self.refit, one_standard_error=self.selection == "1se", n_jobs=self.n_jobs,
                    progress=progress, **common,
                )  # fmt: skip
        self.alpha_, self.p_, self.refit_ = choice.alpha, choice.p, bool(choice.refit)
        self._keep_scores(choice, single=len(ps) == 1)
        self._keep(*problem.dense(choice.model), choice.n_iter, choice.converged)
        return self

    _classifies: ClassVar[bool] = False
    _scores_name: ClassVar[str] = "mse_path_"

    def _keep_scores(self, choice: selection.Choice, *, single: bool) -> None:
        """The weights that were tried and what came of them; without the axis of exponents if there is one only."""
        by_criterion = self.selection == "ebic"  # which is always that of a refit
        scores = choice.scores[selection.REFITTED if choice.refit or by_criterion else selection.PENALIZED]
        self.alphas_ = choice.alphas[0] if single else choice.alphas
        setattr(self, "criterion_" if by_criterion else self._scores_name, scores[0] if single else scores)

    def get_metadata_routing(self) -> MetadataRouter:
        """What metadata the fit takes, and what of it goes to the splitter."""
        return (
            MetadataRouter(owner=type(self).__name__)
            .add_self_request(self)
            .add(splitter=check_cv(self.cv), method_mapping=MethodMapping().add(caller="fit", callee="split"))
        )


def _checked_alphas(alphas: Any) -> int | Array:
    if isinstance(alphas, Integral):
        if int(alphas) < 1:
            raise ValueError(f"alphas must be weights of the penalty, or how many: at least 1, got {alphas}")
        return int(alphas)
    values: Array = np.asarray(alphas, dtype=np.float64).ravel()
    if not (values.size and np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"alphas must be a number of weights or finite weights >= 0, got {alphas!r}")
    return values


def _divided(X: Any, scale: Array) -> Any:
    return sparse.csr_array(X.multiply(1 / scale)) if sparse.issparse(X) else X / scale


def _ratio(alpha_ratio: float | str, X: Any, weights: Array) -> float:
    if alpha_ratio == "auto":
        return 0.01 if X.shape[1] > weights.sum() else 0.0001
    if not (isinstance(alpha_ratio, Real) and 0 < float(alpha_ratio) < 1):
        raise ValueError(f"alpha_ratio must be 'auto' or a number between 0 and 1, got {alpha_ratio!r}")
    return float(alpha_ratio)


def _weighted(X: Any, y: NDArray[Any], weights: Array) -> tuple[Any, NDArray[Any], Array]:
    """Only the rows that have a weight."""
    rows = np.flatnonzero(weights > 0)
    return (X, y, weights) if len(rows) == len(weights) else (_rows(X, rows), y[rows], weights[rows])


def _rows(X: Any, rows: NDArray[np.intp]) -> Any:
    return X.tocsr()[rows].tocsc() if sparse.issparse(X) else X[rows]


def _places(splits: list[tuple[Any, Any]], weights: Array) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Splits of all rows as splits of those that have a weight."""
    place = np.cumsum(weights > 0) - 1

    def of(rows: Any) -> NDArray[np.intp]:
        index = np.arange(len(weights))[rows]
        found: NDArray[np.intp] = place[index[weights[index] > 0]]
        return found

    return [(of(train), of(test)) for train, test in splits]
