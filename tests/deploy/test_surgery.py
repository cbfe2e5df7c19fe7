"""Smaller models with the same outputs: what may go, what must stay, and that the rest is never touched."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.deploy.heads import FewerHeads
from rewa.deploy.surgery import ShrinkReport, removed, shrink


def outputs(model, *args):
    """The eval-mode outputs, whatever mode the model is in."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(*args)


def size(model):
    return sum(param.numel() for param in model.parameters())


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def checked(model, *args, tolerance=1e-9):
    """The shrunk model, after everything that must hold for any model."""
    before, modes = bits(model), [module.training for module in model.modules()]
    smaller = shrink(model, args, tolerance=tolerance)
    assert type(smaller) is type(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    torch.testing.assert_close(outputs(smaller, *args), outputs(model, *args), rtol=1e-9, atol=1e-9)
    assert size(smaller) <= size(model)
    assert not {p.data_ptr() for p in smaller.parameters() if p.numel()} & {p.data_ptr() for p in model.parameters()}
    return smaller


def kill(layer, channels):
    with torch.no_grad():
        layer.weight[channels] = 0


def lively(model):
    """Norms as after training: no scale, shift or statistic at its initial value."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, 0.1, 1.0)
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


# ------------------------------------------------------------------------------------------------- linear


def test_neurons_without_input_or_output_go():
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    kill(model[0], [0, 1])
    with torch.no_grad():
        model[0].bias[:2] = torch.tensor([0.7, -0.7])  # one constant to fold, one that the ReLU stops
        model[2].weight[:, 5] = 0
    smaller = checked(model, torch.randn(4, 3))
    assert smaller[0].out_features == smaller[2].in_features == 3
    assert removed(model, smaller) == {
        "0.weight": ((6, 3), (3, 3)),
        "0.bias": ((6,), (3,)),
        "2.weight": ((2, 6), (2, 3)),
    }


def test_a_constant_makes_a_bias_where_there_is_none():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False)).requires_grad_(False)
    kill(model[0], [1])
    smaller = checked(model, torch.randn(4, 3))
    assert smaller[0].out_features == 3
    assert smaller[2].bias is not None
    assert not any(param.requires_grad for param in smaller.parameters())


def test_a_chain_dies_from_both_ends():
    """Each removal makes the next layer's weights the only ones that were left to read or feed."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(5)))
    with torch.no_grad():
        for layer in model[:4]:
            layer.weight.copy_(torch.block_diag(torch.randn(2, 2), torch.randn(2, 2)))
        model[0].weight[:2] = 0  # forwards: the first two channels are zero in every layer
        model[4].weight[:, 3] = 0
        model[3].weight[2, 3] = model[2].weight[2, 3] = 0  # backwards: only channel 3 reads channel 3
    smaller = checked(model, torch.randn(3, 4))
    assert [layer.out_features for layer in smaller] == [2, 1, 1, 1, 4]


def test_nothing_alive_leaves_one_channel():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    for layer in model:
        if isinstance(layer, nn.Linear):
            kill(layer, slice(None))
    smaller = checked(lively(model), torch.randn(5, 3))
    assert [smaller[i].out_features for i in (0, 3, 5)] == [1, 1, 2]
    smaller.train()(torch.randn(5, 3)).sum().backward()


def test_modes_flags_and_training():
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.GELU(), nn.Linear(6, 2))
    kill(model[0], [0, 3])
    model[1].eval()
    model[4].weight.requires_grad_(False)
    smaller = checked(model, torch.randn(4, 3))
    assert [module.training for module in smaller.modules()] == [module.training for module in model.modules()]
    assert {n: p.requires_grad for n, p in smaller.named_parameters()} == {
        n: p.requires_grad for n, p in model.named_parameters()
    }
    smaller.train()(torch.randn(4, 3)).sum().backward()
    assert smaller[0].weight.grad.shape == (4, 3)


ACTIVATIONS = (
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
)
ACTIVATIONS += ("softplus", "softsign", "softshrink", "hardshrink", "tanhshrink", "logsigmoid", "sigmoid", "tanh")


class Acts(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(3, 4), nn.Linear(4, 2), act

    def forward(self, x):
        return self.b(self.act(self.a(x)))


@pytest.mark.parametrize(
    "act",
    [
        *(getattr(F, name) for name in ACTIVATIONS),
        *(nn.ReLU6(), nn.ELU(inplace=True), nn.CELU(), nn.SELU(), nn.Mish(), nn.RReLU(), nn.Softplus(), nn.Threshold(0.1, 0.2)),
        *(nn.PReLU(), nn.PReLU(4), nn.Hardsigmoid(), nn.LogSigmoid(), nn.AlphaDropout(), nn.Identity()),
        *(torch.relu, torch.tanh, torch.exp, torch.abs, torch.square, torch.neg),
        *(lambda x: x.relu_(), lambda x: x.clamp(-0.1, 0.1), lambda x: x.sigmoid().contiguous(), lambda x: F.relu(x, True)),
        *(lambda x: x / 3 + 1, lambda x: 1 - x**2, lambda x: x + x, lambda x: x * torch.sigmoid(x), lambda x: -x.tanh()),
        *(lambda x: torch.add(x, x, alpha=2), lambda x: x.unsqueeze(1).squeeze(1), lambda x: x[:, :]),
    ],
)
def test_activations_and_arithmetic(act):
    model = Acts(act).double()
    kill(model.a, [1])
    assert checked(model, torch.randn(5, 3)).a.out_features == 3


@pytest.mark.parametrize(
    "act",
    [
        *(nn.Softmax(-1), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.GLU(0), nn.MaxPool1d(3, 1, 1), nn.Softmax(0)),
        *(
            lambda x: x.squeeze(),
            lambda x: x[:, [1, 0, 2, 3]],
            lambda x: x.flip(1),
            lambda x: x * x.shape[1],
            lambda x: x.cumsum(1),
        ),
        *(lambda x: x + x.mean(1, keepdim=True), lambda x: torch.cat([x[:, :2], x[:, 2:]], 1), lambda x: x @ torch.ones(4, 4)),
        *(lambda x: x + torch.ones(4), lambda x: x.T.T, lambda x: F.dropout(x, 0.0, training=True)),
    ],
)
def test_what_is_not_understood_changes_nothing(act):
    model = Acts(act).double()
    kill(model.a, [1])
    assert not removed(model, checked(model, torch.randn(6, 3)))


def test_float32_and_sequences():
    model = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, 2)).float()
    kill(model[0], [0, 3])
    smaller = shrink(model, torch.randn(4, 7, 3, dtype=torch.float32))
    assert smaller[0].weight.dtype == torch.float32
    assert smaller[0].out_features == 4


