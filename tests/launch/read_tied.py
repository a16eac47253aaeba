#!/usr/bin/env python3
"""Loads weights that Levin has written into a tied model of torch, strictly.

    read_tied.py FILE_OR_FOLDER...
"""
import json
import pathlib
import sys

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(error)
    sys.exit(77)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight


def load(path):
    if path.is_dir():
        index = json.loads(next(path.glob("*.index.json")).read_text())
        found = {}
        for file in sorted(set(index["weight_map"].values())):
            found.update(load(path / file))
        assert sorted(found) == sorted(index["weight_map"])
        return found
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


for path in map(pathlib.Path, sys.argv[1:]):
    found = load(path)
    net = Tied()
    net.load_state_dict(found, strict=True)
    assert torch.equal(net.head.weight.float(), torch.arange(12.0).reshape(4, 3)), path
    if path.suffix in (".pt", ".bin"):
        assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr(), path
print("all of them load strictly")
