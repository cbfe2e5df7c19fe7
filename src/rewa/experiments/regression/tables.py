"""The tables and the chart of a record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rewa.experiments.regression.contenders import ALPHAS, CONTENDERS, CONTEST, FOLDS
from rewa.experiments.regression.protocol import ahead
from rewa.report.panel import Lines, Mark, Panel, Series, Table

__all__ = ["lead", "to_panels"]

PATHS = {"rewa": "ReWARegressor().path", "lasso": "sklearn lasso_path", "l0.5": "skglm L0.5 path"}


def lead(record: dict[str, Any]) -> str:
    """What was found, in a sentence or two.

    Args:
        record: The record.
    """
    words = []
    if part := record.get("designs"):
        missed = [f"{name}: {aim}" for name, aim, _, met in part["targets"] if not met]
        count = len(part["targets"])
        rest = f"; not met: {', '.join(missed)}." if missed else "."
        words.append(f"{count - len(missed)} of {count} aims of the designs are met{rest}")
    words.append("One thread, every method in a process of its own, all in one run.")
    return " ".join(words)


def to_panels(record: dict[str, Any]) -> list[Panel]:
    """The tables and the chart.

    Args:
        record: The record.
    """
    shown: list[Panel] = []
    if part := record.get("designs"):
        aims = [[name, aim, value, "yes" if met else "**no**"] for name, aim, value, met in part["targets"]]
        caption = "One default setting of ours for all three designs."
        shown.append(Table(title="Aims", caption=caption, header=["design", "aim", "reached", "met"], rows=aims))
        shown += [_design_table(name, methods) for name, methods in part["methods"].items()]
        shown += [_contest_table(part["contest"])] if part["contest"] else []
        losses = [
            [name, measured, ", ".join(who) or "nobody"]
            for name, methods in part["methods"].items()
            for measured, who in ahead(methods).items()
        ]
        caption = "Of the methods in the tables above; F1 and error by more than rounding."
        shown.append(Table(title="Ahead of our default", caption=caption, header=["design", "in", "who"], rows=losses))
    if part := record.get("data"):
        shown.append(_data_table(part["results"]))
    if part := record.get("scaling"):
        series = _paths(part["results"])
        shown += [_scaling_chart(series)] if series else []
        shown.append(_scaling_table(part["results"]))
    return shown


def _design_table(name: str, methods: dict[str, Any]) -> Table:
    rows = []
    for method, found in methods.items():
        if "failed" in found:
            rows.append([CONTENDERS[method].label, found["failed"], *[""] * 7])
            continue
        rows.append(
            [
                CONTENDERS[method].label,
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


def _contest_table(races: dict[str, Any]) -> Table:
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


def _data_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for found in results:
        regression = found["where"] == "diabetes"
        ours, lasso = ("ReWARegressorCV()", "LassoCV()") if regression else ("ReWAClassifierCV()", "LogisticRegressionCV, l1")
        label = ours if found["method"] == "rewa" else lasso
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


def _paths(results: Sequence[dict[str, Any]]) -> list[Series]:
    """A line for each method: seconds over the number of columns."""
    series = []
    for method, label in PATHS.items():
        marks = [
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
        series += [Series(label=label, marks=marks, bars=True)] if marks else []
    return series


def _scaling_chart(series: Sequence[Series]) -> Lines:
    return Lines(
        title=f"One path of {ALPHAS} penalties, 500 rows",
        caption="Sparse X, one value in a hundred is not zero; down to .03 of the threshold of the first column. "
        "Median and range of up to three, after a small path.",
        x="columns",
        y="seconds",
        series=series,
        x_log=True,
        y_log=True,
    )


def _scaling_table(results: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for found in results:
        head = [f"{int(found['where']):,}", PATHS[found["method"]]]
        if "failed" in found:
            rows.append([*head, found["failed"], "", ""])
        else:
            rows.append([*head, f"{found['seconds']:.2f}", f"{found['warm_up']:.2f}", str(found["nnz"])])
    caption = "Warm-up: imports excluded, the first path, of 200 columns. Kept: nonzero coefficients at the end of the path."
    header = ["columns", "method", "seconds", "warm-up s", "kept"]
    return Table(title="Scaling in numbers", caption=caption, header=header, rows=rows)
