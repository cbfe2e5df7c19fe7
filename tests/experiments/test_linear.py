"""The figures on linear models: the paper's settings, the scores, and the files."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rewa.experiments import designs
from rewa.experiments.fig1 import FIG1
from rewa.experiments.fig2 import FIG2A, FIG2B, FIG2C, FIG2D
from rewa.experiments.linear import KAPPA, THRESHOLDS, Score, mean_sd, score, train
from rewa.experiments.maps import MAPS, METHODS, f1
from rewa.experiments.overhead import OVERHEAD
from rewa.experiments.result import How
from rewa.experiments.sgd_l1 import SGD_L1
from rewa.experiments.success import LOGISTIC, SUCCESS, predicted, wilson
from rewa.experiments.synthetic import SYNTHETIC_STUDY
from rewa.lockstep import Column, fit
from rewa.theory import growth_threshold


def settings(columns):
    return {(column.K, column.M, round(column.weight_decay * column.lr, 12)) for column in columns}


def test_the_settings_are_those_of_the_appendix():
    grid = {(K, M) for K in (3, 5, 7, 9, 11, 13) for M in (0, 2, 4, 6, 8, 10) if M < K}
    assert settings(FIG1.columns()) == {(K, M, 5e-5) for K, M in grid}
    assert len(grid) == 26
    assert {column.form for column in FIG1.columns()} == {"tied", "pair"}
    tied = {figure.name: [column for _, column in figure.settings] for figure in (FIG2A, FIG2B, FIG2C, FIG2D)}
    assert settings(tied["fig2a"]) == {(9, 5, 5e-5), (1, 0, 5e-5)}
    assert FIG2A.lasso
    assert settings(tied["fig2b"]) == {(K, M, 5e-5) for K, M in ((9, 5), (7, 4), (5, 2), (3, 0), (1, 0))}
    assert settings(tied["fig2c"]) == {(9, M, 5e-5) for M in (0, 2, 5)}
    assert settings(tied["fig2d"]) == {(9, 5, kappa) for kappa in (1e-5, 2.5e-5, 5e-5, 1e-4)}
    for figure in (FIG1, FIG2A, FIG2B, FIG2C, FIG2D):
        assert (figure.n, figure.d, figure.epochs, figure.seeds) == (2000, 10_000, 800, 3)
        assert {column.lr for column in figure.columns()} == {2e-4}
        assert {column.eps for column in figure.columns()} == {0}
    assert pytest.approx(5e-5) == KAPPA
    assert THRESHOLDS == (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
    assert SUCCESS.seeds == 20
    assert {(column.K, column.M) for column in SUCCESS.columns()} == {(K, M) for K in (3, 5, 9) for M in (0, 1, 2, 4, 5)}


def test_scores_by_hand():
    design = designs.paper(n=50, d=4, n_test=50)
    exact = score(design, torch.tensor([1.0, 2e-4, 0.0, 0.0], dtype=torch.float32), 0.0)
    assert exact.counts == (2, 2, 2, 2, 2, 2, 2, 1, 1)
    assert exact.found == 1
    residual = design.y_test.double() - design.X_test.double() @ torch.tensor([1.0, 2e-4, 0.0, 0.0])
    assert exact.test_loss == pytest.approx(float(residual.square().mean()), rel=1e-5)
    assert exact.recovered == (exact.test_loss <= 1.05)
    assert exact.error == pytest.approx(2e-4)
    extra = score(design, torch.tensor([1.0, 0.01, 0.0, 0.0], dtype=torch.float32), 0.0)
    assert not extra.recovered
    lost = score(design, torch.zeros(4, dtype=torch.float32), 0.0)
    assert (lost.found, lost.counts[0], lost.recovered) == (0, 0, False)


def test_recovery_needs_a_loss_near_bayes():
    design = designs.sparse(seed=0, n=20, d=3, s=1, noise=0.1)
    right, weak = (torch.tensor([size, 0.0, 0.0], dtype=torch.float32) for size in (1.0, 0.8))
    assert score(design, right, 0.0).test_loss / design.bayes < 1.1
    assert not score(design, weak, 0.0).recovered, "the support is right, the loss is five times the best"


def test_training_scores_what_lockstep_trains():
    torch.set_default_dtype(torch.float32)
    design = designs.paper(n=60, d=30, n_test=40)
    columns = [Column(K=3, M=2, lr=0.02, form="pair"), Column(K=3, M=2, lr=0.02)]
    shares = []
    trained = train(design, [*columns, columns[0]], [4, 5], epochs=6, progress=shares.append)
    assert list(trained) == columns
    assert sum(shares) == pytest.approx(1)
    for seed, found in zip((4, 5), trained[columns[1]], strict=True):
        alone = fit(design.X, design.y, [Column(K=3, M=2, lr=0.02, seed=seed)], epochs=6, seed=seed)
        assert found.test_loss == pytest.approx(float(design.test_loss(alone.coef[0], alone.bias[0])), rel=1e-5)
        assert found.start == pytest.approx(float(Column(seed=seed).initial(30)[0][0]))
    assert trained[columns[0]][0] != trained[columns[0]][1]


def test_mean_and_spread():
    assert mean_sd([3.0]) == (3.0, 0.0)
    assert mean_sd([1.0, 3.0]) == (2.0, math.sqrt(2))


# ------------------------------------------------------------------------------------------ predictions


@pytest.mark.parametrize("form", ["tied", "pair"])
@pytest.mark.parametrize(("K", "M", "scale"), [(9, 4, 1.0), (9, 5, 1.0), (3, 2, 1.0), (9, 4, 0.3), (5, 4, 3.0), (9, 1, 1.0)])
def test_the_predicted_share_by_drawing_starts(form, K, M, scale):
    """Draw starts and apply the growth condition to each, part by part."""
    design = designs.paper(n=400, d=10_000, n_test=10)
    column = Column(K=K, M=M, form=form, scale=scale)
    gradient = 2 * float(design.X[:, 0] @ design.y) / len(design.X)
    starts = np.random.default_rng(0).uniform(-scale / 100, scale / 100, 100_000)
    sizes = np.maximum(starts, 0) + (column.start if form == "pair" else 0)
    grows = gradient > growth_threshold(sizes, K, M, lam=column.weight_decay)
    # A tied weight at zero does not grow whatever the threshold says.
    share = (grows & (sizes > 0)).mean()
    assert predicted(column, design) == pytest.approx(share, abs=0.01)


def test_predictions_for_two_weights_multiply_and_below_one_always_cross():
    design = designs.logistic(seed=0, n=3000, d=100, n_test=10)
    column = Column(K=9, M=2, weight_decay=0.02, loss="logistic")
    assert predicted(column, design) == pytest.approx(0.25, abs=0.01)
    assert predicted(Column(K=9, M=0, loss="logistic"), design) == 1
    assert predicted(Column(K=9, M=2, weight_decay=0.02, form="pair", loss="logistic"), design) == 1
    assert predicted(Column(K=9, M=1, weight_decay=1.0, loss="logistic"), design) == 0


def test_wilson_at_the_ends():
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1
    assert wilson(20, 20)[0] == pytest.approx(0.839, abs=1e-3)  # Brown, Cai and DasGupta's formula


# ----------------------------------------------------------------------------------------------- the maps


def test_f1():
    base = {"seed": 0, "test_loss": 1.0, "recovered": False, "start": 0.0, "error": 0.0, "first": 0.0}
    assert f1(Score(**base, counts=(9, 4), found=2), 4) == pytest.approx(0.5)
    assert f1(Score(**base, counts=(0, 0), found=0), 4) == 0


def test_strengths_are_chosen_on_held_out_rows():
    torch.set_default_dtype(torch.float32)
    design = designs.sparse(seed=0, n=100, d=40, s=2, noise=0.5, n_test=10)
    study = MAPS.__class__(n=100, d=40, epochs=30, strengths=(0.05, 0.2, 20.0), lr=5e-3)
    chosen = study.choose(design, 1.0, seed=1)
    assert set(chosen) == set(METHODS) - {"Lasso"}
    for method, columns in study.columns(1.0).items():
        losses = {}
        for column in columns:
            trained = fit(design.X[:80], design.y[:80], [Column(**{**vars(column), "seed": 1})], epochs=30, seed=1)
            losses[column.weight_decay] = float((trained.predict(design.X[80:])[:, 0] - design.y[80:]).square().mean())
        assert chosen[method].weight_decay == min(losses, key=losses.get)
    assert {column.weight_decay for column in chosen.values()} != {20.0}


# ------------------------------------------------------------------------------------------------ the files


# All variants of the table of overheads are in test_overhead.py.
TOGETHER = replace(SYNTHETIC_STUDY, overhead=replace(OVERHEAD, variants=("SGD-l1",)))


@pytest.mark.parametrize("study", [FIG2A, LOGISTIC, MAPS, SGD_L1, TOGETHER], ids=lambda study: type(study).__name__)
def test_the_quick_version_writes_everything(study, tmp_path):
    torch.set_default_dtype(torch.float32)
    written = study.run(tmp_path, How(quick=True))
    assert all(path.is_file() and path.stat().st_size for path in written)
    records = [path for path in written if path.suffix == ".json"]
    for record in records:
        numbers = json.loads(record.read_text())
        assert {"command", "commit", "versions"} <= set(numbers)
        if record.stem != "overhead":
            assert {record.with_suffix(suffix) for suffix in (".png", ".svg", ".html", ".md")} <= set(written)
    if study is TOGETHER:
        assert {record.stem for record in records} == {"fig1", "fig2a", "fig2b", "fig2c", "fig2d", "overhead"}
        runs = json.loads((tmp_path / "fig2d.json").read_text())["trained"]
        assert len(runs) == 8
        assert all(len(entry["runs"]) == 2 for entry in runs)
    # Drawn again from the records, without training: the same numbers, tables and pictures.
    before = {path: path.read_bytes() for path in written if path.stem not in ("overhead", "synthetic")}
    again = study.run(tmp_path, How(quick=True, trained=True))
    assert set(again) == set(before)
    assert {path: path.read_bytes() for path in again} == before


def test_there_is_nothing_to_draw_again_without_a_record(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*fig2a\.json"):
        FIG2A.run(tmp_path, How(trained=True))
