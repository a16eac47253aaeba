"""The peer of load_model.cpp: transformers' from_pretrained of the same folder. Run after it (it makes the folder).

    python load_model.py [--folder DIR] [--device cuda] [--dtype bfloat16] [--repeat 3]
"""
import argparse
import json
import pathlib
import time

import torch
from transformers import AutoModelForCausalLM


def status_bytes(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return 1024 * int(line.split()[1])


parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="build/bench_model")
parser.add_argument("--device", default="cuda")
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--repeat", type=int, default=3)
asked = parser.parse_args()
size = sum(file.stat().st_size for file in pathlib.Path(asked.folder).glob("*.safetensors"))
if asked.device != "cpu":
    torch.zeros(1, device=asked.device)
best, most = 0, 0
for _ in range(asked.repeat):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status_bytes("VmRSS:")
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(asked.folder, dtype=getattr(torch, asked.dtype), device_map=asked.device)
    if asked.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = status_bytes("VmHWM:") - before
    print(f"opened {size / 1e9:.2f} GB in {seconds:.3f} s, {size / 1e9 / seconds:.1f} GB/s; host memory {peak / 1e9:.2f} GB above what there was")
    best, most = max(best, size / 1e9 / seconds), max(most, peak / 1e9)
    del model
    if asked.device != "cpu":
        torch.cuda.empty_cache()
print(json.dumps({"case": "load", "value": round(best, 3), "unit": "GB/s", "better": "higher"}))
print(json.dumps({"case": "host memory", "value": round(most, 3), "unit": "GB", "better": "lower"}))
