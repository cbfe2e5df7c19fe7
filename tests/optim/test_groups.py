from __future__ import annotations

import pytest
import torch
from torch import nn

import rewa


class Thick(nn.Module):
    """Norms and biases of two and more dimensions."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((4, 6))
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.position_embedding = nn.Parameter(torch.zeros(1, 5, 8))
        self.tokens = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 11, bias=False)


def names(groups, **settings):
    def has(group, key, value):
        return group[f"rewa_{key}" if key in ("K", "M", "eps") else key] == value

    return [name for group in groups for name, _ in group["params"] if all(has(group, *item) for item in settings.items())]


def test_default_policy():
    groups = rewa.param_groups(Net())
    assert names(groups, K=9) == ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert names(groups, K=1, M=0, eps=0.0, weight_decay=0.0) == [
        "position_embedding", "tokens.weight", "norm.weight", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias",
    ]  # fmt: skip


def test_norms_and_biases_are_plain_whatever_their_dimensions():
    assert names(rewa.param_groups(Thick()), K=9) == ["attention.in_proj_weight", "attention.out_proj.weight"]
    rewa.ReWASGD(rewa.param_groups(Thick()))


def test_tied_embedding_counts_once_and_stays_plain():
    net = Net()
    net.head.weight = net.tokens.weight
    assert "head.weight" not in names(rewa.param_groups(net))
    assert "tokens.weight" in names(rewa.param_groups(net), K=1)


def test_rules_first_match_wins_and_None_is_plain():
    rules = {
        r"attention\.in.*weight": {"K": 3, "eps": 1e-3, "lr": 0.5},
        r"attention\..*weight": None,
        "norm.weight": {"sparse": True, "M": 1},
    }
    groups = rewa.param_groups(Net(), weight_decay=0.1, rules=rules)
    assert names(groups, K=3, M=2, eps=1e-3, lr=0.5, weight_decay=0.1) == ["attention.in_proj_weight"]
    assert "attention.out_proj.weight" in names(groups, K=1)
    assert names(groups, K=9, M=1) == ["norm.weight"]


def test_a_rule_for_a_whole_layer_leaves_its_norms_and_biases_plain():
    rules = {r"attention\..*": {"K": 3, "weight_decay": 0.5, "lr": 0.01}, "head.*": {"sparse": False, "lr": 0.02}}
    groups = rewa.param_groups(Net(), rules=rules)
    assert names(groups, K=3, weight_decay=0.5, lr=0.01) == ["attention.in_proj_weight", "attention.out_proj.weight"]
    plain = names([group for group in groups if group.get("lr") == 0.01], K=1, weight_decay=0.0)
    assert plain == ["attention.in_proj_bias", "attention.out_proj.bias"]
    assert names([group for group in groups if group.get("lr") == 0.02], K=1) == ["head.weight"]
    assert "head.weight" in names(rewa.param_groups(Net(), rules={"head.*": {}}), K=9)  # a rule that changes nothing


def test_parameters_of_a_parametrization_stay_plain():
    layer = rewa.reparametrize(nn.Linear(3, 2), form="pair")
    assert names(rewa.param_groups(layer), K=9) == []
    assert "pair form" in str(rewa.param_groups(layer))
    other = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    assert names(rewa.param_groups(other), K=9) == []
    assert "already parametrized" in str(rewa.param_groups(other))


def test_the_model_itself_is_wanted():
    with pytest.raises(TypeError, match=r"param_groups needs the model itself.*generator"):
        rewa.param_groups(Net().parameters())


def test_the_groups_drive_the_optimizers():
    net = Net()
    for make in (rewa.ReWASGD, rewa.ReWAAdamW):
        optimizer = make(rewa.param_groups(net, K=5, weight_decay=0.3), lr=0.1)
        assert sorted({(group["K"], group["weight_decay"]) for group in optimizer.param_groups}) == [(1, 0.0), (5, 0.3)]
        assert optimizer.param_groups[1]["param_names"] == names(rewa.param_groups(net), K=9)


def test_parameters_that_are_not_trained_are_listed_and_left_out():
    net = Net()
    net.head.weight.requires_grad_(False)
    groups = rewa.param_groups(net)
    assert "head.weight" not in names(groups)
    assert "not trained" in str(groups)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        rewa.param_groups(net.requires_grad_(False))


def test_table_counts_and_reasons():
    table = str(
        rewa.param_groups(nn.Sequential(nn.Linear(3, 2), nn.Embedding(4, 2)), rules={"0.bias": {"sparse": True, "K": 3}})
    )
    assert table.splitlines()[0].split() == ["parameter", "shape", "count", "setting", "why"]
    assert "rule '0.bias'" in table
    assert "embedding" in table
    assert table.endswith("sparse: 8 of 16 parameters (50.0%)")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"K": 0}, "Invalid K value: 0"),
        ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
        ({"plain_weight_decay": -1}, "Invalid plain_weight_decay value: -1"),
        ({"rules": {"head": None}}, "rule 'head' matches no parameter's whole name .*head.weight"),
        ({"rules": {"head.weight": {"weight_deacy": 1}}}, "did you mean 'weight_decay'"),
        ({"rules": {"head.weight": {"K": 0.2}}}, "Invalid K value: 0.2"),
        ({"rules": {"head.weight": {"k": 3}}}, "did you mean 'K'"),
        ({"rules": {"head.weight": 3}}, "is 3; allowed is a dictionary of settings, or None"),
        ({"rules": {"(": None}}, "not a regular expression"),
        ({"rules": {"head.weight": {"weight_decay": -1}}}, "Invalid weight_decay value: -1"),
        ({"rules": {"head.weight": {"lr": float("nan")}}}, "Invalid learning rate: nan"),
        ({"rules": {"head.weight": {"betas": (0.9,)}}}, "Invalid betas"),
    ],
)
def test_bad_values_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        rewa.param_groups(Net(), **bad)


def test_match_is_the_size_of_each_tensor():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    groups = rewa.param_groups(model, K=2, M=0, match=True)
    sizes = [group["rewa_match"] for group in groups if group["rewa_K"] > 1]
    expected = [float(layer.weight.detach().pow(2).mean() ** 0.5) for layer in model]
    assert sizes == pytest.approx(expected, rel=1e-12)
    assert all("rewa_match" not in group for group in groups if group["rewa_K"] == 1)
    for make in (rewa.ReWASGD, rewa.ReWAAdamW):
        optimizer = make(groups)
        assert [group["match"] for group in optimizer.param_groups if group["K"] > 1] == sizes


@pytest.mark.parametrize("make", [rewa.ReWASGD, rewa.ReWAAdamW])
@pytest.mark.parametrize("argument", [{"K": 3}, {"M": 1}, {"eps": 0.1}, {"weight_decay": 0.5}, {"K": 9}])
def test_an_argument_that_every_group_overrides_is_refused(make, argument):
    (name, value), groups = next(iter(argument.items())), rewa.param_groups(nn.Linear(3, 2), K=5, weight_decay=0.2)
    with pytest.raises(ValueError, match=rf"{name}={value} has no effect: every group sets its own {name}.*param_groups"):
        make(groups, **argument)
    # Groups by hand are as in torch: what they set wins.
    make([{"params": nn.Linear(3, 2).weight, "K": 3, "M": 1, "weight_decay": 0.1}], **argument)


def test_an_optimizer_leaves_the_groups_it_is_given_alone():
    groups = rewa.param_groups(nn.Linear(3, 2), K=2, M=1, match=True)
    before = [dict(group) for group in groups]
    rewa.Annealing(rewa.ReWASGD(groups, lr=0.1), 10)
    assert [{key: group[key] for key in old} for group, old in zip(groups, before, strict=True)] == before
    assert [set(group) for group in groups] == [set(old) for old in before]


def test_what_has_no_size_cannot_be_matched():
    empty = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    empty[0].weight = nn.Parameter(torch.empty(3, 0))
    groups = rewa.param_groups(empty, match=True)
    assert "empty" in str(groups)
    assert names(groups, K=9) == ["1.weight"]
    with torch.device("meta"):
        meta = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"'weight' .*meta.*to_empty"):
        rewa.param_groups(meta, match=True)
    rewa.param_groups(meta)
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(ValueError, match=r"'weight' .*all zero.*rules"):
        rewa.param_groups(zero, match=True)


def test_the_table_says_that_what_is_not_trained_now_will_not_train_later():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    assert "make the groups again once it requires a gradient" in str(rewa.param_groups(model))
