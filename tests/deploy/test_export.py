from __future__ import annotations

import copy
import subprocess
import sys
import textwrap

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import rewa
from rewa.deploy import export
from rewa.example import Example, named_tensors


def sparse_network():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 36, 5)
    ).float()
    rewa.finalize(model, sparsity=0.9)
    return model


def run(path, *inputs):
    """What another program gets from the file, given its inputs in order."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {entry.name: x.numpy() for entry, x in zip(session.get_inputs(), inputs, strict=True)})


def names(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [entry.name for entry in session.get_inputs()], [entry.name for entry in session.get_outputs()]


def test_onnx_runtime_computes_the_same_at_any_batch_size(tmp_path):
    model = sparse_network().train()
    path = rewa.export_onnx(model, tmp_path / "x.onnx", torch.randn(2, 3, 6, 6, dtype=torch.float32))
    assert model.training
    assert list(tmp_path.iterdir()) == [path]
    x = torch.randn(7, 3, 6, 6, dtype=torch.float32)
    with torch.no_grad():
        np.testing.assert_allclose(run(path, x)[0], copy.deepcopy(model).eval()(x).numpy(), rtol=1e-4, atol=1e-5)


def test_an_accelerated_model_is_exported_dense(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).float().eval()
    rewa.finalize(model, sparsity=0.95)
    x = torch.randn(4, 64, dtype=torch.float32)
    expected = model(x)
    model[0] = rewa.deploy.inference.SparseLinear(model[0])
    path = rewa.export_onnx(model, tmp_path / "x.onnx", x)
    np.testing.assert_allclose(run(path, x)[0], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


class Differs(nn.Module):
    """One output when it runs, another in the file."""

    def __init__(self, running, exported):
        super().__init__()
        self.running, self.exported = running, exported

    def forward(self, x):
        return self.exported(x) if torch.compiler.is_exporting() else self.running(x)


INF, NAN = torch.inf, torch.nan


@pytest.mark.parametrize(
    ("running", "exported"),
    [
        (lambda x: x, lambda x: 1.001 * x),
        (lambda x: x.masked_fill(x > 0, INF), lambda x: x),
        (lambda x: x.masked_fill(x > 0, INF), lambda x: x.masked_fill(x > 0, -INF)),
        (lambda x: x, lambda x: x.masked_fill(x > 0, NAN)),
        (lambda x: 0 * x + 3, lambda x: 0 * x.mean() + 3 + torch.zeros(2, 3, dtype=torch.float32)),  # a fixed batch size
    ],
)
@pytest.mark.filterwarnings("ignore:.*infinite:UserWarning")
def test_a_file_that_computes_something_else_is_not_kept(tmp_path, running, exported):
    x = torch.tensor([[1.0, -2, 3], [-4, 5, -6]], dtype=torch.float32)
    with pytest.raises(RuntimeError, match="ONNX Runtime computes something else"):
        rewa.export_onnx(Differs(running, exported), tmp_path / "x.onnx", x)
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_are_not_finite_are_told(tmp_path):
    x = torch.tensor([[1.0, -2, 3], [-4, 5, -6]], dtype=torch.float32)

    class Masked(nn.Module):
        def forward(self, x):
            return {"scores": x.masked_fill(x < 0, -INF)}

    class Broken(nn.Module):
        def forward(self, x):
            return x.log()

    with pytest.warns(UserWarning, match="'scores' holds infinite values"):
        path = rewa.export_onnx(Masked(), tmp_path / "x.onnx", x)
    np.testing.assert_array_equal(run(path, x)[0], Masked()(x)["scores"].numpy())
    with pytest.raises(ValueError, match=r"'output' is NaN for this example.*check=False"):
        rewa.export_onnx(Broken(), tmp_path / "y.onnx", x)
    assert list(tmp_path.iterdir()) == [path]
    assert rewa.export_onnx(Broken(), tmp_path / "y.onnx", x, check=False).exists()


class Everything(nn.Module):
    """Arguments and outputs of every kind."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).float()

    def forward(self, x, pair, mask=None, times=1, *, flag=False, scale=None, **rest):
        y = self.layer(x) * times + pair["left"] + pair["right"][0]
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        if flag:
            y = y * scale
        return {"y": y, "inner": (y.argmax(-1), [y > 0, None]), "word": "text", "extra": rest["extra"] + 1}


