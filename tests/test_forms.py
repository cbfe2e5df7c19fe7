from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import reference
import rewa
from problems import Weight, random_problem, run_parametrized
from rewa.forms import Factors, Pair, Tied

FORMS = [
    {"form": "tied", "K": 9},
    {"form": "tied", "K": 2.5, "M": 0.5, "eps": 1e-2},
    {"form": "pair", "K": 5},
    {"form": "factors", "K": 3},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_reparametrizing_and_removing_keep_the_weights(form):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 2))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    assert rewa.reparametrize(model, **form) is model
    assert "0.weight" not in dict(model.named_parameters())
    rewa.remove_reparametrization(model)
    after = dict(model.named_parameters())
    assert sorted(after) == sorted(before)
    for name, value in before.items():
        torch.testing.assert_close(after[name].detach(), value, rtol=1e-12, atol=1e-15)
        assert type(after[name]) is nn.Parameter


def test_biases_and_norms_stay_plain_unless_included():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    rewa.reparametrize(model)
    assert [name for name, _ in model.named_parameters()] == [
        "0.bias", "0.parametrizations.weight.original", "1.weight", "1.bias",
    ]  # fmt: skip
    rewa.remove_reparametrization(model)
    rewa.reparametrize(model, include=r"1\.weight")
    assert "1.parametrizations.weight.original" in dict(model.named_parameters())


@pytest.mark.parametrize(("K", "M", "eps"), [(9, 2, 0.0), (3, 2, 1e-3), (2, 1, 0.0)])
def test_pair_equals_two_runs_of_the_reference(K, M, eps):
    """Each part is a ReWA weight of its own that sees the gradient with its sign."""
    x, grads = random_problem(60)
    setting = {"lr": 0.005, "weight_decay": 0.05, "momentum": 0.9}
    result = run_parametrized(lambda p: torch.optim.SGD(p, **setting), x, grads, form="pair", K=K, M=M, eps=eps, start=0.2)
    exponents = {"K": K, "M": M, "eps": eps}
    up = reference.algorithm_1(np.maximum(x, 0) + 0.2, grads, **exponents, **setting)
    down = reference.algorithm_1(np.maximum(-x, 0) + 0.2, [-g for g in grads], **exponents, **setting)
    assert (up > 0).all()  # no part crosses zero here, where |u|^K and the signed power part
    assert (down > 0).all()
    np.testing.assert_allclose(result, up - down, rtol=1e-9, atol=1e-12)


def test_the_product_of_a_pair_is_shrunk_by_decay_alone():
    """With K = 2, M = 1 the gradient changes uv in second order only: that is why the pair anneals itself."""
    layer = Weight(np.random.default_rng(0).standard_normal(50))
    rewa.reparametrize(layer, form="pair", K=2, M=1, start=0.3, include="weight")
    u, v = layer.parameters()
    lr, weight_decay, grad = 0.01, 0.5, torch.randn(50)
    before = (u * v).detach()
    optimizer = torch.optim.SGD(layer.parameters(), lr, weight_decay=weight_decay)
    (layer.weight * grad).sum().backward()
    optimizer.step()
    torch.testing.assert_close((u * v).detach(), before * ((1 - lr * weight_decay) ** 2 - lr**2 * grad**2))


@pytest.mark.parametrize("form", [{"form": "pair", "relative_start": 1.0}, {"form": "pair", "start": 0.2}, {"form": "tied"}])
@pytest.mark.parametrize("exponents", [{"K": 2, "M": 1}, {"K": 3, "M": 2}, {"K": 9, "M": 2, "eps": 1e-3}])
def test_matched_groups_move_a_usual_weight_as_sgd_does(form, exponents):
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    for size, layer in zip((0.3, 0.05), model, strict=True):
        with torch.no_grad():
            layer.weight.copy_(size * torch.randn_like(layer.weight).sign())
    before = [layer.weight.detach().clone() for layer in model]
    rewa.reparametrize(model, **form, **exponents)
    lr = 1e-6  # so small that a step is a derivative
    groups = rewa.matched_groups(model, lr=lr, weight_decay=0.0)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    optimizer = torch.optim.SGD(groups)
    grads = [torch.randn_like(x) for x in before]
    sum((layer.weight * grad).sum() for layer, grad in zip(model, grads, strict=True)).backward()
    optimizer.step()
    for layer, x, grad in zip(model, before, grads, strict=True):
        torch.testing.assert_close((layer.weight.detach() - x) / lr, -grad, rtol=1e-3, atol=1e-4)