def test_a_wrong_model_is_never_returned():
    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand(())

    with pytest.raises(RuntimeError, match="differs by"):
        shrink(nn.Sequential(nn.Linear(2, 2), Random()), torch.ones(1, 2))


# ------------------------------------------------------------------------------------------- convolutions


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
def test_constants_into_a_convolution(dims, padding):
    """Without padding they go into its bias; with padding one channel stays to carry them."""
    Conv, Norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
    model = lively(nn.Sequential(Conv(2, 6, 3, bias=False), Norm(6), nn.ReLU(), Conv(6, 3, 3, padding=padding, bias=False)))
    kill(model[0], [1, 2, 5])
    with torch.no_grad():
        model[1].running_mean[[1, 2, 5]] = 0  # so that the shift, which is positive, is what comes out
    smaller = checked(model, torch.randn(2, 2, *[7] * dims))
    assert smaller[0].out_channels == smaller[1].num_features == smaller[3].in_channels == 3 + padding
    assert (smaller[3].bias is None) == bool(padding)


@pytest.mark.parametrize(
    ("settings_", "channels"),
    [({"padding": 1, "padding_mode": "circular"}, 2), ({"padding": "same"}, 3), ({"padding": "valid", "dilation": 2}, 2)],
)
def test_what_counts_as_padding(settings_, channels):
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 3, **settings_))
    kill(model[0], [0, 2])
    assert checked(model, torch.randn(2, 1, 7, 7))[0].out_channels == channels


def test_zero_constants_need_no_carrier():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    kill(model[0], [0, 2])
    assert checked(model, torch.randn(2, 1, 6, 6))[0].out_channels == 2


def test_a_border_is_no_constant():
    """With nothing but constants coming in, a padded convolution still gives an image."""
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 2, 1))
    kill(model[0], [0, 1, 2])
    smaller = checked(model, torch.randn(2, 1, 5, 5))
    assert [layer.out_channels for layer in smaller] == [1, 2, 2]
    model[1].padding, model[1]._reversed_padding_repeated_twice = (0, 0), [0, 0, 0, 0]
    assert [layer.out_channels for layer in checked(model, torch.randn(2, 1, 5, 5))] == [1, 1, 2]


def test_a_norm_without_scale_kills_its_channel():
    model = lively(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)))
    kill(model[1], [0, 2])
    assert checked(model, torch.randn(2, 1, 6, 6))[0].out_channels == 2


def test_depthwise_and_transposed():
    model = lively(
        nn.Sequential(
            *(nn.Conv2d(2, 6, 1), nn.BatchNorm2d(6), nn.Hardswish(), nn.Conv2d(6, 6, 3, groups=6), nn.PReLU(6)),
            *(nn.ConvTranspose2d(6, 4, 3, stride=2), nn.LeakyReLU(0.1), nn.Conv2d(4, 2, 1)),
        )
    )
    kill(model[0], [0, 1])
    kill(model[3], [4])
    with torch.no_grad():
        model[5].weight[:, 3] = 0
    smaller = checked(model, torch.randn(2, 2, 6, 6))
    assert smaller[3].groups == smaller[4].num_parameters == smaller[5].in_channels == 4  # three live and a carrier
    assert smaller[5].out_channels == 3


def test_half_a_group_stays():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 1, 1))
    kill(model[0], [0])
    kill(model[1], [0])
    assert not removed(model, checked(model, torch.randn(1, 1, 3, 3)))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_whole_groups_go(dims, bias):
    """Dead because nothing comes in but zeros, because it has no weights, and because it is not read; the fourth lives."""
    Conv, Norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
    model = lively(
        nn.Sequential(
            *(Conv(3, 8, 1, bias=False), nn.ReLU(), Conv(8, 12, 3, padding=1, groups=4, bias=bias), Norm(12), nn.ReLU()),
            Conv(12, 5, 1),
        )
    )
    kill(model[0], [0, 1])
    kill(model[2], [3, 4, 5])
    with torch.no_grad():
        model[5].weight[:, 6:9] = 0
    smaller = checked(model, torch.randn(2, 3, *[5] * dims))
    layer = smaller[2]
    assert (layer.groups, layer.in_channels, layer.out_channels, smaller[0].out_channels) == (1, 2, 3, 2)
    # Of each group: two channels of the first layer, three of the second and its norm, three columns of the last.
    assert size(model) - size(smaller) == 3 * (2 * 3 + 3 * (2 * 3**dims + bias) + 3 * 2 + 3 * 5)
    smaller.train()(torch.randn(2, 3, *[5] * dims)).sum().backward()


