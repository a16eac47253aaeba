#!/usr/bin/env python3
"""Reads the full weights that ranks have written together, as torch's users do, and compares them bit by bit.

    read_full.py FILE TENSORS ROWS COLUMNS
"""
import sys

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(error)
    sys.exit(77)

path, count, rows, columns = sys.argv[1], *map(int, sys.argv[2:])
found = load_file(path)
net = torch.nn.Module()
for i in range(count):
    net.register_parameter(f"layer{i}", torch.nn.Parameter(torch.zeros(rows, columns)))
net.register_buffer("sixteen", torch.zeros(3, dtype=torch.bfloat16))
net.load_state_dict(found)
for i in range(count):
    expected = (torch.arange(rows * columns, dtype=torch.float32) * (i + 1)).reshape(rows, columns)
    assert torch.equal(net.get_parameter(f"layer{i}").data, expected), i
assert found["sixteen"].dtype == torch.bfloat16 and torch.equal(found["sixteen"], torch.full((3,), 0.5, dtype=torch.bfloat16))
print(f"{count} tensors: equal")
