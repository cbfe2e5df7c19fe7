from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from rewa.deploy.packed import save_packed
from rewa.experiments import RESULTS
from rewa.experiments.comparison import Rules, SweepResult, best_rates, middles, repeated, whole
from rewa.experiments.digits import DIGITS_METHODS
from rewa.experiments.result import How
from rewa.methods import make, names
from rewa.report import compare, read
from rewa.terminal import Stages
from rewa.train.job import Job, load_data, new_model
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.sweep import Contender, RunsFailed, Sweep


def test_results_are_fair():
    results = [result for result in RESULTS.values() if isinstance(result, SweepResult)]
    assert sum(result.judged_on == "test" for result in results) >= 4
    for result in results:
        assert result.sweep.seeds >= 3 or result.judged_on == "validation", "a choice may be made with one seed"
        assert result.sweep.strengths is None, "every method has a grid of its own"
    assert list(DIGITS_METHODS.sweep.methods) == names()


def test_a_result_is_written_with_the_numbers_behind_it(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=2, compressions=(1, 2, 5))
    sweep = Sweep(recipe=recipe, methods=("dense", "l1"), seeds=2, strengths=(1e-3, 1e-2))
    written = {path.name for path in SweepResult(line="a small one", sweep=sweep).run(tmp_path, How(workers=1))}
    assert len(list((tmp_path / "runs").iterdir())) == 8
    assert {"report.html", "report.png", "numbers.json", "table.md"} <= written
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["recipe"]["epochs"] == 2
    (comparison,) = numbers["comparisons"]
    cells = {(cell["method"], cell["compression"]): cell for cell in comparison["cells"]}
    cell = cells["dense", 2.0]
    assert cell["n"] == 2
    assert [chosen["seed"] for chosen in cell["chosen"]] == [0, 1]
    assert cell["mean"] == pytest.approx(sum(chosen["test"] for chosen in cell["chosen"]) / 2)
    for chosen in cell["chosen"]:
        run = tmp_path / "runs" / f"digits-dense-{chosen['strength']:g}-s{chosen['seed']}"
        record = json.loads((run / "record.json").read_text())
        assert any(point["threshold"] == chosen["threshold"] for point in record["curve"])
    assert "dense" in (tmp_path / "table.md").read_text()


def test_every_result_has_the_quick_version_that_the_command_offers():
    assert [name for name, result in RESULTS.items() if not result.quick] == []


def test_the_quick_version_of_a_comparison_writes_everything_in_seconds(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,))
    contenders = [Contender(method=name, strengths=(1e-3, 1e-2)) for name in ("dense", "l1", "rewa")]
    result = SweepResult(line="a small one", sweep=Sweep(recipe=recipe, methods=tuple(contenders), seeds=5), table=(5.0, 50.0))
    written = result.run(tmp_path, How(quick=True, workers=1))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits-dense-0.001-s0", "digits-l1-0.001-s0"]
    assert {path.name for path in written} >= {"report.html", "numbers.json", "table.md"}


def test_the_quick_version_of_a_chosen_comparison_is_small():
    for name in ("fashion-mnist", "cifar10-cpu", "fashion-mnist-ablations"):
        small = RESULTS[name].small()
        assert (small.sweep.recipe.epochs, small.sweep.seeds, len(small.sweep.methods), len(small.table)) == (1, 1, 2, 1)
        assert all(len(one.strengths) == 1 for one in small.sweep.methods)
        assert RESULTS[name].sweep.recipe.name == small.sweep.recipe.name


def test_runs_that_fail_are_named(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1,))
    result = SweepResult(line="one", sweep=Sweep(recipe=recipe, methods=("l1",), seeds=1, strengths=(1e-3, 1e-2)))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits-l1-0.001-s0").write_text("in the way of a folder")
    with pytest.raises(RunsFailed, match=r"^1 of 2 runs failed:\n  digits-l1-0.001-s0: "):
        result.run(tmp_path, How(workers=1))
    assert (tmp_path / "runs" / "digits-l1-0.01-s0" / "record.json").exists()


