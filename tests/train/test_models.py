"""The networks: torchvision's names and shapes, known counts, and forward passes against slow references."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import rewa
from rewa.deploy.surgery import removed
from rewa.sparsity import prunable
from rewa.train.models import MODELS, BlurConv2d, build, cnn, gpt, lenet, mlp, resnet18, resnet20, resnet50

# torchvision's models, written down by hand: for each stage the shapes of the first block's convolutions, of its shortcut and
# of the other blocks' convolutions, and the number of blocks.
RESNET18 = [
    (["64 64 3", "64 64 3"], None, ["64 64 3", "64 64 3"], 2),
    (["128 64 3", "128 128 3"], "128 64 1", ["128 128 3", "128 128 3"], 2),
    (["256 128 3", "256 256 3"], "256 128 1", ["256 256 3", "256 256 3"], 2),
    (["512 256 3", "512 512 3"], "512 256 1", ["512 512 3", "512 512 3"], 2),
]
RESNET50 = [
    (["64 64 1", "64 64 3", "256 64 1"], "256 64 1", ["64 256 1", "64 64 3", "256 64 1"], 3),
    (["128 256 1", "128 128 3", "512 128 1"], "512 256 1", ["128 512 1", "128 128 3", "512 128 1"], 4),
    (["256 512 1", "256 256 3", "1024 256 1"], "1024 512 1", ["256 1024 1", "256 256 3", "1024 256 1"], 6),
    (["512 1024 1", "512 512 3", "2048 512 1"], "2048 1024 1", ["512 2048 1", "512 512 3", "2048 512 1"], 3),
]


def torchvision_state(stages, features):
    """Names and shapes of torchvision's state_dict, in its order."""
    state = {}

    def add(conv, norm, spec):
        outputs, inputs, size = map(int, spec.split())
        state[f"{conv}.weight"] = (outputs, inputs, size, size)
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{name}"] = (outputs,)
        state[f"{norm}.num_batches_tracked"] = ()

    add("conv1", "bn1", "64 3 7")
    for stage, (first, shortcut, others, depth) in enumerate(stages, 1):
        for index in range(depth):
            for number, spec in enumerate(others if index else first, 1):
                add(f"layer{stage}.{index}.conv{number}", f"layer{stage}.{index}.bn{number}", spec)
            if shortcut and not index:
                add(f"layer{stage}.{index}.downsample.0", f"layer{stage}.{index}.downsample.1", shortcut)
    return state | {"fc.weight": (1000, features), "fc.bias": (1000,)}


def size(model):
    return sum(param.numel() for param in model.parameters())


def weights(model):
    return sum(weight.numel() for weight in prunable(model).values())


@pytest.mark.parametrize(
    ("make", "stages", "features", "entries", "parameters"),
    [(resnet18, RESNET18, 512, 122, 11_689_512), (resnet50, RESNET50, 2048, 320, 25_557_032)],
)
def test_names_and_shapes_are_torchvisions(make, stages, features, entries, parameters):
    with torch.device("meta"):
        model = make()
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert len(found) == entries
    assert list(found.items()) == list(torchvision_state(stages, features).items())
    assert size(model) == parameters


def test_known_sizes():
    with torch.device("meta"):
        assert 2.75e6 < size(resnet18(10, width=32, stem="small-stride2")) < 2.85e6
        assert size(resnet20()) == 272_474
        assert resnet18(10, stem="small").conv1.weight.shape == (64, 3, 3, 3)
    assert weights(cnn()) == 25_744
    assert weights(lenet()) == 430_500
    assert weights(mlp(784, 10)) == 266_200
    small = gpt(65, context=8, layers=2, heads=2, width=4)
    # By block 4 x 12, 4 x 4, 16 x 4 twice; the head; embeddings are not counted.
    assert weights(small) == 2 * (4 * 12 + 4 * 4 + 2 * 4 * 16) + 4 * 65


