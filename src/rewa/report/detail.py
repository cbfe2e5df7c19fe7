"""What the page of a comparison says of single runs: one in detail, the settings, all runs, and where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rewa.record import Epoch, Run
from rewa.report.findings import front, ranking, ratio, score, size, unit
from rewa.report.page import Section
from rewa.report.panel import Bar, Bars, Histogram, Lines, Mark, Option, Panel, Pick, Series, Table, Text, View, Words, tick
from rewa.report.tables import Comparison, Entry, differing, flat

__all__ = ["sections"]

EPOCHS_SHOWN = 200  # of each run's training curve, at most
EPOCHS_IN_ALL = 100_000  # of all runs together: above 500 runs each gets fewer
QUANTITIES = {
    "loss": ("train_loss", "validation_loss"),
    "accuracy": ("train_accuracy", "validation_accuracy"),
    "compression": ("compression",),
}
AXES = {
    "loss": "loss",
    "accuracy": "accuracy, %",
    "compression": "compression now, weights up to 0.001 as zeros",
}
LISTED = 12  # values of a setting, at most


def sections(comparisons: Sequence[Comparison]) -> list[Section]:
    """The parts of the page below the comparisons.

    Args:
        comparisons: All that are on the page.
    """
    runs = [run for comparison in comparisons for run in comparison.runs]
    return [
        Section(title="One run in detail", panels=[_pick(comparisons)]),
        Section(title="Settings", panels=_settings(comparisons)),
        Section(title="Runs", panels=[_runs(comparisons)]),
        Section(title="Provenance", panels=_provenance(runs)),
    ]


# ------------------------------------------------------------------------------------------------------------ one run


def _pick(comparisons: Sequence[Comparison]) -> Pick:
    count = sum(len(comparison.runs) for comparison in comparisons)
    most = min(EPOCHS_SHOWN, max(20, EPOCHS_IN_ALL // count))
    longest = max(len(run.epochs) for comparison in comparisons for run in comparison.runs)
    options = []
    for index, comparison in enumerate(comparisons):
        views, last = _views(comparison), max((len(run.epochs) for run in comparison.runs), default=0)
        for run in comparison.runs:
            label = comparison.labels[str(run.folder)]
            options.append(
                Option(
                    name=run.name if run.finished else f"{run.name} ({run.status})",
                    group=label if len(comparisons) == 1 else f"{index + 1}. {label}",
                    among=index,
                    panels=[_training(run, views, most, max(2, last), len(comparison.runs) - 1), _layers(run), _weights(run)],
                )
            )
    thinned = f"Training curves are thinned to {most} epochs for each run, the first and the last among them."
    return Pick(
        title="One run in detail",
        caption=thinned if longest > most else "",
        label="Run",
        places=("training", "layers", "histogram"),
        options=options,
        start=_start(comparisons),
    )


def _start(comparisons: Sequence[Comparison]) -> int:
    """The run to show first: one that the first sentence was read from; else the first run."""
    runs = [str(run.folder) for comparison in comparisons for run in comparison.runs]
    found = next((found for comparison in comparisons if (found := front(comparison))), None)
    return 0 if found is None else runs.index(str(found[1][0][1].chosen[0].run.folder))


def _views(comparison: Comparison) -> tuple[View, ...]:
    """What can be looked at, the metric first; the axes are those of all runs, so that runs compare."""
    views = []
    for name in sorted(QUANTITIES, key=lambda name: name != comparison.metric):
        columns = QUANTITIES[name]
        values = [value for run in comparison.runs for row in run.epochs for each in columns if (value := _value(row, each))]
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite, default=0.1), max(finite, default=1.0)
        log = low > 0 and (name == "compression" or (name == "loss" and high > 30 * low))
        ends = (low / 1.15, high * 1.15) if log else (low, high)
        series = tuple(column.replace("_", " ") for column in columns)
        views.append(View(name=name, y=AXES[name] + " (log)" * log, y_range=ends, y_log=log, series=series))
    return tuple(views)


def _value(row: Epoch, column: str) -> float:
    return float(getattr(row, column))


def _training(run: Run, views: tuple[View, ...], most: int, last: int, others: int) -> Lines:
    count = len(run.epochs)
    kept = range(count) if count <= most else sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
    epochs = [run.epochs[index].epoch for index in kept]
    tuning = [row.epoch for row in run.epochs if row.phase == "finetune"]
    behind = "the other run" if others == 1 else f"{others} other runs"
    columns = [column for each in QUANTITIES.values() for column in each]
    return Lines(
        title="Training",
        caption=f"{run.name}, {run.status}." + (f" Thin grey: {behind} of this comparison, at most 60." if others else ""),
        x="epoch",
        y="",
        x_range=(1, last),
        views=views,
        views_label="Curve",
        shade=(min(tuning), "fine-tune") if tuning else None,
        series=[
            Series(
                label=column.replace("_", " "),
                markers=False,
                of=_same_as(column),
                marks=[Mark(x=epoch, y=_value(run.epochs[index], column)) for epoch, index in zip(epochs, kept, strict=True)],
            )
            for column in columns
        ],
    )


def _same_as(column: str) -> str | None:
    """The curve whose look another has: all of training are alike, and all of validation."""
    if column in QUANTITIES["loss"]:
        return None
    return "validation loss" if column.startswith("validation") else "train loss"


def _layers(run: Run) -> Bars | Text:
    title = "Weights left in each layer"
    if not run.finished:
        return Text(title=title, caption="Only a finished run has final weights.")
    bars, shares = [], []
    for layer in run.layers:
        share = layer.count.nonzero / layer.count.total if layer.count.total else 0.0
        zeros = 100 * (1 - share)
        says = f"{layer.name}: {zeros:.{2 if zeros > 99 else 1}f} % zeros"
        bars.append(Bar(label=layer.name, value=share, text=f"{layer.count.nonzero:,} of {layer.count.total:,}", says=says))
        shares.append(share)
    left, total = sum(layer.count.nonzero for layer in run.layers), sum(layer.count.total for layer in run.layers)
    caption = (
        f"A full bar is {tick(100 * max(shares, default=0.0))} % of a layer's weights left, the most of any layer. In all "
        f"{left:,} of {total:,} are left: {100 * (1 - left / max(total, 1)):.2f} % zeros."
    )
    return Bars(title=title, caption=caption, bars=bars)


def _weights(run: Run) -> Histogram | Text:
    title = "Sizes of the weights"
    if run.histogram is None or run.final is None:
        return Text(title=title, caption="Only a finished run has final weights.")
    zeros, threshold = run.histogram.zeros, run.final.threshold
    exact = f"{zeros:,} weights are exactly zero and not in the plot." if zeros else "No weight is exactly zero."
    below = "What lies left of the threshold is set to zero in the final model."
    return Histogram(
        title=title,
        caption=f"{exact} {below if threshold > 0 else 'The threshold is 0: nothing was cut.'}",
        x="size |x| (log)",
        y="weights (log)",
        edges=run.histogram.edges,
        counts=run.histogram.counts,
        cut=(threshold, f"threshold {tick(threshold)}") if threshold > 0 else None,
    )


# ----------------------------------------------------------------------------------------------------------- all runs


def _settings(comparisons: Sequence[Comparison]) -> list[Panel]:
    runs = [run for comparison in comparisons for run in comparison.runs]
    each = [flat({"recipe": run.recipe, "data": run.data, "numeric": run.numeric}) for run in runs]
    unlike = differing(each)
    common = {key: _shown(value) for key, value in each[0].items() if key not in unlike}
    title = "Settings that differ between runs"
    rows = [[key, _listed(values)] for key, values in unlike.items()]
    methods: list[list[str | Words]] = [
        [
            entry.label if len(comparisons) == 1 else f"{entry.label} on {comparison.title}",
            Words(text=_assignments(entry)),
            _listed(entry.strengths),
            entry.strength_is,
            _listed(entry.seeds),
        ]
        for comparison in comparisons
        for entry in sorted(comparison.entries, key=lambda entry: ranking(comparison).index(entry.label))
    ]
    header = ["method", "settings", "strengths", "the strength is", "seeds"]
    return [
        Table(title=title, caption="", header=["setting", "values"], rows=rows)
        if rows
        else Text(title=title, caption="None, apart from the methods, strengths and seeds."),
        Table(title="Methods", caption="", header=header, rows=methods)
        if methods
        else Text(title="Methods", caption="No run is finished yet."),
        Text(title=f"Settings common to all runs ({len(common)})", facts=common, folded=True),
    ]


def _assignments(entry: Entry) -> str:
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in flat(entry.settings).items()
    )


def _shown(setting: Any) -> str:
    if isinstance(setting, float):
        return f"{setting:g}"
    return setting if isinstance(setting, str) else json.dumps(setting, default=str)


def _listed(values: Iterable[Any]) -> str:
    shown = [_shown(value) for value in values]
    rest = f", and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return ", ".join(shown[:LISTED]) + rest


def _runs(comparisons: Sequence[Comparison]) -> Table:
    rows: list[list[str | Words]] = []
    for comparison in comparisons:
        for run in comparison.runs:
            final = run.final
            made = [ratio(final.prunable.compression_ratio), score(final.test(run.metric), run.metric)] if final else ["", ""]
            rows.append(
                [
                    Words(text=run.name, aside="; ".join(run.remarks())),
                    Words(text=run.status, state=run.status),
                    comparison.labels[str(run.folder)],
                    Words(text="" if run.strength is None else f"{run.strength:g}"),
                    str(run.seed),
                    f"{len(run.epochs)} of {run.recipe.get('epochs', '?')}",
                    _duration(run),
                    *(Words(text=each) for each in made),
                    Words(text=size(final.file_bytes) if final else ""),
                ]
            )
    metrics = {comparison.metric for comparison in comparisons}
    test = unit(metrics.pop()) if len(metrics) == 1 else "test metric"
    scrolls = f" Scroll inside the box to see all {len(rows)} runs." if len(rows) > LISTED else ""
    return Table(
        title="All runs",
        caption="Compression, test metric and file are those of the final model. Runs that are not finished are in no other "
        f"table.{scrolls}",
        header=["run", "status", "method", "strength", "seed", "epochs", "time", "compression", test, "file"],
        rows=rows,
        tall=True,
    )


def _duration(run: Run) -> str:
    """The time of the epochs, and how often the run was resumed."""
    seconds, resumed = sum(run.timing.epoch_seconds), run.timing.resumed
    if not seconds:
        return "unknown"
    hours, minutes = divmod(round(seconds / 60), 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min" if seconds >= 600 else f"{seconds:.3g} s"
    return text + (f" (resumed {resumed} times)" if resumed > 1 else " (resumed)" if resumed else "")


def _provenance(runs: Sequence[Run]) -> list[Panel]:
    each = [flat({"commit": run.commit, "versions": run.versions, "hardware": run.hardware}) for run in runs]
    unlike = differing(each)
    names = dict.fromkeys(name for mapping in each for name in mapping)
    made = {name: _listed(unlike.get(name, [each[0].get(name)])) for name in names}
    commands = list(dict.fromkeys(run.command for run in runs))
    return [Text(title="", facts=made), Text(title="Commands", commands=commands, folded=True)]