def test_further_seeds_repeat_what_validation_chose(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=2, compressions=(1, 2, 5, 20))
    sweep = Sweep(recipe=recipe, methods=("l1", "rewa"), seeds=3)
    SweepResult(line="narrowed", sweep=sweep, table=(2, 20)).run(tmp_path, How(workers=1))
    records = [json.loads((path / "record.json").read_text()) for path in (tmp_path / "runs").iterdir()]
    chosen = {}
    for method in ("l1", "rewa"):
        first = [record for record in records if record["method"]["name"] == method and record["seed"] == 0]
        assert len(first) == 4
        # For each compression: of all points that have it, the best on validation data, of equals the most compressed.
        points = [
            (point["validation_accuracy"], point["prunable"]["total"] / point["prunable"]["nonzero"], record)
            for record in first
            for point in record["curve"]
            if point["prunable"]["nonzero"]
        ]
        best = [max((p for p in points if p[1] >= least), key=lambda p: p[:2])[2] for least in (2, 20)]
        chosen[method] = {record["method"]["strength"] for record in best}
    for seed in (1, 2):
        for method, strengths in chosen.items():
            again = [record for record in records if record["method"]["name"] == method and record["seed"] == seed]
            assert {record["method"]["strength"] for record in again} == strengths
    assert len(records) == 8 + 2 * sum(map(len, chosen.values())) < 24
    check_deployed(tmp_path)
    # Records without weights give the same tables, and keep what was measured on the models.
    measured = (tmp_path / "models.json").read_text()
    cells = json.loads((tmp_path / "numbers.json").read_text())["comparisons"]
    for path in tmp_path.glob("runs/*/*.safetensors"):
        path.unlink()
    SweepResult(line="narrowed", sweep=sweep, table=(2, 20)).run(tmp_path, How(trained=True))
    assert (tmp_path / "models.json").read_text() == measured
    assert json.loads((tmp_path / "numbers.json").read_text())["comparisons"] == cells
    assert "Packed file" in (tmp_path / "table.md").read_text()


def test_only_what_has_weights_is_measured(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(2,))
    result = SweepResult(line="two", sweep=Sweep(recipe=recipe, methods=("l1", "rewa"), strengths=(1e-3,), seeds=1), table=(2,))
    result.run(tmp_path, How(workers=1))
    models = tmp_path / "models.json"
    before = json.loads(models.read_text())
    assert [row["method"] for row in before["deployed"]] == ["l1", "rewa"]
    for path in tmp_path.glob("runs/*-l1-*/trained.safetensors"):
        path.unlink()
    before["deployed"] = [{**row, "ms": 123.0} for row in before["deployed"] if row["method"] == "rewa"]
    models.write_text(json.dumps(before))
    result.run(tmp_path, How(trained=True))
    assert json.loads(models.read_text())["deployed"] == before["deployed"], "kept as it was, and nothing for l1"
    models.unlink()
    for path in tmp_path.glob("runs/*/trained.safetensors"):
        path.unlink()
    result.run(tmp_path, How(trained=True))
    assert not models.exists()
    assert "Packed file" not in (tmp_path / "table.md").read_text()


def test_a_comparison_of_language_models(tmp_path):
    torch.set_default_dtype(torch.float32)
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be. " * 150)
    small = {"context": 16, "layers": 1, "heads": 2, "width": 8, "epochs": 1, "compressions": (1, 5)}
    methods = (Contender(method="gmp", strengths=(0.8,)), Contender(method="sparsifier", strengths=(0.8,), rates=(1e-3, 1e-2)))
    sweep = Sweep(recipe=replace(RECIPES["shakespeare-gpt"], **small), methods=methods, seeds=2)
    SweepResult(line="two", sweep=sweep, table=(5.0,)).run(tmp_path / "out", How(workers=1, root=tmp_path))
    text = (tmp_path / "out" / "table.md").read_text()
    assert text.startswith("Test loss, mean ± standard deviation over the seeds:")
    assert len(json.loads((tmp_path / "out" / "models.json").read_text())["deployed"]) == 2


