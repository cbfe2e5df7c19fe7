"""Sparse regression as a result: measure, record, and write the tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rewa.experiments.regression import protocol
from rewa.experiments.regression.contenders import ALPHAS, CONTENDERS, DEPTH, FOLDS
from rewa.experiments.regression.designs import DESIGNS
from rewa.experiments.regression.tables import lead, to_panels
from rewa.experiments.result import How, Result
from rewa.files import write_atomically
from rewa.report.files import publish

__all__ = ["REGRESSION", "REGRESSION_SEEDS", "Regression"]

RECORD = "regression.json"
UNFINISHED = "unfinished.json"  # what an interrupted command has measured


@dataclass(frozen=True, kw_only=True)
class Regression(Result):
    """What is selected, how well it predicts and how long it takes, beside scikit-learn, skglm and abess.

    designs: Three designs with a known support. A: 2,000 rows of 10,000 independent columns, one coefficient of 1, noise of
        variance 1. B: 500 rows of 2,000 columns, each correlated by .5 with the next, 20 coefficients of 1, as much noise as
        signal. C: B with a fifth of the noise. Ours has one setting for all, its default. Rivals know that there is no
        intercept and search 50 penalties down to .03 of the largest, by 5 folds where nothing else is said. "First call" is
        the imports and the first fit of a process, the warm-up is what that took above the second fit of the same data.
        Then, in turns, ours with 50 penalties and 5 folds against skglm's L0.5 with as many, each turn in a fresh process.
    data: scikit-learn's breast-cancer, wine and diabetes with 2,000 columns of noise, five random splits.
    scaling: Seconds of one path of 50 penalties against the number of columns, sparse X of 500 rows.

    Every method runs in a process of its own, with one thread, one after the other. skglm and abess are optional: the tables
    say what is not installed.

    Args:
        parts: Which parts; a part that is not run keeps the record it had.
        designs: Which designs.
        methods: Which methods, keys of :data:`rewa.experiments.regression.contenders.CONTENDERS`.
        seeds: Data sets of designs B and C; A has one.
        rounds: Turns against skglm's L0.5.
        timeout: Seconds that a process may take; None to measure in this process.
        tiny: Whether the data are small, so that the numbers mean nothing.
    """

    redraws: ClassVar[bool] = True

    quick: bool = True
    parts: tuple[str, ...] = protocol.PARTS
    designs: tuple[str, ...] = tuple(DESIGNS)
    methods: tuple[str, ...] = tuple(CONTENDERS)
    seeds: int = 3
    rounds: int = 3
    timeout: float | None = 900.0
    tiny: bool = False

    def __post_init__(self) -> None:
        for name, known in (("parts", protocol.PARTS), ("designs", DESIGNS), ("methods", CONTENDERS)):
            if unknown := set(getattr(self, name)) - set(known):
                raise ValueError(f"{name}: {', '.join(sorted(unknown))} is not known (known: {', '.join(known)})")
        if min(self.seeds, self.rounds) < 1:
            raise ValueError(f"seeds and rounds must be at least 1, got seeds={self.seeds}, rounds={self.rounds}")

    def small(self) -> Regression:
        """A version that takes seconds: tiny data, the lasso as the only rival that needs no other package, one process."""
        return replace(self, methods=("oracle", "rewa", "lasso", "l0.5"), seeds=2, rounds=1, timeout=None, tiny=True)

    def run(self, out: Path, how: How) -> list[Path]:
        """Measure what an interrupted command left to measure, and write the record and its tables.

        Args:
            out: The folder of the result.
            how: With ``trained`` nothing is measured, and the tables are made from the record; ``workers`` is not used, since
                timings need the machine to themselves.
        """
        if how.quick:
            return self.small().run(out, replace(how, quick=False))
        path = out / RECORD
        record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if how.trained and not record:
            raise ValueError(f"{path} does not exist: leave out --trained")
        if not how.trained:
            measured = self._measured(out, how)
            record = {part: {**record, **measured}[part] for part in protocol.PARTS if part in {**record, **measured}}
            write_atomically(path, json.dumps(record, indent=1, allow_nan=False))
            (out / UNFINISHED).unlink()
        title = "Sparse regression beside scikit-learn, skglm and abess"
        made = {part: found["provenance"] for part, found in record.items()}
        shown = to_panels(record)
        return [path, *publish(out, "regression", title=title, lead=lead(record), panels=shown, provenance=made)]

    def _measured(self, out: Path, how: How) -> dict[str, Any]:
        """Measure and make the record of the parts. What is measured is kept at once, and an interrupted command resumes."""
        counts = {"seeds": self.seeds, "rounds": self.rounds}
        todo = list(protocol.measurements(self.parts, self.designs, self.methods, **counts, tiny=self.tiny))
        made = protocol.origin()
        terms = json.loads(json.dumps({**made, "study": asdict(self)}))  # as they come back from a file
        unfinished = out / UNFINISHED
        before = json.loads(unfinished.read_text()) if unfinished.exists() else {}
        results: list[dict[str, Any]] = before["results"] if before.get("terms") == terms else []
        how.progress.stage(f"measuring {len(todo)} fits", sum(one.cost for one in todo))
        for number, one in enumerate(todo):
            if number >= len(results):
                results.append(protocol.run(one, self.timeout))
                write_atomically(unfinished, json.dumps({"terms": terms, "results": results}))
            how.progress.advance(one.cost)
        settings = {"alphas": ALPHAS, "depth": DEPTH, "folds": FOLDS, "seeds": self.seeds, "quick": self.tiny}
        return protocol.to_record(results, self.parts, {"provenance": made, "settings": settings})


REGRESSION = Regression(line="sparse regression beside scikit-learn, skglm and abess: three designs, real data, many columns")
REGRESSION_SEEDS = Regression(
    line="the two hard designs of it on thirty data sets",
    parts=("designs",),
    designs=("B", "C"),
    methods=("oracle", "rewa", "lasso", "relaxed", "adaptive", "mcp", "l0.5", "l0.5-own", "l2/3", "abess"),
    seeds=30,
)