@pytest.mark.parametrize(("mask", "flag"), [(None, True), (torch.tensor([[True, False, False, True]] * 2), False)])
def test_arguments_and_outputs_of_every_kind(tmp_path, mask, flag):
    left, right, x, extra = (torch.randn(2, 4, dtype=torch.float32) for _ in range(4))
    scale = torch.tensor(3.0, dtype=torch.float32)
    args = (x, {"left": left, "right": [right]}, mask, 2)
    example = args, {"flag": flag, "scale": scale, "extra": extra}
    model = Everything()
    path = rewa.export_onnx(model, tmp_path / "x.onnx", example)
    inputs, outputs = names(path)
    assert inputs == ["x", "pair.left", "pair.right.0", *(["mask"] if mask is not None else []), "scale", "extra"]
    assert outputs == ["y", "inner.0", "inner.1.0", "output.extra"]  # an input is called extra
    given = [x, left, right, *([mask] if mask is not None else []), scale, extra]
    with torch.no_grad():
        expected = named_tensors(Example.of(example).call(model)).values()
    for theirs, mine in zip(run(path, *given), expected, strict=True):
        np.testing.assert_allclose(theirs, mine.numpy(), rtol=1e-4, atol=1e-5)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Linear(6, 4).float()

    def forward(self, left, right):
        return self.tower(left) - 2 * self.tower(right)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Siamese(), ["left", "right"]), (nn.MultiheadAttention(6, 2, batch_first=True).float(), ["query", "key", "value"])],
    ids=["siamese", "attention"],
)
def test_one_tensor_for_several_arguments_makes_several_inputs(tmp_path, model, inputs):
    shared = torch.randn(2, 3, 6, dtype=torch.float32)
    path = rewa.export_onnx(model, tmp_path / "x.onnx", (shared,) * len(inputs))
    assert names(path)[0] == inputs
    others = torch.randn(len(inputs), 2, 3, 6, dtype=torch.float32).unbind()
    with torch.no_grad():
        expected = named_tensors(copy.deepcopy(model).eval()(*others))
    for actual, output in zip(run(path, *others), expected.values(), strict=True):
        np.testing.assert_allclose(actual, output.numpy(), rtol=1e-4, atol=1e-5)


def test_weights_keep_their_names(tmp_path):
    import onnx

    model = sparse_network()
    graph = onnx.load(rewa.export_onnx(model, tmp_path / "x.onnx", torch.randn(2, 3, 6, 6, dtype=torch.float32))).graph
    assert {"0.weight", "5.weight", "5.bias"} <= {entry.name for entry in graph.initializer}


def test_without_a_tensor_there_is_nothing_to_export(tmp_path):
    with pytest.raises(ValueError, match="no tensor among the example's arguments"):
        rewa.export_onnx(nn.Identity(), tmp_path / "x.onnx", 3)
    with pytest.raises(ValueError, match="returns no tensor"):
        rewa.export_onnx(Differs(lambda x: 3, lambda x: 3), tmp_path / "x.onnx", torch.ones(2))
    with pytest.raises(TypeError, match="does not take this example"):
        rewa.export_onnx(nn.Linear(2, 2), tmp_path / "x.onnx", {"wrong": torch.ones(2)})
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        rewa.export_onnx(nn.Linear(2, 2), tmp_path / "nowhere" / "x.onnx", torch.ones(2, 2))


def test_weights_too_large_for_one_file_lie_beside_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(export, "LARGE", 1000)
    model = sparse_network()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float32)
    path = tmp_path / "x.onnx"
    path.write_text("an older file")
    assert rewa.export_onnx(model, path, x) == path
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.onnx", "x.onnx.data"]
    assert [record.getMessage() for record in caplog.records if record.name == "rewa.deploy.export"] == [
        f"the weights of {path} are in x.onnx.data beside it: keep the two together"
    ]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("x.onnx", "x.onnx.data"):
        (tmp_path / name).rename(moved / name)
    with torch.no_grad():
        np.testing.assert_allclose(run(moved / "x.onnx", x)[0], copy.deepcopy(model).eval()(x).numpy(), rtol=1e-4, atol=1e-5)
    large = nn.Linear(64, 64).float()
    with pytest.raises(RuntimeError, match="something else"):
        rewa.export_onnx(Differs(large, lambda x: large(x) + 1), path, torch.randn(2, 64, dtype=torch.float32))
    assert list(tmp_path.iterdir()) == [moved]