def test_how_far_weights_shrank_is_measured_beside_the_prediction(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=2, compressions=(1, 2))
    result = SweepResult(
        line="one", sweep=Sweep(recipe=recipe, methods=(Contender(method="rewa", strengths=(1e-3,)),)), table=(1.0,)
    )
    result.run(tmp_path, How(workers=1))
    (row,) = json.loads((tmp_path / "models.json").read_text())["shrinkage"]
    rates = recipe.plan(16).learning_rates
    assert row["predicted"] == pytest.approx(9 * 1e-3 * sum(rates) / (1 - recipe.momentum))
    first = new_model(recipe, load_data(recipe), 0).state_dict()
    last = load_file(tmp_path / "runs" / row["run"] / "trained.safetensors")
    ratios = torch.cat([(first[name] / last[name]).abs().log().flatten() for name in first if first[name].dim() > 1])
    assert row["median"] == pytest.approx(ratios.median().item(), abs=0.01)
    assert row["lower"] < row["median"] < row["upper"]


def test_runs_on_other_terms_in_the_folder_are_named(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 2))
    for number in (1, 2):
        train(
            Job(recipe=replace(recipe, epochs=number), method=make("l1", strength=1e-3), name=f"run{number}"), tmp_path / "runs"
        )
    result = SweepResult(line="one", sweep=Sweep(recipe=recipe, methods=("l1",)), table=(1.0,))
    with pytest.raises(ValueError, match=r"runs on unequal terms .*epochs 1.*epochs 2.*: move those of other settings away"):
        result.run(tmp_path, How(trained=True))


def test_a_choice_is_made_without_a_look_at_test_data(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 2))
    train(Job(recipe=recipe, method=make("l1", strength=1e-3)), tmp_path / "runs")
    for judged_on, shown in (("validation", False), ("test", True)):
        sweep = Sweep(recipe=recipe, methods=("l1",))
        SweepResult(line="one", sweep=sweep, table=(1.0,), judged_on=judged_on).run(tmp_path, How(trained=True))
        table = (tmp_path / "table.md").read_text()
        assert table.startswith(f"{judged_on.capitalize()} accuracy")
        assert ("test accuracy" in table.lower()) is shown


def check_deployed(folder):
    """Each row is the first seed's choice of a cell, and its bytes are those of that model, cut and packed."""
    rows = json.loads((folder / "models.json").read_text())["deployed"]
    (comparison,) = compare(read([folder / "runs"]))
    choices = {(entry.label, each): entry.table[each].chosen[0] for entry in comparison.entries for each in (2.0, 20.0)}
    assert {(row["method"], row["compression"]) for row in rows} == set(choices)
    for row in rows:
        choice = choices[row["method"], row["compression"]]
        assert (row["run"], row["threshold"]) == (choice.run.name, choice.point.threshold)
        weights = load_file(folder / "runs" / row["run"] / "trained.safetensors")
        assert row["dense_bytes"] == sum(weight.nbytes for weight in weights.values())
        # Without batch norms and dead neurons aside, the file is that of the weights above the threshold.
        kept = {name: torch.where(x.abs() > row["threshold"], x, 0) if x.dim() > 1 else x for name, x in weights.items()}
        unshrunk = save_packed(kept, folder / "kept.safetensors").size
        assert 0.5 * unshrunk < row["file_bytes"] <= unshrunk + 400  # a shrunk model's file says what was cut
        assert row["ms"] > 0
        assert row["dense_ms"] > 0


def train_to(accuracies, job, folder):
    """Train, and write these validation accuracies into the record, one for each point of its curve."""
    train(job, folder)
    path = folder / job.folder_name / "record.json"
    record = json.loads(path.read_text())
    for point, accuracy in zip(record["curve"], accuracies, strict=True):
        point["validation_accuracy"] = accuracy
    path.write_text(json.dumps(record))


