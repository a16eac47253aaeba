"""The peer of checkpoint.cpp: Lightning Fabric saves and loads the same state. A save ends with fsync, as Levin's does."""
import argparse, json, os, pathlib, shutil, statistics, time, warnings
warnings.filterwarnings("ignore")
import torch
import torchvision
from lightning.fabric import Fabric

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="build/bench_checkpoint_peer")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--no-fsync", action="store_true", help="a save ends when the system has the bytes")
asked = parser.parse_args()
folder = pathlib.Path(asked.folder)
folder.mkdir(parents=True, exist_ok=True)
path = folder / "last.ckpt"

torch.serialization.set_crc32_options(False)  # the faster setting: torch.load does not look at them
fabric = Fabric(devices=1)
fabric.launch()
with fabric.init_module():
    model = torchvision.models.vit_b_16()
net, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
fabric.backward(net(torch.randn(1, 3, 224, 224, device=fabric.device)).square().mean())
optimizer.step()
optimizer.zero_grad()
state = {"model": net, "optimizer": optimizer}


def save():
    fabric.save(path, state)
    if not asked.no_fsync:
        with open(path) as file:
            os.fsync(file.fileno())


def load():
    fabric.load(path, state)
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()


def report(what, run):
    seconds = []
    for _ in range(asked.repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"case": what, "value": round(statistics.median(seconds), 4), "unit": "s"}))


save()
report("checkpoint: save", save)
report("checkpoint: load", load)
shutil.rmtree(folder)