def reference(state, x, strides, blocks, *, stem=(2, 3), pool=True):
    """A ResNet in eval mode, from its state_dict alone."""

    def conv_bn(x, conv, norm, stride, padding):
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=padding)
        mean, var, weight, bias = (
            state[f"{norm}.{name}"].view(-1, 1, 1) for name in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    x = conv_bn(x, "conv1", "bn1", *stem).clamp(min=0)
    x = F.max_pool2d(x, 3, 2, padding=1) if pool else x
    for stage, depth in enumerate(blocks, 1):
        for index in range(depth):
            name = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            out = x
            for number, (strided, padding) in enumerate(strides, 1):
                out = conv_bn(out, f"{name}.conv{number}", f"{name}.bn{number}", stride if strided else 1, padding)
                out = out.clamp(min=0) if number < len(strides) else out
            if f"{name}.downsample.0.weight" in state:
                x = conv_bn(x, f"{name}.downsample.0", f"{name}.downsample.1", stride, 0)
            x = (out + x).clamp(min=0)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


BASIC = [(True, 1), (False, 1)]
BOTTLENECK = [(False, 0), (True, 1), (False, 0)]


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (lambda: resnet18(5, width=4), {"strides": BASIC, "blocks": (2, 2, 2, 2)}),
        (lambda: resnet20(5, width=4), {"strides": BASIC, "blocks": (3, 3, 3), "stem": (1, 1), "pool": False}),
        (
            lambda: resnet18(5, width=4, stem="small-stride2"),
            {"strides": BASIC, "blocks": (2, 2, 2, 2), "stem": (2, 1), "pool": False},
        ),
        (lambda: resnet50(5, width=4), {"strides": BOTTLENECK, "blocks": (3, 4, 6, 3)}),
    ],
    ids=["resnet18", "resnet20", "resnet18-small", "resnet50"],
)
def test_resnets_compute_what_their_names_say(model, arguments):
    model = model().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "bn" in name or "downsample.1" in name:
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
        x = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(model(x), reference(model.state_dict(), x, **arguments))


def test_initialisation_is_torchvisions():
    weight = resnet18(10, width=32, stem="small").layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)


def test_unknown_stem():
    with pytest.raises(ValueError, match=r"Invalid stem: 'big' \(allowed: imagenet, small, small-stride2\)"):
        resnet18(10, stem="big")


def test_blurred_convolution_against_loops():
    conv = BlurConv2d(2, 3, 3, 2, padding=1, bias=False)
    x = torch.randn(1, 2, 6, 7)
    blurred = torch.zeros_like(x)
    for c in range(2):
        for i in range(6):
            for j in range(7):
                for di, dj in ((a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)):
                    if 0 <= i + di < 6 and 0 <= j + dj < 7:
                        share = (2 - abs(di)) * (2 - abs(dj)) / 16
                        blurred[0, c, i, j] += share * x[0, c, i + di, j + dj]
    torch.testing.assert_close(conv(x), F.conv2d(blurred, conv.weight, stride=2, padding=1))


def test_blurpool_goes_where_ffcv_puts_it_and_keeps_the_names():
    with torch.device("meta"):
        plain, blurred = resnet50(), resnet50(blurpool=True)
    found = [name for name, module in blurred.named_modules() if isinstance(module, BlurConv2d)]
    assert found == [f"layer{stage}.0.{name}" for stage in (2, 3, 4) for name in ("conv2", "downsample.0")]
    assert list(plain.state_dict()) == list(blurred.state_dict())
    with torch.no_grad():
        a, b = resnet50(5, width=16).eval(), resnet50(5, width=16, blurpool=True).eval()
        b.load_state_dict(a.state_dict())
        x = torch.randn(1, 3, 64, 64)
        assert not torch.allclose(a(x), b(x))
    assert weights(a) == weights(b)