def test_the_contest_for_the_front_is_repeated_first(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10), finetune_epochs=0)
    jobs = [Job(recipe=recipe, method=make(name, strength=1e-4)) for name in ("dense", "l1", "spred", "rewa")]
    # Validation accuracies at 1x and 10x: dense and rewa lead somewhere, l1 and spred are one and two points behind.
    accuracies = {"dense": (99.0, 60.0), "l1": (98.0, 85.0), "spred": (90.0, 88.0), "rewa": (97.0, 90.0)}
    for job in jobs:
        train_to(accuracies[job.method.label], job, tmp_path)
    (comparison,) = compare(read([tmp_path]))
    again = repeated(comparison, jobs, (1, 10), 3)
    order = ("dense", "rewa", "l1", "spred")
    assert [(job.seed, job.method.label) for job in again] == [(seed, label) for seed in (1, 2) for label in order]
    # One run of each of three methods, then the next, then the other methods.
    more = Job(recipe=recipe, method=make("dense", strength=2e-4))
    train_to((98.9, 60.0), more, tmp_path)
    (both,) = compare(read([tmp_path]))
    again = repeated(both, [*jobs, more], (1, 10), 2, Rules(margin=0.4))
    assert [job.method.label for job in again] == [*order[:3], "dense", *order[3:]]
    # What is more than a point and a half behind everywhere is not repeated.
    again = repeated(comparison, jobs, (1, 10), 2, Rules(within=1.5))
    assert [job.method.label for job in again] == ["dense", "rewa", "l1"]
    again = repeated(comparison, jobs, (1, 10), 2, Rules(methods=("spred", "l1")))
    assert [job.method.label for job in again] == ["l1", "spred"]


def test_only_the_best_rate_goes_on_to_other_strengths(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10))
    contenders = (
        Contender(method="l1", strengths=(1e-4, 2e-4, 3e-4), rates=(0.1, 0.2)),
        Contender(method="l1", strengths=(5e-5,), rates=(0.4,)),  # the same method: one line, with strengths for this rate
        Contender(method="dense", strengths=(1e-4, 2e-4)),
    )
    jobs = Sweep(recipe=recipe, methods=contenders, seeds=1).jobs()

    def told(jobs):
        return [(job.method.label, job.recipe.lr, job.method.strength) for job in jobs]

    trials = [("l1", 0.1, 2e-4), ("l1", 0.2, 2e-4), ("l1", 0.4, 5e-5), ("dense", 0.1, 1e-4)]
    assert sorted(told(middles(jobs))) == sorted(trials)
    accuracies = {0.1: (99.0, 60.0), 0.2: (98.0, 61.0), 0.4: (97.0, 50.0)}
    for job in middles(jobs):
        train_to(accuracies[job.recipe.lr], job, tmp_path)
    (comparison,) = compare(read([tmp_path]))
    found = told(best_rates(comparison, jobs, 10))
    assert found[:4] == told(middles(jobs))
    assert sorted(found[4:]) == [("dense", 0.1, 2e-4), ("l1", 0.2, 1e-4), ("l1", 0.2, 3e-4)]
    assert {rate for label, rate, _ in told(best_rates(comparison, jobs, 1))[4:] if label == "l1"} == {0.1}
    result = SweepResult(line="x", sweep=Sweep(recipe=recipe, methods=contenders, seeds=1), table=(1.0, 10.0), rates_at=10.0)
    result.run(tmp_path / "whole", How(workers=1))
    assert len(list((tmp_path / "whole" / "runs").glob("digits*"))) in (5, 6, 7)


def test_a_rate_at_which_training_diverges_is_the_worst_one(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10))

    def result(*rates):
        contender = Contender(method="l1", strengths=(1e-4, 2e-4, 3e-4), rates=rates)
        return SweepResult(line="x", sweep=Sweep(recipe=recipe, methods=(contender,), seeds=1), table=(10.0,), rates_at=10.0)

    for _ in range(2):  # the second time from what is recorded
        result(1e30, 0.1).run(tmp_path / "one", How(workers=1))
    found = {(run.lr, run.strength, run.status) for run in read([tmp_path / "one" / "runs"])}
    assert found == {(1e30, 2e-4, "failed"), *((0.1, strength, "finished") for strength in (1e-4, 2e-4, 3e-4))}
    with pytest.raises(RunsFailed, match="the loss is nan"):  # no rate is left
        result(1e30, 1e31).run(tmp_path / "none", How(workers=1))


