from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import rewa
from rewa import export


def sparse_network():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 36, 5)
    ).float()
    rewa.finalize(model, sparsity=0.9)
    return model


def run(path, *inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {entry.name: x.numpy() for entry, x in zip(session.get_inputs(), inputs, strict=True)})


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
    model[0] = rewa.inference.SparseLinear(model[0])
    path = rewa.export_onnx(model, tmp_path / "x.onnx", x)
    np.testing.assert_allclose(run(path, x)[0], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(export.np, "abs", lambda value: np.absolute(value) + 1)
    with pytest.raises(RuntimeError, match="outputs differ by"):
        rewa.export_onnx(nn.Linear(3, 2).float(), tmp_path / "x.onnx", torch.zeros(2, 3, dtype=torch.float32))
    assert list(tmp_path.iterdir()) == []


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