def test_cnn_computes_what_its_docstring_says():
    model = cnn().eval()
    with torch.no_grad():
        state = model.state_dict()
        x = images = torch.randn(3, 1, 8, 8)
        for conv, norm, stride in ((0, 1, 1), (3, 4, 2), (6, 7, 2)):
            for name in ("weight", "bias", "running_mean", "running_var"):
                state[f"{norm}.{name}"].copy_(torch.rand(state[f"{norm}.{name}"].shape) + 0.5)
            x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=1)
            weight, bias, mean, var = (
                state[f"{norm}.{k}"].view(-1, 1, 1) for k in ("weight", "bias", "running_mean", "running_var")
            )
            x = ((x - mean) / torch.sqrt(var + 1e-5) * weight + bias).clamp(min=0)
        torch.testing.assert_close(model(images), x.flatten(1) @ state["10.weight"].T + state["10.bias"])


@pytest.mark.parametrize("side", [16, 27, 28, 32])
def test_lenet_takes_other_sizes(side):
    assert lenet(7, channels=3, size=side)(torch.randn(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize("side", [7, 8, 9, 10, 28])
def test_cnn_takes_other_sizes(side):
    assert cnn(7, channels=3, size=side)(torch.randn(2, 3, side, side)).shape == (2, 7)


def test_gpt_is_causal():
    model = gpt(11, context=8, layers=2, heads=2, width=8).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.3 * torch.randn_like(param))
        tokens = torch.randint(11, (1, 8))
        changed = tokens.clone()
        changed[0, 5] = (tokens[0, 5] + 1) % 11
        before, after = model(tokens), model(changed)
        assert before.shape == (1, 8, 11)
        torch.testing.assert_close(before[:, :5], after[:, :5])
        assert all(not torch.allclose(before[:, t], after[:, t]) for t in (5, 6, 7))
        torch.testing.assert_close(model(tokens[:, :3]), before[:, :3])  # a shorter input is a beginning


def test_gpt_against_loops():
    width, heads, context = 6, 2, 4
    model = gpt(5, context=context, layers=2, heads=heads, width=width).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.3 * torch.randn_like(param))
        tokens = torch.tensor([[3, 1, 4, 1]])
        x = torch.stack([model.tokens.weight[token] + model.positions.weight[t] for t, token in enumerate(tokens[0])])
        for block in model.blocks:
            normed = torch.stack([block.norm1(row) for row in x])
            q, k, v = (normed @ part.T + bias for part, bias in zip(*(t.chunk(3) for t in block.qkv.parameters()), strict=True))
            mixed = torch.zeros_like(x)
            for head in range(heads):
                part = slice(head * width // heads, (head + 1) * width // heads)
                for t in range(context):
                    scores = torch.stack([q[t, part] @ k[s, part] for s in range(t + 1)]) / math.sqrt(width / heads)
                    mixed[t, part] = scores.softmax(0) @ v[: t + 1, part]
            x = x + mixed @ block.out.weight.T + block.out.bias
            up, _, down = block.feedforward
            hidden = block.norm2(x) @ up.weight.T + up.bias
            hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            x = x + hidden @ down.weight.T + down.bias
        torch.testing.assert_close(model(tokens)[0], model.norm(x) @ model.head.weight.T)


def test_gpt_starts_at_the_entropy_of_a_guess():
    model = gpt(65, context=32)
    tokens = torch.randint(65, (4, 32))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), torch.randint(65, (4 * 32,)))
    assert loss.item() == pytest.approx(math.log(65), abs=0.1)
    assert model.head.weight is not model.tokens.weight


def test_gpt_drops_only_in_training():
    model = gpt(5, context=4, layers=1, heads=1, width=8, dropout=0.5)
    tokens = torch.randint(5, (1, 4))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_gpt_says_what_does_not_fit():
    with pytest.raises(ValueError, match="5 tokens are more than the model's context of 4"):
        gpt(5, context=4)(torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="width=10 cannot be shared by heads=4"):
        gpt(5, width=10)