def test_matched_groups_have_one_penalty_for_all_layers():
    """At rest the gradient is lambda sign(x) whatever the size of the layer, as under an l1 penalty."""
    lam, lr = 0.1, 0.01
    for size in (0.01, 1.0):
        layer = Weight(size * np.array([1.0, -2.0, 3.0]))
        rewa.reparametrize(layer, form="pair", K=2, M=1, relative_start=1e-9, include="weight")
        optimizer = torch.optim.SGD(rewa.matched_groups(layer, lr=lr, weight_decay=lam))
        before = layer.weight.detach().clone()
        (layer.weight * (-lam * before.sign())).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), before)


@pytest.mark.slow
def test_the_matched_pair_ends_at_the_lasso_whatever_the_first_signs():
    """For f(x) = |x - b|^2 / 2 the minimizer of f + lambda |x|_1 is the soft threshold of b."""
    random = np.random.default_rng(0)
    b, lam = np.linspace(-2.0, 2.0, 21), 0.3  # none of b is at the threshold
    layer = Weight(0.1 * random.standard_normal(b.size))
    assert not np.array_equal(np.sign(layer.weight.detach().numpy()), np.sign(b))
    rewa.reparametrize(layer, form="pair", K=2, M=1, relative_start=1.0, include="weight")
    optimizer = torch.optim.SGD(rewa.matched_groups(layer, lr=0.02, weight_decay=lam))
    for _ in range(3000):
        optimizer.zero_grad()
        (0.5 * (layer.weight - torch.tensor(b)) ** 2).sum().backward()
        optimizer.step()
    expected = np.sign(b) * np.maximum(np.abs(b) - lam, 0)
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected, atol=1e-6)


def test_a_relative_start_is_in_units_of_each_weight():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    sizes = [float(layer.weight.detach().square().mean().sqrt()) for layer in model]
    rewa.reparametrize(model, form="pair", K=2, M=1, relative_start=0.5)
    starts = [layer.parametrizations.weight[0].start for layer in model]
    assert starts == pytest.approx([0.5 * size for size in sizes])
    zeros = nn.Linear(2, 2)
    nn.init.zeros_(zeros.weight)
    with pytest.raises(ValueError, match=r"parameter 'weight' is all zero, so that relative_start"):
        rewa.reparametrize(zeros, form="pair", relative_start=1.0)
    with pytest.raises(ValueError, match=r"call rewa\.reparametrize\(model, form='pair'"):
        rewa.matched_groups(zeros, lr=0.1, weight_decay=0.0)


def test_pair_parts_below_zero_count_by_modulus():
    u, v = torch.tensor([-0.5], requires_grad=True), torch.tensor([0.2], requires_grad=True)
    x = Pair(K=3, M=2)(u, v)
    assert x.item() == pytest.approx(0.5**3 - 0.2**3)
    x.sum().backward()
    assert u.grad.item() == pytest.approx(-(0.5**2))  # growing x means growing |u|
    assert v.grad.item() == pytest.approx(-(0.2**2))


def test_factors_with_equal_moduli_are_the_tied_form_with_M_of_K_less_1():
    x, grads = random_problem(60)
    x = np.abs(x) + 0.1
    setting = {"lr": 0.005, "weight_decay": 0.05}
    result = run_parametrized(lambda p: torch.optim.SGD(p, **setting), x, grads, form="factors", K=4)
    np.testing.assert_allclose(result, reference.algorithm_1(x, grads, K=4, M=3, eps=0.0, **setting), rtol=1e-9, atol=1e-12)


