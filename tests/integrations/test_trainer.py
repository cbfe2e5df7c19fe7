from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rewa
from killing import die, in_new_process

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

from rewa.integrations.huggingface import SparsityCallback  # noqa: E402

STEPS, SAVED, KILLED = 40, 20, 23
SIZE = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0}
TOKENS = torch.randint(20, (96, 8), generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.slow


class Killer(transformers.TrainerCallback):
    """Kills the process in the middle of a step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == KILLED:
            die()


def gpt2(seed: int = 0) -> nn.Module:
    """A model with dropout, so that the state of the random numbers counts as well."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    transformers.set_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZE))


def trainer(folder: str | Path, *callbacks, model=None, **options):
    """A Trainer for 40 steps of two batches each, with clipped gradients."""
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-3,
        "max_grad_norm": 0.5,
        "save_steps": SAVED,
        "logging_steps": 5,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    data = [{"input_ids": row, "labels": row} for row in TOKENS]
    return transformers.Trainer(
        model=gpt2() if model is None else model,
        args=transformers.TrainingArguments(output_dir=str(folder), **settings | options),
        train_dataset=data,
        eval_dataset=data[:16],
        callbacks=list(callbacks),
    )


def train(folder: str, mode: str = "whole") -> None:
    """Train and write the weights: whole, killed after a checkpoint, or resumed from it."""
    callback = SparsityCallback(sparsity=0.9)
    model = gpt2(0 if mode != "resumed" else 1)  # what is loaded must not depend on the first weights
    running = trainer(f"{folder}/run", callback, *([Killer()] if mode == "killed" else []), model=model)
    running.train(resume_from_checkpoint=f"{folder}/run/checkpoint-{SAVED}" if mode == "resumed" else None)
    assert callback.report.done == STEPS
    assert callback.report.before == callback.report.sparsity
    torch.save(model.state_dict(), Path(folder) / f"{mode}.pt")


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    in_new_process(__file__, "train", str(tmp_path), "killed", killed=True)
    assert not (tmp_path / "killed.pt").exists()
    in_new_process(__file__, "train", str(tmp_path), "resumed")
    train(str(tmp_path))
    whole, resumed = (torch.load(tmp_path / f"{mode}.pt", weights_only=True) for mode in ("whole", "resumed"))
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())
    weights = [whole[name] for name in whole if ".c_" in name and name.endswith("weight")]
    assert sum(int((one == 0).sum()) for one in weights) == round(0.9 * sum(one.numel() for one in weights))


def test_the_log_has_the_sparsity(tmp_path, caplog):
    class Reporter(transformers.TrainerCallback):
        seen = ()

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen = (*self.seen, logs.get("sparsity"))

    callback, reporter = SparsityCallback(compression=10), Reporter()
    running = trainer(tmp_path, reporter, callback, save_strategy="no")
    running.add_callback(running.pop_callback(reporter))  # as the docstring says for those of report_to
    with caplog.at_level(logging.INFO, "rewa"):
        running.train()
    history = [one["sparsity"] for one in running.state.log_history]
    assert history == list(reporter.seen) == sorted(history)
    assert (history[0], history[-1]) == (0, callback.report.sparsity)
    assert str(callback.report) in caplog.text
    assert callback.sparsifier is None


def test_a_second_run_of_a_trainer(tmp_path):
    """After one that broke off, from its checkpoint and from the start; and after one that came to its end."""

    class Breaks(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == KILLED:
                raise KeyboardInterrupt

    whole, callback = gpt2(), SparsityCallback(sparsity=0.9)
    trainer(tmp_path / "whole", SparsityCallback(sparsity=0.9), model=whole).train()
    running = trainer(tmp_path / "run", callback, Breaks())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            running.train()
        assert callback.sparsifier.done == KILLED
    running = trainer(tmp_path / "run", callback, Breaks())
    with pytest.raises(KeyboardInterrupt):
        running.train()
    running.pop_callback(Breaks)
    running.train(resume_from_checkpoint=True)
    assert callback.report.done == STEPS
    assert all(torch.equal(mine, its) for mine, its in zip(running.model.parameters(), whole.parameters(), strict=True))
    running.train()
    assert (callback.report.done, round(callback.report.sparsity, 3)) == (STEPS, 0.9)


def test_a_checkpoint_of_a_dense_run(tmp_path):
    trainer(tmp_path, max_steps=SAVED).train()
    callback = SparsityCallback(sparsity=0.9)
    with pytest.warns(UserWarning, match="resumes at step 20 from a checkpoint without a sparsifier"):
        trainer(tmp_path, callback).train(resume_from_checkpoint=True)
    assert (callback.report.done, callback.report.before) == (STEPS, callback.report.target)


def test_a_run_that_stops_early(tmp_path):
    class Stops(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == KILLED

    callback = SparsityCallback(sparsity=0.9)
    with pytest.warns(UserWarning, match=r"finish\(\) after 23 of 40 steps, before the last cut at step 30"):
        trainer(tmp_path, callback, Stops(), save_strategy="no").train()
    assert callback.report.before < callback.report.sparsity == callback.report.target


def test_the_best_model_of_the_run(tmp_path):
    """It is loaded before the run ends, so that the model has the zeros in any case."""
    options = {"eval_strategy": "steps", "eval_steps": 8, "save_steps": 8, "load_best_model_at_end": True}

    def metrics(_):  # the first model that is evaluated is the best
        return {"age": running.state.global_step}

    options |= {"metric_for_best_model": "age", "greater_is_better": False}
    callback = SparsityCallback(sparsity=0.9)
    running = trainer(tmp_path / "dense", callback, **options)
    running.compute_metrics = metrics
    with pytest.warns(UserWarning, match=r"checkpoint-8, is from before the last cut: 0.00% .* after step 30, by eval_delay"):
        running.train()
    report = callback.report
    assert report.before == 0
    assert report.sparsity == report.target == rewa.sparsity.summary(running.model).prunable.sparsity
    stopper = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    running = trainer(tmp_path / "sparse", callback, stopper, **options, eval_delay=30)
    running.compute_metrics = metrics
    running.train()
    assert running.state.best_model_checkpoint.endswith("checkpoint-32")
    assert callback.report.before == callback.report.sparsity == report.target


def test_bad_arguments():
    with pytest.raises(TypeError, match="SparsityCallback takes steps from the trainer: leave it out"):
        SparsityCallback(sparsity=0.9, steps=10)
    with pytest.raises(TypeError, match="no argument 'sparsty'; did you mean 'sparsity'"):
        SparsityCallback(sparsty=0.9)


def test_without_transformers():
    code = """
import sys
sys.modules["transformers"] = None
from rewa.integrations import huggingface
try:
    huggingface.SparsityCallback
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "this needs transformers: pip install 'rewa[integrations]'"
