"""The peer of ddp_step.cpp: the same model and step in torch's DistributedDataParallel. Start with torchrun --nproc-per-node 2."""
import json, os, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Linear(512, 1536)]
for _ in range(4):
    layers += [nn.ReLU(), nn.Linear(1536, 1536)]
net = DistributedDataParallel(nn.Sequential(*layers, nn.ReLU(), nn.Linear(1536, 10)), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(32, 512), torch.randint(0, 10, (32,))
def step():
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(5):
    step()
best = 1e9
for _ in range(5):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(6):
        step()
    best = min(best, (time.perf_counter() - start) / 6)
if dist.get_rank() == 0:
    print(json.dumps({"case": "ddp", "ms": round(best * 1e3, 3)}))
dist.destroy_process_group()
