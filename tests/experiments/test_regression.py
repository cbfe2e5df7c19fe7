"""The study of sparse regression draws what it says, judges rightly, runs and resumes; how fast is its own business."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from rewa.experiments.regression import protocol
from rewa.experiments.regression.contenders import largest_alpha
from rewa.experiments.regression.designs import DESIGNS, SparseModel, score
from rewa.experiments.regression.study import REGRESSION, REGRESSION_SEEDS, Regression
from rewa.experiments.regression.tables import lead, to_panels
from rewa.experiments.result import How
from rewa.report.markdown import to_markdown
from rewa.terminal import Stages

RESULTS = Path(__file__).parent.parent.parent / "results"


def test_designs():
    design = DESIGNS["B"]
    assert design.support[:3].tolist() == [0, 105, 210]
    assert (design.n, design.d, len(design.support), design.support[-1]) == (500, 2000, 20, 1999)
    assert design.noise == pytest.approx(20, abs=1e-9)
    assert DESIGNS["C"].noise == pytest.approx(4, abs=1e-9)
    X, y, X_test, _ = design.draw(0)
    rng = np.random.default_rng(0)
    z, z_test = rng.standard_normal((500, 2000)), rng.standard_normal((5000, 2000))
    np.testing.assert_array_equal(X[:, 0], z[:, 0])
    np.testing.assert_allclose(X[:, 2], 0.25 * z[:, 0] + 0.5 * 0.75**0.5 * z[:, 1] + 0.75**0.5 * z[:, 2])
    np.testing.assert_array_equal(X_test[:, 0], z_test[:, 0])
    np.testing.assert_allclose(y, X[:, design.support].sum(axis=1) + 20**0.5 * rng.standard_normal(500))
    np.testing.assert_array_equal(DESIGNS["A"].support, [0])
    assert DESIGNS["A"].noise == 1


def test_score():
    design = SparseModel(n=1, d=6, n_test=2, k=2, rho=0.0, snr=0.5)
    coef = np.array([1.0, 2.0, 0, 0, 0, 0])
    found = score(design, coef, 1.0, np.eye(6)[:2], np.array([1.0, 7.0]))
    assert found == {"nnz": 2, "true_positives": 1, "f1": 0.5, "exact": False, "error": (1 + 16) / 2 / 4}


@pytest.mark.parametrize(("penalty", "p"), [("MCPenalty", 1), ("SCAD", 1), ("L0_5", 1 / 2), ("L2_3", 2 / 3)])
def test_largest_alpha(penalty, p):
    """Just above it zero is best for every coefficient on its own, just below it is not."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 5)) * np.arange(1, 6), rng.standard_normal(30)
    alpha = largest_alpha(penalty, X, y)
    sizes = np.geomspace(1e-7, 2, 20_001)
    b = np.concatenate([-sizes, sizes])
    for factor, wanted in ((1.001, True), (0.99, False)):
        gain = [(x @ x / 30) * b**2 / 2 - (x @ y / 30) * b + factor * alpha * np.abs(b) ** p for x in X.T]
        assert (min(each.min() for each in gain) >= 0) == wanted


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The designs, at toy size and in this process."""
    folder = tmp_path_factory.mktemp("regression")
    replace(REGRESSION, parts=("designs",)).run(folder, How(quick=True))
    return folder


def record(out: Path) -> dict:
    return json.loads((out / "regression.json").read_text())


def test_run(out):
    part = record(out)["designs"]
    assert set(part["methods"]) == {"A", "B", "C"}
    for name, found in part["methods"].items():
        runs = 1 if name == "A" else 2
        assert (found["oracle"]["f1"], found["oracle"]["exact"], found["oracle"]["runs"]) == (1, runs, runs)
        assert found["lasso"]["true_positives"] > 0
        assert found["rewa"]["true_positives"] > 0
        if find_spec("skglm") is None:
            assert found["l0.5"] == {"failed": "skglm is not installed"}
    assert part["provenance"]["versions"]["scikit-learn"]
    assert {"B", "C"} <= {row[0] for row in part["targets"]}
    text = (out / "regression.md").read_text()
    assert "Design C" in text
    assert "LassoCV" in text


def test_another_part_joins_the_record(out):
    before = record(out)["designs"]
    replace(REGRESSION, parts=("data", "scaling")).run(out, How(quick=True))
    after = record(out)
    assert list(after) == ["designs", "data", "scaling"]
    assert after["designs"] == before
    assert [row["method"] for row in after["data"]["results"]] == ["rewa", "lasso"]
    for row in after["data"]["results"]:
        assert all(0.5 < split["score"] <= 1 and split["real"] <= split["of"] == 13 for split in row["rows"])
    assert {row["where"] for row in after["scaling"]["results"]} == {"100", "1000"}
    assert all(row["nnz"] > 0 for row in after["scaling"]["results"] if row["method"] != "l0.5")
    assert (out / "regression.png").exists()


class StopAfter(Stages):
    """Stops a study when a part of it is done."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def advance(self, amount: float = 1.0) -> None:
        self.parts -= 1
        if self.parts < 0:
            raise KeyboardInterrupt
        super().advance(amount)