def test_a_group_is_read_by_others_too():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 6, 1, groups=2), nn.Conv2d(4, 6, 1)

        def forward(self, x):
            x = self.a(x)
            return (self.b(x) + self.c(x)).sum((1, 2, 3))

    model = Net()
    kill(model.b, [0, 1, 2])
    assert not removed(model, checked(model, torch.randn(2, 1, 3, 3)))


def test_a_depthwise_layer_with_more_outputs_and_a_grouped_input_layer():
    model = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2), nn.Conv2d(6, 12, 3, groups=6), nn.Tanh(), nn.Conv2d(12, 2, 1))
    kill(model[0], [0, 1, 2])  # its inputs are the model's: it keeps its groups
    kill(model[1], [2, 3])
    smaller = checked(model, torch.randn(2, 4, 5, 5))
    assert (smaller[0].out_channels, smaller[1].groups, smaller[1].out_channels) == (6, 6, 12)
    model[0] = nn.Conv2d(4, 6, 1)
    kill(model[0], [0])
    smaller = checked(model, torch.randn(2, 4, 5, 5))
    assert (smaller[0].out_channels, smaller[1].groups, smaller[1].out_channels) == (4, 4, 8)


class ResNeXtBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + x)


def test_a_resnext_block_loses_groups():
    model = lively(nn.Sequential(ResNeXtBlock(), ResNeXtBlock()))
    kill(model[0].conv2, [0, 1])
    with torch.no_grad():
        model[1].conv3.weight[:, 4:] = 0
    smaller = checked(model, torch.randn(2, 6, 5, 5))
    assert (smaller[0].conv2.groups, smaller[1].conv2.groups) == (3, 2)
    assert (smaller[0].conv1.out_channels, smaller[1].conv1.out_channels) == (6, 4)


class Pooled(nn.Module):
    def __init__(self, flatten, pool=None):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 5, 3)
        self.pool = pool or nn.MaxPool2d(2, padding=1)
        self.flatten = flatten
        self.head = nn.Linear(5 * 2 * 2, 3)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = self.pool(F.gelu(self.conv2(x)))
        return self.head(F.dropout(self.flatten(x), training=self.training))


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
        nn.Flatten(),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.permute(0, 2, 3, 1).transpose(1, 3).transpose(2, 3).flatten(1),
    ],
)
def test_flatten_into_linear(flatten):
    model = lively(Pooled(flatten))
    kill(model.conv1, [0, 1])
    kill(model.conv2, [3])
    with torch.no_grad():
        model.head.weight[:, :4] = 0
    smaller = checked(model, torch.randn(2, 1, 9, 9))
    assert (smaller.conv1.out_channels, smaller.conv2.out_channels, smaller.head.in_features) == (4, 3, 12)


@pytest.mark.parametrize(
    ("pool", "channels"),
    [
        (nn.AvgPool2d(2), 3),
        (nn.AvgPool2d(2, padding=1), 4),  # zeros at the border: no constant
        (nn.AvgPool2d(2, padding=1, count_include_pad=False), 3),
        (nn.AdaptiveAvgPool2d(2), 3),
        (nn.Upsample(2, mode="bilinear"), 3),
        (lambda x: F.max_pool2d(x, 2), 3),
        (lambda x: F.adaptive_avg_pool2d(x, 2), 3),
        (lambda x: F.avg_pool2d(x, 2), 3),
        (lambda x: F.interpolate(x, scale_factor=2), 3),
    ],
)
def test_pooling(pool, channels):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.pool, self.b = nn.Conv2d(1, 4, 3), pool, nn.Conv2d(4, 2, 2)

        def forward(self, x):
            return self.b(self.pool(self.a(x).sigmoid()))

    model = Net()
    kill(model.a, [1])
    assert checked(model, torch.randn(2, 1, 6, 6)).a.out_channels == channels


@pytest.mark.parametrize(
    "reshape", [lambda x: x.view(-1, 20), lambda x: x.view(2, 5 * 2 * 2), lambda x: x.view(x.size(0), x.size(1) * 4)]
)
def test_a_reshape_with_sizes_keeps_its_channels(reshape):
    model = Pooled(reshape)
    kill(model.conv1, [0])
    kill(model.conv2, [3])
    smaller = checked(model, torch.randn(2, 1, 9, 9))
    assert (smaller.conv1.out_channels, smaller.conv2.out_channels) == (5, 5)


def test_global_mean_and_squeeze_and_excitation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
            self.down, self.up = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            x = F.silu(self.norm(self.stem(x)))
            scale = x.mean((2, 3), keepdim=True)
            scale = torch.sigmoid(self.up(F.relu(self.down(scale))))
            return self.head((2 * x * scale - 1).mean([2, 3]))

    model = lively(Net())
    kill(model.stem, [0, 4])
    kill(model.up, [0])
    kill(model.down, [2])
    smaller = checked(model, torch.randn(2, 1, 6, 6))
    # Channel 4 is constant, but its scale is not.
    assert (smaller.stem.out_channels, smaller.up.out_channels, smaller.down.out_channels) == (5, 5, 2)


