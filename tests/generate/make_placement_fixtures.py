"""Writes device maps of accelerate for units of random sizes, which tests/generate/placement_test.cpp compares with. Run:
python tests/generate/make_placement_fixtures.py
"""
import json
import pathlib
import random

import torch
from accelerate import infer_auto_device_map
from accelerate.utils import get_balanced_memory

FILE = pathlib.Path(__file__).parent / "fixtures" / "placement.json"
CASES = 60


def model_of(sizes):
    """A module for each size, in bytes."""
    model = torch.nn.Module()
    with torch.device("meta"):
        for i, size in enumerate(sizes):
            model.add_module(f"u{i}", torch.nn.Linear(1, size // 4, bias=False))
    return model


def fills_gpus(sizes, budgets):
    """Whether all units fit without a reserve: accelerate keeps one even there."""
    gpus = [b for place, b in budgets.items() if place != "cpu"] or [budgets["cpu"]]
    at, used = 0, 0
    for size in sizes:
        while at < len(gpus) and used + size > gpus[at]:
            at, used = at + 1, 0
        if at == len(gpus):
            return False
        used += size
    return True


def cases():
    draw = random.Random(5)
    while True:
        sizes = [4 * draw.randint(20, 200) for _ in range(draw.randint(3, 14))]
        total = sum(sizes)
        gpus = draw.randint(0, 3)
        budgets = {i: int(total * draw.uniform(0.1, 0.5)) for i in range(gpus)}
        budgets["cpu"] = int(total * draw.uniform(0.2, 1.0))
        for word in ("sequential", "balanced"):
            model, memory = model_of(sizes), dict(budgets)
            if word == "balanced":
                memory = get_balanced_memory(model, memory)
            if fills_gpus(sizes, {place: memory[place] for place in budgets}):
                continue
            found = infer_auto_device_map(model, memory, clean_result=False)
            places = [str(found[f"u{i}"]) for i in range(len(sizes))]
            # Units that come must find room on the first device: a case that has none is an error here.
            main = "0" if gpus else "cpu"
            away = ("cpu", "disk") if gpus else ("disk",)
            coming = [s for s, p in zip(sizes, places) if p in away]
            there = sum(s for s, p in zip(sizes, places) if p == main)
            if not coming or there + max(coming) > budgets[0 if gpus else "cpu"]:
                continue
            yield {"word": word, "sizes": sizes, "budgets": {str(k): v for k, v in budgets.items()}, "places": places}


made = cases()
FILE.write_text(json.dumps([next(made) for _ in range(CASES)], separators=(",", ":")).replace('},{"word', '},\n{"word') + "\n")
