"""The theory in pictures. Needs matplotlib (``pip install 'rewa[plot]'``).

Colours are those of :mod:`rewa.palette`, and every line has a style of its own for print in black.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rewa import theory
from rewa.files import write_atomically
from rewa.palette import BLUE, COLORS, GREEN, INK, ORANGE, PINK, RED, method_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rewa.explain import Training

__all__ = ["FIGURES", "FORMATS", "clipping", "draw_run", "geometry", "regularizer", "save"]

FORMATS = (".png", ".svg", ".pdf")


@contextmanager
def _figure(width: float, height: float, panels: int) -> Iterator[tuple[Figure, list[Axes]]]:
    """Panels side by side in the project's style, without touching matplotlib's global state."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'rewa[plot]'") from error

    with mpl.rc_context({"font.size": 10, "axes.titlesize": 10.5}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = list(np.atleast_1d(figure.subplots(1, panels)))
        for each in axes:
            each.spines[["top", "right"]].set_visible(False)
        yield figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of the path; never half of it.

    Args:
        figure: The figure.
        path: Where to.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a figure's name must end in {', '.join(FORMATS)}; got {str(path)!r}")
    import matplotlib as mpl

    # No date and no random name in the file: the same figure is the same bytes.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    image = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "rewa"}):
        figure.savefig(image, format=path.suffix[1:].lower(), dpi=160, metadata=metadata)
    write_atomically(path, image.getvalue())


def _lp_ball(axes: Axes, p: float, radius: float, label: str) -> None:
    """The set of points with sum |x|^p <= radius^p, filled."""
    angle = np.linspace(0, 2 * math.pi, 2001)
    c, s = np.cos(angle), np.sin(angle)
    rho = radius / (np.abs(c) ** p + np.abs(s) ** p) ** (1 / p)
    axes.fill(rho * c, rho * s, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(rho * c, rho * s, color=BLUE, linewidth=1.8, label=label)


def geometry() -> Figure:
    """Where the smallest l1 or l_p ball meets a constraint: on an axis is sparse (Example 3.12)."""
    near = 1 - math.sqrt(0.5)  # of the circle around (1, 1) the point nearest to the origin, in both coordinates
    panels: list[tuple[str, float, float, bool, list[tuple[float, float]]]] = [
        ("linear constraint, $\\ell_1$: sparse", 1.0, 1.0, False, [(0.0, 1.0)]),
        ("curved constraint, $\\ell_1$: dense", 1.0, 2 * near, True, [(near, near)]),
        ("curved constraint, $\\ell_{1/2}$: sparse", 0.5, 1.0, True, [(1.0, 0.0), (0.0, 1.0)]),
    ]
    with _figure(10, 4.1, 3) as (figure, all_axes):
        for axes, (title, p, radius, curved, solutions) in zip(all_axes, panels, strict=True):
            axes.axhline(0, color="#888888", linewidth=0.8)
            axes.axvline(0, color="#888888", linewidth=0.8)
            _lp_ball(axes, p, radius, "smallest ball that touches the constraint")
            if curved:
                angle = np.linspace(0, 2 * math.pi, 401)
                x, y = 1 + np.cos(angle), 1 + np.sin(angle)
                axes.fill(x, y, color=ORANGE, alpha=0.2, linewidth=0)
            else:
                x = np.array([-1.0, 2.5])
                y = 1 - x / 2
            axes.plot(x, y, color=ORANGE, linestyle="--", linewidth=1.8, label="constraint: the loss is low enough")
            axes.plot(*zip(*solutions, strict=True), "o", color=RED, markersize=8, label="solution", clip_on=False, zorder=3)
            axes.set(title=title, xlim=(-1.3, 2.2), ylim=(-1.3, 2.2), xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
            axes.set_xticks([-1, 0, 1, 2])
            axes.set_yticks([-1, 0, 1, 2])
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return figure


def clipping(p: float = 0.5, u: float = 0.2) -> Figure:
    """An l_p penalty clipped at u in both ways, with what each costs (Theorem 3.7)."""
    x = np.linspace(-1, 1, 4001)
    a = np.abs(x)
    line = p * u ** (p - 1) * a + (1 - p) * u**p
    kinds = [
        ("constant clipping", np.maximum(a**p, u**p), theory.constant_clipping(p, u, 1)),
        ("$\\ell_1$ clipping", np.where(a < u, line, a**p), theory.l1_clipping(p, u, 1)),
    ]
    with _figure(8.5, 3.4, 2) as (figure, all_axes):
        for axes, (title, clipped, cost) in zip(all_axes, kinds, strict=True):
            axes.plot(x, a**p, color=BLUE, linestyle=":", linewidth=2, label=f"$|x|^p$, p = {p:g}")
            axes.plot(x, clipped, color=RED, linewidth=1.8, label=f"clipped at u = {u:g}")
            axes.annotate(
                "",
                (0, 0),
                (0, cost.approximation_error),
                arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 0, "shrinkB": 0},
            )
            axes.annotate(f"error {cost.approximation_error:.2f}", (0.0, 0.05), (0.3, 0.05), va="center")
            axes.set(
                title=f"{title}: slope at most {cost.gradient_bound:.2f}", xlabel="x", ylim=(-0.02, 1.05), xlim=(-1.02, 1.02)
            )
            axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        all_axes[0].set_ylabel("penalty")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return figure


def regularizer() -> Figure:
    """The implicit penalty for several settings, and the gradient that holds a weight against it (Theorem 3.3)."""
    settings = [
        (9, 1, 0.0, INK, "-"),
        (9, 2, 0.0, BLUE, "--"),
        (9, 4, 0.0, GREEN, "-."),
        (9, 8, 0.0, RED, (0, (5, 1))),
        (3, 0, 0.1, ORANGE, ":"),
        (3, 2, 1e-3, PINK, (0, (3, 1, 1, 1))),
    ]
    with _figure(10, 4.3, 2) as (figure, (left, right)):
        x, sizes = np.linspace(1e-6, 1, 2001), np.logspace(-6, 0.5, 400)
        for K, M, eps, color, style in settings:
            setting = theory.configuration(K, M, eps)
            p = f"p = {setting.p:.2g}" if eps == 0 or setting.name == "B" else f"p = {setting.p:.2g} and log"
            line: dict[str, Any] = {"color": color, "linestyle": style, "linewidth": 1.8}
            left.plot(x, _scaled(lambda x: theory.regularizer(x, K, M, eps), x), **line)  # noqa: B023
            label = f"K={K}, M={M}, eps={eps:g}: {p}"
            right.plot(sizes, theory.regularizer_gradient(sizes, K, M, eps), **line, label=label)
        left.set(title="penalty R(x), scaled to 1 at |x| = 1", xlabel="|x|", ylabel="R(x) / R(1)", ylim=(-0.02, 1.05))
        right.set(
            title="gradient that holds a weight, over $\\lambda$", xlabel="|x|", ylabel="R'(x)", xscale="log", yscale="log"
        )
        right.grid(alpha=0.25)
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return figure


def _scaled(penalty: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A penalty from its value at the least of the sizes, which is finite also for a logarithm, to 1 at size 1."""
    low, one = penalty(x[:1]), penalty(np.ones(1))
    return np.asarray((penalty(x) - low) / (one - low))


def _color(method: str) -> str:
    return COLORS[method_look(method).color]


def draw_run(run: Training) -> Figure:
    """A setting beside its rivals: penalty, the gradient that holds a weight, and what the run does to one without.

    Args:
        run: The setting and the training it is for.
    """
    flat = 0.25  # SCAD and MCP at a strength for which their flat part shows
    x, sizes = np.linspace(1e-4, 1.2, 1201), np.logspace(-4, 0.3, 400)
    penalties: list[tuple[str, Callable[[np.ndarray], np.ndarray], dict[str, Any]]] = [
        (
            f"this setting{' with SGD' if run.optimizer == 'adamw' else ''}",
            lambda x: theory.regularizer(x, run.K, run.M, run.eps),
            {"color": _color("rewa"), "linewidth": 2.6},
        ),
        ("$\\ell_1$", np.abs, {"color": _color("l1"), "linestyle": "-"}),
        ("$\\ell_{1/2}$", lambda x: 2 * np.sqrt(x), {"color": _color("half"), "linestyle": "--"}),
        ("SCAD", lambda x: theory.scad(x, lam=flat) / flat, {"color": _color("scad"), "linestyle": "-."}),
        ("MCP", lambda x: theory.mcp(x, lam=flat) / flat, {"color": _color("mcp"), "linestyle": ":"}),
    ]
    with _figure(12, 3.9, 3) as (figure, (left, middle, right)):
        for label, penalty, line in penalties:
            left.plot(x, _scaled(penalty, x), **{"linewidth": 1.8, **line}, label=label)
            step = 1e-4 * sizes
            force = (penalty(sizes + step) - penalty(sizes - step)) / (2 * step)
            middle.plot(sizes, np.where(force > 1e-6, force, np.nan), **{"linewidth": 1.8, **line})
        left.set(title="penalty, scaled to 1 at |x| = 1", xlabel="|x|", ylabel="penalty")
        middle.set(
            title="gradient that holds a weight, over the strength",
            xlabel="|x|",
            ylabel="penalty's slope",
            xscale="log",
            yscale="log",
        )
        middle.grid(alpha=0.25)
        steps = np.unique(np.linspace(0, run.steps, 2000).astype(int))
        log_size = np.array([-run.shrinkage(int(step)) for step in steps]) / math.log(10)
        right.plot(steps / run.steps_per_epoch, log_size, color=_color("rewa"), linewidth=2.6)
        ticks = range(0, math.floor(log_size[-1]) - 1, -max(1, math.ceil(-log_size[-1] / 7)))
        right.set_yticks(ticks, [f"$10^{{{tick}}}$" for tick in ticks])
        right.set(title="a weight that gets no gradient", xlabel="epoch", ylabel="|x|, of its start")
        right.grid(alpha=0.25)
        figure.suptitle(
            f"K={run.K:g}, M={run.M:g}, eps={run.eps:g}, weight_decay={run.weight_decay:g}, lr={run.lr:g}, "
            f"momentum={run.momentum:g}, {run.optimizer}",
            x=0.01,
            ha="left",
        )
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        return figure


FIGURES: dict[str, Callable[[], Figure]] = {"geometry": geometry, "clipping": clipping, "regularizer": regularizer}