def test_concatenation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(1, 3, 1), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(7)
            self.c = nn.Conv2d(7, 2, 1)

        def forward(self, x):
            return self.c(self.norm(torch.cat([self.a(x), self.b(x).relu()], 1)))

    model = lively(Net())
    kill(model.a, [0])
    kill(model.b, [1, 2])
    smaller = checked(model, torch.randn(2, 1, 3, 3))
    assert (smaller.a.out_channels, smaller.b.out_channels, smaller.c.in_channels) == (2, 2, 4)


# ---------------------------------------------------------------------------------------------- residuals


class Basic(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        mid = cout // 2
        self.conv1, self.bn1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = nn.Conv2d(cin, cout, 1, stride) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(block(8, 8), block(8, 8))
        self.layer2 = nn.Sequential(block(8, 12, 2), block(12, 12))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@pytest.mark.parametrize("block", [Basic, Bottleneck])
def test_residual_networks_with_random_dead_filters(block):
    model = lively(ResNet(block))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            with torch.no_grad():
                module.weight *= (torch.rand(module.out_channels) > 0.4)[:, None, None, None]
                module.weight *= (torch.rand(module.in_channels) > 0.3)[None, :, None, None]
    smaller = checked(model, torch.randn(2, 3, 8, 8))
    assert size(smaller) < 0.8 * size(model)
    smaller.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert size(shrink(smaller, torch.randn(2, 3, 8, 8))) == size(smaller)


def test_an_identity_skip_is_one_space():
    """A channel of the stream goes if all that write to it are dead, and from all of them at once."""
    model = lively(ResNet(Basic))
    convs = [model.conv1, model.layer1[0].conv2, model.layer1[1].conv2]
    for conv in convs:
        kill(conv, [0, 1, 2])
    kill(convs[0], [3])  # still written by the blocks
    smaller = checked(model, torch.randn(2, 3, 8, 8))
    # Of three constants one stays, as the carrier for the padded convolutions that read the stream.
    assert [m.out_channels for m in (smaller.conv1, smaller.layer1[0].conv2, smaller.layer1[1].conv2)] == [6, 6, 6]
    assert smaller.layer1[0].conv1.in_channels == smaller.layer2[0].down[0].in_channels == smaller.bn1.num_features == 6
    assert smaller.layer1[0].conv1.out_channels == 8


def test_a_projection_skip_is_one_space():
    model = lively(ResNet(Bottleneck))
    for conv in (model.layer2[0].conv3, model.layer2[0].down, model.layer2[1].conv3):
        kill(conv, [4, 7])
    kill(model.layer2[0].conv2, [0, 1])
    smaller = checked(model, torch.randn(2, 3, 8, 8))
    # 1x1 convolutions have no border: all constants fold.
    assert smaller.fc.in_features == smaller.layer2[0].down.out_channels == smaller.layer2[1].conv1.in_channels == 10
    assert (smaller.layer2[0].conv2.out_channels, smaller.layer2[0].conv1.out_channels) == (4, 6)


def test_in_place_operations_on_shared_tensors_are_respected():
    class Net(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 4), nn.Linear(4, 3), nn.Linear(4, 3)
            self.relu = nn.ReLU(inplace=in_place)

        def forward(self, x):
            x = self.a(x)
            return self.b(self.relu(x.view(x.shape[0], -1))) + self.c(x)

    for in_place, width in ((True, 4), (False, 3)):
        model = Net(in_place)
        kill(model.a, [0])
        with torch.no_grad():
            model.a.bias[0] = -1.0
        assert checked(model, torch.randn(3, 2)).a.out_features == width


# ---------------------------------------------------------------------------------------- what must stay


def test_layer_norm_and_outputs_keep_their_space():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    kill(model[0], [0])
    kill(model[2], [0])
    assert not removed(model, checked(model, torch.randn(2, 3)))


def test_tied_and_directly_read_weights_stay():
    class Tied(nn.Module):
        def __init__(self, tie):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.tie = tie
            if tie == "parameter":
                self.c.weight = self.b.weight

        def forward(self, x):
            x = self.b(torch.relu(self.a(x)))
            x = self.b(x) if self.tie == "module" else self.c(x)
            return x + self.b.weight.sum() if self.tie == "read" else x

    for tie in ("module", "parameter", "read", None):
        model = Tied(tie)
        kill(model.b, [0])
        smaller = checked(model, torch.randn(2, 4))
        assert (tie is None) == bool(removed(model, smaller))


def test_hooks_and_parametrizations_are_left_alone():
    for change in (
        lambda m: m[2].register_forward_hook(lambda module, args, out: out + args[0].sum()),
        lambda m: nn.utils.parametrizations.weight_norm(m[2]),
    ):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        kill(model[0], [0])
        change(model)
        assert not removed(model, checked(model, torch.randn(2, 3)))


@pytest.mark.parametrize(
    ("change", "graph"),
    [
        (lambda layer: prune.ln_structured(layer, "weight", 0.5, n=2, dim=0), True),
        (lambda layer: prune.ln_structured(layer, "weight", 0.5, n=2, dim=0), False),
        (nn.utils.weight_norm, True),
    ],
    ids=["pruned", "pruned, no graph", "weight_norm"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch has a newer weight_norm
def test_weights_that_hooks_compute_are_refused_with_the_remedy(change, graph):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 3)
    change(model[0])
    with torch.set_grad_enabled(graph):
        model(x)
    with pytest.raises(ValueError, match=r"'0\.weight' is computed from .*: call torch\.nn\.utils\..*remove"):
        shrink(model, x)


def test_hooks_of_containers_see_the_same_tensors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(16, 3)
            self.body = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU())

        def forward(self, x):
            return self.last(self.body(self.first(x)))

    model, x, seen = Net().eval(), torch.randn(2, 4), []
    for layer, channels in ((model.first, [0, 1]), (model.body[0], [2]), (model.body[2], [3, 4, 5])):
        kill(layer, channels)
    model.body.register_forward_hook(lambda module, args, output: seen.append((args[0].detach(), output.detach())))
    reports = []
    smaller = shrink(model, x, report=reports.append)
    assert removed(model, smaller).keys() == {"body.0.weight", "body.0.bias", "body.2.weight"}  # what lies within goes
    assert "hooks" in reports[0].left["first"]
    seen.clear()
    assert torch.allclose(model(x), smaller(x))
    for before, after in zip(*seen, strict=True):
        assert torch.allclose(before, after)


class Branches(nn.Module):
    """Cannot be traced: the path depends on the data."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
        self.used_in_part = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
        self.unused = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        x = self.body(x)
        x = x + self.used_in_part(x) + self.used_in_part[0](x).sum()
        return x if x.sum() > 0 else -x


def test_parts_of_a_model_that_cannot_be_traced():
    model = Branches()
    for part in model.children():
        kill(part[0], [0, 1])
    smaller = checked(model, torch.randn(4, 3))
    assert smaller.body[0].out_features == 4
    assert smaller.used_in_part[0].out_features == smaller.unused[0].out_features == 6


def test_another_path_in_training_is_respected():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.aux = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x, scale=None):
            x = torch.relu(self.a(x))
            out = self.b(x) if scale is None else self.b(x) * scale
            return (out, self.aux(x)) if self.training else out

    model = Auxiliary()
    with torch.no_grad():
        model.b.weight[:, 0] = 0
    smaller = checked(model, torch.randn(2, 3))
    assert len(smaller.train()(torch.randn(2, 3))) == 2


def test_forward_code_that_keeps_state():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.calls = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), 0

        def forward(self, x):
            self.calls += 1
            self.last = self.layers(x)
            return self.last

    model = Counts()
    kill(model.layers[0], [0])
    smaller = shrink(model, torch.randn(2, 2))
    assert (model.calls, smaller.calls, smaller.layers[0].out_features) == (0, 0, 2)
    assert not hasattr(smaller, "last")


def test_parts_that_cannot_be_looked_into_keep_state_and_write_in_place():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x.add_(1.0) if x.isfinite().all() else x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.odd, self.b, self.c = nn.Linear(2, 3), Odd(), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.a(x)
            changed = self.odd(x=x[:, :])
            return self.c(torch.relu(self.b(x))) + changed.sum()

    model = Net()
    kill(model.a, [0, 1, 2])  # constants, but no longer those of the bias
    kill(model.b, [0])
    with torch.no_grad():
        model.a.bias -= 0.5
    smaller = checked(model, torch.randn(3, 2))
    assert (model.odd.calls, smaller.odd.calls, smaller.b.out_features) == (0, 0, 3)


def test_structured_outputs_odd_signatures_and_inputs_changed_in_place():
    @dataclass
    class Output:
        logits: torch.Tensor

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
            self.child = Acts(torch.relu)

        def forward(self, *args):
            return {"out": Output(self.child(x=self.body(*args))), "name": "net"}

    model, x = Net(), torch.randn(4, 3)
    kill(model.body[1], [0])
    kill(model.child.a, [0])
    kept = x.clone()
    smaller = shrink(model, x)
    assert torch.equal(x, kept)
    assert (smaller.body[1].out_features, smaller.child.a.out_features) == (5, 3)
    torch.testing.assert_close(smaller(x.clone())["out"].logits, model(x.clone())["out"].logits)


def test_unbatched_images_and_norms_without_statistics():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 2, 1))
    kill(model[0], [0])
    kill(model[1], [1])
    assert checked(model, torch.randn(3, 1, 4, 4))[0].out_channels == 3  # a constant is no constant after such a norm
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 1))
    kill(model[0], [0])
    assert not removed(model, checked(model, torch.randn(1, 4, 4)))


# ---------------------------------------------------------------------------------------------- attention


def dead_heads(attention, unread=(), constant=()):
    size = attention.head_dim
    with torch.no_grad():
        for parameter in attention.parameters():
            nn.init.normal_(parameter, std=0.5)
        value = attention.v_proj_weight if attention.in_proj_weight is None else attention.in_proj_weight.chunk(3)[2]
        for head in unread:
            attention.out_proj.weight[:, head * size : (head + 1) * size] = 0
        for head in constant:
            value[head * size : (head + 1) * size] = 0
    return attention


class Attends(nn.Module):
    def __init__(self, attention, **options):
        super().__init__()
        self.attention, self.options = attention, options

    def forward(self, q, k, v, key_padding_mask=None, attn_mask=None):
        return self.attention(q, k, v, key_padding_mask=key_padding_mask, attn_mask=attn_mask, **self.options)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constant", [(), (2,), (1, 2, 3)])
def test_dead_heads(batch_first, need_weights, bias, constant):
    attention = nn.MultiheadAttention(8, 4, batch_first=batch_first, bias=bias)
    model = Attends(dead_heads(attention, unread=[0], constant=constant), need_weights=need_weights)
    q, k, v = torch.randn(3, 4, 5, 8).unbind()
    smaller = checked(model, q, k, v)
    assert isinstance(smaller.attention, FewerHeads)
    assert smaller.attention.num_heads == 3 - len(constant)
    batch = q.size(0 if batch_first else 1)
    length = q.size(1 if batch_first else 0)
    bools, floats = torch.rand(length, length) < 0.3, torch.randn(batch * 4, length, length)
    bools[:, 0] = False
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -1] = True
    for masks in ((None, bools), (padding, None), (padding, bools), (None, floats), (floats[:batch, 0], floats)):
        torch.testing.assert_close(outputs(smaller, q, k, v, *masks), outputs(model, q, k, v, *masks))
    single = q[0], k[0], v[0], torch.randn(5), torch.randn(4, 5, 5)
    torch.testing.assert_close(outputs(smaller, *single), outputs(model, *single))
    smaller.train()(q, k, v).sum().backward()


def test_heads_with_other_key_and_value_widths_and_the_causal_hint():
    attention = dead_heads(nn.MultiheadAttention(8, 4, kdim=5, vdim=6), [1], [3])
    model = Attends(attention, need_weights=False)
    args = torch.randn(4, 2, 8), torch.randn(7, 2, 5), torch.randn(7, 2, 6)
    smaller = checked(model, *args)
    assert removed(model, smaller)["attention.v_proj_weight"] == ((8, 6), (4, 6))
    model.options["is_causal"] = smaller.options["is_causal"] = True
    args = torch.randn(4, 2, 8), torch.randn(4, 2, 5), torch.randn(4, 2, 6)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    torch.testing.assert_close(outputs(smaller, *args, None, mask), outputs(model, *args, None, mask))
    with pytest.raises(RuntimeError, match="attn_mask"):
        smaller(*args)


def test_attention_weights_that_are_used_keep_all_heads():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = dead_heads(nn.MultiheadAttention(8, 4), [0])

        def forward(self, x):
            out, weights = self.attention(x, x, x)
            return out + weights.sum()

    model = Weights()
    assert not removed(model, checked(model, torch.randn(3, 2, 8)))
    attention = dead_heads(nn.MultiheadAttention(8, 4), [0])
    x = torch.randn(3, 2, 8)
    assert type(shrink(attention, (x, x, x))) is nn.MultiheadAttention
    assert type(shrink(attention, (x, x, x, None, False))) is FewerHeads
    twice = nn.ModuleList([Attends(attention, need_weights=False), Attends(attention, need_weights=False)])

    class Untraceable(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = twice

        def forward(self, x):
            for layer in self.layers:
                x = layer(x, x, x) if x.sum() != 0 else x
            return x

    smaller = checked(Untraceable(), x)
    assert smaller.layers[0].attention is smaller.layers[1].attention
    assert smaller.layers[0].attention.num_heads == 3
    extra = dead_heads(nn.MultiheadAttention(8, 4, add_bias_kv=True), [0])
    assert not removed(Attends(extra), checked(Attends(extra), x, x, x))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, nn.Tanh()])
def test_encoder_layer(batch_first, norm_first, activation):
    layer = nn.TransformerEncoderLayer(8, 4, 16, 0.1, activation, batch_first=batch_first, norm_first=norm_first)
    dead_heads(layer.self_attn, [0], [2])
    kill(layer.linear1, [0, 5])
    with torch.no_grad():
        layer.linear2.weight[:, 7] = 0
    x = torch.randn(4, 5, 8)
    smaller = checked(layer, x)
    assert (smaller.self_attn.num_heads, smaller.linear1.out_features, smaller.linear2.in_features) == (2, 13, 13)
    assert smaller.training
    smaller(x).sum().backward()


def test_a_feedforward_alone_keeps_the_fused_path():
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    kill(layer.linear1, [0, 5])
    smaller = checked(layer, torch.randn(4, 5, 8))
    assert smaller.linear1.out_features == 14
    assert type(smaller.self_attn) is nn.MultiheadAttention


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("first", [0, 1])
def test_encoder_with_padding_and_masks(first):
    """Also with the nested tensors that torch makes of a padded batch in eval mode."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 2)
    for i, layer in enumerate(model.layers):
        dead_heads(layer.self_attn, [0] if i >= first else [], [3] if i >= first else [])
        kill(layer.linear1, [i, 5])
    x = torch.randn(3, 6, 8)
    padding = torch.arange(6) >= torch.tensor([6, 4, 2])[:, None]
    smaller = checked(model, x, None, padding)
    assert smaller.layers[1].self_attn.num_heads == 2
    assert smaller.layers[0].linear1.out_features == 14
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for args in ((x,), (x, causal), (x, causal, padding)):
        torch.testing.assert_close(outputs(smaller, *args), outputs(model, *args))
    smaller.train()(x, None, padding).sum().backward()


def test_decoder_and_a_traced_model_around_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 8))
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, activation="gelu"), 1)
            self.head = nn.Linear(8, 2)

        def forward(self, x, memory):
            return self.head(self.decoder(self.embed(x), memory))

    model = Net()
    layer = model.decoder.layers[0]
    kill(model.embed[0], [0])
    kill(layer.linear1, [3])
    dead_heads(layer.multihead_attn, [1])
    smaller = checked(model, torch.randn(4, 2, 3), torch.randn(5, 2, 8))
    layer = smaller.decoder.layers[0]
    assert (smaller.embed[0].out_features, layer.linear1.out_features, layer.multihead_attn.num_heads) == (5, 15, 1)


