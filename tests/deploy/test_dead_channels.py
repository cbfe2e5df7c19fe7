"""Channels that go: neurons, filters and groups, with the same outputs, and what is left where a constant is needed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rewa.deploy.surgery import removed, shrink
from shrinking import Acts, Basic, Bottleneck, ResNet, checked, kill, lively, size

# -------------------------------------------------------------------------------------------------------------- linear


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


# -------------------------------------------------------------------------------------------------------- convolutions


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


# ----------------------------------------------------------------------------------------------------------- residuals


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


# ----------------------------------------------------------------------------------------------------- random networks


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


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True)
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
    assert checked(model, x, twice=False).train()(x).shape == (2, 2)