def test_an_interrupted_command_resumes(tmp_path):
    study = Regression(line="", parts=("designs",), designs=("B",), methods=("oracle", "lasso"), timeout=None, tiny=True)
    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path, How(progress=StopAfter(0)))
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished.json"]
    kept = json.loads((tmp_path / "unfinished.json").read_text())["results"]
    assert [found["method"] for found in kept] == ["oracle"]
    study.run(tmp_path, How())
    assert not (tmp_path / "unfinished.json").exists()
    assert record(tmp_path)["designs"]["methods"]["B"]["oracle"]["seeds"] == kept[0]["rows"]
    # What another setting left is not taken.
    (tmp_path / "unfinished.json").write_text(json.dumps({"terms": {"other": 1}, "results": kept}))
    replace(study, seeds=2).run(tmp_path, How())
    assert record(tmp_path)["designs"]["methods"]["B"]["oracle"]["runs"] == 2


def test_a_method_runs_in_a_process_of_its_own():
    (one,) = protocol.measurements(("designs",), ("A",), ("oracle",), seeds=1, rounds=1, tiny=True)
    apart, here = protocol.run(one, 100), protocol.run(one, None)
    for found in (apart, here):
        assert found.pop("first_call") >= 0
        assert found["rows"][0].pop("seconds") >= 0
    assert apart == here
    assert protocol.run(replace(one, arguments={"method": "oracle"}), 100)["failed"].startswith("TypeError")
    assert protocol.run(one, 1e-3)["failed"] == "more than 0.001 s"


def test_a_process_that_measures_has_imported_nothing_of_a_method():
    code = "import sys, rewa.experiments.regression.measure; print(*{'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("study", "name"), [(REGRESSION, "regression"), (REGRESSION_SEEDS, "regression-seeds")])
def test_the_published_tables_are_those_of_the_record(study, name, tmp_path):
    found = record(RESULTS / name)
    published = (RESULTS / name / "regression.md").read_text()
    assert published.startswith(f"# Sparse regression beside scikit-learn, skglm and abess\n\n{lead(found)}\n\n")
    assert to_markdown(to_panels(found)).strip() in published
    settings = found["designs"]["settings"]
    assert (settings["seeds"], settings["quick"]) == (study.seeds, study.tiny)
    assert list(found) == list(study.parts)
    assert list(found["designs"]["methods"]) == list(study.designs)
    assert all(list(methods) == list(study.methods) for methods in found["designs"]["methods"].values())


def test_trained_writes_the_tables_of_the_record(tmp_path):
    (tmp_path / "regression.json").write_bytes((RESULTS / "regression-seeds" / "regression.json").read_bytes())
    paths = REGRESSION_SEEDS.run(tmp_path, How(trained=True))
    assert (tmp_path / "regression.md").read_bytes() == (RESULTS / "regression-seeds" / "regression.md").read_bytes()
    assert (tmp_path / "regression.json").read_bytes() == (RESULTS / "regression-seeds" / "regression.json").read_bytes()
    assert {path.suffix for path in paths} == {".json", ".html", ".md", ".csv"}


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"d is not known \(known: designs, data, scaling\)"):
        replace(REGRESSION, parts=("d",))
    with pytest.raises(ValueError, match="seeds=0"):
        replace(REGRESSION, seeds=0)
    with pytest.raises(ValueError, match="leave out --trained"):
        REGRESSION.run(tmp_path, How(trained=True))
