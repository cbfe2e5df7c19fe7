"""The rules of a fair comparison, all in this file.

Runs are compared within one recipe with equal settings, all but the learning rate, and equal data. For each method, seed and
compression c, of all points of all strengths and rates that are compressed at least c times, the one with the best *validation*
metric is taken, of equals the most compressed; its *test* metric is read. A cell is the mean and the standard deviation (n - 1)
over the seeds, and is there only if every seed of the method reaches c. Unequal budgets are warned of, never evened out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewa.record import Final, Point, Run

__all__ = [
    "LINE_STEPS",
    "TABLE_STEPS",
    "Cell",
    "Chosen",
    "Comparison",
    "Deployed",
    "Entry",
    "choose",
    "compare",
    "differing",
    "flat",
    "ladder",
]

TABLE_STEPS = (1.0, 2.0, 5.0)
LINE_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


@dataclass(frozen=True)
class Chosen:
    """What was chosen for one seed, on validation data."""

    run: Run
    point: Point

    @property
    def test(self) -> float:
        """Its test metric."""
        return self.point.test(self.run.metric)


@dataclass(frozen=True)
class Cell:
    """A method at one compression: mean and standard deviation of the test metric over its seeds."""

    compression: float
    chosen: tuple[Chosen, ...]

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.chosen)

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(choice.test for choice in self.chosen)

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds, with n - 1; None for one seed."""
        return _stdev([choice.test for choice in self.chosen])

    @property
    def prunable(self) -> float:
        """Mean compression of the prunable weights at the chosen points."""
        return statistics.fmean(choice.point.prunable.compression_ratio for choice in self.chosen)

    @property
    def model(self) -> float:
        """Mean compression of the whole model at the chosen points."""
        return statistics.fmean(choice.point.model.compression_ratio for choice in self.chosen)