# ------------------------------------------------------------------------------------- other ways to call it


class Autoencoder(nn.Module):
    def __init__(self, through_methods=True):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.through_methods = through_methods

    def encode(self, x):
        return self.encoder(x)

    def decode(self, code):
        return self.decoder(torch.tanh(code))

    def forward(self, x):
        return self.decode(self.encode(x)) if self.through_methods else self.decoder(torch.tanh(self.encoder(x)))


def autoencoder(**settings):
    model = Autoencoder(**settings)
    kill(model.encoder[0], [0, 1])
    kill(model.encoder[2], [1])  # a constant entry of the code
    with torch.no_grad():
        model.decoder[0].weight[:, 2] = 0  # an entry that the decoder does not read
    return model


@pytest.mark.parametrize("through_methods", [True, False])
def test_other_methods_keep_what_they_take_and_return(through_methods):
    model, x, code = autoencoder(through_methods=through_methods), torch.randn(5, 3), torch.randn(5, 4)
    smaller = checked(model, x)
    assert smaller.encoder[0].out_features == 6  # inside, everything dead goes
    torch.testing.assert_close(smaller.encode(x), model.encode(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(smaller.decode(code), model.decode(code), rtol=1e-9, atol=1e-9)


def test_the_methods_can_be_named():
    model, x, code = autoencoder(), torch.randn(5, 3), torch.randn(5, 4)
    reports = []
    smaller = shrink(model, x, methods={"encode": x, "decode": code}, report=reports.append)
    torch.testing.assert_close(smaller.encode(x), model.encode(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(smaller.decode(code), model.decode(code), rtol=1e-9, atol=1e-9)
    assert reports[0].traced == ("forward(tensor[5, 3])", "encode(tensor[5, 3])", "decode(tensor[5, 4])")
    only_forward = shrink(model, x, methods={}, report=None)
    assert only_forward.encoder[2].out_features == only_forward.decoder[0].in_features == 2
    torch.testing.assert_close(only_forward(x), model(x), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="no method 'embed'"):
        shrink(model, x, methods={"embed": x})


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x, features=False, scale=None):
        x = torch.relu(self.a(x))
        x = x if scale is None else x * scale
        return x if features else self.b(x)


def test_another_path_needs_its_example():
    model, x = Features(), torch.randn(4, 3)
    kill(model.a, [0, 1])
    reports = []
    assert shrink(model, x, report=reports.append).a.out_features == 4
    assert reports[0].traced == ("forward(tensor[4, 3])",)
    both = shrink(model, x, examples=[((x,), {"features": True})], report=reports.append)
    torch.testing.assert_close(both(x, features=True), model(x, features=True), rtol=1e-9, atol=1e-9)
    assert reports[1].traced[1] == "forward(tensor[4, 3], features=True)"
    assert "takes different paths in its calls" in reports[1].left["a"]
    # Examples on the same path cost nothing.
    assert shrink(model, x, examples=[x[:2], {"x": x}], report=None).a.out_features == 4
    # Here the result could not be scaled any more.
    scale = torch.rand(6)
    scaled = shrink(model, x, examples=[(x, False, scale)], report=None)
    torch.testing.assert_close(scaled(x, False, scale), model(x, False, scale), rtol=1e-9, atol=1e-9)


def test_a_tensor_that_the_model_keeps():
    class Keeps(Acts):
        def forward(self, x):
            self.last = self.act(self.a(x))
            return self.b(self.last)

    model, x = Keeps(torch.relu), torch.randn(4, 3)
    kill(model.a, [0])
    smaller = checked(model, x)
    smaller(x), model(x)
    torch.testing.assert_close(smaller.last, model.last, rtol=1e-9, atol=1e-9)


def test_keywords_and_modules_with_odd_arguments():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Acts(torch.relu)

        def forward(self, *, inputs, **options):
            return {"y": self.child(inputs["x"]) * options.get("scale", 1)}

    model, x = Net(), torch.randn(4, 3)
    kill(model.child.a, [0])
    smaller = shrink(model, {"inputs": {"x": x}, "scale": 2})
    assert smaller.child.a.out_features == 3
    torch.testing.assert_close(smaller(inputs={"x": x}, scale=3), model(inputs={"x": x}, scale=3))


# ------------------------------------------------------------------------------------------------ the report


def reasons(model, *args):
    reports = []
    smaller = shrink(model, args, report=reports.append)
    assert (reports[0].before, reports[0].after) == (size(model), size(smaller))
    assert reports[0].cut == removed(model, smaller)
    return reports[0].left


def test_every_layer_that_keeps_zeros_has_a_reason():
    class Loops(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x)) if x.isfinite().all() else x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4)
            self.loops, self.lstm, self.twice, self.unused = Loops(), nn.LSTM(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.hooked, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
            self.hooked.register_forward_hook(lambda module, args, output: -output)

        def forward(self, x):
            x = self.loops(self.second(self.norm(self.first(x))))
            return self.last(self.hooked(self.twice(self.twice(self.lstm(x)[0]))))

    model = Net()
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param[0] = 0
    around = "the code of Loops around it cannot be traced: symbolically traced variables"
    assert reasons(model, torch.randn(5, 3)) == {
        "first": "its outputs reach LayerNorm",
        "second": "its outputs reach Loops",
        "loops.a": f"{around} cannot be used as inputs to control flow",
        "loops.b": f"{around} cannot be used as inputs to control flow",
        "lstm": "LSTM is not understood",
        "twice": "is called several times",
        "unused": "is not called by the examples",
        "hooked": "has hooks or a forward of its own",
        "last": "its outputs reach the output of Net",
    }


def test_reasons_of_channels_that_are_kept_for_others():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(2, 2, 1))
    kill(model[0], [0, 1])
    assert reasons(model, torch.randn(1, 1, 5, 5)) == {"0": "its outputs are the last, or carry the constants of others"}
    model = ResNet(Basic)
    kill(model.conv1, [0])
    assert reasons(model, torch.randn(2, 3, 8, 8)) == {"conv1": "its outputs are those of other layers too"}
    assert reasons(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)) == {}