@pytest.mark.parametrize(
    ("model", "dead", "shape"),
    [
        (resnet20, "layer2.0.conv1", (1, 3, 32, 32)),
        (lambda: resnet50(10, width=4), "layer2.1.conv2", (1, 3, 64, 64)),
        (lambda: resnet50(10, width=16, blurpool=True), "layer2.0.conv2", (1, 3, 64, 64)),
        (cnn, "3", (1, 1, 8, 8)),
        (lenet, "3", (1, 1, 28, 28)),
        (lambda: mlp(9, 3), "1", (1, 9)),
        (lambda: gpt(5, context=8, width=8), "blocks.1.feedforward.0", (1, 8)),
    ],
    ids=["resnet20", "resnet50", "blurpool", "cnn", "lenet", "mlp", "gpt"],
)
def test_dead_channels_are_removed(model, dead, shape):
    model = model().eval()
    x = torch.randint(5, shape) if dead.startswith("blocks") else torch.randn(shape)
    with torch.no_grad():
        model.get_submodule(dead).weight[1:3] = 0
        small = rewa.shrink(model, x)  # compares the outputs itself
    # The blurred convolution is no plain one: what stands behind it stays.
    assert (f"{dead}.weight" in removed(model, small)) != isinstance(model.get_submodule(dead), BlurConv2d)


@pytest.mark.parametrize(
    ("name", "inputs", "options"),
    [
        ("cnn", (1, 8, 8), {}),
        ("lenet", (1, 28, 28), {}),
        ("mlp", (3, 4, 5), {"hidden": (7,)}),
        ("resnet18", (1, 16, 16), {"width": 4, "stem": "small"}),
        ("resnet20", (3, 32, 32), {"width": 4}),
        ("resnet50", (3, 32, 32), {"width": 4, "blurpool": True}),
        ("gpt", (6,), {"layers": 1, "heads": 2, "width": 8}),
    ],
)
def test_build_takes_sizes_from_the_data(name, inputs, options):
    model = build(name, classes=4, inputs=inputs, **options).eval()
    x = torch.randint(4, (2, *inputs)) if len(inputs) == 1 else torch.randn(2, *inputs)
    assert model(x).shape == ((2, 6, 4) if name == "gpt" else (2, 4))
    copy.deepcopy(model).load_state_dict(model.state_dict())


def test_every_weight_is_used_in_its_modules_forward():
    # FSDP puts the weights of a module together when its forward is called, and nowhere else.
    for name, inputs in (("gpt", (6,)), ("resnet20", (3, 8, 8)), ("lenet", (1, 28, 28)), ("mlp", (1, 4, 4))):
        model = build(name, classes=4, inputs=inputs, **({"layers": 1, "heads": 2, "width": 8} if name == "gpt" else {})).eval()
        called = set()
        for module in model.modules():
            module.register_forward_pre_hook(lambda module, _: called.add(module))
        model(torch.randint(4, (2, *inputs)) if name == "gpt" else torch.randn(2, *inputs))
        holders = {part: module for part, module in model.named_modules() if [*module.parameters(recurse=False)]}
        assert [part for part, module in holders.items() if module not in called] == [], name


def test_every_model_is_built_here():
    assert set(MODELS) == {"cnn", "fastnet", "gpt", "lenet", "mlp", "resnet18", "resnet20", "resnet50"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet-50", "inputs": (3, 8, 8)}, "there is no model 'resnet-50'; did you mean 'resnet50'"),
        ({"name": "resnet50", "inputs": (3, 8, 8), "blur": True}, "no option of resnet50 'blur'; did you mean 'blurpool'"),
        ({"name": "gpt", "inputs": (8,), "context": 9}, "no option of gpt 'context'"),
        ({"name": "gpt", "inputs": (3, 8, 8)}, r"gpt takes text, \(time,\), not examples of shape \(3, 8, 8\)"),
        ({"name": "resnet18", "inputs": (8,)}, r"resnet18 takes images.*\(8,\)"),
        ({"name": "mlp", "inputs": (8,)}, r"mlp takes images"),
        ({"name": "cnn", "inputs": (1, 8, 9)}, "cnn takes square images, not 8 x 9"),
        ({"name": "lenet", "inputs": (1, 8, 8)}, "images of 8 x 8 are too small for lenet"),
    ],
)
def test_build_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(classes=3, **arguments)
