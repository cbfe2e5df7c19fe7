"""The coefficients along a path in a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from rewa.estimators.model import LinearModel
from rewa.estimators.standardized import Standardized
from rewa.palette import COLORS, DASHES, GREY, INK, MUTED, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ReWAPathDisplay"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

NAMED = 10  # features with a name at the end of their line
LONGEST = 28  # characters of a name


class ReWAPathDisplay:
    """Coefficients against the weight of the penalty, from the empty model on the left to the full one on the right.

    Make it with :meth:`from_estimator`.

    Args:
        alphas: Weights of the penalty.
        coefs: Coefficients, of the shape ``(n_features, n_alphas)`` or ``(n_outputs, n_features, n_alphas)``.
        p: Exponent of the penalty.
        feature_names: Names of the features; ``x0``, ``x1`` and so on if None.
        alpha: Weight of the penalty of the chosen model, if one is chosen.
        support: Which features that model has; by default those which are not zero at the weight next to it.
        output_names: Names of the outputs or classes; their numbers if None.
        standardized: Whether the coefficients are for a change of each feature by its standard deviation.

    Attributes:
        ax_: Axes with the picture.
        figure_: Their figure.
        lines_: The line of each feature that enters in an output, by ``(output, feature)``.
        texts_: Names at the ends of lines, by feature.
    """

    def __init__(
        self,
        *,
        alphas: ArrayLike,
        coefs: ArrayLike,
        p: float,
        feature_names: Sequence[str] | None = None,
        alpha: float | None = None,
        support: ArrayLike | None = None,
        output_names: Sequence[Any] | None = None,
        standardized: bool = False,
    ) -> None:
        self.alphas = alphas
        self.coefs = coefs
        self.p = p
        self.feature_names = feature_names
        self.alpha = alpha
        self.support = support
        self.output_names = output_names
        self.standardized = standardized

    @classmethod
    def from_estimator(
        cls,
        estimator: LinearModel,
        X: ArrayLike,
        y: ArrayLike,
        *,
        alphas: int | ArrayLike = 200,
        alpha_ratio: float | str = "auto",
        sample_weight: ArrayLike | None = None,
        standardized: bool = False,
        ax: Axes | None = None,
        **plot_params: Any,
    ) -> ReWAPathDisplay:
        """Follow the path of an estimator's penalty, and draw it.

        Args:
            estimator: :class:`ReWARegressor`, :class:`ReWAClassifier` or one of their CV kind; the model of a fitted one
                is marked.
            X: Features, dense or sparse.
            y: Targets.
            alphas: Weights of the penalty, or how many, as for :meth:`ReWARegressor.path`.
            alpha_ratio: Last threshold over the first, likewise.
            sample_weight: Weights of the rows.
            standardized: Whether to draw what a change of each feature by its standard deviation does, so that sizes compare.
            ax: Axes to draw into; of a new figure if None.
            plot_params: For :meth:`plot`.

        Returns:
            The display.

        Example:
            >>> import matplotlib
            >>> matplotlib.use("agg")
            >>> import numpy as np
            >>> from rewa.estimators import ReWARegressor
            >>> rng = np.random.default_rng(0)
            >>> X = rng.standard_normal((50, 100))
            >>> y = X[:, 3] - X[:, 50] + rng.standard_normal(50)
            >>> model = ReWARegressor(alpha=0.2).fit(X, y)
            >>> shown = ReWAPathDisplay.from_estimator(model, X, y)
            >>> print([text.get_text() for text in shown.texts_.values()])
            ['x50', 'x3']
        """
        if not isinstance(estimator, LinearModel):
            raise TypeError(f"ReWAPathDisplay draws paths of rewa's own estimators, such as ReWARegressor(); got {estimator!r}")
        path = estimator.path(X, y, alphas=alphas, alpha_ratio=alpha_ratio, sample_weight=sample_weight)
        checked = clone(estimator)
        data, _, weights = checked._check(X, y, sample_weight)
        coefs = path.coefs
        if standardized:
            scale = Standardized(data, weights / weights.sum(), center=True, standardize=True).scale
            coefs = coefs * scale[:, None]
        names = getattr(checked, "feature_names_in_", None)
        fitted = hasattr(estimator, "coef_")
        classes = getattr(checked, "classes_", None)
        display = cls(
            alphas=path.alphas,
            coefs=coefs,
            p=path.p,
            feature_names=None if names is None else list(names),
            alpha=getattr(estimator, "alpha_", getattr(estimator, "alpha", None)) if fitted else None,
            support=estimator.support_ if fitted else None,
            output_names=list(classes) if classes is not None and coefs.ndim == 3 and len(coefs) == len(classes) else None,
            standardized=standardized,
        )
        return display.plot(ax, **plot_params)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        highlight: Sequence[int | str] | None = None,
        output: int | None = None,
        max_labels: int = NAMED,
        line_kw: dict[str, Any] | None = None,
    ) -> ReWAPathDisplay:
        """Draw the path.

        Args:
            ax: Axes to draw into; of a new figure if None.
            highlight: Features to bring out, by name or number; by default those of the chosen model or, if there is none, the
                first to enter.
            output: Number of the output to draw; if None, all, each with lines of its own style.
            max_labels: How many of them get a colour and a name, from the largest coefficient on; the others are just darker.
                With several outputs at most 7.
            line_kw: Further properties of the lines in colour, as matplotlib takes them.

        Returns:
            The display.
        """
        alphas, coefs = self._sorted()
        if output is not None and not 0 <= output < len(coefs):
            raise ValueError(
                f"output={output} is not one of the {len(coefs)} outputs: give one from 0 to {len(coefs) - 1}, or None"
            )
        outputs = range(len(coefs)) if output is None else [output]
        if len(outputs) > 1:
            max_labels = min(max_labels, len(COLORS))  # dashes tell outputs apart, so that colours must not repeat
        at = self._chosen_place(alphas)
        size = np.abs(coefs[list(outputs)]).max(axis=0)
        bright = self._bright(highlight, size, at, max_labels)

        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("the path's picture needs matplotlib: pip install 'rewa[plot]'") from error
        if ax is None:
            _, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        # Largest first: there are fewer colours and names than there may be features.
        bright = bright[np.argsort(-size[bright, at], kind="stable")]
        named, others = bright[:max_labels], set(map(int, bright[max_labels:]))
        rank = {int(feature): place for place, feature in enumerate(named)}
        self.lines_: dict[tuple[int, int], Any] = {}
        for number in outputs:
            for feature in map(int, np.flatnonzero((coefs[number] != 0).any(axis=1))):
                dash = DASHES[number % len(DASHES)] if len(outputs) > 1 else ()
                look: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "zorder": 1.5}
                if feature in others:
                    look = {"color": MUTED, "linewidth": 1.0, "zorder": 1.7}
                if feature in rank:
                    place = rank[feature]
                    if len(outputs) == 1:
                        dash = DASHES[place // len(COLORS) % len(DASHES)]
                    look = {
                        "color": COLORS[place % len(COLORS)],
                        "linewidth": 1.8,
                        "zorder": 3 - place / 1000,
                        **(line_kw or {}),
                    }
                look.setdefault("linestyle", (0, dash) if dash else "-")
                (self.lines_[number, feature],) = ax.plot(alphas, _without_zeros(coefs[number, feature]), **look)
        self._dress(alphas, outputs)
        self._name(coefs, outputs, named, len(others))
        return self

    def _sorted(self) -> tuple[Array, Array]:
        """Weights of the penalty, falling, and coefficients of the shape (outputs, features, weights)."""
        alphas, coefs = np.asarray(self.alphas, dtype=np.float64), np.asarray(self.coefs, dtype=np.float64)
        if coefs.ndim not in (2, 3) or coefs.shape[-1:] != alphas.shape:
            raise ValueError(f"coefs has the shape {coefs.shape}: its last axis must be that of the {alphas.size} alphas")
        coefs = coefs.reshape(-1, *coefs.shape[-2:])
        order = np.argsort(-alphas, kind="stable")
        order = order[alphas[order] > 0]  # zero is nowhere on a log axis
        if not order.size:
            raise ValueError("none of the alphas is positive: there is no path to draw, as when y is constant")
        return alphas[order], coefs[..., order]

    def _chosen_place(self, alphas: Array) -> int:
        """Of the weight next to the chosen one, or of the last."""
        if not self.alpha:
            return len(alphas) - 1
        return int(np.argmin(np.abs(np.log(alphas / self.alpha))))

    def _bright(self, highlight: Sequence[int | str] | None, size: Array, at: int, count: int) -> Index:
        """Numbers of the features to draw in colour."""
        if highlight is not None:
            names = {name: number for number, name in enumerate(self._names(len(size)))}
            numbers = [names.get(each, -1) if isinstance(each, str) else int(each) for each in highlight]
            for each, number in zip(highlight, numbers, strict=True):
                if not 0 <= number < len(size):
                    raise ValueError(f"highlight names {each!r}, which is not one of the {len(size)} features")
            return np.array(numbers, dtype=np.intp)
        if self.support is not None:
            return np.flatnonzero(self.support)
        if self.alpha is not None:
            return np.flatnonzero(size[:, at])
        entered = np.flatnonzero(size.any(axis=1))
        return entered[np.argsort((size[entered] != 0).argmax(axis=1), kind="stable")[:count]]

    def _names(self, count: int) -> list[str]:
        return [f"x{number}" for number in range(count)] if self.feature_names is None else [str(n) for n in self.feature_names]

    def _dress(self, alphas: Array, outputs: Sequence[int]) -> None:
        """Axes, their labels, and what is not a feature."""
        from matplotlib.lines import Line2D

        ax = self.ax_
        ends = [alphas[0], alphas[-1], *([self.alpha] if self.alpha else [])]
        margin = 1.05 * (max(ends) / min(ends)) ** 0.02
        ax.set_xscale("log")
        ax.set_xlim(max(ends) * margin, min(ends) / margin)
        ax.axhline(0, color=SOFT, linewidth=0.8, zorder=1)
        unit = "coefficient x standard deviation of the feature" if self.standardized else "coefficient"
        ax.set(xlabel=f"alpha, weight of the penalty (p = {self.p:.3g})", ylabel=unit)
        ax.spines[["top", "right"]].set_visible(False)
        if self.alpha:
            ax.axvline(self.alpha, color=INK, linewidth=1.1, linestyle=(0, (5, 3)), zorder=2)
            ax.annotate(
                f"chosen alpha: {self.alpha:.3g}",
                (self.alpha, 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize="small",
                color=INK,
            )
        if len(outputs) > 1:
            kind = "output" if self.output_names is None else "class"
            names = [f"{kind} {number if self.output_names is None else self.output_names[number]}" for number in outputs]
            dashes = [DASHES[number % len(DASHES)] for number in outputs]
            handles = [Line2D([], [], color=SOFT, linewidth=1.8, linestyle=(0, dash) if dash else "-") for dash in dashes]
            look: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.06), "borderaxespad": 0.0}
            ax.legend(handles, names, **look, ncols=4, frameon=False, fontsize="small", handlelength=3.5)

    def _name(self, coefs: Array, outputs: Sequence[int], named: Index, others: int) -> None:
        """Names at the right, each by the end of its line as far as the others leave room."""
        ax = self.ax_
        names = self._names(coefs.shape[1])
        self.texts_: dict[int, Any] = {}
        shown = []  # a feature with several outputs is named at its largest coefficient
        for feature in map(int, named):
            lines = [(abs(coefs[number, feature, -1]), number) for number in outputs if (number, feature) in self.lines_]
            if lines:
                number = max(lines)[1]
                shown.append((coefs[number, feature, -1], feature, self.lines_[number, feature]))
        if not shown:
            return
        shown.sort(key=lambda each: each[:2])
        low, high = ax.get_ylim()
        points = ax.get_window_extent().height * 72 / self.figure_.dpi
        size = 8.5
        places = _spread(
            np.array([(end - low) / (high - low) for end, _, _ in shown]), min(1.35 * size / points, 1 / len(shown))
        )
        for place, (end, feature, line) in zip(places, shown, strict=True):
            name = names[feature]
            self.texts_[feature] = ax.annotate(
                name if len(name) <= LONGEST else name[: LONGEST - 1] + "…",
                (line.get_xdata()[-1], end),
                (1.03, place),
                textcoords="axes fraction",
                va="center",
                fontsize=size,
                color=line.get_color(),
                parse_math=False,  # a dollar in a name is a dollar
                arrowprops={
                    "arrowstyle": "-",
                    "color": line.get_color(),
                    "linewidth": 0.6,
                    "alpha": 0.6,
                    "shrinkA": 1,
                    "shrinkB": 0,
                },
            )
        if others:
            ax.annotate(
                f"and {others} more", (1.03, 0), (0, -size), xycoords="axes fraction", textcoords="offset points",
                va="top", fontsize=size, color=MUTED,
            )  # fmt: skip


def _without_zeros(coef: Array) -> Array:
    """The coefficients, but of a stretch of zeros only the ends, so that lines do not hide each other there."""
    inside = np.pad(coef != 0, 1)
    shown: Array = np.where(inside[:-2] | inside[1:-1] | inside[2:], coef, np.nan)
    return shown


def _spread(places: Array, gap: float) -> Array:
    """Places in [0, 1], in rising order and at least a gap apart, as near to the given ones as least squares have it."""
    # Less their share of the gaps, places that may not pass each other: the nearest are the means of the blocks that collide.
    blocks: list[list[float]] = []
    for number, place in enumerate(places):
        blocks.append([place - number * gap, 1.0])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            count = last[1] + before[1]
            blocks.append([(last[0] * last[1] + before[0] * before[1]) / count, count])
    free = np.concatenate([np.full(int(count), mean) for mean, count in blocks])
    result: Array = np.clip(free, 0.0, max(1 - (len(places) - 1) * gap, 0.0)) + gap * np.arange(len(places))
    return result
