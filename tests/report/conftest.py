"""A browser to look at pages, and hand-made records as the training loop writes them, small where a test counts by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

TOTAL = 1000


def made_record(
    method="rewa",
    strength=0.01,
    seed=0,
    points=((1000, 90.0, 89.0), (100, 85.0, 84.0)),
    *,
    status="finished",
    metric="accuracy",
    settings=None,
    epochs=3,
    recipe=None,
    file_bytes=500,
    precision="float32",
):
    """A record whose curve has the given points: (nonzero of 1000 prunable weights, validation metric, test metric)."""

    def point(nonzero, validation, test):
        scores = {"validation_loss": 1.0, "validation_accuracy": 50.0, "test_loss": 1.0, "test_accuracy": 50.0}
        return {
            "threshold": 1e-4,
            "prunable": {"total": TOTAL, "nonzero": nonzero},
            "model": {"total": TOTAL + 100, "nonzero": nonzero + 100},
            **scores,
            f"validation_{metric}": validation,
            f"test_{metric}": test,
        }

    rows = [
        {"epoch": epoch + 1, "phase": "train", "lr": 0.1, "train_loss": 1 / (epoch + 1), "validation_loss": 1.2 / (epoch + 1)}
        | {"train_accuracy": 90.0, "validation_accuracy": 88.0, "compression": 1.5 + epoch}
        for epoch in range(epochs)
    ]
    record = {
        "format": 1,
        "name": f"toy-{method}-{strength}-s{seed}",
        "status": status,
        "recipe": {"name": "toy", "metric": metric, "epochs": epochs, "batch_size": 64, "lr": 0.1, **(recipe or {})},
        "method": {"name": method, "strength": strength, "strength_is": "weight decay of y", "settings": settings or {}},
        "seed": seed,
        "command": f"rewa train toy --method {method}",
        "commit": "abc123",
        "versions": {"rewa": "0.1.0"},
        "hardware": {"machine": "x86_64"},
        "numeric": {"device": "cpu", "precision": precision, "channels_last": False, "threads": 1, "processes": 1},
        "data": {"name": "toy", "train": 100, "validation": 30, "test": 30},
        "weights": {"prunable": TOTAL, "model": TOTAL + 100},
        "epochs": rows,
    }
    if status == "finished":
        record |= {
            "curve": [point(*each) for each in points],
            "final": point(*points[-1]) | {"max_drop": 1.0, "file_bytes": file_bytes, "dense_bytes": 4400},
            "layers": [{"name": "0.weight", "shape": [10, 100], "total": TOTAL, "nonzero": points[-1][0]}],
            "histogram": {"counts": [5, 10], "edges": [-4.0, -2.0, 0.0], "zeros": 7},
        }
    return record


def save_run(root: Path, record, timing=True) -> Path:
    folder = root / record["name"]
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
    if timing:
        (folder / "timing.json").write_text(json.dumps({"epoch_seconds": [1.5] * len(record["epochs"]), "resumed": 0}))
    return folder


# Where the metric of each method begins to fall (compression at strength 1), and how far it falls.
METHODS = {"dense": 4.0, "l1": 14.0, "rewa": 45.0, "spred": 22.0, "gmp": 30.0, "str": 26.0, "rigl": 35.0}
LAYERS = {"0.weight": (16, 1, 3, 3), "3.weight": (32, 16, 3, 3), "6.weight": (64, 32, 3, 3), "10.weight": (10, 256)}


def plausible_record(method, strength, seed, *, knee, recipe="digits", metric="accuracy", epochs=20, status="finished"):
    """A record that looks like a run on the digits; ``strength`` 1 is the middle of the grid."""
    rng = np.random.default_rng([seed, int(1000 * strength), len(method), int(10 * knee)])
    layers = {name: int(np.prod(shape)) for name, shape in LAYERS.items()}
    total = sum(layers.values())
    reach = knee * strength

    def scores(compression):
        fall = np.log1p((compression / (2.2 * reach)) ** 2.2)
        accuracy = max(10.0, 98.6 - 1.1 * np.log(max(strength, 0.2) / 0.2) / 3 - 7 * fall)
        result = {}
        for split in ("validation", "test"):
            one = min(100.0, accuracy + rng.normal(0, 0.28))
            result |= {f"{split}_accuracy": one, f"{split}_loss": 0.06 + (100 - one) / 28}
        return result

    def point(compression):
        nonzero = int(total / compression)
        counts = {"prunable": {"total": total, "nonzero": nonzero}, "model": {"total": total + 256, "nonzero": nonzero + 256}}
        return {"threshold": float(1e-5 * compression**1.3), **counts, **scores(compression)}

    done = epochs if status == "finished" else epochs // 2
    rows = [
        {
            "epoch": epoch,
            "phase": "finetune" if method == "gmp" and epoch > 0.8 * epochs else "train",
            "lr": 0.05 * (1 + np.cos(np.pi * epoch / epochs)),
            "train_loss": float(0.03 + 2.1 * np.exp(-5 * epoch / epochs) + abs(rng.normal(0, 0.02))),
            "train_accuracy": float(99.5 - 60 * np.exp(-6 * epoch / epochs)),
            "validation_loss": float(0.08 + 2.1 * np.exp(-4.6 * epoch / epochs) + abs(rng.normal(0, 0.03))),
            "validation_accuracy": float(98.3 - 60 * np.exp(-5.5 * epoch / epochs) + rng.normal(0, 0.4)),
            "compression": float(reach ** (epoch / epochs) + 0.2),
        }
        for epoch in range(1, done + 1)
    ]
    record = {
        "format": 1,
        "name": f"{recipe}-{method}-{strength:g}-s{seed}",
        "status": status,
        "recipe": {"name": recipe, "metric": metric, "epochs": epochs, "batch_size": 64, "lr": 0.1, "momentum": 0.9},
        "method": {
            "name": method,
            "strength": 0.013 * strength,
            "strength_is": "weight decay of y" if method == "rewa" else "penalty",
            "settings": {"K": 9, "M": 2, "eps": 0.0} if method == "rewa" else {},
        },
        "seed": seed,
        "command": f"rewa train {recipe} --method {method} --strength {0.013 * strength:g} --seed {seed}",
        "commit": "8b1f0c2d9e7a46b3a5d1c0f2e4b6a8d0c2e4f6a8",
        "versions": {"rewa": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.2"},
        "hardware": {"machine": "x86_64", "cpu": "AVX2", "cores": 2, "threads": 1},
        "numeric": {"device": "cpu", "precision": "float32", "channels_last": False, "threads": 1, "processes": 1},
        "data": {"name": recipe, "train": 1078, "validation": 359, "test": 360},
        "weights": {"prunable": total, "model": total + 256},
        "epochs": rows,
    }
    if status == "finished":
        compressions = [1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200]
        record["curve"] = [point(each) for each in compressions if each <= 5 * reach or each == 1]
        final = point(0.35 * reach + 1)
        nonzero = final["prunable"]["nonzero"]
        shares = rng.dirichlet(np.array([4.0, 3.0, 2.0, 5.0]))
        record["final"] = final | {"max_drop": 1.0, "file_bytes": int(700 + 2.2 * nonzero), "dense_bytes": 4 * (total + 256)}
        record["layers"] = [
            {"name": name, "shape": LAYERS[name], "total": size, "nonzero": int(min(size, share * nonzero))}
            for (name, size), share in zip(layers.items(), shares, strict=True)
        ]
        sizes = np.concatenate([rng.normal(-1.0, 0.35, nonzero), rng.normal(-5.5, 1.2, total - nonzero)])
        counts, edges = np.histogram(sizes, bins=60)
        record["histogram"] = {"counts": counts.tolist(), "edges": edges.tolist(), "zeros": 123}
    return record


def plausible_runs(root: Path, methods=("dense", "l1", "rewa"), seeds=3, recipe="digits", metric="accuracy", epochs=20) -> Path:
    for index, method in enumerate(methods):
        knee = METHODS.get(method, 6.0 + 1.9 * index)
        for seed in range(seeds):
            for strength in (0.3, 0.6, 1.0, 1.7):
                save_run(root, plausible_record(method, strength, seed, knee=knee, recipe=recipe, metric=metric, epochs=epochs))
    return root


@pytest.fixture
def made():
    return made_record


@pytest.fixture
def saved():
    return save_run


@pytest.fixture(scope="session")
def plausible():
    return plausible_runs


@pytest.fixture(scope="session")
def half_way():
    """Adds a run that is still running."""
    return lambda root: save_run(root, plausible_record("l1", 2.5, 0, knee=METHODS["l1"], status="running"))


@pytest.fixture(scope="module")  # and no longer: while it is open, asyncio.run fails in this process
def browser():
    """Chromium as the system has it."""
    found = {"playwright": importlib.util.find_spec("playwright"), "chromium": shutil.which("chromium")}
    missing = [name for name, place in found.items() if not place]
    if missing:
        reason = f"needs {' and '.join(missing)} to look at the page"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Opens a page and, in the end, checks that nothing was logged and nothing but the file was asked for."""
    contexts, complaints, requests = [], [], []

    def opened(path, viewport=None, **options):
        context = browser.new_context(viewport=viewport or {"width": 1280, "height": 900}, **options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []


@pytest.fixture(scope="session")
def overflow():
    """How much wider than the screen a page is."""
    return lambda page: page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
