from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rewa
from killing import die, in_new_process

lightning = pytest.importorskip("lightning.pytorch")

from rewa.integrations.lightning import SparsityCallback  # noqa: E402

STEPS, SAVED, KILLED = 40, 20, 23
ACCUMULATED, EPOCHS = 2, 4

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
]


def network_of(library) -> type:
    """A module for one of the two names under which Lightning is installed."""

    class Network(library.LightningModule):
        def __init__(self, seed: int = 0) -> None:
            super().__init__()
            torch.set_num_threads(1)
            torch.set_default_dtype(torch.float32)
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))

        def training_step(self, batch, index):
            inputs, labels = batch
            return nn.functional.cross_entropy(self.net(inputs), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    return Network


Network = network_of(lightning)


class Killer(lightning.Callback):
    """Kills the process before a step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == KILLED:
            die()


def loader() -> DataLoader:
    data = torch.randn(160, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    return DataLoader(TensorDataset(data, data[:, :3].argmax(1)), batch_size=8)


def trainer(folder: str | Path, *callbacks, library=lightning, **options):
    """A Trainer for 40 steps of two batches each, with clipped gradients."""
    settings = {
        "max_epochs": EPOCHS,
        "accumulate_grad_batches": ACCUMULATED,
        "gradient_clip_val": 0.5,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(one, library.callbacks.Checkpoint) for one in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 5,
        "default_root_dir": folder,
    }
    return library.Trainer(callbacks=list(callbacks), **settings | options)


def train(folder: str, mode: str = "whole") -> None:
    """Train and write the weights: whole, killed after a checkpoint, or resumed from it."""
    module = Network(0 if mode != "resumed" else 1)  # what is loaded must not depend on the first weights
    callback = SparsityCallback(sparsity=0.9)
    saver = lightning.callbacks.ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1)  # after each epoch: the
    # Trainer resumes within one only with a loader that has a state, whatever the callbacks
    killer = [Killer()] if mode == "killed" else []
    path = f"{folder}/step={SAVED}.ckpt" if mode == "resumed" else None
    trainer(folder, saver, callback, *killer).fit(module, loader(), ckpt_path=path)
    assert callback.report.done == STEPS
    assert callback.report.before == callback.report.sparsity
    torch.save(module.state_dict(), Path(folder) / f"{mode}.pt")


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    in_new_process(__file__, "train", str(tmp_path), "killed", killed=True)
    assert not (tmp_path / "killed.pt").exists()
    in_new_process(__file__, "train", str(tmp_path), "resumed")
    train(str(tmp_path / "whole"))
    whole = torch.load(tmp_path / "whole" / "whole.pt", weights_only=True)
    resumed = torch.load(tmp_path / "resumed.pt", weights_only=True)
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    zeros = sum(int((whole[name] == 0).sum()) for name in ("net.0.weight", "net.2.weight"))
    assert zeros == round(0.9 * (12 * 24 + 24 * 3))


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_the_log_has_the_sparsity(name, tmp_path, caplog):
    library = pytest.importorskip(name)
    logger = pytest.importorskip(f"{name}.loggers").CSVLogger(tmp_path)
    callback, module = SparsityCallback(compression=10), network_of(library)()
    running = trainer(tmp_path, callback, library=library, logger=logger)
    with caplog.at_level(logging.INFO, "rewa"):
        running.fit(module, loader())
    assert running.callback_metrics["sparsity"] == pytest.approx(callback.report.sparsity)
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    place = header.split(",").index("sparsity")
    logged = [float(row.split(",")[place]) for row in rows]
    assert len(logged) == STEPS // 5
    assert logged == sorted(logged)
    assert (logged[0], logged[-1]) == (0, pytest.approx(callback.report.sparsity))
    assert str(callback.report) in caplog.text
    assert callback.sparsifier is None


class WithMuon(Network):
    """Trained by an optimizer that mixes the gradients of a tensor, so that it must not see those of zeros."""

    def configure_optimizers(self):
        return torch.optim.Muon([param for param in self.parameters() if param.dim() == 2], lr=0.02)


@pytest.mark.parametrize(("network", "growth"), [(Network, 0.0), (Network, 1.0), (WithMuon, 1.0)])
def test_equal_to_a_plain_loop(network, growth, tmp_path):
    """Lightning gives its optimizer a closure that computes the gradients: no kernel then, which rounds otherwise."""
    module, callback = network(), SparsityCallback(sparsity=0.9, growth=growth)
    trainer(tmp_path, callback, accumulate_grad_batches=1, gradient_clip_val=None).fit(module, loader())
    plain = network()
    optimizer = plain.configure_optimizers()
    sparsifier = rewa.Sparsifier(plain, optimizer, sparsity=0.9, steps=20 * EPOCHS, growth=growth)
    for _ in range(EPOCHS):
        for batch in loader():
            optimizer.zero_grad()
            plain.training_step(batch, 0).backward()
            optimizer.step()
    sparsifier.finish()
    for mine, its in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine == 0, its == 0)
        torch.testing.assert_close(mine, its, atol=1e-5 if growth and network is Network else 0, rtol=0)


def test_a_run_that_stops_early(tmp_path):
    class Stops(lightning.Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.should_stop = trainer.global_step >= KILLED

    callback = SparsityCallback(sparsity=0.9)
    with pytest.warns(UserWarning, match=r"finish\(\) after 23 of 40 steps, before the last cut at step 30"):
        trainer(tmp_path, callback, Stops()).fit(Network(), loader())
    assert callback.report.before < callback.report.sparsity == callback.report.target


def test_a_run_without_an_end(tmp_path):
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(loader().dataset)

    for options in ({"max_epochs": -1}, {"max_epochs": 1}):
        data = loader() if options["max_epochs"] == -1 else DataLoader(Endless(), batch_size=8)
        with pytest.raises(ValueError, match=r"the Trainer expects (inf|-1) steps.*max_steps"):
            trainer(tmp_path, SparsityCallback(sparsity=0.9), **options).fit(Network(), data)
    callback = SparsityCallback(sparsity=0.9)
    trainer(tmp_path, callback, max_epochs=-1, max_steps=20).fit(Network(), DataLoader(Endless(), batch_size=8))
    assert (callback.report.done, callback.report.steps) == (20, 20)
    assert math.isclose(callback.report.sparsity, 0.9)


def test_two_optimizers(tmp_path):
    class Two(Network):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[2])]

    running = trainer(tmp_path, SparsityCallback(sparsity=0.9), accumulate_grad_batches=1, gradient_clip_val=None)
    with pytest.raises(ValueError, match="Two has 2 optimizers, and SparsityCallback is for one"):
        running.fit(Two(), loader())