@dataclass(frozen=True)
class Deployed:
    """A method's smallest files that keep the metric: one for each seed in which there is one.

    For each seed, the best validation metric of any method's final model is the mark. Of the method's final models that fall
    behind it by at most ``max_drop``, the one with the smallest file is taken.
    """

    chosen: tuple[Chosen, ...]
    seeds: int

    @property
    def finals(self) -> list[Final]:
        """The chosen models."""
        return [choice.point for choice in self.chosen if isinstance(choice.point, Final)]

    @property
    def file_bytes(self) -> float:
        """Mean size of the files."""
        return statistics.fmean(final.file_bytes for final in self.finals)

    @property
    def dense_bytes(self) -> float:
        """Mean size of the same models as dense files."""
        return statistics.fmean(final.dense_bytes for final in self.finals)

    @property
    def cell(self) -> Cell:
        """The test metric of the chosen models."""
        return Cell(math.nan, self.chosen)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method of a comparison: a name with its settings, at all strengths, rates and seeds that were run."""

    label: str
    method: str
    settings: Mapping[str, Any]
    strength_is: str
    strengths: tuple[float | None, ...]
    strengths_by_seed: Mapping[int, int]  # a strength at two learning rates counts twice
    epochs: tuple[int, ...]
    table: Mapping[float, Cell]
    line: tuple[Cell, ...]
    deployed: Deployed

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were run."""
        return tuple(self.strengths_by_seed)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The methods that were run with one recipe, on equal terms or with a warning."""

    title: str
    recipe: str
    metric: str
    entries: tuple[Entry, ...]
    compressions: tuple[float, ...]
    warnings: tuple[str, ...]
    runs: tuple[Run, ...]
    labels: Mapping[str, str]  # of the method of each run, by the run's folder

    @property
    def better(self) -> str:
        """Whether a ``"high"`` or a ``"low"`` metric is good."""
        return "high" if self.metric == "accuracy" else "low"

    @property
    def sign(self) -> int:
        """What the metric is multiplied by so that more is better."""
        return 1 if self.better == "high" else -1

    @property
    def max_drop(self) -> float:
        """The fall of the metric that the final models were allowed, the largest of all runs; 0 while none is finished."""
        drops = [run.final.max_drop for run in self.runs if run.final and math.isfinite(run.final.max_drop)]
        return max(drops, default=0.0)

    def best(self, compression: float) -> list[tuple[Entry, Cell]]:
        """The methods that reach a compression, best mean first.

        Args:
            compression: One of ``compressions``.
        """
        there = [(entry, entry.table[compression]) for entry in self.entries if compression in entry.table]
        finite = [pair for pair in there if math.isfinite(pair[1].mean)]
        return sorted(finite, key=lambda pair: pair[1].mean, reverse=self.better == "high")


def choose(choices: Iterable[Chosen], compression: float) -> Chosen | None:
    """The point with the best validation metric among those at least this compressed; of equals the most compressed.

    A model without any weight left is no model, and a metric that is not finite is no metric: neither is chosen.

    Args:
        choices: All points of one method and seed.
        compression: The least compression of the prunable weights.
    """
    allowed = [
        choice
        for choice in choices
        if choice.point.prunable.nonzero
        and choice.point.prunable.compression_ratio >= compression
        and math.isfinite(choice.point.validation(choice.run.metric))
    ]
    return max(allowed, key=lambda choice: (_goodness(choice), choice.point.prunable.compression_ratio), default=None)


def ladder(steps: Sequence[float], reach: float) -> tuple[float, ...]:
    """The compressions to look at: the steps in every decade, up to a largest one.

    Args:
        steps: From 1 to below 10, rising.
        reach: The largest compression.

    Example:
        >>> ladder((1, 2, 5), 30)
        (1.0, 2.0, 5.0, 10.0, 20.0)
    """
    decades = range(int(math.log10(max(reach, 1))) + 2)
    return tuple(value for decade in decades for step in steps if (value := float(step * 10**decade)) <= reach)


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Group runs by recipe and data, then by method, and choose as the rules say.

    Args:
        runs: From :func:`rewa.report.read`. Unfinished ones are kept for the page and left out of every cell.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_terms(run)].append(run)
    ordered = sorted(groups.values(), key=lambda members: _order(members[0]))
    apart: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for members in ordered:
        apart[str(members[0].recipe["name"])].append(_conditions(members[0]))
    comparisons = []
    for members in ordered:
        name = str(members[0].recipe["name"])
        others = differing(apart[name])
        mine = _conditions(members[0])
        title = ", ".join([name, *(f"{_short(key)} {_shown(mine.get(key))}" for key in others)])
        listed = " and ".join(f"{_short(key)} ({', '.join(map(_shown, values))})" for key, values in others.items())
        warning = (
            f"Runs of the recipe {name} differ in {listed}: they are shown apart, and a method of one part must not be "
            "compared with a method of another."
        )
        comparisons.append(_comparison(title, members, [warning] if others else []))
    return comparisons


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, the names joined by dots.

    Args:
        mapping: The settings.
        prefix: Put before every name.

    Example:
        >>> flat({"lr": 0.1, "numeric": {"device": "cpu"}})
        {'lr': 0.1, 'numeric.device': 'cpu'}
    """
    result: dict[str, Any] = {}
    for key, value in mapping.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that are not the same everywhere, with their distinct values in order of appearance.

    Args:
        settings: One flat mapping for each run or group of runs; a name that is missing counts as None.

    Example:
        >>> differing([{"lr": 0.1, "epochs": 20}, {"lr": 0.1, "epochs": 40}])
        {'epochs': [20, 40]}
    """
    names = dict.fromkeys(name for each in settings for name in each)
    result = {}
    for name in names:
        values = {json.dumps(each.get(name), sort_keys=True, default=str): each.get(name) for each in settings}
        if len(values) > 1:
            result[name] = list(values.values())
    return result


def _conditions(run: Run) -> dict[str, Any]:
    """What must be equal for two runs to be comparable: all but the rate, and the words that describe the recipe."""
    recipe = {key: value for key, value in run.recipe.items() if key not in ("line", "lr")}
    return flat({"recipe": recipe, "data": run.data})


def _terms(run: Run) -> str:
    return json.dumps(_conditions(run), sort_keys=True, default=str)


def _order(run: Run) -> tuple[Any, ...]:
    """By recipe, then by settings, numbers by size: 20 epochs before 100."""
    pairs = sorted(_conditions(run).items())
    values = ((key, float(value) if isinstance(value, (int, float)) else math.inf, str(value)) for key, value in pairs)
    return (str(run.recipe["name"]), *values)


def _short(key: str) -> str:
    return key.removeprefix("recipe.").replace(".", " ")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _goodness(choice: Chosen) -> float:
    """The validation metric, with the sign that makes more better."""
    value = choice.point.validation(choice.run.metric)
    return value if choice.run.metric == "accuracy" else -value


def _stdev(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    # The standard library's stdev cannot take a value that is not finite.
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _without_strengths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method without the strengths of the methods that it wraps."""
    inner = {key: _without_strengths(value) for key, value in settings.items() if isinstance(value, Mapping)}
    return {key: inner.get(key, value) for key, value in settings.items() if key != "strength"}


