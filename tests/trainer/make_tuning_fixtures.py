#!/usr/bin/env python3
"""Writes fixtures/tuning_swa.json: the average that Lightning's StochasticWeightAveraging has found for a module with batch norm, read at
the start of the epoch that refreshes the statistics. At the end of that epoch Lightning makes one more optimizer step, with the gradient
that the last batch of training left behind, so the end of its run (swa.json, case "batch norm") is not the average any more.
"""
from make_fixtures import Callback, NormNet, fit_values, lit, loader
from fixture_model import write


class AtRefresh(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.current_epoch == 6 and batch_idx == 0:
            self.average = {name: value.detach().clone() for name, value in module.named_parameters()}


if __name__ == "__main__":
    seen = AtRefresh()
    swa = lit.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=3, annealing_epochs=2, annealing_strategy="linear")
    net = NormNet(schedule={"type": "StepLR", "options": {"step_size": 1, "gamma": 0.9}})
    fit_values(net, [swa, seen], loader(32, 4), max_epochs=6, limit_val_batches=0)
    write("tuning_swa.json", {"average": seen.average})
