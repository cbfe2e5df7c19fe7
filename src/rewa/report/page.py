"""The page: one HTML file with its styles, its script and its data inside, and the files beside it."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewa.files import write_atomically
from rewa.record import Run, scan
from rewa.report.figure import BANDS, DASHES, draw, leaders, styles
from rewa.report.frame import fill, frame, items, listed, notes, number, table, value
from rewa.report.tables import Cell, Comparison, Entry, compare, differing, flat, ranking, top_range
from rewa.report.text import drop, finding, front, headline, points_csv, ratio, score, size, spread, table_csv, unit

__all__ = ["EPOCHS_SHOWN", "page", "write"]

EPOCHS_SHOWN = 200  # of each run's training curve, at most
EPOCHS_IN_ALL = 100_000  # of all runs together: above 500 runs each gets fewer
COLUMNS = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy", "compression")


def write(paths: Sequence[Path] | Path, out: Path, *, figures: bool = True) -> list[Path]:
    """Write the report of runs: ``out``, and beside it the points and the table as CSV and the figure as PNG and SVG.

    Args:
        paths: Folders of runs, as of :func:`rewa.report.read`.
        out: The page, a name that ends in ``.html``. For ``report.html`` the files beside it are ``report.csv``,
            ``report-table.csv``, ``report.png`` and ``report.svg``.
        figures: Whether to draw the figure files, which needs matplotlib. There are none as long as no run is finished.

    Returns:
        The files that were written, the page first.
    """
    if out.suffix.lower() != ".html":
        raise ValueError(f"the name of a report must end in .html, got {str(out)!r}")
    runs, problems = scan(paths)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    comparisons = compare(runs)
    figure = draw(comparisons) if figures and any(comparison.entries for comparison in comparisons) else None
    contents = {
        out: page(comparisons, problems),
        out.with_suffix(".csv"): points_csv(comparisons),
        out.with_name(f"{out.stem}-table.csv"): table_csv(comparisons),
    }
    for path, content in contents.items():
        write_atomically(path, content)
    written = list(contents)
    if figure is not None:
        from rewa.figures import save

        for suffix in (".png", ".svg"):
            save(figure, out.with_suffix(suffix))
            written.append(out.with_suffix(suffix))
    return written


def page(comparisons: Sequence[Comparison], problems: Sequence[str] = ()) -> str:
    """The page as text; the same records give the same text.

    Args:
        comparisons: What to show.
        problems: Sentences about records that could not be read, to be shown as warnings.
    """
    runs = [run for comparison in comparisons for run in comparison.runs]
    finished = sum(run.finished for run in runs)
    single = len(comparisons) == 1
    recipes = ", ".join(comparison.title for comparison in comparisons)
    title = headline(comparisons[0]) if single else f"{len(comparisons)} comparisons of test metric against compression"
    lead = finding(comparisons[0]) if single else f"One after the other: {recipes}."
    methods = len({label for comparison in comparisons for label in comparison.labels.values()})
    seeds = len({run.seed for run in runs})
    counts = [f"{len(runs)} run{'s' * (len(runs) != 1)}", f"{finished} finished", f"{methods} method{'s' * (methods != 1)}"]
    counts.append(f"{seeds} seed{'s' * (seeds != 1)}")
    payload, thinned = _payload(comparisons)
    main = fill(
        "page.html",
        comparisons="\n".join(_section(index, comparison, single) for index, comparison in enumerate(comparisons)),
        thinned=html.escape(thinned),
        settings=_settings(comparisons),
        provenance=_provenance(runs),
        runs=_runs(comparisons),
    )
    return frame(
        brand="rewa report",
        title=title,
        lead=lead,
        counts=" · ".join(counts),
        notes=notes(problems),
        main=main,
        data=payload,
        script="page.js",
    )


def _section(index: int, comparison: Comparison, single: bool) -> str:
    heading = f"{comparison.metric.capitalize()} against compression" if single else headline(comparison)
    look = ' class="unseen"' if single else ""  # the page's title says the same
    parts = [f'<section aria-labelledby="c{index}"><h2 id="c{index}"{look}>{html.escape(heading)}</h2>']
    if not single and (sentence := finding(comparison)):
        parts.append(f'<p class="lead">{html.escape(sentence)}</p>')
    parts.append(notes(comparison.warnings))
    if not comparison.entries:
        parts.append("<p>No run is finished yet: there is nothing to compare. The training curves are below.</p></section>")
        return "\n".join(parts)
    band = "The band is one standard deviation over the seeds. "
    if len(comparison.entries) > BANDS:
        band = (
            f"The {BANDS} methods nearest to the best have a colour each, and the others are grey. The band of one standard "
            "deviation is drawn for the one pointed at below. "
        )
    if max(len(entry.seeds) for entry in comparison.entries) == 1:
        band = "There is one seed, and so no band. "
    parts.append(
        f'<figure class="chart" data-comparison="{index}"><div class="plot"></div><div class="legend"></div><figcaption>'
        "<p><strong>How points are chosen.</strong> For each method, seed and compression, all strengths and thresholds that "
        "compress the prunable weights at least that much are candidates. The one with the best <em>validation</em> metric is "
        "taken (of equals the most compressed), and its <em>test</em> metric is shown. The test data decide nothing.</p>"
        f"<p><strong>How to read it.</strong> {band}Point at the plot, or focus it and use the arrow keys, for the numbers. A "
        "click on a method hides or shows its line. “Top” is the range near the best, “all” has the collapsed points too.</p>"
        "</figcaption></figure>"
    )
    parts.append(_cells(comparison))
    parts.append(_sizes(comparison))
    return "\n".join(parts) + "</section>"


def _cells(comparison: Comparison) -> str:
    metric = comparison.metric
    bold = {each: _bold(comparison, each) for each in comparison.compressions}
    rows = []
    for entry in _ranked(comparison):
        budget = f"{_several(entry.strengths_by_seed.values(), 'strength')} · {_several(entry.epochs, 'epoch')}"
        row = [f"{html.escape(entry.label)}<small>{budget}</small>", str(len(entry.seeds))]
        for each in comparison.compressions:
            cell = entry.table.get(each)
            if cell is None:
                row.append('<span class="none" title="not reached by every seed">&ndash;</span>')
                continue
            tag = "strong" if entry.label in bold[each] else "span"
            ratios = f"<small>{ratio(cell.prunable)} / {ratio(cell.model)}</small>"
            row.append(f"<{tag}>{spread(cell, metric)}</{tag}>{ratios}")
        rows.append(row)
    header = ["method", "seeds", *(f"≥ {ratio(each)}" for each in comparison.compressions)]
    return (
        f"<h3>{unit(metric).capitalize()} at a compression of at least …</h3>"
        + table(header, rows, f"{unit(metric)} by method and compression")
        + '<p class="note">Best method first. Mean ± standard deviation (n &minus; 1) over the seeds; bold: the best mean of '
        "its column and those within the standard error of the difference, among methods with two seeds or more. Small: mean "
        "compression of the prunable weights / of the whole model at the chosen points. A cell is there only if every seed of "
        "the method reaches the compression.</p>"
    )


def _ranked(comparison: Comparison) -> list[Entry]:
    """The methods, best first."""
    entries = {entry.label: entry for entry in comparison.entries}
    return [entries[label] for label in ranking(comparison)]


def _bold(comparison: Comparison, compression: float) -> set[str]:
    """The methods that no other beats at a compression by more than the standard error of the difference, or as printed.

    A single seed has no standard error, and is no evidence.
    """
    repeated = [(entry, cell) for entry, cell in comparison.best(compression) if cell.n > 1]
    if not repeated:
        return set()
    _, best = repeated[0]

    def level(cell: Cell) -> bool:
        error = math.hypot(*((each.sd or 0.0) / math.sqrt(each.n) for each in (best, cell)))
        alike = score(cell.mean, comparison.metric) == score(best.mean, comparison.metric)
        return alike or abs(cell.mean - best.mean) <= error

    return {entry.label for entry, cell in repeated if level(cell)}


def _several(values: Iterable[int], name: str) -> str:
    """A count with its noun; from the least to the most where there is more than one."""
    distinct = sorted(set(values))
    count = str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    return f"{count} {name}{'' if distinct == [1] else 's'}"


def _sizes(comparison: Comparison) -> str:
    metric = comparison.metric
    made = [entry.deployed for entry in comparison.entries if entry.deployed.choices]
    largest = max((each.dense_bytes for each in made), default=1.0)
    rows = []
    for entry in _ranked(comparison):
        each = entry.deployed
        label, seeds = html.escape(entry.label), f"{len(each.choices)} of {each.seeds}"
        if not each.choices:
            rows.append([label, seeds, '<span class="none">none keeps it</span>', "", "", "", ""])
            continue
        share = 100 * each.file_bytes / largest
        meter = f'<span class="meter" aria-hidden="true"><i style="width:{max(share, 0.5):.1f}%"></i></span>'
        smaller = ratio(each.dense_bytes / each.file_bytes) if each.file_bytes else ""
        weights = f"{ratio(each.cell.prunable)} / {ratio(each.cell.model)}"
        rows.append(
            [label, seeds, size(each.file_bytes) + meter, size(each.dense_bytes), smaller, weights, spread(each.cell, metric)]
        )
    header = ["method", "seeds", "file", "dense file", "smaller", "compression", unit(metric)]
    return (
        "<h3>Deployed sizes</h3>"
        + table(header, rows, "sizes of the files that would ship")
        + f'<p class="note">For each seed the method\'s smallest file whose validation {metric} is at most {drop(comparison)} '
        "worse than that of the best final model of any method; mean over the seeds that have one. Compression: prunable "
        "weights / whole model.</p>"
    )


def _settings(comparisons: Sequence[Comparison]) -> str:
    runs = [run for comparison in comparisons for run in comparison.runs]
    each = [flat({"recipe": run.recipe, "data": run.data, "numeric": run.numeric}) for run in runs]
    unlike = differing(each)
    common = {key: value for key, value in each[0].items() if key not in unlike}
    rows = [[html.escape(key), listed(values)] for key, values in unlike.items()]
    parts = ["<h3>Settings that differ between runs</h3>"]
    if rows:
        parts.append(table(["setting", "values"], rows, "settings that differ"))
    else:
        parts.append("<p>None, apart from the methods, strengths and seeds.</p>")
    parts.append("<h3>Methods</h3>")
    methods = [
        [
            html.escape(entry.label if len(comparisons) == 1 else f"{entry.label} on {comparison.title}"),
            html.escape(_assignments(entry)) or "&ndash;",
            listed(entry.strengths),
            html.escape(entry.strength_is),
            listed(entry.seeds),
        ]
        for comparison in comparisons
        for entry in _ranked(comparison)
    ]
    header = ["method", "settings", "strengths", "the strength is", "seeds"]
    parts.append(table(header, methods, "methods and their settings") if methods else "<p>No run is finished yet.</p>")
    shared = items({key: value(setting) for key, setting in common.items()})
    parts.append(f"<details><summary>Settings common to all runs ({len(common)})</summary>{shared}</details>")
    return "\n".join(parts)


def _assignments(entry: Entry) -> str:
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in flat(entry.settings).items()
    )


def _provenance(runs: Sequence[Run]) -> str:
    each = [flat({"commit": run.commit, "versions": run.versions, "hardware": run.hardware}) for run in runs]
    unlike = differing(each)
    names = dict.fromkeys(name for mapping in each for name in mapping)
    made = items({name: listed(unlike.get(name, [each[0].get(name)])) for name in names})
    commands = "".join(
        f"<li><code>{html.escape(command)}</code></li>" for command in dict.fromkeys(run.command for run in runs)
    )
    return f"{made}<details><summary>Commands</summary><ol class='commands'>{commands}</ol></details>"


def _runs(comparisons: Sequence[Comparison]) -> str:
    rows = []
    for comparison in comparisons:
        for run in comparison.runs:
            final = run.final
            rows.append(
                [
                    html.escape(run.name) + "".join(f"<small>{html.escape(remark)}</small>" for remark in run.remarks()),
                    f'<span class="status {run.status}">{run.status}</span>',
                    html.escape(comparison.labels[str(run.folder)]),
                    "&ndash;" if run.strength is None else f"{run.strength:g}",
                    str(run.seed),
                    f"{len(run.epochs)} of {html.escape(str(run.recipe.get('epochs', '?')))}",
                    _duration(run),
                    ratio(final.prunable.compression_ratio) if final else "&ndash;",
                    score(final.test(run.metric), run.metric) if final else "&ndash;",
                    size(final.file_bytes) if final else "&ndash;",
                ]
            )
    metrics = {comparison.metric for comparison in comparisons}
    test = unit(metrics.pop()) if len(metrics) == 1 else "test metric"
    header = ["run", "status", "method", "strength", "seed", "epochs", "time", "compression", test, "file"]
    scrolls = f" Scroll inside the box to see all {len(rows)} runs." if len(rows) > 12 else ""
    return (
        f'<div class="tall">{table(header, rows, "all runs")}</div><p class="note">Compression, test metric and file are '
        f"those of the final model. Runs that are not finished are in no other table.{scrolls}</p>"
    )


def _duration(run: Run) -> str:
    """The time of the epochs, and how often the run was taken up again."""
    seconds, resumed = sum(run.timing.epoch_seconds), run.timing.resumed
    if not seconds:
        return "unknown"
    hours, minutes = divmod(round(seconds / 60), 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min" if seconds >= 600 else f"{seconds:.3g} s"
    return text + (f" (resumed {resumed} times)" if resumed > 1 else " (resumed)" if resumed else "")


def _payload(comparisons: Sequence[Comparison]) -> tuple[dict[str, Any], str]:
    """What the script draws, and a sentence if training curves were thinned."""
    numbers = styles(comparisons)
    count = sum(len(comparison.runs) for comparison in comparisons)
    most = min(EPOCHS_SHOWN, max(20, EPOCHS_IN_ALL // count))
    longest = max(len(run.epochs) for comparison in comparisons for run in comparison.runs)
    layouts: dict[tuple[Any, ...], int] = {}
    edges: dict[tuple[float, ...], int] = {}
    runs = [
        {
            "name": run.name,
            "comparison": index,
            "method": comparison.labels[str(run.folder)],
            "style": numbers[comparison.labels[str(run.folder)]],
            "status": run.status,
            "curve": _training(run, most),
            **(_weights(run, layouts, edges) if run.finished else {}),
        }
        for index, comparison in enumerate(comparisons)
        for run in comparison.runs
    ]
    payload = {
        "bands": BANDS,
        "dashes": [" ".join(f"{length:g}" for length in dash) for dash in DASHES],
        "comparisons": [_chart(comparison, numbers) for comparison in comparisons],
        "runs": runs,
        "layouts": [{"names": names, "totals": totals} for names, totals in layouts],
        "edges": list(edges),
        "start": _start(comparisons),
    }
    thinned = (
        f"Training curves are thinned to {most} epochs for each run, the first and the last among them."
        if longest > most
        else ""
    )
    return payload, thinned


def _start(comparisons: Sequence[Comparison]) -> int:
    """The run to show first: one that the first sentence was read from; else the first run."""
    runs = [str(run.folder) for comparison in comparisons for run in comparison.runs]
    found = next((found for comparison in comparisons if (found := front(comparison))), None)
    return 0 if found is None else runs.index(str(found[1][0][1].choices[0].run.folder))


def _chart(comparison: Comparison, numbers: Mapping[str, int]) -> dict[str, Any]:
    cells = [cell for entry in comparison.entries for cell in entry.line if math.isfinite(cell.mean)]
    ends = [cell.mean + sign * (cell.sd or 0) for cell in cells for sign in (-1, 1)] or [0.0, 1.0]
    margin = 0.05 * (max(ends) - min(ends)) or 0.5
    bright = leaders(comparison)
    return {
        "title": headline(comparison),
        "metric": comparison.metric,
        "unit": unit(comparison.metric),
        "top": top_range(comparison),
        "all": (min(ends) - margin, max(ends) + margin),
        "series": [
            {
                "label": entry.label,
                "style": numbers[entry.label],
                "muted": entry.label not in bright,
                "points": [
                    {
                        "x": cell.compression,
                        "y": number(cell.mean),
                        "sd": None if cell.sd is None else number(cell.sd),
                        "text": spread(cell, comparison.metric),
                        "n": cell.n,
                        "prunable": ratio(cell.prunable),
                        "model": ratio(cell.model),
                        "chosen": [[choice.run.seed, number(choice.run.strength)] for choice in cell.choices],
                    }
                    for cell in entry.line
                    if math.isfinite(cell.mean)
                ],
            }
            for entry in _ranked(comparison)
            if any(math.isfinite(cell.mean) for cell in entry.line)
        ],
    }


def _training(run: Run, most: int) -> dict[str, Any]:
    count = len(run.epochs)
    kept = range(count) if count <= most else sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
    rows = [run.epochs[index] for index in kept]
    tuning = [row.epoch for row in run.epochs if row.phase == "finetune"]
    return {
        "epoch": [row.epoch for row in rows],
        "finetune": min(tuning, default=None),
        **{column: [number(getattr(row, column)) for row in rows] for column in COLUMNS},
    }


def _weights(run: Run, layouts: dict[tuple[Any, ...], int], edges: dict[tuple[float, ...], int]) -> dict[str, Any]:
    """Layers and histogram of a finished run; the names and edges that runs share are kept once."""
    layout = tuple(layer.name for layer in run.layers), tuple(layer.count.total for layer in run.layers)
    result: dict[str, Any] = {
        "layout": layouts.setdefault(layout, len(layouts)),
        "nonzero": [layer.count.nonzero for layer in run.layers],
    }
    if run.histogram:
        shared = tuple(number(edge) or 0.0 for edge in run.histogram.edges)
        result |= {
            "edges": edges.setdefault(shared, len(edges)),
            "counts": run.histogram.counts,
            "zeros": run.histogram.zeros,
        }
    if run.final:
        result["threshold"] = number(run.final.threshold)
    return result
