#!/usr/bin/env python3
"""Runs Lightning on the CPU and writes what it did to tests/trainer/fixtures/, for the tests of levin::Trainer to compare with.

    make_fixtures.py [PART...]        parts: data hooks counts metrics early_stopping schedulers lr_monitor throughput
                                             lr_finder swa ema restart; all of them without an argument

Everything is made from one small model and one small set of data, so that a C++ program can do the same:
  x.bin, x_val.bin   float32 little endian [64, 32], the samples, row after row
  weight.bin, bias.bin   float32 [2, 32] and [2], where Linear(32, 2) starts
The loss is the mean squared error against ones. Loaders are not shuffled. SGD with lr 0.1 unless a case says otherwise.
JSON keeps a float32 by its shortest decimal; "nan", "inf", "-inf" are strings. docs: tests/trainer/fixtures/README.md.
"""
import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

from fixture_model import DATA, OUT, QUIET, Files, Net, Rows, Watch, loader, plain, run_case, scheduler_of, weights_of, write

import numpy
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch import callbacks as lit
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader


# --------------------------------------------------------------------------------------------------------------- hooks

MODULE_HOOKS = """configure_callbacks prepare_data setup configure_model configure_optimizers train_dataloader val_dataloader
test_dataloader predict_dataloader on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
on_train_batch_start on_train_batch_end on_validation_model_zero_grad on_validation_model_eval on_validation_model_train
on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end on_validation_batch_start
on_validation_batch_end on_test_model_eval on_test_model_train on_test_start on_test_end on_test_epoch_start on_test_epoch_end
on_test_batch_start on_test_batch_end on_predict_model_eval on_predict_start on_predict_end
on_predict_epoch_start on_predict_epoch_end on_predict_batch_start on_predict_batch_end on_before_batch_transfer
transfer_batch_to_device on_after_batch_transfer training_step validation_step test_step predict_step on_before_zero_grad
optimizer_zero_grad on_before_backward backward on_after_backward on_before_optimizer_step configure_gradient_clipping
optimizer_step lr_scheduler_step on_save_checkpoint on_load_checkpoint teardown""".split()
CALLBACK_HOOKS = [name for name, _ in inspect.getmembers(Callback, inspect.isfunction) if not name.startswith("_")]


def recorded(base, names, prefix, entered, left):
    """A class whose methods of these names note when they are entered and when they are left."""
    def wrap(name):
        inner = getattr(base, name)
        signature = inspect.signature(inner)

        def method(self, *args, **kwargs):
            given = signature.bind(self, *args, **kwargs).arguments
            label = f"{prefix}.{name}"
            if "batch_idx" in given:
                label += f"({given['batch_idx']})"
            elif "stage" in given:
                label += f"({getattr(given['stage'], 'value', given['stage'])})"
            entered.append(label)
            result = inner(self, *args, **kwargs)
            left.append(label)
            return result

        method.__signature__ = signature
        method.__name__ = name
        return method
    return type(f"Recorded{base.__name__}", (base,), {name: wrap(name) for name in names})


class HookNet(Net):
    def __init__(self, **kwargs):
        super().__init__(schedule={"type": "StepLR", "options": {"step_size": 1}}, **kwargs)

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return loader(which="x_val")

    test_dataloader = predict_dataloader = val_dataloader


class HookCallback(Callback):
    def state_dict(self):
        return {"seen": True}


def hook_run(verb, trainer, manual=False, resume=None):
    folder = Path(tempfile.mkdtemp())
    entered, left, files = [], [], Files(folder / "checkpoints")
    def make(plugins=(), **arguments):
        return Trainer(default_root_dir=folder, plugins=list(plugins), logger=False, **QUIET, **arguments)
    try:
        path = None
        callback = recorded(HookCallback, CALLBACK_HOOKS, "callback", entered, left)
        if resume:
            first = make(callbacks=[callback()], **resume)
            first.fit(HookNet())
            path = first.checkpoint_callback.best_model_path
            entered.clear()
            left.clear()
        net = recorded(HookNet, MODULE_HOOKS, "module", entered, left)(manual=manual)
        t = make(plugins=[files], callbacks=[callback()], **trainer)
        extra = {"ckpt_path": path} if path else {}
        if verb in ("validate", "test"):
            extra["verbose"] = False
        getattr(t, verb)(net, **extra)
        result = {"verb": verb, "trainer": trainer}
        if manual:
            result["manual"] = True
        if resume:
            result["first"] = resume
        return {**result, "entered": entered, "left": left if left != entered else "as entered",
                "checkpoints": files.events, "global_step": t.global_step, "current_epoch": t.current_epoch}
    finally:
        shutil.rmtree(folder)


def make_hooks():
    fit = dict(max_epochs=1, limit_train_batches=2, limit_val_batches=2)
    cases = {
        "fit": hook_run("fit", fit),
        "fit manual": hook_run("fit", fit, manual=True),
        "fit accumulate": hook_run("fit", dict(max_epochs=1, limit_train_batches=5, limit_val_batches=0, accumulate_grad_batches=2)),
        "fit val_check_interval": hook_run("fit", dict(max_epochs=1, limit_train_batches=4, limit_val_batches=1, val_check_interval=0.5,
                                                       num_sanity_val_steps=0)),
        "fit accumulate val_check_interval": hook_run("fit", dict(max_epochs=1, limit_train_batches=4, limit_val_batches=1, val_check_interval=3,
                                                                  num_sanity_val_steps=0, accumulate_grad_batches=2)),
        "resume by epochs": hook_run("fit", dict(max_epochs=2, limit_train_batches=2, limit_val_batches=0),
                                     resume=dict(max_epochs=1, limit_train_batches=2, limit_val_batches=0)),
        "resume by steps": hook_run("fit", dict(max_steps=3, limit_val_batches=0), resume=dict(max_steps=1, limit_val_batches=0)),
    }
    for verb in ("validate", "test", "predict"):
        limit = {"validate": "limit_val_batches", "test": "limit_test_batches", "predict": "limit_predict_batches"}[verb]
        for batches in (0, 2):
            cases[f"{verb} {batches}"] = hook_run(verb, {limit: batches})
    write("hooks.json", {"cases": cases})


