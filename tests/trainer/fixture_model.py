"""A small model that obeys a description, and a run of Lightning that reports what happened: the ground of make_fixtures.py."""
import json
import logging
import shutil
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from unittest import mock

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import lightning
import numpy
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch import callbacks as lit
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

OUT = Path(__file__).resolve().parent / "fixtures"
MADE = f"made with lightning {lightning.__version__}, torch {torch.__version__.split('+')[0]}"
torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------------------- data and files

def make_data():
    generator = torch.Generator().manual_seed(20)
    # 0.25: with samples of length about 1.4 plain SGD with lr 0.1 converges instead of amplifying rounding.
    return {
        "x": 0.25 * torch.randn(64, 32, generator=generator),
        "x_val": 0.25 * torch.randn(64, 32, generator=generator),
        "weight": 0.2 * torch.randn(2, 32, generator=generator),
        "bias": 0.1 * torch.randn(2, generator=generator),
    }


DATA = make_data()


def plain(value):
    """A value as JSON can hold it."""
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().numpy())
    if isinstance(value, numpy.ndarray):
        return [plain(v) for v in value] if value.ndim else plain(value[()])
    if isinstance(value, numpy.float32):
        return plain(float(str(value)))
    if isinstance(value, numpy.generic):
        return plain(value.item())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, timedelta):
        return {"seconds": value.total_seconds()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value)} has no place in a fixture")


def text_of(value, indent="\n"):
    """JSON with a line for each entry of an object, and for each entry of a list of objects."""
    if isinstance(value, dict) and value:
        inner = indent + " "
        return "{" + ",".join(f"{inner}{json.dumps(k)}: {text_of(v, inner)}" for k, v in value.items()) + indent + "}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        inner = indent + " "
        return "[" + ",".join(inner + (json.dumps(v) if len(json.dumps(v)) < 120 else text_of(v, inner)) for v in value) + indent + "]"
    return json.dumps(value)


def write(name, content):
    OUT.mkdir(exist_ok=True)
    text = text_of({"made": MADE, **plain(content)}) + "\n"
    (OUT / name).write_text(text)
    print(f"{name}: {len(text)} bytes", flush=True)


def loader(count=64, batch_size=1, which="x"):
    return DataLoader(DATA[which][:count], batch_size=batch_size)


# ------------------------------------------------------------------------------------------------- a model that obeys

class Rows(Logger):
    """Keeps what it is given."""
    def __init__(self):
        super().__init__()
        self.rows = []

    name, version = "rows", 0

    def log_metrics(self, metrics, step=None):
        self.rows.append({"step": step, "metrics": dict(metrics)})

    def log_hyperparams(self, *args, **kwargs):
        pass


class Files(TorchCheckpointIO):
    """Keeps which checkpoints were saved and removed, in order."""
    def __init__(self, folder):
        super().__init__()
        self.folder, self.events = folder, []

    def name_of(self, path):
        path = Path(path)
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else path.name

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.events.append({"saved": self.name_of(path), "epoch": checkpoint["epoch"], "global_step": checkpoint["global_step"]})
        super().save_checkpoint(checkpoint, path, storage_options)

    def remove_checkpoint(self, path):
        self.events.append({"removed": self.name_of(path)})
        super().remove_checkpoint(path)


class SGD(torch.optim.SGD):
    """Notes its calls. Named as the original, since the name is part of what LearningRateMonitor logs."""

    def step(self, *args, **kwargs):
        self.calls.append("step")
        return super().step(*args, **kwargs)

    def zero_grad(self, *args, **kwargs):
        self.calls.append("zero_grad")
        return super().zero_grad(*args, **kwargs)


def number(value):
    return float(value) if isinstance(value, str) else value


class Net(LightningModule):
    """Linear(32, 2) that does what a case asks for: log these, stop there, use this many optimizers."""
    def __init__(self, log=(), stop_at_batch=None, optimizers=1, manual=False, schedule=None, lr=0.1, sgd=None, calls=None):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)
        with torch.no_grad():
            self.layer.weight.copy_(DATA["weight"])
            self.layer.bias.copy_(DATA["bias"])
        self.logs, self.stop_at_batch, self.count, self.schedule, self.lr, self.sgd = log, stop_at_batch, optimizers, schedule, lr, sgd or {}
        self.automatic_optimization = not manual
        self.calls = calls

    def loss_of(self, x):
        y = self.layer(x)
        return torch.nn.functional.mse_loss(y, torch.ones_like(y))

    def log_all(self, hook, loss=None, batch_idx=0):
        for item in self.logs:
            if item["hook"] != hook:
                continue
            source = item["value"]
            if source == "loss":
                value = loss.detach()
            elif source == "batch_idx":
                value = float(batch_idx)
            elif source == "epoch":
                value = float(self.current_epoch)
            else:
                values = source.get("by_epoch") or source.get("by_batch")
                value = number(values[min(self.current_epoch if "by_epoch" in source else batch_idx, len(values) - 1)])
            options = dict(item.get("options", {}))
            if isinstance(options.get("batch_size"), list):
                options["batch_size"] = options["batch_size"][batch_idx]
            self.log(item["name"], value, **options)

    def training_step(self, batch, batch_idx):
        if self.calls is not None:
            self.calls.append("training_step")
        if self.automatic_optimization:
            loss = self.loss_of(batch)
        else:
            chosen = self.optimizers()
            for i, optimizer in enumerate(chosen if isinstance(chosen, list) else [chosen]):
                # The first optimizer gets one backward pass, each further one two: global_step counts steps, not these.
                for _ in range(1 if i == 0 else 2):
                    loss = self.loss_of(batch)
                    self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        self.log_all("training_step", loss, batch_idx)
        if batch_idx == self.stop_at_batch:
            self.trainer.should_stop = True
        return loss

    def backward(self, loss, *args, **kwargs):
        if self.calls is not None:
            self.calls.append("backward")
        super().backward(loss, *args, **kwargs)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = self.loss_of(batch)
        self.log_all("validation_step", loss, batch_idx)
        return loss

    def test_step(self, batch, batch_idx):
        return self.loss_of(batch)

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)

    def on_validation_epoch_end(self):
        self.log_all("on_validation_epoch_end")

    def on_train_epoch_end(self):
        self.log_all("on_train_epoch_end")

    def configure_optimizers(self):
        optimizers = []
        for _ in range(self.count):
            optimizer = SGD(self.parameters(), lr=self.lr, **self.sgd)
            optimizer.calls = self.calls if self.calls is not None else []
            optimizers.append(optimizer)
        if self.schedule:
            return {"optimizer": optimizers[0], "lr_scheduler": scheduler_of(optimizers[0], self.schedule)}
        return optimizers