def test_reasons_of_heads():
    x = torch.randn(3, 2, 8)
    attention = dead_heads(nn.MultiheadAttention(8, 4), [0], [2])
    returned = "returns its attention weights, which need all heads"
    assert reasons(attention, x, x, x) == {"": returned, "out_proj": returned}
    with torch.no_grad():
        attention.out_proj.weight[:, 2] = 0  # half a head
    assert reasons(Attends(attention), x, x, x) == {"attention.out_proj": "loses whole heads only"}
    extra = dead_heads(nn.MultiheadAttention(8, 4, add_bias_kv=True), [0])
    assert reasons(Attends(extra), x, x, x) == {"attention.out_proj": "adds keys of its own"}


def test_a_long_report_is_shortened(capsys):
    model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(4, 4), nn.LayerNorm(4))))
    for layer in model[::2]:
        kill(layer, [0])
    shrink(model, torch.randn(2, 4))
    assert capsys.readouterr().out.splitlines() == [
        f"shrink: {size(model)} -> {size(model)} parameters (0.0% fewer), 0 tensors cut",
        "traced: forward(tensor[2, 4])",
        "left with rows or columns of zeros:",
        "  0, 2 and 3 more: its outputs reach LayerNorm",
    ]
    shrink(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))
    assert "no layer holds a whole row or column of zeros" in capsys.readouterr().out
    shrink(model, torch.randn(2, 4), report=None)
    assert not capsys.readouterr().out
    many = ShrinkReport(1, 1, ("forward()",), {}, {str(i): f"reason {i}" for i in range(20)})
    assert str(many).splitlines()[-1] == "  and 8 layers for 8 other reasons: see .left"