# -------------------------------------------------------------------------------------------------------------- counts

def val_losses(values, name="val_loss"):
    return {"log": [{"hook": "on_validation_epoch_end", "name": name, "value": {"by_epoch": values}}]}


def count_cases():
    cases = []
    def add(number_, name, **case):
        cases.append({"case": number_, "name": name, **case})

    for k in (1, 3):
        add(4, f"train loop, accumulate {k}", trainer=dict(max_epochs=1, limit_train_batches=5, limit_val_batches=1, accumulate_grad_batches=k),
            keep_calls=True)
    for k in (1, 2, 3):
        add(5, f"accumulate {k}", trainer=dict(max_epochs=1, limit_train_batches=20, limit_val_batches=1, accumulate_grad_batches=k))
    for scheduling in ({"1": 2, "3": 4}, {"0": 2, "2": 1}):
        add(5, f"accumulation by epoch {scheduling}", trainer=dict(max_epochs=4, limit_train_batches=10, limit_val_batches=1),
            callbacks=[{"type": "GradientAccumulationScheduler", "scheduling": scheduling}])
    for limit in (100, 7, 0.1, 10, 0.2, 1, 1.0, 0):
        add(7, f"limit_train_batches {limit}", trainer=dict(max_epochs=1, limit_train_batches=limit, limit_val_batches=0))
    for limit in (100, 7, 0.1, 0.2, 1, 1.0, 0):
        add(7, f"limit_val_batches {limit}", trainer=dict(max_epochs=1, limit_train_batches=2, limit_val_batches=limit, num_sanity_val_steps=0))
    add(7, "two val loaders", trainer=dict(max_epochs=1, limit_train_batches=2, limit_val_batches=0.4), data={"val": [64, 8]})
    for limit in (0.001, 1.2, -1):
        add(7, f"limit_train_batches {limit}", trainer=dict(max_epochs=1, limit_train_batches=limit, limit_val_batches=0))
    for limit in (1, 2, 0.1, 0.25, 1.0):
        add(8, f"overfit_batches {limit}", trainer=dict(max_epochs=1, overfit_batches=limit))
    for epochs in (1, 2, 3):
        for denominator in (1, 3, 4):
            add(9, f"val_check_interval 1/{denominator}, {epochs} epochs", trainer=dict(max_epochs=epochs, val_check_interval=1 / denominator))
    add(9, "val_check_interval above the batches", trainer=dict(max_epochs=1, limit_train_batches=10, val_check_interval=100))
    add(9, "val_check_interval 4 of 10", trainer=dict(max_epochs=2, limit_train_batches=10, limit_val_batches=1, val_check_interval=4))
    for k in (1, 2):
        add(9, f"val_check_interval across epochs, accumulate {k}", data={"train": 4},
            trainer=dict(max_steps=12 // k, limit_val_batches=1, val_check_interval=3, check_val_every_n_epoch=None, num_sanity_val_steps=0,
                         accumulate_grad_batches=k))
    add(9, "fraction across epochs", trainer=dict(max_epochs=1, val_check_interval=0.5, check_val_every_n_epoch=None))
    for epochs in (1, 4, 5):
        add(12, f"check_val_every_n_epoch 2, {epochs} epochs",
            trainer=dict(max_epochs=epochs, limit_train_batches=4, limit_val_batches=2, check_val_every_n_epoch=2, num_sanity_val_steps=0))
    add(12, "check_val_every_n_epoch 3, max_steps 8", data={"train": 2}, trainer=dict(max_steps=8, check_val_every_n_epoch=3, num_sanity_val_steps=0))
    half = dict(limit_train_batches=0.5, limit_val_batches=0)
    add(13, "max_steps first", trainer=dict(**half, max_epochs=3, max_steps=42))
    add(13, "max_epochs first", trainer=dict(**half, max_epochs=2, max_steps=192))
    add(13, "epochs unbounded", trainer=dict(**half, max_epochs=-1, max_steps=3))
    add(13, "max_steps, accumulate 10", trainer=dict(**half, max_steps=42, accumulate_grad_batches=10))
    for arguments in (dict(max_epochs=0), dict(max_steps=0), dict(max_epochs=-1, max_steps=0), dict(max_epochs=-100), dict(max_epochs=1, max_steps=-2)):
        add(13, f"bounds {arguments}", trainer=dict(**half, **arguments))
    for arguments in (dict(min_epochs=1, min_steps=16), dict(min_epochs=2), dict(min_steps=40), dict(min_epochs=2, min_steps=10)):
        add(13, f"stop asked at batch 0, {arguments}", trainer=dict(**half, max_epochs=4, **arguments), model={"stop_at_batch": 0})
    short = dict(max_epochs=20, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    for values, options in early_stopping_cases():
        add(15, f"early stopping {values} {options}", trainer=short, model=val_losses(values),
            callbacks=[{"type": "EarlyStopping", "monitor": "val_loss", **options}])
    for batch in (0, 4, 9):
        add(16, f"stop asked at batch {batch}", trainer=dict(max_epochs=1, limit_train_batches=10, limit_val_batches=1), model={"stop_at_batch": batch})
    add(16, "stop asked at batch 4, two epochs, accumulate 3",
        trainer=dict(max_epochs=2, limit_train_batches=10, limit_val_batches=1, accumulate_grad_batches=3), model={"stop_at_batch": 4})

    losses = [10, 9, 2.8, 5, 2.5]
    five = dict(max_epochs=5, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    for k in (-1, 0, 1, 2, 3, 4):
        add(18, f"save_top_k {k}", trainer=five, model=val_losses(losses),
            callbacks=[{"type": "ModelCheckpoint", "filename": "{epoch}", "monitor": "val_loss", "save_top_k": k}])
    for options in ({"save_top_k": 1, "save_last": True}, {"save_top_k": 2, "mode": "max"}, {"save_top_k": 2, "save_last": "link"}):
        add(18, f"checkpoints {options}", trainer=five, model=val_losses(losses),
            callbacks=[{"type": "ModelCheckpoint", "monitor": "val_loss", **options}])
    add(18, "no monitor", trainer=five, callbacks=[{"type": "ModelCheckpoint"}])
    add(18, "no monitor, last", trainer=five, callbacks=[{"type": "ModelCheckpoint", "save_last": True}])
    add(18, "weights only, every second epoch", trainer=five,
        callbacks=[{"type": "ModelCheckpoint", "save_top_k": -1, "every_n_epochs": 2, "save_weights_only": True}])
    names = ["{epoch:03d}-{val_loss:.2f}", "name", "{epoch}_{val/loss:.5f}", "model-{val_loss:.1f}-{missing}", "{epoch}/{step}", None]
    for template in names:
        metric = "val/loss" if template and "val/" in template else "val_loss"
        add(18, f"file name {template}", trainer={**five, "max_epochs": 4}, model=val_losses([3.14159, 0.03, 2, 1], metric),
            callbacks=[{"type": "ModelCheckpoint", "save_top_k": -1, "monitor": metric, "filename": template}])
    add(18, "file name without metric names", trainer={**five, "max_epochs": 2}, model=val_losses([3.14159, 0.03]),
        callbacks=[{"type": "ModelCheckpoint", "save_top_k": -1, "monitor": "val_loss", "filename": "{epoch}-{val_loss:.2f}", "auto_insert_metric_name": False}])

    two = dict(max_epochs=2, limit_val_batches=0)
    every = {"type": "ModelCheckpoint", "save_top_k": -1}
    add(19, "every 16 steps", trainer=two, callbacks=[{**every, "filename": "{step}", "every_n_train_steps": 16}])
    add(19, "every 3 steps, accumulate 2", trainer=dict(**two, limit_train_batches=10, accumulate_grad_batches=2), callbacks=[{**every, "every_n_train_steps": 3}])
    add(19, "every minute, batches of 7 s", trainer=two, seconds_per_batch=7, callbacks=[{**every, "train_time_interval": 60}])
    add(19, "val_check_interval 0.2 of 10", trainer=dict(max_epochs=1, limit_train_batches=10, limit_val_batches=2, val_check_interval=0.2),
        model=val_losses([1]), callbacks=[{**every, "monitor": "val_loss"}])
    add(19, "at the end of training epochs", trainer=dict(max_epochs=2, limit_train_batches=4, limit_val_batches=1, val_check_interval=2),
        model=val_losses([1, 2]), callbacks=[{**every, "monitor": "val_loss", "save_on_train_epoch_end": True}])
    for mode in ("min", "max"):
        add(19, f"NaN monitored, {mode}", trainer=dict(max_epochs=1, limit_train_batches=1, limit_val_batches=1),
            model={"log": [{"hook": "training_step", "name": "foo", "value": {"by_batch": ["nan"]}}]},
            callbacks=[{"type": "ModelCheckpoint", "monitor": "foo", "mode": mode}])
    add(19, "NaN first, then better", trainer=five, model=val_losses(["nan", 3, 2, 5, 4]),
        callbacks=[{"type": "ModelCheckpoint", "monitor": "val_loss", "save_top_k": 2}])

    for fx, batches in (("min", 3), ("max", 3), ("max", 11), ("mean", 5), ("sum", 5)):
        add(21, f"batch_idx reduced by {fx} over {batches}", keep_rows=True, trainer=dict(max_epochs=1, limit_train_batches=batches, limit_val_batches=0),
            model={"log": [{"hook": "training_step", "name": "idx", "value": "batch_idx", "options": {"on_step": False, "on_epoch": True, "reduce_fx": fx}}]})
    add(21, "rows of steps and epochs", keep_rows=True, trainer=dict(max_epochs=2, limit_train_batches=2, limit_val_batches=0, log_every_n_steps=1),
        model={"log": [{"hook": "training_step", "name": "a", "value": "batch_idx", "options": {"on_step": True, "on_epoch": True}}]})
    add(21, "all defaults", keep_rows=True, trainer=dict(max_epochs=2, limit_train_batches=4, limit_val_batches=2, log_every_n_steps=2),
        model={"log": [{"hook": "training_step", "name": "t", "value": "batch_idx"}, {"hook": "validation_step", "name": "v", "value": "batch_idx"},
                       {"hook": "on_train_epoch_end", "name": "e", "value": "epoch"}, {"hook": "on_validation_epoch_end", "name": "w", "value": "epoch"}]})
    add(21, "validation steps and epochs", keep_rows=True, trainer=dict(max_epochs=2, limit_train_batches=2, limit_val_batches=3, log_every_n_steps=1),
        model={"log": [{"hook": "validation_step", "name": "v", "value": "batch_idx", "options": {"on_step": True, "on_epoch": True}}]})
    add(21, "rows while accumulating", keep_rows=True, trainer=dict(max_epochs=2, limit_train_batches=5, limit_val_batches=0, log_every_n_steps=1, accumulate_grad_batches=2),
        model={"log": [{"hook": "training_step", "name": "a", "value": "batch_idx", "options": {"on_step": True, "on_epoch": True}}]})
    add(21, "mean weighted by batch size", keep_rows=True, trainer=dict(max_epochs=1, limit_train_batches=9, limit_val_batches=0),
        model={"log": [{"hook": "training_step", "name": "a", "value": {"by_batch": list(range(1, 10))},
                        "options": {"on_step": False, "on_epoch": True, "batch_size": [v * v for v in range(1, 10)]}}]})
    add(21, "two val loaders", keep_rows=True, data={"val": [4, 2]}, trainer=dict(max_epochs=1, limit_train_batches=2),
        model={"log": [{"hook": "validation_step", "name": "v", "value": "batch_idx"}]})
    for options in ({"on_step": False, "on_epoch": False}, {"reduce_fx": "median", "on_epoch": True}):
        add(21, f"refused {options}", trainer=dict(max_epochs=1, limit_train_batches=1, limit_val_batches=0),
            model={"log": [{"hook": "training_step", "name": "a", "value": "batch_idx", "options": options}]})

    for arguments in (dict(max_epochs=1, accumulate_grad_batches=2), dict(max_epochs=1, accumulate_grad_batches=3), dict(max_epochs=3),
                      dict(max_epochs=2, max_steps=10), dict(max_steps=5), dict(max_epochs=2, limit_train_batches=7, accumulate_grad_batches=4)):
        add(23, f"estimated_stepping_batches {arguments}", keep_estimate=True, trainer=dict(limit_val_batches=0, **arguments))
    add(23, "manual, two optimizers", trainer=dict(max_epochs=1, limit_train_batches=2, limit_val_batches=0), model={"manual": True, "optimizers": 2}, keep_calls=True)
    add(23, "manual refuses accumulation", trainer=dict(max_epochs=1, accumulate_grad_batches=2), model={"manual": True})
    add(23, "manual refuses clipping", trainer=dict(max_epochs=1, gradient_clip_val=1.0), model={"manual": True})
    add(23, "automatic refuses two optimizers", trainer=dict(max_epochs=1), model={"optimizers": 2})

    for n in (True, 1, 4, -1):
        add(24, f"fast_dev_run {n}", trainer=dict(fast_dev_run=n), model=val_losses([1, 2]), callbacks=[{"type": "ModelCheckpoint", "monitor": "val_loss"}])
    add(24, "barebones", trainer=dict(barebones=True, max_epochs=1, limit_train_batches=3, limit_val_batches=1))
    for arguments in (dict(enable_checkpointing=True), dict(logger=True), dict(enable_progress_bar=True), dict(enable_model_summary=True),
                      dict(log_every_n_steps=1), dict(num_sanity_val_steps=1), dict(fast_dev_run=1), dict(detect_anomaly=True), dict(profiler="simple")):
        add(24, f"barebones refuses {arguments}", trainer=dict(barebones=True, max_epochs=1, **arguments))
    for arguments in (dict(max_epochs=2), dict(max_epochs=2, min_steps=3, limit_train_batches=4), dict(max_epochs=3, min_epochs=2, limit_train_batches=4)):
        add(24, f"timer of zero, {arguments}", trainer=dict(limit_val_batches=0, **arguments), callbacks=[{"type": "Timer", "duration": 0}])
    return cases


def early_stopping_cases():
    return [
        ([6, 5, 5, 5, 5, 5], {"patience": 3}), ([6, 5, 4, 4, 3, 3], {"patience": 1}), ([6, 5, 6, 5, 5, 5], {"patience": 3}),
        ([8, 4, 2, 3, 4, 5, 8, 10], {}), ([9, 8, 7, 6, 5, 6, 4, 3, 2, 1], {"stopping_threshold": 2.9}),
        ([9, 4, 2, 16, 32, 64], {"divergence_threshold": 15.9}), ([4, 3, "inf", 2, 1], {}), ([4, 3, "nan", 2, 1], {}),
        ([1, 2, 2, 1, 0, 0, 0], {"mode": "max", "patience": 2}), ([5, 4.95, 4.9, 4.85, 4.8, 4.0], {"min_delta": 0.2, "patience": 2}),
        ([5, 4, 3, 3, 3, 3], {"patience": 0}), ([1, 2, 3, 4, 5, 4], {"mode": "max", "stopping_threshold": 3.5}),
        ([9, 8, 7, 7, 7, 7], {"patience": 2, "check_on_train_epoch_end": False}),
    ]


def combined_cases():
    results = []
    def run(lengths, mode, contents, batch_size=1):
        loaders = {name: DataLoader(range(n), batch_size=batch_size) for name, n in lengths.items()}
        combined = CombinedLoader(loaders, mode)
        iter(combined)
        case = {"lengths": lengths, "batch_size": batch_size, "mode": mode, "size": len(combined)}
        batches = [b for b, _, _ in combined] if mode != "sequential" else [{list(lengths)[d]: b} for b, _, d in combined]
        case["batches"] = len(batches)
        if contents:
            case["contents"] = batches
        results.append(case)
    for mode in ("min_size", "max_size", "max_size_cycle", "sequential"):
        run({"a": 3, "b": 5}, mode, True)
        run({"a": 7, "b": 3, "c": 4}, mode, True, batch_size=2)
        run({"a": 64, "b": 16, "c": 16, "d": 16, "e": 16}, mode, False)
    return results


def requeue_commands():
    """What a job of SLURM runs to be started again, and the checkpoint that it saves before."""
    results = []
    for variables in ({"SLURM_JOB_ID": "12345"}, {"SLURM_JOB_ID": "12346", "SLURM_ARRAY_JOB_ID": "12345", "SLURM_ARRAY_TASK_ID": "2"},
                      {"SLURM_JOB_ID": "invalid"}):
        with (mock.patch("lightning.pytorch.trainer.connectors.signal_connector.call") as call, mock.patch.dict(os.environ, variables),
              mock.patch("lightning.pytorch.trainer.Trainer.save_checkpoint") as save):
            call.return_value = 0
            trainer = Trainer(plugins=[SLURMEnvironment()], logger=False, **QUIET)
            try:
                _SignalConnector(trainer)._slurm_sigusr_handler_fn(None, None)
                expect = {"command": call.call_args.args[0], "checkpoint": Path(save.call_args.args[0]).name}
            except AssertionError:
                expect = {"error": "AssertionError"}
        results.append({"variables": variables, **expect})
    return results


def make_counts():
    cases = count_cases()
    for case in cases:
        case["expect"] = run_case(case)
        print(f"{case['case']:3} {case['name']}: {str(case['expect'])[:100]}", flush=True)
    for case in cases:
        for name in ("keep_calls", "keep_rows", "keep_estimate"):
            case.pop(name, None)
    hosts = ["alpha,beta,gamma", "alpha beta gamma", "1.2.3.100", "1.2.3.100, 2.3.4.200", "host[22]", "host[1,5-9]", "host[5-9,1]", "1.2.3.[100-110]",
             "1.2.3.[089, 100-110]", "host1"]
    write("counts.json", {"cases": cases, "combined": combined_cases(), "slurm_first_host": {h: SLURMEnvironment.resolve_root_node_address(h) for h in hosts},
                          "slurm_requeue": requeue_commands()})


# ------------------------------------------------------------------------------------------------------------- metrics

def csv_run(name, net, train, val, callbacks=(), **arguments):
    folder = Path(tempfile.mkdtemp())
    try:
        trainer = Trainer(default_root_dir=folder, logger=CSVLogger(folder, name="csv", version=0), callbacks=list(callbacks),
                          enable_checkpointing=False, **QUIET, **arguments)
        trainer.fit(net, train, val)
        shutil.copy(folder / "csv" / "version_0" / "metrics.csv", OUT / f"{name}.csv")
        print(f"{name}.csv: {(OUT / f'{name}.csv').stat().st_size} bytes")
        return {"trainer": arguments, "final": weights_of(net), "global_step": trainer.global_step, "current_epoch": trainer.current_epoch,
                "callback_metrics": dict(trainer.callback_metrics), "logged_metrics": dict(trainer.logged_metrics)}
    finally:
        shutil.rmtree(folder)


def make_metrics():
    runs = {}
    both = {"on_step": True, "on_epoch": True}
    model = {"log": [{"hook": "training_step", "name": "train_loss", "value": "loss", "options": both}, {"hook": "validation_step", "name": "val_loss", "value": "loss"}],
             "schedule": {"type": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}}
    runs["metrics_a"] = {
        "data": {"train": 38, "val": [10], "batch_size": 4}, "model": model, "callbacks": [{"type": "LearningRateMonitor"}],
        **csv_run("metrics_a", Net(**model), loader(38, 4), loader(10, 4, "x_val"), [lit.LearningRateMonitor()],
                  max_epochs=2, log_every_n_steps=3, accumulate_grad_batches=2)}
    log = [{"hook": "training_step", "name": "train_loss", "value": "loss", "options": both},
           {"hook": "training_step", "name": "train_sum", "value": "loss", "options": {"on_step": False, "on_epoch": True, "reduce_fx": "sum"}},
           {"hook": "validation_step", "name": "val_loss", "value": "loss"}]
    log += [{"hook": "validation_step", "name": f"val_{fx}", "value": "loss", "options": {"reduce_fx": fx}} for fx in ("sum", "min", "max")]
    log += [{"hook": "validation_step", "name": "val_all", "value": "loss", "options": both}]
    model = {"log": log}
    runs["metrics_b"] = {
        "data": {"train": 38, "val": [10, 7], "batch_size": 4}, "model": model,
        **csv_run("metrics_b", Net(**model), loader(38, 4), [loader(10, 4, "x_val"), loader(7, 4, "x_val")], max_epochs=2, val_check_interval=4, log_every_n_steps=5)}
    model = {"log": [{"hook": "training_step", "name": "train_loss", "value": "loss"}, {"hook": "on_train_epoch_end", "name": "epochs", "value": "epoch"}],
             "schedule": {"type": "CosineAnnealingLR", "options": {"T_max": 20}, "interval": "step"}, "sgd": {"momentum": 0.9, "weight_decay": 0.01}, "lr": 0.2}
    runs["metrics_c"] = {
        "data": {"train": 40, "val": [], "batch_size": 4}, "model": model, "callbacks": [{"type": "LearningRateMonitor", "logging_interval": "step"}],
        **csv_run("metrics_c", Net(**model), loader(40, 4), None, [lit.LearningRateMonitor("step")],
                  max_epochs=2, gradient_clip_val=0.1, gradient_clip_algorithm="norm", log_every_n_steps=1)}
    write("metrics.json", {"runs": runs})


# ----------------------------------------------------------------------------------- callbacks and schedules with values

def make_early_stopping():
    cases = []
    for values, options in early_stopping_cases():
        case = {"trainer": dict(max_epochs=20, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0), "model": val_losses(values),
                "callbacks": [{"type": "EarlyStopping", "monitor": "val_loss", **options}]}
        cases.append({**case, "expect": run_case(case)})
    for limit, min_epochs, min_steps in ((3, 0, 10), (5, 0, 10), (3, 2, 0), (5, 2, 0), (3, 1, 10), (5, 3, 10)):
        case = {"trainer": dict(max_epochs=20, limit_train_batches=limit, limit_val_batches=2, min_epochs=min_epochs, min_steps=min_steps),
                "model": val_losses([5, 10, 10, 10, 10, 10, 10, 10]), "callbacks": [{"type": "EarlyStopping", "monitor": "val_loss", "patience": 0}]}
        cases.append({**case, "expect": run_case(case)})
    for extra in (dict(val_check_interval=0.5, limit_train_batches=4), dict(check_val_every_n_epoch=2, limit_train_batches=2)):
        case = {"trainer": dict(max_epochs=10, limit_val_batches=1, num_sanity_val_steps=0, **extra), "model": val_losses([3, 2, 2, 2, 2, 2, 2]),
                "callbacks": [{"type": "EarlyStopping", "monitor": "val_loss", "patience": 2}]}
        cases.append({**case, "expect": run_case(case)})
    case = {"trainer": dict(max_epochs=3, limit_train_batches=1, limit_val_batches=1), "callbacks": [{"type": "EarlyStopping", "monitor": "absent"}]}
    cases.append({**case, "expect": run_case(case)})
    case = {**case, "callbacks": [{"type": "EarlyStopping", "monitor": "absent", "strict": False}]}
    cases.append({**case, "expect": run_case(case)})
    write("early_stopping.json", {"cases": cases})


class Rates(Callback):
    def __init__(self):
        self.at_start, self.after, self.at_epoch_end, self.at_epoch_start = [], [], [], []

    @staticmethod
    def lr(trainer):
        return trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_start(self, trainer, module):
        self.at_epoch_start.append(self.lr(trainer))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.at_start.append(self.lr(trainer))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.after.append(self.lr(trainer))

    def on_train_epoch_end(self, trainer, module):
        self.at_epoch_end.append(self.lr(trainer))


def fit_values(net, callbacks=(), train=None, val=None, logger=False, **arguments):
    folder = tempfile.mkdtemp()
    try:
        trainer = Trainer(default_root_dir=folder, logger=logger, callbacks=list(callbacks), **QUIET,
                          **{"enable_checkpointing": False, **arguments})
        trainer.fit(net, train if train is not None else loader(64, 4), val)
        return trainer
    finally:
        shutil.rmtree(folder)


def make_schedulers():
    step = {"type": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}
    plateau = {"type": "ReduceLROnPlateau", "options": {"mode": "min", "factor": 0.5, "patience": 0}, "monitor": "val_loss"}
    worse = val_losses([1, 2, 0.5, 3, 4, 0.1])
    by_batch = {"log": [{"hook": "training_step", "name": "t", "value": {"by_batch": [1, 2, 3, 4, 5]}}]}
    cases = []
    def add(name, schedule, model=None, **trainer):
        trainer = {"max_epochs": 4, "limit_train_batches": 5, "limit_val_batches": 1, "num_sanity_val_steps": 0, **trainer}
        rates, net = Rates(), Net(schedule=schedule, **(model or {}))
        case = {"name": name, "trainer": trainer, "model": {**(model or {}), "schedule": schedule}}
        try:
            done = fit_values(net, [rates], loader(), loader(which="x_val"), **trainer)
            case["expect"] = {"lr_at_epoch_start": rates.at_epoch_start, "lr_at_batch_start": rates.at_start, "lr_at_batch_end": rates.after,
                              "lr_at_epoch_end": rates.at_epoch_end, "lr_final": Rates.lr(done)}
        except Exception as error:
            case["expect"] = {"error": type(error).__name__}
        cases.append(case)
    add("epoch", step)
    add("epoch, frequency 2", {**step, "frequency": 2})
    add("step", {**step, "interval": "step"}, max_epochs=2)
    add("step, frequency 2", {**step, "interval": "step", "frequency": 2}, max_epochs=2)
    add("step, accumulate 2", {**step, "interval": "step"}, max_epochs=2, accumulate_grad_batches=2)
    add("step, frequency 2, accumulate 2", {**step, "interval": "step", "frequency": 2}, max_epochs=2, accumulate_grad_batches=2)
    add("epoch, stopped by max_steps", step, max_steps=7)
    add("plateau by epoch", plateau, worse, max_epochs=6)
    add("plateau by epoch, frequency 2", {**plateau, "frequency": 2}, worse, max_epochs=6)
    add("plateau by step", {**plateau, "monitor": "t", "interval": "step"}, by_batch, max_epochs=2)
    add("plateau by step, frequency 2", {**plateau, "monitor": "t", "interval": "step", "frequency": 2}, by_batch, max_epochs=2)
    add("plateau, metric missing", {**plateau, "monitor": "absent"})
    add("plateau, metric missing, not strict", {**plateau, "monitor": "absent", "strict": False})
    add("plateau without monitor", {k: v for k, v in plateau.items() if k != "monitor"})
    add("unknown interval", {**step, "interval": "incorrect"})
    add("cosine by step", {"type": "CosineAnnealingLR", "options": {"T_max": 10}, "interval": "step"}, max_epochs=2)
    add("manual", step, {"manual": True}, max_epochs=2)
    write("schedulers.json", {"cases": cases})


class GroupNet(Net):
    def __init__(self, groups):
        super().__init__(log=[{"hook": "training_step", "name": "t", "value": "batch_idx"}])
        self.groups, self.automatic_optimization = groups, len(groups["optimizers"]) == 1

    def configure_optimizers(self):
        parts = [[self.layer.weight], [self.layer.bias]]
        optimizers, schedules = [], []
        for spec in self.groups["optimizers"]:
            groups = [{"params": parts[i], **g} for i, g in enumerate(spec["groups"])] if "groups" in spec else self.parameters()
            optimizer = getattr(torch.optim, spec["type"])(groups, **spec["options"])
            optimizers.append(optimizer)
            if "schedule" in spec:
                schedules.append(scheduler_of(optimizer, spec["schedule"]))
        return optimizers, schedules

    def training_step(self, batch, batch_idx):
        if self.automatic_optimization:
            return super().training_step(batch, batch_idx)
        loss = self.loss_of(batch)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        if self.trainer.is_last_batch:
            schedules = self.lr_schedulers()
            for schedule in schedules if isinstance(schedules, list) else [schedules]:
                schedule.step()
        self.log_all("training_step", loss, batch_idx)
        return None


def make_lr_monitor():
    step = {"type": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}
    sgd = {"type": "SGD", "options": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}
    adam = {"type": "Adam", "options": {"lr": 0.01, "betas": [0.8, 0.99]}}
    two = [{"lr": 0.1}, {"lr": 0.05}]
    cases = []
    def add(name, optimizers, options=None, **trainer):
        trainer = {"max_epochs": 2, "limit_train_batches": 4, "limit_val_batches": 0, "log_every_n_steps": 2, **trainer}
        rows, monitor = Rows(), lit.LearningRateMonitor(**(options or {}))
        done = fit_values(GroupNet({"optimizers": optimizers}), [monitor], loader(), logger=rows, **trainer)
        cases.append({"name": name, "trainer": trainer, "optimizers": optimizers, "monitor": options or {},
                      "rows": rows.rows, "keys": list(monitor.lrs), "lrs": monitor.lrs, "global_step": done.global_step})
    add("default", [{**sgd, "schedule": step}])
    add("no scheduler", [sgd])
    add("interval of the scheduler", [{**sgd, "schedule": {**step, "interval": "step"}}])
    add("step", [{**sgd, "schedule": step}], {"logging_interval": "step"})
    add("epoch", [{**sgd, "schedule": step}], {"logging_interval": "epoch"})
    add("momentum and weight decay", [{**sgd, "schedule": step}], {"log_momentum": True, "log_weight_decay": True})
    add("betas as momentum", [{**adam, "schedule": step}], {"log_momentum": True})
    add("two groups", [{**sgd, "groups": two, "schedule": step}])
    add("two named groups", [{**sgd, "groups": [{"lr": 0.1, "name": "body"}, {"lr": 0.05, "name": "head"}], "schedule": step}])
    add("named schedule", [{**sgd, "schedule": {**step, "name": "my_rate"}}])
    add("two optimizers of one kind", [{**sgd, "schedule": step}, {**sgd, "schedule": step}], {"logging_interval": "step"})
    add("two kinds", [{**sgd, "schedule": step}, {**adam, "schedule": step}], {"logging_interval": "step"})
    add("one with, one without a scheduler", [{**sgd, "schedule": step}, adam], {"logging_interval": "step"})
    add("two groups, momentum", [{**sgd, "groups": two, "schedule": step}], {"log_momentum": True, "log_weight_decay": True})
    add("accumulate 2", [{**sgd, "schedule": step}], {"logging_interval": "step"}, accumulate_grad_batches=2)
    write("lr_monitor.json", {"cases": cases})


def make_throughput():
    cases = []
    for name, options, flops in (("batch sizes", {}, None), ("lengths", {"length_fn": True}, None), ("flops", {"length_fn": True}, 1000)):
        given = {"batch_size_fn": lambda b: b.size(0), "window_size": 4}
        if options:
            given["length_fn"] = lambda b: b.numel()
        rows, net = Rows(), Net()
        if flops:
            net.flops_per_batch = flops
        fit_values(net, [lit.ThroughputMonitor(**given)], loader(64, 4), loader(8, 4, "x_val"), logger=rows, max_epochs=1, limit_train_batches=8,
                   log_every_n_steps=2, num_sanity_val_steps=0)
        cases.append({"name": name, "window_size": 4, "batch_size": 4, "length": 128 if options else None, "flops_per_batch": flops, "log_every_n_steps": 2,
                      "rows": [{"step": r["step"], "keys": sorted(r["metrics"]),
                                "counts": {k: v for k, v in r["metrics"].items() if k.endswith(("/batches", "/samples", "/lengths"))}} for r in rows.rows]})
    write("throughput.json", {"cases": cases})


def make_lr_finder():
    cases = []
    for name, options in {
        "exponential": dict(min_lr=1e-4, max_lr=1.0, num_training_steps=40), "linear": dict(min_lr=1e-3, max_lr=1.0, num_training_steps=30, mode="linear"),
        "stops early": dict(min_lr=1e-2, max_lr=100.0, num_training_steps=60), "never stops early": dict(min_lr=1e-3, max_lr=10.0, num_training_steps=30, early_stop_threshold=None),
        "cut by max_epochs": dict(min_lr=1e-3, max_lr=1.0, num_training_steps=30), "too few": dict(min_lr=1e-3, max_lr=1.0, num_training_steps=5),
    }.items():
        finder, net = lit.LearningRateFinder(**options), Net()
        epochs = 1 if name == "cut by max_epochs" else 4
        done = fit_values(net, [finder], loader(64, 4), max_epochs=epochs, limit_val_batches=0, enable_checkpointing=True)
        cases.append({"name": name, "data": {"train": 64, "batch_size": 4}, "max_epochs": epochs, "options": options, "lrs": finder.optimal_lr.results["lr"],
                      "losses": finder.optimal_lr.results["loss"], "suggestion": finder.optimal_lr.suggestion(), "lr_after": net.lr,
                      "fit_after": {"global_step": done.global_step, "current_epoch": done.current_epoch, "final": weights_of(net)}})
    write("lr_finder.json", {"cases": cases})


class NormNet(Net):
    """Linear(32, 4), BatchNorm1d(4), Linear(4, 2): the first and last rows come from weight.bin, so that it needs no file of its own."""
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with torch.no_grad():
            first, last = torch.nn.Linear(32, 4), torch.nn.Linear(4, 2)
            first.weight.copy_(torch.cat([DATA["weight"], DATA["weight"].flip(1)]))
            first.bias.zero_()
            last.weight.copy_(DATA["weight"][:, :4])
            last.bias.copy_(DATA["bias"])
        self.layer = torch.nn.Sequential(first, torch.nn.BatchNorm1d(4), last)


def make_swa():
    cases = []
    step = {"type": "StepLR", "options": {"step_size": 1, "gamma": 0.9}}
    for name, kind, options, schedule in (
        ("cosine", Net, dict(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=2), step),
        ("linear", Net, dict(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=3, annealing_strategy="linear"), step),
        ("fraction, no scheduler", Net, dict(swa_lrs=0.02, swa_epoch_start=0.5), None),
        ("batch norm", NormNet, dict(swa_lrs=0.05, swa_epoch_start=3, annealing_epochs=2, annealing_strategy="linear"), step),
    ):
        net, rates = kind(schedule=schedule), Rates()
        initial = weights_of(kind())
        done = fit_values(net, [lit.StochasticWeightAveraging(**options), rates], loader(32, 4), max_epochs=6, limit_val_batches=0)
        cases.append({"name": name, "model": kind.__name__, "schedule": schedule, "data": {"train": 32, "batch_size": 4}, "max_epochs": 6, "options": options,
                      "lr_at_epoch_start": rates.at_epoch_start, "lr_at_batch_start": rates.at_start, "batches": len(rates.at_start),
                      "global_step": done.global_step, "current_epoch": done.current_epoch,
                      "initial": initial if kind is NormNet else None, "final": weights_of(net)})
    write("swa.json", {"cases": cases})


def make_ema():
    cases = []
    for name, kind, options, arguments in (
        ("every step", Net, dict(decay=0.9), {}), ("every second step", Net, dict(decay=0.9, update_every_n_steps=2), {}),
        ("from step 5", Net, dict(decay=0.8, update_starting_at_step=5), {}), ("from epoch 1", Net, dict(decay=0.8, update_starting_at_epoch=1), {}),
        ("accumulate 2", Net, dict(decay=0.9), dict(accumulate_grad_batches=2)), ("batch norm", NormNet, dict(decay=0.9), {}),
        ("batch norm without buffers", NormNet, dict(decay=0.9, use_buffers=False), {}),
    ):
        log = [{"hook": "validation_step", "name": "val_loss", "value": "loss"}]
        net, rows, saved = kind(log=log), Rows(), {}
        class Keep(Callback):
            def on_train_end(self, trainer, module):
                path = Path(trainer.default_root_dir) / "kept.ckpt"
                trainer.save_checkpoint(path)
                saved.update(torch.load(path, weights_only=False))
        average = lit.EMAWeightAveraging(**options)
        # Keep runs first, before the average is copied into the model.
        done = fit_values(net, [Keep(), average], loader(32, 4), loader(16, 4, "x_val"), logger=rows, max_epochs=2, **arguments)
        cases.append({"name": name, "model": kind.__name__, "data": {"train": 32, "val": [16], "batch_size": 4}, "options": options,
                      "trainer": {"max_epochs": 2, **arguments}, "rows": rows.rows, "final": weights_of(net), "global_step": done.global_step,
                      "checkpoint": {"state_dict": saved["state_dict"], "current_model_state": saved["current_model_state"],
                                     "averaging_state": saved["averaging_state"]}})
    write("ema.json", {"cases": cases})


# ------------------------------------------------------------------------------------------------------------- restart

class Placed(DataLoader):
    """A loader that knows its place: what Lightning needs to continue in the middle of an epoch."""
    place, start = 0, 0

    def __iter__(self):
        batches = list(super().__iter__())
        start, self.start = self.start, 0
        for i in range(start, len(batches)):
            self.place = i + 1
            yield batches[i]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.start = state["place"] % len(self)


class Losses(Callback):
    def __init__(self):
        self.losses, self.indices, self.firsts = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"])
        self.indices.append([trainer.current_epoch, batch_idx, trainer.global_step])
        self.firsts.append(int((DATA["x"] == batch[0]).all(1).nonzero()[0]) // 4)


def make_restart():
    schedule = {"type": "StepLR", "options": {"step_size": 1, "gamma": 0.8}}
    folder = Path(tempfile.mkdtemp())
    def run(where, stateful, path=None, validate=False, start=None, **extra):
        kept = lit.ModelCheckpoint(dirpath=folder / where, every_n_train_steps=2, save_top_k=-1)
        files, losses, watch = Files(folder / where), Losses(), Watch()
        net = Net(schedule=schedule)
        arguments = dict(max_epochs=4, limit_val_batches=1 if validate else 0, **extra)
        if validate:
            arguments["val_check_interval"] = 2
        trainer = Trainer(default_root_dir=folder, logger=False, callbacks=[watch, losses, kept], plugins=[files], **QUIET, **arguments)
        train = Placed(DATA["x"][:16], batch_size=4) if stateful else loader(16, 4)
        trainer.fit(net, train, loader(4, 4, "x_val") if validate else None, ckpt_path=path)
        loops = {}
        for event in files.events:
            state = torch.load(folder / where / event["saved"], weights_only=False)
            fit = state["loops"]["fit_loop"]
            loops[event["saved"]] = {"epoch": state["epoch"], "global_step": state["global_step"], "epoch_progress": fit["epoch_progress"],
                                     "batch_progress": fit["epoch_loop.batch_progress"], "batches_that_stepped": fit["epoch_loop.state_dict"].get("_batches_that_stepped"),
                                     "optimizer_steps": fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"],
                                     "scheduler_progress": fit["epoch_loop.scheduler_progress"],
                                     "lr_scheduler_last_epoch": state["lr_schedulers"][0]["last_epoch"]}
        return {"losses": losses.losses, "epoch_batch_step": losses.indices, "samples_of_batch": losses.firsts, "checkpoints": loops if not path else list(loops),
                "validated_at": watch.validations, "epochs_started": watch.epochs,
                "global_step": trainer.global_step, "current_epoch": trainer.current_epoch, "final": weights_of(net)}
    try:
        result = {"data": {"train": 16, "batch_size": 4}, "schedule": schedule, "every_n_train_steps": 2, "max_epochs": 4}
        result["whole"] = run("whole", True)
        result["resumed"] = {}
        for step in (2, 4, 6, 8):
            name = f"epoch={(step - 1) // 4}-step={step}.ckpt"
            result["resumed"][name] = run(f"resumed{step}", True, folder / "whole" / name)
            parts = result["resumed"][name]
            parts["equal"] = all(numpy.allclose(plain(parts["final"][k]), plain(result["whole"]["final"][k]), atol=1e-8) for k in parts["final"])
        run("stateless", False)
        result["resumed_without_loader_state"] = run("resumed_stateless", False, folder / "stateless" / "epoch=0-step=2.ckpt")
        result["whole_validating"] = run("validating", True, validate=True)
        result["resumed_validating"] = run("resumed_validating", True, folder / "validating" / "epoch=0-step=2.ckpt", validate=True)
        write("restart.json", result)
    finally:
        shutil.rmtree(folder)


def write_data():
    OUT.mkdir(exist_ok=True)
    for name, tensor in DATA.items():
        tensor.numpy().astype("<f4").tofile(OUT / f"{name}.bin")


PARTS = {"data": write_data, "hooks": make_hooks, "counts": make_counts, "metrics": make_metrics, "early_stopping": make_early_stopping,
         "schedulers": make_schedulers, "lr_monitor": make_lr_monitor, "throughput": make_throughput, "lr_finder": make_lr_finder,
         "swa": make_swa, "ema": make_ema, "restart": make_restart}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
