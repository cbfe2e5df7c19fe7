"""What the tests of shrink share: models with dead parts, and what must hold for every one that is shrunk."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from rewa.deploy.packed import load_packed, read_packed, save_packed
from rewa.deploy.surgery import removed, shrink


def outputs(model, *args, **kwargs):
    """The eval-mode outputs, whatever mode the model is in."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(*args, **kwargs)


def size(model):
    return sum(param.numel() for param in model.parameters())


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fresh(model):
    """The same architecture as if just built: no weight or statistic is the same."""
    built = copy.deepcopy(model)
    for tensor in built.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(1, 2)
    return built


def same_bits(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def returned(model, smaller, *, twice=True):
    """A shrunk model that was saved, and loaded into a fresh one of the original architecture; then the other ways, too."""
    with tempfile.TemporaryDirectory() as folder:
        file = save_packed(smaller, Path(folder) / "small.rewa", keep_negative_zeros=True)
        assert bool(file.blueprint.changes) == bool(removed(model, smaller))
        back = load_packed(file.path, fresh(model))
        assert type(back) is type(smaller)
        assert same_bits(back.state_dict(), smaller.state_dict())
        assert str(back) == str(smaller)
        assert [module.training for module in back.modules()] == [module.training for module in model.modules()]
        if not twice:
            return back
        again = save_packed(back, Path(folder) / "again.rewa", keep_negative_zeros=True)
        assert again.path.read_bytes() == file.path.read_bytes()
        # The shrunk architecture itself is taken as it is.
        same = fresh(smaller)
        assert load_packed(file.path, same) is same
        assert same_bits(same.state_dict(), smaller.state_dict())
        assert read_packed(file.path).blueprint == file.blueprint
    return back


def checked(model, *args, twice=True):
    """The shrunk model, after everything that must hold for any model."""
    before, modes = bits(model), [module.training for module in model.modules()]
    smaller = shrink(model, args, tolerance=1e-9)
    assert type(smaller) is type(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    found = outputs(smaller, *args)
    torch.testing.assert_close(found, outputs(model, *args), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(outputs(returned(model, smaller, twice=twice), *args), found, rtol=0, atol=0)
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


class Acts(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(3, 4), nn.Linear(4, 2), act

    def forward(self, x):
        return self.b(self.act(self.a(x)))


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


def dead_heads(attention, unread=(), constant=()):
    """The attention with random weights, but for heads that are not read and heads whose values are constant."""
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
