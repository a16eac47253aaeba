"""Python's torch.profiler on the model of bench/profiler_overhead.cpp, with the same options."""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--shapes", type=int, default=0)
parser.add_argument("--units", type=int, default=0)
args = parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(n, n)

    def forward(self, x):
        return self.fc(x).relu()


torch.set_num_threads(1)
torch.manual_seed(0)
device = torch.device(args.device)
model = torch.nn.Sequential(*[Block(256) for _ in range(24)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
x = torch.randn(32, 256, device=device)
activities = [torch.profiler.ProfilerActivity.CPU]
if device.type == "cuda":
    activities.append(torch.profiler.ProfilerActivity.CUDA)


def step():
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed():
    start = time.perf_counter()
    for _ in range(args.steps):
        step()
    wait()
    return (time.perf_counter() - start) * 1e3 / args.steps


for _ in range(20):
    step()
plain, recorded, ended = [], [], []
for _ in range(args.rounds):
    wait()
    plain.append(timed())
    # with_stack gives Python's modules; without it with_modules records nothing.
    profile = torch.profiler.profile(activities=activities, record_shapes=bool(args.shapes), with_stack=bool(args.units))
    profile.start()
    recorded.append(timed())
    start = time.perf_counter()
    profile.stop()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(os.path.join(folder, "trace.json"))
    ended.append((time.perf_counter() - start) * 1e3 / args.steps)
print(json.dumps({"plain_ms": statistics.median(plain), "recorded_ms": statistics.median(recorded), "end_ms": statistics.median(ended)}))
