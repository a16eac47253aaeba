"""The peer of trainer_step.cpp: the same step in Lightning's Trainer, bare and with what a user has around it."""
import json, logging, tempfile, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
torch.set_num_threads(1)
torch.manual_seed(0)
STEPS, WARM_UP = 3200, 200
samples = torch.randn(STEPS, 32)

class Tiny(LightningModule):
    def __init__(self, logs):
        super().__init__()
        self.layer, self.logs = torch.nn.Linear(32, 2), logs
    def training_step(self, batch, batch_idx):
        if batch_idx == WARM_UP:
            self.start = time.perf_counter()
        loss = self.layer(batch).sum()
        if self.logs:
            self.log("train_loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def on_train_end(self):
        self.seconds = time.perf_counter() - self.start

def report(name, logs, **options):
    model = Tiny(logs)
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, **options)
    trainer.fit(model, torch.utils.data.DataLoader(samples, batch_size=1))
    print("\n" + json.dumps({"case": name, "value": round(model.seconds / (STEPS - WARM_UP) * 1e6, 3), "unit": "us"}), flush=True)

report("tiny step: Trainer barebones, Lightning Trainer barebones", False, barebones=True)
with tempfile.TemporaryDirectory() as folder:
    report("tiny step: Trainer with logger, bar, checkpoints; Lightning Trainer the same", True, default_root_dir=folder, enable_model_summary=False,
           logger=CSVLogger(folder), callbacks=[TQDMProgressBar(), ModelCheckpoint(every_n_train_steps=1000, save_top_k=-1)])
