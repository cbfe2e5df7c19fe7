from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import rewa
from rewa import cli, figures, presets
from rewa.explain import MEASURED, OPTIMIZERS, Training, explain, to_text
from rewa.schedules import learning_rates

ROOT = Path(__file__).parent.parent
CIFAR10 = {"K": 9, "M": 2, "weight_decay": 1e-4, "lr": 0.256, "momentum": 0.875, "epochs": 100, "steps_per_epoch": 196}


@pytest.mark.parametrize("preset", presets.PRESETS.values(), ids=lambda preset: preset.name)
def test_a_preset_is_its_own_nearest(preset, capsys):
    assert cli.main(["explain", "--preset", preset.name, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["nearest_preset"] == preset.name
    for name in ("K", "M", "eps", "lr", "weight_decay", "momentum", "decoupled"):
        assert result["run"][name] == getattr(preset, name)


def test_an_option_changes_a_preset(capsys):
    assert cli.main(["explain", "--preset", "cifar10", "--epochs", "12", "--decoupled", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert (run["epochs"], run["decoupled"], run["K"], run["warmup_epochs"]) == (12, True, 9, 5)


def test_budget_follows_the_run():
    base = explain(Training(**CIFAR10))["decay_budget"]
    assert base == pytest.approx(9 * 1e-4 * 0.256 * 19_600 / 2 / 0.125, rel=1e-3)  # a cosine's mean is one half
    assert explain(Training(**CIFAR10, schedule="constant"))["decay_budget"] == pytest.approx(2 * base, rel=1e-3)
    assert explain(Training(**CIFAR10, schedule="linear"))["decay_budget"] == pytest.approx(base, rel=1e-3)
    for variant in ({"decoupled": True}, {"optimizer": "adamw"}):
        assert explain(Training(**CIFAR10, **variant))["decay_budget"] == pytest.approx(base * 0.125, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": 0.0}, "Zero is absorbing"),
        ({"lr": 2e-4, "weight_decay": 0.25, "M": 4}, "Zero is hard to cross"),
        ({"weight_decay": 0.5, "M": 4}, "Growth: a weight that starts at 0.05"),
        ({"dtype": "float16"}, "Low precision"),
        ({"dtype": "bfloat16", "K": 1}, "Low precision"),
        ({"optimizer": "adamw"}, "Adam cancels a constant scale"),
        ({"M": 0.5}, "Not an l_p penalty"),
        ({"weight_decay": 1e-6}, "Decay budget"),
        ({"weight_decay": 0.0}, "No weight decay"),
    ],
)
def test_each_trap_is_named(change, words):
    assert any(words in warning for warning in explain(Training(**{**CIFAR10, **change}))["warnings"])


def test_a_setting_without_traps_has_no_warnings():
    assert explain(Training(**CIFAR10))["warnings"] == []


def test_text_and_json_have_the_same_content(capsys):
    run = {**CIFAR10, "weight_decay": 1e-5}
    arguments = [part for name, value in run.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert cli.main(["explain", *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert cli.main(["explain", *arguments]) == 0
    text = capsys.readouterr().out
    assert text == to_text(result) + "\n"
    assert result["configuration"] == "A"
    unwrapped = " ".join(text.split())
    assert result["warnings"]
    for words in (*result["warnings"], result["why"], result["nearest_preset"]):
        assert words in unwrapped
    for row in result["penalty"]:
        assert f"{row['gradient_to_hold']:.3g}" in text
        assert f"{row['penalty']:.3g}" in text
    assert f"{result['ends_at']['end']:.2g}" in text
    assert math.isfinite(result["decay_budget"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--K", "0.5"], "Invalid K value: 0.5"),
        (["--momentum", "1"], "Invalid momentum value: 1.0"),
        (["--epochs", "0"], "at least one step"),
        (["--warmup-epochs", "100"], "shorter warm-up"),
        (["--lr", "0"], "Invalid learning rate: 0.0"),
        (["--lr", "2", "--weight-decay", "1"], "lr * weight_decay = 2"),
        (["--plot", "out.gif"], "must end in .png, .svg, .pdf; got 'out.gif'"),
        (["--figure", "geometry", "--plot", "nowhere/out.png"], "no folder 'nowhere'"),
        (["--figure", "geometry", "--json"], "leave --json out"),
        (["--M", "10000"], "M=10000 is too large"),
        (["--weight-decay", "-1"], "Invalid weight_decay value: -1.0"),
        (["--epochs", "-3", "--steps-per-epoch", "-7"], "at least one step"),
        (["--steps-per-epoch", str(10**400)], "too many to count"),
        (["--start", "-1"], "Invalid start: -1.0"),
        (["--sparsity", "95"], "Invalid sparsity: 95.0 (allowed: 0 <= sparsity < 1, such as 0.95)"),
        (["--sparsity", "0.3"], "the recorded runs went from"),
    ],
)
def test_bad_values_are_one_line_and_exit_code_2(arguments, message, capsys):
    assert cli.main(["explain", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["explain", "--help"])
    assert stopped.value.code == 0
    assert "rewa explain --K 9" in capsys.readouterr().out


@pytest.mark.parametrize(("M", "eps"), [(2, 0.0), (4, 0.0), (0, 0.0), (0, 1e-3), (0.5, 1e-2), (2, 1e-3)])
@pytest.mark.parametrize("lr", [2e-4, 0.1, 2.0])
def test_sign_flips_are_those_of_a_real_step(M, eps, lr):
    """A gradient of 1 against weights of every size: their signs after one step of ReWASGD."""
    run = Training(K=5, M=M, eps=eps, lr=lr, weight_decay=1e-3)
    flips = explain(run)["sign_flips"]
    above, below = (math.inf, 0.0) if flips is None else (flips["above"] or 0.0, flips["below"] or math.inf)
    x = torch.logspace(-8, 2, 500)
    param = nn.Parameter(x.clone())
    param.grad = torch.ones_like(x)
    rewa.ReWASGD([param], lr=lr, K=5, M=M, eps=eps, weight_decay=1e-3).step()
    assert torch.equal(param < 0, (x > above) & (x < below))


def test_thousandth_is_where_a_real_run_is():
    run = Training(K=3, M=2, weight_decay=0.01, lr=0.1, epochs=60, steps_per_epoch=100, schedule="linear", warmup_epochs=5)
    epoch = explain(run)["thousandth_at_epoch"]
    param = nn.Parameter(torch.tensor([1.0]))
    optimizer = rewa.ReWASGD([param], lr=0.1, K=3, M=2, weight_decay=0.01)
    sizes = []
    for rate in learning_rates(0.1, 6000, schedule="linear", warmup=500):
        optimizer.param_groups[0]["lr"] = rate
        param.grad = torch.zeros(1)
        optimizer.step()
        sizes.append(param.item())
    assert sum(size > 1e-3 for size in sizes) / 100 == pytest.approx(epoch, rel=0.01)


def pixels(path):
    from matplotlib.image import imread

    return imread(path)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plot_of_a_run(optimizer, tmp_path, capsys):
    for name, arguments in {"a.png": [], "b.png": ["--M", "4"], "c.svg": ["--preset", "imagenet", "--epochs", "2"]}.items():
        command = ["explain", "--epochs", "3", *arguments, "--optimizer", optimizer, "--plot", str(tmp_path / name)]
        assert cli.main([*command, "--warmup-epochs", "1"]) == 0
    assert pixels(tmp_path / "a.png").shape == (624, 1920, 4)
    assert (pixels(tmp_path / "a.png") != pixels(tmp_path / "b.png")).any()
    assert "</svg>" in (tmp_path / "c.svg").read_text()
    assert "K=9" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", figures.FIGURES)
def test_figures_are_drawn_alike_every_time(name, tmp_path, monkeypatch, capsys):
    assert tuple(figures.FIGURES) == cli.NAMED_FIGURES
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explain", "--figure", name]) == 0
    assert capsys.readouterr().out == f"wrote {name}.png\n"
    assert pixels(tmp_path / f"{name}.png").std() > 0.05  # not blank
    for copy in ("1.svg", "2.svg"):
        assert cli.main(["explain", "--figure", name, "--plot", copy]) == 0
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()


def test_solutions_in_the_geometry_figure_are_the_minimizers():
    """Each red point has the least norm of all points on its constraint."""
    angle = torch.linspace(0, 2 * math.pi, 20_001)
    circle = torch.stack([1 + angle.cos(), 1 + angle.sin()]).abs()
    line = torch.stack([torch.linspace(-1, 3, 4001), 1 - torch.linspace(-1, 3, 4001) / 2]).abs()
    for axes, (p, points) in zip(figures.geometry().axes, ((1, line), (1, circle), (0.5, circle)), strict=True):
        solution = next(drawn for drawn in axes.lines if drawn.get_label() == "solution").get_xydata()
        values = (torch.tensor(abs(solution)) ** p).sum(1)
        torch.testing.assert_close(values, (points**p).sum(0).min().expand(len(values)), rtol=1e-6, atol=0)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["explain", "--figure", "geometry"]) == 2
    assert "pip install 'rewa[plot]'" in capsys.readouterr().err


def test_numbers_of_a_setting():
    setting = {"K": 3, "M": 2, "eps": 1e-3, "weight_decay": 5e-5, "lr": 1.0, "momentum": 0.9}
    run = Training(**setting, epochs=2, steps_per_epoch=10, schedule="constant")
    result = explain(run)
    assert result["decay_budget"] == pytest.approx(3 * 5e-5 * 20 / 0.1)
    assert result["ends_at"]["end"] == pytest.approx(0.05 * math.exp(-result["decay_budget"]))
    (row,) = (row for row in result["penalty"] if row["x"] == 1e-3)
    assert row["gradient_to_hold"] == pytest.approx(5e-5 * (1e-3 ** (-1 / 3) + 1e-3 * 1e-3**-1))
    assert row["penalty"] == pytest.approx(5e-5 * (1.5 * 1e-3 ** (2 / 3) + 1e-3 * math.log(1e-3)))
    # Momentum at its full pace moves ten times as far: lr 10 without it flips the same weights.
    alone = dataclasses.replace(run, lr=10.0, momentum=0.0)
    assert result["sign_flips"] == pytest.approx(explain(alone)["sign_flips"])
    decoupled = explain(dataclasses.replace(run, decoupled=True, weight_decay=0.5))
    assert decoupled["sign_flips"] == pytest.approx(explain(dataclasses.replace(alone, weight_decay=0.05))["sign_flips"])
    strong = dataclasses.replace(run, weight_decay=0.5)
    assert explain(strong)["sign_flips"] == {"above": None, "below": None}
    adam = explain(Training(optimizer="adamw", lr=0.01, K=2))
    assert adam["sign_flips"] == {"above": None, "below": pytest.approx(1e-4, rel=1e-4)}
    assert adam["penalty"] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Zero is absorbing"),
        ({"M": 0, "start": 0.0}, "Zero is absorbing"),
        ({}, "Zero is hard to cross"),
        ({"M": 0}, "Zero is hard to cross"),
        ({"weight_decay": 0.05}, "Growth"),
        ({"M": 0, "weight_decay": 0.3}, "Growth"),  # it settles, it does not die
        ({"optimizer": "adamw", "weight_decay": 0.5, "M": 4}, "Growth"),
        ({}, "Low precision"),
        ({"optimizer": "adamw", "M": 0}, "Adam cancels"),
        ({"eps": 1e-3}, "Not an l_p penalty"),
        ({}, "Decay budget"),
        ({}, "No weight decay"),
        ({"eps": 1e-3}, "eps with M > 2"),
        ({}, "Decay too strong"),
        ({"weight_decay": 0.1, "decoupled": True}, "Decay too strong"),
    ],
)
def test_no_warning_where_there_is_no_trap(change, words):
    assert not any(words in warning for warning in explain(Training(**{**CIFAR10, **change}))["warnings"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": 1, "M": 2, "start": 0.0}, "Zero is absorbing"),
        ({"M": 0, "eps": 1e-3, "start": 0.0}, "Zero is absorbing"),
        ({"M": 3, "eps": 1e-3}, "eps with M > 2"),
        ({"weight_decay": 0.1}, "Decay too strong for this momentum"),
        ({"weight_decay": 1e-5}, "Decay budget 1.8"),
    ],
)
def test_further_warnings(change, words):
    assert any(words in warning for warning in explain(Training(**{**CIFAR10, **change}))["warnings"])


def test_a_decay_too_strong_for_the_momentum_swings():
    """Just below the strongest decay a weight without gradient keeps its sign, well above it does not."""
    for ratio, flips in ((0.9, False), (4.0, True)):
        lr, momentum = 0.1, 0.9
        decay = ratio * rewa.theory.strongest_decay(momentum) / lr
        param = nn.Parameter(torch.tensor([1.0]))
        optimizer = rewa.ReWASGD([param], lr=lr, K=3, M=2, momentum=momentum, weight_decay=decay)
        seen = []
        for _ in range(100):
            param.grad = torch.zeros(1)
            optimizer.step()
            seen.append(param.item())
        assert (min(seen) < 0) is flips


def test_adamw_follows_its_budget():
    run = Training(optimizer="adamw", K=9, M=2, lr=0.01, weight_decay=0.5, epochs=1, steps_per_epoch=500, schedule="linear")
    budget = explain(run)["decay_budget"]
    param = nn.Parameter(torch.tensor([1.0]))
    optimizer = rewa.ReWAAdamW([param], lr=0.01, K=9, M=2, weight_decay=0.5)
    for rate in learning_rates(0.01, 500, schedule="linear"):
        optimizer.param_groups[0]["lr"] = rate
        param.grad = torch.zeros(1)
        optimizer.step()
    assert -math.log(param.item()) == pytest.approx(budget, rel=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "possible in one step above |x| = 0.0016, for gradients up to 1 and momentum at its full pace"),
        ({"lr": 1e-6}, "none in one step, at any size a weight has"),
        ({"M": 0, "momentum": 0.0}, "possible in one step below |x| = 4.7e-06, for gradients up to 1"),
        ({"M": 1, "lr": 2.0}, "possible in one step at every size"),
        ({"optimizer": "adamw"}, "possible near zero: a step moves y by about lr, 0.256"),
    ],
)
def test_sign_flips_in_words(change, words):
    assert words in " ".join(to_text(explain(Training(**{**CIFAR10, **change}))).split())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_a_run_of_any_length_is_answered(optimizer, schedule, tmp_path, capsys):
    """A thousand million epochs of a thousand million steps: nothing is counted step by step, not even for the plot."""
    long = [str(10**7), "--steps-per-epoch", str(10**8)]
    command = ["explain", "--epochs", *long, "--schedule", schedule, "--lr", "1e-6", "--weight-decay", "1e-6"]
    assert cli.main([*command, "--optimizer", optimizer, "--plot", str(tmp_path / "a.png"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    mean = {"constant": 1.0}.get(schedule, 0.5)
    assert result["decay_budget"] == pytest.approx(9 * 1e-12 * 1e15 * mean)
    assert result["thousandth_at_epoch"] == pytest.approx(math.log(1000) / 9e-12 / 1e8, rel=1e-2)


def test_adamw_is_told_what_its_decay_forbids():
    """Decay 2 and K = 9: no weight above 0.002 exists, and the advice is a setting in which one does."""
    bad = explain(Training(optimizer="adamw", weight_decay=2.0, lr=1e-3, epochs=10, steps_per_epoch=100))
    assert bad["adamw"]["largest_weight"] == pytest.approx(2.0**-9)
    assert bad["adamw"]["reach"] == pytest.approx(math.fsum(learning_rates(1e-3, 1000)))
    assert bad["adamw"]["start_of_y"] == pytest.approx(0.05 ** (1 / 9))
    assert any("no weight above |x| = 0.002" in warning for warning in bad["warnings"])
    advice = bad["adamw"]["advice"]
    text = " ".join(to_text(bad).split())
    assert f"try lr={advice['lr']:.2g}, weight_decay={advice['weight_decay']:.2g}" in text
    good = explain(Training(optimizer="adamw", **advice, epochs=10, steps_per_epoch=100))
    assert not any("no weight above" in warning or "hardly moves" in warning for warning in good["warnings"])
    assert good["decay_budget"] >= 3


def test_adamw_is_told_when_y_hardly_moves():
    slow = {"optimizer": "adamw", "weight_decay": 0.01, "epochs": 1, "steps_per_epoch": 500}
    assert any("y hardly moves" in warning for warning in explain(Training(**slow, lr=1e-3))["warnings"])
    assert not any("y hardly moves" in warning for warning in explain(Training(**slow, lr=2e-2))["warnings"])
    assert explain(Training(**CIFAR10))["adamw"] is None


def test_without_decay_adamw_has_no_bound(capsys):
    assert cli.main(["explain", "--optimizer", "adamw", "--weight-decay", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adamw"]["largest_weight"] is None


def recorded(study, method, seed=0):
    """Budget and zeros of the runs of a method in its plain setting, from their records."""
    for path in sorted((ROOT / "results" / study / "runs").glob(f"{study}-{method}-[0-9]*-s{seed}/record.json")):
        record = json.loads(path.read_text())
        recipe, zeros = record["recipe"], record["final"]["prunable"]
        steps = record["data"]["train"] // recipe["batch_size"] * recipe["epochs"]
        adam = method == "rewa-adamw"
        peak = record["method"]["settings"]["adam_lr"] if adam else recipe["lr"]
        rates = learning_rates(peak, steps, schedule=recipe["schedule"], warmup=round(recipe["warmup"] * steps))
        momentum = 0.0 if adam else recipe["momentum"]
        budget = rewa.theory.decay_budget(rates, K=9, weight_decay=record["method"]["strength"], momentum=momentum)
        yield budget, 1 - zeros["nonzero"] / zeros["total"]


@pytest.mark.parametrize(("optimizer", "method"), [("sgd", "rewa"), ("adamw", "rewa-adamw")])
def test_the_guide_to_sparsity_is_the_records(optimizer, method):
    for study, points in MEASURED[optimizer].items():
        found = sorted(recorded(study, method))
        assert len(found) == len(points) >= 2
        for (budget, zeros), (its_budget, its_zeros) in zip(found, points, strict=True):
            assert budget == pytest.approx(its_budget, rel=1e-3)
            assert zeros == pytest.approx(its_zeros, abs=1e-4)


def test_which_decay_for_a_sparsity(capsys):
    """The decay between two recorded runs lies between theirs, whatever the length of this run."""
    arguments = ["explain", "--preset", "cifar10", "--sparsity", "0.96"]
    assert cli.main([*arguments, "--json"]) == 0
    guide = json.loads(capsys.readouterr().out)["sparsity"]
    run = Training.of(presets.CIFAR10)
    (cifar,) = [row for row in guide["decays"] if row["study"] == "cifar10-cpu"]
    assert 4.49 < explain(dataclasses.replace(run, weight_decay=cifar["weight_decay"]))["decay_budget"] < 8.99
    assert cli.main(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    low, high = (pick(row["weight_decay"] for row in guide["decays"]) for pick in (min, max))
    assert f"96% zeros lr=0.256 and weight_decay {low:.2g} to {high:.2g}" in text
    assert "a guide, not a promise" in text


def test_a_sparsity_under_adamw_is_for_the_rate_that_was_measured():
    """At a small rate the measured budget would need a decay that forbids every usual weight."""
    run = {"optimizer": "adamw", "lr": 1e-3, "steps_per_epoch": 200}
    guide = explain(Training(**run, epochs=10), sparsity=0.95)["sparsity"]
    assert guide["lr"] == pytest.approx(0.02, rel=0.01)
    for row in guide["decays"]:
        assert rewa.theory.adamw_bound(9, row["weight_decay"]) > 0.2
        at = explain(Training(**{**run, "lr": guide["lr"]}, epochs=10, weight_decay=row["weight_decay"]))
        assert at["decay_budget"] == pytest.approx(row["decay_budget"])
    with pytest.raises(ValueError, match="train longer"):
        explain(Training(**run, epochs=1), sparsity=0.98)
