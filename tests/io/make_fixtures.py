"""Writes the fixtures of tests/io with the reference implementation of safetensors and with plain Python.

    python make_fixtures.py [FOLDER_WRITTEN_BY_THE_TEST]

With a folder (LEVIN_IO_KEEP=FOLDER io_test writes one) it also loads the files that Levin wrote there and compares them.
"""
import gzip
import json
import pathlib
import struct
import sys

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "fixtures"
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32",
         "uint64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def tensors():
    """One small tensor of every type; the test makes the same values by the same rule."""
    result = {}
    for name in TYPES:
        dtype = getattr(torch, name)
        values = torch.arange(6) % 2 if name == "bool" else torch.arange(6)
        result[name] = values.to(torch.float32).to(dtype).reshape(2, 3)
    result["scalar"] = torch.tensor(2.5)
    result["empty"] = torch.zeros(0, 4)
    result["ünï/cödé \"quoted\"\n"] = torch.ones(1)
    return result


def main():
    HERE.mkdir(exist_ok=True)
    save_file(tensors(), HERE / "all_types.safetensors", metadata={"format": "pt"})
    shards = HERE / "sharded"
    shards.mkdir(exist_ok=True)
    save_file({"a": torch.arange(3.0)}, shards / "model-00001-of-00002.safetensors")
    save_file({"b": torch.arange(4.0)}, shards / "model-00002-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": weight_map}))
    body = bytes([0, 0, 0x0B, 2]) + struct.pack(">II", 2, 3) + struct.pack(">6h", -1, 2, -300, 400, 5, 6)
    (HERE / "short.idx").write_bytes(body)
    (HERE / "short.idx.gz").write_bytes(gzip.compress(body, mtime=0))
    if len(sys.argv) > 1:
        check(pathlib.Path(sys.argv[1]))


def check(folder):
    written = load_file(folder / "all_types.safetensors")
    expected = tensors()
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert written[name].dtype == tensor.dtype and written[name].shape == tensor.shape, name
        assert written[name].flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8)), name
    assert (folder / "all_types.safetensors").read_bytes() == (HERE / "all_types.safetensors").read_bytes()
    index = json.loads((folder / "sharded/model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(folder / "sharded" / file), name
    print("the reference reads what Levin wrote, byte for byte")


if __name__ == "__main__":
    main()
