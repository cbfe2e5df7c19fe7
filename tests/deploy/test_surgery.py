"""Smaller models with the same outputs: what must stay, how models are called, and what the report says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import rewa
from rewa.deploy.surgery import ShrinkReport, removed, shrink
from shrinking import Acts, Attends, Basic, ResNet, checked, dead_heads, kill, size

# ------------------------------------------------------------------------------------------------------ what must stay


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


def test_a_wrong_model_is_never_returned():
    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand(())

    with pytest.raises(RuntimeError, match="differs by"):
        shrink(nn.Sequential(nn.Linear(2, 2), Random()), torch.ones(1, 2))


def test_a_model_with_frozen_zeros_shrinks_all_the_same():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[:5] = 0
    rewa.freeze_zeros(model)
    smaller = rewa.shrink(model, torch.randn(4, 6))
    assert smaller[0].out_features == 3
    assert not smaller[0]._forward_pre_hooks
    assert len(model[0]._forward_pre_hooks) == 1


# ----------------------------------------------------------------------------------------------- other ways to call it


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


# ---------------------------------------------------------------------------------------------------------- the report


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