def test_errors_are_plain_and_say_what_to_do(tmp_path):
    class Depends(nn.Module):
        def forward(self, x):
            return x[: int(x.sum())] if x.sum() > 0 else x

    with pytest.raises(RuntimeError) as caught:
        rewa.export_onnx(Depends(), tmp_path / "x.onnx", torch.ones(2, 3, dtype=torch.float32))
    message = str(caught.value)
    assert "\x1b" not in message
    assert "Depends could not be exported. Try dynamic_batch=False" in message
    assert len(message) < 2000
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_prints_and_logs_nothing(tmp_path):
    """In a process of its own: torch's handlers of logs write to the real stderr."""
    code = """
        import torch, rewa
        class Depends(torch.nn.Module):
            def forward(self, x):
                return x[: int(x.sum())] if x.sum() > 0 else x
        try:
            rewa.export_onnx(Depends(), "x.onnx", torch.ones(2, 3), dynamic_batch=False)
        except RuntimeError as error:
            print("refused")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_a_file_that_onnx_runtime_cannot_run_is_refused_with_advice(tmp_path):
    model, x = nn.Linear(4, 4, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"cannot run Linear on a CPU: export model\.float\(\) instead of bfloat16"):
        rewa.export_onnx(model, tmp_path / "x.onnx", x)
    assert list(tmp_path.iterdir()) == []
    assert rewa.export_onnx(model, tmp_path / "x.onnx", x, check=False).is_file()


TINY = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
IDS = {"input_ids": (2, 8)}
MASKED = {"input_ids": (2, 8), "attention_mask": (2, 8)}


@pytest.mark.parametrize(
    ("name", "config", "inputs", "outputs"),
    [
        ("Bert", {**TINY, "vocab_size": 50}, MASKED, ["last_hidden_state", "pooler_output"]),
        (
            "DistilBert",
            {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 50},
            MASKED,
            ["last_hidden_state"],
        ),
        ("GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}, IDS, None),
        ("ViT", {**TINY, "image_size": 8, "patch_size": 4}, {"pixel_values": (2, 3, 8, 8)}, None),
        ("T5Encoder", {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 50}, MASKED, None),
    ],
)
def test_models_of_transformers(tmp_path, name, config, inputs, outputs):
    import transformers

    kind = getattr(transformers, f"{name.removesuffix('Encoder')}Config")
    model = getattr(transformers, f"{name}Model")(kind(**config)).float().eval()

    def draw(batch):
        return {
            key: torch.randn(batch, *shape[1:], dtype=torch.float32)
            if key == "pixel_values"
            else torch.ones(batch, *shape[1:], dtype=torch.int64)
            if key == "attention_mask"
            else torch.randint(1, 50, (batch, *shape[1:]))
            for key, shape in inputs.items()
        }

    path = rewa.export_onnx(model, tmp_path / "x.onnx", draw(2))
    example = draw(3)  # another batch size
    with torch.no_grad():
        expected = named_tensors(model(**example))
    given, returned = names(path)
    assert given == list(inputs)
    assert returned == list(expected)
    assert outputs is None or returned == outputs
    for theirs, mine in zip(run(path, *example.values()), expected.values(), strict=True):
        np.testing.assert_allclose(theirs, mine.numpy(), rtol=1e-3, atol=1e-4)


def test_without_the_extra_the_error_says_what_to_install():
    code = (
        "import sys, torch, rewa\n"
        "sys.modules['onnxruntime'] = None\n"
        "try:\n"
        "    rewa.export_onnx(torch.nn.Linear(2, 2), 'x.onnx', torch.ones(1, 2))\n"
        "except ModuleNotFoundError as error:\n"
        "    assert \"pip install 'rewa[onnx]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
