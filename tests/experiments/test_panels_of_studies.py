"""What the studies of linear models show: every number in its place, from scores made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rewa.experiments import designs
from rewa.experiments.fig1 import FIG1
from rewa.experiments.fig2 import FIG2A, FIG2B, table, weights_left
from rewa.experiments.linear import THRESHOLDS, Score, lasso_scores
from rewa.experiments.maps import MAPS, METHODS
from rewa.experiments.success import LOGISTIC, SUCCESS, wilson
from rewa.lockstep import Column, fit
from rewa.theory import growth_start


def made(**given):
    """A score of which only some fields matter."""
    fields = {"seed": 0, "counts": (0,) * len(THRESHOLDS), "test_loss": 1.0, "recovered": False, "found": 0}
    return Score(**{**fields, "start": 0.0, "error": 0.0, "first": 0.0, **given})


# ------------------------------------------------------------------------------------------------- Figure 1


def test_fig1_has_every_loss_in_its_cell():
    study = replace(FIG1, orders=(3, 5), exponents=(0, 2, 3, 4), seeds=2)

    def middle_and_spread(K, M, form):
        return 1 + K / 20 + M / 100 + (0.5 if form == "pair" else 0), 0.01 * (K + M)

    trained = {}
    for column in study.columns():
        middle, spread = middle_and_spread(column.K, column.M, column.form)
        recovered = [column.form == "pair", False]
        trained[column] = [
            made(test_loss=middle + side * spread, recovered=each, counts=(9,) * 8 + (column.K + each,))
            for side, each in zip((1, -1), recovered, strict=True)
        ]
    shown = study.panels(trained, ())
    assert [panel.title for panel in shown] == ["the paper's form, x = sign(y)|y|^K", "as a pair, x = |u|^K - |v|^K"]
    for form, panel in zip(("tied", "pair"), shown, strict=True):
        assert (panel.x.label, tuple(panel.x.values)) == ("K", (3, 5))
        assert (panel.y.label, tuple(panel.y.values)) == ("M", (0, 2, 3, 4))
        assert [len(row) for row in panel.cells] == [2] * 4
        for M, row in zip((0, 2, 3, 4), panel.cells, strict=True):
            for K, cell in zip((3, 5), row, strict=True):
                if M >= K:
                    assert (cell.value, cell.text, cell.says) == (None, "", ())
                    continue
                middle, spread = middle_and_spread(K, M, form)
                sd = spread * math.sqrt(2)  # of two values, with n - 1
                assert cell.value == pytest.approx(middle)
                assert cell.text == f"{middle:.2f}\n±{sd:.2f}"
                assert cell.says == (
                    f"K = {K}, M = {M}: p = {1 - (M - 1) / K:.2f}",
                    f"test loss {middle:.3f} ± {sd:.3f}",
                    f"recovered in {int(form == 'pair')} of 2 runs",
                    f"weights above 1e-3: {K + (form == 'pair')}, {K}",
                )


# ------------------------------------------------------------------------------------------------- Figure 2


def runs(least, **given):
    """Two runs with 3 weights less and more than ``least`` above the largest threshold, and 50 more for each one below it."""
    means = [least + 50 * below for below in reversed(range(len(THRESHOLDS)))]
    return [made(counts=tuple(mean + side for mean in means), **given) for side in (-3, 3)]


def ends(lines):
    """The labels of the lines, and the counts in which they start and end."""
    return [(series.label, series.marks[0].y, series.marks[-1].y) for series in lines.series]


def test_fig2a_shows_both_forms_beside_sgd_l1_and_the_lasso():
    rewa, l1 = (column for _, column in FIG2A.settings)
    trained = {rewa: runs(10), replace(rewa, form="pair"): runs(20), l1: runs(30)}
    tied, pair, numbers = FIG2A.panels(trained, runs(40))
    assert (tied.title, pair.title) == ("the paper's form", "as pairs")
    assert ends(tied) == [("ReWA K=9 M=5", 410, 10), ("SGD-l1", 430, 30), ("Lasso", 440, 40)]
    assert ends(pair) == [("ReWA K=9 M=5, pair", 420, 20), ("SGD-l1", 430, 30), ("Lasso", 440, 40)]
    assert [(row[0], row[-1]) for row in numbers.rows] == [
        ("ReWA K=9 M=5", "10.0"),
        ("SGD-l1", "30.0"),
        ("ReWA K=9 M=5, pair", "20.0"),
        ("Lasso", "40.0"),
    ]
    assert "Lasso" not in [label for label, *_ in ends(FIG2A.panels(trained, ())[0])]


def test_in_fig2_what_has_no_pair_stands_beside_the_pairs():
    trained = {column: runs(10 * index) for index, column in enumerate(FIG2B.columns(), 1)}
    tied, pair, numbers = FIG2B.panels(trained, ())
    labels = ["K=9 M=5", "K=7 M=4", "K=5 M=2", "K=3 M=0"]
    rivals = [("K=1 M=0, l1", 450, 50), ("K=1 M=0, decay", 460, 60)]
    assert ends(tied) == [(label, 400 + 10 * index, 10 * index) for index, label in enumerate(labels, 1)] + rivals
    assert ends(pair) == [(f"{label}, pair", 400 + 10 * index, 10 * index) for index, label in enumerate(labels, 7)] + rivals
    assert [row[0] for row in numbers.rows] == [
        *labels,
        *(label for label, *_ in rivals),
        *(f"{each}, pair" for each in labels),
    ]


def test_lines_have_a_point_and_a_band_at_each_threshold():
    lines = weights_left("title", [("some", runs(100)), ("few", [made(counts=(count,) * 9) for count in (0, 0, 6)])], 1000)
    assert (lines.x, lines.y, lines.x_log, lines.y_log, lines.y_range) == ("threshold", "weights left", True, True, (0, 1000))
    some, few = lines.series
    assert [point.x for point in some.marks] == list(THRESHOLDS)
    for index, point in enumerate(some.marks):
        mean = 100 + 50 * (8 - index)
        assert point.y == mean
        assert (point.low, point.high) == pytest.approx((mean - math.sqrt(18), mean + math.sqrt(18)))
    assert some.marks[1].says == ("above 5e-07: 450.0 ± 4.2", "by seed: 447, 453")
    # Mean 2, and a deviation of sqrt(12) that would reach below zero.
    assert {(point.y, point.low, round(point.high, 3)) for point in few.marks} == {(2.0, 0.0, 5.464)}


def test_the_table_beside_the_lines():
    first, second = runs(1000)
    scores = [replace(first, test_loss=1.1, recovered=True), replace(second, test_loss=1.3)]
    shown = table([("one", scores), ("other", runs(7, test_loss=2.0, recovered=True))])
    assert tuple(shown.header) == ("method", "test loss", "recovered", "weights above 1e-7", "above 1e-5", "above 1e-3")
    assert [list(row) for row in shown.rows] == [
        ["one", "1.200 ± 0.141", "1/2", "1,400.0", "1,200.0", "1,000.0"],
        ["other", "2.000 ± 0.000", "2/2", "407.0", "207.0", "7.0"],
    ]


# -------------------------------------------------------------------------------------------- how often it works


@pytest.fixture(params=["squared", "logistic"])
def success(request):
    """A study, its data, and for each setting its own number of successes and prediction."""
    small = {"orders": (3, 9), "exponents": (0, 1, 2, 4), "seeds": 40, "scales": (0.1, 1.0), "factors": (0.5, 1.0)}
    if request.param == "squared":
        study, design = replace(SUCCESS, **small), designs.paper(n=50, d=20, n_test=10)
    else:
        study, design = replace(LOGISTIC, **small), designs.logistic(seed=0, n=50, d=20, n_test=10)
    true = int((design.beta != 0).sum())
    columns = list(dict.fromkeys(replace(column, loss=design.loss) for column in study.columns()))
    assert len(columns) == 2 * 8 + 2 * 3
    hits = {column: index for index, column in enumerate(columns)}
    # Beside those that succeed, 5 runs keep the true weights alone with a bad loss, and 4 keep too much.
    trained = {
        column: [
            made(
                recovered=run < hits[column],
                found=true if run < hits[column] + 9 else 0,
                counts=(99,) * 8 + (true if run < hits[column] + 5 else 7,),
                test_loss=1 + hits[column] / 100,
            )
            for run in range(40)
        ]
        for column in columns
    }
    return study, design, trained, hits, {column: 0.9 - index / 100 for column, index in hits.items()}


def test_the_map_of_success_has_what_was_measured_and_what_is_predicted(success):
    study, design, trained, hits, shares = success
    for form, title in (("tied", "the paper's form, x = sign(y)|y|^K"), ("pair", "as a pair, x = |u|^K - |v|^K")):
        panel = study.heat(form, trained, shares, design)
        assert panel.title == title
        assert (panel.x.label, tuple(panel.x.values)) == ("K", (3, 9))
        assert (panel.y.label, tuple(panel.y.values)) == ("M", (0, 1, 2, 4))
        assert (panel.low, panel.high, panel.reverse) == (0, 1, True)
        for M, row, predictions in zip((0, 1, 2, 4), panel.cells, panel.overlay, strict=True):
            for K, cell, prediction in zip((3, 9), row, predictions, strict=True):
                column = Column(K=K, M=M, lr=study.lr, weight_decay=study.weight_decay, form=form, loss=design.loss)
                assert cell.value == hits[column] / 40
                assert cell.text == f"{hits[column]}/40"
                assert prediction == shares[column]
                assert cell.says[:3] == (
                    f"K = {K}, M = {M}, {form}",
                    f"recovered in {hits[column]} of 40 runs",
                    f"true weights kept in {hits[column] + 9}; the growth condition predicts {shares[column]:.0%}",
                )
                assert cell.says[3] == f"median test loss {1 + hits[column] / 100:.3f}"


def test_the_moves_show_measured_and_predicted_shares_of_each_form(success):
    study, design, trained, hits, shares = success
    moved = {
        "initial scale": ("scale", (0.1, 1.0)),
        "learning rate": ("lr", (study.lr / 2, study.lr)),
        "weight decay": ("weight_decay", (study.weight_decay / 2, study.weight_decay)),
    }
    for name, (field, values) in moved.items():
        lines = study.moved(name, trained, shares, design)
        assert lines.x == name
        assert lines.title == f"{name}, K = 9 and M = 4"
        assert [series.label for series in lines.series] == ["tied", "tied, predicted", "pair", "pair, predicted"]
        assert [(series.bars, series.dashed, series.of) for series in lines.series] == [
            setting for form in ("tied", "pair") for setting in ((True, False, None), (False, True, form))
        ]
        for form, measured, predicted in zip(("tied", "pair"), lines.series[::2], lines.series[1::2], strict=True):
            for value, point, prediction in zip(values, measured.marks, predicted.marks, strict=True):
                centre = Column(K=9, M=4, lr=study.lr, weight_decay=study.weight_decay, form=form, loss=design.loss)
                column = replace(centre, **{field: value})
                assert (point.x, prediction.x) == (value, value)
                assert point.y == hits[column] / 40
                assert (point.low, point.high) == wilson(hits[column], 40)
                assert prediction.y == shares[column]
                assert prediction.low is prediction.high is None


def test_what_success_is_made_of(success):
    study, design, trained, hits, shares = success
    shown = study.kept(trained, shares, design)
    rows = {row[0]: row[1:] for row in shown.rows}
    assert len(rows) == len(shown.rows) == 2 * 3 * 2
    for form in ("tied", "pair"):
        column = Column(K=9, M=4, lr=study.lr, weight_decay=study.weight_decay, form=form, loss=design.loss, scale=0.1)
        n = hits[column]
        expected = [f"{shares[column]:.0%}", f"{n + 9}/40", f"{n + 5}/40", f"{n}/40", f"{1 + n / 100:.3f}"]
        assert list(rows[f"{form}, initial scale 0.1"]) == expected


def test_starts_that_were_kept_and_lost_stand_beside_the_least_that_grows(success):
    study, design, trained, *_ = success
    # All four kinds of an end: zero but for a remainder of either sign, and kept with either sign.
    kinds = ((-0.02, 5e-4), (0.001, -9e-4), (0.004, 0.9), (0.01, -0.5))
    for column in trained:
        shift = 1.0 if column.form == "pair" else (column.K + column.M) * 1e-4  # the pairs must not be seen
        trained[column] = [made(start=start + shift, first=first) for start, first in kinds]
    edges = {(3, 2): 2, (9, 2): 0}  # all are lost, or none
    for (K, M), kind in edges.items():
        column = replace(study.column(K, M, "tied"), loss=design.loss)
        trained[column] = [replace(score, first=kinds[kind][1]) for score in trained[column]]
    shown = study.starts(trained, design)
    assert tuple(shown.header[:2]) == ("K", "M")
    assert ("least" in shown.header[2], "lost" in shown.header[3], "kept" in shown.header[4]) == (True, True, True)
    x, y = design.X[:, 0].tolist(), design.y.tolist()
    if design.loss == "squared":
        gradient = sum(-2 * a * b for a, b in zip(x, y, strict=True)) / 50
    else:
        gradient = sum(a * (0.5 - b) for a, b in zip(x, y, strict=True)) / 50
    assert gradient < 0, "the true weight is positive"
    expected = []
    for K in (3, 9):
        for M in (1, 2, 4):
            if M == 1:
                least = 0.0 if -gradient > study.weight_decay else math.inf
            else:
                least = (study.weight_decay / -gradient) ** (K / (M - 1))
                assert least == pytest.approx(float(growth_start(gradient, K, M, lam=study.weight_decay)))
            shift = (K + M) * 1e-4
            lost, kept = f"{0.001 + shift:+.2g}", f"{0.004 + shift:+.2g}"
            if (K, M) in edges:
                lost, kept = (f"{0.01 + shift:+.2g}", "none") if edges[K, M] == 0 else ("none", f"{-0.02 + shift:+.2g}")
            expected.append([str(K), str(M), f"{least:.2g}", lost, kept])
    assert [list(row) for row in shown.rows] == expected


def test_a_study_of_success_shows_all_of_it(success):
    study, design, trained, _, shares = success
    shown = study.panels(trained, shares, design)
    for panel in (
        study.heat("tied", trained, shares, design),
        study.heat("pair", trained, shares, design),
        *(study.moved(name, trained, shares, design) for name in ("initial scale", "learning rate", "weight decay")),
        study.starts(trained, design),
    ):
        assert panel in shown


# ------------------------------------------------------------------------------------------------ four methods


SMALL = replace(MAPS, n=60, d=20, epochs=40, lr=5e-3, seeds=2, strengths=(0.05, 0.4), noises=(1.0, 2.0), sizes=(1, 5))


def test_strengths_of_the_methods_are_in_units_of_the_noise():
    for noise in (1.0, 2.0):
        columns = SMALL.columns(noise)
        assert list(columns) == ["tied ReWA", "pair ReWA", "SGD-l1"]
        for (K, M, form), settings in zip(((9, 2, "tied"), (9, 2, "pair"), (1, 0, "l1")), columns.values(), strict=True):
            assert settings == [Column(K=K, M=M, lr=5e-3, form=form, weight_decay=strength * noise) for strength in (0.05, 0.4)]


def test_every_method_is_scored_with_the_setting_chosen_for_it():
    torch.set_default_dtype(torch.float32)
    scores, strengths = SMALL.compare((0.3, 2.0, 5), 1)
    design = designs.sparse(seed=1, n=60, d=20, s=5, noise=2.0, rho=0.3)
    assert tuple(scores) == METHODS
    for method, (K, M, form) in {"tied ReWA": (9, 2, "tied"), "pair ReWA": (9, 2, "pair"), "SGD-l1": (1, 0, "l1")}.items():
        column = Column(K=K, M=M, lr=5e-3, form=form, weight_decay=strengths[method] * 2.0, seed=1)
        alone = fit(design.X, design.y, [column], epochs=40, seed=1)
        assert scores[method].test_loss == pytest.approx(float(design.test_loss(alone.coef[0], alone.bias[0])), rel=1e-4)
        assert scores[method].seed == 1
    lasso = designs.lasso(design, seed=1)
    assert scores["Lasso"].test_loss == pytest.approx(float(design.test_loss(lasso.coef, lasso.intercept)), rel=1e-6)
    assert len({round(score.test_loss, 3) for score in scores.values()}) == 4, "the test can fail"


def test_maps_and_table_have_every_place():
    losses, results = iter(range(1000)), {}
    for rho in SMALL.rhos:
        for noise in SMALL.noises:
            for size in SMALL.sizes:
                results[rho, noise, size] = {
                    method: [
                        made(found=1, counts=(99,) * 8 + (1 + number,), test_loss=1 + number / 10),
                        made(found=1, counts=(99,) * 8 + (3 + number,), test_loss=2 + number / 10),
                    ]
                    for method, number in zip(METHODS, losses, strict=False)
                }
    *maps, numbers = SMALL.panels(results)
    assert [panel.title for panel in maps] == [f"{method}, rho = {rho}" for rho in ("0", "0.5") for method in METHODS]
    for panel, (rho, method) in zip(maps, [(rho, method) for rho in (0.0, 0.5) for method in METHODS], strict=True):
        assert (panel.x.label, tuple(panel.x.values)) == ("true weights", (1, 5))
        assert (panel.y.label, tuple(panel.y.values)) == ("noise", (1.0, 2.0))
        for noise, row in zip((1.0, 2.0), panel.cells, strict=True):
            for size, cell in zip((1, 5), row, strict=True):
                scores = results[rho, noise, size][method]
                shares = [(1 / score.counts[-1], 1 / size) for score in scores]  # precision and recall of the one found
                f1 = sum(2 * precision * recall / (precision + recall) for precision, recall in shares) / 2
                assert cell.value == pytest.approx(f1)
                assert cell.text == f"{f1:.2f}"
                assert cell.says[0] == f"noise {noise:g}, {size} true weights"
                assert f"in {int(size == 1 and scores[0].counts[-1] == 1)} of 2" in cell.says[3]
    assert tuple(numbers.header) == ("rho", "noise", "true weights", *METHODS)
    expected = []
    for (rho, noise, size), methods in results.items():
        means = [(scores[0].test_loss + scores[1].test_loss) / 2 / noise**2 for scores in methods.values()]
        sd = math.sqrt(0.5) / noise**2  # of two losses that differ by 1
        expected.append([f"{rho:g}", f"{noise:g}", str(size), *(f"{mean:.2f} ± {sd:.2f}" for mean in means)])
    assert [list(row) for row in numbers.rows] == expected


def test_the_lasso_is_scored_with_its_intercept():
    design = designs.paper(n=60, d=10, n_test=200)
    high = replace(design, y=design.y + 3, y_test=design.y_test + 3)
    for seed, found, base in zip((0, 4), lasso_scores(high, [0, 4]), lasso_scores(design, [0, 4]), strict=True):
        assert found.test_loss == pytest.approx(base.test_loss, rel=1e-4)  # without the 3 it is higher by 9
        assert found.seed == seed
