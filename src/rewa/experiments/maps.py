"""Beyond one true weight: noise, several weights of mixed signs, correlated features, and where each method stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from rewa.experiments import designs
from rewa.experiments.designs import Design
from rewa.experiments.linear import Score, lasso_scores, mean_sd, publish, read_record, score, to_score
from rewa.experiments.result import How, Result
from rewa.lockstep import Column, fit
from rewa.report.panel import Axis, Cell, Heat, Panel, Table

__all__ = ["MAPS", "Maps"]

Place = tuple[float, float, int]  # rho, noise, number of true weights
METHODS = ("tied ReWA", "pair ReWA", "SGD-l1", "Lasso")


@dataclass(frozen=True, kw_only=True)
class Maps(Result):
    """Four methods over noise, number of true weights and correlation.

    Each method by SGD has the same grid of strengths, in units of the noise, of which the one with the best loss on a fifth of
    the samples is taken; then it is trained again on all of them. The lasso's penalty is chosen by five folds.

    Args:
        n: Samples.
        d: Features.
        seeds: Data sets for each place.
        epochs: Passes over the data.
        lr: Learning rate.
        K: Order of both forms of ReWA.
        M: Adaptivity exponent.
        strengths: Weight decays, or strengths of the l1 penalty, over the noise.
        rhos: Correlations of neighbouring features.
        noises: Standard deviations of the noise.
        sizes: Numbers of true weights, of value 1 and -1 in turn.
    """

    redraws: ClassVar[bool] = True
    line: str = "tied and pair ReWA, SGD-l1 and Lasso over noise, number of true weights and correlation"
    quick: bool = True
    n: int = 500
    d: int = 1000
    seeds: int = 5
    epochs: int = 1000
    lr: float = 4e-3
    K: int = 9
    M: int = 2
    strengths: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    rhos: tuple[float, ...] = (0.0, 0.5)
    noises: tuple[float, ...] = (1.0, 2.0, 4.0)
    sizes: tuple[int, ...] = (1, 5, 10, 20)

    def run(self, out: Path, how: How) -> list[Path]:
        """Train and score every method at every place."""
        study = replace(self, n=100, d=100, seeds=2, epochs=10, noises=(1.0,), sizes=(1, 5)) if how.quick else self
        places = [(rho, noise, size) for rho in study.rhos for noise in study.noises for size in study.sizes]
        if how.trained:
            record = read_record(out, "maps")["places"]
            kept = {(each["rho"], each["noise"], each["true_weights"]): each for each in record}
            recorded = {
                place: {name: [to_score(run) for run in runs] for name, runs in kept[place]["methods"].items()}
                for place in places
            }
            return study.write(out, recorded, {place: kept[place]["strengths"] for place in places}, again=True)
        how.progress.stage(
            f"{len(METHODS)} methods at {len(places)} places, {study.seeds} data sets each", len(places) * study.seeds
        )
        results: dict[Place, dict[str, list[Score]]] = {place: {method: [] for method in METHODS} for place in places}
        chosen: dict[Place, list[dict[str, float]]] = {place: [] for place in places}
        for place in places:
            for seed in range(study.seeds):
                scores, strengths = study.compare(place, seed, how.workers)
                for method, found in scores.items():
                    results[place][method].append(found)
                chosen[place].append(strengths)
                how.progress.advance(1)
        return study.write(out, results, chosen)

    def write(
        self,
        out: Path,
        results: Mapping[Place, Mapping[str, Sequence[Score]]],
        chosen: Mapping[Place, Sequence[Mapping[str, float]]],
        *,
        again: bool = False,
    ) -> list[Path]:
        """Write the maps from what was trained; their record only if they are not drawn again from that."""
        taken = [strength for strengths in chosen.values() for each in strengths for strength in each.values()]
        edges = (self.strengths[0], self.strengths[-1])
        ends, total = sum(any(math.isclose(strength, edge) for edge in edges) for strength in taken), len(taken)
        lead = (
            f"{self.n} samples of {self.d:,} features, {self.seeds} data sets for each place. ReWA (K = {self.K}, M = "
            f"{self.M}) and SGD-l1 take the best of {len(self.strengths)} strengths, multiples of the noise, on a fifth of "
            "the samples and train again on all; the lasso chooses by five folds. An end of the grid was chosen in "
            f"{ends} of {total} cases."
        )
        settings = {key: value for key, value in asdict(self).items() if key not in ("line", "quick")}
        numbers = {
            "settings": settings,
            "places": [{**self.numbers(place, found), "strengths": chosen[place]} for place, found in results.items()],
        }
        return publish(
            out,
            "maps",
            title="Where ReWA, SGD with l1 and the lasso stand",
            message=self.message(results),
            lead=lead,
            shown=self.panels(results),
            numbers=None if again else numbers,
            columns=4,
        )

    def message(self, results: Mapping[Place, Mapping[str, Sequence[Score]]]) -> str:
        """Who has the best mean F1 at how many places; a tie counts for all."""
        wins = dict.fromkeys(METHODS, 0)
        for (_, _, size), found in results.items():
            means = {method: mean_sd(f1(score, size) for score in scores)[0] for method, scores in found.items()}
            for method, mean in means.items():
                wins[method] += math.isclose(mean, max(means.values()))
        (first, most), *others = sorted(wins.items(), key=lambda pair: -pair[1])
        rest = "".join(f", {method} at {count}" for method, count in others if count)
        tied = " (ties count for all)" if sum(wins.values()) > len(results) else ""
        return f"{first[0].upper()}{first[1:]} has the best F1 at {most} of {len(results)} places{rest}{tied}"

    def columns(self, noise: float) -> dict[str, list[Column]]:
        """The settings of the methods by SGD."""
        common: dict[str, Any] = {"K": self.K, "M": self.M, "lr": self.lr}
        strengths = [strength * noise for strength in self.strengths]
        return {
            "tied ReWA": [Column(**common, weight_decay=strength) for strength in strengths],
            "pair ReWA": [Column(**common, weight_decay=strength, form="pair") for strength in strengths],
            "SGD-l1": [Column(K=1, M=0, lr=self.lr, weight_decay=strength, form="l1") for strength in strengths],
        }

    def compare(self, place: Place, seed: int, threads: int | None = None) -> tuple[dict[str, Score], dict[str, float]]:
        """Every method on one data set, and the strengths that were chosen."""
        rho, noise, size = place
        design = designs.sparse(seed=seed, n=self.n, d=self.d, s=size, noise=noise, rho=rho)
        chosen = self.choose(design, noise, seed, threads)
        # In batches of 25, as in the paper.
        trained = fit(design.X, design.y, list(chosen.values()), epochs=self.epochs, seed=seed, threads=threads)
        found = {
            method: score(design, coef, bias, seed=seed)
            for method, coef, bias in zip(chosen, trained.coef, trained.bias, strict=True)
        }
        strengths = {method: column.weight_decay / noise for method, column in chosen.items()}
        return {**found, "Lasso": lasso_scores(design, [seed], threads=threads)[0]}, strengths

    def choose(self, design: Design, noise: float, seed: int, threads: int | None = None) -> dict[str, Column]:
        """For each method the setting that is best on a fifth of the samples when trained on the rest."""
        kept = 4 * len(design.X) // 5
        settings = {method: [replace(each, seed=seed) for each in columns] for method, columns in self.columns(noise).items()}
        flat = [column for columns in settings.values() for column in columns]
        trained = fit(design.X[:kept], design.y[:kept], flat, epochs=self.epochs, seed=seed, threads=threads)
        losses = (trained.predict(design.X[kept:]) - design.y[kept:, None]).square().mean(dim=0)
        by_setting = dict(zip(flat, torch.where(losses.isfinite(), losses, math.inf).tolist(), strict=True))
        return {method: min(columns, key=by_setting.__getitem__) for method, columns in settings.items()}

    def panels(self, results: Mapping[Place, Mapping[str, Sequence[Score]]]) -> list[Panel]:
        """F1 of the support by method and correlation, and the test losses."""
        shown: list[Panel] = []
        for rho in self.rhos:
            for method in METHODS:
                cells = [
                    [self.cell(results[rho, noise, size][method], noise, size) for size in self.sizes] for noise in self.noises
                ]
                shown.append(
                    Heat(
                        title=f"{method}, rho = {rho:g}",
                        caption=f"F1 of the weights above 1e-3 against the true ones, mean of {self.seeds} data sets.",
                        x=Axis(label="true weights", values=self.sizes),
                        y=Axis(label="noise", values=self.noises),
                        cells=cells,
                        label="F1",
                        low=0.0,
                        high=1.0,
                        reverse=True,
                    )
                )
        rows = [
            [f"{rho:g}", f"{noise:g}", str(size)] + [_share(results[rho, noise, size][method], noise) for method in METHODS]
            for rho in self.rhos
            for noise in self.noises
            for size in self.sizes
        ]
        table = Table(
            title="Test loss over the variance of the noise",
            caption=f"Mean and standard deviation of {self.seeds} data sets; 1 is the best possible.",
            header=("rho", "noise", "true weights", *METHODS),
            rows=rows,
        )
        return [*shown, table]

    @staticmethod
    def cell(scores: Sequence[Score], noise: float, size: int) -> Cell:
        """F1 at one place."""
        mean, sd = mean_sd(f1(score, size) for score in scores)
        found, chosen = (mean_sd(values)[0] for values in ([s.found for s in scores], [s.counts[-1] for s in scores]))
        says = (
            f"noise {noise:g}, {size} true weights",
            f"F1 {mean:.2f} ± {sd:.2f}",
            f"found {found:.1f} among {chosen:.1f} chosen",
            f"exactly the true ones in {sum(score.found == size == score.counts[-1] for score in scores)} of {len(scores)}",
            f"test loss over noise variance {_share(scores, noise)}",
        )
        return Cell(value=mean, text=f"{mean:.2f}", says=says)

    @staticmethod
    def numbers(place: Place, found: Mapping[str, Sequence[Score]]) -> dict[str, Any]:
        """One place, for the record."""
        rho, noise, size = place
        methods = {method: [{**asdict(each), "f1": f1(each, size)} for each in scores] for method, scores in found.items()}
        return {"rho": rho, "noise": noise, "true_weights": size, "methods": methods}


def f1(score: Score, size: int) -> float:
    """Harmonic mean of precision and recall of the weights above the largest threshold.

    Args:
        score: The score.
        size: Number of true weights.
    """
    return 2 * score.found / (score.counts[-1] + size)


def _share(scores: Sequence[Score], noise: float) -> str:
    mean, sd = mean_sd(score.test_loss / noise**2 for score in scores)
    return f"{mean:.2f} ± {sd:.2f}"


MAPS = Maps()
