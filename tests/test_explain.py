from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import rewa
from rewa import cli, figures, presets
from rewa.explain import OPTIMIZERS, Run, explain, to_text
from rewa.schedules import learning_rates

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
    base = explain(Run(**CIFAR10))["decay_budget"]
    assert base == pytest.approx(9 * 1e-4 * 0.256 * 19_600 / 2 / 0.125, rel=1e-3)  # a cosine's mean is one half
    assert explain(Run(**CIFAR10, schedule="constant"))["decay_budget"] == pytest.approx(2 * base, rel=1e-3)
    assert explain(Run(**CIFAR10, schedule="linear"))["decay_budget"] == pytest.approx(base, rel=1e-3)
    for variant in ({"decoupled": True}, {"optimizer": "adamw"}):
        assert explain(Run(**CIFAR10, **variant))["decay_budget"] == pytest.approx(base * 0.125, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Zero is absorbing"),
        ({"lr": 2e-4, "weight_decay": 0.25, "M": 4}, "Zero is hard to cross"),
        ({"weight_decay": 0.5, "M": 4}, "Growth: a weight that starts at 0.05"),
        ({}, "Low precision"),
        ({"optimizer": "adamw"}, "Adam cancels a constant scale"),
        ({"M": 0.5}, "Not an l_p penalty"),
        ({"weight_decay": 1e-6}, "Decay budget"),
        ({"weight_decay": 0.0}, "No weight decay"),
    ],
)
def test_each_trap_is_named(change, words):
    assert any(words in warning for warning in explain(Run(**{**CIFAR10, **change}))["warnings"])


def test_a_plain_setting_has_few_warnings():
    warnings = explain(Run(K=1, M=0, weight_decay=1e-2, lr=0.1, momentum=0.9))["warnings"]
    assert not any("absorbing" in warning or "Low precision" in warning for warning in warnings)


def test_text_and_json_have_the_same_content(capsys):
    arguments = [part for name, value in CIFAR10.items() for part in (f"--{name.replace('_', '-')}", str(value))]
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
        (["--figure", "geometry", "--plot", "nowhere/out.png"], "nowhere"),
        (["--weight-decay", "-1"], "Invalid weight_decay value: -1.0"),
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
    run = Run(K=5, M=M, eps=eps, lr=lr, weight_decay=1e-3)
    flips = explain(run)["sign_flips"]
    above, below = (math.inf, 0.0) if flips is None else (flips["above"] or 0.0, flips["below"] or math.inf)
    x = torch.logspace(-8, 2, 500)
    param = nn.Parameter(x.clone())
    param.grad = torch.ones_like(x)
    rewa.ReWASGD([param], lr=lr, K=5, M=M, eps=eps, weight_decay=1e-3).step()
    assert torch.equal(param < 0, (x > above) & (x < below))


def test_thousandth_is_where_a_real_run_is():
    run = Run(K=3, M=2, weight_decay=0.01, lr=0.1, epochs=60, steps_per_epoch=100, schedule="linear", warmup_epochs=5)
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plot_of_a_run(optimizer, tmp_path, capsys):
    for name, arguments in {"a.png": [], "b.png": ["--M", "4"], "c.svg": ["--preset", "imagenet", "--epochs", "2"]}.items():
        command = ["explain", "--epochs", "3", *arguments, "--optimizer", optimizer, "--plot", str(tmp_path / name)]
        assert cli.main([*command, "--warmup-epochs", "1"]) == 0
    assert pixels(tmp_path / "a.png").shape == (624, 1920, 4)
    assert (pixels(tmp_path / "a.png") != pixels(tmp_path / "b.png")).any()
    assert "</svg>" in (tmp_path / "c.svg").read_text()
    assert "K=9" in capsys.readouterr().out


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
