"""All of the paper's synthetic study at once: every setting is trained once, however many figures show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rewa.experiments.fig1 import FIG1
from rewa.experiments.fig2 import FIG2A, FIG2B, FIG2C, FIG2D
from rewa.experiments.linear import PaperStudy, Score
from rewa.experiments.overhead import OVERHEAD, Overhead
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.lockstep import Column
from rewa.record import provenance
from rewa.report.files import study_page
from rewa.report.page import to_html
from rewa.report.panel import Panel

__all__ = ["SYNTHETIC_STUDY", "Synthetic"]


@dataclass(frozen=True, kw_only=True)
class Synthetic(Result):
    """Figures 1 and 2 and the table of overheads."""

    redraws: ClassVar[bool] = True
    line: str = "all of the paper's synthetic study: fig1, fig2a to fig2d and overhead, trained together"
    quick: bool = True
    figures: tuple[PaperStudy, ...] = (FIG1, FIG2A, FIG2B, FIG2C, FIG2D)
    overhead: Overhead = OVERHEAD

    def run(self, out: Path, how: How) -> list[Path]:
        """Train the union of what the figures need, write each, and one page with all of them; or draw the figures again."""
        figures = [figure.small() if how.quick else figure for figure in self.figures]
        if how.trained:
            return [path for figure in figures for path in figure.run(out, how)]
        columns = [column for figure in figures for column in figure.columns()]
        trained, lasso = figures[0].trained(list(dict.fromkeys(columns)), replace(how, quick=False), lasso=True)
        written = [path for figure in figures for path in figure.write(out, trained, lasso)]
        written += self.overhead.run(out, how)
        page = out / "synthetic.html"
        title = "The paper's synthetic study"
        shown = study_page(title, figures[0].lead(), _together(figures, trained, lasso), provenance=provenance())
        write_atomically(page, to_html(shown))
        return [page, *written]


def _together(figures: Sequence[PaperStudy], trained: Mapping[Column, Sequence[Score]], lasso: Sequence[Score]) -> list[Panel]:
    """All panels, each with the name of its figure."""
    return [
        replace(panel, title=f"{figure.title.partition(':')[0]}, {panel.title}")
        for figure in figures
        for panel in figure.panels(trained, lasso if figure.lasso else ())
    ]


SYNTHETIC_STUDY = Synthetic()