def test_factors_have_the_true_gradient():
    factors = [torch.randn(3, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(Factors(K=3), factors)


def test_tied_gradient_is_the_adaptive_scale():
    y = torch.tensor([-0.7, 0.0, 1.2], requires_grad=True)
    Tied(K=9, M=2, eps=0.1)(y).backward(torch.tensor([1.0, 1.0, 2.0]))
    expected = reference.scale(y.detach().numpy(), 9, 2, 0.1) * np.array([1.0, 1.0, 2.0])
    np.testing.assert_allclose(y.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_reparametrized_model_copies_saves_and_compiles():
    model = rewa.reparametrize(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), form="pair", K=3)
    data = torch.randn(5, 4)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(data), model(data))
    other = rewa.reparametrize(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), form="pair", K=3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(data), model(data))
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(data), twin(data))
    compiled(data).sum().backward()
    twin(data).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "product"}, "Invalid form: 'product' \\(allowed: 'tied', 'pair', 'factors'\\)"),
        ({"form": "factors", "M": 2}, "form='factors' has no M"),
        ({"form": "tied", "start": 1.0}, "form='tied' has no start \\(it takes K, M, eps\\)"),
        ({"form": "factors", "K": 2.5}, "Invalid K value: 2.5 \\(allowed: an integer >= 2"),
        ({"form": "pair", "start": 0}, "Invalid start value: 0"),
        ({"form": "pair", "relative_start": -1.0}, "Invalid start value: -1"),
        ({"form": "tied", "relative_start": 1.0}, "form='tied' has no start"),
        ({"form": "pair", "start": 1.0, "relative_start": 1.0}, "two values for one thing"),
        ({"K": 0.5}, "Invalid K value: 0.5"),
        ({"include": "nothing"}, "include='nothing' matches none"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(arguments, message):
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=message):
        rewa.reparametrize(model, **arguments)
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize("form", ["tied", "factors"])
def test_all_zero_and_low_precision_weights_are_refused(form):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    nn.init.zeros_(model[1].weight)
    with pytest.raises(ValueError, match=r"parameter '1\.weight' is all zero.*form='pair'"):
        rewa.reparametrize(model, form=form, K=3)
    assert type(model[0].weight) is nn.Parameter
    with pytest.raises(ValueError, match=r"bfloat16.*model\.float\(\)"):
        rewa.reparametrize(nn.Linear(3, 2, dtype=torch.bfloat16), form=form, K=3)


def test_twice_or_shared_is_refused_and_changes_nothing():
    model = rewa.reparametrize(nn.Linear(3, 2), form="pair", K=3)
    for arguments in ({}, {"include": ".*original0"}):
        with pytest.raises(
            ValueError, match=r"no parameter to reparametrize|is parametrized already.*remove_reparametrization"
        ):
            rewa.reparametrize(model, **arguments)
    assert type(rewa.remove_reparametrization(model).weight) is nn.Parameter
    shared = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared[1].weight = shared[0].weight
    with pytest.raises(ValueError, match=r"'1\.weight' and '0\.weight' are one shared weight"):
        rewa.reparametrize(shared)
    assert shared[1].weight is shared[0].weight


def test_the_pair_form_moves_a_weight_from_zero():
    module = rewa.reparametrize(Weight(np.zeros((2, 2))), form="pair", K=3, M=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    (module.weight.sum()).backward()
    optimizer.step()
    assert (module.weight < 0).all()


@pytest.mark.parametrize("form", [Tied(K=3, M=1, eps=0.1), Tied(K=9, M=2)])
def test_forms_under_torch_func(form):
    """grad and vmap go through the scale that backward uses."""
    y = torch.randn(5, 4)
    y.requires_grad_(True)
    (expected,) = torch.autograd.grad(form(y).square().sum(), y)
    function = lambda y: form(y).square().sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(function)(y.detach()), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(function))(y.detach()), expected)
    _, along = torch.func.jvp(function, (y.detach(),), (torch.ones_like(y),))
    torch.testing.assert_close(along, expected.sum())
    assert torch.func.hessian(function)(y.detach()).shape == (5, 4, 5, 4)
    model = rewa.reparametrize(nn.Linear(4, 2), form="pair", K=3)
    params = dict(model.named_parameters())
    grads = torch.func.grad(lambda params: torch.func.functional_call(model, params, (torch.ones(1, 4),)).sum())(params)
    model(torch.ones(1, 4)).sum().backward()
    for name, param in model.named_parameters():
        torch.testing.assert_close(grads[name], param.grad)


def test_a_model_without_values_has_no_size_to_refer_to():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"meta device.*to_empty"):
        rewa.reparametrize(model, form="pair", relative_start=1.0)


def test_matched_groups_of_a_zero_layer():
    model = rewa.reparametrize(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), form="pair", K=2, M=1)
    with torch.no_grad():
        model[1].weight = torch.zeros(2, 2)
    groups = rewa.matched_groups(model, lr=0.1, weight_decay=0.0)
    assert len(groups) == 3  # the pair moves a weight of zero by its start value
    tied = rewa.reparametrize(nn.Linear(3, 2), K=3)
    with torch.no_grad():
        tied.weight = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"'weight' is all zero.*form='pair'"):
        rewa.matched_groups(tied, lr=0.1, weight_decay=0.0)
