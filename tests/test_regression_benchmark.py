"""The benchmark of sparse regression draws what it says, judges rightly and runs; how fast is its own business."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "regression.py"


@pytest.fixture(scope="module")
def regression():
    specification = importlib.util.spec_from_file_location("regression", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["regression"] = module  # its dataclasses look for it
    specification.loader.exec_module(module)
    yield module
    del sys.modules["regression"]


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_designs(regression):
    design = regression.DESIGNS["B"]
    assert design.support[:3].tolist() == [0, 105, 210]
    assert (design.n, design.d, len(design.support), design.support[-1]) == (500, 2000, 20, 1999)
    assert design.noise == pytest.approx(20, abs=1e-9)
    assert regression.DESIGNS["C"].noise == pytest.approx(4, abs=1e-9)
    X, y, X_test, _ = design.draw(0)
    rng = np.random.default_rng(0)
    z, z_test = rng.standard_normal((500, 2000)), rng.standard_normal((5000, 2000))
    np.testing.assert_array_equal(X[:, 0], z[:, 0])
    np.testing.assert_allclose(X[:, 2], 0.25 * z[:, 0] + 0.5 * 0.75**0.5 * z[:, 1] + 0.75**0.5 * z[:, 2])
    np.testing.assert_array_equal(X_test[:, 0], z_test[:, 0])
    np.testing.assert_allclose(y, X[:, design.support].sum(axis=1) + 20**0.5 * rng.standard_normal(500))
    np.testing.assert_array_equal(regression.DESIGNS["A"].support, [0])
    assert regression.DESIGNS["A"].noise == 1


def test_score(regression):
    design = regression.Design(n=1, d=6, n_test=2, k=2, rho=0.0, snr=0.5)
    coef = np.array([1.0, 2.0, 0, 0, 0, 0])
    found = regression.score(design, coef, 1.0, np.eye(6)[:2], np.array([1.0, 7.0]))
    assert found == {"nnz": 2, "true_positives": 1, "f1": 0.5, "exact": False, "error": (1 + 16) / 2 / 4}


@pytest.mark.parametrize(("penalty", "p"), [("MCPenalty", 1), ("SCAD", 1), ("L0_5", 1 / 2), ("L2_3", 2 / 3)])
def test_largest_alpha(regression, penalty, p):
    """Just above it zero is best for every coefficient on its own, just below it is not."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 5)) * np.arange(1, 6), rng.standard_normal(30)
    alpha = regression.largest_alpha(penalty, X, y)
    sizes = np.geomspace(1e-7, 2, 20_001)
    b = np.concatenate([-sizes, sizes])
    for factor, wanted in ((1.001, True), (0.99, False)):
        gain = [(x @ x / 30) * b**2 / 2 - (x @ y / 30) * b + factor * alpha * np.abs(b) ** p for x in X.T]
        assert (min(each.min() for each in gain) >= 0) == wanted


def test_run(regression, tmp_path):
    methods = "oracle,rewa,lasso,l0.5"
    result = json.loads(
        run("--quick", "--parts", "designs", "--seeds", "2", "--methods", methods, "--out", str(tmp_path), "--json")
    )
    part = result["designs"]
    assert set(part["methods"]) == {"A", "B", "C"}
    for name, found in part["methods"].items():
        runs = 1 if name == "A" else 2
        assert (found["oracle"]["f1"], found["oracle"]["exact"], found["oracle"]["runs"]) == (1, runs, runs)
        assert found["lasso"]["true_positives"] > 0
        assert found["rewa"]["true_positives"] > 0
        if importlib.util.find_spec("skglm") is None:
            assert found["l0.5"] == {"failed": "skglm is not installed"}
    assert part["provenance"]["versions"]["scikit-learn"]
    assert {"B", "C"} <= {row[0] for row in part["targets"]}
    text = (tmp_path / "regression.md").read_text()
    assert "Design C" in text
    assert "LassoCV" in text
    # Another part joins the record and leaves the first one as it is.
    run("--quick", "--parts", "data,scaling", "--methods", "rewa,lasso", "--out", str(tmp_path))
    record = json.loads((tmp_path / "regression.json").read_text())
    assert record["designs"] == json.loads(json.dumps(part))
    assert [row["method"] for row in record["data"]["results"]] == ["rewa", "lasso"]
    for row in record["data"]["results"]:
        assert all(0.5 < split["score"] <= 1 and split["real"] <= split["of"] == 13 for split in row["rows"])
    assert {row["where"] for row in record["scaling"]["results"]} == {"100", "1000"}
    assert all(row["nnz"] > 0 for row in record["scaling"]["results"])
    assert (tmp_path / "regression.png").exists()


def test_help_and_errors():
    assert "pip install skglm abess" in run("--help")
    done = subprocess.run([sys.executable, str(SCRIPT), "--parts", "d"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "d is not known (known: designs, data, scaling)" in done.stderr
