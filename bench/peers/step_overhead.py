"""The peer of step_overhead.cpp: the same step in Lightning Fabric."""
import json, os, time, warnings
warnings.filterwarnings("ignore")
import torch
from lightning.fabric import Fabric
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(1, 32)

def report(name, step, steps=3000):
    for _ in range(100):
        step()
    best = 1e9
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(steps // 10):
            step()
        best = min(best, (time.perf_counter() - start) / (steps // 10))
    print(json.dumps({"case": name, "value": round(best * 1e6, 3), "unit": "us"}))

fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
model2 = torch.nn.Linear(32, 2)
net, opt = fabric.setup(model2, torch.optim.SGD(model2.parameters(), lr=0.1))
def with_fabric():
    opt.zero_grad()
    fabric.backward(net(x).sum())
    opt.step()

def seconds_since_process_start():
    begun = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    return float(open("/proc/uptime").read().split()[0]) - begun / os.sysconf("SC_CLK_TCK")

with_fabric()
print(json.dumps({"case": "start to first step", "value": round(seconds_since_process_start(), 2), "unit": "s"}))
report("tiny step: Fabric, Lightning Fabric", with_fabric)
