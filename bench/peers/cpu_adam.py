"""The peer of cpu_adam.cpp: torch.optim.AdamW with its fused CPU kernel, over the same tensors."""
import json, time
import torch

ELEMENTS, ROUNDS = 16_000_000, 7
torch.manual_seed(0)


def measure(what, sizes):
    params = [torch.nn.Parameter(torch.randn(n)) for n in sizes]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    optimizer.step()
    best = 1e9
    for _ in range(ROUNDS):
        start = time.perf_counter()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    case = f"AdamW, {what}: Levin's optimizer, torch.optim.AdamW(fused=True)"
    print(json.dumps({"case": case, "value": round(sum(sizes) / 1e6 / best, 1), "unit": "M elements/s", "better": "higher"}))


sizes, left = [], ELEMENTS
while left > 0:
    sizes += [1024] * 4 + [min(left, 1024 * 1024)]
    left -= sizes[-1]
measure("one tensor", [ELEMENTS])
measure("a transformer's tensors", sizes)
measure("1000 vectors", [1024] * 1000)