def _key(run: Run) -> str:
    return json.dumps([run.method, _without_strengths(run.settings)], sort_keys=True, default=str)


def _alike_but_for_the_rate(runs: Sequence[Run]) -> set[str]:
    """The methods whose inner strengths differ with the learning rate only, since a default follows from the rate."""
    by_rate: dict[str, dict[float, set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        by_rate[_key(run)][run.lr].add(json.dumps(run.settings, sort_keys=True, default=str))
    return {key for key, rates in by_rate.items() if all(len(found) == 1 for found in rates.values())}


def _comparison(title: str, runs: Sequence[Run], warnings: list[str]) -> Comparison:
    variants: dict[tuple[str, str], list[Run]] = defaultdict(list)
    alike = _alike_but_for_the_rate(runs)
    for run in runs:
        settings = _without_strengths(run.settings) if _key(run) in alike else run.settings
        variants[run.method, json.dumps(settings, sort_keys=True, default=str)].append(run)
    # Dense first, for it is what the others are measured against; then by name.
    ordered = sorted(variants.items(), key=lambda item: (item[0][0] != "dense", *item[0]))
    labels: dict[str, str] = {}
    named: list[tuple[str, list[Run]]] = []
    for (method, _), members in ordered:
        unlike = differing([flat(other[0].settings) for (name, _), other in ordered if name == method])
        mine = flat(members[0].settings)
        extra = ", ".join(f"{key}={_shown(mine.get(key))}" for key in unlike)
        label = f"{method} ({extra})" if extra else method
        labels |= {str(run.folder): label for run in members}
        named.append((label, members))

    kept: list[tuple[str, list[Run]]] = []
    for label, members in named:
        single: dict[tuple[Any, ...], Run] = {}
        for run in members:
            if not run.finished:
                continue
            if (first := single.setdefault((run.strength, run.lr, run.seed), run)) is not run:
                warnings.append(
                    f"{run.folder.name} repeats {first.folder.name} (same method, strength, lr and seed) and is left out of "
                    "the tables: choosing among repetitions would favour a method that has them."
                )
        if single:
            kept.append((label, list(single.values())))
    pools: dict[str, dict[int, list[Chosen]]] = {}
    for label, members in kept:
        pool: dict[int, list[Chosen]] = defaultdict(list)
        for run in sorted(members, key=lambda run: run.seed):
            pool[run.seed] += [Chosen(run, point) for point in run.curve]
        pools[label] = pool
    marks: dict[int, float] = {}
    for run in (run for _, members in kept for run in members):
        if run.final and choose([Chosen(run, run.final)], 0):
            marks[run.seed] = max(marks.get(run.seed, -math.inf), _goodness(Chosen(run, run.final)))
    entries = tuple(_entry(label, members, pools[label], marks) for label, members in kept)
    reached = [compression for entry in entries for compression in entry.table]
    warnings += _unequal(entries)
    if missing := [run for run in runs if not run.finished]:
        names = ", ".join(run.name for run in missing[:5]) + (", ..." if len(missing) > 5 else "")
        count = "1 run is" if len(missing) == 1 else f"{len(missing)} runs are"
        warnings.append(f"{count} unfinished and left out of the tables: {names}.")
    return Comparison(
        title=title,
        recipe=str(runs[0].recipe["name"]),
        metric=runs[0].metric,
        entries=entries,
        compressions=tuple(sorted(set(reached))),
        warnings=tuple(warnings),
        runs=tuple(runs),
        labels=labels,
    )


def _entry(label: str, runs: Sequence[Run], pool: Mapping[int, list[Chosen]], marks: Mapping[int, float]) -> Entry:
    ratios = [choice.point.prunable.compression_ratio for points in pool.values() for choice in points]
    reach = max((ratio for ratio in ratios if math.isfinite(ratio)), default=1.0)

    def cells(steps: Sequence[float]) -> list[Cell]:
        result = []
        for compression in ladder(steps, reach):
            chosen = [choose(points, compression) for points in pool.values()]
            found = tuple(choice for choice in chosen if choice is not None)
            if len(found) == len(pool):
                result.append(Cell(compression, found))
        return result

    strengths = {run.strength for run in runs}
    return Entry(
        label=label,
        method=runs[0].method,
        settings=runs[0].settings,
        strength_is=runs[0].strength_is,
        strengths=tuple(sorted(strengths, key=lambda strength: -math.inf if strength is None else strength)),
        strengths_by_seed={seed: len({(run.strength, run.lr) for run in runs if run.seed == seed}) for seed in pool},
        epochs=tuple(sorted({len(run.epochs) for run in runs})),
        table={cell.compression: cell for cell in cells(TABLE_STEPS)},
        line=tuple(cells(LINE_STEPS)),
        deployed=_deployed(runs, marks),
    )


def _deployed(runs: Sequence[Run], marks: Mapping[int, float]) -> Deployed:
    by_seed: dict[int, list[tuple[int, Chosen]]] = defaultdict(list)
    for run in runs:
        final, mark = run.final, marks.get(run.seed)
        if final is None or mark is None:
            continue
        choice = choose([Chosen(run, final)], 0)
        # The drop is a difference of rounded numbers: a fall by exactly max_drop must not fail by the last bit.
        if choice and mark - _goodness(choice) <= final.max_drop + 1e-9:
            by_seed[run.seed].append((final.file_bytes, choice))
    smallest = [min(found, key=lambda pair: pair[0])[1] for _, found in sorted(by_seed.items())]
    return Deployed(tuple(smallest), len({run.seed for run in runs}))


def _unequal(entries: Sequence[Entry]) -> list[str]:
    """A sentence about each budget that is not the same for all methods."""
    budgets: dict[str, list[tuple[int, ...]]] = {
        "seeds": [(len(entry.seeds),) for entry in entries],
        "strengths": [tuple(sorted(set(entry.strengths_by_seed.values()))) for entry in entries],
        "epochs": [entry.epochs for entry in entries],
    }
    found = []
    for what, values in budgets.items():
        if len({number for value in values for number in value}) > 1:
            listed = (f"{entry.label} {'-'.join(map(str, value))}" for entry, value in zip(entries, values, strict=True))
            found.append(f"Unequal budgets: the methods differ in the number of {what} ({', '.join(listed)}).")
    seeds = {entry.seeds for entry in entries}
    if len(seeds) > 1 and len({len(each) for each in seeds}) == 1:
        listed = (f"{entry.label}: {', '.join(map(str, entry.seeds))}" for entry in entries)
        found.append(f"The methods were run with different seeds ({'; '.join(listed)}).")
    precisions = {
        entry.label: sorted({str(choice.run.numeric.get("precision")) for cell in entry.line for choice in cell.chosen})
        for entry in entries
    }
    if len({name for names in precisions.values() for name in names}) > 1:
        listed = (f"{label} {' and '.join(names)}" for label, names in precisions.items())
        found.append(f"The methods were run with different numeric precision ({', '.join(listed)}).")
    return found