def scheduler_of(optimizer, spec):
    spec = dict(spec)
    kind = getattr(lr_scheduler, spec.pop("type"))
    return {"scheduler": kind(optimizer, **spec.pop("options", {})), **spec}


def weights_of(module):
    return {name: value for name, value in module.state_dict().items()}


class Watch(Callback):
    """Counts what happened."""
    def __init__(self):
        self.batches, self.validations, self.sanity_batches, self.epochs, self.val_batches = 0, [], 0, 0, 0

    def on_train_epoch_start(self, trainer, module):
        self.epochs += 1

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches += 1

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if trainer.sanity_checking:
            self.sanity_batches += 1
        else:
            self.val_batches += 1

    def on_validation_epoch_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.validations.append([trainer.current_epoch, trainer.global_step, trainer.fit_loop.total_batch_idx + 1])


def make_callback(spec, folder):
    spec = dict(spec)
    kind = spec.pop("type")
    if kind == "ModelCheckpoint":
        spec["dirpath"] = folder / "checkpoints"
        if "train_time_interval" in spec:
            spec["train_time_interval"] = timedelta(seconds=spec["train_time_interval"])
    if kind == "GradientAccumulationScheduler":
        spec["scheduling"] = {int(k): v for k, v in spec["scheduling"].items()}
    if kind == "Timer":
        spec["duration"] = timedelta(seconds=spec["duration"])
    return getattr(lit, kind)(**spec)


QUIET = dict(accelerator="cpu", devices=1, enable_progress_bar=False, enable_model_summary=False)


def run_case(case):
    """Runs fit as the case says and returns what came of it."""
    folder = Path(tempfile.mkdtemp())
    try:
        calls, rows, files, watch = [], Rows(), Files(folder / "checkpoints"), Watch()
        data = case.get("data", {})
        asked = case.get("callbacks", [])
        callbacks = [make_callback(spec, folder) for spec in asked]
        checkpoints = any(spec["type"] == "ModelCheckpoint" for spec in asked)
        try:
            arguments = {**QUIET, "logger": rows, "enable_checkpointing": checkpoints, **case.get("trainer", {})}
            barebones = arguments.get("barebones")
            if barebones:
                for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"):
                    if name not in case["trainer"]:
                        arguments.pop(name)
            trainer = Trainer(default_root_dir=folder, callbacks=[watch, *callbacks], plugins=[files], **arguments)
            net = Net(calls=calls, **case.get("model", {}))
            sizes = data.get("val", [64])
            val = [loader(n, data.get("batch_size", 1), "x_val") for n in sizes]
            train = loader(data.get("train", 64), data.get("batch_size", 1))
            clock = case.get("seconds_per_batch")
            with mock.patch("lightning.pytorch.callbacks.model_checkpoint.time") if clock else tempfile.TemporaryDirectory() as time:
                if clock:
                    time.monotonic.side_effect = [clock * i for i in range(1000)]
                trainer.fit(net, train, val if len(val) != 1 else val[0])
        except Exception as error:
            return {"error": type(error).__name__}
        limits = trainer.num_val_batches
        result = {
            "batches": watch.batches, "epochs_started": watch.epochs,
            "validations": len(watch.validations), "validated_at": watch.validations,
            "val_batches": watch.val_batches, "sanity_batches": watch.sanity_batches,
            "global_step": trainer.global_step, "current_epoch": trainer.current_epoch,
            "num_training_batches": trainer.num_training_batches, "num_val_batches": limits if isinstance(limits, list) else [limits],
            "zero_grads": calls.count("zero_grad"), "steps": calls.count("step"),
            "training_steps": calls.count("training_step"), "backwards": calls.count("backward"),
        }
        if case.get("keep_calls"):
            result["calls"] = calls
        if case.get("keep_estimate"):
            result["estimated_stepping_batches"] = trainer.estimated_stepping_batches
        if case.get("keep_rows"):
            result["rows"] = rows.rows
            result["callback_metrics"] = dict(trainer.callback_metrics)
        if checkpoints:
            result["checkpoints"] = files.events
            result["files"] = sorted(str(p.relative_to(folder / "checkpoints")) for p in (folder / "checkpoints").rglob("*") if p.is_file())
            kept = next(c for c in callbacks if isinstance(c, lit.ModelCheckpoint))
            result["best"] = files.name_of(kept.best_model_path) if kept.best_model_path else ""
            result["best_score"] = kept.best_model_score
            result["current_score"] = kept.current_score
        for callback in callbacks:
            if isinstance(callback, lit.EarlyStopping):
                result["early_stopping"] = {"stopped_epoch": callback.stopped_epoch, "wait_count": callback.wait_count,
                                            "best_score": callback.best_score, "reason": callback.stopping_reason.name}
        return result
    finally:
        shutil.rmtree(folder)
