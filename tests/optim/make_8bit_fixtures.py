"""Writes fixtures/adam_8bit.json from bitsandbytes, the published 8-bit optimizer (pip install bitsandbytes; its CPU backend).

    python make_8bit_fixtures.py
"""
import json

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch

from make_fixtures import HERE, filled

NUMEL, STEPS, EVERY = 4352, 5, 8


def main():
    p = torch.nn.Parameter(filled((NUMEL,), torch.float32, 0, 0))
    optimizer = bnb.optim.Adam8bit([p], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    for step in range(1, STEPS + 1):
        p.grad = filled((NUMEL,), torch.float32, 0, step)
        optimizer.step()
    state = optimizer.state[p]
    out = dict(
        signed=F.create_dynamic_map(signed=True).tolist(),
        unsigned=F.create_dynamic_map(signed=False).tolist(),
        params=p.detach()[::EVERY].tolist(),
        state1=state["state1"][::EVERY].tolist(),
        state2=state["state2"][::EVERY].tolist(),
        absmax1=state["absmax1"].tolist(),
        absmax2=state["absmax2"].tolist(),
    )
    rounded = {k: [float(f"{x:.8g}") if isinstance(x, float) else x for x in v] for k, v in out.items()}
    (HERE / "adam_8bit.json").write_text(json.dumps(rounded, separators=(",", ":")) + "\n")


main()