def test_methods_with_several_seeds_are_done_with_all_of_them_before_the_others(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10))
    asked = []

    class Noted(Stages):
        def sweep(self, progress):
            asked.append([(job.method.label, job.seed) for job in progress.jobs])
            return super().sweep(progress)

    contenders = [Contender(method=name, strengths=(1e-3,)) for name in ("rewa", "l1")]
    result = SweepResult(
        line="x", sweep=Sweep(recipe=recipe, methods=tuple(contenders), seeds=2), table=(10.0,), rules=Rules(methods=("l1",))
    )
    result.run(tmp_path, How(workers=1, progress=Noted()))
    order = list(dict.fromkeys(run for jobs in asked for run in jobs))
    assert order == [("l1", 0), ("l1", 1), ("rewa", 0)]
    assert len(list((tmp_path / "runs").glob("digits*"))) == 3


def test_a_comparison_for_a_gpu_tells_its_cost_and_refuses_a_cpu(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1,))
    sweep = Sweep(recipe=recipe, methods=("l1",), strengths=(1e-3, 1e-2), seeds=1)
    result = SweepResult(line="x", sweep=sweep, needs_gpu=True)
    with pytest.raises(ValueError, match=r"takes a GPU, and there is none: at most 2 runs of .* operations and 0.0 GB"):
        result.run(tmp_path, How(workers=1))
    assert not (tmp_path / "runs").exists()
    result.run(tmp_path, How(workers=1, device="cpu"))
    assert len(list((tmp_path / "runs").glob("digits*"))) == 2
    with pytest.raises(ValueError, match="at most 0 runs"):
        result.run(tmp_path, How(workers=1))


def test_what_validation_data_do_not_tell_apart_is_repeated(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10))
    jobs = [Job(recipe=recipe, method=make("l1", strength=strength)) for strength in (1e-4, 2e-4, 3e-4)]
    for job, accuracies in zip(jobs, [(99.0, 60.0), (98.7, 61.0), (98.0, 60.9)], strict=True):
        train_to(accuracies, job, tmp_path)
    (comparison,) = compare(read([tmp_path]))
    # At 1x the first, and the second within 0.4 of it; at 10x the second, and the third.
    assert [job.method.strength for job in repeated(comparison, jobs, (1,), 2)] == [1e-4]
    assert [job.method.strength for job in repeated(comparison, jobs, (1,), 2, Rules(margin=0.4))] == [1e-4, 2e-4]
    assert [job.method.strength for job in repeated(comparison, jobs, (10,), 2, Rules(margin=0.4))] == [2e-4, 3e-4]


def test_a_seed_counts_when_all_that_is_repeated_of_a_method_is_done(tmp_path):
    torch.set_default_dtype(torch.float32)
    recipe = replace(RECIPES["digits"], model="mlp", hidden=(20,), epochs=1, compressions=(1, 10))
    methods = [*(make("l1", strength=strength) for strength in (1e-4, 2e-4, 3e-4)), make("dense", strength=1e-4)]
    jobs = [Job(recipe=recipe, method=method) for method in methods]
    # Of l1 the first is chosen for 1x, the second for 10x, the third for neither.
    for job, accuracies in zip(jobs, [(99.0, 60.0), (98.0, 61.0), (97.0, 50.0), (98.5, 40.0)], strict=True):
        train_to(accuracies, job, tmp_path)

    def counted():
        (comparison,) = compare(read([tmp_path]))
        return {run.folder.name for run in whole(comparison, (1, 10))}

    first = {job.folder_name for job in jobs}
    again = [replace(job, seed=1).folder_name for job in jobs]
    train(replace(jobs[0], seed=1), tmp_path)
    assert counted() == first, "a half of l1"
    train(replace(jobs[3], seed=1), tmp_path)
    assert counted() == first | {again[3]}
    train(replace(jobs[1], seed=1), tmp_path)
    train(replace(jobs[2], seed=1), tmp_path)  # not repeated
    assert counted() == first | {again[0], again[1], again[3]}