# ----------------------------------------------------------------------------------------- random networks


class RandomNet(nn.Module):
    """A random chain of small layers, some of them wrapped in a residual sum."""

    def __init__(self, kinds):
        super().__init__()
        self.layers = nn.ModuleList()
        width = 2
        for kind in kinds:
            if kind[0] == "grouped" and width % 2:
                kind = ("conv", 4, 1, False, True)
            if kind[0] == "conv":
                self.layers.append(nn.Conv2d(width, kind[1], kind[2], padding=kind[2] // 2 * kind[3], bias=kind[4]))
                width = kind[1]
            elif kind[0] == "norm":
                self.layers.append(nn.BatchNorm2d(width))
            elif kind[0] == "grouped":
                self.layers.append(nn.Conv2d(width, width * kind[1], 3, padding=kind[2], groups=max(1, width // 2)))
                width *= kind[1]
            elif kind[0] == "depthwise":
                self.layers.append(nn.Conv2d(width, width, 3, padding=1, groups=width))
            elif kind[0] == "residual":
                self.layers.append(Basic(width, width))
            else:
                self.layers.append(kind[1])
        self.head = nn.Linear(width, 2)
        self.skips = [kind[0] == "norm" and kind[1] for kind in kinds]

    def forward(self, x):
        for layer, skip in zip(self.layers, self.skips, strict=True):
            x = x + layer(x) if skip else layer(x)
        return self.head(x.mean((2, 3)))


KINDS = st.one_of(
    st.tuples(st.just("conv"), st.integers(1, 5), st.sampled_from([1, 3]), st.booleans(), st.booleans()),
    st.tuples(st.just("norm"), st.booleans()),
    st.tuples(st.just("depthwise")),
    st.tuples(st.just("grouped"), st.integers(1, 2), st.integers(0, 1)),
    st.tuples(st.just("residual")),
    st.tuples(
        st.just("other"),
        st.sampled_from([nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh(), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.GELU()]),
    ),
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(KINDS, min_size=2, max_size=7), st.integers(0, 1000), st.floats(0.1, 0.9))
def test_random_networks_keep_their_outputs(kinds, seed, rate):
    torch.manual_seed(seed)
    model = lively(RandomNet(kinds))
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param *= (torch.rand(param.shape[0]) > rate).view(-1, *[1] * (param.dim() - 1))
                param *= (torch.rand(param.shape[1]) > rate / 2).view(1, -1, *[1] * (param.dim() - 2))
            else:
                param *= torch.rand(param.shape) > rate / 2
    x = torch.randn(2, 2, 17, 17)
    assert checked(model, x).train()(x).shape == (2, 2)


def test_a_model_with_frozen_zeros_shrinks_all_the_same():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[:5] = 0
    rewa.freeze_zeros(model)
    smaller = rewa.shrink(model, torch.randn(4, 6))
    assert smaller[0].out_features == 3
    assert not smaller[0]._forward_pre_hooks
    assert len(model[0]._forward_pre_hooks) == 1
